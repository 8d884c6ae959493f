// SPDX-License-Identifier: Apache-2.0 OR MIT
//! memlift's copy as a contender: the engine as a program would open it, and one that stays on its core.
//!
//! Order    an engine that has no calibration for this machine measures one first, as `memlift calibrate` does
//! Owner    both engines live as long as the process

use std::sync::OnceLock;

use memlift_engine::config::Config;
use memlift_engine::place::Origin;
use memlift_engine::{Cache, Engine};

use crate::BenchError;
use crate::copier::Copier;

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
}

fn open(one_core: bool) -> Result<Engine, BenchError> {
    let wrong = |reason: String| BenchError::Engine { reason };
    let mut config = Config::load().map_err(|error| wrong(error.to_string()))?;
    if one_core {
        config.engine.split = false;
    }
    let engine = Engine::open(&config).map_err(|error| wrong(error.to_string()))?;
    if matches!(engine.placer().loaded().origin, Origin::Builtin { .. }) {
        eprintln!("calibrating, as memlift calibrate does …");
        engine.calibrate().map_err(|error| wrong(error.to_string()))?;
    }
    Ok(engine)
}

impl Copier for Memlift {
    #[inline]
    unsafe fn copy(&self, target: *mut u8, source: *const u8, bytes: usize) {
        // SAFETY: the caller's promise is the engine's requirement.
        unsafe { self.engine.copy_raw(target, source, bytes, Cache::Auto) }
    }

    fn describe(&self) -> String {
        let isa = self.engine.kernels().isa;
        let cores = if self.one_core { "held to one core" } else { "as configured" };
        format!("Engine::copy {cores}, kernels {isa:?}, calibrated")
    }
}
