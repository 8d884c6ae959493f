// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much memory may still be touched before the kernel kills somebody for it.
//!
//! - **Flow** /proc/meminfo MemAvailable ─┐
//!   memory cgroup and ancestors ┴─▶ the smallest ──▶ [`Headroom::check`]
//!   Left in a cgroup = limit − usage + inactive file cache, which the kernel drops first.
//! - **Layout** v2: memory.max, memory.current, memory.stat `inactive_file`; v1: memory.limit_in_bytes,
//!   memory.usage_in_bytes, memory.stat `total_inactive_file`. Both are read where both are mounted.
//!   /proc/self/cgroup names the group, /proc/self/mountinfo says where its tree is mounted and which
//!   group is the root of that mount.
//! - **Owner** nothing is kept; each question reads again.
//! - **Not here** swap: a buffer that is swapped out is a slow surprise, not headroom.

use std::fs;
use std::path::Path;

use super::RegionError;
use super::group::{Hierarchy, number};

/// Bytes left free below every limit, for what the rest of the process does meanwhile.
const MARGIN_BYTES: u64 = 16 << 20;

/// Memory that can still be touched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Headroom {
    /// Bytes left under the tightest limit.
    pub bytes: u64,
    /// That limit, bytes.
    pub limit_bytes: u64,
    /// The file that states it.
    pub source: String,
}

impl Headroom {
    /// Of this process, now.
    pub fn read() -> Headroom {
        Headroom::read_from(Path::new("/"))
    }

    /// The same on a file system tree rooted at `root`, which holds `proc/` and the cgroup mounts.
    pub fn read_from(root: &Path) -> Headroom {
        let unlimited = Headroom { bytes: u64::MAX, limit_bytes: u64::MAX, source: "no limit".to_owned() };
        meminfo(root).into_iter().chain(groups(root)).fold(unlimited, |tightest, candidate| {
            if candidate.bytes < tightest.bytes { candidate } else { tightest }
        })
    }

    /// Checks that `bytes` more can be touched.
    ///
    /// # Errors
    ///
    /// [`RegionError::Headroom`] when not.
    pub fn check(&self, bytes: u64) -> Result<(), RegionError> {
        let needed = if bytes == 0 { 0 } else { bytes.saturating_add(MARGIN_BYTES) };
        if needed <= self.bytes {
            return Ok(());
        }
        Err(RegionError::Headroom { needed, available: self.bytes, origin: self.source.clone() })
    }
}

fn meminfo(root: &Path) -> Option<Headroom> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let field = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    };
    Some(Headroom {
        bytes: field("MemAvailable:")?,
        limit_bytes: field("MemTotal:")?,
        source: "/proc/meminfo MemAvailable".to_owned(),
    })
}

/// Every limit on the way from this process's group to the root, in both hierarchies.
fn groups(root: &Path) -> Vec<Headroom> {
    let mut found = Vec::new();
    for (group, mount) in Hierarchy::all(root, "self") {
        for directory in group.directory.ancestors().take_while(|path| path.starts_with(&mount)) {
            found.extend(left_in(root, directory, group.version));
        }
    }
    found
}

fn left_in(root: &Path, directory: &Path, version: u8) -> Option<Headroom> {
    let (limit_name, usage_name, cache_name) = match version {
        2 => ("memory.max", "memory.current", "inactive_file"),
        _ => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    };
    let limit_file = directory.join(limit_name);
    // v2 says "max" for no limit, which is no number; v1 a number beyond any memory, which never is tightest.
    let limit_bytes = number(&limit_file)?;
    let usage = number(&directory.join(usage_name))?;
    let stat = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    let cache = stat
        .lines()
        .find_map(|line| line.strip_prefix(cache_name)?.strip_prefix(' ')?.trim().parse::<u64>().ok())
        .unwrap_or(0);
    let shown = limit_file.strip_prefix(root).unwrap_or(&limit_file);
    Some(Headroom {
        bytes: limit_bytes.saturating_sub(usage.saturating_sub(cache)),
        limit_bytes,
        source: format!("/{}", shown.display()),
    })
}
