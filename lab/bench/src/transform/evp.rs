// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `evp/…`: AES-128-GCM of a libcrypto, through our provider and through its own.
//!
//! - **Check** ciphertexts and tags of both sides are the same bytes; what one side sealed, the other opens to what it was
//! - **Order** one context per side keeps its key; a message has its own nonce, as a TLS record has. Source and target are
//!   different buffers and fit in the second-level cache, so that the cipher is measured and not memory

use super::openssl::{Context, Libcrypto, Provider, TAG_BYTES};
use super::{Stop, corpus};
use crate::definition::Definition;
use crate::pairs::{self, Side};
use crate::{BenchError, Row, machine};

/// Bytes of all messages of a pass.
const PASS_BYTES: usize = 512 << 10;
const SAMPLE_S: f64 = 4e-3;
const KEY: [u8; 16] = *b"memlift, 16 byte";

/// Messages, what they become, and their tags.
struct Messages {
    bytes: usize,
    source: Vec<u8>,
    target: Vec<u8>,
    tags: Vec<[u8; TAG_BYTES]>,
}

impl Messages {
    fn new(bytes: usize, source: Vec<u8>) -> Messages {
        Messages {
            bytes,
            target: vec![0; source.len()],
            tags: vec![[0; TAG_BYTES]; source.len() / bytes],
            source,
        }
    }

    fn pass(&mut self, context: &mut Context) -> Result<(), BenchError> {
        let sources = self.source.chunks_exact(self.bytes);
        let targets = self.target.chunks_exact_mut(self.bytes);
        for (number, ((source, target), tag)) in sources.zip(targets).zip(&mut self.tags).enumerate() {
            let mut nonce = [0x5a; 12];
            nonce[4..].copy_from_slice(&(number as u64).to_be_bytes());
            context.message(&nonce, source, target, tag)?;
        }
        Ok(())
    }
}

/// Measures a row.
pub(super) fn row(definition: &Definition, seals: bool, bytes: usize, quick: bool) -> Result<Row, Stop> {
    let libcrypto = Libcrypto::open().map_err(Stop::Missing)?;
    let context = |provider, seals| libcrypto.context(provider, &KEY, seals);
    let mut ours = context(Provider::Memlift, seals).map_err(Stop::Missing)?;
    let mut theirs = context(Provider::Default, seals).map_err(Stop::Missing)?;
    let plain = corpus::random(PASS_BYTES / bytes * bytes);

    // The rival seals first. Its messages are the right result of sealing, and the input of opening.
    let mut right = Messages::new(bytes, plain.clone());
    right.pass(&mut context(Provider::Default, true).map_err(Stop::Missing)?)?;
    let (expected, mut messages) = if seals {
        (right.target.clone(), Messages::new(bytes, plain))
    } else {
        let mut messages = Messages::new(bytes, right.target);
        messages.tags.clone_from(&right.tags);
        (plain, messages)
    };

    let count = messages.tags.len();
    let mut passes = 1;
    let mut probed = quick;
    let samples = pairs::interleave(quick, |side| {
        messages.target.fill(0);
        let context = match side {
            Side::Ours => &mut ours,
            Side::Theirs => &mut theirs,
        };
        let took = pairs::time(count * passes, || (0..passes).try_for_each(|_| messages.pass(context)))?;
        if messages.target != expected || messages.tags != right.tags {
            let who = if side == Side::Ours { "memlift" } else { "openssl" };
            return Err(BenchError::Wrong { name: definition.name.clone(), rival: who.to_owned() });
        }
        if !probed && side == Side::Theirs {
            (passes, probed) = (pairs::passes(quick, SAMPLE_S, count, took), true);
        }
        Ok(took)
    })?;
    let mut row = Row::new(definition);
    row.cpu_s = samples.cpu_s;
    row.count.insert("messages".to_owned(), (count * passes) as u64);
    let gb_per_s = |index: usize| {
        let seconds =
            crate::median(samples.pairs.iter().map(|pair| if index == 0 { pair.0 } else { pair.1 }));
        bytes as f64 / seconds * 1e-9
    };
    row.qualifies = format!(
        "AES-128-GCM by {}: EVP_CipherInit_ex with a nonce, update, final, tag; hot, source and target apart; ours: \
         provider memlift, {:.2} GB/s; theirs: provider default, {:.2} GB/s; one thread; {}",
        libcrypto.version,
        gb_per_s(0),
        gb_per_s(1),
        machine::vectors(),
    );
    Ok(row.measured(definition, &samples.pairs, quick))
}
