// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One operation that a device and the CPU execute in turn, until it has ended.
//!
//! - **Flow** Ready ──▶ InDevice ──▶ `answered`: it is done, or a part of it, or it had a fault ──▶ Ready, or Cpu ──▶ `performed` ──▶ Ready,
//!   or Done.
//! - **Rule** the part that a fault's record reports as done counts; the CPU executes the next part, across the missing page, and the
//!   device gets the rest. After [`FAULTS_MAX`] faults, if little is left, or if the device refused or failed, the CPU executes all of
//!   the rest. If an unknown part of an overlapping copy was done, the copy cannot be repeated, and the error is returned.
//! - **Not here** the memory of records, and batches: see `flight`.

use crate::rest::{Progress, cut, is_repeatable, is_resumable, rest};
use memlift_spec::{Completion, Descriptor, Opcode, Status};

/// Number of faults after which the CPU does the rest: each further page would cost more to find out than to process.
const FAULTS_MAX: u32 = 2;
/// Bytes that the CPU processes after a fault: past the end of the page that faulted, in every operand.
const CROSSING_BYTES: u64 = 8192;
/// A smaller rest is not worth another submission to the device.
const TRIP_BYTES_MIN: u32 = 64 * 1024;

/// State of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// It may be submitted to the device.
    Ready,
    /// The device has it.
    InDevice,
    /// The CPU executes its next part.
    Cpu,
    /// The operation has ended.
    Done(Completion),
}

/// An operation that has not ended.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub submitted: Descriptor,
    progress: Progress,
    /// The descriptor that was last given to the device or the CPU.
    pub piece: Descriptor,
    pub faults: u32,
    /// True if it must not be given to the device any more.
    pub cpu_only: bool,
    pub stage: Stage,
}

/// Returns a record that contains only a status.
pub(crate) const fn ended(status: Status) -> Completion {
    Completion { status: status.0, ..Completion::PENDING }
}

impl Member {
    pub fn new(submitted: Descriptor, cpu_only: bool) -> Member {
        let stage = if cpu_only { Stage::Cpu } else { Stage::Ready };
        Member { submitted, progress: Progress::default(), piece: submitted, faults: 0, cpu_only, stage }
    }

    pub fn rest(&self) -> Descriptor {
        rest(&self.submitted, &self.progress)
    }

    pub fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done(_))
    }

    /// Handles the device's answer for `piece`.
    pub fn answered(&mut self, done: &Completion) {
        let resumable = is_resumable(self.submitted.opcode());
        match Status(done.status().code()) {
            Status::SUCCESS | Status::SUCCESS_PREDICATE => self.advance(done),
            Status::PAGE_FAULT | Status::PAGE_RESPONSE_INVALID if resumable => self.faulted(done),
            status => self.failed(status),
        }
    }

    fn faulted(&mut self, done: &Completion) {
        let backward = self.submitted.opcode() == Opcode::MEMMOVE && done.result == 1;
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

    /// Handles an operation that did not run, or whose progress is unknown.
    fn failed(&mut self, status: Status) {
        let refused = matches!(status.code(), 0x10..=0x19 | 0x1b..=0x1e);
        self.cpu_only = true;
        self.stage = match refused || is_repeatable(&self.rest()) {
            true => Stage::Cpu,
            false => Stage::Done(ended(Status(status.code()))),
        };
    }

    /// Records that `piece` was done.
    fn advance(&mut self, done: &Completion) {
        let opcode = self.submitted.opcode();
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
        let bytes_completed = if differs {
            self.progress.front.saturating_add(done.bytes_completed)
        } else {
            self.submitted.size
        };
        self.stage =
            Stage::Done(Completion { result, bytes_completed, value, ..ended(Status(done.status().code())) });
    }

    /// Returns the CPU's next descriptor.
    pub fn for_cpu(&mut self) -> Descriptor {
        let rest = self.rest();
        let crosses =
            self.faults > 0 && self.faults <= FAULTS_MAX && !self.cpu_only && rest.size > TRIP_BYTES_MIN;
        self.piece = if crosses { cut(&rest, CROSSING_BYTES) } else { rest };
        self.piece
    }

    /// Handles the CPU's result.
    pub fn performed(&mut self, done: &Completion) {
        if self.progress.is_none() && self.piece.size == self.submitted.size {
            self.stage = Stage::Done(*done);
        } else if done.status().is_success() {
            self.advance(done);
        } else {
            self.stage = Stage::Done(*done);
        }
    }
}
