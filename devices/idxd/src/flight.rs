// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flight: one submitted descriptor, or a batch of them, until every part of it has ended well or for a reason of its own.
//!
//! Flow    wish ─▶ may the device have it? ─▶ offered ─▶ record ─▶ done, or a fault: what was done counts, the CPU crosses the page,
//!         the device gets the rest; after [`FAULTS_MAX`] faults, or when little is left, the CPU does it all. Refused, or failed in
//!         a way that can be repeated: the CPU does it
//!         A batch goes as one descriptor over a list of our own, whose members all ask for records of our own. What is missing
//!         after it (faults, the list's too, and what was abandoned because of them) goes on member by member
//! Order   members between two fences in any order; a fenced one waits for all before it, and is abandoned with all behind it if
//!         one of those did not end with SUCCESS
//! Owner   records and list; leaked with the flight when a device that was given up may still write them
//! Not here memory and portals: this file decides and touches nothing

use crate::memory::{Records, has_record};
use crate::rest::{Progress, cut, is_repeatable, is_resumable, rest};
use memlift_spec::{Completion, Descriptor, Flags, Opcode, Status};

/// Faults after which the CPU does what is left: the pages are not there, and finding out one by one costs more than doing it.
const FAULTS_MAX: u32 = 2;
/// What the CPU does behind a fault, bytes: past the end of the page that faulted, in every operand.
const CROSSING_BYTES: u64 = 8192;
/// Less than this is not worth another trip.
const TRIP_BYTES_MIN: u32 = 64 * 1024;

/// What a queue takes.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub opcodes: [u64; 4],
    pub transfer_bytes_max: u64,
    pub batch_max: u32,
    pub blocks_on_fault: bool,
    pub cache_control: bool,
    pub overlap: bool,
}

impl Limits {
    fn supports(&self, opcode: Opcode) -> bool {
        self.opcodes[(opcode.0 >> 6) as usize] >> (opcode.0 & 63) & 1 == 1
    }

    /// Whether the device may have `wish`. What it must not see, and what nobody could tell the end of, stays with the CPU.
    fn takes(&self, wish: &Descriptor, in_batch: bool) -> bool {
        let (flags, opcode) = (wish.flags(), wish.opcode());
        let known = matches!(
            opcode,
            Opcode::NOOP
                | Opcode::DELTA_CREATE
                | Opcode::DELTA_APPLY
                | Opcode::TRANSLATION_FETCH
                | Opcode::CACHE_FLUSH
        ) || is_resumable(opcode);
        let has_result = matches!(
            opcode,
            Opcode::COMPARE | Opcode::COMPARE_PATTERN | Opcode::DELTA_CREATE | Opcode::CRC | Opcode::COPY_CRC
        );
        let requested = flags.has(Flags::REQUEST_COMPLETION);
        let silent = in_batch
            && !has_result
            && flags.0 & (Flags::COMPLETION_VALID.0 | Flags::REQUEST_COMPLETION.0) == 0;
        let told = has_record(wish) && (requested || (in_batch && !has_result));
        let plain = wish.pasid == 0 && wish.reserved == 0 && wish.interrupt_handle == 0;
        let odd = flags.has(Flags::REQUEST_INTERRUPT) || (!in_batch && flags.has(Flags::FENCE));
        let fits = u64::from(wish.size) <= self.transfer_bytes_max
            || (self.transfer_bytes_max > 0 && is_resumable(opcode) && is_sound(wish));
        let overlap = is_repeatable(wish) || (self.overlap && !flags.has(Flags::STRICT_ORDER));
        let sized = wish.size > 0 || opcode == Opcode::NOOP;
        known && self.supports(opcode) && (told || silent) && plain && !odd && fits && overlap && sized
    }

