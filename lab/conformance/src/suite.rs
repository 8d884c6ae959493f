// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite: cases through a backend and through the model, compared byte by byte.
//!
//! - **Flow** for each case: build ─▶ copy the image into the arena ─▶ model on the image ─▶ submit (in parts if
//!   the backend says Busy) ─▶ poll until every record has a status ─▶ arena and image must be equal
//! - **Failure** names seed and case, so that `MEMLIFT_CONFORMANCE_SEED` and `_CASES` repeat it

use crate::arena::{ARENA_BYTES, Arena};
use crate::case::Builder;
use crate::resume::resume;
use memlift_model::Image;
use memlift_spec::{Backend, Descriptor, Flags, Opcode, Status};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// How much to test.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Where the sequence of cases starts.
    pub seed: u64,
    /// How many cases, of up to five descriptors or batches each.
    pub cases: u64,
    /// How long a case may take.
    pub patience: Duration,
    /// True if the backend may stop at a page fault: what is left is then done here before all is compared.
    pub faults: bool,
}

impl Plan {
    /// Reads `MEMLIFT_CONFORMANCE_SEED` and `MEMLIFT_CONFORMANCE_CASES`; by default 1500 cases, some seconds.
    pub fn from_environment() -> Plan {
        let number = |name: &str| std::env::var(name).ok()?.parse().ok();
        Plan {
            seed: number("MEMLIFT_CONFORMANCE_SEED").unwrap_or(0x6d65_6d6c_6966_7431),
            cases: number("MEMLIFT_CONFORMANCE_CASES").unwrap_or(1500),
            patience: Duration::from_secs(60),
            faults: false,
        }
    }
}

/// Where a backend differs from the model.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed of the run.
    pub seed: u64,
    /// The case, counted from 0.
    pub case: u64,
    /// The difference, in words.
    pub what: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {} case {}: {}", self.seed, self.case, self.what)
    }
}

impl std::error::Error for Failure {}

/// Puts `backend` through `plan`.
///
/// # Errors
///
/// The first [`Failure`]. A backend that did not complete in time may still write: its memory is leaked then.
pub fn run(backend: &dyn Backend, plan: &Plan) -> Result<(), Failure> {
    let mut arena = Arena::new();
    let base = arena.base().expose_provenance() as u64;
    let mut image = vec![0; ARENA_BYTES];
    for case in 0..plan.cases {
        let failed = |what: String| Failure { seed: plan.seed, case, what };
        let seed = plan.seed.wrapping_add(case.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let queue = Builder::new(seed, base, backend.capabilities(), &mut image).case();
        arena.fill_from(&image);
        // The model goes first: it panics if a descriptor points outside of the arena.
        let mut model = Image { base, bytes: &mut image };
        for descriptor in &queue {
            memlift_model::run(&mut model, descriptor);
        }
        // From here on the arena's bytes are the backend's; `base` renews the pointer that descriptors name.
        arena.base().expose_provenance();
        if let Err(what) = fly(backend, &queue, plan.patience) {
            std::mem::forget(arena);
            return Err(failed(what));
        }
        let mut bytes = arena.to_vec();
        if plan.faults {
            let mut stopped = Image { base, bytes: &mut bytes };
            queue.iter().try_for_each(|descriptor| resume(&mut stopped, descriptor)).map_err(failed)?;
        }
        if bytes[..ARENA_BYTES] != image[..] {
            return Err(failed(difference(&queue, base, &bytes, &image)));
        }
    }
    Ok(())
}

/// Submits all of `queue` and waits until every record has a status.
fn fly(backend: &dyn Backend, queue: &[Descriptor], patience: Duration) -> Result<(), String> {
    let deadline = Instant::now() + patience;
    let mut left = queue;
    while !left.is_empty() {
        // SAFETY: every address lies in the arena, which outlives the flight (it is leaked if that does not
        // end); records are zeroed and aligned, except in members that test just that.
        match unsafe { backend.submit(left) } {
            Ok(()) => break,
            Err(busy) if busy.accepted > left.len() => {
                return Err(format!("accepted {} of {}", busy.accepted, left.len()));
            }
            Err(busy) => left = &left[busy.accepted..],
        }
        backend.poll();
        if Instant::now() > deadline {
            return Err("stays busy".to_owned());
        }
    }
    for (index, descriptor) in queue.iter().enumerate() {
        while status_of(descriptor).is_pending() {
            if backend.poll() == 0 {
                std::thread::yield_now();
            }
            if Instant::now() > deadline {
                return Err(format!("descriptor {index} did not complete: {descriptor:x?}"));
            }
        }
        if descriptor.opcode() == Opcode::DRAIN && queue[..index].iter().any(|d| status_of(d).is_pending()) {
            return Err("DRAIN completed before what was submitted before it".to_owned());
        }
    }
    Ok(())
}

fn status_of(descriptor: &Descriptor) -> Status {
    assert!(descriptor.flags().has(Flags::COMPLETION_VALID));
    let status = std::ptr::with_exposed_provenance_mut::<u8>(descriptor.completion_address as usize);
    // SAFETY: the first byte of a record in the arena, which is alive; backends store it atomically.
    Status(unsafe { AtomicU8::from_ptr(status) }.load(Ordering::Acquire))
}

fn difference(queue: &[Descriptor], base: u64, bytes: &[u8], image: &[u8]) -> String {
    let at = bytes.iter().zip(image).position(|(is, should)| is != should).unwrap_or(0);
    let count = bytes.iter().zip(image).filter(|(is, should)| is != should).count();
    let mut text = format!(
        "{count} bytes differ, first at offset {at:#x} (address {:#x}): is {:#04x}, should be {:#04x}",
        base + at as u64,
        bytes[at],
        image[at]
    );
    if at >= crate::arena::RECORDS {
        let record = at & !31;
        text += &format!(
            "; record is {:02x?}, should be {:02x?}",
            &bytes[record..][..32],
            &image[record..][..32]
        );
    }
    queue.iter().for_each(|descriptor| {
        text += &format!("\n  {} {descriptor:x?}", descriptor.opcode().name());
        if descriptor.opcode() == Opcode::BATCH {
            let list = (descriptor.source - base) as usize;
            for member in image[list..].chunks(64).take(descriptor.size.min(16) as usize) {
                text += &format!("\n    opcode {:02x} {member:02x?}", member[7]);
            }
        }
    });
    text
}
