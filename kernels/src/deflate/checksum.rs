// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checksums of zlib and gzip, by libdeflate's vector code.

use super::frame::Format;

/// Continues the Adler-32 of zlib (RFC 1950) over `bytes`; the first value is 1.
pub fn adler32(sum: u32, bytes: &[u8]) -> u32 {
    // SAFETY: pointer and length are those of the slice.
    unsafe { libdeflate_sys::libdeflate_adler32(sum, bytes.as_ptr().cast(), bytes.len()) }
}

/// Continues the CRC-32 of gzip (RFC 1952) over `bytes`; the first value is 0.
pub fn crc32(sum: u32, bytes: &[u8]) -> u32 {
    // SAFETY: pointer and length are those of the slice.
    unsafe { libdeflate_sys::libdeflate_crc32(sum, bytes.as_ptr().cast(), bytes.len()) }
}

/// Returns the checksum of no bytes.
pub(super) const fn initial(format: Format) -> u32 {
    match format {
        Format::Zlib => 1,
        Format::Raw | Format::Gzip => 0,
    }
}

/// Continues the checksum of this format.
pub(super) fn update(format: Format, sum: u32, bytes: &[u8]) -> u32 {
    match format {
        Format::Raw => sum,
        Format::Zlib => adler32(sum, bytes),
        Format::Gzip => crc32(sum, bytes),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn check_values_are_those_of_the_catalogue() {
        assert_eq!(super::crc32(0, b"123456789"), 0xcbf4_3926);
        assert_eq!(super::adler32(1, b"Wikipedia"), 0x11e6_0398);
    }
}
