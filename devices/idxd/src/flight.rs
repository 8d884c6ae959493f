// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flight: one submitted descriptor, or a batch of them, until every part of it has ended well or for a reason of its own.
//!
//! - **Flow** wish ─▶ offered ─▶ taken ─▶ records ─▶ what is left to the device again, or to the CPU ─▶ endings
//!   A batch goes as one descriptor over a list of our own, whose members all ask for records of our own. What is missing
//!   after it (faults, the list's too, and what was abandoned because of them) goes on member by member
//! - **Order** members between two fences in any order; a fenced one waits for all before it, and is abandoned with all behind it if
//!   one of those did not end with SUCCESS
//! - **Owner** records and list; leaked with the flight when a device that was given up may still write them
//! - **Not here** what becomes of one member: see `member`. Memory and portals: this file decides and touches nothing

use crate::limits::Limits;
use crate::member::{Member, Stage, ended};
use crate::memory::{Records, has_record};
use memlift_spec::limits::{BATCH_MAX, BATCH_MIN};
use memlift_spec::{Completion, Descriptor, Flags, Opcode, Status};

/// Descriptors that a device is offered.
#[derive(Debug, Default)]
pub(crate) struct Offer {
    pub descriptors: Vec<Descriptor>,
    members: Vec<usize>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Flight {
    /// BATCH, or the only member.
    wish: Descriptor,
    is_batch: bool,
    members: Vec<Member>,
    /// One for each member, and one for the batch.
    records: Records,
    /// The batch's list as the device reads it.
    list: Vec<Descriptor>,
    /// True if the whole batch waits for one record, or to be offered.
    whole: bool,
    /// Members before this one have ended.
    from: usize,
    /// Descriptors that the device has.
    pub away: usize,
    /// Number in the order of submission.
    pub sequence: u64,
}

impl Flight {
    /// One descriptor, of any opcode but DRAIN; a batch whose list cannot be read is the CPU's to refuse.
    pub fn single(wish: &Descriptor, limits: &Limits, sequence: u64) -> Flight {
        let member = Member::new(*wish, !limits.takes(wish, false));
        Flight::new(*wish, vec![member], false, sequence)
    }

    /// Returns true if the list of `wish` may be looked at.
    pub fn is_batch(wish: &Descriptor) -> bool {
        let flags = Flags::COMPLETION_VALID.0 | Flags::REQUEST_COMPLETION.0;
        wish.opcode() == Opcode::BATCH
            && wish.flags().0 == flags
            && has_record(wish)
            && (wish.pasid, wish.reserved, wish.interrupt_handle, wish.target) == (0, 0, 0, 0)
            && wish.operation == [0; 3]
            && wish.source.is_multiple_of(64)
            && (BATCH_MIN..=BATCH_MAX).contains(&wish.size)
    }

    /// A batch and its members.
    pub fn batch(wish: &Descriptor, members: &[Descriptor], limits: &Limits, sequence: u64) -> Flight {
        let members: Vec<Member> =
            members.iter().map(|member| Member::new(*member, !limits.takes(member, true))).collect();
        let mut flight = Flight::new(*wish, members, true, sequence);
        let uncut =
            |member: &Member| !member.cpu_only && u64::from(member.wish.size) <= limits.transfer_bytes_max;
        flight.whole = limits.supports(Opcode::BATCH)
            && flight.members.len() as u32 <= limits.batch_max
            && flight.members.iter().all(uncut);
        flight
    }

    fn new(wish: Descriptor, members: Vec<Member>, is_batch: bool, sequence: u64) -> Flight {
        let records = Records::new(members.len() + usize::from(is_batch));
        Flight {
            wish,
            is_batch,
            members,
            records,
            list: Vec::new(),
            whole: false,
            from: 0,
            away: 0,
            sequence,
        }
    }

