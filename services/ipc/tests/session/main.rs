// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The public API, client and server in one process: every mode, every kind of payload, every error.
//!
//! - **Goal** everything that a user of the crate relies on; tests that need a second process are in `tests/processes`
//! - **Method** real sockets and memory; sizes around the pools' limits

mod arrive;
mod drain;
mod futures;
mod idle;
mod limits;
mod options;
mod shared;

use memlift_ipc::{
    Client, ClientOptions, ElementType, Error, Outgoing, RemoteFailure, Reply, Server, ServerOptions, Tensor,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

fn unique(name: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{name}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn small() -> ClientOptions {
    ClientOptions { request_pool_bytes: 1 << 20, response_pool_bytes: 1 << 20, ..ClientOptions::default() }
}

fn server(name: &str, options: ServerOptions) -> Server {
    let server = Server::bind(name, options).unwrap();
    server.register("echo", echo).unwrap();
    server.register("length", |request| Ok(Reply::bytes(request.bytes().to_string()))).unwrap();
    server.register("fail", |_| Err("no luck today".into())).unwrap();
    server.register("panic", |_| panic!("on purpose")).unwrap();
    server
        .register("sleep", |request| {
            let text = String::from_utf8(request.to_vec()).map_err(|error| error.to_string())?;
            std::thread::sleep(Duration::from_millis(text.parse().map_err(|_| "not a number")?));
            Ok(Reply::bytes(text))
        })
        .unwrap();
    server
        .register("zeros", |request| {
            let text = String::from_utf8(request.to_vec()).map_err(|error| error.to_string())?;
            Ok(Reply::bytes(vec![7; text.parse().map_err(|_| "not a number")?]))
        })
        .unwrap();
    server.start().unwrap();
    server
}

fn echo(request: &memlift_ipc::Request) -> Result<Reply, String> {
    match request.as_tensor() {
        Some(tensor) => Reply::tensor(*tensor, request.to_vec()),
        None => Ok(Reply::bytes(request.to_vec())),
    }
}

fn pair(name: &str) -> (Server, Client) {
    let name = unique(name);
    let server = server(&name, ServerOptions::default());
    let client = Client::connect(&name, small()).unwrap();
    (server, client)
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn bytes_of_every_awkward_size_come_back() {
    let (_server, client) = pair("sizes");
    for bytes in [0, 1, 63, 64, 65, 255, 256, 257, 4095, 4096, 4097, 1 << 20, (1 << 20) + 1, 9_999_999] {
        let data = pattern(bytes);
        let answer = client.call("echo", data.as_slice(), None).unwrap();
        assert_eq!(answer.to_vec(), data, "{bytes}");
    }
}

#[test]
fn tensors_keep_type_and_shape() {
    let (_server, client) = pair("tensors");
    for shape in [&[][..], &[0], &[3, 0, 2], &[7], &[2, 3], &[2, 3, 4, 5, 1, 2, 1, 2]] {
        let tensor = Tensor::new(ElementType::F32, shape).unwrap();
        let data = pattern(tensor.bytes() as usize);
        let answer = client.call("echo", Outgoing::tensor(tensor, &data).unwrap(), None).unwrap();
        assert_eq!(answer.as_tensor(), Some(&tensor));
        assert_eq!(answer.to_vec(), data);
    }
}

#[test]
fn a_loan_is_sent_without_a_copy_and_can_be_sent_again() {
    let (_server, client) = pair("loan");
    let mut loan = client.loan(300_000).unwrap();
    let used = client.stats().request_used_bytes;
    for round in 0..3u8 {
        let data = vec![round; 300_000];
        loan.write_at(0, &data);
        assert_eq!(client.call("echo", &loan, None).unwrap().to_vec(), data);
        assert_eq!(client.stats().request_used_bytes, used, "a call of a loan takes no second slot");
    }
    drop(loan);
    assert_eq!(client.stats().request_used_bytes, 0);
}

#[test]
fn async_answers_can_be_taken_in_any_order() {
    let (_server, client) = pair("async");
    let mut jobs: Vec<_> =
        (0..20u32).map(|i| client.call_async("echo", i.to_le_bytes().as_slice(), None).unwrap()).collect();
    for (i, job) in jobs.iter_mut().enumerate().rev() {
        assert_eq!(job.wait(None).unwrap().to_vec(), (i as u32).to_le_bytes());
    }
}

#[test]
fn a_pipeline_gives_every_answer_once_and_not_in_order() {
    let (_server, client) = pair("pipeline");
    // Teach the server that this operation is long, so that it goes to handler threads.
    for _ in 0..2 {
        client.call("sleep", b"5".as_slice(), None).unwrap();
    }
    let mut pipeline = client.pipeline(2);
    let slow = pipeline.submit("sleep", b"200".as_slice(), None).unwrap();
    let mut expected = vec![(slow, b"200".to_vec())];
    for i in 1..6u32 {
        let text = i.to_string();
        expected.push((pipeline.submit("sleep", text.as_bytes(), None).unwrap(), text.into_bytes()));
    }
    let mut got = Vec::new();
    while let Some((id, answer)) = pipeline.next(None).unwrap() {
        got.push((id, answer.unwrap().to_vec()));
    }
    assert_ne!(got[0].0, slow, "the slow one came first");
    got.sort();
    assert_eq!(got, expected);
}

#[test]
fn the_pool_grows_for_a_large_message_and_for_a_large_reply() {
    let (_server, client) = pair("grow");
    let data = pattern(20 << 20);
    assert_eq!(client.call("echo", data.as_slice(), None).unwrap().to_vec(), data);
    assert_eq!(client.call("zeros", b"70000000".as_slice(), None).unwrap().to_vec(), vec![7; 70_000_000]);
    assert!(client.stats().response_pool_bytes >= 70_000_000);
}

#[test]
fn memory_comes_back_when_answers_are_dropped() {
    let (_server, client) = pair("leak");
    let mut after_warm_up = 0;
    for round in 0..400 {
        let data = vec![round as u8; 400_000];
        let answer = client.call("echo", data.as_slice(), None).unwrap();
        assert_eq!(answer.to_vec(), data);
        if round == 50 {
            after_warm_up = client.stats().request_pool_bytes + client.stats().response_pool_bytes;
        }
    }
    let stats = client.stats();
    assert_eq!(stats.request_used_bytes, 0);
    assert_eq!(stats.request_pool_bytes + stats.response_pool_bytes, after_warm_up);
}

#[test]
fn answers_stay_valid_after_client_and_server_are_gone() {
    let (server, client) = pair("outlive");
    let answer = client.call("echo", pattern(500_000).as_slice(), None).unwrap();
    client.close();
    drop(client);
    server.stop();
    drop(server);
    assert_eq!(answer.to_vec(), pattern(500_000));
}

#[test]
fn a_request_that_the_server_keeps_is_not_overwritten() {
    let name = unique("keep");
    let server = Server::bind(&name, ServerOptions::default()).unwrap();
    let kept = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let keep = std::sync::Arc::clone(&kept);
    server
        .register("keep", move |request| {
            keep.lock().unwrap().push(request.payload().clone());
            Ok(Reply::none())
        })
        .unwrap();
    let forget = std::sync::Arc::clone(&kept);
    server
        .register("forget", move |_| {
            forget.lock().unwrap().clear();
            Ok(Reply::none())
        })
        .unwrap();
    server.start().unwrap();
    let client = Client::connect(&name, small()).unwrap();
    for i in 0..5u8 {
        client.call("keep", vec![i; 150_000].as_slice(), None).unwrap();
    }
    assert_eq!(client.stats().request_used_bytes, 750_000);
    for (i, payload) in kept.lock().unwrap().iter().enumerate() {
        assert_eq!(payload.to_vec(), vec![i as u8; 150_000]);
    }
    client.call("forget", Outgoing::none(), None).unwrap();
    // The releases come before or after the reply; the next answer is behind them.
    client.call("forget", Outgoing::none(), None).unwrap();
    assert_eq!(client.stats().request_used_bytes, 0);
}

#[test]
fn many_clients_at_once() {
    let name = unique("many");
    let server = server(&name, ServerOptions::default());
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            let name = &name;
            scope.spawn(move || {
                let client = Client::connect(name, small()).unwrap();
                for round in 0..200usize {
                    let data = vec![thread ^ round as u8; 1 + round * 37];
                    assert_eq!(client.call("echo", data.as_slice(), None).unwrap().to_vec(), data);
                }
            });
        }
    });
    assert_eq!(server.stats().faults, 0);
    assert_eq!(server.stats().requests, 1600);
}

