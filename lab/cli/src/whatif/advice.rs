// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The answer of `memlift whatif --async`, `--batch` and `--ahead`: call sites in the order of their gain, with what limits each.
//!
//! - **Order** what is seen and what is assumed come first, then the list, then its limits, then all that gain together
//! - **Rule** a limit has the time that it costs, or the calls that it keeps at the CPU, as the replay counted them
//! - **Not here** the replays (submit.rs), names of functions (symbol.rs)

use memlift::spec::formats::trace::Kind;
use memlift_cli::failure::Failure;
use memlift_cli::print;
use memlift_model::dsa;
use memlift_model::event::Time;
use memlift_model::whatif::change::LOOK;
use memlift_model::whatif::{Caller, Dependent, Needed, Outcome, Summary, Trace};
use serde_json::{Value, json};

use super::question::{FirstUse, Question};
use super::report::{Base, percent, s, share};
use super::symbol::Symbols;

/// A call site, and the run of the program that submits there.
pub struct Answer {
    /// The site's calls.
    pub summary: Summary,
    /// Smallest call that it submits, bytes; none: no size is worth it.
    pub from: Option<u64>,
    /// The program with this site changed.
    pub run: Outcome,
}

/// An answer that is listed.
pub struct Listed {
    /// The site and its run.
    pub answer: Answer,
    /// How soon its results are needed.
    pub needed: Option<Needed>,
    /// Least and most gained: time, CPU time, seconds.
    pub range: [(f64, f64); 2],
}

/// Seconds gained by a run: time, and CPU time with what is waited for the device.
pub fn gain(run: &Outcome, without: &Outcome) -> [f64; 2] {
    [s(without.wall) - s(run.wall), s(without.cpu) - s(run.cpu + run.waiting)]
}

/// Returns true if a run takes less time, or as much and less CPU time. A nanosecond is no gain.
pub fn gains(run: &Outcome, without: &Outcome) -> bool {
    let [time, cpu] = gain(run, without);
    time > 1e-9 || (time > -1e-9 && cpu > 1e-9)
}

/// Call sites that are not listed.
pub struct Others {
    /// Number of sites.
    pub sites: usize,
    /// CPU time in their calls, as a part of all.
    pub share: f64,
}

/// The list and what it rests on.
pub struct Advice<'a> {
    pub base: &'a Base<'a>,
    pub question: &'a Question,
    pub timing: &'a dsa::Timing,
    pub without: Outcome,
    /// Sites in the order of their gain.
    pub listed: Vec<Listed>,
    pub others: Others,
    /// Number of listed sites that gain.
    pub good: usize,
    /// The run with all of these changed.
    pub together: Outcome,
}

/// Seconds with a unit that fits.
fn short(seconds: f64) -> String {
    let size = seconds.abs();
    let (scale, unit) = match size {
        0.0 => return "0 s".to_owned(),
        _ if size >= 1.0 => (1.0, "s"),
        _ if size >= 1e-3 => (1e3, "ms"),
        _ if size >= 1e-6 => (1e6, "us"),
        _ => (1e9, "ns"),
    };
    format!("{:.3} {unit}", seconds * scale)
}

fn from_to((least, most): (f64, f64)) -> String {
    format!("{} to {}", short(least), short(most))
}

/// Names of call sites.
struct Names<'a> {
    trace: &'a Trace,
    symbols: Symbols<'a>,
}

impl Names<'_> {
    /// `function+0x1f (file)`, or as much of it as is known.
    fn of(&mut self, caller: Caller) -> String {
        let Some(site) = caller.site.and_then(|place| self.trace.sites.get(place as usize)) else {
            return "not recorded".to_owned();
        };
        if site.module.is_empty() {
            return format!("{:#x}", site.offset);
        }
        let file = site.module.rsplit('/').next().unwrap_or(&site.module);
        match self.symbols.of(site) {
            Some(symbol) => format!("{}+{:#x} ({file})", symbol.name, symbol.offset),
            None => format!("{file}+{:#x}", site.offset),
        }
    }

    fn json(&mut self, caller: Caller) -> Value {
        let site = caller.site.and_then(|place| self.trace.sites.get(place as usize));
        let symbol = site.and_then(|site| self.symbols.of(site));
        json!({
            "function": caller.kind.name(),
            "module": site.map(|site| &site.module).filter(|module| !module.is_empty()),
            "offset": site.map(|site| site.offset),
            "symbol": symbol.as_ref().map(|symbol| &symbol.name),
            "symbol_offset": symbol.as_ref().map(|symbol| symbol.offset),
        })
    }
}

