// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A child process that does not outlive this one, however this one ends.
//!
//! - **Order** the kernel signals the child when the thread that started it ends (PR_SET_PDEATHSIG); dropping the
//!   handle kills and reaps it

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};

use rustix::process::Signal;

use crate::BenchError;

/// Owns a running child.
#[derive(Debug)]
pub struct Bound {
    child: Child,
    ended: bool,
}

impl Bound {
    /// Starts `command` so that it dies with this process.
    pub fn start(command: &mut Command) -> Result<Bound, BenchError> {
        // SAFETY: the closure runs between fork and exec and makes one system call; it allocates nothing and
        // takes no lock.
        unsafe {
            command.pre_exec(|| {
                rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
                Ok(())
            });
        }
        let child = command.spawn().map_err(BenchError::file(command.get_program()))?;
        Ok(Bound { child, ended: false })
    }

    /// The child's ends of its pipes, and the rest of `std::process::Child`.
    pub fn process(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits until it has ended.
    pub fn wait(mut self) -> Result<ExitStatus, BenchError> {
        let status = self.child.wait().map_err(BenchError::system("waiting for a child process"))?;
        self.ended = true;
        Ok(status)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if !self.ended {
            // Both fail only if the child has ended already.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
