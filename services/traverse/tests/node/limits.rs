// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests that a node refuses, walks that end by themselves, and its answers then.
#![forbid(unsafe_code)]

use crate::node_world::{Weather, add, alone, find, hash, never, small, values};
use memlift_traverse::builder::{Builder, R4, R5, equal, node, node as node_field, scratch};
use memlift_traverse::node::{Counter, NodeOptions};
use memlift_traverse::structures::shipped;
use memlift_traverse::wire::{FLAG_CONTINUED, Header, Keys, Kind, Status};

#[test]
fn a_cycle_ends_when_its_iterations_are_used_up() {
    for compile in [false, true] {
        let options = NodeOptions { iterations_per_visit: 1000, compile, ..small(1 << 32) };
        let (node, mut shard, mut client) = alone(Weather::default(), options);
        let mut turn = || assert!(shard.turn().is_ok());
        client.upload(&find(), &mut turn);
        let at = client.allocate(64, &mut turn).header.address;
        client.write(at, &[1, 2, at], &mut turn);
        let mut header = Header { iterations: 2500, ..client.walk_header(&find(), at) };
        let mut visits = 0;
        let end = loop {
            let heard = client.ask(header, &9u64.to_le_bytes(), &mut turn);
            visits += 1;
            if heard.header.status != Status::Continue {
                break heard;
            }
            assert_eq!(heard.body[0], 9, "the state comes back");
            let (iterations, address) = (heard.header.iterations, heard.header.address);
            let flags = header.flags | FLAG_CONTINUED;
            header = Header { iterations, address, flags, ..client.walk_header(&find(), at) };
        };
        assert_eq!((end.header.status, visits), (Status::Iterations, 3));
        assert_eq!(node.stats().read().get(Counter::Walks), 3);
    }
}

#[test]
fn a_scratchpad_holds_nothing_of_the_walk_that_had_it_before() {
    let mut b = Builder::new();
    b.load(R4, node(0)).load(R5, scratch(0));
    b.when(equal(R4, R5), |b| {
        b.store(scratch(64), R4).done();
    });
    b.missing();
    let program = b.program("one", 256).expect("a good program");
    assert_eq!(program.scratch_stored(), 72);
    for compile in [false, true] {
        let answer = |before: Option<u8>| {
            let options = NodeOptions { compile, ..small(1 << 32) };
            let (_, mut shard, mut client) = alone(Weather::default(), options);
            let mut turn = || assert!(shard.turn().is_ok());
            client.upload(&program, &mut turn);
            let at = client.allocate(24, &mut turn).header.address;
            client.write(at, &[1, 2, 0], &mut turn);
            let header = client.walk_header(&program, at);
            if let Some(byte) = before {
                let whole = vec![byte; program.scratch_bytes()];
                let heard = client.ask(header, &whole, &mut turn);
                assert_eq!(heard.body, whole, "all of it was sent and comes back");
            }
            let header = client.walk_header(&program, at);
            let heard = client.ask(header, &9u64.to_le_bytes(), &mut turn);
            (heard.header.status, heard.body)
        };
        assert_eq!(answer(Some(0xA5)), answer(None));
    }
}

#[test]
fn many_walks_at_once_get_their_own_answers() {
    for compile in [false, true] {
        let (_, mut shard, mut client) = alone(Weather::default(), NodeOptions { compile, ..small(1 << 32) });
        let mut turn = || assert!(shard.turn().is_ok());
        client.upload(&find(), &mut turn);
        let places: Vec<u64> = (0..50).map(|_| client.allocate(24, &mut turn).header.address).collect();
        for (key, &at) in places.iter().enumerate() {
            let next = places.get(key + 1).copied().unwrap_or(0);
            client.write(at, &[key as u64, key as u64 * 3, next], &mut turn);
        }
        let mut asked = Vec::new();
        for key in (0..60u64).rev() {
            let header = client.walk_header(&find(), places[0]);
            client.send(&header, &key.to_le_bytes());
            asked.push((key, header));
        }
        let mut answered = 0;
        // Answers for other requests are dropped by `heard`: so they are collected here.
        let mut all = std::collections::HashMap::new();
        for _ in 0..2000 {
            turn();
            for packet in client.drain() {
                all.insert(packet.0.sequence, packet);
            }
        }
        for (key, header) in asked {
            let (answer, body) = &all[&header.sequence];
            match answer.status {
                Status::Done => {
                    assert!(key < 50);
                    let mut value = [0; 8];
                    let got = &body[8.min(body.len())..];
                    value[..got.len()].copy_from_slice(got);
                    assert_eq!(u64::from_le_bytes(value), key * 3);
                    answered += 1;
                }
                Status::Missing => {
                    assert!(key >= 50);
                    answered += 1;
                }
                other => assert_eq!(other, Status::Busy, "key {key}"),
            }
        }
        assert!(answered >= 20, "{answered}");
    }
}

