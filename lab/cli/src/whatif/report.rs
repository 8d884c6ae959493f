// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Prints the answers of `record` and `whatif`.
//!
//! - **Order** what is seen and the bound that follows from it come first, then the answer, then what matters most, then what stays
//!   invisible
//! - **Amdahl** a share f of CPU time in calls makes a program at most 1 / (1 − f) times as fast, were they free

use std::collections::BTreeMap;
use std::path::Path;

use memlift::spec::formats::trace::Kind;
use memlift_model::event::Time;
use memlift_model::whatif::load::rate;
use memlift_model::whatif::{Cpu, Device, Limit, Load, Outcome, Trace};
use serde_json::{Value, json};

use memlift_cli::failure::Failure;
use memlift_cli::print;

/// The beginning of every answer.
pub struct Base<'a> {
    pub trace: &'a Trace,
    pub cpu: &'a Cpu,
    pub origin: &'a str,
}

/// Parameter, unit, values with their runs.
pub type Swept = (String, Option<String>, Vec<(f64, Outcome)>);

/// A device's answer.
pub struct Answer<'a> {
    pub name: &'static str,
    pub device: &'a Device,
    /// How far its parameters can be trusted, and which those are.
    pub inputs: Vec<(&'static str, Vec<&'static str>)>,
    pub from: Option<u64>,
    pub without: Outcome,
    pub with: Outcome,
    /// Parameter, factor, the run.
    pub parameters: Vec<(&'static str, f64, Outcome)>,
    /// The sweep, if there was one.
    pub sweep: Option<Swept>,
}

impl Default for Answer<'_> {
    fn default() -> Self {
        let (without, with) = (Outcome::default(), Outcome::default());
        Answer {
            name: "",
            device: &Device::Cpu,
            inputs: Vec::new(),
            from: None,
            without,
            with,
            parameters: Vec::new(),
            sweep: None,
        }
    }
}

/// The time in seconds.
pub fn s(time: Time) -> f64 {
    time.as_ps() as f64 / 1e12
}

/// A part of a whole, from 0 to 1; 0 of nothing.
pub fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 }
}

/// Changes by halving or doubling a parameter: time, CPU time, capacity, traffic, each as a part of what it was.
struct Matter<'a> {
    name: &'a str,
    factor: f64,
    changes: [f64; 4],
}

fn changes(run: &Outcome, from: &Outcome, trace: &Trace) -> [f64; 4] {
    let ratio = |of: &dyn Fn(&Outcome) -> f64| of(run) / of(from).max(1e-12);
    let of = |of: &dyn Fn(&Outcome) -> f64| ratio(of) - 1.0;
    [
        of(&|one| s(one.wall)),
        of(&|one| s(one.cpu + one.waiting)),
        1.0 / ratio(&|one| s(saturation(trace, one).0)).max(1e-12) - 1.0,
        of(&|one| one.read_bytes.saturating_add(one.written_bytes).max(1) as f64),
    ]
}

/// Time of a run whose input never keeps it waiting, and what limits it: of the requests where there are any, else of all.
fn saturation(trace: &Trace, run: &Outcome) -> (Time, Limit) {
    match trace.load {
        Some(_) => run.load.saturated(trace.cores),
        None => run.saturated(trace.cores),
    }
}

fn limit(limit: Limit, trace: &Trace, device: &str) -> String {
    match limit {
        Limit::Thread => "the busiest thread's core".to_owned(),
        Limit::Cores => format!("all {} cores", trace.cores.max(1)),
        Limit::Device => device.to_owned(),
    }
}

/// How requests were recognised, and how many there were.
fn requests(load: &Load) -> String {
    let served = &load.served;
    if load.is_given() {
        return format!(
            "requests   {} in the whole run, as --requests says; the CPU time of all its processes counts",
            served.requests
        );
    }
    let processes = load.processes.as_ref().map_or(0, std::collections::BTreeSet::len);
    format!(
        "requests   {} in {:.3} s, answered by {processes} process{}; a request: bytes read from an accepted connection until bytes are written to it \
         (requests that one read brings together, and each round of a handshake, count as one; --requests gives another number); {:.1} us each on average",
        served.requests,
        served.last_ns.saturating_sub(served.first_ns) as f64 / 1e9,
        if processes == 1 { "" } else { "es" },
        served.inside_ns as f64 / 1e3 / served.requests.max(1) as f64
    )
}

