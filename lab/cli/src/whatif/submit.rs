// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift whatif --async`, `--batch` and `--ahead`: which call sites of the program should submit their calls, and what each would gain.
//!
//! - **Flow** call sites by CPU time ─▶ one replay each, that site changed and no other ─▶ in the order of their gain ─▶ for those that are
//!   listed: each parameter halved and doubled, results used at once and as late as the recording allows, nothing ahead ─▶ all that gain, together
//! - **Rule** a trace does not say when a result is first touched between two recorded events. That is `--first-use`, is printed, and the
//!   range has both ends of it
//! - **Not here** before which steps results have to be there (`memlift_model::whatif::change`)

use memlift_cli::failure::Failure;
use memlift_model::event::Time;
use memlift_model::whatif::{
    Caller, Change, Device, Outcome, Summary, Timing, callers, needed, neighbours, replay, replay_changed,
};

use super::advice::{Advice, Answer, Listed, Others, gain, gains};
use super::beside::beside;
use super::question::Question;
use super::report::{self, Base, share};
use super::source::Source;

/// Call sites that are replayed to find the order; the others took less CPU time than any of these.
const CANDIDATES: usize = 64;
/// Call sites that are replayed beside each other before it is asked if others can gain as much.
const GROUP: usize = 8;

/// A recorded program, and how its calls are submitted.
struct Asked<'a> {
    base: &'a Base<'a>,
    device: &'a Device,
    question: &'a Question,
    without: Outcome,
}

/// A call site, and the size from which on it submits, bytes; none: no size is worth it.
type Site = (Caller, Option<u64>);

impl Asked<'_> {
    /// The program with these sites changed, on this device.
    fn replayed(&self, device: &Device, sites: &[Site], first_use: Option<Time>, ahead: usize) -> Outcome {
        // Without a size nothing is submitted, and the calls are counted as too small.
        let callers = sites.iter().map(|(caller, from)| (*caller, from.unwrap_or(u64::MAX))).collect();
        let change = Change { callers, batch: self.question.batch, first_use, ahead };
        replay_changed(self.base.trace, self.base.cpu, device, &change)
    }

    /// The program with these sites changed, as was asked.
    fn changed(&self, sites: &[Site]) -> Outcome {
        self.replayed(self.device, sites, self.question.first_use.time(), self.question.ahead)
    }

    /// The answers of these sites in the order of their gain. A site gains at most the time of its calls, so the rest is not replayed once
    /// as many as are listed gain more than any of it can.
    fn best(&self, candidates: &[Summary], submit: Time) -> Vec<Answer> {
        let mut most_ns: Vec<u64> = candidates.iter().map(|summary| summary.wall_ns).collect();
        for index in (1..most_ns.len()).rev() {
            most_ns[index - 1] = most_ns[index - 1].max(most_ns[index]);
        }
        let of = |answer: &Answer| gain(&answer.run, &self.without);
        let mut answers: Vec<Answer> = Vec::new();
        for (group, most_ns) in candidates.chunks(GROUP).zip(most_ns.iter().step_by(GROUP)) {
            let least = answers.get(self.question.sites - 1).map_or(f64::MIN, |answer| of(answer)[0]);
            if least > *most_ns as f64 / 1e9 {
                break;
            }
            answers.extend(beside(group, |summary| {
                let from = self.question.from.or_else(|| summary.break_even(submit));
                Answer { summary: summary.clone(), from, run: self.changed(&[(summary.caller, from)]) }
            }));
            answers.sort_by(|one, other| {
                of(other)[0].total_cmp(&of(one)[0]).then(of(other)[1].total_cmp(&of(one)[1]))
            });
        }
        answers
    }

    /// For each answer the least and most gained, time and CPU time, seconds: both ends of the assumptions, and each parameter of the
    /// device halved and doubled.
    fn ranges(&self, answers: &[Answer], source: &Source) -> Vec<[(f64, f64); 2]> {
        let Question { first_use, ahead, .. } = *self.question;
        let mut variants =
            vec![(self.device.clone(), Some(Time::ZERO), ahead), (self.device.clone(), None, ahead)];
        if ahead > 0 {
            variants.push((self.device.clone(), Some(Time::ZERO), 0));
        }
        let near = neighbours(&source.text, source.schema).into_iter();
        let near = near.filter(|(.., device)| !device.replays_as(self.device));
        variants.extend(near.map(|(.., device)| (device, first_use.time(), ahead)));
        let of = |answer| (0..variants.len()).map(move |variant| (answer, variant));
        let jobs: Vec<(usize, usize)> = (0..answers.len()).flat_map(of).collect();
        let gained = beside(&jobs, |(answer, variant)| {
            let ((device, first_use, ahead), answer) = (&variants[*variant], &answers[*answer]);
            let sites = [(answer.summary.caller, answer.from)];
            gain(&self.replayed(device, &sites, *first_use, *ahead), &self.without)
        });
        let mut ranges: Vec<[(f64, f64); 2]> = answers
            .iter()
            .map(|answer| gain(&answer.run, &self.without).map(|gained| (gained, gained)))
            .collect();
        for ((answer, _), gained) in jobs.iter().zip(gained) {
            for (range, gained) in ranges[*answer].iter_mut().zip(gained) {
                *range = (range.0.min(gained), range.1.max(gained));
            }
        }
        ranges
    }
}

/// Replays the changes and prints the list.
pub fn run(base: &Base<'_>, source: &Source, question: &Question, as_json: bool) -> Result<(), Failure> {
    let (trace, cpu) = (base.trace, base.cpu);
    let device = Device::new(&source.parameters()?).map_err(|error| Failure::Failed(error.to_string()))?;
    let Device::Dsa(timing) = &device else {
        return Err(Failure::Usage("--async needs a device with a queue: give --device dsa".into()));
    };
    let summaries = callers(trace, &device);
    if summaries.is_empty() {
        return report::nothing(base, "dsa", "copies, fills and comparisons", as_json);
    }
    let without = replay(trace, cpu, Timing::Recorded, &Device::Cpu, 0);
    let asked = Asked { base, device: &device, question, without };
    let each = Time::from_ps(timing.submit.as_ps() / question.batch as u64);
    let mut answers = asked.best(&summaries[..summaries.len().min(CANDIDATES)], each);
    answers.truncate(question.sites);
    let shown: u64 = answers.iter().fold(0, |sum, answer| sum.saturating_add(answer.summary.cpu_ns));
    let all: u64 = summaries.iter().fold(0, |sum, summary| sum.saturating_add(summary.cpu_ns));
    let others = Others {
        sites: summaries.len() - answers.len(),
        share: share(all.saturating_sub(shown) as f64, trace.cpu_ns as f64),
    };
    let ranges = asked.ranges(&answers, source);
    let needs = beside(&answers, |answer| needed(trace, answer.summary.caller));
    let listed: Vec<Listed> = answers
        .into_iter()
        .zip(ranges)
        .zip(needs)
        .map(|((answer, range), needed)| Listed { needed, answer, range })
        .collect();
    let good: Vec<Site> = listed
        .iter()
        .filter(|one| gains(&one.answer.run, &without))
        .map(|one| (one.answer.summary.caller, one.answer.from))
        .collect();
    let together = asked.changed(&good);
    let advice = Advice { base, question, timing, without, listed, others, good: good.len(), together };
    if as_json { advice.json() } else { advice.text() }
}
