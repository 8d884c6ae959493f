// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of sessions that do nothing: it goes back without a call, and comes again with one.
//!
//! - **Method** the real clock for the janitor's thread; ticks by hand where only the order counts

use super::{pattern, server, unique};
use memlift_ipc::{Client, ClientOptions, ServerOptions, Watch};
use rustix::event::{PollFd, PollFlags, poll};
use std::time::{Duration, Instant};

const START: u64 = 64 << 10;

fn pools(client: &Client) -> (u64, u64) {
    let stats = client.stats();
    (stats.request_pool_bytes, stats.response_pool_bytes)
}

#[test]
fn an_idle_session_gives_its_memory_back() {
    let name = unique("idle");
    let _server = server(&name, ServerOptions::default());
    let client = Client::connect(&name, ClientOptions::default()).unwrap();
    assert_eq!(pools(&client), (START, START), "an open session");
    let data = pattern(30 << 20);
    for _ in 0..2 {
        assert!(client.call("echo", data.as_slice(), None).unwrap().to_vec() == data);
        assert!(pools(&client) >= (30 << 20, 30 << 20));
        let end = Instant::now() + Duration::from_secs(60);
        while pools(&client) != (START, START) {
            assert!(Instant::now() < end, "{:?}", pools(&client));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert_eq!(client.call("echo", b"x".as_slice(), None).unwrap().to_vec(), b"x");
}

#[test]
fn what_is_in_use_stays_and_what_is_not_goes() {
    let name = unique("parts");
    let _server = server(&name, ServerOptions::default());
    let client = Client::connect(&name, ClientOptions::default()).unwrap();
    let data = pattern(2 << 20);
    let answer = client.call("echo", data.as_slice(), None).unwrap();
    let mut loan = client.loan(3 << 20).unwrap();
    loan.write_at(0, &pattern(3 << 20));
    client.idle_for_a_while();
    let (requests, responses) = pools(&client);
    assert!((3 << 20..5 << 20).contains(&requests), "{requests}: the loan's segment, not the request's");
    assert!(responses >= 2 << 20, "{responses}: the answer is viewed");
    assert!(answer.to_vec() == data);
    assert!(client.call("echo", &loan, None).unwrap().to_vec() == pattern(3 << 20));
    drop((answer, loan));
    client.idle_for_a_while();
    assert_eq!(pools(&client), (START, START));
    // Numbers of segments do not come back; more of them than may be there at once come and go.
    for _ in 0..100 {
        assert_eq!(client.call("length", &data[..300_000], None).unwrap().to_vec(), b"300000");
        client.idle_for_a_while();
        assert_eq!(pools(&client), (START, START));
    }
}

#[test]
fn a_closed_session_has_no_pools_and_its_answers_live_on() {
    let name = unique("closed");
    let _server = server(&name, ServerOptions::default());
    let client = Client::connect(&name, ClientOptions::default()).unwrap();
    let data = pattern(2 << 20);
    let answer = client.call("echo", data.as_slice(), None).unwrap();
    let mut loan = client.loan(1 << 20).unwrap();
    client.close();
    assert_eq!(pools(&client), (0, 0));
    assert!(answer.to_vec() == data);
    loan.write_at(0, &data[..1 << 20]);
    drop((answer, loan));
    assert_eq!(client.stats().request_used_bytes, 0);
}

/// Ticks until the session's pools are small again, or for a minute.
fn tick_until_small(client: &Client, small: (u64, u64)) {
    let end = Instant::now() + Duration::from_secs(60);
    while pools(client) != small {
        assert!(Instant::now() < end, "{:?}, {} calls unanswered", pools(client), client.stats().outstanding);
        client.idle_for_a_while();
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_abandoned_call_keeps_no_memory() {
    let name = unique("abandoned");
    let _server = server(&name, ServerOptions::default());
    let client = Client::connect(&name, ClientOptions::default()).unwrap();
    let data = pattern(2 << 20);
    drop(client.call_async("echo", data.as_slice(), None).unwrap());
    assert!(pools(&client).0 >= 2 << 20);
    tick_until_small(&client, (START, START));
    assert_eq!(client.stats().outstanding, 0);
    assert_eq!(client.call("echo", data.as_slice(), None).unwrap().to_vec(), data);
}

#[test]
fn an_answer_that_is_asked_for_later_keeps_no_memory_of_its_request() {
    let name = unique("later");
    let _server = server(&name, ServerOptions::default());
    let client = Client::connect(&name, ClientOptions::default()).unwrap();
    let data = pattern(2 << 20);
    let mut job = client.call_async("length", data.as_slice(), None).unwrap();
    tick_until_small(&client, (START, START));
    assert_eq!(job.wait(None).unwrap().to_vec(), b"2097152");
}

#[test]
fn a_session_that_a_loop_watches_gives_back_in_its_turns() {
    let name = unique("watched");
    let _server = server(&name, ServerOptions::default());
    let client = Client::connect(&name, ClientOptions::default()).unwrap();
    let watch = Watch::new(client.clone()).unwrap();
    let data = pattern(2 << 20);
    let outgoing = memlift_ipc::Outgoing::from(data.as_slice());
    watch.submit("echo", &outgoing, None).unwrap().unwrap();
    let mut answered = 0;
    let end = Instant::now() + Duration::from_secs(60);
    while answered == 0 || pools(&client) != (START, START) {
        assert!(Instant::now() < end, "{:?}", pools(&client));
        let mut readable = [PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN)];
        let soon = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        poll(&mut readable, Some(&soon)).unwrap();
        answered += watch.turn(true).unwrap().len();
    }
}

/// A segment that the server has not heard of yet, since its announcement lies in the socket or waits for room there, is not retired
/// under it: that would look like a fault of the client and end the session.
#[test]
fn memory_that_the_server_has_not_seen_yet_is_not_taken_from_it() {
    let name = unique("unseen");
    let _server = server(&name, ServerOptions { handlers: 1, ..ServerOptions::default() });
    let data = pattern(40_000);
    let outgoing = memlift_ipc::Outgoing::from(data.as_slice());
    for _ in 0..3 {
        let client = Client::connect(&name, ClientOptions::default()).unwrap();
        let watch = Watch::new(client.clone()).unwrap();
        let (mut sent, mut answered) = (0, 0);
        while answered < 20 {
            while sent < 20 && watch.submit("echo", &outgoing, None).unwrap().is_some() {
                sent += 1;
            }
            client.idle_for_a_while();
            for (_, answer) in watch.turn(true).unwrap() {
                assert!(answer.unwrap().to_vec() == data);
                answered += 1;
            }
        }
    }
}

/// Replies that wait for room ask for it one after the other: each segment may take several of them.
#[test]
fn a_burst_of_replies_makes_room_once_and_not_for_each() {
    let name = unique("burst");
    let _server = server(&name, ServerOptions::default());
    let client = Client::connect(&name, ClientOptions::default()).unwrap();
    let watch = Watch::new(client.clone()).unwrap();
    let data = pattern(5000);
    let outgoing = memlift_ipc::Outgoing::from(data.as_slice());
    let (mut sent, mut answers) = (0, Vec::new());
    while answers.len() < 400 {
        while sent < 400 && watch.submit("echo", &outgoing, None).unwrap().is_some() {
            sent += 1;
        }
        // The answers stay viewed: no slot comes back.
        answers.extend(watch.turn(true).unwrap().into_iter().map(|(_, answer)| answer.unwrap()));
    }
    assert!(answers.iter().all(|answer| answer.to_vec() == data));
    let (_, responses) = pools(&client);
    assert!(responses < 8 << 20, "{responses} bytes for 400 answers of 5000");
}
