// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Repeats on the machine the measurements that Rocket and others made of DSA.
//!
//! - **Not here** the papers' numbers (`reproduce`)

use super::server::{Load, Mode, Outcome, serve};
use super::timing::Timing;
use crate::event::Time;

/// Latency of one copy by the device, from the submission until its thread knows; nothing else is under way.
///
/// # Errors
/// If the copy is wrong.
pub fn latency(timing: &Timing, bytes: u64) -> Result<(Time, Outcome), String> {
    let load = Load { mode: Mode::Sync, inject: false, threads: 1, bytes, requests: 1, works: false };
    let quiet = Timing { message: Time::ZERO, ..timing.clone() };
    let outcome = serve(&quiet, load)?;
    Ok((outcome.end - outcome.handled, outcome))
}

/// Time of the CPU for the same work.
#[must_use]
pub fn by_cpu(timing: &Timing, bytes: u64) -> Time {
    timing.memory.time_of(bytes)
}

/// The least size in lines for which `better` holds.
pub fn crossing(mut better: impl FnMut(u64) -> Result<bool, String>) -> Result<u64, String> {
    let (mut low, mut high) = (0, (1 << 20) / 64);
    while low < high {
        let middle = (low + high) / 2;
        if better(64 * middle.max(1))? {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Ok(64 * low)
}

/// Bytes per second of a server that copies and handles requests, in GB/s, while nothing begins or ends.
///
/// # Errors
/// If a request is wrong.
pub fn throughput(timing: &Timing, mode: Mode, bytes: u64) -> Result<f64, String> {
    // Injection as Rocket has it by default (§V): on where one thread waits for one request, off where requests are batched.
    let load =
        |requests| Load { mode, inject: mode != Mode::Pipelined, threads: 1, bytes, requests, works: false };
    let requests = 2 * timing.batch;
    let (once, twice) = (serve(timing, load(requests))?, serve(timing, load(2 * requests))?);
    Ok((bytes * requests as u64) as f64 / (twice.end - once.end).as_ps() as f64 * 1e3)
}

/// How many times as fast so many threads are with injection, and the shares of their requests that the cache had, without and with.
///
/// # Errors
/// If a request is wrong.
pub fn injection(timing: &Timing, threads: usize, bytes: u64) -> Result<(f64, f64, f64), String> {
    let load = |inject| Load { mode: Mode::Async, inject, threads, bytes, requests: 12, works: true };
    let (without, with) = (serve(timing, load(false))?, serve(timing, load(true))?);
    let share = |outcome: Outcome| outcome.reads.1 as f64 / outcome.reads.0.max(1) as f64;
    Ok((without.end.as_ps() as f64 / with.end.as_ps() as f64, share(without), share(with)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_alone_takes_the_sum_of_its_parts() {
        let timing = Timing::shipped();
        let (time, outcome) = latency(&timing, 1 << 20).unwrap();
        let pages = timing.device.time_of(4096) * 256;
        assert_eq!(time, timing.submit + timing.start + pages + timing.wake);
        assert_eq!(outcome.wakes, 2, "33 us are one cap of 25 us and the end");
    }

    #[test]
    fn modes_and_full_queues_deliver_every_request_and_always_at_the_same_time() {
        let timing = Timing { queue_entries: 1, engines: 1, ..Timing::shipped() };
        for mode in [Mode::Cpu, Mode::Sync, Mode::Async, Mode::Pipelined] {
            let load =
                Load { mode, inject: true, threads: 3, bytes: 5000 / 64 * 64, requests: 16, works: false };
            assert_eq!(serve(&timing, load).unwrap(), serve(&timing, load).unwrap());
        }
    }

    #[test]
    fn crossings_are_the_least_sizes() {
        assert_eq!(crossing(|bytes| Ok(bytes >= 4096)), Ok(4096));
        assert_eq!(crossing(|bytes| Ok(bytes >= 4100)), Ok(4160));
    }
}
