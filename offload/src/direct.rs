// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Synchronous calls, without descriptors or queues. Most programs use only these.
//!
//! - **Flow** below the placement's gate: one comparison, a count, then the kernel. Above: cache state ─▶ `Placer::choose`
//!   ─▶ kernel, streaming kernel, or a copy shared with an idle worker ─▶ measured ─▶ learned and recorded
//! - **Order** when a call returns its bytes are visible to every thread that synchronises with the caller, including
//!   bytes that another core or a streaming store wrote
//! - **Owner** slices are borrowed for the call. The `_raw` calls take addresses because the memory may be shared with
//!   another process, and then no slice of it may be made

use crate::engine::Engine;
use crate::run::{Share, record, share_chunk_bytes};
use crate::submit::{Cache, Queue};
use memlift_ground::observe::{self, CacheState, DecisionRecord, Executor};
use memlift_kernels::{Routine, Shape, shape};
use memlift_place::{Choice, CopyReason, Helpers, PIECE_BYTES, Picked, Reason, StoreKind};
use memlift_spec::limits::TRANSFER_BYTES_MAX;
use memlift_spec::{Completion, Descriptor, Flags, Opcode, Status};
use std::time::{Duration, Instant};

/// Smallest size, in bytes, from which a call may store past the cache, even if the caller asks for it.
const STREAM_BYTES_MIN: usize = 4096;
/// Time after which a queue that is full and completes nothing counts as stopped.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// A device has stopped answering during a copy. It may still write to the target, so those bytes must never be used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the device stopped answering while it copied and may still write to the target, which must never be used again; later copies go without it"
)]
pub struct Lost;

impl Engine {
    /// Copies `source` into `target`.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    #[inline]
    pub fn copy(&self, target: &mut [u8], source: &[u8]) {
        assert_eq!(target.len(), source.len(), "copy: target and source must have the same length");
        // SAFETY: both slices have this length, and a unique borrow overlaps no other slice.
        unsafe { self.copy_raw(target.as_mut_ptr(), source.as_ptr(), target.len(), Cache::Auto) }
    }

    /// Copies `bytes` bytes; `cache` is the caller's knowledge about the buffers.
    ///
    /// # Safety
    ///
    /// `source` is readable and `target` writable for `bytes`, and they do not overlap.
    #[inline]
    pub unsafe fn copy_raw(&self, target: *mut u8, source: *const u8, bytes: usize, cache: Cache) {
        // SAFETY: the caller promises that `source` is readable and `target` writable for `bytes`, and that they do not
        // overlap.
        unsafe {
            if self.is_small(Opcode::MEMMOVE, bytes) {
                (self.copy)(target, source, bytes);
            } else {
                self.copy_placed(target, source, bytes, cache, None);
            }
        }
    }

    /// Copies as [`copy_raw`](Engine::copy_raw) does, and records `why` as the reason instead of the cost model's.
    ///
    /// # Safety
    ///
    /// The conditions of [`copy_raw`](Engine::copy_raw).
    pub unsafe fn copy_raw_because(
        &self,
        target: *mut u8,
        source: *const u8,
        bytes: usize,
        cache: Cache,
        why: Reason,
    ) {
        // SAFETY: the caller promises that `source` is readable and `target` writable for `bytes`, and that they do not
        // overlap.
        unsafe {
            if self.is_small(Opcode::MEMMOVE, bytes) {
                (self.copy)(target, source, bytes);
            } else {
                self.copy_placed(target, source, bytes, cache, Some(why));
            }
        }
    }

    #[inline(never)]
    unsafe fn copy_placed(
        &self,
        target: *mut u8,
        source: *const u8,
        bytes: usize,
        cache: Cache,
        why: Option<Reason>,
    ) {
        // SAFETY: the caller of `copy_raw` promises that both buffers hold `bytes` bytes; a writable buffer is readable too.
        let state = unsafe { self.numbers.placer.cache_state(cache, target, source, bytes) };
        let mut choice = self.choose(Opcode::MEMMOVE, bytes, state, true);
        choice.why = why.unwrap_or(choice.why);
        let start_ns = observe::now_ns();
        // SAFETY: the caller of `copy_raw` promises that both buffers hold `bytes` bytes and do not overlap until this
        // returns.
        unsafe {
            match choice.executor {
                Executor::Split => self.copy_shared(target, source, bytes, state),
                Executor::InlineNt => (self.kernels.copy_nt)(target, source, bytes),
                _ => (self.kernels.copy)(target, source, bytes),
            }
        }
        self.done(&choice, Opcode::MEMMOVE, bytes, start_ns, Some((target, source)));
    }