#[test]
fn other_tenants_have_nothing_here() {
    let (_, mut shard, mut client) = alone(Weather::default(), small(1 << 32));
    let mut turn = || assert!(shard.turn().is_ok());
    client.upload(&find(), &mut turn);
    let at = client.allocate(64, &mut turn).header.address;
    client.write(at, &[1, 2, 0], &mut turn);
    client.tenant = 1;
    assert_eq!(client.walk(&find(), at, &[1, 0], &mut turn).header.status, Status::NeedProgram);
    client.upload(&find(), &mut turn);
    assert_eq!(client.walk(&find(), at, &[1, 0], &mut turn).header.status, Status::Forbidden);
    assert_eq!(client.write(at, &[7], &mut turn).header.status, Status::Forbidden);
    let read = Header { address: at, value: 8, ..client.request(Kind::Read) };
    assert_eq!(client.ask(read, &[], &mut turn).header.status, Status::Forbidden);
    let free = Header { address: at, value: 64, ..client.request(Kind::Free) };
    assert_eq!(client.ask(free, &[], &mut turn).header.status, Status::Forbidden);
    let mut operands = memlift_traverse::wire::ApplyOperands { kind: 2, address: at, a: 1, b: 0 };
    let apply = client.request(Kind::Apply);
    assert_eq!(client.ask(apply, &operands.bytes(), &mut turn).header.status, Status::Forbidden);
    client.tenant = 0;
    operands.address += 1;
    let apply = client.request(Kind::Apply);
    assert_eq!(
        client.ask(apply, &operands.bytes(), &mut turn).header.status,
        Status::BadRequest,
        "not aligned"
    );
    assert_eq!(client.read(at, &mut turn), 1);
    for nowhere in [0, 8, at + (4 << 20), u64::MAX - 7, at - 4096] {
        let status = client.walk(&find(), nowhere, &[1, 0], &mut turn).header.status;
        assert!(matches!(status, Status::Forbidden | Status::WrongNode), "{nowhere:#x}: {status:?}");
    }
}

#[test]
fn with_keys_only_their_packets_count_and_each_once() {
    let keys = Keys::none().with(0, [7; 32]).with(1, [8; 32]);
    let options = NodeOptions { keys: keys.clone(), ..small(1 << 32) };
    let (node, mut shard, mut client) = alone(Weather::default(), options);
    client.keys = keys;
    let mut turn = || assert!(shard.turn().is_ok());
    let at = client.allocate(64, &mut turn).header.address;
    let header = Header { value: 8, address: at, ..client.request(Kind::Read) };
    let packet = client.send(&header, &[]);
    for _ in 0..3 {
        turn();
        client.send_bytes(&packet);
    }
    turn();
    assert_eq!(node.stats().read().get(Counter::Replayed), 3);
    let mut forged = packet.clone();
    forged[64] ^= 8;
    client.send_bytes(&forged);
    client.keys = Keys::none();
    client.send(&header, &[]);
    client.keys = Keys::none().with(0, [9; 32]);
    client.send(&header, &[]);
    client.keys = Keys::none().with(2, [7; 32]);
    client.send(&Header { tenant: 2, ..header }, &[]);
    client.send_bytes(b"MLPK");
    turn();
    let counted = node.stats().read();
    assert_eq!((counted.get(Counter::Forged), counted.get(Counter::Malformed)), (4, 1));
}

