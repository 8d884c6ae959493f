// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory as a descriptor sees it: bytes at addresses.
//!
//! - **Order** a copy reads its whole source first, so overlaps need no thought; a record's status is written last

use memlift_spec::{Completion, Descriptor, Flags, Opcode};

/// Bytes at addresses. An address that an implementor does not have is a mistake of whoever wrote the descriptor.
pub trait Memory {
    /// The byte at `address`.
    fn byte(&self, address: u64) -> u8;

    /// Changes the byte at `address`.
    fn set(&mut self, address: u64, byte: u8);

    /// A little-endian number of up to 8 bytes.
    fn number(&self, address: u64, bytes: u64) -> u64 {
        (0..bytes).rev().fold(0, |number, offset| number << 8 | u64::from(self.byte(address + offset)))
    }

    /// Returns the bytes at `address`.
    fn bytes(&self, address: u64, bytes: u64) -> Vec<u8> {
        (0..bytes).map(|index| self.byte(address + index)).collect()
    }

    /// Writes `bytes` to `address`.
    fn put(&mut self, address: u64, bytes: &[u8]) {
        bytes.iter().enumerate().for_each(|(at, &byte)| self.set(address + at as u64, byte));
    }

    /// As if the whole source were read first.
    fn copy(&mut self, source: u64, target: u64, bytes: u64) {
        let read = self.bytes(source, bytes);
        self.put(target, &read);
    }

    /// Writes a completion record, its status last.
    fn settle(&mut self, address: u64, done: &Completion) {
        self.put(address + 1, &[done.result, done.fault_info, 0]);
        self.put(address + 4, &done.bytes_completed.to_le_bytes());
        self.put(address + 8, &done.fault_address.to_le_bytes());
        self.put(address + 16, &done.value.to_le_bytes());
        self.put(address + 24, &done.value2.to_le_bytes());
        self.set(address, done.status);
    }

    /// The descriptor that lies at `address`.
    fn descriptor(&self, address: u64) -> Descriptor {
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

    /// Writes a descriptor to `address`, as a device finds it in a list.
    fn put_descriptor(&mut self, address: u64, descriptor: &Descriptor) {
        let words = [
            u64::from(descriptor.pasid) | u64::from(descriptor.flags_opcode) << 32,
            descriptor.completion_address,
            descriptor.source,
            descriptor.target,
            u64::from(descriptor.size) | u64::from(descriptor.interrupt_handle) << 32,
            descriptor.operation[0],
            descriptor.operation[1],
            descriptor.operation[2],
        ];
        words
            .iter()
            .enumerate()
            .for_each(|(index, word)| self.put(address + 8 * index as u64, &word.to_le_bytes()));
    }
}

/// A stretch of bytes that lies at `base`. Other addresses panic.
#[derive(Debug)]
pub struct Image<'a> {
    /// Address of the first byte.
    pub base: u64,
    /// Contents from `base` on.
    pub bytes: &'a mut [u8],
}

impl Image<'_> {
    /// Where `address` is in `bytes`.
    ///
    /// # Panics
    ///
    /// Below the image.
    pub fn at(&self, address: u64) -> usize {
        address.checked_sub(self.base).expect("an address below the image") as usize
    }
}

impl Memory for Image<'_> {
    fn byte(&self, address: u64) -> u8 {
        self.bytes[self.at(address)]
    }

    fn set(&mut self, address: u64, byte: u8) {
        let at = self.at(address);
        self.bytes[at] = byte;
    }

    fn copy(&mut self, source: u64, target: u64, bytes: u64) {
        let (source, target) = (self.at(source), self.at(target));
        self.bytes.copy_within(source..source + bytes as usize, target);
    }
}
