// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `z_stream.state` of a deflate stream points to.
//!
//! Layout  `window`: `..at` is history (what the reader has as well, at most one window), `at..` waits to be packed.
//!         `pending`: packed, waits for room.
//! Order   between two calls the bits of a fast stream end at a whole byte.

use super::settings::{Settings, Wrap};
use crate::memory::{Buffer, Memory};
use crate::strm;
use core::ffi::c_int;
use core::ptr;
use libz_rs_sys::{internal_state, z_stream};
use memlift_kernels::deflate;

const MARK: u64 = u64::from_le_bytes(*b"ml-defl8");

/// Who works on the stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Not decided.
    Open,
    Fast,
    Ported,
}

/// How far the stream is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Init,
    /// The front is written.
    Busy,
    /// The back is written.
    Finish,
}

/// The state of a stream.
pub struct Deflate {
    mark: u64,
    stream: *mut z_stream,
    pub memory: Memory,
    pub settings: Settings,
    pub route: Route,
    pub status: Status,
    /// The flush of the last call, as zlib keeps it: −2 before the first, −1 when output was short.
    pub last_flush: c_int,
    /// Whether nothing came after the last flush.
    pub clean: bool,
    /// zlib-rs's state, or null.
    pub inner: *mut internal_state,
    /// Whether zlib-rs writes a raw stream and the frame is ours: it was handed over.
    pub framed: bool,
    /// Whether zlib-rs panicked: its state is worth nothing until a reset.
    pub broken: bool,
    /// Bits that were put behind the last block and are not a byte yet: how many, and which.
    pub late: (u32, u32),
    /// Adler-32 or CRC-32 of what was read.
    pub sum: u32,
    /// Bytes read.
    pub total: u64,
    pub window: Buffer,
    pub pending: Buffer,
}

impl Deflate {
    pub fn new(stream: *mut z_stream, memory: Memory, settings: Settings) -> Deflate {
        let (window, pending) = (Buffer::new(), Buffer::new());
        let mut state = Deflate {
            mark: MARK,
            stream,
            memory,
            settings,
            route: Route::Open,
            status: Status::Init,
            last_flush: -2,
            clean: false,
            inner: ptr::null_mut(),
            framed: false,
            broken: false,
            late: (0, 0),
            sum: 0,
            total: 0,
            window,
            pending,
        };
        state.restart();
        state
    }

    /// The state of a stream that was initialized here and is not broken.
    ///
    /// # Safety
    /// `strm` is null or valid; its `state` is null or points to memory of at least this size.
    pub unsafe fn of<'a>(strm: *mut z_stream) -> Option<&'a mut Deflate> {
        // SAFETY: the caller vouches for it.
        unsafe { Deflate::even_broken(strm) }.filter(|state| !state.broken)
    }

    /// The state of a stream that was initialized here.
    ///
    /// # Safety
    /// As [`of`](Deflate::of).
    pub unsafe fn even_broken<'a>(strm: *mut z_stream) -> Option<&'a mut Deflate> {
        // SAFETY: the caller vouches for it; the mark says that it is a state of ours.
        unsafe {
            let state = strm.as_ref()?.state.cast::<Deflate>();
            let ours = !state.is_null()
                && state.is_aligned()
                && (*state).mark == MARK
                && ptr::eq((*state).stream, strm);
            ours.then(|| &mut *state)
        }
    }

    /// The next message.
    pub fn restart(&mut self) {
        (self.route, self.status) = (Route::Open, Status::Init);
        (self.last_flush, self.clean, self.framed) = (-2, false, false);
        (self.broken, self.late) = (false, (0, 0));
        (self.sum, self.total) = (self.settings.wrap.first_sum() as u32, 0);
        self.window.clear();
        self.pending.clear();
    }

    /// Notes bytes that were read.
    pub fn saw(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        self.sum = match self.settings.wrap {
            Wrap::Raw => self.sum,
            Wrap::Zlib => deflate::adler32(self.sum, bytes),
            Wrap::Gzip => deflate::crc32(self.sum, bytes),
        };
    }

    /// Moves what is pending to the program. `true`: nothing is left.
    ///
    /// # Safety
    /// `strm` and its output are valid.
    pub unsafe fn drain(&mut self, strm: *mut z_stream) -> bool {
        // SAFETY: the caller vouches for it; pending is memory of our own.
        self.pending.at += unsafe { strm::write(strm, self.pending.bytes()) };
        if self.pending.is_empty() {
            self.pending.clear();
        }
        self.pending.is_empty()
    }

    /// A copy for another stream, without zlib-rs's state. `None`: no memory.
    pub fn copy(&self, stream: *mut z_stream) -> Option<Deflate> {
        let mut window = self.window.copy(&self.memory)?;
        let Some(pending) = self.pending.copy(&self.memory) else {
            window.free(&self.memory);
            return None;
        };
        Some(Deflate { stream, window, pending, inner: ptr::null_mut(), ..*self })
    }

    /// Frees the buffers; the state is worth nothing afterwards.
    pub fn free(&mut self) {
        self.window.free(&self.memory);
        self.pending.free(&self.memory);
        self.mark = 0;
    }
}
