// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flight: one submitted descriptor, or a batch of them, until every part of it has ended.
//!
//! - **Flow** the descriptors are offered; the device accepts them and writes records; what is left goes to the device again, or to the
//!   CPU; then the endings are delivered.
//!   A batch is submitted as one descriptor with a list of our own, whose members all request records of our own. Members that did not
//!   complete in it (because of faults of their own or of the list, or abandoned because of one) are submitted one by one.
//! - **Order** members between two fences run in any order. A fenced member waits for all before it; if one of those did not end with
//!   SUCCESS, it is abandoned with all members behind it.
//! - **Owner** records and list; they are leaked with the flight if a device that is not used any more may still write them.
//! - **Not here** the progress of one member: see `member`. Memory and portals: this file only decides.

use crate::limits::Limits;
use crate::member::{Member, Stage, ended};
use crate::memory::{Records, has_record};
use memlift_spec::limits::{BATCH_MAX, BATCH_MIN};
use memlift_spec::{Completion, Descriptor, Flags, Opcode, Status};

/// Descriptors that are offered to a device.
#[derive(Debug, Default)]
pub(crate) struct Offer {
    pub descriptors: Vec<Descriptor>,
    members: Vec<usize>,
}

/// One submitted descriptor, or a batch of them, that has not ended.
#[derive(Debug)]
pub(crate) struct Flight {
    /// The submitted descriptor: BATCH, or the only member.
    submitted: Descriptor,
    is_batch: bool,
    members: Vec<Member>,
    /// One record for each member, and one for the batch.
    records: Records,
    /// The batch's list, in the form that the device reads.
    list: Vec<Descriptor>,
    /// True if the batch is submitted as a whole: it waits for its one record, or to be offered.
    whole: bool,
    /// Index of the first member that has not ended.
    from: usize,
    /// Number of descriptors that the device has.
    pub in_device: usize,
    /// Number in the order of submission.
    pub sequence: u64,
}

impl Flight {
    /// Creates the flight of one descriptor of any opcode but DRAIN. A batch whose list cannot be read is left to the CPU,
    /// which refuses it.
    pub fn single(submitted: &Descriptor, limits: &Limits, sequence: u64) -> Flight {
        let member = Member::new(*submitted, !limits.takes(submitted, false));
        Flight::new(*submitted, vec![member], false, sequence)
    }

    /// Returns true if the list of the batch `submitted` may be read.
    pub fn is_batch(submitted: &Descriptor) -> bool {
        let flags = Flags::COMPLETION_VALID.0 | Flags::REQUEST_COMPLETION.0;
        submitted.opcode() == Opcode::BATCH
            && submitted.flags().0 == flags
            && has_record(submitted)
            && (submitted.pasid, submitted.reserved, submitted.interrupt_handle, submitted.target)
                == (0, 0, 0, 0)
            && submitted.operation == [0; 3]
            && submitted.source.is_multiple_of(64)
            && (BATCH_MIN..=BATCH_MAX).contains(&submitted.size)
    }

    /// Creates the flight of a batch and its members.
    pub fn batch(submitted: &Descriptor, members: &[Descriptor], limits: &Limits, sequence: u64) -> Flight {
        let members: Vec<Member> =
            members.iter().map(|member| Member::new(*member, !limits.takes(member, true))).collect();
        let mut flight = Flight::new(*submitted, members, true, sequence);
        let uncut = |member: &Member| {
            !member.cpu_only && u64::from(member.submitted.size) <= limits.transfer_bytes_max
        };
        flight.whole = limits.supports(Opcode::BATCH)
            && flight.members.len() as u32 <= limits.batch_max
            && flight.members.iter().all(uncut);
        flight
    }

    fn new(submitted: Descriptor, members: Vec<Member>, is_batch: bool, sequence: u64) -> Flight {
        let records = Records::new(members.len() + usize::from(is_batch));
        Flight {
            submitted,
            is_batch,
            members,
            records,
            list: Vec::new(),
            whole: false,
            from: 0,
            in_device: 0,
            sequence,
        }
    }

    /// Returns the end of the current stretch of members, which need not wait for each other.
    fn stretch(&self) -> usize {
        let fenced = |member: &Member| member.submitted.flags().has(Flags::FENCE);
        let behind = self.members.iter().skip(self.from + 1).position(fenced);
        behind.map_or(self.members.len(), |index| self.from + 1 + index)
    }

    /// Fills `offer` with the next descriptors for the device, at most `room`.
    pub fn offer(&mut self, limits: &Limits, room: usize, offer: &mut Offer) {
        offer.descriptors.clear();
        offer.members.clear();
        if self.whole {
            if self.in_device == 0 && room > 0 {
                offer.descriptors.push(self.as_batch(limits));
            }
            return;
        }
        for index in self.from..self.stretch() {
            if offer.members.len() == room {
                break;
            }
            if self.members[index].stage != Stage::Ready {
                continue;
            }
            self.records.clear(index);
            let member = &mut self.members[index];
            member.piece = limits.for_device(&member.rest(), self.records.address(index), false);
            offer.descriptors.push(member.piece);
            offer.members.push(index);
        }
    }

