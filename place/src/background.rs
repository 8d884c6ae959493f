// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Background calibration: an engine that copies much and has no numbers of this machine measures some, once.
//!
//! - **Flow** calls that are placed add their bytes ─▶ [`AFTER_BYTES`] are reached ─▶ one thread that yields to everybody
//!   else waits until a core is idle ─▶ measures for at most [`BUDGET`] of one core ─▶ `done` decides by it from then on
//! - **Order** no call waits: until the thread is done, and wherever it cannot measure, the built-in numbers serve
//! - **Owner** the thread is detached; it holds what it needs, and `stop` lets it end early. A forked child starts none.
//! - **Limits** a machine that is never quiet is given up after [`LOOKS`] looks; a file that says "not trusted" is believed
//!   for an hour (`store`)

use super::quiet::{cores, idle_cores};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of placed calls before measuring pays: about a tenth of a second of copies.
const AFTER_BYTES: u64 = 1 << 30;
/// Core time that it may take.
pub(super) const BUDGET: Duration = Duration::from_secs(1);
/// Looks for an idle core, each [`BETWEEN`] after the one before.
const LOOKS: usize = 600;
const BETWEEN: Duration = Duration::from_millis(500);

/// Starts the calibration of one engine, at most once.
#[derive(Debug, Default)]
pub struct Background {
    /// Bytes still to be copied before it starts; 0: it has started, or never will.
    left_bytes: AtomicU64,
    stop: Arc<AtomicBool>,
}

impl Background {
    /// Counts copies from now on if calibration is `wanted`.
    pub fn new(wanted: bool) -> Background {
        let left_bytes = AtomicU64::new(if wanted { AFTER_BYTES } else { 0 });
        Background { left_bytes, stop: Arc::default() }
    }

    /// Counts one placed call; returns true for the one call that must start the calibration.
    #[inline]
    pub fn saw(&self, bytes: usize) -> bool {
        let left_bytes = self.left_bytes.load(Ordering::Relaxed);
        if left_bytes == 0 {
            return false;
        }
        let rest = left_bytes.saturating_sub(bytes as u64);
        // Two threads that race may count one call for two; the exchange to 0 is won by one of them.
        self.left_bytes.compare_exchange(left_bytes, rest, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            && rest == 0
    }

    /// Stops it, because the engine was calibrated by a call.
    pub fn cancel(&self) {
        self.left_bytes.store(0, Ordering::Relaxed);
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Runs `measure` on a new thread as soon as a core is idle, with a flag that tells it to stop.
    pub fn start(&self, measure: impl FnOnce(&AtomicBool) + Send + 'static) {
        let stop = Arc::clone(&self.stop);
        let work = move || {
            yield_to_all();
            for _ in 0..LOOKS {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                if idle_cores(1) > 0 || cores() == 1 {
                    measure(&stop);
                    return;
                }
                std::thread::sleep(BETWEEN);
            }
        };
        // If no thread can be started, the built-in numbers stay in use.
        let _ =
            std::thread::Builder::new().name("memlift-measure".to_owned()).stack_size(512 * 1024).spawn(work);
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Lets this thread run only when no other thread wants the core.
fn yield_to_all() {
    // SAFETY: the structure is plain and initialised; the call changes this thread alone. Refused, it runs as it is.
    unsafe {
        let parameters = libc::sched_param { sched_priority: 0 };
        let _ = libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_starts_once_after_so_many_bytes_and_never_unless_wanted() {
        let background = Background::new(true);
        let half = (AFTER_BYTES / 2) as usize;
        assert!(!background.saw(half - 1));
        assert!(!background.saw(1));
        assert!(background.saw(half));
        assert!(!background.saw(usize::MAX));
        let unwanted = Background::new(false);
        assert!(!unwanted.saw(usize::MAX));
        let cancelled = Background::new(true);
        cancelled.cancel();
        assert!(!cancelled.saw(usize::MAX));
    }

    #[test]
    fn one_of_many_threads_starts_it() {
        use std::sync::atomic::AtomicUsize;
        let (background, started) = (Background::new(true), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..4096 {
                        started.fetch_add(usize::from(background.saw(1 << 20)), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(started.into_inner(), 1);
    }
}
