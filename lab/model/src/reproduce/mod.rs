// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Published figures and tables beside what the machines here give: facts with their place in the paper, never tuned row by row.
//!
//! - **Flow** [`named`] ─▶ [`Figure`]: for each row what the paper has, what the model has, and whether the row was fitted to
//! - **Order** a figure's rows are the paper's, in its order; equal parameters give equal numbers everywhere
//! - **Layout** [`PUBLISHED`] what the papers have, with what reproduces it or why nothing does · [`Span`] the range of a parameter that a verdict
//!   hangs on · [`left_out()`] fitted scalars without the row that they are judged on
//! - **Rule** a row that a parameter was fitted to says so, and no summary counts it
//! - **Not here** how it is printed and drawn (`memlift reproduce`)

mod cxl;
mod distributed;
mod dmu;
mod eta;
mod iteration;
mod latency;
mod left_out;
mod nearpm;
mod pipelines;
mod published;
mod range;
mod rocket;
mod smartdimm;

use crate::parameters::{self, Kind, ParameterError, Parameters, Schema};
use crate::{dmu as compressed, dsa, nearpm as near, pulse, smartdimm as buffer};

/// The paper's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Paper {
    /// The paper prints one number.
    Value(f64),
    /// The paper prints a range.
    Between(f64, f64),
}

impl Paper {
    /// How far a model's number is off, as a part of the paper's; 0 inside of a range.
    #[must_use]
    pub fn deviation(self, model: f64) -> f64 {
        match self {
            Paper::Value(value) => model / value - 1.0,
            Paper::Between(low, _) if model < low => model / low - 1.0,
            Paper::Between(_, high) if model > high => model / high - 1.0,
            Paper::Between(..) => 0.0,
        }
    }
}

/// The role of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It comes out of the model.
    Predicted,
    /// A parameter was set so that it comes out.
    Fitted,
    /// It goes into the model: agreement says that it is carried through, no more.
    Input,
}

impl Role {
    /// Returns the role in words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::Predicted => "predicted",
            Role::Fitted => "fitted",
            Role::Input => "input",
        }
    }
}

/// One number of a figure: the paper's beside the model's.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The machine or workload.
    pub label: String,
    /// The quantity, with its unit.
    pub quantity: &'static str,
    /// Value in the paper; `None` where it prints none.
    pub paper: Option<Paper>,
    /// Value that the model gives.
    pub model: f64,
    /// See [`Role`].
    pub role: Role,
}

/// How a figure did in one of its quantities.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Question that the verdict answers.
    pub question: String,
    /// Answer, with its numbers.
    pub answer: String,
    /// True if the answer is as it should be; `None` where nothing was promised.
    pub holds: Option<bool>,
}

/// A figure or table of a paper.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Its name for the command.
    pub name: &'static str,
    /// The subject of the figure.
    pub title: &'static str,
    /// Paper, section, table.
    pub source: &'static str,
    /// Numbers of the figure.
    pub rows: Vec<Row>,
    /// Conclusions from the rows.
    pub verdicts: Vec<Verdict>,
    /// Notes that a reader needs: fitted inputs, assumptions, questions that the paper leaves open.
    pub notes: Vec<String>,
}

impl Figure {
    /// Distances of the model from the paper's numbers in rows that nobody fitted and that are no inputs, as parts of the paper's numbers.
    #[must_use]
    pub fn distances(&self) -> Vec<f64> {
        let predicted = self.rows.iter().filter(|row| row.role == Role::Predicted);
        predicted.filter_map(|row| Some(row.paper?.deviation(row.model).abs())).collect()
    }
}

/// Inputs of the machines.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Timing of PULSE.
    pub pulse: pulse::Timing,
    /// Timing of NearPM.
    pub nearpm: near::Timing,
    /// Timing of DSA.
    pub dsa: dsa::Timing,
    /// Timing of DMU.
    pub dmu: compressed::Timing,
    /// Timing of SmartDIMM.
    pub smartdimm: buffer::Timing,
    /// All of them, with their sources.
    pub parameters: Vec<Parameters>,
    /// The files' texts, in the same order.
    texts: Vec<String>,
}

