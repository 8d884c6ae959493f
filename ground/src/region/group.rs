// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory cgroup of a process: its mount point, its usage, its limit.
//!
//! - **Flow** /proc/PID/cgroup × /proc/self/mountinfo ─▶ [`MemoryGroup`] ─▶ usage, limit, cache, members: read again at each
//!   call
//! - **Layout** v2: memory.current, memory.max, memory.peak; v1: memory.usage_in_bytes, memory.limit_in_bytes,
//!   memory.max_usage_in_bytes; both: memory.stat, cgroup.procs
//! - **Owner** only a path is stored
//! - **Not here** the tightest limit of all ancestors ([`super::Headroom`])

use std::fs;
use std::path::{Path, PathBuf};

/// One memory cgroup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryGroup {
    /// The group's folder in the cgroup file system.
    pub directory: PathBuf,
    /// Version of the cgroup hierarchy, 1 or 2.
    pub version: u8,
}

impl MemoryGroup {
    /// Returns the group that accounts for the memory of process `pid`; `None` if no hierarchy has the memory
    /// controller.
    pub fn of(pid: u32) -> Option<MemoryGroup> {
        Self::all_of(Path::new("/"), &pid.to_string()).into_iter().find(|group| group.usage().is_some())
    }

    /// Returns this process's group.
    pub fn own() -> Option<MemoryGroup> {
        Self::of(std::process::id())
    }

    /// Returns this process's group in each mounted hierarchy that can limit memory, and the groups above it as far as they
    /// are visible.
    pub fn own_and_above() -> Vec<MemoryGroup> {
        Self::with_ancestors(Path::new("/"), "self")
    }

    /// Returns the groups of a process and all groups above them, under `root`.
    pub(super) fn with_ancestors(root: &Path, process: &str) -> Vec<MemoryGroup> {
        let mut groups = Vec::new();
        for (group, mount) in Hierarchy::all(root, process) {
            let above = group.directory.ancestors().take_while(|path| path.starts_with(&mount));
            groups
                .extend(above.map(|path| MemoryGroup { directory: path.to_owned(), version: group.version }));
        }
        groups
    }

    /// Returns the groups of a process in every mounted hierarchy that can limit memory, under `root`.
    pub(super) fn all_of(root: &Path, process: &str) -> Vec<MemoryGroup> {
        Hierarchy::all(root, process).into_iter().map(|(group, _)| group).collect()
    }

    /// Returns the bytes charged to the group and its children, page cache included.
    pub fn usage(&self) -> Option<u64> {
        number(&self.file("memory.current", "memory.usage_in_bytes"))
    }

    /// Returns the bytes charged to the group without the inactive page cache, which the kernel drops first.
    pub fn held(&self) -> Option<u64> {
        let usage = self.usage()?;
        Some(usage.saturating_sub(self.stat().field("inactive_file").unwrap_or(0)))
    }

    /// Returns the limit of the group in bytes; `None` if there is none.
    pub fn limit(&self) -> Option<u64> {
        // v1 reports an enormous number if there is no limit.
        number(&self.file("memory.max", "memory.limit_in_bytes")).filter(|limit| *limit < 1 << 60)
    }

    /// Returns the path of the file with the group's limit.
    pub fn limit_file(&self) -> PathBuf {
        self.file("memory.max", "memory.limit_in_bytes")
    }

    /// Reads memory.stat, children included; empty if it cannot be read.
    pub fn stat(&self) -> GroupStat {
        let text = fs::read_to_string(self.directory.join("memory.stat")).unwrap_or_default();
        GroupStat { text, version: self.version }
    }

    /// Returns [`GroupStat::reclaimable`] as of now.
    pub fn reclaimable(&self) -> u64 {
        self.stat().reclaimable()
    }

    /// Returns the processes in the group and its children, as far as they are visible.
    pub fn members(&self) -> Vec<u32> {
        let mut members = Vec::new();
        let mut folders = vec![self.directory.clone()];
        while let Some(folder) = folders.pop() {
            let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            members.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            folders.extend(
                entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path()),
            );
        }
        members
    }

    fn file(&self, v2: &str, v1: &str) -> PathBuf {
        self.directory.join(if self.version == 2 { v2 } else { v1 })
    }
}

