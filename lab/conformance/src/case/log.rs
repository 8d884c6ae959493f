// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases of LOG_APPEND, LOG_APPLY, PAGE_COPY and LOG_RESET: records, good ones, torn ones, stale ones and ones that say what
//! they must not; pages and heads; and their operand blocks.
//!
//! - **Layout** the first half of a room is the log, or the source; the second half the heap, or the target

use super::{Builder, Room};
use memlift_model::naive;
use memlift_spec::operand::log::RangeWord;
use memlift_spec::operand::{HINT_CHECKSUM, HINT_STORE_FENCE, HINT_WRITE_BACK};
use memlift_spec::{AppendBlock, ApplyBlock, Descriptor, Flags, Opcode, PageCopyBlock, ResetBlock};

/// Where a position's lowest byte is in a record.
const POSITION: usize = 8;

impl Builder<'_> {
    fn halves(room: Room) -> (usize, usize, usize) {
        let half = (room.bytes / 2) & !63;
        (room.start, room.start + half, half)
    }

    fn noop(d: &mut Descriptor) {
        d.flags_opcode = Descriptor::new(Opcode::NOOP, d.flags()).flags_opcode;
    }

    /// A record of any bytes: appending asks nothing of them.
    pub(super) fn log_append(&mut self, room: Room, d: &mut Descriptor) {
        let (source, target, half) = Builder::halves(room);
        let lines = 1 + self.random.below((half as u64 / 64).min(40)) as usize;
        self.noise(source, lines * 64);
        let block = AppendBlock::new(self.random.next() as u32).with_hints(self.hints(HINT_STORE_FENCE));
        let mut bytes = header(block.opcode, 64, block.salt, block.hints);
        bytes.resize(64, 0);
        d.operation[0] = self.spoilt(bytes);
        (d.source, d.target) = (self.address(source), self.address(target));
        d.size = (lines * 64) as u32;
        match self.random.below(24) {
            0 => d.size -= 8,
            1 => d.target += 8,
            2 => d.source += 4,
            3 => d.target = d.source + 64 * (self.random.below(lines as u64)),
            _ => {}
        }
    }

    /// A record in the log, and what became of it.
    pub(super) fn log_apply(&mut self, room: Room, d: &mut Descriptor) {
        let (log, heap, half) = Builder::halves(room);
        let heap_bytes = (half - self.random.below(64) as usize) as u64;
        let (salt, position) = (self.random.next() as u32, self.random.next());
        let record = self.record(half, heap_bytes, salt, position);
        self.noise(heap, half);
        self.write(log, &record);
        let expected = if self.random.one_in(8) { position ^ 1 << self.random.below(64) } else { position };
        let salt = if self.random.one_in(8) { salt ^ 1 << self.random.below(32) } else { salt };
        let hints = self.hints(HINT_STORE_FENCE | HINT_WRITE_BACK);
        let block = ApplyBlock::new(salt, expected, heap_bytes).with_hints(hints);
        let mut bytes = header(block.opcode, 64, block.salt, block.hints);
        bytes.extend(block.position.to_le_bytes());
        bytes.extend(block.heap_bytes.to_le_bytes());
        bytes.resize(64, 0);
        if self.random.one_in(40) {
            // A heap that wraps.
            bytes[24..32].fill(0xff);
        }
        d.operation[0] = self.spoilt(bytes);
        (d.source, d.target) = (self.address(log), self.address(heap));
        let most = half as u64;
        d.size = match self.random.below(6) {
            0 => record.len() as u64,
            1 => record.len() as u64 - 1 - self.random.below(64),
            _ => most,
        } as u32;
        match self.random.below(24) {
            0 => d.target += 8,
            1 => d.source += 4,
            // Refused, which the record says although none was asked for.
            2 => d.flags_opcode &= !Flags::REQUEST_COMPLETION.0,
            // The heap is the log: entries that lie in their own record are refused.
            3 | 4 => d.target = d.source,
            _ => {}
        }
    }

    /// Up to `most` bytes with entries for a heap of `heap_bytes`.
    fn record(&mut self, most: usize, heap_bytes: u64, salt: u32, position: u64) -> Vec<u8> {
        let kind = self.random.pick(&[1, 1, 1, 2, 2, 4, 3]);
        let bad = self.random.below(12);
        let room = most.min(2048) / 64 * 64;
        let mut bytes = vec![0; 32];
        let mut count = 0u16;
        for _ in 0..1 + self.random.below(6) {
            let entry = match kind {
                1 | 4 => self.range(heap_bytes, bad == 0),
                2 => self.lines(heap_bytes, bad == 1),
                _ => [self.random.next(), self.random.next(), self.random.next() >> 32]
                    .into_iter()
                    .flat_map(u64::to_le_bytes)
                    .collect(),
            };
            if bytes.len() + entry.len() > room {
                break;
            }
            bytes.extend(entry);
            count += 1;
        }
        match bad {
            2 => count += 1,
            3 => count = count.saturating_sub(1),
            _ => {}
        }
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        let size = match bad {
            4 => bytes.len() as u32 + 32,
            5 => 0,
            _ => bytes.len() as u32,
        };
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        bytes[POSITION..16].copy_from_slice(&position.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.random.next().to_le_bytes());
        bytes[24] = if bad == 6 { 9 } else { kind };
        bytes[25] = self.random.below(4) as u8;
        bytes[26..28].copy_from_slice(&count.to_le_bytes());
        bytes[28] = u8::from(bad == 7);
        let checksum = naive::crc32c(&bytes[4..], salt, false, false);
        bytes[..4].copy_from_slice(&checksum.to_le_bytes());
        if bad == 8 {
            // Torn, or a bit that flipped.
            let at = self.random.below(bytes.len() as u64) as usize;
            if self.random.one_in(2) { bytes[at..].fill(0) } else { bytes[at] ^= 1 << self.random.below(8) }
        }
        bytes
    }

    fn range(&mut self, heap_bytes: u64, bad: bool) -> Vec<u8> {
        let words = heap_bytes / 8;
        let length = 1 + self.random.below(words.min(20));
        let mut offset = self.random.below(words - length + 1);
        if bad && self.random.one_in(2) {
            offset = self.random.pick(&[words - length + 1, words, (1 << 40) - 1]);
        }
        let word = RangeWord::new(8 * offset, 8 * length).expect("small enough").0;
        // A length of 0, or of more than there is.
        let word = if bad && self.random.one_in(3) { word & ((1 << 40) - 1) } else { word };
        let mut bytes = word.to_le_bytes().to_vec();
        bytes.extend((0..length).flat_map(|_| self.random.next().to_le_bytes()));
        bytes
    }

    fn lines(&mut self, heap_bytes: u64, bad: bool) -> Vec<u8> {
        // The heap's last page may be a part of one.
        let page = self.random.below(heap_bytes.div_ceil(4096));
        let within = ((heap_bytes - page * 4096) / 64).min(64);
        let mut lines = self.random.next() & self.random.next() & self.random.next();
        lines &= if within == 64 { u64::MAX } else { (1 << within) - 1 };
        let page = if bad { self.random.pick(&[page + 1, 1 << 52, u64::MAX]) } else { page };
        let mut bytes = [page, lines].into_iter().flat_map(u64::to_le_bytes).collect::<Vec<u8>>();
        bytes.extend((0..8 * lines.count_ones()).flat_map(|_| self.random.next().to_le_bytes()));
        bytes
    }

    pub(super) fn page_copy(&mut self, room: Room, d: &mut Descriptor) {
        let (source, target, half) = Builder::halves(room);
        if half < 4096 {
            return Builder::noop(d);
        }
        self.noise(source, 4096);
        let some = self.random.next() & self.random.next();
        let lines = self.random.pick(&[0, 1, u64::MAX, 1 << 63, some, some]);
        let mut block = PageCopyBlock::new(lines).with_hints(self.hints(HINT_STORE_FENCE));
        if self.random.one_in(2) {
            block = block.with_checksum(self.random.next() as u32);
        }
        if self.random.one_in(20) {
            block.hints ^= HINT_CHECKSUM;
        }
        let mut bytes = header(block.opcode, 64, block.salt, block.hints);
        bytes.extend(block.lines.to_le_bytes());
        bytes.resize(64, 0);
        d.operation[0] = self.spoilt(bytes);
        (d.source, d.target, d.size) = (self.address(source), self.address(target), 4096);
        match self.random.below(24) {
            0 => d.size = 4032,
            1 => d.target += 8,
            2 => d.source += 32,
            3 => d.target = d.source + 64,
            _ => {}
        }
    }

    pub(super) fn log_reset(&mut self, room: Room, d: &mut Descriptor) {
        let (_, target, _) = Builder::halves(room);
        let head = std::array::from_fn(|_| self.random.below(256) as u8);
        let block = ResetBlock::new(head).with_hints(self.hints(HINT_STORE_FENCE));
        let mut bytes = header(block.opcode, 128, block.salt, block.hints);
        bytes.resize(64, 0);
        bytes.extend(block.head);
        d.operation[0] = self.spoilt(bytes);
        (d.target, d.size) = (self.address(target), 64);
        match self.random.below(24) {
            0 => d.size = 128,
            1 => d.target += 16,
            2 => d.source = 64,
            // The block itself.
            3 => d.target = d.operation[0] + 64,
            _ => {}
        }
    }

    fn hints(&mut self, known: u32) -> u32 {
        self.random.next() as u32 & known
    }

    /// The block in its place, sometimes one that is refused.
    fn spoilt(&mut self, mut bytes: Vec<u8>) -> u64 {
        match self.random.below(40) {
            0 => bytes[1] = 2,
            1 => bytes[0] ^= 1,
            2 => bytes[2] ^= 0xc0,
            3 => bytes[4] = 1,
            4 => bytes[12] |= 1,
            5 => bytes[56] = 1,
            _ => {}
        }
        self.operand(&bytes)
    }
}

/// The first 16 bytes of a block.
fn header(opcode: u8, block_bytes: u16, salt: u32, hints: u32) -> Vec<u8> {
    let word = u64::from(opcode) | 1 << 8 | u64::from(block_bytes) << 16;
    let second = u64::from(salt) | u64::from(hints) << 32;
    [word, second].into_iter().flat_map(u64::to_le_bytes).collect()
}
