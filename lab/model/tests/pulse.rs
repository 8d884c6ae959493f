// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The PULSE rack: right bytes, right places, times that follow from the parameters.

use memlift_model::event::Time;
use memlift_model::pulse::workload::{self, Scans};
use memlift_model::pulse::{Job, NodeMemory, Outcome, Permission, Program, Rack, Shape, Timing};
use memlift_spec::formats::walk::*;
use std::sync::Arc;

fn program(code: &[[u8; 8]]) -> Arc<Program> {
    let encoding = [&ProgramHeader::new(64, code.len() as u32).to_bytes()[..], &code.concat()].concat();
    Arc::new(Program::read(&encoding, (0, 16)).unwrap())
}

fn job(program: &Arc<Program>, start: u64, scratch: &[u64]) -> Job {
    let scratch = scratch.iter().flat_map(|word| word.to_le_bytes()).collect();
    Job { program: Arc::clone(program), start, scratch, object: None }
}

const MOVE: u8 = CLASS_ALU64 | MOV;
const LEAVE: [u8; 8] = [CLASS_JMP | EXIT, 0, 0, 0, 0, 0, 0, 0];

fn verdict(number: u8) -> [u8; 8] {
    [MOVE, 0, 0, 0, number, 0, 0, 0]
}

/// `*(u64 *)(r3 + at) = register`
fn ask(at: u8, register: u8) -> [u8; 8] {
    [CLASS_STX | MODE_MEM | SIZE_DW, 3 | register << 4, at, 0, 0, 0, 0, 0]
}

fn load(register: u8, base: u8, at: u8) -> [u8; 8] {
    [CLASS_LDX | MODE_MEM | SIZE_DW, register | base << 4, at, 0, 0, 0, 0, 0]
}

fn memory(base: u64, permission: Permission, words: &[u64]) -> NodeMemory {
    let mut memory = NodeMemory::new(8);
    memory.map(base, permission, words.iter().flat_map(|word| word.to_le_bytes()).collect()).unwrap();
    memory
}

#[test]
fn a_request_alone_takes_the_sum_of_its_parts() {
    let timing = Timing::shipped();
    let (memory, jobs) = workload::web_service(1, (4, 48, 8192), 3, 64).unwrap();
    let report = Rack::new(timing.clone(), Shape::disaggregated(1, 4), vec![memory]).unwrap().run(&jobs, 1);
    // 66 bytes around a program of 16 + 14 · 8, and its scratchpad; the answer has the object too.
    let packet = 66 + 16 + 14 * 8 + 64;
    let hop = timing.memory_latency + timing.scheduler + timing.arbitration + Time::from_ps(10_000);
    let wanted = timing.host
        + timing.network_stack * 2
        + timing.port_rate.time_of(packet)
        + timing.port_rate.time_of(packet + 8192)
        // The last step has seven instructions.
        + hop * 48
        - Time::from_ps(1_250)
        + timing.memory_rate.time_of(256) * 32;
    for answer in &report.answers {
        assert_eq!(answer.done - answer.issued, wanted);
        assert_eq!((answer.outcome, answer.iterations, answer.crossings), (Outcome::Done, 48, 0));
    }
}

#[test]
fn everything_is_the_same_every_time_and_under_any_load_the_bytes_are_right() {
    let scans = Scans { length: 20, values: 7, nodes: 3, elsewhere: 200_000 };
    let run = |clients, shape| {
        let (memories, jobs) = workload::scans(5, scans, 60, 64).unwrap();
        let (jobs, sums): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
        let report = Rack::new(Timing::shipped(), shape, memories).unwrap().run(&jobs, clients);
        for (answer, sum) in report.answers.iter().zip(&sums) {
            assert_eq!((answer.outcome, &answer.scratch[..8]), (Outcome::Done, &sum.to_le_bytes()[..]));
            assert_eq!((answer.iterations, answer.scratch[8]), (20, 140));
        }
        assert!(report.answers.iter().map(|answer| answer.crossings).sum::<u64>() > 100);
        (report.answers, report.events)
    };
    for shape in
        [Shape::built(), Shape::coupled(2), Shape { over_client: true, ..Shape::disaggregated(1, 1) }]
    {
        assert_eq!(run(1, shape), run(1, shape));
        assert_eq!(run(40, shape), run(40, shape));
    }
    // One run, written down: another order of events or another rounding changes it.
    let (answers, events) = run(40, Shape::built());
    let ended = answers.iter().map(|answer| answer.done.as_ps()).max();
    assert_eq!((ended, events), (Some(149_748_920), 4716));
}

