// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One pass over memory by a contender: a copy, or another operation of the engine.
//!
//! - **Flow** a row names a [`Pass`] ─▶ a contender runs it on [`Buffers`] ─▶ a value (the CRC) that both sides must agree on
//! - **Rival** [`Plain`] takes the fastest of the loops of `limits/loops.c`, tried once per pass and size on cold buffers
//! - **Owner** buffers are parts of areas, which outlive the call

use std::cell::RefCell;
use std::hint::black_box;
use std::time::Instant;

use crate::area::Part;

mod c {
    use core::ffi::{c_int, c_void};

    unsafe extern "C" {
        pub fn memlift_loops_ways() -> c_int;
        pub fn memlift_loops_copy_crc(
            way: c_int,
            target: *mut c_void,
            source: *const c_void,
            bytes: usize,
        ) -> u32;
        pub fn memlift_loops_dualcast(
            way: c_int,
            first: *mut c_void,
            second: *mut c_void,
            source: *const c_void,
            bytes: usize,
        );
        pub fn memlift_loops_fill(way: c_int, target: *mut c_void, bytes: usize, word: u64);
    }
}

/// Operation that a row measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// One copy and nothing else.
    Copy,
    /// One copy that gives the CRC-32C.
    CopyCrc,
    /// Two copies of one source.
    Dualcast,
    /// One fill with a word.
    Fill,
}

impl Pass {
    const ALL: [Pass; 4] = [Pass::Copy, Pass::CopyCrc, Pass::Dualcast, Pass::Fill];

    /// The first part of a row's name.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Copy => "copy",
            Pass::CopyCrc => "copy_crc",
            Pass::Dualcast => "dualcast",
            Pass::Fill => "fill",
        }
    }

    /// The pass with this name.
    pub fn from_name(name: &str) -> Option<Pass> {
        Pass::ALL.into_iter().find(|pass| pass.name() == name)
    }

    /// How many targets it writes.
    pub fn targets(self) -> usize {
        if self == Pass::Dualcast { 2 } else { 1 }
    }
}

/// The word that [`Pass::Fill`] writes instead of source `turn`.
pub fn word(turn: usize) -> u64 {
    0x0102_0304_0506_0708 << turn
}

/// Buffers that a pass reads and writes: parts of one size, apart, the targets aligned to a page.
#[derive(Clone, Copy, Debug)]
pub struct Buffers<'a> {
    /// Bytes that are read, unless the pass fills.
    pub source: Part<'a>,
    /// Bytes that are written.
    pub target: Part<'a>,
    /// Bytes that a dualcast writes, too; `target` for other passes.
    pub target2: Part<'a>,
    /// Word that a fill writes.
    pub word: u64,
}

/// The fastest plain loop in C.
#[derive(Debug, Default)]
pub struct Plain {
    /// The way that was found for a pass and a size.
    found: RefCell<Vec<(Pass, usize, i32)>>,
}

impl Plain {
    fn way(&self, pass: Pass, bytes: usize) -> Option<i32> {
        self.found.borrow().iter().find(|found| (found.0, found.1) == (pass, bytes)).map(|found| found.2)
    }

    /// Finds the fastest loop for a pass and size, unless it is known. `cold` evicts everything.
    pub fn learn(&self, pass: Pass, buffers: Buffers<'_>, cold: impl Fn()) {
        let bytes = buffers.target.bytes();
        if self.way(pass, bytes).is_none() {
            let way = fastest(pass, buffers, &cold);
            self.found.borrow_mut().push((pass, bytes, way));
            cold();
        }
    }

    /// Runs the loop that [`learn`](Self::learn) found.
    pub fn run(&self, pass: Pass, buffers: Buffers<'_>) -> u64 {
        loop_of(self.way(pass, buffers.target.bytes()).unwrap_or(0), pass, buffers)
    }

    /// Names the loops found so far, for `qualifies`.
    pub fn describe(&self) -> String {
        let found = self.found.borrow();
        let named = found.iter().map(|(pass, bytes, way)| format!("{} {bytes}: way {way}", pass.name()));
        format!("the fastest of three plain loops in C ({})", named.collect::<Vec<_>>().join(", "))
    }
}

fn fastest(pass: Pass, buffers: Buffers<'_>, cold: impl Fn()) -> i32 {
    // SAFETY: the routine takes nothing and gives a constant.
    let ways = unsafe { c::memlift_loops_ways() };
    let time = |way| {
        let run = |_| {
            cold();
            let start = Instant::now();
            loop_of(way, pass, buffers);
            start.elapsed()
        };
        (0..3).map(run).min()
    };
    (0..ways).min_by_key(|&way| time(way)).unwrap_or(0)
}

fn loop_of(way: i32, pass: Pass, buffers: Buffers<'_>) -> u64 {
    let bytes = buffers.target.bytes();
    let (source, target) =
        (black_box(buffers.source.start()).cast(), black_box(buffers.target.start()).cast());
    assert!(bytes.is_multiple_of(64) && buffers.target.start().addr().is_multiple_of(64), "whole lines");
    // SAFETY: all parts are mapped for `bytes` (the source of a fill is not read), the targets are writable and aligned, and
    // none overlaps another.
    unsafe {
        match pass {
            Pass::Copy => {
                libc::memcpy(target, source, bytes);
                0
            }
            Pass::CopyCrc => u64::from(c::memlift_loops_copy_crc(way, target, source, bytes)),
            Pass::Dualcast => {
                c::memlift_loops_dualcast(way, target, buffers.target2.start().cast(), source, bytes);
                0
            }
            Pass::Fill => {
                c::memlift_loops_fill(way, target, bytes, buffers.word);
                0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::area::Area;
    use crate::ours::Memlift;
    use crate::reference;

    #[test]
    fn every_loop_and_the_engine_do_the_same() {
        let area = Area::private(1 << 20).expect("mmap");
        let ours = Memlift::built_in().expect("an engine");
        let bytes = 64 * 777;
        let source = area.part(64 * 3 + 5, bytes);
        reference::pattern(source, 4);
        for pass in [Pass::CopyCrc, Pass::Dualcast, Pass::Fill] {
            let (target, target2) = (area.part(1 << 18, bytes), area.part(1 << 19, bytes));
            let buffers = Buffers { source, target, target2, word: word(1) };
            let run = |run: &dyn Fn() -> u64| {
                reference::pattern(target, 5);
                reference::pattern(target2, 6);
                let value = run();
                (value, reference::checksum(target), reference::checksum(target2))
            };
            let expected = run(&|| ours.run(pass, buffers));
            for way in 0..3 {
                assert_eq!(run(&|| loop_of(way, pass, buffers)), expected, "{pass:?} {way}");
            }
            if pass != Pass::Fill {
                assert_eq!(expected.1, reference::checksum(source), "{pass:?}");
            }
            assert_eq!(pass == Pass::Dualcast, expected.2 == expected.1, "{pass:?}");
        }
        let plain = Plain::default();
        let buffers = Buffers { source, target: area.part(1 << 18, bytes), target2: source, word: 0 };
        plain.learn(Pass::CopyCrc, buffers, || {});
        assert_eq!(plain.run(Pass::CopyCrc, buffers), ours.run(Pass::CopyCrc, buffers));
        assert!(plain.describe().contains("copy_crc"), "{}", plain.describe());
    }
}
