// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests: steps, chains of steps, options, and the result.
//!
//! - **Flow** `Chain::new` or `Chain::framed` checks the steps once and makes a `Plan`, which runs any number of times.
//! - **Layout** a flat chain writes the bytes that its steps would write one after the other; a framed chain writes the format of
//!   `docs/formats/transform.md`.
//!
//! | chain | steps, in this order |
//! |---|---|
//! | flat | crc?, one of {copy, seal, open, pack, unpack, pack + seal, open + unpack}, crc? |
//! | framed, forward | crc?, pack, seal? · or crc?, seal |
//! | framed, back | open?, unpack, crc? · or open, crc? |

use crate::{Decision, Error, Key};
use memlift_place::{Cache, adaptive_effort};
use memlift_spec::{Effort, Format};
use std::time::Duration;

/// How small packing makes the output, at the cost of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Packing {
    /// The output is at most 1.09 times as long as that of zlib's level 6, also while the caches are contended.
    #[default]
    Default,
    /// The output is at most 1.28 times as long as that of zlib's level 6.
    Fast,
    /// The output is about as long as that of zlib's level 6, or shorter.
    Small,
    /// `Default`, but `Fast` while the caches are contended, because contention slows the large tables of `Default` most.
    Adaptive,
}

impl Packing {
    /// Returns the effort of the codec, given if the caches are contended.
    pub(crate) fn effort(self, contended: bool) -> Effort {
        match self {
            Packing::Fast => Effort::Fast,
            Packing::Small => Effort::Small,
            Packing::Default => Effort::Default,
            Packing::Adaptive => adaptive_effort(contended),
        }
    }
}

/// One operation on the bytes that are copied.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Step<'a> {
    /// Copies without a change.
    Copy,
    /// CRC-32C of the bytes that pass this step.
    Crc32c {
        /// 0, or the checksum of the bytes before, if these continue them.
        seed: u32,
    },
    /// Encrypts and authenticates with AES-GCM. A (key, nonce) pair must seal one message only.
    Seal {
        /// Key of AES-128 or AES-256.
        key: &'a Key,
        /// In a framed chain the last five bytes count blocks and must be zero.
        nonce: [u8; 12],
        /// Bytes that are authenticated but not sealed.
        aad: &'a [u8],
    },
    /// Decrypts and checks a sealed message. In a framed chain the tags are in the frames, and `tag` is ignored.
    Open {
        /// Key of AES-128 or AES-256.
        key: &'a Key,
        /// Nonce that the message was sealed with.
        nonce: [u8; 12],
        /// Additional data that the message was sealed with.
        aad: &'a [u8],
        /// Tag that sealing returned.
        tag: [u8; 16],
    },
    /// Compresses the source.
    Pack {
        /// Format of the compressed bytes.
        format: Format,
        /// How small the output becomes, at the cost of time.
        packing: Packing,
    },
    /// Decompresses the stream at the start of the source; in a chain after opening, the opened bytes must be exactly one
    /// stream. An LZ4 block has no end mark: the whole source belongs to it, and a block that was cut between two of its
    /// sequences decodes without error to a shorter message. To detect a cut, seal the block or use frames.
    Unpack {
        /// Format of the compressed bytes.
        format: Format,
    },
}

/// Steps that are run together, block by block, so that memory is read once and written once.
#[derive(Clone, Debug)]
pub struct Chain<'a> {
    pub(crate) plan: Plan<'a>,
}

/// The operation of a chain between its two optional checksums.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body<'a> {
    Copy,
    Cipher { seals: bool, key: &'a Key, nonce: [u8; 12], aad: &'a [u8], tag: [u8; 16] },
    Pack { format: Format, packing: Packing },
    Unpack { format: Format },
    PackSeal { format: Format, packing: Packing, key: &'a Key, nonce: [u8; 12], aad: &'a [u8] },
    OpenUnpack { format: Format, key: &'a Key, nonce: [u8; 12], aad: &'a [u8], tag: [u8; 16] },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'a> {
    /// Seed of the checksum over the bytes read.
    pub before: Option<u32>,
    pub body: Body<'a>,
    /// Seed of the checksum over the bytes written.
    pub after: Option<u32>,
    /// Plain bytes of each block of a framed chain; `None` for a flat chain.
    pub block_bytes: Option<usize>,
}

