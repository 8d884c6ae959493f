// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device that takes work and never answers, or only later: whoever waits goes on, and what it may still write to is nobody's.
//!
//! - **Flow** a wire that is held ─▶ patience ends ─▶ DEVICE_LOST, and the CPU from then on ─▶ the wire works after all ─▶ it has written
//!   to nothing that anybody has

use super::address;
use super::idxd::{CALM, End, Wire, bytes, described, finisher, fly, queue};
use memlift_ground::complete::WaitPolicy;
use memlift_ground::config::Config;
use memlift_ground::observe::Executor;
use memlift_idxd::{Idxd, Settings};
use memlift_ipc::{CallOptions, Client, ClientOptions, Device, Mode, Reply, Server, ServerOptions};
use memlift_offload::submit::{Operation, OperationError, Queue};
use memlift_offload::{Engine, Lost};
use memlift_spec::{Completion, Opcode, Status};
use std::sync::Arc;
use std::time::Duration;

/// A device that is given up after 20 milliseconds.
fn hasty(size: u32, wire: &Arc<Wire>) -> Idxd {
    let settings = Settings { patience: Duration::from_millis(20) };
    Idxd::new(&queue(size), Box::new(End(Arc::clone(wire))), finisher(), settings).unwrap()
}

#[test]
fn a_device_that_stops_answering_is_given_up_and_may_write_later() {
    let wire = Wire::new(4, CALM);
    let device = hasty(1, &wire);
    wire.hold();
    let plain = bytes(8192);
    // Lent for ever, as the status demands.
    let target = Box::leak(Box::new([0_u8; 8192]));
    let mut record = Completion::PENDING;
    let copy = |to: *mut u8, record: *mut Completion| {
        described(Opcode::MEMMOVE, address(plain.as_ptr()), address(to), 8192, record)
    };
    let done = fly(&device, copy(target.as_mut_ptr(), &raw mut record));
    assert_eq!(done.status(), Status::DEVICE_LOST);
    let stats = device.stats();
    assert!(stats.quarantined && stats.lost == 1, "{stats:?}");
    // Later operations are the CPU's.
    let took = wire.took();
    let mut second = vec![0; 8192];
    record = Completion::PENDING;
    assert_eq!(fly(&device, copy(second.as_mut_ptr(), &raw mut record)).status(), Status::SUCCESS);
    assert_eq!((std::hint::black_box(&second), wire.took()), (&plain, took));
    drop(device);
    // The device comes back: source, target and its record are still there.
    wire.work();
    assert_eq!(std::hint::black_box(&target)[..], plain[..]);
}

#[test]
fn a_ticket_of_a_lost_device_gives_no_buffers_back() {
    let wire = Wire::new(4, CALM);
    let device = hasty(4, &wire);
    let queue = Queue::foreign(Box::new(device), WaitPolicy::AUTO);
    wire.hold();
    let lost = queue.submit(Operation::copy(bytes(8192))).unwrap();
    assert!(matches!(lost.wait(), Err(OperationError::Lost)));
    let later = queue.submit(Operation::copy(bytes(8192))).unwrap();
    assert_eq!(later.wait().unwrap().into_target().unwrap().as_slice(), bytes(8192));
    drop(queue);
    // Later writes of the device hit no memory that anybody uses.
    wire.work();
}

#[test]
fn a_copy_that_was_told_to_use_it_ends_with_an_error_and_later_ones_go_without_it() {
    let wire = Wire::new(4, CALM);
    let engine = Engine::open(&Config::defaults()).unwrap();
    engine.use_backend(Box::new(hasty(4, &wire))).unwrap();
    let plain = bytes(200_000);
    let told = |target: &mut [u8]| {
        // SAFETY: both are this long, and apart; a target that is lost is leaked.
        unsafe { engine.copy_with(target.as_mut_ptr(), plain.as_ptr(), plain.len(), Executor::Idxd, false) }
    };
    let lost = Box::leak(vec![0; plain.len()].into_boxed_slice());
    wire.hold();
    assert_eq!(told(lost), Err(Lost));
    let took = wire.took();
    let mut target = vec![0; plain.len()];
    assert_eq!((told(&mut target), wire.took()), (Ok(()), took));
    assert!(target == plain);
    wire.work();
    assert!(std::hint::black_box(lost)[..] == plain[..], "it wrote after all, where nobody is");
}

#[test]
fn calls_learn_whether_it_pays_and_a_request_that_it_was_lost_over_is_copied_elsewhere() {
    let wire = Wire::new(8, CALM);
    // This process has no other use for its engine.
    Engine::global().use_backend(Box::new(hasty(8, &wire))).unwrap();
    let name = format!("memlift-lost-{}", std::process::id());
    let server = Server::bind(&name, ServerOptions::default()).unwrap();
    server.register("echo", |request| Ok(Reply::bytes(request.to_vec()))).unwrap();
    server.start().unwrap();
    let client = Client::connect(&name, ClientOptions::default()).unwrap();
    let (plain, other) = (bytes(1 << 20), vec![7_u8; 1 << 20]);
    let call = |data: &[u8], device| {
        let options = CallOptions { device, ..CallOptions::default() };
        client.call("echo", data, options).unwrap().to_vec()
    };
    let explain = || client.explain("echo", 1 << 20, Mode::Sync, None);
    let took = wire.took();
    for _ in 0..200 {
        assert!(call(&plain, Device::Auto) == plain);
    }
    // The twin is slow: it was tried, measured and left.
    let ways = explain().candidates;
    let tried = |device| ways.iter().any(|way| way.device == device && way.samples > 0);
    assert!(tried(Device::Dsa) && tried(Device::Inline) && wire.took() > took, "{ways:?}");
    assert!(call(&plain, Device::Dsa) == plain);
    wire.hold();
    let used = client.stats().request_used_bytes;
    assert!(call(&plain, Device::Dsa) == plain);
    assert_eq!(client.stats().request_used_bytes, used + plain.len() as u64, "its slot is nobody's");
    let took = wire.took();
    for data in [&other, &plain] {
        assert!(call(data, Device::Dsa) == *data);
    }
    assert_eq!(wire.took(), took, "it was given up");
    wire.work();
    assert!(call(&other, Device::Dsa) == other);
}
