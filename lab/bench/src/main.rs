// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The benches without the CLI: `memlift-bench SERVICE [--only NAME] [--quick] [--json] [--record] [--report DIR]`, or `tour`.
//!
//! For work on the benches themselves; users have `memlift bench` and `memlift tour`, which take the same words.
#![deny(unsafe_code)]

use std::process::ExitCode;

use memlift_bench::{Options, TourOptions, Verdict};

fn main() -> ExitCode {
    if let Some(code) = memlift_bench::child() {
        return code;
    }
    let mut arguments = std::env::args().skip(1);
    let service = arguments.next().unwrap_or_default();
    let mut options = Options::default();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--only" => options.only = arguments.next(),
            "--quick" => options.quick = true,
            "--json" => options.json = true,
            "--record" => options.record = true,
            "--report" => options.report = arguments.next().map(Into::into),
            _ => {
                eprintln!(
                    "usage: memlift-bench copy|ipc|persist|transform|traverse|zmem|tour [--only NAME] [--quick] [--json] [--record] [--report DIR]"
                );
                return ExitCode::from(2);
            }
        }
    }
    let right = if service == "tour" {
        memlift_bench::tour(&TourOptions {
            json: options.json,
            quick: options.quick,
            ..TourOptions::default()
        })
    } else {
        memlift_bench::run(&service, &options).map(|summary| {
            let count = |verdict| summary.count(verdict);
            eprintln!(
                "{} ok, {} short ({} of them failed), {} missing",
                count(Verdict::Ok),
                count(Verdict::Short),
                summary.failed,
                count(Verdict::Missing)
            );
            summary.failed == 0
        })
    };
    match right {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
