// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks the needs of an ipc session: sockets that carry descriptors, abstract names, enough open files.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use super::Check;

/// Open files that a server with some hundred clients needs.
const OPEN_FILES_WANTED: u64 = 1024;

/// Checks sockets and limits.
pub fn checks() -> Vec<Check> {
    vec![abstract_names(), socket_files(), open_files()]
}

fn abstract_names() -> Check {
    let name = format!("memlift-doctor-{}", std::process::id());
    let bound = SocketAddr::from_abstract_name(name).and_then(|address| UnixListener::bind_addr(&address));
    match bound {
        Ok(_) => Check::usable("bare names", "abstract sockets work: nothing is left on disk"),
        Err(error) => Check::absent("bare names", format!("abstract sockets: {error}"))
            .advise("name servers by a path with a / instead"),
    }
}

fn socket_files() -> Check {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, Into::into);
    let path = folder.join(format!("memlift-doctor-{}.sock", std::process::id()));
    let bound = UnixListener::bind(&path);
    if bound.is_ok() {
        let _ = std::fs::remove_file(&path);
    }
    match bound {
        Ok(_) => Check::usable("names with a /", format!("socket files work in {}", folder.display())),
        Err(error) => Check::absent("names with a /", format!("{}: {error}", folder.display()))
            .advise("use a folder that you may write to"),
    }
}

fn open_files() -> Check {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let soft = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .and_then(|rest| rest.split_whitespace().next());
    match soft.map(str::parse::<u64>) {
        Some(Ok(soft)) if soft < OPEN_FILES_WANTED => Check::absent("open files", format!("{soft} at most"))
            .advise(format!("a server with many clients needs more: ulimit -n {OPEN_FILES_WANTED}")),
        Some(Ok(soft)) => Check::usable("open files", format!("{soft} at most")),
        Some(Err(_)) => Check::usable("open files", "no limit"),
        None => Check::absent("open files", "/proc/self/limits cannot be read").advise("mount /proc"),
    }
}
