// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Near-data operations through queues, and ranges in flight: an append, an apply, a page and a head do the same on the
//! caller's core and on another, and whoever touches what they work on waits, whichever side it is.
#![cfg(all(feature = "persist", not(loom)))]

use memlift_engine::complete::WaitPolicy;
use memlift_engine::persist::{Access, Conflicts, Fence, NearData, check, copy_lines_crc};
use memlift_engine::run::{Hands, Inline, Worker, WorkerSettings};
use memlift_engine::submit::{Operation, OperationError, Outcome, Queue};
use memlift_spec::operand::log::{RECORD_RANGES, RangeWord};
use memlift_spec::{Opcode, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

const SALT: u32 = 77;

fn queues() -> [Queue; 3] {
    let hands = || Arc::new(Hands::new(memlift_kernels::active(), usize::MAX));
    let worker = |threads| {
        let settings = WorkerSettings { threads, queue_depth: 64, wait: WaitPolicy::AUTO };
        Queue::worker(Arc::new(Worker::new(settings, hands())), WaitPolicy::AUTO)
    };
    [Queue::inline(Inline::new(64, hands()), WaitPolicy::AUTO), worker(1), worker(3)]
}

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

/// Memory at a page boundary, named by address as logs and heaps are.
struct Pages(Vec<Page>);

impl Pages {
    fn new(count: usize, fill: u8) -> Pages {
        Pages(vec![Page([fill; 4096]); count])
    }

    fn at(&mut self, offset: usize) -> *mut u8 {
        assert!(offset < self.0.len() * 4096);
        self.0.as_mut_ptr().cast::<u8>().wrapping_add(offset)
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|page| page.0).collect()
    }
}

/// A record of ranges, without its checksum, as words.
fn record(position: u64, sequence: u64, ranges: &[(u64, &[u64])]) -> Vec<u64> {
    let mut words = vec![0, position, sequence, u64::from(RECORD_RANGES) | (ranges.len() as u64) << 16];
    for (offset, data) in ranges {
        words.push(RangeWord::new(*offset, 8 * data.len() as u64).unwrap().0);
        words.extend(*data);
    }
    words.resize(words.len().next_multiple_of(8), 0);
    words[0] = (words.len() as u64 * 8) << 32;
    words
}

fn run(queue: &Queue, near: NearData) -> Result<Outcome, OperationError> {
    queue.submit(Operation::from(near)).unwrap().wait()
}

fn append(queue: &Queue, place: *mut u8, record: &mut [u64]) -> Outcome {
    // SAFETY: log and record are buffers of the test, which waits for the operation.
    let near = unsafe {
        NearData::log_append(place, record.as_mut_ptr().cast(), record.len() * 8, SALT, Fence::Batch)
    };
    run(queue, near).unwrap()
}

#[test]
fn what_a_queue_appends_a_queue_applies() {
    for queue in queues() {
        let (mut log, mut heap) = (Pages::new(1, 0), Pages::new(4, 0x11));
        let mut words = record(0, 9, &[(8, &[1, 2]), (16376, &[3])]);
        let appended = append(&queue, log.at(0), &mut words);
        assert_eq!(appended.completion().crc(), words[0] as u32);
        // SAFETY: the log is a buffer of the test.
        let header = unsafe { check(log.at(0), 4096, SALT, 0) }.unwrap();
        assert_eq!((header.checksum, header.sequence), (words[0] as u32, 9));

        let mut apply = |position, heap_bytes| {
            // SAFETY: log and heap are buffers of the test, which waits for the operation.
            let near = unsafe {
                NearData::log_apply(heap.at(0), heap_bytes, log.at(0), 4096, SALT, position, Fence::Own)
            };
            run(&queue, near)
        };
        let failed = |done: Result<Outcome, OperationError>| match done {
            Err(OperationError::Failed { status, .. }) => status,
            other => panic!("{other:?}"),
        };
        assert_eq!(failed(apply(64, 16384)), Status::STALE_RECORD);
        assert_eq!(failed(apply(0, 16376)), Status::RECORD_RANGE);
        let done = apply(0, 16384).unwrap();
        let done = done.completion();
        assert_eq!((done.bytes_completed, done.sequence(), done.record_bytes()), (24, 9, 128));
        let mut expected = vec![0x11; 16384];
        expected[8..16].copy_from_slice(&1u64.to_le_bytes());
        expected[16..24].copy_from_slice(&2u64.to_le_bytes());
        expected[16376..].copy_from_slice(&3u64.to_le_bytes());
        assert!(heap.bytes() == expected);
    }
}

