// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Transforms that another core runs meanwhile: single steps as operations of the engine.
//!
//! Flow     `Submission` ──▶ worker queue, or (too small for the hand-over, or no worker idle) the caller's own queue
//!          ──▶ `Ticket`
//! Owner    buffers move into the operation and come back with the outcome; a lease on a region is staged, because
//!          another process may change its bytes
//! Not here chains: their steps run one after the other on one core, so `copy` is their call

use crate::{Key, Transform};
use memlift_engine::observe::Executor;
use memlift_engine::submit::{Operation, Queue, Rejected, SealOptions, Source, Target, Ticket};
use memlift_engine::{Cache, codec};
use memlift_spec::{Effort, Format, Opcode};
use std::sync::{Arc, OnceLock};

/// Most operations that wait for their submitter.
const OWN_DEPTH: usize = 64;
/// Nanoseconds that a hand-over costs where it was not measured.
const HAND_OVER_NS: f64 = 30_000.0;

/// One step with its buffers.
#[derive(Debug)]
#[non_exhaustive]
pub enum Submission {
    /// AES-GCM.
    Seal {
        /// Read.
        source: Source,
        /// Written, as many bytes.
        target: Target,
        /// The key.
        key: Arc<Key>,
        /// Seals one message, ever.
        nonce: [u8; 12],
        /// Checked, not sealed.
        aad: Vec<u8>,
    },
    /// The reverse.
    Open {
        /// Read.
        source: Source,
        /// Written, as many bytes; zeroed if the tag is wrong.
        target: Target,
        /// The key.
        key: Arc<Key>,
        /// As it was sealed with.
        nonce: [u8; 12],
        /// As it was sealed with.
        aad: Vec<u8>,
        /// What sealing gave.
        tag: [u8; 16],
    },
    /// Compresses.
    Pack {
        /// Read.
        source: Source,
        /// Written; its size is the capacity.
        target: Target,
        /// How it is encoded.
        format: Format,
        /// How hard to try.
        effort: Effort,
    },
    /// Decompresses.
    Unpack {
        /// Read.
        source: Source,
        /// Written; its size is the capacity.
        target: Target,
        /// How it is encoded.
        format: Format,
    },
}

impl Submission {
    /// Packs into a new vector that has room for whatever comes out.
    pub fn pack(source: impl Into<Source>, format: Format, effort: Effort) -> Submission {
        let source = source.into();
        let target = Target::zeroed(codec::bound(format, source.bytes()));
        Submission::Pack { source, target, format, effort }
    }

    /// Seals into a new vector.
    pub fn seal(source: impl Into<Source>, key: Arc<Key>, nonce: [u8; 12], aad: Vec<u8>) -> Submission {
        let source = source.into();
        let target = Target::zeroed(source.bytes());
        Submission::Seal { source, target, key, nonce, aad }
    }

    fn into_operation(self) -> Operation {
        let cache = Cache::Auto;
        match self {
            Submission::Seal { source, target, key, nonce, aad } => {
                Operation::Seal { source, target, seal: Box::new(SealOptions { key, nonce, aad, cache }) }
            }
            Submission::Open { source, target, key, nonce, aad, tag } => Operation::Open {
                source,
                target,
                seal: Box::new(SealOptions { key, nonce, aad, cache }),
                tag,
            },
            Submission::Pack { source, target, format, effort } => {
                Operation::Pack { source, target, format, effort }
            }
            Submission::Unpack { source, target, format } => Operation::Unpack { source, target, format },
        }
    }
}

/// Nanoseconds that a step takes about, by its size: enough to tell it from a hand-over.
fn about_ns(opcode: Opcode, bytes: usize) -> f64 {
    let ns_per_byte = match opcode {
        Opcode::PACK => 2.0,
        Opcode::UNPACK => 0.8,
        _ => 0.12,
    };
    bytes as f64 * ns_per_byte
}

impl Transform {
    /// Who would run a submission of this size now: a worker, or whoever waits for its ticket.
    pub fn executor(&self, opcode: Opcode, bytes: usize) -> Executor {
        let thresholds = self.engine().placer().loaded().calibration.thresholds;
        let hand_over_ns = match thresholds.hand_off_ns {
            0 => HAND_OVER_NS,
            measured => measured as f64,
        };
        let worker = self.engine().worker();
        let there = worker.threads() > 0;
        if there && about_ns(opcode, bytes) > hand_over_ns {
            Executor::Worker
        } else {
            Executor::InlineTemporal
        }
    }

    /// Queues a step. On the caller's own queue it runs when its ticket is waited for.
    ///
    /// # Errors
    ///
    /// [`Rejected`] with the operation in it: the queue is full, or the buffers do not fit.
    pub fn submit(&self, submission: Submission) -> Result<Ticket, Rejected> {
        static OWN: OnceLock<Queue> = OnceLock::new();
        let operation = submission.into_operation();
        match self.executor(operation.opcode(), operation.bytes()) {
            Executor::Worker => self.engine().submit(operation),
            _ => OWN.get_or_init(|| self.engine().inline_queue(OWN_DEPTH)).submit(operation),
        }
    }
}
