// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The steps of the decoder before the first block: the start of a zlib or gzip frame.
//!
//! - **Flow** [`Decoder::front`] makes one step. Fields of a gzip frame are copied to the program's `gz_header` as they arrive.
//! - **Layout** flags of gzip: 2⁹ a checksum of the header follows, 2¹⁰ an extra field, 2¹¹ a name, 2¹² a comment; 2⁸ means that the
//!   contents are text.

use super::decoder::{Decoder, Io, Mode};
use core::ffi::{c_int, c_ulong};
use core::ptr;
use libz_rs_sys::{Z_DEFLATED, Z_NEED_DICT, Z_OK, gz_header, z_stream};
use memlift_kernels::deflate::crc32;

const CHECKED: c_int = 0x200;
const EXTRA: c_int = 0x400;
const NAME: c_int = 0x800;
const COMMENT: c_int = 0x1000;

impl Decoder {
    /// Returns the program's header, if it gave one.
    fn program_header<'a>(&self) -> Option<&'a mut gz_header> {
        // SAFETY: the program passed it to `inflateGetHeader` and keeps it until the start of the frame is read.
        unsafe { self.head.as_mut() }
    }

    /// Continues the checksum of the gzip header, if the frame has one.
    fn sum_front(&mut self, bytes: &[u8]) {
        if self.flags & CHECKED != 0 && self.wrap & 4 != 0 {
            self.check = crc32(self.check, bytes);
        }
    }

    fn clear_hold(&mut self) {
        (self.hold, self.bits) = (0, 0);
    }

    fn wrong(&mut self, io: &mut Io, text: &'static core::ffi::CStr) {
        io.message = Some(text);
        self.mode = Mode::Bad;
    }

    /// Makes one step; returns a code if the call ends.
    ///
    /// # Safety
    /// The conditions of [`Decoder::run`]; the program's header and its fields are valid.
    pub unsafe fn front(&mut self, io: &mut Io, strm: *mut z_stream) -> Option<c_int> {
        macro_rules! need {
            ($count:expr) => {
                // SAFETY: the caller guarantees a valid input.
                if !unsafe { self.need(io, $count) } {
                    return Some(Z_OK);
                }
            };
        }
        match self.mode {
            Mode::Head => {
                if self.wrap == 0 {
                    self.mode = Mode::TypeDo;
                    return None;
                }
                need!(16);
                // SAFETY: the caller guarantees the conditions of `front`.
                unsafe { self.head(io, strm) };
            }
            Mode::Flags => {
                need!(16);
                self.flags = self.hold as c_int;
                if self.flags & 0xff != Z_DEFLATED {
                    self.wrong(io, c"unknown compression method");
                } else if self.flags & 0xe000 != 0 {
                    self.wrong(io, c"unknown header flags set");
                } else {
                    if let Some(head) = self.program_header() {
                        head.text = self.flags >> 8 & 1;
                    }
                    self.sum_front(&(self.hold as u16).to_le_bytes());
                    self.clear_hold();
                    self.mode = Mode::Time;
                }
            }
            Mode::Time => {
                need!(32);
                if let Some(head) = self.program_header() {
                    head.time = self.hold as c_ulong;
                }
                self.sum_front(&(self.hold as u32).to_le_bytes());
                self.clear_hold();
                self.mode = Mode::Os;
            }
            Mode::Os => {
                need!(16);
                if let Some(head) = self.program_header() {
                    (head.xflags, head.os) = (self.hold as c_int & 0xff, self.hold as c_int >> 8);
                }
                self.sum_front(&(self.hold as u16).to_le_bytes());
                self.clear_hold();
                self.mode = Mode::ExtraLength;
            }
            Mode::ExtraLength => {
                if self.flags & EXTRA != 0 {
                    need!(16);
                    self.length = self.hold as u32;
                    if let Some(head) = self.program_header() {
                        head.extra_len = self.length;
                    }
                    self.sum_front(&(self.hold as u16).to_le_bytes());
                    self.clear_hold();
                } else if let Some(head) = self.program_header() {
                    head.extra = ptr::null_mut();
                }
                self.mode = Mode::Extra;
            }
            Mode::Extra => {
                if self.flags & EXTRA != 0 {
                    // SAFETY: the caller guarantees the conditions of `front`.
                    unsafe { self.extra(io) };
                    if self.length != 0 {
                        return Some(Z_OK);
                    }
                }
                self.length = 0;
                self.mode = Mode::Name;
            }
            Mode::Name | Mode::Comment => {
                let is_name = self.mode == Mode::Name;
                if self.flags & (if is_name { NAME } else { COMMENT }) != 0 {
                    // SAFETY: the caller guarantees the conditions of `front`.
                    if !unsafe { self.text(io, is_name) } {
                        return Some(Z_OK);
                    }
                } else if let Some(head) = self.program_header() {
                    *(if is_name { &mut head.name } else { &mut head.comment }) = ptr::null_mut();
                }
                self.length = 0;
                self.mode = if is_name { Mode::Comment } else { Mode::HeadCrc };
            }
            Mode::HeadCrc => {
                if self.flags & CHECKED != 0 {
                    need!(16);
                    if self.wrap & 4 != 0 && self.hold as u32 != self.check & 0xffff {
                        self.wrong(io, c"header crc mismatch");
                        return None;
                    }
                    self.clear_hold();
                }
                if let Some(head) = self.program_header() {
                    (head.hcrc, head.done) = (self.flags >> 9 & 1, 1);
                }
                self.check = 0;
                // SAFETY: the caller guarantees a valid stream.
                unsafe { (*strm).adler = 0 };
                self.mode = Mode::Type;
            }
            Mode::DictionaryId => {
                need!(32);
                self.check = (self.hold as u32).swap_bytes();
                // SAFETY: the caller guarantees a valid stream.
                unsafe { (*strm).adler = self.check.into() };
                self.clear_hold();
                self.mode = Mode::Dictionary;
            }
            _ => {
                if !self.has_dictionary {
                    return Some(Z_NEED_DICT);
                }
                self.check = 1;
                // SAFETY: the caller guarantees a valid stream.
                unsafe { (*strm).adler = 1 };
                self.mode = Mode::Type;
            }
        }
        None
    }

