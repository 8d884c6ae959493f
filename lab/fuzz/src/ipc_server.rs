// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server hears a hostile client: its greeting, its segments, the words and entries of the control page.
//!
//! - **Order** whatever it says, no thread of the server panics, its session ends with it, and another client's calls go on
//! - **Layout** greeting, descriptors, then steps: what u8 and what belongs to it (`ipc_peer`)

use crate::Input;
use crate::ipc_peer::{self as peer, Pen, SEGMENT_BYTES};
use memlift_ground::region::{Region, RegionOffset};
use memlift_ipc::layout::{CONTROL_BYTES, MAGIC, OLDEST, REQUEST_RING_AT, REQUEST_TAIL_AT, RING_ENTRIES};
use memlift_ipc::message::{Kind, Message, Shape, operation_hash};
use memlift_ipc::{Client, ClientOptions, Reply, Server, ServerOptions, Trust};
use rustix::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Panics of threads that serve: each takes its thread down and would else go unseen.
static PANICS: AtomicU64 = AtomicU64::new(0);

struct Scene {
    name: String,
    server: Server,
    bystander: Client,
}

fn scene() -> &'static [Scene; 2] {
    static SCENE: OnceLock<[Scene; 2]> = OnceLock::new();
    SCENE.get_or_init(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let thread = std::thread::current();
            if thread.name().is_some_and(|name| name.starts_with("memlift-serve")) {
                PANICS.fetch_add(1, Ordering::Relaxed);
            }
            hook(info);
        }));
        [Trust::View, Trust::Copy].map(|trust| open(trust).expect("a server and its client"))
    })
}

fn open(trust: Trust) -> Result<Scene, memlift_ipc::Error> {
    let name = format!("fuzz-{}-{trust:?}", std::process::id());
    let options = ServerOptions {
        trust,
        pool_bytes_max: 1 << 20,
        message_bytes_max: 1 << 20,
        ..ServerOptions::default()
    };
    let server = Server::bind(&name, options)?;
    server.register("echo", |request| Ok(Reply::bytes(request.to_vec())))?;
    server.start()?;
    let small =
        ClientOptions { request_pool_bytes: 4096, response_pool_bytes: 4096, ..ClientOptions::default() };
    let bystander = Client::connect(&name, small)?;
    Ok(Scene { name, server, bystander })
}

/// A call as a good client makes it.
fn call(job: u64) -> Message {
    let mut message = Message::new(Kind::Call, job);
    message.operation = operation_hash("echo");
    message.describe(&Shape::Bytes, 0, 256 * (job % 8), 40 + job);
    message
}

/// Panics when something is wrong.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let scene = &scene()[usize::from(input.byte()) % 2];
    talk(scene, &mut input);
    let answer = scene.bystander.call("echo", b"still here".as_slice(), None).expect("others are served");
    assert_eq!(answer.to_vec(), b"still here");
    while scene.server.stats().sessions > 1 {
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
    assert_eq!(PANICS.load(Ordering::Relaxed), 0, "a thread of the server panicked");
}

