// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A backend of one's own behind memlift's queue: it completes out of order, faults in the middle of copies, and vanishes.
//!
//! - **Flow** [`Engine::use_backend`] ─▶ queued copies and copies that name the device ─▶ `submit` ─▶ `poll`, which works on the
//!   newest descriptor first
//! - **Shows** what a backend has to promise ([`Backend`]), and that no byte is wrong whatever it does
#![deny(unsafe_code)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use memlift::ground::config::Config;
use memlift::ground::observe::Executor;
use memlift::offload::Engine;
use memlift::offload::submit::{Operation, OperationError};
use memlift::spec::{Backend, Busy, Capabilities, Completion, Descriptor, Opcode, Status};

const DEPTH: usize = 8;
/// One copy in this many stops in its middle.
const FAULT_EVERY: usize = 3;

/// A device that copies when it is polled.
#[derive(Default)]
struct Unruly {
    queued: Mutex<Vec<Descriptor>>,
    done: AtomicUsize,
    faults: AtomicUsize,
    reordered: AtomicUsize,
    /// Descriptors after which it answers no more; 0: never.
    vanish_after: AtomicUsize,
}

/// The device, shared between the engine and `main`.
struct Shared(&'static Unruly);

// SAFETY: a descriptor's memory is touched only in `poll`, before the status of its record is stored with Release. `submit` only queues.
#[expect(unsafe_code, reason = "promises what the trait asks for")]
unsafe impl Backend for Shared {
    fn name(&self) -> &'static str {
        "unruly"
    }

    fn capabilities(&self) -> Capabilities {
        let mut opcodes = [0; 4];
        opcodes[0] = 1 << Opcode::MEMMOVE.0;
        Capabilities { opcodes, transfer_bytes_max: 1 << 20, batch_max: 0, queue_depth: DEPTH as u32 }
    }

    unsafe fn submit(&self, descriptors: &[Descriptor]) -> Result<(), Busy> {
        let mut queued = self.0.queued.lock().expect("nobody panics with it");
        for (accepted, descriptor) in descriptors.iter().enumerate() {
            if queued.len() == DEPTH {
                return Err(Busy { accepted });
            }
            queued.push(*descriptor);
        }
        Ok(())
    }

    fn poll(&self) -> usize {
        let mut queued = self.0.queued.lock().expect("nobody panics with it");
        if queued.len() > 1 {
            self.0.reordered.fetch_add(1, Ordering::Relaxed);
        }
        let Some(descriptor) = queued.pop() else { return 0 };
        drop(queued);
        let number = self.0.done.fetch_add(1, Ordering::Relaxed) + 1;
        let vanished = self.0.vanish_after.load(Ordering::Relaxed);
        let mut bytes = descriptor.size as usize;
        let status = if vanished != 0 && number > vanished {
            // It may have written some of it.
            bytes /= 3;
            Status::DEVICE_LOST
        } else if number.is_multiple_of(FAULT_EVERY) {
            self.0.faults.fetch_add(1, Ordering::Relaxed);
            bytes /= 2;
            Status::PAGE_FAULT
        } else {
            Status::SUCCESS
        };
        let source = std::ptr::with_exposed_provenance::<u8>(descriptor.source as usize);
        let target = std::ptr::with_exposed_provenance_mut::<u8>(descriptor.target as usize);
        let record =
            std::ptr::with_exposed_provenance_mut::<Completion>(descriptor.completion_address as usize);
        // SAFETY: whoever submitted the descriptor keeps its memory valid until the status is stored, which is the last thing done.
        unsafe {
            target.copy_from(source, bytes);
            (&raw mut (*record).bytes_completed).write(bytes as u32);
            AtomicU8::from_ptr(&raw mut (*record).status).store(status.0, Ordering::Release);
        }
        1
    }
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + seed * 7 + at / 251) as u8).collect()
}

fn main() {
    let engine = Engine::open(&Config::defaults()).expect("an engine");
    let device: &'static Unruly = Box::leak(Box::default());
    engine.use_backend(Box::new(Shared(device))).expect("no device is in use yet");

    // Queued copies: four under way at once. A fault is that operation's error, with its buffers in it.
    for round in 0..50 {
        let tickets: Vec<_> = (0..4)
            .map(|index| {
                let source = pattern(20_000 + index, round * 4 + index);
                (source.clone(), engine.submit(Operation::copy(source)).expect("room for four"))
            })
            .collect();
        for (source, ticket) in tickets {
            match ticket.wait() {
                Ok(outcome) => {
                    assert_eq!(outcome.into_target().expect("a copy has one").as_slice(), source)
                }
                Err(OperationError::Failed { status, .. }) => assert_eq!(status, Status::PAGE_FAULT),
                Err(other) => panic!("{other}"),
            }
        }
    }
    println!("{} descriptors were completed out of order", device.reordered.load(Ordering::Relaxed));

    // Copies that name the device: what it does not finish, their caller copies.
    let source = pattern(3 << 20, 5);
    let copy = || {
        // The target outlives a device that vanishes while it writes.
        let target: &'static mut [u8] = vec![0; source.len()].leak();
        // SAFETY: both have this length and are apart; the target is never freed, and not read after a loss.
        #[expect(unsafe_code, reason = "names the device for a copy of raw memory")]
        let copied = unsafe {
            engine.copy_with(target.as_mut_ptr(), source.as_ptr(), source.len(), Executor::Idxd, false)
        };
        copied.map(|()| assert!(*target == source[..], "every byte"))
    };
    for _ in 0..20 {
        copy().expect("the device is there");
    }
    println!(
        "{} copies faulted in the middle and were finished by their callers",
        device.faults.load(Ordering::Relaxed)
    );

    // It vanishes during a copy: that copy says so, and later ones go without it.
    device.vanish_after.store(device.done.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    let lost = copy().expect_err("it vanished");
    println!("the device vanished: {lost}");
    let before = device.done.load(Ordering::Relaxed);
    for round in 0..20 {
        copy().expect("by this core");
        let source = pattern(100_000, round);
        let ticket = engine.submit(Operation::copy(source.clone())).expect("room");
        let outcome = ticket.wait().expect("by an engine thread");
        assert_eq!(outcome.into_target().expect("a copy has one").as_slice(), source);
    }
    assert_eq!(device.done.load(Ordering::Relaxed), before, "nobody asks it any more");
    println!("every byte is right");
}
