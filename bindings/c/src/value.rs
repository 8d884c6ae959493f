// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values of Python in answers and requests: the part "values" of `memlift_ipc.h`.
//!
//! - **Flow** a payload of kind `v` gives a [`CValue`] at its first value; `first` and `next` go through its children, `get` finds an
//!   entry of a dict; others return numbers, text, bytes and arrays.
//! - **Layout** `docs/formats/values.md`; its kind 17 (a special) appears here with a name as its text and one child.
//! - **Order** the peer may change a payload while it is read: each byte that decides something is read once, and every offset is checked
//!   against the payload's end where it is used.
//! - **Not here** writing values, and the classes that specials represent.

use std::ffi::{c_char, c_int, c_void};

use memlift::ipc::Payload;
use memlift::ipc::message::Shape;

use crate::array::CArray;
use crate::fault::{CORRUPT, Fault, NO_OBJECT, run};
use crate::serve::PendingRequest;
use crate::walk::{borrow_object, text, write_result};

const MAGIC: [u8; 4] = *b"mlv\x01";
const HEAD_BYTES: u64 = 8;
const PIECE_ALIGN: u64 = 64;
/// Deepest nesting that is accepted.
const DEPTH_MAX: u32 = 100;

/// The C type `memlift_value` of `memlift_ipc.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CValue {
    message: *const c_void,
    bytes: u64,
    at: u64,
    /// Number of values behind this one in its container.
    left: u64,
    depth: u32,
    reserved: u32,
}

/// `enum memlift_value_kind`, in the same order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
enum Kind {
    None,
    Bool,
    Int,
    Float,
    Complex,
    Text,
    Bytes,
    List,
    Dict,
    Array,
    Special,
}

fn corrupt() -> Fault {
    Fault { code: CORRUPT, text: Some("the value is damaged, or its sender changes it".to_owned()) }
}

fn no_such(what: &str) -> Fault {
    Fault { code: NO_OBJECT, text: Some(what.to_owned()) }
}

/// The parsed head of one value: its kind, the offset behind the head, and the number of its children.
struct Head {
    kind: u8,
    /// Offset of the bytes behind the kind.
    body: u64,
    /// Offset of the first child, or of the next value if there are no children.
    end: u64,
    children: u64,
}

impl CValue {
    fn of(shape: &Shape, data: *const u8, bytes: u64) -> Result<CValue, Fault> {
        if *shape != Shape::Value {
            return Err(Fault::argument("it is no value: memlift_answer_array describes it"));
        }
        let value = CValue { message: data.cast(), bytes, at: HEAD_BYTES, left: 0, depth: 0, reserved: 0 };
        if (0..4).any(|at| value.byte(at).ok() != MAGIC.get(at as usize).copied()) {
            return Err(corrupt());
        }
        Ok(value)
    }

    fn byte(&self, at: u64) -> Result<u8, Fault> {
        if at >= self.bytes {
            return Err(corrupt());
        }
        // SAFETY: the offset was checked to lie in the payload, which the caller keeps alive as long as this value; its bytes may
        // change, and this one is read once here.
        Ok(unsafe { self.message.cast::<u8>().add(at as usize).read_volatile() })
    }

    fn number(&self, at: u64, bytes: u64) -> Result<u64, Fault> {
        let mut number = 0;
        for index in (0..bytes).rev() {
            number = number << 8 | u64::from(self.byte(at.checked_add(index).ok_or_else(corrupt)?)?);
        }
        Ok(number)
    }

    /// Returns the address of a range, which must lie in the payload.
    fn range(&self, at: u64, bytes: u64) -> Result<*const u8, Fault> {
        match at.checked_add(bytes) {
            // SAFETY: the end of the range was checked to lie in the payload.
            Some(end) if end <= self.bytes => Ok(unsafe { self.message.cast::<u8>().add(at as usize) }),
            _ => Err(corrupt()),
        }
    }