#[test]
fn full_memory_is_an_answer() {
    let (_, mut shard, mut client) = alone(Weather::default(), small(1 << 32));
    let mut turn = || assert!(shard.turn().is_ok());
    let mut held = Vec::new();
    loop {
        let heard = client.allocate(100_000, &mut turn);
        match heard.header.status {
            Status::Done => held.push(heard.header.address),
            status => break assert_eq!(status, Status::Full),
        }
    }
    assert!(held.len() > 30, "{}", held.len());
    let free = Header { address: held[3], value: 100_000, ..client.request(Kind::Free) };
    assert_eq!(client.ask(free, &[], &mut turn).header.status, Status::Done);
    assert_eq!(client.allocate(100_000, &mut turn).header.address, held[3]);
    assert_eq!(client.allocate(u64::MAX, &mut turn).header.status, Status::Full);
}

#[test]
fn programs_are_named_by_their_hash_and_limited() {
    let options = NodeOptions { programs_per_tenant: 2, ..small(1 << 32) };
    let (node, mut shard, mut client) = alone(Weather::default(), options);
    let mut turn = || assert!(shard.turn().is_ok());
    let at = client.allocate(64, &mut turn).header.address;
    assert_eq!(client.walk(&find(), at, &[0, 0], &mut turn).header.status, Status::NeedProgram);
    let upload = memlift_traverse::node::upload_of(&find());
    let wrong = Header {
        program: hash(&add()),
        pieces: 1,
        value: upload.len() as u64,
        ..client.request(Kind::Register)
    };
    let heard = client.ask(wrong, &upload, &mut turn);
    assert_eq!(heard.header.status, Status::Refused);
    assert!(String::from_utf8_lossy(&heard.body).contains("another hash"));
    let mut broken = upload.clone();
    let last = broken.len() - 8;
    broken[last] = 0xff;
    let header = Header { program: hash(&find()), ..wrong };
    let header = Header { sequence: client.request(Kind::Register).sequence, settled: 0, ..header };
    let heard = client.ask(header, &broken, &mut turn);
    assert_eq!(heard.header.status, Status::Refused, "{}", String::from_utf8_lossy(&heard.body));
    for (program, status) in
        [(find(), Status::Done), (values(), Status::Done), (find(), Status::Done), (add(), Status::Done)]
    {
        assert_eq!(client.upload(&program, &mut turn).header.status, status, "{}", program.name());
    }
    let mut held: Vec<String> = node.programs().into_iter().map(|(_, name, _)| name).collect();
    held.sort_unstable();
    assert_eq!(held, ["add", "find"], "the one that was asked for longest ago went");
    assert_eq!(client.walk(&values(), at, &[0], &mut turn).header.status, Status::NeedProgram);
    for _ in 0..3 {
        for program in [find(), values(), add()] {
            assert_eq!(client.upload(&program, &mut turn).header.status, Status::Done);
            assert_eq!(node.programs().len(), 2);
        }
    }
    assert_eq!(client.upload(&find(), &mut turn).header.status, Status::Done);
    let mut short = client.walk_header(&find(), at);
    short.scratch_bytes = 8;
    assert_eq!(client.ask(short, &[], &mut turn).header.status, Status::BadRequest);
}

#[test]
fn results_longer_than_a_packet_come_in_pieces_also_when_some_are_lost() {
    for seed in 0..4 {
        let weather = if seed == 0 {
            Weather::default()
        } else {
            Weather { seed, lost: 8, doubled: 20, reordered: 40 }
        };
        let (_, mut shard, mut client) = alone(weather, small(1 << 32));
        let mut turn = || assert!(shard.turn().is_ok());
        client.upload(&values(), &mut turn);
        let count = 2400u64;
        let at = client.allocate(count * 24, &mut turn).header.address;
        let words: Vec<u64> =
            (0..count).flat_map(|n| [n, n * n, if n + 1 < count { at + (n + 1) * 24 } else { 0 }]).collect();
        for (part, words) in words.chunks(120).enumerate() {
            let heard = client.write(at + part as u64 * 960, words, &mut turn);
            assert_eq!(heard.header.status, Status::Done);
        }
        let heard = client.walk(&values(), at, &[0], &mut turn);
        assert_eq!((heard.header.status, heard.word(0)), (Status::Done, 2399 * 2399), "seed {seed}");
        assert_eq!(heard.header.pieces, 5, "2399 values of 8 bytes");
        let squares: Vec<u8> = (0..count - 1).flat_map(|n| (n * n).to_le_bytes()).collect();
        assert_eq!(heard.chunks, squares, "seed {seed}");
    }
}

