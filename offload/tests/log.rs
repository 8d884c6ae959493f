// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Near-data operations through queues: an append, an apply, a page and a head do the same on the caller's core and on another.
#![cfg(all(feature = "log", not(loom)))]

use memlift_ground::complete::WaitPolicy;
use memlift_kernels::persist::{check, copy_lines_crc};
use memlift_offload::log::{Fence, NearData};
use memlift_offload::run::{ExecutorSettings, Inline, Worker, WorkerSettings};
use memlift_offload::submit::{Operation, OperationError, Outcome, Queue};
use memlift_spec::operand::log::{RECORD_RANGES, RangeWord};
use memlift_spec::{Opcode, Status};
use std::sync::Arc;

const SALT: u32 = 77;

fn queues() -> [Queue; 3] {
    let executor_settings = || Arc::new(ExecutorSettings::new(memlift_kernels::active(), usize::MAX));
    let worker = |threads| {
        let settings = WorkerSettings { threads, queue_depth: 64, wait: WaitPolicy::AUTO };
        Queue::worker(Arc::new(Worker::new(settings, executor_settings())), WaitPolicy::AUTO)
    };
    [Queue::inline(Inline::new(64, executor_settings()), WaitPolicy::AUTO), worker(1), worker(3)]
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
