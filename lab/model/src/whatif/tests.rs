// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Traces put together by hand: what is read from them, what replays make of them, what is refused.

use memlift_spec::formats::trace::{
    CHUNK_USED_AT, CHUNKS_AT, Chunk, FAULTS_UNKNOWN, HEADER_BYTES, Kind, MAGIC, RECORD_BYTES, Reason, Record,
    VERSION, word,
};

use super::*;
use crate::event::Time;

const MS: u64 = 1_000_000;

/// Each has waited once more than the one before: what is without CPU time was a wait.
pub(super) fn mark(kind: Kind, at: u64, cpu: u64, faults: u64) -> Record {
    Record { kind, site: 0, parameter: 0, words: [at, cpu, faults, 0, at, 0, 0] }
}

pub(super) fn call(kind: Kind, at: u64, ns: u64, bytes: u64) -> Record {
    let written = if kind == Kind::Compare { 0 } else { bytes };
    Record { kind, site: 0, parameter: 0, words: [at, ns, 1 << 30, 1 << 40, bytes, written, FAULTS_UNKNOWN] }
}

pub(super) fn put(bytes: &mut [u8], index: usize, value: u64) {
    bytes[8 * index..8 * index + 8].copy_from_slice(&value.to_le_bytes());
}

/// A trace with these chunks: process, parent, thread, sequence, records.
pub(super) fn file(chunks: &[(u32, u32, u32, u32, &[Record])], wall: u64) -> Vec<u8> {
    let mut bytes = vec![0; CHUNKS_AT];
    for &(process, parent, thread, sequence, records) in chunks {
        let used = RECORD_BYTES * (1 + records.len());
        let length = used.next_multiple_of(HEADER_BYTES);
        let chunk = Chunk {
            bytes: length as u32,
            sequence,
            process,
            thread,
            pid: process,
            tid: thread,
            parent,
            ..Chunk::default()
        };
        let from = bytes.len();
        bytes.extend(chunk.encode().into_iter().flat_map(u64::to_le_bytes));
        bytes.extend(records.iter().flat_map(Record::encode).flat_map(u64::to_le_bytes));
        bytes.resize(from + length, 0);
        bytes[from + CHUNK_USED_AT..from + CHUNK_USED_AT + 4].copy_from_slice(&(used as u32).to_le_bytes());
    }
    let length = bytes.len() as u64;
    for (index, value) in [
        (word::MAGIC, MAGIC),
        (word::VERSION, VERSION),
        (word::LIMIT, 1 << 20),
        (word::CLAIMED, length),
        (word::PROCESSES, 9),
        (word::THREADS, 9),
        (word::FINISHED, 1),
        (word::WALL_NS, wall),
    ] {
        put(&mut bytes, index, value);
    }
    bytes
}

/// A wait that thread `waker` ended; 0: nobody did.
pub(super) fn waited(at: u64, wall: u64, waker: u64, woken: u64) -> Record {
    let words = [at, wall, waker, woken, 0, 0, 0];
    Record { kind: Kind::Waited, site: 0, parameter: Reason::Memory as u32, words }
}

/// Returns how often one thread awaits what the other one signals.
fn awaited(trace: &Trace, waiter: usize, waker: usize) -> usize {
    let steps = |thread: usize| trace.threads[thread].steps.iter().map(|step| step.what);
    let signals: Vec<What> = steps(waker).collect();
    steps(waiter)
        .filter(|what| matches!(what, What::Await(event) if signals.contains(&What::Signal(*event))))
        .count()
}

/// The best size, and the run with it.
fn best(device: &Device, trace: &Trace, cpu: &Cpu) -> (Option<u64>, Outcome) {
    device.best_size(trace, cpu, &replay(trace, cpu, Timing::Recorded, &Device::Cpu, 0))
}

fn slow_dsa() -> Device {
    Device::Dsa(crate::dsa::Timing::shipped())
}

/// Computes 4 ms, copies 1 MiB in 1 ms, waits 5 ms for nobody that is known, computes 1 ms.
fn simple() -> Vec<u8> {
    let records = [
        mark(Kind::Mark, 0, 0, 0),
        mark(Kind::Mark, 4 * MS, 4 * MS, 0),
        call(Kind::Copy, 4 * MS, MS, 1 << 20),
        mark(Kind::Mark, 10 * MS, 5 * MS, 0),
        mark(Kind::End, 11 * MS, 6 * MS, 0),
    ];
    file(&[(1, 0, 1, 0, &records)], 11 * MS)
}

#[test]
fn gaps_are_computing_as_far_as_there_was_cpu_time() {
    let trace = Trace::read(&simple()).unwrap();
    let steps: Vec<(What, u64)> = trace.threads[0].steps.iter().map(|step| (step.what, step.ns)).collect();
    let wanted = [(What::Compute, 4 * MS), (What::Call(0), MS), (What::Wait, 5 * MS), (What::Compute, MS)];
    assert_eq!(steps, wanted);
    assert_eq!((trace.cpu_ns, trace.calls_ns(), trace.processes), (6 * MS, MS, 1));
}

#[test]
fn who_is_displaced_loses_the_same_part_of_everything() {
    let displaced = |at, cpu| Record { words: [at, cpu, 0, 0, 0, 1, 0], ..mark(Kind::Mark, 0, 0, 0) };
    let records = [displaced(0, 0), call(Kind::Copy, 2 * MS, 6 * MS, 1 << 20), displaced(8 * MS, 4 * MS)];
    let trace = Trace::read(&file(&[(1, 0, 1, 0, &records)], 8 * MS)).unwrap();
    let steps: Vec<(What, u64, u64)> =
        trace.threads[0].steps.iter().map(|step| (step.what, step.ns, step.cpu_ns)).collect();
    assert_eq!(steps, [(What::Compute, 2 * MS, MS), (What::Call(0), 6 * MS, 3 * MS)]);
    let cpu = Cpu::new(Vec::new(), 1 << 20, Estimate::exactly(100.0), &trace);
    for timing in [Timing::Recorded, Timing::Modelled] {
        let run = replay(&trace, &cpu, timing, &Device::Cpu, 0);
        assert_eq!((run.wall, run.cpu), (Time::from_ns(8 * MS), Time::from_ns(4 * MS)));
    }
}

