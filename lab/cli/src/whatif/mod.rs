// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift whatif`: what a device would have bought a program that `memlift record` has watched.
//!
//! - **Flow** trace ─▶ [`report`]: what of it can be seen, and the bound that follows ─▶ replays in `memlift_model::whatif`: without,
//!   with, with each parameter halved and doubled; or a sweep ─▶ text or JSON. [`submit`]: the program was changed, call site by call site
//! - **Method** the CPU's side is this machine's calibration for the memcpy family; what has no calibration is fitted to the trace, and said
//!   so. Replays run beside each other, one per core
//! - **Not here** the replay (`lab/model`), the recording (record.rs)

mod advice;
mod beside;
mod export;
mod question;
mod report;
mod source;
mod submit;
mod symbol;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ValueEnum;
use memlift::ground::config::Config;
use memlift::ground::region::Headroom;
use memlift::ground::size;
use memlift::offload::Engine;
use memlift::place::Origin;
use memlift::spec::formats::trace::{HEADER_BYTES, Header, Kind};
use memlift_model::parameters::Parameters;
use memlift_model::whatif::{
    Cpu, Curve, Device, Estimate, Line, Load, Timing, Trace, TraceError, neighbours, on_cores, replay,
    rounded, varied,
};

use memlift_cli::failure::Failure;
use memlift_cli::{input, print};

use beside::beside;
use export::{Format, Pages};
use question::{FirstUse, Question};
use source::Source;

/// Memory that a trace's threads take for each byte of the file, while they are read and replayed, bytes.
const MEMORY_PER_BYTE: u64 = 6;

/// Some calls, for the help.
pub const EXAMPLES: &str = "\
Examples:
  memlift whatif memlift.trace                                  does the model of this CPU give the recorded time?
  memlift whatif --cores 1 memlift.trace                        and how long does it take on one core?
  memlift whatif --device dsa memlift.trace
  memlift whatif --device dsa --sweep device_rate=10..60 memlift.trace
  memlift whatif --device smartdimm --requests 5000 memlift.trace   a server that answered 5000 requests: how many per second?
  memlift whatif --async memlift.trace                          which three calls should be submitted and not waited for?
  memlift whatif --batch 16 --first-use 2us memlift.trace       the same, 16 at a time, each result used 2 us later
  memlift whatif --ahead 1 memlift.trace                        the same, each call one round ahead of its use
  memlift whatif --export ramulator.trace memlift.trace         LD/ST lines for Ramulator2
  memlift whatif --export packets.gz --format gem5 memlift.trace    with times, threads and frames, packed

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
    /// The device that takes the calls that it can take [default: cpu; dsa with --async, --batch or --ahead]
    #[arg(long, value_enum)]
    device: Option<Which>,
    /// Change the program: a call is submitted to the device's queue, and the program goes on. Lists the call sites to change, in order
    #[arg(long = "async", conflicts_with_all = ["sweep", "export", "summary"])]
    submits: bool,
    /// The same, so many calls of a thread in one submission: 2 to 1024
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(2..=1024),
        conflicts_with_all = ["sweep", "export", "summary"])]
    batch: Option<u32>,
    /// The same, each call submitted so many calls of its site ahead, with as many more buffers: 1 to 64
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=64),
        conflicts_with_all = ["sweep", "export", "summary"])]
    ahead: Option<u32>,
    /// With --async, --batch or --ahead: computing after a call until its result is used: recorded (when a recorded event uses it), at-once, or a
    /// time as 500ns, 2us, 1ms
    #[arg(long, value_name = "WHEN", value_parser = question::first_use)]
    first_use: Option<FirstUse>,
    /// With --async, --batch or --ahead: call sites that are listed [default: 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100))]
    sites: Option<u32>,
    /// The program answered so many requests, in the whole run [default: counted on connections that it accepted]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..),
        conflicts_with_all = ["submits", "batch", "ahead", "export", "summary"])]
    requests: Option<u64>,
    /// The time of the recorded run on so many cores: 1 to 1024
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024),
        conflicts_with_all = ["submits", "batch", "ahead", "export", "summary"])]
    cores: Option<u32>,
    /// Calls from this size on [default: from where on it pays]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
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
    /// Write the lines of memory that calls touch, as a simulator reads them, and do no more; packed if FILE ends in .gz
    #[arg(long, value_name = "FILE", conflicts_with_all = ["device", "from", "parameters", "sweep"])]
    export: Option<PathBuf>,
    /// With --export: the form of the file
    #[arg(long, value_enum, default_value_t = Format::Loadstore, requires = "export")]
    format: Format,
    /// With --export: addresses in the file [default: virtual; first-touch for gem5]
    #[arg(long, value_enum, requires = "export")]
    pages: Option<Pages>,
    /// With --format simpleo3: instructions that its core retires in a nanosecond, ipc times GHz
    #[arg(long, value_name = "NUMBER", default_value_t = 12.8, value_parser = instructions, requires = "export")]
    instructions: f64,
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

impl Args {
    fn source(&self) -> Result<Source, Failure> {
        Source::open(self.device().name(), self.parameters.as_deref())
    }

    fn changes(&self) -> bool {
        self.submits || self.batch.is_some() || self.ahead.is_some()
    }

    fn device(&self) -> Which {
        self.device.unwrap_or(if self.changes() { Which::Dsa } else { Which::Cpu })
    }

