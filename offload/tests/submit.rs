// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The public queue: buffers go in and come back, a full queue hands the operation back, nothing completes
//! inside submit, and no way of losing a ticket leaves an executor with memory that is gone.

use memlift_ground::complete::WaitPolicy;
use memlift_ground::region::{Region, RegionOffset, RegionOptions};
use memlift_offload::run::{ExecutorSettings, Inline, Worker, WorkerSettings};
use memlift_offload::submit::{
    Cache, DeltaFound, Lease, Operation, OperationError, Pattern, Queue, Reason, Source, Target,
};
use memlift_spec::{Opcode, Status};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn executor_settings() -> Arc<ExecutorSettings> {
    Arc::new(ExecutorSettings::new(memlift_kernels::active(), 256 * 1024))
}

fn inline(depth: usize) -> Queue {
    Queue::inline(Inline::new(depth, executor_settings()), WaitPolicy::AUTO)
}

fn worker(threads: usize, queue_depth: usize) -> Queue {
    let settings = WorkerSettings { threads, queue_depth, wait: WaitPolicy::AUTO };
    Queue::worker(Arc::new(Worker::new(settings, executor_settings())), WaitPolicy::AUTO)
}

fn queues() -> [Queue; 3] {
    [inline(64), worker(1, 64), worker(3, 64)]
}

fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect()
}

/// CRC-32C by its definition, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    })
}

#[test]
fn every_operation_gives_its_buffers_and_results_back() {
    for queue in queues() {
        let data = bytes(300_001, 7);
        let run = |operation| queue.submit(operation).unwrap().wait().unwrap();

        let copied = run(Operation::copy(data.clone()));
        assert_eq!(copied.into_target().unwrap().into_vec().unwrap(), data);

        let filled = run(Operation::Fill {
            target: Target::zeroed(100),
            pattern: Pattern::Sixteen(0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100),
            cache: Cache::Hot,
        });
        let filled = filled.into_target().unwrap().into_vec().unwrap();
        assert!(filled.iter().enumerate().all(|(i, &byte)| usize::from(byte) == i % 16));

        let mut other = data.clone();
        other[200_000] ^= 1;
        let compared = run(Operation::Compare { first: data.clone().into(), second: other.into() });
        assert_eq!(compared.first_difference(), Some(Some(200_000)));

        let crc = run(Operation::Crc { source: data.clone().into(), seed: 0 });
        assert_eq!(crc.crc(), Some(crc32c(&data)));
        let source: Source = Arc::<[u8]>::from(data.as_slice()).into();
        let target = Target::zeroed(data.len());
        let copy_crc = run(Operation::CopyCrc { source, target, seed: 0, cache: Cache::Cold });
        assert_eq!(copy_crc.crc(), Some(crc32c(&data)));
        assert_eq!(copy_crc.into_target().unwrap().as_slice().unwrap(), data);

        let (first, mut second) = (bytes(4096, 1), bytes(4096, 1));
        second[800] ^= 0xff;
        let record = Target::zeroed(100);
        let delta = run(Operation::DeltaCreate {
            first: first.clone().into(),
            second: second.clone().into(),
            record,
        });
        assert_eq!(delta.delta(), Some(DeltaFound::Record(10)));
        let record = delta.into_target().unwrap().into_vec().unwrap();
        let applied = run(Operation::DeltaApply { record: record.into(), target: first.into() });
        assert_eq!(applied.into_target().unwrap().into_vec().unwrap(), second);

        run(Operation::Noop);
        run(Operation::Drain);
    }
}

#[test]
fn leases_work_on_regions() {
    let options = RegionOptions::default();
    let region = Arc::new(Region::memfd("memlift-test", 1 << 20, &options).unwrap());
    let data = bytes(300_000, 3);
    region.window(RegionOffset(64), data.len() as u64).unwrap().write_from(&data).unwrap();
    for queue in queues() {
        let source = Lease::new(Arc::clone(&region), RegionOffset(64), data.len()).unwrap();
        let target = Lease::new(Arc::clone(&region), RegionOffset(512 * 1024), data.len()).unwrap();
        let copy = Operation::Copy { source: source.into(), target: target.into(), cache: Cache::Auto };
        queue.submit(copy).unwrap().wait().unwrap();
        let mut copied = vec![0; data.len()];
        region.window(RegionOffset(512 * 1024), data.len() as u64).unwrap().read_into(&mut copied).unwrap();
        assert!(copied == data);
    }
    assert!(Lease::new(region, RegionOffset(1 << 20), 1).is_err());
}

#[test]
fn a_full_queue_hands_the_operation_back() {
    let queue = inline(2);
    let tickets: Vec<_> =
        (0..2).map(|seed| queue.submit(Operation::copy(bytes(1000, seed))).unwrap()).collect();
    let mine = bytes(1000, 99);
    let address = mine.as_ptr();
    let rejected = queue.submit(Operation::copy(mine)).unwrap_err();
    assert_eq!(rejected.reason, Reason::Busy);
    let Operation::Copy { source: Source::Vec(back), .. } = *rejected.operation else {
        panic!("another operation")
    };
    assert!(back.as_ptr() == address && back == bytes(1000, 99), "the very buffer comes back, untouched");
    let rejected = queue.submit_batch(vec![Operation::Noop, Operation::Noop], &[]).unwrap_err();
    assert_eq!((rejected.reason, rejected.operations.len()), (Reason::Busy, 2));
    assert_eq!(queue.poll(), 1);
    queue.submit(Operation::copy(back)).unwrap().wait().unwrap();
    for ticket in tickets {
        ticket.wait().unwrap();
    }
}

