// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sizes as users type and read them: `4096`, `4K`, `24MB`, `1.5GiB`; units are powers of 1024.

/// Units with their powers of two, the largest first.
pub(crate) const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
/// Most digits behind the point; the next one would be less than a byte in every unit.
const FRACTION_DIGITS: usize = 12;

/// Reason that a text is not a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SizeError {
    /// The text is not a number with a unit.
    #[error("write bytes, or a number with K, M, G or T, for example 64M or 1.5G")]
    Form,
    /// The size has more than 64 bits.
    #[error("that is more than a file can have")]
    Large,
}

/// Parses a size: a number of bytes, or a number with K, M, G or T, which may have a fraction.
///
/// # Errors
///
/// The text has another form, or the size is too large.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let number = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match text[number.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(SizeError::Form),
    };
    let number = number.trim_end();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_part_of_a_byte = shift == 0 && whole != number;
    if !is_digits(whole) || !is_digits(fraction) || fraction.len() > FRACTION_DIGITS || is_part_of_a_byte {
        return Err(SizeError::Form);
    }
    let whole = whole.parse::<u64>().ok().and_then(|whole| whole.checked_mul(1 << shift));
    let scale = 10_u128.pow(fraction.len() as u32);
    let part = (fraction.parse::<u128>().map_err(|_| SizeError::Form)? << shift) / scale;
    whole.and_then(|whole| whole.checked_add(part as u64)).ok_or(SizeError::Large)
}

/// Formats bytes with a unit for readers: `24.0 MiB`.
pub fn readable(bytes: u64) -> String {
    let unit = UNITS.iter().find(|(_, shift)| bytes >> shift > 0);
    unit.map_or_else(
        || format!("{bytes} B"),
        |(unit, shift)| format!("{:.1} {unit}", bytes as f64 / (1_u64 << shift) as f64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("4096", 4096),
            ("7b", 7),
            ("64M", 64 << 20),
            ("10G", 10 << 30),
            ("1GiB", 1 << 30),
            ("64mib", 64 << 20),
            ("2T", 2 << 40),
            ("1.5G", 3 << 29),
            ("0.25k", 256),
            ("2.000M", 2 << 20),
            ("16.9 MiB", 17_720_934),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for wrong in [
            "",
            "M",
            "G",
            "many",
            "-1",
            "1X",
            "1.5",
            "1.5b",
            ".5G",
            "1.G",
            "1.2.3G",
            "1,5G",
            "1.-5G",
            "+1G",
            "1e3",
            "0.1234567890123G",
        ] {
            assert_eq!(parse(wrong), Err(SizeError::Form), "{wrong}");
        }
        for large in ["16777216T", "99999999T", "99999999999999999999", "99999999999999999.5G"] {
            assert_eq!(parse(large), Err(SizeError::Large), "{large}");
        }
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!(readable(0), "0 B");
        assert_eq!(readable(1023), "1023 B");
        assert_eq!(readable(24_000_000), "22.9 MiB");
        assert_eq!(readable(u64::MAX), "16777216.0 TiB");
    }
}
