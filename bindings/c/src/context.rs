// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Contexts: the steps of a transform, and the outcome of the last call.
//!
//! - **Flow** `memlift_context_new` ──`memlift_add_…`*──▶ steps ──[`Context::with_op`]──▶ a step or a chain of the service.
//! - **Owner** the context has its own copies of keys (expanded once) and additional data, which are freed and zeroed with it.
//! - **Order** one thread at a time. A nonce seals one message: before the next message is sealed, `memlift_set_nonce` must be called.

use crate::fault::{self, Fault, free, make, run};
use memlift::spec::Opcode;
use memlift::transform::{
    Chain, Error, Format, Key, Op, Options, Outcome, Packing, Patience, Step, Transform,
};
use std::ffi::{c_char, c_int};
use std::sync::Arc;
use std::time::Duration;

/// Most steps of a context; no valid chain has more.
const STEPS: usize = 8;

/// Object behind a `memlift_context` pointer.
#[derive(Default)]
pub struct Context {
    steps: Vec<Owned>,
    /// Block size of a framed chain; 0 for a flat chain.
    block_bytes: usize,
    /// True if the nonce has sealed a message.
    spent: bool,
    pub(crate) options: Options,
    pub(crate) outcome: COutcome,
}

/// A step with its own copies of key and additional data.
enum Owned {
    Crc32c { seed: u32 },
    Seal { key: Arc<Key>, nonce: [u8; 12], aad: Vec<u8> },
    Open { key: Arc<Key>, nonce: [u8; 12], aad: Vec<u8>, tag: [u8; 16] },
    Pack { format: Format, packing: Packing },
    Unpack { format: Format },
}

/// The C type `memlift_outcome` of `memlift.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct COutcome {
    read: u64,
    written: u64,
    has: u32,
    crc: u32,
    crc_after: u32,
    store: u32,
    why: u32,
    contended: u32,
    tag: [u8; 16],
}

const _: () = assert!(size_of::<COutcome>() == 56 && align_of::<COutcome>() == 8);
const _: () = assert!(std::mem::offset_of!(COutcome, tag) == 40);

const HAS_TAG: u32 = 1;
const HAS_CRC: u32 = 2;
const HAS_CRC_AFTER: u32 = 4;

impl Owned {
    fn step(&self) -> Step<'_> {
        match self {
            Owned::Crc32c { seed } => Step::Crc32c { seed: *seed },
            Owned::Seal { key, nonce, aad } => Step::Seal { key, nonce: *nonce, aad },
            Owned::Open { key, nonce, aad, tag } => Step::Open { key, nonce: *nonce, aad, tag: *tag },
            Owned::Pack { format, packing } => Step::Pack { format: *format, packing: *packing },
            Owned::Unpack { format } => Step::Unpack { format: *format },
        }
    }
}

