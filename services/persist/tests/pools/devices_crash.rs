// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Crashes of pools over several files: files that are as old as their last sync, processes that are killed, and every point of
//! a simulated machine with two devices.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use memlift_persist::{Domain, Error, Options, PPtr, PSlice, Persist, Pool, View};

/// One array over both devices: the first and the last element are changed together.
#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Root {
    values: PSlice<u64>,
}

/// Three slabs, the last of which lies in the next stripe.
const LENGTH: u64 = 6000;

fn options(domain: Domain) -> Options {
    Options {
        heap_bytes: 12 << 14,
        max_bytes: 1 << 20,
        lanes: 2,
        lane_bytes: 8192,
        stripe_bytes: 64 << 10,
        domain,
        ..Options::default()
    }
}

fn make(pool: &Pool) {
    pool.tx(|t| {
        t.alloc(0u64)?; // takes the last slab but two of its stripe
        let values = t.alloc_slice(&vec![0u64; LENGTH as usize])?;
        let root = t.alloc(Root { values })?;
        t.set_root(root)
    })
    .expect("committed");
}

fn add(pool: &Pool) {
    pool.tx(|t| {
        let root: PPtr<Root> = t.root()?.expect("made first");
        let values = t.get(root)?.values;
        t.slice_part_mut(values, 0, 1)?[0] += 1;
        t.slice_part_mut(values, LENGTH - 1, 1)?[0] += 1;
        Ok::<_, Error>(())
    })
    .expect("committed");
}

/// How often [`add`] happened, on the first and on the last element.
fn ends(pool: &Pool) -> Result<(u64, u64), Error> {
    pool.read(|r| {
        let root: PPtr<Root> = r.root()?.expect("made first");
        let values = r.slice(r.get(root)?.values)?;
        Ok((values[0], values[LENGTH as usize - 1]))
    })
}

fn files(folder: &Path, name: &str) -> Vec<PathBuf> {
    (0..2).map(|at| folder.join(format!("{name}{at}"))).collect()
}

/// Between two truncations of the log the second file may be as old as its last sync.
#[test]
fn a_file_that_is_as_old_as_its_last_sync_catches_up_from_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = options(Domain::Pages);
    let (paths, copies) = (files(folder.path(), "a"), files(folder.path(), "b"));
    let pool = Pool::create_interleaved(&paths, &options).expect("created");
    make(&pool);
    let mut total = 0;
    for _ in 0..3 {
        pool.apply().expect("all files are in step");
        std::fs::copy(&paths[1], &copies[1]).expect("what the second device has for certain");
        let before = pool.device_syncs();
        for _ in 0..10 {
            add(&pool);
            total += 1;
        }
        let after = pool.device_syncs();
        assert_eq!((after[0] - before[0], after[1] - before[1]), (10, 0), "the second device waits");
        std::fs::copy(&paths[0], &copies[0]).expect("and the first, now");
        let crashed = Pool::open_interleaved(&copies, &options).expect("recovered");
        assert_eq!(crashed.recovered().transactions, 10);
        assert_eq!(ends(&crashed).expect("read"), (total, total));
    }
    // The copies do show what is missing: a second device without the sync that comes before the log forgets.
    std::fs::copy(&paths[1], &copies[1]).expect("copied");
    pool.apply().expect("applied");
    std::fs::copy(&paths[0], &copies[0]).expect("copied");
    let broken = Pool::open_interleaved(&copies, &options).expect("its headers are of one time");
    let error = ends(&broken).expect_err("pages of another time");
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

/// Headers are written to all files, so that an old file among new ones is recognised.
#[test]
fn a_file_of_an_earlier_time_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = options(Domain::Pages);
    let (paths, old) = (files(folder.path(), "a"), files(folder.path(), "old"));
    let pool = Pool::create_interleaved(&paths, &options).expect("created");
    make(&pool);
    pool.close().expect("closed");
    for (path, copy) in paths.iter().zip(&old) {
        std::fs::copy(path, copy).expect("copied");
    }
    let pool = Pool::open_interleaved(&paths, &options).expect("opened");
    add(&pool);
    pool.close().expect("closed");
    for (mixed, older) in
        [([&paths[0], &old[1]], "device 1 is a file of an earlier"), ([&old[0], &paths[1]], "device 0 is")]
    {
        let error = Pool::open_interleaved(&mixed, &options).expect_err("of two times");
        assert!(error.to_string().contains(older), "{error}");
    }
    let length = std::fs::metadata(&paths[1]).expect("there").len();
    let file = std::fs::OpenOptions::new().write(true).open(&paths[1]).expect("opened");
    file.set_len(length - 4096).expect("cut");
    let error = Pool::open_interleaved(&paths, &options).expect_err("cut");
    assert!(error.to_string().contains("truncated") && error.to_string().contains("device 1"), "{error}");
    assert_eq!(ends(&Pool::open_interleaved(&old, &options).expect("whole")).expect("read"), (0, 0));
}

