// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client hears a hostile server: its welcome, its answers, the words and entries of the control page.
//!
//! - **Order** whatever it says, no call panics, hangs beyond the hang-up, or gives bytes from outside the pool
//! - **Layout** welcome, then steps: what u8 and what belongs to it (`ipc_peer`)

use crate::Input;
use crate::ipc_peer::{self as peer, Pen, SEGMENT_BYTES};
use memlift_ground::region::{Access, Region};
use memlift_ipc::layout::{CONTROL_BYTES, REQUEST_TAIL_AT, RESPONSE_RING_AT, RESPONSE_TAIL_AT};
use memlift_ipc::message::{FLAG_PACKED, FLAG_RETAINED, Kind, Message, Shape};
use memlift_ipc::{Client, ClientOptions, Error, Payload};
use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The limit of a pool and of a message.
const MOST_BYTES: u64 = 1 << 20;
/// Far longer than any case takes: who waits for it has missed the hang-up.
const LONG: Duration = Duration::from_secs(30);

/// Panics when something is wrong.
pub fn run(data: &[u8]) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("fuzz-server-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let (listener, address) = peer::socket(&name);
    rustix::net::bind(&listener, &address).expect("a name of our own");
    rustix::net::listen(&listener, 1).expect("a socket that is bound");
    std::thread::scope(|scope| {
        let client = scope.spawn(|| use_it(&name));
        let socket = rustix::net::accept(&listener).expect("the client connects");
        drop(listener); // a client whose server hangs up before its welcome asks again
        talk(socket, &mut Input::new(data));
        client.join().expect("nothing that a server says makes a client panic");
    });
}

/// Calls in every mode until the session ends.
fn use_it(name: &str) {
    let options = ClientOptions {
        request_pool_bytes: SEGMENT_BYTES,
        response_pool_bytes: SEGMENT_BYTES,
        pool_bytes_max: MOST_BYTES,
        message_bytes_max: MOST_BYTES,
        timeout: Some(LONG),
        ..ClientOptions::default()
    };
    let client = match Client::connect(name, options) {
        Ok(client) => client,
        Err(error) => return judge(&error),
    };
    let look = |answer: Result<Payload, Error>| match answer {
        Ok(answer) => {
            // The pool itself may be gone: a session that ended gives it back, and its views live on.
            assert!(answer.bytes() <= MOST_BYTES, "{} bytes", answer.bytes());
            assert_eq!(answer.to_vec().len() as u64, answer.bytes());
        }
        Err(error) => judge(&error),
    };
    let jobs: Vec<_> =
        (1..4).map(|size| client.call_async("echo", vec![1; size * 50].as_slice(), None)).collect();
    for job in jobs {
        look(job.and_then(|mut job| job.wait(None)));
    }
    let mut pipeline = client.pipeline(2);
    for size in 1..4 {
        if let Err(error) = pipeline.submit("echo", vec![2; size * 50].as_slice(), None) {
            judge(&error);
        }
    }
    loop {
        match pipeline.next(None) {
            Ok(Some((_, answer))) => look(answer),
            Ok(None) => break,
            Err(error) => break judge(&error),
        }
    }
    look(client.call("echo", b"last".as_slice(), None));
}

fn judge(error: &Error) {
    assert!(!matches!(error, Error::DeadlineExceeded { .. }), "the hang-up was missed: {error}");
}

fn talk(socket: OwnedFd, input: &mut Input<'_>) {
    let descriptors = peer::receive(&socket);
    let Ok([control, _server_event, client_event, _request, _response]) =
        <[OwnedFd; 5]>::try_from(descriptors)
    else {
        panic!("a client greets with five descriptors");
    };
    let control =
        Region::from_fd(control, Access::ReadWrite, CONTROL_BYTES).expect("a sealed control segment");
    // Longest message, unanswered calls and pid, reason.
    let mut welcome = peer::packet(&[1 << 20, 8, 0]);
    welcome.resize(192, 0);
    peer::send(&socket, &peer::spoilt(welcome, input), &[]);

    let mut pen = Pen { control: &control, tail_at: RESPONSE_TAIL_AT, entries_at: RESPONSE_RING_AT, tail: 0 };
    let mut job = 0;
    while !input.is_empty() {
        match input.byte() % 8 {
            0 => pen.word(input),
            1..4 => {
                job += 1;
                let mut reply = Message::new(Kind::Reply, job);
                reply.flags = input.byte() & (FLAG_RETAINED | FLAG_PACKED);
                reply.shape[0] = u64::from(input.byte()) << (input.byte() % 24);
                reply.describe(&Shape::Bytes, 0, 512 * (job % 8), 50 * job);
                pen.message(&reply, input);
            }
            4 => {
                let mut message = Message::new(
                    input.pick(&[Kind::Release, Kind::NeedRoom, Kind::Failure, Kind::Retired]),
                    job.max(1),
                );
                message.bytes = u64::from(input.byte()) << (input.byte() % 24);
                message.status = u16::from(input.byte() % 8);
                pen.message(&message, input);
            }
            5 => peer::send(&socket, input.piece(64), &[]),
            6 => peer::ring(&client_event),
            _ => {
                // Time for the client to call; it may have nothing to say.
                let tail = control.layout::<AtomicU32>(memlift_ground::region::RegionOffset(REQUEST_TAIL_AT));
                let tail = tail.expect("inside the control segment");
                let (seen, until) =
                    (tail.load(Ordering::Acquire), Instant::now() + Duration::from_micros(300));
                while tail.load(Ordering::Acquire) == seen && Instant::now() < until {
                    std::thread::yield_now();
                }
            }
        }
        peer::ring(&client_event);
    }
}

/// A silent server, one that answers, one that keeps and wants room, and one with other words in the page.
pub fn seeds() -> Vec<Vec<u8>> {
    let reply = [1, 0, 0, 0];
    let answers = [&[7, 7][..], &reply, &reply, &reply, &[7], &reply, &reply, &reply, &[7], &reply].concat();
    let kept = [&[7, 7][..], &[1, 1, 0, 0], &reply, &[4, 0, 0, 0, 0, 0, 0], &reply, &[7]].concat();
    let room = [&[7, 7][..], &[4, 1, 200, 12, 0, 0, 0], &[7], &reply, &[4, 2, 9, 0, 1, 0, 0]].concat();
    let page =
        [&[7, 7][..], &reply, &[0, 192, 0, 9, 9, 0, 0], &[7], &reply, &[0, 0, 1, 77, 0, 0, 0], &[7]].concat();
    vec![vec![7], answers, kept, room, page, vec![0, 0, 12, 1], vec![1, 40, 0, 1, 2, 3]]
}
