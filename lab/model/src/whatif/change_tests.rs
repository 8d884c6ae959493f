// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that were changed: traces put together by hand, and the times that follow from the device's parameters.

use std::collections::BTreeMap;

use memlift_spec::formats::trace::{FAULTS_UNKNOWN, Kind, Record};

use super::callers::{Dependent, callers, needed};
use super::tests::{call, file, mark, waited};
use super::*;
use crate::dsa;
use crate::event::Time;

const MS: u64 = 1_000_000;
const MIB: u64 = 1 << 20;
const A: u64 = 1 << 30;
const B: u64 = 1 << 31;
const C: u64 = 1 << 32;

/// A copy from the call site of this number.
fn copy(site: u16, at: u64, ns: u64, (source, target, bytes): (u64, u64, u64)) -> Record {
    let words = [at, ns, source, target, bytes, bytes, FAULTS_UNKNOWN];
    Record { kind: Kind::Copy, site, parameter: 0, words }
}

fn told(site: u16, address: u64) -> Record {
    Record { kind: Kind::Site, site, parameter: 0, words: [0, address, 0, 0, 0, 0, 0] }
}

/// One thread that computes all the time between its calls.
fn single(records: &[Record], end: u64) -> Trace {
    let mut all = vec![mark(Kind::Mark, 0, 0, 0)];
    all.extend((1..=9).map(|site| told(site, u64::from(site) * 100)));
    all.extend(records);
    all.push(mark(Kind::End, end, end, 0));
    Trace::read(&file(&[(1, 0, 1, 0, &all)], end)).unwrap()
}

fn timing() -> dsa::Timing {
    dsa::Timing::shipped()
}

/// Time of the device for one call of so many bytes, from the queue on.
fn device_time(bytes: u64) -> Time {
    // It takes turns of a page, each rounded up to a picosecond.
    let turns = timing().device.time_of(4096) * (bytes / 4096);
    timing().start + turns + timing().device.time_of(bytes % 4096)
}

/// The program with copies from these sites submitted.
fn changed(
    trace: &Trace,
    sites: &[u32],
    batch: usize,
    first_use: Option<Time>,
    timing: dsa::Timing,
) -> Outcome {
    ahead_of(trace, sites, (batch, 0), first_use, timing)
}

/// The same, each copy so many calls ahead.
fn ahead_of(
    trace: &Trace,
    sites: &[u32],
    (batch, ahead): (usize, usize),
    first_use: Option<Time>,
    timing: dsa::Timing,
) -> Outcome {
    let callers: BTreeMap<Caller, u64> =
        sites.iter().map(|site| (Caller { site: Some(*site), kind: Kind::Copy }, 0)).collect();
    let change = Change { callers, batch, first_use, ahead };
    let cpu = Cpu::new(Vec::new(), 1 << 20, Estimate::exactly(100.0), trace);
    replay_changed(trace, &cpu, &Device::Dsa(timing), &change)
}

#[test]
fn a_submitted_copy_costs_its_submission_and_overlaps_what_does_not_need_it() {
    let trace = single(&[copy(1, MS, MS, (A, B, MIB))], 7 * MS);
    let rest = Time::from_ns(6 * MS);
    let run = changed(&trace, &[0], 1, None, timing());
    assert_eq!(
        (run.wall, run.cpu, run.waiting),
        (rest + timing().submit, rest + timing().submit, Time::ZERO)
    );
    assert_eq!((run.offloaded, run.limits.submitting), (1, timing().submit));
    // Used at once: the device's latency; used later: less by what is computed until then.
    let latency = timing().submit + device_time(MIB) + timing().wake;
    let at_once = changed(&trace, &[0], 1, Some(Time::ZERO), timing());
    assert_eq!(at_once.wall, rest + latency);
    assert_eq!(at_once.limits.used, device_time(MIB) + timing().wake);
    let later = changed(&trace, &[0], 1, Some(Time::from_ns(10_000)), timing());
    assert_eq!(later.wall, rest + latency - Time::from_ns(10_000));
    assert_eq!(changed(&trace, &[0], 1, Some(Time::from_ns(MS)), timing()), run, "it is done before");
    // Other sites and sizes stay where they were.
    let without = replay(&trace, &Cpu::default(), Timing::Recorded, &Device::Cpu, 0);
    let without = Outcome { read_bytes: 0, written_bytes: 0, ..without };
    assert_eq!(changed(&trace, &[1], 1, None, timing()), without, "traffic is not counted");
}