/// Devices: what their files hold, and the files that come with the crate.
const DEVICES: [(&Schema, &str); 5] = [
    (&pulse::timing::SCHEMA, pulse::timing::PARAMETERS),
    (&near::timing::SCHEMA, near::timing::PARAMETERS),
    (&dsa::timing::SCHEMA, dsa::timing::PARAMETERS),
    (&compressed::timing::SCHEMA, compressed::timing::PARAMETERS),
    (&buffer::timing::SCHEMA, buffer::timing::PARAMETERS),
];

impl Inputs {
    /// The parameters that come with the crate.
    ///
    /// # Panics
    /// If one of the files is wrong: a defect, which a test rules out.
    #[must_use]
    pub fn shipped() -> Inputs {
        let file = |(schema, text): &(&Schema, &str)| {
            Parameters::parse(&format!("parameters/{}.toml", schema.device), text, schema)
                .unwrap_or_else(|error| panic!("{error}"))
        };
        Inputs {
            pulse: pulse::Timing::shipped(),
            nearpm: near::Timing::shipped(),
            dsa: dsa::Timing::shipped(),
            dmu: compressed::Timing::shipped(),
            smartdimm: buffer::Timing::shipped(),
            parameters: DEVICES.iter().map(file).collect(),
            texts: DEVICES.iter().map(|(_, text)| (*text).to_owned()).collect(),
        }
    }

    /// Takes a device's parameters from a file's text instead; the file says which device it is about.
    ///
    /// # Errors
    /// The first fault, with the field's name and the fix.
    pub fn replace(&mut self, file: &str, text: &str) -> Result<(), ParameterError> {
        let known: Vec<&str> = DEVICES.iter().map(|(schema, _)| schema.device).collect();
        let index = match parameters::device(file, text)? {
            Some(device) => known.iter().position(|known| *known == device).ok_or_else(|| {
                let fault = format!("{device:?} is no device here: give one of {}", known.join(", "));
                ParameterError::new(file, "device", fault)
            })?,
            None => {
                let fault = format!("it is missing; add `device = \"…\"`, one of {}", known.join(", "));
                return Err(ParameterError::new(file, "device", fault));
            }
        };
        let parameters = Parameters::parse(file, text, DEVICES[index].0)?;
        match parameters.device() {
            "nearpm" => self.nearpm = near::Timing::new(&parameters)?,
            "dsa" => self.dsa = dsa::Timing::new(&parameters)?,
            "dmu" => self.dmu = compressed::Timing::new(&parameters)?,
            "smartdimm" => self.smartdimm = buffer::Timing::new(&parameters)?,
            _ => self.pulse = pulse::Timing::new(&parameters)?,
        }
        self.parameters[index] = parameters;
        text.clone_into(&mut self.texts[index]);
        Ok(())
    }

    /// A parameter of a device: its unit, its value in that unit, how far it can be trusted.
    fn number(&self, device: &str, name: &str) -> Option<(String, f64, Kind)> {
        let parameters = self.parameters.iter().find(|parameters| parameters.device() == device)?;
        let (_, parameter) = parameters.iter().find(|(found, _)| *found == name)?;
        let (value, unit) = parameter.text.split_once(' ').unwrap_or((&parameter.text, "1"));
        Some((unit.to_owned(), value.parse().ok()?, parameter.kind))
    }

    /// The same with one parameter of a device changed, in the unit of its file.
    ///
    /// # Errors
    /// No such parameter, or a value that its schema does not allow.
    pub fn with(&self, device: &str, name: &str, value: f64) -> Result<Inputs, ParameterError> {
        let unknown = || ParameterError::new(device, name, "no device here has this parameter");
        let index = DEVICES.iter().position(|(schema, _)| schema.device == device).ok_or_else(unknown)?;
        let text = parameters::changed(device, &self.texts[index], DEVICES[index].0, name, value, None)?;
        let mut changed = self.clone();
        changed.replace(device, &text)?;
        Ok(changed)
    }
}

