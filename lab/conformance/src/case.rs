// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases: descriptors that may be in flight together, good ones and spoilt ones.
//!
//! - **Flow** lanes of the arena ─▶ one descriptor, or one batch, per lane ─▶ sometimes spoilt ─▶ memory image with
//!   data, lists and zeroed records
//! - **Order** what is in flight together touches disjoint memory: lanes between each other, members of a batch
//!   between each other unless every member is fenced, in which case they share and depend on each other

use crate::arena::{ARENA_BYTES, DATA_BYTES, LIST_BYTES, LISTS, RECORD_COUNT, RECORDS};
use crate::random::Random;
use memlift_spec::{Capabilities, Descriptor, Flags, Opcode};

const LANES: usize = 4;
const OPCODES: &[Opcode] = &[
    Opcode::NOOP,
    Opcode::MEMMOVE,
    Opcode::FILL,
    Opcode::COMPARE,
    Opcode::COMPARE_PATTERN,
    Opcode::DELTA_CREATE,
    Opcode::DELTA_APPLY,
    Opcode::DUALCAST,
    Opcode::TRANSLATION_FETCH,
    Opcode::CRC,
    Opcode::COPY_CRC,
    Opcode::CACHE_FLUSH,
];
const FOREIGN: &[u8] = &[0x0f, 0x12, 0x13, 0x14, 0x15, 0x17, 0x42, 0x81, 0xa0, 0xc0, 0xff];

/// A stretch of the arena, by offset.
#[derive(Clone, Copy)]
struct Room {
    start: usize,
    bytes: usize,
}

impl Room {
    /// Equal parts, aligned to 64.
    fn part(self, index: usize, of: usize) -> Room {
        let bytes = (self.bytes / of) & !63;
        Room { start: self.start + index * bytes, bytes }
    }
}

pub(crate) struct Builder<'a> {
    random: Random,
    base: u64,
    capabilities: Capabilities,
    memory: &'a mut [u8],
    records: usize,
    lists: usize,
}

