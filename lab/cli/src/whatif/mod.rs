// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift whatif`: what a device would have bought a program that `memlift record` has watched.
//!
//! - **Flow** trace ─▶ [`report`]: what of it can be seen, and the bound that follows ─▶ replays in `memlift_model::whatif`: without,
//!   with, with each parameter halved and doubled; or a sweep ─▶ text or JSON
//! - **Method** the CPU's side is this machine's calibration for the memcpy family; what has no calibration is fitted to the trace, and said
//!   so. Replays run beside each other, one per core
//! - **Not here** the replay (`lab/model`), the recording (record.rs)

mod export;
mod report;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use clap::ValueEnum;
use memlift::ground::config::Config;
use memlift::ground::input_file;
use memlift::offload::Engine;
use memlift::place::Origin;
use memlift::spec::trace::{HEADER_BYTES, Kind, LIMIT_BYTES, MAGIC};
use memlift_model::parameters::{Parameters, Schema};
use memlift_model::whatif::{
    Cpu, Curve, Device, Estimate, Line, Timing, Trace, neighbours, parameters, replay, rounded, varied,
};

use memlift_cli::failure::Failure;
use memlift_cli::print;
use memlift_cli::size::size;

use crate::PARAMETERS_BYTES_MAX;

/// Some calls, for the help.
pub const EXAMPLES: &str = "\
Examples:
  memlift whatif memlift.trace                                  does the model of this CPU give the recorded time?
  memlift whatif --device dsa memlift.trace
  memlift whatif --device dsa --sweep device_rate=10..60 memlift.trace
  memlift whatif --export ramulator.trace memlift.trace         LD/ST lines for Ramulator2

A device's inputs, with their sources, are a TOML file; --parameters names another (lab/model/parameters has the shipped ones).";

/// Arguments of `memlift whatif`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Say in a line what the trace holds, on standard error, as `memlift record` does at its end
    #[arg(long, conflicts_with_all = ["device", "from", "parameters", "sweep", "export"])]
    summary: bool,
    /// The trace that `memlift record` wrote
    #[arg(value_name = "TRACE", default_value = "memlift.trace")]
    trace: PathBuf,
    /// The device that takes the calls that it can take
    #[arg(long, value_enum, default_value_t = Which::Cpu)]
    device: Which,
    /// Calls from this size on [default: from where on it pays]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    from: Option<u64>,
    /// Another file of parameters for the device
    #[arg(long, value_name = "FILE")]
    parameters: Option<PathBuf>,
    /// Change one parameter from A to B, in the unit of its file or in the one behind B
    #[arg(long, value_name = "NAME=A..B", value_parser = sweep)]
    sweep: Option<Sweep>,
    /// Values of the sweep
    #[arg(long, value_name = "COUNT", default_value_t = 9, value_parser = clap::value_parser!(u32).range(2..=1000), requires = "sweep")]
    steps: u32,
    /// Write the lines that calls touch as `LD 0x…` and `ST 0x…`, one a line, as Ramulator2 reads them, and do no more
    #[arg(long, value_name = "FILE", conflicts_with_all = ["device", "from", "parameters", "sweep"])]
    export: Option<PathBuf>,
    /// Replace an exported file that is there
    #[arg(long, requires = "export")]
    force: bool,
}

/// Devices that the run can be replayed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Which {
    /// None: the run as the model of this CPU has it, beside the recorded one
    Cpu,
    /// Intel DSA: copies, fills, comparisons
    Dsa,
    /// SmartDIMM: what packs, encrypts, decrypts
    Smartdimm,
    /// NearPM: commits of memlift's persistent memory
    Nearpm,
    /// PULSE: walks of memlift's traversal
    Pulse,
    /// DMU: packed pages of memlift's compressed memory
    Dmu,
}

impl Which {
    fn name(self) -> &'static str {
        match self {
            Which::Cpu => "cpu",
            Which::Dsa => "dsa",
            Which::Smartdimm => "smartdimm",
            Which::Nearpm => "nearpm",
            Which::Pulse => "pulse",
            Which::Dmu => "dmu",
        }
    }
}

/// A parameter and its range.
#[derive(Clone, Debug)]
struct Sweep {
    name: String,
    from: f64,
    to: f64,
    unit: Option<String>,
}

fn sweep(text: &str) -> Result<Sweep, String> {
    let wrong = || "write NAME=A..B, for example device_rate=10..60 or start=100..900ns".to_owned();
    let (name, range) = text.split_once('=').ok_or_else(wrong)?;
    let (from, to) = range.split_once("..").ok_or_else(wrong)?;
    let digits = to.trim_end_matches(|letter: char| letter.is_ascii_alphabetic() || letter == '/');
    let number =
        |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    let (from, last) = (number(from).ok_or_else(wrong)?, number(digits).ok_or_else(wrong)?);
    let unit = Some(to[digits.len()..].to_owned()).filter(|unit| !unit.is_empty());
    Ok(Sweep { name: name.trim().to_owned(), from, to: last, unit })
}

