// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Framed chains: restarted anywhere they write the same; their frames, changed by somebody, do no harm, and sealed ones
//! never give another message.
//!
//! - **Layout** steps u8 · format u8 · block u8 · room u8 · message: length u16 · pauses: 4 bytes · changes: place u16, what u8 · rest:
//!   bytes put behind

use crate::mutate::{Random, messages};
use crate::{Guarded, Input};
use memlift_ground::config::{Config, TransformConfig};
use memlift_offload::Engine;
use memlift_transform::{Chain, Format, Key, Options, Packing, Progress, Step, Transfer, Transform};
use std::sync::OnceLock;

const NONCE: [u8; 12] = [1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0, 0];

fn transform() -> &'static Transform {
    static TRANSFORM: OnceLock<Transform> = OnceLock::new();
    let settings = || TransformConfig { scratch_bytes: 1 << 20, ..Config::defaults().transform };
    TRANSFORM.get_or_init(|| Transform::new(Engine::global(), &settings()))
}

/// The steps of a chain: a checksum, packing, sealing.
#[derive(Clone, Copy)]
struct Kind {
    crc: bool,
    pack: bool,
    seal: bool,
}

impl Kind {
    fn chains<'a>(self, format: Format, key: &'a Key, block_bytes: usize) -> [Chain<'a>; 2] {
        let crc = self.crc.then_some(Step::Crc32c { seed: 0 });
        let seal = self.seal.then_some(Step::Seal { key, nonce: NONCE, aad: b"fuzz" });
        let pack = self.pack.then_some(Step::Pack { format, packing: Packing::Default });
        let open = self.seal.then_some(Step::Open { key, nonce: NONCE, aad: b"fuzz", tag: [0; 16] });
        let unpack = self.pack.then_some(Step::Unpack { format });
        [[crc, pack, seal], [open, unpack, crc]].map(|steps| {
            let steps: Vec<Step<'_>> = steps.into_iter().flatten().collect();
            Chain::framed(&steps, block_bytes).expect("a chain that there is")
        })
    }
}

/// Runs a chain that is stopped after some blocks, again and again; gives the bytes written.
fn restarted(
    chain: &Chain<'_>,
    source: &[u8],
    target: &mut [u8],
    pauses: &[u8],
) -> Result<usize, memlift_transform::Error> {
    let options = Options::default();
    let mut progress = Progress::default();
    for turn in 0_usize.. {
        let mut transfer = Transfer::resume(transform(), chain, source, target, &options, progress)?;
        let blocks = pauses.get(turn).map_or(u64::MAX, |&pause| u64::from(pause % 4));
        if transfer.advance(blocks)? {
            return Ok(transfer.finish()?.written);
        }
        progress = transfer.progress();
    }
    unreachable!("the last turn has no end")
}

/// Panics when something is wrong.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let steps = input.byte();
    let mut kind = Kind { crc: steps & 1 != 0, pack: steps & 2 != 0, seal: steps & 4 != 0 };
    kind.pack |= !kind.seal;
    let format = input.pick(&Format::ALL);
    let block_bytes = input.pick(&[4096, 8192, 65_536]);
    let room_choice = input.byte();
    let piece = input.piece(4000);
    let message: Vec<u8> = piece.iter().copied().cycle().take(piece.len() * 5).collect();
    let pauses = input.take(4);
    let key = Key::new(&[3; 16]).expect("a length that there is");
    let [forward, back] = kind.chains(format, &key, block_bytes);

    let mut frames = Guarded::new(forward.bound(message.len()).expect("few blocks"), 0);
    let written = restarted(&forward, &message, frames.get(), pauses).expect("the bound suffices");
    let frames = frames.checked()[..written].to_vec();
    let mut whole = vec![0; forward.bound(message.len()).expect("few blocks")];
    let done = transform().copy(&forward, &message, &mut whole).expect("the same once more");
    assert_eq!(done.written, written);
    assert!(whole[..written] == frames, "a restarted chain wrote other bytes");
    let mut again = Guarded::new(message.len(), 0);
    assert_eq!(restarted(&back, &frames, again.get(), pauses), Ok(message.len()));
    assert!(again.checked() == message);

    let mut hostile = frames.clone();
    for _ in 0..1 + steps / 64 {
        let (place, what) = (input.word(), input.byte());
        match what % 4 {
            0 => hostile.truncate(place % (hostile.len() + 1)),
            1 if hostile.len() > 32 => {
                let at = place % (hostile.len() - 32);
                hostile.drain(at..at + 32);
            }
            _ if !hostile.is_empty() => {
                let at = if what & 4 == 0 { place % 96.min(hostile.len()) } else { place % hostile.len() };
                hostile[at] ^= what | 1;
            }
            _ => {}
        }
    }
    hostile.extend_from_slice(input.rest());
    let mut target = Guarded::new(message.len() * usize::from(room_choice % 4) / 2, 0x5a);
    let result = restarted(&back, &hostile, target.get(), pauses);
    target.checked();
    if let (Ok(written), true) = (result, kind.seal) {
        assert!(target.checked()[..written] == message, "sealed frames gave another message");
    }
    let outcome = transform().copy(&back, &hostile, target.get()).map(|done| done.written);
    target.checked();
    if kind.seal {
        assert!(outcome.is_err() || target.checked()[..message.len()] == message);
    }
}

/// Messages behind each kind of chain.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut random = Random(11);
    let mut seeds = Vec::new();
    for message in messages() {
        for steps in [2, 3, 4, 5, 6, 7, 0xc7] {
            let message = &message[..message.len().min(3000)];
            let front = [steps, random.number() as u8, random.number() as u8, 2];
            let length = (message.len() as u16).to_le_bytes();
            let back = random.bytes(16);
            seeds.push([&front[..], &length, message, &back].concat());
        }
    }
    seeds
}
