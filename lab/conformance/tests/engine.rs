// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine's own executors do what DSA does, whether they stream past the cache or not, and at every level
//! of the kernels that this CPU can run.

use memlift_conformance::{Plan, run, run_each};
use memlift_ground::complete::WaitPolicy;
use memlift_kernels::{Isa, Kernels};
use memlift_offload::run::{ExecutorSettings, Inline, Worker, WorkerSettings};
use std::sync::Arc;

/// Ordinary stores only, and streaming stores for everything.
const STREAMING_FROM: [usize; 2] = [usize::MAX, 1];

fn executor_settings(kernels: &'static Kernels, streaming_from_bytes: usize) -> Arc<ExecutorSettings> {
    Arc::new(ExecutorSettings::new(kernels, streaming_from_bytes))
}

fn pass(backend: &dyn memlift_spec::Backend, share: u64) {
    let plan = Plan::from_environment();
    let plan = Plan { cases: plan.cases / share, ..plan };
    if let Err(failure) = run(backend, &plan) {
        panic!("{}: {failure}", backend.name());
    }
}

#[test]
fn inline_conforms() {
    for from in STREAMING_FROM {
        pass(&Inline::new(3, executor_settings(memlift_kernels::active(), from)), 1);
    }
}

#[test]
fn worker_conforms_with_any_number_of_threads() {
    for threads in [0, 1, 3] {
        for from in STREAMING_FROM {
            let settings = WorkerSettings { threads, queue_depth: 4, wait: WaitPolicy::AUTO };
            pass(&Worker::new(settings, executor_settings(memlift_kernels::active(), from)), 3);
        }
    }
}

#[test]
fn every_instruction_set_conforms() {
    for isa in [Isa::Scalar, Isa::Sse2, Isa::Avx2, Isa::Avx512] {
        if let Some(kernels) = memlift_kernels::for_isa(isa) {
            for from in STREAMING_FROM {
                pass(&Inline::new(8, executor_settings(kernels, from)), 5);
            }
        }
    }
}

/// Descriptors of each opcode in a soak.
const EACH: u64 = 100_000;

#[test]
#[ignore = "soak"]
fn soak_every_opcode_inline() {
    let inline = Inline::new(64, executor_settings(memlift_kernels::active(), usize::MAX));
    let count =
        run_each(&inline, EACH, &Plan::from_environment()).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{count} descriptors");
}

#[test]
#[ignore = "soak"]
fn soak_every_opcode_on_the_worker() {
    let settings = WorkerSettings { threads: 2, queue_depth: 64, wait: WaitPolicy::AUTO };
    let worker = Worker::new(settings, executor_settings(memlift_kernels::active(), 1));
    let count =
        run_each(&worker, EACH, &Plan::from_environment()).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{count} descriptors");
}

#[test]
fn the_suite_notices_a_backend_that_lies() {
    /// Forgets the last byte of every copy, and otherwise does everything right.
    struct Short(Inline);
    // SAFETY: passes descriptors on, some of them one byte shorter.
    #[allow(unsafe_code)]
    unsafe impl memlift_spec::Backend for Short {
        fn name(&self) -> &'static str {
            "short"
        }
        fn capabilities(&self) -> memlift_spec::Capabilities {
            self.0.capabilities()
        }
        unsafe fn submit(&self, descriptors: &[memlift_spec::Descriptor]) -> Result<(), memlift_spec::Busy> {
            for (accepted, descriptor) in descriptors.iter().enumerate() {
                let mut descriptor = *descriptor;
                if descriptor.opcode() == memlift_spec::Opcode::MEMMOVE && descriptor.size > 1 {
                    descriptor.size -= 1;
                }
                // SAFETY: passed on from the caller; a shorter copy touches less.
                let taken = unsafe { self.0.submit(&[descriptor]) };
                taken.map_err(|_| memlift_spec::Busy { accepted })?;
            }
            Ok(())
        }
        fn poll(&self) -> usize {
            self.0.poll()
        }
    }
    let short = Short(Inline::new(8, executor_settings(memlift_kernels::active(), usize::MAX)));
    let failure = run(&short, &Plan { cases: 100, ..Plan::from_environment() }).unwrap_err();
    assert!(failure.what.contains("differ"), "{failure}");
}