    /// Copies by the executor that the caller names, without the cost model: engine threads while this thread sleeps
    /// ([`Executor::Worker`]), DSA ([`Executor::Idxd`]), or this thread (any other executor, or if those are missing). With
    /// `streams` the copy stores past the cache. Less than a page is always copied by this thread, through the cache.
    ///
    /// # Errors
    ///
    /// [`Lost`]: the device has stopped answering. It is not used any more; later copies are made by the calling thread.
    ///
    /// # Safety
    ///
    /// The conditions of [`copy_raw`](Engine::copy_raw). After [`Lost`] the device may still write to the target: those
    /// bytes must not be used again, nor unmapped, as long as the process lives. It may also still read the source: whatever
    /// lies there later may be copied to the target.
    pub unsafe fn copy_with(
        &self,
        target: *mut u8,
        source: *const u8,
        bytes: usize,
        by: Executor,
        streams: bool,
    ) -> Result<(), Lost> {
        // SAFETY: the caller promises both ranges, and not to use the target again after [`Lost`].
        unsafe { self.copy_with_because(target, source, bytes, by, streams, CopyReason::Requested.into()) }
    }

    /// Copies as [`copy_with`](Engine::copy_with) does, and records `why` as the reason for the executor.
    ///
    /// # Errors
    ///
    /// Those of [`copy_with`](Engine::copy_with).
    ///
    /// # Safety
    ///
    /// The conditions of [`copy_with`](Engine::copy_with).
    pub unsafe fn copy_with_because(
        &self,
        target: *mut u8,
        source: *const u8,
        bytes: usize,
        by: Executor,
        streams: bool,
        why: Reason,
    ) -> Result<(), Lost> {
        let streams = streams && bytes >= STREAM_BYTES_MIN;
        if bytes < STREAM_BYTES_MIN {
            observe::count(Opcode::MEMMOVE, bytes as u64);
            // SAFETY: the caller promises that `source` is readable and `target` writable for `bytes`, and that they do not
            // overlap.
            unsafe { (self.kernels.copy)(target, source, bytes) };
            return Ok(());
        }
        let stores = self.stores(streams, bytes);
        let dsa = if by == Executor::Idxd { self.dsa().ok().filter(|queue| !queue.is_lost()) } else { None };
        let executor = match by {
            Executor::Idxd if dsa.is_some() => Executor::Idxd,
            Executor::Worker if self.worker.threads() > 0 => Executor::Worker,
            _ if streams => Executor::InlineNt,
            _ => Executor::InlineTemporal,
        };
        let cache = if streams { CacheState::Cold } else { CacheState::Hot };
        let predicted_ns =
            self.numbers.placer.predict_ns(executor, Opcode::MEMMOVE, bytes, cache).unwrap_or(0.0);
        let choice = Choice { executor, cache, predicted_ns, why };
        let start_ns = observe::now_ns();
        // SAFETY: the caller promises both ranges until this returns, which is after `finish`. A device that has not
        // finished is reported as `Lost`, whose conditions forbid any use of the ranges.
        unsafe {
            if let Some(queue) = dsa {
                if let Err(lost) = copy_by(queue, target, source, bytes, streams) {
                    let took_ns = observe::now_ns() - start_ns;
                    observe::record(Executor::Idxd, Opcode::MEMMOVE, bytes as u64, took_ns, false);
                    return Err(lost);
                }
            } else if executor == Executor::Worker {
                let share = Share::new(self.kernels, stores, target, source, bytes, share_chunk_bytes(bytes));
                match self.worker.offer(&share, self.worker.threads().min((bytes >> 20).max(1))) {
                    0 => share.finish(),
                    _ => share.finish_by_others(predicted_ns as u64),
                }
            } else {
                stores.copy(self.kernels, target, source, bytes);
            }
        }
        self.done(&choice, Opcode::MEMMOVE, bytes, start_ns, Some((target, source)));
        Ok(())
    }

    /// Returns the way in which a copy of `bytes` stores.
    fn stores(&self, streams: bool, bytes: usize) -> StoreKind {
        if streams {
            StoreKind::Streaming(shape(Routine::Copy, bytes, self.kernels.isa))
        } else {
            StoreKind::Temporal
        }
    }