/// Replays the trace with the device and prints the answer.
pub fn run(args: &Args, json: bool) -> Result<(), Failure> {
    let trace = read(&args.trace)?;
    if args.summary {
        return report::recorded(&trace, &args.trace, json);
    }
    if let Some(file) = &args.export {
        return export::write(&trace, file, args.force, json);
    }
    if trace.calls().next().is_none() {
        return Err(Failure::Failed(format!(
            "{}: no call is recorded in it: the program made none of {} or more that go through libc, libz or EVP; record with a \
             smaller --threshold",
            args.trace.display(),
            print::bytes(trace.threshold)
        )));
    }
    let (cpu, origin) = this_cpu(&trace)?;
    let base = report::Base { trace: &trace, cpu: &cpu, origin: &origin };
    if args.device == Which::Cpu {
        for (given, name) in [(args.parameters.is_some(), "--parameters"), (args.sweep.is_some(), "--sweep")]
        {
            if given {
                return Err(Failure::Usage(format!("{name} changes a device: name one with --device")));
            }
        }
        let model = replay(&trace, &cpu, Timing::Modelled, &Device::Cpu, 0);
        return report::cpu(&base, &model, json);
    }
    let source = source(args)?;
    let parameters = source.parameters()?;
    let device = Device::new(&parameters).map_err(|error| Failure::Failed(error.to_string()))?;
    if let Device::Service(service) = &device
        && !trace.calls().any(|call| device.takes(call))
    {
        return report::nothing(&base, args.device.name(), service.serves(), json);
    }
    let without = replay(&trace, &cpu, Timing::Recorded, &Device::Cpu, 0);
    let (from, with) = match args.from {
        Some(size) => (Some(size), replay(&trace, &cpu, Timing::Recorded, &device, size)),
        None => device.best_size(&trace, &cpu, &without),
    };
    let runs = |device: &Device| match args.from {
        Some(size) => replay(&trace, &cpu, Timing::Recorded, device, size),
        None => device.best_size(&trace, &cpu, &without).1,
    };
    let mut answer = report::Answer {
        name: args.device.name(),
        device: &device,
        inputs: inputs(&parameters),
        from,
        without,
        with,
        ..Default::default()
    };
    if let Some(sweep) = &args.sweep {
        let value =
            |step: u32| sweep.from + (sweep.to - sweep.from) * f64::from(step) / f64::from(args.steps - 1);
        let devices = (0..args.steps)
            .map(|step| {
                let unit = sweep.unit.as_deref();
                let value = rounded(&source.text, source.schema, &sweep.name, value(step), unit);
                varied(&source.file, &source.text, source.schema, &sweep.name, value, unit)
                    .map(|device| (value, device))
                    .map_err(|error| Failure::Usage(error.to_string()))
            })
            .collect::<Result<Vec<_>, _>>()?;
        answer.sweep = Some((
            sweep.name.clone(),
            sweep.unit.clone(),
            beside(&devices, |(value, device)| (*value, runs(device))),
        ));
    } else {
        let devices = neighbours(&source.text, source.schema);
        answer.parameters = beside(&devices, |(name, factor, device)| (*name, *factor, runs(device)));
    }
    report::device(&base, &answer, json)
}

/// How far each input can be trusted: the kinds of a device's parameters, with the names of those that have it.
fn inputs(parameters: &Parameters) -> Vec<(&'static str, Vec<&'static str>)> {
    ["published", "derived", "assumed", "fitted"]
        .map(|kind| {
            let of = parameters.iter().filter(|(_, parameter)| parameter.kind.name() == kind);
            (kind, of.map(|(name, _)| name).collect())
        })
        .into()
}

/// Work on each of `items`, as many at a time as there are cores; results in their order.
fn beside<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(items.len().max(1));
    let (next, begun) = (AtomicUsize::new(0), Instant::now());
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let (next, work) = (&next, &work);
        let run = move || {
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = items.get(index) else { return done };
                if begun.elapsed().as_millis() > 500 {
                    print::progress(&format!("run {} of {}", index + 1, items.len()));
                }
                done.push((index, work(item)));
            }
        };
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(run)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a replay does not panic")).collect()
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// A device's file.
struct Source {
    file: String,
    text: String,
    schema: &'static Schema,
}

