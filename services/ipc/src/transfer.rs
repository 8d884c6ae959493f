// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Transfers: outgoing data is copied, packed, to where the other process will see it.
//!
//! - **Flow** `Outgoing` ──range, rows or parts──▶ target; the CRC on the way, where the data is one range, else from the target
//! - **Order** a range may be cut in two, so that the receiver is woken while its last part is copied
//! - **Lost** a device that stops answering may write to its target later: the caller then never reuses that target
//! - **Not here** choosing the target, and telling the other process
#![expect(unsafe_code, reason = "copies between this process's arrays and memory shared with a peer")]

use crate::message::{Message, Shape, Tensor};
use crate::payload::Outgoing;
use memlift_ground::observe::Executor;
use memlift_offload::{Engine, Lost};
use memlift_place::{Cache, Reason};

/// Executor and stores with which a range is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    /// As the engine's cost model places it, with what is known of the buffers.
    Placed(Cache),
    /// As the engine's cost model places it, to learn what that costs.
    Tried(Cache, Reason),
    /// By this executor, for this reason.
    Told { by: Executor, streams: bool, why: Reason },
}

/// How a payload is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Transfer {
    pub how: How,
    pub crc: bool,
}

/// Most bytes that are copied between two checks whether to go on: about ten milliseconds.
const PIECE_BYTES: usize = 32 << 20;

/// Why a copy was not finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unfinished {
    /// See [`Lost`].
    Lost,
    /// It is not wanted any more.
    Stopped,
}

impl How {
    /// Returns the choice as a cache hint, for copies that have no choice of executors.
    fn hint(self) -> Cache {
        match self {
            How::Placed(cache) | How::Tried(cache, _) => cache,
            How::Told { streams: true, .. } => Cache::Cold,
            How::Told { streams: false, .. } => Cache::Hot,
        }
    }
}

impl Transfer {
    /// Placed by the engine, without a CRC.
    pub const PLAIN: Transfer = Transfer { how: How::Placed(Cache::Auto), crc: false };

    /// Copies one range. Gives its CRC, continued from `seed`, if a CRC is wanted; else 0.
    ///
    /// # Safety
    ///
    /// `source` is readable and `target` writable for `bytes`, and they do not overlap. After [`Lost`] as for [`Engine::copy_with`].
    unsafe fn range(self, target: *mut u8, source: *const u8, bytes: usize, seed: u32) -> Result<u32, Lost> {
        let engine = Engine::global();
        // SAFETY: both ranges have `bytes` bytes and are apart, as the caller vouches; after [`Lost`] it does not reuse the
        // target.
        unsafe {
            match self.how {
                _ if self.crc => {
                    return Ok(engine.copy_crc32c_raw(target, source, bytes, seed, self.how.hint()));
                }
                How::Placed(cache) => engine.copy_raw(target, source, bytes, cache),
                How::Tried(cache, why) => engine.copy_raw_because(target, source, bytes, cache, why),
                How::Told { by, streams, why } => {
                    engine.copy_with_because(target, source, bytes, by, streams, why)?;
                }
            }
        }
        Ok(0)
    }
}

/// CRC-32C of bytes that lie in shared memory.
///
/// # Safety
///
/// `pointer` is readable for `bytes`.
pub(crate) unsafe fn crc_of(pointer: *const u8, bytes: u64) -> u32 {
    // SAFETY: the caller vouches that `pointer` is readable for `bytes`.
    unsafe { Engine::global().crc32c_raw(pointer, bytes as usize, 0) }
}

