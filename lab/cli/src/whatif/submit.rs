// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift whatif --async` and `--batch`: which call sites of the program should submit their calls, and what each would gain.
//!
//! - **Flow** call sites by CPU time ─▶ one replay each, that site changed and no other ─▶ in the order of their gain ─▶ for those that are
//!   listed: each parameter halved and doubled, results used at once and as late as the recording allows ─▶ all that gain, together
//! - **Rule** a trace does not say when a result is first touched between two recorded events. That is `--first-use`, is printed, and the
//!   range has both ends of it
//! - **Not here** before which steps results have to be there (`memlift_model::whatif::change`)

use memlift_cli::failure::Failure;
use memlift_model::event::Time;
use memlift_model::whatif::{
    Caller, Change, Device, Timing, callers, needed, neighbours, replay, replay_changed,
};

use super::advice::{Advice, Answer, Listed, Others, gain, gains};
use super::beside::beside;
use super::question::Question;
use super::report::{self, Base, share};
use super::source::Source;

/// Call sites that are replayed to find the order; the others took less CPU time than any of these.
const CANDIDATES: usize = 64;
/// Parameters of the device that a replay asks for.
const PARAMETERS: [&str; 7] = ["submit", "start", "device_rate", "turn", "queue_entries", "engines", "wake"];

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
    let each = Time::from_ps(timing.submit.as_ps() / question.batch as u64);
    let change = |callers: &[(Caller, Option<u64>)], first_use: Option<Time>| Change {
        // Without a size nothing is submitted, and the calls are counted as too small.
        callers: callers.iter().map(|(caller, from)| (*caller, from.unwrap_or(u64::MAX))).collect(),
        batch: question.batch,
        first_use,
    };
    let asked = question.first_use.time();
    let candidates = &summaries[..summaries.len().min(CANDIDATES)];
    let runs = beside(candidates, |summary| {
        let from = question.from.or_else(|| summary.break_even(each));
        (from, replay_changed(trace, cpu, &device, &change(&[(summary.caller, from)], asked)))
    });
    let mut answers: Vec<Answer> = candidates
        .iter()
        .zip(runs)
        .map(|(summary, (from, run))| Answer { summary: summary.clone(), from, run })
        .collect();
    answers.sort_by(|one, other| {
        let of = |answer: &Answer| gain(&answer.run, &without);
        of(other)[0].total_cmp(&of(one)[0]).then(of(other)[1].total_cmp(&of(one)[1]))
    });
    answers.truncate(question.sites);
    let shown: u64 = answers.iter().fold(0, |sum, answer| sum.saturating_add(answer.summary.cpu_ns));
    let all: u64 = summaries.iter().fold(0, |sum, summary| sum.saturating_add(summary.cpu_ns));
    let others = Others {
        sites: summaries.len() - answers.len(),
        share: share(all.saturating_sub(shown) as f64, trace.cpu_ns as f64),
    };
    // The range: both ends of the assumption, and each parameter that matters.
    let mut variants = vec![(device.clone(), Some(Time::ZERO)), (device.clone(), None)];
    let near = neighbours(&source.text, source.schema);
    variants.extend(
        near.into_iter().filter(|(name, ..)| PARAMETERS.contains(name)).map(|(.., device)| (device, asked)),
    );
    let jobs: Vec<(usize, usize)> = (0..answers.len())
        .flat_map(|answer| (0..variants.len()).map(move |variant| (answer, variant)))
        .collect();
    let varied = beside(&jobs, |(answer, variant)| {
        let (device, first_use) = &variants[*variant];
        let answer = &answers[*answer];
        let change = change(&[(answer.summary.caller, answer.from)], *first_use);
        gain(&replay_changed(trace, cpu, device, &change), &without)
    });
    let range = |place: usize, gained: [f64; 2]| {
        let mut range = gained.map(|gained| (gained, gained));
        for (_, gained) in jobs.iter().zip(&varied).filter(|((answer, _), _)| *answer == place) {
            for (range, gained) in range.iter_mut().zip(gained) {
                *range = (range.0.min(*gained), range.1.max(*gained));
            }
        }
        range
    };
    let ranges: Vec<_> =
        answers.iter().enumerate().map(|(place, answer)| range(place, gain(&answer.run, &without))).collect();
    let listed: Vec<Listed> = answers
        .into_iter()
        .zip(ranges)
        .map(|(answer, range)| Listed { needed: needed(trace, answer.summary.caller), answer, range })
        .collect();
    let good: Vec<(Caller, Option<u64>)> = listed
        .iter()
        .filter(|one| gains(&one.answer.run, &without))
        .map(|one| (one.answer.summary.caller, one.answer.from))
        .collect();
    let together = replay_changed(trace, cpu, &device, &change(&good, asked));
    let advice = Advice { base, question, timing, without, listed, others, good: good.len(), together };
    if as_json { advice.json() } else { advice.text() }
}
