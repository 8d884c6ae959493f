// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `PackStream` against one inflate of everything it wrote: pieces, flushes, small outputs, history, reset.
#![cfg(feature = "deflate")]

use memlift_kernels::deflate::{Effort, Flush, Format, PackStream, Unpacker};

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % sides
    }
}

fn message(dice: &mut Dice, bytes: usize) -> Vec<u8> {
    let mut message = Vec::with_capacity(bytes);
    while message.len() < bytes {
        // Rarely something long: a run, whose tokens may wait, or numbers, which are searched in another way.
        match dice.roll(600) {
            0 => message.extend(std::iter::repeat_n(7, dice.roll(90_000))),
            1 => {
                message.extend((0..dice.roll(9000) as u32).flat_map(|n| (n * 7 + n * n % 301).to_le_bytes()))
            }
            _ => {}
        }
        match dice.roll(4) {
            0 => message.extend((0..dice.roll(40)).map(|_| dice.roll(256) as u8).collect::<Vec<_>>()),
            1 => message.extend(b"<div class=\"page\">"),
            2 if !message.is_empty() => {
                let back = 1 + dice.roll(message.len().min(40_000));
                let from = message.len() - back;
                for at in from..from + dice.roll(400) {
                    message.push(message[at]);
                }
            }
            _ => message.extend(std::iter::repeat_n(b' ', dice.roll(9))),
        }
    }
    message.truncate(bytes);
    message
}

/// Pushes until nothing more comes, with outputs of random sizes.
fn push(stream: &mut PackStream, dice: &mut Dice, mut input: &[u8], flush: Flush, packed: &mut Vec<u8>) {
    let sizes = [1, 7, 100, 5000, 100_000];
    loop {
        let mut output = vec![0; sizes[dice.roll(sizes.len())]];
        let pushed = stream.push(input, &mut output, flush);
        packed.extend(&output[..pushed.written]);
        input = &input[pushed.read..];
        if input.is_empty() && !pushed.more {
            return;
        }
    }
}

#[test]
fn pieces_and_flushes_come_back() {
    let mut dice = Dice(11);
    let mut stream = PackStream::new(Format::Raw, Effort::Default);
    let mut unpacker = Unpacker::new();
    for round in 0..60 {
        let format = [Format::Raw, Format::Zlib, Format::Gzip][round % 3];
        let effort = [Effort::Fast, Effort::Default, Effort::Small][dice.roll(3)];
        stream.reset(format, effort);
        let bytes = dice.roll([100, 5000, 70_000, 400_000][round % 4]);
        let message = message(&mut dice, bytes);
        let mut packed = Vec::new();
        let mut rest = &message[..];
        while !rest.is_empty() {
            let most = [10, 3000, 100_000][dice.roll(3)];
            let (piece, after) = rest.split_at(dice.roll(most).min(rest.len()));
            let flush = [Flush::None, Flush::None, Flush::Sync, Flush::Full][dice.roll(4)];
            push(&mut stream, &mut dice, piece, flush, &mut packed);
            rest = after;
        }
        push(&mut stream, &mut dice, &[], Flush::Finish, &mut packed);
        assert!(stream.is_finished());
        let mut again = vec![0; bytes];
        let unpacked = unpacker.unpack(format, &packed, &mut again).expect("valid");
        assert_eq!((unpacked.read, unpacked.written), (packed.len(), bytes));
        assert!(again == message, "round {round}");
    }
}
