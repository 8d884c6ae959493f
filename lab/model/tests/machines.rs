// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The events of each machine as one number: a change that makes a machine faster leaves it as it is.
//!
//! - **Flow** a machine on small loads ─▶ its outcomes, and for SmartDIMM each command on the bus with its picosecond ─▶ their text ─▶ FNV-1a
//! - **Rule** a change of a model or of a parameter changes the number, and says so in its commit. The numbers are those of the machines
//!   before their loops were made faster
//! - **Not here** events per second: `memlift bench devices --only 'events/*'`

use memlift_model::{dmu, dsa, nearpm, pulse, smartdimm};
use std::fmt::Debug;

/// FNV-1a of a text that is made piece by piece.
struct Sum(u64);

impl Sum {
    fn add(&mut self, outcome: &impl Debug) {
        for byte in format!("{outcome:?}\n").bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

fn sum(outcomes: impl FnOnce(&mut Sum)) -> u64 {
    let mut sum = Sum(0xcbf2_9ce4_8422_2325);
    outcomes(&mut sum);
    sum.0
}

#[test]
fn events_of_dsa_are_what_they_were() {
    use dsa::server::{Load, Mode, serve};
    let found = sum(|sum| {
        let timing = dsa::Timing::shipped();
        for mode in [Mode::Cpu, Mode::Sync, Mode::Async, Mode::Pipelined] {
            for (inject, threads, bytes) in [(true, 3, 1 << 18), (false, 2, 100_000), (true, 1, 4096)] {
                let load = Load { mode, inject, threads, bytes, requests: 8, works: threads > 1 };
                sum.add(&serve(&timing, load).unwrap());
            }
        }
    });
    assert_eq!(found, 13_937_428_710_728_465_472);
}

#[test]
fn events_of_dmu_are_what_they_were() {
    let found = sum(|sum| {
        let timing = dmu::Timing::shipped();
        for (job, file, with) in
            [(timing.graph, 600 << 20, true), (timing.graph, 2 << 30, false), (timing.suite, 800 << 20, true)]
        {
            let job = dmu::timing::Job { visits: 1500, ..job };
            sum.add(&dmu::experiment::collocate(&timing, job, file, with).unwrap());
        }
    });
    assert_eq!(found, 14_678_727_022_268_608_751);
}

#[test]
fn events_of_smartdimm_are_what_they_were() {
    use smartdimm::host::{Run, Ulp, run};
    let found = sum(|sum| {
        let timing = smartdimm::Timing::shipped();
        let small = smartdimm::Timing {
            scratchpad: 64,
            table: 384,
            way: 32 << 10,
            contention: 8,
            buffers: 64,
            ..timing.clone()
        };
        for (timing, ulp, ways, channels) in
            [(&timing, Ulp::Tls, 4, 1), (&small, Ulp::Tls, 2, 4), (&small, Ulp::Deflate, 7, 2)]
        {
            sum.add(&run(timing, Run { ulp, channels, ..Run::tls(ways, 60) }).unwrap());
        }
    });
    assert_eq!(found, 950_214_848_317_690_168);
}

#[test]
fn events_of_nearpm_are_what_they_were() {
    use nearpm::experiment::{Program, run};
    let found = sum(|sum| {
        for (devices, units, sync) in [(1, 1, nearpm::Sync::Delayed), (2, 4, nearpm::Sync::Software)] {
            for mechanism in 0..3 {
                let shape = nearpm::Shape { devices, units, sync };
                let program = Program::average(mechanism);
                sum.add(&run(&nearpm::Timing::shipped(), program, Some(shape)).unwrap().times);
            }
        }
    });
    assert_eq!(found, 1_095_869_802_376_401_936);
}

#[test]
fn events_of_pulse_are_what_they_were() {
    use pulse::experiment::{saturated, web_latency, web_service};
    let found = sum(|sum| {
        let (timing, shape) = (pulse::Timing::shipped(), pulse::Shape::disaggregated(3, 4));
        sum.add(&saturated(2000));
        sum.add(&web_service(&timing, shape).unwrap());
        let report = web_latency(&timing, shape).unwrap();
        sum.add(&(report.events, report.spent, report.answers));
    });
    assert_eq!(found, 17_548_862_090_590_880_006);
}
