// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The verbs of replicas in a build without the feature `replicate`, as in the wheel `memlift`.
//!
//! - **Flow** the command becomes `memlift-server`, the same command with that feature, which the wheel `memlift-server` has. Where it is
//!   not, or is of another version, the error says how to get it

use std::env;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use memlift::persist::Pool;

use crate::failure::Failure;
use crate::sibling::find;

/// Settings of `replicate`.
#[derive(Debug)]
#[expect(dead_code, reason = "the command line has them in every build")]
pub struct Settings {
    pub once: bool,
    pub interval: Duration,
    pub retain: Duration,
    pub take_over: bool,
}

const SERVER: &str = "memlift-server";

/// Becomes the command that has replicas; returns only if that cannot be started.
fn missing() -> Failure {
    let is_server =
        env::current_exe().is_ok_and(|program| program.file_name().is_some_and(|name| name == SERVER));
    let Some(program) = find(SERVER).filter(|_| !is_server) else {
        return Failure::Unavailable(format!(
            "{SERVER} is not here, which has replicas of pools. It is a wheel of its own: pip install {SERVER}, or in a checkout `make wheel-server`, \
             then pip install dist/memlift_server-*.whl. Without Python: `make install`, whose command has replicas. `memlift pool backup` \
             makes a copy without it"
        ));
    };
    let said = Command::new(&program).arg("--version").output();
    let theirs = said.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let ours = concat!("memlift ", env!("CARGO_PKG_VERSION"));
    match theirs {
        Ok(theirs) if theirs == ours => {
            let error = Command::new(&program).args(env::args_os().skip(1)).exec();
            Failure::Unavailable(format!("{}: {error}", program.display()))
        }
        Ok(theirs) => Failure::Unavailable(format!(
            "{} is {theirs}, and this is {ours}: pip install {SERVER}=={}",
            program.display(),
            env!("CARGO_PKG_VERSION")
        )),
        Err(error) => Failure::Unavailable(format!("{}: {error}", program.display())),
    }
}

/// Returns the error of a build without replicas.
pub fn available() -> Result<(), Failure> {
    Err(missing())
}

/// Refuses `memlift pool replicate`.
pub fn replicate(_: &Path, _: &str, _: Settings, _: bool) -> Result<(), Failure> {
    Err(missing())
}

/// Refuses `memlift pool restore`.
pub fn restore(_: &str, _: &Path, _: Option<&str>, _: bool) -> Result<(), Failure> {
    Err(missing())
}

/// Refuses `memlift pool restore --list`.
pub fn list(_: &str, _: bool) -> Result<(), Failure> {
    Err(missing())
}

/// The replica of a pool that is served: there is none.
#[derive(Debug)]
pub enum Serving {}

impl Serving {
    /// Refuses `memlift pool serve --replicate`.
    pub fn begin(_: &Pool, _: &str) -> Result<Serving, Failure> {
        Err(missing())
    }

    /// Nothing calls it: this type has no value.
    pub fn watch(&self, _: &AtomicBool) -> Option<String> {
        match *self {}
    }

    /// Nothing calls it: this type has no value.
    pub fn finish(self) -> Result<(), Failure> {
        match self {}
    }
}
