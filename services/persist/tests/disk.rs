// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Disks that are full, and files that are truncated under a pool: errors, never a signal, and nothing that is left over.
#![forbid(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memlift_persist::kv::Kv;
use memlift_persist::{Domain, Durability, Error, Mechanism, Options, PSlice, Pool, Tx, View};

/// Set for a test of this program that runs as a child: its folder.
const CHILD: &str = "MEMLIFT_TEST_FOLDER";

fn options(mechanism: Mechanism, domain: Domain) -> Options {
    let (heap_bytes, max_bytes) = (4 << 20, 64 << 20);
    Options { mechanism, domain, heap_bytes, max_bytes, lane_bytes: 1 << 20, ..Options::default() }
}

fn key(number: u32) -> String {
    format!("key {number:05}")
}

fn fill(pool: &Pool, entries: u32) {
    let store = Kv::open(pool, Durability::Sync).expect("a store");
    let all: Vec<(String, Vec<u8>)> = (0..entries).map(|one| (key(one), vec![one as u8; 1000])).collect();
    for some in all.chunks(40) {
        let some: Vec<(&[u8], &[u8])> =
            some.iter().map(|(key, value)| (key.as_bytes(), &value[..])).collect();
        store.set_many(&some).expect("room");
    }
}

/// Reads what [`fill`] wrote: how many entries are there, all of them right.
fn read(pool: &Pool, entries: u32) -> Result<u32, Error> {
    let store = Kv::open(pool, Durability::Sync)?;
    let mut found = 0;
    for one in 0..entries {
        if let Some(value) = store.get(key(one).as_bytes())? {
            assert!(value == vec![one as u8; 1000], "{}", key(one));
            found += 1;
        }
    }
    Ok(found)
}

#[test]
fn a_file_that_is_truncated_under_a_pool_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let both = |one| [(one, Domain::Lines), (one, Domain::Pages)];
    for (mechanism, domain) in Mechanism::ALL.into_iter().flat_map(both) {
        let path = folder.path().join(format!("{} {domain:?}", mechanism.name()));
        let options = options(mechanism, domain);
        let pool = Pool::create(&path, &options).expect("created");
        fill(&pool, 2000);
        pool.close().expect("closed");
        let pool = Pool::open(&path, &options).expect("opened");
        let start = pool.header().heap_start;
        OpenOptions::new().write(true).open(&path).expect("opened").set_len(start + (64 << 10)).expect("cut");
        // A shadow pool is in memory whole, and notices when it writes.
        match read(&pool, 2000) {
            Err(Error::Stopped { reason }) => assert!(reason.contains("truncated"), "{reason}"),
            Ok(2000) if mechanism == Mechanism::Shadow => {}
            other => panic!("{mechanism:?} {domain:?}: {other:?}"),
        }
        let store = Kv::open(&pool, Durability::Sync);
        let written = store.and_then(|store| {
            (0..2000).try_for_each(|one| store.set(key(one).as_bytes(), &[1; 1000], 0))?;
            pool.apply()
        });
        assert!(matches!(written, Err(Error::Stopped { .. })), "{mechanism:?} {domain:?}: {written:?}");
        drop(pool);
        let error = Pool::open(&path, &options).expect_err("it is damaged").to_string();
        assert!(error.contains("bytes"), "{error}");
    }
}

/// Runs a test of this program in a memory file system of `bytes` bytes. False: this machine does not let us make one.
fn on_a_small_disk(test: &str, bytes: u64) -> bool {
    let script = format!("mount -t tmpfs -o size={bytes} none \"$0\" && exec \"$@\"");
    on_a_disk_of(test, &["-Urm", "sh", "-c", &script])
}

/// As [`on_a_small_disk`], in an ext4 of its own, which takes root.
fn on_a_small_ext4(test: &str, bytes: u64) -> bool {
    let script = format!(
        "truncate -s {bytes} \"$0.ext4\" && mkfs.ext4 -q -F -m 0 \"$0.ext4\" && mount -o loop \"$0.ext4\" \"$0\" && \
         rm \"$0.ext4\" && exec \"$@\""
    );
    on_a_disk_of(test, &["-m", "sh", "-c", &script])
}

