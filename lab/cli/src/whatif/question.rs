// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The question of `--async`, `--batch` and `--ahead`: how calls are submitted, and when their results are used.

use memlift_model::event::Time;

/// Time at which the program first uses the result of a submitted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstUse {
    /// When a recorded event does.
    Recorded,
    /// So much computing after the call, unless a recorded event comes first.
    After(Time),
}

impl FirstUse {
    /// Computing until then; none: until a recorded event.
    pub fn time(self) -> Option<Time> {
        match self {
            FirstUse::Recorded => None,
            FirstUse::After(time) => Some(time),
        }
    }
}

/// Reads `recorded`, `at-once`, or a time with its unit.
///
/// # Errors
/// The values that can be given instead.
pub fn first_use(text: &str) -> Result<FirstUse, String> {
    match text {
        "recorded" => return Ok(FirstUse::Recorded),
        "at-once" => return Ok(FirstUse::After(Time::ZERO)),
        _ => {}
    }
    let wrong =
        || "give recorded, at-once, or a time up to 1000s with its unit: 500ns, 2us, 1.5ms, 1s".to_owned();
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let ps = match &text[digits.len()..] {
        "ns" => 1e3,
        "us" => 1e6,
        "ms" => 1e9,
        "s" => 1e12,
        _ => return Err(wrong()),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let ps = number * ps;
    if (0.0..=1e15).contains(&ps) { Ok(FirstUse::After(Time::from_ps(ps as u64))) } else { Err(wrong()) }
}

/// Arguments of the question.
#[derive(Clone, Debug)]
pub struct Question {
    /// Calls of one submission.
    pub batch: usize,
    /// Time at which results are first used.
    pub first_use: FirstUse,
    /// Number of calls of its site by which a call is submitted ahead.
    pub ahead: usize,
    /// Smallest call that is submitted, bytes; none: from where on submitting costs less than the call did.
    pub from: Option<u64>,
    /// Call sites that are listed.
    pub sites: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_first_use_are_read_and_wrong_ones_say_what_is_possible() {
        for (text, wanted) in [
            ("recorded", FirstUse::Recorded),
            ("at-once", FirstUse::After(Time::ZERO)),
            ("0ns", FirstUse::After(Time::ZERO)),
            ("500ns", FirstUse::After(Time::from_ns(500))),
            ("1.5us", FirstUse::After(Time::from_ns(1500))),
            ("2ms", FirstUse::After(Time::from_ns(2_000_000))),
            ("1000s", FirstUse::After(Time::from_ns(1_000_000_000_000))),
        ] {
            assert_eq!(first_use(text), Ok(wanted), "{text}");
        }
        for text in ["", "later", "5", "5m", "-1ns", "nanns", "infs", "1001s", "ns"] {
            let said = first_use(text).expect_err(text);
            assert!(said.starts_with("give recorded, at-once, or a time"), "{text}: {said}");
        }
    }
}