/// Contents of memory.stat at one moment, kept because the kernel must sum many counters for each read.
#[derive(Clone, Debug)]
pub struct GroupStat {
    text: String,
    version: u8,
}

impl GroupStat {
    /// Returns one of the counters, in bytes.
    pub fn field(&self, name: &str) -> Option<u64> {
        stat_of(&self.text, name, self.version)
    }

    /// Returns the bytes of page cache that the kernel drops before it kills a process for lack of memory: pages of
    /// files that are neither dirty nor being written.
    pub fn reclaimable(&self) -> u64 {
        let field = |name| self.field(name).unwrap_or(0);
        let (dirty, writeback) = match self.version {
            2 => (field("file_dirty"), field("file_writeback")),
            _ => (field("dirty"), field("writeback")),
        };
        (field("inactive_file") + field("active_file")).saturating_sub(dirty + writeback)
    }
}

fn stat_of(text: &str, name: &str, version: u8) -> Option<u64> {
    text.lines().find_map(|line| {
        let line = if version == 2 { line } else { line.strip_prefix("total_")? };
        line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok()
    })
}

/// One cgroup hierarchy that can limit memory.
pub(super) struct Hierarchy {
    version: u8,
    /// Path of the group that is visible at `mount`.
    mount_root: String,
    mount: String,
}

impl Hierarchy {
    /// Returns the group of `process` in each hierarchy, with the hierarchy's mount point.
    pub fn all(root: &Path, process: &str) -> Vec<(MemoryGroup, PathBuf)> {
        let membership =
            fs::read_to_string(root.join("proc").join(process).join("cgroup")).unwrap_or_default();
        let mountinfo = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
        let group = |hierarchy: Hierarchy| {
            let group = group_of(&membership, hierarchy.version)?;
            let mount = under(root, &hierarchy.mount);
            let directory = mount.join(below(group, &hierarchy.mount_root));
            Some((MemoryGroup { directory, version: hierarchy.version }, mount))
        };
        mountinfo.lines().filter_map(Hierarchy::parse).filter_map(group).collect()
    }

    /// Parses one line of mountinfo: `ID PARENT MAJ:MIN ROOT MOUNT OPTIONS… - TYPE SOURCE SUPEROPTIONS`.
    fn parse(line: &str) -> Option<Hierarchy> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (mount_root, mount) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let version = match after.next()? {
            "cgroup2" => 2,
            "cgroup" if after.nth(1)?.split(',').any(|option| option == "memory") => 1,
            _ => return None,
        };
        Some(Hierarchy { version, mount_root: unescape(mount_root), mount: unescape(mount) })
    }
}

/// Returns the group of this process: `0::/path` for v2, `N:…memory…:/path` for v1.
fn group_of(membership: &str, version: u8) -> Option<&str> {
    membership.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let matches = match version {
            2 => number == "0" && controllers.is_empty(),
            _ => controllers.split(',').any(|controller| controller == "memory"),
        };
        matches.then_some(path)
    })
}

/// Returns the group's path below the mount. In a container the mount often shows the container's own group as its
/// root, under the host's name for it: then the mount itself is the group.
fn below(group: &str, mount_root: &str) -> PathBuf {
    let group = Path::new(group);
    let relative = group.strip_prefix(mount_root).unwrap_or(Path::new(""));
    if relative.components().any(|part| part == std::path::Component::ParentDir) {
        return PathBuf::new();
    }
    relative.strip_prefix("/").unwrap_or(relative).to_owned()
}

fn under(root: &Path, absolute: &str) -> PathBuf {
    root.join(absolute.trim_start_matches('/'))
}

pub(super) fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Decodes a path in mountinfo, which writes blank, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let code = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match (first, code.and_then(|digits| u8::from_str_radix(digits, 8).ok())) {
            (b'\\', Some(code)) => {
                bytes.push(code);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
