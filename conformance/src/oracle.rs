// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a descriptor must do, byte by byte.
//!
//! Flow     descriptor (addresses as they were submitted) + memory (a copy of the arena) ──▶ memory changed, records
//!          written into it
//! Order    checks in the order of hardware: opcode, flags, privilege and reserved fields, size, alignment, overlap
//! Limits   addresses outside the arena are a mistake of the generator and panic
//!
//! Source: Intel Data Streaming Accelerator Architecture Specification. Naive on purpose: no word is moved where
//! a byte would do.

use crate::naive;
use memlift_spec::{Completion, Descriptor, Flags, Format, Opcode, Status};

pub(crate) struct Oracle<'a> {
    /// Address of the first byte of `memory` in the backend's view.
    pub base: u64,
    pub memory: &'a mut [u8],
}

#[derive(Clone, Copy, Default)]
struct End {
    status: u8,
    result: u8,
    bytes: u32,
    value: u64,
}

fn end(status: Status) -> End {
    End { status: status.0, ..End::default() }
}

impl Oracle<'_> {
    /// Runs one descriptor of a queue.
    pub fn run(&mut self, descriptor: &Descriptor) {
        let end = match self.refuse(descriptor, false) {
            Some(status) => end(status),
            None if descriptor.opcode() == Opcode::BATCH => self.batch(descriptor),
            None => self.work(descriptor),
        };
        self.record(descriptor, end);
    }

    fn batch(&mut self, descriptor: &Descriptor) -> End {
        let (mut failed, mut abandoned, mut ran) = (false, false, 0);
        for index in 0..u64::from(descriptor.size) {
            let member = self.descriptor_at(descriptor.source + index * 64);
            let fenced = member.flags_opcode & Flags::FENCE.0 != 0;
            abandoned = abandoned || (fenced && failed);
            if abandoned {
                self.record(&member, end(Status::ABANDONED));
                continue;
            }
            let end = match self.refuse(&member, true) {
                Some(status) => end(status),
                None => self.work(&member),
            };
            self.record(&member, end);
            ran += 1;
            failed = failed || end.status != 1;
        }
        let status = if failed { Status::BATCH_FAILED } else { Status::SUCCESS };
        End { bytes: ran, ..end(status) }
    }

    fn descriptor_at(&self, address: u64) -> Descriptor {
        let word = |offset: u64| self.number(address + offset, 8);
        let mut descriptor = Descriptor::new(Opcode::NOOP, Flags::NONE);
        descriptor.pasid = word(0) as u32;
        descriptor.flags_opcode = (word(0) >> 32) as u32;
        descriptor.completion_address = word(8);
        descriptor.source = word(16);
        descriptor.target = word(24);
        descriptor.size = word(32) as u32;
        descriptor.interrupt_handle = (word(32) >> 32) as u16;
        descriptor.reserved = (word(32) >> 48) as u16;
        descriptor.operation = [word(40), word(48), word(56)];
        descriptor
    }

    /// The status that a descriptor ends with instead of running.
    fn refuse(&self, d: &Descriptor, in_batch: bool) -> Option<Status> {
        let flags = d.flags_opcode & 0x00ff_ffff;
        let opcode = d.opcode();
        let known: u32 = match opcode {
            Opcode::NOOP => 0x103c,
            Opcode::BATCH if !in_batch => 0x123c,
            Opcode::DRAIN if !in_batch => 0x163c,
            Opcode::MEMMOVE | Opcode::DELTA_APPLY | Opcode::STRIDED_COPY => 0xff3e,
            Opcode::FILL => 0x4_ff3e,
            Opcode::COMPARE | Opcode::COMPARE_PATTERN => 0x1ebe,
            Opcode::DELTA_CREATE => 0xffbe,
            Opcode::DUALCAST => 0x1_ff3e,
            Opcode::TRANSLATION_FETCH | Opcode::CACHE_FLUSH => 0x1f3e,
            Opcode::CRC => 0x7_1e3e,
            Opcode::COPY_CRC => 0x7_ff3e,
            Opcode::SEAL | Opcode::OPEN => 0xff3e,
            Opcode::PACK | Opcode::UNPACK => 0xbf3e,
            _ => return Some(Status::BAD_OPCODE),
        };
        let known = if in_batch { known | 1 } else { known };
        let (valid, requested) = (flags & 4 != 0, flags & 8 != 0);
        let result = [0x05, 0x06, 0x07, 0x10, 0x11, 0x92, 0x93].contains(&opcode.0);
        if flags & !known != 0 || (requested && !valid) || (result && !requested) {
            return Some(Status::BAD_FLAGS);
        }
        if d.pasid >> 31 == 1 {
            return Some(Status::BAD_PRIVILEGE);
        }
        if flags & 0x10 != 0 {
            return Some(Status::BAD_INTERRUPT);
        }
        if d.pasid >> 20 != 0 || d.reserved != 0 || d.interrupt_handle != 0 {
            return Some(Status::BAD_RESERVED);
        }
        if valid && !d.completion_address.is_multiple_of(32) {
            return Some(Status::COMPLETION_ALIGN);
        }
        self.refuse_fields(d, flags)
    }

    fn refuse_fields(&self, d: &Descriptor, flags: u32) -> Option<Status> {
        let [a, b, c] = d.operation;
        let (low, high) = (a & 0xffff_ffff, a >> 32);
        let size = u64::from(d.size);
        let (source, target) = (d.source, d.target);
        let reserved = |dirty: bool| dirty.then_some(Status::BAD_RESERVED);
        let sized = |most: u64| (size == 0 || size > most).then_some(Status::BAD_SIZE);
        let misaligned = |address: u64, to: u64, status| (!address.is_multiple_of(to)).then_some(status);
        let overlap =
            |x: u64, xn: u64, y: u64, yn: u64| (x < y + yn && y < x + xn).then_some(Status::OVERLAP);
        let most = 1 << 31;
        match d.opcode() {
            Opcode::NOOP | Opcode::DRAIN => reserved((source | target | size | a | b | c) != 0),
            Opcode::BATCH => reserved((target | a | b | c) != 0)
                .or((!(2..=1024).contains(&size)).then_some(Status::BAD_COUNT))
                .or(misaligned(source, 64, Status::LIST_ALIGN)),
            Opcode::MEMMOVE => reserved((a | b | c) != 0).or(sized(most)).or_else(|| {
                (flags & Flags::STRICT_ORDER.0 != 0 && target > source && target < source + size)
                    .then_some(Status::OVERLAP)
            }),
            Opcode::FILL => {
                let upper = if flags & Flags::FILL_16.0 != 0 { 0 } else { a };
                reserved((upper | b | c) != 0).or(sized(most))
            }
            Opcode::COMPARE | Opcode::COMPARE_PATTERN => reserved((a >> 1 | b | c) != 0).or(sized(most)),
            Opcode::DELTA_CREATE => {
                let (record, room) = (a, b & 0xffff_ffff);
                reserved(b >> 32 != 0 || c > 7)
                    .or(sized(512 * 1024))
                    .or((size % 8 != 0).then_some(Status::BAD_SIZE))
                    .or((room % 10 != 0 || room < 80).then_some(Status::BAD_DELTA_SIZE))
                    .or(misaligned(source | target | record, 8, Status::ADDRESS_ALIGN))
                    .or(overlap(record, room, source, size))
                    .or(overlap(record, room, target, size))
            }
            Opcode::DELTA_APPLY => reserved(high != 0 || (b | c) != 0)
                .or(sized(512 * 1024))
                .or((size % 8 != 0).then_some(Status::BAD_SIZE))
                .or((low % 10 != 0 || low == 0 || low > most).then_some(Status::BAD_DELTA_SIZE))
                .or(misaligned(source | target, 8, Status::ADDRESS_ALIGN))
                .or(overlap(source, low, target, size)),
            Opcode::DUALCAST => reserved((b | c) != 0)
                .or(sized(most))
                .or(((target ^ a) % 4096 != 0).then_some(Status::DUALCAST_ALIGN))
                .or(overlap(source, size, target, size))
                .or(overlap(source, size, a, size))
                .or(overlap(target, size, a, size)),
            Opcode::TRANSLATION_FETCH => reserved((target | a | b >> 32 | c) != 0).or(sized(most)),
            Opcode::CRC => reserved((target | high | c) != 0).or(sized(most)),
            Opcode::COPY_CRC => {
                reserved((high | c) != 0).or(sized(most)).or(overlap(source, size, target, size))
            }
            Opcode::CACHE_FLUSH => reserved((source | a | b | c) != 0).or(sized(most)),
            Opcode::SEAL | Opcode::OPEN => self.refuse_seal(d),
            Opcode::PACK | Opcode::UNPACK => self.refuse_pack(d),
            _ => self.refuse_strided(d),
        }
    }

    /// What both kinds of transform blocks are refused for first.
    fn refuse_block(&self, d: &Descriptor, block_bytes: u64) -> Option<Status> {
        let [block, b, c] = d.operation;
        if (b | c) != 0 {
            return Some(Status::BAD_RESERVED);
        }
        if block == 0 || block % 64 != 0 {
            return Some(Status::ADDRESS_ALIGN);
        }
        let header = u64::from(d.opcode().0) | 1 << 8 | block_bytes << 16;
        (self.number(block, 4) != header).then_some(Status::BAD_OPERAND)
    }

    fn refuse_seal(&self, d: &Descriptor) -> Option<Status> {
        if let Some(status) = self.refuse_block(d, 128) {
            return Some(status);
        }
        let block = d.operation[0];
        let field = |offset: u64, bytes| self.number(block + offset, bytes);
        let clean = (80..128).step_by(8).all(|offset| field(offset, 8) == 0) && field(4, 4) == 0;
        if !clean || field(60, 4) > 1 || (field(20, 4) == 0 && field(24, 8) != 0) {
            return Some(Status::BAD_RESERVED);
        }
        let (key, key_bytes, aad, aad_bytes) = (field(8, 8), field(16, 4), field(32, 8), field(40, 8));
        if key_bytes != 16 && key_bytes != 32 {
            return Some(Status::BAD_KEY_SIZE);
        }
        let size = u64::from(d.size);
        if size > 1 << 31 || aad_bytes > 1 << 31 {
            return Some(Status::BAD_SIZE);
        }
        let overlap = |x: u64, xn: u64, y: u64, yn: u64| x < y + yn && y < x + xn;
        let touched = [(block, 128), (key, key_bytes), (aad, aad_bytes)]
            .into_iter()
            .any(|(start, bytes)| overlap(start, bytes, d.target, size));
        let shifted = d.source != d.target && overlap(d.source, size, d.target, size);
        (touched || shifted).then_some(Status::OVERLAP)
    }

    fn refuse_pack(&self, d: &Descriptor) -> Option<Status> {
        if let Some(status) = self.refuse_block(d, 64) {
            return Some(status);
        }
        let block = d.operation[0];
        let field = |offset: u64, bytes| self.number(block + offset, bytes);
        let unpacks = d.opcode() == Opcode::UNPACK;
        let clean = (24..64).step_by(8).all(|offset| field(offset, 8) == 0);
        let zero = field(4, 4) == 0 && field(10, 2) == 0;
        if !clean || !zero || field(12, 4) > 1 || (unpacks && field(9, 1) != 0) {
            return Some(Status::BAD_RESERVED);
        }
        if field(8, 1) > 4 || field(9, 1) > 2 {
            return Some(Status::BAD_FORMAT);
        }
        let (size, capacity) = (u64::from(d.size), field(16, 8));
        if size > 1 << 31 || capacity > 1 << 31 || (unpacks && size == 0) {
            return Some(Status::BAD_SIZE);
        }
        let overlap = |x: u64, xn: u64| x < d.target + capacity && d.target < x + xn;
        (overlap(block, 64) || overlap(d.source, size)).then_some(Status::OVERLAP)
    }

    fn refuse_strided(&self, d: &Descriptor) -> Option<Status> {
        let [block, b, c] = d.operation;
        if (b | c) != 0 {
            return Some(Status::BAD_RESERVED);
        }
        if block == 0 || block % 64 != 0 {
            return Some(Status::ADDRESS_ALIGN);
        }
        let clean = (32..64).step_by(8).all(|offset| self.number(block + offset, 8) == 0);
        if self.number(block, 8) != 0x0040_0180 || !clean {
            return Some(Status::BAD_RESERVED);
        }
        let (rows, row, stride) = self.strided(block);
        if rows.checked_mul(row) != Some(u64::from(d.size)) || d.size == 0 || d.size > 1 << 31 {
            return Some(Status::BAD_SIZE);
        }
        let starts = [0, rows as i64 - 1].map(|index| d.source as i64 + index * stride);
        let (low, high) = (starts[0].min(starts[1]) as u64, starts[0].max(starts[1]) as u64 + row);
        (low < d.target + u64::from(d.size) && d.target < high).then_some(Status::OVERLAP)
    }

    fn strided(&self, block: u64) -> (u64, u64, i64) {
        (self.number(block + 8, 8), self.number(block + 16, 8), self.number(block + 24, 8) as i64)
    }

    fn at(&self, address: u64) -> usize {
        address.checked_sub(self.base).expect("an address below the arena") as usize
    }

    fn byte(&self, address: u64) -> u8 {
        self.memory[self.at(address)]
    }

    fn set(&mut self, address: u64, byte: u8) {
        let at = self.at(address);
        self.memory[at] = byte;
    }

    /// Little endian.
    fn number(&self, address: u64, bytes: u64) -> u64 {
        (0..bytes).rev().fold(0, |number, offset| number << 8 | u64::from(self.byte(address + offset)))
    }

    fn work(&mut self, d: &Descriptor) -> End {
        let size = u64::from(d.size);
        let check = d.flags().has(Flags::CHECK_RESULT);
        let mut done = End { bytes: d.size, ..end(Status::SUCCESS) };
        match d.opcode() {
            Opcode::MEMMOVE => self.copy(d.source, d.target, size),
            Opcode::FILL => {
                let wide = d.flags().has(Flags::FILL_16);
                for index in 0..size {
                    let byte = if wide { index % 16 } else { index % 8 };
                    let word = if byte < 8 { d.source } else { d.operation[0] };
                    self.set(d.target + index, (word >> (byte % 8 * 8)) as u8);
                }
            }
            Opcode::COMPARE | Opcode::COMPARE_PATTERN => {
                let pattern = d.opcode() == Opcode::COMPARE_PATTERN;
                let second = |index: u64| {
                    if pattern { (d.target >> (index % 8 * 8)) as u8 } else { self.byte(d.target + index) }
                };
                if let Some(index) = (0..size).find(|&index| self.byte(d.source + index) != second(index)) {
                    (done.result, done.bytes) = (1, index as u32);
                }
                if check && u64::from(done.result) != d.operation[0] {
                    done.status = Status::SUCCESS_PREDICATE.0;
                }
            }
            Opcode::DELTA_CREATE => {
                self.delta_create(d, &mut done);
                if check && d.operation[2] >> done.result & 1 == 0 {
                    done.status = Status::SUCCESS_PREDICATE.0;
                }
            }
            Opcode::DELTA_APPLY => return self.delta_apply(d),
            Opcode::DUALCAST => {
                self.copy(d.source, d.target, size);
                self.copy(d.source, d.operation[0], size);
            }
            Opcode::CRC | Opcode::COPY_CRC => {
                if d.opcode() == Opcode::COPY_CRC {
                    self.copy(d.source, d.target, size);
                }
                done.value = u64::from(self.crc(d));
            }
            Opcode::STRIDED_COPY => {
                let (rows, row, stride) = self.strided(d.operation[0]);
                for index in 0..rows {
                    let start = d.source.wrapping_add_signed(index as i64 * stride);
                    self.copy(start, d.target + index * row, row);
                }
            }
            Opcode::SEAL | Opcode::OPEN => return self.seal(d),
            Opcode::PACK | Opcode::UNPACK => return self.code(d),
            _ => {}
        }
        done
    }

    fn bytes(&self, address: u64, bytes: u64) -> Vec<u8> {
        (0..bytes).map(|index| self.byte(address + index)).collect()
    }

    fn seal(&mut self, d: &Descriptor) -> End {
        let block = d.operation[0];
        let key = self.bytes(self.number(block + 8, 8), self.number(block + 16, 4));
        let aad = self.bytes(self.number(block + 32, 8), self.number(block + 40, 8));
        let nonce = std::array::from_fn(|index| self.byte(block + 48 + index as u64));
        let text = self.bytes(d.source, u64::from(d.size));
        let seals = d.opcode() == Opcode::SEAL;
        let (mut other, tag) = naive::gcm(seals, &key, &nonce, &aad, &text);
        let right = seals || tag[..] == self.bytes(block + 64, 16);
        if !right {
            other.fill(0);
        }
        other.into_iter().enumerate().for_each(|(at, byte)| self.set(d.target + at as u64, byte));
        if seals {
            tag.into_iter().enumerate().for_each(|(at, byte)| self.set(block + 64 + at as u64, byte));
        }
        if right { End { bytes: d.size, ..end(Status::SUCCESS) } } else { end(Status::WRONG_TAG) }
    }

    /// What PACK writes is left open: the suite unpacks it. One byte is not enough for any stream.
    fn code(&mut self, d: &Descriptor) -> End {
        let block = d.operation[0];
        let capacity = self.number(block + 16, 8);
        if d.opcode() == Opcode::PACK {
            let fits = capacity > 1;
            let status = if fits { Status::SUCCESS } else { Status::TARGET_TOO_SMALL };
            return End { bytes: if fits { d.size } else { 0 }, ..end(status) };
        }
        let format = Format::from_code(self.byte(block + 8)).expect("refused otherwise");
        let source = self.bytes(d.source, u64::from(d.size));
        match naive::unpack(format, &source, capacity as usize) {
            Ok(done) => {
                let written = done.bytes.len() as u64;
                done.bytes
                    .into_iter()
                    .enumerate()
                    .for_each(|(at, byte)| self.set(d.target + at as u64, byte));
                End { bytes: done.read as u32, value: written, ..end(Status::SUCCESS) }
            }
            Err(status) => end(status),
        }
    }

    /// Settles what is the backend's choice: what PACK wrote must unpack to its source, and what lies in a target behind
    /// the bytes written means nothing. Makes this memory equal to `bytes` there.
    pub fn settle(&mut self, d: &Descriptor, bytes: &[u8]) -> Result<(), String> {
        let record = self.at(d.completion_address);
        let status = self.memory[record];
        let ran = [Status::SUCCESS, Status::TARGET_TOO_SMALL, Status::CORRUPT_STREAM].map(|status| status.0);
        if !matches!(d.opcode(), Opcode::PACK | Opcode::UNPACK) || !ran.contains(&status) {
            return Ok(());
        }
        let block = d.operation[0];
        let capacity = self.number(block + 16, 8) as usize;
        let target = self.at(d.target);
        let mut written = self.number(d.completion_address + 16, 8) as usize;
        if d.opcode() == Opcode::PACK && status == Status::SUCCESS.0 && bytes[record] == status {
            let value: [u8; 8] = bytes[record + 16..record + 24].try_into().expect("eight bytes");
            written = u64::from_le_bytes(value) as usize;
            let format = Format::from_code(self.byte(block + 8)).expect("refused otherwise");
            let source = self.bytes(d.source, u64::from(d.size));
            let packed = bytes.get(target..target + written.min(capacity)).unwrap_or_default();
            let unpacked = naive::unpack(format, packed, source.len());
            let whole = unpacked.as_ref().is_ok_and(|done| done.bytes == source && done.read == written);
            if !whole || written > capacity {
                return Err(format!("PACK wrote {written} bytes that do not unpack to its source: {d:x?}"));
            }
            self.memory[record + 16..record + 24].copy_from_slice(&value);
            self.memory[target..target + written].copy_from_slice(&bytes[target..target + written]);
        }
        self.memory[target + written..target + capacity]
            .copy_from_slice(&bytes[target + written..target + capacity]);
        Ok(())
    }

    /// As if the whole source were read first.
    fn copy(&mut self, source: u64, target: u64, bytes: u64) {
        let read: Vec<u8> = (0..bytes).map(|index| self.byte(source + index)).collect();
        read.into_iter().enumerate().for_each(|(index, byte)| self.set(target + index as u64, byte));
    }

    fn delta_create(&mut self, d: &Descriptor, done: &mut End) {
        let (record, room) = (d.operation[0], d.operation[1] & 0xffff_ffff);
        let mut used = 0;
        for word in 0..u64::from(d.size) / 8 {
            let (first, second) = (self.number(d.source + word * 8, 8), self.number(d.target + word * 8, 8));
            if first == second {
                continue;
            }
            if used + 10 > room {
                (done.result, done.value) = (2, used);
                return;
            }
            let entry = (word as u16).to_le_bytes().into_iter().chain(second.to_le_bytes());
            entry.enumerate().for_each(|(at, byte)| self.set(record + used + at as u64, byte));
            used += 10;
        }
        (done.result, done.value) = (u8::from(used > 0), used);
    }

    fn delta_apply(&mut self, d: &Descriptor) -> End {
        let mut next = 0;
        for entry in 0..(d.operation[0] & 0xffff_ffff) / 10 {
            let offset = self.number(d.source + entry * 10, 2);
            let failed = |status| End { bytes: entry as u32 * 10, ..end(status) };
            if offset < next {
                return failed(Status::DELTA_ORDER);
            }
            if (offset + 1) * 8 > u64::from(d.size) {
                return failed(Status::DELTA_RANGE);
            }
            self.copy(d.source + entry * 10 + 2, d.target + offset * 8, 8);
            next = offset + 1;
        }
        End { bytes: d.size, ..end(Status::SUCCESS) }
    }

    /// One bit at a time, most significant coefficient first, as the polynomial is written.
    fn crc(&self, d: &Descriptor) -> u32 {
        let flags = d.flags();
        let seed = if flags.has(Flags::CRC_SEED_ADDRESS) {
            self.number(d.operation[1], 4) as u32
        } else {
            d.operation[0] as u32
        };
        let plain = flags.has(Flags::CRC_BYPASS_INVERT);
        let mut register = if plain { seed } else { (!seed).reverse_bits() };
        for index in 0..u64::from(d.size) {
            let byte = self.byte(d.source + index);
            let byte = if flags.has(Flags::CRC_BYPASS_REFLECT) { byte } else { byte.reverse_bits() };
            for bit in (0..8).rev() {
                let out = register >> 31 ^ u32::from(byte) >> bit & 1;
                register = register << 1 ^ if out == 1 { 0x1edc_6f41 } else { 0 };
            }
        }
        if plain { register } else { !register.reverse_bits() }
    }

    fn record(&mut self, d: &Descriptor, end: End) {
        let valid = d.flags().has(Flags::COMPLETION_VALID) && d.completion_address.is_multiple_of(32);
        let wanted = d.flags().has(Flags::REQUEST_COMPLETION) || end.status != 1;
        if !valid || !wanted {
            return;
        }
        let bytes: [&[u8]; 5] = [
            &[end.status, end.result, 0, 0],
            &end.bytes.to_le_bytes(),
            &[0; 8],
            &end.value.to_le_bytes(),
            &[0; 8],
        ];
        let record: Vec<u8> = bytes.concat();
        assert_eq!(record.len(), size_of::<Completion>());
        record
            .into_iter()
            .enumerate()
            .for_each(|(at, byte)| self.set(d.completion_address + at as u64, byte));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_crc32c() {
        let mut memory = b"123456789".to_vec();
        let mut crc = Descriptor::new(Opcode::CRC, Flags::NONE);
        crc.size = 9;
        crc.source = 4096;
        let oracle = Oracle { base: 4096, memory: &mut memory };
        assert_eq!(oracle.crc(&crc), 0xe306_9283);
        crc.operation[0] = u64::from({
            crc.size = 4;
            oracle.crc(&crc)
        });
        (crc.source, crc.size) = (4100, 5);
        assert_eq!(oracle.crc(&crc), 0xe306_9283, "the value of the bytes before continues it");
    }
}
