// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The meaning of one descriptor in software: its effect on memory, and the contents of its record.
//!
//! - **Flow** descriptor ──`validate`──▶ the kernel of its opcode ──▶ `Completion` ──`record`──▶ submitter's memory
//! - **Order** every store of the operation is visible before the status (kernels end non-temporal stores with a fence;
//!   the status is a Release store)
//! - **Not here** queues and threads; batches (`batch`)
//!
//! If CACHE_CONTROL is set, stores go through the cache. If it is clear, stores of at least
//! `ExecutorSettings::streaming_from_bytes` go past it.

use super::validate::{self, Place};
use super::{ExecutorSettings, batch, record};
use memlift_kernels::{Delta, DeltaError, Kernels, cache_flush, repeat_8};
use memlift_spec::{Capabilities, Completion, Descriptor, Flags, Opcode, Status};
use std::ptr;

/// The inputs of an execution besides the descriptor.
pub(super) struct Context<'a> {
    pub capabilities: Capabilities,
    pub executor_settings: &'a ExecutorSettings,
}

impl Context<'_> {
    pub(super) fn streams(&self, descriptor: &Descriptor) -> bool {
        !descriptor.flags().has(Flags::CACHE_CONTROL)
            && descriptor.size as usize >= self.executor_settings.streaming_from_bytes()
    }
}

/// Executes `descriptor` and stores its record. DRAIN does nothing here, because its executor has already waited.
///
/// # Safety
///
/// Every address in the descriptor is valid for its use, and so is every address in the members of a batch.
pub(super) unsafe fn execute(descriptor: &Descriptor, context: &Context<'_>) {
    // SAFETY: the caller promises that every address in the descriptor, including its record's, is valid for its use.
    unsafe {
        let completion = perform(descriptor, context, Place::Queue);
        record::store(descriptor, completion);
    }
}

/// Executes `descriptor` and returns its completion; writes no record except those of a batch's members.
///
/// # Safety
///
/// The conditions of [`execute`].
pub(super) unsafe fn perform(descriptor: &Descriptor, context: &Context<'_>, place: Place) -> Completion {
    // SAFETY: the caller promises that every address is valid. Sizes and flags are checked before anything is run.
    unsafe {
        match validate::check(descriptor, &context.capabilities, place) {
            Err(status) => record::ended(status),
            Ok(()) if descriptor.opcode() == Opcode::BATCH => {
                batch::run(descriptor, |member| execute_member(member, context))
            }
            Ok(()) => run(descriptor, context),
        }
    }
}

/// Executes one member of a batch, stores its record, and returns its status.
///
/// # Safety
///
/// The conditions of [`execute`].
unsafe fn execute_member(descriptor: &Descriptor, context: &Context<'_>) -> Status {
    // SAFETY: the caller promises that every address in the member, including its record's, is valid for its use.
    unsafe {
        let completion = perform(descriptor, context, Place::Batch);
        record::store(descriptor, completion);
        Status(completion.status)
    }
}

fn source(address: u64) -> *const u8 {
    ptr::with_exposed_provenance(address as usize)
}

fn target(address: u64) -> *mut u8 {
    ptr::with_exposed_provenance_mut(address as usize)
}

/// # Safety
///
/// `validate::check` accepted the descriptor, and its addresses are valid for their use.
unsafe fn run(descriptor: &Descriptor, context: &Context<'_>) -> Completion {
    let bytes = descriptor.size as usize;
    let kernels = context.executor_settings.kernels();
    let mut done = record::ended(Status::SUCCESS);
    done.bytes_completed = descriptor.size;
    // SAFETY: for every call below: the caller promises that the descriptor's ranges are valid for `bytes` (or for the size
    // in the operation's own fields), and validation has checked sizes, alignment and, if the kernel needs it, that the
    // ranges do not overlap.
    unsafe {
        match descriptor.opcode() {
            Opcode::NOOP | Opcode::DRAIN => {}
            Opcode::MEMMOVE => memmove(descriptor, context),
            Opcode::FILL => fill(descriptor, context),
            Opcode::COMPARE => {
                let differs = (kernels.compare)(source(descriptor.source), source(descriptor.target), bytes);
                compared(descriptor, differs, &mut done);
            }
            Opcode::COMPARE_PATTERN => {
                let differs = (kernels.compare_pattern)(source(descriptor.source), descriptor.target, bytes);
                compared(descriptor, differs, &mut done);
            }
            Opcode::DELTA_CREATE => delta_create(descriptor, kernels, &mut done),
            Opcode::DELTA_APPLY => delta_apply(descriptor, kernels, &mut done),
            Opcode::DUALCAST => {
                let dualcast =
                    if context.streams(descriptor) { kernels.dualcast_nt } else { kernels.dualcast };
                dualcast(
                    target(descriptor.target),
                    target(descriptor.target2()),
                    source(descriptor.source),
                    bytes,
                );
            }
            Opcode::TRANSLATION_FETCH => touch(descriptor),
            Opcode::CRC => done.value = u64::from(crc(descriptor, context, None)),
            Opcode::COPY_CRC => {
                done.value = u64::from(crc(descriptor, context, Some(target(descriptor.target))));
            }
            Opcode::CACHE_FLUSH => flush(descriptor),
            // Cannot happen: validation accepts no other opcode.
            _ => done = record::ended(Status::BAD_OPCODE),
        }
        if descriptor.flags().has(Flags::READBACK) {
            read_back(descriptor);
        }
    }
    done
}