    /// Decides about the frame by its first two bytes, which are in `hold`.
    unsafe fn head(&mut self, io: &mut Io, strm: *mut z_stream) {
        if self.wrap & 2 != 0 && self.hold == 0x8b1f {
            if self.window_bits == 0 {
                self.window_bits = 15;
            }
            self.check = crc32(0, &[0x1f, 0x8b]);
            self.clear_hold();
            self.mode = Mode::Flags;
            return;
        }
        if let Some(head) = self.program_header() {
            head.done = -1;
        }
        if self.wrap & 1 == 0 || !(((self.hold & 0xff) << 8) + (self.hold >> 8)).is_multiple_of(31) {
            return self.wrong(io, c"incorrect header check");
        }
        if self.hold & 15 != Z_DEFLATED as u64 {
            return self.wrong(io, c"unknown compression method");
        }
        self.drop(4);
        let bits = (self.hold & 15) as u32 + 8;
        if self.window_bits == 0 {
            self.window_bits = bits;
        }
        if bits > 15 || bits > self.window_bits {
            return self.wrong(io, c"invalid window size");
        }
        self.flags = 0;
        self.check = 1;
        // SAFETY: the caller guarantees a valid stream.
        unsafe { (*strm).adler = 1 };
        self.mode = if self.hold & 0x200 != 0 { Mode::DictionaryId } else { Mode::Type };
        self.clear_hold();
    }

    /// Reads the available bytes of the extra field.
    unsafe fn extra(&mut self, io: &mut Io) {
        let take = (self.length as usize).min(io.have);
        // SAFETY: `take` is at most the bytes of the input; the program's field has `extra_max` bytes.
        unsafe {
            if let Some(head) = self.program_header()
                && !head.extra.is_null()
            {
                let at = head.extra_len.wrapping_sub(self.length);
                if at < head.extra_max {
                    let fits = take.min((head.extra_max - at) as usize);
                    ptr::copy_nonoverlapping(io.input, head.extra.add(at as usize), fits);
                }
            }
            if take != 0 {
                self.sum_front(core::slice::from_raw_parts(io.input, take));
                io.input = io.input.add(take);
            }
        }
        io.have -= take;
        self.length -= take as u32;
    }

    /// Reads the available bytes of a text that ends with a zero byte; returns false if its end is missing.
    unsafe fn text(&mut self, io: &mut Io, is_name: bool) -> bool {
        if io.have == 0 {
            return false;
        }
        // SAFETY: `have` bytes of the input can be read; the program's fields have the lengths that it gave.
        unsafe {
            let bytes = core::slice::from_raw_parts(io.input, io.have);
            let end = bytes.iter().position(|&byte| byte == 0);
            let bytes = &bytes[..end.map_or(bytes.len(), |end| end + 1)];
            if let Some(head) = self.program_header() {
                let (field, most) =
                    if is_name { (head.name, head.name_max) } else { (head.comment, head.comm_max) };
                if !field.is_null() && self.length < most {
                    let fits = bytes.len().min((most - self.length) as usize);
                    ptr::copy_nonoverlapping(bytes.as_ptr(), field.add(self.length as usize), fits);
                    self.length += fits as u32;
                }
            }
            self.sum_front(bytes);
            io.input = io.input.add(bytes.len());
            io.have -= bytes.len();
            end.is_some()
        }
    }
}