    fn as_batch(&mut self, limits: &Limits) -> Descriptor {
        let head = self.members.len();
        (0..=head).for_each(|index| self.records.clear(index));
        for (index, member) in self.members.iter_mut().enumerate() {
            member.piece = limits.for_device(&member.submitted, self.records.address(index), true);
        }
        self.list = self.members.iter().map(|member| member.piece).collect();
        let mut batch = self.submitted;
        batch.source = self.list.as_ptr().expose_provenance() as u64;
        batch.completion_address = self.records.address(head);
        batch
    }

    /// Records that the device has accepted the first `count` descriptors of an offer.
    pub fn note_accepted(&mut self, offer: &Offer, count: usize) {
        self.in_device += count;
        offer.members.iter().take(count).for_each(|&index| self.members[index].stage = Stage::InDevice);
    }

    /// Records that the kernel refuses the first descriptor of an offer: a batch continues member by member, anything else on
    /// the CPU.
    /// Returns true if it was a batch.
    pub fn note_kernel_refusal(&mut self, offer: &Offer) -> bool {
        match offer.members.first() {
            Some(&index) => {
                self.members[index].cpu_only = true;
                self.members[index].stage = Stage::Cpu;
            }
            None => self.whole = false,
        }
        offer.members.is_empty()
    }

    /// Records that the device gets no more of this flight: the rest is left to the CPU.
    pub fn leave_to_cpu(&mut self) {
        self.whole &= self.in_device > 0;
        for member in &mut self.members {
            member.cpu_only = true;
            if member.stage == Stage::Ready && !self.whole {
                member.stage = Stage::Cpu;
            }
        }
    }

    /// Reads the records; returns how many descriptors the device has answered.
    pub fn collect(&mut self) -> usize {
        if self.in_device == 0 {
            return 0;
        }
        if self.whole {
            if self.records.load(self.members.len()).is_none() {
                return 0;
            }
            (self.whole, self.in_device) = (false, 0);
            for (index, member) in self.members.iter_mut().enumerate() {
                match self.records.load(index) {
                    Some(done) if done.status() != Status::ABANDONED => member.answered(&done),
                    _ if member.cpu_only => member.stage = Stage::Cpu,
                    _ => {}
                }
            }
            return 1;
        }
        let mut answers = 0;
        for (index, member) in self.members.iter_mut().enumerate() {
            if member.stage == Stage::InDevice
                && let Some(done) = self.records.load(index)
            {
                member.answered(&done);
                answers += 1;
            }
        }
        self.in_device -= answers;
        answers
    }

    /// Continues behind fences whose condition is met; returns true if everything has ended.
    pub fn settle(&mut self) -> bool {
        while !self.whole && self.from < self.members.len() {
            let stretch = self.stretch();
            if !self.members[self.from..stretch].iter().all(Member::is_done) {
                return false;
            }
            self.from = stretch;
            if self.failed(stretch) {
                let left = self.members[stretch..].iter_mut().filter(|member| !member.is_done());
                left.for_each(|member| member.stage = Stage::Done(ended(Status::ABANDONED)));
            }
        }
        !self.whole
    }

    fn failed(&self, before: usize) -> bool {
        let succeeded =
            |member: &Member| matches!(member.stage, Stage::Done(done) if done.status() == Status::SUCCESS);
        !self.members[..before].iter().all(succeeded)
    }

    /// Returns the next descriptor for the CPU: index of its member, descriptor, and true if it belongs to a batch.
    pub fn for_cpu(&mut self) -> Option<(usize, Descriptor, bool)> {
        if self.whole {
            return None;
        }
        let stretch = self.stretch();
        let waits = |index: &usize| self.members[*index].stage == Stage::Cpu;
        let index = (self.from..stretch).find(waits)?;
        Some((index, self.members[index].for_cpu(), self.is_batch))
    }

    /// Stores the CPU's result for a member.
    pub fn performed(&mut self, index: usize, done: &Completion) {
        self.members[index].performed(done);
    }

    /// Returns the number of faults so far.
    pub fn faults(&self) -> u64 {
        self.members.iter().map(|member| u64::from(member.faults)).sum()
    }

    /// Returns every record that the submitter gets; the one that it waits for is the last.
    pub fn endings(&self) -> impl Iterator<Item = (&Descriptor, Completion)> {
        let ending = |member: &Member| match member.stage {
            Stage::Done(done) => done,
            _ => ended(Status::DEVICE_LOST),
        };
        let members = self.members.iter().map(move |member| (&member.submitted, ending(member)));
        let all = self.members.iter().map(ending);
        let ran = all.filter(|done| done.status() != Status::ABANDONED).count() as u32;
        let status = match () {
            () if self.members.iter().any(|member| !member.is_done()) => Status::DEVICE_LOST,
            () if self.failed(self.members.len()) => Status::BATCH_FAILED,
            () => Status::SUCCESS,
        };
        let head = Completion { bytes_completed: ran, ..ended(status) };
        members.chain(self.is_batch.then_some((&self.submitted, head)))
    }
}
