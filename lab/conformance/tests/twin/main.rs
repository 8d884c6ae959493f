// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The twin conforms whatever its seed makes of order and faults, and faults really happen.

mod idxd;
mod lost;
mod pages;

use memlift_conformance::{Plan, run, run_each};
use memlift_model::{Fortune, Twin};
use memlift_spec::{Backend, Completion, Descriptor, Flags, Opcode, Status};

fn pass(fortune: Fortune, depth: usize, cases: u64) {
    let plan = Plan::from_environment();
    let plan = Plan { cases: plan.cases * cases / 1500, faults: fortune.faults > 0, ..plan };
    if let Err(failure) = run(&Twin::new(depth, fortune), &plan) {
        panic!("{fortune:?}: {failure}");
    }
}

#[test]
fn it_conforms_in_any_order_that_is_allowed() {
    for seed in 0..3 {
        pass(Fortune { seed, faults: 0, reorder: true }, 4, 300);
    }
}

#[test]
#[ignore = "soak"]
fn soak_every_opcode_with_faults_and_in_any_order() {
    let twin = Twin::new(8, Fortune { seed: 11, faults: 300_000, reorder: true });
    let plan = Plan { faults: true, ..Plan::from_environment() };
    let count = run_each(&twin, 100_000, &plan).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{count} descriptors");
}

#[test]
fn after_faults_what_is_left_can_be_done_and_nothing_is_missing() {
    for (seed, faults) in [(1, 30_000), (2, 300_000), (3, 1_000_000)] {
        pass(Fortune { seed, faults, reorder: false }, 2, 300);
        pass(Fortune { seed, faults, reorder: true }, 8, 300);
    }
}

fn address<T: ?Sized>(of: *const T) -> u64 {
    of.cast::<u8>().expose_provenance() as u64
}

/// A copy of 64 KiB, `shift` bytes up, in one buffer: its record, and the buffer.
fn copied(seed: u64, shift: usize) -> (Completion, Vec<u8>) {
    const SIZE: usize = 1 << 16;
    // Where it stops depends on where pages begin: the copy starts with one.
    let mut bytes = vec![0_u8; 2 * SIZE + 4096];
    let start = bytes.as_ptr().align_offset(4096);
    for (index, byte) in bytes[start..start + 2 * SIZE].iter_mut().enumerate() {
        *byte = (index * 7 + index / 251) as u8;
    }
    let mut record = Completion::PENDING;
    let from = address(bytes.as_mut_ptr()) + start as u64;
    let flags = Flags::COMPLETION_VALID.with(Flags::REQUEST_COMPLETION);
    let mut copy = Descriptor::new(Opcode::MEMMOVE, flags);
    (copy.source, copy.target, copy.size) = (from, from + shift as u64, SIZE as u32);
    copy.completion_address = address(&raw mut record);
    let twin = Twin::new(1, Fortune { seed, faults: 1_000_000, reorder: true });
    // SAFETY: buffer and record outlive the flight, which ends with the poll; nobody else uses them meanwhile.
    #[expect(unsafe_code, reason = "descriptors name memory by address")]
    let record = unsafe {
        twin.submit(&[copy]).unwrap();
        assert_eq!(twin.poll(), 1);
        (&raw const record).read_volatile()
    };
    (record, std::hint::black_box(bytes)[start..start + 2 * SIZE].to_vec())
}

#[test]
fn a_copy_stops_at_a_page_with_its_part_done_in_its_direction() {
    let plain: Vec<u8> = (0..1 << 17).map(|index: usize| (index * 7 + index / 251) as u8).collect();
    let mut seen = [0; 2];
    for seed in 0..40 {
        for (shift, backward) in [(1 << 16, false), (100, true)] {
            let (record, bytes) = copied(seed, shift);
            let done = record.bytes_completed as usize;
            assert_eq!((record.status().code(), record.result), (Status::PAGE_FAULT.0, u8::from(backward)));
            assert!(done < 1 << 16);
            let (first, last) = if backward { ((1 << 16) - done, 1 << 16) } else { (0, done) };
            assert_eq!(bytes[shift + first..shift + last], plain[first..last]);
            assert_eq!(bytes[shift + last..], plain[shift + last..], "more than its part was done");
            seen[usize::from(record.status & Status::FAULT_WAS_WRITE != 0)] += 1;
        }
    }
    assert!(seen[0] > 10 && seen[1] > 10, "reads and writes fault: {seen:?}");
}

#[test]
fn a_seed_is_one_history() {
    let story = |(record, bytes): (Completion, Vec<u8>)| (record.status, record.bytes_completed, bytes);
    for seed in 0..20 {
        assert_eq!(story(copied(seed, 100)), story(copied(seed, 100)));
    }
}
