// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The numbers assumed for a machine without a calibration: cautious, and available immediately.
//!
//! They favour ordinary stores: non-temporal ones are used only for large or surely cold buffers, and copies are shared
//! with a worker only if one core cannot be enough. Online correction adjusts these numbers; `memlift calibrate`
//! replaces them.

use super::machine::Machine;
use super::model::{Calibration, FORMAT, Line, Model, Thresholds};
use memlift_ground::observe::{CacheState, Executor};
use memlift_spec::Opcode;

/// Assumed cache size: the share of the last-level cache that even small server CPUs give to one core.
const CACHE_BYTES: u64 = 8 << 20;

pub(super) fn calibration() -> Calibration {
    let mut model = Model::default();
    let line = |from_bytes, ns_per_byte, base_ns| Line { from_bytes, ns_per_byte, base_ns };
    let copies = [Opcode::MEMMOVE, Opcode::COPY_CRC, Opcode::DUALCAST, Opcode::STRIDED_COPY];
    for (opcode, factor) in copies.into_iter().zip([1.0, 1.5, 1.6, 1.2]) {
        let mut push = |executor, cache, lines: &[Line]| {
            let scaled = lines.iter().map(|l| Line { ns_per_byte: l.ns_per_byte * factor, ..*l });
            model.push(executor, opcode, cache, scaled.collect());
        };
        let (hot, cold) = (CacheState::Hot, CacheState::Cold);
        push(Executor::InlineTemporal, hot, &[line(0, 0.05, 20.0), line(CACHE_BYTES, 0.11, 0.0)]);
        push(Executor::InlineTemporal, cold, &[line(0, 0.13, 200.0)]);
        push(Executor::InlineNt, hot, &[line(0, 0.10, 500.0)]);
        push(Executor::InlineNt, cold, &[line(0, 0.10, 500.0)]);
        if opcode.0 == Opcode::MEMMOVE.0 {
            push(Executor::Split, hot, &[line(0, 0.07, 120_000.0)]);
            push(Executor::Split, cold, &[line(0, 0.07, 120_000.0)]);
        }
    }
    for (opcode, hot, cold) in
        [(Opcode::FILL, 0.04, 0.10), (Opcode::COMPARE, 0.06, 0.12), (Opcode::CRC, 0.06, 0.08)]
    {
        model.push(Executor::InlineTemporal, opcode, CacheState::Hot, vec![line(0, hot, 20.0)]);
        model.push(Executor::InlineTemporal, opcode, CacheState::Cold, vec![line(0, cold, 200.0)]);
    }
    model.push(Executor::InlineNt, Opcode::FILL, CacheState::Cold, vec![line(0, 0.07, 500.0)]);
    Calibration {
        format: FORMAT,
        machine: Machine::read(),
        isa: String::new(),
        time_s: 0,
        took_ms: 0,
        trust: super::Trust::assumed(),
        shapes: Vec::new(),
        thresholds: Thresholds {
            gate_bytes: super::GATE_BYTES_MIN as u64,
            nt_from_hot_bytes: Some(CACHE_BYTES),
            nt_from_cold_bytes: Some(super::GATE_BYTES_MIN as u64),
            cache_bytes: CACHE_BYTES,
            hot_cycles: 0,
            split_from_cold_bytes: Some(4 << 20),
            split_from_hot_bytes: Some(16 << 20),
            hand_off_ns: 30_000,
            rep_movsb_from_bytes: None,
            split_gain: 1.0,
        },
        model,
    }
}