impl Context {
    fn with_op<R>(&self, body: impl FnOnce(Op<'_>) -> Result<R, Error>) -> Result<R, Error> {
        let mut steps = [Step::Copy; STEPS];
        for (to, owned) in steps.iter_mut().zip(&self.steps) {
            *to = owned.step();
        }
        let steps = &steps[..self.steps.len()];
        let op = match (steps, self.block_bytes) {
            ([], 0) => Op::Step(Step::Copy),
            ([step], 0) => Op::Step(*step),
            (steps, 0) => Op::Chain(Chain::new(steps)?),
            (steps, block_bytes) => Op::Chain(Chain::framed(steps, block_bytes)?),
        };
        body(op)
    }

    /// Runs `body` and stores the outcome; refuses a nonce that has already sealed a message.
    pub(crate) fn transform(
        &mut self,
        body: impl FnOnce(Op<'_>, &Options) -> Result<Outcome, Error>,
    ) -> Result<(), Fault> {
        self.outcome = COutcome::default();
        let seals = self.steps.iter().any(|step| matches!(step, Owned::Seal { .. }));
        if seals && self.spent {
            return Err(Fault::order(
                "this nonce has sealed a message: give the next one its own by memlift_set_nonce",
            ));
        }
        let options = self.options;
        let result = self.with_op(|op| body(op, &options));
        // A call that was refused before it started has sealed nothing.
        self.spent = seals
            && !matches!(
                result,
                Err(Error::NotAligned { .. }
                    | Error::Overlap
                    | Error::TargetTooSmall { .. }
                    | Error::Incompressible { .. }
                    | Error::TooLong { .. }
                    | Error::Busy { .. }
                    | Error::Chain(_)
                    | Error::Unsupported { .. })
            );
        let outcome = result?;
        self.outcome = COutcome {
            read: outcome.read as u64,
            written: outcome.written as u64,
            has: outcome.tag.map_or(0, |_| HAS_TAG)
                | outcome.crc.map_or(0, |_| HAS_CRC)
                | outcome.crc_after.map_or(0, |_| HAS_CRC_AFTER),
            crc: outcome.crc.unwrap_or(0),
            crc_after: outcome.crc_after.unwrap_or(0),
            store: outcome.decision.store as u32,
            why: outcome.decision.why as u32,
            contended: outcome.decision.contended.into(),
            tag: outcome.tag.unwrap_or_default(),
        };
        Ok(())
    }

    fn add(&mut self, step: Owned) -> Result<(), Fault> {
        if self.steps.len() == STEPS {
            return Err(Error::Chain("no chain has so many steps: see memlift.h for those there are").into());
        }
        self.spent = false;
        self.steps.push(step);
        // The chain may still be incomplete, so the call that runs it checks it.
        Ok(())
    }

    /// Returns the opcode that statistics count the chain as.
    fn opcode(&self) -> Opcode {
        let of = |step: &Owned| match step {
            Owned::Pack { .. } => (2, Opcode::PACK),
            Owned::Unpack { .. } => (2, Opcode::UNPACK),
            Owned::Seal { .. } => (1, Opcode::SEAL),
            Owned::Open { .. } => (1, Opcode::OPEN),
            Owned::Crc32c { .. } => (0, Opcode::COPY_CRC),
        };
        self.steps.iter().map(of).max_by_key(|(rank, _)| *rank).map_or(Opcode::MEMMOVE, |(_, opcode)| opcode)
    }
}

/// Borrows a context, and refuses null.
///
/// # Safety
///
/// `context` is null, or came from `memlift_context_new`, and nobody else uses it during the call.
pub(crate) unsafe fn context<'a>(context: *mut Context) -> Result<&'a mut Context, Fault> {
    // SAFETY: the caller guarantees that `context` is null, or was boxed by `memlift_context_new` and not freed, and that no
    // other thread uses it during the call.
    unsafe { context.as_mut() }
        .ok_or_else(|| Fault::argument("context is NULL: make one by memlift_context_new"))
}

/// Borrows `bytes` bytes at `start`, which may be null if there are none.
///
/// # Safety
///
/// `start` is readable for `bytes` bytes.
pub(crate) unsafe fn slice<'a>(start: *const u8, bytes: usize, what: &str) -> Result<&'a [u8], Fault> {
    if bytes == 0 {
        return Ok(&[]);
    }
    if start.is_null() || isize::try_from(bytes).is_err() {
        return Err(Fault::argument(&format!("{what} is NULL, or larger than memory")));
    }
    // SAFETY: the caller guarantees `bytes` readable bytes; `start` is not null and `bytes` at most `isize::MAX`, as checked
    // above.
    Ok(unsafe { std::slice::from_raw_parts(start, bytes) })
}

/// Copies `N` bytes from `start`, and refuses null.
///
/// # Safety
///
/// `start` is null, or readable for `N` bytes.
pub(crate) unsafe fn array<const N: usize>(start: *const u8, what: &str) -> Result<[u8; N], Fault> {
    // SAFETY: `start` is null or readable for `N` bytes, as the caller guarantees.
    let bytes = unsafe { slice(start, N, what)? };
    bytes.try_into().map_err(|_| Fault::argument(what))
}

pub(crate) fn key(bytes: &[u8]) -> Result<Arc<Key>, Fault> {
    Key::new(bytes).map_err(|error| Error::from(error).into())
}

pub(crate) fn format(code: c_int) -> Result<Format, Fault> {
    let format = u8::try_from(code).ok().and_then(Format::from_code);
    format.ok_or_else(|| Fault::argument("no such format: one of MEMLIFT_DEFLATE to MEMLIFT_PAGES"))
}

fn packing(code: c_int) -> Result<Packing, Fault> {
    match code {
        0 => Ok(Packing::Fast),
        1 => Ok(Packing::Default),
        2 => Ok(Packing::Small),
        3 => Ok(Packing::Adaptive),
        _ => Err(Fault::argument("no such effort: one of MEMLIFT_FAST to MEMLIFT_ADAPTIVE")),
    }
}

/// Creates a context that copies. Returns null only if there is no memory.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_context_new() -> *mut Context {
    make(|| Ok(Context::default()))
}

/// Frees a context; null is allowed.
///
/// # Safety
///
/// `context` came from `memlift_context_new`, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_context_free(context: *mut Context) {
    // SAFETY: null, or boxed by `memlift_context_new`; the caller gives it up.
    unsafe { free(context) };
}

