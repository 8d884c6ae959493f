// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The range of an assumed or fitted parameter in which a verdict keeps its answer.
//!
//! - **Flow** [`Rest`]: a verdict and the parameter that it hangs on ─▶ the figure with values below and above the shipped one, step by step
//!   until the answer turns, then between the last two ─▶ [`Span`]
//! - **Rule** a verdict that hangs on a value that nobody published is fitted, whatever its rows are. It hangs on a value if half of it or twice as
//!   much gives another answer; a soak test finds all of those and compares them with what `reproduce` declares
//! - **Not here** which verdicts do: `reproduce` declares them

use std::collections::BTreeMap;

use super::{Entry, Figure, Inputs};
use crate::parameters::Kind;

/// A verdict that hangs on a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// Index of the verdict in its figure.
    pub verdict: usize,
    /// Device whose file has the parameter.
    pub device: &'static str,
    /// Name of the parameter.
    pub parameter: &'static str,
}

/// Values that are tried above the shipped one, as parts of it; those below are as many times less.
const STEPS: [f64; 7] = [1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0];
/// Values that are tried between the last one with the same answer and the first one with another.
const BETWEEN: usize = 5;

/// Range of a parameter in which a verdict keeps its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Index of the verdict in its figure.
    pub verdict: usize,
    /// Name of the parameter.
    pub parameter: &'static str,
    /// Unit of its values.
    pub unit: String,
    /// How far its value can be trusted.
    pub kind: Kind,
    /// Value that the figure was run with.
    pub value: f64,
    /// Least and largest value with the same answer, of those that were tried.
    pub same: (f64, f64),
    /// Least and largest value that were tried.
    pub tried: (f64, f64),
}

impl Span {
    /// Returns true if the answer turns within the values that were tried.
    #[must_use]
    pub fn turns(&self) -> bool {
        self.same != self.tried
    }
}

/// Answers of a figure with one parameter changed, by its value in thousandths; none: the value is not allowed.
type Answers = BTreeMap<u64, Option<Vec<Option<bool>>>>;

/// A parameter that is changed.
struct Tried<'a> {
    entry: &'a Entry,
    inputs: &'a Inputs,
    device: &'static str,
    parameter: &'static str,
    whole: bool,
    answers: &'a mut Answers,
}

impl Tried<'_> {
    /// A value as it is tried: whole where it has to be, three digits else.
    fn rounded(&self, value: f64) -> f64 {
        if self.whole {
            return value.round();
        }
        let scale = 10_f64.powi(2 - value.abs().max(1e-9).log10().floor() as i32).min(1000.0);
        (value * scale).round() / scale
    }

    /// The answer of a verdict with this value: `None` where the value is not allowed; a figure that gives no answer with it has another one.
    fn answer(&mut self, value: f64, verdict: usize) -> Option<Option<bool>> {
        let Tried { entry, inputs, device, parameter, answers, .. } = self;
        let found = answers.entry((value * 1000.0).round() as u64).or_insert_with(|| {
            let inputs = inputs.with(device, parameter, value).ok()?;
            let figure = entry.run(&inputs);
            Some(figure.map_or(Vec::new(), |figure| holds(&figure)))
        });
        found.as_ref().map(|holds| holds.get(verdict).copied().flatten())
    }

    /// The last value with this answer on the way from the shipped one, and the last one that was tried.
    fn end(&mut self, value: f64, verdict: usize, wanted: Option<bool>, up: bool) -> (f64, f64) {
        let (mut same, mut tried) = (value, value);
        for step in STEPS {
            let next = self.rounded(if up { value * step } else { value / step });
            if next == tried {
                continue;
            }
            let Some(answer) = self.answer(next, verdict) else { break };
            tried = next;
            if answer != wanted {
                let mut other = next;
                for _ in 0..BETWEEN {
                    let middle = self.rounded(f64::midpoint(same, other));
                    if middle == same || middle == other {
                        break;
                    }
                    match self.answer(middle, verdict) {
                        Some(answer) if answer == wanted => same = middle,
                        _ => other = middle,
                    }
                }
                return (same, tried);
            }
            same = next;
        }
        (same, tried)
    }
}

fn holds(figure: &Figure) -> Vec<Option<bool>> {
    figure.verdicts.iter().map(|verdict| verdict.holds).collect()
}

