// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks memory: its size, its pages, and how much of it this process may still touch.
//!
//! - **Source** /proc/meminfo, /sys/kernel/mm; the headroom comes from the engine, which checks the same number before
//!   it touches memory

use std::fs;

use memlift::ground::region::Headroom;

use super::Check;
use crate::print;

/// Below this many bytes the ipc service cannot give one client a payload pool.
const LITTLE_BYTES: u64 = 64 << 20;

/// Checks total memory, available memory and huge pages.
pub fn checks() -> Vec<Check> {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let Some((total, available)) = field(&meminfo, "MemTotal:").zip(field(&meminfo, "MemAvailable:")) else {
        return vec![Check::absent("memory", "/proc/meminfo cannot be read").advise("mount /proc")];
    };
    let memory = format!("{} available of {}", print::bytes(available), print::bytes(total));
    vec![
        Check::usable("memory", memory),
        reserved(&meminfo),
        transparent("enabled", "transparent huge pages", "for anonymous memory"),
        transparent("shmem_enabled", "the same, shared", "for the memory of ipc sessions"),
    ]
}

/// Checks the tightest limit that applies to this process.
pub fn cgroup_checks() -> Vec<Check> {
    let headroom = Headroom::read();
    let left = format!("{} can still be touched", print::bytes(headroom.bytes));
    let left = if headroom.bytes < LITTLE_BYTES {
        Check::broken("headroom", left).advise("raise the limit below, or end what uses the memory")
    } else {
        Check::usable("headroom", left)
    };
    let limit = match headroom.limit_bytes {
        u64::MAX => "none".to_owned(),
        limit => format!("{} by {}", print::bytes(limit), headroom.source),
    };
    vec![left, Check::usable("tightest limit", limit)]
}

fn reserved(meminfo: &str) -> Check {
    let count = |name| field_number(meminfo, name).unwrap_or(0);
    let (total, free) = (count("HugePages_Total:"), count("HugePages_Free:"));
    let size = print::bytes(field(meminfo, "Hugepagesize:").unwrap_or(0));
    if total == 0 {
        return Check::absent("reserved huge pages", "none").advise("optional: sysctl vm.nr_hugepages=512");
    }
    Check::usable("reserved huge pages", format!("{free} free of {total}, {size} each"))
}

fn transparent(file: &str, what: &str, purpose: &str) -> Check {
    let path = format!("/sys/kernel/mm/transparent_hugepage/{file}");
    let Ok(modes) = fs::read_to_string(&path) else {
        return Check::absent(what, format!("{path} cannot be read"))
            .advise("optional: show /sys to the container");
    };
    let mode = modes.split('[').nth(1).and_then(|rest| rest.split(']').next()).unwrap_or("unknown");
    let found = format!("{mode} ({purpose})");
    if matches!(mode, "never" | "deny") {
        let wanted = if file == "enabled" { "madvise" } else { "advise" };
        return Check::absent(what, found).advise(format!("optional, as root: echo {wanted} > {path}"));
    }
    Check::usable(what, found)
}

/// Returns the bytes of a line like `MemTotal:  1024 kB`.
fn field(meminfo: &str, name: &str) -> Option<u64> {
    field_number(meminfo, name)?.checked_mul(1024)
}

fn field_number(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read() {
        let meminfo = "MemTotal:       24576 kB\nHugePages_Total:       8\nHugePages_Free:        3\nHugepagesize:       2048 kB\n";
        assert_eq!(field(meminfo, "MemTotal:"), Some(24576 * 1024));
        assert_eq!(field(meminfo, "Nothing:"), None);
        assert_eq!(reserved(meminfo).found, "3 free of 8, 2.0 MiB each");
    }
}
