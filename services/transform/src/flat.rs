// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs flat chains: writes the same bytes as the steps one after the other, in one pass if the size does not change.
//!
//! - **Flow** sealing, opening, checking: each block of 64 KiB goes through checksum, cipher and checksum to the target, and stays in
//!   cache from the first step to the last.
//!   Packing: the whole message at once; then it is sealed in place. Unpacking: the message is opened into scratch memory, then unpacked.
//! - **Order** ordered and isolated stores go through a private stage, and so do streaming stores if the cipher has no instructions for
//!   them; otherwise the kernel writes to the target directly.
//! - **Owner** source and target belong to the caller, who guarantees their lengths; staged bytes lie in a slab of the scratch pool.
//! - **Failure** a message opened with a wrong tag leaves zeros; nothing is written behind the capacity.
//!
//! If a message that is packed and then sealed is larger than a stage, the target holds the packed, unsealed bytes for a moment.

use crate::request::{Body, Packing, Plan};
use crate::scratch::{STAGE_BYTES, Scratch, Slab};
use crate::store::{copy_through, load_stage, prefetch_near, store_stage};
use crate::{Decision, Error, Options, Outcome, Store};
use memlift_kernels::aead::{Key, MESSAGE_BYTES_MAX, Stream, tags_equal};
use memlift_offload::Engine;
use memlift_spec::Format;

/// Bytes that go through all steps at once, so that they stay in cache.
const BLOCK_BYTES: usize = 64 * 1024;
/// Isolated messages up to this size are prefetched whole into the first-level cache.
const NEAR_BYTES: usize = 16 * 1024;

/// Source and target of the caller.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub source: *const u8,
    pub bytes: usize,
    pub target: *mut u8,
    pub capacity: usize,
}

/// Everything a run needs besides its plan.
#[derive(Clone, Copy)]
pub(crate) struct FlatRun<'a> {
    pub engine: &'a Engine,
    pub scratch: &'a Scratch,
    pub options: &'a Options,
    pub decision: Decision,
}

/// The cipher step: seals or opens a message.
#[derive(Clone, Copy)]
struct Cipher<'a> {
    seals: bool,
    key: &'a Key,
    nonce: [u8; 12],
    aad: &'a [u8],
    tag: [u8; 16],
}

