// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The executors as processes see them: forks, endings, idleness.

use memlift_ground::complete::WaitPolicy;
use memlift_offload::run::{ExecutorSettings, Inline, Worker, WorkerSettings};
use memlift_offload::submit::{Operation, OperationError, Queue};
use memlift_spec::{Backend, Completion, Descriptor, Flags, Opcode, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

fn executor_settings() -> Arc<ExecutorSettings> {
    Arc::new(ExecutorSettings::new(memlift_kernels::active(), usize::MAX))
}

fn worker(threads: usize) -> Arc<Worker> {
    let settings = WorkerSettings { threads, queue_depth: 64, wait: WaitPolicy::AUTO };
    Arc::new(Worker::new(settings, executor_settings()))
}

/// Runs `child` in a forked child, which must return true within ten seconds.
fn in_child(child: impl FnOnce() -> bool) {
    // SAFETY: the child runs `child` and leaves by `_exit`. It uses allocation, which glibc keeps usable after a
    // fork, and the code under test, whose promise this is.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: an alarm ends a child that hangs; `_exit` runs no destructors of the parent's objects.
        unsafe {
            libc::alarm(10);
            let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
            libc::_exit(if ok { 0 } else { 1 });
        }
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "child ended with {status:#x}");
}

#[test]
fn a_forked_child_has_workers_of_its_own() {
    let worker = worker(2);
    let queue = Queue::worker(Arc::clone(&worker), WaitPolicy::AUTO);
    queue.submit(Operation::copy(vec![1; 1000])).unwrap().wait().unwrap();
    assert_eq!(worker.stats().threads, 2);
    let under_way = queue.submit(Operation::copy(vec![2u8; 32 << 20])).unwrap();
    in_child(|| {
        // The parent settles its own submissions; the child must neither hang nor free anything of them.
        let lost = under_way.is_done() || matches!(under_way.wait(), Err(OperationError::Forked));
        let data = queue.submit(Operation::copy(vec![3; 1000])).unwrap().wait().unwrap();
        drop(queue.clone());
        lost && data.into_target().unwrap().as_slice() == [3; 1000]
    });
}

#[test]
fn a_child_may_drop_the_parents_objects() {
    let worker = worker(1);
    let queue = Queue::worker(Arc::clone(&worker), WaitPolicy::AUTO);
    let ticket = queue.submit(Operation::copy(vec![2u8; 64 << 20])).unwrap();
    in_child(move || {
        drop(ticket);
        drop(queue);
        drop(worker);
        true
    });
}

#[test]
fn dropping_an_executor_runs_what_is_queued() {
    let flags = Flags::COMPLETION_VALID.with(Flags::REQUEST_COMPLETION);
    for threads in [None, Some(0), Some(1), Some(3)] {
        let mut records = vec![Completion::PENDING; 40];
        let base = records.as_mut_ptr();
        let noops: Vec<Descriptor> = (0..40)
            .map(|index| {
                let mut noop = Descriptor::new(Opcode::NOOP, flags);
                noop.completion_address = base.wrapping_add(index).expose_provenance() as u64;
                noop
            })
            .collect();
        // SAFETY: the records outlive the executors, which are dropped in here.
        unsafe {
            match threads {
                None => Inline::new(64, executor_settings()).submit(&noops).unwrap(),
                Some(threads) => worker(threads).submit(&noops).unwrap(),
            }
        }
        for index in 0..40 {
            // SAFETY: the records outlive the executors; the status is read as the atomic that it was written as.
            let status =
                unsafe { AtomicU8::from_ptr(base.wrapping_add(index).cast()) }.load(Ordering::Acquire);
            assert_eq!(Status(status), Status::SUCCESS, "{threads:?} {index}");
        }
    }
}

/// Voluntary and involuntary context switches of the thread called `name`.
fn switches(name: &str) -> u64 {
    let mut total = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if read("comm").trim() == name {
            let status = read("status");
            let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
            total +=
                counts.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok()).sum::<u64>();
        }
    }
    total
}

#[test]
fn an_idle_worker_does_not_wake_up() {
    // A name that no other test's worker has: the sixth thread of its crew.
    let worker = worker(6);
    worker.start();
    std::thread::sleep(Duration::from_millis(300));
    let before = switches("memlift-work-5");
    assert!(before > 0, "the thread is there");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(switches("memlift-work-5"), before);
    drop(worker);
    assert_eq!(switches("memlift-work-5"), 0, "threads end with their worker");
}

#[test]
fn records_without_an_address_are_not_written() {
    let inline = Inline::new(4, executor_settings());
    let mut fill = Descriptor::new(Opcode::FILL, Flags::NONE);
    let mut target = vec![0u8; 100];
    fill.target = target.as_mut_ptr().expose_provenance() as u64;
    (fill.source, fill.size) = (0x0101_0101_0101_0101, 100);
    // SAFETY: the target outlives the poll.
    unsafe { inline.submit(&[fill]).unwrap() };
    assert_eq!(inline.poll(), 1);
    assert!(target.iter().all(|byte| *byte == 1));
}