#[test]
fn time_without_a_core_in_a_submitted_call_stays() {
    // Displaced for half of everything.
    let displaced = |at, cpu| Record { words: [at, cpu, 0, 0, 0, 1, 0], ..mark(Kind::Mark, 0, 0, 0) };
    let records = [displaced(0, 0), told(1, 100), copy(1, 0, 2 * MS, (A, B, MIB)), displaced(4 * MS, 2 * MS)];
    let trace = Trace::read(&file(&[(1, 0, 1, 0, &records)], 4 * MS)).unwrap();
    for batch in [1, 2] {
        let run = changed(&trace, &[0], batch, None, timing());
        let wanted = (Time::from_ns(3 * MS) + timing().submit, Time::from_ns(MS) + timing().submit);
        assert_eq!((run.wall, run.cpu), wanted, "batches of {batch}");
    }
    // A comparison is waited for, and loses as much.
    let compare = Record { site: 1, ..call(Kind::Compare, 0, 2 * MS, MIB) };
    let records = [displaced(0, 0), told(1, 100), compare, displaced(4 * MS, 2 * MS)];
    let trace = Trace::read(&file(&[(1, 0, 1, 0, &records)], 4 * MS)).unwrap();
    let callers = BTreeMap::from([(Caller { site: Some(0), kind: Kind::Compare }, 0)]);
    let change = Change { callers, batch: 1, first_use: None, ahead: 0 };
    let run = replay_changed(&trace, &Cpu::default(), &Device::Dsa(timing()), &change);
    assert_eq!(run.wall, Time::from_ns(3 * MS) + timing().submit + device_time(MIB) + timing().wake);
}

#[test]
fn whatever_needs_the_bytes_waits_for_them() {
    let first = copy(1, 0, MS, (A, B, MIB));
    let at = MS + 5000;
    let set = |target| Record { kind: Kind::Fill, ..copy(2, at, 1000, (0, target, 4096)) };
    let compare = Record { words: [at, 1000, C, B, 4096, 0, FAULTS_UNKNOWN], ..call(Kind::Compare, 0, 0, 0) };
    let needing = [
        ("reads its target", copy(2, at, 1000, (B + 4096, C, 4096))),
        ("writes its target", copy(2, at, 1000, (C, B, 4096))),
        ("writes its source", copy(2, at, 1000, (C, A + MIB - 1, 4096))),
        ("fills its source", Record { words: [at, 1000, 0, A, 0, 4096, FAULTS_UNKNOWN], ..set(A) }),
        ("compares its target", compare),
    ];
    for (what, second) in needing {
        let run = changed(&single(&[first, second], 3 * MS), &[0], 1, None, timing());
        let waits = device_time(MIB) - Time::from_ns(5000) + timing().wake;
        assert_eq!(run.limits.called, waits, "{what}");
        assert_eq!(run.wall, Time::from_ns(2 * MS) + timing().submit + waits, "{what}");
    }
    for (what, second) in [
        ("reads its source", copy(2, at, 1000, (A, C, 4096))),
        ("begins after its target", copy(2, at, 1000, (B + MIB, C, 4096))),
        ("ends before its target", copy(2, at, 1000, (B - 4096, C, 4096))),
        ("writes nothing", copy(2, at, 1000, (A, B, 0))),
    ] {
        let run = changed(&single(&[first, second], 3 * MS), &[0], 1, None, timing());
        assert_eq!((run.waiting, run.wall), (Time::ZERO, Time::from_ns(2 * MS) + timing().submit), "{what}");
    }
}

