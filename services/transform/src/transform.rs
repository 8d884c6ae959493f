// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The service: an engine, a scratch pool and the placement, and the call that every transform goes through.
//!
//! - **Flow** an operation becomes a plan; sizes and overlaps are checked; placement decides; a flat chain is run, or a framed transfer
//!   to its end; placement learns from the time taken.
//! - **Owner** one instance per process (`global`) is enough; each further instance has its own pool and measurements.
//! - **Not here** the work of each step (`flat`, `transfer`).

use crate::flat::{FlatRun, Place};
use crate::request::{Body, Plan};
use crate::scratch::Scratch;
use crate::transfer::{Progress, Transfer};
use crate::{Decision, Error, Explanation, Op, Options, Outcome, ScratchStats};
use memlift_ground::config::{Config, TransformConfig};
use memlift_ground::observe::now_ns;
use memlift_offload::Engine;
use memlift_place::{Cache, Message, MessagePlacer};
use memlift_spec::Opcode;
use std::sync::OnceLock;

/// The transform service, with its own scratch pool and placement.
#[derive(Debug)]
pub struct Transform {
    engine: &'static Engine,
    scratch: Scratch,
    messages: MessagePlacer,
}

/// Returns the opcode that statistics count a plan as.
fn opcode(plan: &Plan<'_>) -> Opcode {
    match plan.body {
        Body::Copy if plan.before.is_some() => Opcode::COPY_CRC,
        Body::Copy => Opcode::MEMMOVE,
        Body::Cipher { seals: true, .. } => Opcode::SEAL,
        Body::Cipher { seals: false, .. } => Opcode::OPEN,
        Body::Pack { .. } | Body::PackSeal { .. } => Opcode::PACK,
        Body::Unpack { .. } | Body::OpenUnpack { .. } => Opcode::UNPACK,
    }
}

fn overlap(a: usize, a_bytes: usize, b: usize, b_bytes: usize) -> bool {
    a_bytes > 0 && b_bytes > 0 && a < b.saturating_add(b_bytes) && b < a.saturating_add(a_bytes)
}

impl Transform {
    /// Creates a service with its own settings.
    pub fn new(engine: &'static Engine, settings: &TransformConfig) -> Transform {
        Transform {
            engine,
            scratch: Scratch::new(usize::try_from(settings.scratch_bytes).unwrap_or(usize::MAX)),
            messages: MessagePlacer::new(settings),
        }
    }

