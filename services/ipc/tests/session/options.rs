// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options of a call: each gives the same answers in every mode; what they promise beside that is seen or counted.
//!
//! - **Goal** device, cache policy, batch, CRC and packing change how bytes travel and nothing else; a job can be asked about
//! - **Method** real sockets and memory; a handler that waits until it is told to go on stands for a slow one

use super::{pair, pattern, server, small, unique};
use memlift_ipc::client::JobState;
use memlift_ipc::{
    Batch, CachePolicy, CallOptions, Client, ClientOptions, Device, ElementType, Error, Mode, Outgoing,
    RemoteFailure, Reply, Server, ServerOptions, Tensor,
};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};

const OPEN: [(Device, CachePolicy); 6] = [
    (Device::Auto, CachePolicy::Auto),
    (Device::Auto, CachePolicy::On),
    (Device::Inline, CachePolicy::Auto),
    (Device::Inline, CachePolicy::Off),
    (Device::Worker, CachePolicy::On),
    (Device::Worker, CachePolicy::Off),
];

fn all_options() -> impl Iterator<Item = CallOptions> {
    let with = |(device, cache)| {
        [(false, false), (true, false), (false, true), (true, true)].map(|(crc, pack)| CallOptions {
            device,
            cache,
            crc,
            pack,
            ..CallOptions::default()
        })
    };
    OPEN.into_iter().flat_map(with)
}

#[test]
fn every_option_gives_the_same_answer_in_every_mode() {
    let (_server, client) = pair("options");
    for options in all_options() {
        let mut pipeline = client.pipeline(4);
        for bytes in [0, 1, 5_000, 700_000, 5 << 20] {
            let data = pattern(bytes);
            assert_eq!(client.call("echo", data.as_slice(), options).unwrap().to_vec(), data, "{options:?}");
            let mut job = client.call_async("echo", data.as_slice(), options).unwrap();
            assert_eq!(job.wait(None).unwrap().to_vec(), data, "{options:?}");
            let id = pipeline.submit("echo", data.as_slice(), options).unwrap();
            let (answered, answer) = pipeline.next(None).unwrap().unwrap();
            assert_eq!((answered, answer.unwrap().to_vec()), (id, data), "{options:?}");
        }
        // Rows with gaps are gathered, and a checked gathering is checked, too.
        let rows = pattern(4 * 300 * 8);
        let tensor = Tensor::new(ElementType::U8, &[300, 4]).unwrap();
        let shape = memlift_ipc::message::Shape::Tensor(tensor);
        #[expect(unsafe_code, reason = "the one way to describe rows with gaps")]
        // SAFETY: 300 rows of 4 bytes, 32 bytes apart, lie within the 9,600 bytes.
        let gapped = unsafe { Outgoing::from_raw(shape, rows.as_ptr(), 0, Some(vec![32, 1])) };
        let expected: Vec<u8> = rows.chunks(32).flat_map(|row| row[..4].to_vec()).collect();
        assert_eq!(client.call("echo", gapped, options).unwrap().to_vec(), expected);
    }
}

#[test]
fn packed_payloads_need_room_for_what_they_become() {
    let name = unique("packed");
    let _server = server(&name, ServerOptions::default());
    let client = Client::connect(&name, ClientOptions { pool_bytes_max: 3 << 20, ..small() }).unwrap();
    let data: Vec<u8> = (0..6 << 20).map(|i| (i / 100) as u8).collect();
    let plain = client.call("echo", data.as_slice(), None).unwrap_err();
    assert!(matches!(plain, Error::PoolFull { .. }), "{plain}");
    for crc in [false, true] {
        let options = CallOptions { pack: true, crc, ..CallOptions::default() };
        let answer = client.call("echo", data.as_slice(), options).unwrap();
        assert!(answer.to_vec() == data);
        // It is this process's own: the slot is free while it lives.
        client.call("echo", b"x".as_slice(), None).unwrap();
        let stats = client.stats();
        assert_eq!((stats.request_used_bytes, answer.bytes()), (0, data.len() as u64));
    }
}