#[test]
fn a_thread_waits_for_its_copies_before_it_wakes_another_and_before_it_ends() {
    let parent = [
        mark(Kind::Mark, 0, 0, 0),
        told(1, 100),
        copy(1, MS, MS, (A, B, MIB)),
        mark(Kind::Mark, 3 * MS, 3 * MS, 0),
        mark(Kind::End, 4 * MS, 4 * MS, 0),
    ];
    let child = [
        mark(Kind::Mark, MS / 2, 0, 0),
        waited(MS, 3 * MS / 2, 1, 2 * MS + 1000),
        mark(Kind::Mark, 5 * MS / 2, MS / 2, 0),
        mark(Kind::End, 4 * MS, 2 * MS, 0),
    ];
    let trace = Trace::read(&file(&[(1, 0, 1, 0, &parent), (1, 0, 2, 0, &child)], 4 * MS)).unwrap();
    let run = changed(&trace, &[0], 1, None, timing());
    assert_eq!(run.limits.handed, device_time(MIB) - Time::from_ns(1000) + timing().wake, "{:?}", run.limits);
    assert_eq!(run.limits.called + run.limits.used, Time::ZERO);
    // At the end: nothing comes after the copy.
    let trace = single(&[copy(1, 0, MS, (A, B, MIB))], MS);
    let run = changed(&trace, &[0], 1, None, timing());
    assert_eq!(run.wall, timing().submit + device_time(MIB) + timing().wake);
    assert_eq!(run.limits.handed, device_time(MIB) + timing().wake);
}

#[test]
fn another_thread_of_the_process_waits_for_a_copy_that_it_reads() {
    let first = [
        mark(Kind::Mark, 0, 0, 0),
        told(1, 100),
        copy(1, MS / 2, MS, (A, B, MIB)),
        mark(Kind::End, 4 * MS, 4 * MS, 0),
    ];
    let second = [
        mark(Kind::Mark, MS / 4, 0, 0),
        copy(2, 2 * MS, 1000, (B, C, 4096)),
        mark(Kind::End, 4 * MS, 3 * MS, 0),
    ];
    let slow = dsa::Timing { start: Time::from_ns(2 * MS), ..timing() };
    // In another process it is another memory, whatever the addresses.
    for (process, waits) in [(1, true), (2, false)] {
        let trace = Trace::read(&file(&[(1, 0, 1, 0, &first), (process, 0, 2, 0, &second)], 4 * MS)).unwrap();
        let run = changed(&trace, &[0], 1, None, slow.clone());
        assert_eq!(run.limits.called > Time::ZERO, waits, "process {process}: {:?}", run.limits);
    }
}

/// Eight copies of a page in a row, each 1 us, then computing.
fn row() -> Trace {
    let copies: Vec<Record> =
        (0..8).map(|index| copy(1, index * 1000, 1000, (A + index * 4096, B + index * 4096, 4096))).collect();
    single(&copies, MS)
}

#[test]
fn a_batch_is_submitted_once_and_also_where_it_is_not_full() {
    let rest = Time::from_ns(MS - 8000);
    for (batch, submissions) in [(1, 8), (4, 2), (8, 1), (5, 2), (1024, 1)] {
        let run = changed(&row(), &[0], batch, None, timing());
        let submitting = timing().submit * submissions;
        assert_eq!(
            (run.wall, run.limits.submitting, run.offloaded),
            (rest + submitting, submitting, 8),
            "{batch}"
        );
        assert_eq!(run.waiting, Time::ZERO, "{batch}");
    }
    // Used at once, each has to be there before the next is computed towards: nothing lies between these copies.
    let run = changed(&row(), &[0], 8, Some(Time::ZERO), timing());
    assert_eq!(run.limits.submitting, timing().submit);
    // A batch of eight: the list is fetched, then each member starts on one of four engines, and the pipe takes page after page.
    let fetch = timing().start + timing().device.time_of(8 * 64);
    let pages = timing().device.time_of(4096) * 4 + timing().start;
    let wait = run.limits.used - timing().wake;
    assert!(wait >= fetch + pages && wait <= fetch + pages + pages, "{wait}");
}

