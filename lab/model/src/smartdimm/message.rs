// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages that calls hand over, and what has to become of them by the standards' words (`naive`).
//!
//! - **Flow** [`Message::new`] from a number, the same everywhere ─▶ its lines, its [`Context`] ─▶ [`Message::right`] on each page that
//!   DRAM holds in the end

use super::dsa::{Context, deflate, tls};
use super::{Line, PAGE};
use crate::event::Random;
use crate::naive::{gcm, unpack};
use memlift_spec::Format;

/// The transform that calls ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ulp {
    /// A record of AES-128-GCM: text, and its tag behind it.
    Tls,
    /// Pages of text, each packed by itself.
    Deflate,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Message {
    plain: Vec<u8>,
    /// Expected bytes of a record; empty for Deflate, whose pages are unpacked and compared.
    wanted: Vec<u8>,
    /// The context that its device gets.
    pub context: Context,
}

/// Words of so many, with spaces.
pub(super) fn text(random: &mut Random, words: u64, bytes: u64) -> Vec<u8> {
    let mut text: Vec<u8> = Vec::new();
    while text.len() < bytes as usize {
        let mut word = Random::new(random.below(words));
        text.extend((0..2 + word.below(8)).map(|_| b'a' + word.below(26) as u8).chain([b' ']));
    }
    text.truncate(bytes as usize);
    text
}

impl Message {
    /// The message of a call, of so many pages.
    pub fn new(ulp: Ulp, number: u64, pages: u64) -> Message {
        let (bytes, mut random) = (pages * PAGE, Random::new(number));
        if ulp == Ulp::Deflate {
            let plain = text(&mut random, 400, bytes);
            return Message { plain, wanted: Vec::new(), context: Context::Deflate(PAGE) };
        }
        let plain: Vec<u8> = (0..bytes / 8).flat_map(|_| random.word().to_le_bytes()).collect();
        let length = bytes - tls::TAG;
        let key = random.word().to_le_bytes().repeat(2);
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&number.to_be_bytes());
        let keys = tls::Keys { key, nonce, aad: number.to_le_bytes()[..5].to_vec(), length };
        let (mut wanted, tag) = gcm(true, &keys.key, &keys.nonce, &keys.aad, &plain[..length as usize]);
        wanted.extend(tag);
        Message { plain, wanted, context: Context::Tls(keys) }
    }

    /// A line of it.
    pub fn line(&self, line: u64) -> Line {
        self.plain.as_chunks().0[line as usize]
    }

    /// Returns the tag; nothing for Deflate.
    pub fn tag(&self) -> &[u8] {
        match &self.context {
            Context::Tls(keys) => &self.wanted[keys.length as usize..],
            Context::Deflate(_) => &[],
        }
    }

    /// Returns true if a page is what its source makes; `size`: what the device said that it was packed to.
    pub fn right(&self, page: u64, found: &[u8], size: u64) -> bool {
        let part = (page * PAGE) as usize..((page + 1) * PAGE) as usize;
        match &self.context {
            Context::Tls(_) => found == &self.wanted[part],
            Context::Deflate(_) if size == deflate::RAW => found == &self.plain[part],
            Context::Deflate(_) => found
                .get(..size as usize)
                .and_then(|stream| unpack(Format::Deflate, stream, PAGE as usize).ok())
                .is_some_and(|unpacked| unpacked.bytes == self.plain[part] && unpacked.read as u64 == size),
        }
    }
}
