// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Damage of a page, anywhere in the heap, is seen before a value is believed, and costs what lies there.
//!
//! - **Method** a small pool of each structure is closed. A bit of its heap is flipped in the file, or a page is put back as it was: then every
//!   value is read, and is right or an error. `check` says so, too
//! - **Not here** the log (`damage::log`), headers and other small things (`damage::files`), crashes (`sim::pool`)

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memlift_persist::check::{Part, check};
use memlift_persist::convert::{Conversion, convert};
use memlift_persist::kv::Kv;
use memlift_persist::kv::server::{ServerOptions, serve};
use memlift_persist::layout::{Entry, FEATURE_CHECKSUMS, Header, SLAB_BYTES};
use memlift_persist::raw::{Table, root, root_or};
use memlift_persist::repair::{repair, repair_accepting_loss};
use memlift_persist::structures::{BTree, HashMap};
use memlift_persist::{Domain, Durability, Error, Mechanism, Options, Pool, Result, View};

const KEYS: u64 = 60;
const PAGE: u64 = 4096;

fn options(mechanism: Mechanism) -> Options {
    Options {
        heap_bytes: 1 << 20,
        max_bytes: 1 << 30,
        lanes: 2,
        lane_bytes: 64 << 10,
        mechanism,
        domain: Domain::Pages,
        ..Options::default()
    }
}

fn open(path: &Path) -> Result<Pool> {
    Pool::open(path, &Options { domain: Domain::Pages, max_bytes: 1 << 30, ..Options::default() })
}

fn key(at: u64) -> Vec<u8> {
    format!("key {at}").into_bytes()
}

fn value(at: u64) -> Vec<u8> {
    format!("value {at} ").into_bytes().repeat(at as usize % 40 + 1)
}

/// Makes a structure, and reads all of it; the number of values that could not be read.
type Structure = (&'static str, fn(&Pool) -> Result<()>, fn(&Pool) -> Result<u64>);

/// Counts damage; a value that is wrong fails the test.
fn tell<T: PartialEq + std::fmt::Debug>(found: Result<T>, wanted: T, lost: &mut u64) {
    match found {
        Ok(found) => assert_eq!(found, wanted),
        Err(Error::Corrupt { .. }) => *lost += 1,
        Err(error) => panic!("{error}"),
    }
}

const STRUCTURES: [Structure; 4] = [
    (
        "table",
        |pool| {
            pool.tx(|t| {
                let place = root_or(t)?;
                let table = Table::create(t)?;
                t.get_mut(place)?.names = table.offset();
                Ok::<_, Error>(())
            })?;
            (0..KEYS).try_for_each(|at| {
                pool.tx(|t| Table::at(root(t)?.names).put(t, &key(at), &value(at)).map(drop))
            })
        },
        |pool| {
            let mut lost = 0;
            for at in 0..KEYS {
                let found =
                    pool.read(|r| Ok(Table::at(root(r)?.names).get(r, &key(at))?.map(<[u8]>::to_vec)));
                tell(found, Some(value(at)), &mut lost);
            }
            Ok(lost)
        },
    ),
    (
        "store",
        |pool| {
            let store = Kv::open(pool, Durability::Sync)?;
            (0..KEYS).try_for_each(|at| store.set(&key(at), &value(at), 0).map(drop))
        },
        |pool| {
            let (store, mut lost) = (Kv::open(pool, Durability::Sync)?, 0);
            (0..KEYS).for_each(|at| tell(store.get(&key(at)), Some(value(at)), &mut lost));
            Ok(lost)
        },
    ),
    (
        "ordered map",
        |pool| {
            pool.tx(|t| {
                let map = BTree::<u64, u64>::create(t)?;
                t.set_root(map.pointer())?;
                (0..300).try_for_each(|at| map.insert(t, &at, at * 3).map(drop))
            })
        },
        |pool| {
            let mut lost = 0;
            for at in 0..300 {
                let found = pool.read(|r| {
                    BTree::<u64, u64>::open(r.root()?.expect("made")).get(r, &at).map(Option::<&u64>::copied)
                });
                tell(found, Some(at * 3), &mut lost);
            }
            Ok(lost)
        },
    ),
    (
        "hash map",
        |pool| {
            pool.tx(|t| {
                let map = HashMap::<u64, u64>::create(t)?;
                t.set_root(map.pointer())?;
                (0..300).try_for_each(|at| map.insert(t, at, at * 3).map(drop))
            })
        },
        |pool| {
            let mut lost = 0;
            for at in 0..300 {
                let found = pool.read(|r| {
                    HashMap::<u64, u64>::open(r.root()?.expect("made"))
                        .get(r, &at)
                        .map(Option::<&u64>::copied)
                });
                tell(found, Some(at * 3), &mut lost);
            }
            Ok(lost)
        },
    ),
];

/// A closed pool, its bytes, and a copy to be spoilt.
struct Work {
    folder: tempfile::TempDir,
    bytes: Vec<u8>,
    header: Header,
}

impl Work {
    fn new(make: impl FnOnce(&Pool) -> Result<()>, mechanism: Mechanism) -> Work {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.pool");
        let pool = Pool::create(&path, &options(mechanism)).expect("created");
        assert!(pool.header().has_checksums());
        make(&pool).expect("made");
        pool.close().expect("closed");
        let report = check(&path).expect("checked");
        assert!(report.sound() && report.checksums, "{:?}", report.findings);
        let header = *report.header().expect("a header");
        let bytes = std::fs::read(&path).expect("read");
        Work { folder, bytes, header }
    }

    /// Pages of the heap whose damage has to be seen: those in use, and those with checksums.
    fn pages(&self) -> Vec<u64> {
        let word = |at: u64| {
            let at = (self.header.heap_start + at) as usize;
            u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("8 bytes"))
        };
        let entry = |slab: u64| Entry::from_words([word(Entry::offset(slab)), word(Entry::offset(slab) + 8)]);
        let used = |slab: &u64| *slab < 5 || entry(*slab).state != Entry::FREE;
        let slabs = (0..self.header.heap_bytes / SLAB_BYTES).filter(used);
        slabs.flat_map(|slab| slab * 4..slab * 4 + 4).collect()
    }

    fn place(&self, page: u64) -> u64 {
        self.header.heap_start + page * PAGE
    }

    /// A copy, open for writing.
    fn copy(&self, name: &str) -> (PathBuf, File) {
        let path = self.folder.path().join(name);
        std::fs::write(&path, &self.bytes).expect("written");
        let file = File::options().read(true).write(true).open(&path).expect("opened");
        (path, file)
    }
}

