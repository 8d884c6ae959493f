// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A memory cgroup of the bench's own, for one child.
//!
//! Flow     this process's group ─▶ a child group beside its processes ─▶ the child enters by itself, before it touches memory
//! Owner    dropping it removes the group, once its processes have ended
//! Not here what is measured in it

use std::fs;
use std::path::{Path, PathBuf};

/// A group.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    unified: bool,
}

/// The folder of this process's memory group, and whether it is cgroup v2.
fn own() -> Result<(PathBuf, bool), String> {
    let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
    let mounts = fs::read_to_string("/proc/mounts").map_err(|error| error.to_string())?;
    let find = |kind: &str, option: &str| {
        mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find_map(|fields| {
            let fits =
                fields.len() > 3 && fields[2] == kind && fields[3].split(',').any(|word| word == option);
            fits.then(|| PathBuf::from(fields[1]))
        })
    };
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        if controllers.split(',').any(|name| name == "memory")
            && let Some(mount) = find("cgroup", "memory")
        {
            let inside = mount.join(path.trim_start_matches('/'));
            return Ok((if inside.is_dir() { inside } else { mount }, false));
        }
    }
    let unified = groups.lines().find_map(|line| line.strip_prefix("0::"));
    match (unified, find("cgroup2", "rw")) {
        (Some(path), Some(mount)) => Ok((mount.join(path.trim_start_matches('/')), true)),
        _ => Err("there is no memory cgroup here".to_owned()),
    }
}

impl Cgroup {
    /// A new group; `limit_bytes` if it is to have a limit. Else what is missing.
    pub fn create(name: &str, limit_bytes: Option<u64>) -> Result<Cgroup, String> {
        let (own, unified) = own()?;
        let path = own.join(format!("memlift-bench-{name}-{}", std::process::id()));
        let refused = |what: &Path, error: std::io::Error| {
            format!("{}: {error}; run the bench as root, where memory cgroups can be written", what.display())
        };
        fs::create_dir(&path).map_err(|error| refused(&path, error))?;
        let group = Cgroup { path, unified };
        if let Some(bytes) = limit_bytes {
            let file = group.path.join(if unified { "memory.max" } else { "memory.limit_in_bytes" });
            fs::write(&file, bytes.to_string()).map_err(|error| refused(&file, error))?;
        }
        let usage = group.usage_file();
        fs::read_to_string(&usage).map_err(|error| refused(&usage, error))?;
        Ok(group)
    }

    fn usage_file(&self) -> PathBuf {
        self.path.join(if self.unified { "memory.current" } else { "memory.usage_in_bytes" })
    }

    /// Where a process writes `0` to enter.
    pub fn entrance(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// What the group is charged, bytes.
    pub fn usage(&self) -> u64 {
        let text = fs::read_to_string(self.usage_file()).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The processes have ended; the kernel may take a moment to notice.
        for _ in 0..100 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        eprintln!("{} could not be removed: remove it", self.path.display());
    }
}
