// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The buffered transactions that are there after a kill: all whose time was over, and all but the last `buffered_bytes`.
//!
//! - **Method** this very program is the child: with a role in its environment it works on a pool until it is killed
//! - **Not here** crashes of the machine: the simulator's tests

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use memlift_persist::{Durability, Error, Mechanism, Options, Pool, TxOptions, View};

const LATER: TxOptions<'_> = TxOptions { durability: Durability::Buffered, sections: None };

fn options(mechanism: Mechanism, wait: Duration, bytes: u64) -> Options {
    Options {
        heap_bytes: 1 << 20,
        max_bytes: 1 << 24,
        mechanism,
        buffered_wait: wait,
        buffered_bytes: bytes,
        ..Options::default()
    }
}

fn count(pool: &Pool) -> u64 {
    let count = |r: &memlift_persist::Reader<'_>| match r.root::<u64>()? {
        Some(root) => r.get(root).copied(),
        None => Ok(0),
    };
    pool.read(count).expect("read")
}

fn add(pool: &Pool) -> u64 {
    pool.tx_with(LATER, |t| {
        let root = t.root_or(|_| Ok(0u64))?;
        *t.get_mut(root)? += 1;
        Ok::<_, Error>(*t.get(root)?)
    })
    .expect("committed")
}

fn forever() -> Options {
    options(Mechanism::Redo, Duration::from_secs(3600), 4096)
}

/// The child's part, if this process is one.
#[test]
fn child() {
    let Ok(role) = std::env::var("MEMLIFT_TEST_ROLE") else { return };
    let path = std::env::var("MEMLIFT_TEST_POOL").expect("a path");
    let mut out = std::io::stdout().lock();
    if role == "count" {
        let pool = Pool::open(path, &forever()).expect("opened");
        loop {
            writeln!(out, "at {}", add(&pool)).expect("written");
        }
    }
    let mechanism = Mechanism::ALL.into_iter().find(|one| one.name() == role).expect("a mechanism");
    let pool = Pool::open(path, &options(mechanism, Duration::from_millis(20), 1 << 20)).expect("opened");
    add(&pool);
    pool.sync().expect("durable");
    let mut last = 0;
    for _ in 0..100 {
        last = add(&pool);
    }
    // A harden begins after the one before has ended: once later ones are through, `last` is durable. Eight of them, because a
    // mechanism may harden several times for one group.
    for _ in 0..8 {
        let before = pool.counters().hardens;
        add(&pool);
        while pool.counters().hardens == before {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    writeln!(out, "at {last}").expect("written");
    loop {
        std::thread::park();
    }
}

fn start(role: &str, path: &Path) -> (Child, impl Iterator<Item = u64>) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "buffered::child", "--nocapture"])
        .env("MEMLIFT_TEST_ROLE", role)
        .env("MEMLIFT_TEST_POOL", path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    // The test harness has its own lines.
    (child, lines.map_while(Result::ok).filter_map(|line| line.rsplit_once("at ")?.1.parse().ok()))
}

#[test]
fn what_had_its_time_is_there_after_a_kill() {
    let folder = tempfile::tempdir().expect("a folder");
    for mechanism in [Mechanism::Redo, Mechanism::Checkpoint, Mechanism::Shadow] {
        let path = folder.path().join(mechanism.name());
        let options = options(mechanism, Duration::from_millis(20), 1 << 20);
        Pool::create(&path, &options).expect("created").close().expect("closed");
        let (mut child, mut lines) = start(mechanism.name(), &path);
        let last = lines.next().expect("a line");
        child.kill().expect("killed");
        child.wait().expect("gone");
        let pool = Pool::open(&path, &options).expect("recovered");
        assert!(!pool.recovered().clean);
        assert!(count(&pool) >= last, "{mechanism:?}: {} of {last}", count(&pool));
    }
}

#[test]
fn no_more_than_the_bytes_are_lost_by_a_kill() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    Pool::create(&path, &forever()).expect("created").close().expect("closed");
    let mut least = 0;
    for round in 1..4 {
        let (mut child, mut lines) = start("count", &path);
        let told = lines.find(|told| *told >= least + 1000 * round).expect("many");
        child.kill().expect("killed");
        child.wait().expect("gone");
        let told = lines.last().unwrap_or(told);
        let pool = Pool::open(&path, &forever()).expect("recovered");
        let found = count(&pool);
        // A record has 64 bytes at least.
        assert!(found + 4096 / 64 + 1 >= told, "{found} of {told}");
        assert!(found >= least);
        least = found;
        pool.close().expect("closed");
    }
}

#[test]
fn closing_keeps_everything_and_ends_the_thread() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let pool = Pool::create(&path, &forever()).expect("created");
    let mut all = 0;
    for _ in 0..20 {
        all = add(&pool);
    }
    drop(pool);
    let pool = Pool::open(&path, &forever()).expect("opened");
    assert!(pool.recovered().clean);
    assert_eq!((count(&pool), all), (20, 20));
}

/// Switches of the flusher's thread, by /proc.
fn switches(process: u32) -> Option<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    tasks.flatten().find_map(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        (name.trim() == "memlift-flush").then(|| count.trim().parse().ok())?
    })
}

#[test]
fn an_idle_process_is_not_woken() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let options = options(Mechanism::Redo, Duration::from_millis(20), 1 << 20);
    Pool::create(&path, &options).expect("created").close().expect("closed");
    let (mut child, mut lines) = start("redo", &path);
    lines.next().expect("everything is durable, and the child idle");
    // The last sync may take a while yet; a thread that is woken by time would never be still for so long.
    let still = (0..40).any(|_| {
        let before = switches(child.id()).expect("the thread is there");
        std::thread::sleep(Duration::from_millis(500)); // 25 waits
        switches(child.id()) == Some(before)
    });
    child.kill().expect("killed");
    child.wait().expect("gone");
    assert!(still, "it is woken while nothing is to be done");
}