/// Smallest block of a framed chain, bytes. Block sizes are multiples of 4096.
pub const BLOCK_BYTES_MIN: usize = 4096;
/// Largest block of a framed chain, bytes.
pub const BLOCK_BYTES_MAX: usize = 64 * 1024;

impl<'a> Chain<'a> {
    /// Makes a flat chain, which writes the bytes that its steps would write one after the other.
    ///
    /// # Errors
    ///
    /// [`Error::Chain`] if the steps are in an order that is not supported; its message says why.
    pub fn new(steps: &[Step<'a>]) -> Result<Chain<'a>, Error> {
        Ok(Chain { plan: Plan::new(steps)? })
    }

    /// Makes a chain over blocks of `block_bytes` (a multiple of 4096, from 4 to 64 KiB). Each block has a frame of its own, so a
    /// transfer can stop after any block and resume, and each block can be read by itself.
    ///
    /// # Errors
    ///
    /// [`Error::Chain`] if the steps are in an order that is not supported, or `block_bytes` is out of range.
    pub fn framed(steps: &[Step<'a>], block_bytes: usize) -> Result<Chain<'a>, Error> {
        let mut plan = Plan::new(steps)?;
        if !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes) || !block_bytes.is_multiple_of(4096) {
            return Err(Error::Chain("blocks of a framed chain are whole pages, 4 to 64 KiB"));
        }
        let nonce = match plan.body {
            Body::Cipher { nonce, .. } | Body::PackSeal { nonce, .. } | Body::OpenUnpack { nonce, .. } => {
                nonce
            }
            _ => [0; 12],
        };
        if nonce[7..] != [0; 5] {
            return Err(Error::Chain(
                "the last five bytes of a framed chain's nonce count its blocks: leave them zero, and do not use \
                 the first seven twice with one key",
            ));
        }
        let forward = match plan.body {
            Body::Copy => return Err(Error::Chain("a framed chain packs, seals, unpacks or opens")),
            Body::Cipher { seals, .. } => seals,
            Body::Pack { .. } | Body::PackSeal { .. } => true,
            Body::Unpack { .. } | Body::OpenUnpack { .. } => false,
        };
        let outside = if forward { plan.after } else { plan.before };
        if outside.is_some() {
            return Err(Error::Chain("the checksum of a framed chain is over the plain bytes"));
        }
        plan.block_bytes = Some(block_bytes);
        Ok(Chain { plan })
    }

    /// Returns the target bytes that always suffice for `bytes` bytes of source; `None` for a chain that unpacks.
    pub fn bound(&self, bytes: usize) -> Option<usize> {
        self.plan.bound(bytes)
    }
}

const GRAMMAR: Error = Error::Chain(
    "a chain is a checksum or none, then one of copy, seal, open, pack, unpack, pack + seal, open + unpack, then a \
     checksum or none",
);

impl<'a> Plan<'a> {
    pub fn new(steps: &[Step<'a>]) -> Result<Plan<'a>, Error> {
        let mut plan = Plan { before: None, body: Body::Copy, after: None, block_bytes: None };
        let mut begun = false;
        for step in steps {
            if plan.after.is_some() && !matches!(step, Step::Copy) {
                return Err(GRAMMAR);
            }
            plan.body = match (*step, plan.body) {
                (Step::Copy, body) => body,
                (Step::Crc32c { seed }, body) if begun => {
                    plan.after = Some(seed);
                    body
                }
                (Step::Crc32c { seed }, body) if plan.before.is_none() => {
                    plan.before = Some(seed);
                    body
                }
                (Step::Seal { key, nonce, aad }, Body::Copy) => {
                    Body::Cipher { seals: true, key, nonce, aad, tag: [0; 16] }
                }
                (Step::Open { key, nonce, aad, tag }, Body::Copy) => {
                    Body::Cipher { seals: false, key, nonce, aad, tag }
                }
                (Step::Pack { format, packing }, Body::Copy) => Body::Pack { format, packing },
                (Step::Unpack { format }, Body::Copy) => Body::Unpack { format },
                (Step::Seal { key, nonce, aad }, Body::Pack { format, packing }) => {
                    Body::PackSeal { format, packing, key, nonce, aad }
                }
                (Step::Unpack { format }, Body::Cipher { seals: false, key, nonce, aad, tag }) => {
                    Body::OpenUnpack { format, key, nonce, aad, tag }
                }
                _ => return Err(GRAMMAR),
            };
            begun |= !matches!(plan.body, Body::Copy);
        }
        Ok(plan)
    }

    pub fn bound(&self, bytes: usize) -> Option<usize> {
        if let Some(block_bytes) = self.block_bytes {
            return crate::frame::bound(bytes, block_bytes).filter(|_| {
                matches!(
                    self.body,
                    Body::Cipher { seals: true, .. } | Body::Pack { .. } | Body::PackSeal { .. }
                )
            });
        }
        match self.body {
            Body::Copy | Body::Cipher { .. } => Some(bytes),
            Body::Pack { format, .. } | Body::PackSeal { format, .. } => {
                Some(crate::codec::bound(format, bytes))
            }
            Body::Unpack { .. } | Body::OpenUnpack { .. } => None,
        }
    }
}

/// Operation of a transform: one step, or a chain.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Op<'a> {
    /// A single step.
    Step(Step<'a>),
    /// Several steps in one pass.
    Chain(Chain<'a>),
}

impl<'a> From<Step<'a>> for Op<'a> {
    fn from(step: Step<'a>) -> Op<'a> {
        Op::Step(step)
    }
}

impl<'a> From<Chain<'a>> for Op<'a> {
    fn from(chain: Chain<'a>) -> Op<'a> {
        Op::Chain(chain)
    }
}

impl<'a> From<&Chain<'a>> for Op<'a> {
    fn from(chain: &Chain<'a>) -> Op<'a> {
        Op::Chain(chain.clone())
    }
}

impl<'a> Op<'a> {
    pub(crate) fn plan(&self) -> Plan<'a> {
        match self {
            Op::Step(step) => Plan::new(&[*step]).expect("one step is a chain"),
            Op::Chain(chain) => chain.plan,
        }
    }

    /// Returns the target bytes that always suffice for `bytes` bytes of source; `None` for an operation that unpacks.
    pub fn bound(&self, bytes: usize) -> Option<usize> {
        self.plan().bound(bytes)
    }
}

/// Behaviour when all scratch memory is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Patience {
    /// Waits until a slab is free.
    #[default]
    Wait,
    /// Gives [`Error::Busy`] immediately.
    None,
    /// Waits at most this long, then gives [`Error::Busy`].
    AtMost(Duration),
}

/// How a transform is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Where the caller says the buffers are cached; `Hot` also says that the target is read next.
    pub cache: Cache,
    /// If true, bytes of the target become visible in ascending order, line by line.
    pub ordered: bool,
    /// Behaviour when all scratch memory is in use.
    pub patience: Patience,
}

/// Result of a transform.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Outcome {
    /// Bytes of the source that were read (unpacking stops at the stream's end).
    pub read: usize,
    /// Bytes of the target that were written.
    pub written: usize,
    /// Tag of the sealed message; `None` if nothing was sealed or the tags are in frames.
    pub tag: Option<[u8; 16]>,
    /// CRC-32C of the first checksum step: over the bytes read if it is the chain's first step, else over the bytes written; in a
    /// framed chain over the plain bytes. `None` if the chain has no checksum.
    pub crc: Option<u32>,
    /// CRC-32C of the second checksum step, over the bytes written; `None` if the chain has only one or none.
    pub crc_after: Option<u32>,
    /// Placement of the message, with its reason.
    pub decision: Decision,
}
