// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A batch: a descriptor that names an array of descriptors, with fences and partial failure.
//!
//! - **Flow** members in order, each with its own record ──▶ one record for the batch
//! - **Order** this executor runs members in order, so a fence never waits; hardware may run unfenced members in any
//!   order
//! - **Failure** a member that ends with anything but SUCCESS makes the batch BATCH_FAILED. The first fenced member
//!   after it is abandoned, and so is every later one (status ABANDONED, nothing done). Members before the next fence
//!   still run.
//!
//! The batch's record counts in `bytes_completed` the members that ran, whether or not they succeeded.

use super::record;
use memlift_spec::{Completion, Descriptor, Flags, Status};
use std::ptr;

/// Runs a validated batch: `execute` runs one member and returns its status.
///
/// # Safety
///
/// The list holds `size` descriptors whose addresses are valid for their use.
pub(super) unsafe fn run(descriptor: &Descriptor, execute: impl Fn(&Descriptor) -> Status) -> Completion {
    let list = ptr::with_exposed_provenance::<Descriptor>(descriptor.source as usize);
    let mut progress = Progress::default();
    for index in 0..descriptor.size as usize {
        // SAFETY: validation checked the list's alignment and count; the caller promises that its memory is valid.
        unsafe {
            let member = list.add(index).read();
            if progress.starts(member.flags()) {
                progress.ended(execute(&member));
            } else {
                record::store(&member, record::ended(Status::ABANDONED));
            }
        }
    }
    Completion { bytes_completed: progress.ran, ..record::ended(progress.status()) }
}

/// Progress of a batch: the members that ran, and if one has failed.
#[derive(Clone, Copy, Default, Debug)]
struct Progress {
    ran: u32,
    failed: bool,
    abandoned: bool,
}

impl Progress {
    /// Returns true if a member with `flags` may start.
    fn starts(&mut self, flags: Flags) -> bool {
        self.abandoned |= self.failed && flags.has(Flags::FENCE);
        !self.abandoned
    }

    fn ended(&mut self, status: Status) {
        self.ran += 1;
        self.failed |= status != Status::SUCCESS;
    }

    fn status(self) -> Status {
        if self.failed { Status::BATCH_FAILED } else { Status::SUCCESS }
    }
}

/// After a panic in the middle of a batch, answers every member that has no status yet.
///
/// # Safety
///
/// The conditions of [`run`], and nothing else writes the members' records.
pub(super) unsafe fn give_up(descriptor: &Descriptor) {
    let list = ptr::with_exposed_provenance::<Descriptor>(descriptor.source as usize);
    for index in 0..descriptor.size as usize {
        // SAFETY: the caller promises that the list and its records are valid; a flagged, aligned record is readable as well
        // as writable.
        unsafe {
            let member = list.add(index).read();
            let record = ptr::with_exposed_provenance::<Completion>(member.completion_address as usize);
            if member.flags().has(Flags::COMPLETION_VALID)
                && !record.is_null()
                && record.is_aligned()
                && record::load(record).is_pending()
            {
                record::store(&member, record::ended(Status::HARDWARE_1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The rule: a member is abandoned if some fence at or before it comes after a failure.
    fn abandoned(members: &[(bool, bool)], index: usize) -> bool {
        (0..=index).any(|fence| members[fence].0 && (0..fence).any(|earlier| !members[earlier].1))
    }

    proptest! {
        #[test]
        fn a_fence_stops_what_follows_a_failure(members in proptest::collection::vec(any::<(bool, bool)>(), 2..64)) {
            let mut progress = Progress::default();
            let mut ran = 0;
            for (index, &(fence, succeeds)) in members.iter().enumerate() {
                let starts = progress.starts(if fence { Flags::FENCE } else { Flags::NONE });
                prop_assert_eq!(starts, !abandoned(&members, index));
                if starts {
                    ran += 1;
                    progress.ended(if succeeds { Status::SUCCESS } else { Status::BAD_SIZE });
                }
            }
            prop_assert_eq!(progress.ran, ran);
            let failed = members.iter().enumerate().any(|(i, m)| !m.1 && !abandoned(&members, i));
            prop_assert_eq!(progress.status() == Status::BATCH_FAILED, failed);
        }
    }
}