    /// `part` as the device gets it: it always says how it ended, in a record of ours.
    fn for_device(&self, part: &Descriptor, record: u64, fenced: bool) -> Descriptor {
        let mut piece = cut(part, self.transfer_bytes_max);
        piece.add_flags(Flags::COMPLETION_VALID.with(Flags::REQUEST_COMPLETION));
        let writes = matches!(
            part.opcode(),
            Opcode::MEMMOVE
                | Opcode::FILL
                | Opcode::COPY_CRC
                | Opcode::DUALCAST
                | Opcode::DELTA_CREATE
                | Opcode::DELTA_APPLY
        );
        // Hints that this queue does not take. Where they are none, they are the device's to refuse.
        let waits = !self.blocks_on_fault && part.opcode() != Opcode::NOOP;
        for (drops, flag) in [
            (!fenced, Flags::FENCE),
            (waits, Flags::BLOCK_ON_FAULT),
            (!self.cache_control && writes, Flags::CACHE_CONTROL),
        ] {
            piece.flags_opcode &= if drops { !flag.0 } else { u32::MAX };
        }
        piece.completion_address = record;
        piece
    }
}

/// Whether no part of `wish` would be let through that is refused as a whole.
fn is_sound(wish: &Descriptor) -> bool {
    let size = u64::from(wish.size);
    let (source, target) = (wish.source, wish.target);
    let ranges = match wish.opcode() {
        Opcode::MEMMOVE | Opcode::COPY_CRC | Opcode::COMPARE => vec![source, target],
        Opcode::DUALCAST => vec![source, target, wish.target2()],
        Opcode::FILL => vec![target],
        _ => vec![source],
    };
    let apart = |index: usize| ranges[index + 1..].iter().all(|other| other.abs_diff(ranges[index]) >= size);
    size <= u64::from(memlift_spec::limits::TRANSFER_BYTES_MAX)
        && ranges.iter().all(|range| range.checked_add(size).is_some())
        && (0..ranges.len()).all(apart)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// May go to the device.
    Ready,
    /// The device has it.
    Away,
    /// The CPU is next.
    Cpu,
    /// It has ended.
    Done(Completion),
}

#[derive(Clone, Debug)]
struct Member {
    wish: Descriptor,
    progress: Progress,
    /// What was given away last.
    piece: Descriptor,
    faults: u32,
    /// Whether the device may not have it any more.
    cpu_only: bool,
    stage: Stage,
}

fn ended(status: Status) -> Completion {
    Completion { status: status.0, ..Completion::PENDING }
}

impl Member {
    fn new(wish: Descriptor, cpu_only: bool) -> Member {
        let stage = if cpu_only { Stage::Cpu } else { Stage::Ready };
        Member { wish, progress: Progress::default(), piece: wish, faults: 0, cpu_only, stage }
    }

    fn rest(&self) -> Descriptor {
        rest(&self.wish, &self.progress)
    }

    fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done(_))
    }

    /// The device's word about `piece`.
    fn answered(&mut self, done: &Completion) {
        let resumable = is_resumable(self.wish.opcode());
        match Status(done.status().code()) {
            Status::SUCCESS | Status::SUCCESS_PREDICATE => self.advance(done),
            Status::PAGE_FAULT | Status::PAGE_RESPONSE_INVALID if resumable => self.faulted(done),
            status => self.failed(status),
        }
    }

    fn faulted(&mut self, done: &Completion) {
        let backward = self.wish.opcode() == Opcode::MEMMOVE && done.result == 1;
        let whole = self.piece.size == self.rest().size;
        if done.bytes_completed >= self.piece.size || (backward && !whole) {
            return self.failed(done.status());
        }
        self.faults += 1;
        if backward {
            self.progress.back += done.bytes_completed;
        } else {
            self.progress.front += done.bytes_completed;
            self.progress.crc = if done.bytes_completed > 0 { done.crc() } else { self.progress.crc };
        }
        self.stage = Stage::Cpu;
    }

    /// It did not run, or nobody knows how far it came.
    fn failed(&mut self, status: Status) {
        let refused = matches!(status.code(), 0x10..=0x19 | 0x1b..=0x1e);
        self.cpu_only = true;
        self.stage = match refused || is_repeatable(&self.rest()) {
            true => Stage::Cpu,
            false => Stage::Done(ended(Status(status.code()))),
        };
    }

    /// `piece` is done.
    fn advance(&mut self, done: &Completion) {
        let opcode = self.wish.opcode();
        let compares = matches!(opcode, Opcode::COMPARE | Opcode::COMPARE_PATTERN);
        let differs = compares && done.result == 1;
        if !differs && self.piece.size != self.rest().size {
            self.progress.front += self.piece.size;
            self.progress.crc = done.crc();
            self.stage = if self.cpu_only { Stage::Cpu } else { Stage::Ready };
            return;
        }
        let (result, value) = match opcode {
            Opcode::COMPARE | Opcode::COMPARE_PATTERN => (done.result, 0),
            Opcode::DELTA_CREATE => (done.result, u64::from(done.delta_record_bytes())),
            Opcode::CRC | Opcode::COPY_CRC => (0, u64::from(done.crc())),
            _ => (0, 0),
        };
        let bytes_completed =
            if differs { self.progress.front.saturating_add(done.bytes_completed) } else { self.wish.size };
        self.stage =
            Stage::Done(Completion { result, bytes_completed, value, ..ended(Status(done.status().code())) });
    }

    /// What the CPU does now.
    fn for_cpu(&mut self) -> Descriptor {
        let rest = self.rest();
        let crosses =
            self.faults > 0 && self.faults <= FAULTS_MAX && !self.cpu_only && rest.size > TRIP_BYTES_MIN;
        self.piece = if crosses { cut(&rest, CROSSING_BYTES) } else { rest };
        self.piece
    }

    /// What the CPU said about it.
    fn performed(&mut self, done: &Completion) {
        if self.progress.is_none() && self.piece.size == self.wish.size {
            self.stage = Stage::Done(*done);
        } else if done.status().is_success() {
            self.advance(done);
        } else {
            self.stage = Stage::Done(*done);
        }
    }
}

/// What a device is offered.
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
    /// Whether the whole batch waits for one record, or to be offered.
    whole: bool,
    /// Members before this one have ended.
    from: usize,
    /// Descriptors that the device has.
    pub away: usize,
    /// Its place in the order of submission.
    pub sequence: u64,
}

impl Flight {
    /// One descriptor, of any opcode but DRAIN; a batch whose list cannot be read is the CPU's to refuse.
    pub fn single(wish: &Descriptor, limits: &Limits, sequence: u64) -> Flight {
        let member = Member::new(*wish, !limits.takes(wish, false));
        Flight::new(*wish, vec![member], false, sequence)
    }

    /// Whether the list of `wish` may be looked at.
    pub fn is_batch(wish: &Descriptor) -> bool {
        let flags = Flags::COMPLETION_VALID.0 | Flags::REQUEST_COMPLETION.0;
        wish.opcode() == Opcode::BATCH
            && wish.flags().0 == flags
            && has_record(wish)
            && (wish.pasid, wish.reserved, wish.interrupt_handle, wish.target) == (0, 0, 0, 0)
            && wish.operation == [0; 3]
            && wish.source.is_multiple_of(64)
            && (memlift_spec::limits::BATCH_MIN..=memlift_spec::limits::BATCH_MAX).contains(&wish.size)
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

    /// What the device may have now, at most `room` descriptors.
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

    /// What the CPU is to do now: which member, what, and whether it is one of a batch.
    pub fn for_cpu(&mut self) -> Option<(usize, Descriptor, bool)> {
        if self.whole {
            return None;
        }
        let stretch = self.stretch();
        let waits = |index: &usize| self.members[*index].stage == Stage::Cpu;
        let index = (self.from..stretch).find(waits)?;
        Some((index, self.members[index].for_cpu(), self.is_batch))
    }

    /// What the CPU said.
    pub fn performed(&mut self, index: usize, done: &Completion) {
        self.members[index].performed(done);
    }

    /// Whether any fault happened, for the counters.
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
