// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `z_stream.state` of an inflate stream points to.
//!
//! Layout  `bits` are `windowBits` as the program gave them: −15 to −8 raw, 0 or 8–15 zlib, 16 more gzip, 32 more either.

use crate::memory::{Buffer, Memory};
use core::ffi::{c_int, c_ulong};
use core::ptr;
use libz_rs_sys::{internal_state, z_stream};
use memlift_kernels::deflate::Format;

const MARK: u64 = u64::from_le_bytes(*b"ml-infl8");

/// Who works on the stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Nothing was read. zlib-rs's state, if there is one, is as after a reset.
    Fresh,
    /// Unpacked as a whole into memory of the stream, from which the program is served.
    Served,
    /// Unpacked as a whole, and all of it delivered.
    Done,
    Ported,
}

/// The state of a stream.
pub struct Inflate {
    mark: u64,
    stream: *mut z_stream,
    pub memory: Memory,
    pub bits: c_int,
    pub route: Route,
    pub inner: *mut internal_state,
    /// Unpacked bytes; those from `at` were not delivered yet.
    pub served: Buffer,
    /// The frame of what was unpacked as a whole.
    pub format: Format,
    /// Bytes of the packed message that the program has not seen being read: all of them, or those that its input lacked at the end.
    pub owed: usize,
    /// Whether some of them were read.
    pub begun: bool,
    /// Whether zlib-rs panicked: its state is worth nothing until a reset.
    pub broken: bool,
    /// Whether zlib-rs's state was made that of a stream that has ended: the sums in it are of another message.
    pub stopped: bool,
    /// Whether zlib-rs's state has something that a reset does not undo: no checksums, no frame.
    pub altered: bool,
    /// Whether that is that checksums are not reckoned.
    pub unchecked: bool,
    /// Whether this message was counted.
    pub counted: bool,
}

/// Whether zlib knows these `windowBits`.
pub fn bits_are_valid(bits: c_int) -> bool {
    match bits {
        ..0 => (-15..=-8).contains(&bits),
        0..48 => matches!(bits & 15, 0 | 8..),
        48.. => false,
    }
}

impl Inflate {
    pub fn new(stream: *mut z_stream, memory: Memory, bits: c_int) -> Inflate {
        Inflate {
            mark: MARK,
            stream,
            memory,
            bits,
            route: Route::Fresh,
            inner: ptr::null_mut(),
            served: Buffer::new(),
            format: Format::Raw,
            owed: 0,
            begun: false,
            broken: false,
            stopped: false,
            altered: false,
            unchecked: false,
            counted: false,
        }
    }

    /// The state of a stream that was initialized here and is not broken.
    ///
    /// # Safety
    /// `strm` is null or valid; its `state` is null or points to memory of at least this size.
    pub unsafe fn of<'a>(strm: *mut z_stream) -> Option<&'a mut Inflate> {
        // SAFETY: the caller vouches for it.
        unsafe { Inflate::even_broken(strm) }.filter(|state| !state.broken)
    }

    /// The state of a stream that was initialized here.
    ///
    /// # Safety
    /// As [`of`](Inflate::of).
    pub unsafe fn even_broken<'a>(strm: *mut z_stream) -> Option<&'a mut Inflate> {
        // SAFETY: the caller vouches for it; the mark says that it is a state of ours.
        unsafe {
            let state = strm.as_ref()?.state.cast::<Inflate>();
            let ours = !state.is_null()
                && state.is_aligned()
                && (*state).mark == MARK
                && ptr::eq((*state).stream, strm);
            ours.then(|| &mut *state)
        }
    }

    pub fn is_raw(&self) -> bool {
        self.bits < 0
    }

    /// Whether a zlib or a gzip frame is welcome.
    pub fn welcomes(&self) -> (bool, bool) {
        match self.bits {
            ..0 => (false, false),
            0..16 => (true, false),
            16..32 => (false, true),
            32.. => (true, true),
        }
    }

    /// Whether the program left the size of the window to the first frame, which fixes it for those that follow.
    pub fn learns_window(&self) -> bool {
        self.bits >= 0 && self.bits & 15 == 0
    }

    /// The most that the window has, as far as the program said.
    pub fn window_bytes(&self) -> u32 {
        match self.bits {
            ..0 => 1 << -self.bits,
            _ if self.learns_window() => 1 << 15,
            bits => 1 << (bits & 15),
        }
    }

    /// `adler` of a stream that has not begun; none for raw ones, which leave it alone.
    pub fn first_sum(&self) -> Option<c_ulong> {
        (!self.is_raw()).then_some(self.welcomes().0.into())
    }

    /// The next message.
    pub fn restart(&mut self) {
        self.route = Route::Fresh;
        self.served.clear();
        (self.owed, self.begun, self.counted) = (0, false, false);
        self.broken = false;
        (self.stopped, self.altered, self.unchecked) = (false, false, false);
    }

    /// A copy for another stream, without zlib-rs's state. `None`: no memory.
    pub fn copy(&self, stream: *mut z_stream) -> Option<Inflate> {
        let served = self.served.copy(&self.memory)?;
        Some(Inflate { stream, served, inner: ptr::null_mut(), ..*self })
    }

    /// Frees the buffer; the state is worth nothing afterwards.
    pub fn free(&mut self) {
        self.served.free(&self.memory);
        self.mark = 0;
    }
}