    /// Returns address and length of the bytes that the field *where* at an offset names.
    fn piece(&self, at: u64) -> Result<(*const u8, u64), Fault> {
        let (offset, bytes) = (self.number(at, 8)?, self.number(at + 8, 8)?);
        let described = HEAD_BYTES + self.number(4, 4)?;
        let first = described.next_multiple_of(PIECE_ALIGN);
        Ok((self.range(first.checked_add(offset).ok_or_else(corrupt)?, bytes)?, bytes))
    }

    fn head_at(&self, at: u64) -> Result<Head, Fault> {
        let kind = self.byte(at)?;
        let body = at + 1;
        let (length, children) = match kind {
            0..=2 => (0, 0),
            3 | 5 => (8, 0),
            6 => (16, 0),
            4 | 7 | 8 | 20 => (4 + self.number(body, 4)?, 0),
            9 | 18 => (16, 0),
            10 | 11 | 13 | 14 => (4, self.number(body, 4)?),
            12 => (4, 2 * self.number(body, 4)?),
            15 | 16 => {
                let name = u64::from(self.byte(body)?);
                let dimensions = u64::from(self.byte(body + 2 + name)?);
                (1 + name + 2 + 8 * dimensions + 16, 0)
            }
            17 => (1 + u64::from(self.byte(body)?), 1),
            19 => {
                let name = u64::from(self.byte(body)?);
                (1 + name + 4 + self.number(body + 1 + name, 4)?, 0)
            }
            _ => return Err(corrupt()),
        };
        let end = body + length;
        self.range(body, length)?;
        if children > self.bytes - end {
            return Err(corrupt());
        }
        Ok(Head { kind, body, end, children })
    }

    fn head(&self) -> Result<Head, Fault> {
        self.head_at(self.at)
    }

    /// Returns the offset behind a value and all of its descendants.
    fn behind(&self) -> Result<u64, Fault> {
        let (mut at, mut pending) = (self.at, 1u64);
        while pending > 0 {
            let head = self.head_at(at)?;
            pending = pending - 1 + head.children;
            at = head.end;
        }
        Ok(at)
    }

    fn kind(&self) -> Result<Kind, Fault> {
        Ok(match self.head()?.kind {
            0 => Kind::None,
            1 | 2 => Kind::Bool,
            3 | 4 => Kind::Int,
            5 => Kind::Float,
            6 => Kind::Complex,
            7 | 20 => Kind::Text,
            8 | 9 | 18 => Kind::Bytes,
            10 | 11 | 13 | 14 => Kind::List,
            12 => Kind::Dict,
            15 | 16 | 19 => Kind::Array,
            _ => Kind::Special,
        })
    }

    fn first(&self) -> Result<Option<CValue>, Fault> {
        let head = self.head()?;
        if !matches!(head.kind, 10..=14 | 17) {
            return Err(Fault::argument("the value is no list, dict or special: there is nothing in it"));
        }
        if self.depth >= DEPTH_MAX {
            return Err(corrupt());
        }
        let inside =
            CValue { at: head.end, left: head.children.saturating_sub(1), depth: self.depth + 1, ..*self };
        Ok((head.children > 0).then_some(inside))
    }

    fn next(&self) -> Result<Option<CValue>, Fault> {
        match self.left.checked_sub(1) {
            None => Ok(None),
            Some(left) => Ok(Some(CValue { at: self.behind()?, left, ..*self })),
        }
    }

    /// Returns address and length of a value's text or bytes, in the payload.
    fn text(&self) -> Result<(*const u8, u64), Fault> {
        let head = self.head()?;
        match head.kind {
            7 | 8 | 20 => {
                let bytes = self.number(head.body, 4)?;
                Ok((self.range(head.body + 4, bytes)?, bytes))
            }
            9 | 18 => self.piece(head.body),
            17 => {
                let bytes = u64::from(self.byte(head.body)?);
                Ok((self.range(head.body + 1, bytes)?, bytes))
            }
            _ => Err(Fault::argument("the value has neither text nor bytes")),
        }
    }

