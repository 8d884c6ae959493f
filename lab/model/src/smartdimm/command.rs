// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The time and the result of one CompCpy on one core: a TLS record is sealed, or a page is packed with Deflate.
//!
//! - **Flow** the text lies in source pages; lines that are dirty in the cache are flushed ─▶ [`register`] ─▶ the CPU reads the source
//!   line by line, which is its whole share of the work ─▶ USE (Algorithm 2): the destination is flushed, and the device writes its
//!   results there instead
//! - **Order** a page is packed from its first line to its last. A record's lines may also come last to first, as a prefetcher or a
//!   controller might reorder them
//! - **Not here** other cores and the cache (`host`)

use super::controller::Controller;
use super::device::{CONFIG, Device, Fault, result};
use super::dsa::{Context, deflate, tls};
use super::message::{Ulp, text};
use super::timing::Timing;
use super::{LINE, PAGE};
use crate::event::{Random, Time};

const LINES: u64 = PAGE / LINE;

/// Registers a page with a device: source page, destination page, which page of its message. Page 0 brings the context.
pub(super) fn register(
    channel: &mut Controller,
    pages: [u64; 3],
    context: &Context,
    channels: u32,
    now: Time,
) -> Result<(), Fault> {
    channel.drain(0)?;
    if pages[2] == 0 {
        for (line, data) in (1..).zip(context.lines(channels)) {
            channel.write(CONFIG + line * LINE, data, now)?;
        }
        channel.drain(0)?;
    }
    let mut line = [0; 64];
    for (at, word) in line.as_chunks_mut().0.iter_mut().zip(pages) {
        *at = word.to_le_bytes();
    }
    channel.write(CONFIG, line, now)?;
    channel.drain(0)
}

/// Time of one CompCpy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Took {
    /// Time on the core, from the begin until the result is in memory.
    pub core: Time,
    /// Part of it on the memory bus.
    pub bus: Time,
}

/// Copies a text through a device of its own. Returns the bytes at the destination, their count ([`deflate::RAW`] for a page that does
/// not become smaller) and the time. `hot`: the text is dirty in the cache.
fn compcpy(
    timing: &Timing,
    context: &Context,
    text: &[u8],
    ordered: bool,
    hot: bool,
) -> Result<(Vec<u8>, u64, Took), String> {
    let sealed = matches!(context, Context::Tls(_));
    let pages = pages(sealed, text.len() as u64);
    let device = Device::new(timing.scratchpad, timing.table, timing.cam, timing.compute, u64::MAX);
    let mut channel = Controller::new(timing, device);
    for (line, chunk) in (0..).zip(text.chunks(LINE as usize)) {
        let mut data = [0; 64];
        data[..chunk.len()].copy_from_slice(chunk);
        if hot {
            channel.write(line * LINE, data, Time::ZERO)?;
        } else {
            channel.device.set_dram(line * LINE, data);
        }
    }
    channel.drain(0)?;
    for page in 0..pages {
        register(&mut channel, [page, pages + page, page], context, 1, Time::ZERO)?;
    }
    let mut now = channel.now();
    let sealed_lines = (text.len() as u64 + tls::TAG).div_ceil(LINE);
    let lines: Vec<u64> = match (context, ordered) {
        // The device packs a page when it has all of it.
        (Context::Deflate(_), _) => (0..LINES).collect(),
        (Context::Tls(_), true) => (0..sealed_lines).collect(),
        (Context::Tls(_), false) => (0..sealed_lines).rev().collect(),
    };
    for line in &lines {
        now = channel.read(line * LINE, now)?.1 + timing.line;
    }
    let mut size = text.len() as u64 + if sealed { tls::TAG } else { 0 };
    if !sealed {
        let (line, there) = channel.read(result(pages), now)?;
        now = there;
        size = line.first_chunk().map_or(deflate::RAW, |word| u64::from_le_bytes(*word));
    }
    // Reading what is computed last waits for it. What the cache then writes back are plain lines.
    let of = |line: u64| pages * PAGE + line * LINE;
    now = channel.read(of(lines.last().copied().unwrap_or(0)), now)?.1;
    for line in &lines {
        channel.write(of(*line), [0; 64], now)?;
    }
    channel.drain(0)?;
    let took = Took { core: channel.now(), bus: channel.busy() };
    let mut out: Vec<u8> = (0..lines.len() as u64).flat_map(|line| channel.device.dram(of(line))).collect();
    out.truncate(usize::try_from(size).unwrap_or(usize::MAX));
    Ok((out, size, took))
}

