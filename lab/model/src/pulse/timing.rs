// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Durations and shapes of a PULSE rack: `parameters/pulse.toml` as numbers.
//!
//! - **Order** a file passes its schema first, then the rules between fields, which are here

use crate::event::{Rate, Time};
use crate::parameters::{ParameterError, Parameters, Quantity, Schema, field};

const MS: u64 = 1_000_000_000;

/// Fields of the file.
pub const SCHEMA: Schema = Schema {
    device: "pulse",
    fields: &[
        field("network_stack", Quantity::Time, 0, MS),
        field("scheduler", Quantity::Time, 0, MS),
        field("memory_latency", Quantity::Time, 1000, MS),
        field("memory_stages", Quantity::Count, 1, 64),
        field("logic_instruction", Quantity::Time, 1, MS),
        field("load_bytes", Quantity::Bytes, 8, 256),
        field("memory_rate", Quantity::Rate, 1_000_000, 100_000_000_000_000),
        field("port_rate", Quantity::Rate, 1_000_000, 100_000_000_000_000),
        field("contexts_per_workspace", Quantity::Count, 1, 64),
        field("arbitration", Quantity::Time, 0, MS),
        field("host", Quantity::Time, 0, MS),
        // Ranges that every workload here walks in: its nodes and its objects.
        field("tcam_entries", Quantity::Count, 2, 65_536),
        field("iterations_max", Quantity::Count, 1, 1 << 20),
        field("crossing", Quantity::Time, 0, MS),
        field("bounce", Quantity::Time, 0, MS),
        field("dram_latency", Quantity::Time, 1000, MS),
        field("cxl_latency", Quantity::Time, 1000, MS),
        field("cpu_clocks", Quantity::Count, 1, 64),
    ],
};

/// The file that comes with the crate.
pub const PARAMETERS: &str = include_str!("../../parameters/pulse.toml");

/// Durations. See `parameters/pulse.toml` for what each is.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the file says it, with its source")]
pub struct Timing {
    pub network_stack: Time,
    pub scheduler: Time,
    pub memory_latency: Time,
    /// Time for which a fetch occupies its pipeline.
    pub memory_occupancy: Time,
    pub logic_instruction: Time,
    pub load_bytes: u64,
    pub memory_rate: Rate,
    pub port_rate: Rate,
    pub contexts_per_workspace: usize,
    pub arbitration: Time,
    pub host: Time,
    pub tcam_entries: usize,
    pub iterations_max: u64,
    pub crossing: Time,
    pub bounce: Time,
    pub dram_latency: Time,
    pub cxl_latency: Time,
    pub cpu_clocks: u64,
}

impl Timing {
    /// From a file that passed the schema.
    ///
    /// # Errors
    /// A field that contradicts another.
    pub fn new(parameters: &Parameters) -> Result<Timing, ParameterError> {
        let time = |name| parameters.time(name);
        let timing = Timing {
            network_stack: time("network_stack"),
            scheduler: time("scheduler"),
            memory_latency: time("memory_latency"),
            memory_occupancy: Time::from_ps(
                time("memory_latency").as_ps().div_ceil(parameters.value("memory_stages")),
            ),
            logic_instruction: time("logic_instruction"),
            load_bytes: parameters.value("load_bytes"),
            memory_rate: parameters.rate("memory_rate"),
            port_rate: parameters.rate("port_rate"),
            contexts_per_workspace: parameters.value("contexts_per_workspace") as usize,
            arbitration: time("arbitration"),
            host: time("host"),
            tcam_entries: parameters.value("tcam_entries") as usize,
            iterations_max: parameters.value("iterations_max"),
            crossing: time("crossing"),
            bounce: time("bounce"),
            dram_latency: time("dram_latency"),
            cxl_latency: time("cxl_latency"),
            cpu_clocks: parameters.value("cpu_clocks"),
        };
        if timing.crossing < timing.network_stack * 2 {
            return Err(ParameterError::new(
                parameters.file(),
                "crossing",
                format!(
                    "{} is less than the two network stacks that it passes: give at least {}, or lower network_stack",
                    timing.crossing,
                    timing.network_stack * 2
                ),
            ));
        }
        Ok(timing)
    }

    /// The durations of the file that comes with the crate.
    ///
    /// # Panics
    /// If that file is wrong: a defect, which a test rules out.
    #[must_use]
    pub fn shipped() -> Timing {
        Parameters::shipped("parameters/pulse.toml", PARAMETERS, &SCHEMA, Timing::new)
    }
}

/// How pipelines belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Cores of one memory and one logic pipeline each; no scheduler between them.
    Coupled,
    /// Any memory pipeline serves any workspace.
    Disaggregated,
}

/// The parts at each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How pipelines belong together.
    pub style: Style,
    /// Logic pipelines of a node.
    pub logic: usize,
    /// Memory pipelines of a node.
    pub memory: usize,
    /// True if a walk that leaves its node goes over its client (PULSE-ACC), not from switch to node.
    pub over_client: bool,
}

impl Shape {
    /// m logic and n memory pipelines, walks routed by the switch.
    #[must_use]
    pub fn disaggregated(logic: usize, memory: usize) -> Shape {
        Shape { style: Style::Disaggregated, logic, memory, over_client: false }
    }

    /// A machine of `cores` coupled cores.
    #[must_use]
    pub fn coupled(cores: usize) -> Shape {
        Shape { style: Style::Coupled, logic: cores, memory: cores, over_client: false }
    }

    /// The one that the paper builds: three logic and four memory pipelines (§4.2).
    #[must_use]
    pub fn built() -> Shape {
        Shape::disaggregated(3, 4)
    }

    /// Workspaces: m + n, or one per core.
    #[must_use]
    pub fn workspaces(&self) -> usize {
        match self.style {
            Style::Coupled => self.memory,
            Style::Disaggregated => self.logic + self.memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_file_passes_and_contradictions_do_not() {
        let timing = Timing::shipped();
        assert_eq!(timing.memory_occupancy.as_ps(), 44_000);
        assert_eq!(timing.logic_instruction.as_ps() * 8, 10_000);
        let text = PARAMETERS.replacen("value = 7.5", "value = 0.5", 1);
        let parameters = Parameters::parse("mine.toml", &text, &SCHEMA).unwrap();
        let error = Timing::new(&parameters).unwrap_err().to_string();
        assert!(
            error.starts_with("mine.toml: crossing: 500.000 ns is less than the two network stacks"),
            "{error}"
        );
    }
}