/// `check` names as many keys as cannot be read, one by one. Returns false where the links make no sense, which it says.
fn names_each_lost_key(path: &Path, lost: u64, what: &str) -> bool {
    let report = check(path).expect("checked");
    let keys: Vec<_> = report.damage().filter(|one| one.part == Part::Keys).map(|one| &one.what).collect();
    if keys.iter().any(|key| key.contains("may be lost")) {
        return false;
    }
    let named: std::collections::BTreeSet<_> = keys.iter().collect();
    assert_eq!(named.len() as u64, lost, "{what}: {:?}", report.findings);
    true
}

/// Flips one bit in `step` of the pages in use: no value may be wrong, and what `check` says fits.
fn flip(structure: &Structure, mechanism: Mechanism, step: u64) {
    let (name, make, read) = structure;
    let work = Work::new(make, mechanism);
    let (path, file) = work.copy("spoilt.pool");
    let pages = work.pages();
    let bits = pages.len() as u64 * PAGE * 8;
    let (mut flips, mut refused, mut lost, mut named) = (0, 0, 0, 0);
    let lists_keys = matches!(*name, "table" | "store");
    for bit in (0..bits).step_by(step as usize) {
        let page = pages[(bit / (PAGE * 8)) as usize];
        let at = work.place(page) + bit / 8 % PAGE;
        let before = work.bytes[at as usize];
        file.write_all_at(&[before ^ 1 << (bit % 8)], at).expect("written");
        let what = format!("{name}, {mechanism:?}: bit {} of byte {at:#x}", bit % 8);
        match Pool::open(&path, &Options { read_only: true, ..Options::default() }) {
            Err(Error::Corrupt { .. }) => refused += 1,
            Err(error) => panic!("{what}: {error}"),
            Ok(pool) => match read(&pool) {
                Ok(one) => {
                    lost += one;
                    drop(pool);
                    if one > 0 && lists_keys {
                        named += u64::from(names_each_lost_key(&path, one, &what));
                    }
                }
                Err(Error::Corrupt { .. }) => refused += 1,
                Err(error) => panic!("{what}: {error}"),
            },
        }
        if flips % 16 == 0 {
            let report = check(&path).expect("checked");
            assert!(report.damage().any(|one| one.part == Part::Pages), "{what}: {:?}", report.findings);
        }
        file.write_all_at(&[before], at).expect("written");
        flips += 1;
    }
    assert!(flips > 100 && refused > 0 && lost > 0, "{name}: {flips} {refused} {lost}");
    assert!(!lists_keys || named > 10, "{name}: {named}");
    assert_eq!(read(&open(&path).expect("opened")).expect("read"), 0);
}

