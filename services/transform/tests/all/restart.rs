// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Framed chains that stop after any block and go on.

use crate::chains::transforms;
use crate::corpus::{NONCE, key, text};
use memlift_transform::{Chain, Error, Format, Options, Packing, Progress, Step, Transfer};

#[test]
fn a_transfer_that_is_resumed_after_every_block_gives_the_same_bytes() {
    let key = key();
    for transform in transforms() {
        let source = text(50_001);
        let crc = Step::Crc32c { seed: 5 };
        let pack = Step::Pack { format: Format::Gzip, packing: Packing::Default };
        let seal = Step::Seal { key: &key, nonce: NONCE, aad: b"why" };
        let chain = Chain::framed(&[crc, pack, seal], 4096).unwrap();
        let bound = chain.bound(source.len()).unwrap();
        let mut whole = vec![0; bound];
        let done = transform.copy(&chain, &source, &mut whole).unwrap();

        let options = Options::default();
        let mut target = vec![0; bound];
        let mut progress = Progress::default();
        let outcome = loop {
            let mut transfer =
                Transfer::resume(&transform, &chain, &source, &mut target, &options, progress).unwrap();
            let finished = transfer.advance(1).unwrap();
            progress = transfer.progress();
            if finished {
                break transfer.finish().unwrap();
            }
            assert_eq!(
                transfer.finish().unwrap_err(),
                Error::Order("not all blocks are done: advance first")
            );
        };
        assert_eq!(progress.blocks, 13);
        assert_eq!((outcome.written, outcome.crc), (done.written, done.crc));
        assert_eq!(target[..done.written], whole[..done.written]);

        let open = Step::Open { key: &key, nonce: NONCE, aad: b"why", tag: [0; 16] };
        let back = Chain::framed(&[open, Step::Unpack { format: Format::Gzip }, crc], 4096).unwrap();
        let mut plain = vec![0; source.len()];
        let frames = &target[..done.written];
        let mut progress = Progress::default();
        for step in [1, 5, 2, 100] {
            let mut transfer =
                Transfer::resume(&transform, &back, frames, &mut plain, &options, progress).unwrap();
            transfer.advance(step).unwrap();
            progress = transfer.progress();
        }
        assert_eq!((progress.blocks, progress.crc), (13, done.crc.unwrap()));
        assert_eq!(plain, source);
    }
}

#[test]
fn after_a_bad_block_the_progress_stands_before_it() {
    let key = key();
    let transform = &transforms()[0];
    let source = text(40_960);
    let seal = Step::Seal { key: &key, nonce: NONCE, aad: b"" };
    let chain = Chain::framed(&[seal], 4096).unwrap();
    let mut frames = vec![0; chain.bound(source.len()).unwrap()];
    transform.copy(&chain, &source, &mut frames).unwrap();
    frames[64 + 3 * (4096 + 32) + 40] ^= 1;
    let open = Step::Open { key: &key, nonce: NONCE, aad: b"", tag: [0; 16] };
    let back = Chain::framed(&[open], 4096).unwrap();
    let mut plain = vec![0; source.len()];
    let mut transfer = Transfer::new(transform, &back, &frames, &mut plain, &Options::default()).unwrap();
    assert_eq!(transfer.advance(10), Err(Error::WrongTag));
    assert_eq!(transfer.progress().blocks, 3);
    drop(transfer);
    assert_eq!(plain[..3 * 4096], source[..3 * 4096]);
    assert!(plain[3 * 4096..].iter().all(|&byte| byte == 0));
}

#[test]
fn a_progress_that_cannot_be_is_refused() {
    let key = key();
    let transform = &transforms()[0];
    let source = text(40_960);
    let chain = Chain::framed(&[Step::Seal { key: &key, nonce: NONCE, aad: b"" }], 4096).unwrap();
    let mut target = vec![0; chain.bound(source.len()).unwrap()];
    let bad = [
        Progress { blocks: 11, source_bytes: 40_960, target_bytes: 500, crc: 0 },
        Progress { blocks: 1, source_bytes: 4097, target_bytes: 64 + 4128, crc: 0 },
        Progress { blocks: 1, source_bytes: 4096, target_bytes: 3, crc: 0 },
        Progress { blocks: 1, source_bytes: 4096, target_bytes: u64::MAX, crc: 0 },
        Progress { blocks: u64::MAX, source_bytes: u64::MAX, target_bytes: u64::MAX, crc: 0 },
    ];
    for progress in bad {
        let options = Options::default();
        let resumed = Transfer::resume(transform, &chain, &source, &mut target, &options, progress);
        assert!(matches!(resumed, Err(Error::Order(_))), "{progress:?}");
    }
}
