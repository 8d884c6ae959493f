// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many events one core takes from the calendar in a second: `cargo run --release -p memlift-model --example event_rate`.
//!
//! Method   every event enters one other (the hold model), with 64, 1024 and 16,384 due at all times; then the PULSE
//!          accelerator itself, its programs and its memory included; then DMU, which packs and unpacks real pages in its events; then SmartDIMM,
//!          whose lines are sealed, and compared once they were recycled
#![deny(unsafe_code)]

use memlift_model::dmu::{Timing, experiment::collocate};
use memlift_model::event::{Calendar, Random, Time};
use memlift_model::pulse::experiment;
use memlift_model::smartdimm::{self, host};
use std::time::Instant;

const EVENTS: u64 = 20_000_000;

fn main() {
    for due in [64_u64, 1024, 16_384] {
        let (mut calendar, mut random, mut sum) = (Calendar::new(), Random::new(1), 0_u64);
        (0..due).for_each(|event| calendar.at(Time::from_ps(random.below(1_000_000)), event as u32));
        let begun = Instant::now();
        for _ in 0..EVENTS {
            let event = calendar.pop().expect("every event enters another");
            sum = sum.wrapping_add(calendar.now().as_ps() ^ u64::from(event));
            calendar.after(Time::from_ps(random.below(1_000_000)), event);
        }
        let seconds = begun.elapsed().as_secs_f64();
        println!("calendar, {due:>5} due: {:5.1} M events/s (sum {sum:016x})", EVENTS as f64 / seconds / 1e6);
    }
    let begun = Instant::now();
    let events = experiment::saturated(20_000);
    let seconds = begun.elapsed().as_secs_f64();
    println!("PULSE, 3 logic and 4 memory pipelines: {:5.1} M events/s", events as f64 / seconds / 1e6);
    let timing = Timing::shipped();
    for (file, with) in [(600 << 20, true), (800 << 20, false)] {
        let begun = Instant::now();
        let outcome =
            collocate(&timing, timing.graph, file, with).expect("the shipped parameters are possible");
        let (seconds, million) = (begun.elapsed().as_secs_f64(), 1e6);
        println!(
            "DMU, {} MiB: {:5.2} M events/s, {:5.1} M memory requests/s",
            file >> 20,
            outcome.events as f64 / seconds / million,
            outcome.requests as f64 / seconds / million
        );
    }
    let timing = smartdimm::Timing::shipped();
    let begun = Instant::now();
    let outcome = host::run(&timing, host::Run::tls(4, 400)).expect("the shipped parameters are possible");
    let seconds = begun.elapsed().as_secs_f64();
    // An event copies a line, and the cache looks up all that others do meanwhile.
    println!(
        "SmartDIMM, 10 MB of cache: {:5.2} M events/s, {:5.2} M DDR commands/s, {:5.1} M cache look-ups/s",
        outcome.events as f64 / seconds / 1e6,
        outcome.commands as f64 / seconds / 1e6,
        (outcome.events * (2 + timing.contention)) as f64 / seconds / 1e6
    );
}