/// Requests per second of a run: at the recorded load, and at saturation of the busiest thread's core, of all cores, of the device.
fn rates(load: &Load, run: &Outcome, cores: u64) -> [(&'static str, Option<f64>); 4] {
    let of = |time| rate(load.served.requests, time);
    let all = Time::from_ps(run.load.cpu.as_ps() / cores.max(1));
    [
        ("at the recorded load", of(run.load.span)),
        ("at most, by the busiest thread's core", of(run.load.busiest)),
        ("at most, by all cores", of(all)),
        ("at most, by the device", of(run.load.device)),
    ]
}

/// The table of requests per second; each run with its name.
fn rates_table(load: &Load, runs: &[(&str, &Outcome)], cores: u64) -> String {
    let columns: Vec<_> = runs.iter().map(|(_, run)| rates(load, run, cores)).collect();
    let shown = |rate: Option<f64>| rate.map_or("–".to_owned(), |rate| format!("{rate:.1}"));
    let rows: Vec<Vec<String>> = (0..4)
        .filter(|row| *row < 3 || runs.len() > 1)
        .map(|row| {
            let of: Vec<Option<f64>> = columns.iter().map(|column| column[row].1).collect();
            let mut cells = vec![columns[0][row].0.to_owned()];
            cells.extend(of.iter().map(|rate| shown(*rate)));
            if let [Some(without), Some(with)] = of[..] {
                cells.push(format!("{:.3}", with / without));
            } else if runs.len() > 1 {
                cells.push("–".to_owned());
            }
            cells
        })
        .collect();
    let names: Vec<String> = runs.iter().map(|(name, _)| format!(">{name}")).collect();
    let mut headings = vec!["requests per second"];
    headings.extend(names.iter().map(String::as_str));
    if runs.len() > 1 {
        headings.push(">ratio");
    }
    print::table(&headings, &rows)
}

/// A run's requests per second as JSON; null without a load.
fn rates_json(trace: &Trace, run: &Outcome) -> Value {
    let Some(load) = &trace.load else { return Value::Null };
    let [recorded, thread, cores, device] = rates(load, run, trace.cores).map(|(_, rate)| rate);
    let (time, by) = run.load.saturated(trace.cores);
    let name = match by {
        Limit::Thread => "busiest_thread",
        Limit::Cores => "cores",
        Limit::Device => "device",
    };
    json!({ "recorded_load": recorded, "busiest_thread": thread, "cores": cores, "device": device,
            "saturation": rate(load.served.requests, time), "limited_by": name })
}

/// The three parameters that change it most.
fn most(matters: &[Matter<'_>], place: usize) -> String {
    let mut found: Vec<&Matter<'_>> = matters.iter().filter(|one| one.changes[place].abs() > 5e-5).collect();
    found.sort_by(|one, other| other.changes[place].abs().total_cmp(&one.changes[place].abs()));
    let said = |one: &&Matter<'_>| {
        let how = if one.factor < 1.0 { "halved" } else { "doubled" };
        format!("{} {how}: {:+.2} %", one.name, 100.0 * one.changes[place])
    };
    match found.iter().take(3).map(said).collect::<Vec<_>>() {
        said if said.is_empty() => "no parameter, halved or doubled".to_owned(),
        said => said.join("; "),
    }
}

/// How many times as fast at most; none: there is no bound.
fn bound(share: f64) -> Option<f64> {
    (share < 0.999).then(|| 1.0 / (1.0 - share))
}

fn times(bound: Option<f64>) -> String {
    bound.map_or("any number of".to_owned(), |bound| format!("{bound:.2}"))
}

/// A percentage with one digit after the point.
pub fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

/// By kind: calls, bytes, nanoseconds.
fn kinds(trace: &Trace) -> BTreeMap<Kind, (u64, u64, u64)> {
    let mut kinds = BTreeMap::new();
    for call in trace.calls() {
        let sums: &mut (u64, u64, u64) = kinds.entry(call.kind).or_default();
        *sums = (sums.0 + 1, sums.1.saturating_add(call.bytes()), sums.2.saturating_add(call.cpu_ns));
    }
    kinds
}

const INVISIBLE: &str = "copies that the program makes without libc or inside its runtime, libraries that are linked into it, the \
kernel's copies; pointer walks, persistence and compressed memory of programs that are not on memlift";

impl Base<'_> {
    fn seen(&self) -> f64 {
        share(self.trace.calls_ns() as f64, self.trace.cpu_ns as f64)
    }

    fn overhead(&self) -> f64 {
        share(self.trace.overhead_ns(), self.trace.cpu_ns as f64)
    }

    /// Part of the time in which threads could run and had no core.
    fn displaced(&self) -> f64 {
        let without = self.trace.waits.displaced_ns as f64;
        share(without, without + self.trace.cpu_ns as f64)
    }

    /// CPU time of processes that the recorder was not loaded into, in words; none: it is little, or not known, since records of ends found no
    /// room. The end of a process, after its last record, counts as such, too.
    pub fn escaped(&self) -> Option<String> {
        const LEAST_NS: u64 = 20_000_000;
        const LEAST_PART: f64 = 0.05;
        let Trace { unrecorded_ns, cpu_ns, .. } = self.trace;
        let part = share(*unrecorded_ns as f64, *cpu_ns as f64);
        (self.trace.dropped == 0 && *unrecorded_ns >= LEAST_NS && part >= LEAST_PART).then(|| {
            format!(
                "{:.3} CPU-seconds, {} of all, were spent outside of recorded processes: by children whose environment was cleared (env -i, sudo), \
                 that are linked statically, or have more rights than their parent; no device is asked about them",
                *unrecorded_ns as f64 / 1e9,
                percent(part)
            )
        })
    }

    /// The part that is seen, and the bound that follows, one line each.
    pub fn head(&self) -> String {
        let trace = self.trace;
        let mut lines = vec![heading(trace)];
        let (calls, counted): (usize, u64) =
            (trace.calls().count(), trace.counted.values().fold(0, |sum, one| sum.saturating_add(one.calls)));
        lines.push(format!(
            "recorded   {calls} calls, {:.3} s in them; {counted} smaller ones were counted only; recording took about {} of the CPU time",
            trace.calls_ns() as f64 / 1e9,
            percent(self.overhead())
        ));
        lines.push(format!(
            "seen       {} of the CPU time is in recorded calls: were they free, it would need {} times less (Amdahl)",
            percent(self.seen()),
            times(bound(self.seen()))
        ));
        lines.push(format!("not seen   {INVISIBLE}"));
        if let Some(escaped) = self.escaped() {
            lines.push(format!("escaped    {escaped}"));
        }
        let waits = &trace.waits;
        let of = |ns: u64| percent(share(ns as f64, waits.all_ns() as f64));
        if waits.all_ns() > 0 {
            lines.push(format!(
                "waits      {:.3} s of its threads without a core: {} for threads of the program, {} for time or somebody else, {} displaced, {} \
                 not explained (their length stays)",
                waits.all_ns() as f64 / 1e9,
                of(waits.explained_ns),
                of(waits.outside_ns),
                of(waits.displaced_ns),
                of(waits.unexplained_ns)
            ));
        }
        let displaced = self.displaced();
        if displaced > 0.2 {
            lines.push(format!(
                "busy       {} of the time in which its threads could run they had no core: other programs, or too few cores. Times are longer \
                 than the program needs: record again on a quieter machine",
                percent(displaced)
            ));
        }
        if !trace.finished {
            lines.push("partial    the program or its recording was killed: what follows is about the time up to the last record".into());
        }
        if trace.dropped > 0 {
            lines.push(format!(
                "full       {} records found no room: what came later counts as computing; record again with a larger --limit",
                trace.dropped
            ));
        }
        if let Some(load) = &trace.load {
            lines.push(requests(load));
        }
        let here = memlift_cli::machine::cpu_name();
        if trace.cpu != here {
            lines.push(format!(
                "elsewhere  recorded on {}, calibrated on {here}: the model of the CPU is another machine's",
                trace.cpu
            ));
        }
        lines.join("\n")
    }

    /// The same as JSON.
    pub fn json(&self) -> Value {
        let trace = self.trace;
        let kinds: Vec<Value> = kinds(trace)
            .into_iter()
            .map(|(kind, (calls, bytes, ns))| json!({ "kind": kind.name(), "calls": calls, "bytes": bytes, "ns": ns }))
            .collect();
        let counted: Vec<Value> = trace
            .counted
            .iter()
            .map(|(kind, one)| json!({ "kind": kind.name(), "calls": one.calls, "bytes": one.bytes }))
            .collect();
        let requests = trace.load.as_ref().map(|load| {
            let served = &load.served;
            json!({ "count": served.requests, "given": load.is_given(), "processes": load.processes, "first_ns": served.first_ns,
                    "last_ns": served.last_ns, "read_bytes": served.read, "written_bytes": served.written, "inside_ns": served.inside_ns })
        });
        json!({
            "requests": requests,
            "command": trace.command, "cpu": trace.cpu, "finished": trace.finished, "processes": trace.processes,
            "threads": trace.threads.len(), "wall_ns": trace.wall_ns, "cpu_ns": trace.cpu_ns, "unrecorded_cpu_ns": trace.unrecorded_ns, "calls_ns": trace.calls_ns(),
            "threshold": trace.threshold, "dropped": trace.dropped, "calls": kinds, "counted": counted,
            "recording_ns": trace.overhead_ns(), "share_seen": self.seen(), "share_displaced": self.displaced(),
            "waits": { "explained_ns": trace.waits.explained_ns, "outside_ns": trace.waits.outside_ns,
                "displaced_ns": trace.waits.displaced_ns, "unexplained_ns": trace.waits.unexplained_ns }, "amdahl": bound(self.seen()), "invisible": INVISIBLE,
        })
    }
}

