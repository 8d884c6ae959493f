// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The public queue: buffers go in and come back, a full queue hands the operation back, nothing completes
//! inside submit, and no way of losing a ticket leaves an executor with memory that is gone.

use memlift_ground::complete::WaitPolicy;
use memlift_offload::run::{ExecutorSettings, Inline, Worker, WorkerSettings};
use memlift_offload::submit::{Cache, Operation, Queue, Reason, Source, Target};
use memlift_spec::Opcode;
use std::sync::Arc;

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

#[test]
fn every_buffer_that_is_written_comes_back() {
    let data = bytes(300_001, 7);
    let shared: Arc<[u8]> = data.as_slice().into();
    let fixed: &'static [u8] = &[7; 1000];
    for queue in queues() {
        let copied = |source: Source, target: Target, cache| {
            let operation = Operation::Copy { source, target, cache };
            queue.submit(operation).unwrap().wait().unwrap().into_target().unwrap()
        };
        for cache in [Cache::Auto, Cache::Hot, Cache::Cold] {
            let target = || Target::zeroed(data.len());
            assert!(copied(data.clone().into(), target(), cache).as_slice() == data);
            assert!(copied(data.clone().into_boxed_slice().into(), target(), cache).as_slice() == data);
            assert!(copied(Arc::clone(&shared).into(), target(), cache).as_slice() == data);
            let longer = Target::Boxed(vec![1; 1001].into_boxed_slice());
            assert_eq!(copied(fixed.into(), longer, cache).as_slice(), [fixed, &[1]].concat());
        }
        let drained = queue.submit(Operation::Drain).unwrap().wait().unwrap();
        assert!(drained.into_target().is_none());
    }
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
                _ => assert!(ticket.wait().unwrap().into_target().unwrap().as_slice() == &*shared),
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
fn another_backend_can_be_injected() {
    let queue = Queue::foreign(Box::new(Inline::new(4, executor_settings())), WaitPolicy::AUTO);
    let data = bytes(5000, 4);
    let ticket = queue.submit(Operation::copy(data.clone())).unwrap();
    assert!(!ticket.is_done());
    queue.submit(Operation::copy(data.clone())).unwrap().detach();
    assert_eq!(ticket.wait().unwrap().into_target().unwrap().as_slice(), data);
    assert!(queue.capabilities().supports(Opcode::DUALCAST));
    assert!(!queue.capabilities().supports(Opcode::DIF_CHECK));
}
