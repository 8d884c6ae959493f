// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Trimming a mirror: its pages become the file's page cache again, with the same bytes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use memlift_persist::{Domain, Error, Mechanism, Options, PPtr, Persist, Pool, TxOptions, View};

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Block {
    words: [u64; 512],
}

/// Anonymous memory of this process that is resident, bytes: private copies of file pages are.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("RssAnon");
    line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number") << 10
}

fn write(pool: &Pool, blocks: u64) -> Vec<PPtr<Block>> {
    let put = |at| pool.tx(|t| t.alloc(Block { words: [at; 512] })).expect("committed");
    (0..blocks).map(put).collect()
}

fn verify(pool: &Pool, blocks: &[PPtr<Block>]) {
    pool.read(|r| {
        for (at, block) in blocks.iter().enumerate() {
            assert!(r.get(*block)?.words.iter().all(|word| *word == at as u64));
        }
        Ok::<_, Error>(())
    })
    .expect("read");
}

#[test]
fn the_mirror_stays_below_its_limit_and_nothing_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options {
        heap_bytes: 8 << 20,
        max_bytes: 1 << 30,
        lanes: 2,
        domain: Domain::Lines,
        mirror_bytes: Some(8 << 20),
        ..Options::default()
    };
    let pool = Pool::create(folder.path().join("a.pool"), &options).expect("created");
    let before = anonymous();
    let blocks = write(&pool, 30_000);
    let grown = anonymous().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes of memory for 120 MB of objects");
    verify(&pool, &blocks);
    pool.tx(|t| {
        t.get_mut(blocks[7])?.words[3] = 1;
        t.get_mut(blocks[7])?.words[3] = 7;
        Ok::<_, Error>(())
    })
    .expect("committed");
    pool.trim().expect("trimmed");
    assert_eq!(pool.private_bytes(), Some(0));
    verify(&pool, &blocks);
    pool.close().expect("closed");
    let pool = Pool::open(folder.path().join("a.pool"), &options).expect("opened");
    verify(&pool, &blocks);
}

const MIB: u64 = 1 << 20;
const DATA: u64 = 512 * MIB;
const MIRROR: u64 = 32 * MIB;
/// Limit of the child's memory in all: program, mirror, and the page cache of its file.
const LIMIT: u64 = 192 * MIB;

/// A memory cgroup (v1 or v2) of our own, where the system lets us make one.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Group> {
        let name = format!("memlift-trim-{}", std::process::id());
        for (root, file) in
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
        {
            let group = Group(Path::new(root).join(&name));
            let limited = std::fs::create_dir(&group.0)
                .and_then(|()| std::fs::write(group.0.join(file), LIMIT.to_string()));
            if limited.is_ok() {
                return Some(group);
            }
        }
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Bytes that this process has read from disks, where the kernel counts them.
fn read_from_disk() -> Option<u64> {
    let counts = std::fs::read_to_string("/proc/self/io").ok()?;
    counts.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.parse().ok()
}

#[test]
fn a_pool_larger_than_the_memory_that_there_is() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    const TMPFS: i64 = 0x0102_1994;
    let on_disk = rustix::fs::statfs(folder.path()).expect("a file system").f_type as i64 != TMPFS;
    let group = if on_disk { Group::new() } else { None }; // files in memory count, and cannot be written out
    let mut child = Command::new(std::env::current_exe().expect("a path"));
    child.args(["--exact", "the_child_that_writes_more_than_it_has", "--ignored", "--nocapture"]);
    child.env("MEMLIFT_TRIM_POOL", folder.path().join("large.pool")).stdout(Stdio::piped());
    if let Some(group) = &group {
        child.env("MEMLIFT_TRIM_GROUP", group.0.join("cgroup.procs"));
    }
    let output = child.output().expect("it ran");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {text}", output.status);
    let most = text.lines().find_map(|line| line.split_once("most ")).expect("a number").1;
    let most: u64 = most.parse().expect("a number");
    println!("{text}limited by a group: {}, most anonymous memory {} MiB", group.is_some(), most / MIB);
    assert!(most > MIRROR / 2 && most < MIRROR + 32 * MIB, "{most}");
}

