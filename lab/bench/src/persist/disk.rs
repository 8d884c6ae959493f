// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where durable things are written: a folder on a real file system, and a file in /dev/shm.
//!
//! - **Disk** MEMLIFT_BENCH_FOLDER, else the user's cache folder; memory is refused, because a sync there costs nothing
//! - **Owner** [`Folder`] and [`Shared`] remove what lies under their names when dropped

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::python;

/// Names a folder on a real file system.
const FOLDER: &str = "MEMLIFT_BENCH_FOLDER";
const SHARED: &str = "/dev/shm";

/// A folder of this row's own on a disk.
#[derive(Debug)]
pub struct Folder {
    /// Path of the folder.
    pub path: PathBuf,
    /// Name of the file system.
    pub file_system: &'static str,
}

impl Folder {
    /// A fresh one. The error says what to set.
    pub fn new() -> Result<Folder, String> {
        let parent = match std::env::var_os(FOLDER) {
            Some(folder) => PathBuf::from(folder),
            None => python::cache_folder().map_err(|error| error.to_string())?,
        };
        let path = parent.join(fresh("persist"));
        fs::create_dir_all(&path).map_err(|error| format!("{}: {error}; set {FOLDER}", path.display()))?;
        let file_system = file_system(&path);
        let folder = Folder { path, file_system };
        match folder.file_system {
            "tmpfs" | "ramfs" => Err(format!(
                "{} is memory ({}), where a sync costs nothing: set {FOLDER} to a folder on a disk",
                parent.display(),
                folder.file_system
            )),
            _ => Ok(folder),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A party that ended well has removed its own part already.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A file name in /dev/shm.
#[derive(Debug)]
pub struct Shared {
    /// Path of the file in /dev/shm.
    pub path: PathBuf,
}

impl Shared {
    /// A fresh one, with room for this many bytes. The error says what is in the way.
    pub fn new(bytes: u64) -> Result<Shared, String> {
        let room = rustix::fs::statvfs(SHARED)
            .map_err(|error| format!("{SHARED}: {error}; mount a tmpfs there"))
            .map(|room| room.f_bavail * room.f_frsize)?;
        if room < bytes {
            return Err(format!("{SHARED} has room for {room} of {bytes} bytes; make it larger"));
        }
        Ok(Shared { path: Path::new(SHARED).join(fresh("bench")) })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Most parties have unlinked it themselves.
        let _ = fs::remove_file(&self.path);
    }
}

fn fresh(stem: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{stem}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Names of magic numbers: statfs(2).
fn file_system(path: &Path) -> &'static str {
    match rustix::fs::statfs(path).map(|facts| facts.f_type as u64 & 0xffff_ffff) {
        Ok(0xef53) => "ext4",
        Ok(0x5846_5342) => "xfs",
        Ok(0x9123_683e) => "btrfs",
        Ok(0x0102_1994) => "tmpfs",
        Ok(0x8584_58f6) => "ramfs",
        Ok(0x794c_7630) => "overlayfs",
        Ok(0x2fc1_2fc1) => "zfs",
        _ => "an unknown file system",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_known_and_leaves_nothing() {
        assert_eq!(file_system(Path::new(SHARED)), "tmpfs");
        let shared = Shared::new(1).expect("room for a byte");
        let path = shared.path.clone();
        fs::write(&path, b"x").expect("writable");
        drop(shared);
        assert!(!path.exists());
        assert!(Shared::new(u64::MAX).is_err_and(|text| text.contains("room")));
    }
}
