// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Transfers run a framed chain block by block, so that they can stop after any block and continue later, also in another process.
//!
//! - **Flow** forward: block ──checksum, pack, seal──▶ record and stored bytes ──▶ target.
//!   Back: record and stored bytes ──▶ open ──▶ unpack ──▶ checksum ──▶ target.
//!   The block stays in the second-level cache from its first step to its last; memory is read once and written once.
//! - **Order** a `Progress` is valid between any two calls of `advance`: all blocks before it are complete in the target.
//! - **Owner** the transfer holds one slab of the scratch pool while it lives, and borrows the caller's buffers.
//! - **Failure** back: the blocks before a bad one were checked and stay in the target. Of the bad block nothing reaches the target,
//!   unless it was authenticated and still cannot be unpacked.

use crate::Key;
use crate::frame::{
    FLAG_CRC, FLAG_PACKED, FLAG_SEALED, HEADER_BYTES, Header, RECORD_AAD_BYTES, RECORD_BYTES, Record, blocks,
    nonce,
};
use crate::request::{Body, Chain, Packing, Plan};
use crate::scratch::{Lease, STAGE_BYTES, Slab};
use crate::store::store_stage;
use crate::{Decision, Error, Options, Outcome, Store, Transform};
use memlift_offload::Engine;
use memlift_spec::Format;
use std::marker::PhantomData;

/// Progress of a transfer: plain data that can be kept and given to [`Transfer::resume`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Blocks that are done.
    pub blocks: u64,
    /// Bytes of the source that were processed.
    pub source_bytes: u64,
    /// Bytes of the target that are complete.
    pub target_bytes: u64,
    /// Checksum of the plain bytes so far, if the chain has one.
    pub crc: u32,
}

/// A framed chain that is being run.
#[derive(Debug)]
pub struct Transfer<'a> {
    engine: &'a Engine,
    plan: Plan<'a>,
    header: Header,
    header_bytes: [u8; HEADER_BYTES],
    source: *const u8,
    source_bytes: usize,
    target: *mut u8,
    capacity: usize,
    lease: Lease<'a>,
    ordered: bool,
    decision: Decision,
    progress: Progress,
    buffers: PhantomData<(&'a [u8], &'a mut [u8])>,
}

// SAFETY: the pointers come from slices that the transfer borrows for `'a` (the source shared, the target uniquely), and slices
// may be sent.
unsafe impl Send for Transfer<'_> {}

/// Parts of a plan that the work on a block needs.
#[derive(Clone, Copy)]
struct Steps<'a> {
    forward: bool,
    code: Option<(Format, Packing)>,
    seal: Option<(&'a Key, [u8; 12], &'a [u8])>,
}

fn steps<'a>(plan: &Plan<'a>) -> Steps<'a> {
    match plan.body {
        Body::Copy => Steps { forward: true, code: None, seal: None },
        Body::Cipher { seals, key, nonce, aad, .. } => {
            Steps { forward: seals, code: None, seal: Some((key, nonce, aad)) }
        }
        Body::Pack { format, packing } => Steps { forward: true, code: Some((format, packing)), seal: None },
        Body::Unpack { format } => {
            Steps { forward: false, code: Some((format, Packing::Default)), seal: None }
        }
        Body::PackSeal { format, packing, key, nonce, aad } => {
            Steps { forward: true, code: Some((format, packing)), seal: Some((key, nonce, aad)) }
        }
        Body::OpenUnpack { format, key, nonce, aad, .. } => {
            Steps { forward: false, code: Some((format, Packing::Default)), seal: Some((key, nonce, aad)) }
        }
    }
}

