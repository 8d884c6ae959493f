// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pools as other languages hold them: objects of run-time types, tables, and locks that stay taken from call to call.

use std::collections::HashMap;

use memlift_persist::raw::{
    ForeignField, ForeignRoot, ForeignType, Handle, Looking, Put, Table, read_raw, root, root_or,
};
use memlift_persist::{Domain, Durability, Error, Options, PPtr, PSlice, Pool, View, check, repair};

fn options(domain: Domain) -> Options {
    Options {
        heap_bytes: 1 << 20,
        max_bytes: 256 << 20,
        lanes: 3,
        lane_bytes: 1 << 20,
        domain,
        ..Options::default()
    }
}

fn each(test: impl Fn(&std::path::Path, Options)) {
    for domain in [Domain::Lines, Domain::Pages] {
        let folder = tempfile::tempdir().expect("a folder");
        test(&folder.path().join("test.pool"), options(domain));
    }
}

fn table(pool: &Pool) -> Table {
    pool.tx(|t| {
        let root = root_or(t)?;
        let made = Table::create(t)?;
        t.get_mut(root)?.names = made.offset();
        Ok::<_, Error>(made)
    })
    .expect("made")
}

#[test]
fn a_table_is_what_a_map_is_and_keeps_the_order() {
    each(|path, options| {
        let pool = Pool::create(path, &options).expect("created");
        let table = table(&pool);
        let mut model: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        let mut order: Vec<Vec<u8>> = Vec::new();
        let mut state = 7u64;
        let mut chance = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for round in 0..60 {
            let (mut next, mut next_order) = (model.clone(), order.clone());
            let keep = chance(4) > 0;
            let result: Result<(), Error> = pool.tx(|t| {
                for _ in 0..40 {
                    let key = chance(500).to_le_bytes()[..2].to_vec();
                    if chance(3) == 0 {
                        assert_eq!(table.remove(t, &key)?, next.remove(&key).is_some());
                        next_order.retain(|one| *one != key);
                    } else {
                        let most = if chance(9) == 0 { 40_000 } else { 90 };
                        let value = vec![chance(256) as u8; chance(most) as usize];
                        let put = table.put(t, &key, &value)?;
                        assert_eq!(put == Put::Replaced, next.contains_key(&key));
                        if put == Put::Inserted {
                            next_order.push(key.clone());
                        }
                        next.insert(key, value);
                    }
                }
                if round == 40 {
                    table.clear(t)?;
                    next.clear();
                    next_order.clear();
                }
                table.check(t)?;
                if keep { Ok(()) } else { Err(Error::Aborted("on purpose".to_owned())) }
            });
            assert_eq!(result.is_ok(), keep, "{result:?}");
            if keep {
                (model, order) = (next, next_order);
            }
        }
        drop(pool);
        let pool = Pool::open(path, &options).expect("opened");
        pool.read(|r| {
            let table = Table::at(root(r)?.names);
            table.check(r)?;
            assert_eq!(table.len(r)? as usize, model.len());
            let mut after: Option<Vec<u8>> = None;
            let mut seen = Vec::new();
            loop {
                let batch = table.batch(r, after.as_deref(), 7, 1 << 20)?.expect("the key is there");
                let Some((last, _)) = batch.last() else { break };
                after = Some(last.clone());
                for (key, value) in batch {
                    assert_eq!(model[&key], value);
                    assert_eq!(table.get(r, &key)?, Some(&value[..]));
                    seen.push(key);
                }
            }
            assert_eq!(seen, order);
            assert_eq!(table.last(r)?, order.last().cloned());
            Ok::<_, Error>(())
        })
        .expect("read");
    });
}

#[test]
fn a_large_table_needs_small_transactions_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options { lane_bytes: 64 << 10, ..options(Domain::Lines) };
    let pool = Pool::create(folder.path().join("large.pool"), &options).expect("created");
    let table = table(&pool);
    for key in 0..30_000u64 {
        pool.tx(|t| table.put(t, &key.to_le_bytes(), b"value")).expect("put");
    }
    pool.read(|r| table.check(r)).expect("sound");
    pool.tx(|t| table.free(t)).expect("freed");
    let gone = pool.read(|r| table.len(r));
    assert!(matches!(gone, Err(Error::Pointer { .. })), "{gone:?}");
}