/// An entry of the list.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name for the command.
    pub name: &'static str,
    /// The subject of the figure.
    pub title: &'static str,
    run: fn(&Inputs) -> Result<Figure, String>,
    /// Verdicts that hang on a value that nobody published.
    rests: &'static [Rest],
    /// The reason why it compares no number that nobody fitted; none: it compares some.
    pub without: Option<&'static str>,
}

impl Entry {
    /// Runs the machines.
    ///
    /// # Errors
    /// If a machine is impossible or gave a wrong answer.
    pub fn run(&self, inputs: &Inputs) -> Result<Figure, String> {
        (self.run)(inputs)
    }

    /// All verdicts that hang on a value that nobody published.
    #[must_use]
    pub fn rests(&self) -> &'static [Rest] {
        self.rests
    }

    /// The parameters that the verdict of this index hangs on.
    pub fn rests_of(&self, verdict: usize) -> impl Iterator<Item = &'static Rest> {
        self.rests.iter().filter(move |rest| rest.verdict == verdict)
    }

    /// The ranges of the parameters that verdicts of this figure hang on; runs the figure once for each value.
    ///
    /// # Errors
    /// As [`Entry::run`].
    pub fn ranges(&self, inputs: &Inputs, figure: &Figure) -> Result<Vec<Span>, String> {
        range::spans(self, inputs, figure)
    }
}

const fn entry(name: &'static str, title: &'static str, run: fn(&Inputs) -> Result<Figure, String>) -> Entry {
    Entry { name, title, run, rests: &[], without: None }
}

impl Entry {
    const fn resting(self, rests: &'static [Rest]) -> Entry {
        Entry { rests, ..self }
    }

    /// A figure that compares no number that nobody fitted, for this reason.
    const fn without_numbers(self, why: &'static str) -> Entry {
        Entry { without: Some(why), ..self }
    }
}

const fn on(verdict: usize, device: &'static str, parameter: &'static str) -> Rest {
    Rest { verdict, device, parameter }
}

