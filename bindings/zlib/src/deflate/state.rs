// SPDX-License-Identifier: Apache-2.0 OR MIT
//! State of a deflate stream, to which `z_stream.state` points.
//!
//! - **Layout** two pieces of memory, allocated at init, of the sizes that zlib uses. In a fast stream the first is `window`: `..at` is
//!   history (bytes that the reader has as well, at most one window), `at..` are bytes that wait to be packed. The second is `pending`:
//!   packed bytes that wait for room. In a chained stream both are the memory of [`Chains`].
//! - **Order** between two calls the output of a fast stream ends at a whole byte.

use super::settings::{Settings, Wrap};
use crate::memory::{Buffer, Memory};
use crate::strm;
use core::ffi::c_int;
use core::ptr;
use core::ptr::NonNull;
use libz_rs_sys::{gz_header, z_stream};
use memlift_kernels::deflate::{self, Chains, Level};

const MARK: u64 = u64::from_le_bytes(*b"ml-defl8");

/// Implementation that packs the stream: see `fast` and `chained`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Not decided yet: nothing was packed.
    Open,
    Fast,
    Chained,
}

/// Progress of the stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Init,
    /// The start of the frame is written.
    Busy,
    /// The end of the frame is written.
    Finish,
}

/// The state of a deflate stream.
pub struct Deflate {
    mark: u64,
    stream: *mut z_stream,
    pub memory: Memory,
    pub settings: Settings,
    pub route: Route,
    pub status: Status,
    /// The flush of the last call, with zlib's values: −2 before the first call, −1 if the output was full.
    pub last_flush: c_int,
    /// The two pieces of the stream's memory.
    pub first: NonNull<u8>,
    pub second: NonNull<u8>,
    /// Packer state of a chained stream.
    pub chains: Option<Chains>,
    /// True if the end of the frame was written.
    pub ended: bool,
    /// The program's gzip header or null, and the number of bytes written of the start of the frame.
    pub head: *mut gz_header,
    pub front_at: usize,
    /// Adler-32 of the dictionary that the zlib frame names.
    pub dictionary_sum: Option<u32>,
    /// Limits that the program set by `deflateTune`.
    pub tuned: Option<Level>,
    /// Bits put behind the last block of a fast stream that are not a whole byte yet: their number, and the bits.
    pub late: (u32, u32),
    /// Adler-32 or CRC-32 of the bytes read.
    pub sum: u32,
    /// Bytes read from the program so far.
    pub total: u64,
    pub window: Buffer,
    pub pending: Buffer,
}

impl Deflate {
    /// Allocates the memory of a state; returns `None` if there is none.
    pub fn new(stream: *mut z_stream, memory: Memory, settings: Settings) -> Option<Deflate> {
        let (first_bytes, second_bytes) = settings.memory_bytes();
        let first = memory.get(first_bytes)?;
        let Some(second) = memory.get(second_bytes) else {
            // SAFETY: `first` came from the same memory just now.
            unsafe { memory.free(first) };
            return None;
        };
        let mut state = Deflate {
            mark: MARK,
            stream,
            memory,
            settings,
            route: Route::Open,
            status: Status::Init,
            last_flush: -2,
            first,
            second,
            chains: None,
            ended: false,
            head: ptr::null_mut(),
            front_at: 0,
            dictionary_sum: None,
            tuned: None,
            late: (0, 0),
            sum: 0,
            total: 0,
            window: Buffer::within(first, first_bytes),
            pending: Buffer::within(second, second_bytes),
        };
        state.restart();
        Some(state)
    }

    /// Returns the state of a stream that was initialized by this library.
    ///
    /// # Safety
    /// `strm` is null or valid; its `state` is null or points to memory of at least this size.
    pub unsafe fn of<'a>(strm: *mut z_stream) -> Option<&'a mut Deflate> {
        // SAFETY: the caller guarantees the stream; the mark shows that the state is ours.
        unsafe {
            let state = strm.as_ref()?.state.cast::<Deflate>();
            let ours = !state.is_null()
                && state.is_aligned()
                && (*state).mark == MARK
                && ptr::eq((*state).stream, strm);
            ours.then(|| &mut *state)
        }
    }

    /// Starts the next message.
    pub fn restart(&mut self) {
        (self.route, self.status) = (Route::Open, Status::Init);
        self.last_flush = -2;
        (self.chains, self.ended, self.front_at) = (None, false, 0);
        (self.dictionary_sum, self.tuned, self.late) = (None, None, (0, 0));
        (self.sum, self.total) = (self.settings.wrap.first_sum() as u32, 0);
        self.window.clear();
        self.pending.clear();
    }

    /// Returns the search parameters of a chained stream.
    pub fn level(&self) -> Level {
        self.tuned.unwrap_or(Level::of(self.settings.level as usize))
    }

    /// Returns true if the message has ended, with the end of its frame; bytes of it may still wait for room.
    pub fn is_over(&self) -> bool {
        self.ended || self.route == Route::Fast && self.status == Status::Finish
    }

    /// Returns true if packed bytes wait for room.
    pub fn has_pending(&self) -> bool {
        match &self.chains {
            Some(chains) => chains.has_pending(),
            None => !self.pending.is_empty(),
        }
    }

    /// Counts bytes that were read, and continues the checksum.
    pub fn count_input(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        self.sum = match self.settings.wrap {
            Wrap::Raw => self.sum,
            Wrap::Zlib => deflate::adler32(self.sum, bytes),
            Wrap::Gzip => deflate::crc32(self.sum, bytes),
        };
    }

    /// Moves pending bytes to the program's output; returns true if none are left.
    ///
    /// # Safety
    /// `strm` and its output are valid.
    pub unsafe fn drain(&mut self, strm: *mut z_stream) -> bool {
        // SAFETY: the caller guarantees the stream and its output; `pending` is the stream's own memory.
        self.pending.at += unsafe { strm::write(strm, self.pending.bytes()) };
        if self.pending.is_empty() {
            self.pending.clear();
        }
        self.pending.is_empty()
    }

    /// Copies the state for another stream, with its own memory; returns `None` if there is none.
    pub fn copy(&self, stream: *mut z_stream) -> Option<Deflate> {
        let mut copy = Deflate::new(stream, self.memory, self.settings)?;
        let Deflate { first, second, .. } = copy;
        copy.window.take_over(&self.window);
        copy.pending.take_over(&self.pending);
        let (window, pending) = (copy.window, copy.pending);
        // SAFETY: the memory belongs to the copy and has the same sizes.
        let chains = self.chains.as_ref().map(|chains| unsafe { chains.copy(first, second) });
        Some(Deflate { stream, first, second, window, pending, chains, ..*self })
    }

    /// Frees the memory; the state must not be used afterwards.
    pub fn free(&mut self) {
        self.mark = 0;
        // SAFETY: `new` got both from the same memory, and nobody uses them any more.
        unsafe {
            self.memory.free(self.first);
            self.memory.free(self.second);
        }
    }
}
