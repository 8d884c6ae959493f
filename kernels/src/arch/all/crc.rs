// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CRC-32C with tables, eight bytes at a time; also the functions that every level uses around its own.
//!
//! - **Layout** `TABLES[k][b]` is the state after byte `b` and `k` zero bytes, from state 0.
//! - **Flow** the inverted seed is the first state; `update` moves the state block by block; the inverted last state is the value.
//!
//! Source: Kounavis and Berry, "A Systematic Approach to Building High Performance Software-Based CRC Generators",
//! 2005 (slicing by 8); RFC 3720, appendix B.4 (test vectors).

use super::plain;
use super::polynomial::POLYNOMIAL;

static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut state = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            state = state >> 1 ^ if state & 1 != 0 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        tables[0][byte] = state;
        byte += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[k - 1][byte];
            tables[k][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        k += 1;
    }
    tables
}

/// Continues the state (inverted CRC) over `bytes` bytes.
pub(crate) unsafe fn update(mut state: u32, source: *const u8, bytes: usize) -> u32 {
    let mut offset = 0;
    // SAFETY: every offset is below `bytes`, which the caller guarantees to be readable.
    unsafe {
        while bytes - offset >= 8 {
            let word = u64::from_le(source.add(offset).cast::<u64>().read_unaligned()) ^ state as u64;
            state = 0;
            let mut i = 0;
            while i < 8 {
                state ^= TABLES[7 - i][(word >> (8 * i)) as usize & 0xff];
                i += 1;
            }
            offset += 8;
        }
        while offset < bytes {
            let byte = source.add(offset).read();
            state = state >> 8 ^ TABLES[0][(state as u8 ^ byte) as usize];
            offset += 1;
        }
    }
    state
}

/// See [`Kernels::crc32c`](crate::Kernels::crc32c).
pub(crate) unsafe fn crc32c(source: *const u8, bytes: usize, seed: u32) -> u32 {
    // SAFETY: the caller guarantees that the source is readable for `bytes`.
    unsafe { !update(!seed, source, bytes) }
}

/// See [`Kernels::copy_crc32c`](crate::Kernels::copy_crc32c). Each block is copied and then checked in the target, where it is in
/// cache, so the value is that of the written bytes even if the source changes meanwhile.
pub(crate) unsafe fn copy_crc32c(target: *mut u8, source: *const u8, bytes: usize, seed: u32) -> u32 {
    let mut state = !seed;
    let mut offset = 0;
    while offset < bytes {
        let block_bytes = (bytes - offset).min(4096);
        // SAFETY: the block lies within `bytes`, for which the caller guarantees both buffers.
        unsafe {
            plain::copy(target.add(offset), source.add(offset), block_bytes);
            state = update(state, target.add(offset), block_bytes);
        }
        offset += block_bytes;
    }
    !state
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    fn bitwise(bytes: &[u8], seed: u32) -> u32 {
        let mut state = !seed;
        for byte in bytes {
            state ^= u32::from(*byte);
            for _ in 0..8 {
                state = if state & 1 != 0 { state >> 1 ^ super::POLYNOMIAL } else { state >> 1 };
            }
        }
        !state
    }

    #[test]
    fn tables_equal_the_definition() {
        let bytes: Vec<u8> = (0..300u32).map(|i| ((i * i) >> 3) as u8).collect();
        for count in 0..bytes.len() {
            for seed in [0, 1, 0xdead_beef] {
                // SAFETY: `count` bytes of the vector are readable.
                let value = unsafe { crc32c(bytes.as_ptr(), count, seed) };
                assert_eq!(value, bitwise(&bytes[..count], seed), "{count} bytes, seed {seed:#x}");
            }
        }
    }
}
