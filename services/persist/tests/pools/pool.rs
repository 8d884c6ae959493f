// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pool as its users see it: what is committed is there after reopening, what is aborted is not.

use memlift_persist::{
    Domain, Durability, Error, Mechanism, Options, PPtr, PSlice, Persist, Pool, TxOptions, View,
};

#[derive(Clone, Copy, Debug, PartialEq, Persist)]
#[repr(C)]
struct Node {
    value: u64,
    next: PPtr<Node>,
}

#[derive(Clone, Copy, Debug, PartialEq, Persist)]
#[repr(C)]
struct Big {
    bytes: [u8; 100_000],
}

fn options(domain: Domain) -> Options {
    Options {
        heap_bytes: 1 << 20,
        max_bytes: 64 << 20,
        lanes: 3,
        lane_bytes: 64 << 10,
        domain,
        ..Options::default()
    }
}

/// Each test runs with every mechanism, where fences count and where syncs count.
fn each(test: impl Fn(&std::path::Path, Options)) {
    for mechanism in Mechanism::ALL {
        for domain in [Domain::Lines, Domain::Pages] {
            println!("{mechanism:?} {domain:?}");
            let folder = tempfile::tempdir().expect("a folder");
            test(&folder.path().join("test.pool"), Options { mechanism, ..options(domain) });
        }
    }
}

fn push(pool: &Pool, value: u64, how: TxOptions<'_>) {
    pool.tx_with(how, |t| {
        let next = t.root::<Node>()?.unwrap_or(PPtr::NULL);
        let node = t.alloc(Node { value, next })?;
        t.set_root(node)
    })
    .expect("committed");
}

fn list(pool: &Pool) -> Vec<u64> {
    pool.read(|r| {
        let (mut all, mut at) = (Vec::new(), r.root::<Node>()?.unwrap_or(PPtr::NULL));
        while !at.is_null() {
            let node = r.get(at)?;
            all.push(node.value);
            at = node.next;
        }
        Ok::<_, Error>(all)
    })
    .expect("read")
}

#[test]
fn what_is_committed_is_there_after_reopening() {
    each(|path, options| {
        let pool = Pool::create(path, &options).expect("created");
        for value in 0..100 {
            push(&pool, value, TxOptions::default());
        }
        assert_eq!(list(&pool), (0..100).rev().collect::<Vec<_>>());
        pool.close().expect("closed");
        let pool = Pool::open(path, &options).expect("opened");
        assert!(pool.recovered().clean && pool.recovered().transactions == 0);
        assert_eq!(list(&pool), (0..100).rev().collect::<Vec<_>>());
    });
}

#[test]
fn a_pool_that_was_not_closed_is_recovered_from_its_log() {
    each(|path, options| {
        let pool = Pool::create(path, &options).expect("created");
        for value in 0..50 {
            push(&pool, value, TxOptions::default());
        }
        let copy = path.with_extension("copy");
        std::fs::copy(path, &copy).expect("what a crash would leave");
        for round in 0..3 {
            let again = Pool::open(&copy, &options).expect("recovered");
            let waiting = if options.mechanism == Mechanism::Undo || round > 0 { 0 } else { 50 };
            assert_eq!(again.recovered().transactions, waiting);
            assert_eq!(list(&again), (0..50).rev().collect::<Vec<_>>());
            std::mem::forget(again.close());
        }
    });
}

#[test]
fn the_log_wraps_many_times() {
    each(|path, options| {
        let options = Options { lane_bytes: 8192, ..options };
        let rounds = if options.domain == Domain::Pages { 300 } else { 5000 };
        let pool = Pool::create(path, &options).expect("created");
        let root = pool.tx(|t| t.root_or(|_| Ok(Node { value: 0, next: PPtr::NULL }))).expect("made");
        for value in 1..=rounds {
            pool.tx(|t| {
                t.get_mut(root)?.value = value;
                Ok::<_, Error>(())
            })
            .expect("committed");
        }
        let copy = path.with_extension("copy");
        std::fs::copy(path, &copy).expect("copied");
        let again = Pool::open(&copy, &options).expect("recovered");
        assert_eq!(list(&again), [rounds]);
    });
}

