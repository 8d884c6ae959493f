// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stops all threads of another process for a while, and reads their registers (ptrace).
//!
//! - **Flow** [`Stopped::all`] seizes and interrupts each thread, until a look finds no new one ──▶ [`Thread`]s ──drop──▶ all
//!   threads go on
//! - **Order** a signal for which a thread stopped first is delivered when the thread goes on. The kernel lets all threads go
//!   on if this process ends, even if it is killed
//! - **Owner** only the thread that made a [`Stopped`] may use it, because the kernel takes that thread for the debugger
//! - **Not here** memory ([`crate::pager::outside`])

use std::io;
use std::time::{Duration, Instant};

/// Time after which a thread that does not stop (it waits for a device) is an error.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// Largest set of registers.
const SET_BYTES: usize = 16 << 10;
const PTRACE_EVENT_STOP: i32 = 128;

/// Bytes of a `siginfo_t`.
pub const SIGNAL_INFO_BYTES: usize = 128;

/// Sets of registers that a debugger wants, by the type of their note in a core file: general, floating-point, and all of the
/// processor's.
#[cfg(target_arch = "x86_64")]
pub const REGISTER_SETS: [u32; 3] = [1, 2, 0x202];
/// Sets of registers that a debugger wants, by the type of their note in a core file: general, floating-point, and the
/// address of thread-local storage.
#[cfg(not(target_arch = "x86_64"))]
pub const REGISTER_SETS: [u32; 3] = [1, 2, 0x401];

/// A stopped thread.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Number of the thread.
    pub number: i32,
    /// The signal for which it stopped, or 0.
    pub signal: i32,
    /// Information on that signal, or on the stop.
    pub signal_info: [u8; SIGNAL_INFO_BYTES],
    /// The sets of [`REGISTER_SETS`] that the kernel gave, with their types.
    pub registers: Vec<(u32, Vec<u8>)>,
}

/// A process all of whose threads are stopped.
#[derive(Debug)]
pub struct Stopped {
    threads: Vec<Thread>,
    not_send: std::marker::PhantomData<*const ()>,
}

fn ptrace(request: libc::c_uint, thread: i32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: the requests of this module read and write no memory of this process, or a variable that lives over the call.
    match unsafe { libc::ptrace(request, thread, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

impl Stopped {
    /// Stops all threads of a process.
    ///
    /// # Errors
    ///
    /// The kernel's, if this user may not trace the process or another debugger does; [`io::ErrorKind::TimedOut`] if a thread
    /// does not stop.
    pub fn all(pid: u32) -> io::Result<Stopped> {
        let mut stopped = Stopped { threads: Vec::new(), not_send: std::marker::PhantomData };
        let end = Instant::now() + STOP_LIMIT;
        loop {
            let first = stopped.threads.len();
            for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
                let name = entry?.file_name();
                let Some(number) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
                if stopped.threads.iter().any(|thread| thread.number == number) || is_dead(pid, number) {
                    continue;
                }
                match ptrace(libc::PTRACE_SEIZE, number, 0, 0) {
                    Ok(()) => {}
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
                    // A thread that has ended meanwhile cannot be traced.
                    Err(_) if is_dead(pid, number) => continue,
                    Err(error) => return Err(error),
                }
                stopped.threads.push(Thread {
                    number,
                    signal: 0,
                    signal_info: [0; SIGNAL_INFO_BYTES],
                    registers: Vec::new(),
                });
                let _ = ptrace(libc::PTRACE_INTERRUPT, number, 0, 0);
            }
            if stopped.threads.len() == first {
                break;
            }
            let mut index = first;
            while index < stopped.threads.len() {
                match wait(stopped.threads[index].number, end)? {
                    Some(signal) => {
                        let thread = &mut stopped.threads[index];
                        thread.signal = signal;
                        thread.read();
                        index += 1;
                    }
                    None => drop(stopped.threads.remove(index)),
                }
            }
        }
        if stopped.threads.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(stopped)
    }

    /// The stopped threads; the process's first thread comes first, if it lives.
    pub fn threads(&self) -> &[Thread] {
        &self.threads
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for thread in &self.threads {
            // The thread was killed meanwhile if this fails.
            let _ = ptrace(libc::PTRACE_DETACH, thread.number, 0, thread.signal as usize);
        }
    }
}

impl Thread {
    fn read(&mut self) {
        let data = self.signal_info.as_mut_ptr() as usize;
        let _ = ptrace(libc::PTRACE_GETSIGINFO, self.number, 0, data);
        for kind in REGISTER_SETS {
            let mut bytes = vec![0; SET_BYTES];
            let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            if ptrace(libc::PTRACE_GETREGSET, self.number, kind as usize, (&raw mut part) as usize).is_ok() {
                bytes.truncate(part.iov_len);
                self.registers.push((kind, bytes));
            }
        }
    }
}

/// Returns true if the thread has ended and only waits to be reaped.
fn is_dead(pid: u32, thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// Waits until a seized thread stops. Returns the signal that it stopped for, 0 if it was interrupted; `None` if it ended.
fn wait(thread: i32, end: Instant) -> io::Result<Option<i32>> {
    let mut status = 0;
    loop {
        // SAFETY: the status lives over the call; the thread is traced by this one.
        match unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL | libc::WNOHANG) } {
            0 if Instant::now() > end => return Err(io::ErrorKind::TimedOut.into()),
            0 => std::thread::sleep(Duration::from_micros(200)),
            -1 => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error if error.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
                error => return Err(error),
            },
            _ if libc::WIFSTOPPED(status) && status >> 16 == PTRACE_EVENT_STOP => return Ok(Some(0)),
            _ if libc::WIFSTOPPED(status) => return Ok(Some(libc::WSTOPSIG(status))),
            _ => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state_of(pid: u32) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).expect("a state")
    }

    #[test]
    fn a_stopped_process_goes_on_afterwards() {
        let mut child =
            std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("sh starts");
        let pid = child.id();
        let stopped = Stopped::all(pid);
        let forbidden = stopped.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
        if forbidden {
            println!("not run: this container forbids ptrace");
        } else {
            let stopped = stopped.expect("it stops");
            assert_eq!(state_of(pid), 't');
            let [thread] = stopped.threads() else { panic!("one thread: {stopped:?}") };
            assert_eq!(thread.number as u32, pid);
            assert!(thread.registers.iter().any(|(kind, bytes)| *kind == 1 && bytes.len() > 100));
            drop(stopped);
            let end = Instant::now() + Duration::from_secs(10);
            while state_of(pid) != 'R' {
                assert!(Instant::now() < end, "it runs again");
                std::thread::yield_now();
            }
        }
        child.kill().expect("killed");
        child.wait().expect("it ended");
        assert!(Stopped::all(pid).is_err());
    }
}