#[test]
fn a_crossing_and_the_way_over_the_client_cost_what_they_say() {
    let timing = Timing::shipped();
    let hop = program(&[
        load(4, 1, 0),
        ask(0, 4),
        load(5, 1, 8),
        [MOVE | SOURCE_REGISTER, 5 << 4, 0, 0, 0, 0, 0, 0],
        LEAVE,
    ]);
    let run = |over_client, first: &[u64]| {
        let memories =
            vec![memory(0x1000, Permission::Read, first), memory(0x2000, Permission::Read, &[0, 1])];
        let shape = Shape { over_client, ..Shape::built() };
        let report = Rack::new(timing.clone(), shape, memories).unwrap().run(&[job(&hop, 0x1000, &[])], 1);
        (report.answers[0].outcome, report.answers[0].crossings, report.answers[0].done)
    };
    let (here, there, over) =
        (run(false, &[0x1010, 0, 0, 1]), run(false, &[0x2000, 0]), run(true, &[0x2000, 0]));
    assert_eq!((here.0, here.1, there.0, there.1), (Outcome::Done, 0, Outcome::Done, 1));
    // The node that has not got the address finds out in one stage; packets have 66 + 56 + 64 bytes on two ports; the other node
    // assigns the walk anew.
    let dispatch = timing.scheduler + timing.arbitration * 3;
    let wires = timing.port_rate.time_of(66 + 56 + 64) * 2;
    assert_eq!(there.2 - here.2, timing.crossing + timing.memory_occupancy + dispatch + wires);
    assert_eq!(over.2 - there.2, timing.bounce);
}

#[test]
fn changes_are_made_by_their_owner_once_each() {
    let swap = program(&[
        [MOVE, 4, 0, 0, 1, 0, 0, 0],
        ask(8, 4),
        load(4, 2, 0),
        ask(16, 4),
        load(4, 2, 8),
        ask(24, 4),
        load(4, 2, 16),
        ask(32, 4),
        verdict(3),
        LEAVE,
    ]);
    let memories =
        vec![memory(0x1000, Permission::Read, &[1, 2]), memory(0x2000, Permission::ReadWrite, &[5, 6])];
    let mut rack = Rack::new(Timing::shipped(), Shape::built(), memories).unwrap();
    let jobs = [
        job(&swap, 0x1000, &[0x2008, 6, 7]),
        job(&swap, 0x1000, &[0x2008, 6, 8]),
        job(&swap, 0x1000, &[0x1000, 1, 8]),
        job(&swap, 0x1000, &[0x3000, 1, 8]),
    ];
    let report = rack.run(&jobs, 1);
    let outcomes: Vec<Outcome> = report.answers.iter().map(|answer| answer.outcome).collect();
    assert_eq!(
        outcomes,
        [Outcome::Applied(6), Outcome::Differs(7), Outcome::Forbidden(0x1000), Outcome::Nowhere(0x3000)]
    );
    assert_eq!(rack.memory(1).read(0x2008, 0x2008, 8), Ok(&7_u64.to_le_bytes()[..]));
    assert_eq!(rack.memory(0).read(0x1000, 0x1000, 8), Ok(&1_u64.to_le_bytes()[..]));
}