fn heading(trace: &Trace) -> String {
    const SHOWN: usize = 60;
    let cut = if trace.command.chars().count() > SHOWN { "…" } else { "" };
    format!(
        "trace      {}{cut}: {} process{}, {} thread{}, {:.3} s, {:.3} CPU-seconds on {}",
        trace.command.chars().take(SHOWN).collect::<String>(),
        trace.processes,
        if trace.processes == 1 { "" } else { "es" },
        trace.threads.len(),
        if trace.threads.len() == 1 { "" } else { "s" },
        trace.wall_ns as f64 / 1e9,
        trace.cpu_ns as f64 / 1e9,
        trace.cpu
    )
}

/// After a recording, on standard error: standard output is the program's.
pub fn recorded(trace: &Trace, path: &Path, as_json: bool) -> Result<(), Failure> {
    let base = Base { trace, cpu: &Cpu::default(), origin: "" };
    if as_json {
        eprintln!("{}", base.json());
        return Ok(());
    }
    let calls = trace.calls().count();
    eprintln!(
        "memlift: {}: {calls} calls of {} process{}, {} of {:.3} CPU-seconds in them; recording took about {} of the CPU time",
        path.display(),
        trace.processes,
        if trace.processes == 1 { "" } else { "es" },
        percent(base.seen()),
        trace.cpu_ns as f64 / 1e9,
        percent(base.overhead())
    );
    if trace.threads.is_empty() {
        print::warn(
            "nothing was recorded: the loader let no library into the program, or it is linked statically",
        );
    }
    if let Some(escaped) = base.escaped().filter(|_| !trace.threads.is_empty()) {
        print::warn(&escaped);
    }
    if trace.dropped > 0 {
        print::warn(&format!("{} records found no room: record again with a larger --limit", trace.dropped));
    }
    Ok(())
}

