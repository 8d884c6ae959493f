// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One CompCpy of one core, from a descriptor: SEAL of AES-GCM, PACK of Deflate.
//!
//! Flow     refused? ─▶ the text lies in source pages; what of it is dirty in the cache is flushed ─▶ [`register`] ─▶ the CPU reads the
//!          source line by line, which is all that it does of the work ─▶ USE (Algorithm 2): the destination is flushed, and the
//!          device puts its results there instead ─▶ memory and record as the descriptor wants
//! Order    ordered: from the first line to the last. Else SEAL's lines come last to first, as a prefetcher or a controller might turn
//!          them round; PACK is always ordered
//! Rule     what the device has no context for is `None`, and the CPU's: no text, more than a call's pages, additional data of more than
//!          a block, a page that does not become smaller
//! Not here other cores and the cache (`host`)

use super::controller::Controller;
use super::device::{CONFIG, Device, Fault, result};
use super::dsa::{Context, deflate, tls};
use super::message::{Ulp, text};
use super::timing::Timing;
use super::{LINE, PAGE};
use crate::event::{Random, Time};
use crate::execute::ended;
use crate::memory::Memory;
use crate::refuse::refuse;
use memlift_spec::{Completion, Descriptor, Format, Opcode, Status};

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

/// What a descriptor asks of the device.
fn context(memory: &impl Memory, d: &Descriptor) -> Option<Context> {
    let (block, length) = (d.operation[0], u64::from(d.size));
    match d.opcode() {
        Opcode::SEAL => {
            let bytes = memory.number(block + 40, 8);
            (bytes <= 16).then(|| {
                Context::Tls(tls::Keys {
                    key: memory.bytes(memory.number(block + 8, 8), memory.number(block + 16, 4)),
                    nonce: std::array::from_fn(|at| memory.byte(block + 48 + at as u64)),
                    aad: memory.bytes(memory.number(block + 32, 8), bytes),
                    length,
                })
            })
        }
        Opcode::PACK if Format::from_code(memory.byte(block + 8)) == Some(Format::Deflate) => {
            (length <= PAGE).then_some(Context::Deflate(length))
        }
        _ => None,
    }
}

/// What one CompCpy takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Took {
    /// From its begin until the result is in memory: the core's.
    pub core: Time,
    /// Of it, the memory bus's.
    pub bus: Time,
}

/// Copies a text through a device of its own: what becomes of it, for PACK its bytes ([`deflate::RAW`]: it stayed as it was), and what
/// that took. `hot`: the text is dirty in the cache.
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

/// What a CompCpy of so many bytes of text takes, at most [`most`], by running it. `hot`: they are dirty in the cache.
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