#[test]
fn without_a_device_a_replay_takes_what_was_recorded_and_a_device_shortens_calls_alone() {
    let trace = Trace::read(&simple()).unwrap();
    let cpu = Cpu::new(Vec::new(), 1 << 20, Estimate::exactly(100.0), &trace);
    let without = replay(&trace, &cpu, Timing::Recorded, &Device::Cpu, 0);
    assert_eq!((without.wall, without.cpu), (Time::from_ns(11 * MS), Time::from_ns(6 * MS)));
    assert_eq!((without.read_bytes, without.written_bytes, without.offloaded), (2 << 20, 1 << 20, 0));
    let (from, with) = best(&slow_dsa(), &trace, &cpu);
    let (alone, _) = crate::dsa::experiment::latency(&crate::dsa::Timing::shipped(), 1 << 20).unwrap();
    assert_eq!((from, with.offloaded), (Some(1 << 20), 1));
    assert_eq!(with.wall, Time::from_ns(10 * MS) + alone, "the device's own latency, to the picosecond");
    // The core that overwrites reads first; the device does not.
    assert_eq!((with.read_bytes, with.written_bytes), (1 << 20, 1 << 20));
    assert!(with.cpu < without.cpu && with.waiting > Time::from_ns(30_000));
}

/// Packs 6000 bytes, unpacks as many, and encrypts 16 KiB, each in 1 ms.
#[test]
fn smartdimm_takes_what_its_machine_takes_and_threads_share_its_channel() {
    use crate::smartdimm::{self, command, host::Ulp};
    let timing = smartdimm::Timing::shipped();
    let calls = [(Kind::Deflate, 6000), (Kind::Inflate, 6000), (Kind::Encrypt, 16_384)];
    let mut records = vec![mark(Kind::Mark, 0, 0, 0)];
    records.extend((0..).zip(calls).map(|(at, (kind, bytes))| call(kind, at * MS, MS, bytes)));
    records.push(mark(Kind::End, 3 * MS, 3 * MS, 0));
    let trace = Trace::read(&file(&[(1, 0, 1, 0, &records)], 3 * MS)).unwrap();
    let cpu = Cpu::new(Vec::new(), 1 << 20, Estimate::exactly(100.0), &trace);
    let device = Device::SmartDimm(timing.clone());
    let run = replay(&trace, &cpu, Timing::Recorded, &device, 0);
    // Nobody packs two pages at once, and 16 KiB with a tag are more than four pages. What was read before is in the cache.
    let of = |ulp, bytes, hot| command::took(&timing, ulp, bytes, hot).unwrap();
    let parts = [
        of(Ulp::Deflate, 4096, false),
        of(Ulp::Deflate, 1904, false),
        of(Ulp::Tls, 16_368, true),
        of(Ulp::Tls, 16, true),
    ];
    let wanted = parts.iter().fold(Time::from_ns(MS), |sum, took| sum + took.core);
    assert_eq!((run.wall, run.offloaded), (wanted, 2));
    // Ten threads that encrypt at once: the bus takes them one after the other.
    let records = [mark(Kind::Mark, 0, 0, 0), call(Kind::Encrypt, 0, MS, 16_368), mark(Kind::End, MS, MS, 0)];
    let chunks: Vec<_> = (1..=10).map(|thread| (1, 0, thread, 0, &records[..])).collect();
    let mut bytes = file(&chunks, MS);
    put(&mut bytes, word::THREADS, 10);
    let trace = Trace::read(&bytes).unwrap();
    let run = replay(
        &trace,
        &Cpu::new(Vec::new(), 1 << 20, Estimate::exactly(100.0), &trace),
        Timing::Recorded,
        &device,
        0,
    );
    // The same text: from the second on it is in the cache.
    let (cold, hot) = (of(Ulp::Tls, 16_368, false), of(Ulp::Tls, 16_368, true));
    assert!(cold.bus + hot.bus * 9 > hot.core, "{cold:?} {hot:?}");
    assert_eq!(run.wall, cold.bus + hot.bus * 9);
}

#[test]
fn a_parent_that_waits_for_its_child_waits_less_when_the_child_is_sooner_done() {
    let child = [
        mark(Kind::Mark, 2 * MS, 0, 0),
        call(Kind::Copy, 2 * MS, 8 * MS, 8 << 20),
        mark(Kind::End, 10 * MS, 8 * MS, 0),
    ];
    let parent =
        [mark(Kind::Mark, 0, 0, 0), mark(Kind::Mark, 3 * MS, 3 * MS, 0), mark(Kind::End, 11 * MS, 4 * MS, 0)];
    let mut gap = parent.to_vec();
    gap.insert(2, mark(Kind::Mark, 10 * MS + MS / 10, 3 * MS, 0));
    let bytes = file(&[(1, 0, 1, 0, &gap), (2, 1, 2, 0, &child)], 11 * MS);
    let trace = Trace::read(&bytes).unwrap();
    assert_eq!(awaited(&trace, 1, 0), 1, "it was started");
    assert_eq!(awaited(&trace, 0, 1), 1, "{:?}", trace.threads[0].steps);
    let cpu = Cpu::new(Vec::new(), 1 << 20, Estimate::exactly(100.0), &trace);
    let without = replay(&trace, &cpu, Timing::Recorded, &Device::Cpu, 0);
    assert_eq!(without.wall, Time::from_ns(11 * MS));
    let (_, with) = best(&slow_dsa(), &trace, &cpu);
    assert!(with.wall < Time::from_ns(5 * MS) && with.wall > Time::from_ns(3 * MS), "{:?}", with.wall);
    // A thread says that it is done and then ends: the wait is over first, and was for it all the same.
    gap[2] = mark(Kind::Mark, 10 * MS - MS / 10, 3 * MS, 0);
    let trace = Trace::read(&file(&[(1, 0, 1, 0, &gap), (2, 1, 2, 0, &child)], 11 * MS)).unwrap();
    assert_eq!(awaited(&trace, 0, 1), 1);
}

