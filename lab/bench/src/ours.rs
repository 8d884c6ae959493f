// SPDX-License-Identifier: Apache-2.0 OR MIT
//! memlift's copy as a contender: the engine as a program would open it, and one that stays on its core.
//!
//! - **Order** an engine that has no calibration for this machine measures one first, as `memlift calibrate` does; where the
//!   machine is busy the built-in numbers stay, and `describe` says so
//! - **Owner** both engines live as long as the process

use std::hint::black_box;
use std::sync::OnceLock;

use memlift_ground::config::Config;
use memlift_kernels::Routine;
use memlift_offload::Engine;
use memlift_place::Cache;
use memlift_place::Origin;

use crate::BenchError;
use crate::copier::Copier;
use crate::pass::{Buffers, Pass};

/// The engine behind `Copier`.
#[derive(Clone, Copy, Debug)]
pub struct Memlift {
    engine: &'static Engine,
    one_core: bool,
}

impl Memlift {
    /// The engine with the user's configuration; with `one_core` it never shares a copy with a worker.
    pub fn get(one_core: bool) -> Result<Memlift, BenchError> {
        static SHARED: OnceLock<Engine> = OnceLock::new();
        static ALONE: OnceLock<Engine> = OnceLock::new();
        let place = if one_core { &ALONE } else { &SHARED };
        let engine = match place.get() {
            Some(engine) => engine,
            None => {
                let opened = open(one_core)?;
                place.get_or_init(|| opened)
            }
        };
        Ok(Memlift { engine, one_core })
    }

    /// An engine that reads no calibration and makes none.
    #[cfg(test)]
    pub fn built_in() -> Result<Memlift, BenchError> {
        static BUILT_IN: OnceLock<Engine> = OnceLock::new();
        let wrong = |reason: String| BenchError::Engine { reason };
        let variables = [("MEMLIFT_CALIBRATION".into(), "/dev/null".into())];
        let config = Config::load_from(&[], variables).map_err(|error| wrong(error.to_string()))?;
        let opened = Engine::open(&config).map_err(|error| wrong(error.to_string()))?;
        Ok(Memlift { engine: BUILT_IN.get_or_init(|| opened), one_core: true })
    }

    /// One pass; gives the CRC if there is one.
    pub fn run(&self, pass: Pass, buffers: Buffers<'_>) -> u64 {
        let (target, source) = (black_box(buffers.target.start()), black_box(buffers.source.start()));
        let bytes = black_box(buffers.target.bytes());
        // SAFETY: all parts are mapped for `bytes`, the targets are writable, and none overlaps another. No other process
        // touches them while a contender works, so that slices may be made of them.
        unsafe {
            match pass {
                Pass::Copy => self.engine.copy_raw(target, source, bytes, Cache::Auto),
                Pass::CopyCrc => {
                    return u64::from(self.engine.copy_crc32c_raw(target, source, bytes, 0, Cache::Auto));
                }
                Pass::Dualcast => {
                    let slice = |start| std::slice::from_raw_parts_mut(start, bytes);
                    let source = std::slice::from_raw_parts(source, bytes);
                    self.engine.dualcast(slice(target), slice(buffers.target2.start()), source);
                }
                Pass::Fill => {
                    self.engine.fill_raw(target, memlift_kernels::repeat_8(buffers.word), bytes, Cache::Auto);
                }
            }
        }
        0
    }
}

fn open(one_core: bool) -> Result<Engine, BenchError> {
    let wrong = |reason: String| BenchError::Engine { reason };
    let mut config = Config::load().map_err(|error| wrong(error.to_string()))?;
    if one_core {
        config.engine.split = false;
    }
    let engine = Engine::open(&config).map_err(|error| wrong(error.to_string()))?;
    if !engine.placer().loaded().is_measured() {
        eprintln!("calibrating, as memlift calibrate does …");
        let calibrated = engine.calibrate().map_err(|error| wrong(error.to_string()))?;
        if !calibrated.measured.trust.trusted {
            eprintln!("not trusted, built-in numbers used: {}", calibrated.measured.trust.why);
        }
    }
    Ok(engine)
}

/// Describes the numbers by which an engine copies, and the shapes of its copies.
fn numbers(engine: &Engine) -> String {
    let loaded = engine.placer().loaded();
    let shape = |bytes| memlift_kernels::shape(Routine::Copy, bytes, engine.kernels().isa);
    let how = match &loaded.origin {
        Origin::Builtin { .. } => "built-in numbers".to_owned(),
        Origin::Untrusted { why, .. } => format!("built-in numbers, since {why}"),
        Origin::File { .. } | Origin::Measured => "calibrated".to_owned(),
    };
    format!(
        "{how}, shapes {} at 1 MiB, {} at 32 MiB, {} at 128 MiB",
        shape(1 << 20),
        shape(1 << 25),
        shape(1 << 27)
    )
}

impl Copier for Memlift {
    #[inline]
    unsafe fn copy(&self, target: *mut u8, source: *const u8, bytes: usize) {
        // SAFETY: both ranges are mapped and do not overlap, as the caller vouches; the engine needs no more.
        unsafe { self.engine.copy_raw(target, source, bytes, Cache::Auto) }
    }

    fn describe(&self) -> String {
        let isa = self.engine.kernels().isa;
        let cores = if self.one_core { "held to one core" } else { "as configured" };
        format!("Engine::copy {cores}, kernels {isa:?}, {}", numbers(self.engine))
    }
}
