// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A neighbour on another core. It either suffers from what we do to the caches, or makes us suffer.
//!
//! - **Flow** `start` ─▶ thread pinned to the second core ─▶ works while `awake`, counts what it has done
//! - **Owner** dropping it ends the thread

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::{BenchError, pin};

/// Work that a neighbour does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Follows a random cycle through so many bytes; counts lines.
    Chase(usize),
    /// Copies between two buffers of so many bytes; counts bytes.
    Copy(usize),
}

#[derive(Debug, Default)]
struct Shared {
    ends: AtomicBool,
    awake: AtomicBool,
    done: AtomicU64,
}

/// A running neighbour.
#[derive(Debug)]
pub struct Neighbour {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbour {
    /// Starts it on this core, asleep.
    pub fn start(work: Work, core: usize) -> Result<Neighbour, BenchError> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("neighbour".to_owned())
            .spawn(move || {
                // Where pinning fails it may run on any core, and is a neighbour all the same.
                let _ = pin::hold(None, core);
                match work {
                    Work::Chase(bytes) => chase(bytes, &theirs),
                    Work::Copy(bytes) => copy(bytes, &theirs),
                }
            })
            .map_err(BenchError::system("starting a thread"))?;
        Ok(Neighbour { shared, thread: Some(thread) })
    }

    /// Lets it work, or sleep.
    pub fn wake(&self, awake: bool) {
        self.shared.awake.store(awake, Ordering::Relaxed);
    }

    /// Returns the work done so far: lines or bytes, see [`Work`].
    pub fn done(&self) -> u64 {
        self.shared.done.load(Ordering::Relaxed)
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the neighbour has been printed already.
            let _ = thread.join();
        }
    }
}

/// Calls `turn` while awake; ends when the owner ends it.
fn work(shared: &Shared, mut turn: impl FnMut() -> u64) {
    while !shared.ends.load(Ordering::Relaxed) {
        if shared.awake.load(Ordering::Relaxed) {
            let done = turn();
            shared.done.fetch_add(done, Ordering::Relaxed);
        } else {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn chase(bytes: usize, shared: &Shared) {
    const WORDS: usize = 16;
    const STEPS: u64 = 4096;
    let lines = (bytes / 64).max(2);
    let mut order: Vec<u32> = (0..lines as u32).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for index in (1..lines).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(index, (state >> 33) as usize % (index + 1));
    }
    let mut next = vec![0_u32; lines * WORDS];
    for (index, &line) in order.iter().enumerate() {
        next[line as usize * WORDS] = order[(index + 1) % lines];
    }
    let mut at = 0;
    work(shared, || {
        for _ in 0..STEPS {
            at = next[at as usize * WORDS];
        }
        std::hint::black_box(at);
        STEPS
    });
}

fn copy(bytes: usize, shared: &Shared) {
    const PART: usize = 256 << 10;
    let source = vec![3_u8; bytes];
    let mut target = vec![5_u8; bytes];
    let mut at = 0;
    work(shared, || {
        let end = (at + PART).min(bytes);
        target[at..end].copy_from_slice(std::hint::black_box(&source[at..end]));
        std::hint::black_box(&mut target);
        let done = end - at;
        at = if end == bytes { 0 } else { end };
        done as u64
    });
}