impl Outgoing<'_> {
    /// As [`copy_to`](Outgoing::copy_to), and runs `nearly` when only the last `tail` bytes are left to copy: before the copy, if
    /// there are no more than those or if the data is not contiguous. Gives up if `stop` gives true, which is asked between two
    /// pieces of a long range.
    ///
    /// # Safety
    ///
    /// As for [`copy_to`](Outgoing::copy_to).
    pub(crate) unsafe fn copy_to_then(
        &self,
        target: *mut u8,
        transfer: Transfer,
        tail: u64,
        nearly: impl FnOnce(),
        stop: impl Fn() -> bool,
    ) -> Result<Option<u32>, Unfinished> {
        if !self.is_contiguous() || self.bytes() <= tail {
            nearly();
            // SAFETY: the target is writable for the data's bytes and apart from them, as the caller vouches.
            return unsafe { self.copy_to(target, transfer) }.map_err(|Lost| Unfinished::Lost);
        }
        let head = (self.bytes() - tail) as usize;
        let (mut done, mut crc) = (0, 0);
        while done < head {
            if done > 0 && stop() {
                return Err(Unfinished::Stopped);
            }
            // The rest is cut into equal pieces of at most PIECE_BYTES.
            let piece = (head - done).div_ceil((head - done).div_ceil(PIECE_BYTES));
            // SAFETY: `done` and the piece lie within the bytes that the caller and the constructor's caller vouch for.
            crc = unsafe { transfer.range(target.add(done), self.source().add(done), piece, crc) }
                .map_err(|Lost| Unfinished::Lost)?;
            done += piece;
        }
        nearly();
        // SAFETY: head and tail together are the bytes that the caller and the constructor's caller vouch for.
        let crc = unsafe { transfer.range(target.add(head), self.source().add(head), tail as usize, crc) }
            .map_err(|Lost| Unfinished::Lost)?;
        Ok(transfer.crc.then_some(crc))
    }

    /// As [`copy_to`](Outgoing::copy_to), by this process's cores: where a device is told to copy, the calling thread does.
    ///
    /// # Safety
    ///
    /// `target` is writable for as many bytes as it has and does not overlap the source.
    pub(crate) unsafe fn copy_here(&self, target: *mut u8, transfer: Transfer) -> Option<u32> {
        let how = match transfer.how {
            How::Told { by: Executor::Idxd, streams, why } => {
                How::Told { by: Executor::InlineTemporal, streams, why }
            }
            how => how,
        };
        // SAFETY: the target is writable for the data's bytes and apart from them, as the caller vouches.
        unsafe { self.copy_to(target, Transfer { how, ..transfer }) }.expect("no device copies")
    }

    /// Copies data that fits into the message itself to there. Gives the CRC, if that is wanted; `None`: it does not fit.
    pub(crate) fn embed(&self, message: &mut Message, crc: bool) -> Option<Option<u32>> {
        let place = message.embed(self.shape(), self.bytes())?;
        if self.is_contiguous() && !crc {
            // SAFETY: the source is readable for its bytes, by the constructor's contract; the place is as long, in memory of this
            // process that nobody else uses.
            unsafe { std::ptr::copy_nonoverlapping(self.source(), place.as_mut_ptr(), place.len()) };
            return Some(None);
        }
        // SAFETY: the place is as long as the data, in memory of this process that nobody else uses.
        Some(unsafe { self.copy_here(place.as_mut_ptr(), Transfer { crc, ..Transfer::PLAIN }) })
    }

    /// Copies it, packed, to `target`. Gives the CRC of all of it, if that is wanted.
    ///
    /// # Safety
    ///
    /// `target` is writable for as many bytes as it has and does not overlap the source. After [`Lost`] as for
    /// [`Engine::copy_with`].
    pub(crate) unsafe fn copy_to(&self, target: *mut u8, transfer: Transfer) -> Result<Option<u32>, Lost> {
        if self.bytes() == 0 {
            return Ok(transfer.crc.then_some(0));
        }
        if self.is_contiguous() {
            // SAFETY: the constructor's caller vouches for the source, ours for the target.
            let crc = unsafe { transfer.range(target, self.source(), self.bytes() as usize, 0)? };
            return Ok(transfer.crc.then_some(crc));
        }
        let plain = Transfer { crc: false, ..transfer };
        for (at, part) in self.parts() {
            // SAFETY: the constructor checked that every part lies within the bytes that the caller vouches for.
            unsafe { part.copy_to(target.add(*at as usize), plain)? };
        }
        if let (Some(strides), Shape::Tensor(tensor)) = (self.strides(), self.shape()) {
            // SAFETY: the constructor's caller vouches for the source, ours for the target.
            unsafe { gather(target, self.source(), tensor, strides, transfer.how.hint()) };
        }
        // SAFETY: the target has that many bytes, and they were written above or before.
        Ok(transfer.crc.then(|| unsafe { crc_of(target, self.bytes()) }))
    }
}

/// Packs a strided array: the inner dimensions that are contiguous form a row, the next one outside them is one
/// strided copy of the engine, and the rest is counted through.
///
/// # Safety
///
/// As for [`Outgoing::copy_to`].
unsafe fn gather(target: *mut u8, source: *const u8, tensor: &Tensor, strides: &[i64], cache: Cache) {
    let shape = tensor.shape();
    let mut row_bytes = i64::from(tensor.element().bytes);
    let mut inner = shape.len();
    while inner > 0 && (shape[inner - 1] == 1 || strides[inner - 1] == row_bytes) {
        inner -= 1;
        row_bytes *= shape[inner] as i64;
    }
    // Not contiguous, so at least one dimension is left: it gives the rows of one strided copy.
    let Some(rows_at) = inner.checked_sub(1) else { return };
    let (rows, stride) = (shape[rows_at], strides[rows_at]);
    let block = rows as i64 * row_bytes;
    let mut index = vec![0u64; rows_at];
    let mut target = target;
    loop {
        let offset: i64 = index.iter().zip(strides).map(|(&i, &stride)| i as i64 * stride).sum();
        // SAFETY: every index is below its extent, so the rows are part of the array, and the blocks written so far
        // plus this one are at most the tensor's bytes.
        unsafe {
            Engine::global().copy_strided_raw(
                target,
                source.offset(offset as isize),
                rows as usize,
                row_bytes as usize,
                stride,
                cache,
            );
            target = target.add(block as usize);
        }
        let Some(axis) = (0..rows_at).rev().find(|&axis| index[axis] + 1 < shape[axis]) else { return };
        index[axis] += 1;
        index[axis + 1..].fill(0);
    }
}
