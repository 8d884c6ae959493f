// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SEAL, OPEN, PACK and UNPACK in software.
//!
//! Flow     hint PRIVATE: kernel straight from source to target. Else, as another process may change the bytes
//!          meanwhile: block ──copy──▶ this thread's scratch ──kernel, in place──▶ scratch ──copy──▶ target
//! Order    a byte of shared memory is read once and written once, so that what is checked is what is used
//! Owner    scratch belongs to the thread: 64 KiB, the codec's tables, and what larger streams need while they run
//! Failure  OPEN with a wrong tag zeroes the target; PACK and UNPACK leave what they wrote inside the capacity
//!
//! While a staged OPEN of more than one block runs, its target holds plaintext that is not verified: who can read
//! the target must wait for the record. Deflate streams of more than 1 MiB are packed piece by piece; what has no
//! streaming form (LZ4, Zstandard, unpacking) is copied as a whole, or ends with NO_SCRATCH.

use super::execute::Context;
use super::record;
use crate::codec::aead::{Key, Stream, tags_equal};
use crate::codec::deflate::{self, Flush, PackStream};
use crate::codec::{Codec, CodecError};
use memlift_kernels::CopyFn;
use memlift_spec::operand::{HINT_PRIVATE, PREPARED_KERNELS, TAG_BYTES};
use memlift_spec::{Completion, Descriptor, Effort, Flags, Format, Opcode, PackBlock, SealBlock, Status};
use std::cell::RefCell;
use std::ptr;

/// What is staged at once: with its source and target lines it stays in the second-level cache.
const BLOCK_BYTES: usize = 64 * 1024;
/// Up to this size a deflate stream is staged and packed as a whole.
const WHOLE_BYTES: usize = 1 << 20;

struct Scratch {
    block: Box<[u8]>,
    source: Vec<u8>,
    target: Vec<u8>,
    codec: Codec,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        block: vec![0; BLOCK_BYTES].into_boxed_slice(),
        source: Vec::new(),
        target: Vec::new(),
        codec: Codec::new(),
    });
}

impl Scratch {
    /// Large messages do not keep their memory.
    fn trim(&mut self) {
        for buffer in [&mut self.source, &mut self.target] {
            if buffer.len() > WHOLE_BYTES {
                *buffer = Vec::new();
            }
        }
    }
}

/// How results get from scratch to the target.
#[derive(Clone, Copy)]
struct Out {
    copy: CopyFn,
    ordered: bool,
}

impl Out {
    fn new(descriptor: &Descriptor, context: &Context<'_>) -> Out {
        let kernels = context.hands.kernels();
        let copy = if context.streams(descriptor) { kernels.copy_nt } else { kernels.copy };
        Out { copy, ordered: descriptor.flags().has(Flags::STRICT_ORDER) }
    }

    /// # Safety
    ///
    /// The target is writable for the slice's length.
    unsafe fn put(self, target: *mut u8, from: &[u8]) {
        // SAFETY: passed on from the caller; scratch never overlaps what submitters lend.
        unsafe {
            if self.ordered {
                super::execute::copy_in_order(target, from.as_ptr(), from.len());
            } else {
                (self.copy)(target, from.as_ptr(), from.len());
            }
        }
    }
}

/// Runs a validated descriptor of one of the four opcodes.
///
/// # Safety
///
/// Its addresses, and those in its operand block, are valid for their use.
pub(super) unsafe fn run(descriptor: &Descriptor, context: &Context<'_>) -> Completion {
    SCRATCH.with_borrow_mut(|scratch| {
        // SAFETY: passed on from the caller.
        let done = unsafe {
            match descriptor.opcode() {
                Opcode::SEAL | Opcode::OPEN => cipher(descriptor, context, scratch),
                _ => code(descriptor, context, scratch),
            }
        };
        scratch.trim();
        done
    })
}

/// The key that a block names.
enum Named<'a> {
    Prepared(&'a Key),
    Expanded(Key),
}