    fn is_text(&self, wanted: &[u8]) -> Result<bool, Fault> {
        if !matches!(self.head()?.kind, 7 | 20) {
            return Ok(false);
        }
        let (start, bytes) = self.text()?;
        if bytes != wanted.len() as u64 {
            return Ok(false);
        }
        // SAFETY: the range lies in the payload; each byte is read once.
        Ok(wanted.iter().enumerate().all(|(at, byte)| unsafe { start.add(at).read_volatile() } == *byte))
    }

    fn get(&self, key: &str) -> Result<CValue, Fault> {
        if self.head()?.kind != 12 {
            return Err(Fault::argument("the value is no dict"));
        }
        let mut entry = self.first()?;
        while let Some(name) = entry {
            let value = name.next()?.ok_or_else(corrupt)?;
            if name.is_text(key.as_bytes())? {
                return Ok(value);
            }
            entry = value.next()?;
        }
        Err(no_such(&format!("the dict has no key {key:?}")))
    }

    fn int(&self) -> Result<i64, Fault> {
        let head = self.head()?;
        match head.kind {
            1 | 2 => Ok(i64::from(head.kind == 2)),
            3 => Ok(self.number(head.body, 8)? as i64),
            4 => Err(Fault::argument("the number has more than 64 bits")),
            _ => Err(Fault::argument("the value is no whole number")),
        }
    }

    fn float(&self) -> Result<f64, Fault> {
        let head = self.head()?;
        match head.kind {
            5 => Ok(f64::from_bits(self.number(head.body, 8)?)),
            3 => {
                let number = self.number(head.body, 8)? as i64;
                let float = number as f64;
                // Compared as `i128`, because 2^63 does not fit into an `i64`.
                if float as i128 == i128::from(number) {
                    Ok(float)
                } else {
                    Err(Fault::argument("no double is equal to the number"))
                }
            }
            _ => Err(Fault::argument("the value is no number")),
        }
    }