    /// Returns the process-wide service, configured by `memlift.toml` and `MEMLIFT_*` (defaults if these cannot be used).
    pub fn global() -> &'static Transform {
        static GLOBAL: OnceLock<Transform> = OnceLock::new();
        GLOBAL.get_or_init(|| {
            let config = Config::load().unwrap_or_else(|_| Config::defaults());
            Transform::new(Engine::global(), &config.transform)
        })
    }

    /// Returns the engine whose kernels are used.
    pub fn engine(&self) -> &'static Engine {
        self.engine
    }

    pub(crate) fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Returns the counters of the scratch pool.
    pub fn scratch_stats(&self) -> ScratchStats {
        self.scratch.stats()
    }

    /// Returns the inputs of a decision about a message of this opcode and size, as they are now.
    pub fn explain(&self, opcode: Opcode, bytes: usize) -> Explanation {
        self.messages.explain(opcode, bytes)
    }

    /// Copies `source` to the start of `target` and does `op` on the way.
    ///
    /// # Errors
    ///
    /// [`Error`]. Nothing behind the target's end is ever written; after a wrong tag the target holds zeros.
    pub fn copy<'a>(
        &self,
        op: impl Into<Op<'a>>,
        source: &[u8],
        target: &mut [u8],
    ) -> Result<Outcome, Error> {
        self.copy_with(op, source, target, &Options::default())
    }

    /// Does the same as [`copy`](Transform::copy), with options.
    ///
    /// # Errors
    ///
    /// The errors of [`copy`](Transform::copy).
    pub fn copy_with<'a>(
        &self,
        op: impl Into<Op<'a>>,
        source: &[u8],
        target: &mut [u8],
        options: &Options,
    ) -> Result<Outcome, Error> {
        // SAFETY: pointers and lengths are those of two slices that are borrowed during the call.
        unsafe {
            self.copy_raw(op, (source.as_ptr(), source.len()), (target.as_mut_ptr(), target.len()), options)
        }
    }

    /// Does the same as [`copy_with`](Transform::copy_with) on raw addresses. Sealing, opening and copying also work in place
    /// (source equal to target).
    ///
    /// # Errors
    ///
    /// The errors of [`copy`](Transform::copy), and [`Error::Overlap`].
    ///
    /// # Safety
    ///
    /// The source is readable and the target writable for their lengths, and nobody else changes either during the call. Bytes
    /// that another process can change must be copied to private memory first.
    pub unsafe fn copy_raw<'a>(
        &self,
        op: impl Into<Op<'a>>,
        source: (*const u8, usize),
        target: (*mut u8, usize),
        options: &Options,
    ) -> Result<Outcome, Error> {
        let plan = op.into().plan();
        let ((source, bytes), (target, capacity)) = (source, target);
        let keeps_size = matches!(plan.body, Body::Copy | Body::Cipher { .. }) && plan.block_bytes.is_none();
        let written = if keeps_size { bytes } else { capacity };
        let in_place = keeps_size && source.addr() == target.addr();
        if !in_place && overlap(source.addr(), bytes, target.addr(), written) {
            return Err(Error::Overlap);
        }
        if keeps_size && capacity < bytes {
            return Err(Error::TargetTooSmall { needed: bytes, has: capacity });
        }
        if in_place && matches!(plan.body, Body::Copy) {
            // Nothing is moved, but a checksum may have been requested.
            let decision = Decision::SMALL;
            // SAFETY: the caller guarantees that the source is readable for `bytes`.
            let crc = plan.before.map(|seed| unsafe { (self.engine.kernels().crc32c)(source, bytes, seed) });
            return Ok(Outcome { read: bytes, written: bytes, tag: None, crc, crc_after: None, decision });
        }
        if plan.block_bytes.is_some() {
            // SAFETY: the caller guarantees source and target; they were checked not to overlap.
            return unsafe { self.run_framed(plan, (source, bytes, target, capacity), options) };
        }
        let message = message(&plan, options, (source, bytes, target, capacity));
        // SAFETY: the caller guarantees source and target (writable pages are readable, too); sizes and overlaps were checked.
        unsafe {
            let start_ns = now_ns();
            let decision = self.messages.decide(self.engine.placer(), &message, start_ns);
            let run = FlatRun { engine: self.engine, scratch: &self.scratch, options, decision };
            let outcome = run.run(&plan, Place { source, bytes, target, capacity });
            let outcome = outcome.inspect_err(|_| self.messages.refused(&message, start_ns, now_ns()))?;
            self.messages.learn(&message, &decision, start_ns, now_ns());
            Ok(outcome)
        }
    }

    unsafe fn run_framed(
        &self,
        plan: Plan<'_>,
        place: (*const u8, usize, *mut u8, usize),
        options: &Options,
    ) -> Result<Outcome, Error> {
        let message = message(&plan, options, place);
        let start_ns = now_ns();
        // SAFETY: the caller guarantees source and target, and has checked that they do not overlap.
        let mut transfer = unsafe { Transfer::begin(self, plan, place, options, Progress::default())? };
        if let Err(error) = transfer.advance(u64::MAX) {
            if error == Error::WrongTag {
                // Blocks that were verified before the wrong one are zeroed, too, so the target has the whole message or nothing.
                let written = transfer.progress().target_bytes as usize;
                // SAFETY: `written` bytes of the target were written by the transfer, so they are within its capacity.
                unsafe { (self.engine.kernels().fill)(place.2, 0, written) };
            }
            self.messages.refused(&message, start_ns, now_ns());
            return Err(error);
        }
        let outcome = transfer.finish()?;
        self.messages.learn(&message, &outcome.decision, start_ns, now_ns());
        Ok(outcome)
    }

    /// # Safety
    ///
    /// Source and target are readable for their lengths.
    pub(crate) unsafe fn decide(
        &self,
        plan: &Plan<'_>,
        options: &Options,
        place: (*const u8, usize, *mut u8, usize),
    ) -> Decision {
        let message = message(plan, options, place);
        // SAFETY: the caller guarantees that source and target are readable for their lengths.
        unsafe { self.messages.decide(self.engine.placer(), &message, now_ns()) }
    }
}

fn message(
    plan: &Plan<'_>,
    options: &Options,
    (source, bytes, target, capacity): (*const u8, usize, *mut u8, usize),
) -> Message {
    let cache = if options.ordered { Cache::Hot } else { options.cache };
    Message { opcode: opcode(plan), bytes, source, target, target_bytes: capacity, cache }
}

/// Copies `source` to the start of `target` and does `op` on the way, with the process-wide [`Transform`].
///
/// # Errors
///
/// The errors of [`Transform::copy`].
pub fn copy<'a>(op: impl Into<Op<'a>>, source: &[u8], target: &mut [u8]) -> Result<Outcome, Error> {
    Transform::global().copy(op, source, target)
}