#[test]
fn no_value_is_wrong_whichever_bit_is() {
    for structure in &STRUCTURES {
        flip(structure, Mechanism::Redo, 6001);
    }
    flip(&STRUCTURES[0], Mechanism::Checkpoint, 6001);
}

#[test]
#[ignore = "an hour"]
fn soak_each_bit() {
    for structure in &STRUCTURES {
        for mechanism in [Mechanism::Redo, Mechanism::Checkpoint] {
            flip(structure, mechanism, 1);
        }
    }
}

/// Sets key 7 of a structure: to something else, or back.
fn set(name: &str, pool: &Pool, back: bool) -> Result<()> {
    let (bytes, number) = if back { (value(7), 21) } else { (b"another".to_vec(), 4) };
    match name {
        "table" => pool.tx(|t| Table::at(root(t)?.names).put(t, &key(7), &bytes).map(drop)),
        "store" => Kv::open(pool, Durability::Sync)?.set(&key(7), &bytes, 0).map(drop),
        "ordered map" => {
            pool.tx(|t| BTree::<u64, u64>::open(t.root()?.expect("made")).insert(t, &7, number).map(drop))
        }
        _ => pool.tx(|t| HashMap::<u64, u64>::open(t.root()?.expect("made")).insert(t, 7, number).map(drop)),
    }
}

#[test]
fn a_page_of_an_earlier_time_is_seen() {
    for (name, make, read) in &STRUCTURES {
        let with_another = |pool: &Pool| make(pool).and_then(|()| set(name, pool, false));
        let work = Work::new(with_another, Mechanism::Redo);
        let (path, file) = work.copy("newer.pool");
        let pool = open(&path).expect("opened");
        set(name, &pool, true).expect("set");
        pool.close().expect("closed");
        let newer = std::fs::read(&path).expect("read");
        let (mut stale, mut lost) = (0, 0);
        for page in work.pages() {
            let at = work.place(page) as usize;
            let (old, new) = (&work.bytes[at..at + PAGE as usize], &newer[at..at + PAGE as usize]);
            if old == new {
                continue;
            }
            file.write_all_at(old, at as u64).expect("written");
            assert!(!check(&path).expect("checked").sound(), "{name}: page {page}");
            match open(&path).and_then(|pool| read(&pool)) {
                Ok(some) => lost += some,
                Err(Error::Corrupt { .. }) => lost += 1,
                Err(error) => panic!("{error}"),
            }
            std::fs::write(&path, &newer).expect("written");
            stale += 1;
        }
        assert!(stale > 0 && lost > 0, "{name}: {stale} {lost}");
    }
}

#[test]
fn damage_costs_what_it_hits_and_nothing_that_is_written_after() {
    let (_, make, read) = &STRUCTURES[1];
    let work = Work::new(make, Mechanism::Redo);
    let (path, file) = work.copy("spoilt.pool");
    // In the middle of one value.
    let wanted = value(35);
    let at = work.bytes.windows(wanted.len()).rposition(|bytes| bytes == wanted).expect("there") as u64 + 40;
    file.write_all_at(b"?", at).expect("written");
    let page = (at - work.header.heap_start) / PAGE;
    let pool = open(&path).expect("opened: its directory is whole");
    let lost = read(&pool).expect("read");
    assert!((1..KEYS / 2).contains(&lost), "{lost}");
    let store = Kv::open(&pool, Durability::Sync).expect("a store");
    for at in KEYS..3 * KEYS {
        store.set(&key(at), &value(at), 0).expect("set");
    }
    pool.close().expect("closed");
    let pool = open(&path).expect("opened");
    let store = Kv::open(&pool, Durability::Sync).expect("a store");
    assert_eq!(read(&pool).expect("read"), lost, "the same are lost, and no other");
    for at in KEYS..3 * KEYS {
        assert_eq!(store.get(&key(at)).expect("not in the damaged slab"), Some(value(at)));
    }
    drop(pool);
    let report = check(&path).expect("checked");
    let damage: Vec<_> = report.damage().filter(|one| one.part == Part::Pages).collect();
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert_eq!(damage[0].offset, Some(work.place(page)));

    let kept = repair(&path, work.folder.path().join("kept.pool")).expect("copied");
    assert!(!kept.report.sound(), "what is lost is not called whole");
    let taken = repair_accepting_loss(&path, work.folder.path().join("taken.pool")).expect("repaired");
    assert!(taken.report.sound(), "{:?}", taken.report.findings);
    assert!(taken.changes.iter().any(|one| one.part == Part::Pages && one.offset == work.place(page)));
    let named = taken.changes.iter().filter(|one| one.part == Part::Keys).count() as u64;
    assert_eq!(named, lost, "each key that is taken as it is");
}