    fn array(&self) -> Result<CArray, Fault> {
        let head = self.head()?;
        let name = u64::from(match head.kind {
            15 | 16 | 19 => self.byte(head.body)?,
            _ => return Err(Fault::argument("the value is no array")),
        });
        let type_at = head.body + 1;
        let (order, letter) = (self.byte(type_at)?, self.byte(type_at + 1)?);
        let mut size = 0u64;
        for at in type_at + 2..type_at + name {
            let digit = self.byte(at)?.wrapping_sub(b'0');
            // The units of a time type follow its size in brackets.
            if digit > 9 {
                break;
            }
            size = size * 10 + u64::from(digit);
        }
        // A character of numpy's text type has four bytes.
        let size = if letter == b'U' { size.saturating_mul(4) } else { size };
        let element_bytes = u32::try_from(size).map_err(|_| corrupt())?;
        if name < 3 || !(b"biufcmMSUV".contains(&letter)) {
            return Err(corrupt());
        }
        if order == b'>' {
            return Err(Fault::argument("the array is big-endian: convert it where it is sent"));
        }
        let after = type_at + name;
        if head.kind == 19 {
            let bytes = self.number(after, 4)?;
            let data = self.range(after + 4, bytes)?;
            return CArray::described(data, bytes, letter, element_bytes, &[]).ok_or_else(corrupt);
        }
        let (fortran, dimensions) = (self.byte(after)? == 1, self.byte(after + 1)?);
        let mut shape = Vec::new();
        for index in 0..u64::from(dimensions) {
            shape.push(self.number(after + 2 + 8 * index, 8)?);
        }
        if fortran && shape.iter().filter(|count| **count != 1).count() > 1 {
            return Err(Fault::argument(
                "the array is in Fortran's order: send numpy.ascontiguousarray of it",
            ));
        }
        let (data, bytes) = self.piece(after + 2 + 8 * u64::from(dimensions))?;
        CArray::described(data, bytes, letter, element_bytes, &shape).ok_or_else(|| {
            Fault::argument("the array has more than 8 dimensions, or is not as long as its shape says")
        })
    }
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// `value` is null or has room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_answer_value(answer: *const Payload, value: *mut CValue) -> c_int {
    run(|| {
        let answer = borrow_object(answer, "answer")?;
        write_result(value, CValue::of(answer.shape(), answer.as_ptr(), answer.bytes())?, "value")
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// `value` is null or has room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_request_value(request: *const PendingRequest, value: *mut CValue) -> c_int {
    run(|| {
        let request = borrow_object(request, "request")?.request();
        write_result(value, CValue::of(request.shape(), request.as_ptr(), request.bytes())?, "value")
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// `value` is null or from this library; `kind` is null or has room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_value_kind(value: *const CValue, kind: *mut u32) -> c_int {
    run(|| write_result(kind, borrow_object(value, "value")?.kind()? as u32, "kind"))
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// `value` is null or from this library; `count` is null or has room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_value_count(value: *const CValue, count: *mut u64) -> c_int {
    run(|| {
        let head = borrow_object(value, "value")?.head()?;
        let children = if head.kind == 12 { head.children / 2 } else { head.children };
        write_result(count, children, "count")
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// `value` is null or from this library; `first` is null or has room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_value_first(value: *const CValue, first: *mut CValue) -> c_int {
    run(|| {
        write_result(
            first,
            borrow_object(value, "value")?.first()?.ok_or_else(|| no_such("it is empty"))?,
            "first",
        )
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// `value` is null or from this library, and has room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_value_next(value: *mut CValue) -> c_int {
    run(|| {
        let next = borrow_object(value, "value")?.next()?.ok_or_else(|| no_such("it was the last one"))?;
        write_result(value, next, "value")
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// `value` is null or from this library; `key` is null or a C string; `found` is null or has room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_value_get(
    value: *const CValue,
    key: *const c_char,
    found: *mut CValue,
) -> c_int {
    run(|| write_result(found, borrow_object(value, "value")?.get(text(key, "key")?)?, "found"))
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// `value` is null or from this library; `number` is null or has room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_value_int(value: *const CValue, number: *mut i64) -> c_int {
    run(|| write_result(number, borrow_object(value, "value")?.int()?, "number"))
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// `value` is null or from this library; `number` is null or has room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_value_double(value: *const CValue, number: *mut f64) -> c_int {
    run(|| write_result(number, borrow_object(value, "value")?.float()?, "number"))
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// `value` is null or from this library; `start` and `bytes` are null or have room for one each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_value_text(
    value: *const CValue,
    start: *mut *const c_char,
    bytes: *mut u64,
) -> c_int {
    run(|| {
        let (data, length) = borrow_object(value, "value")?.text()?;
        write_result(bytes, length, "bytes")?;
        write_result(start, data.cast::<c_char>(), "start")
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// `value` is null or from this library; `array` is null or has room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_value_array(value: *const CValue, array: *mut CArray) -> c_int {
    run(|| write_result(array, borrow_object(value, "value")?.array()?, "array"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value `{"a": [1, 2.5, None, True], "b": b"xy", "n": numpy.arange(3, dtype="<i4")}` as a message.
    fn message() -> Vec<u8> {
        let mut described = vec![12];
        described.extend(3u32.to_le_bytes());
        let name = |described: &mut Vec<u8>, name: &[u8]| {
            described.push(7);
            described.extend((name.len() as u32).to_le_bytes());
            described.extend(name);
        };
        name(&mut described, b"a");
        described.push(10);
        described.extend(4u32.to_le_bytes());
        described.push(3);
        described.extend(1i64.to_le_bytes());
        described.push(5);
        described.extend(2.5f64.to_le_bytes());
        described.extend([0, 2]);
        name(&mut described, b"b");
        described.push(8);
        described.extend(2u32.to_le_bytes());
        described.extend(b"xy");
        name(&mut described, b"n");
        described.extend([15, 3]);
        described.extend(b"<i4");
        described.extend([0, 1]);
        described.extend(3u64.to_le_bytes());
        described.extend(0u64.to_le_bytes());
        described.extend(12u64.to_le_bytes());
        let mut message = MAGIC.to_vec();
        message.extend((described.len() as u32).to_le_bytes());
        message.extend(described);
        message.resize(message.len().next_multiple_of(64), 0);
        for number in 0..3i32 {
            message.extend(number.to_le_bytes());
        }
        message
    }

    fn root(message: &[u8]) -> Result<CValue, Fault> {
        CValue::of(&Shape::Value, message.as_ptr(), message.len() as u64)
    }

    /// Visits all descendants. Errors are accepted, but no access may leave the message.
    fn visit(value: &CValue, visits: &mut u32) {
        *visits += 1;
        if *visits > 10_000 {
            return;
        }
        let _ = (value.kind(), value.int(), value.float(), value.array(), value.get("a"));
        if let Ok((start, bytes)) = value.text() {
            // SAFETY: `text` has checked that the range lies in the message.
            let seen = unsafe { std::slice::from_raw_parts(start, bytes as usize) };
            assert!(bytes <= value.bytes);
            std::hint::black_box(seen.iter().map(|byte| u64::from(*byte)).sum::<u64>());
        }
        if let Ok(Some(mut child)) = value.first() {
            visit(&child, visits);
            while let Ok(Some(next)) = child.next() {
                child = next;
                visit(&child, visits);
                if *visits > 10_000 {
                    return;
                }
            }
        }
    }

    #[test]
    fn a_dict_is_read_by_names_and_in_order() {
        let message = message();
        let root = root(&message).ok().expect("a value");
        let list = root.get("a").ok().expect("there");
        let mut item = list.first().ok().flatten().expect("not empty");
        assert_eq!((item.kind().ok(), item.int().ok()), (Some(Kind::Int), Some(1)));
        item = item.next().ok().flatten().expect("a second");
        assert_eq!(item.float().ok(), Some(2.5));
        item = item.next().ok().flatten().expect("a third");
        assert_eq!(item.kind().ok(), Some(Kind::None));
        item = item.next().ok().flatten().expect("a fourth");
        assert_eq!(item.int().ok(), Some(1));
        assert!(item.next().ok().flatten().is_none());
        let (start, bytes) = root.get("b").and_then(|value| value.text()).ok().expect("bytes");
        // SAFETY: the bytes lie in the message.
        assert_eq!(unsafe { std::slice::from_raw_parts(start, bytes as usize) }, b"xy");
        assert!(root.get("n").and_then(|value| value.array()).is_ok());
        assert_eq!(root.get("c").err().map(|fault| fault.code), Some(NO_OBJECT));
    }

    #[test]
    fn no_bytes_lead_outside_the_message() {
        let whole = message();
        for at in 0..whole.len() {
            for change in [0, 1, 7, 15, 17, 19, 0x7f, 0x80, 0xff] {
                let mut message = whole.clone();
                message[at] = change;
                if let Ok(root) = root(&message) {
                    visit(&root, &mut 0);
                }
            }
        }
        for bytes in 0..whole.len() {
            if let Ok(root) = root(&whole[..bytes]) {
                visit(&root, &mut 0);
            }
        }
        // Endless nesting: each value is the only child of the previous one.
        let mut deep = MAGIC.to_vec();
        deep.extend(50_000u32.to_le_bytes());
        for _ in 0..10_000 {
            deep.push(10);
            deep.extend(1u32.to_le_bytes());
        }
        deep.push(0);
        let mut value = root(&deep).ok().expect("a value");
        while let Ok(Some(inside)) = value.first() {
            value = inside;
        }
        assert_eq!(value.depth, DEPTH_MAX);
    }
}