/// `--device cpu`, and the time on another number of cores.
pub fn cpu(
    base: &Base<'_>,
    model: &Outcome,
    cores: Option<(u32, Time)>,
    as_json: bool,
) -> Result<(), Failure> {
    let trace = base.trace;
    let recorded = trace.wall_ns as f64 / 1e9;
    let off = |model: f64, recorded: f64| if recorded > 0.0 { model / recorded - 1.0 } else { 0.0 };
    let (wall, calls) = (s(model.wall), s(model.calls));
    let calls_recorded = trace.calls_ns() as f64 / 1e9;
    if as_json {
        return print::json(&json!({
            "trace": base.json(), "device": "cpu", "origin": base.origin,
            "cores": cores.map(|(count, time)| json!({ "count": count, "recorded_on": trace.cores, "wall_s": s(time) })),
            "wall": { "recorded_s": recorded, "model_s": wall, "deviation": off(wall, recorded) },
            "calls": { "recorded_s": calls_recorded, "model_s": calls, "deviation": off(calls, calls_recorded) },
            "requests_per_second": rates_json(trace, model),
            "read_bytes": model.read_bytes, "written_bytes": model.written_bytes, "fault_ns": base.cpu.fault.ns,
            "fault_from_ns": base.cpu.fault.low_ns, "fault_to_ns": base.cpu.fault.high_ns, "fault_samples": base.cpu.fault.samples,
        }));
    }
    let row = |what: &str, recorded: f64, model: f64| {
        vec![
            what.to_owned(),
            format!("{recorded:.4} s"),
            format!("{model:.4} s"),
            format!("{:+.1} %", 100.0 * off(model, recorded)),
        ]
    };
    let rows = [row("time", recorded, wall), row("in calls", calls_recorded, calls)];
    let kinds: Vec<Vec<String>> = kinds(trace)
        .into_iter()
        .map(|(kind, (calls, bytes, ns))| {
            let how = if base.cpu.calibrated.contains(&kind) { "calibrated" } else { "fitted to this trace" };
            let of_cpu = percent(share(ns as f64, trace.cpu_ns as f64));
            vec![
                kind.name().into(),
                calls.to_string(),
                print::bytes(bytes),
                format!("{:.4} s", ns as f64 / 1e9),
                of_cpu,
                how.into(),
            ]
        })
        .collect();
    print::line(&base.head())?;
    print::line(&format!(
        "\n{}",
        print::table(&["calls", ">number", ">bytes", ">time", ">of CPU", "lines are"], &kinds)
    ))?;
    print::line(&format!("\n{}", print::table(&["", ">recorded", ">model", ">deviation"], &rows)))?;
    if let Some((count, time)) = cores {
        print::line(&format!(
            "\non {count} core{}: {:.4} s, {:.3} times the recorded time on {}; calls and computing as long as recorded, time without a core left out",
            if count == 1 { "" } else { "s" },
            s(time),
            s(time) / recorded.max(1e-9),
            trace.cores
        ))?;
    }
    if let Some(load) = &trace.load {
        print::line(&format!("\n{}", rates_table(load, &[("model", model)], trace.cores)))?;
    }
    print::line(&format!(
        "\nmemory traffic of calls: {} read, {} written\nmodel: {}; a page fault {:.0} ns ({:.0} to {:.0}, {}); gaps between calls as recorded",
        print::bytes(model.read_bytes),
        print::bytes(model.written_bytes),
        base.origin,
        base.cpu.fault.ns,
        base.cpu.fault.low_ns,
        base.cpu.fault.high_ns,
        counted(base.cpu.fault.samples)
    ))
}