#[test]
fn objects_are_checked_by_type_and_length() {
    let point = ForeignType {
        name: "point".to_owned(),
        bytes: 16,
        fields: vec![ForeignField { name: "x".to_owned(), offset: 0, bytes: 8, kind: String::new() }],
    };
    let other = ForeignType { fields: Vec::new(), ..point.clone() };
    assert!(point.check().is_ok() && point.layout() != other.layout());
    let wrong = ForeignType { bytes: 4, ..point.clone() };
    assert!(wrong.check().is_err());

    each(|path, options| {
        let pool = Pool::create(path, &options).expect("created");
        let (kind, not) = (point.layout(), other.layout());
        let at = pool.tx(|t| t.alloc_raw(kind, &[&[1; 8], &[2; 8]])).expect("allocated");
        assert_eq!(at % 16, 0);
        pool.tx(|t| {
            t.write_raw(at, kind, 4, &[9; 8])?;
            let refused = t.write_raw(at, kind, 9, &[9; 8]);
            assert!(matches!(refused, Err(Error::Pointer { .. })));
            assert!(matches!(t.range_raw(at, kind, u64::MAX, 2), Err(Error::Pointer { .. })));
            assert!(matches!(t.write_raw(at, not, 0, &[0]), Err(Error::Pointer { .. })));
            assert!(matches!(t.free_raw(at, not), Err(Error::Pointer { .. })));
            Ok::<_, Error>(())
        })
        .expect("written");
        pool.read(|r| {
            assert_eq!(read_raw(r, at, kind)?, [&[1; 4][..], &[9; 8], &[2; 4]].concat());
            for wrong in [0, 8, at + 1, at + 16, 1 << 62, u64::MAX - 15] {
                assert!(matches!(read_raw(r, wrong, kind), Err(Error::Pointer { .. })), "{wrong}");
            }
            Ok::<_, Error>(())
        })
        .expect("read");
        pool.tx(|t| t.free_raw(at, kind)).expect("freed");
        assert!(matches!(pool.tx(|t| t.free_raw(at, kind)), Err(Error::Pointer { .. })));
        assert!(matches!(
            pool.read(|r| read_raw(r, at, kind).map(<[u8]>::to_vec)),
            Err(Error::Pointer { .. })
        ));
    });
}

#[test]
fn a_length_that_the_file_made_up_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = Pool::create(folder.path().join("test.pool"), &options(Domain::Lines)).expect("created");
    let at = pool.tx(|t| t.alloc_raw(77, &[&[5; 100]])).expect("allocated");
    for claim in [0x4000u64, 1 << 40, u64::MAX, u64::MAX - 40] {
        pool.tx(|t| {
            let header = PSlice::<u8>::from_raw(at, 16);
            t.slice_mut(header)?[8..].copy_from_slice(&claim.to_le_bytes());
            Ok::<_, Error>(())
        })
        .expect("spoilt");
        assert!(matches!(pool.read(|r| read_raw(r, at, 77).map(<[u8]>::to_vec)), Err(Error::Pointer { .. })));
        assert!(pool.tx(|t| t.free_raw(at, 77)).is_err());
    }
}

#[test]
fn a_table_with_spoilt_links_is_an_error_and_no_endless_loop() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = Pool::create(folder.path().join("test.pool"), &options(Domain::Lines)).expect("created");
    let table = table(&pool);
    pool.tx(|t| (0..200u8).try_for_each(|key| table.put(t, &[key], &[key; 30]).map(drop))).expect("filled");
    let (all, _) = pool.usage();
    // Every word of every object of the pool in turn becomes something else; nothing may panic, hang or fault.
    let mut spoilt = 0;
    for at in (0..all).step_by(8).filter(|at| at % 16384 > 64) {
        let Ok(was) = pool.read(|r| {
            let bytes = r.slice(PSlice::<u8>::from_raw(at, 8))?;
            Ok::<[u8; 8], Error>(bytes.try_into().expect("8 bytes"))
        }) else {
            continue;
        };
        if was == [0; 8] {
            continue;
        }
        for claim in [table.offset(), at, u64::MAX] {
            let done: Result<(), Error> = pool.tx(|t| {
                t.slice_mut(PSlice::<u8>::from_raw(at, 8))?.copy_from_slice(&claim.to_le_bytes());
                spoilt += u64::from(table.check(t).is_err());
                for key in [0u8, 99, 250] {
                    let _ = table.get(t, &[key]);
                    let _ = table.put(t, &[key], b"new");
                    let _ = table.remove(t, &[key]);
                }
                let _ = table.batch(t, None, 500, 1 << 20);
                Err(Error::Aborted("put it back".to_owned()))
            });
            assert!(matches!(done, Err(Error::Aborted(_))), "{done:?}");
        }
    }
    assert!(spoilt > 1000, "{spoilt}");
    pool.read(|r| table.check(r)).expect("as it was");
}