#[test]
fn many_threads_share_one_client() {
    let (_server, client) = pair("threads");
    std::thread::scope(|scope| {
        for thread in 0..6u8 {
            let client = client.clone();
            scope.spawn(move || {
                for round in 0..200usize {
                    let data = vec![thread ^ round as u8; 1 + round * 11];
                    assert_eq!(client.call("echo", data.as_slice(), None).unwrap().to_vec(), data);
                }
            });
        }
    });
}

#[test]
fn failures_say_what_happened() {
    let (_server, client) = pair("failures");
    let failed = client.call("fail", Outgoing::none(), None).unwrap_err();
    assert!(
        matches!(&failed, Error::Remote(RemoteFailure::Handler { message, .. }) if message == "no luck today")
    );
    let panicked = client.call("panic", Outgoing::none(), None).unwrap_err();
    assert!(panicked.to_string().contains("panicked"), "{panicked}");
    let unknown = client.call("ecko", Outgoing::none(), None).unwrap_err().to_string();
    assert!(unknown.contains("ecko") && unknown.contains("echo, fail, length"), "{unknown}");
    assert_eq!(client.call("length", b"abc".as_slice(), None).unwrap().to_vec(), b"3", "the session goes on");
}

#[test]
fn a_deadline_ends_the_wait_and_the_session_goes_on() {
    let (_server, client) = pair("deadline");
    // Too long to lie in a message.
    let sleep = format!("{:0>80}", 2000);
    let late = client.call("sleep", sleep.as_bytes(), Some(Duration::from_millis(30))).unwrap_err();
    assert!(matches!(late, Error::DeadlineExceeded { .. }), "{late}");
    assert!(client.stats().request_used_bytes > 0, "the server may still read the request");
    assert_eq!(client.call("length", b"abc".as_slice(), None).unwrap().to_vec(), b"3");
    std::thread::sleep(Duration::from_millis(2000));
    while client.stats().request_used_bytes != 0 {
        client.call("length", Outgoing::none(), None).unwrap();
    }
}

