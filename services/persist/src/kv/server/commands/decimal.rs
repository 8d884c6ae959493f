// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sums of numbers as they are written, for INCRBYFLOAT.
//!
//! - **Rule** numbers of up to 17 places behind the point and 10^20 in size are added exactly, so that 0.1 and 0.2 make 0.3. Others are
//!   added as doubles

/// Places behind the point.
const PLACES: i32 = 17;

/// The sum as text; None: it is no finite number. An error: one of the two is no number.
pub fn sum(a: &[u8], b: &[u8]) -> Result<Option<String>, ()> {
    let (x, y) = (double(a)?, double(b)?);
    if let (Some(x), Some(y)) = (fixed(a), fixed(b))
        && let Some(sum) = x.checked_add(y)
    {
        return Ok(Some(text(sum)));
    }
    let sum = x + y;
    Ok(sum.is_finite().then(|| sum.to_string()))
}

fn double(text: &[u8]) -> Result<f64, ()> {
    let is_plain = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    if !text.iter().all(is_plain) {
        let lower = text.to_ascii_lowercase();
        let is_infinite = [&b"inf"[..], b"+inf", b"-inf"].contains(&&lower[..]);
        return if is_infinite { Ok(f64::INFINITY) } else { Err(()) };
    }
    std::str::from_utf8(text).map_err(|_| ())?.parse().map_err(|_| ())
}

/// A number in units of the last place; None: it has more places, or is too large.
fn fixed(text: &[u8]) -> Option<i128> {
    let text = std::str::from_utf8(text).ok()?;
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: i128 = format!("{whole}{part}").parse().ok()?;
    let shift = PLACES.checked_add(exponent)?.checked_sub(i32::try_from(part.len()).ok()?)?;
    if shift < 0 {
        let unit = 10i128.checked_pow(shift.unsigned_abs())?;
        return (digits % unit == 0).then_some(digits / unit);
    }
    digits.checked_mul(10i128.checked_pow(shift.unsigned_abs())?)
}

fn text(value: i128) -> String {
    let unit = 10u128.pow(PLACES.unsigned_abs());
    let (whole, part) = (value.unsigned_abs() / unit, value.unsigned_abs() % unit);
    let sign = if value < 0 { "-" } else { "" };
    let part = format!("{part:017}");
    match part.trim_end_matches('0') {
        "" => format!("{sign}{whole}"),
        part => format!("{sign}{whole}.{part}"),
    }
}

#[cfg(test)]
mod tests {
    use super::sum;

    #[test]
    fn sums_are_as_people_write_them() {
        for (a, b, expected) in [
            ("0.1", "0.2", "0.3"),
            ("1", "1.1", "2.1"),
            ("5.0e3", "200", "5200"),
            ("-0.5", "0.25", "-0.25"),
            ("3", "-3", "0"),
            ("1e-20", "1", "1"),
            ("1e300", "1", &1e300.to_string()),
            (".5", "5.", "5.5"),
        ] {
            assert_eq!(sum(a.as_bytes(), b.as_bytes()), Ok(Some(expected.to_owned())), "{a} + {b}");
        }
        assert_eq!(sum(b"1", b"inf"), Ok(None));
        assert_eq!(sum(b"1e308", b"1.7e308"), Ok(None));
        for wrong in ["", "x", "1 ", "nan", "1e", "0x10", "--1", "1.2.3"] {
            assert_eq!(sum(wrong.as_bytes(), b"1"), Err(()), "{wrong}");
        }
    }
}
