// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds how much memory may still be touched before the kernel kills a process for it.
//!
//! - **Flow** the smallest of /proc/meminfo MemAvailable, the memory cgroup and its ancestors ──▶ [`Headroom::check`].
//!   Left in a cgroup = limit − usage + inactive file cache, which the kernel drops first.
//! - **Layout** v2: memory.max, memory.current, memory.stat `inactive_file`; v1: memory.limit_in_bytes,
//!   memory.usage_in_bytes, memory.stat `total_inactive_file`. If both hierarchies are mounted both are read.
//!   /proc/self/cgroup names the group; /proc/self/mountinfo gives the mount point of its tree, and the group at the
//!   root of that mount.
//! - **Owner** nothing is cached; each call reads again.
//! - **Not here** swap: touching more memory than there is would be slow, so swap does not count as headroom.

use std::fs;
use std::path::Path;

use super::RegionError;
use super::group::{MemoryGroup, number};

/// Bytes kept free below every limit, for allocations that the process makes meanwhile.
const MARGIN_BYTES: u64 = 16 << 20;

/// Memory that can still be touched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Headroom {
    /// Bytes left under the tightest limit.
    pub bytes: u64,
    /// The tightest limit, in bytes.
    pub limit_bytes: u64,
    /// The file that contains this limit.
    pub source: String,
}

impl Headroom {
    /// Reads the headroom of this process now.
    pub fn read() -> Headroom {
        Headroom::read_from(Path::new("/"))
    }

    /// Reads the headroom from a file system tree rooted at `root`, which holds `proc/` and the cgroup
    /// mounts.
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
    /// [`RegionError::Headroom`] if they cannot.
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

/// Returns the headroom under every limit from this process's group up to the root, in both hierarchies.
fn groups(root: &Path) -> Vec<Headroom> {
    MemoryGroup::with_ancestors(root, "self").iter().filter_map(|group| left_in(root, group)).collect()
}

fn left_in(root: &Path, group: &MemoryGroup) -> Option<Headroom> {
    let limit_file = group.limit_file();
    // Without a limit v2 says "max", which does not parse as a number; v1 gives an enormous number, which is
    // never the tightest.
    let limit_bytes = number(&limit_file)?;
    let shown = limit_file.strip_prefix(root).unwrap_or(&limit_file);
    Some(Headroom {
        bytes: limit_bytes.saturating_sub(group.held()?),
        limit_bytes,
        source: format!("/{}", shown.display()),
    })
}