#[test]
fn requests_that_are_late_are_not_run() {
    let name = unique("late");
    let server = server(&name, ServerOptions { handlers: 1, ..ServerOptions::default() });
    let client = Client::connect(&name, small()).unwrap();
    let mut slow = client.call_async("sleep", b"300".as_slice(), None).unwrap();
    let late = client.call_async("sleep", b"1".as_slice(), Some(Duration::from_millis(20))).unwrap();
    drop(late);
    slow.wait(None).unwrap();
    client.call("length", Outgoing::none(), None).unwrap();
    assert_eq!(client.stats().outstanding, 0);
    drop(server);
}

#[test]
fn there_is_nobody_there() {
    let error = Client::connect("nobody-listens-here", small()).err().unwrap();
    assert!(matches!(error, Error::ServerUnavailable { .. }), "{error}");
    let error = Client::connect("/nonexistent/memlift.sock", small()).err().unwrap();
    assert!(matches!(error, Error::ServerUnavailable { .. }), "{error}");
}

#[test]
fn an_address_has_one_server() {
    let name = unique("taken");
    let _first = server(&name, ServerOptions::default());
    let second = Server::bind(&name, ServerOptions::default()).err().unwrap();
    assert!(matches!(second, Error::AddressInUse { .. }), "{second}");
}

#[test]
fn a_socket_file_goes_with_its_server_and_a_dead_one_is_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    let address = path.to_str().unwrap();
    {
        let _server = server(address, ServerOptions::default());
        assert!(matches!(Server::bind(address, ServerOptions::default()), Err(Error::AddressInUse { .. })));
        let client = Client::connect(address, small()).unwrap();
        assert_eq!(client.call("length", b"abc".as_slice(), None).unwrap().to_vec(), b"3");
    }
    assert!(!path.exists());
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "what a killed server leaves");
    let _server = server(address, ServerOptions::default());
    Client::connect(address, small()).unwrap().call("length", Outgoing::none(), None).unwrap();
}