impl Source {
    fn parameters(&self) -> Result<Parameters, Failure> {
        Parameters::parse(&self.file, &self.text, self.schema)
            .map_err(|error| Failure::Failed(error.to_string()))
    }
}

fn source(args: &Args) -> Result<Source, Failure> {
    let (shipped, schema) = parameters(args.device.name())
        .ok_or_else(|| Failure::Usage(format!("{} has no parameters", args.device.name())))?;
    let Some(path) = &args.parameters else {
        return Ok(Source {
            file: format!("parameters of {}", schema.device),
            text: shipped.to_owned(),
            schema,
        });
    };
    let text = input_file::text(path, PARAMETERS_BYTES_MAX).map_err(|error| {
        Failure::about(&error, format!("{}: {error}: give a file of parameters", path.display()))
    })?;
    Ok(Source { file: path.display().to_string(), text, schema })
}

fn read(path: &Path) -> Result<Trace, Failure> {
    let unread = |error: std::io::Error| {
        let path = path.display();
        Failure::about(
            &error,
            format!("{path}: {error}: record one first, `memlift record -o {path} -- program`"),
        )
    };
    let mut file = File::open(path).map_err(unread)?;
    // The head shows whether it is a trace, before more of it is read: a device has no end.
    let mut bytes = Vec::new();
    (&mut file).take(HEADER_BYTES as u64).read_to_end(&mut bytes).map_err(unread)?;
    if bytes.len() == HEADER_BYTES && bytes[..8] == MAGIC.to_le_bytes() {
        file.take(LIMIT_BYTES.1 - HEADER_BYTES as u64).read_to_end(&mut bytes).map_err(unread)?;
    }
    Trace::read(&bytes).map_err(|fault| Failure::Failed(format!("{}: {fault}", path.display())))
}

/// This machine's CPU, and where its lines come from.
fn this_cpu(trace: &Trace) -> Result<(Cpu, String), Failure> {
    let config = Config::load().map_err(|error| Failure::Failed(error.to_string()))?;
    let engine = Engine::open(&config).map_err(|error| Failure::Failed(error.to_string()))?;
    let loaded = engine.placer().loaded();
    let origin = match &loaded.origin {
        Origin::File { path } => format!("calibration of this machine, {}", path.display()),
        Origin::Measured => "calibration of this machine".to_owned(),
        Origin::Builtin { why } | Origin::Untrusted { why, .. } => {
            format!("built-in numbers ({why}); `memlift calibrate` measures this machine")
        }
    };
    let mut curves = Vec::new();
    for (kinds, opcode) in
        [(&[Kind::Copy, Kind::Move][..], "memmove"), (&[Kind::Fill], "fill"), (&[Kind::Compare], "compare")]
    {
        let found = loaded
            .calibration
            .model
            .curves
            .iter()
            .filter(|curve| curve.opcode == opcode && curve.executor == "inline_temporal");
        for curve in found {
            let lines: Vec<Line> = curve
                .lines
                .iter()
                .map(|line| Line {
                    from_bytes: line.from_bytes,
                    ns_per_byte: line.ns_per_byte,
                    base_ns: line.base_ns,
                })
                .collect();
            let of = |kind: &Kind| Curve { kind: *kind, hot: curve.cache == "hot", lines: lines.clone() };
            curves.extend(kinds.iter().map(of));
        }
    }
    Ok((Cpu::new(curves, loaded.calibration.thresholds.cache_bytes, fault(), trace), origin))
}

/// Measures the first touch of a page.
fn fault() -> Estimate {
    const PAGES: usize = 1024;
    let once = || {
        let mut memory = vec![0u8; PAGES * 4096];
        let begun = Instant::now();
        for page in memory.chunks_mut(4096) {
            page[0] = 1;
        }
        std::hint::black_box(&memory);
        begun.elapsed().as_nanos() as f64 / PAGES as f64
    };
    Estimate::of((0..9).map(|_| once()).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_are_read() {
        let good = sweep("start=100..900ns").expect("a sweep");
        assert_eq!(
            (good.name.as_str(), good.from, good.to, good.unit.as_deref()),
            ("start", 100.0, 900.0, Some("ns"))
        );
        assert_eq!(sweep("device_rate=1.5..6GB/s").expect("a sweep").unit.as_deref(), Some("GB/s"));
        for wrong in
            ["start", "start=1", "start=a..b", "start=1..", "start=..2", "start=-1..2", "start=nan..2"]
        {
            assert!(sweep(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn work_beside_each_other_keeps_its_order() {
        let items: Vec<u32> = (0..100).collect();
        assert_eq!(beside(&items, |item| item * 2), items.iter().map(|item| item * 2).collect::<Vec<_>>());
        assert!(beside(&[0u8; 0], |_| ()).is_empty());
    }
}
