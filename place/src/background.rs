// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Background calibration: a process that copies much on a machine without a calibration measures some numbers, once.
//!
//! - **Flow** placed calls add up their bytes ─▶ at [`AFTER_BYTES`] one thread starts, with the lowest scheduling priority,
//!   and waits until a core is idle ─▶ it measures for at most [`BUDGET`] of one core ─▶ `done` then makes the caller
//!   decide by the result
//! - **Order** no call waits: until the thread is done, and if it cannot measure, the built-in numbers are used
//! - **Owner** the thread is detached and owns what it needs; `stop` ends it early. A forked child starts no thread.
//! - **Limits** on a machine that is never quiet it gives up after [`IDLE_CHECKS_MAX`] checks; a calibration file marked "not
//!   trusted" stops further attempts for an hour (`store`)

use super::quiet::{cores, idle_cores};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of placed calls after which measuring pays: about a tenth of a second of copies.
const AFTER_BYTES: u64 = 1 << 30;
/// Most core time that the calibration may take.
pub(super) const BUDGET: Duration = Duration::from_secs(1);
/// Most checks for an idle core, [`IDLE_CHECK_PAUSE`] apart.
const IDLE_CHECKS_MAX: usize = 600;
const IDLE_CHECK_PAUSE: Duration = Duration::from_millis(500);

/// Starts a calibration, at most once.
#[derive(Debug, Default)]
pub struct Background {
    /// Bytes still to be copied before the calibration starts; 0: it has started, or never will.
    left_bytes: AtomicU64,
    stop: Arc<AtomicBool>,
}

impl Background {
    /// Makes a counter of copies; without `wanted`, calibration never starts.
    pub fn new(wanted: bool) -> Background {
        let left_bytes = AtomicU64::new(if wanted { AFTER_BYTES } else { 0 });
        Background { left_bytes, stop: Arc::default() }
    }

    /// Counts one placed call; returns true for the single call that must start the calibration.
    #[inline]
    pub fn count_call(&self, bytes: usize) -> bool {
        let left_bytes = self.left_bytes.load(Ordering::Relaxed);
        if left_bytes == 0 {
            return false;
        }
        let rest = left_bytes.saturating_sub(bytes as u64);
        // Two racing threads may lose the bytes of one call; only one of them wins the exchange to 0.
        self.left_bytes.compare_exchange(left_bytes, rest, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            && rest == 0
    }

    /// Stops the calibration, because a call has calibrated the engine.
    pub fn cancel(&self) {
        self.left_bytes.store(0, Ordering::Relaxed);
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Runs `measure` on a new thread as soon as a core is idle, with a flag that is set to stop it.
    pub fn start(&self, measure: impl FnOnce(&AtomicBool) + Send + 'static) {
        let stop = Arc::clone(&self.stop);
        let work = move || {
            yield_to_all();
            for _ in 0..IDLE_CHECKS_MAX {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                if idle_cores(1) > 0 || cores() == 1 {
                    measure(&stop);
                    return;
                }
                std::thread::sleep(IDLE_CHECK_PAUSE);
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

/// Makes this thread run only when no other thread wants the core.
fn yield_to_all() {
    // SAFETY: the structure is plain and initialised, and the call changes this thread alone. If it is refused, the
    // priority stays unchanged.
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
        assert!(!background.count_call(half - 1));
        assert!(!background.count_call(1));
        assert!(background.count_call(half));
        assert!(!background.count_call(usize::MAX));
        let unwanted = Background::new(false);
        assert!(!unwanted.count_call(usize::MAX));
        let cancelled = Background::new(true);
        cancelled.cancel();
        assert!(!cancelled.count_call(usize::MAX));
    }

    #[test]
    fn one_of_many_threads_starts_it() {
        use std::sync::atomic::AtomicUsize;
        let (background, started) = (Background::new(true), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..4096 {
                        started.fetch_add(usize::from(background.count_call(1 << 20)), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(started.into_inner(), 1);
    }
}