fn talk(scene: &Scene, input: &mut Input<'_>) {
    let (socket, address) = peer::socket(&scene.name);
    rustix::net::connect(&socket, &address).expect("the server listens");
    let control = peer::memory(CONTROL_BYTES);
    let mut header = MAGIC.to_le_bytes().to_vec();
    header.extend([OLDEST.to_le_bytes(), RING_ENTRIES.to_le_bytes()].concat());
    control.whole().window(0, 16).and_then(|window| window.write_from(&header)).expect("inside");
    let (request, response) = (peer::memory(SEGMENT_BYTES), peer::memory(SEGMENT_BYTES));
    let events = [peer::event(), peer::event()];
    let shrinkable = peer::unsealed(SEGMENT_BYTES);
    let fd =
        |region: &'_ Region| region.as_fd().expect("a memfd").try_clone_to_owned().expect("a descriptor");
    let memory = [fd(&control), fd(&request), fd(&response)];
    let mut descriptors = [
        memory[0].as_fd(),
        events[0].as_fd(),
        events[1].as_fd(),
        memory[1].as_fd(),
        memory[2].as_fd(),
        shrinkable.as_fd(),
    ];
    let odd = input.byte();
    if odd % 16 == 1 {
        descriptors.swap(usize::from(odd >> 4) % 6, 5);
    }
    let count = if odd % 16 == 2 { usize::from(odd >> 4) % 7 } else { 5 };
    let hello = peer::spoilt(peer::packet(&[CONTROL_BYTES, SEGMENT_BYTES, SEGMENT_BYTES]), input);
    peer::send(&socket, &hello, &descriptors[..count]);

    let mut pen = Pen { control: &control, tail_at: REQUEST_TAIL_AT, entries_at: REQUEST_RING_AT, tail: 0 };
    let mut job = 0;
    while !input.is_empty() {
        match input.byte() % 8 {
            0 => pen.word(input),
            1..4 => {
                job += 1;
                pen.message(&call(job), input);
                peer::ring(&events[0]);
            }
            4 => {
                // Answers come in order of their slots: a release of one that may be lent.
                let odd = input.byte();
                let mut release = Message::new(Kind::Release, job);
                release.offset = 256 * u64::from(odd % 4);
                // Or: let go of a segment, of either direction, that may be in use or not be there.
                let mut retire = Message::new(Kind::Retire, 0);
                retire.status = u16::from(odd >> 4 & 1);
                retire.segment = u32::from(odd % 4);
                pen.message(if odd & 32 == 0 { &release } else { &retire }, input);
            }
            5 => {
                let segment = peer::memory(SEGMENT_BYTES);
                let direction = u64::from(input.byte() % 2);
                let mut packet = MAGIC.to_le_bytes().to_vec();
                packet.extend((direction | 1 << 32).to_le_bytes());
                packet.extend(SEGMENT_BYTES.to_le_bytes());
                let packet = peer::spoilt(packet, input);
                match input.byte() % 4 {
                    0 => peer::send(&socket, &packet, &[]),
                    1 => peer::send(&socket, &packet, &[shrinkable.as_fd()]),
                    _ => peer::send(&socket, &packet, &[segment.as_fd().expect("a memfd")]),
                }
            }
            6 => {
                let offset = input.word() as u64 % (SEGMENT_BYTES - 64);
                let bytes = input.take(64);
                let window = request.window(RegionOffset(offset), bytes.len() as u64);
                window.and_then(|window| window.write_from(bytes)).expect("inside the segment");
            }
            _ => {
                // Time for the server to look.
                peer::ring(&events[0]);
                let _ = scene.bystander.call("echo", b"a turn".as_slice(), None);
            }
        }
    }
    peer::ring(&events[0]);
}

/// A silent client, one that calls, one that grows and releases, and one that greets badly.
pub fn seeds() -> Vec<Vec<u8>> {
    let good = [0, 0, 7];
    let call = [1, 0, 0];
    let calls = [&good[..], &call, &call, &[7], &call, &[7], &[4, 0, 0, 0], &[7]].concat();
    let mut grown = [&good[..], &[5, 0, 7, 7], &[5, 1, 7, 7], &call, &[7]].concat();
    // A second request segment is named by the entry's byte 24.
    grown.extend([1, 1, 24, 1, 0, 7]);
    let page = [&good[..], &call, &[0, 64, 1, 9, 0, 0, 0], &[7], &[0, 128, 0, 1, 2, 0, 0], &[7]].concat();
    let written = [&good[..], &[6, 10, 0], &[3; 64], &call, &[7]].concat();
    let copied = [&[1][..], &calls[1..]].concat();
    vec![
        good.to_vec(),
        calls,
        grown,
        page,
        written,
        copied,
        vec![0, 0x12, 7],
        vec![0, 0x31, 7],
        vec![0, 0, 0, 1, 9, 3],
    ]
}