#[test]
fn a_full_queue_holds_the_thread_up_and_loses_nothing() {
    let small = dsa::Timing { queue_entries: 1, engines: 1, ..timing() };
    for (batch, submissions) in [(1, 8), (2, 4), (3, 3), (8, 1)] {
        let run = changed(&row(), &[0], batch, None, small.clone());
        assert_eq!((run.offloaded, run.limits.submitting), (8, small.submit * submissions), "{batch}");
        assert_eq!(run.limits.full > Time::ZERO, batch < 8, "{batch}: {:?}", run.limits);
        assert_eq!(run.wall, Time::from_ns(MS - 8000) + run.limits.submitting + run.limits.full, "{batch}");
    }
}

/// Four rounds of a millisecond: a copy to B, a copy from there at once, and computing; `between` comes half way through it.
fn rounds(between: impl Fn(u64) -> Option<Record>) -> Trace {
    let mut records = Vec::new();
    for at in (0..4).map(|round| round * MS) {
        records.push(copy(1, at, 100_000, (A, B, MIB)));
        records.push(copy(2, at + 100_000, 1000, (B, C, 4096)));
        records.extend(between(at + MS / 2));
    }
    single(&records, 4 * MS)
}

#[test]
fn copies_that_are_used_at_once_overlap_if_they_are_submitted_a_round_ahead() {
    let of = |trace: &Trace, ahead: usize, timing: dsa::Timing| {
        let callers = BTreeMap::from([(Caller { site: Some(0), kind: Kind::Copy }, 0)]);
        let change = Change { callers, batch: 1, first_use: None, ahead };
        replay_changed(trace, &Cpu::default(), &Device::Dsa(timing), &change)
    };
    let wait = device_time(MIB) + timing().wake;
    let rest = Time::from_ns(4 * MS - 4 * 100_000) + timing().submit * 4;
    let trace = rounds(|_| None);
    let plain = of(&trace, 0, timing());
    assert_eq!((plain.wall, plain.limits.called, plain.limits.early), (rest + wait * 4, wait * 4, 0));
    let run = of(&trace, 1, timing());
    assert_eq!((run.offloaded, run.limits.early), (4, 3));
    // The first one is waited for, while it shares the device's pipe with the second; the others are there in time.
    assert!((wait..=wait * 2).contains(&run.limits.called), "{:?}", run.limits);
    assert_eq!(run.wall, rest + run.limits.called);
    // A device that takes two rounds for a copy needs them two rounds ahead.
    let slow = dsa::Timing { start: Time::from_ns(3 * MS / 2), ..timing() };
    let (one, two) = (of(&trace, 1, slow.clone()), of(&trace, 2, slow));
    assert!(two.wall < one.wall && two.limits.early == 3, "{:?} {:?}", one.limits, two.limits);
    // Where the source is written, or the thread waits, in between, nothing goes ahead.
    let written = rounds(|at| Some(copy(3, at, 1000, (C + MIB, A, 64))));
    assert_eq!(of(&written, 1, timing()).limits.early, 0);
    let elsewhere = rounds(|at| Some(copy(3, at, 1000, (A, C + MIB, 64))));
    assert_eq!(of(&elsewhere, 1, timing()).limits.early, 3);
    let mut waits = vec![mark(Kind::Mark, 0, 0, 0), told(1, 100), copy(1, 0, MS, (A, B, MIB))];
    waits.extend([
        waited(2 * MS, MS, 0, 0),
        mark(Kind::Mark, 3 * MS, 2 * MS, 0),
        copy(1, 4 * MS, MS, (A, B, MIB)),
    ]);
    waits.push(mark(Kind::End, 6 * MS, 5 * MS, 0));
    let trace = Trace::read(&file(&[(1, 0, 1, 0, &waits)], 6 * MS)).unwrap();
    assert_eq!((of(&trace, 1, timing()).limits.early, of(&trace, 1, timing()).offloaded), (0, 2));
}

