// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds out which crashes a file's stores survive, and names the reason.
//!
//! - **Order** MAP_SYNC maps → the file is on persistent memory: lines, and no write-back where every region's
//!   persistence_domain is `cpu_cache` (eADR). A memory file system (tmpfs, ramfs) → lines, which survive the process.
//!   Anything else → pages and fdatasync
//! - **Source** libpmem2's granularity; ndctl's sysfs-bus-nd `persistence_domain`

use std::fmt;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use crate::options::Domain;

/// The crashes that acknowledged transactions survive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Survives {
    /// The death of the process, at any instruction. Not a power failure, not a crash of the kernel.
    Process,
    /// A power failure as well.
    PowerFailure,
}

/// The durability that a pool has on this file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Guarantee {
    /// The worst crash that acknowledged transactions survive.
    pub survives: Survives,
    /// Where stores become durable: `Lines` or `Pages`.
    pub domain: Domain,
    /// The instructions or calls behind it: `write-back of lines + sfence`, `sfence (eADR)` or `fdatasync`.
    pub by: &'static str,
    /// Reason for this guarantee, for the user.
    pub reason: String,
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let survives = match self.survives {
            Survives::Process => "survives the death of the process, not a power failure",
            Survives::PowerFailure => "survives a power failure",
        };
        write!(f, "{survives}; by {}: {}", self.by, self.reason)
    }
}

const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// The guarantee that a file offers; `sync_maps` is true if MAP_SYNC worked.
pub(super) fn detect(file: impl AsFd, wanted: Domain, sync_maps: bool) -> Guarantee {
    let in_memory =
        rustix::fs::fstatfs(file).is_ok_and(|stat| matches!(stat.f_type as u64, TMPFS_MAGIC | RAMFS_MAGIC));
    judge(wanted, sync_maps, in_memory, eadr(Path::new("/sys/bus/nd/devices")))
}

fn judge(wanted: Domain, sync_maps: bool, in_memory: bool, eadr: bool) -> Guarantee {
    let lines = |survives, reason: &str| Guarantee {
        survives,
        domain: Domain::Lines,
        by: if eadr && sync_maps { "sfence (eADR)" } else { "write-back of lines + sfence" },
        reason: reason.to_owned(),
    };
    let pages = |survives, reason: &str| Guarantee {
        survives,
        domain: Domain::Pages,
        by: "fdatasync",
        reason: reason.to_owned(),
    };
    match (wanted, sync_maps, in_memory) {
        (Domain::Pages, _, true) => pages(Survives::Process, "the file system lives in memory"),
        (Domain::Pages, ..) => pages(Survives::PowerFailure, "as asked for"),
        (_, true, _) => lines(Survives::PowerFailure, "the file is mapped with MAP_SYNC (persistent memory)"),
        (_, false, true) => lines(Survives::Process, "the file system lives in memory"),
        (Domain::Lines, ..) => {
            lines(Survives::Process, "lines were asked for on a file whose pages the kernel caches")
        }
        (Domain::Auto, ..) => {
            pages(Survives::PowerFailure, "an ordinary file: the disk keeps what fdatasync wrote")
        }
    }
}

/// Returns true if the platform flushes caches when power fails: every region says `cpu_cache`, and there is one.
fn eadr(devices: &Path) -> bool {
    let Ok(entries) = fs::read_dir(devices) else { return false };
    let mut domains = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("region"))
        .map(|entry| fs::read_to_string(entry.path().join("persistence_domain")).unwrap_or_default())
        .peekable();
    domains.peek().is_some() && domains.all(|domain| domain.trim() == "cpu_cache")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_gets_what_it_can_promise() {
        let case = |wanted, sync, memory| {
            let found = judge(wanted, sync, memory, false);
            (found.survives, found.domain)
        };
        assert_eq!(case(Domain::Auto, true, false), (Survives::PowerFailure, Domain::Lines));
        assert_eq!(case(Domain::Auto, false, true), (Survives::Process, Domain::Lines));
        assert_eq!(case(Domain::Auto, false, false), (Survives::PowerFailure, Domain::Pages));
        assert_eq!(case(Domain::Lines, false, false), (Survives::Process, Domain::Lines));
        assert_eq!(case(Domain::Pages, false, true), (Survives::Process, Domain::Pages));
        assert_eq!(case(Domain::Pages, true, false), (Survives::PowerFailure, Domain::Pages));
    }

    #[test]
    fn eadr_needs_every_region() {
        let folder = tempfile::tempdir().expect("a folder");
        let region = |name: &str, domain: &str| {
            fs::create_dir(folder.path().join(name)).expect("made");
            fs::write(folder.path().join(name).join("persistence_domain"), domain).expect("written");
        };
        assert!(!eadr(folder.path()));
        region("region0", "cpu_cache\n");
        region("ndbus0", "x");
        assert!(eadr(folder.path()));
        region("region1", "memory_controller\n");
        assert!(!eadr(folder.path()));
        assert!(!eadr(Path::new("/nonexistent")));
    }
}