    unsafe fn copy_shared(&self, target: *mut u8, source: *const u8, bytes: usize, state: CacheState) {
        let ns = |executor| {
            self.numbers.placer.predict_ns(executor, Opcode::MEMMOVE, bytes, state).unwrap_or(f64::MAX)
        };
        let streams = state == CacheState::Cold || ns(Executor::InlineNt) < ns(Executor::InlineTemporal);
        let stores = self.stores(streams, bytes);
        let chunk_bytes = share_chunk_bytes(bytes);
        // SAFETY: the caller keeps both ranges valid until this returns, which is after `finish`.
        let share = unsafe { Share::new(self.kernels, stores, target, source, bytes, chunk_bytes) };
        let mut helpers = self.worker.threads().min(bytes >> 20);
        if helpers > 1 {
            helpers = helpers.min(self.idle_cores());
        }
        self.worker.offer(&share, helpers);
        share.finish();
    }

    /// Returns the number of cores that are idle at this moment and could help. Engine threads that only wait do not count
    /// as busy.
    fn idle_cores(&self) -> usize {
        memlift_place::idle_cores(1 + self.worker.awake())
    }

    /// Streams `bytes` by `run`, which is called with an offset, a size and a shape. Some calls run their first piece, a
    /// multiple of `unit`, in a shape on trial instead of the one in use. The costs of both shapes are learned.
    fn stream(&self, routine: Routine, bytes: usize, unit: usize, mut run: impl FnMut(usize, usize, Shape)) {
        let refine = &self.numbers.refine;
        let Picked { shape, tried } = refine.pick(routine, bytes);
        let mut timed = |offset: usize, part: usize, used: Shape| {
            let start_ns = observe::now_ns();
            run(offset, part, used);
            let took_ns = observe::now_ns() - start_ns;
            refine.learn(routine, bytes, used, took_ns as f64 / part as f64);
        };
        let piece = PIECE_BYTES.min(bytes / 2) / unit.max(1) * unit;
        match tried.filter(|_| piece > 0) {
            Some(tried) => {
                timed(0, piece, tried);
                timed(piece, bytes - piece, shape);
            }
            None => timed(0, bytes, shape),
        }
    }

    /// Gathers `rows` rows of `row_bytes`, each `source_stride` bytes after the one before, into a packed target.
    ///
    /// # Safety
    ///
    /// Every row is readable, `target` is writable for `rows * row_bytes`, and they do not overlap.
    pub unsafe fn copy_strided_raw(
        &self,
        target: *mut u8,
        source: *const u8,
        rows: usize,
        row_bytes: usize,
        source_stride: i64,
        cache: Cache,
    ) {
        let bytes = rows.saturating_mul(row_bytes);
        let contiguous = i64::try_from(row_bytes) == Ok(source_stride);
        // SAFETY: the caller promises each row, and `rows * row_bytes` of the target; rows without gaps are one range.
        unsafe {
            if contiguous {
                self.copy_raw(target, source, bytes, cache);
            } else if self.is_small(Opcode::STRIDED_COPY, bytes) {
                (self.kernels.copy_strided)(target, source, rows, row_bytes, source_stride);
            } else {
                // Samples of rows far apart would say little, so the state of the target is used for both.
                let state = self.numbers.placer.cache_state(cache, target, target, bytes);
                let choice = self.choose(Opcode::STRIDED_COPY, bytes, state, false);
                let start_ns = observe::now_ns();
                if choice.executor == Executor::InlineNt {
                    self.stream(Routine::Strided, bytes, row_bytes, |offset, part, shape| {
                        let first = (offset / row_bytes) as isize;
                        let source = source.wrapping_offset(first.wrapping_mul(source_stride as isize));
                        let (target, rows) = (target.add(offset), part / row_bytes);
                        (self.kernels.shaped.copy_strided)(
                            target,
                            source,
                            rows,
                            row_bytes,
                            source_stride,
                            shape,
                        );
                    });
                } else {
                    (self.kernels.copy_strided)(target, source, rows, row_bytes, source_stride);
                }
                self.done(&choice, Opcode::STRIDED_COPY, bytes, start_ns, Some((target, source)));
            }
        }
    }

    /// Fills `bytes` bytes with `pattern`, repeated.
    ///
    /// # Safety
    ///
    /// `target` is writable for `bytes`.
    #[inline]
    pub unsafe fn fill_raw(&self, target: *mut u8, pattern: u128, bytes: usize, cache: Cache) {
        // SAFETY: the caller promises that `target` is writable for `bytes`, and `stream` only passes parts of `bytes`.
        unsafe {
            if self.is_small(Opcode::FILL, bytes) {
                return (self.kernels.fill)(target, pattern, bytes);
            }
            let choice = self.choose_for(Opcode::FILL, target, target, bytes, cache);
            let start_ns = observe::now_ns();
            if choice.executor == Executor::InlineNt {
                // Pieces are multiples of the pattern's length, so each starts with the pattern's first byte.
                self.stream(Routine::Fill, bytes, 64, |offset, part, shape| {
                    (self.kernels.shaped.fill)(target.add(offset), pattern, part, shape);
                });
            } else {
                (self.kernels.fill)(target, pattern, bytes);
            }
            self.done(&choice, Opcode::FILL, bytes, start_ns, None);
        }
    }