#[test]
fn a_spoilt_record_is_torn_and_stores_nothing() {
    for queue in queues() {
        let (mut log, mut heap) = (Pages::new(1, 0), Pages::new(1, 0x11));
        let mut words = record(0, 1, &[(0, &[1])]);
        append(&queue, log.at(0), &mut words);
        log.0[0].0[40] ^= 1;
        // SAFETY: log and heap are buffers of the test, which waits for the operation.
        let near = unsafe { NearData::log_apply(heap.at(0), 4096, log.at(0), 4096, SALT, 0, Fence::Batch) };
        match run(&queue, near) {
            Err(OperationError::Failed { status, operation }) => {
                assert_eq!(status, Status::TORN_RECORD);
                assert_eq!(operation.opcode(), Opcode::LOG_APPLY);
            }
            other => panic!("{other:?}"),
        }
        assert!(heap.bytes().iter().all(|&byte| byte == 0x11));
    }
}

#[test]
fn pages_and_heads_are_stored_as_asked() {
    for queue in queues() {
        let (mut source, mut target) = (Pages::new(1, 0), Pages::new(2, 0x22));
        for (at, byte) in source.0[0].0.iter_mut().enumerate() {
            *byte = (at / 64) as u8;
        }
        let lines = 1 << 63 | 0b101;
        // SAFETY: the pages are buffers of the test, which waits for the operations.
        let (copied, reference) = unsafe {
            let near = NearData::page_copy(target.at(0), source.at(0), lines, Some(5), Fence::Batch);
            let copied = run(&queue, near).unwrap();
            run(&queue, NearData::log_reset(target.at(4096 + 64), [0x77; 64])).unwrap();
            let mut again = Pages::new(1, 0);
            (copied, copy_lines_crc(again.at(0), source.at(0), lines, 5))
        };
        assert_eq!(copied.completion().bytes_completed, 192);
        assert_eq!(copied.completion().crc(), reference);
        let mut expected = vec![0x22; 8192];
        for line in [0, 2, 63] {
            expected[line * 64..(line + 1) * 64].fill(line as u8);
        }
        expected[4096 + 64..4096 + 128].fill(0x77);
        assert!(target.bytes() == expected);
    }
}

#[test]
fn a_batch_appends_then_applies_and_stops_at_a_bad_record() {
    for queue in queues() {
        let (mut log, mut heap) = (Pages::new(1, 0), Pages::new(1, 0));
        let mut first = record(0, 1, &[(0, &[1])]);
        let mut second = record(64, 2, &[(8, &[2])]);
        // SAFETY: all buffers are the test's, which waits for the batch; members that share memory are fenced.
        let members = unsafe {
            let (one, two) = (first.as_mut_ptr().cast(), second.as_mut_ptr().cast());
            [
                NearData::log_append(log.at(0), one, 64, SALT, Fence::Batch),
                NearData::log_append(log.at(64), two, 64, SALT, Fence::Own),
                NearData::log_apply(heap.at(0), 4096, log.at(0), 4096, SALT, 0, Fence::Batch),
                NearData::log_apply(heap.at(0), 4096, log.at(64), 4032, SALT, 0, Fence::Batch),
                NearData::log_reset(log.at(0), [0; 64]),
            ]
        };
        let operations = members.into_iter().map(Operation::from).collect();
        let outcome = queue.submit_batch(operations, &[2, 4]).unwrap().wait().unwrap();
        assert_eq!((outcome.status, outcome.ran), (Status::BATCH_FAILED, 4));
        assert!(matches!(
            &outcome.members[3],
            Err(OperationError::Failed { status: Status::STALE_RECORD, .. })
        ));
        assert_eq!(heap.bytes()[..16], [1u64.to_le_bytes(), [0; 8]].concat());
        // Recovery data stays as long as not everything before it went well.
        assert_eq!(log.bytes()[..4], (first[0] as u32).to_le_bytes());
    }
}

#[test]
fn ranges_conflict_where_they_overlap_and_one_writes() {
    let table = Conflicts::new();
    let read = table.enter(100..200, Access::Read);
    assert!(table.try_enter(150..160, Access::Read).is_some());
    assert!(table.try_enter(199..300, Access::Write).is_none());
    assert!(table.try_enter(0..101, Access::Write).is_none());
    assert!(table.try_enter(200..300, Access::Write).is_some());
    assert!(table.try_enter(0..100, Access::Write).is_some());
    assert!(table.try_enter(150..150, Access::Write).is_some(), "an empty range touches nothing");
    drop(read);
    let write = table.enter(100..200, Access::Write);
    assert!(table.try_enter(150..160, Access::Read).is_none());
    drop(write);
    table.pass(0..u64::MAX, Access::Write);
    assert_eq!((table.in_flight(), table.stalls()), (0, 0));
}