#[test]
fn transactions_and_read_locks_stay_open_from_call_to_call() {
    each(|path, options| {
        let handle = Handle::new(Pool::create(path, &options).expect("created"));
        let mut tx = handle.with(|pool| pool.begin(Durability::Sync)).expect("open").expect("begun");
        let at = tx.with(|t| t.alloc_raw(5, &[b"kept"])).expect("allocated");
        tx.with(|t| {
            let root = root_or(t)?;
            t.get_mut(root)?.object = at;
            Ok::<_, Error>(())
        })
        .expect("rooted");
        assert_eq!(read_raw(&tx.looking(), at, 5).expect("there"), b"kept");
        tx.commit().expect("committed");

        let mut dropped = handle.with(|pool| pool.begin(Durability::Sync)).expect("open").expect("begun");
        dropped.with(|t| t.write_raw(at, 5, 0, b"lost")).expect("written");
        drop(dropped);

        let read = handle.with(|pool| pool.read()).expect("open").expect("locked");
        assert_eq!(root(&read).expect("root").object, at);
        assert_eq!(read_raw(&Looking::Read(&read), at, 5).expect("there"), b"kept");
        assert!(!handle.close().expect("still read"));
        assert!(handle.with(|_| ()).is_none());
        assert!(matches!(Pool::open(path, &options), Err(Error::InUse { .. })));
        drop(read);
        let pool = Pool::open(path, &options).expect("released");
        assert!(pool.recovered().clean);
    });
}

#[test]
fn a_pool_of_rust_types_is_not_taken_for_a_foreign_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = Pool::create(folder.path().join("test.pool"), &options(Domain::Lines)).expect("created");
    assert_eq!(pool.read(|r| root(r)).expect("none yet"), ForeignRoot::default());
    pool.tx(|t| {
        let number = t.alloc(5u64)?;
        t.set_root(number)
    })
    .expect("set");
    assert!(matches!(pool.read(|r| root(r)), Err(Error::Layout { .. })));
    assert!(matches!(pool.tx(|t| root_or(t).map(PPtr::offset)), Err(Error::Layout { .. })));
}

#[test]
fn a_forked_child_leaves_the_file_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("test.pool");
    let handle = Handle::new(Pool::create(&path, &options(Domain::Lines)).expect("created"));
    let before = std::fs::read(&path).expect("bytes");
    let share = handle.with(Clone::clone).expect("open");
    // SAFETY: the child drops what it has and leaves by `_exit`: no lock of this process is waited for.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused =
            handle.with(|_| ()).is_none() && share.begin(Durability::Sync).is_err() && share.read().is_err();
        drop(share);
        drop(handle);
        // SAFETY: ends the child without running what the parent will run.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: waits for the child above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(std::fs::read(&path).expect("bytes"), before);
    let second = Pool::open(&path, &options(Domain::Lines));
    assert!(matches!(second, Err(Error::InUse { .. })), "the child did not unlock it");
    drop(share);
    assert!(handle.close().expect("closed"));
}

/// A program that starts others has children between fork and exec all the time, each with copies of all descriptors.
#[test]
fn children_that_are_about_to_start_a_program_keep_no_pool() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("test.pool");
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                // SAFETY: the child makes two calls that take no lock.
                unsafe {
                    let child = libc::fork();
                    if child == 0 {
                        libc::usleep(20_000);
                        libc::_exit(0);
                    }
                    libc::usleep(200);
                }
                // SAFETY: takes no memory; takes the children that ended, which are this thread's.
                while unsafe { libc::syscall(libc::SYS_wait4, -1, 0, libc::WNOHANG | libc::__WNOTHREAD, 0) }
                    > 0
                {}
            }
        });
        let done = std::panic::catch_unwind(|| {
            let options = options(Domain::Lines);
            Pool::create(&path, &options).expect("created").close().expect("closed");
            for turn in 0..12 {
                Pool::open(&path, &options).expect("opened").close().expect("closed");
                check::check(&path).expect("checked");
                repair::repair_in_place(&path).expect("repaired in place");
                let mended = folder.path().join(format!("{turn}.pool"));
                repair::repair(&path, &mended).expect("repaired");
                drop(Pool::open(&mended, &Options { read_only: true, ..options.clone() }).expect("read"));
                Pool::open(&mended, &options).expect("opened the copy").close().expect("closed");
                std::fs::remove_file(&mended).expect("removed");
            }
        });
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn a_pool_that_was_closed_is_free_while_a_forked_child_lives() {
    each(|path, options| {
        let handle = Handle::new(Pool::create(path, &options).expect("created"));
        // SAFETY: the child waits for its end, as one does that is between fork and exec.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
        assert!(handle.close().expect("closed"));
        let again = Pool::open(path, &options).map(|pool| pool.recovered().clean);
        // SAFETY: ends the child above, and waits for it.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert!(again.expect("its descriptor has no lock any more"));
    });
}