#[test]
fn what_was_acknowledged_before_a_kill_is_there() {
    for domain in ["lines", "pages"] {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = files(folder.path(), "a");
        let options = options(if domain == "lines" { Domain::Lines } else { Domain::Pages });
        make(&Pool::create_interleaved(&paths, &options).expect("created"));
        let mut total = 0;
        for acknowledged in [1, 7, 150, 40] {
            let mut child = Command::new(std::env::current_exe().expect("a path"))
                .args(["--exact", "devices_crash::the_child_that_is_killed", "--ignored", "--nocapture"])
                .env("MEMLIFT_DEVICES_FOLDER", folder.path())
                .env("MEMLIFT_DEVICES_DOMAIN", domain)
                .stdout(Stdio::piped())
                .spawn()
                .expect("it runs");
            let mut output = BufReader::new(child.stdout.take().expect("piped"));
            let mut line = String::new();
            let mut acks = 0;
            while acks < acknowledged {
                line.clear();
                assert!(output.read_line(&mut line).expect("a line") > 0, "it ended by itself");
                acks += u64::from(line.trim_end() == "done");
            }
            child.kill().expect("killed");
            child.wait().expect("ended");
            let mut rest = String::new();
            output.read_to_string(&mut rest).expect("what it had written");
            acks += rest.lines().filter(|line| *line == "done").count() as u64;
            let pool = Pool::open_interleaved(&paths, &options).expect("recovered");
            let (first, last) = ends(&pool).expect("read");
            assert_eq!(first, last);
            assert!((total + acks..=total + acks + 1).contains(&first), "{first} of {total} and {acks}");
            total = first;
        }
    }
}

#[test]
#[ignore = "run by the test above"]
fn the_child_that_is_killed() {
    let Some(folder) = std::env::var_os("MEMLIFT_DEVICES_FOLDER") else { return };
    let lines = std::env::var_os("MEMLIFT_DEVICES_DOMAIN").is_some_and(|domain| domain == "lines");
    let options = options(if lines { Domain::Lines } else { Domain::Pages });
    let pool = Pool::open_interleaved(&files(Path::new(&folder), "a"), &options).expect("opened");
    println!();
    loop {
        add(&pool);
        println!("done");
    }
}

#[test]
fn a_heap_of_too_many_stripes_is_refused_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let many = Options { heap_bytes: 4 << 30, ..options(Domain::Pages) };
    let error = Pool::create_interleaved(&files(folder.path(), "a"), &many).expect_err("65,536 mappings");
    assert!(error.to_string().contains("raise Options::stripe_bytes to 262144"), "{error}");
    for stripe_bytes in [0, 32 << 10, 96 << 10] {
        let odd = Options { stripe_bytes, ..options(Domain::Pages) };
        let error = Pool::create_interleaved(&files(folder.path(), "b"), &odd).expect_err("no stripe");
        assert!(error.to_string().contains("stripe_bytes"), "{error}");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("listed").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[cfg(feature = "sim")]
mod simulated {
    use memlift_persist::Mechanism;
    use memlift_persist::sim::{Acks, Config, Device, Mode, Site, World, explore, mutation_score, pool};

    use super::*;

    fn config(mode: Mode) -> Config {
        let config = Config::new(Device::new("first", mode, 0)).and(Device::new("second", mode, 0));
        config.exhaustive(32).samples(8).recovery_depth(1)
    }

    fn workload(mechanism: Mechanism) -> impl Fn(&World, &Acks) {
        move |world, acks| {
            let options = Options { mechanism, lane_bytes: 1 << 20, ..options(Domain::Auto) };
            let pool = pool::create_interleaved(&[world.memory(0), world.memory(1)], &options).expect("made");
            make(&pool);
            pool.apply().expect("applied");
            world.settle();
            for step in 1..=6 {
                acks.begin(step);
                add(&pool);
                acks.done(step);
                if step % 2 == 0 {
                    pool.apply().expect("applied");
                }
            }
        }
    }

    fn check(mechanism: Mechanism) -> impl Fn(&World, &[u64], &[u64]) -> Result<(), String> {
        move |world, acked, in_flight| {
            let options = Options { mechanism, lane_bytes: 1 << 20, ..options(Domain::Auto) };
            let pool = pool::open_interleaved(&[world.memory(0), world.memory(1)], &options)
                .map_err(|error| error.to_string())?;
            world.recovered();
            let (first, last) = ends(&pool).map_err(|error| error.to_string())?;
            let (least, most) = (acked.len() as u64, (acked.len() + in_flight.len()) as u64);
            if first != last || !(least..=most).contains(&first) {
                return Err(format!("{first} and {last} of {least} to {most}"));
            }
            Ok(())
        }
    }

    #[test]
    fn two_devices_are_cut_at_points_of_their_own_and_agree_after_recovery() {
        for mechanism in [Mechanism::Redo, Mechanism::Checkpoint] {
            for mode in [Mode::File, Mode::Lines, Mode::Eadr] {
                let report = explore(&config(mode), workload(mechanism), check(mechanism));
                println!("{mechanism:?} {mode:?}: {report}");
                report.assert_consistent();
            }
        }
    }

    /// Commit, truncation of the log and recovery each have a sync that some crash misses when it is left out.
    #[test]
    fn left_out_syncs_are_found() {
        let score = mutation_score(&config(Mode::File), workload(Mechanism::Redo), check(Mechanism::Redo));
        println!("{score}");
        for file in ["group.rs", "apply.rs", "recover.rs"] {
            let found = |site: &&Site| site.file.ends_with(file) && !score.survivors.contains(site);
            assert!(score.sites.iter().any(|site| found(&site)), "{file}: {score}");
        }
    }
}
