// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The speed of AES-128-GCM, each way of sealing against memcpy and sealing in place, beside their limits: the same bytes
//! only copied, past the caches or not, only read, and sealed in place where they are hot.
//!
//! - **Flow** per size, hot (one message in the caches) and cold (a random place of two pools of 64 MiB): rounds in
//!   which every way seals the same number of messages ──▶ medians of the times and of the ratios in a round
//!
//! `cargo run --release -p memlift-kernels --features aead --example aead_speed -- [BYTES…]`

use memlift_kernels::active;
use memlift_kernels::aead::{Key, Scatter, Stream};
use std::hint::black_box;
use std::time::Instant;

const POOL_BYTES: usize = 64 << 20;
const ROUNDS: usize = 31;
const ROUND_BYTES: usize = 2 << 20;
const WAYS: [&str; 10] = [
    "memcpy, seal in place",
    "seal",
    "seal_streaming",
    "seal_streaming, target + 5",
    "Stream",
    "Scatter",
    "limit: copy past the caches",
    "limit: memcpy",
    "limit: read",
    "limit: seal in place, hot",
];
const AAD: [u8; 13] = [1; 13];

struct Sealers<'key> {
    key: &'key Key,
    stream: Stream,
    scatter: Scatter<'key>,
    hot: Vec<u8>,
}

impl Sealers<'_> {
    /// # Safety
    /// `source` must be readable for `bytes` bytes, `target` writable for 5 more.
    unsafe fn seal(&mut self, way: usize, source: *const u8, target: *mut u8, bytes: usize) {
        let nonce = &[2; 12];
        // SAFETY: the source has `bytes` bytes and the target 5 more, as the caller vouches; every way stays inside.
        let tag = unsafe {
            match way {
                0 => {
                    core::ptr::copy_nonoverlapping(source, target, bytes);
                    self.key.seal(nonce, &AAD, target, target, bytes)
                }
                1 => self.key.seal(nonce, &AAD, source, target, bytes),
                2 => self.key.seal_streaming(nonce, &AAD, source, target, bytes).unwrap(),
                3 => self.key.seal_streaming(nonce, &AAD, source, target.add(5), bytes).unwrap(),
                4 => {
                    self.stream.restart(nonce);
                    self.stream.aad(&AAD);
                    self.stream.update(source, target, bytes);
                    self.stream.tag()
                }
                5 => {
                    self.scatter.restart(nonce, &AAD);
                    self.scatter.update(0, source, target, bytes).unwrap();
                    self.scatter.tag(bytes as u64).unwrap()
                }
                6 => {
                    (active().copy_nt)(target, source, bytes);
                    [0; 16]
                }
                7 => {
                    core::ptr::copy_nonoverlapping(source, target, bytes);
                    [0; 16]
                }
                8 => {
                    let words = core::slice::from_raw_parts(source.cast::<[u64; 4]>(), bytes / 32);
                    let add = |sum: [u64; 4], word: &[u64; 4]| core::array::from_fn(|at| sum[at] ^ word[at]);
                    let sum = words.iter().fold([0; 4], add);
                    (u128::from(sum[0] ^ sum[1]) | u128::from(sum[2] ^ sum[3]) << 64).to_le_bytes()
                }
                _ => self.key.seal(nonce, &AAD, self.hot.as_ptr(), self.hot.as_mut_ptr(), bytes),
            }
        };
        black_box(tag);
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let sizes: Vec<usize> =
        std::env::args().skip(1).map(|size| size.parse().expect("a number of bytes")).collect();
    let sizes = if sizes.is_empty() { vec![4096, 16384, 65536] } else { sizes };
    let key = Key::new(&[7; 16]).unwrap();
    let mut sealers = Sealers {
        key: &key,
        stream: Stream::seal(&key, &[2; 12]),
        scatter: Scatter::seal(&key, &[2; 12], &AAD),
        hot: vec![3; sizes.iter().copied().max().unwrap_or(0)],
    };
    let (source, mut target) = (vec![1u8; POOL_BYTES], vec![2u8; POOL_BYTES + 64]);
    let mut random = 1usize;
    for bytes in sizes {
        for cold in [false, true] {
            let mut times = vec![Vec::new(); WAYS.len()];
            let calls = (ROUND_BYTES / bytes).max(1);
            for _ in 0..ROUNDS {
                for (way, times) in times.iter_mut().enumerate() {
                    let start = Instant::now();
                    for _ in 0..calls {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let at = if cold { (random >> 33) % (POOL_BYTES / bytes) * bytes } else { 0 };
                        // SAFETY: `at` leaves `bytes` bytes in both, and 64 more in the target.
                        unsafe {
                            sealers.seal(way, source.as_ptr().add(at), target.as_mut_ptr().add(at), bytes)
                        };
                    }
                    times.push(start.elapsed().as_secs_f64() * 1e9 / calls as f64);
                }
            }
            for (way, name) in WAYS.iter().enumerate() {
                let ratios = times[0].iter().zip(&times[way]).map(|(rival, own)| rival / own).collect();
                let latency_ns = median(times[way].clone());
                println!(
                    "{bytes:8} {} {name:28} {latency_ns:9.0} ns {:6.2} GB/s {:5.2}×",
                    if cold { "cold" } else { "hot " },
                    bytes as f64 / latency_ns,
                    median(ratios),
                );
            }
        }
    }
}
