// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exact cost of each primitive: hardens (a fence or a sync each), bytes of the log, lines written back.

use memlift_persist::{
    Counters, Domain, Durability, Error, Mechanism, Options, PPtr, Persist, Pool, TxOptions, View,
};

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
struct Node {
    value: u64,
    rest: [u64; 7],
}

const NODE: Node = Node { value: 0, rest: [0; 7] };

/// A pool with 16 objects of a cache line each, in a folder that lives as long.
fn pool(mechanism: Mechanism, domain: Domain) -> (tempfile::TempDir, Pool, Vec<PPtr<Node>>) {
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options {
        heap_bytes: 1 << 20,
        max_bytes: 4 << 20,
        lanes: 3,
        lane_bytes: 256 << 10,
        group_wait: std::time::Duration::ZERO,
        mechanism,
        domain,
        ..Options::default()
    };
    let pool = Pool::create(folder.path().join("a.pool"), &options).expect("created");
    let nodes = pool.tx(|t| (0..16).map(|_| t.alloc(NODE)).collect::<Result<Vec<_>, Error>>()).expect("made");
    pool.apply().expect("applied");
    (folder, pool, nodes)
}

/// The cost of `work` for commits, and for the applier.
fn cost(pool: &Pool, work: impl FnOnce()) -> (Counters, Counters) {
    let (before, applier) = (pool.counters(), pool.applier_counters());
    work();
    let minus = |a: Counters, b: Counters| Counters {
        hardens: a.hardens - b.hardens,
        log_bytes: a.log_bytes - b.log_bytes,
        home_bytes: a.home_bytes - b.home_bytes,
        write_backs: a.write_backs - b.write_backs,
    };
    (minus(pool.counters(), before), minus(pool.applier_counters(), applier))
}

fn charged(hardens: u64, log_bytes: u64, home_bytes: u64, write_backs: u64) -> Counters {
    Counters { hardens, log_bytes, home_bytes, write_backs }
}

fn change(pool: &Pool, nodes: &[PPtr<Node>], durability: Durability) {
    pool.tx_with(TxOptions { durability, sections: None }, |t| {
        nodes.iter().try_for_each(|node| {
            t.get_mut(*node)?.value += 1;
            Ok::<_, Error>(())
        })
    })
    .expect("committed");
}

/// A record: 32 bytes of header, 8 for each range and what it says, in whole lines.
fn record(ranges: u64, bytes_each: u64) -> u64 {
    (32 + ranges * (8 + bytes_each)).next_multiple_of(64)
}

#[test]
fn a_redo_transaction_is_one_record_and_one_harden() {
    for domain in [Domain::Lines, Domain::Pages] {
        let (_folder, pool, nodes) = pool(Mechanism::Redo, domain);
        for ranges in [1, 2, 4, 16] {
            let (commits, applier) = cost(&pool, || change(&pool, &nodes[..ranges], Durability::Sync));
            assert_eq!(commits, charged(1, record(ranges as u64, 8), 0, 0), "{ranges} ranges");
            assert_eq!(applier, Counters::default());
        }
    }
}

#[test]
fn a_group_of_transactions_is_one_harden() {
    for domain in [Domain::Lines, Domain::Pages] {
        let (_folder, pool, nodes) = pool(Mechanism::Redo, domain);
        let (commits, _) = cost(&pool, || {
            nodes.iter().for_each(|node| change(&pool, &[*node], Durability::Buffered));
            pool.sync().expect("durable");
        });
        assert_eq!(commits, charged(1, 16 * record(1, 8), 0, 0));
    }
}

#[test]
fn allocating_and_freeing_cost_no_harden_of_their_own() {
    let (_folder, pool, nodes) = pool(Mechanism::Redo, Domain::Lines);
    let (commits, applier) = cost(&pool, || {
        pool.tx(|t| {
            t.free(nodes[0])?;
            t.alloc(NODE).map(drop)
        })
        .expect("committed");
    });
    assert_eq!((commits.hardens, commits.write_backs, applier), (1, 0, Counters::default()));
}