/// Pages of a text's source, and of its destination.
fn pages(sealed: bool, bytes: u64) -> u64 {
    (bytes + if sealed { tls::TAG } else { 0 }).div_ceil(PAGE)
}

/// Most bytes of text that one CompCpy takes: a record with its tag, or a page.
#[must_use]
pub fn most(timing: &Timing, ulp: Ulp) -> u64 {
    if ulp == Ulp::Tls { timing.message * PAGE - tls::TAG } else { PAGE }
}

/// Runs a CompCpy of so many bytes of text, at most [`most`], and returns its time. `hot`: they are dirty in the cache.
///
/// # Errors
/// A fault of the device: a defect of this host.
pub fn took(timing: &Timing, ulp: Ulp, bytes: u64, hot: bool) -> Result<Took, String> {
    let words = text(&mut Random::new(1), 400, bytes);
    let context = match ulp {
        Ulp::Deflate => Context::Deflate(bytes),
        Ulp::Tls => {
            Context::Tls(tls::Keys { key: vec![1; 16], nonce: [2; 12], aad: Vec::new(), length: bytes })
        }
    };
    compcpy(timing, &context, &words, ulp == Ulp::Deflate, hot).map(|(_, _, took)| took)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{gcm, unpack};
    use memlift_spec::Format;

    fn keys(length: u64) -> tls::Keys {
        tls::Keys { key: vec![5; 16], nonce: [7; 12], aad: vec![6; 13], length }
    }

    #[test]
    fn a_sealed_text_is_that_of_gcm_in_either_order() {
        let (timing, mut random) = (Timing::shipped(), Random::new(1));
        for size in [1, 64, 4080, 4081, 4096, 9000, 16_368] {
            let text: Vec<u8> = (0..size).map(|_| random.word() as u8).collect();
            let (cipher, tag) = gcm(true, &[5; 16], &[7; 12], &[6; 13], &text);
            for ordered in [true, false] {
                let context = Context::Tls(keys(size));
                let (out, bytes, took) = compcpy(&timing, &context, &text, ordered, false).unwrap();
                assert_eq!(bytes, size + tls::TAG);
                assert_eq!(out, [&cipher[..], &tag[..]].concat(), "{size} {ordered}");
                assert!(took.core > Time::ZERO);
            }
        }
    }

    #[test]
    fn a_packed_page_unpacks_and_noise_stays_raw() {
        let timing = Timing::shipped();
        let text = b"some words that come again, and some words that come once more; ".repeat(20);
        let context = Context::Deflate(text.len() as u64);
        let (packed, bytes, _) = compcpy(&timing, &context, &text, true, false).unwrap();
        assert!(bytes * 2 < text.len() as u64);
        assert_eq!(unpack(Format::Deflate, &packed, 4096).unwrap().bytes, text);
        let mut random = Random::new(2);
        let noise: Vec<u8> = (0..4096).map(|_| random.word() as u8).collect();
        let (_, bytes, _) = compcpy(&timing, &Context::Deflate(4096), &noise, true, false).unwrap();
        assert_eq!(bytes, deflate::RAW);
    }

    #[test]
    fn a_cached_text_takes_longer() {
        let timing = Timing::shipped();
        for ulp in [Ulp::Tls, Ulp::Deflate] {
            let of = |bytes, hot| took(&timing, ulp, bytes, hot).unwrap();
            for bytes in [1, 1000, most(&timing, ulp)] {
                let (cold, hot) = (of(bytes, false), of(bytes, true));
                assert_eq!(cold, of(bytes, false));
                assert!(
                    cold.bus < cold.core && cold.core < hot.core && cold.bus < hot.bus,
                    "{cold:?} {hot:?}"
                );
            }
            assert!(of(1, false).core <= of(4096 - 16, false).core);
        }
    }
}
