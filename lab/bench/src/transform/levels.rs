// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `flush/…` and `level/…`: memlift's libz against the system's, through the same calls, at the same level.
//!
//! - **Flush** `flush/SIZE/FILE/LEVEL`: messages of one stream, each ended by `Z_SYNC_FLUSH`, as in WebSocket's permessage-deflate, SSH and SSE
//! - **Level** `level/LEVEL/FILE`: a whole file in one call, `deflateReset` before each
//! - **Check** all that a side wrote is unpacked with the system's zlib and compared before a pair counts; samples of a side write the same bytes
//! - **Size** over all messages, per thousand of what zlib writes at the same level

use super::Stop;
use super::corpus::{self, Corpus};
use super::libz::{Libz, Packing};
use crate::definition::Definition;
use crate::pairs::{self, Side};
use crate::{BenchError, Row};

/// Bytes of all messages of a stream.
const STREAM_BYTES: usize = 256 << 10;
const STREAM_BYTES_QUICK: usize = 32 << 10;
/// Room for a flushed message besides its bytes.
const FLUSH_BYTES: usize = 64;
const SAMPLE_S: f64 = 5e-3;

/// Row that a name asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Levels {
    /// File or kind of the messages.
    pub kind: corpus::Kind,
    /// Level of zlib, 1 to 9.
    pub level: u32,
    /// Bytes of a flushed message; `None`: a whole file at once.
    pub flushed: Option<usize>,
}

/// One side: its stream, and what it wrote last.
struct Packer {
    packing: Packing,
    packed: Vec<u8>,
    used: usize,
}

impl Packer {
    fn new(libz: Libz, row: Levels, corpus: &Corpus) -> Result<Packer, BenchError> {
        let most = corpus.messages().map(|message| message.len() + message.len() / 8 + FLUSH_BYTES).sum();
        Ok(Packer { packing: libz.packing(row.level)?, packed: vec![0; most], used: 0 })
    }

    fn fill(&mut self, row: Levels, corpus: &Corpus) -> Result<(), BenchError> {
        self.packing.reset();
        self.used = 0;
        for message in corpus.messages() {
            let room = &mut self.packed[self.used..];
            self.used += match row.flushed {
                Some(_) => self.packing.flush(message, room)?,
                None => self.packing.finish(message, room)?,
            };
        }
        Ok(())
    }
}

/// Measures a row.
pub(super) fn row(definition: &Definition, row: Levels, quick: bool) -> Result<Row, Stop> {
    let corpus = match row.flushed {
        Some(bytes) => {
            let stream_bytes = if quick { STREAM_BYTES_QUICK } else { STREAM_BYTES };
            Corpus::new(row.kind, bytes, stream_bytes / bytes, quick)
        }
        None => Corpus::whole(row.kind, quick),
    }
    .map_err(Stop::Missing)?;
    let both = Libz::both().map_err(Stop::Missing)?;
    let [_, zlib] = both;
    let name = definition.name.as_str();
    let source: Vec<u8> = corpus.messages().flatten().copied().collect();
    let (mut sides, mut right) = (Vec::new(), Vec::new());
    for (libz, who) in both.into_iter().zip(["memlift", "zlib"]) {
        let mut side = Packer::new(libz, row, &corpus)?;
        side.fill(row, &corpus)?;
        let packed = side.packed[..side.used].to_vec();
        let mut target = vec![0; source.len() + 1];
        let bytes = zlib.unpack(&packed, &mut target)?;
        if target[..bytes] != source {
            return Err(BenchError::Wrong { name: name.to_owned(), rival: who.to_owned() }.into());
        }
        sides.push(side);
        right.push(packed);
    }
    let mut turn = |side: Side, passes: usize| {
        let index = usize::from(side == Side::Theirs);
        let took = pairs::time(corpus.count() * passes, || {
            (0..passes).try_for_each(|_| sides[index].fill(row, &corpus))
        })?;
        if sides[index].packed[..sides[index].used] != right[index] {
            return Err(BenchError::Wrong { name: name.to_owned(), rival: format!("{side:?}") });
        }
        Ok(took)
    };
    let probe = turn(Side::Ours, 1)?;
    let passes = pairs::passes(quick, SAMPLE_S, corpus.count(), probe);
    let samples = pairs::interleave(quick, |side| turn(side, passes))?;

    let mut measured = Row::new(definition);
    measured.cpu_s = samples.cpu_s;
    let permille = (right[0].len() * 1000).div_ceil(right[1].len());
    measured.count.insert("size_permille".to_owned(), permille as u64);
    let share = |packed: &[u8]| packed.len() as f64 / source.len() as f64;
    measured.qualifies = format!(
        "{}; raw deflate, level {}, windowBits 15, memLevel 8, {}; ours: {:.4} of the input; theirs: {}, {:.4}; one thread",
        corpus.about,
        row.level,
        if row.flushed.is_some() { "each message flushed" } else { "one call" },
        share(&right[0]),
        zlib.version(),
        share(&right[1]),
    );
    Ok(measured.measured(definition, &samples.pairs, quick))
}
