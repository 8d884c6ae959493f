// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Routines that copy, behind one trait without dispatch. Here glibc; memlift is in ours.rs.
//!
//! - **Rule** sizes and addresses go through `black_box`, so no copy is folded, widened or elided; glibc is called
//!   through a pointer, as every dynamically linked program calls it

use std::hint::black_box;
use std::time::Instant;

use core::ffi::c_void;

use crate::area::Part;
use crate::machine;

/// A routine that copies bytes.
pub trait Copier {
    /// Copies `bytes` from `source` to `target`.
    ///
    /// # Safety
    /// Both ranges are mapped, the target writable, and they do not overlap.
    unsafe fn copy(&self, target: *mut u8, source: *const u8, bytes: usize);

    /// How it is configured.
    fn describe(&self) -> String;
}

/// `memcpy` of the C library that this program is linked with, as shipped.
#[derive(Clone, Copy, Debug)]
pub struct Glibc(unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void);

impl Glibc {
    /// Hides which function it is from the optimizer.
    pub fn new() -> Glibc {
        Glibc(black_box(libc::memcpy))
    }
}

impl Copier for Glibc {
    #[inline]
    unsafe fn copy(&self, target: *mut u8, source: *const u8, bytes: usize) {
        // SAFETY: both ranges are mapped and do not overlap, as the caller vouches; memcpy needs no more.
        unsafe { (self.0)(target.cast(), source.cast(), bytes) };
    }

    fn describe(&self) -> String {
        "memcpy of the C library".to_owned()
    }
}

/// One copy, timed.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    /// Wall time, seconds.
    pub seconds: f64,
    /// CPU time of all threads, seconds.
    pub cpu_s: f64,
}

/// Times `calls` copies of `source` to `target`; gives the time of one.
#[inline(never)]
pub fn time<C: Copier>(copier: &C, target: Part<'_>, source: Part<'_>, calls: usize) -> Timed {
    assert_eq!(target.bytes(), source.bytes(), "a copy has one size");
    let apart = (target.start() as usize).abs_diff(source.start() as usize);
    assert!(apart >= source.bytes(), "the parts must not overlap");
    let cpu = machine::cpu_seconds();
    let start = Instant::now();
    for _ in 0..calls {
        // SAFETY: both parts are mapped and writable for `bytes`, and do not overlap (asserted above).
        unsafe {
            copier.copy(black_box(target.start()), black_box(source.start()), black_box(source.bytes()));
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let cpu_s = machine::cpu_seconds() - cpu;
    Timed { seconds: seconds / calls as f64, cpu_s: cpu_s / calls as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::area::Area;
    use crate::reference;

    #[test]
    fn glibc_copies_every_byte() {
        let area = Area::private(1 << 17).expect("mmap");
        let (source, target) = (area.part(3, 50_001), area.part(60_007, 50_001));
        reference::pattern(source, 9);
        let timed = time(&Glibc::new(), target, source, 3);
        assert_eq!(reference::checksum(target), reference::checksum(source));
        assert!(timed.seconds > 0.0 && timed.cpu_s >= 0.0);
    }
}