#[test]
fn errors_and_panics_undo_everything() {
    each(|path, options| {
        let pool = Pool::create(path, &options).expect("created");
        push(&pool, 1, TxOptions::default());
        let usage = pool.usage();
        let failed = pool.tx(|t| {
            let root = t.root::<Node>()?.expect("there");
            t.get_mut(root)?.value = 77;
            let other = t.alloc(Node { value: 5, next: root })?;
            t.set_root(other)?;
            t.alloc(Big { bytes: [1; 100_000] })?;
            t.free(root)?;
            Err::<(), _>(Error::Aborted("no".to_owned()))
        });
        assert!(matches!(failed, Err(Error::Aborted(_))));
        assert_eq!(list(&pool), [1]);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.tx(|t| {
                let root = t.root::<Node>()?.expect("there");
                t.get_mut(root)?.value = 78;
                panic!("in the middle");
                #[expect(unreachable_code, reason = "says the type")]
                Ok::<(), Error>(())
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(list(&pool), [1]);
        assert_eq!(pool.usage(), usage);
        push(&pool, 2, TxOptions::default());
        assert_eq!(list(&pool), [2, 1]);
    });
}

#[test]
fn memory_that_was_freed_is_used_again_and_stale_pointers_are_errors() {
    each(|path, options| {
        let pool = Pool::create(path, &options).expect("created");
        let first = pool.tx(|t| t.alloc(Node { value: 1, next: PPtr::NULL })).expect("made");
        pool.tx(|t| t.free(first)).expect("freed");
        assert!(matches!(pool.tx(|t| t.free(first)), Err(Error::Pointer { .. })), "twice");
        let second = pool.tx(|t| t.alloc(Node { value: 2, next: PPtr::NULL })).expect("made");
        assert_eq!(second.offset(), first.offset());
        let wrong: PPtr<u64> = PPtr::from_offset(first.offset());
        assert!(matches!(pool.read(|r| r.get(wrong).copied()), Err(Error::Pointer { .. })));
        for offset in [0, 8, 1 << 14, (1 << 14) * 5, 1 << 40, u64::MAX - 7, u64::MAX] {
            let forged: PPtr<Node> = PPtr::from_offset(offset);
            assert!(
                matches!(pool.read(|r| r.get(forged).copied()), Err(Error::Pointer { .. })),
                "{offset:#x}"
            );
        }
        for elements in [u64::MAX, u64::MAX / 2, 1 << 61, (1 << 50) + 1] {
            let forged: PSlice<u8> = PSlice::from_raw(second.offset(), elements);
            assert!(matches!(pool.read(|r| r.slice(forged).map(<[u8]>::len)), Err(Error::Pointer { .. })));
        }
        let bytes = pool.tx(|t| t.alloc_slice(&[1u8; 40])).expect("made");
        for elements in [u64::MAX, u64::MAX - bytes.offset(), u64::MAX - 63, 1 << 20] {
            let forged: PSlice<u8> = PSlice::from_raw(bytes.offset(), elements);
            assert!(matches!(pool.read(|r| r.slice(forged).map(<[u8]>::len)), Err(Error::Pointer { .. })));
            assert!(matches!(pool.tx(|t| t.slice_mut(forged).map(|_| ())), Err(Error::Pointer { .. })));
        }
        let same_tx = pool
            .tx(|t| {
                t.free(second)?;
                let third = t.alloc(Node { value: 3, next: PPtr::NULL })?;
                Ok::<_, Error>(third.offset())
            })
            .expect("committed");
        assert_ne!(same_tx, second.offset(), "not before its free is durable");
    });
}

#[test]
fn arrays_small_and_large() {
    each(|path, options| {
        let options = Options { lane_bytes: 1 << 20, ..options };
        let pool = Pool::create(path, &options).expect("created");
        let lengths = [1usize, 7, 100, 1000, 5000, 20_000];
        let slices: Vec<PSlice<u16>> = lengths
            .iter()
            .map(|length| {
                let values: Vec<u16> = (0..*length as u32).map(|at| at as u16).collect();
                pool.tx(|t| t.alloc_slice(&values)).expect("made")
            })
            .collect();
        pool.tx(|t| {
            for slice in &slices {
                t.slice_part_mut(*slice, slice.len() - 1, 1)?[0] = 0xffff;
            }
            Ok::<_, Error>(())
        })
        .expect("changed");
        pool.close().expect("closed");
        let pool = Pool::open(path, &options).expect("opened");
        pool.read(|r| {
            for (slice, length) in slices.iter().zip(lengths) {
                let values = r.slice(*slice)?;
                assert_eq!(values.len(), length);
                assert!(values[..length - 1].iter().enumerate().all(|(at, value)| *value == at as u16));
                assert_eq!(values[length - 1], 0xffff);
            }
            Ok::<_, Error>(())
        })
        .expect("read");
        let usage = pool.usage();
        pool.tx(|t| t.free_slice(slices[5])).expect("freed");
        assert!(pool.usage().1 > usage.1);
    });
}

#[test]
fn pools_grow_and_say_when_they_are_full() {
    each(|path, options| {
        let options = Options { heap_bytes: 0, max_bytes: 4 << 20, lane_bytes: 1 << 20, ..options };
        let pool = Pool::create(path, &options).expect("created");
        let mut made = 0u64;
        let error = loop {
            match pool.tx(|t| t.alloc(Big { bytes: [made as u8; 100_000] })) {
                Ok(_) => made += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Full { .. }), "{error}");
        assert!(made > 30, "{made}");
        pool.close().expect("closed");
        let pool = Pool::open(path, &options).expect("opened");
        assert!(pool.usage().0 > 3 << 20);
    });
}

#[test]
fn transactions_of_other_sections_are_kept_apart() {
    each(|path, options| {
        let options = Options { sections: 4, ..options };
        let pool = Pool::create(path, &options).expect("created");
        let only = |sections| TxOptions { sections: Some(sections), ..TxOptions::default() };
        let mine = pool.tx_with(only(&[2]), |t| t.alloc(7u64)).expect("made");
        let theirs = pool.tx_with(only(&[3]), |t| t.get(mine).copied());
        let by_pages = matches!(options.mechanism, Mechanism::Checkpoint | Mechanism::Shadow);
        assert!(by_pages || matches!(theirs, Err(Error::Section { section: 2, .. })));
        assert!(matches!(pool.tx_with(only(&[9]), |t| t.alloc(1u64)), Err(Error::Argument { .. })));
        std::thread::scope(|scope| {
            for section in 0..4u16 {
                let pool = &pool;
                scope.spawn(move || {
                    let sections = [section];
                    let how = TxOptions { sections: Some(&sections), ..TxOptions::default() };
                    let counter = pool.tx_with(how, |t| t.alloc(0u64)).expect("made");
                    for _ in 0..200 {
                        pool.tx_with(how, |t| {
                            *t.get_mut(counter)? += 1;
                            Ok::<_, Error>(())
                        })
                        .expect("committed");
                    }
                    assert_eq!(pool.read(|r| r.get(counter).copied()).expect("read"), 200);
                });
            }
        });
    });
}

#[test]
fn one_fence_per_transaction_and_one_per_group() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = Pool::create(folder.path().join("a.pool"), &options(Domain::Lines)).expect("created");
    let root = pool.tx(|t| t.root_or(|_| Ok(Node { value: 0, next: PPtr::NULL }))).expect("made");
    for ranges in [1usize, 4, 16] {
        let slice = pool.tx(|t| t.alloc_slice(&[0u64; 1024])).expect("made");
        let before = pool.counters();
        pool.tx(|t| {
            for at in 0..ranges as u64 {
                t.slice_part_mut(slice, at * 64, 8)?.fill(at + 1);
            }
            Ok::<_, Error>(())
        })
        .expect("committed");
        assert_eq!(pool.counters().hardens - before.hardens, 1, "{ranges} ranges");
    }
    let before = pool.counters();
    for value in 0..16 {
        pool.tx_with(TxOptions { durability: Durability::Buffered, ..TxOptions::default() }, |t| {
            t.get_mut(root)?.value = value;
            Ok::<_, Error>(())
        })
        .expect("committed");
    }
    pool.sync().expect("durable");
    assert_eq!(pool.counters().hardens - before.hardens, 1, "a group of 16");
}

#[test]
fn buffered_transactions_come_back_as_a_prefix() {
    each(|path, options| {
        let pool = Pool::create(path, &options).expect("created");
        let buffered = TxOptions { durability: Durability::Buffered, ..TxOptions::default() };
        for value in 0..20 {
            push(&pool, value, buffered);
        }
        pool.sync().expect("durable");
        for value in 20..30 {
            push(&pool, value, buffered);
        }
        let copy = path.with_extension("copy");
        std::fs::copy(path, &copy).expect("copied");
        let again = Pool::open(&copy, &options).expect("recovered");
        let found = list(&again);
        assert!(found.len() >= 20 && found.iter().rev().copied().eq(0..found.len() as u64), "{found:?}");
        push(&pool, 30, TxOptions::default());
        std::fs::copy(path, path.with_extension("copy2")).expect("copied");
        let again = Pool::open(path.with_extension("copy2"), &options).expect("recovered");
        assert_eq!(
            list(&again),
            (0..=30).rev().collect::<Vec<_>>(),
            "a Sync commit takes the earlier ones with it"
        );
    });
}

#[test]
fn who_comes_second_is_refused_and_so_are_other_files() {
    each(|path, options| {
        let pool = Pool::create(path, &options).expect("created");
        assert!(matches!(Pool::open(path, &options), Err(Error::InUse { .. })));
        assert!(matches!(Pool::create(path, &options), Err(Error::Exists { .. })));
        drop(pool);
        let other = path.with_extension("txt");
        std::fs::write(&other, b"hello").expect("written");
        assert!(matches!(Pool::open(&other, &options), Err(Error::Corrupt { .. } | Error::NotAPool)));
        std::fs::write(&other, vec![b'x'; 1 << 20]).expect("written");
        assert!(matches!(Pool::open(&other, &options), Err(Error::NotAPool)));
        let bytes = std::fs::read(path).expect("read");
        std::fs::write(&other, &bytes[..bytes.len() - 4096]).expect("written");
        assert!(matches!(Pool::open(&other, &options), Err(Error::Corrupt { .. })), "truncated");
        assert!(matches!(Pool::open(path.with_extension("none"), &options), Err(Error::File { .. })));
    });
}
