// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Time limits: each call, in each mode, fails by its own, and says so.
//!
//! - **Method** a handler that does not end until it is told to

use super::{pair, small, unique};
use memlift_ipc::{
    Batch, CallOptions, Client, ClientOptions, Error, OnWait, Outgoing, Reply, Server, ServerOptions,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(60);

/// Handlers that end when this is dropped.
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Drop for Gate {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

fn held(name: &str) -> (Server, Client, Gate) {
    let name = unique(name);
    let server = super::server(&name, ServerOptions { handlers: 4, ..ServerOptions::default() });
    let gate = Gate(Arc::default());
    let opened = Arc::clone(&gate.0);
    let hold = move |_: &memlift_ipc::Request| {
        let mut open = opened.0.lock().unwrap();
        while !*open {
            open = opened.1.wait(open).unwrap();
        }
        Ok(Reply::none())
    };
    server.register("hold", hold).unwrap();
    let client = Client::connect(&name, ClientOptions { timeout: None, ..small() }).unwrap();
    (server, client, gate)
}

fn is_over(error: &Error, limit: Duration) -> bool {
    matches!(error, Error::DeadlineExceeded { limit: own } if *own == limit)
}

#[test]
fn a_jobs_own_limit_is_told_from_the_patience_of_whoever_waits() {
    let (_server, client, _gate) = held("own-limit");
    let mut job = client.call_async("hold", Outgoing::none(), Some(SHORT)).unwrap();
    // As long as the limit itself: what has passed first must not be told by its length.
    let end = loop {
        match job.wait_within(Some(SHORT)) {
            Ok(None) => assert!(!job.is_taken()),
            Ok(Some(_)) => panic!("nobody has opened the gate"),
            Err(error) => break error,
        }
    };
    assert!(is_over(&end, SHORT), "{end}");
    let mut job = client.call_async("hold", Outgoing::none(), None).unwrap();
    assert!(matches!(job.wait_within(Some(SHORT)), Ok(None)));
    assert!(is_over(&job.wait(Some(SHORT)).unwrap_err(), SHORT));
    assert!(!job.is_taken(), "it may be waited for again");
}

#[test]
fn a_pipelines_calls_fail_by_their_own_limits() {
    let (_server, client, gate) = held("pipeline-limit");
    let mut pipeline = client.pipeline(4).with_batch(Batch::Of(1));
    let short = pipeline.submit("hold", Outgoing::none(), Some(SHORT)).unwrap();
    let long = pipeline.submit("hold", Outgoing::none(), Some(LONG)).unwrap();
    let quick = pipeline.submit("echo", b"x".as_slice(), Some(LONG)).unwrap();
    let (id, answer) = pipeline.next(Some(LONG)).unwrap().unwrap();
    assert_eq!((id, answer.unwrap().to_vec()), (quick, b"x".to_vec()));
    let (id, answer) = pipeline.next(Some(LONG)).unwrap().unwrap();
    assert_eq!(id, short);
    assert!(is_over(&answer.unwrap_err(), SHORT));
    // That nothing came in time is not an answer of the call that is left.
    assert!(is_over(&pipeline.next(Some(SHORT)).unwrap_err(), SHORT));
    assert_eq!(pipeline.outstanding(), 1);
    drop(gate);
    let (id, answer) = pipeline.next(Some(LONG)).unwrap().unwrap();
    assert_eq!((id, answer.is_ok()), (long, true));
    assert!(pipeline.next(None).unwrap().is_none());
}

#[test]
fn a_call_that_has_used_up_its_time_makes_room_in_its_pipeline() {
    let (_server, client, _gate) = held("pipeline-room");
    let mut pipeline = client.pipeline(2);
    let expired: Vec<u64> =
        (0..2).map(|_| pipeline.submit("hold", Outgoing::none(), Some(SHORT)).unwrap()).collect();
    let last = pipeline.submit("echo", b"x".as_slice(), Some(LONG)).unwrap();
    let mut got = Vec::new();
    while let Some((id, answer)) = pipeline.next(Some(LONG)).unwrap() {
        assert_eq!(answer.is_ok(), id == last);
        got.push(id);
    }
    got.sort_unstable();
    assert_eq!(got, [expired, vec![last]].concat());
    // Without room in time, that is what the error says.
    let mut full = client.pipeline(1);
    full.submit("hold", Outgoing::none(), None).unwrap();
    let late = full.submit("echo", b"x".as_slice(), Some(SHORT)).unwrap_err();
    assert!(is_over(&late, SHORT), "{late}");
}

#[test]
fn a_call_that_finds_no_room_says_that_its_time_is_up() {
    let (_server, client, _gate) = held("no-room");
    let jobs: Vec<_> = (0..64).map(|_| client.call_async("hold", Outgoing::none(), None).unwrap()).collect();
    let late = client.call("echo", b"x".as_slice(), Some(SHORT)).unwrap_err();
    assert!(is_over(&late, SHORT), "{late}");
    let late = client.call_async("echo", b"x".as_slice(), Some(SHORT)).map(drop).unwrap_err();
    assert!(is_over(&late, SHORT), "{late}");
    drop(jobs);
}

#[test]
fn figures_can_be_had_while_somebody_waits() {
    let (_server, client, gate) = held("figures");
    let (say, said) = mpsc::channel();
    let waiting = {
        let client = client.clone();
        std::thread::spawn(move || {
            let mut job = client.call_async("hold", Outgoing::none(), None).unwrap();
            say.send(()).unwrap();
            job.wait(None).map(drop)
        })
    };
    said.recv().unwrap();
    std::thread::sleep(SHORT);
    // Would wait for the gate, which only this thread opens.
    assert_eq!(client.stats().outstanding, 1);
    drop(gate);
    waiting.join().unwrap().unwrap();
}

#[test]
fn an_opening_session_can_be_interrupted() {
    // A server that never takes its connections: the first one waits for a greeting, and others for room in its queue.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deaf.sock");
    let server = Server::bind(path.to_str().unwrap(), ServerOptions::default()).unwrap();
    for wait in [None, Some(LONG)] {
        let asked = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&asked);
        let on_wait = OnWait::new(move || count.fetch_add(1, Ordering::SeqCst) < 2);
        let options = ClientOptions { timeout: wait, on_wait: Some(on_wait), server_wait: wait, ..small() };
        let error = Client::connect(path.to_str().unwrap(), options).map(drop).unwrap_err();
        assert!(matches!(error, Error::Interrupted), "{error}");
        assert_eq!(asked.load(Ordering::SeqCst), 3);
    }
    drop(server);
}

#[test]
fn an_opening_session_has_a_limit_too() {
    // A server that never takes its connections.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deaf.sock");
    let server = Server::bind(path.to_str().unwrap(), ServerOptions::default()).unwrap();
    let start = Instant::now();
    let options = ClientOptions { timeout: Some(SHORT), ..small() };
    let error = Client::connect(path.to_str().unwrap(), options).map(drop).unwrap_err();
    assert!(is_over(&error, SHORT), "{error}");
    assert!(start.elapsed() < LONG);
    drop(server);
    let (_server, client) = pair("limit-ok");
    let options = CallOptions { timeout: Some(LONG), ..CallOptions::default() };
    assert_eq!(client.call("echo", b"x".as_slice(), options).unwrap().to_vec(), b"x");
}

/// Mapping and copying much takes longer than a short limit: neither goes on for a call that nobody waits for.
#[test]
fn a_call_gives_up_what_takes_too_long_to_send() {
    let name = unique("too-long");
    let server = super::server(&name, ServerOptions::default());
    let client = Client::connect(&name, ClientOptions::default()).unwrap();
    let data = vec![1; 100 << 20];
    let before = (client.stats().request_pool_bytes, server.stats().requests);
    let limit = Duration::from_millis(1);
    let late = client.call("length", data.as_slice(), Some(limit)).unwrap_err();
    assert!(is_over(&late, limit), "{late}");
    let stats = client.stats();
    assert_eq!(
        (stats.request_pool_bytes, stats.request_used_bytes),
        (before.0, 0),
        "the segment was given up"
    );
    // With the segment there, it is the copy that is given up.
    drop(client.loan(data.len() as u64).unwrap());
    let late = client.call("length", data.as_slice(), Some(limit)).unwrap_err();
    assert!(is_over(&late, limit), "{late}");
    assert_eq!(client.stats().request_used_bytes, 0);
    assert_eq!(server.stats().requests, before.1, "the server has heard of neither");
    assert_eq!(client.call("length", data.as_slice(), None).unwrap().to_vec(), b"104857600");
}

#[test]
fn never_more_calls_are_unanswered_than_may_be_whoever_makes_them() {
    const MAX: u32 = 2;
    let name = unique("credit");
    // The server ends a session with more.
    let options = ServerOptions { handlers: 8, outstanding_max: MAX, ..ServerOptions::default() };
    let server = super::server(&name, options);
    let (running, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&most);
    let count = move |_: &memlift_ipc::Request| {
        counted.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(1));
        running.fetch_sub(1, Ordering::SeqCst);
        Ok(Reply::none())
    };
    server.register("count", count).unwrap();
    let client = Client::connect(&name, ClientOptions { timeout: Some(LONG), ..small() }).unwrap();
    std::thread::scope(|scope| {
        for bytes in [0, 40, 5_000, 0, 40, 5_000] {
            let (client, data) = (&client, vec![7; bytes]);
            scope.spawn(move || {
                (0..40).for_each(|_| drop(client.call("count", data.as_slice(), None).unwrap()));
            });
        }
    });
    assert!((1..=MAX).contains(&most.load(Ordering::SeqCst)), "{most:?}");
    assert_eq!((client.stats().calls, client.stats().outstanding), (240, 0));
}

#[test]
fn a_limit_beyond_the_clock_is_none() {
    let longest = Some(Duration::MAX);
    let (_server, client) = pair("longest");
    assert_eq!(client.call("echo", b"x".as_slice(), longest).unwrap().to_vec(), b"x");
    let mut job = client.call_async("echo", b"x".as_slice(), longest).unwrap();
    assert_eq!(job.wait_within(longest).unwrap().unwrap().to_vec(), b"x");
    let mut pipeline = client.pipeline(2);
    pipeline.submit("echo", b"x".as_slice(), longest).unwrap();
    assert_eq!(pipeline.next(longest).unwrap().unwrap().1.unwrap().to_vec(), b"x");
    assert_eq!(client.loan_within(9, longest).unwrap().bytes(), 9);
}
