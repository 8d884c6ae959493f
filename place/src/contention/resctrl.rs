// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures contention by the kernel's memory bandwidth monitoring (`/sys/fs/resctrl`), where that is mounted and readable.
//!
//! - **Flow** the bytes that all tasks of the root group moved, per second, divided by the highest rate seen so far.
//! - **Level** 1 + this share: at a threshold of 0.35, contention begins at 35 % of the highest bandwidth seen.
//!
//! Source: the kernel's documentation, `filesystems/resctrl.rst` (`mon_data/mon_L3_*/mbm_total_bytes`).

use super::source::Source;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Lower bound of the highest bandwidth, bytes per second, so that the first rates do not count as full load.
const MOST_AT_FIRST: f64 = 4e9;

#[derive(Debug)]
pub(super) struct Resctrl {
    files: Vec<PathBuf>,
    last: Option<(Instant, u64)>,
    most: f64,
}

impl Resctrl {
    /// Opens the counters; returns `None` if resctrl is not mounted, not readable, or has no bandwidth monitoring.
    pub fn open() -> Option<Resctrl> {
        Resctrl::open_at(Path::new("/sys/fs/resctrl"))
    }

    fn open_at(root: &Path) -> Option<Resctrl> {
        let domains = std::fs::read_dir(root.join("mon_data")).ok()?;
        let files = domains.flatten().map(|domain| domain.path().join("mbm_total_bytes"));
        let files: Vec<PathBuf> = files.filter(|file| read(file).is_some()).collect();
        (!files.is_empty()).then_some(Resctrl { files, last: None, most: MOST_AT_FIRST })
    }
}

/// Reads a counter; `None` where the kernel has none and writes `Unavailable`.
fn read(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

impl Source for Resctrl {
    fn name(&self) -> &'static str {
        "resctrl"
    }

    fn sample(&mut self) -> Option<f64> {
        let bytes: u64 = self.files.iter().filter_map(|file| read(file)).sum();
        let now = Instant::now();
        let (before, bytes_before) = self.last.replace((now, bytes))?;
        let seconds = now.duration_since(before).as_secs_f64();
        if seconds < 1e-3 {
            return None;
        }
        let rate = bytes.saturating_sub(bytes_before) as f64 / seconds;
        self.most = self.most.max(rate);
        Some(1.0 + rate / self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_and_what_is_unavailable_is_left_out() {
        let root = tempfile::tempdir().unwrap();
        assert!(Resctrl::open_at(root.path()).is_none());
        for (domain, text) in [("mon_L3_00", "1000\n"), ("mon_L3_01", "Unavailable\n")] {
            let folder = root.path().join("mon_data").join(domain);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("mbm_total_bytes"), text).unwrap();
        }
        let mut source = Resctrl::open_at(root.path()).unwrap();
        assert_eq!(source.files.len(), 1);
        assert_eq!(source.sample(), None, "one reading is no rate");
        std::thread::sleep(std::time::Duration::from_millis(5));
        std::fs::write(root.path().join("mon_data/mon_L3_00/mbm_total_bytes"), "900000000000").unwrap();
        assert_eq!(source.sample(), Some(2.0), "more than ever before");
    }
}
