// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the model leaves open: the bytes that PACK writes, and what lies in a target behind what was written.
//!
//! Flow    model on a copy of the arena, backend on the arena ─▶ `settle` for each descriptor ─▶ both must be equal

use memlift_model::{Image, Memory};
use memlift_spec::{Descriptor, Format, Opcode, Status};

/// Settles what is the backend's choice: what PACK wrote must unpack to its source, and what lies in a target behind
/// the bytes written means nothing. Makes `image` equal to `bytes` there.
pub(crate) fn settle(image: &mut Image<'_>, d: &Descriptor, bytes: &[u8]) -> Result<(), String> {
    let record = image.at(d.completion_address);
    let status = image.bytes[record];
    let ran = [Status::SUCCESS, Status::TARGET_TOO_SMALL, Status::CORRUPT_STREAM].map(|status| status.0);
    if !matches!(d.opcode(), Opcode::PACK | Opcode::UNPACK) || !ran.contains(&status) {
        return Ok(());
    }
    let block = d.operation[0];
    let capacity = image.number(block + 16, 8) as usize;
    let target = image.at(d.target);
    let mut written = image.number(d.completion_address + 16, 8) as usize;
    if d.opcode() == Opcode::PACK && status == Status::SUCCESS.0 && bytes[record] == status {
        let value: [u8; 8] = bytes[record + 16..record + 24].try_into().expect("eight bytes");
        written = u64::from_le_bytes(value) as usize;
        let format = Format::from_code(image.byte(block + 8)).expect("refused otherwise");
        let source = image.bytes(d.source, u64::from(d.size));
        let packed = bytes.get(target..target + written.min(capacity)).unwrap_or_default();
        let unpacked = memlift_model::naive::unpack(format, packed, source.len());
        let whole = unpacked.as_ref().is_ok_and(|done| done.bytes == source && done.read == written);
        if !whole || written > capacity {
            return Err(format!("PACK wrote {written} bytes that do not unpack to its source: {d:x?}"));
        }
        image.bytes[record + 16..record + 24].copy_from_slice(&value);
        image.bytes[target..target + written].copy_from_slice(&bytes[target..target + written]);
    }
    image.bytes[target + written..target + capacity]
        .copy_from_slice(&bytes[target + written..target + capacity]);
    Ok(())
}