    /// The question about a changed program; none: the program stays as it is.
    fn question(&self) -> Result<Option<Question>, Failure> {
        if !self.changes() {
            for (given, name) in
                [(self.first_use.is_some(), "--first-use"), (self.sites.is_some(), "--sites")]
            {
                if given {
                    return Err(Failure::Usage(format!(
                        "{name} is about calls that are submitted: give --async, --batch COUNT or --ahead COUNT with it"
                    )));
                }
            }
            return Ok(None);
        }
        if self.device() != Which::Dsa {
            return Err(Failure::Usage(format!(
                "--async, --batch and --ahead need a device with a queue, and {} has none: give --device dsa, or leave --device out",
                self.device().name()
            )));
        }
        Ok(Some(Question {
            batch: self.batch.map_or(1, |batch| batch as usize),
            ahead: self.ahead.map_or(0, |ahead| ahead as usize),
            first_use: self.first_use.unwrap_or(FirstUse::Recorded),
            from: self.from,
            sites: self.sites.unwrap_or(3) as usize,
        }))
    }
}

fn instructions(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.001..=1000.0).contains(number));
    number.ok_or_else(|| "give 0.001 to 1000 instructions per nanosecond".to_owned())
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
    let question = args.question()?;
    if args.cores.is_some() && args.device() != Which::Cpu {
        return Err(Failure::Usage(
            "--cores is about the program on this CPU alone: leave --device out".to_owned(),
        ));
    }
    let mut trace = read(&args.trace)?;
    if let Some(requests) = args.requests {
        trace.load = Some(Load::given(requests, trace.wall_ns));
    }
    if args.summary {
        return report::recorded(&trace, &args.trace, json);
    }
    if let Some(file) = &args.export {
        let request = export::Request {
            path: file,
            format: args.format,
            pages: args.pages,
            instructions: args.instructions,
            force: args.force,
        };
        return export::write(&trace, &request, json);
    }
    if trace.calls().next().is_none() && trace.load.is_none() {
        return Err(Failure::Failed(format!(
            "{}: no call is recorded in it: the program made none of {} or more that go through libc, libz or EVP; record with a \
             smaller --threshold",
            args.trace.display(),
            print::bytes(trace.threshold)
        )));
    }
    let (cpu, origin) = this_cpu(&trace)?;
    let base = report::Base { trace: &trace, cpu: &cpu, origin: &origin };
    if let Some(question) = question {
        return submit::run(&base, &args.source()?, &question, json);
    }
    if args.device() == Which::Cpu {
        for (given, name) in [(args.parameters.is_some(), "--parameters"), (args.sweep.is_some(), "--sweep")]
        {
            if given {
                return Err(Failure::Usage(format!("{name} changes a device: name one with --device")));
            }
        }
        let model = replay(&trace, &cpu, Timing::Modelled, &Device::Cpu, 0);
        let cores = args.cores.map(|cores| (cores, on_cores(&trace, cores as usize)));
        return report::cpu(&base, &model, cores, json);
    }
    let source = args.source()?;
    let parameters = source.parameters()?;
    let device = Device::new(&parameters).map_err(|error| Failure::Failed(error.to_string()))?;
    if let Device::Service(service) = &device
        && !trace.calls().any(|call| device.takes(call))
    {
        return report::nothing(&base, args.device().name(), service.serves(), json);
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
        name: args.device().name(),
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
        let with = answer.with;
        answer.parameters = beside(&devices, |(name, factor, changed)| {
            (*name, *factor, if changed.replays_as(&device) { with } else { runs(changed) })
        });
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

fn read(path: &Path) -> Result<Trace, Failure> {
    let unread = |error: std::io::Error| {
        let path = path.display();
        Failure::about(
            &error,
            format!("{path}: {error}: record one first, `memlift record -o {path} -- program`"),
        )
    };
    input::plain_or_piped(path)?;
    let mut file = File::open(path).map_err(unread)?;
    let failed = |error: &dyn std::fmt::Display| Failure::Failed(format!("{}: {error}", path.display()));
    let mut head = Vec::new();
    (&mut file).take(HEADER_BYTES as u64).read_to_end(&mut head).map_err(unread)?;
    let Some(head) = head.first_chunk() else {
        return Err(failed(&Header::too_short(head.len() as u64)));
    };
    let needed = Header::open(head).map_err(|fault| failed(&fault))?.end().saturating_mul(MEMORY_PER_BYTE);
    let there = Headroom::read();
    if needed > there.bytes {
        return Err(failed(&format!(
            "replaying it may take {} of memory, and {} are left ({}): record again with a smaller --limit or a larger --threshold",
            print::bytes(needed),
            print::bytes(there.bytes),
            there.source
        )));
    }
    Trace::read_from(head, file).map_err(|error| match error {
        TraceError::Io(error) => unread(error),
        TraceError::Fault(fault) => failed(&fault),
    })
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
    // Memory that was given back would come again with its pages: each sample's stays until the last one is taken.
    let mut held = Vec::new();
    let mut once = || {
        let mut memory = vec![0u8; PAGES * 4096];
        let begun = Instant::now();
        for page in memory.chunks_mut(4096) {
            page[0] = 1;
        }
        let ns = begun.elapsed().as_nanos() as f64 / PAGES as f64;
        held.push(memory);
        ns
    };
    let samples = (0..9).map(|_| once()).collect();
    std::hint::black_box(&held);
    Estimate::of(samples).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nine times the same memory, which has its pages from the second time on, gave 8 ns.
    #[test]
    fn a_page_fault_takes_longer_than_a_store() {
        let fault = fault();
        assert!(fault.ns > 30.0 && fault.samples == 9, "{fault:?}");
    }

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
}
