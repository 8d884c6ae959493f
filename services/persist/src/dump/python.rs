// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys and values of Python's dicts, decoded: `docs/formats/pool.md`, *Values of Python*.
//!
//! - **Rule** bytes that are no such value are shown as bytes. Lengths are compared with the bytes that are left, and depth has a limit
//! - **Not here** encoding, and values that only Python can make: a pickle stays bytes

use super::{BYTES, ELEMENTS, Value, number};

/// Containers within containers, at most.
const DEPTH_MAX: u32 = 64;

/// The value that bytes encode; None: they do not.
pub(super) fn decode(bytes: &[u8]) -> Option<Value> {
    let mut source = Source { left: bytes };
    let value = source.value(0)?;
    source.left.is_empty().then_some(value)
}

struct Source<'a> {
    left: &'a [u8],
}

impl<'a> Source<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.left.split_at_checked(bytes)?;
        self.left = left;
        Some(taken)
    }

    /// A length as LEB128, no more than the bytes that are left.
    fn length(&mut self) -> Option<usize> {
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
            if shift > 56 {
                return None;
            }
        }
        usize::try_from(value).ok().filter(|length| *length <= self.left.len())
    }

    fn sized(&mut self) -> Option<&'a [u8]> {
        let bytes = self.length()?;
        self.take(bytes)
    }

    fn text(&mut self) -> Option<Value> {
        let text = std::str::from_utf8(self.sized()?).ok()?;
        Some(Value::Text(text.chars().take(BYTES).collect()))
    }

    fn raw(&mut self) -> Option<Value> {
        Some(super::raw(self.sized()?))
    }

    fn double(&mut self) -> Option<Value> {
        Some(number("f64", self.take(8)?))
    }

    /// `count` values, of which the first ones are kept.
    fn many(&mut self, count: usize, depth: u32) -> Option<Vec<Value>> {
        let mut values = Vec::new();
        for at in 0..count {
            let value = self.value(depth + 1)?;
            if at < ELEMENTS as usize {
                values.push(value);
            }
        }
        if count > values.len() {
            values.push(Value::More((count - values.len()) as u64));
        }
        Some(values)
    }

    fn value(&mut self, depth: u32) -> Option<Value> {
        if depth > DEPTH_MAX {
            return None;
        }
        let tagged = |name: &str, values| Value::Tagged { name: name.to_owned(), values };
        Some(match self.take(1)?[0] {
            0 => Value::Nothing,
            1 => Value::Truth(false),
            2 => Value::Truth(true),
            3 => int(self.sized()?)?,
            4 => self.double()?,
            5 => self.text()?,
            6 => self.raw()?,
            tag @ (7 | 8 | 15 | 16) => {
                let count = self.length()?;
                let values = self.many(count, depth)?;
                match tag {
                    7 => Value::Array(values),
                    8 => tagged("tuple", values),
                    15 => tagged("set", values),
                    _ => tagged("frozenset", values),
                }
            }
            9 => {
                let count = self.length()?;
                let mut pairs = Vec::new();
                for at in 0..count {
                    let pair = (self.value(depth + 1)?, self.value(depth + 1)?);
                    if at < ELEMENTS as usize {
                        pairs.push(pair);
                    }
                }
                Value::Map { more: (count - pairs.len()) as u64, pairs }
            }
            10 => tagged("pickle", vec![self.raw()?]),
            11 => {
                let dtype = std::str::from_utf8(self.sized()?).ok()?.to_owned();
                if dtype.len() > 16 || !dtype.bytes().all(|byte| byte.is_ascii_graphic()) {
                    return None;
                }
                let bytes = self.sized()?;
                tagged(&format!("numpy {dtype}"), vec![element(&dtype, bytes)])
            }
            12 => tagged("numpy str", vec![self.text()?]),
            13 => tagged("numpy bytes", vec![self.raw()?]),
            14 => tagged("complex", vec![self.double()?, self.double()?]),
            17 => tagged("bytearray", vec![self.raw()?]),
            _ => return None,
        })
    }
}

/// A number of any length in two's complement.
fn int(bytes: &[u8]) -> Option<Value> {
    let negative = *bytes.last()? & 0x80 != 0;
    if bytes.len() > 16 {
        return Some(Value::Tagged { name: "int".to_owned(), values: vec![super::raw(bytes)] });
    }
    let mut wide = [if negative { 0xff } else { 0 }; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    Some(Value::Signed(i128::from_le_bytes(wide)))
}

/// An element of an array, by its type in NumPy's words: `<f8`.
fn element(dtype: &str, bytes: &[u8]) -> Value {
    let mut letters = dtype.chars();
    let (order, letter) = (letters.next(), letters.next());
    let name = match (letter, bytes.len()) {
        (Some('f'), 4) => "f32",
        (Some('f'), 8) => "f64",
        (Some('u'), 1 | 2 | 4 | 8) => "u64",
        (Some('i'), 1 | 2 | 4 | 8) => "i64",
        (Some('b'), 1) => return Value::Truth(bytes[0] != 0),
        _ => return super::raw(bytes),
    };
    if order == Some('>') {
        return super::raw(bytes);
    }
    number(name, bytes)
}

/// An element of an array in a pool: a letter (b, i, u, f, c), and its bytes.
pub(super) fn array_element(letter: u8, bytes: &[u8]) -> Value {
    if letter == b'c' && matches!(bytes.len(), 8 | 16) {
        let (real, imaginary) = bytes.split_at(bytes.len() / 2);
        let values = vec![element("<f", real), element("<f", imaginary)];
        return Value::Tagged { name: "complex".to_owned(), values };
    }
    element(&format!("<{}", char::from(letter)), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_python_wrote_them() {
        for (bytes, wanted) in [
            (&b"\x00"[..], "None"),
            (b"\x02", "true"),
            (b"\x03\x02\xe8\x03", "1000"),
            (b"\x03\x01\xff", "-1"),
            (b"\x04\x00\x00\x00\x00\x00\x00\xf0\x3f", "1.0"),
            (b"\x05\x04rate", "\"rate\""),
            (b"\x06\x02\x00\xff", "0x00ff"),
            (b"\x07\x02\x03\x01\x01\x00", "[1, None]"),
            (b"\x08\x01\x03\x01\x01", "tuple(1)"),
            (b"\x09\x01\x05\x01a\x03\x01\x02", "{\"a\": 2}"),
            (b"\x0b\x03<f4\x04\x00\x00\x80\x3f", "numpy <f4(1.0)"),
            (b"\x0b\x03<i2\x02\xff\xff", "numpy <i2(-1)"),
            (b"\x0a\x02\x80\x05", "pickle(0x8005)"),
            (b"\x0f\x00", "set()"),
        ] {
            assert_eq!(decode(bytes).map(|value| value.to_string()).as_deref(), Some(wanted), "{bytes:?}");
        }
        for odd in [&b""[..], b"\x03", b"\x05\x05rate", b"\x00\x00", b"\x63", b"\x09\x02\x00\x00"] {
            assert_eq!(decode(odd), None, "{odd:?}");
        }
        let deep = [[7, 1].repeat(70), vec![0]].concat();
        assert_eq!(decode(&deep), None);
    }
}