/// All figures that can be reproduced.
pub const ALL: &[Entry] = &[
    entry("pulse-table3", iteration::TITLE, iteration::run),
    entry("pulse-table4", pipelines::TITLE, pipelines::run).resting(&[
        on(0, "pulse", "memory_stages"),
        on(0, "pulse", "contexts_per_workspace"),
        on(0, "pulse", "arbitration"),
        on(1, "pulse", "arbitration"),
        on(1, "pulse", "host"),
    ]),
    entry("pulse-fig9", distributed::TITLE, distributed::run)
        .resting(&[on(0, "pulse", "bounce"), on(1, "pulse", "bounce")]),
    entry("pulse-fig10", latency::TITLE, latency::run)
        .without_numbers("its four numbers are inputs of the machine; table 4 has the latencies that follow from them"),
    entry("pulse-fig11", eta::TITLE, eta::run).resting(&[on(0, "pulse", "memory_stages")]),
    entry("pulse-fig12", cxl::TITLE, cxl::run),
    entry("nearpm-fig1", nearpm::SHARES, nearpm::shares)
        .resting(&[on(0, "nearpm", "logs_per_transaction")])
        .without_numbers("its numbers are inputs of the machine's programs; figures 15, 16 and 18 have what follows from them"),
    entry("nearpm-fig15", nearpm::REGIONS, nearpm::regions),
    entry("nearpm-fig16", nearpm::PROGRAMS, nearpm::programs).resting(&[
        on(0, "nearpm", "command"),
        on(0, "nearpm", "cpu_line"),
        on(0, "nearpm", "lines_read_of_a_copy"),
    ]),
    entry("nearpm-fig17", nearpm::COPIES, nearpm::copies)
        .without_numbers("the text prints two of its numbers, and one scalar was fitted to each"),
    entry("nearpm-fig18", nearpm::OVERLAP, nearpm::overlap),
    entry("nearpm-fig19", nearpm::UNITS, nearpm::units).resting(&[
        on(0, "nearpm", "cpu_line"),
        on(0, "nearpm", "media"),
        on(0, "nearpm", "pages_per_transaction"),
        on(0, "nearpm", "request_cycles"),
    ]),
    entry("nearpm-fig20", nearpm::THREADS, nearpm::threads)
        .resting(&[on(1, "nearpm", "logs_per_transaction")])
        .without_numbers("bars without numbers: only statements of the text are asked"),
    entry("rocket-fig5", rocket::CACHE, rocket::cache)
        .resting(&[on(1, "dsa", "working_set")])
        .without_numbers("bars without numbers: only statements of the text are asked"),
    entry("rocket-fig9", rocket::LATENCY, rocket::line).resting(&[on(2, "dsa", "start")]),
    entry("rocket-fig11", rocket::MODES, rocket::modes)
        .resting(&[on(0, "dsa", "batch"), on(0, "dsa", "message")]),
    entry("dmu-fig19", dmu::GRAPHS, dmu::graphs).resting(&[
        on(0, "dmu", "pack"),
        on(0, "dmu", "page_fault"),
        on(0, "dmu", "unpack"),
        on(1, "dmu", "file_raw"),
        on(1, "dmu", "graph_hot"),
        on(1, "dmu", "low"),
        on(1, "dmu", "pack"),
        on(1, "dmu", "page_fault"),
        on(1, "dmu", "spare"),
        on(1, "dmu", "unused"),
    ]),
    entry("dmu-fig20", dmu::SUITE, dmu::suite).resting(&[
        on(1, "dmu", "file_raw"),
        on(2, "dmu", "file_raw"),
        on(2, "dmu", "graph_hot"),
        on(2, "dmu", "graph_work"),
        on(2, "dmu", "pack"),
        on(2, "dmu", "page_fault"),
        on(2, "dmu", "spare"),
        on(2, "dmu", "unused"),
    ]),
    entry("dmu-accesses", dmu::ACCESSES, dmu::accesses).resting(&[
        on(0, "dmu", "cold"),
        on(0, "dmu", "file_work"),
        on(0, "dmu", "graph_lines"),
        on(0, "dmu", "graph_visits"),
        on(0, "dmu", "graph_work"),
        on(0, "dmu", "line"),
        on(0, "dmu", "pack"),
        on(0, "dmu", "page_fault"),
        on(0, "dmu", "stream"),
        on(0, "dmu", "unpack"),
        on(1, "dmu", "file_raw"),
        on(1, "dmu", "pack"),
        on(1, "dmu", "page_fault"),
    ]),
    entry("smartdimm-fig9", smartdimm::TRACE, smartdimm::trace),
    entry("smartdimm-fig10", smartdimm::OCCUPANCY, smartdimm::occupancy)
        .resting(&[on(0, "smartdimm", "contention"), on(0, "smartdimm", "message")]),
    entry("smartdimm-table", smartdimm::TABLE, smartdimm::table),
    entry("smartdimm-deflate", smartdimm::DEFLATE, smartdimm::ratio)
        .without_numbers("the paper prints no ratio: only statements of its text are asked"),
];

/// The one of that name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Entry> {
    ALL.iter().find(|entry| entry.name == name)
}

pub use left_out::{ALONE, LeftOut, left_out};
pub use published::{Cover, PUBLISHED, Published};
pub use range::{Rest, Span};

