// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SEAL, OPEN, PACK and UNPACK of descriptors that were not refused.
//!
//! Failure  OPEN with a wrong tag zeroes the target; PACK and UNPACK leave it as it was

use crate::execute::ended;
use crate::memory::Memory;
use crate::naive;
use memlift_spec::{Completion, Descriptor, Format, Opcode, Status};

/// The other text, and the tag written or compared.
pub(crate) fn seal(memory: &mut impl Memory, d: &Descriptor) -> Completion {
    let block = d.operation[0];
    let key = memory.bytes(memory.number(block + 8, 8), memory.number(block + 16, 4));
    let aad = memory.bytes(memory.number(block + 32, 8), memory.number(block + 40, 8));
    let nonce = std::array::from_fn(|index| memory.byte(block + 48 + index as u64));
    let text = memory.bytes(d.source, u64::from(d.size));
    let seals = d.opcode() == Opcode::SEAL;
    let (mut other, tag) = naive::gcm(seals, &key, &nonce, &aad, &text);
    let right = seals || tag[..] == memory.bytes(block + 64, 16);
    if !right {
        other.fill(0);
    }
    memory.put(d.target, &other);
    if seals {
        memory.put(block + 64, &tag);
    }
    if !right {
        return ended(Status::WRONG_TAG);
    }
    Completion { bytes_completed: d.size, ..ended(Status::SUCCESS) }
}

/// Packs or unpacks as a whole, then writes what came out.
pub(crate) fn code(memory: &mut impl Memory, d: &Descriptor) -> Completion {
    let block = d.operation[0];
    let capacity = memory.number(block + 16, 8) as usize;
    let Some(format) = Format::from_code(memory.byte(block + 8)) else { return ended(Status::BAD_FORMAT) };
    let source = memory.bytes(d.source, u64::from(d.size));
    let result = if d.opcode() == Opcode::PACK {
        let packed = naive::pack(format, &source);
        if packed.len() > capacity { Err(Status::TARGET_TOO_SMALL) } else { Ok((source.len(), packed)) }
    } else {
        naive::unpack(format, &source, capacity).map(|done| (done.read, done.bytes))
    };
    match result {
        Ok((read, written)) => {
            memory.put(d.target, &written);
            let value = written.len() as u64;
            Completion { bytes_completed: read as u32, value, ..ended(Status::SUCCESS) }
        }
        Err(status) => ended(status),
    }
}