#[test]
fn undo_hardens_once_per_batch_and_twice_to_commit() {
    for domain in [Domain::Lines, Domain::Pages] {
        let (_folder, pool, nodes) = pool(Mechanism::Undo, domain);
        for count in [1, 4, 16] {
            let (commits, applier) = cost(&pool, || change(&pool, &nodes[..count], Durability::Sync));
            assert_eq!(commits.hardens, count as u64 + 2, "{count} batches");
            assert_eq!(commits.log_bytes, count as u64 * record(1, 64));
            assert_eq!(commits.write_backs, count as u64 + 1, "the objects' lines and the lane's head");
            assert_eq!(applier, Counters::default());
            let (commits, _) = cost(&pool, || {
                pool.tx(|t| {
                    t.declare(&nodes[..count])?;
                    nodes[..count].iter().try_for_each(|node| {
                        t.get_mut(*node)?.value += 1;
                        Ok::<_, Error>(())
                    })
                })
                .expect("committed");
            });
            assert_eq!(commits.hardens, 3, "{count} declared");
            assert_eq!(commits.log_bytes, record(count as u64, 64));
        }
    }
}

#[test]
fn a_checkpoint_is_one_record_of_its_dirty_lines() {
    for domain in [Domain::Lines, Domain::Pages] {
        let (_folder, pool, nodes) = pool(Mechanism::Checkpoint, domain);
        let (commits, applier) = cost(&pool, || change(&pool, &nodes[..4], Durability::Sync));
        // 16 bytes for the page, and four lines of it.
        let bytes = (32u64 + 16 + 4 * 64).next_multiple_of(64);
        assert_eq!((commits, applier), (charged(1, bytes, 0, 0), Counters::default()));
        let (commits, _) = cost(&pool, || {
            (0..8).for_each(|_| change(&pool, &nodes[..4], Durability::Buffered));
            pool.sync().expect("durable");
        });
        assert_eq!(commits, charged(1, bytes, 0, 0), "eight transactions share one");
    }
}

#[test]
fn a_shadow_commit_is_one_harden_for_all_its_pages() {
    let (_folder, pool, _) = pool(Mechanism::Shadow, Domain::Lines);
    let slice = pool.tx(|t| t.alloc_slice(&[0u64; 2048])).expect("made");
    let change = |value: u64| {
        pool.tx(|t| {
            (0..4u64).try_for_each(|page| {
                t.slice_part_mut(slice, page * 512, 1)?[0] = value;
                Ok::<_, Error>(())
            })
        })
        .expect("committed");
    };
    (1..4).for_each(change); // now each copy is behind by the line that changes
    let (commits, applier) = cost(&pool, || change(4));
    let entries = (32u64 + 4 * 24).next_multiple_of(64);
    assert_eq!((commits, applier), (charged(1, entries + 4 * 64, 0, 0), Counters::default()));
}

#[test]
fn what_changes_nothing_costs_nothing() {
    for mechanism in [Mechanism::Redo, Mechanism::Checkpoint, Mechanism::Shadow] {
        let (_folder, pool, nodes) = pool(mechanism, Domain::Lines);
        let (commits, applier) = cost(&pool, || {
            let aborted = pool.tx(|t| {
                t.get_mut(nodes[0])?.value = 7;
                t.free(nodes[1])?;
                t.alloc(NODE)?;
                Err::<(), _>(Error::Aborted("no".to_owned()))
            });
            assert!(aborted.is_err());
            pool.read(|r| r.get(nodes[0]).map(|node| assert_eq!(node.value, 0))).expect("read");
            pool.tx(|_| Ok::<_, Error>(())).expect("empty");
            pool.tx(|t| t.get(nodes[0]).map(drop)).expect("only reads");
            pool.tx(|t| t.get_mut(nodes[0]).map(drop)).expect("lent, and nothing changed");
            pool.sync().expect("nothing to do");
        });
        assert_eq!((commits, applier), Default::default(), "{mechanism:?}");
    }
    let (_folder, pool, nodes) = pool(Mechanism::Undo, Domain::Lines);
    let (commits, _) = cost(&pool, || {
        pool.read(|r| r.get(nodes[0]).map(drop)).expect("read");
        pool.tx(|_| Ok::<_, Error>(())).expect("empty");
    });
    assert_eq!(commits, Counters::default());
}

#[test]
fn applying_a_batch_is_two_hardens() {
    for mechanism in [Mechanism::Redo, Mechanism::Checkpoint, Mechanism::Shadow] {
        for domain in [Domain::Lines, Domain::Pages] {
            let (_folder, pool, nodes) = pool(mechanism, domain);
            nodes.iter().for_each(|node| change(&pool, &[*node], Durability::Sync));
            let (commits, applier) = cost(&pool, || pool.apply().expect("applied"));
            assert_eq!((commits, applier.hardens), (Counters::default(), 2), "{mechanism:?} {domain:?}");
        }
    }
}
