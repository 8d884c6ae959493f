// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `pack/…` and `unpack/…`: gzip messages, against zlib as nginx calls it and against ISA-L called directly.
//!
//! - **Check** before a pair counts, every packed message is unpacked with zlib and compared; after every sample the bytes
//!   are compared with those
//! - **Size** over all messages, per thousand of what zlib writes at level 6; the definition limits it
//! - **Isal** the fastest level whose output keeps the same limit. The margin asked for leaves time no verdict, so both
//!   sides' instructions are counted on some messages (steps.rs); time stands beside them

use memlift_kernels::deflate::{Effort, Format, Packer, Unpacker, bound};

use super::corpus::{self, Corpus};
use super::isal::{self, Isal};
use super::zlib::Zlib;
use super::{Stop, steps};
use crate::definition::Definition;
use crate::pairs::{self, Samples, Side};
use crate::pin::Pinned;
use crate::{BenchError, Row};

/// Bytes of all messages of a pass: more than a first-level cache, less than a second-level one and its copies.
const PASS_BYTES: usize = 1 << 20;
const PASS_BYTES_QUICK: usize = 128 << 10;
const SAMPLE_S: f64 = 5e-3;
/// Messages whose instructions are counted.
const COUNTED: usize = 2;
/// Bytes of the one message whose instructions a quick run counts: each instruction takes microseconds.
const COUNTED_BYTES_QUICK: usize = 256;

/// Row that a name asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pack {
    /// Bytes of a message.
    pub bytes: usize,
    /// Kind of the messages' contents.
    pub kind: corpus::Kind,
    /// Effort: fast instead of default.
    pub fast: bool,
}

/// The packer of one side.
enum Packs {
    Memlift(Box<Packer>, Effort),
    Zlib(Zlib),
    Isal(Isal, u32),
}

impl Packs {
    fn pack(&mut self, source: &[u8], target: &mut [u8]) -> Result<usize, BenchError> {
        match self {
            Packs::Memlift(packer, effort) => packer
                .pack(Format::Gzip, *effort, source, target)
                .map_err(|error| BenchError::Engine { reason: error.to_string() }),
            Packs::Zlib(zlib) => zlib.pack(source, target),
            Packs::Isal(isal, level) => isal.pack(*level, source, target),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Packs::Memlift(..) => "memlift",
            Packs::Zlib(_) => "zlib6",
            Packs::Isal(..) => "isal",
        }
    }
}

/// Messages after packing, each in a slot of its own.
#[derive(Clone, PartialEq, Eq)]
struct Packed {
    slot_bytes: usize,
    slots: Vec<u8>,
    lengths: Vec<usize>,
}

impl Packed {
    fn new(corpus: &Corpus, bytes: usize) -> Packed {
        let slot_bytes = bound(Format::Gzip, bytes).max(bytes + 1024).next_multiple_of(64);
        Packed { slot_bytes, slots: vec![0; slot_bytes * corpus.count()], lengths: vec![0; corpus.count()] }
    }

    fn fill(&mut self, corpus: &Corpus, packs: &mut Packs) -> Result<(), BenchError> {
        let slots = self.slots.chunks_exact_mut(self.slot_bytes);
        for ((source, slot), length) in corpus.messages().zip(slots).zip(&mut self.lengths) {
            *length = packs.pack(source, slot)?;
        }
        Ok(())
    }

    fn messages(&self) -> impl Iterator<Item = &[u8]> {
        self.slots.chunks_exact(self.slot_bytes).zip(&self.lengths).map(|(slot, length)| &slot[..*length])
    }