/// Finds the range of each parameter that a verdict of this figure hangs on.
///
/// # Errors
/// As [`Entry::run`].
pub(super) fn spans(entry: &Entry, inputs: &Inputs, figure: &Figure) -> Result<Vec<Span>, String> {
    let (mut spans, wanted) = (Vec::new(), holds(figure));
    let mut known: BTreeMap<(&str, &str), Answers> = BTreeMap::new();
    for Rest { verdict, device, parameter } in entry.rests {
        let Some((unit, value, kind)) = inputs.number(device, parameter) else { continue };
        let Some(answer) = wanted.get(*verdict).copied() else { continue };
        let whole = inputs.with(device, parameter, value + 0.5).is_err();
        let answers = known.entry((device, parameter)).or_default();
        let mut tried = Tried { entry, inputs, device, parameter, whole, answers };
        let (low, least) = tried.end(value, *verdict, answer, false);
        let (high, most) = tried.end(value, *verdict, answer, true);
        spans.push(Span {
            verdict: *verdict,
            parameter,
            unit,
            kind,
            value,
            same: (low, high),
            tried: (least, most),
        });
    }
    Ok(spans)
}

/// Verdicts of a figure that have another answer with half or twice the value of a parameter that nobody published.
///
/// # Errors
/// As [`Entry::run`].
#[cfg(test)]
fn turning(entry: &Entry, inputs: &Inputs) -> Result<Vec<Rest>, String> {
    let wanted = holds(&entry.run(inputs)?);
    let device = match entry.name.split('-').next() {
        Some("rocket") => "dsa",
        name => name.unwrap_or_default(),
    };
    let Some(parameters) = inputs.parameters.iter().find(|parameters| parameters.device() == device) else {
        return Err(format!("{device} has no parameters"));
    };
    let mut found = Vec::new();
    for (parameter, _) in parameters.iter() {
        let Some((_, value, kind)) = inputs.number(device, parameter) else { continue };
        if !matches!(kind, Kind::Assumed | Kind::Fitted) {
            continue;
        }
        let whole = inputs.with(device, parameter, value + 0.5).is_err();
        let (device, mut answers) =
            (super::DEVICES.iter().find(|(schema, _)| schema.device == device), Answers::new());
        let Some(device) = device.map(|(schema, _)| schema.device) else { continue };
        let mut tried = Tried { entry, inputs, device, parameter, whole, answers: &mut answers };
        for value in [value / 2.0, value * 2.0].map(|value| tried.rounded(value)) {
            for (verdict, wanted) in wanted.iter().enumerate() {
                let rest = Rest { verdict, device, parameter };
                let turns = tried.answer(value, verdict).is_some_and(|answer| answer != *wanted);
                if turns && !found.contains(&rest) {
                    found.push(rest);
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::ALL;
    use super::*;

    /// Declared and found: each verdict that half or twice the value of an assumed or fitted parameter turns.
    fn compare(entries: impl Iterator<Item = &'static Entry>) {
        let inputs = Inputs::shipped();
        let (mut missing, mut idle) = (Vec::new(), Vec::new());
        for entry in entries {
            let found = turning(entry, &inputs).unwrap();
            let of = |rests: &[Rest], others: &[Rest]| -> Vec<Rest> {
                rests.iter().filter(|rest| !others.contains(rest)).copied().collect()
            };
            missing.extend(of(&found, entry.rests).into_iter().map(|rest| (entry.name, rest)));
            idle.extend(of(entry.rests, &found).into_iter().map(|rest| (entry.name, rest)));
        }
        assert!(
            missing.is_empty() && idle.is_empty(),
            "not declared: {missing:#?}; declared, and half or twice the value changes nothing: {idle:#?}"
        );
    }

    #[test]
    fn answers_of_short_figures_hang_on_what_is_declared() {
        let short =
            ["rocket-fig5", "rocket-fig9", "nearpm-fig1", "nearpm-fig17", "nearpm-fig20", "pulse-table3"];
        compare(ALL.iter().filter(|entry| short.contains(&entry.name)));
    }

    #[test]
    #[ignore = "soak"]
    fn soak_answers_of_all_figures_hang_on_what_is_declared() {
        compare(ALL.iter());
    }
}
