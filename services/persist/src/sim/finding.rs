// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A crash that a check did not survive: described for a person, and as text for a rerun.
//!
//! - **Layout** a replay is text: `f2/b12{3:1,4:0.ff}/end*{0:0}`: the second fdatasync fails; a crash before event 12
//!   that left nothing but the first write of slot 3 and some pieces of slot 4's first; recovery crashed at
//!   its end, and that left everything but slot 0
use std::fmt;
use std::str::FromStr;

use super::machine::Pick;
use super::select::Point;
use super::trace::{Action, Event};
use super::world::Recording;

/// Where in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The event did not happen.
    Before(u32),
    /// The event happened (a store to persistent caches: as much of it as the image holds).
    After(u32),
    End,
}

impl Place {
    /// How many events happened.
    fn events(self, trace_len: usize) -> usize {
        match self {
            Place::Before(event) => event as usize,
            Place::After(event) => event as usize + 1,
            Place::End => trace_len,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Crash {
    pub(crate) place: Place,
    /// True if slots that `picks` does not name keep all of their writes, false if they keep none.
    all: bool,
    picks: Vec<(usize, Pick)>,
}

impl Crash {
    pub(crate) fn new(place: Place, point: &Point, picks: &[Pick]) -> Self {
        let (none, full) = (point.none(), point.all());
        let differing = |base: &[Pick]| -> Vec<(usize, Pick)> {
            picks.iter().copied().enumerate().filter(|(slot, pick)| *pick != base[*slot]).collect()
        };
        let (from_none, from_all) = (differing(&none), differing(&full));
        let all = from_all.len() < from_none.len();
        Crash { place, all, picks: if all { from_all } else { from_none } }
    }

    /// The picks at this point; those that do not fit it (the trace was another one) are left out.
    pub(crate) fn picks(&self, point: &Point) -> Vec<Pick> {
        let full = point.all();
        let mut picks = if self.all { full.clone() } else { point.none() };
        for (slot, pick) in &self.picks {
            if full
                .get(*slot)
                .is_some_and(|f| pick.writes < f.writes || (pick.writes == f.writes && pick.torn == 0))
            {
                picks[*slot] = *pick;
            }
        }
        picks
    }
}

/// One image, named: give it to [`Config::replay`](super::Config::replay) to run only the check that failed. As
/// text it is printed with the finding, and parsed back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    pub(crate) failing: Option<u64>,
    pub(crate) crashes: Vec<Crash>,
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(nth) = self.failing {
            write!(f, "f{nth}/")?;
        }
        for (i, crash) in self.crashes.iter().enumerate() {
            let slash = if i > 0 { "/" } else { "" };
            match crash.place {
                Place::Before(event) => write!(f, "{slash}b{event}")?,
                Place::After(event) => write!(f, "{slash}a{event}")?,
                Place::End => write!(f, "{slash}end")?,
            }
            let pick = |(slot, pick): &(usize, Pick)| match pick.torn {
                0 => format!("{slot}:{}", pick.writes),
                torn => format!("{slot}:{}.{torn:x}", pick.writes),
            };
            let picks: Vec<String> = crash.picks.iter().map(pick).collect();
            write!(f, "{}{{{}}}", if crash.all { "*" } else { "" }, picks.join(","))?;
        }
        Ok(())
    }
}

/// Text that is not a [`Replay`]'s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayError(String);

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no replay: copy the text after \"replay\" of a finding, whole", self.0)
    }
}

impl std::error::Error for ReplayError {}

impl FromStr for Replay {
    type Err = ReplayError;

    fn from_str(text: &str) -> Result<Self, ReplayError> {
        let parse = || {
            let mut rest = text.trim();
            let mut failing = None;
            if let Some(tail) = rest.strip_prefix('f') {
                let (number, tail) = tail.split_once('/')?;
                (failing, rest) = (Some(number.parse().ok()?), tail);
            }
            let crashes: Option<Vec<Crash>> = rest.split('/').map(parse_crash).collect();
            Some(Replay { failing, crashes: crashes? })
        };
        parse().ok_or_else(|| ReplayError(text.to_owned()))
    }
}

fn parse_crash(text: &str) -> Option<Crash> {
    let (place, picks) = text.strip_suffix('}')?.split_once('{')?;
    let (place, all) = match place.strip_suffix('*') {
        Some(place) => (place, true),
        None => (place, false),
    };
    let place = match (place, place.split_at_checked(1)?) {
        ("end", _) => Place::End,
        (_, ("b", event)) => Place::Before(event.parse().ok()?),
        (_, ("a", event)) => Place::After(event.parse().ok()?),
        _ => return None,
    };
    let pick = |text: &str| {
        let (slot, pick) = text.split_once(':')?;
        let (writes, torn) = pick.split_once('.').unwrap_or((pick, "0"));
        let pick = Pick { writes: writes.parse().ok()?, torn: u64::from_str_radix(torn, 16).ok()? };
        Some((slot.parse().ok()?, pick))
    };
    let picks = picks.split(',').filter(|p| !p.is_empty()).map(pick).collect::<Option<_>>()?;
    Some(Crash { place, all, picks })
}