impl<'a> Transfer<'a> {
    /// Begins a transfer at the first block.
    ///
    /// # Errors
    ///
    /// [`Error`] if the chain is not framed, the target is too small, the source has no header, or all scratch memory is in use.
    pub fn new(
        transform: &'a Transform,
        chain: &Chain<'a>,
        source: &'a [u8],
        target: &'a mut [u8],
        options: &Options,
    ) -> Result<Transfer<'a>, Error> {
        Transfer::resume(transform, chain, source, target, options, Progress::default())
    }

    /// Continues after the blocks that `progress` counts, with the same chain, source and target as before.
    ///
    /// # Errors
    ///
    /// The errors of [`new`](Transfer::new), and [`Error::Order`] if `progress` cannot belong to this chain and source.
    pub fn resume(
        transform: &'a Transform,
        chain: &Chain<'a>,
        source: &'a [u8],
        target: &'a mut [u8],
        options: &Options,
        progress: Progress,
    ) -> Result<Transfer<'a>, Error> {
        // SAFETY: both are slices that the transfer borrows for `'a`, so they outlive it.
        unsafe {
            let place = (source.as_ptr(), source.len(), target.as_mut_ptr(), target.len());
            Transfer::begin(transform, chain.plan, place, options, progress)
        }
    }

    /// # Safety
    ///
    /// While the transfer lives, the source is readable and the target writable, they do not overlap, and nobody else
    /// accesses them.
    pub(crate) unsafe fn begin(
        transform: &'a Transform,
        plan: Plan<'a>,
        (source, source_bytes, target, capacity): (*const u8, usize, *mut u8, usize),
        options: &Options,
        mut progress: Progress,
    ) -> Result<Transfer<'a>, Error> {
        let engine = transform.engine();
        let Some(block_bytes) = plan.block_bytes else {
            return Err(Error::Chain("a transfer needs a framed chain: make it with Chain::framed"));
        };
        let asked = steps(&plan);
        let header = if asked.forward {
            let needed = plan.bound(source_bytes).ok_or(Error::TooLong {
                bytes: source_bytes,
                most: u64::from(u32::MAX) * block_bytes as u64,
            })?;
            if capacity < needed {
                return Err(Error::TargetTooSmall { needed, has: capacity });
            }
            let stores_crc = plan.before.is_some() && asked.seal.is_none();
            Header {
                flags: if stores_crc { FLAG_CRC } else { 0 }
                    | if asked.code.is_some() { FLAG_PACKED } else { 0 }
                    | if asked.seal.is_some() { FLAG_SEALED } else { 0 },
                format: asked.code.map_or(0, |(format, _)| format as u8),
                block_bytes: block_bytes as u32,
                source_bytes: source_bytes as u64,
                blocks: blocks(source_bytes as u64, block_bytes as u64),
            }
        } else {
            // SAFETY: the slice has at most `source_bytes` bytes, which the caller guarantees to be readable.
            let front = unsafe { std::slice::from_raw_parts(source, source_bytes.min(HEADER_BYTES)) };
            let header = Header::from_bytes(engine, front)?;
            let sealed = header.flags & FLAG_SEALED != 0;
            let packed = header.flags & FLAG_PACKED != 0;
            let format = Format::from_code(header.format);
            let same = sealed == asked.seal.is_some()
                && packed == asked.code.is_some()
                && asked.code.is_none_or(|(asked, _)| format == Some(asked));
            if !same || header.flags & !(FLAG_CRC | FLAG_PACKED | FLAG_SEALED) != 0 {
                return Err(Error::Chain("the frames were made by other steps than this chain reverses"));
            }
            let needed = usize::try_from(header.source_bytes).map_err(|_| Error::Corrupt)?;
            if capacity < needed {
                return Err(Error::TargetTooSmall { needed, has: capacity });
            }
            header
        };
        if let Some((format, _)) = asked.code
            && !crate::codec::supported(format)
        {
            return Err(Error::Unsupported { format: format.name() });
        }
        let lease = transform.scratch().take(options.patience)?;
        let header_bytes = header.to_bytes(engine);
        if progress == Progress::default() {
            progress.crc = plan.before.or(plan.after).unwrap_or(0);
            if asked.forward {
                // SAFETY: the capacity was checked to be at least `HEADER_BYTES`, and the caller guarantees the target.
                unsafe { store_stage(engine, Store::Temporal, options.ordered, &header_bytes, target) };
                progress.target_bytes = HEADER_BYTES as u64;
            } else {
                progress.source_bytes = HEADER_BYTES as u64;
            }
        }
        let plain = progress.blocks.saturating_mul(u64::from(header.block_bytes)).min(header.source_bytes);
        let (plain_at, framed_at, framed_bytes) = if asked.forward {
            (progress.source_bytes, progress.target_bytes, capacity)
        } else {
            (progress.target_bytes, progress.source_bytes, source_bytes)
        };
        let framed_least =
            progress.blocks.saturating_mul(RECORD_BYTES as u64).saturating_add(HEADER_BYTES as u64);
        if progress.blocks > header.blocks
            || plain_at != plain
            || framed_at < framed_least
            || framed_at > framed_bytes as u64
            || framed_at > framed_least.saturating_add(plain)
        {
            return Err(Error::Order("this progress is not of this chain and source: begin anew"));
        }
        // SAFETY: the caller guarantees a readable source and a writable target of these lengths; writable pages can also be
        // read.
        let decision = unsafe { transform.decide(&plan, options, (source, source_bytes, target, capacity)) };
        Ok(Transfer {
            engine,
            plan,
            header,
            header_bytes,
            source,
            source_bytes,
            target,
            capacity,
            lease,
            ordered: options.ordered,
            decision,
            progress,
            buffers: PhantomData,
        })
    }

    /// Returns the progress so far.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Returns true if all blocks are done.
    pub fn is_finished(&self) -> bool {
        self.progress.blocks == self.header.blocks
    }

    /// Works on up to `blocks` more blocks; returns true if all are done.
    ///
    /// # Errors
    ///
    /// [`Error`] of the first block that failed; the progress stays at the blocks before it.
    pub fn advance(&mut self, blocks: u64) -> Result<bool, Error> {
        let asked = steps(&self.plan);
        for _ in 0..blocks {
            if self.is_finished() {
                break;
            }
            let (read, written, crc) =
                if asked.forward { self.frame_block(&asked)? } else { self.unframe_block(&asked)? };
            self.progress = Progress {
                blocks: self.progress.blocks + 1,
                source_bytes: self.progress.source_bytes + read as u64,
                target_bytes: self.progress.target_bytes + written as u64,
                crc,
            };
        }
        Ok(self.is_finished())
    }

    /// Returns the result after all blocks are done.
    ///
    /// # Errors
    ///
    /// [`Error::Order`] if blocks are left.
    pub fn finish(self) -> Result<Outcome, Error> {
        if !self.is_finished() {
            return Err(Error::Order("not all blocks are done: advance first"));
        }
        let checks = self.plan.before.is_some() || self.plan.after.is_some();
        Ok(Outcome {
            read: self.progress.source_bytes as usize,
            written: self.progress.target_bytes as usize,
            tag: None,
            crc: checks.then_some(self.progress.crc),
            crc_after: None,
            decision: self.decision,
        })
    }

    fn join_aad<'b>(room: &'b mut Vec<u8>, header: &[u8], record: &[u8], aad: &[u8]) -> &'b [u8] {
        room.clear();
        room.extend_from_slice(header);
        room.extend_from_slice(&record[..RECORD_AAD_BYTES]);
        room.extend_from_slice(aad);
        room
    }

    fn frame_block(&mut self, asked: &Steps<'_>) -> Result<(usize, usize, u32), Error> {
        let number = self.progress.blocks;
        let last = number + 1 == self.header.blocks;
        let plain = self.header.plain_bytes(number);
        let framed = self.progress.target_bytes as usize;
        if self.capacity - framed < RECORD_BYTES + plain {
            return Err(Error::TargetTooSmall { needed: framed + RECORD_BYTES + plain, has: self.capacity });
        }
        let Slab { stage, beside, aad: aad_room, codec } = &mut *self.lease;
        let crc32c = self.engine.kernels().crc32c;
        // SAFETY: the block lies in the source (its size was computed from the source's length) and fits into the target (checked
        // above); the caller of `begin` guarantees that nobody else accesses them. The record is written before the block.
        unsafe {
            let mut from = self.source.add(self.progress.source_bytes as usize);
            let target = self.target.add(framed);
            if self.decision.store == Store::Isolated {
                // The source is read once, past the outer caches; every later step reads the private copy.
                crate::store::load_stage(self.engine, self.decision.store, from, &mut beside[..plain]);
                from = beside.as_ptr();
            }
            let block = std::slice::from_raw_parts(from, plain);
            let sum = |wanted: bool, seed| if wanted { crc32c(block.as_ptr(), plain, seed) } else { 0 };
            let stores = self.header.flags & FLAG_CRC != 0;
            let checks = self.plan.before.is_some() || self.plan.after.is_some();
            let (crc, of_block) = (sum(checks, self.progress.crc), sum(stores, 0));
            let mut stored = plain;
            if let Some((format, packing)) = asked.code {
                // A block that does not get smaller is stored unpacked.
                let effort = packing.effort(self.decision.contended);
                let room = &mut stage[..STAGE_BYTES];
                stored = match codec.pack(format, effort, block, room) {
                    Ok(packed) if packed < plain => packed,
                    _ => plain,
                };
            }
            let packed = stored < plain;
            let mut record = Record {
                number: number as u32,
                plain_bytes: plain as u32,
                stored_bytes: stored as u32,
                crc: of_block,
                tag: [0; 16],
            };
            let body = target.add(RECORD_BYTES);
            let direct = self.decision.store == Store::Temporal && !self.ordered;
            let from = if packed { stage.as_ptr() } else { block.as_ptr() };
            if let Some((key, of_message, aad)) = asked.seal {
                let aad = Transfer::join_aad(aad_room, &self.header_bytes, &record.to_bytes(), aad);
                let nonce = nonce(of_message, number, last);
                // Seals in place in the stage, or from the block into the stage if nothing was packed.
                let key = key.expanded();
                let streams = self.decision.store == Store::Streaming && !self.ordered && key.streams();
                let to = if direct || streams { body } else { stage.as_mut_ptr() };
                record.tag = if streams {
                    key.seal_streaming(&nonce, aad, from, to, stored)?
                } else {
                    key.try_seal(&nonce, aad, from, to, stored)?
                };
                if !direct && !streams {
                    store_stage(self.engine, self.decision.store, self.ordered, &record.to_bytes(), target);
                    store_stage(self.engine, self.decision.store, self.ordered, &stage[..stored], body);
                } else {
                    store_stage(self.engine, Store::Temporal, false, &record.to_bytes(), target);
                }
            } else {
                let bytes = std::slice::from_raw_parts(from, stored);
                store_stage(self.engine, Store::Temporal, self.ordered, &record.to_bytes(), target);
                store_stage(self.engine, self.decision.store, self.ordered, bytes, body);
            }
            Ok((plain, RECORD_BYTES + stored, crc))
        }
    }

    fn unframe_block(&mut self, asked: &Steps<'_>) -> Result<(usize, usize, u32), Error> {
        let number = self.progress.blocks;
        let last = number + 1 == self.header.blocks;
        let framed = self.progress.source_bytes as usize;
        let Slab { stage, beside, aad: aad_room, codec } = &mut *self.lease;
        let crc32c = self.engine.kernels().crc32c;
        // SAFETY: reads lie in the source (checked against its end before each read) and writes in the target (`begin` checked
        // that all plain bytes fit); the caller of `begin` guarantees that nobody else accesses them.
        unsafe {
            let left = std::slice::from_raw_parts(self.source.add(framed), self.source_bytes - framed);
            let record = Record::from_bytes(left, &self.header, number)?;
            let (plain, stored) = (record.plain_bytes as usize, record.stored_bytes as usize);
            let body = left.get(RECORD_BYTES..RECORD_BYTES + stored).ok_or(Error::Corrupt)?;
            let target = self.target.add(self.progress.target_bytes as usize);
            let packed = stored < plain;
            let direct = self.decision.store == Store::Temporal && !self.ordered;
            let mut from: *const u8 = body.as_ptr();
            if self.decision.store == Store::Isolated {
                crate::store::load_stage(self.engine, self.decision.store, from, &mut stage[..stored]);
                from = stage.as_ptr();
            }
            if let Some((key, of_message, aad)) = asked.seal {
                let aad = Transfer::join_aad(aad_room, &self.header_bytes, &record.to_bytes(), aad);
                let nonce = nonce(of_message, number, last);
                let opened = key.expanded().open(&nonce, aad, &record.tag, from, stage.as_mut_ptr(), stored);
                opened.map_err(|_| Error::WrongTag)?;
                from = stage.as_ptr();
            }
            let from = std::slice::from_raw_parts(from, stored);
            let mut plain_at: *const u8 = from.as_ptr();
            if let Some((format, _)) = asked.code.filter(|_| packed) {
                // Unpacks directly into the target only with ordinary stores, and only if the block was authenticated, so that
                // its stream is known to be sound.
                let to: &mut [u8] = if direct && asked.seal.is_some() {
                    std::slice::from_raw_parts_mut(target, plain)
                } else {
                    &mut beside[..plain]
                };
                let done = codec.unpack(format, from, to).map_err(|_| Error::Corrupt)?;
                if done.written != plain || done.read != stored {
                    return Err(Error::Corrupt);
                }
                plain_at = to.as_ptr();
            }
            let block = std::slice::from_raw_parts(plain_at, plain);
            let checks = self.plan.before.is_some() || self.plan.after.is_some();
            let stores = self.header.flags & FLAG_CRC != 0;
            if stores && crc32c(block.as_ptr(), plain, 0) != record.crc {
                return Err(Error::Checksum { block: number });
            }
            let crc = if checks { crc32c(block.as_ptr(), plain, self.progress.crc) } else { 0 };
            if plain_at != target.cast_const() {
                store_stage(self.engine, self.decision.store, self.ordered, block, target);
            }
            Ok((RECORD_BYTES + stored, plain, crc))
        }
    }
}