#[test]
fn comparisons_are_waited_for_and_small_and_new_ones_stay() {
    let compare = |at| Record { site: 3, ..call(Kind::Compare, at, MS, MIB) };
    let trace = single(&[compare(0), compare(2 * MS)], 4 * MS);
    let caller = Caller { site: Some(2), kind: Kind::Compare };
    let change =
        |from| Change { callers: BTreeMap::from([(caller, from)]), batch: 4, first_use: None, ahead: 0 };
    let of = |from| replay_changed(&trace, &Cpu::default(), &Device::Dsa(timing()), &change(from));
    assert_eq!(of(0).limits.used, (device_time(MIB) + timing().wake) * 2);
    assert_eq!((of(MIB + 1).limits.small, of(MIB + 1).offloaded), (2, 0));
    let new = Record { words: [0, MS, A, B, MIB, MIB, 256], ..copy(1, 0, MS, (A, B, MIB)) };
    let run = changed(&single(&[new], 2 * MS), &[0], 1, None, timing());
    assert_eq!((run.limits.fresh, run.offloaded, run.wall), (1, 0, Time::from_ns(2 * MS)));
}

#[test]
fn any_change_of_any_trace_comes_to_its_end_and_equals_itself() {
    let mut random = crate::event::Random::new(34);
    let mut draw = |below: u64| random.below(below);
    for round in 0..300 {
        let threads = 1 + draw(4);
        let all: Vec<Vec<Record>> = (0..threads)
            .map(|thread| {
                let (mut now, mut on_core) = (draw(MS), 0);
                let mut records = vec![mark(Kind::Mark, now, 0, 0), told(1, 100), told(2, 200)];
                for _ in 0..draw(30) {
                    let length = 1 + draw(20_000);
                    match draw(4) {
                        0 => {
                            let at = now + draw(length);
                            records.push(waited(now, length, draw(threads + 1), at));
                        }
                        1 => on_core += length,
                        _ => {
                            let place = |draw: u64| A + draw * 4096;
                            let (source, target) = (place(draw(8)), place(draw(8)));
                            records.push(copy(
                                1 + draw(2) as u16,
                                now,
                                length,
                                (source, target, 1 + draw(9000)),
                            ));
                            on_core += length;
                        }
                    }
                    now += length;
                }
                records.push(mark(if thread == 0 { Kind::End } else { Kind::Mark }, now, on_core, 0));
                records
            })
            .collect();
        let last =
            all.iter().filter_map(|records| records.last()).map(|record| record.words[0]).max().unwrap();
        let chunks: Vec<(u32, u32, u32, u32, &[Record])> =
            all.iter().zip(1..).map(|(records, number)| (1, 0, number, 0, &records[..])).collect();
        let trace = Trace::read(&file(&chunks, last)).unwrap();
        let narrow = dsa::Timing { queue_entries: 1 + draw(3) as usize, engines: 1, ..timing() };
        let calls = trace.calls().count() as u64;
        for (first_use, ahead) in [
            (None, 0),
            (Some(Time::ZERO), 0),
            (Some(Time::from_ns(draw(10_000))), 0),
            (None, 2),
            (Some(Time::ZERO), 1),
        ] {
            let (sites, batch) = ([0, 1], 1 + draw(5) as usize);
            let run = ahead_of(&trace, &sites, (batch, ahead), first_use, narrow.clone());
            assert_eq!(run.offloaded, calls, "round {round}: every copy is done");
            assert_eq!(
                run,
                ahead_of(&trace, &sites, (batch, ahead), first_use, narrow.clone()),
                "round {round}"
            );
            let waits = [run.limits.used, run.limits.called, run.limits.handed, run.limits.full];
            let sum = waits.into_iter().fold(Time::ZERO, |sum, time| sum + time);
            assert!(sum >= run.waiting, "round {round}: every wait has a reason");
        }
        let none = changed(&trace, &[], 1, None, narrow);
        assert_eq!((none.wall, none.offloaded), (Time::from_ns(last), 0), "round {round}");
    }
}

