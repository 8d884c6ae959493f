// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Execution: the executors of descriptors, and the meaning of a descriptor in software.
//!
//! - **Flow** `Work` ──▶ `Inline` (the caller's core, when it polls) or `Worker` (engine threads, a bounded ring) ──▶
//!   `validate` ──▶ `execute` ──▶ `record` (status last, Release) ──▶ `Notify::completed`
//! - **Order** nothing completes inside submit; inside one batch a fence waits for the members before it
//! - **Owner** a descriptor's memory is lent until its record's status is non-zero; `Work::notify` is kept alive until
//!   the executor has called it
//! - **Not here** buffers and tickets (`submit`), the choice of an executor (`place`)
//!
//! Source: Intel Data Streaming Accelerator Architecture Specification; `linux/idxd.h`. Where software may differ from
//! hardware it supports less: interrupts are refused, and the data integrity operations are absent from the
//! capabilities. Operations that a device leaves unfinished after a page fault are finished here (`device`).

mod batch;
mod crew;
mod device;
mod execute;
mod fork;
mod inline;
pub(crate) mod record;
mod share;
mod validate;
mod worker;

pub use device::{Absent, Finisher, node, open_dsa};
pub use fork::generation;
pub use inline::Inline;
pub(crate) use share::{Share, share_chunk_bytes};
pub use worker::{Worker, WorkerSettings, WorkerStats};

use memlift_kernels::Kernels;
use memlift_spec::{Capabilities, Descriptor, Opcode};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Called when a descriptor has completed, on the thread that executed it: it must be brief and must not
/// block.
pub trait Notify: Send + Sync {
    /// Called once the record's status is non-zero.
    fn completed(&self);
}

/// One descriptor on its way to an executor of this engine.
pub(crate) struct Work {
    pub descriptor: Descriptor,
    /// Kept alive, with the memory that it owns, until the descriptor has completed.
    pub notify: Option<Arc<dyn Notify>>,
}

/// Settings of an engine's software executors: the kernels, and the size from which a descriptor without
/// CACHE_CONTROL is written past the cache (set by calibration).
#[derive(Debug)]
pub struct ExecutorSettings {
    kernels: &'static Kernels,
    streaming_from_bytes: AtomicUsize,
}

impl ExecutorSettings {
    /// Makes settings with `kernels` that stream from `streaming_from_bytes` on.
    pub const fn new(kernels: &'static Kernels, streaming_from_bytes: usize) -> ExecutorSettings {
        ExecutorSettings { kernels, streaming_from_bytes: AtomicUsize::new(streaming_from_bytes) }
    }

    /// Returns the routines that the executors run.
    pub fn kernels(&self) -> &'static Kernels {
        self.kernels
    }

    /// Returns the smallest size that is written past the cache.
    pub fn streaming_from_bytes(&self) -> usize {
        self.streaming_from_bytes.load(Ordering::Relaxed)
    }

    /// Sets the smallest size that is written past the cache, for descriptors that have not started.
    pub fn stream_from(&self, bytes: usize) {
        self.streaming_from_bytes.store(bytes, Ordering::Relaxed);
    }
}

/// Operations that the software executors support.
pub(crate) const fn capabilities(queue_depth: u32) -> Capabilities {
    Capabilities::none(queue_depth)
        .with(Opcode::NOOP)
        .with(Opcode::BATCH)
        .with(Opcode::DRAIN)
        .with(Opcode::MEMMOVE)
        .with(Opcode::FILL)
        .with(Opcode::COMPARE)
        .with(Opcode::COMPARE_PATTERN)
        .with(Opcode::DELTA_CREATE)
        .with(Opcode::DELTA_APPLY)
        .with(Opcode::DUALCAST)
        .with(Opcode::TRANSLATION_FETCH)
        .with(Opcode::CRC)
        .with(Opcode::COPY_CRC)
        .with(Opcode::CACHE_FLUSH)
}