/// Adds a step: CRC-32C of the bytes that pass it.
///
/// # Safety
///
/// The conditions of [`context`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_add_crc32c(context: *mut Context, seed: u32) -> c_int {
    // SAFETY: `context` is null, or ours and used by this thread alone, as the caller guarantees.
    run(|| unsafe { self::context(context) }?.add(Owned::Crc32c { seed }))
}

/// Adds a step: seals with AES-GCM.
///
/// # Safety
///
/// The conditions of [`context`]; `key` and `aad` are readable for their lengths, `nonce` for 12 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_add_seal(
    context: *mut Context,
    key: *const u8,
    key_bytes: usize,
    nonce: *const u8,
    aad: *const u8,
    aad_bytes: usize,
) -> c_int {
    // SAFETY: `context` is null, or ours and used by this thread alone; `key` and `aad` are readable for their bytes and `nonce`
    // for 12, as the caller guarantees.
    run(|| unsafe {
        let context = self::context(context)?;
        let (key, aad) = (self::key(slice(key, key_bytes, "key")?)?, slice(aad, aad_bytes, "aad")?.to_vec());
        context.add(Owned::Seal { key, nonce: array(nonce, "nonce")?, aad })
    })
}

/// Adds a step: opens with AES-GCM.
///
/// # Safety
///
/// The conditions of `memlift_add_seal`; `tag` is null or readable for 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_add_open(
    context: *mut Context,
    key: *const u8,
    key_bytes: usize,
    nonce: *const u8,
    aad: *const u8,
    aad_bytes: usize,
    tag: *const u8,
) -> c_int {
    // SAFETY: `context` is null, or ours and used by this thread alone; `key` and `aad` are readable for their bytes, `nonce` for
    // 12, and `tag` is null or readable for 16, as the caller guarantees.
    run(|| unsafe {
        let context = self::context(context)?;
        let (key, aad) = (self::key(slice(key, key_bytes, "key")?)?, slice(aad, aad_bytes, "aad")?.to_vec());
        let tag = if tag.is_null() { [0; 16] } else { array(tag, "tag")? };
        context.add(Owned::Open { key, nonce: array(nonce, "nonce")?, aad, tag })
    })
}

/// Adds a step: compresses.
///
/// # Safety
///
/// The conditions of [`context`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_add_pack(context: *mut Context, format: c_int, effort: c_int) -> c_int {
    run(|| {
        let step = Owned::Pack { format: self::format(format)?, packing: packing(effort)? };
        // SAFETY: `context` is null, or ours and used by this thread alone, as the caller guarantees.
        unsafe { self::context(context) }?.add(step)
    })
}

/// Adds a step: decompresses.
///
/// # Safety
///
/// The conditions of [`context`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_add_unpack(context: *mut Context, format: c_int) -> c_int {
    run(|| {
        let format = self::format(format)?;
        // SAFETY: `context` is null, or ours and used by this thread alone, as the caller guarantees.
        unsafe { self::context(context) }?.add(Owned::Unpack { format })
    })
}

/// Makes the chain framed, with `block_bytes` plain bytes per block; 0 makes it flat.
///
/// # Safety
///
/// The conditions of [`context`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_set_frames(context: *mut Context, block_bytes: usize) -> c_int {
    run(|| {
        // SAFETY: `context` is null, or ours and used by this thread alone, as the caller guarantees.
        let context = unsafe { self::context(context) }?;
        let before = std::mem::replace(&mut context.block_bytes, block_bytes);
        if let Err(error) = context.with_op(|_| Ok(())) {
            context.block_bytes = before;
            return Err(error.into());
        }
        Ok(())
    })
}

/// Sets the nonce of the next message; the key stays the same.
///
/// # Safety
///
/// The conditions of [`context`]; `nonce` is readable for 12 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_set_nonce(context: *mut Context, nonce: *const u8) -> c_int {
    // SAFETY: `context` is null, or ours and used by this thread alone; `nonce` is null or readable for 12 bytes, as the caller
    // guarantees.
    run(|| unsafe {
        let (context, new) = (self::context(context)?, array(nonce, "nonce")?);
        for step in &mut context.steps {
            if let Owned::Seal { nonce, .. } | Owned::Open { nonce, .. } = step {
                *nonce = new;
                context.spent = false;
                return Ok(());
            }
        }
        Err(Fault::order("this context neither seals nor opens: it has no nonce"))
    })
}

