// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A trace of copies that nobody recorded, to measure how fast traces are answered.
//!
//! - **Flow** [`trace`]: a thread copies between buffers, 64 bytes to 32 KiB, a few hundred nanoseconds apart, with a mark in each millisecond as
//!   the recorder makes them ─▶ [`answer`]: read, then replayed with a modelled CPU
//! - **Order** the same number of copies gives the same bytes everywhere
//! - **Not here** what programs do: theirs wait, fork and use their buffers in an order of their own

use memlift_spec::formats::trace::{
    CHUNK_BYTES_MAX, CHUNKS_AT, Chunk, FAULTS_UNKNOWN, Fault, HEADER_BYTES, Kind, MAGIC, RECORD_BYTES,
    Record, VERSION, word,
};

use super::{Cpu, Curve, Device, Estimate, Line, Outcome, Timing, Trace, replay};
use crate::event::Random;

/// Buffers that copies go between, each way.
const BUFFERS: u64 = 64;
const BUFFER_BYTES: u64 = 1 << 16;
const MARK_NS: u64 = 1_000_000;

/// The bytes of a trace of so many copies.
#[must_use]
pub fn trace(copies: u64) -> Vec<u8> {
    let mut random = Random::new(7);
    let (mut at_ns, mut marked_ns) = (1000, 0);
    let mark =
        |kind, at_ns: u64| Record { kind, site: 0, parameter: 0, words: [at_ns, at_ns, 0, 0, 0, 0, 1] };
    let mut records = vec![mark(Kind::Mark, at_ns)];
    for _ in 0..copies {
        let bytes = 64 << random.below(10);
        let buffer = |random: &mut Random| BUFFER_BYTES * random.below(BUFFERS);
        let (source, target) = ((1 << 40) + buffer(&mut random), (1 << 41) + buffer(&mut random));
        at_ns += 200 + random.below(400);
        let ns = 30 + bytes / 16;
        let words = [at_ns, ns, source, target, bytes, bytes, FAULTS_UNKNOWN];
        records.push(Record { kind: Kind::Copy, site: 0, parameter: 0, words });
        at_ns += ns;
        if at_ns - marked_ns > MARK_NS {
            marked_ns = at_ns;
            records.push(mark(Kind::Mark, at_ns));
        }
    }
    records.push(mark(Kind::End, at_ns));
    let mut file = vec![0; CHUNKS_AT];
    for (sequence, records) in (0..).zip(records.chunks(CHUNK_BYTES_MAX / RECORD_BYTES - 1)) {
        let used = RECORD_BYTES * (1 + records.len());
        let bytes = used.next_multiple_of(HEADER_BYTES);
        let head = Chunk {
            bytes: bytes as u32,
            used: used as u32,
            sequence,
            process: 1,
            thread: 1,
            pid: 1,
            tid: 1,
            ..Chunk::default()
        };
        let end = file.len() + bytes;
        file.extend(head.encode().into_iter().flat_map(u64::to_le_bytes));
        file.extend(records.iter().flat_map(Record::encode).flat_map(u64::to_le_bytes));
        file.resize(end, 0);
    }
    let claimed = file.len() as u64;
    for (index, value) in [
        (word::MAGIC, MAGIC),
        (word::VERSION, VERSION),
        (word::LIMIT, claimed.max(1 << 20)),
        (word::CORES, 1),
        (word::CLAIMED, claimed),
        (word::PROCESSES, 1),
        (word::THREADS, 1),
        (word::FINISHED, 1),
        (word::WALL_NS, at_ns),
        (word::CPU_NS, at_ns),
    ] {
        file[8 * index..8 * index + 8].copy_from_slice(&value.to_le_bytes());
    }
    file
}

/// An answer: calls of the trace, steps of its threads, the replay with a CPU that copies 30 bytes in a nanosecond from its cache and 10 from memory.
///
/// # Errors
/// The first field of the trace that is wrong.
pub fn answer(bytes: &[u8]) -> Result<(u64, u64, Outcome), Fault> {
    let trace = Trace::read(bytes)?;
    let curve = |hot| {
        let ns_per_byte = if hot { 1.0 / 30.0 } else { 0.1 };
        Curve { kind: Kind::Copy, hot, lines: vec![Line { from_bytes: 64, ns_per_byte, base_ns: 20.0 }] }
    };
    let cpu = Cpu::new(vec![curve(true), curve(false)], 32 << 20, Estimate::exactly(250.0), &trace);
    let outcome = replay(&trace, &cpu, Timing::Modelled, &Device::Cpu, 0);
    let steps = trace.threads.iter().map(|thread| thread.steps.len() as u64).sum();
    Ok((trace.calls().count() as u64, steps, outcome))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Time;

    /// Written down once: another order, another rounding or another trace changes it.
    #[test]
    fn an_answer_is_the_same_everywhere() {
        let bytes = trace(10_000);
        assert_eq!(bytes, trace(10_000));
        let (calls, steps, outcome) = answer(&bytes).expect("a trace");
        assert_eq!((calls, steps), (10_000, 20_001), "computing before each copy, and before the first mark");
        let recorded = Trace::read(&bytes).expect("a trace");
        let same = replay(&recorded, &Cpu::default(), Timing::Recorded, &Device::Cpu, 0);
        assert_eq!(same.wall, Time::from_ns(recorded.wall_ns), "unchanged, it takes the recorded time");
        assert!(outcome.calls > Time::ZERO && outcome.calls < same.wall, "{outcome:?}");
    }
}