/// A device that serves what this trace does not have.
pub fn nothing(base: &Base<'_>, name: &str, what: &str, as_json: bool) -> Result<(), Failure> {
    let said = format!(
        "this trace holds nothing for {name}: it serves {what}, and the program has none; calls of libc and libraries do not show \
         what a program does by itself"
    );
    if as_json {
        return print::json(
            &json!({ "trace": base.json(), "device": name, "operations": 0, "answer": said }),
        );
    }
    print::line(&base.head())?;
    print::line(&format!("\n{said}"))
}

/// Commits on one memory, so that two memories are not compared instead.
fn counted(samples: usize) -> String {
    match samples {
        0 => "given".to_owned(),
        samples => format!("{samples} samples"),
    }
}

fn same_memory(name: &str, cpu: Time, near: Time) -> String {
    format!(
        "all commits on the memory of {name}'s paper: {:.4} s by the CPU, {:.4} s by {name}, {:.2} times; what they took when recorded \
         was on this machine's",
        s(cpu),
        s(near),
        s(cpu) / s(near).max(1e-12)
    )
}

/// Times, CPU times and capacities with the device over those without, as each of its parameters alone is halved and doubled.
fn ranges(trace: &Trace, answer: &Answer<'_>) -> [(f64, f64); 3] {
    let runs = || answer.parameters.iter().map(|(_, _, run)| run).chain([&answer.with]);
    let span = |ratio: &dyn Fn(&Outcome) -> f64| {
        runs()
            .map(ratio)
            .fold((f64::MAX, 0.0), |(least, most): (f64, f64), ratio| (least.min(ratio), most.max(ratio)))
    };
    let over =
        |what: &dyn Fn(&Outcome) -> Time, run: &Outcome| s(what(run)) / s(what(&answer.without)).max(1e-12);
    let capacity =
        |run: &Outcome| s(saturation(trace, &answer.without).0) / s(saturation(trace, run).0).max(1e-12);
    [
        span(&|run| over(&|run| run.wall, run)),
        span(&|run| over(&|run| run.cpu + run.waiting, run)),
        span(&capacity),
    ]
}

