// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many walks of 48 hops a node answers per second, and how long one takes: over the ring and over UDP, with one client.
//!
//! - **Flow** a random cycle of 64-byte nodes over `MEMLIFT_MIB` (1024) ─▶ a shard on a thread of its own ─▶ this thread asks,
//!   with 1, 64 or 128 requests out, for `MEMLIFT_SECONDS` (3) each, and checks every answer; `MEMLIFT_OVER=shm` or `udp`: only
//!   that
//! - **Not here** rivals: `bench`
#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memlift_traverse::builder::{Builder, R4, R5, equal, node, scratch};
use memlift_traverse::node::{Alone, Counter, Node, NodeOptions};
use memlift_traverse::program::Program;
use memlift_traverse::transport::shm::Shm;
use memlift_traverse::transport::udp::Udp;
use memlift_traverse::transport::{Peer, Transport};
use memlift_traverse::wire::{Header, Kind, Packet, Status};

const HOPS: usize = 48;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn find() -> Result<Program, Box<dyn Error>> {
    let mut b = Builder::new();
    b.load(R4, node(0)).load(R5, scratch(0));
    b.when(equal(R4, R5), |b| {
        b.load(R4, node(8)).store(scratch(8), R4).done();
    });
    b.load(R4, node(16));
    b.when(equal(R4, 0), |b| {
        b.missing();
    });
    b.next(R4);
    Ok(b.program("find", 16)?)
}

/// Start, and the key that lies 48 hops further.
struct Query(u64, u64);

fn fill(server: &Node, bytes: u64) -> Result<Vec<Query>, Box<dyn Error>> {
    let base = server.writer().allocator().allocate(0, bytes).ok_or("memory is full")?.next_multiple_of(64);
    let count = (bytes / 64 - 1) as usize;
    let mut order: Vec<u32> = (0..count as u32).collect();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for at in (1..count).rev() {
        order.swap(at, random() as usize % (at + 1));
    }
    let place = |index: u32| base + u64::from(index) * 64;
    for (at, &index) in order.iter().enumerate() {
        let next = order[(at + 1) % count];
        let words = [u64::from(index) + 1, u64::from(index) * 3 + 1, place(next)];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        server.memory().store(place(index), &bytes);
    }
    let starts = (0..1 << 16).map(|_| random() as usize % count);
    Ok(starts.map(|at| Query(place(order[at]), u64::from(order[(at + HOPS) % count]) + 1)).collect())
}

fn drive(
    transport: &mut dyn Transport,
    to: Peer,
    program: &Program,
    queries: &[Query],
    out: u64,
) -> Result<(u64, Duration), Box<dyn Error>> {
    let hash = program.hash()[..16].try_into()?;
    let scratch_bytes = program.scratch_bytes() as u16;
    let mut packet = Vec::new();
    let (mut sent, mut answered, mut wrong) = (0u64, 0u64, None);
    let (start, limit) = (Instant::now(), Duration::from_secs(number("MEMLIFT_SECONDS", 3)));
    let mut last = start;
    while start.elapsed() < limit || answered < sent {
        while sent - answered < out && start.elapsed() < limit {
            let query = &queries[sent as usize % queries.len()];
            sent += 1;
            let header = Header {
                client: 1,
                sequence: sent,
                settled: 1,
                iterations: 1000,
                hops: 1,
                program: hash,
                address: query.0,
                scratch_bytes,
                ..Header::new(Kind::Walk)
            };
            packet.clear();
            header.format(&query.1.to_le_bytes(), &mut packet);
            transport.send(to, &packet)?;
        }
        transport.flush()?;
        let got = transport.receive(64, &mut |_, bytes| match Packet::parse(bytes) {
            Ok(Packet { header, body }) => {
                let key = queries[(header.sequence - 1) as usize % queries.len()].1;
                let value = body.get(8..).map_or(0, |value| {
                    let mut word = [0; 8];
                    word[..value.len()].copy_from_slice(value);
                    u64::from_le_bytes(word)
                });
                if header.status != Status::Done || value != (key - 1) * 3 + 1 {
                    wrong = Some(header);
                }
                answered += 1;
            }
            Err(_) => answered += 1,
        })?;
        if let Some(header) = wrong {
            return Err(format!("a wrong answer: {header:?}").into());
        }
        if got > 0 {
            last = Instant::now();
        } else if last.elapsed() > Duration::from_secs(1) {
            return Err(format!("{} answers were lost", sent - answered).into());
        } else {
            transport.wait(Duration::from_millis(10))?;
        }
    }
    Ok((answered, start.elapsed()))
}

fn main() -> Result<(), Box<dyn Error>> {
    let bytes = number("MEMLIFT_MIB", 1024) << 20;
    let workspaces = std::env::var("MEMLIFT_WORKSPACES").ok().and_then(|text| text.parse().ok());
    let options = NodeOptions { bytes: bytes + (8 << 20), workspaces, ..NodeOptions::default() };
    let (server, _) = Node::open(options)?;
    let queries = fill(&server, bytes)?;
    let program = find()?;
    server.register(0, program.clone())?;
    println!("{} MiB, {:?} pages, {} workspaces", bytes >> 20, server.memory().huge(), server.workspaces());
    let only = std::env::var("MEMLIFT_OVER").ok();
    for kind in ["shm", "udp"].into_iter().filter(|kind| only.as_deref().is_none_or(|only| only == *kind)) {
        let name = format!("rate-{}", std::process::id());
        let (listen, mut client, to): (Box<dyn Transport>, Box<dyn Transport>, Peer) = if kind == "shm" {
            let listen = Shm::listen(&name)?;
            (Box::new(listen), Box::new(Udp::bind("127.0.0.1:0".parse()?, false)?), Peer::Ring(0))
        } else {
            let listen = Udp::bind("127.0.0.1:0".parse()?, false)?;
            let to = Peer::Socket(listen.address());
            (Box::new(listen), Box::new(Udp::bind("127.0.0.1:0".parse()?, false)?), to)
        };
        let stop = Arc::new(AtomicBool::new(false));
        let (mut shard, flag) = (server.shard(listen, Box::new(Alone)), stop.clone());
        let serve = move || shard.serve(&flag);
        let thread = std::thread::Builder::new().name("shard".to_owned()).spawn(serve)?;
        if kind == "shm" {
            client = Box::new(Shm::connect(&name)?);
        }
        for out in [1, 64, 128] {
            let before = server.stats().read().get(Counter::Hops);
            let (walks, time) = drive(client.as_mut(), to, &program, &queries, out)?;
            let hops = server.stats().read().get(Counter::Hops) - before;
            let seconds = time.as_secs_f64();
            println!(
                "{kind} with {out} out: {:.0} walks/s, {:.1} ns per hop; mean {:.2} us per walk",
                walks as f64 / seconds,
                seconds * 1e9 / hops as f64,
                seconds * 1e6 * out as f64 / walks as f64,
            );
        }
        stop.store(true, Ordering::Relaxed);
        thread.join().map_err(|_| "the shard panicked")??;
    }
    Ok(())
}