unsafe fn memmove(descriptor: &Descriptor, context: &Context<'_>) {
    let (to, from, bytes) = (descriptor.target, descriptor.source, descriptor.size as usize);
    // SAFETY: the caller promises both ranges; the copy that forbids overlap is only used for ranges that do not overlap.
    unsafe {
        if descriptor.flags().has(Flags::STRICT_ORDER) {
            copy_in_order(target(to), source(from), bytes);
        } else if to.abs_diff(from) < bytes as u64 {
            (context.executor_settings.kernels().move_overlapping)(target(to), source(from), bytes);
        } else if context.streams(descriptor) {
            (context.executor_settings.kernels().copy_nt)(target(to), source(from), bytes);
        } else {
            (context.executor_settings.kernels().copy)(target(to), source(from), bytes);
        }
    }
}

unsafe fn fill(descriptor: &Descriptor, context: &Context<'_>) {
    let bytes = descriptor.size as usize;
    let pattern = if descriptor.flags().has(Flags::FILL_16) {
        u128::from(descriptor.pattern_upper()) << 64 | u128::from(descriptor.source)
    } else {
        repeat_8(descriptor.source)
    };
    let to = target(descriptor.target);
    // SAFETY: the caller promises that the target's range is writable.
    unsafe {
        if descriptor.flags().has(Flags::STRICT_ORDER) {
            let pattern = pattern.to_le_bytes();
            (0..bytes).for_each(|index| to.add(index).write_volatile(pattern[index % 16]));
        } else if context.streams(descriptor) {
            (context.executor_settings.kernels().fill_nt)(to, pattern, bytes);
        } else {
            (context.executor_settings.kernels().fill)(to, pattern, bytes);
        }
    }
}

/// Stores in ascending address order, one byte at a time, as STRICT_ORDER requires. x86 keeps the order of stores; on other
/// architectures each store is Release.
pub(super) unsafe fn copy_in_order(to: *mut u8, from: *const u8, bytes: usize) {
    for index in 0..bytes {
        // SAFETY: `index` is below `bytes`, and the caller promises both ranges.
        unsafe {
            let byte = from.add(index).read_volatile();
            std::sync::atomic::AtomicU8::from_ptr(to.add(index))
                .store(byte, std::sync::atomic::Ordering::Release);
        }
    }
}

fn predicate(descriptor: &Descriptor, expected: bool, done: &mut Completion) {
    if descriptor.flags().has(Flags::CHECK_RESULT) && !expected {
        done.status = Status::SUCCESS_PREDICATE.0;
    }
}

fn compared(descriptor: &Descriptor, differs: Option<usize>, done: &mut Completion) {
    if let Some(offset) = differs {
        done.result = 1;
        done.bytes_completed = offset as u32;
    }
    predicate(descriptor, done.result == descriptor.expected_result(), done);
}

unsafe fn delta_create(descriptor: &Descriptor, kernels: &Kernels, done: &mut Completion) {
    // SAFETY: the caller promises that both sources and the record are valid; validation checked sizes and overlap.
    let delta = unsafe {
        (kernels.delta_create)(
            target(descriptor.delta_address()),
            descriptor.delta_bytes_max() as usize,
            source(descriptor.source),
            source(descriptor.target),
            descriptor.size as usize,
        )
    };
    let (result, record_bytes) = match delta {
        Delta::Equal => (0, 0),
        Delta::Delta(bytes) => (1, bytes),
        Delta::Overflow(bytes) => (2, bytes),
    };
    done.result = result;
    done.value = record_bytes as u64;
    predicate(descriptor, descriptor.expected_result_mask() >> result & 1 == 1, done);
}