impl FlatRun<'_> {
    fn direct(&self) -> bool {
        self.decision.store == Store::Temporal && !self.options.ordered
    }

    fn slab(&self) -> Result<crate::scratch::Lease<'_>, Error> {
        self.scratch.take(self.options.patience)
    }

    fn outcome(&self, read: usize, written: usize) -> Outcome {
        Outcome { read, written, tag: None, crc: None, crc_after: None, decision: self.decision }
    }

    /// # Safety
    ///
    /// `from` is readable for `bytes`.
    unsafe fn crc(&self, from: *const u8, bytes: usize, seed: u32) -> u32 {
        // SAFETY: the caller guarantees that `from` is readable for `bytes`.
        unsafe { (self.engine.kernels().crc32c)(from, bytes, seed) }
    }

    unsafe fn store_stage(&self, from: &[u8], target: *mut u8) {
        // SAFETY: the caller guarantees that `target` is writable for the length of `from` and does not overlap it.
        unsafe { store_stage(self.engine, self.decision.store, self.options.ordered, from, target) };
    }

    /// Runs a plan whose sizes, capacity and overlaps were checked.
    ///
    /// # Safety
    ///
    /// Source and target are valid as `place` says; nobody else changes the source or accesses the target during the call.
    pub unsafe fn run(&self, plan: &Plan<'_>, place: Place) -> Result<Outcome, Error> {
        let Place { source, bytes, target, .. } = place;
        // SAFETY: for every call: the caller guarantees that source and target are valid as `place` says.
        unsafe {
            match plan.body {
                Body::Copy => {
                    let crc = copy_through(
                        self.engine,
                        self.decision.store,
                        self.options.ordered,
                        (source, target, bytes),
                        plan.before,
                    );
                    Ok(Outcome { crc, ..self.outcome(bytes, bytes) })
                }
                Body::Cipher { seals, key, nonce, aad, tag } => {
                    let cipher = Cipher { seals, key: key.expanded(), nonce, aad, tag };
                    self.cipher(&cipher, plan, place)
                }
                Body::Pack { format, packing } => self.pack(plan, format, packing, None, place),
                Body::PackSeal { format, packing, key, nonce, aad } => {
                    let cipher = Cipher { seals: true, key: key.expanded(), nonce, aad, tag: [0; 16] };
                    self.pack(plan, format, packing, Some(&cipher), place)
                }
                Body::Unpack { format } => self.unpack(plan, format, None, place),
                Body::OpenUnpack { format, key, nonce, aad, tag } => {
                    let cipher = Cipher { seals: false, key: key.expanded(), nonce, aad, tag };
                    self.unpack(plan, format, Some(&cipher), place)
                }
            }
        }
    }

    unsafe fn cipher(&self, cipher: &Cipher<'_>, plan: &Plan<'_>, place: Place) -> Result<Outcome, Error> {
        let Place { source, bytes, target, .. } = place;
        let (mut before, mut after) = (plan.before, plan.after);
        // SAFETY: the caller guarantees source and target as `place` says; every block lies between 0 and `bytes` of both.
        let tag = unsafe {
            let whole = bytes <= BLOCK_BYTES || (before.is_none() && after.is_none());
            let isolated = self.decision.store == Store::Isolated && !self.options.ordered;
            let near = isolated && bytes <= NEAR_BYTES;
            let streams = (near || self.decision.store == Store::Streaming) && cipher.key.streams();
            if near {
                prefetch_near(source, bytes);
            }
            if whole && !self.options.ordered && (self.direct() || streams) {
                before = before.map(|seed| self.crc(source, bytes, seed));
                let tag = if streams {
                    cipher.streaming(source, target, bytes)?
                } else {
                    cipher.seal_or_open(source, target, bytes)?
                };
                after = after.map(|seed| self.crc(target, bytes, seed));
                tag
            } else if self.direct() {
                let mut stream = cipher.stream();
                let mut done = 0;
                while done < bytes {
                    let part = (bytes - done).min(BLOCK_BYTES);
                    let (from, to) = (source.add(done), target.add(done));
                    before = before.map(|seed| self.crc(from, part, seed));
                    stream.try_update(from, to, part)?;
                    after = after.map(|seed| self.crc(to, part, seed));
                    done += part;
                }
                cipher.close(stream, self.engine, target, bytes)?
            } else {
                let mut slab = self.slab()?;
                let mut stream = (bytes > BLOCK_BYTES).then(|| cipher.stream());
                let mut tag = [0; 16];
                let mut done = 0;
                loop {
                    let part = (bytes - done).min(BLOCK_BYTES);
                    let stage = &mut slab.stage[..part];
                    load_stage(self.engine, self.decision.store, source.add(done), stage);
                    let at = stage.as_mut_ptr();
                    before = before.map(|seed| self.crc(at, part, seed));
                    match &mut stream {
                        Some(stream) => stream.try_update(at, at, part)?,
                        None => match cipher.seal_or_open(at, at, part) {
                            Ok(made) => tag = made,
                            Err(error) => {
                                target.write_bytes(0, bytes);
                                return Err(error);
                            }
                        },
                    }
                    after = after.map(|seed| self.crc(at, part, seed));
                    self.store_stage(stage, target.add(done));
                    done += part;
                    if done == bytes {
                        break;
                    }
                }
                match stream {
                    Some(stream) => {
                        let closed = cipher.close(stream, self.engine, target, bytes);
                        if closed.is_err() {
                            slab.stage.fill(0);
                        }
                        closed?
                    }
                    None => tag,
                }
            }
        };
        Ok(Outcome {
            tag: cipher.seals.then_some(tag),
            crc: before.or(after),
            crc_after: after.filter(|_| before.is_some()),
            ..self.outcome(bytes, bytes)
        })
    }

    unsafe fn pack(
        &self,
        plan: &Plan<'_>,
        format: Format,
        packing: Packing,
        cipher: Option<&Cipher<'_>>,
        place: Place,
    ) -> Result<Outcome, Error> {
        let Place { source, bytes, target, capacity } = place;
        let needed = crate::codec::bound(format, bytes);
        let effort = packing.effort(self.decision.contended);
        let mut slab = self.slab()?;
        let Slab { stage, codec, .. } = &mut *slab;
        // SAFETY: the caller guarantees source and target as `place` says, so nobody else accesses the memory of the slices
        // made here.
        unsafe {
            let from: &[u8] = if bytes == 0 { &[] } else { std::slice::from_raw_parts(source, bytes) };
            let before = plan.before.map(|seed| self.crc(source, bytes, seed));
            let fits = needed <= STAGE_BYTES;
            let staged = fits && (cipher.is_some() || !self.direct());
            if self.options.ordered && !staged {
                return Err(Error::Chain(
                    "packing in order works on up to 64 KiB at once: pack larger messages in frames",
                ));
            }
            let to: &mut [u8] = if staged {
                &mut stage[..needed]
            } else if capacity == 0 {
                &mut []
            } else {
                std::slice::from_raw_parts_mut(target, capacity)
            };
            let written = codec
                .pack(format, effort, from, to)
                .map_err(|error| Error::packing(error, bytes, capacity, needed))?;
            if written > capacity {
                return Err(Error::packing(
                    crate::codec::CodecError::TargetTooSmall,
                    bytes,
                    capacity,
                    needed,
                ));
            }
            let packed = to.as_mut_ptr();
            let tag = cipher.map(|cipher| cipher.seal_or_open(packed, packed, written)).transpose()?;
            let after = plan.after.map(|seed| self.crc(packed, written, seed));
            if staged {
                self.store_stage(&stage[..written], target);
            }
            Ok(Outcome {
                tag,
                crc: before.or(after),
                crc_after: after.filter(|_| before.is_some()),
                ..self.outcome(bytes, written)
            })
        }
    }

    unsafe fn unpack(
        &self,
        plan: &Plan<'_>,
        format: Format,
        cipher: Option<&Cipher<'_>>,
        place: Place,
    ) -> Result<Outcome, Error> {
        let Place { source, bytes, target, capacity } = place;
        if cipher.is_some() && bytes > STAGE_BYTES {
            return Err(Error::Chain(
                "opening and then unpacking works on up to 80 KiB at once: seal larger messages in frames",
            ));
        }
        let mut slab = self.slab()?;
        let Slab { stage, beside, codec, .. } = &mut *slab;
        // SAFETY: the caller guarantees source and target as `place` says, so nobody else accesses the memory of the slices
        // made here.
        unsafe {
            let before = plan.before.map(|seed| self.crc(source, bytes, seed));
            let from: &[u8] = match cipher {
                Some(cipher) => {
                    let stage = &mut stage[..bytes];
                    cipher.seal_or_open(source, stage.as_mut_ptr(), bytes)?;
                    stage
                }
                None if bytes == 0 => &[],
                None => std::slice::from_raw_parts(source, bytes),
            };
            let staged = !self.direct() && capacity <= STAGE_BYTES;
            if self.options.ordered && !staged {
                return Err(Error::Chain(
                    "unpacking in order needs a target of at most 80 KiB: unpack larger messages from frames",
                ));
            }
            let to: &mut [u8] = if staged {
                &mut beside[..capacity]
            } else if capacity == 0 {
                &mut []
            } else {
                std::slice::from_raw_parts_mut(target, capacity)
            };
            let done = codec.unpack(format, from, to).map_err(|error| Error::unpacking(error, capacity))?;
            if cipher.is_some() && done.read != bytes {
                return Err(Error::Corrupt);
            }
            let after = plan.after.map(|seed| self.crc(to.as_ptr(), done.written, seed));
            if staged {
                self.store_stage(&beside[..done.written], target);
            }
            Ok(Outcome {
                crc: before.or(after),
                crc_after: after.filter(|_| before.is_some()),
                ..self.outcome(done.read, done.written)
            })
        }
    }
}