/// The first image that a check did not accept. Its text says what was lost and where that was written.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The check's error, or its panic's message.
    pub reason: String,
    /// The steps that were acknowledged, in that order.
    pub acked: Vec<u64>,
    /// The steps that had begun and were not acknowledged.
    pub in_flight: Vec<u64>,
    /// The exploration's seed.
    pub seed: u64,
    /// Names the image that failed.
    pub replay: Replay,
    /// The crash in the workload, then the crash in its recovery, and so on: told in words.
    pub crashes: Vec<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "not crash-consistent: {}", self.reason)?;
        writeln!(f, "  acknowledged {:?}, in flight {:?}", self.acked, self.in_flight)?;
        for (depth, crash) in self.crashes.iter().enumerate() {
            let which = if depth == 0 { "crash" } else { "crash in recovery" };
            writeln!(f, "  {which} {crash}")?;
        }
        write!(f, "  replay {} (seed {})", self.replay, self.seed)
    }
}

/// Lines told of each list.
const TOLD: usize = 12;
/// Events told before the crash.
const BEFORE: usize = 8;

/// The crash in words: where, what it left of what was uncertain, what happened last.
pub(crate) fn describe(recording: &Recording, place: Place, point: &Point, picks: &[Pick]) -> String {
    let events = &recording.trace.events;
    let name = |event: &Event| told(recording, event);
    let mut text = match place {
        Place::Before(e) => format!("before event {e}: {}", name(&events[e as usize])),
        Place::After(e) => format!("after event {e}: {}", name(&events[e as usize])),
        Place::End => "at the end".to_owned(),
    };
    let mut writes: Vec<(u32, String)> = Vec::new();
    let mut pending: Vec<u32> = point.slots.iter().flat_map(|(_, s)| &s.pending).map(|w| w.event).collect();
    pending.sort_unstable();
    pending.dedup();
    for event in pending {
        let (kept, lost) = survival(point, picks, event);
        let fate = match (kept.is_empty(), lost.is_empty()) {
            (true, _) => "LOST    ".to_owned(),
            (_, true) => "survived".to_owned(),
            _ => format!("TORN, survived only {},", ranges(&kept)),
        };
        writes.push((event, format!("\n    {fate} #{event} {}", name(&events[event as usize]))));
    }
    text += "\n    of the writes that were not durable yet:";
    if writes.is_empty() {
        text += " there were none";
    }
    let skipped = writes.len().saturating_sub(TOLD);
    if skipped > 0 {
        text += &format!("\n    ({skipped} older ones not shown)");
    }
    text.extend(writes.into_iter().skip(skipped).map(|(_, line)| line));
    let happened = place.events(events.len());
    text += "\n    last events:";
    for (i, event) in events[..happened].iter().enumerate().skip(happened.saturating_sub(BEFORE)) {
        text += &format!("\n      #{i} {}", name(event));
    }
    if happened == 0 {
        text += " none";
    }
    text
}

/// An event, with its device by name.
fn told(recording: &Recording, event: &Event) -> String {
    let text = event.to_string();
    match event.action {
        Action::Store { device, .. }
        | Action::NtStore { device, .. }
        | Action::WriteBack { device, .. }
        | Action::Pwrite { device, .. }
        | Action::Fdatasync { device, .. }
        | Action::SetLen { device, .. } => {
            let number = format!("device {device}");
            text.replacen(&number, &format!("{:?}", recording.devices[device as usize].name), 1)
        }
        _ => text,
    }
}

/// First byte and end.
type Extent = (u64, u64);

/// The bytes of an event that survived, and those that did not; a size counts as the byte at its end.
fn survival(point: &Point, picks: &[Pick], event: u32) -> (Vec<Extent>, Vec<Extent>) {
    let (mut kept, mut lost) = (Vec::new(), Vec::new());
    for ((_, slot), pick) in point.slots.iter().zip(picks) {
        for (index, write) in slot.pending.iter().enumerate().filter(|(_, w)| w.event == event) {
            for piece in 0..write.pieces() {
                let survives = index < pick.writes as usize
                    || index == pick.writes as usize && pick.torn >> piece & 1 == 1;
                let (at, len) = write.piece(piece);
                if survives { kept.push((at, at + len)) } else { lost.push((at, at + len)) }
            }
        }
    }
    (kept, lost)
}

fn ranges(pieces: &[Extent]) -> String {
    let mut sorted = pieces.to_vec();
    sorted.sort_unstable();
    let mut merged: Vec<Extent> = Vec::new();
    for (start, end) in sorted {
        match merged.last_mut() {
            Some(last) if last.1 >= start => last.1 = end,
            _ => merged.push((start, end)),
        }
    }
    let mut text: Vec<String> = merged.iter().take(4).map(|(s, e)| format!("{s:#x}..{e:#x}")).collect();
    if merged.len() > 4 {
        text.push(format!("and {} more ranges", merged.len() - 4));
    }
    text.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_is_the_text_that_it_prints() -> Result<(), ReplayError> {
        for text in ["f2/b12{3:1,4:0.ff}/end*{0:0}", "a0{}", "end*{}"] {
            assert_eq!(text.parse::<Replay>()?.to_string(), text);
        }
        for text in ["", "b12", "c1{}", "b{}", "f/b1{}", "b1{3}", "b1{3:x}", "é{}"] {
            assert!(text.parse::<Replay>().is_err(), "{text}");
        }
        Ok(())
    }
}