#[test]
fn a_full_table_refuses_and_then_makes_room() {
    let table = Conflicts::new();
    let mut guards: Vec<_> =
        (0..64).map(|at| table.try_enter(at * 8..at * 8 + 8, Access::Write).unwrap()).collect();
    assert!(table.try_enter(4096..4104, Access::Write).is_none());
    thread::scope(|scope| {
        let late = scope.spawn(|| drop(table.enter(4096..4104, Access::Write)));
        while table.stalls() == 0 {
            thread::yield_now();
        }
        assert!(!late.is_finished());
        guards.pop();
        late.join().unwrap();
    });
}

/// The other side holds the range; this one comes later. Gives what this one saw of the other's work.
fn stalls(
    hold: impl Fn(&Arc<Conflicts>, &AtomicU32) + Sync,
    touch: impl Fn(&Conflicts, &AtomicU32) -> u32 + Sync,
) {
    let table = Arc::new(Conflicts::new());
    let value = AtomicU32::new(0);
    thread::scope(|scope| {
        let guard = table.enter(4096..8192, Access::Write);
        let toucher = scope.spawn(|| touch(&table, &value));
        while table.stalls() == 0 {
            thread::yield_now();
        }
        assert_eq!(value.load(Ordering::Relaxed), 0, "went on while the range was held");
        hold(&table, &value);
        drop(guard);
        assert_eq!(toucher.join().unwrap(), 1);
    });
    assert_eq!(table.in_flight(), 0);
}

#[test]
fn the_core_waits_for_near_data_work() {
    let work = |_: &Arc<Conflicts>, value: &AtomicU32| value.store(1, Ordering::Relaxed);
    stalls(work, |table, value| {
        table.pass(8000..9000, Access::Read);
        value.load(Ordering::Relaxed)
    });
    stalls(work, |table, value| {
        let _guard = table.enter(0..4097, Access::Write);
        value.load(Ordering::Relaxed)
    });
}

#[test]
fn near_data_work_waits_for_the_core() {
    // The holder is the core; who comes later submits an apply with the guard and waits for it.
    let queue = &queues()[1];
    let memory = Arc::new(std::sync::Mutex::new((Pages::new(1, 0), Pages::new(1, 0))));
    let mut words = record(0, 1, &[(0, &[0xabcd])]);
    append(queue, memory.lock().unwrap().0.at(0), &mut words);
    stalls(
        |_, value| value.store(1, Ordering::Relaxed),
        |table, value| {
            let guard = table.enter(4096..4104, Access::Write);
            let seen = value.load(Ordering::Relaxed);
            let (log, heap) = &mut *memory.lock().unwrap();
            // SAFETY: the buffers are locked until the operation has been waited for.
            let near =
                unsafe { NearData::log_apply(heap.at(0), 4096, log.at(0), 4096, SALT, 0, Fence::Batch) };
            run(queue, near).unwrap();
            drop(guard);
            assert_eq!(heap.bytes()[..8], 0xabcdu64.to_le_bytes());
            seen
        },
    );
}

#[test]
fn a_writer_is_not_starved_by_readers_that_come_later() {
    let table = Conflicts::new();
    let first = table.enter(0..64, Access::Read);
    thread::scope(|scope| {
        let writer = scope.spawn(|| drop(table.enter(0..64, Access::Write)));
        while table.stalls() == 0 {
            thread::yield_now();
        }
        assert!(table.try_enter(0..64, Access::Read).is_none(), "overtook the writer that waits");
        assert!(table.try_enter(64..128, Access::Read).is_some());
        drop(first);
        writer.join().unwrap();
        assert!(table.try_enter(0..64, Access::Read).is_some());
    });
}

#[test]
fn a_guard_travels_with_its_work_and_leaves_when_a_thread_panics() {
    let table = Arc::new(Conflicts::new());
    let guard = Conflicts::enter_by(Arc::clone(&table), 0..8, Access::Write);
    let ended = thread::spawn(move || {
        let _guard = guard;
        panic!("the work failed");
    })
    .join();
    assert!(ended.is_err());
    assert!(table.try_enter(0..8, Access::Write).is_some());
}

#[test]
fn many_threads_leave_an_empty_table_and_no_torn_counts() {
    let table = Conflicts::new();
    let counters: Vec<AtomicU32> = (0..4).map(|_| AtomicU32::new(0)).collect();
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let (table, counters) = (&table, &counters);
            scope.spawn(move || {
                for round in 0..2000u64 {
                    let at = (thread + round) % 3;
                    let _guard = table.enter(at * 64..(at + 2) * 64, Access::Write);
                    for counter in &counters[at as usize..at as usize + 2] {
                        // Not one step on purpose: only the guard makes it one.
                        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let sum: u32 = counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum();
    assert_eq!(sum, 4 * 2000 * 2);
    assert_eq!(table.in_flight(), 0);
}
