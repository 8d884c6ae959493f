// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Durations, sizes and jobs of DMU's prototype: from the parameters' file to the machine.

use super::PAGE;
use crate::event::Time;
use crate::parameters::{ParameterError, Parameters, Quantity, Schema, field};

const S: u64 = 1_000_000_000_000;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Fields of the file.
pub const SCHEMA: Schema = Schema {
    device: "dmu",
    fields: &[
        field("dram", Quantity::Bytes, MIB, 64 * GIB),
        field("spare", Quantity::Bytes, MIB, GIB),
        field("physical", Quantity::Count, 1, 8),
        field("scale", Quantity::Count, 1, 1024),
        field("line", Quantity::Time, 1, 1_000_000_000),
        field("unpack", Quantity::Time, 0, S),
        field("pack", Quantity::Time, 1, S),
        field("page_fault", Quantity::Time, 0, S),
        field("flash", Quantity::Time, 0, S),
        field("stream", Quantity::Time, 0, S),
        field("spill", Quantity::Time, 1, S),
        field("sampled", Quantity::Count, 1, 1_000_000),
        field("unused", Quantity::Bytes, 1 << 12, GIB),
        field("low", Quantity::Bytes, 1 << 12, GIB),
        field("empty", Quantity::Bytes, 0, GIB),
        field("grace", Quantity::Bytes, 1 << 12, GIB),
        field("cold", Quantity::Count, 1, 999),
        field("graph", Quantity::Bytes, MIB, GIB),
        field("graph_allocation", Quantity::Bytes, MIB, GIB),
        field("graph_hot", Quantity::Bytes, 1 << 12, GIB),
        field("graph_ratio", Quantity::Count, 100, 1000),
        field("graph_lines", Quantity::Count, 1, 64),
        field("graph_work", Quantity::Time, 0, S),
        field("graph_visits", Quantity::Count, 100, 100_000_000),
        field("suite", Quantity::Bytes, MIB, GIB),
        field("suite_allocation", Quantity::Bytes, MIB, GIB),
        field("suite_hot", Quantity::Bytes, 1 << 12, GIB),
        field("suite_ratio", Quantity::Count, 100, 1000),
        field("suite_lines", Quantity::Count, 1, 64),
        field("suite_work", Quantity::Time, 0, S),
        field("suite_visits", Quantity::Count, 100, 100_000_000),
        field("file_allocation", Quantity::Bytes, MIB, 8 * GIB),
        field("file_ratio", Quantity::Count, 100, 1000),
        field("file_raw", Quantity::Count, 0, 1000),
        field("file_lines", Quantity::Count, 1, 64),
        field("file_work", Quantity::Time, 0, S),
    ],
};

/// The file that comes with the crate.
pub const PARAMETERS: &str = include_str!("../../parameters/dmu.toml");

/// A job of the first kind: what it has, what it gets, what it uses most of the time. Bytes are scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Resident bytes of the job.
    pub bytes: u64,
    /// Machine-physical bytes that it gets.
    pub allocation: u64,
    /// Bytes that most visits go to.
    pub hot: u64,
    /// How often its pages pack, in hundredths.
    pub ratio: u64,
    /// Requests of a visit.
    pub lines: u64,
    /// Computing between two visits.
    pub work: Time,
    /// Visits for which it is measured.
    pub visits: u64,
}

/// See `parameters/dmu.toml` for what each is. Bytes are scaled.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the file says it, with its source")]
pub struct Timing {
    pub spare: u64,
    pub physical: u64,
    pub scale: u64,
    pub line: Time,
    pub unpack: Time,
    pub pack: Time,
    pub page_fault: Time,
    pub flash: Time,
    pub stream: Time,
    pub spill: Time,
    pub sampled: u64,
    pub unused: u64,
    pub low: u64,
    pub empty: u64,
    pub grace: u64,
    pub cold: u64,
    pub graph: Job,
    pub suite: Job,
    pub file_allocation: u64,
    pub file_ratio: u64,
    pub file_raw: u64,
    pub file_lines: u64,
    pub file_work: Time,
}

