// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chooses the backend that enforces the budget: memlift in the program's own processes, or the kernel.
//!
//! - **Order** auto: user space if the program can be covered and the library is installed; otherwise the kernel, if this
//!   user has a cgroup v2 with a memory controller; otherwise refused, with both reasons
//! - **Not here** the backends: launch.rs, kernel.rs

use std::path::PathBuf;

use memlift::ground::facility::{Facility, usable};
use memlift::zmem::pager::Mechanism;

use super::kernel::Group;
use super::program::Program;
use super::{Backend, kernel, swap};
use crate::doctor::Check;
use crate::failure::Failure;

/// Backend that a run uses.
#[derive(Debug)]
pub enum Choice {
    /// User space, by the library that is loaded into every process.
    User {
        /// File of the library that is preloaded.
        library: PathBuf,
    },
    /// The kernel, by a cgroup v2.
    Kernel(Group),
}

/// Chooses the backend of a run: the requested one; `Auto` takes user space if that works, otherwise a
/// cgroup.
pub fn choose(requested: Backend, program: &Program) -> Result<Choice, Failure> {
    let user = user(program);
    match (requested, user) {
        (Backend::Auto | Backend::User, Ok(library)) => Ok(Choice::User { library }),
        (Backend::User, Err(why)) => Err(Failure::Unavailable(why)),
        (Backend::Kernel, _) => kernel::find().map(Choice::Kernel).map_err(Failure::Unavailable),
        (Backend::Auto, Err(why)) => kernel::find().map(Choice::Kernel).map_err(|kernel| {
            let swap = swap::alternative();
            Failure::Unavailable(format!("{why}. The kernel's own limits instead: {kernel}. {swap}"))
        }),
    }
}

fn user(program: &Program) -> Result<PathBuf, String> {
    if Mechanism::available(false).is_none() {
        return Err("a process can neither use userfaultfd here (Linux 5.11 or later, if a container's seccomp profile \
                    allows it) nor write to its own memory through /proc/self/mem"
            .to_owned());
    }
    if !usable(Facility::SeccompFilter) {
        return Err("no seccomp filter can be installed here, and system calls would meet pages that are away: allow \
                    seccomp in the container's profile"
            .to_owned());
    }
    if let Some(why) = &program.uncovered {
        return Err(why.clone());
    }
    memlift_cli::libraries::preload()
        .ok_or_else(|| memlift_cli::libraries::advice("libmemlift_preload.so", "memlift-preload"))
}

/// Returns the checks for `memlift doctor`.
pub fn checks() -> Vec<Check> {
    let library = match memlift_cli::libraries::preload() {
        Some(path) => Check::usable("library for programs", path.display().to_string()),
        None => Check::absent("library for programs", "libmemlift_preload.so is not here")
            .needed()
            .advise("cargo build --release -p memlift-preload"),
    };
    let faults = match Mechanism::available(false) {
        Some(Mechanism::Protect) => Check::usable("faults", "mprotect and SIGSEGV: no userfaultfd with write-protection")
            .advise("let the container's seccomp profile allow userfaultfd: random accesses are several times faster then"),
        Some(_) => Check::usable("faults", "userfaultfd, answered in the thread that meets them"),
        None => Check::absent("faults", "neither userfaultfd nor /proc/self/mem: memlift run needs the kernel's backend")
            .advise("let the container's seccomp profile allow userfaultfd"),
    };
    let filter = if usable(Facility::SeccompFilter) {
        Check::usable("system calls on compressed memory", "a seccomp filter finds them")
    } else {
        Check::absent("system calls on compressed memory", "no seccomp filter")
            .advise("allow prctl(PR_SET_SECCOMP) and PR_SET_NO_NEW_PRIVS")
    };
    let kernel = match kernel::find() {
        Ok(group) => Check::usable("kernel backend", group.folder.display().to_string()),
        Err(why) => Check::absent("kernel backend", why).extra(),
    };
    let mut checks = vec![library, faults, filter, kernel];
    checks.extend(swap::check());
    checks
}