#[test]
fn call_sites_are_known_by_file_and_offset_in_all_processes() {
    let name = b"/usr/lib/a file with a name that is longer than one record of it.so";
    let module = |first, offset, name: &[u8]| {
        let words = [0, first, first + 0x1000, offset, 77, 0, 0];
        let mut records = vec![Record { kind: Kind::Module, site: 0, parameter: name.len() as u32, words }];
        for piece in name.chunks(56) {
            let mut bytes = [0; 56];
            bytes[..piece.len()].copy_from_slice(piece);
            let mut words = [0; 7];
            words
                .iter_mut()
                .zip(bytes.as_chunks::<8>().0)
                .for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
            records.push(Record { kind: Kind::ModuleName, site: 0, parameter: 0, words });
        }
        records
    };
    let calls = |sites: &[u16]| -> Vec<Record> {
        sites.iter().map(|site| copy(*site, MS, 10, (A, B, 4096))).collect()
    };
    let mut first = module(0x5000, 0x2000, name);
    first.extend([told(7, 0x5010), told(8, 0x9999)]);
    first.extend(calls(&[7, 8, 9]));
    let mut second = module(0x7000, 0x2000, name);
    second.push(told(1, 0x7010));
    // Its name ended early, as where a trace was full.
    let cut = &module(0xa000, 0, name)[..2];
    second.extend_from_slice(cut);
    second.push(told(2, 0xa001));
    second.extend(calls(&[1, 2]));
    let trace = Trace::read(&file(&[(1, 0, 1, 0, &first), (2, 0, 2, 0, &second)], 2 * MS)).unwrap();
    let of = |thread: usize| -> Vec<Option<&Site>> {
        trace.threads[thread]
            .calls
            .iter()
            .map(|call| call.site.map(|place| &trace.sites[place as usize]))
            .collect()
    };
    let module = String::from_utf8(name.to_vec()).unwrap();
    let shared = Site { module, inode: 77, offset: 0x2010 };
    let plain = |offset| Site { module: String::new(), inode: 0, offset };
    assert_eq!(of(0), [Some(&shared), Some(&plain(0x9999)), None], "the third was never told");
    assert_eq!(of(1), [Some(&shared), Some(&plain(0xa001))]);
    assert_eq!(trace.sites.len(), 3);
}

#[test]
fn callers_have_their_cost_their_break_even_and_what_needs_them_first() {
    let small = |index: u64| copy(2, MS + index * 200, 100, (A + index * 4096, B + index * 4096, 4096));
    let mut records = vec![copy(1, 0, MS, (A, B, MIB))];
    records.extend((0..4).map(small));
    records.push(copy(3, 2 * MS, 10, (B, C, 64)));
    let trace = single(&records, 3 * MS);
    let found = callers(&trace, &Device::Dsa(timing()));
    let seen: Vec<(u32, u64, u64, u64)> =
        found.iter().map(|one| (one.caller.site.unwrap(), one.calls, one.bytes, one.cpu_ns)).collect();
    assert_eq!(seen, [(0, 1, MIB, MS), (1, 4, 4 * 4096, 400), (2, 1, 64, 10)]);
    let sizes: Vec<Option<u64>> = found.iter().map(|one| one.break_even(Time::from_ns(50))).collect();
    assert_eq!(sizes, [Some(MIB), Some(4096), None]);
    assert_eq!(found[1].break_even(Time::from_ns(100)), None, "as long as the call is no gain");
    let need = |place: u32| needed(&trace, Caller { site: Some(place), kind: Kind::Copy }).unwrap();
    let by = |place| Dependent::Call(Caller { site: Some(place), kind: Kind::Copy });
    assert_eq!((need(0).after_ns, need(0).by, need(0).calls), (0, by(1), 1));
    assert_eq!((need(1).by, need(1).calls), (Dependent::End, 3), "one of four is read by the last copy");
    assert_eq!((need(2).after_ns, need(2).by), (MS - 10, Dependent::End));
    assert_eq!(needed(&trace, Caller { site: None, kind: Kind::Copy }), None);
}
