// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift ipc ls`: lists the listening servers and the open sessions.
//!
//! - **Flow** stats pages ─▶ sessions; /proc/net/unix ─▶ listening sockets ─▶ their processes, through /proc/PID/fd
//! - **Layout** /proc/net/unix: Num RefCount Protocol Flags Type St Inode Path; Flags 00010000 means listening, Type 0005 is
//!   SEQPACKET; a path in the abstract namespace starts with `@`
//! - **Rule** a server with a bare name is recognised by its address; one with a socket file only if its process has a stats
//!   page
//! - **Not here** servers of another network namespace, and those of users whose processes this user may not inspect

use std::fs;

use serde_json::{Value, json};

use crate::failure::Failure;
use crate::print;
use crate::sample::{Sample, sessions};

/// Prefix of a bare server name: `@memlift/<uid>/<name>`.
const PREFIX: &str = "@memlift/";

/// A socket that waits for clients.
#[derive(Debug, PartialEq, Eq)]
struct Server {
    name: String,
    /// Number of the user, for a bare name.
    uid: Option<u32>,
    inode: u64,
    pid: Option<u32>,
}

/// Prints both tables.
pub fn list(as_json: bool) -> Result<(), Failure> {
    let sample = Sample::take();
    let pids: Vec<u32> = sample.processes.iter().map(|one| one.process.pid).collect();
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let servers = servers(&sockets, &pids);
    if as_json {
        let servers: Vec<Value> = servers
            .iter()
            .map(|server| json!({ "name": server.name, "uid": server.uid, "pid": server.pid }))
            .collect();
        let open: Vec<Value> = sample
            .processes
            .iter()
            .flat_map(|one| sessions(one).map(|row| json!({ "pid": one.process.pid, "session": row })))
            .collect();
        return print::json(&json!({ "servers": servers, "sessions": open }));
    }
    if servers.is_empty() && pids.is_empty() {
        return print::line("no server listens here, and no process of this user has a session");
    }
    let or_dash = |number: Option<u32>| number.map_or("–".to_owned(), |number| number.to_string());
    let rows: Vec<Vec<String>> = servers
        .iter()
        .map(|server| vec![server.name.clone(), or_dash(server.uid), or_dash(server.pid)])
        .collect();
    print::line(&print::table(&["server", ">uid", ">pid"], &rows))?;
    print::line("")?;
    print::line(&table(&sample))
}

/// Returns a table of the sessions of all processes.
pub fn table(sample: &Sample) -> String {
    let mut rows = Vec::new();
    for one in &sample.processes {
        for row in sessions(one) {
            rows.push(vec![
                row.name.clone(),
                row.role.clone(),
                one.process.pid.to_string(),
                row.peer_pid.to_string(),
                row.calls.to_string(),
                row.errors.to_string(),
                row.outstanding.to_string(),
                print::bytes(row.bytes_in),
                print::bytes(row.bytes_out),
                print::bytes(row.pool_bytes),
            ]);
        }
    }
    let headings = [
        "session",
        "role",
        ">pid",
        ">peer",
        ">calls",
        ">errors",
        ">under way",
        ">bytes in",
        ">bytes out",
        ">pools",
    ];
    print::table(&headings, &rows)
}

fn servers(sockets: &str, pids: &[u32]) -> Vec<Server> {
    let mut found: Vec<Server> = sockets.lines().filter_map(listener).collect();
    let owners: Vec<(u32, Vec<u64>)> = pids.iter().map(|pid| (*pid, sockets_of(*pid))).collect();
    for server in &mut found {
        server.pid = owners.iter().find(|(_, inodes)| inodes.contains(&server.inode)).map(|(pid, _)| *pid);
    }
    found.retain(|server| server.uid.is_some() || server.pid.is_some());
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

/// Parses a line of /proc/net/unix; returns the server if it is a listening SEQPACKET socket with a name.
fn listener(line: &str) -> Option<Server> {
    let mut fields = line.split_whitespace();
    let mut field = |skip| fields.nth(skip);
    let flags = u32::from_str_radix(field(3)?, 16).ok()?;
    let kind = field(0)?;
    let inode = field(1)?.parse().ok()?;
    // The name comes from another process, so control characters are replaced.
    let path: String =
        field(0)?.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect();
    if flags & 0x1_0000 == 0 || kind != "0005" {
        return None;
    }
    let bare = path.strip_prefix(PREFIX).and_then(|rest| rest.split_once('/'));
    match bare.and_then(|(uid, name)| Some((uid.parse().ok()?, name))) {
        Some((uid, name)) => Some(Server { name: name.to_owned(), uid: Some(uid), inode, pid: None }),
        None if path.starts_with('/') => Some(Server { name: path, uid: None, inode, pid: None }),
        None => None,
    }
}

/// Returns the inodes of a process's sockets.
fn sockets_of(pid: u32) -> Vec<u64> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter_map(|link| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_told_from_the_rest() {
        let sockets = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 101 @memlift/1000/features\n\
            0000000000000000: 00000003 00000000 00000000 0005 03 102 @memlift/1000/features\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 103 /run/other.sock\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 104 /run/foreign.sock\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 105\n";
        let found = servers(sockets, &[]);
        assert_eq!(found, [Server { name: "features".into(), uid: Some(1000), inode: 101, pid: None }]);
    }
}
