// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts that all stores share: keys, values, checksums, the clock, and the queue to one writer.
//!
//! - **Draw** splitmix64; the key of loaded row i is its draw number i from [`LOADED_SEED`]; the value of a key is the reference
//!   pattern seeded with it
//! - **Sum** of a set of entries: wrapping sum of checksum(value) ^ key, so that order does not matter

use std::ffi::c_void;
use std::path::Path;
use std::sync::mpsc;
use std::time::Instant;

use heed::{Env, EnvFlags, EnvOpenOptions};

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

pub const VALUE_BYTES: usize = 64;
const LOADED_SEED: u64 = 0x6b65_7973;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

mod c {
    use std::ffi::c_void;

    unsafe extern "C" {
        pub fn memlift_reference_pattern(target: *mut c_void, bytes: usize, seed: u64);
        pub fn memlift_reference_checksum(source: *const c_void, bytes: usize) -> u64;
    }
}

/// Seeded random numbers (SplitMix64).
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Draw {
        Draw(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}

/// The key of a row that is loaded before anything is timed.
pub fn loaded_key(index: u64) -> u64 {
    Draw(LOADED_SEED.wrapping_add(index.wrapping_mul(STEP))).next()
}

/// The value of a key.
pub fn value(key: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    // SAFETY: the array is writable for its whole length.
    unsafe { c::memlift_reference_pattern(value.as_mut_ptr().cast::<c_void>(), VALUE_BYTES, key) };
    value
}

/// Of entries that were read.
#[derive(Default)]
pub struct Sum {
    pub checksum: u64,
    pub count: u64,
}

impl Sum {
    pub fn add(&mut self, key: u64, value: &[u8]) {
        // SAFETY: the slice is readable for its length; the routine only reads.
        let sum = unsafe { c::memlift_reference_checksum(value.as_ptr().cast::<c_void>(), value.len()) };
        self.checksum = self.checksum.wrapping_add(sum ^ key);
        self.count += 1;
    }
}

/// Seconds of wall time and of CPU time of all threads.
pub struct Timed {
    pub seconds: f64,
    pub cpu_s: f64,
}

pub fn time<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<(Timed, T), Failure> {
    let (cpu, start) = (cpu_seconds(), Instant::now());
    let value = work()?;
    let seconds = start.elapsed().as_secs_f64();
    Ok((Timed { seconds, cpu_s: cpu_seconds() - cpu }, value))
}

/// CPU time of this process, all threads.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is live and writable for the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    if result == 0 { time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9 } else { f64::NAN }
}

/// Opens LMDB's environment in a folder that nobody else uses.
pub fn lmdb_environment(folder: &Path, options: &mut EnvOpenOptions) -> Result<Env, Failure> {
    // SAFETY: LMDB wants that no other process truncates or writes the file, and that it is opened once in this process: the folder
    // was made for this process, which calls this once.
    Ok(unsafe { options.open(folder) }?)
}

/// Opens the environment that another process made there, for reading.
pub fn lmdb_reading(folder: &Path, options: &mut EnvOpenOptions) -> Result<Env, Failure> {
    // SAFETY: as in `lmdb_environment`: this process opens it once, and the one that made it writes through LMDB, which keeps what a
    // reader's transaction sees.
    Ok(unsafe { options.flags(EnvFlags::READ_ONLY).open(folder) }?)
}

/// Runs `commit` on batches of what the threads hand in; every thread waits for each of its inserts to be durable.
pub fn batch(
    threads: &[Vec<u64>],
    mut commit: impl FnMut(&[u64]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (sender, receiver) = mpsc::channel::<(u64, mpsc::SyncSender<()>)>();
    std::thread::scope(|scope| {
        for keys in threads {
            let sender = sender.clone();
            scope.spawn(move || {
                let (done, durable) = mpsc::sync_channel(1);
                for key in keys {
                    // Either fails when the writer has: then there is nothing more to do here.
                    if sender.send((*key, done.clone())).is_err() || durable.recv().is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let (mut keys, mut waiting) = (Vec::new(), Vec::new());
        while let Ok(first) = receiver.recv() {
            for (key, done) in std::iter::once(first).chain(receiver.try_iter()) {
                keys.push(key);
                waiting.push(done);
            }
            commit(&keys)?;
            keys.clear();
            for done in waiting.drain(..) {
                let _ = done.send(());
            }
        }
        Ok(())
    })
}
