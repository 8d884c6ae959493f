// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shows the durability guarantee of a pool in a folder, and the cost of a durable transaction there.
//!
//! - **Method** a small pool is made in the folder, its guarantee is read, a few transactions are committed, and the
//!   pool is removed
//! - **Cost** some fdatasyncs, or some fences
//! - **Source** /proc/self/mountinfo, /sys/bus/nd/devices

use std::fs;
use std::path::Path;
use std::time::Instant;

use memlift::persist::{Domain, Guarantee, Options, Pool, Survives};

use super::Check;

const COMMITS: usize = 7;

/// Checks folder, guarantee, cost, and persistent memory.
pub fn checks(folder: &Path) -> Vec<Check> {
    let mut checks = vec![place(folder)];
    let path = folder.join(format!(".memlift-doctor.{}.pool", std::process::id()));
    match ask(&path) {
        Ok((guarantee, commit_ns)) => checks.extend([promise(&guarantee), cost(&guarantee, commit_ns)]),
        Err(error) => checks.push(
            Check::absent("guarantee", error)
                .advise("memlift doctor --path FOLDER asks about another folder"),
        ),
    }
    checks.extend(devices(Path::new("/sys/bus/nd/devices")));
    checks
}

/// Returns a pool's guarantee and the median time of a few commits.
fn ask(path: &Path) -> Result<(Guarantee, u64), String> {
    let options = Options { heap_bytes: 1 << 20, lanes: 2, lane_bytes: 64 << 10, ..Options::default() };
    let pool = Pool::create(path, &options).map_err(|error| error.to_string())?;
    // This process made the file. The open pool does not need its name.
    let _ = fs::remove_file(path);
    let commit = || pool.tx(|t| t.alloc(1u64)).map(|_| ()).map_err(|error| error.to_string());
    commit()?;
    let mut times = Vec::with_capacity(COMMITS);
    for _ in 0..COMMITS {
        let start = Instant::now();
        commit()?;
        times.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    times.sort_unstable();
    Ok((pool.guarantee(), times[COMMITS / 2]))
}

fn promise(guarantee: &Guarantee) -> Check {
    let text = guarantee.to_string();
    if guarantee.survives == Survives::PowerFailure {
        return Check::usable("guarantee", text);
    }
    Check::absent("guarantee", text)
        .advise("put pools on a disk or on persistent memory to survive a power failure")
}

fn cost(guarantee: &Guarantee, commit_ns: u64) -> Check {
    if guarantee.domain == Domain::Pages {
        let found = format!("{:.2} ms each, almost all of it fdatasync", commit_ns as f64 / 1e6);
        return Check::usable("durable commit", found)
            .advise("Durability::Group lets transactions share one, Buffered lets them go ahead of it");
    }
    Check::usable("durable commit", format!("{:.1} µs each, with its fence", commit_ns as f64 / 1e3))
}

/// Checks the file system of a folder.
fn place(folder: &Path) -> Check {
    let shown = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    match mount(&mounts, &shown) {
        Some((kind, options)) => {
            let dax = options.split(',').any(|one| one.starts_with("dax") && one != "dax=never");
            let dax = if dax { ", mounted with dax" } else { "" };
            Check::usable("folder", format!("{} on {kind}{dax}", shown.display()))
        }
        None => Check::absent("folder", format!("{}: its file system is not known", shown.display())),
    }
}

/// Returns type and options of the mount that contains a path: of all mounts on the path, the one with the
/// longest name.
fn mount(mountinfo: &str, path: &Path) -> Option<(String, String)> {
    let mut best: Option<(usize, String, String)> = None;
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let Some(point) = left.split(' ').nth(4) else { continue };
        let mut rest = right.split(' ');
        let (Some(kind), _, options) = (rest.next(), rest.next(), rest.next().unwrap_or("")) else {
            continue;
        };
        if path.starts_with(point) && best.as_ref().is_none_or(|(length, ..)| *length <= point.len()) {
            best = Some((point.len(), kind.to_owned(), options.to_owned()));
        }
    }
    best.map(|(_, kind, options)| (kind, options))
}

fn devices(folder: &Path) -> Vec<Check> {
    let regions: Vec<(String, String)> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("region"))
        .map(|entry| {
            let domain = fs::read_to_string(entry.path().join("persistence_domain")).unwrap_or_default();
            (entry.file_name().to_string_lossy().into_owned(), domain.trim().to_owned())
        })
        .collect();
    if regions.is_empty() {
        return vec![Check::absent(
            "persistent memory",
            "no region in /sys/bus/nd/devices: pools are files on a disk, which is what they are made for",
        ).extra()];
    }
    let eadr = regions.iter().all(|(_, domain)| domain == "cpu_cache");
    let all: Vec<String> = regions
        .iter()
        .map(|(name, domain)| format!("{name} ({})", if domain.is_empty() { "unknown" } else { domain }))
        .collect();
    let caches = if eadr {
        Check::usable("eADR", "caches are flushed when power fails: no write-back, a fence is enough")
    } else {
        Check::absent("eADR", "no: lines are written back before each fence").extra()
    };
    vec![Check::usable("persistent memory", all.join(", ")), caches]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_with_the_longest_name_holds_a_path() {
        let mounts =
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:2 / /mnt/pmem rw - xfs /dev/pmem0 rw,dax=always\n";
        let kind = |path: &str| mount(mounts, Path::new(path)).expect("mounted");
        assert_eq!(kind("/home").0, "ext4");
        assert_eq!(kind("/mnt/pmem/a"), ("xfs".to_owned(), "rw,dax=always".to_owned()));
        assert_eq!(kind("/mnt/pmem2").0, "ext4");
    }

    #[test]
    fn a_folder_is_asked_and_left_as_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let checks = checks(folder.path());
        assert!(
            checks.iter().any(|check| check.what == "guarantee" && check.found.contains("survives")),
            "{checks:?}"
        );
        assert!(checks.iter().any(|check| check.what == "durable commit"));
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 0);
    }
}