fn on_a_disk_of(test: &str, script: &[&str]) -> bool {
    // A disk in memory is as full, and sooner.
    let outer = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
    let folder = outer.path().join("disk");
    fs::create_dir(&folder).expect("a folder");
    let me = std::env::current_exe().expect("a path");
    let probe = Command::new("unshare").args(script).arg(&folder).arg("true").output();
    if !probe.is_ok_and(|done| done.status.success()) {
        println!("not run: this machine lets us mount no such file system");
        return false;
    }
    let done = Command::new("unshare")
        .args(script)
        .arg(&folder)
        .arg(me)
        .args([test, "--exact", "--ignored", "--nocapture"])
        .env(CHILD, &folder)
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}: {said}", done.status);
    assert!(said.contains("1 passed"), "{said}");
    true
}

fn child_folder() -> PathBuf {
    std::env::var_os(CHILD).map(PathBuf::from).expect("run by another test")
}

/// Leaves no room on the disk.
fn stuff(folder: &Path) -> PathBuf {
    let path = folder.join("filler");
    let mut file = File::create(&path).expect("made");
    for bytes in [64 << 10, 4096] {
        while file.write_all(&vec![1; bytes]).is_ok() {}
    }
    path
}

/// As `cp --sparse=always`.
fn copy_sparse(from: &Path, to: &Path) {
    let bytes = fs::read(from).expect("read");
    let copy = File::create(to).expect("made");
    copy.set_len(bytes.len() as u64).expect("sized");
    for (at, page) in bytes.chunks(4096).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0)) {
        copy.write_all_at(page, at as u64 * 4096).expect("written");
    }
}

#[test]
fn a_sparse_copy_on_a_full_disk_is_refused_and_opens_later() {
    on_a_small_disk("child_opens_a_sparse_copy", 24 << 20);
}