fn range(trace: &Trace, answer: &Answer<'_>) -> String {
    let [(least, most), (from, to), (low, high)] = ranges(trace, answer);
    format!(
        "range of the answer, each parameter halved and doubled: time {least:.3} to {most:.3} of without, CPU time {from:.3} to {to:.3}, \
         capacity {low:.3} to {high:.3}"
    )
}

/// A device beside the CPU alone.
pub fn device(base: &Base<'_>, answer: &Answer<'_>, as_json: bool) -> Result<(), Failure> {
    let trace = base.trace;
    let takes: u64 = trace
        .calls()
        .filter(|call| answer.device.takes(call))
        .fold(0, |sum, call| sum.saturating_add(call.cpu_ns));
    let part = share(takes as f64, trace.cpu_ns as f64);
    let commits = match answer.device {
        Device::Service(service) => service.commits(trace),
        _ => None,
    };
    let cores = trace.cores;
    let mut matters: Vec<Matter<'_>> = answer
        .parameters
        .iter()
        .map(|(name, factor, run)| Matter {
            name,
            factor: *factor,
            changes: changes(run, &answer.with, trace),
        })
        .collect();
    matters.sort_by(|one, other| other.changes[0].abs().total_cmp(&one.changes[0].abs()));
    if as_json {
        let outcome = |run: &Outcome| {
            json!({ "wall_s": s(run.wall), "cpu_s": s(run.cpu), "waiting_s": s(run.waiting), "busiest_s": s(run.busiest),
                    "saturated_s": s(run.saturated(cores).0), "device_s": s(run.device),
                    "requests_per_second": rates_json(trace, run), "offloaded": run.offloaded,
                    "offloaded_bytes": run.offloaded_bytes, "read_bytes": run.read_bytes, "written_bytes": run.written_bytes })
        };
        let sweep = answer.sweep.as_ref().map(|(name, unit, runs)| {
            let runs: Vec<Value> =
                runs.iter().map(|(value, run)| json!({ "value": value, "run": outcome(run) })).collect();
            json!({ "parameter": name, "unit": unit, "runs": runs })
        });
        let values: Vec<Value> = matters
            .iter()
            .map(|Matter { name, factor, changes: [time, cpu, capacity, traffic] }| {
                json!({ "parameter": name, "factor": factor, "time_changes_by": time, "cpu_changes_by": cpu,
                    "capacity_changes_by": capacity, "traffic_changes_by": traffic })
            })
            .collect();
        return print::json(&json!({
            "trace": base.json(), "device": answer.name, "from_bytes": answer.from, "share_it_takes": part, "amdahl": bound(part),
            "without": outcome(&answer.without), "with": outcome(&answer.with), "parameters": values, "sweep": sweep,
            "range": ranges(trace, answer).map(|(from, to)| json!({ "from": from, "to": to })),
            "commits_on_its_memory": commits.map(|(cpu, near)| json!({ "cpu_s": s(cpu), "device_s": s(near) })),
            "inputs": answer.inputs.iter().map(|(kind, names)| ((*kind).to_owned(), json!(names))).collect::<serde_json::Map<_, _>>(),
        }));
    }
    print::line(&base.head())?;
    print::line(&format!(
        "{:<10} takes calls that are {} of the CPU time: at most {} times less of it",
        answer.name,
        percent(part),
        times(bound(part))
    ))?;
    let kinds: Vec<String> =
        answer.inputs.iter().map(|(kind, names)| format!("{kind} {}", names.len())).collect();
    let fitted = answer.inputs.iter().find(|(kind, _)| *kind == "fitted").map(|(_, names)| names.join(", "));
    print::line(&format!(
        "{:<10} {}{}; all that follows is predicted",
        "inputs",
        kinds.join(", "),
        fitted.filter(|names| !names.is_empty()).map_or(String::new(), |names| format!(" ({names})"))
    ))?;
    let Some(from) = answer.from else {
        print::line(&format!(
            "\nno size of calls is done sooner by {}: the run without it is the best one, {:.4} s",
            answer.name,
            s(answer.without.wall)
        ))?;
        if let Some(load) = &trace.load {
            print::line(&format!("\n{}", rates_table(load, &[("without", &answer.without)], cores)))?;
        }
        return commits.map_or(Ok(()), |(cpu, near)| print::line(&same_memory(answer.name, cpu, near)));
    };
    let (without, with) = (&answer.without, &answer.with);
    let ratio =
        |one: f64, other: f64| if one > 0.0 { format!("{:.3}", other / one) } else { "–".to_owned() };
    let time = |what: &str, one: Time, other: Time| {
        vec![
            what.to_owned(),
            format!("{:.4} s", s(one)),
            format!("{:.4} s", s(other)),
            ratio(s(one), s(other)),
        ]
    };
    let bytes = |what: &str, one: u64, other: u64| {
        vec![what.to_owned(), print::bytes(one), print::bytes(other), ratio(one as f64, other as f64)]
    };
    let held = with.cpu + with.waiting;
    let rows = [
        time("time", without.wall, with.wall),
        time("CPU time, working", without.cpu, with.cpu),
        time("CPU time, waiting for it too", without.cpu, held),
        time("the busiest thread's", without.busiest, with.busiest),
        bytes("read from memory by calls", without.read_bytes, with.read_bytes),
        bytes("written to memory by calls", without.written_bytes, with.written_bytes),
    ];
    print::line(&format!(
        "\n{}",
        print::table(&["", ">without", &format!(">with {}", answer.name), ">ratio"], &rows)
    ))?;
    print::line(&format!(
        "\n{} takes {} calls from {} on, {} in all; the program waits for each, since it was not changed",
        answer.name,
        with.offloaded,
        print::bytes(from),
        print::bytes(with.offloaded_bytes)
    ))?;
    if let Some(load) = &trace.load {
        let runs = [("without", without), (answer.name, with)];
        print::line(&format!("\n{}", rates_table(load, &runs, cores)))?;
    }
    let ((before, _), (after, by)) = (saturation(trace, without), saturation(trace, with));
    let span = if trace.load.is_some() { without.load.span } else { without.wall };
    print::line(&format!(
        "the recorded load is {} of what the program can do; with {} it can do {} times as much, limited by {}",
        percent(share(s(before), s(span))),
        answer.name,
        if s(after) > 0.0 { format!("{:.2}", s(before) / s(after)) } else { "any number of".into() },
        limit(by, trace, answer.name)
    ))?;
    if let Some((cpu, near)) = commits {
        print::line(&same_memory(answer.name, cpu, near))?;
    }
    if let Some((name, unit, runs)) = &answer.sweep {
        let rows: Vec<Vec<String>> = runs
            .iter()
            .map(|(value, run)| {
                vec![
                    format!("{value}{}", unit.as_ref().map_or(String::new(), |unit| format!(" {unit}"))),
                    format!("{:.4} s", s(run.wall)),
                    format!("{:.4} s", s(run.cpu)),
                    ratio(s(without.wall), s(run.wall)),
                ]
            })
            .collect();
        return print::line(&format!(
            "\n{}",
            print::table(&[&format!(">{name}"), ">time", ">CPU time", ">of without"], &rows)
        ));
    }
    print::line(&range(trace, answer))?;
    for (place, of) in ["time", "CPU time", "capacity", "traffic"].into_iter().enumerate() {
        print::line(&format!("what matters most to the {of}: {}", most(&matters, place)))?;
    }
    Ok(())
}
