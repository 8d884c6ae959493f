// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests a device before it is used: it must answer a NOOP, or a batch of them.
//!
//! - **Why** a portal can be mapped and lose every descriptor: ENQCMD without a PASID, a device that hangs, a queue that others keep full.
//! - **Owner** records and list are leaked if no answer came, because it may still come.

use crate::memory::Records;
use crate::portal::Portal;
use memlift_spec::{Descriptor, Flags, Opcode, Status};
use std::io;
use std::time::{Duration, Instant};

/// Reason why a queue that could be opened is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Untrusted {
    /// The portal did not accept a NOOP.
    #[error("the queue takes nothing: {0}; see `memlift doctor`")]
    Refused(io::Error),
    /// The queue is full and stays full.
    #[error(
        "the queue is full of others' work: give this program a queue of its own, or raise the queue's size"
    )]
    Full,
    /// The device accepted a NOOP and did not answer.
    #[error("the device took a NOOP and did not answer: disable and enable it with accel-config")]
    Silent,
    /// The device answered with something other than success.
    #[error("the device answered a NOOP with: {0}")]
    Failed(Status),
    /// There is no memory for the page that distinguishes a forked child from its parent.
    #[error("no page that a forked child would find empty: {0}")]
    Memory(io::Error),
}

/// Checks that the device answers `noops`: one, or several as a batch.
pub(crate) fn probe(portal: &dyn Portal, noops: &[Descriptor], patience: Duration) -> Result<(), Untrusted> {
    let asks = Flags::COMPLETION_VALID.with(Flags::REQUEST_COMPLETION);
    let head = noops.len();
    // The record of the batch is behind those of its members; a single NOOP uses the first record.
    let records = Records::new(head + 1);
    let mut list: Vec<Descriptor> = noops.to_vec();
    for (index, noop) in list.iter_mut().enumerate() {
        noop.add_flags(asks);
        noop.completion_address = records.address(index);
    }
    let (question, answer) = match *list {
        [noop] => (noop, 0),
        _ => {
            let mut batch = Descriptor::new(Opcode::BATCH, asks);
            (batch.source, batch.size) = (list.as_ptr().expose_provenance() as u64, head as u32);
            batch.completion_address = records.address(head);
            (batch, head)
        }
    };
    let start = Instant::now();
    loop {
        // SAFETY: records and list live until the device has answered, or are leaked.
        match unsafe { portal.offer(&[question]) } {
            Ok(0) if start.elapsed() > patience => return Err(Untrusted::Full),
            Ok(0) => std::thread::yield_now(),
            Ok(_) => break,
            Err(error) => return Err(Untrusted::Refused(error)),
        }
    }
    loop {
        match records.load(answer) {
            Some(done) if done.status() == Status::SUCCESS => return Ok(()),
            Some(done) => return Err(Untrusted::Failed(done.status())),
            None if start.elapsed() > patience => {
                std::mem::forget((records, list));
                return Err(Untrusted::Silent);
            }
            None => std::thread::yield_now(),
        }
    }
}