/// An entry whose next one is itself, in a table of countless entries: who lists keys goes round for ever, unless something ends that.
#[test]
fn a_circle_of_links_ends_and_is_said() {
    let (_, make, _) = &STRUCTURES[0];
    let work = Work::new(make, Mechanism::Redo);
    let (path, file) = work.copy("circle.pool");
    let wanted = [key(5), value(5)].concat();
    let at = work.bytes.windows(wanted.len()).rposition(|bytes| bytes == wanted).expect("there") as u64;
    // Type and length, then chain, previous, next, hash and lengths before the key.
    let entry = at - 7 * 8;
    let own = (entry - work.header.heap_start).to_le_bytes();
    file.write_all_at(&own, entry + 4 * 8).expect("written");
    // And a head that promises more entries than there can be.
    let head = open(&path)
        .and_then(|pool| pool.read(|r| root(r).map(|root| root.names)))
        .expect("its root is whole");
    file.write_all_at(&u64::MAX.to_le_bytes(), work.header.heap_start + head + 2 * 8).expect("written");
    let report = check(&path).expect("checked");
    let keys: Vec<_> = report.damage().filter(|one| one.part == Part::Keys).map(|one| &one.what).collect();
    assert!(keys.iter().any(|what| what.contains("\"key 5\"")), "{keys:?}");
    assert!(keys.iter().any(|what| what.contains("may be lost")), "{keys:?}");
}

#[test]
fn a_flipped_bit_of_a_bitmap_never_gives_out_what_is_in_use() {
    let (_, make, read) = &STRUCTURES[0];
    let work = Work::new(make, Mechanism::Redo);
    let (path, file) = work.copy("spoilt.pool");
    let mut flips = 0;
    for page in work.pages().into_iter().filter(|page| *page >= 20 && page % 4 == 0) {
        for bit in (0..8 * 64).step_by(23) {
            let at = work.place(page) + bit / 8;
            let before = work.bytes[at as usize];
            file.write_all_at(&[before ^ 1 << (bit % 8)], at).expect("written");
            let pool = open(&path).expect("opened");
            for one in 0..40 {
                let put = pool.tx(|t| {
                    Table::at(root(t)?.names).put(t, format!("new {one}").as_bytes(), &[b'N'; 24]).map(drop)
                });
                assert!(matches!(put, Ok(()) | Err(Error::Corrupt { .. })), "{put:?}");
            }
            read(&pool).expect("each old value is right, or an error");
            drop(pool);
            std::fs::write(&path, &work.bytes).expect("written");
            flips += 1;
        }
    }
    assert!(flips > 100, "{flips}");
}