impl Advice<'_> {
    fn names(&self) -> Names<'_> {
        Names { trace: self.base.trace, symbols: Symbols::new(self.base.trace) }
    }

    /// The assumptions that the trace cannot replace.
    fn assumed(&self) -> Vec<String> {
        let used = match self.question.first_use {
            FirstUse::Recorded => "computing between a call and the first recorded event that needs its bytes uses neither its result nor \
                                   changes its source (--first-use recorded)"
                .to_owned(),
            FirstUse::After(Time::ZERO) => "computing after a call uses its result at once (--first-use at-once)".to_owned(),
            FirstUse::After(time) => format!(
                "computing after a call uses its result after {} (--first-use), unless a recorded event needs it before",
                short(s(time))
            ),
        };
        let ahead = (self.question.ahead > 0).then(|| {
            format!(
                "the source of a call is there when the call of its site that is {} before it is made, unless its thread waits or a recorded \
                 call writes the source in between; its target is a buffer of its own until the call (--ahead)",
                self.question.ahead
            )
        });
        let batch = (self.question.batch > 1).then(|| {
            "a batch that is not full is submitted when one of its copies is needed, before the thread waits, and before it computes in one piece for \
             longer than the device takes for a full one"
                .to_owned()
        });
        [
            Some(used),
            ahead,
            Some(
                "a recorded event is a call that uses the bytes, the wake or start of another thread, the thread's end; calls that were only \
                 counted, and the kernel's reads, are none"
                    .to_owned(),
            ),
            batch,
            Some(
                "writing a descriptor, finding a result complete, and reading data that the device did not leave in the cache cost nothing"
                    .to_owned(),
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// The reasons why a site gains no more, the most costly first.
    fn limits(&self, one: &Listed, names: &mut Names<'_>) -> Vec<String> {
        let Answer { summary, from, run } = &one.answer;
        let (limits, mut said) = (&run.limits, Vec::new());
        let calls = |count: u64| format!("{count} of {} calls", summary.calls);
        if limits.small > 0 {
            let each = s(self.timing.submit) / self.question.batch as f64;
            let below = match (from, self.question.from) {
                (_, Some(size)) => format!("are below --from {size}"),
                (Some(size), None) => format!("are below the break-even of {}", print::bytes(*size)),
                (None, None) => "are below the break-even".to_owned(),
            };
            let why = format!("submitting costs {} a call", short(each));
            said.push((f64::MAX, format!("{} {below} ({why}) and stay with the CPU", calls(limits.small))));
        }
        if limits.fresh > 0 {
            let why = "write pages that were not there, where the device would fault, and stay with the CPU";
            said.push((f64::MAX, format!("{} {why}", calls(limits.fresh))));
        }
        if self.question.ahead > 0 && limits.early < run.offloaded {
            let why = "the thread waits, or a recorded call writes the source, in between; or nothing comes before them";
            said.push((
                f64::MAX,
                format!("{} are not submitted ahead: {why}", calls(run.offloaded - limits.early)),
            ));
        }
        let needed = one.needed.map_or(String::new(), |needed| {
            let by = match needed.by {
                Dependent::Call(other) => format!("{} from {}", other.kind.name(), names.of(other)),
                Dependent::Wake => "the wake or start of another thread".to_owned(),
                Dependent::End => "the thread's end".to_owned(),
                Dependent::Unseen => format!("nothing within {LOOK} steps"),
            };
            let mean = summary.bytes / summary.calls.max(1);
            let device = self.timing.start + self.timing.device.time_of(mean);
            let after = short(needed.after_ns as f64 / 1e9);
            format!(
                "most often needed by {by}; median {after} after the call, and the device takes {} for one",
                short(s(device))
            )
        });
        let used = match (summary.caller.kind, self.question.first_use) {
            (Kind::Compare, _) => "its result is what the call returns, and used at once".to_owned(),
            (_, first_use) => {
                format!(
                    "the result is used after {} of computing",
                    short(s(first_use.time().unwrap_or(Time::ZERO)))
                )
            }
        };
        for (time, text) in [
            (limits.used, used),
            (limits.called, "a recorded call needs the bytes".to_owned()),
            (limits.handed, "another thread is woken or started, or this one ends".to_owned()),
            (limits.full, "the device's queue is full".to_owned()),
        ] {
            if time > Time::ZERO {
                said.push((s(time), format!("waits {}: {text}", short(s(time)))));
            }
        }
        if limits.submitting > Time::ZERO {
            let time = s(limits.submitting);
            said.push((time, format!("submitting takes {} of the core", short(time))));
        }
        said.sort_by(|one, other| other.0.total_cmp(&one.0));
        if limits.called + limits.handed > Time::ZERO {
            said.push((0.0, needed));
        }
        said.into_iter().map(|(_, text)| text).collect()
    }

    fn shares(&self, summary: &Summary) -> [f64; 2] {
        let trace = self.base.trace;
        [
            share(summary.cpu_ns as f64, trace.cpu_ns as f64),
            share(summary.wall_ns as f64, trace.wall_ns as f64),
        ]
    }

    /// Prints the list as text.
    pub fn text(&self) -> Result<(), Failure> {
        let mut names = self.names();
        print::line(&self.base.head())?;
        let how = match self.question.batch {
            1 => "each by itself".to_owned(),
            batch => format!("{batch} of a thread at a time"),
        };
        let when = match self.question.ahead {
            0 => String::new(),
            ahead => format!(", {ahead} of their site ahead"),
        };
        print::line(&format!(
            "changed    calls are submitted to dsa's queue, {how}{when}, and the program goes on"
        ))?;
        for assumed in self.assumed() {
            print::line(&format!("assumed    {assumed}"))?;
        }
        let mut rows = Vec::new();
        for (number, one) in (1..).zip(&self.listed) {
            let Answer { summary, run, .. } = &one.answer;
            let [cpu, time] = self.shares(summary);
            let [time_gained, cpu_gained] = gain(run, &self.without);
            rows.push(vec![
                number.to_string(),
                names.of(summary.caller),
                summary.caller.kind.name().to_owned(),
                summary.calls.to_string(),
                print::bytes(summary.bytes),
                percent(cpu),
                percent(time),
                short(time_gained),
                from_to(one.range[0]),
                short(cpu_gained),
                from_to(one.range[1]),
            ]);
        }
        let headings = [
            ">",
            "call site",
            "function",
            ">calls",
            ">bytes",
            ">of CPU",
            ">of time",
            ">time gained",
            "range",
            ">CPU gained",
            "range",
        ];
        print::line(&format!("\nchange these calls, in this order:\n{}", print::table(&headings, &rows)))?;
        for (number, one) in (1..).zip(&self.listed) {
            let leave = if gains(&one.answer.run, &self.without) { "" } else { "leave it; " };
            let limits = self.limits(one, &mut names).join("; ");
            print::line(&format!("{number} limited by: {leave}{limits}"))?;
        }
        print::line(
            "range: each parameter of dsa halved and doubled, results used at once, with nothing ahead, and as late as the recording allows",
        )?;
        if self.others.sites > 0 {
            print::line(&format!(
                "not listed: {} other call sites with {} of the CPU time (--sites)",
                self.others.sites,
                percent(self.others.share)
            ))?;
        }
        if self.good == 0 {
            return print::line("none of these gains anything by being submitted");
        }
        let held = self.together.cpu + self.together.waiting;
        print::line(&format!(
            "the {} that gain, together: time {} instead of {}, CPU time with waiting {} instead of {}",
            self.good,
            short(s(self.together.wall)),
            short(s(self.without.wall)),
            short(s(held)),
            short(s(self.without.cpu))
        ))
    }

    /// Prints the list as JSON.
    pub fn json(&self) -> Result<(), Failure> {
        let mut names = self.names();
        let span = |(from, to): (f64, f64)| json!({ "from": from, "to": to });
        let mut sites = Vec::new();
        for one in &self.listed {
            let Answer { summary, from, run } = &one.answer;
            let [cpu, time] = self.shares(summary);
            let [time_gained, cpu_gained] = gain(run, &self.without);
            let limits = &run.limits;
            let needed = one.needed.map(|needed| {
                let (by, site) = match needed.by {
                    Dependent::Call(caller) => ("call", Some(names.json(caller))),
                    Dependent::Wake => ("wake", None),
                    Dependent::End => ("end", None),
                    Dependent::Unseen => ("unseen", None),
                };
                json!({ "after_ns": needed.after_ns, "by": by, "site": site, "calls": needed.calls })
            });
            sites.push(json!({
                "site": names.json(summary.caller), "calls": summary.calls, "bytes": summary.bytes,
                "share_of_cpu": cpu, "share_of_time": time, "from_bytes": from, "submitted": run.offloaded,
                "time_gained_s": time_gained, "cpu_gained_s": cpu_gained, "gains": gains(run, &self.without),
                "range": one.range.map(span), "needed": needed,
                "limits": {
                    "submitting_s": s(limits.submitting), "queue_full_s": s(limits.full), "used_s": s(limits.used),
                    "called_s": s(limits.called), "handed_s": s(limits.handed), "calls_too_small": limits.small,
                    "calls_with_new_pages": limits.fresh, "calls_ahead": limits.early,
                },
                "limited_by": self.limits(one, &mut names),
            }));
        }
        let outcome = |run: &Outcome| json!({ "wall_s": s(run.wall), "cpu_s": s(run.cpu), "waiting_s": s(run.waiting) });
        print::json(&json!({
            "trace": self.base.json(), "device": "dsa", "batch": self.question.batch, "ahead": self.question.ahead,
            "first_use_s": self.question.first_use.time().map(s), "assumed": self.assumed(),
            "without": outcome(&self.without), "sites": sites,
            "others": { "sites": self.others.sites, "share_of_cpu": self.others.share },
            "together": { "sites": self.good, "run": outcome(&self.together) },
        }))
    }
}