#[test]
fn a_device_that_is_not_there_is_named_with_what_to_take() {
    if Device::Dsa.check().is_ok() {
        return;
    }
    let (_server, client) = pair("dsa");
    let options = CallOptions { device: Device::Dsa, ..CallOptions::default() };
    let error = client.call("echo", b"x".as_slice(), options).unwrap_err();
    assert!(matches!(error, Error::DeviceUnavailable { device: "dsa", .. }), "{error}");
    assert!(error.to_string().contains("take 'auto', 'inline' or 'worker'"), "{error}");
    assert_eq!(client.call("echo", b"x".as_slice(), None).unwrap().to_vec(), b"x");
    assert_eq!(client.stats().request_used_bytes, 0);
}

/// A server with one handler and an operation that ends when it is told to.
fn held(name: &str) -> (Server, Client, mpsc::Sender<()>, mpsc::Receiver<()>) {
    let name = unique(name);
    let server = server(&name, ServerOptions { handlers: 1, ..ServerOptions::default() });
    let (go_on, told) = mpsc::channel();
    let (say, begun) = mpsc::channel();
    let (told, say) = (Mutex::new(told), Mutex::new(say));
    server
        .register("hold", move |request| {
            request.progress().report(3, 10);
            say.lock().unwrap().send(()).unwrap();
            told.lock().unwrap().recv().unwrap();
            Ok(Reply::none())
        })
        .unwrap();
    let client = Client::connect(&name, small()).unwrap();
    (server, client, go_on, begun)
}

#[test]
fn a_request_that_changed_on_the_way_does_not_reach_its_handler() {
    let (server, client, go_on, begun) = held("crc");
    let seen = Arc::new(Mutex::new(0));
    let count = Arc::clone(&seen);
    server
        .register("count", move |_| {
            *count.lock().unwrap() += 1;
            Ok(Reply::none())
        })
        .unwrap();
    let options = CallOptions { crc: true, ..CallOptions::default() };
    let mut holding = client.call_async("hold", Outgoing::none(), None).unwrap();
    begun.recv().unwrap();
    let mut loan = client.loan(10_000).unwrap();
    loan.write_at(0, &pattern(10_000));
    let mut good = client.call_async("count", &loan, options).unwrap();
    let mut other = client.loan(10_000).unwrap();
    other.write_at(0, &pattern(10_000));
    let mut bad = client.call_async("count", &other, options).unwrap();
    // Both wait for the handler.
    other.write_at(5_000, b"!");
    go_on.send(()).unwrap();
    holding.wait(None).unwrap();
    good.wait(None).unwrap();
    let error = bad.wait(None).unwrap_err();
    assert!(
        matches!(&error, Error::Remote(RemoteFailure::Corrupted { operation, .. }) if operation == "count"),
        "{error}"
    );
    assert!(error.to_string().contains("did not arrive as it was sent: CRC-32C 0x"), "{error}");
    assert_eq!(*seen.lock().unwrap(), 1);
    client.call("count", &other, options).unwrap();
}

#[test]
fn a_job_can_be_asked_about() {
    let (_server, client, go_on, begun) = held("state");
    let watching = Client::connect(&client.address().to_string(), small()).unwrap();
    let mut first = client.call_async("hold", Outgoing::none(), None).unwrap();
    begun.recv().unwrap();
    let mut waiting: Vec<_> =
        (0..3).map(|_| client.call_async("hold", Outgoing::none(), None).unwrap()).collect();
    assert_eq!(first.state(None).unwrap(), JobState::Taken { done: 3, total: 10 });
    for (ahead, job) in waiting.iter().enumerate() {
        assert_eq!(job.state(None).unwrap(), JobState::Queued { ahead: ahead as u64 });
    }
    // Another client sees how busy the server is without a word to it.
    let load = watching.load();
    assert_eq!((load.handlers, load.busy_handlers, load.queued, load.sessions), (1, 1, 3, 2));
    (0..4).for_each(|_| go_on.send(()).unwrap());
    first.wait(None).unwrap();
    for job in &mut waiting {
        assert!(job.wait(None).unwrap().bytes() == 0);
        assert_eq!(job.state(None).unwrap(), JobState::Answered);
    }
    assert_eq!(watching.load().queued, 0);
}