unsafe fn cipher(descriptor: &Descriptor, context: &Context<'_>, scratch: &mut Scratch) -> Completion {
    let bytes = descriptor.size as usize;
    let block = ptr::with_exposed_provenance_mut::<SealBlock>(descriptor.operand_address() as usize);
    let source = ptr::with_exposed_provenance::<u8>(descriptor.source as usize);
    let target = ptr::with_exposed_provenance_mut::<u8>(descriptor.target as usize);
    // SAFETY: validation checked alignment and header, the caller vouches for the block and what it points to.
    // Key and additional data are the submitter's own, not a peer's: only source and target may change meanwhile.
    let (asked, named, aad) = unsafe {
        let asked = block.read();
        let named = if asked.prepared_kind == PREPARED_KERNELS && asked.prepared_address != 0 {
            Named::Prepared(&*ptr::with_exposed_provenance::<Key>(asked.prepared_address as usize))
        } else {
            let key = ptr::with_exposed_provenance::<u8>(asked.key_address as usize);
            match Key::new(std::slice::from_raw_parts(key, asked.key_bytes as usize)) {
                Ok(key) => Named::Expanded(key),
                Err(_) => return record::ended(Status::BAD_KEY_SIZE),
            }
        };
        let aad: &[u8] = if asked.aad_bytes == 0 {
            &[]
        } else {
            let aad = ptr::with_exposed_provenance::<u8>(asked.aad_address as usize);
            std::slice::from_raw_parts(aad, asked.aad_bytes as usize)
        };
        (asked, named, aad)
    };
    let key = match &named {
        Named::Prepared(key) => key,
        Named::Expanded(key) => key,
    };
    let seals = descriptor.opcode() == Opcode::SEAL;
    let out = Out::new(descriptor, context);
    let private = asked.hints & HINT_PRIVATE != 0 && !out.ordered;
    // SAFETY: the caller vouches for source and target; validation checked that they are equal or apart.
    let tag = unsafe {
        if private && seals {
            Some(key.seal(&asked.nonce, aad, source, target, bytes))
        } else if private {
            key.open(&asked.nonce, aad, &asked.tag, source, target, bytes).ok().map(|()| asked.tag)
        } else {
            let tag = staged_cipher(key, &asked, aad, (source, target, bytes), context, out, scratch);
            (seals || tags_equal(&tag, &asked.tag)).then_some(tag)
        }
    };
    match tag {
        Some(tag) => {
            if seals {
                // SAFETY: as above; the submitter waits for the record before it reads the tag.
                unsafe { ptr::addr_of_mut!((*block).tag).cast::<[u8; TAG_BYTES]>().write(tag) };
            }
            Completion { bytes_completed: descriptor.size, ..record::ended(Status::SUCCESS) }
        }
        None => {
            // SAFETY: as above.
            unsafe { (context.hands.kernels().fill)(target, 0, bytes) };
            scratch.block.fill(0);
            record::ended(Status::WRONG_TAG)
        }
    }
}

unsafe fn staged_cipher(
    key: &Key,
    asked: &SealBlock,
    aad: &[u8],
    (source, target, bytes): (*const u8, *mut u8, usize),
    context: &Context<'_>,
    out: Out,
    scratch: &mut Scratch,
) -> [u8; TAG_BYTES] {
    let stage = scratch.block.as_mut_ptr();
    let seals = asked.opcode == Opcode::SEAL.0;
    // SAFETY: every piece lies in the caller's ranges and is at most a block of scratch.
    unsafe {
        if seals && bytes <= BLOCK_BYTES {
            (context.hands.kernels().copy)(stage, source, bytes);
            let tag = key.seal(&asked.nonce, aad, stage, stage, bytes);
            out.put(target, &scratch.block[..bytes]);
            return tag;
        }
        let mut stream =
            if seals { Stream::seal(key, &asked.nonce) } else { Stream::open(key, &asked.nonce) };
        stream.aad(aad);
        let mut done = 0;
        while done < bytes {
            let part = (bytes - done).min(BLOCK_BYTES);
            (context.hands.kernels().copy)(stage, source.add(done), part);
            stream.update(stage, stage, part);
            out.put(target.add(done), &scratch.block[..part]);
            done += part;
        }
        stream.finish()
    }
}

fn failed(error: CodecError) -> Completion {
    record::ended(match error {
        CodecError::TargetTooSmall => Status::TARGET_TOO_SMALL,
        CodecError::Unsupported { .. } => Status::BAD_FORMAT,
        _ => Status::CORRUPT_STREAM,
    })
}

