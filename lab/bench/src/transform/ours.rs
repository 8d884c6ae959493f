// SPDX-License-Identifier: Apache-2.0 OR MIT
//! memlift's transforms as a contender: the service as a program would call it, on raw memory.
//!
//! - **Order** a chain's blocks stay in the second-level cache from the first step to the last
//! - **Owner** every [`Ours`] has a scratch pool and a placement of its own, so that none learns from another

use std::sync::Arc;

use memlift_ground::config::{Config, Placement};
use memlift_offload::Engine;
use memlift_transform::{Chain, Key, Op, Options, Outcome, Step, Transform};

use super::openssl::TAG_BYTES;
use crate::BenchError;
use crate::area::Part;

/// The transform service, and the key of its messages.
#[derive(Debug)]
pub(super) struct Ours {
    transform: Transform,
    key: Arc<Key>,
}

/// Placement of the results.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Placing {
    /// As the user has configured it.
    Configured,
    /// Adaptively; neighbours may be slowed by so many percent.
    Adaptive(u32),
    /// The same placement for every message.
    Fixed(Placement),
}

impl Ours {
    /// A service of its own.
    pub fn new(key: &[u8; 16], placing: Placing) -> Result<Ours, BenchError> {
        let wrong = |reason: String| BenchError::Engine { reason };
        let config = Config::load().map_err(|error| wrong(error.to_string()))?;
        let mut settings = config.transform;
        match placing {
            Placing::Configured => {}
            Placing::Adaptive(slowdown_percent) => {
                settings.placement = Placement::Adaptive;
                settings.slowdown_percent = slowdown_percent;
            }
            Placing::Fixed(placement) => settings.placement = placement,
        }
        Ok(Ours {
            transform: Transform::new(Engine::global(), &settings),
            key: Key::new(key).map_err(|error| wrong(error.to_string()))?,
        })
    }

    /// Copies and seals one message.
    pub fn copy_seal(
        &self,
        nonce: &[u8; 12],
        source: Part<'_>,
        target: Part<'_>,
    ) -> Result<[u8; TAG_BYTES], BenchError> {
        let step = Step::Seal { key: &self.key, nonce: *nonce, aad: b"" };
        Ok(self.run(step, source, target)?.tag.expect("sealing gives a tag"))
    }

    /// One message in blocks, with the CRC-32C of the plaintext.
    pub fn copy_crc_seal(
        &self,
        nonce: &[u8; 12],
        source: Part<'_>,
        target: Part<'_>,
    ) -> Result<([u8; TAG_BYTES], u32), BenchError> {
        let seal = Step::Seal { key: &self.key, nonce: *nonce, aad: b"" };
        let chain = Chain::new(&[Step::Crc32c { seed: 0 }, seal]).map_err(refused)?;
        let outcome = self.run(chain, source, target)?;
        Ok((outcome.tag.expect("sealing gives a tag"), outcome.crc.expect("a checksum was asked for")))
    }

    /// One message and its CRC-32C.
    pub fn copy_crc(&self, source: Part<'_>, target: Part<'_>) -> Result<u32, BenchError> {
        let chain = Chain::new(&[Step::Crc32c { seed: 0 }, Step::Copy]).map_err(refused)?;
        Ok(self.run(chain, source, target)?.crc.expect("a checksum was asked for"))
    }

    fn run<'a>(
        &self,
        op: impl Into<Op<'a>>,
        source: Part<'_>,
        target: Part<'_>,
    ) -> Result<Outcome, BenchError> {
        // SAFETY: both parts are mapped for their bytes, in areas that only the calling thread uses. The bench seals the
        // same plaintext under a nonce every time.
        unsafe {
            self.transform.copy_raw(
                op,
                (source.start(), source.bytes()),
                (target.start(), target.bytes()),
                &Options::default(),
            )
        }
        .map_err(refused)
    }
}

fn refused(error: memlift_transform::Error) -> BenchError {
    BenchError::Engine { reason: error.to_string() }
}
