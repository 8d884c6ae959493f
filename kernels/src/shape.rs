// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shapes: the order, the vectors and the prefetch distance with which a routine walks memory that it stores to past the cache.
//!
//! - **Why** the best shape differs by a factor of three between CPUs with the same instructions: four pages side by side are 1.2 to 1.5
//!   times as fast as a plain loop on Sapphire Rapids, but have a third of its speed on Zen 3. So the shape is a parameter, and a
//!   measurement chooses it.
//! - **Flow** `TABLE` holds the built-in shape of the level or the result of a calibration ([`set_shape`]); the routines whose names end
//!   in `_nt` get it by [`shape`].
//! - **Layout** `TABLE` holds one word per [`Routine`] and size class; a word is a shape packed by [`Shape::pack`], and 0 means the
//!   built-in one.
//! - **Order** relaxed: every shape copies the same bytes, only the speed differs.
//! - **Not here** the choice of a shape: callers measure.

use crate::Isa;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Bytes of one lane of a block: a page.
pub(crate) const LANE_BYTES: usize = 4096;
/// Bytes that one step of a walk handles.
const LINE_BYTES: usize = 64;

/// Order in which memory is walked, with vector size and prefetch distance.
///
/// A walk takes blocks of one page per lane, and visits line 0 of each page, then line 1 of each, and so on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shape {
    /// Number of lanes: 1, 2 or 4; 0 means `rep movsb`.
    lanes: u8,
    /// Bytes of a vector: 16, 32 or 64.
    vector_bytes: u8,
    /// Prefetch distance, bytes: a multiple of 64, at most [`Shape::AHEAD_BYTES_MAX`].
    ahead_bytes: u16,
}

impl Shape {
    /// `rep movsb`: the CPU chooses the order. Routines that do more than copy instead walk one lane without prefetch.
    pub const STRING: Shape = Shape { lanes: 0, vector_bytes: 64, ahead_bytes: 0 };
    /// Largest prefetch distance: a page.
    pub const AHEAD_BYTES_MAX: usize = LANE_BYTES;

    /// Returns a walk over `lanes` pages side by side with vectors of `vector_bytes`, which prefetches `ahead_bytes` ahead in
    /// each lane (0:
    /// the CPU prefetches by itself). Values in between are rounded down to the next valid one; a level without vectors of that
    /// size uses its own.
    pub const fn walk(lanes: usize, vector_bytes: usize, ahead_bytes: usize) -> Shape {
        let lanes = match lanes {
            0 | 1 => 1,
            2 | 3 => 2,
            _ => 4,
        };
        let vector_bytes = match vector_bytes {
            0..32 => 16,
            32..64 => 32,
            _ => 64,
        };
        let ahead_bytes =
            if ahead_bytes > Shape::AHEAD_BYTES_MAX { Shape::AHEAD_BYTES_MAX } else { ahead_bytes };
        Shape { lanes, vector_bytes, ahead_bytes: (ahead_bytes - ahead_bytes % LINE_BYTES) as u16 }
    }

    /// Returns the shape that a level uses before any measurement: a plain loop, which on every recorded CPU reaches at least
    /// two thirds of the best speed. Intel CPUs with AVX-512 walk four pages side by side, which was faster on Sapphire Rapids.
    #[inline(always)]
    pub fn built_in(isa: Isa) -> Shape {
        match isa {
            Isa::Avx512 if FOUR_LANES.load(Ordering::Relaxed) => Shape::walk(4, 64, 4096),
            Isa::Avx512 => Shape::walk(1, 64, 512),
            Isa::Avx2 => Shape::walk(1, 32, 512),
            Isa::Scalar | Isa::Sse2 => Shape::walk(1, 16, 512),
        }
    }

    /// Returns all shapes that are worth measuring on a level, the built-in one first.
    pub fn candidates(isa: Isa) -> Vec<Shape> {
        let widths: &[usize] = match isa {
            Isa::Avx512 => &[64, 32],
            Isa::Avx2 => &[32, 16],
            Isa::Scalar | Isa::Sse2 => &[16],
        };
        let mut all = vec![Shape::built_in(isa)];
        for &vector_bytes in widths {
            for lanes in [1, 2, 4] {
                for ahead_bytes in [0, 512, 2048, 4096] {
                    let shape = Shape::walk(lanes, vector_bytes, ahead_bytes);
                    if !all.contains(&shape) {
                        all.push(shape);
                    }
                }
            }
        }
        all.push(Shape::STRING);
        all
    }

    /// Returns true for `rep movsb`.
    #[inline(always)]
    pub const fn is_string(self) -> bool {
        self.lanes == 0
    }

    /// Returns the number of pages that are walked side by side; 1 for `rep movsb`.
    #[inline(always)]
    pub const fn lanes(self) -> usize {
        if self.lanes == 0 { 1 } else { self.lanes as usize }
    }

    /// Returns the bytes of one load and one store.
    #[inline(always)]
    pub const fn vector_bytes(self) -> usize {
        self.vector_bytes as usize
    }

    /// Returns the bytes between the current line and the line of the same lane that is prefetched; 0 if none is.
    #[inline(always)]
    pub const fn ahead_bytes(self) -> usize {
        self.ahead_bytes as usize
    }

    /// | bits | meaning |
    /// |---|---|
    /// | 0–15 | prefetch distance, bytes |
    /// | 16–23 | bytes of a vector, never 0 |
    /// | 24–31 | lanes; 0: `rep movsb` |
    const fn pack(self) -> u32 {
        self.ahead_bytes as u32 | (self.vector_bytes as u32) << 16 | (self.lanes as u32) << 24
    }

