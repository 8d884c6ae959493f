// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Durations and shapes of NearPM: from the parameters' file to the machine.

use crate::event::{Rate, Time};
use crate::parameters::{ParameterError, Parameters, Quantity, Schema, field};

const MS: u64 = 1_000_000_000;

/// Fields of the file.
pub const SCHEMA: Schema = Schema {
    device: "nearpm",
    fields: &[
        field("memory_latency", Quantity::Time, 1000, MS),
        field("media", Quantity::Time, 0, MS),
        field("pcie_rate", Quantity::Rate, 1_000_000, 100_000_000_000_000),
        field("bus_rate", Quantity::Rate, 1_000_000, 100_000_000_000_000),
        field("burst", Quantity::Bytes, 64, 4096),
        field("unit_cycle", Quantity::Time, 1, MS),
        field("request_cycles", Quantity::Count, 0, 1_000_000),
        field("units", Quantity::Count, 1, 64),
        field("fifo_entries", Quantity::Count, 1, 1024),
        field("host_lines", Quantity::Count, 1, 1024),
        field("interleave", Quantity::Bytes, 64, 4096),
        field("cores", Quantity::Count, 1, 256),
        field("command", Quantity::Time, 0, MS),
        field("cpu_line", Quantity::Time, 1, MS),
        field("share_logging", Quantity::Count, 1, 999),
        field("share_checkpointing", Quantity::Count, 1, 999),
        field("share_shadow", Quantity::Count, 1, 999),
        field("movement_logging", Quantity::Count, 1, 999),
        field("movement_checkpointing", Quantity::Count, 1, 999),
        field("movement_shadow", Quantity::Count, 1, 999),
        field("logged_bytes", Quantity::Bytes, 8, 4096),
        field("logs_per_transaction", Quantity::Count, 1, 64),
        field("updates_per_checkpoint", Quantity::Count, 1, 64),
        field("pages_per_transaction", Quantity::Count, 1, 8),
        field("lines_read_of_a_copy", Quantity::Count, 0, 64),
    ],
};

/// The file that comes with the crate.
pub const PARAMETERS: &str = include_str!("../../parameters/nearpm.toml");

/// Durations. See `parameters/nearpm.toml` for what each is.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the file says it, with its source")]
pub struct Timing {
    /// From the host to the device's memory controller, one way.
    pub wire: Time,
    pub media: Time,
    pub pcie: Rate,
    pub bus: Rate,
    pub burst: u64,
    pub unit_cycle: Time,
    pub request_cycles: u64,
    pub units: usize,
    pub fifo_entries: usize,
    pub host_lines: usize,
    pub interleave: u64,
    pub cores: usize,
    pub command: Time,
    pub cpu_line: Time,
    pub memory_latency: Time,
    /// In thousandths, for logging, checkpointing and shadow paging: the share of a program's time, and the part of it that moves
    /// data.
    pub share: [(u64, u64); 3],
    pub logged_bytes: u64,
    pub logs_per_transaction: usize,
    pub updates_per_checkpoint: usize,
    pub pages_per_transaction: usize,
    pub lines_read_of_a_copy: u64,
}

impl Timing {
    /// From a file that passed the schema.
    ///
    /// # Errors
    /// A field that contradicts another.
    pub fn new(parameters: &Parameters) -> Result<Timing, ParameterError> {
        let (time, value) = (|name| parameters.time(name), |name| parameters.value(name));
        let wrong = |name: &str, fault: String| Err(ParameterError::new(parameters.file(), name, fault));
        let (latency, media) = (time("memory_latency"), time("media"));
        if media >= latency {
            return wrong(
                "media",
                format!(
                    "{media} is not less than memory_latency, {latency}, which has the wires too: lower it"
                ),
            );
        }
        let interleave = value("interleave");
        if interleave % 64 != 0 || 4096 % interleave != 0 {
            return wrong(
                "interleave",
                format!("{interleave} bytes are no part of a page in lines: give 2048 or 4096"),
            );
        }
        if value("logged_bytes") % 8 != 0 {
            return wrong("logged_bytes", "log entries count in 8 bytes: give a multiple".into());
        }
        Ok(Timing {
            wire: Time::from_ps((latency - media).as_ps() / 2),
            media,
            pcie: parameters.rate("pcie_rate"),
            bus: parameters.rate("bus_rate"),
            burst: value("burst") / 64 * 64,
            unit_cycle: time("unit_cycle"),
            request_cycles: value("request_cycles"),
            units: value("units") as usize,
            fifo_entries: value("fifo_entries") as usize,
            host_lines: value("host_lines") as usize,
            interleave,
            cores: value("cores") as usize,
            command: time("command"),
            cpu_line: time("cpu_line"),
            memory_latency: latency,
            share: [
                (value("share_logging"), value("movement_logging")),
                (value("share_checkpointing"), value("movement_checkpointing")),
                (value("share_shadow"), value("movement_shadow")),
            ],
            logged_bytes: value("logged_bytes"),
            logs_per_transaction: value("logs_per_transaction") as usize,
            updates_per_checkpoint: value("updates_per_checkpoint") as usize,
            pages_per_transaction: value("pages_per_transaction") as usize,
            lines_read_of_a_copy: value("lines_read_of_a_copy"),
        })
    }

    /// The durations of the file that comes with the crate.
    ///
    /// # Panics
    /// If that file is wrong: a defect, which a test rules out.
    #[must_use]
    pub fn shipped() -> Timing {
        Parameters::shipped("parameters/nearpm.toml", PARAMETERS, &SCHEMA, Timing::new)
    }

    /// A copy of so many bytes of persistent memory by the CPU, made durable: the first line's latency, a line's interval for the
    /// others, and the fence.
    #[must_use]
    pub fn cpu_copy(&self, bytes: u64) -> Time {
        self.memory_latency * 2 + self.cpu_line * (bytes.div_ceil(64).max(1) - 1)
    }
}

/// How several devices come to one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// The CPU polls them.
    Software,
    /// Devices tell each other, and logs are deleted when all are done (§5.3.2).
    Delayed,
}

/// The parts of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of devices.
    pub devices: usize,
    /// Units of each device.
    pub units: usize,
    /// How they come to one state.
    pub sync: Sync,
}

impl Shape {
    /// NearPM SD: one device.
    #[must_use]
    pub fn single(timing: &Timing) -> Shape {
        Shape { devices: 1, units: timing.units, sync: Sync::Delayed }
    }

    /// NearPM MD SW-sync: two, and the CPU polls.
    #[must_use]
    pub fn polled(timing: &Timing) -> Shape {
        Shape { devices: 2, units: timing.units, sync: Sync::Software }
    }

    /// NearPM MD: two with delayed synchronisation.
    #[must_use]
    pub fn delayed(timing: &Timing) -> Shape {
        Shape { devices: 2, units: timing.units, sync: Sync::Delayed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_file_passes_and_contradictions_do_not() {
        let timing = Timing::shipped();
        assert_eq!(timing.wire * 2 + timing.media, timing.memory_latency);
        for (from, to, wanted) in [
            ("[media]\nvalue = 150", "[media]\nvalue = 436", "mine.toml: media: 436.000 ns is not less than"),
            (
                "[interleave]\nvalue = 2048",
                "[interleave]\nvalue = 1000",
                "mine.toml: interleave: 1000 bytes are no part",
            ),
            (
                "[logged_bytes]\nvalue = 64",
                "[logged_bytes]\nvalue = 63",
                "mine.toml: logged_bytes: log entries count",
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
