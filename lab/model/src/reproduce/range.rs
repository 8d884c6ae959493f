// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The range of an assumed or fitted parameter in which a verdict keeps its answer.
//!
//! - **Flow** [`Rest`]: a verdict and the parameter that it hangs on ─▶ the figure with values below and above the shipped one, one step at a
//!   time, until the answer turns ─▶ [`Span`]
//! - **Rule** a verdict that hangs on a value that nobody published is fitted, whatever its rows are
//! - **Not here** which verdicts do: `reproduce` declares them

use super::{Entry, Figure, Inputs};
use crate::parameters::Kind;

/// A verdict that hangs on a parameter.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    /// Index of the verdict in its figure.
    pub verdict: usize,
    /// Device whose file has the parameter.
    pub device: &'static str,
    /// Name of the parameter.
    pub parameter: &'static str,
    /// Values that are tried, in the unit of the shipped file, in rising order.
    pub values: &'static [f64],
}

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

/// Finds the range of each parameter that a verdict of this figure hangs on.
///
/// # Errors
/// As [`Entry::run`].
pub(super) fn spans(entry: &Entry, inputs: &Inputs, figure: &Figure) -> Result<Vec<Span>, String> {
    let mut spans = Vec::new();
    for rest in entry.rests {
        let Some((unit, value, kind)) = inputs.number(rest.device, rest.parameter) else { continue };
        let holds = |figure: &Figure| figure.verdicts.get(rest.verdict).and_then(|verdict| verdict.holds);
        let wanted = holds(figure);
        let same = |tried: f64| -> Result<bool, String> {
            // A value that contradicts another field, or gives no machine, is no range of the answer.
            let Ok(inputs) = inputs.with(rest.device, rest.parameter, tried) else { return Ok(false) };
            Ok(entry.run(&inputs).is_ok_and(|figure| holds(&figure) == wanted))
        };
        let (mut low, mut high) = (value, value);
        for tried in rest.values.iter().rev().filter(|tried| **tried < value) {
            if !same(*tried)? {
                break;
            }
            low = *tried;
        }
        for tried in rest.values.iter().filter(|tried| **tried > value) {
            if !same(*tried)? {
                break;
            }
            high = *tried;
        }
        let ends = [rest.values.first(), rest.values.last()].map(|end| end.copied().unwrap_or(value));
        spans.push(Span {
            verdict: rest.verdict,
            parameter: rest.parameter,
            unit,
            kind,
            value,
            same: (low, high),
            tried: (ends[0].min(value), ends[1].max(value)),
        });
    }
    Ok(spans)
}
