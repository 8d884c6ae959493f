// SPDX-License-Identifier: Apache-2.0 OR MIT
//! State of an inflate stream, to which `z_stream.state` points.

use super::decoder::Decoder;
use crate::memory::Memory;
use core::ffi::c_int;
use core::ptr;
use libz_rs_sys::z_stream;

const MARK: u64 = u64::from_le_bytes(*b"ml-infl8");

/// The state of an inflate stream.
pub struct Inflate {
    mark: u64,
    stream: *mut z_stream,
    pub memory: Memory,
    pub core: Decoder,
    /// True if this message was already counted.
    pub counted: bool,
}

/// Returns true if zlib accepts these `windowBits`.
pub fn bits_are_valid(bits: c_int) -> bool {
    match bits {
        ..0 => (-15..=-8).contains(&bits),
        0..48 => matches!(bits & 15, 0 | 8..),
        48.. => false,
    }
}

impl Inflate {
    pub fn new(stream: *mut z_stream, memory: Memory, bits: c_int) -> Inflate {
        Inflate { mark: MARK, stream, memory, core: Decoder::new(bits), counted: false }
    }

    /// Returns the state of a stream that was initialized by this library.
    ///
    /// # Safety
    /// `strm` is null or valid; its `state` is null or points to memory of at least this size.
    pub unsafe fn of<'a>(strm: *mut z_stream) -> Option<&'a mut Inflate> {
        // SAFETY: the caller guarantees the stream; the mark shows that the state is ours.
        unsafe {
            let state = strm.as_ref()?.state.cast::<Inflate>();
            let ours = !state.is_null()
                && state.is_aligned()
                && (*state).mark == MARK
                && ptr::eq((*state).stream, strm);
            ours.then(|| &mut *state)
        }
    }

    /// Copies the state for another stream, with its own window; returns `None` if there is no memory.
    pub fn copy(&self, stream: *mut z_stream) -> Option<Inflate> {
        let mut core = self.core.clone();
        if !core.window.is_null() {
            let window = self.memory.get(1 << core.window_bits)?;
            // SAFETY: a window has 2^`window_bits` bytes; those counted by `held` were written.
            unsafe { ptr::copy_nonoverlapping(core.window, window.as_ptr(), core.held) };
            core.window = window.as_ptr();
        }
        Some(Inflate { mark: MARK, stream, memory: self.memory, core, counted: self.counted })
    }

    /// Frees the window; the state must not be used afterwards.
    pub fn free(&mut self) {
        self.core.free_window(&self.memory);
        self.mark = 0;
    }
}