    /// Returns the CRC-32C; `seed` is 0, or the CRC-32C of the preceding bytes.
    #[inline]
    pub fn crc32c(&self, source: &[u8], seed: u32) -> u32 {
        // SAFETY: the slice has this length.
        unsafe { self.crc32c_raw(source.as_ptr(), source.len(), seed) }
    }

    /// Returns the CRC-32C; `seed` is 0, or the CRC-32C of the preceding bytes.
    ///
    /// # Safety
    ///
    /// `source` is readable for `bytes`.
    #[inline]
    pub unsafe fn crc32c_raw(&self, source: *const u8, bytes: usize, seed: u32) -> u32 {
        // SAFETY: the caller promises that `source` is readable for `bytes`.
        unsafe {
            if self.is_small(Opcode::CRC, bytes) {
                return (self.kernels.crc32c)(source, bytes, seed);
            }
            let start_ns = observe::now_ns();
            let value = (self.kernels.crc32c)(source, bytes, seed);
            self.count(Opcode::CRC, bytes, start_ns);
            value
        }
    }

    /// Copies, and returns the CRC-32C of the copied bytes, even if another process changes the source meanwhile.
    ///
    /// # Safety
    ///
    /// `source` is readable and `target` writable for `bytes`, and they do not overlap.
    #[inline]
    pub unsafe fn copy_crc32c_raw(
        &self,
        target: *mut u8,
        source: *const u8,
        bytes: usize,
        seed: u32,
        cache: Cache,
    ) -> u32 {
        // SAFETY: the caller promises that `source` is readable and `target` writable for `bytes`, and that they do not
        // overlap.
        unsafe {
            if self.is_small(Opcode::COPY_CRC, bytes) {
                return (self.kernels.copy_crc32c)(target, source, bytes, seed);
            }
            let choice = self.choose_for(Opcode::COPY_CRC, target, source, bytes, cache);
            let start_ns = observe::now_ns();
            let mut value = seed;
            if choice.executor == Executor::InlineNt {
                self.stream(Routine::CopyCrc, bytes, 64, |offset, part, shape| {
                    let (target, source) = (target.add(offset), source.add(offset));
                    value = (self.kernels.shaped.copy_crc32c)(target, source, part, value, shape);
                });
            } else {
                value = (self.kernels.copy_crc32c)(target, source, bytes, seed);
            }
            self.done(&choice, Opcode::COPY_CRC, bytes, start_ns, Some((target, source)));
            value
        }
    }