/// Runs a descriptor on a device of its own: what its record says, and how long it took; `None` if the device does not take it.
///
/// # Errors
/// A fault of the device: a defect of this host.
pub fn run(
    timing: &Timing,
    memory: &mut impl Memory,
    d: &Descriptor,
    ordered: bool,
) -> Result<Option<(Completion, Time)>, String> {
    if let Some(status) = refuse(memory, d, false) {
        return Ok(Some((ended(status), Time::ZERO)));
    }
    let Some(context) = context(memory, d).filter(|_| d.size > 0) else { return Ok(None) };
    let sealed = matches!(context, Context::Tls(_));
    if pages(sealed, u64::from(d.size)) > timing.message {
        return Ok(None);
    }
    let text = memory.bytes(d.source, u64::from(d.size));
    let (out, size, took) = compcpy(timing, &context, &text, ordered, false)?;
    if size == deflate::RAW {
        return Ok(None);
    }
    let done = Completion { bytes_completed: d.size, ..ended(Status::SUCCESS) };
    if sealed {
        memory.put(d.target, &out[..text.len()]);
        memory.put(d.operation[0] + 64, &out[text.len()..]);
        return Ok(Some((done, took.core)));
    }
    if size > memory.number(d.operation[0] + 16, 8) {
        return Ok(Some((ended(Status::TARGET_TOO_SMALL), took.core)));
    }
    memory.put(d.target, &out);
    Ok(Some((Completion { value: size, ..done }, took.core)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execute;
    use crate::memory::Image;
    use crate::naive::unpack;
    use memlift_spec::Flags;

    const BLOCK: u64 = 0x100;
    const SOURCE: u64 = 0x1000;
    const TARGET: u64 = 0x8000;

    /// A descriptor of so many bytes, and the memory that it lies in.
    fn asked(opcode: Opcode, size: u32, text: &[u8]) -> (Vec<u8>, Descriptor) {
        let mut bytes = vec![0; 0x10000];
        let mut memory = Image { base: 0, bytes: &mut bytes };
        memory.put(SOURCE, text);
        let mut d = Descriptor::new(opcode, Flags::COMPLETION_VALID.with(Flags::REQUEST_COMPLETION));
        (d.source, d.target, d.size) = (SOURCE, TARGET, size);
        d.operation[0] = BLOCK;
        memory.put(BLOCK, &[opcode.0, 1]);
        if opcode == Opcode::SEAL {
            memory.put(BLOCK + 2, &128_u16.to_le_bytes());
            for (at, word) in [(8, 0x40), (16, 16), (32, 0x60), (40, 13)] {
                memory.put(BLOCK + at, &u64::to_le_bytes(word));
            }
            memory.put(0x40, &[5; 16]);
            memory.put(0x60, &[6; 13]);
            memory.put(BLOCK + 48, &[7; 12]);
        } else {
            memory.put(BLOCK + 2, &64_u16.to_le_bytes());
            memory.put(BLOCK + 16, &u64::to_le_bytes(4096));
        }
        d.completion_address = 0x20;
        (bytes, d)
    }

    #[test]
    fn seal_is_what_the_descriptor_means_in_either_order() {
        let (timing, mut random) = (Timing::shipped(), Random::new(1));
        for size in [1, 64, 4080, 4081, 4096, 9000, 16_368] {
            let text: Vec<u8> = (0..size).map(|_| random.word() as u8).collect();
            let (mut wanted, d) = asked(Opcode::SEAL, size, &text);
            let record = execute::perform(&mut Image { base: 0, bytes: &mut wanted }, &d, false);
            assert_eq!(record.status, Status::SUCCESS.0);
            for ordered in [true, false] {
                let (mut bytes, d) = asked(Opcode::SEAL, size, &text);
                let (done, time) =
                    run(&timing, &mut Image { base: 0, bytes: &mut bytes }, &d, ordered).unwrap().unwrap();
                assert!(done == record && bytes == wanted && time > Time::ZERO, "{size} {ordered}");
            }
        }
    }

    #[test]
    fn a_page_that_is_packed_unpacks_and_the_rest_is_the_cpu_s() {
        let timing = Timing::shipped();
        let text = b"some words that come again, and some words that come once more; ".repeat(20);
        let (mut bytes, d) = asked(Opcode::PACK, text.len() as u32, &text);
        let mut memory = Image { base: 0, bytes: &mut bytes };
        let (done, _) = run(&timing, &mut memory, &d, true).unwrap().unwrap();
        let packed = memory.bytes(TARGET, done.value);
        assert!(done.value * 2 < text.len() as u64);
        assert_eq!(unpack(Format::Deflate, &packed, 4096).unwrap().bytes, text);
        memory.put(BLOCK + 16, &u64::to_le_bytes(done.value - 1));
        assert_eq!(
            run(&timing, &mut memory, &d, true).unwrap().unwrap().0.status,
            Status::TARGET_TOO_SMALL.0
        );
        let mut random = Random::new(2);
        let noise: Vec<u8> = (0..4096).map(|_| random.word() as u8).collect();
        for (opcode, size) in
            [(Opcode::PACK, 4096), (Opcode::PACK, 4097), (Opcode::SEAL, 16_369), (Opcode::MEMMOVE, 64)]
        {
            let (mut bytes, mut d) = asked(opcode, size, &noise);
            if opcode == Opcode::MEMMOVE {
                d.operation[0] = 0;
            }
            assert_eq!(
                run(&timing, &mut Image { base: 0, bytes: &mut bytes }, &d, true),
                Ok(None),
                "{opcode:?} {size}"
            );
        }
    }

    #[test]
    fn what_a_call_takes_is_the_machine_s_and_more_if_its_text_is_cached() {
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
        let text = b"some words that come again; ".repeat(100);
        let (_, d) = asked(Opcode::PACK, text.len() as u32, &text);
        let mut bytes = asked(Opcode::PACK, text.len() as u32, &text).0;
        let (_, time) = run(&timing, &mut Image { base: 0, bytes: &mut bytes }, &d, true).unwrap().unwrap();
        assert_eq!(time, took(&timing, Ulp::Deflate, text.len() as u64, false).unwrap().core);
    }
}