#[test]
fn what_a_walk_must_not_do_ends_it_with_its_name() {
    use memlift_model::pulse::program::Verdict;
    let forever = program(&[load(4, 1, 0), ask(0, 4), verdict(0), LEAVE]);
    let again = program(&[verdict(4), LEAVE]);
    let odd = program(&[verdict(99), LEAVE]);
    let outside = program(&[load(4, 1, 9), verdict(1), LEAVE]);
    let spin = program(&[[CLASS_JMP | JA, 0, 0xff, 0xff, 0, 0, 0, 0]]);
    let emits = program(&[[CLASS_ST | MODE_MEM | SIZE_W, 3, 44, 0, 65, 0, 0, 0], verdict(2), LEAVE]);
    let none = program(&[[0xff, 0, 0, 0, 0, 0, 0, 0]]);
    let objects = Job { object: Some((60, 8)), ..job(&program(&[verdict(1), LEAVE]), 0x1000, &[]) };
    let memories = vec![memory(0x1000, Permission::ReadWrite, &[0x1000, 0])];
    let mut rack = Rack::new(Timing::shipped(), Shape::built(), memories).unwrap();
    for (job, wanted) in [
        (job(&forever, 0x1000, &[]), Outcome::Budget),
        (job(&again, 0x1000, &[]), Outcome::Contended),
        (job(&odd, 0x1000, &[]), Outcome::Fault(Verdict::BadVerdict)),
        (job(&outside, 0x1000, &[]), Outcome::Fault(Verdict::Guard)),
        (job(&spin, 0x1000, &[]), Outcome::Fault(Verdict::OutOfFuel)),
        (job(&emits, 0x1000, &[]), Outcome::Fault(Verdict::Emit)),
        (job(&none, 0x1000, &[]), Outcome::Fault(Verdict::Guard)),
        (job(&odd, 0x1008, &[]), Outcome::Forbidden(0x1008)),
        (job(&odd, u64::MAX, &[]), Outcome::Nowhere(u64::MAX)),
        (objects, Outcome::Forbidden(0)),
    ] {
        assert_eq!(rack.run(&[job], 3).answers[0].outcome, wanted);
    }
    // Afterwards it serves as before.
    let done = program(&[verdict(1), LEAVE]);
    assert_eq!(rack.run(&[job(&done, 0x1000, &[])], 1).answers[0].outcome, Outcome::Done);
}

#[test]
fn impossible_racks_say_what_to_change() {
    let timing = Timing::shipped();
    let memories = |count: usize| vec![NodeMemory::new(1); count];
    let overlapping = vec![memory(0x1000, Permission::Read, &[1, 2]), memory(0x1008, Permission::Read, &[1])];
    for (shape, memories, wanted) in [
        (Shape::built(), memories(0), "0 nodes: a rack has 1 to 4"),
        (Shape::built(), memories(5), "5 nodes: a rack has 1 to 4"),
        (Shape::disaggregated(0, 4), memories(1), "0 logic and 4 memory pipelines: 1 to 64 of each"),
        (Shape { memory: 3, ..Shape::coupled(2) }, memories(1), "give equal numbers"),
        (Shape::built(), overlapping, "nodes 0 and 1 both have 0x1008"),
    ] {
        let error = Rack::new(timing.clone(), shape, memories).unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
    let header = |instructions| ProgramHeader::new(64, instructions).to_bytes();
    for (encoding, window, wanted) in [
        (vec![1, 2], (0, 8), "too few for a header"),
        (vec![0; 24], (0, 8), "none of version 1"),
        ([&header(2)[..], &LEAVE].concat(), (0, 8), "says 2 instructions, 8 bytes follow"),
        ([&ProgramHeader::new(7, 1).to_bytes()[..], &LEAVE].concat(), (0, 8), "7 bytes of scratchpad"),
        ([&header(1)[..], &LEAVE].concat(), (8, 8), "a window of 8 bytes at 8"),
        ([&header(1)[..], &LEAVE].concat(), (0, 257), "a window of 257 bytes"),
    ] {
        let error = Program::read(&encoding, window).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}