#[test]
fn too_large_and_too_full() {
    let name = unique("full");
    let _server = server(&name, ServerOptions { message_bytes_max: 4 << 20, ..ServerOptions::default() });
    let options = ClientOptions { pool_bytes_max: 3 << 20, ..small() };
    let client = Client::connect(&name, options).unwrap();
    let error = client.call("echo", vec![0; 5 << 20].as_slice(), None).unwrap_err();
    assert!(matches!(error, Error::MessageTooLarge { limit: 4_194_304, .. }), "{error}");
    let error = client.call("echo", vec![0; 4 << 20].as_slice(), None).unwrap_err();
    assert!(matches!(error, Error::PoolFull { .. }), "{error}");
    let loans: Vec<_> = (0..3).map_while(|_| client.loan(700_000).ok()).collect();
    assert!(!loans.is_empty());
    assert!(client.loan(3 << 20).is_err());
    drop(loans);
    client.call("length", vec![0; 1 << 20].as_slice(), None).unwrap();
}

#[test]
fn a_reply_that_the_client_cannot_hold_is_an_error_of_that_call_alone() {
    let name = unique("roomless");
    let _server = server(&name, ServerOptions::default());
    let options = ClientOptions { pool_bytes_max: 2 << 20, ..small() };
    let client = Client::connect(&name, options).unwrap();
    let error = client.call("zeros", b"8000000".as_slice(), None).unwrap_err();
    assert!(matches!(error, Error::PoolFull { .. }), "{error}");
    assert_eq!(client.call("zeros", b"8".as_slice(), None).unwrap().to_vec(), [7; 8]);
}

#[test]
fn unanswered_calls_are_limited_and_wait_for_room() {
    let name = unique("credit");
    let _server = server(&name, ServerOptions { outstanding_max: 4, ..ServerOptions::default() });
    let client = Client::connect(&name, small()).unwrap();
    let mut jobs = Vec::new();
    for _ in 0..30 {
        jobs.push(client.call_async("sleep", b"3".as_slice(), None).unwrap());
        assert!(client.stats().outstanding <= 4);
    }
    for job in &mut jobs {
        job.wait(None).unwrap();
    }
}

#[test]
fn a_stopped_server_is_noticed_at_once() {
    let (server, client) = pair("stop");
    let waiting = {
        let client = client.clone();
        std::thread::spawn(move || client.call("sleep", b"200".as_slice(), None))
    };
    std::thread::sleep(Duration::from_millis(50));
    server.stop();
    assert!(matches!(waiting.join().unwrap(), Err(Error::PeerDied { .. })));
    assert!(matches!(client.call("echo", b"x".as_slice(), None), Err(Error::PeerDied { .. })));
}

/// A handler's stop does not wait, that of another thread does: else the next server would find the address in use.
#[test]
fn an_address_is_free_after_a_stop_beside_a_handlers() {
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("again.sock");
    for _ in 0..100 {
        let options = ServerOptions { handlers: 3, ..ServerOptions::default() };
        let server = Server::bind(address.to_str().unwrap(), options).unwrap();
        let own = std::sync::Mutex::new(Some(server.clone()));
        let stop = move |_: &memlift_ipc::Request| {
            own.lock().unwrap().take().expect("asked once").stop();
            Ok(Reply::none())
        };
        server.register("stop", stop).unwrap();
        server.start().unwrap();
        let client = Client::connect(address.to_str().unwrap(), small()).unwrap();
        // Answered, or hung up before.
        let _ = client.call("stop", b"".as_slice(), None);
        server.stop();
    }
}

#[test]
fn a_closed_client_says_so() {
    let (_server, client) = pair("close");
    client.close();
    assert!(matches!(client.call("echo", b"x".as_slice(), None), Err(Error::Closed { .. })));
}

#[test]
fn names_clash() {
    let (server, _client) = pair("clash");
    assert!(matches!(server.register("echo", |_| Ok(Reply::none())), Err(Error::OperationExists { .. })));
}