    /// Returns the shape that `pack` has packed into a word.
    #[inline(always)]
    const fn unpack(word: u32) -> Shape {
        Shape { lanes: (word >> 24) as u8, vector_bytes: (word >> 16) as u8, ahead_bytes: word as u16 }
    }

    /// Parses the text that [`Display`](fmt::Display) writes.
    pub fn from_name(name: &str) -> Option<Shape> {
        if name == "rep" {
            return Some(Shape::STRING);
        }
        let (lanes, rest) = name.split_once('x')?;
        let (vector_bytes, ahead_bytes) = rest.split_once('+')?;
        let number = |text: &str| text.parse::<usize>().ok();
        let shape = Shape::walk(number(lanes)?, number(vector_bytes)?, number(ahead_bytes)?);
        (shape.to_string() == name).then_some(shape)
    }
}

/// Writes `4x64+2048` for four lanes, vectors of 64 bytes and a distance of 2048 bytes; `rep` for `rep movsb`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_string() {
            return f.write_str("rep");
        }
        write!(f, "{}x{}+{}", self.lanes, self.vector_bytes, self.ahead_bytes)
    }
}

/// The routines that have shapes of their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Routine {
    /// [`Kernels::copy_nt`](crate::Kernels::copy_nt).
    Copy,
    /// [`Kernels::copy_crc32c_nt`](crate::Kernels::copy_crc32c_nt).
    CopyCrc,
    /// [`Kernels::dualcast_nt`](crate::Kernels::dualcast_nt).
    Dualcast,
    /// [`Kernels::fill_nt`](crate::Kernels::fill_nt).
    Fill,
    /// [`Kernels::copy_strided_nt`](crate::Kernels::copy_strided_nt).
    Strided,
}

impl Routine {
    /// All routines, in the order of the table.
    pub const ALL: [Routine; 5] =
        [Routine::Copy, Routine::CopyCrc, Routine::Dualcast, Routine::Fill, Routine::Strided];

    /// Returns the name in calibration files.
    pub const fn name(self) -> &'static str {
        match self {
            Routine::Copy => "copy",
            Routine::CopyCrc => "copy_crc",
            Routine::Dualcast => "dualcast",
            Routine::Fill => "fill",
            Routine::Strided => "strided",
        }
    }
}

/// Powers of two that have a shape of their own. Smaller sizes use the shape of the first, larger ones that of the last.
const CLASS_SHIFTS: core::ops::RangeInclusive<u32> = 16..=27;
/// Number of size classes of [`shape`].
pub const SHAPE_CLASSES: usize = (*CLASS_SHIFTS.end() - *CLASS_SHIFTS.start() + 1) as usize;

/// True on Intel CPUs: their AVX-512 level uses four lanes by default.
static FOUR_LANES: AtomicBool = AtomicBool::new(false);

/// Detects the CPU for [`Shape::built_in`].
pub(crate) fn detect() {
    FOUR_LANES.store(crate::isa::is_intel(), Ordering::Relaxed);
}

static TABLE: [[AtomicU32; SHAPE_CLASSES]; Routine::ALL.len()] =
    [const { [const { AtomicU32::new(0) }; SHAPE_CLASSES] }; Routine::ALL.len()];

/// Returns the size class of `bytes`: 0 up to 64 KiB, then one for each power of two up to 128 MiB and more.
#[inline(always)]
pub const fn shape_class(bytes: usize) -> usize {
    let shift = (bytes | 1).ilog2();
    if shift < *CLASS_SHIFTS.start() {
        0
    } else if shift > *CLASS_SHIFTS.end() {
        SHAPE_CLASSES - 1
    } else {
        (shift - *CLASS_SHIFTS.start()) as usize
    }
}

/// Returns the smallest size of a class, bytes.
pub const fn shape_class_bytes(class: usize) -> usize {
    1 << (*CLASS_SHIFTS.start() + class as u32)
}

/// Returns the shape that a routine uses for `bytes` in this process.
#[inline(always)]
pub fn shape(routine: Routine, bytes: usize, isa: Isa) -> Shape {
    match TABLE[routine as usize][shape_class(bytes)].load(Ordering::Relaxed) {
        0 => Shape::built_in(isa),
        word => Shape::unpack(word),
    }
}

/// Sets the shape of a routine for a size class in this process; `None` restores the built-in one. A class that does not exist is
/// ignored.
pub fn set_shape(routine: Routine, class: usize, shape: Option<Shape>) {
    if let Some(word) = TABLE[routine as usize].get(class) {
        word.store(shape.map_or(0, Shape::pack), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_packed_named_and_read_back() {
        for isa in Isa::ALL {
            let all = Shape::candidates(isa);
            assert_eq!(all[0], Shape::built_in(isa));
            for (index, shape) in all.iter().enumerate() {
                assert_eq!(Shape::unpack(shape.pack()), *shape);
                assert_ne!(shape.pack(), 0);
                assert_eq!(Shape::from_name(&shape.to_string()), Some(*shape));
                assert!(!all[..index].contains(shape), "{shape} twice");
            }
        }
        for wrong in ["", "3x32+0", "1x32", "1x32+63", "1x31+0", "1x32+8192", "x", "rep ", "0x64+0"] {
            assert_eq!(Shape::from_name(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn classes_cover_every_size() {
        assert_eq!([0, 1, 65_535, 65_536, 131_071].map(shape_class), [0; 5]);
        assert_eq!(shape_class(131_072), 1);
        assert_eq!(shape_class(usize::MAX), SHAPE_CLASSES - 1);
        for class in 0..SHAPE_CLASSES {
            assert_eq!(shape_class(shape_class_bytes(class)), class);
        }
    }
}