/// A pool's thread that is told to end when all is done does not hold the program up where all is done sooner.
#[test]
fn a_wait_ends_as_long_after_what_ended_it_as_it_did() {
    let parent = [
        mark(Kind::Mark, 0, 0, 0),
        mark(Kind::Mark, MS, MS, 0),
        call(Kind::Copy, MS, 8 * MS, 8 << 20),
        mark(Kind::Mark, 9 * MS, 9 * MS, 0),
        waited(9 * MS + MS / 100, 9 * MS / 100, 2, 9 * MS + MS / 11),
        mark(Kind::Mark, 9 * MS + MS / 10, 9 * MS + MS / 100, 0),
        mark(Kind::End, 10 * MS, 10 * MS - 9 * MS / 100, 0),
    ];
    let child = [
        mark(Kind::Mark, MS / 2, 0, 0),
        waited(MS / 2, 17 * MS / 2 + MS / 20, 1, 9 * MS),
        mark(Kind::Mark, 9 * MS + MS / 20, 0, 0),
        mark(Kind::End, 9 * MS + MS / 10, MS / 20, 0),
    ];
    let bytes = file(&[(1, 0, 1, 0, &parent), (1, 0, 2, 0, &child)], 10 * MS);
    let trace = Trace::read(&bytes).unwrap();
    assert_eq!((awaited(&trace, 0, 1), awaited(&trace, 1, 0)), (1, 2), "{:?}", trace.threads);
    assert_eq!(trace.waits.explained_ns, 9 * MS / 100 + 17 * MS / 2 + MS / 20);
    assert_eq!((trace.waits.unexplained_ns, trace.waits.outside_ns), (0, 0));
    let cpu = Cpu::new(Vec::new(), 1 << 20, Estimate::exactly(100.0), &trace);
    let without = replay(&trace, &cpu, Timing::Recorded, &Device::Cpu, 0);
    assert_eq!(without.wall, Time::from_ns(10 * MS));
    let (_, with) = best(&slow_dsa(), &trace, &cpu);
    assert!(with.wall < Time::from_ns(4 * MS) && with.wall > Time::from_ns(2 * MS), "{:?}", with.wall);
}

#[test]
fn a_later_record_of_a_wait_corrects_the_first_and_strangers_end_none() {
    let first = [
        mark(Kind::Mark, 0, 0, 0),
        waited(MS, 3 * MS, 0, 0),
        mark(Kind::Mark, 4 * MS, MS, 0),
        waited(MS, 3 * MS, 2, 3 * MS),
        waited(5 * MS, MS, 77, 5 * MS),
        waited(7 * MS, MS, 1, 7 * MS),
        mark(Kind::End, 9 * MS, 4 * MS, 0),
    ];
    let second = [mark(Kind::Mark, 0, 0, 0), mark(Kind::End, 8 * MS, 8 * MS, 0)];
    let trace = Trace::read(&file(&[(1, 0, 1, 0, &first), (1, 0, 2, 0, &second)], 9 * MS)).unwrap();
    assert_eq!(awaited(&trace, 0, 1), 1, "{:?}", trace.threads[0].steps);
    let outside: Vec<u64> = trace.threads[0]
        .steps
        .iter()
        .filter(|step| step.what == What::Sleep)
        .map(|step| step.at_ns)
        .collect();
    assert_eq!(outside, [5 * MS, 7 * MS], "a thread that is not there, and the waiter itself, end no wait");
    let cpu = Cpu::new(Vec::new(), 1 << 20, Estimate::exactly(100.0), &trace);
    assert_eq!(replay(&trace, &cpu, Timing::Recorded, &Device::Cpu, 0).wall, Time::from_ns(9 * MS));
}

/// Whoever woke whom, at whatever time: nothing changes where nothing is changed, and no damage keeps a replay from its end.
#[test]
fn a_replay_of_any_waits_takes_the_recorded_time() {
    let mut state = 7u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) % below
    };
    for round in 0..300 {
        let threads = 1 + draw(5);
        let mut last = 0;
        let all: Vec<Vec<Record>> = (0..threads)
            .map(|thread| {
                let (mut now, mut on_core) = (draw(3 * MS), 0);
                let mut records = vec![mark(Kind::Mark, now, 0, 0)];
                for _ in 0..draw(20) {
                    let length = 1 + draw(MS);
                    match draw(3) {
                        0 => {
                            records.push(call(Kind::Copy, now, length, length));
                            on_core += length;
                        }
                        1 => {
                            let at = if draw(8) == 0 { draw(20 * MS) } else { now + draw(length) };
                            records.push(waited(now, length, draw(threads + 2), at));
                        }
                        _ => on_core += draw(length + 1),
                    }
                    now += length;
                    if draw(3) == 0 {
                        records.push(mark(Kind::Mark, now, on_core, 0));
                    }
                }
                let kind = if thread == 0 || draw(2) == 0 { Kind::End } else { Kind::Mark };
                records.push(mark(kind, now, on_core, 0));
                last = last.max(now);
                records
            })
            .collect();
        let chunks: Vec<(u32, u32, u32, u32, &[Record])> =
            all.iter().zip(1..).map(|(records, number)| (1, 0, number, 0, &records[..])).collect();
        let trace = Trace::read(&file(&chunks, last)).unwrap();
        let cpu = Cpu::new(Vec::new(), 1 << 20, Estimate::exactly(100.0), &trace);
        let run = replay(&trace, &cpu, Timing::Recorded, &Device::Cpu, 0);
        assert_eq!(run.wall, Time::from_ns(last), "round {round}: {:?}", trace.threads);
    }
}