unsafe fn delta_apply(descriptor: &Descriptor, kernels: &Kernels, done: &mut Completion) {
    // SAFETY: the caller promises that record and target are valid; validation checked sizes and overlap.
    let applied = unsafe {
        (kernels.delta_apply)(
            target(descriptor.target),
            descriptor.size as usize,
            source(descriptor.source),
            descriptor.delta_record_bytes() as usize,
        )
    };
    match applied {
        Ok(()) => {}
        Err(DeltaError::Order { entry }) => *done = delta_failed(Status::DELTA_ORDER, entry),
        Err(DeltaError::Range { entry }) => *done = delta_failed(Status::DELTA_RANGE, entry),
        Err(_) => *done = delta_failed(Status::BAD_DELTA_SIZE, 0),
    }
}

/// Returns the completion after a bad entry: the entries before it are applied, and `bytes_completed` is their length in
/// the delta record.
fn delta_failed(status: Status, entry: usize) -> Completion {
    let bytes = entry * memlift_kernels::DELTA_ENTRY_BYTES;
    Completion { bytes_completed: bytes as u32, ..record::ended(status) }
}

/// Returns the CRC-32C as the flags require, copying to `copy_to` if it is given. The kernel computes the reflected,
/// inverted form; the other forms are derived from it.
unsafe fn crc(descriptor: &Descriptor, context: &Context<'_>, copy_to: Option<*mut u8>) -> u32 {
    let (from, bytes, flags) = (source(descriptor.source), descriptor.size as usize, descriptor.flags());
    let kernels = context.executor_settings.kernels();
    // SAFETY: the caller promises that the seed's address, the source and the target are valid; validation checked that
    // source and target do not overlap.
    unsafe {
        let seed = if flags.has(Flags::CRC_SEED_ADDRESS) {
            source(descriptor.crc_seed_address()).cast::<u32>().read_unaligned()
        } else {
            descriptor.crc_seed()
        };
        let inverts = !flags.has(Flags::CRC_BYPASS_INVERT);
        let seed = if inverts { seed } else { !seed.reverse_bits() };
        let ordered = flags.has(Flags::STRICT_ORDER);
        let value = match copy_to {
            Some(to) if !ordered && !flags.has(Flags::CRC_BYPASS_REFLECT) => {
                let copy =
                    if context.streams(descriptor) { kernels.copy_crc32c_nt } else { kernels.copy_crc32c };
                copy(to, from, bytes, seed)
            }
            copy_to => {
                if let Some(to) = copy_to {
                    memmove(descriptor, context);
                    debug_assert_eq!(to.addr() as u64, descriptor.target);
                }
                if flags.has(Flags::CRC_BYPASS_REFLECT) {
                    crc_unreflected(kernels, from, bytes, seed)
                } else {
                    (kernels.crc32c)(from, bytes, seed)
                }
            }
        };
        if inverts { value } else { (!value).reverse_bits() }
    }
}

/// Computes the CRC of the data in its own bit order, as the reflected CRC of the bit-reversed bytes.
unsafe fn crc_unreflected(kernels: &Kernels, from: *const u8, bytes: usize, mut value: u32) -> u32 {
    let mut reversed = [0u8; 4096];
    let mut done = 0;
    while done < bytes {
        let part = (bytes - done).min(reversed.len());
        // SAFETY: `done + part` is at most `bytes`, which the caller promises; the buffer holds `part`.
        unsafe {
            (kernels.copy)(reversed.as_mut_ptr(), from.add(done), part);
            reversed[..part].iter_mut().for_each(|byte| *byte = byte.reverse_bits());
            value = (kernels.crc32c)(reversed.as_ptr(), part, value);
        }
        done += part;
    }
    value
}

const PAGE_BYTES: usize = 4096;

/// Reads a byte of every page, so that later accesses find the page mapped.
unsafe fn touch(descriptor: &Descriptor) {
    let bytes = descriptor.size as usize;
    let stride = (descriptor.operation[1] as u32 as usize).max(1).next_multiple_of(PAGE_BYTES);
    for offset in (0..bytes).step_by(stride) {
        // SAFETY: `offset` lies in the range, which the caller promises to be readable.
        unsafe { source(descriptor.source).add(offset).read_volatile() };
    }
}

unsafe fn flush(descriptor: &Descriptor) {
    let (from, bytes) = (source(descriptor.target), descriptor.size as usize);
    // SAFETY: the caller promises that the range is valid. On a CPU without a flush instruction nothing needs to be done:
    // the range is coherent for every reader in software.
    unsafe { cache_flush(from, bytes) };
}

/// Reads the last byte of the target, so that the stores have arrived before the record is written.
unsafe fn read_back(descriptor: &Descriptor) {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    if matches!(descriptor.opcode(), Opcode::NOOP | Opcode::DRAIN) || descriptor.size == 0 {
        return;
    }
    // SAFETY: operations that may carry READBACK write `size` bytes at the target (DELTA_CREATE reads them), which the
    // caller promises.
    unsafe { source(descriptor.target).add(descriptor.size as usize - 1).read_volatile() };
}
