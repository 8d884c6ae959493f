// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All inputs of a decision about a message, as plain data and as text.

use super::MessagePlacer;
use crate::stores::Store;
use memlift_ground::config::Placement;
use memlift_spec::{Effort, Opcode};

/// Inputs of a decision about a message, at the time of the call.
#[derive(Clone, PartialEq, Debug)]
pub struct MessageExplanation {
    /// Name of the operation.
    pub opcode: &'static str,
    /// Size of the message, bytes.
    pub bytes: usize,
    /// Configured placement: `adaptive`, or one fixed store.
    pub placement: &'static str,
    /// Longest load, in CPU cycles, that counts as cached; `None` if it is not measured yet or cannot be measured.
    pub limit_cycles: Option<u32>,
    /// Size up to which memory stays in the caches that this machine really has, bytes; 0 if not measured yet.
    pub knee_bytes: usize,
    /// Name of the source that measures contention.
    pub source: &'static str,
    /// Last contention level (1: as good as it ever was); 0 if not measured yet.
    pub level: f64,
    /// Level from which on the caches count as contended.
    pub contended_from: f64,
    /// True if the caches count as contended.
    pub contended: bool,
    /// Time spent on measuring so far, nanoseconds.
    pub probe_ns: u64,
    /// Number of measurements so far.
    pub probes: u64,
    /// Configured budget: percent by which neighbours may be slowed.
    pub slowdown_percent: u32,
    /// For each store its name, the measured cost of uncached messages in femtoseconds per byte (0: not tried yet), and the
    /// price, a factor for what the store does to neighbours.
    pub stores: [(&'static str, u32, f64); 3],
    /// Store that an uncached message would get now.
    pub uncached: &'static str,
    /// Effort of packing that adapts to contention, now.
    pub effort: Effort,
}

/// Returns the effort of packing that adapts: contention slows the large tables of the default most, so it packs faster then.
pub const fn adaptive_effort(contended: bool) -> Effort {
    if contended { Effort::Fast } else { Effort::Default }
}

pub(super) fn explain(placer: &MessagePlacer, opcode: Opcode, bytes: usize) -> MessageExplanation {
    let contended = placer.contention.contended();
    let costs = &placer.costs[super::slot_of(opcode, bytes)];
    let stores = Store::ALL.map(|store| {
        let fs = costs.known(store as usize).map_or(0, |known| (known.cost * 1e6).max(1.0) as u32);
        (store.name(), fs, placer.price(store, contended))
    });
    let tried = stores.iter().filter(|store| store.1 > 0);
    let best = tried.min_by(|a, b| (f64::from(a.1) * a.2).total_cmp(&(f64::from(b.1) * b.2)));
    MessageExplanation {
        opcode: opcode.name(),
        bytes,
        placement: match placer.settings.placement {
            Placement::Adaptive => "adaptive",
            Placement::Temporal => "temporal",
            Placement::Streaming => "streaming",
            Placement::Isolated => "isolated",
        },
        limit_cycles: placer.probes.limit_cycles(),
        knee_bytes: placer.contention.knee_bytes(),
        source: placer.contention.source_name(),
        level: placer.contention.level(),
        contended_from: 1.0 + placer.contention.threshold(),
        contended,
        probe_ns: placer.contention.spent_ns(),
        probes: placer.contention.samples(),
        slowdown_percent: placer.settings.slowdown_percent,
        stores,
        uncached: best.map_or(Store::Temporal.name(), |store| store.0),
        effort: adaptive_effort(contended),
    }
}

impl std::fmt::Display for MessageExplanation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.bytes < super::PROBE_BYTES_MIN {
            return write!(
                f,
                "{} of {} bytes: below {} bytes nothing is looked at, results go through the cache",
                self.opcode,
                self.bytes,
                super::PROBE_BYTES_MIN
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