    /// Copies `source` into both targets with one read.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn dualcast(&self, target: &mut [u8], target2: &mut [u8], source: &[u8]) {
        let bytes = source.len();
        assert!(
            target.len() == bytes && target2.len() == bytes,
            "dualcast: all three must have the same length"
        );
        let (target, target2, source) = (target.as_mut_ptr(), target2.as_mut_ptr(), source.as_ptr());
        // SAFETY: all three slices have this length, and unique borrows overlap no other slice.
        unsafe {
            if self.is_small(Opcode::DUALCAST, bytes) {
                return (self.kernels.dualcast)(target, target2, source, bytes);
            }
            let choice = self.choose_for(Opcode::DUALCAST, target, source, bytes, Cache::Auto);
            let start_ns = observe::now_ns();
            if choice.executor == Executor::InlineNt {
                self.stream(Routine::Dualcast, bytes, 64, |offset, part, shape| {
                    let (target, target2) = (target.add(offset), target2.add(offset));
                    (self.kernels.shaped.dualcast)(target, target2, source.add(offset), part, shape);
                });
            } else {
                (self.kernels.dualcast)(target, target2, source, bytes);
            }
            self.done(&choice, Opcode::DUALCAST, bytes, start_ns, Some((target, source)));
        }
    }

    /// Returns true if an operation is below the placement's gate, and counts it.
    #[inline(always)]
    fn is_small(&self, opcode: Opcode, bytes: usize) -> bool {
        let small = bytes < self.numbers.placer.gate_bytes();
        if small {
            observe::count(opcode, bytes as u64);
        }
        small
    }

    unsafe fn choose_for(
        &self,
        opcode: Opcode,
        target: *const u8,
        source: *const u8,
        bytes: usize,
        cache: Cache,
    ) -> Choice {
        // SAFETY: both buffers hold `bytes` bytes: every caller in this file passes the buffers of its operation.
        let state = unsafe { self.numbers.placer.cache_state(cache, target, source, bytes) };
        self.choose(opcode, bytes, state, false)
    }

    fn choose(&self, opcode: Opcode, bytes: usize, state: CacheState, may_split: bool) -> Choice {
        let splits = may_split && self.splits && bytes >= 1 << 20;
        self.numbers.placer.choose(opcode, bytes, state, |executor| {
            executor != Executor::Split || (splits && self.worker.idle() > 0 && self.idle_cores() > 0)
        })
    }

    /// Counts an operation that has only one executor.
    fn count(&self, opcode: Opcode, bytes: usize, start_ns: u64) {
        let took_ns = observe::now_ns() - start_ns;
        observe::record(Executor::InlineTemporal, opcode, bytes as u64, took_ns, true);
    }

    fn done(
        &self,
        choice: &Choice,
        opcode: Opcode,
        bytes: usize,
        start_ns: u64,
        buffers: Option<(*mut u8, *const u8)>,
    ) {
        let measured_ns = observe::now_ns() - start_ns;
        if choice.why != CopyReason::Only {
            self.numbers.placer.learn(choice, opcode, bytes, measured_ns as f64);
        }
        observe::record(choice.executor, opcode, bytes as u64, measured_ns, true);
        if self.background.count_call(bytes) {
            self.calibrate_later();
        }
        let record = DecisionRecord {
            time_ns: start_ns,
            opcode,
            executor: choice.executor,
            cache_state: choice.cache,
            size: bytes as u64,
            predicted_ns: choice.predicted_ns as u64,
            measured_ns,
            reason: choice.why.code(),
        };
        observe::decide(record);
        if observe::is_recorded() {
            let addresses = buffers.map(|(target, source)| (source.addr() as u64, target.addr() as u64));
            let (source, target) = addresses.unwrap_or_default();
            observe::operation(&record, source, target);
        }
    }
}

/// Time since which a queue has been full without completing anything.
#[derive(Default)]
struct FullSince(Option<Instant>);

impl FullSince {
    /// Returns true if the queue has been full for so long that its executor must have stopped.
    fn is_stuck(&mut self) -> bool {
        self.0.get_or_insert_with(Instant::now).elapsed() > STUCK_AFTER
    }
}

/// Copies by a queue's executor, in parts that one descriptor can hold, and waits.
///
/// # Safety
///
/// The conditions of [`Engine::copy_with`].
unsafe fn copy_by(
    queue: &Queue,
    target: *mut u8,
    source: *const u8,
    bytes: usize,
    streams: bool,
) -> Result<(), Lost> {
    let asks = Flags::COMPLETION_VALID.with(Flags::REQUEST_COMPLETION);
    let flags = if streams { asks } else { asks.with(Flags::CACHE_CONTROL) };
    let most = queue.capabilities().transfer_bytes_max.clamp(1, TRANSFER_BYTES_MAX) as usize;
    let mut done = 0;
    while done < bytes {
        let part = (bytes - done).min(most);
        let mut record = Completion::PENDING;
        let record = &raw mut record;
        let mut copy = Descriptor::new(Opcode::MEMMOVE, flags);
        copy.source = source.wrapping_add(done).expose_provenance() as u64;
        copy.target = target.wrapping_add(done).expose_provenance() as u64;
        (copy.size, copy.completion_address) = (part as u32, record.expose_provenance() as u64);
        // SAFETY: the caller promises both ranges and this call owns the record, until the status shows that the device has
        // finished.
        unsafe {
            let mut full = FullSince::default();
            let taken = loop {
                match queue.submit_raw(&[copy]) {
                    Ok(()) => break true,
                    Err(_) if queue.poll() > 0 => full = FullSince::default(),
                    Err(_) if full.is_stuck() => break false,
                    Err(_) => std::hint::spin_loop(),
                }
            };
            if !taken {
                // SAFETY: the part was not accepted by the queue, so only this thread uses its bytes.
                target.add(done).copy_from_nonoverlapping(source.add(done), part);
                done += part;
                continue;
            }
            let mut turns = 0_u32;
            while record::load(record).is_pending() {
                if queue.poll() == 0 {
                    turns += 1;
                    if turns.is_multiple_of(256) { std::thread::yield_now() } else { std::hint::spin_loop() }
                }
            }
            match record::load(record) {
                Status::SUCCESS => {}
                Status::DEVICE_LOST => {
                    queue.give_up();
                    return Err(Lost);
                }
                _ => target.add(done).copy_from_nonoverlapping(source.add(done), part),
            }
        }
        done += part;
    }
    Ok(())
}
