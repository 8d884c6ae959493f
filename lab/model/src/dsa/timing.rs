// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Durations of DSA and of the CPU beside it: from the parameters' file to the machine.

use crate::event::{Rate, Time};
use crate::parameters::{ParameterError, Parameters, Quantity, Schema, field};

const MS: u64 = 1_000_000_000;

/// Fields of the file.
pub const SCHEMA: Schema = Schema {
    device: "dsa",
    fields: &[
        field("submit", Quantity::Time, 0, MS),
        field("start", Quantity::Time, 0, MS),
        field("device_rate", Quantity::Rate, 1_000_000, 100_000_000_000_000),
        field("turn", Quantity::Bytes, 64, 1 << 20),
        field("queue_entries", Quantity::Count, 1, 1024),
        field("engines", Quantity::Count, 1, 64),
        field("wake", Quantity::Time, 0, MS),
        field("wait_cap", Quantity::Time, 1000, MS),
        field("message", Quantity::Time, 0, MS),
        field("batch", Quantity::Count, 2, 1024),
        field("memory_rate", Quantity::Rate, 1_000_000, 100_000_000_000_000),
        field("cache_rate", Quantity::Rate, 1_000_000, 100_000_000_000_000),
        field("cache_bytes", Quantity::Bytes, 1 << 20, 1 << 30),
        field("cache_ways", Quantity::Count, 2, 64),
        field("injected_ways", Quantity::Count, 1, 63),
        field("working_set", Quantity::Bytes, 0, 1 << 30),
    ],
};

/// The file that comes with the crate.
pub const PARAMETERS: &str = include_str!("../../parameters/dsa.toml");

/// Durations. See `parameters/dsa.toml` for what each is.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the file says it, with its source")]
pub struct Timing {
    pub submit: Time,
    pub start: Time,
    pub device: Rate,
    pub turn: u64,
    pub queue_entries: usize,
    pub engines: usize,
    pub wake: Time,
    pub wait_cap: Time,
    pub message: Time,
    pub batch: usize,
    pub memory: Rate,
    pub cache: Rate,
    pub cache_bytes: u64,
    pub cache_ways: usize,
    pub injected_ways: usize,
    pub working_set: u64,
}

impl Timing {
    /// From a file that passed the schema.
    ///
    /// # Errors
    /// A field that contradicts another.
    pub fn new(parameters: &Parameters) -> Result<Timing, ParameterError> {
        let (time, value) = (|name| parameters.time(name), |name| parameters.value(name));
        let (ways, injected) = (value("cache_ways"), value("injected_ways"));
        if injected >= ways {
            let fault =
                format!("{injected} ways of {ways}: leave some to the CPU, give less than cache_ways");
            return Err(ParameterError::new(parameters.file(), "injected_ways", fault));
        }
        if value("memory_rate") > value("cache_rate") {
            let fault = "memory is not faster than the cache: lower it, or raise cache_rate";
            return Err(ParameterError::new(parameters.file(), "memory_rate", fault));
        }
        Ok(Timing {
            submit: time("submit"),
            start: time("start"),
            device: parameters.rate("device_rate"),
            turn: value("turn"),
            queue_entries: value("queue_entries") as usize,
            engines: value("engines") as usize,
            wake: time("wake"),
            wait_cap: time("wait_cap"),
            message: time("message"),
            batch: value("batch") as usize,
            memory: parameters.rate("memory_rate"),
            cache: parameters.rate("cache_rate"),
            cache_bytes: value("cache_bytes"),
            cache_ways: ways as usize,
            injected_ways: injected as usize,
            working_set: value("working_set"),
        })
    }

    /// The durations of the file that comes with the crate.
    ///
    /// # Panics
    /// If that file is wrong: a defect, which a test rules out.
    #[must_use]
    pub fn shipped() -> Timing {
        Parameters::shipped("parameters/dsa.toml", PARAMETERS, &SCHEMA, Timing::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_file_passes_and_contradictions_do_not() {
        assert_eq!(Timing::shipped().submit, Time::from_ns(200));
        for (from, to, wanted) in [
            (
                "[injected_ways]\nvalue = 2",
                "[injected_ways]\nvalue = 15",
                "mine.toml: injected_ways: 15 ways of 15: leave",
            ),
            (
                "[memory_rate]\nvalue = 9.75",
                "[memory_rate]\nvalue = 60",
                "mine.toml: memory_rate: memory is not faster",
            ),
        ] {
            assert!(PARAMETERS.contains(from), "{from}");
            let parameters =
                Parameters::parse("mine.toml", &PARAMETERS.replacen(from, to, 1), &SCHEMA).unwrap();
            let error = Timing::new(&parameters).unwrap_err().to_string();
            assert!(error.starts_with(wanted), "{error}");
        }
    }
}
