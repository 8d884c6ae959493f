// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checksums: CRC-32C of the descriptors, CRC-32 of gzip, Adler-32 of zlib.

/// Result of eight one-bit steps for each byte, most significant coefficient first.
const STEPS: [u32; 256] = {
    let mut steps = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut register, mut bit) = ((byte as u32) << 24, 0);
        while bit < 8 {
            register = register << 1 ^ if register >> 31 == 1 { 0x1edc_6f41 } else { 0 };
            bit += 1;
        }
        steps[byte] = register;
        byte += 1;
    }
    steps
};

/// The CRC-32C, one byte at a time, most significant coefficient first, as the polynomial is written. `seed` 0 begins, the
/// value of the bytes before goes on. `plain`: seed and result are neither inverted nor reflected; `straight`: bytes
/// are not reflected.
pub fn crc32c(bytes: &[u8], seed: u32, plain: bool, straight: bool) -> u32 {
    let mut register = if plain { seed } else { (!seed).reverse_bits() };
    for &byte in bytes {
        let byte = if straight { byte } else { byte.reverse_bits() };
        register = register << 8 ^ STEPS[(register >> 24 ^ u32::from(byte)) as usize];
    }
    if plain { register } else { !register.reverse_bits() }
}

/// The CRC-32 of RFC 1952.
pub fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |mut crc: u32, &byte| {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
        }
        crc
    })
}

/// The checksum of RFC 1950.
pub fn adler32(bytes: &[u8]) -> u32 {
    let (a, b) = bytes.iter().fold((1, 0), |(a, b), &byte| {
        let a = (a + u32::from(byte)) % 65521;
        (a, (b + a) % 65521)
    });
    b << 16 | a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_values() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
        assert_eq!(crc32c(b"123456789", 0, false, false), 0xe306_9283);
        let first = crc32c(b"1234", 0, false, false);
        assert_eq!(
            crc32c(b"56789", first, false, false),
            0xe306_9283,
            "the value of the bytes before continues it"
        );
    }
}