#[test]
fn what_exec_has_made_new_goes_on_where_the_old_one_was() {
    let old = [mark(Kind::Mark, MS, MS, 0)];
    // Nothing is known of 1 to 4 ms; its CPU time counts from the old one's.
    let new = [mark(Kind::Mark, 6 * MS, 3 * MS, 0), mark(Kind::End, 9 * MS, 6 * MS, 0)];
    let mut bytes = file(&[(1, 0, 1, 0, &old), (2, 0, 2, 0, &new)], 9 * MS);
    let second = CHUNKS_AT + HEADER_BYTES + 24;
    bytes[second..second + 4].copy_from_slice(&1u32.to_le_bytes());
    let trace = Trace::read(&bytes).unwrap();
    assert_eq!((trace.threads[1].parent, trace.cpu_ns), (Some(0), 6 * MS));
    let cpu = Cpu::new(Vec::new(), 1 << 20, Estimate::exactly(100.0), &trace);
    let run = replay(&trace, &cpu, Timing::Recorded, &Device::Cpu, 0);
    assert_eq!((run.wall, run.cpu), (Time::from_ns(9 * MS), Time::from_ns(6 * MS)));
}

#[test]
fn page_faults_keep_a_call_with_the_cpu_and_are_in_its_model() {
    // One is the page of the trace that the first mark is written to.
    let records = [mark(Kind::Mark, 0, 0, 0), call(Kind::Copy, 0, MS, 1 << 18), mark(Kind::End, MS, MS, 65)];
    let trace = Trace::read(&file(&[(1, 0, 1, 0, &records)], MS)).unwrap();
    assert_eq!(trace.threads[0].fresh, [64]);
    let line = Line { from_bytes: 0, ns_per_byte: 0.1, base_ns: 0.0 };
    let cpu = Cpu::new(
        vec![Curve { kind: Kind::Copy, hot: false, lines: vec![line] }],
        1 << 20,
        Estimate::exactly(1000.0),
        &trace,
    );
    assert!(cpu.calibrated.contains(&Kind::Copy));
    let model = replay(&trace, &cpu, Timing::Modelled, &Device::Cpu, 0);
    assert_eq!(model.calls, Time::from_ns(26_214 + 64_000));
    assert_eq!(replay(&trace, &cpu, Timing::Recorded, &slow_dsa(), 0).offloaded, 0);
}

/// Calls say what a fault costs if enough of them agree, and what no fault costs is not believed.
#[test]
fn the_cost_of_a_fault_is_a_guarded_median() {
    let estimate = |costs: &[u64], given: f64| {
        let mut records = vec![mark(Kind::Mark, 0, 0, 0)];
        let (mut at, mut faults) = (0, 0);
        for cost in costs {
            // 256 pages: 1 MiB of copies at a tenth of a nanosecond for each byte, and its faults.
            let took = 104_857 + 256 * cost;
            let mut record = call(Kind::Copy, at, took, 1 << 20);
            record.words[6] = 256;
            records.push(record);
            (at, faults) = (at + took, faults + 256);
        }
        records.push(mark(Kind::End, at, at, faults));
        let trace = Trace::read(&file(&[(1, 0, 1, 0, &records)], at)).unwrap();
        let line = Line { from_bytes: 0, ns_per_byte: 0.1, base_ns: 0.0 };
        let curve = Curve { kind: Kind::Copy, hot: false, lines: vec![line] };
        Cpu::new(vec![curve], 1 << 20, Estimate::exactly(given), &trace).fault
    };
    let agree = estimate(&[400, 500, 500, 500, 500, 500, 600, 9_000], 70.0);
    assert_eq!((agree.ns.round(), agree.samples), (500.0, 8));
    assert!(agree.low_ns >= 400.0 && agree.high_ns <= 601.0, "{agree:?}");
    // Too few; and lines that are too slow for this trace, so that nothing is left for the faults.
    assert_eq!(estimate(&[400; 4], 70.0), Estimate::exactly(70.0));
    assert_eq!(estimate(&[7; 40], 70.0), Estimate::exactly(70.0));
    // Huge pages: one fault for many pages.
    assert_eq!(estimate(&[500_000; 10], 70.0), Estimate::exactly(70.0));
}

