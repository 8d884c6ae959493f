// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The scratch pool under threads: bounded, and what happens when it is in use.

use crate::chains::settings;
use crate::corpus::{NONCE, key, text};
use memlift_ground::config::{Placement, TransformConfig};
use memlift_offload::Engine;
use memlift_transform::{Chain, Error, Format, Options, Packing, Patience, Step, Transfer, Transform};
use std::time::Duration;

fn two_slabs() -> Transform {
    let settings = TransformConfig {
        scratch_bytes: 2 * memlift_transform::SLAB_BYTES as u64,
        ..settings(Placement::Temporal)
    };
    Transform::new(Engine::global(), &settings)
}

#[test]
fn more_threads_than_slabs_all_get_their_turn_and_their_bytes() {
    let transform = two_slabs();
    let key = key();
    std::thread::scope(|scope| {
        for thread in 0..6u8 {
            let (transform, key) = (&transform, &key);
            scope.spawn(move || {
                let source = text(30_000 + usize::from(thread) * 777);
                let pack = Step::Pack { format: Format::Zlib, packing: Packing::Default };
                let mut nonce = NONCE;
                for round in 0..30 {
                    (nonce[0], nonce[1]) = (thread, round);
                    let seal = Step::Seal { key, nonce, aad: b"" };
                    let chain = Chain::framed(&[pack, seal], 8192).unwrap();
                    let mut frames = vec![0; chain.bound(source.len()).unwrap()];
                    let written = transform.copy(&chain, &source, &mut frames).unwrap().written;
                    let open = Step::Open { key, nonce, aad: b"", tag: [0; 16] };
                    let back = Chain::framed(&[open, Step::Unpack { format: Format::Zlib }], 8192).unwrap();
                    let mut plain = vec![0; source.len()];
                    transform.copy(&back, &frames[..written], &mut plain).unwrap();
                    assert_eq!(plain, source);
                }
            });
        }
    });
    let stats = transform.scratch_stats();
    assert_eq!((stats.taken, stats.in_use, stats.refused), (6 * 30 * 2, 0, 0));
    assert!(stats.slabs <= 2 && stats.in_use_max <= 2);
}

#[test]
fn a_pool_in_use_says_busy_or_lets_wait() {
    let transform = two_slabs();
    let source = text(20_000);
    let pack = Step::Pack { format: Format::Zlib, packing: Packing::Default };
    let chain = Chain::framed(&[pack], 4096).unwrap();
    let bound = chain.bound(source.len()).unwrap();
    let (mut first, mut second, mut third) = (vec![0; bound], vec![0; bound], vec![0; bound]);
    let options = Options { patience: Patience::None, ..Options::default() };
    let held = Transfer::new(&transform, &chain, &source, &mut first, &options).unwrap();
    let held2 = Transfer::new(&transform, &chain, &source, &mut second, &options).unwrap();
    let error = transform.copy_with(&chain, &source, &mut third, &options).unwrap_err();
    assert_eq!(error, Error::Busy { slabs: 2 });
    let brief = Options { patience: Patience::AtMost(Duration::from_millis(20)), ..options };
    let error = transform.copy_with(pack, &source, &mut third, &brief).unwrap_err();
    assert_eq!(error, Error::Busy { slabs: 2 });
    let stats = transform.scratch_stats();
    assert_eq!((stats.refused, stats.waits, stats.in_use), (2, 1, 2));
    // Copies and seals that go straight from source to target need none.
    transform.copy_with(Step::Copy, &source, &mut third, &options).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| transform.copy(pack, &source, &mut third));
        drop(held);
        assert!(waiting.join().unwrap().is_ok());
    });
    drop(held2);
    assert_eq!(transform.scratch_stats().in_use, 0);
}