impl Timing {
    /// From a file that passed the schema.
    ///
    /// # Errors
    /// A field that contradicts another.
    pub fn new(parameters: &Parameters) -> Result<Timing, ParameterError> {
        let (time, value) = (|name: &str| parameters.time(name), |name: &str| parameters.value(name));
        let (scale, page) = (value("scale"), PAGE as u64);
        let bytes = |name: &str| (value(name) / scale / page * page).max(page);
        let wrong = |name: &str, fault: &str| Err(ParameterError::new(parameters.file(), name, fault));
        let job = |name: &str| Job {
            bytes: bytes(name),
            allocation: bytes(&format!("{name}_allocation")),
            hot: bytes(&format!("{name}_hot")),
            ratio: value(&format!("{name}_ratio")),
            lines: value(&format!("{name}_lines")),
            work: time(&format!("{name}_work")),
            visits: value(&format!("{name}_visits")),
        };
        let jobs = value("file_allocation") + value("graph_allocation").max(value("suite_allocation"));
        if jobs + value("spare") > value("dram") {
            return wrong("spare", "with both allocations it is more than dram: give less, or allocate less");
        }
        if value("empty") >= value("low") {
            return wrong("empty", "the interrupt comes after compression has begun: give less than low");
        }
        if value("spare") <= value("grace") {
            return wrong("spare", "a fault gives the grace from it: give more than grace");
        }
        let (graph, suite) = (job("graph"), job("suite"));
        for (name, job) in [("graph_hot", graph), ("suite_hot", suite)] {
            if job.hot >= job.bytes {
                return wrong(name, "it is a part of what the job has: give less");
            }
        }
        Ok(Timing {
            spare: bytes("spare"),
            physical: value("physical"),
            scale,
            line: time("line"),
            unpack: time("unpack"),
            pack: time("pack"),
            page_fault: time("page_fault"),
            flash: time("flash"),
            stream: time("stream"),
            spill: time("spill"),
            sampled: value("sampled"),
            unused: bytes("unused"),
            low: bytes("low"),
            empty: bytes("empty"),
            grace: bytes("grace"),
            cold: value("cold"),
            graph,
            suite,
            file_allocation: bytes("file_allocation"),
            file_ratio: value("file_ratio"),
            file_raw: value("file_raw"),
            file_lines: value("file_lines"),
            file_work: time("file_work"),
        })
    }

    /// The durations of the file that comes with the crate.
    ///
    /// # Panics
    /// If that file is wrong: a defect, which a test rules out.
    #[must_use]
    pub fn shipped() -> Timing {
        Parameters::shipped("parameters/dmu.toml", PARAMETERS, &SCHEMA, Timing::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_file_passes_and_contradictions_do_not() {
        assert_eq!(Timing::shipped().graph.ratio, 200);
        for (name, value, wanted) in [
            ("spare", 1000, "mine.toml: spare: with both allocations it is more than dram"),
            ("empty", 500, "mine.toml: empty: the interrupt comes after"),
            ("grace", 500, "mine.toml: spare: a fault gives the grace"),
            ("graph_hot", 80, "mine.toml: graph_hot: it is a part of what the job has"),
        ] {
            let begin = PARAMETERS.find(&format!("[{name}]\nvalue = ")).unwrap();
            let (head, rest) = PARAMETERS.split_at(begin + name.len() + 11);
            let text = format!("{head}{value}{}", &rest[rest.find('\n').unwrap()..]);
            let parameters = Parameters::parse("mine.toml", &text, &SCHEMA).unwrap();
            let error = Timing::new(&parameters).unwrap_err().to_string();
            assert!(error.starts_with(wanted), "{error}");
        }
    }
}