/// Larger than the cache, so never in it; the hot line was measured on the same buffers again and again, and says what larger sets cost.
#[test]
fn copies_between_the_same_buffers_take_the_hot_line_and_others_that_of_their_set() {
    const BYTES: u64 = 1 << 20;
    let copies = |pairs: u64| {
        let mut records = vec![mark(Kind::Mark, 0, 0, 0)];
        for index in 0..12 {
            let mut record = call(Kind::Copy, index * MS, MS, BYTES);
            record.words[2] += index % pairs * 4 * BYTES;
            record.words[3] += index % pairs * 4 * BYTES;
            records.push(record);
        }
        records.push(mark(Kind::End, 12 * MS, 12 * MS, 0));
        let trace = Trace::read(&file(&[(1, 0, 1, 0, &records)], 12 * MS)).unwrap();
        let line = |from_bytes, ns_per_byte| Line { from_bytes, ns_per_byte, base_ns: 0.0 };
        let hot = vec![line(0, 1.0), line(2 * BYTES, 1.5), line(4 * BYTES, 9.0)];
        let curve = |hot, lines| Curve { kind: Kind::Copy, hot, lines };
        let cpu = Cpu::new(
            vec![curve(true, hot), curve(false, vec![line(0, 2.0)])],
            1 << 18,
            Estimate::default(),
            &trace,
        );
        replay(&trace, &cpu, Timing::Modelled, &Device::Cpu, 0)
    };
    let (same, turns, many) = (copies(1), copies(2), copies(4));
    assert_eq!(same.calls, Time::from_ns((2 + 11) * BYTES), "the first one is cold");
    assert_eq!(
        turns.calls,
        Time::from_ns((2 * 2 + 10 * 3 / 2) * BYTES),
        "what copies of twice the size took"
    );
    assert_eq!(many.calls, Time::from_ns(2 * 12 * BYTES), "never more than the cold line");
    // Reads from memory depend on the cache, and it was empty.
    assert_eq!(same.read_bytes, 12 * 2 * BYTES);
}

#[test]
fn page_faults_of_the_trace_itself_are_no_calls() {
    // The head of the chunk, a mark and 130 copies: three pages, the first of them touched by the mark, after it has counted.
    for (faults, fresh) in [(0, 0), (3, 0), (5, 2)] {
        let mut records = vec![mark(Kind::Mark, 0, 0, 7)];
        records.extend((0..130).map(|index| call(Kind::Copy, index * 1000, 500, 4096)));
        records.push(mark(Kind::End, MS, MS, 7 + faults));
        let trace = Trace::read(&file(&[(1, 0, 1, 0, &records)], MS)).unwrap();
        assert_eq!(trace.threads[0].fresh.iter().sum::<u32>(), fresh, "{faults}");
    }
}

#[test]
fn every_fault_names_its_field_and_the_fix() {
    let good = simple();
    let records = [call(Kind::Copy, 0, 1, 64)];
    let word_of = |at: usize, value: u64| {
        let mut bytes = good.clone();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    let chunk = CHUNKS_AT;
    let code = |kind, site, parameter, [first, end]: [u64; 2]| {
        let record = Record { kind, site, parameter, words: [0, first, end, 0, 0, 0, 0] };
        file(&[(1, 0, 1, 0, &[record])], 9)
    };
    let cases: Vec<(Vec<u8>, &str, &str)> = vec![
        (good[..100].to_vec(), "size (byte 0)", "give what `memlift record` wrote"),
        (word_of(0, 7), "magic (byte 0)", "this is no trace"),
        (word_of(8, 2), "version (byte 8): 0x2", "this memlift reads versions 4 and 5"),
        (word_of(16, 12345), "limit (byte 16)", "record again"),
        (word_of(64, 1 << 19), "claimed (byte 64)", "shorter than what was claimed"),
        (word_of(128, 2), "finished (byte 128)", "0 or 1"),
        (word_of(80, 0), "chunk.thread (byte 69632)", "the header counts fewer"),
        (word_of(chunk, 0x1000_1234_5678), "chunk.magic (byte 69632)", "no chunk begins here"),
        (word_of(chunk, 0x4843_4c4d | 100 << 32), "chunk.bytes (byte 69632): 0x64", "a multiple of 4096"),
        (word_of(chunk, 0x4843_4c4d | 8192 << 32), "chunk.bytes (byte 69632)", "cut off"),
        (word_of(chunk + 8, 65), "chunk.used (byte 69632): 0x41", "in steps of 64"),
        (word_of(chunk + 8, 64 | 3 << 32), "chunk.sequence (byte 69632): 0x3", "not in order"),
        (word_of(chunk + 16, 1 << 32), "chunk.process (byte 69632)", "count from 1"),
        (word_of(chunk + 64, 5), "record.kind (byte 69696): 0x5", "no kind of this version"),
        (word_of(chunk + 72, u64::MAX), "record.time (byte 69696)", "2^60"),
        (word_of(chunk + 64 + 128 + 40, u64::MAX), "record.bytes_read (byte 69824)", "2^47"),
        (word_of(chunk + 64 + 64 + 16, 9 * MS), "mark.cpu", "clock went back"),
        (word_of(chunk + 64, 66), "record.parameter (byte 69696)", "no call"),
        (word_of(chunk + 64, 69), "record.site (byte 69696): 0x0", "count from 1"),
        (code(Kind::Site, 1, 0, [1 << 47, 0]), "record.address (byte 69696)", "below 2^47"),
        (code(Kind::Module, 0, 0, [4096, 4095]), "record.end (byte 69696): 0xfff", "behind the first one"),
        (code(Kind::Module, 0, 4097, [0, 1]), "record.parameter (byte 69696): 0x1001", "4096 bytes"),
        (
            file(&[(1, 0, 1, 0, &records), (2, 0, 1, 1, &records)], 9),
            "chunk.thread (byte 73728)",
            "another process",
        ),
    ];
    for (bytes, field, fix) in cases {
        let said = Trace::read(&bytes).expect_err(field).to_string();
        assert!(
            said.starts_with(field) && said.contains(fix) && said.lines().count() == 1,
            "{field}: {said}"
        );
    }
    // A page that was claimed and never written, and a thread that was killed before it said how far it was.
    let mut killed = file(&[(1, 0, 1, 0, &records)], 0);
    killed.resize(killed.len() + HEADER_BYTES, 0);
    let length = killed.len() as u64;
    put(&mut killed, word::CLAIMED, length);
    put(&mut killed, word::FINISHED, 0);
    let trace = Trace::read(&killed).unwrap();
    assert_eq!((trace.finished, trace.calls().count(), trace.wall_ns), (false, 1, 1));
}

/// Reads so many bytes, then has no end.
struct Endless<'a> {
    begin: &'a [u8],
    read: u64,
}

