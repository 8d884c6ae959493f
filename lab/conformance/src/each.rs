// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every opcode by itself, as often as it is asked for.
//!
//! - **Flow** backend ─▶ [`Only`], which says that it can do one thing ─▶ the suite, run after run ─▶ descriptors and members counted
//! - **Not here** what is tested of each: see `case`

use crate::suite::{Failure, Plan, run};
use memlift_spec::{Backend, Busy, Capabilities, Descriptor, Opcode};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Cases of one run of the suite.
const CASES: u64 = 100;

/// A backend that admits to one opcode, and counts it.
struct Only<'a> {
    backend: &'a dyn Backend,
    opcode: Opcode,
    seen: AtomicU64,
}

impl Only<'_> {
    fn count(&self, descriptor: &Descriptor) -> u64 {
        let one = |descriptor: &Descriptor| u64::from(descriptor.opcode() == self.opcode);
        if descriptor.opcode() != Opcode::BATCH
            || !descriptor.source.is_multiple_of(64)
            || descriptor.size > 1024
        {
            return one(descriptor);
        }
        let list = ptr::with_exposed_provenance::<Descriptor>(descriptor.source as usize);
        // SAFETY: the suite's lists lie in its arena, which has room behind them for as many members.
        (0..descriptor.size as usize).map(|index| one(&unsafe { list.add(index).read() })).sum()
    }
}

// SAFETY: everything is passed on.
unsafe impl Backend for Only<'_> {
    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn capabilities(&self) -> Capabilities {
        let all = self.backend.capabilities();
        Capabilities { opcodes: [0; 4], ..all }.with(self.opcode)
    }

    unsafe fn submit(&self, descriptors: &[Descriptor]) -> Result<(), Busy> {
        let seen = descriptors.iter().map(|descriptor| self.count(descriptor)).sum();
        self.seen.fetch_add(seen, Ordering::Relaxed);
        // SAFETY: the caller of `submit` vouches for the descriptors' memory until their completion, and the wrapped backend gets
        // the same descriptors.
        let taken = unsafe { self.backend.submit(descriptors) };
        if let Err(busy) = taken {
            // They come again.
            let again = descriptors[busy.accepted..].iter().map(|descriptor| self.count(descriptor)).sum();
            self.seen.fetch_sub(again, Ordering::Relaxed);
        }
        taken
    }

    fn poll(&self) -> usize {
        self.backend.poll()
    }
}

/// At least `descriptors` of every opcode that the suite knows, each by itself. Gives how many there were in all.
///
/// # Errors
///
/// The first [`Failure`].
pub fn run_each(backend: &dyn Backend, descriptors: u64, plan: &Plan) -> Result<u64, Failure> {
    let capabilities = backend.capabilities();
    let mut all = 0;
    for &opcode in Opcode::NAMED.iter().filter(|&&opcode| capabilities.supports(opcode)) {
        if matches!(opcode, Opcode::BATCH | Opcode::DRAIN) {
            continue;
        }
        let only = Only { backend, opcode, seen: AtomicU64::new(0) };
        let mut turn = 0;
        while only.seen.load(Ordering::Relaxed) < descriptors {
            let seed = plan.seed ^ u64::from(opcode.0) << 56 ^ turn << 32;
            run(&only, &Plan { seed, cases: CASES, ..*plan })?;
            turn += 1;
        }
        all += only.seen.load(Ordering::Relaxed);
    }
    Ok(all)
}