/// Sets the additional data of the next message.
///
/// # Safety
///
/// The conditions of [`context`]; `aad` is readable for `aad_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_set_aad(context: *mut Context, aad: *const u8, aad_bytes: usize) -> c_int {
    // SAFETY: the caller guarantees that `context` is null, or ours and used by this thread alone, and that `aad` is readable for
    // `aad_bytes`.
    run(|| unsafe {
        let (context, new) = (self::context(context)?, slice(aad, aad_bytes, "aad")?);
        for step in &mut context.steps {
            if let Owned::Seal { aad, .. } | Owned::Open { aad, .. } = step {
                aad.clear();
                aad.extend_from_slice(new);
                return Ok(());
            }
        }
        Err(Fault::order("this context neither seals nor opens: it has no additional data"))
    })
}

/// Sets the tag of the next message to open.
///
/// # Safety
///
/// The conditions of [`context`]; `tag` is readable for 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_set_tag(context: *mut Context, tag: *const u8) -> c_int {
    // SAFETY: `context` is null, or ours and used by this thread alone; `tag` is null or readable for 16 bytes, as the caller
    // guarantees.
    run(|| unsafe {
        let (context, new) = (self::context(context)?, array(tag, "tag")?);
        for step in &mut context.steps {
            if let Owned::Open { tag, .. } = step {
                *tag = new;
                return Ok(());
            }
        }
        Err(Fault::order("this context does not open: it takes no tag"))
    })
}

/// Sets how long `memlift_transform` waits for scratch memory, in milliseconds; a negative number means without limit.
///
/// # Safety
///
/// The conditions of [`context`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_set_patience(context: *mut Context, milliseconds: i64) -> c_int {
    run(|| {
        // SAFETY: `context` is null, or ours and used by this thread alone, as the caller guarantees.
        unsafe { self::context(context) }?.options.patience = match u64::try_from(milliseconds) {
            Err(_) => Patience::Wait,
            Ok(0) => Patience::None,
            Ok(milliseconds) => Patience::AtMost(Duration::from_millis(milliseconds)),
        };
        Ok(())
    })
}

/// Returns the target bytes that always suffice; `SIZE_MAX` if that is not known.
///
/// # Safety
///
/// The conditions of [`context`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_bound(context: *mut Context, source_bytes: usize) -> usize {
    let mut bound = usize::MAX;
    run(|| {
        // SAFETY: `context` is null, or ours and used by this thread alone, as the caller guarantees.
        let context = unsafe { self::context(context) }?;
        bound = context.with_op(|op| Ok(op.bound(source_bytes)))?.unwrap_or(usize::MAX);
        Ok(())
    });
    bound
}

/// Writes the outcome of the last successful call; zeros if the last call failed.
///
/// # Safety
///
/// The conditions of [`context`]; `outcome` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_result(context: *mut Context, outcome: *mut COutcome) -> c_int {
    run(|| {
        if outcome.is_null() {
            return Err(Fault::argument("outcome is NULL"));
        }
        // SAFETY: the caller guarantees that `outcome`, which is not null, is writable, and that `context` is null, or ours and
        // used by this thread alone.
        unsafe { outcome.write(self::context(context)?.outcome) };
        Ok(())
    })
}

/// Writes a text that explains how messages of this kind and size are placed now. Returns the length of the whole text without
/// its zero, as `snprintf` does.
///
/// # Safety
///
/// The conditions of [`context`]; `text` is writable for `text_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_explain(
    context: *mut Context,
    source_bytes: usize,
    text: *mut c_char,
    text_bytes: usize,
) -> c_int {
    let mut bytes = 0;
    let code = run(|| {
        // SAFETY: `context` is null, or ours and used by this thread alone, as the caller guarantees.
        let opcode = unsafe { self::context(context) }?.opcode();
        if text.is_null() && text_bytes > 0 {
            return Err(Fault::argument("text is NULL"));
        }
        let words = Transform::global().explain(opcode, source_bytes).to_string();
        bytes = words.len() as c_int;
        if text_bytes > 0 {
            let fits = words.len().min(text_bytes - 1);
            // SAFETY: the caller guarantees `text_bytes` writable bytes, and `fits` with the zero is at most that.
            unsafe {
                std::ptr::copy_nonoverlapping(words.as_ptr(), text.cast(), fits);
                text.add(fits).write(0);
            }
        }
        Ok(())
    });
    if code == fault::OK { bytes } else { code }
}