impl std::io::Read for Endless<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let from_begin = std::io::Read::read(&mut self.begin, buffer)?;
        let read = if from_begin > 0 { from_begin } else { buffer.len() };
        buffer[from_begin..read].fill(0);
        self.read += read as u64;
        Ok(read)
    }
}

#[test]
fn an_input_without_an_end_is_read_as_far_as_its_header_claims() {
    let bytes = simple();
    let (head, rest) = bytes.split_first_chunk().unwrap();
    let mut endless = Endless { begin: rest, read: 0 };
    let trace = Trace::read_from(head, &mut endless).unwrap();
    assert_eq!((trace.calls().count(), endless.read), (1, rest.len() as u64));
    // A header that claims a terabyte of nothing.
    let mut head = *head;
    put(&mut head, word::LIMIT, 1 << 40);
    put(&mut head, word::CLAIMED, 1 << 40);
    let mut endless = Endless { begin: rest, read: 0 };
    let said = Trace::read_from(&head, &mut endless).unwrap_err().to_string();
    assert!(said.starts_with("chunk.magic") && said.contains("more than 1 GiB of zeros"), "{said}");
    assert!(endless.read < 3 << 29, "{}", endless.read);
    // An input that ends before what its header claims.
    let said = Trace::read_from(&head, rest).unwrap_err().to_string();
    assert!(said.starts_with("claimed (byte 64)") && said.contains("cut off"), "{said}");
    let said = Trace::read_from(&head, &rest[..1000]).unwrap_err().to_string();
    assert!(said.starts_with("size (byte 0): 0x13e8"), "{said}");
}

#[test]
fn parameters_are_varied_within_their_ranges() {
    for device in ["dsa", "smartdimm"] {
        let (text, schema) = parameters(device).unwrap();
        assert!(neighbours(text, schema).len() >= schema.fields.len(), "{device}");
        let error = varied("f", text, schema, "nonsense", 1.0, None).unwrap_err().to_string();
        assert!(error.starts_with("f: nonsense: no parameter of"), "{error}");
    }
    let (text, schema) = parameters("dsa").unwrap();
    let Ok(Device::Dsa(timing)) = varied("f", text, schema, "submit", 0.5, Some("us")) else {
        panic!("a device")
    };
    assert_eq!(timing.submit, Time::from_ns(500));
    assert!(
        varied("f", text, schema, "engines", 0.0, None).unwrap_err().to_string().contains("give 1 to 64")
    );
    assert!(parameters("cpu").is_none());
}

/// Requests that a thread has answered: their number, when the first came, when the last was answered.
fn answered(requests: u64, first: u64, last: u64) -> Record {
    let words = [last, requests, 64 * requests, 64 * requests, first, last, last - first];
    Record { kind: Kind::Served, site: 0, parameter: 0, words }
}

/// Starts for 4 ms, then answers ten requests in 6 ms, of which 2 ms are copies, then ends for 1 ms; a second thread of the process helps for
/// 1 ms, and another process, which answers nothing, computes for 10 ms.
fn server() -> Vec<u8> {
    let first = [
        mark(Kind::Mark, 0, 0, 0),
        call(Kind::Copy, 4 * MS, 2 * MS, 64 << 20),
        answered(10, 4 * MS, 10 * MS),
        mark(Kind::End, 11 * MS, 11 * MS, 0),
    ];
    let second = [mark(Kind::Mark, 5 * MS, 0, 0), mark(Kind::End, 6 * MS, MS, 0)];
    let other = [mark(Kind::Mark, 0, 0, 0), mark(Kind::End, 10 * MS, 10 * MS, 0)];
    file(&[(1, 0, 1, 0, &first), (1, 0, 2, 0, &second), (2, 0, 3, 0, &other)], 11 * MS)
}

#[test]
fn a_load_counts_its_processes_between_the_first_request_and_the_last_answer() {
    let trace = Trace::read(&server()).unwrap();
    let load = trace.load.clone().expect("a load");
    assert_eq!((load.served.requests, load.is_given()), (10, false));
    let cpu = Cpu::new(Vec::new(), 1 << 20, Estimate::exactly(100.0), &trace);
    let without = replay(&trace, &cpu, Timing::Recorded, &Device::Cpu, 0);
    let wanted = LoadOutcome {
        span: Time::from_ns(6 * MS),
        cpu: Time::from_ns(7 * MS),
        busiest: Time::from_ns(6 * MS),
        device: Time::ZERO,
    };
    assert_eq!((without.load, without.wall), (wanted, Time::from_ns(11 * MS)));
    assert_eq!(without.load.saturated(2), (Time::from_ns(6 * MS), Limit::Thread));
    assert_eq!(without.load.saturated(1), (Time::from_ns(7 * MS), Limit::Cores));
    assert_eq!(load::rate(10, without.load.span), Some(10e9 / (6 * MS) as f64));

    // A device that takes half a second for the copy is what limits the server, whose thread waits for it.
    let (text, schema) = parameters("dsa").unwrap();
    let slow = varied("", text, schema, "device_rate", 0.125, None).unwrap();
    let with = replay(&trace, &cpu, Timing::Recorded, &slow, 1);
    assert!(with.load.device > Time::from_ns(500 * MS) && with.device == with.load.device, "{with:?}");
    assert_eq!(with.load.span, with.load.busiest, "it waits with its core");
    let fast = varied("", text, schema, "device_rate", 10_000.0, None).unwrap();
    let with = replay(&trace, &cpu, Timing::Recorded, &fast, 1);
    assert!(with.load.busiest < Time::from_ns(4 * MS + MS / 50), "{with:?}");
    assert!(with.load.device < Time::from_ns(MS / 50), "{with:?}");

    // A number that the user gives is of the whole run, of all processes.
    let mut given = trace.clone();
    given.load = Some(Load::given(1000, trace.wall_ns));
    let run = replay(&given, &cpu, Timing::Recorded, &Device::Cpu, 0);
    assert_eq!((run.load.span, run.load.cpu), (run.wall, run.cpu));
}