#[test]
fn a_program_that_always_starts_again_is_told_so() {
    let (node, mut shard, mut client) = alone(Weather::default(), small(1 << 32));
    let mut turn = || assert!(shard.turn().is_ok());
    client.upload(&never(), &mut turn);
    let at = client.allocate(64, &mut turn).header.address;
    assert_eq!(client.walk(&never(), at, &[0], &mut turn).header.status, Status::Retry);
    assert_eq!(node.stats().read().get(Counter::Restarts), 64);
}

#[test]
fn a_walk_that_writes_is_told_too_why_it_does_not_start() {
    let (node, mut shard, mut client) = alone(Weather::default(), small(1 << 32));
    let mut turn = || assert!(shard.turn().is_ok());
    let at = client.allocate(64, &mut turn).header.address;
    client.write(at, &[5, 100, 0, at + 8], &mut turn);
    let body: Vec<u8> = [5u64, 1].iter().flat_map(|word| word.to_le_bytes()).collect();
    let header = client.walk_header(&add(), at);
    assert_eq!(client.ask(header, &body, &mut turn).header.status, Status::NeedProgram);
    client.upload(&add(), &mut turn);
    let short = Header { scratch_bytes: 8, ..client.walk_header(&add(), at) };
    let heard = client.ask(short, &body[..8], &mut turn);
    assert_eq!(heard.header.status, Status::BadRequest);
    assert!(String::from_utf8_lossy(&heard.body).contains("scratchpad"));
    let none = Header { iterations: 0, ..client.walk_header(&add(), at) };
    assert_eq!(client.ask(none, &body, &mut turn).header.status, Status::Iterations);
    assert_eq!(node.writer().size().2.1, 0, "a walk that did not start is not remembered");
    // The request itself is as good as new: only what was wrong with it has to be mended.
    let whole = Header { iterations: 10, attempt: 1, ..none };
    client.send(&whole, &body);
    (0..40).for_each(|_| turn());
    let answers = client.drain();
    let last = answers.last().expect("an answer");
    assert_eq!((last.0.status, last.0.value), (Status::Applied, 100));
    // An attempt that could not start does not hide what an earlier one has come to.
    client.send(&Header { attempt: 9, ..none }, &body);
    turn();
    let answers = client.drain();
    let last = answers.last().expect("an answer");
    assert_eq!((last.0.status, last.0.value), (Status::Applied, 100));
    assert_eq!(client.read(at + 8, &mut turn), 101);
}

#[test]
fn the_programs_of_the_collections_do_not_count_and_stay() {
    let options = NodeOptions { programs_per_tenant: 2, ..small(1 << 32) };
    let (node, mut shard, mut client) = alone(Weather::default(), options);
    let mut turn = || assert!(shard.turn().is_ok());
    let library: Vec<_> =
        shipped::ALL.iter().filter(|one| one.folder == "collections").map(|one| one.program()).collect();
    for program in &library {
        assert_eq!(client.upload(program, &mut turn).header.status, Status::Done, "{}", program.name());
    }
    // The name alone makes no program of the collections.
    let mut b = Builder::new();
    b.load(R4, node_field(0)).store(scratch(0), R4);
    b.done();
    let impostor = b.program("hash_get", 256).expect("a good program");
    for _ in 0..3 {
        for program in [&find(), &values(), &add(), &impostor] {
            assert_eq!(client.upload(program, &mut turn).header.status, Status::Done);
        }
        assert_eq!(node.programs().len(), library.len() + 2);
    }
    let held: Vec<_> = node.programs().into_iter().map(|(_, _, hash)| hash).collect();
    assert!(library.iter().all(|program| held.contains(&hash(program))), "none of them was dropped");
}