    fn total(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// Packs everything once and unpacks it with zlib.
    fn verified(
        name: &str,
        corpus: &Corpus,
        bytes: usize,
        packs: &mut Packs,
        zlib: &Zlib,
    ) -> Result<Packed, BenchError> {
        let mut packed = Packed::new(corpus, bytes);
        packed.fill(corpus, packs)?;
        for (source, message) in corpus.messages().zip(packed.messages()) {
            zlib.verify(name, packs.name(), message, source)?;
        }
        Ok(packed)
    }
}

/// Measures a row `pack/…`.
pub(super) fn row(definition: &Definition, pack: Pack, quick: bool) -> Result<Row, Stop> {
    let corpus = corpus(pack.bytes, pack.kind, quick)?;
    let zlib = Zlib::open().map_err(Stop::Missing)?;
    let name = definition.name.as_str();
    let effort = if pack.fast { Effort::Fast } else { Effort::Default };
    let mut ours = Packs::Memlift(Box::new(Packer::new()), effort);
    let mut as_zlib = Packs::Zlib(zlib);
    let reference = Packed::verified(name, &corpus, pack.bytes, &mut as_zlib, &zlib)?;
    let permille = |packed: &Packed| (packed.total() * 1000).div_ceil(reference.total()) as u64;
    let ours_right = Packed::verified(name, &corpus, pack.bytes, &mut ours, &zlib)?;
    let (mut theirs, theirs_right) = match definition.rival.as_str() {
        "isal" => {
            let limit = definition.count_max.get("size_permille").copied().unwrap_or(u64::MAX);
            let mut isal = Packs::Isal(Isal::open(quick).map_err(Stop::Missing)?, 0);
            let mut packed = Packed::new(&corpus, pack.bytes);
            for level in isal::LEVELS {
                if let Packs::Isal(_, at) = &mut isal {
                    *at = level;
                }
                packed = Packed::verified(name, &corpus, pack.bytes, &mut isal, &zlib)?;
                if permille(&packed) <= limit {
                    break;
                }
            }
            (isal, packed)
        }
        _ => (as_zlib, reference.clone()),
    };

    let mut packed = Packed::new(&corpus, pack.bytes);
    let samples = measure(quick, corpus.count(), |side, passes| {
        let (packs, right) = match side {
            Side::Ours => (&mut ours, &ours_right),
            Side::Theirs => (&mut theirs, &theirs_right),
        };
        packed.slots.fill(0);
        let took = pairs::time(corpus.count() * passes, || {
            (0..passes).try_for_each(|_| packed.fill(&corpus, packs))
        })?;
        if !packed.messages().eq(right.messages()) {
            return Err(BenchError::Wrong { name: name.to_owned(), rival: packs.name().to_owned() });
        }
        Ok(took)
    })?;

    let mut row = Row::new(definition);
    row.cpu_s = samples.cpu_s;
    row.count.insert("size_permille".to_owned(), permille(&ours_right));
    row.count.insert("rival_size_permille".to_owned(), permille(&theirs_right));
    let growth = ours_right.lengths.iter().map(|length| length.saturating_sub(pack.bytes)).max();
    row.count.insert("growth_bytes".to_owned(), growth.unwrap_or(0) as u64);
    let rival = match &theirs {
        Packs::Isal(_, level) => {
            let level = *level;
            let (chosen, most) = if quick { (1, COUNTED_BYTES_QUICK) } else { (COUNTED, pack.bytes) };
            let messages: Vec<&[u8]> = corpus
                .messages()
                .step_by((corpus.count() / chosen).max(1))
                .take(chosen)
                .map(|message| &message[..message.len().min(most)])
                .collect();
            count_instructions(&mut row, &messages, &mut ours, &mut theirs, &mut packed);
            format!("isal_deflate_stateless level {level}, state reused")
        }
        _ => format!("{} level 6, initialised per message as nginx does", zlib.version()),
    };
    row.qualifies = format!(
        "{}; gzip; ours: {effort:?}, state reused, {:.3} of the input; theirs: {rival}, {:.3} of the input; zlib's level 6: \
         {:.3}; one thread",
        corpus.about,
        share(&ours_right, &corpus, pack.bytes),
        share(&theirs_right, &corpus, pack.bytes),
        share(&reference, &corpus, pack.bytes),
    );
    Ok(row.measured(definition, &samples.pairs, quick))
}

/// Measures a row `unpack/…`: what zlib packed at level 6.
pub(super) fn unpack_row(definition: &Definition, bytes: usize, quick: bool) -> Result<Row, Stop> {
    let corpus = corpus(bytes, corpus::Kind::Html, quick)?;
    let zlib = Zlib::open().map_err(Stop::Missing)?;
    let name = definition.name.as_str();
    let packed = Packed::verified(name, &corpus, bytes, &mut Packs::Zlib(zlib), &zlib)?;
    let source: Vec<u8> = corpus.messages().flatten().copied().collect();
    let mut target = vec![0; source.len()];
    let mut unpacker = Unpacker::new();
    let samples = measure(quick, corpus.count(), |side, passes| {
        target.fill(0);
        let took = pairs::time(corpus.count() * passes, || {
            for _ in 0..passes {
                for (message, target) in packed.messages().zip(target.chunks_exact_mut(bytes)) {
                    let written = match side {
                        Side::Ours => {
                            unpacker
                                .unpack(Format::Gzip, message, target)
                                .map_err(|error| BenchError::Engine { reason: error.to_string() })?
                                .written
                        }
                        Side::Theirs => zlib.unpack(message, target)?,
                    };
                    if written != bytes {
                        return Err(BenchError::Wrong { name: name.to_owned(), rival: format!("{side:?}") });
                    }
                }
            }
            Ok(())
        })?;
        if target != source {
            return Err(BenchError::Wrong { name: name.to_owned(), rival: format!("{side:?}") });
        }
        Ok(took)
    })?;
    let mut row = Row::new(definition);
    row.cpu_s = samples.cpu_s;
    row.qualifies = format!(
        "{}, packed by {} at level 6 to {:.3}; gzip, check value compared by both; ours: Unpacker, state reused; theirs: \
         inflateInit2, inflate, inflateEnd per message; one thread",
        corpus.about,
        zlib.version(),
        share(&packed, &corpus, bytes),
    );
    Ok(row.measured(definition, &samples.pairs, quick))
}

fn corpus(bytes: usize, kind: corpus::Kind, quick: bool) -> Result<Corpus, Stop> {
    let pass_bytes = if quick { PASS_BYTES_QUICK } else { PASS_BYTES };
    Corpus::new(kind, bytes, pass_bytes / bytes, quick).map_err(Stop::Missing)
}

/// Output per input.
fn share(packed: &Packed, corpus: &Corpus, bytes: usize) -> f64 {
    packed.total() as f64 / (corpus.count() * bytes) as f64
}

/// Interleaves; samples repeat as often as our side needs to make one long enough.
fn measure(
    quick: bool,
    count: usize,
    mut turn: impl FnMut(Side, usize) -> Result<pairs::Took, BenchError>,
) -> Result<Samples, BenchError> {
    let probe = turn(Side::Ours, 1)?;
    let passes = pairs::passes(quick, SAMPLE_S, count, probe);
    pairs::interleave(quick, |side| turn(side, passes))
}

/// Counts the instructions of both sides on these messages; leaves no count where stepping is not possible.
fn count_instructions(
    row: &mut Row,
    messages: &[&[u8]],
    ours: &mut Packs,
    theirs: &mut Packs,
    packed: &mut Packed,
) {
    // On one core tracer and traced hand over without waking another.
    let _pinned = Pinned::first(None);
    let (mut sums, count) = ([0, 0], messages.len() as u64);
    for source in messages {
        for (sum, packs) in sums.iter_mut().zip([&mut *ours, &mut *theirs]) {
            let slot = &mut packed.slots[..packed.slot_bytes];
            let mut call = || {
                std::hint::black_box(packs.pack(source, slot).is_ok());
            };
            let Some(count) = steps::instructions(&mut call) else { return };
            *sum += count;
        }
    }
    let [ours, theirs] = sums;
    row.count.insert("instructions".to_owned(), ours / count);
    row.count.insert("rival_instructions".to_owned(), theirs / count);
    row.count.insert("instructions_permille".to_owned(), (ours * 1000).div_ceil(theirs));
}
