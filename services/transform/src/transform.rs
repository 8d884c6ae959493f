// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The service itself: engine, scratch pool and placement under one roof, and the call that everything goes through.
//!
//! - **Flow** op ──▶ plan ──▶ sizes, overlaps ──▶ placement ──▶ flat run, or framed transfer to its end ──▶ learnt
//! - **Owner** one per process (`global`) is enough; others have pools and measurements of their own
//! - **Not here** what each step does (`flat`, `transfer`)

use crate::adapt::{Adapt, Decision, Explanation, Message};
use crate::flat::{Place, Run};
use crate::request::{Body, Plan};
use crate::scratch::Scratch;
use crate::transfer::{Progress, Transfer};
use crate::{Error, Op, Options, Outcome, ScratchStats};
use memlift_ground::config::{Config, TransformConfig};
use memlift_ground::observe::now_ns;
use memlift_offload::Engine;
use memlift_place::Cache;
use memlift_spec::Opcode;
use std::sync::OnceLock;

/// Transforms, with a scratch pool and placement of its own.
#[derive(Debug)]
pub struct Transform {
    engine: &'static Engine,
    scratch: Scratch,
    adapt: Adapt,
}

/// The opcode that a plan is counted as.
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
    /// Makes a service with settings of its own.
    pub fn new(engine: &'static Engine, settings: &TransformConfig) -> Transform {
        Transform {
            engine,
            scratch: Scratch::new(usize::try_from(settings.scratch_bytes).unwrap_or(usize::MAX)),
            adapt: Adapt::new(settings),
        }
    }

    /// The process-wide one, configured by `memlift.toml` and `MEMLIFT_*` (defaults where they cannot be used).
    pub fn global() -> &'static Transform {
        static GLOBAL: OnceLock<Transform> = OnceLock::new();
        GLOBAL.get_or_init(|| {
            let config = Config::load().unwrap_or_else(|_| Config::defaults());
            Transform::new(Engine::global(), &config.transform)
        })
    }

    /// The engine whose kernels it uses.
    pub fn engine(&self) -> &'static Engine {
        self.engine
    }

    pub(crate) fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Placement of messages, with all that it has learned.
    pub fn adapt(&self) -> &Adapt {
        &self.adapt
    }

    /// Counters of the scratch pool.
    pub fn scratch_stats(&self) -> ScratchStats {
        self.scratch.stats()
    }

    /// Returns the inputs of a decision about such a message, as they are now.
    pub fn explain(&self, opcode: Opcode, bytes: usize) -> Explanation {
        self.adapt.explain(opcode, bytes)
    }

    /// Does `op` while it copies `source` to the start of `target`.
    ///
    /// # Errors
    ///
    /// [`Error`]. Nothing behind the target's end is ever written; a wrong tag leaves zeros.
    pub fn copy<'a>(
        &self,
        op: impl Into<Op<'a>>,
        source: &[u8],
        target: &mut [u8],
    ) -> Result<Outcome, Error> {
        self.copy_with(op, source, target, &Options::default())
    }

    /// As [`copy`](Transform::copy), with options.
    ///
    /// # Errors
    ///
    /// As [`copy`](Transform::copy).
    pub fn copy_with<'a>(
        &self,
        op: impl Into<Op<'a>>,
        source: &[u8],
        target: &mut [u8],
        options: &Options,
    ) -> Result<Outcome, Error> {
        // SAFETY: both are slices of these lengths.
        unsafe {
            self.copy_raw(op, (source.as_ptr(), source.len()), (target.as_mut_ptr(), target.len()), options)
        }
    }

    /// As [`copy_with`](Transform::copy_with), on addresses. Sealing, opening and copying also work in place (source equal to
    /// target).
    ///
    /// # Errors
    ///
    /// As [`copy`](Transform::copy), and [`Error::Overlap`].
    ///
    /// # Safety
    ///
    /// The source is readable and the target writable for their bytes, and nobody else changes either meanwhile: copy bytes
    /// that another process can change to private memory first.
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
            // Nothing moves; a checksum may be wanted all the same.
            let decision = self.told_nothing();
            // SAFETY: the source is readable for `bytes`, as the caller vouches.
            let crc = plan.before.map(|seed| unsafe { (self.engine.kernels().crc32c)(source, bytes, seed) });
            return Ok(Outcome { read: bytes, written: bytes, tag: None, crc, crc_after: None, decision });
        }
        if plan.block_bytes.is_some() {
            // SAFETY: the caller vouches for source and target, which were found apart.
            return unsafe { self.run_framed(plan, (source, bytes, target, capacity), options) };
        }
        let message = message(&plan, options, (source, bytes, target, capacity));
        // SAFETY: the caller vouches for source and target (writable pages are readable, too); sizes and overlaps were checked.
        unsafe {
            let start_ns = now_ns();
            let decision = self.adapt.decide(self.engine, &message, start_ns);
            let run = Run { engine: self.engine, scratch: &self.scratch, options, decision };
            let outcome = run.run(&plan, Place { source, bytes, target, capacity });
            let outcome = outcome.inspect_err(|_| self.adapt.refused(&message, start_ns, now_ns()))?;
            self.adapt.learn(&message, &decision, start_ns, now_ns());
            Ok(outcome)
        }
    }

    fn told_nothing(&self) -> Decision {
        Decision {
            store: crate::Store::Temporal,
            cache: memlift_ground::observe::CacheState::Unknown,
            contended: false,
            why: crate::adapt::Why::Small,
            predicted_ns: 0.0,
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
        // SAFETY: the caller vouches for source and target, and has found them apart.
        let mut transfer = unsafe { Transfer::begin(self, plan, place, options, Progress::default())? };
        if let Err(error) = transfer.advance(u64::MAX) {
            if error == Error::WrongTag {
                // Blocks that were verified before the wrong one go, too: a message is whole or nothing.
                let written = transfer.progress().target_bytes as usize;
                // SAFETY: these bytes of the target were written.
                unsafe { (self.engine.kernels().fill)(place.2, 0, written) };
            }
            self.adapt.refused(&message, start_ns, now_ns());
            return Err(error);
        }
        let outcome = transfer.finish()?;
        self.adapt.learn(&message, &outcome.decision, start_ns, now_ns());
        Ok(outcome)
    }

    /// # Safety
    ///
    /// Source and target are readable for their bytes.
    pub(crate) unsafe fn decide(
        &self,
        plan: &Plan<'_>,
        options: &Options,
        place: (*const u8, usize, *mut u8, usize),
    ) -> Decision {
        let message = message(plan, options, place);
        // SAFETY: source and target are readable for their bytes, as the caller vouches.
        unsafe { self.adapt.decide(self.engine, &message, now_ns()) }
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

/// Does `op` while it copies `source` to the start of `target`, with the process's own [`Transform`].
///
/// # Errors
///
/// As [`Transform::copy`].
pub fn copy<'a>(op: impl Into<Op<'a>>, source: &[u8], target: &mut [u8]) -> Result<Outcome, Error> {
    Transform::global().copy(op, source, target)
}