#[test]
fn a_batch_that_is_not_full_is_sent_before_anybody_waits() {
    let (_server, client) = pair("batch");
    for batch in [Batch::Auto, Batch::Of(0), Batch::Of(3), Batch::Of(1000)] {
        let mut pipeline = client.pipeline(8).with_batch(batch);
        let mut got = Vec::new();
        for round in 0..100u32 {
            pipeline.submit("echo", round.to_le_bytes().as_slice(), None).unwrap();
            if round % 7 == 6 {
                got.push(pipeline.next(None).unwrap().unwrap());
            }
        }
        pipeline.flush();
        while let Some(answer) = pipeline.next(None).unwrap() {
            got.push(answer);
        }
        let mut numbers: Vec<u32> = got
            .into_iter()
            .map(|(_, answer)| u32::from_le_bytes(answer.unwrap().to_vec().try_into().unwrap()))
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..100).collect::<Vec<_>>(), "{batch:?}");
    }
}

#[test]
fn every_decision_says_why() {
    let (_server, client) = pair("explain");
    let gate = 512 << 10;
    let small = client.explain("echo", 64, Mode::Sync, None);
    assert!(small.reason.contains("nothing is decided") && small.decisions == 0, "{}", small.reason);
    let fixed = CallOptions { device: Device::Inline, cache: CachePolicy::Off, ..CallOptions::default() };
    let said = client.explain("echo", gate, Mode::Sync, fixed);
    assert_eq!(
        (said.device, said.cache, said.reason.as_str()),
        (Device::Inline, CachePolicy::Off, "the caller said so")
    );
    // Before anything is measured: on for a call, off in a pipeline.
    let inline = CallOptions { device: Device::Inline, ..CallOptions::default() };
    assert_eq!(client.explain("echo", gate, Mode::Sync, inline).cache, CachePolicy::On);
    assert_eq!(client.explain("echo", gate, Mode::Pipelined, inline).cache, CachePolicy::Off);
    let data = pattern(gate as usize);
    for _ in 0..40 {
        client.call("length", data.as_slice(), None).unwrap();
    }
    let said = client.explain("length", gate, Mode::Sync, None);
    assert_eq!(said.decisions, 40);
    assert!(said.explorations <= 2 && said.expected_ns.is_some());
    let measured: u32 = said.candidates.iter().map(|candidate| candidate.samples).sum();
    assert_eq!(measured, 40, "every call is learned from");
    assert!(said.candidates.len() >= 3 && !said.placement.reason.is_empty());
}

#[test]
fn what_was_posted_without_a_ring_is_answered_after_the_flush() {
    use rustix::event::{PollFd, PollFlags, poll};
    let (_server, client) = pair("post");
    let watch = memlift_ipc::Watch::new(client).unwrap();
    for calls in [1, 2, 15, 16, 17, 60, 3] {
        let mut answered = Vec::new();
        for call in 0..calls as u32 {
            let data = call.to_le_bytes();
            assert!(watch.post("echo", &Outgoing::from(data.as_slice()), None).unwrap().is_some());
            answered.extend(watch.turn(false).unwrap());
        }
        watch.flush();
        while answered.len() < calls {
            let mut readable = [PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN)];
            poll(&mut readable, None).unwrap();
            answered.extend(watch.turn(true).unwrap());
        }
        let mut numbers: Vec<Vec<u8>> =
            answered.into_iter().map(|(_, answer)| answer.unwrap().to_vec()).collect();
        numbers.sort_by_key(|bytes| u32::from_le_bytes(bytes.as_slice().try_into().unwrap()));
        assert_eq!(numbers, (0..calls as u32).map(|n| n.to_le_bytes().to_vec()).collect::<Vec<_>>());
    }
}
