// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clock that all processes of a machine share: CLOCK_MONOTONIC, in nanoseconds.
//!
//! - **Why** a deadline is sent to the server as a number, and an `Instant`, which is the same clock on Linux, does not give one

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Converts a time to nanoseconds of the clock that the other side reads; never 0. Only the first call reads a clock.
pub(crate) fn monotonic_ns(at: Instant) -> u64 {
    static BOTH: OnceLock<(Instant, u64)> = OnceLock::new();
    let (instant, ns) = *BOTH.get_or_init(read_both);
    let ns_of = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    match at.checked_duration_since(instant) {
        Some(later) => ns.saturating_add(ns_of(later)),
        None => ns.saturating_sub(ns_of(instant.duration_since(at))),
    }
    .max(1)
}

/// End of a limit that begins now; `None`: there is no limit, or it is longer than the clock goes.
pub(crate) fn end_of(limit: Option<Duration>) -> Option<Instant> {
    Instant::now().checked_add(limit?)
}

/// Reads both clocks at one moment. The best of five readings counts, in case this thread lost its core during one.
fn read_both() -> (Instant, u64) {
    let now_ns = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    };
    let reading = |_| {
        let (before, instant, after) = (now_ns(), Instant::now(), now_ns());
        (after - before, instant, before + (after - before) / 2)
    };
    let (_, instant, ns) = (0..5).map(reading).min_by_key(|reading| reading.0).expect("five readings");
    (instant, ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_clock_of_the_other_process() {
        let second = Duration::from_secs(1);
        for at in [Instant::now(), Instant::now() + second, Instant::now() - second] {
            let (instant, ns) = read_both();
            let since = i128::from(monotonic_ns(at)) - i128::from(ns);
            let expected = match at.checked_duration_since(instant) {
                Some(later) => later.as_nanos() as i128,
                None => -(instant.duration_since(at).as_nanos() as i128),
            };
            assert!((since - expected).abs() < 50_000_000, "{since} {expected}");
        }
    }
}