impl<'a> Builder<'a> {
    /// Builds into `memory`, an image of the arena whose first byte has the address `base`.
    pub fn new(seed: u64, base: u64, capabilities: Capabilities, memory: &'a mut [u8]) -> Builder<'a> {
        memory[LISTS..ARENA_BYTES].fill(0);
        Builder { random: Random::new(seed), base, capabilities, memory, records: 0, lists: 0 }
    }

    /// Descriptors for the queue, each with a record that it will write.
    pub fn case(&mut self) -> Vec<Descriptor> {
        let whole = Room { start: 0, bytes: DATA_BYTES };
        if self.random.one_in(64) && self.capabilities.batch_max >= 2 {
            return vec![self.batch(whole, self.capabilities.batch_max.min(1024) as usize)];
        }
        let mut queue: Vec<Descriptor> = (0..LANES)
            .map(|lane| {
                let room = whole.part(lane, LANES);
                if self.random.one_in(3) && self.capabilities.batch_max >= 2 {
                    let count = 2 + self.random.below(15) as usize;
                    self.batch(room, count)
                } else {
                    self.single(room)
                }
            })
            .collect();
        if self.capabilities.supports(Opcode::DRAIN) && self.random.one_in(4) {
            queue.push(self.blank(Opcode::DRAIN));
        }
        queue
    }

    fn address(&self, offset: usize) -> u64 {
        self.base + offset as u64
    }

    fn blank(&mut self, opcode: Opcode) -> Descriptor {
        let flags = Flags::COMPLETION_VALID.with(Flags::REQUEST_COMPLETION);
        let mut descriptor = Descriptor::new(opcode, flags);
        assert!(self.records < RECORD_COUNT);
        descriptor.completion_address = self.address(RECORDS + self.records * 32);
        self.records += 1;
        descriptor
    }

    fn single(&mut self, room: Room) -> Descriptor {
        let mut descriptor = self.operation(room);
        if self.random.one_in(4) {
            self.spoil(&mut descriptor);
        }
        descriptor
    }

    fn batch(&mut self, room: Room, count: usize) -> Descriptor {
        let chained = self.random.one_in(3);
        let failing = self.random.one_in(2);
        let room_for = LIST_BYTES / 64 - self.lists;
        let count = count.min(room_for);
        let start = LISTS + self.lists * 64;
        self.lists += count;
        for index in 0..count {
            let mut member = if room.bytes / count < 512 && !chained {
                self.blank(Opcode::NOOP)
            } else {
                let part = if chained { room.part(0, count.max(4)) } else { room.part(index, count) };
                self.operation(Room { bytes: part.bytes.clamp(512, 16 * 1024), ..part })
            };
            if chained || self.random.one_in(5) {
                member.add_flags(Flags::FENCE);
            }
            if failing && self.random.one_in(6) {
                self.spoil(&mut member);
            } else if self.random.one_in(8) && !yields_result(member.opcode()) {
                // Success without a record: only the batch's own record tells.
                member.flags_opcode &= !Flags::REQUEST_COMPLETION.0;
            } else if failing && self.random.one_in(20) {
                // An error that cannot be told: the record's address is no good.
                member.completion_address += 8;
            }
            self.write(start + index * 64, &descriptor_bytes(&member));
        }
        let mut batch = self.blank(Opcode::BATCH);
        batch.source = self.address(start);
        batch.size = count as u32;
        if self.random.one_in(12) {
            match self.random.below(5) {
                0 => batch.source += 32,
                1 => batch.size = 1,
                2 => batch.size = 1025,
                3 => batch.target = 64,
                _ => batch.add_flags(Flags::FENCE),
            }
        }
        batch
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.memory[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Two or three parts of a room, each with `bytes` bytes that start `skew` bytes off.
    fn parts(&mut self, room: Room, count: usize, align: usize) -> (Vec<usize>, usize) {
        let part = (room.bytes / count) & !63;
        let skew: Vec<usize> = (0..count).map(|_| self.random.below(64) as usize & !(align - 1)).collect();
        let most = part - 64;
        let bytes = match self.random.below(4) {
            0 => 1 + self.random.below(most.min(300) as u64) as usize,
            _ => 1 + self.random.below(most as u64) as usize,
        };
        let starts = (0..count).map(|index| room.start + index * part + skew[index]).collect();
        (starts, (bytes & !(align - 1)).max(align))
    }

    fn noise(&mut self, start: usize, bytes: usize) {
        for offset in (start..start + bytes).step_by(8) {
            let word = self.random.next().to_le_bytes();
            let end = (offset + 8).min(start + bytes);
            self.write(offset, &word[..end - offset]);
        }
    }

    /// A descriptor that may run.
    fn operation(&mut self, room: Room) -> Descriptor {
        let supported: Vec<Opcode> =
            OPCODES.iter().copied().filter(|&opcode| self.capabilities.supports(opcode)).collect();
        let opcode = self.random.pick(&supported);
        let mut d = self.blank(opcode);
        match opcode {
            Opcode::MEMMOVE => self.memmove(room, &mut d),
            Opcode::FILL => {
                let (starts, bytes) = self.parts(room, 1, 1);
                (d.target, d.source, d.size) = (self.address(starts[0]), self.random.next(), bytes as u32);
                if self.random.one_in(2) {
                    d.add_flags(Flags::FILL_16);
                    d.operation[0] = self.random.next();
                }
            }
            Opcode::COMPARE => self.compare(room, &mut d),
            Opcode::COMPARE_PATTERN => {
                let (starts, bytes) = self.parts(room, 1, 1);
                let pattern = self.random.next();
                (d.source, d.target, d.size) = (self.address(starts[0]), pattern, bytes as u32);
                let fill: Vec<u8> = pattern.to_le_bytes().into_iter().cycle().take(bytes).collect();
                self.write(starts[0], &fill);
                self.differ(starts[0], bytes);
                self.expect(&mut d);
            }
            Opcode::DELTA_CREATE => self.delta_create(room, &mut d),
            Opcode::DELTA_APPLY => self.delta_apply(room, &mut d),
            Opcode::DUALCAST => self.dualcast(room, &mut d),
            Opcode::TRANSLATION_FETCH => {
                let (starts, bytes) = self.parts(room, 1, 1);
                (d.source, d.size) = (self.address(starts[0]), bytes as u32);
            }
            Opcode::CRC | Opcode::COPY_CRC => self.crc(room, &mut d),
            Opcode::CACHE_FLUSH => {
                let (starts, bytes) = self.parts(room, 1, 1);
                (d.target, d.size) = (self.address(starts[0]), bytes as u32);
            }
            _ => {}
        }
        let writes = [Opcode::MEMMOVE, Opcode::FILL, Opcode::DUALCAST, Opcode::COPY_CRC];
        if writes.contains(&opcode) {
            if self.random.one_in(2) {
                d.add_flags(Flags::CACHE_CONTROL);
            }
            if self.random.one_in(8) {
                d.add_flags(Flags::READBACK);
            }
        }
        d
    }

    fn memmove(&mut self, room: Room, d: &mut Descriptor) {
        let overlapping = self.random.one_in(2);
        let (starts, bytes) = self.parts(room, 2, 1);
        self.noise(starts[0], bytes);
        let mut target = starts[1];
        if overlapping {
            // Up to 127 bytes either way; the room has them on the right, and on the left where it does not start.
            let shift = self.random.below(128) as usize;
            let back = self.random.one_in(2) && starts[0] >= room.start + shift;
            target = if back { starts[0] - shift } else { starts[0] + shift };
        } else if self.random.one_in(4) {
            d.add_flags(Flags::STRICT_ORDER);
        }
        (d.source, d.target, d.size) = (self.address(starts[0]), self.address(target), bytes as u32);
    }

    fn compare(&mut self, room: Room, d: &mut Descriptor) {
        let (starts, bytes) = self.parts(room, 2, 1);
        self.noise(starts[0], bytes);
        self.memory.copy_within(starts[0]..starts[0] + bytes, starts[1]);
        self.differ(starts[1], bytes);
        (d.source, d.target, d.size) = (self.address(starts[0]), self.address(starts[1]), bytes as u32);
        self.expect(d);
    }

    /// Half of the time some bytes are changed.
    fn differ(&mut self, start: usize, bytes: usize) {
        for _ in 0..self.random.pick(&[0, 0, 1, 2, 40]) {
            let at = start + self.random.below(bytes as u64) as usize;
            self.memory[at] ^= 1 << self.random.below(8);
        }
    }

    fn expect(&mut self, d: &mut Descriptor) {
        if self.random.one_in(2) {
            d.add_flags(Flags::CHECK_RESULT);
            d.operation[0] = self.random.below(2);
        }
    }

    fn delta_create(&mut self, room: Room, d: &mut Descriptor) {
        let (starts, bytes) = self.parts(room, 3, 8);
        let (first, second, record) = (starts[0] & !7, starts[1] & !7, starts[2] & !7);
        self.noise(first, bytes);
        self.memory.copy_within(first..first + bytes, second);
        self.differ(second, bytes);
        let most = (room.bytes / 3 - 128) / 10 * 10;
        let room = if self.random.one_in(2) { 80 } else { most.max(80) };
        (d.source, d.target, d.size) = (self.address(first), self.address(second), bytes as u32);
        d.operation = [self.address(record), room as u64, 0];
        if self.random.one_in(2) {
            d.add_flags(Flags::CHECK_RESULT);
            d.operation[2] = self.random.below(8);
        }
    }

    fn delta_apply(&mut self, room: Room, d: &mut Descriptor) {
        let (starts, bytes) = self.parts(room, 2, 8);
        let (record, target) = (starts[0] & !7, starts[1] & !7);
        let words = bytes / 8;
        let entries = (1 + self.random.below(20) as usize).min((room.bytes / 2 - 128) / 10).max(1);
        let bad = self.random.one_in(4);
        let mut offset = 0;
        for entry in 0..entries {
            let step = 1 + self.random.below((words / entries).max(1) as u64);
            offset += if entry == 0 { step - 1 } else { step };
            if bad && self.random.one_in(4) {
                offset = self.random.below(words as u64 + 4);
            }
            self.write(record + entry * 10, &(offset as u16).to_le_bytes());
            self.noise(record + entry * 10 + 2, 8);
        }
        (d.source, d.target, d.size) = (self.address(record), self.address(target), bytes as u32);
        d.operation[0] = entries as u64 * 10;
    }

    fn dualcast(&mut self, room: Room, d: &mut Descriptor) {
        // Two targets 4096 or 8192 apart, the source after them, if the room is large enough.
        let gap = 4096;
        if room.bytes < 3 * gap {
            d.flags_opcode = Descriptor::new(Opcode::NOOP, d.flags()).flags_opcode;
            return;
        }
        let skew = self.random.below(64) as usize;
        let bytes = 1 + self.random.below((gap - 64) as u64) as usize;
        let source = room.start + 2 * gap + self.random.below(64) as usize;
        self.noise(source, bytes);
        (d.source, d.size) = (self.address(source), bytes as u32);
        (d.target, d.operation[0]) = (self.address(room.start + skew), self.address(room.start + gap + skew));
    }

    fn crc(&mut self, room: Room, d: &mut Descriptor) {
        let (starts, bytes) = self.parts(room, 2, 1);
        self.noise(starts[0], bytes);
        (d.source, d.size) = (self.address(starts[0]), bytes as u32);
        if d.opcode() == Opcode::COPY_CRC {
            d.target = self.address(starts[1]);
        }
        match self.random.below(4) {
            0 => {}
            1 => d.operation[0] = self.random.next() & 0xffff_ffff,
            2 => {
                d.add_flags(Flags::CRC_SEED_ADDRESS);
                d.operation[1] = d.source;
                if bytes < 4 {
                    d.operation[1] = self.address(room.start);
                }
            }
            _ => {
                d.operation[0] = self.random.next() & 0xffff_ffff;
                d.add_flags(self.random.pick(&[Flags::CRC_BYPASS_INVERT, Flags::CRC_BYPASS_REFLECT]));
            }
        }
    }

    /// Makes a descriptor one that hardware refuses, or (rarely) leaves it good.
    fn spoil(&mut self, d: &mut Descriptor) {
        let fenced = d.flags().has(Flags::FENCE);
        let noop = matches!(d.opcode(), Opcode::NOOP);
        match self.random.below(12) {
            0 => {
                let opcode = Opcode(self.random.pick(FOREIGN));
                if !self.capabilities.supports(opcode) {
                    d.flags_opcode = u32::from(opcode.0) << 24 | d.flags().0;
                }
            }
            1 => d.add_flags(Flags(1 << self.random.pick(&[6, 19, 20, 23]))),
            2 => d.pasid |= 1 << 31,
            3 => d.pasid |= 1 << 20,
            4 => d.add_flags(Flags::REQUEST_INTERRUPT),
            5 => d.interrupt_handle = 1,
            6 => d.reserved = 7,
            7 if !noop => d.size = 0,
            8 => d.size = (1 << 31) + 1,
            9 => d.operation[2] = u64::MAX,
            10 if d.opcode() == Opcode::COPY_CRC => d.target = d.source + u64::from(d.size) - 1,
            11 if d.opcode() == Opcode::DUALCAST => d.operation[0] ^= 8,
            10 if matches!(d.opcode(), Opcode::DELTA_CREATE | Opcode::DELTA_APPLY) => d.source ^= 4,
            11 if d.opcode() == Opcode::DELTA_CREATE => d.operation[1] += 1,
            11 if d.opcode() == Opcode::DELTA_APPLY => d.operation[0] += 1,
            // A fence outside of a batch is not allowed; inside it is nothing special.
            _ if !fenced => d.add_flags(Flags::FENCE),
            _ => d.add_flags(Flags::BLOCK_ON_FAULT),
        }
    }
}

fn yields_result(opcode: Opcode) -> bool {
    [0x05, 0x06, 0x07, 0x10, 0x11].contains(&opcode.0)
}

pub(crate) fn descriptor_bytes(d: &Descriptor) -> Vec<u8> {
    let words = [
        u64::from(d.pasid) | u64::from(d.flags_opcode) << 32,
        d.completion_address,
        d.source,
        d.target,
        u64::from(d.size) | u64::from(d.interrupt_handle) << 32 | u64::from(d.reserved) << 48,
    ];
    words.into_iter().chain(d.operation).flat_map(u64::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlift_model::Image;
    use memlift_spec::Status;
    use std::collections::BTreeSet;

    /// A suite that never makes a status cannot say anything about it.
    #[test]
    fn cases_reach_every_status_that_software_can_give() {
        let capabilities = OPCODES
            .iter()
            .chain(&[Opcode::BATCH, Opcode::DRAIN])
            .fold(Capabilities::none(16), |all, &opcode| all.with(opcode));
        let mut memory = vec![0; ARENA_BYTES];
        let mut seen = BTreeSet::new();
        let mut succeeded = BTreeSet::new();
        for seed in 0..1500 {
            let queue = Builder::new(seed * 7919, 1 << 20, capabilities, &mut memory).case();
            let mut model = Image { base: 1 << 20, bytes: &mut memory };
            for descriptor in &queue {
                if memlift_model::run(&mut model, descriptor).status().is_success() {
                    succeeded.insert(descriptor.opcode());
                }
            }
            seen.extend(memory[RECORDS..RECORDS + RECORD_COUNT * 32].chunks(32).map(|record| record[0]));
        }
        let reachable = [
            Status::SUCCESS,
            Status::SUCCESS_PREDICATE,
            Status::BATCH_FAILED,
            Status::DELTA_ORDER,
            Status::DELTA_RANGE,
            Status::BAD_OPCODE,
            Status::BAD_FLAGS,
            Status::BAD_RESERVED,
            Status::BAD_SIZE,
            Status::BAD_COUNT,
            Status::BAD_DELTA_SIZE,
            Status::OVERLAP,
            Status::DUALCAST_ALIGN,
            Status::LIST_ALIGN,
            Status::BAD_INTERRUPT,
            Status::ADDRESS_ALIGN,
            Status::BAD_PRIVILEGE,
            Status::ABANDONED,
        ];
        let missing: Vec<_> = reachable.iter().filter(|status| !seen.contains(&status.0)).collect();
        assert!(missing.is_empty(), "never seen: {missing:x?}");
        let failing: Vec<_> = OPCODES.iter().filter(|opcode| !succeeded.contains(opcode)).collect();
        assert!(failing.is_empty(), "never succeed by themselves: {failing:x?}");
    }
}