#[test]
#[ignore = "runs as a child, on a small disk"]
fn child_opens_a_sparse_copy() {
    let folder = child_folder();
    for mechanism in Mechanism::ALL {
        let options = options(mechanism, Domain::Auto);
        let (made, path) = (folder.join("made"), folder.join("pool"));
        let pool = Pool::create(&made, &Options { max_bytes: 4 << 20, ..options.clone() }).expect("created");
        fill(&pool, 300);
        pool.close().expect("closed");
        copy_sparse(&made, &path);
        fs::remove_file(&made).expect("removed");
        let filler = stuff(&folder);
        let error = Pool::open(&path, &options).expect_err("no room for its blocks");
        let full = matches!(&error, Error::File { source, .. } if source.raw_os_error() == Some(28));
        assert!(full, "{mechanism:?}: {error}");
        fs::remove_file(filler).expect("removed");
        let pool = Pool::open(&path, &options).expect("there is room");
        assert_eq!(read(&pool, 300).expect("read"), 300);
        fill(&pool, 300);
        pool.close().expect("closed");
        fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn a_disk_that_fills_up_refuses_what_has_no_room_and_nothing_else() {
    on_a_small_disk("child_fills_the_disk", 24 << 20);
}

#[test]
#[ignore = "runs as a child, on a small disk"]
fn child_fills_the_disk() {
    let folder = child_folder();
    for (mechanism, domain) in
        Mechanism::ALL.into_iter().flat_map(|one| [(one, Domain::Lines), (one, Domain::Pages)])
    {
        let path = folder.join("pool");
        let options = Options { heap_bytes: 256 << 10, ..options(mechanism, domain) };
        let pool = Pool::create(&path, &options).expect("created");
        fill(&pool, 20);
        let filler = stuff(&folder);
        // New lanes and a larger heap have no room now; what is there is read and overwritten.
        let store = Kv::open(&pool, Durability::Sync).expect("a store");
        let mut refused = 0;
        for one in 20..2000 {
            match store.set(key(one).as_bytes(), &vec![one as u8; 1000], 0) {
                Ok(()) => {}
                Err(Error::File { source, .. }) if source.raw_os_error() == Some(28) => refused += 1,
                Err(error) => panic!("{mechanism:?} {domain:?}: {error}"),
            }
        }
        assert!(refused > 0, "{mechanism:?}: the disk has room");
        assert_eq!(read(&pool, 2000).expect("read"), 2000 - refused);
        fs::remove_file(filler).expect("removed");
        fill(&pool, 2000);
        assert_eq!(read(&pool, 2000).expect("read"), 2000);
        pool.close().expect("closed");
        fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn a_pool_with_one_key_takes_little_of_the_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    for mechanism in [Mechanism::Redo, Mechanism::Checkpoint, Mechanism::Undo] {
        let path = folder.path().join(mechanism.name());
        let pool = Pool::create(&path, &Options { mechanism, ..Options::default() }).expect("created");
        fill(&pool, 1);
        pool.close().expect("closed");
        let bytes = fs::metadata(&path).expect("there").blocks() * 512;
        assert!(bytes <= 1 << 20, "{mechanism:?}: {bytes} bytes");
    }
}

/// Recovery looks for records behind the end of each lane, and skips what the log never got to: the file has holes there.
#[test]
fn a_log_that_is_not_used_is_not_read() {
    let read_bytes = || -> Option<u64> {
        let about = fs::read_to_string("/proc/thread-self/io").ok()?;
        about.lines().find_map(|line| line.strip_prefix("rchar: "))?.parse().ok()
    };
    if read_bytes().is_none() {
        return println!("not run: this kernel does not count what a thread reads");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (path, crashed) = (folder.path().join("pool"), folder.path().join("crashed"));
    let options = Options { lane_bytes: 64 << 20, lanes: 4, ..options(Mechanism::Redo, Domain::Pages) };
    let pool = Pool::create(&path, &options).expect("created");
    fill(&pool, 200);
    let copied = Command::new("cp").arg("--sparse=always").args([&path, &crashed]).status().expect("run");
    assert!(copied.success());
    let before = read_bytes().expect("a number");
    let opened = Pool::open(&crashed, &options).expect("recovered");
    let taken = read_bytes().expect("a number") - before;
    assert!(opened.recovered().transactions > 0 && !opened.recovered().clean);
    assert_eq!(read(&opened, 200).expect("read"), 200);
    assert!(taken < 48 << 20, "{taken} bytes were read of four lanes of 64 MiB");
}

#[test]
fn a_log_that_is_not_used_takes_no_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let options = Options { lanes: 4, lane_bytes: 256 << 20, ..Options::default() };
    let anonymous = || -> u64 {
        let about = fs::read_to_string("/proc/self/smaps_rollup").expect("read");
        let line = about.lines().find(|line| line.starts_with("Anonymous:")).expect("a line");
        line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number") << 10
    };
    let before = anonymous();
    let pool = Pool::create(&path, &options).expect("created");
    fill(&pool, 10);
    pool.close().expect("closed");
    let pool = Pool::open(&path, &options).expect("opened");
    assert_eq!(read(&pool, 10).expect("read"), 10);
    let taken = anonymous().saturating_sub(before);
    assert!(taken < 512 << 20, "{taken} bytes"); // other tests take some, too
    pool.close().expect("closed");
}

#[test]
fn a_process_that_dies_while_it_makes_pools_leaves_whole_ones_only() {
    let folder = tempfile::tempdir().expect("a folder");
    for round in 0..12 {
        let me = std::env::current_exe().expect("a path");
        let mut child = Command::new(me)
            .args(["child_makes_pools", "--exact", "--ignored", "--nocapture"])
            .env(CHILD, folder.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("it starts");
        std::thread::sleep(Duration::from_millis(20 + 7 * round));
        child.kill().expect("killed");
        child.wait().expect("it ended");
    }
    let mut made = 0;
    for entry in fs::read_dir(folder.path()).expect("read") {
        let path = entry.expect("an entry").path();
        let pool = Pool::open(&path, &Options::default()).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        assert_eq!(pool.usage().0, 256 << 10);
        made += 1;
    }
    assert!(made > 0);
}

#[test]
#[ignore = "runs as a child, and is killed"]
fn child_makes_pools() {
    let folder = child_folder();
    for number in 0.. {
        let path = folder.join(format!("{} {number}", std::process::id()));
        Pool::create(&path, &Options::default()).expect("created");
    }
}

#[test]
fn a_disk_that_is_full_after_a_compaction_refuses_what_has_no_room() {
    on_a_small_disk("child_fills_the_disk_after_a_compaction", 40 << 20);
}

/// An ext4 holds files in memory in blocks of many pages: a store to one page asks for room for the holes beside it.
#[test]
fn holes_beside_what_is_stored_to_need_no_room_on_a_full_disk() {
    on_a_small_ext4("child_fills_an_ext4_beside_holes", 32 << 20);
}

#[test]
#[ignore = "runs as a child, on a small disk"]
fn child_fills_an_ext4_beside_holes() {
    let folder = child_folder();
    let path = folder.join("pool");
    let options = Options {
        heap_bytes: 256 << 10,
        lanes: 2,
        lane_bytes: 64 << 10,
        ..options(Mechanism::Redo, Domain::Pages)
    };
    let mut pool = Pool::create(&path, &options).expect("created");
    // Slices until the disk is full.
    let fill = |pool: &Pool, byte: u8| {
        let mut made: Vec<PSlice<u8>> = Vec::new();
        loop {
            match pool.tx(|t| t.alloc_slice(&[byte; 20_000])) {
                Ok(slice) => made.push(slice),
                Err(Error::File { source, .. }) if source.raw_os_error() == Some(28) => return made,
                Err(error) => panic!("slice {}: {error}", made.len()),
            }
        }
    };
    let mut made = fill(&pool, 0);
    let beyond = fs::metadata(&path).expect("there").len() - pool.header().file_bytes();
    assert!(made.len() > 300 && beyond < 4096, "a growth that failed leaves {beyond} bytes to nobody");
    let mut filler: Option<(File, u64)> = None;
    for left in 0..8 {
        made.into_iter().for_each(|slice| pool.tx(|t| t.free_slice(slice)).expect("freed"));
        pool.compact(|_, _| {}).expect("compacted");
        // Whoever reads the file has the kernel hold it in memory in larger blocks, with the holes in them. The disk has room for more or
        // less of these.
        let (file, stuffed) = filler.get_or_insert_with(|| {
            let file = OpenOptions::new().write(true).open(stuff(&folder)).expect("opened");
            let stuffed = file.metadata().expect("there").len();
            (file, stuffed)
        });
        file.set_len(*stuffed - (1 << 20) - left * (20 << 10)).expect("shorter");
        fs::read(&path).expect("read");
        made = fill(&pool, left as u8);
        assert!(made.len() > 10, "{}", made.len());
        let change = |t: &mut Tx<'_>, slice: &PSlice<u8>| {
            t.slice_mut(*slice)?[0] = 99;
            Ok::<_, Error>(())
        };
        made.iter().for_each(|slice| pool.tx(|t| change(t, slice)).expect("changed"));
        pool.apply().expect("what is in use has room");
        if left % 4 == 3 {
            pool.close().expect("closed");
            pool = Pool::open(&path, &options).expect("opened on a full disk");
        }
        for slice in &made {
            let good = pool.read(|r| {
                Ok::<_, Error>(r.slice(*slice)?[0] == 99 && r.slice(*slice)?[1..] == [left as u8; 19_999])
            });
            assert!(good.expect("read"), "{left}");
        }
    }
    pool.close().expect("closed");
}

#[test]
#[ignore = "runs as a child, on a small disk"]
fn child_fills_the_disk_after_a_compaction() {
    let folder = child_folder();
    let both = |one| [(one, false), (one, true)];
    for (mechanism, reopened) in
        [Mechanism::Redo, Mechanism::Checkpoint, Mechanism::Undo].into_iter().flat_map(both)
    {
        for domain in [Domain::Lines, Domain::Pages] {
            let path = folder.join("pool");
            let options = options(mechanism, domain);
            let mut pool = Pool::create(&path, &options).expect("created");
            fill(&pool, 8000);
            let store = Kv::open(&pool, Durability::Sync).expect("a store");
            for one in 100..8000 {
                store.remove(&[key(one).as_bytes()]).expect("removed");
            }
            let done = pool.compact(|_, _| {}).expect("compacted");
            assert!(done.after + (4 << 20) < done.before, "{mechanism:?} {domain:?}: {done:?}");
            let filler = stuff(&folder);
            if reopened {
                pool.close().expect("closed");
                pool = Pool::open(&path, &options).expect("what is in use has its blocks");
            }
            let store = Kv::open(&pool, Durability::Sync).expect("a store");
            let mut refused = 0;
            for one in 100..8000 {
                match store.set(key(one).as_bytes(), &vec![one as u8; 1000], 0) {
                    Ok(()) => {}
                    Err(Error::File { source, .. }) if source.raw_os_error() == Some(28) => refused += 1,
                    Err(error) => panic!("{mechanism:?} {domain:?}: {error}"),
                }
            }
            assert!(refused > 0, "{mechanism:?}: the disk has room");
            assert_eq!(read(&pool, 8000).expect("read"), 8000 - refused);
            fs::remove_file(filler).expect("removed");
            fill(&pool, 8000);
            assert_eq!(read(&pool, 8000).expect("read"), 8000);
            pool.close().expect("closed");
            fs::remove_file(&path).expect("removed");
        }
    }
}