#[test]
fn requests_are_checked_and_a_trace_of_the_version_before_is_read() {
    for (record, field) in [
        (Record { words: [1, 1, 0, 0, 2, 1, 0], ..answered(1, 0, 1) }, "record.last"),
        (Record { words: [1, 1, 0, 0, 0, 1 << 60, 0], ..answered(1, 0, 1) }, "record.last"),
        (Record { words: [1, 1, 0, 0, 1 << 60, u64::MAX, 0], ..answered(1, 0, 1) }, "record.first"),
        (Record { words: [1, 1, 0, 0, 0, 1, 1 << 60], ..answered(1, 0, 1) }, "record.inside"),
    ] {
        let fault = Trace::read(&file(&[(1, 0, 1, 0, &[record])], MS)).unwrap_err();
        assert_eq!(fault.field, field);
    }
    let many = Record { words: [1, u64::MAX >> 5, u64::MAX, u64::MAX, 0, 1, 9], ..answered(1, 0, 1) };
    let trace = Trace::read(&file(&[(1, 0, 1, 0, &[many, many])], MS)).unwrap();
    assert_eq!(trace.load.map(|load| load.served.read), Some(u64::MAX));
    let mut old = simple();
    put(&mut old, word::VERSION, 4);
    let trace = Trace::read(&old).unwrap();
    assert!(trace.load.is_none() && trace.calls_ns() == MS);
}

/// A service's work: kind, parameter, nanoseconds, bytes read and written, parts.
fn work(kind: Kind, parameter: u32, at: u64, ns: u64, (read, written): (u64, u64), parts: u64) -> Record {
    Record { kind, site: 0, parameter, words: [at, ns, 0, 0, read, written, parts] }
}

/// Computes 1 ms, then works for 1 ms, then computes 1 ms.
fn working(kind: Kind, parameter: u32, bytes: (u64, u64), parts: u64) -> Trace {
    let records = [
        mark(Kind::Mark, 0, 0, 0),
        mark(Kind::Mark, MS, MS, 0),
        work(kind, parameter, MS, MS, bytes, parts),
        mark(Kind::Mark, 2 * MS, 2 * MS, 0),
        mark(Kind::End, 3 * MS, 3 * MS, 0),
    ];
    Trace::read(&file(&[(1, 0, 1, 0, &records)], 3 * MS)).unwrap()
}

fn served(trace: &Trace, service: Service) -> (Option<u64>, replay::Outcome) {
    let cpu = Cpu::new(Vec::new(), 1 << 20, Estimate::exactly(100.0), trace);
    let without = replay(trace, &cpu, Timing::Recorded, &Device::Cpu, 0);
    assert_eq!((without.wall, without.cpu), (Time::from_ns(3 * MS), Time::from_ns(3 * MS)));
    best(&Device::Service(service), trace, &cpu)
}

#[test]
fn commits_take_what_the_machine_takes_that_runs_them() {
    let timing = crate::nearpm::Timing::shipped();
    for mechanism in 0..4 {
        let trace = working(Kind::Commit, mechanism, (512, 512), 8);
        let service = Service::new(Hardware::NearPm(timing.clone()));
        let (cpu, near) = service.commits(&trace).unwrap();
        let (from, with) = served(&trace, service);
        assert_eq!((from, with.offloaded), (Some(512), 1));
        assert_eq!(with.wall, Time::from_ns(2 * MS) + near, "mechanism {mechanism}");
        // Undo logs of eight independent updates need one wait after the other by the CPU (figure 5).
        assert!(near < cpu, "mechanism {mechanism}: {near} {cpu}");
        assert!(near > timing.memory_latency, "it is not free: {near}");
    }
    // Twice as much takes longer, and more than one run holds is counted as often.
    let near = |parts| {
        let service = Service::new(Hardware::NearPm(timing.clone()));
        service.commits(&working(Kind::Commit, 0, (64 * parts, 64 * parts), parts)).unwrap().1
    };
    assert!(near(8) < near(16));
    assert_eq!(near(640), near(64) * 10);
    // Whatever a file says has a time.
    for (bytes, parts) in [(0, 0), (1, u64::from(u32::MAX)), ((1 << 47) - 1, 1), (100, 3)] {
        let service = Service::new(Hardware::NearPm(timing.clone()));
        let (_, near) = service.commits(&working(Kind::Commit, 3, (bytes, bytes), parts)).unwrap();
        assert!(near > Time::ZERO);
    }
}