pub use dmu::fit as fit_dmu;
pub use nearpm::{Fit as NearPmFit, fit as fit_nearpm};
pub use pipelines::{Fit as PulseFit, fit as fit_pulse};
pub use rocket::fit as fit_dsa;
pub use smartdimm::fit as fit_smartdimm;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviations_are_parts_of_the_paper_s_number() {
        assert!((Paper::Value(2.0).deviation(2.5) - 0.25).abs() < 1e-12);
        assert_eq!(Paper::Between(1.0, 2.0).deviation(1.5), 0.0);
        assert!((Paper::Between(1.0, 2.0).deviation(0.9) + 0.1).abs() < 1e-12);
        assert!((Paper::Between(1.0, 2.0).deviation(3.0) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn every_figure_has_a_line_and_every_line_a_figure_or_a_reason() {
        for Published { paper, place, shows, cover } in PUBLISHED {
            match cover {
                Cover::By(name) => assert!(named(name).is_some(), "{paper} {place}: {name}"),
                Cover::OutOfReach(why) => assert!(why.len() > 20, "{paper} {place}: {shows}"),
            }
        }
        for entry in ALL {
            assert!(PUBLISHED.iter().any(|line| line.cover == Cover::By(entry.name)), "{}", entry.name);
        }
        for (paper, places) in [
            ("Rocket", &["1", "3", "4", "5", "9", "10", "11", "12", "13", "14", "15"][..]),
            ("SmartDIMM", &["2", "3", "9", "10", "11", "12"]),
            ("PULSE", &["2", "7", "8", "9", "10", "11", "12"]),
            ("NearPM", &["1", "15", "16", "17", "18", "19", "20"]),
            ("DMU", &["1", "5", "19", "20"]),
        ] {
            for number in places {
                let place = format!("figure {number}");
                assert!(
                    PUBLISHED.iter().any(|line| line.paper == paper && line.place == place),
                    "{paper} {place}"
                );
            }
        }
    }

    #[test]
    fn every_figure_runs_twice_to_the_same_numbers() {
        let inputs = Inputs::shipped();
        for entry in ALL {
            assert_eq!(named(entry.name).map(|found| found.title), Some(entry.title));
            // A soak test has them.
            if ["dmu-fig19", "dmu-fig20", "smartdimm-fig10"].contains(&entry.name) {
                continue;
            }
            let figure = entry.run(&inputs).unwrap();
            assert_eq!((figure.name, figure.title), (entry.name, entry.title));
            // Each compares a number that nobody fitted, or says why it cannot.
            assert_eq!(figure.distances().is_empty(), entry.without.is_some(), "{}", entry.name);
            assert!(figure.rows.iter().all(|row| row.model.is_finite() && row.model >= 0.0));
            // The long ones are run once: the table a second time by its own test.
            if !["pulse-table4", "nearpm-fig19", "dmu-accesses"].contains(&entry.name) {
                assert_eq!(entry.run(&inputs).unwrap(), figure);
            }
        }
        assert!(named("pulse-fig99").is_none());
    }

    /// NearPM's programs must be within 20 % with nothing fitted to them. The draw of one device and two for
    /// logging is printed as it is.
    #[test]
    fn nearpm_s_programs_are_within_20_percent() {
        let figure = named("nearpm-fig16").unwrap().run(&Inputs::shipped()).unwrap();
        assert_eq!(figure.verdicts[0].holds, Some(true), "{:#?}", figure.verdicts);
        assert!(figure.rows.iter().all(|row| row.role == Role::Predicted));
        for kind in figure.rows.chunks(3) {
            // A thousandth is a draw.
            assert!(kind[1].model < kind[0].model && kind[0].model < kind[2].model * 1.001, "{kind:#?}");
        }
    }

    /// The table must keep the figure's verdicts. The ranking is not all right, and is printed as it is: no less of it.
    #[test]
    fn table_4_is_closer_than_the_null_model_in_both_columns() {
        let figure = named("pulse-table4").unwrap().run(&Inputs::shipped()).unwrap();
        let holds: Vec<Option<bool>> = figure.verdicts.iter().map(|verdict| verdict.holds).collect();
        assert_eq!(
            (holds[0], holds[1], holds[4]),
            (Some(true), Some(true), Some(true)),
            "{:#?}",
            figure.verdicts
        );
        for (verdict, ranked) in figure.verdicts[2..4].iter().zip(["139 of 142 pairs", "101 of 103 pairs"]) {
            assert!(verdict.answer.starts_with(ranked), "{verdict:?}");
        }
        assert_eq!(figure.rows.iter().filter(|row| row.role == Role::Fitted).count(), 2);
    }
}