#[test]
fn nothing_completes_inside_submit() {
    let queue = inline(8);
    let tickets: Vec<_> = (0..4).map(|_| queue.submit(Operation::copy(bytes(64, 5))).unwrap()).collect();
    assert!(tickets.iter().all(|ticket| !ticket.is_done()));
    for done in 1..=4 {
        assert_eq!(queue.poll(), 1);
        assert_eq!(tickets.iter().filter(|ticket| ticket.is_done()).count(), done);
    }
    assert_eq!(queue.poll(), 0);
}

#[test]
fn what_cannot_run_is_refused_before_anything_is_given_away() {
    let queue = inline(8);
    let refused = |operation| match queue.submit(operation) {
        Err(rejected) => matches!(rejected.reason, Reason::Invalid(_)),
        Ok(_) => false,
    };
    assert!(refused(Operation::copy(Vec::new())));
    let short =
        Operation::Copy { source: bytes(10, 0).into(), target: Target::zeroed(9), cache: Cache::Auto };
    assert!(refused(short));
    assert!(refused(Operation::Compare { first: bytes(8, 0).into(), second: bytes(9, 0).into() }));
    assert!(queue.submit_batch(vec![Operation::Noop], &[]).is_err());
    assert!(queue.submit_batch(vec![Operation::Noop, Operation::Drain], &[]).is_err());
    assert!(queue.submit_batch(vec![Operation::Noop, Operation::Noop], &[2]).is_err());
}

#[test]
fn a_batch_stops_at_the_fence_after_a_failure() {
    for queue in queues() {
        let bad = || Operation::DeltaApply {
            record: vec![0xff; 10].into(), // the offset lies outside every small target
            target: Target::zeroed(64),
        };
        let copy = || Operation::copy(bytes(100, 1));
        let operations = vec![copy(), bad(), copy(), copy(), copy()];
        let outcome = queue.submit_batch(operations, &[3]).unwrap().wait().unwrap();
        assert_eq!((outcome.status, outcome.ran), (Status::BATCH_FAILED, 3));
        let ended: Vec<Status> = outcome
            .members
            .into_iter()
            .map(|member| match member {
                Ok(outcome) => outcome.completion().status(),
                Err(OperationError::Failed { status, operation }) => {
                    assert!(operation.target().is_some(), "failed members give their buffers back");
                    status
                }
                Err(other) => panic!("{other}"),
            })
            .collect();
        let expected =
            [Status::SUCCESS, Status::DELTA_RANGE, Status::SUCCESS, Status::ABANDONED, Status::ABANDONED];
        assert_eq!(ended, expected);
        let outcome = queue.submit_batch(vec![copy(), copy()], &[1]).unwrap().wait().unwrap();
        assert_eq!((outcome.status, outcome.ran), (Status::SUCCESS, 2));
    }
}

#[test]
fn losing_tickets_under_load_dangles_nothing() {
    let queue = worker(2, 16);
    let shared: Arc<[u8]> = bytes(200_000, 11).into();
    let mut forgotten = 0;
    for round in 0..600 {
        let operation = Operation::copy(Arc::clone(&shared));
        match queue.submit(operation) {
            Err(rejected) => assert_eq!(rejected.reason, Reason::Busy),
            Ok(ticket) => match round % 4 {
                0 => drop(ticket),
                1 => ticket.detach(),
                2 if round % 16 == 2 => {
                    std::mem::forget(ticket);
                    forgotten += 1;
                }
                _ => assert!(ticket.wait().unwrap().into_target().unwrap().as_slice().unwrap() == &*shared),
            },
        }
    }
    queue.submit(Operation::Drain).map_or_else(|_| (), |ticket| drop(ticket.wait()));
    drop(queue);
    // Everything but the forgotten flights has given its share of the source back.
    assert!(forgotten > 0);
    assert_eq!(Arc::strong_count(&shared), 1 + forgotten);
}

#[test]
fn a_drain_waits_for_what_was_submitted_before_it() {
    let queue = worker(3, 64);
    for _ in 0..50 {
        let before: Vec<_> =
            (0..8).map(|seed| queue.submit(Operation::copy(bytes(50_000, seed))).unwrap()).collect();
        let drains = [queue.submit(Operation::Drain).unwrap(), queue.submit(Operation::Drain).unwrap()];
        let after = queue.submit(Operation::copy(bytes(50_000, 0))).unwrap();
        for drain in drains {
            drain.wait().unwrap();
            assert!(before.iter().all(|ticket| ticket.is_done()));
        }
        after.wait().unwrap();
    }
}

#[test]
fn a_deadline_leaves_the_ticket_usable() {
    let queue = worker(1, 8);
    let big = queue.submit(Operation::copy(vec![1u8; 64 << 20])).unwrap();
    let small = queue.submit(Operation::copy(bytes(10, 1))).unwrap();
    let start = Instant::now();
    if !small.wait_deadline(start + Duration::from_millis(1)) {
        assert!(start.elapsed() >= Duration::from_millis(1));
    }
    assert!(small.wait_deadline(Instant::now() + Duration::from_secs(60)));
    small.wait().unwrap();
    assert!(big.is_done(), "one thread runs in order");
    big.wait().unwrap();
}

#[test]
fn another_backend_can_be_injected() {
    let queue = Queue::foreign(Box::new(Inline::new(4, executor_settings())), WaitPolicy::AUTO);
    let data = bytes(5000, 4);
    let ticket = queue.submit(Operation::copy(data.clone())).unwrap();
    assert!(!ticket.is_done());
    queue.submit(Operation::copy(data.clone())).unwrap().detach();
    assert_eq!(ticket.wait().unwrap().into_target().unwrap().into_vec().unwrap(), data);
    assert!(queue.capabilities().supports(Opcode::DUALCAST));
    assert!(!queue.capabilities().supports(Opcode::DIF_CHECK));
}