    /// The end of the stretch of members that need not wait for each other.
    fn stretch(&self) -> usize {
        let fenced = |member: &Member| member.wish.flags().has(Flags::FENCE);
        let behind = self.members.iter().skip(self.from + 1).position(fenced);
        behind.map_or(self.members.len(), |index| self.from + 1 + index)
    }

    /// Offers the device its next descriptors, at most `room`.
    pub fn offer(&mut self, limits: &Limits, room: usize, offer: &mut Offer) {
        offer.descriptors.clear();
        offer.members.clear();
        if self.whole {
            if self.away == 0 && room > 0 {
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
            member.piece = limits.for_device(&member.wish, self.records.address(index), true);
        }
        self.list = self.members.iter().map(|member| member.piece).collect();
        let mut batch = self.wish;
        batch.source = self.list.as_ptr().expose_provenance() as u64;
        batch.completion_address = self.records.address(head);
        batch
    }

    /// The device took the first `count` of an offer.
    pub fn took(&mut self, offer: &Offer, count: usize) {
        self.away += count;
        offer.members.iter().take(count).for_each(|&index| self.members[index].stage = Stage::Away);
    }

    /// The first of an offer is not let through: a batch goes on member by member, anything else by the CPU. Gives whether it was a
    /// batch.
    pub fn barred(&mut self, offer: &Offer) -> bool {
        match offer.members.first() {
            Some(&index) => {
                self.members[index].cpu_only = true;
                self.members[index].stage = Stage::Cpu;
            }
            None => self.whole = false,
        }
        offer.members.is_empty()
    }

    /// The device gets nothing more of it.
    pub fn stay(&mut self) {
        self.whole &= self.away > 0;
        for member in &mut self.members {
            member.cpu_only = true;
            if member.stage == Stage::Ready && !self.whole {
                member.stage = Stage::Cpu;
            }
        }
    }

    /// Looks at the records; gives how many descriptors the device has answered.
    pub fn collect(&mut self) -> usize {
        if self.away == 0 {
            return 0;
        }
        if self.whole {
            if self.records.load(self.members.len()).is_none() {
                return 0;
            }
            (self.whole, self.away) = (false, 0);
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
            if member.stage == Stage::Away
                && let Some(done) = self.records.load(index)
            {
                member.answered(&done);
                answers += 1;
            }
        }
        self.away -= answers;
        answers
    }

    /// Goes on behind fences, and says whether everything has ended.
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

    /// Returns the CPU's next descriptor: its member, and true if it is one of a batch.
    pub fn for_cpu(&mut self) -> Option<(usize, Descriptor, bool)> {
        if self.whole {
            return None;
        }
        let stretch = self.stretch();
        let waits = |index: &usize| self.members[*index].stage == Stage::Cpu;
        let index = (self.from..stretch).find(waits)?;
        Some((index, self.members[index].for_cpu(), self.is_batch))
    }

    /// Takes the CPU's result.
    pub fn performed(&mut self, index: usize, done: &Completion) {
        self.members[index].performed(done);
    }

    /// Returns the number of faults so far.
    pub fn faults(&self) -> u64 {
        self.members.iter().map(|member| u64::from(member.faults)).sum()
    }

    /// Every record that the submitter gets, the one that it waits for last.
    pub fn endings(&self) -> impl Iterator<Item = (&Descriptor, Completion)> {
        let ending = |member: &Member| match member.stage {
            Stage::Done(done) => done,
            _ => ended(Status::DEVICE_LOST),
        };
        let members = self.members.iter().map(move |member| (&member.wish, ending(member)));
        let all = self.members.iter().map(ending);
        let ran = all.filter(|done| done.status() != Status::ABANDONED).count() as u32;
        let status = match () {
            () if self.members.iter().any(|member| !member.is_done()) => Status::DEVICE_LOST,
            () if self.failed(self.members.len()) => Status::BATCH_FAILED,
            () => Status::SUCCESS,
        };
        let head = Completion { bytes_completed: ran, ..ended(status) };
        members.chain(self.is_batch.then_some((&self.wish, head)))
    }
}
