// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Explanations: everything a decision is made from, as plain data and in words.

use super::Adapt;
use crate::request::Packing;
use crate::store::Store;
use memlift_ground::config::Placement;
use memlift_spec::{Effort, Opcode};

/// Inputs of a decision about a message, as they are now.
#[derive(Clone, PartialEq, Debug)]
pub struct Explanation {
    /// The operation's name.
    pub opcode: &'static str,
    /// Its size, bytes.
    pub bytes: usize,
    /// How results are stored by configuration.
    pub placement: &'static str,
    /// Cycles between a cached and an uncached load; `None`: not measured yet, or cannot be told.
    pub limit_cycles: Option<u32>,
    /// Memory up to this size stays in the caches that there really are, bytes; 0: not measured yet.
    pub knee_bytes: usize,
    /// Name of the source that measures contention.
    pub source: &'static str,
    /// The last level, 1 being as good as it ever was; 0: not measured yet.
    pub level: f64,
    /// The level from which on the caches count as contended.
    pub contended_from: f64,
    /// True if they do.
    pub contended: bool,
    /// Nanoseconds that measuring took so far.
    pub probe_ns: u64,
    /// Measurements so far.
    pub probes: u64,
    /// How much neighbours may be slowed, percent.
    pub slowdown_percent: u32,
    /// Each store: its name, measured femtoseconds per byte of uncached messages (0: not tried yet), and the factor
    /// for what it does to neighbours.
    pub stores: [(&'static str, u32, f64); 3],
    /// Store that an uncached message would get, as far as is known.
    pub uncached: &'static str,
    /// Effort that `Packing::Adaptive` stands for now.
    pub effort: Effort,
}

pub(super) fn explain(adapt: &Adapt, opcode: Opcode, bytes: usize) -> Explanation {
    let contended = adapt.watch.contended();
    let stores = adapt
        .costs
        .measured(opcode, bytes)
        .map(|(store, fs)| (store.name(), fs, adapt.price(store, contended)));
    let tried = stores.iter().filter(|store| store.1 > 0);
    let best = tried.min_by(|a, b| (f64::from(a.1) * a.2).total_cmp(&(f64::from(b.1) * b.2)));
    Explanation {
        opcode: opcode.name(),
        bytes,
        placement: match adapt.settings.placement {
            Placement::Adaptive => "adaptive",
            Placement::Temporal => "temporal",
            Placement::Streaming => "streaming",
            Placement::Isolated => "isolated",
        },
        limit_cycles: adapt.residency.limit_cycles(),
        knee_bytes: adapt.watch.knee_bytes(),
        source: adapt.watch.source_name(),
        level: adapt.watch.level(),
        contended_from: 1.0 + adapt.watch.threshold(),
        contended,
        probe_ns: adapt.watch.spent_ns(),
        probes: adapt.watch.samples(),
        slowdown_percent: adapt.settings.slowdown_percent,
        stores,
        uncached: best.map_or(Store::Temporal.name(), |store| store.0),
        effort: Packing::Adaptive.effort(contended),
    }
}

impl std::fmt::Display for Explanation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.bytes < super::GATE_BYTES {
            return write!(
                f,
                "{} of {} bytes: below {} bytes nothing is looked at, results go through the cache",
                self.opcode,
                self.bytes,
                super::GATE_BYTES
            );
        }
        write!(
            f,
            "{} of {} bytes ({}): cached messages go through the cache",
            self.opcode, self.bytes, self.placement
        )?;
        if let Some(cycles) = self.limit_cycles {
            write!(f, " (cached: a load takes at most {cycles} cycles)")?;
        }
        write!(f, "; uncached ones {}", self.uncached)?;
        for (name, fs, price) in self.stores {
            if fs == 0 {
                write!(f, ", {name} not tried yet")?;
            } else {
                write!(f, ", {name} {:.3} ns/byte × {price:.2}", f64::from(fs) * 1e-6)?;
            }
        }
        write!(
            f,
            "; caches {} (level {:.2} by {}, contended from {:.2}), knee {} KiB, {} measurements took {:.1} ms",
            if self.contended { "contended" } else { "quiet" },
            self.level,
            self.source,
            self.contended_from,
            self.knee_bytes / 1024,
            self.probes,
            self.probe_ns as f64 / 1e6
        )?;
        if self.opcode == Opcode::PACK.name() {
            write!(f, "; effort adaptive is {} now", self.effort.name())?;
        }
        Ok(())
    }
}