#[test]
fn large_values_growth_and_trims_keep_their_checksums() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.pool");
    for mechanism in [Mechanism::Redo, Mechanism::Checkpoint] {
        let options = Options { mirror_bytes: Some(1 << 20), lane_bytes: 8 << 20, ..options(mechanism) };
        let pool = Pool::create(&path, &options).expect("created");
        let store = Kv::open(&pool, Durability::Sync).expect("a store");
        let sized = |at: u64| vec![at as u8; 100 + at as usize * 7919 % 300_000];
        for at in 0..120u64 {
            store.set(&key(at % 50), &sized(at), 0).expect("set");
            if at % 30 == 7 {
                pool.trim().expect("trimmed");
                pool.reclaim().expect("reclaimed");
            }
        }
        assert!(pool.header().checksum_chunks > 1, "the heap grew: {:?}", pool.header());
        pool.close().expect("closed");
        let report = check(&path).expect("checked");
        assert!(report.sound() && report.checksums, "{:?}", report.findings);
        let pool = open(&path).expect("opened");
        let store = Kv::open(&pool, Durability::Sync).expect("a store");
        for at in 70..120 {
            assert_eq!(store.get(&key(at % 50)).expect("read"), Some(sized(at)), "{at}");
        }
        pool.close().expect("closed");
        std::fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn pools_without_checksums_get_them_by_conversion() {
    let folder = tempfile::tempdir().expect("a folder");
    let (old, new) = (folder.path().join("old.pool"), folder.path().join("new.pool"));
    for (_, make, read) in &STRUCTURES {
        let pool =
            Pool::create(&old, &Options { checksums: false, ..options(Mechanism::Redo) }).expect("created");
        assert_eq!(pool.header().incompat & FEATURE_CHECKSUMS, 0);
        make(&pool).expect("made");
        pool.close().expect("closed");
        let converted = convert(&old, &new, &Conversion::default()).expect("converted");
        assert!(converted.target.has_checksums());
        let report = check(&new).expect("checked");
        assert!(report.sound() && report.checksums, "{:?}", report.findings);
        assert_eq!(read(&open(&new).expect("opened")).expect("read"), 0);
        std::fs::remove_file(&old).expect("removed");
        std::fs::remove_file(&new).expect("removed");
    }
}

#[test]
fn a_scrub_finds_what_the_disk_changes_under_an_open_pool() {
    let (_, make, read) = &STRUCTURES[1];
    let work = Work::new(make, Mechanism::Redo);
    let (path, file) = work.copy("open.pool");
    let pool = open(&path).expect("opened");
    assert_eq!(read(&pool).expect("read"), 0);
    let slabs = work.header.heap_bytes / SLAB_BYTES;
    assert!(pool.scrub(slabs).expect("scrubbed").is_empty());
    let wanted = value(35);
    let at = work.bytes.windows(wanted.len()).rposition(|bytes| bytes == wanted).expect("there") as u64 + 40;
    file.write_all_at(b"?", at).expect("written");
    let mut found = Vec::new();
    (0..slabs).for_each(|_| found.extend(pool.scrub(1).expect("scrubbed")));
    assert_eq!(found, [(at - work.header.heap_start) / PAGE * PAGE]);
    assert!(read(&pool).expect("read") > 0, "an error now, where it could be read before");
    assert_eq!(pool.scrub(slabs).expect("scrubbed"), found, "a second round says the same");
}

/// Sends one command and reads its reply: the bytes of a bulk string, or the line of an error or text.
fn command(stream: &mut TcpStream, arguments: &[&[u8]]) -> (u8, Vec<u8>) {
    let mut request = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        request.extend(format!("${}\r\n", argument.len()).bytes().chain(argument.iter().copied()));
        request.extend(b"\r\n");
    }
    stream.write_all(&request).expect("sent");
    let (mut line, mut byte) = (Vec::new(), [0]);
    while !line.ends_with(b"\r\n") {
        stream.read_exact(&mut byte).expect("the server goes on");
        line.push(byte[0]);
    }
    let text = line[1..line.len() - 2].to_vec();
    if line[0] != b'$' {
        return (line[0], text);
    }
    let length: usize = String::from_utf8(text).expect("digits").parse().expect("a length");
    let mut bytes = vec![0; length + 2];
    stream.read_exact(&mut bytes).expect("the value");
    bytes.truncate(length);
    (b'$', bytes)
}

#[test]
fn a_damaged_entry_is_an_error_reply_and_the_server_goes_on() {
    let (_, make, _) = &STRUCTURES[1];
    let work = Work::new(make, Mechanism::Redo);
    let (path, file) = work.copy("served.pool");
    let wanted = value(35);
    let at = work.bytes.windows(wanted.len()).rposition(|bytes| bytes == wanted).expect("there") as u64 + 40;
    file.write_all_at(b"?", at).expect("written");
    let pool = open(&path).expect("opened");
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let (address, stop) = (listener.local_addr().expect("bound"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let served = scope.spawn(|| serve(listener, &pool, &ServerOptions::default(), &stop));
        let asked = std::panic::catch_unwind(|| {
            let mut stream = TcpStream::connect(address).expect("connected");
            let mut refused = 0;
            for at in 0..KEYS {
                match command(&mut stream, &[b"GET", &key(at)]) {
                    (b'-', text) => {
                        assert!(String::from_utf8_lossy(&text).contains("checksum"), "{text:?}");
                        refused += 1;
                    }
                    (_, bytes) => assert_eq!(bytes, value(at)),
                }
            }
            assert!((1..KEYS / 2).contains(&refused), "{refused}");
            assert_eq!(command(&mut stream, &[b"SET", b"later", b"yes"]), (b'+', b"OK".to_vec()));
            assert_eq!(command(&mut stream, &[b"GET", b"later"]), (b'$', b"yes".to_vec()));
            // The scrub comes by in a second or two.
            let until = Instant::now() + Duration::from_secs(120);
            loop {
                let (_, text) = command(&mut stream, &[b"INFO"]);
                if String::from_utf8_lossy(&text).contains("damaged_pages_found:1\r\n") {
                    break;
                }
                assert!(Instant::now() < until, "{}", String::from_utf8_lossy(&text));
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        stop.store(true, Ordering::Release);
        served.join().expect("no panic").expect("stopped in order");
        asked.expect("as it should be");
    });
}