impl Cipher<'_> {
    /// Seals or opens the whole message at once.
    ///
    /// # Safety
    ///
    /// The source is readable and the target writable for `bytes`; they are the same range or do not overlap.
    unsafe fn seal_or_open(
        &self,
        source: *const u8,
        target: *mut u8,
        bytes: usize,
    ) -> Result<[u8; 16], Error> {
        // SAFETY: the caller guarantees both ranges of `bytes`, and that they are the same range or do not overlap.
        unsafe {
            if self.seals {
                return Ok(self.key.try_seal(&self.nonce, self.aad, source, target, bytes)?);
            }
            if bytes as u64 > MESSAGE_BYTES_MAX {
                return Err(Error::TooLong { bytes, most: MESSAGE_BYTES_MAX });
            }
            let opened = self.key.open(&self.nonce, self.aad, &self.tag, source, target, bytes);
            opened.map(|()| self.tag).map_err(|_| Error::WrongTag)
        }
    }

    /// Seals or opens the whole message; the cipher reads and writes past the caches.
    ///
    /// # Safety
    ///
    /// The conditions of [`seal_or_open`](Cipher::seal_or_open).
    unsafe fn streaming(&self, source: *const u8, target: *mut u8, bytes: usize) -> Result<[u8; 16], Error> {
        // SAFETY: the caller guarantees both ranges of `bytes`, and that they are the same range or do not overlap.
        unsafe {
            if self.seals {
                return Ok(self.key.seal_streaming(&self.nonce, self.aad, source, target, bytes)?);
            }
            if bytes as u64 > MESSAGE_BYTES_MAX {
                return Err(Error::TooLong { bytes, most: MESSAGE_BYTES_MAX });
            }
            let opened = self.key.open_streaming(&self.nonce, self.aad, &self.tag, source, target, bytes);
            opened.map(|()| self.tag).map_err(|_| Error::WrongTag)
        }
    }

    fn stream(&self) -> Stream {
        let mut stream = if self.seals {
            Stream::seal(self.key, &self.nonce)
        } else {
            Stream::open(self.key, &self.nonce)
        };
        stream.aad(self.aad);
        stream
    }

    /// Ends a message that was processed in blocks: returns its tag, or zeroes the target if the tag is wrong.
    ///
    /// # Safety
    ///
    /// The target is writable for `bytes`.
    unsafe fn close(
        &self,
        stream: Stream,
        engine: &Engine,
        target: *mut u8,
        bytes: usize,
    ) -> Result<[u8; 16], Error> {
        let tag = stream.finish();
        if !self.seals && !tags_equal(&tag, &self.tag) {
            // SAFETY: the caller guarantees that the target is writable for `bytes`.
            unsafe { (engine.kernels().fill)(target, 0, bytes) };
            return Err(Error::WrongTag);
        }
        Ok(tag)
    }
}