#[test]
fn walks_that_are_waited_for_together_are_on_the_rack_together() {
    let run = |walks: u32, steps: u64| {
        let trace = working(Kind::Walk, walks, (0, 64 * u64::from(walks)), steps * u64::from(walks));
        let cpu = Cpu::new(Vec::new(), 1 << 20, Estimate::exactly(100.0), &trace);
        let device = Device::Service(Service::new(Hardware::Pulse(crate::pulse::Timing::shipped())));
        let with = replay(&trace, &cpu, Timing::Recorded, &device, 0);
        assert_eq!(with.offloaded, 1);
        with.wall - Time::from_ns(2 * MS)
    };
    let (one, long, many) = (run(1, 48), run(1, 96), run(64, 48));
    assert!(one > crate::pulse::Timing::shipped().host && one < long, "{one} {long}");
    assert!(many > one && many < one * 8, "64 of them beside each other: {one} {many}");
    assert_eq!(run(1, 3 * 4096), run(1, 4096) * 3);
    assert!(run(u32::MAX, 1) > many && run(0, 0) > Time::ZERO);
}

#[test]
fn packed_pages_cost_their_unpacking_and_putting_away_nothing() {
    let timing = crate::dmu::Timing::shipped();
    let trace = working(Kind::PageIn, 0, (9000, 8 * 4096), 8);
    let (_, with) = served(&trace, Service::new(Hardware::Dmu(timing.clone())));
    assert_eq!(with.wall, Time::from_ns(2 * MS) + (timing.unpack + timing.line) * 8);
    assert_eq!((with.read_bytes, with.written_bytes), (9000, 8 * 4096));
    let trace = working(Kind::PageOut, 0, (8 * 4096, 9000), 8);
    let (_, with) = served(&trace, Service::new(Hardware::Dmu(timing)));
    assert_eq!((with.wall, with.cpu), (Time::from_ns(2 * MS), Time::from_ns(2 * MS)));
}

#[test]
fn parts_are_checked() {
    let record = work(Kind::Commit, 0, 0, 1, (8, 8), 1 << 32);
    let fault = Trace::read(&file(&[(1, 0, 1, 0, &[record])], MS)).unwrap_err();
    assert_eq!(fault.field, "record.parts");
    let record = work(Kind::Commit, 4, 0, 1, (8, 8), 1);
    let fault = Trace::read(&file(&[(1, 0, 1, 0, &[record])], MS)).unwrap_err();
    assert_eq!((fault.field, fault.found), ("record.parameter", 4));
}

/// Whatever a file of parameters may say, a machine of it runs all that a trace may say.
#[test]
fn every_allowed_parameter_gives_a_machine_that_runs() {
    let traces = [
        working(Kind::Commit, 0, (1000, 1000), 3),
        working(Kind::Commit, 1, (1 << 20, 1 << 20), 100),
        working(Kind::Commit, 2, (64, 64), 1),
        working(Kind::Commit, 3, (5000, 5000), 1),
        working(Kind::Walk, 3, (0, 100), 50),
        working(Kind::PageIn, 0, (9000, 8 * 4096), 8),
    ];
    let cpu = Cpu::default();
    let mut run = 0;
    for name in ["nearpm", "pulse", "dmu"] {
        let (text, schema) = parameters(name).unwrap();
        for field in schema.fields {
            for value in [field.least, field.least + 1, field.most] {
                let table: toml::Table = text.parse().unwrap();
                let unit = table[field.name]["unit"].as_str().unwrap();
                let units = field.quantity.units();
                let scale = units.iter().find(|(name, _)| *name == unit).unwrap().1;
                let Ok(device) = varied("", text, schema, field.name, value as f64 / scale, None) else {
                    continue;
                };
                for trace in traces.iter().filter(|trace| trace.calls().any(|call| device.takes(call))) {
                    assert_eq!(replay(trace, &cpu, Timing::Recorded, &device, 0).offloaded, 1);
                    run += 1;
                }
            }
        }
    }
    assert!(run > 150, "{run}");
}

#[test]
fn what_begins_in_the_middle_of_a_wait_for_another_end_begins_then() {
    // The first thread waits for the second one from 1 to 9 ms; meanwhile another process begins at 5 ms.
    let first = [
        mark(Kind::Mark, 0, 0, 0),
        mark(Kind::Mark, MS, MS, 0),
        mark(Kind::Mark, 9 * MS, MS, 0),
        mark(Kind::End, 10 * MS, 2 * MS, 0),
    ];
    let second = [mark(Kind::Mark, MS, 0, 0), mark(Kind::End, 9 * MS, 8 * MS, 0)];
    let other = [mark(Kind::Mark, 5 * MS, 0, 0), mark(Kind::End, 19 * MS / 2, 9 * MS / 2, 0)];
    let bytes = file(&[(1, 0, 1, 0, &first), (1, 0, 2, 0, &second), (2, 1, 3, 0, &other)], 10 * MS);
    let trace = Trace::read(&bytes).unwrap();
    assert_eq!((awaited(&trace, 2, 0), awaited(&trace, 0, 1)), (1, 1), "{:?}", trace.threads[0].steps);
    let cpu = Cpu::new(Vec::new(), 1 << 20, Estimate::exactly(100.0), &trace);
    assert_eq!(replay(&trace, &cpu, Timing::Recorded, &Device::Cpu, 0).wall, Time::from_ns(10 * MS));
}

#[test]
fn values_of_a_sweep_are_ones_that_a_parameter_can_have() {
    let (text, schema) = parameters("dmu").unwrap();
    let value = rounded(text, schema, "unpack", 0.115_815_815_8, None);
    assert!(varied("", text, schema, "unpack", value, None).is_ok(), "{value}");
    assert_eq!((value * 1e6).round(), 115_816.0);
    assert_eq!(rounded(text, schema, "unpack", 2.6, Some("ps")), 3.0);
    assert_eq!(rounded(text, schema, "physical", 2.4, None), 2.0);
    assert_eq!(rounded(text, schema, "nothing", 2.4, None), 2.4);
}