unsafe fn code(descriptor: &Descriptor, context: &Context<'_>, scratch: &mut Scratch) -> Completion {
    let bytes = descriptor.size as usize;
    let block = ptr::with_exposed_provenance::<PackBlock>(descriptor.operand_address() as usize);
    // SAFETY: validation checked alignment and header, the caller vouches for the memory.
    let asked = unsafe { block.read() };
    let formats = Format::from_code(asked.format).zip(Effort::from_code(asked.effort));
    let Some((format, effort)) = formats else { return record::ended(Status::BAD_FORMAT) };
    let capacity = asked.target_capacity as usize;
    let source = ptr::with_exposed_provenance::<u8>(descriptor.source as usize);
    let target = ptr::with_exposed_provenance_mut::<u8>(descriptor.target as usize);
    let packs = descriptor.opcode() == Opcode::PACK;
    let out = Out::new(descriptor, context);
    let mut run = |source: &[u8], target: &mut [u8]| -> Result<(usize, usize), CodecError> {
        if packs {
            scratch.codec.pack(format, effort, source, target).map(|written| (source.len(), written))
        } else {
            scratch.codec.unpack(format, source, target).map(|done| (done.read, done.written))
        }
    };
    // SAFETY: for all of it: the caller vouches for both ranges, validation that they are apart. A slice is made
    // of them only under the hint that nobody else touches them.
    let ended = unsafe {
        if asked.hints & HINT_PRIVATE != 0 && !out.ordered {
            let from: &[u8] = if bytes == 0 { &[] } else { std::slice::from_raw_parts(source, bytes) };
            let to: &mut [u8] =
                if capacity == 0 { &mut [] } else { std::slice::from_raw_parts_mut(target, capacity) };
            run(from, to)
        } else if packs && bytes > WHOLE_BYTES && streams(format) {
            pack_in_pieces(format, effort, (source, bytes), (target, capacity), context, out, scratch)
        } else {
            let most = if packs { capacity.min(crate::codec::bound(format, bytes)) } else { capacity };
            if !reserve(&mut scratch.source, bytes) || !reserve(&mut scratch.target, most) {
                return record::ended(Status::NO_SCRATCH);
            }
            (context.hands.kernels().copy)(scratch.source.as_mut_ptr(), source, bytes);
            let result = run(&scratch.source[..bytes], &mut scratch.target[..most]);
            if let Ok((_, written)) = result {
                out.put(target, &scratch.target[..written]);
            }
            result
        }
    };
    match ended {
        Ok((read, written)) => Completion {
            bytes_completed: read as u32,
            value: written as u64,
            ..record::ended(Status::SUCCESS)
        },
        Err(error) => failed(error),
    }
}

/// Makes `buffer` at least `bytes` long; `false`: there is no memory. Fresh pages are the kernel's zero pages.
fn reserve(buffer: &mut Vec<u8>, bytes: usize) -> bool {
    if buffer.len() < bytes {
        if Vec::<u8>::new().try_reserve_exact(bytes).is_err() {
            return false;
        }
        *buffer = vec![0; bytes.max(BLOCK_BYTES)];
    }
    true
}

fn streams(format: Format) -> bool {
    matches!(format, Format::Deflate | Format::Zlib | Format::Gzip)
}

unsafe fn pack_in_pieces(
    format: Format,
    effort: Effort,
    (source, bytes): (*const u8, usize),
    (target, capacity): (*mut u8, usize),
    context: &Context<'_>,
    out: Out,
    scratch: &mut Scratch,
) -> Result<(usize, usize), CodecError> {
    let format = match format {
        Format::Deflate => deflate::Format::Raw,
        Format::Zlib => deflate::Format::Zlib,
        _ => deflate::Format::Gzip,
    };
    let effort = match effort {
        Effort::Fast => deflate::Effort::Fast,
        Effort::Small => deflate::Effort::Small,
        _ => deflate::Effort::Default,
    };
    let mut stream = PackStream::new(format, effort);
    let (piece, packed) = scratch.block.split_at_mut(BLOCK_BYTES / 2);
    let (mut read, mut written) = (0, 0);
    loop {
        let part = (bytes - read).min(piece.len());
        // SAFETY: the part lies in the caller's source and fits into the piece.
        unsafe { (context.hands.kernels().copy)(piece.as_mut_ptr(), source.add(read), part) };
        read += part;
        let flush = if read == bytes { Flush::Finish } else { Flush::None };
        let mut rest = &piece[..part];
        loop {
            let pushed = stream.push(rest, packed, flush);
            rest = &rest[pushed.read..];
            if pushed.written > capacity - written {
                return Err(CodecError::TargetTooSmall);
            }
            // SAFETY: what is written so far and now fits into the capacity.
            unsafe { out.put(target.add(written), &packed[..pushed.written]) };
            written += pushed.written;
            if !pushed.more && rest.is_empty() {
                break;
            }
        }
        if read == bytes {
            return Ok((read, written));
        }
    }
}
