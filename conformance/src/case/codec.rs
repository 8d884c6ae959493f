// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases of SEAL, OPEN, PACK and UNPACK: messages, keys and streams, good ones and spoilt ones, and their operand blocks.

use super::{Builder, Room};
use memlift_model::naive;
use memlift_spec::{Descriptor, Effort, Flags, Format, Opcode, PackBlock, SealBlock};

impl Builder<'_> {
    /// Source (or source and target at once), target, and in the third part key and additional data.
    pub(super) fn seal(&mut self, room: Room, d: &mut Descriptor) {
        let (starts, bytes) = self.parts(room, 3, 1);
        let bytes = if self.random.one_in(10) { 0 } else { bytes.min(2000) };
        let target = if self.random.one_in(4) { starts[0] } else { starts[1] };
        let key_bytes = self.random.pick(&[16, 32]);
        let aad_bytes = self.random.below(33) as usize;
        let (key, aad) = (starts[2], starts[2] + 32);
        self.noise(starts[0], bytes);
        self.noise(key, 64);
        let nonce: [u8; 12] = std::array::from_fn(|_| self.random.below(256) as u8);
        let mut tag = [0; 16];
        if d.opcode() == Opcode::OPEN {
            let memory = &mut *self.memory;
            let key = memory[key..key + key_bytes].to_vec();
            let (cipher, made) = {
                let plain = &memory[starts[0]..starts[0] + bytes];
                naive::gcm(true, &key, &nonce, &memory[aad..aad + aad_bytes], plain)
            };
            memory[starts[0]..starts[0] + bytes].copy_from_slice(&cipher);
            tag = made;
            match self.random.below(4) {
                0 => tag[self.random.below(16) as usize] ^= 1,
                1 if bytes > 0 => self.memory[starts[0] + self.random.below(bytes as u64) as usize] ^= 0x40,
                _ => {}
            }
        }
        let mut block = SealBlock::open(self.address(key), key_bytes as u32, nonce, tag)
            .with_aad(self.address(aad), aad_bytes as u64)
            .with_hints(self.random.below(2) as u32);
        block.opcode = d.opcode().0;
        match self.random.below(40) {
            0 => block.version = 2,
            1 => block.opcode ^= 1,
            2 => block.block_bytes = 64,
            3 => block.reserved2[4] = 1,
            4 => block.hints = 2,
            5 => block.key_bytes = 24,
            6 => block.prepared_address = 64,
            7 => block.aad_bytes = 1 << 40,
            8 => block.aad_address = self.address(target),
            9 => block.prepared_kind = 77,
            _ => {}
        }
        d.operation[0] = self.operand(&seal_bytes(&block));
        (d.source, d.target, d.size) = (self.address(starts[0]), self.address(target), bytes as u32);
        if self.random.one_in(5) {
            d.add_flags(Flags::STRICT_ORDER);
        }
    }

    /// PACK with room for whatever comes out, or for nothing; UNPACK of good streams and spoilt ones.
    pub(super) fn code(&mut self, room: Room, d: &mut Descriptor) {
        let (starts, part) = self.parts(room, 2, 1);
        let format = self.random.pick(&Format::ALL);
        let packs = d.opcode() == Opcode::PACK;
        let bytes = part.min(9000) / 2;
        self.noise(starts[0], bytes);
        // What is noise stays raw in a Zstandard frame, and the model reads no others.
        let effort = self.random.pick(&Effort::ALL);
        let zstd = format == Format::Zstd || format == Format::Pages && effort == Effort::Small;
        if self.random.one_in(2) && !(packs && zstd) {
            for at in (starts[0]..starts[0] + bytes).filter(|at| at % 17 > 2) {
                self.memory[at] = (at / 64) as u8;
            }
        }
        let most = room.bytes / 2 - 64;
        let (block, size) = if packs {
            let capacity = if self.random.one_in(6) { 0 } else { most };
            (PackBlock::pack(format, effort, capacity as u64), bytes)
        } else {
            let message = self.memory[starts[0]..starts[0] + bytes.min(most / 2)].to_vec();
            let (mut packed, capacity) = self.packed(format, &message);
            packed.truncate(most);
            self.write(starts[0], &packed);
            (PackBlock::unpack(format, capacity as u64), packed.len())
        };
        let mut block = block.with_hints(self.random.below(2) as u32);
        match self.random.below(40) {
            0 => block.version = 9,
            1 => block.format = 99,
            2 => block.effort = 3,
            3 => block.reserved3[1] = 1,
            4 => block.hints = 4,
            5 => block.target_capacity = (1 << 31) + 1,
            6 => block.reserved = 1,
            _ => {}
        }
        d.operation[0] = self.operand(&pack_bytes(&block));
        (d.source, d.target, d.size) = (self.address(starts[0]), self.address(starts[1]), size as u32);
        if self.random.one_in(5) {
            d.add_flags(Flags::STRICT_ORDER);
        }
        if self.random.one_in(20) {
            d.target = d.source + 1;
        }
    }

    /// A stream of `message` and room for it; or a spoilt one, or not quite enough room.
    fn packed(&mut self, format: Format, message: &[u8]) -> (Vec<u8>, usize) {
        let wrapped = matches!(format, Format::Deflate | Format::Zlib | Format::Gzip);
        let mut packed = match self.random.below(4) {
            0 if wrapped => naive::wrap(format, message, naive::stored(message, 1000)),
            1 if wrapped => naive::wrap(format, message, naive::fixed(message)),
            2 if wrapped => naive::wrap(format, message, naive::dynamic(message)),
            // Eight copies of what was just written.
            1 | 2 if format == Format::Lz4 && message.len() > 40 => {
                let first = naive::pack(format, &message[..40]);
                [&[0xff], &first[1..], &[40, 0, 255, 46, 0x10, 9]].concat()
            }
            _ => naive::pack(format, message),
        };
        let message_bytes = naive::unpack(format, &packed, 1 << 20).expect("just packed").bytes.len();
        let mut capacity = message_bytes + self.random.below(9) as usize;
        match self.random.below(6) {
            // What is cut off an LZ4 block makes another one, or none: whatever the literals say.
            0 if packed.len() > 1 => packed.truncate(packed.len() - 1),
            1 => match format {
                // A block of type 3, which there is none of.
                Format::Deflate | Format::Zlib | Format::Gzip => {
                    packed[[0, 2, 10][format as usize]] |= 6;
                }
                Format::Zstd => packed[13] |= 6,
                _ => packed.insert(0, 0),
            },
            2 if matches!(format, Format::Zlib | Format::Gzip) => {
                *packed.last_mut().expect("a trailer") ^= 1;
            }
            3 if message_bytes > 0 => capacity = message_bytes - 1,
            _ if format != Format::Lz4 => packed.extend([0xaa; 3]),
            _ => {}
        }
        (packed, capacity)
    }
}

fn seal_bytes(block: &SealBlock) -> Vec<u8> {
    let words = [
        u64::from(block.opcode)
            | u64::from(block.version) << 8
            | u64::from(block.block_bytes) << 16
            | u64::from(block.reserved) << 32,
        block.key_address,
        u64::from(block.key_bytes) | u64::from(block.prepared_kind) << 32,
        block.prepared_address,
        block.aad_address,
        block.aad_bytes,
    ];
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    bytes.extend(block.nonce);
    bytes.extend(block.hints.to_le_bytes());
    bytes.extend(block.tag);
    bytes.extend(block.reserved2.into_iter().flat_map(u64::to_le_bytes));
    bytes
}

fn pack_bytes(block: &PackBlock) -> Vec<u8> {
    let words = [
        u64::from(block.opcode)
            | u64::from(block.version) << 8
            | u64::from(block.block_bytes) << 16
            | u64::from(block.reserved) << 32,
        u64::from(block.format)
            | u64::from(block.effort) << 8
            | u64::from(block.reserved2) << 16
            | u64::from(block.hints) << 32,
        block.target_capacity,
    ];
    words.into_iter().chain(block.reserved3).flat_map(u64::to_le_bytes).collect()
}
