// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Durations and sizes of SmartDIMM and of the host in front of it: from the parameters' file to the machine.

use super::PAGE;
use super::cache::{CORES, OWN};
use crate::event::Time;
use crate::parameters::{ParameterError, Parameters, Quantity, Schema, field};

const MS: u64 = 1_000_000_000;

/// Fields of the file.
pub const SCHEMA: Schema = Schema {
    device: "smartdimm",
    fields: &[
        field("scratchpad", Quantity::Count, 1, 1 << 20),
        field("table", Quantity::Count, 3, 1 << 22),
        field("cam", Quantity::Count, 2, 1024),
        field("compute", Quantity::Time, 0, MS),
        field("burst", Quantity::Time, 1, MS),
        field("row", Quantity::Time, 0, MS),
        field("turn", Quantity::Time, 0, MS),
        field("retry", Quantity::Time, 1, MS),
        field("queue_high", Quantity::Count, 2, 4096),
        field("queue_low", Quantity::Count, 0, 4095),
        field("cores", Quantity::Count, 1, CORES),
        field("line", Quantity::Time, 1, MS),
        field("message", Quantity::Count, 1, 64),
        field("buffers", Quantity::Count, 1, 1 << 12),
        field("way", Quantity::Bytes, 1 << 12, 1 << 30),
        field("contention", Quantity::Count, 0, 10_000),
        field("grain", Quantity::Count, 1, 4),
    ],
};

/// The file that comes with the crate.
pub const PARAMETERS: &str = include_str!("../../parameters/smartdimm.toml");

/// See `parameters/smartdimm.toml` for what each is.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the file says it, with its source")]
pub struct Timing {
    pub scratchpad: u32,
    pub table: usize,
    pub cam: usize,
    pub compute: Time,
    pub burst: Time,
    pub row: Time,
    pub turn: Time,
    pub retry: Time,
    pub queue_high: usize,
    pub queue_low: usize,
    pub cores: u64,
    pub line: Time,
    pub message: u64,
    pub buffers: u64,
    pub way: u64,
    pub contention: u64,
    pub grain: u64,
}

impl Timing {
    /// From a file that passed the schema.
    ///
    /// # Errors
    /// A field that contradicts another.
    pub fn new(parameters: &Parameters) -> Result<Timing, ParameterError> {
        let (time, value) = (|name| parameters.time(name), |name| parameters.value(name));
        let wrong = |name: &str, fault: &str| Err(ParameterError::new(parameters.file(), name, fault));
        if value("queue_low") >= value("queue_high") {
            return wrong("queue_low", "draining begins at queue_high: give less than that");
        }
        // Two translations for each page, and three tables hold nine tenths.
        if value("table") < 3 * value("scratchpad") {
            return wrong("table", "insertions would not end: give at least three times the scratchpad");
        }
        if value("message") * value("cores") >= value("scratchpad") {
            return wrong(
                "scratchpad",
                "calls of all cores do not fit at once: give more, or shorten message",
            );
        }
        if 2 * value("buffers") * value("message") * PAGE > OWN {
            return wrong("buffers", "a core's buffers have at most 1 GiB: give fewer, or shorten message");
        }
        Ok(Timing {
            scratchpad: value("scratchpad") as u32,
            table: value("table") as usize,
            cam: value("cam") as usize,
            compute: time("compute"),
            burst: time("burst"),
            row: time("row"),
            turn: time("turn"),
            retry: time("retry"),
            queue_high: value("queue_high") as usize,
            queue_low: value("queue_low") as usize,
            cores: value("cores"),
            line: time("line"),
            message: value("message"),
            buffers: value("buffers"),
            way: value("way"),
            contention: value("contention"),
            grain: value("grain"),
        })
    }

    /// The values of the file that comes with the crate.
    ///
    /// # Panics
    /// If that file is wrong: a defect, which a test rules out.
    #[must_use]
    pub fn shipped() -> Timing {
        Parameters::shipped("parameters/smartdimm.toml", PARAMETERS, &SCHEMA, Timing::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_file_passes_and_contradictions_do_not() {
        assert_eq!((Timing::shipped().scratchpad, Timing::shipped().table), (2048, 12_288));
        for (from, to, wanted) in [
            ("[queue_low]\nvalue = 16", "[queue_low]\nvalue = 48", "mine.toml: queue_low: draining begins"),
            ("[table]\nvalue = 12288", "[table]\nvalue = 4000", "mine.toml: table: insertions would not end"),
            (
                "[scratchpad]\nvalue = 2048",
                "[scratchpad]\nvalue = 16",
                "mine.toml: scratchpad: calls of all cores",
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
