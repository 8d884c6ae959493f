// SPDX-License-Identifier: Apache-2.0 OR MIT
//! LOG_APPEND, LOG_APPLY, PAGE_COPY and LOG_RESET of descriptors that were not refused.
//!
//! - **Failure** a record that is not applied changes nothing: what it would store is gathered first
//! - **Not here** caches, fences, write-back: every byte that is set is there

use crate::execute::ended;
use crate::memory::Memory;
use crate::naive;
use memlift_spec::{Completion, Descriptor, Opcode, Status};

pub(crate) fn run(memory: &mut impl Memory, d: &Descriptor) -> Completion {
    let block = d.operation[0];
    let salt = memory.number(block + 8, 4) as u32;
    let mut done = Completion { bytes_completed: d.size, ..ended(Status::SUCCESS) };
    match d.opcode() {
        Opcode::LOG_APPEND => {
            let checked = memory.bytes(d.source + 4, u64::from(d.size) - 4);
            let checksum = naive::crc32c(&checked, salt, false, false);
            memory.put(d.source, &checksum.to_le_bytes());
            memory.copy(d.source, d.target, u64::from(d.size));
            done.value = u64::from(checksum);
        }
        Opcode::LOG_APPLY => {
            let position = memory.number(block + 16, 8);
            let heap_bytes = memory.number(block + 24, 8);
            return match read(memory, d, salt, position, heap_bytes) {
                Ok(record) => {
                    let stored: usize = record.stores.iter().map(|(_, bytes)| bytes.len()).sum();
                    record.stores.iter().for_each(|(address, bytes)| memory.put(*address, bytes));
                    Completion {
                        bytes_completed: stored as u32,
                        value: record.sequence,
                        value2: record.bytes,
                        ..done
                    }
                }
                Err(status) => ended(status),
            };
        }
        Opcode::PAGE_COPY => {
            let lines = memory.number(block + 16, 8);
            let mut copied = Vec::new();
            for line in (0..64).filter(|line| lines >> line & 1 == 1) {
                copied.extend(memory.bytes(d.source + 64 * line, 64));
                memory.copy(d.source + 64 * line, d.target + 64 * line, 64);
            }
            done.bytes_completed = copied.len() as u32;
            if memory.number(block + 12, 4) & 8 != 0 {
                done.value = u64::from(naive::crc32c(&copied, salt, false, false));
            }
        }
        _ => memory.copy(block + 64, d.target, 64),
    }
    done
}

/// The stores of a good record, in order.
struct Record {
    bytes: u64,
    sequence: u64,
    stores: Vec<(u64, Vec<u8>)>,
}

fn read(
    memory: &impl Memory,
    d: &Descriptor,
    salt: u32,
    position: u64,
    heap_bytes: u64,
) -> Result<Record, Status> {
    if d.size < 64 {
        return Err(Status::TORN_RECORD);
    }
    let field = |offset: u64, bytes| memory.number(d.source + offset, bytes);
    let (bytes, kind, count) = (field(4, 4), field(24, 1), field(26, 2));
    if bytes == 0 || bytes % 64 != 0 || bytes > u64::from(d.size) || !(1..=4).contains(&kind) {
        return Err(Status::TORN_RECORD);
    }
    if field(8, 8) != position {
        return Err(Status::STALE_RECORD);
    }
    let record = memory.bytes(d.source, bytes);
    if u64::from(naive::crc32c(&record[4..], salt, false, false)) != field(0, 4) {
        return Err(Status::TORN_RECORD);
    }
    // Bytes and their place in the heap; `None`: an entry that does not fit.
    let mut rest = &record[32..];
    let mut stores = Vec::new();
    let mut entry = 0;
    while if count == u64::from(u16::MAX) { !ends(rest, kind) } else { entry < count } {
        entry += 1;
        let first = word(&mut rest).ok_or(Status::RECORD_RANGE)?;
        match kind {
            1 | 4 => {
                let (offset, length) = (first % (1 << 40) * 8, first / (1 << 40) * 8);
                let data = take(&mut rest, length).filter(|data| !data.is_empty());
                stores.push((u128::from(offset), data.ok_or(Status::RECORD_RANGE)?));
            }
            2 => {
                let lines = word(&mut rest).ok_or(Status::RECORD_RANGE)?;
                // Also of an entry without lines.
                if first > u64::MAX / 4096 {
                    return Err(Status::RECORD_RANGE);
                }
                for line in (0..64).filter(|line| lines >> line & 1 == 1) {
                    let data = take(&mut rest, 64).ok_or(Status::RECORD_RANGE)?;
                    stores.push((u128::from(first) * 4096 + 64 * line, data));
                }
            }
            // Pages: nothing to store.
            _ => return Err(Status::RECORD_RANGE),
        }
    }
    if kind == 3 || rest.iter().any(|&byte| byte != 0) {
        return Err(Status::RECORD_RANGE);
    }
    let (own, end) = (u128::from(d.source), u128::from(d.source) + u128::from(bytes));
    let place = |(offset, data): (u128, Vec<u8>)| {
        let start = u128::from(d.target) + offset;
        let after = start + data.len() as u128;
        let inside = after <= u128::from(d.target) + u128::from(heap_bytes);
        if inside && (after <= own || end <= start) {
            Ok((start as u64, data))
        } else {
            Err(Status::RECORD_RANGE)
        }
    };
    let stores = stores.into_iter().map(place).collect::<Result<_, _>>()?;
    Ok(Record { bytes, sequence: field(16, 8), stores })
}

/// Returns true if the entries of a record that does not count them end here. Of lines and pages, the first word may be page 0; the
/// second is a bitmap and not empty.
fn ends(rest: &[u8], kind: u64) -> bool {
    let words = if matches!(kind, 1 | 4) { 1 } else { 2 };
    rest.as_chunks::<8>().0.iter().take(words).all(|word| *word == [0; 8])
}

fn take(rest: &mut &[u8], bytes: u64) -> Option<Vec<u8>> {
    if bytes > rest.len() as u64 {
        return None;
    }
    let (taken, left) = rest.split_at(bytes as usize);
    *rest = left;
    Some(taken.to_vec())
}

fn word(rest: &mut &[u8]) -> Option<u64> {
    take(rest, 8).map(|bytes| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)))
}
