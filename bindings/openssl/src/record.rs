// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TLS 1.2 records (RFC 5288), whose nonce has 4 fixed bytes and 8 bytes that are sent with the record.
//!
//! - **Flow** [`set_fixed`] once per key; then per record [`announce`] (the 13 bytes that are authenticated) and [`cipher`]: explicit
//!   nonce, payload and tag in one buffer, one AEAD call.
//! - **Layout** buffer: 8 bytes of nonce, payload, 16 bytes of tag. Additional data: sequence number 8, type 1, version 2, length 2. The
//!   length is given as that of the buffer, and authenticated as that of the payload.
//! - **Order** the explicit nonce is increased by one per sealed record, from a random start; after 2⁶⁴ − 1 records a key seals no more.
//!   A record that fails leaves zeros instead of plaintext.

use crate::abi::Reason;
use crate::context::{ADDITIONAL_BYTES, Context, Nonce, random};
use memlift_kernels::aead::TAG_BYTES;

const FIXED_BYTES: usize = 4;
const EXPLICIT_BYTES: usize = 8;

/// Sets the additional data of the next record.
pub fn announce(context: &mut Context, additional: &[u8]) -> Result<(), Reason> {
    let mut additional = <[u8; ADDITIONAL_BYTES]>::try_from(additional).map_err(|_| Reason::InvalidAad)?;
    let around = if context.seals { EXPLICIT_BYTES } else { EXPLICIT_BYTES + TAG_BYTES };
    let length = u16::from_be_bytes([additional[11], additional[12]]);
    let payload = length.checked_sub(around as u16).ok_or(Reason::InvalidAad)?;
    additional[11..].copy_from_slice(&payload.to_be_bytes());
    context.record.announced = Some(additional);
    context.record.pad_bytes = TAG_BYTES;
    Ok(())
}

/// Sets the fixed field of the nonce; if the context seals, the rest starts at random.
pub fn set_fixed(context: &mut Context, fixed: &[u8]) -> bool {
    let bytes = context.nonce_bytes;
    if fixed.len() < FIXED_BYTES || fixed.len() + EXPLICIT_BYTES > bytes {
        return false;
    }
    context.nonce_field[..fixed.len()].copy_from_slice(fixed);
    if context.seals && !random(&mut context.nonce_field[fixed.len()..bytes]) {
        return false;
    }
    context.nonce_counts = true;
    context.nonce = Nonce::Ready;
    true
}

/// Sets a whole nonce, which is increased per record from now on.
pub fn set_whole(context: &mut Context, nonce: &[u8]) {
    context.nonce_field[..nonce.len()].copy_from_slice(nonce);
    context.nonce_counts = true;
    context.nonce = Nonce::Ready;
}

/// Begins a message under the next counted nonce and writes its last bytes to `target`; returns false if that is not possible.
pub fn next_nonce(context: &mut Context, target: &mut [u8]) -> bool {
    let bytes = context.nonce_bytes;
    if !context.nonce_counts || bytes < EXPLICIT_BYTES || target.len() > bytes || !context.begin() {
        return false;
    }
    target.copy_from_slice(&context.nonce_field[bytes - target.len()..bytes]);
    advance(context);
    true
}

/// Begins a message under a nonce whose last bytes came from the peer.
pub fn peer_nonce(context: &mut Context, last: &[u8]) -> bool {
    if !place_peer_nonce(context, last) {
        return false;
    }
    context.begin()
}

fn place_peer_nonce(context: &mut Context, last: &[u8]) -> bool {
    let bytes = context.nonce_bytes;
    if !context.nonce_counts || !context.keyed() || context.seals || last.len() > bytes {
        return false;
    }
    context.nonce_field[bytes - last.len()..bytes].copy_from_slice(last);
    true
}

fn advance(context: &mut Context) {
    let bytes = context.nonce_bytes;
    let counter = &mut context.nonce_field[bytes - EXPLICIT_BYTES..bytes];
    for byte in counter.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            break;
        }
    }
}

/// Seals or opens the announced record in place. Returns the bytes of the whole record (sealing) or of its payload (opening).
///
/// # Safety
/// `buffer` must be readable and writable for `bytes` bytes.
pub unsafe fn cipher(
    context: &mut Context,
    additional: &[u8; ADDITIONAL_BYTES],
    buffer: *mut u8,
    bytes: usize,
) -> Result<usize, Option<Reason>> {
    context.record.announced = None;
    let Some(payload_bytes) = bytes.checked_sub(EXPLICIT_BYTES + TAG_BYTES) else { return Err(None) };
    if !context.keyed() || !context.nonce_counts || context.nonce_bytes < EXPLICIT_BYTES {
        return Err(None);
    }
    context.nonce = Nonce::Spent;
    let nonce_bytes = context.nonce_bytes;
    // SAFETY: the caller guarantees the buffer; nonce, payload and tag lie in it one after the other and do not overlap.
    unsafe {
        let explicit = &mut *buffer.cast::<[u8; EXPLICIT_BYTES]>();
        let payload = buffer.add(EXPLICIT_BYTES);
        let tag = &mut *payload.add(payload_bytes).cast::<[u8; TAG_BYTES]>();
        if context.seals {
            context.record.sealed = context.record.sealed.checked_add(1).ok_or(Reason::TooManyRecords)?;
            explicit.copy_from_slice(&context.nonce_field[nonce_bytes - EXPLICIT_BYTES..nonce_bytes]);
            let sealed = context.cipher_message(additional, payload, payload, payload_bytes, tag);
            advance(context);
            context.nonce = Nonce::Spent;
            if sealed { Ok(bytes) } else { Err(None) }
        } else {
            if !place_peer_nonce(context, explicit) {
                return Err(None);
            }
            let mut expected = *tag;
            let right = context.cipher_message(additional, payload, payload, payload_bytes, &mut expected);
            context.nonce = Nonce::Spent;
            if right { Ok(payload_bytes) } else { Err(None) }
        }
    }
}
