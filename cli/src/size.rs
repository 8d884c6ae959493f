// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sizes as users type them: `4096`, `4K`, `24MB`, `1GiB`; units are powers of 1024.

/// Parses a size: a number of bytes, or a number with K, M, G or T.
pub fn size(text: &str) -> Result<u64, String> {
    let wrong = || "write bytes, or a number with K, M, G or T".to_owned();
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(|| "that is more than a file can have".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64M", 64 << 20),
            ("10G", 10 << 30),
            ("1GiB", 1 << 30),
            ("64mib", 64 << 20),
            ("2T", 2 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for wrong in [
            "",
            "M",
            "G",
            "many",
            "-1",
            "1.5G",
            "1X",
            "99999999T",
            "99999999999999999999",
            "99999999999999999G",
        ] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