#[test]
#[ignore = "run by the test above"]
fn the_child_that_writes_more_than_it_has() {
    let Some(path) = std::env::var_os("MEMLIFT_TRIM_POOL") else { return };
    if let Some(procs) = std::env::var_os("MEMLIFT_TRIM_GROUP") {
        std::fs::write(procs, std::process::id().to_string()).expect("joined the group");
    }
    let options = Options {
        heap_bytes: DATA + 64 * MIB,
        lanes: 2,
        domain: Domain::Lines,
        mirror_bytes: Some(MIRROR),
        ..Options::default()
    };
    let pool = Pool::create(&path, &options).expect("created");
    let (before, mut most) = (anonymous(), 0);
    let mut blocks = Vec::new();
    while (blocks.len() as u64) < DATA / 4096 {
        let first = blocks.len() as u64;
        let made: Result<Vec<PPtr<Block>>, Error> =
            pool.tx(|t| (first..first + 32).map(|at| t.alloc(Block { words: [at; 512] })).collect());
        blocks.extend(made.expect("committed"));
        most = most.max(anonymous().saturating_sub(before));
    }
    verify(&pool, &blocks);
    most = most.max(anonymous().saturating_sub(before));
    pool.close().expect("closed");
    let pool = Pool::open(&path, &options).expect("opened");
    verify(&pool, &blocks);
    if let Some(before) = read_from_disk().filter(|_| std::env::var_os("MEMLIFT_TRIM_GROUP").is_some()) {
        let reads = 4000;
        let mut state = 1u64;
        for _ in 0..reads {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (state >> 33) % blocks.len() as u64;
            let first = pool.read(|r| Ok::<_, Error>(r.get(blocks[at as usize])?.words[0])).expect("read");
            assert_eq!(first, at);
        }
        let each = (read_from_disk().expect("as before") - before) / reads;
        println!("\n{each} bytes read from the disk for each object of 4 KiB");
        assert!(each < 64 << 10, "{each}: the kernel reads ahead what is not used");
    }
    println!("\nmost {most}");
}

#[test]
fn sections_and_threads_go_on_while_pages_are_given_back() {
    let folder = tempfile::tempdir().expect("a folder");
    for mechanism in [Mechanism::Redo, Mechanism::Checkpoint] {
        let options = Options {
            heap_bytes: 64 * MIB,
            sections: 4,
            lanes: 6,
            mechanism,
            domain: Domain::Lines,
            mirror_bytes: Some(MIB),
            ..Options::default()
        };
        let path = folder.path().join(mechanism.name());
        let pool = Pool::create(&path, &options).expect("created");
        std::thread::scope(|scope| {
            for section in 0..4u16 {
                let pool = &pool;
                scope.spawn(move || {
                    let sections = [section];
                    let how = TxOptions { sections: Some(&sections), ..TxOptions::default() };
                    for round in 0..800u64 {
                        let value = round << 8 | u64::from(section);
                        let block =
                            pool.tx_with(how, |t| t.alloc(Block { words: [value; 512] })).expect("committed");
                        let undone: Result<(), Error> = pool.tx_with(how, |t| {
                            t.get_mut(block)?.words.fill(!0);
                            Err(Error::Aborted("on purpose".to_owned()))
                        });
                        assert!(matches!(undone, Err(Error::Aborted(_))));
                        if round % 200 == 100 {
                            pool.trim().expect("trimmed");
                        }
                        let same = |words: &[u64; 512]| words.iter().all(|word| *word == value);
                        assert!(pool.read(|r| Ok::<_, Error>(same(&r.get(block)?.words))).expect("read"));
                    }
                });
            }
        });
        assert!(pool.private_bytes().expect("a limit") < 4 * MIB, "{:?}", pool.private_bytes());
    }
}

#[test]
fn pools_without_a_mirror_have_nothing_to_give_back() {
    let folder = tempfile::tempdir().expect("a folder");
    for mechanism in [Mechanism::Undo, Mechanism::Shadow] {
        let options = Options {
            heap_bytes: 4 * MIB,
            max_bytes: 64 * MIB,
            mechanism,
            domain: Domain::Lines,
            mirror_bytes: Some(MIB),
            ..Options::default()
        };
        let pool = Pool::create(folder.path().join(mechanism.name()), &options).expect("created");
        let blocks = write(&pool, 300);
        pool.trim().expect("trimmed");
        assert_eq!(pool.private_bytes(), None);
        verify(&pool, &blocks);
    }
    let both = Options { heap_bytes: 4 * MIB, prefault: true, mirror_bytes: Some(MIB), ..Options::default() };
    let error = Pool::create(folder.path().join("both"), &both).expect_err("it is a contradiction");
    assert!(error.to_string().contains("choose one"), "{error}");
}

#[test]
fn by_default_a_mirror_takes_a_part_of_what_the_process_may_have() {
    let folder = tempfile::tempdir().expect("a folder");
    let created =
        |name: &str, options: &Options| Pool::create(folder.path().join(name), options).expect("created");
    // `private_bytes` answers where there is a limit.
    assert_eq!(created("plain", &Options::default()).private_bytes(), Some(0));
    assert_eq!(created("touched", &Options { prefault: true, ..Options::default() }).private_bytes(), None);
    let undo = Options { mechanism: Mechanism::Undo, ..Options::default() };
    assert_eq!(created("undo", &undo).private_bytes(), None);
}
