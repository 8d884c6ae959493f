// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Selects the images of a crash point that are tried.
//!
//! - **Flow** few enough, or recovery reads little ─▶ every one that recovery can tell apart ([`Branches`]);
//!   else ─▶ a structured set, then seeded samples; images equal in all that recovery read are skipped
//!   ([`Known`])
//! - **Not here** building an image, and running the check on it: `explore`
use std::collections::HashSet;

use super::machine::{Key, Kind, Machine, Pick, Slot};
use super::pages::scramble;
use super::reads::{Reads, SIZE};

/// A crash point: the machine as it stands there, and the slots that a crash may cut.
pub(crate) struct Point<'m> {
    pub(crate) machine: &'m Machine<'m>,
    pub(crate) slots: Vec<(Key, &'m Slot)>,
    states: Vec<u64>,
    /// Device, first byte, end of what each slot may change; sorted.
    ranges: Vec<(u32, u64, u64, usize)>,
}

impl<'m> Point<'m> {
    pub(crate) fn new(machine: &'m Machine<'m>) -> Self {
        let slots = machine.uncertain();
        let states = slots.iter().map(|(_, slot)| slot.states(machine.tear)).collect();
        let range = |(index, (key, slot)): (usize, &(Key, &Slot))| match (key.kind, key.cell) {
            (Kind::Size, _) | (Kind::Limbo, u64::MAX) => (key.device, SIZE, SIZE, index),
            _ => {
                let start = slot.pending.iter().map(|w| w.at).min().unwrap_or(0);
                let end = slot.pending.iter().map(|w| w.at + u64::from(w.len)).max().unwrap_or(0);
                (key.device, start, end, index)
            }
        };
        let mut ranges: Vec<_> = slots.iter().enumerate().map(range).collect();
        ranges.sort_unstable();
        Point { machine, slots, states, ranges }
    }

    /// How many images there are.
    pub(crate) fn images(&self) -> u64 {
        self.states.iter().fold(1, |n: u64, s| n.saturating_mul(*s))
    }

    /// How many images differ in these slots.
    pub(crate) fn images_of(&self, slots: &HashSet<usize>) -> u64 {
        slots.iter().fold(1, |n: u64, s| n.saturating_mul(self.states[*s]))
    }

    pub(crate) fn none(&self) -> Vec<Pick> {
        vec![Pick::default(); self.slots.len()]
    }

    pub(crate) fn all(&self) -> Vec<Pick> {
        self.slots.iter().map(|(_, slot)| slot.full()).collect()
    }

    /// The `index`-th image, counted through all picks of all slots.
    pub(crate) fn nth(&self, mut index: u64) -> Vec<Pick> {
        let mut picks = self.none();
        for (slot, pick) in picks.iter_mut().enumerate() {
            *pick = self.slots[slot].1.pick(self.machine.tear, index % self.states[slot]);
            index /= self.states[slot];
        }
        picks
    }

    /// The slots that were read, in the order of reading.
    pub(crate) fn read_slots(&self, reads: &Reads) -> Vec<usize> {
        if reads.everything {
            return (0..self.slots.len()).collect();
        }
        let mut seen = vec![false; self.slots.len()];
        let mut order = Vec::new();
        for &(device, start, end) in &reads.extents {
            // No cell is larger than a sector, so what overlaps starts at most that much earlier.
            let from = (device, start.saturating_sub(Kind::Sector.size()), 0, 0);
            let first = self.ranges.partition_point(|range| *range < from);
            for &(d, s, e, slot) in &self.ranges[first..] {
                if (d, s) > (device, end) {
                    break;
                }
                let hit = if start == SIZE { s == SIZE } else { s < end && start < e && s != SIZE };
                if d == device && hit && !seen[slot] {
                    seen[slot] = true;
                    order.push(slot);
                }
            }
        }
        order
    }

    /// None and all; all or nothing of each device; each slot alone and each missing; each device as it was at
    /// some time; each slot at some older content; pairs: at most `budget`.
    pub(crate) fn structured(&self, budget: usize) -> Vec<Vec<Pick>> {
        let (none, all) = (self.none(), self.all());
        let mut picks = vec![none.clone(), all.clone()];
        let mut devices: Vec<u32> = self.slots.iter().map(|(key, _)| key.device).collect();
        devices.dedup();
        if devices.len() > 1 {
            for device in &devices {
                picks.push(self.mixed(&none, &all, |slot| self.slots[slot].0.device == *device));
                picks.push(self.mixed(&all, &none, |slot| self.slots[slot].0.device == *device));
            }
        }
        let n = self.slots.len();
        for slot in spread(n, budget / 6) {
            picks.push(self.mixed(&all, &none, |s| s == slot));
            picks.push(self.mixed(&none, &all, |s| s == slot));
        }
        self.cuts(&devices, budget / 6, &mut picks);
        for slot in spread(n, budget / 32) {
            for index in spread(self.states[slot].saturating_sub(2).min(64) as usize, 4) {
                let pick = self.slots[slot].1.pick(self.machine.tear, index as u64 + 1);
                for base in [&none, &all] {
                    let mut torn = base.clone();
                    torn[slot] = pick;
                    picks.push(torn);
                }
            }
        }
        if n.saturating_mul(n) <= budget / 4 {
            for (a, b) in (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))) {
                picks.push(self.mixed(&all, &none, |s| s == a || s == b));
                picks.push(self.mixed(&none, &all, |s| s == a || s == b));
            }
        }
        picks.truncate(budget);
        picks
    }

    /// Every device as it was at a time of its own.
    fn cuts(&self, devices: &[u32], budget: usize, picks: &mut Vec<Vec<Pick>>) {
        let mut events: Vec<u32> = self.slots.iter().flat_map(|(_, s)| &s.pending).map(|w| w.event).collect();
        events.sort_unstable();
        events.dedup();
        let mut each = budget.max(1);
        while each > 1 && (each + 1).checked_pow(devices.len() as u32).is_none_or(|n| n > budget) {
            each = each * 3 / 4;
        }
        let times: Vec<u32> = std::iter::once(0)
            .chain(spread(events.len(), each).map(|i| events[i].saturating_add(1)))
            .collect();
        for mut code in 0..times.len().pow(devices.len() as u32).min(budget) {
            let mut image = self.none();
            for device in devices {
                let time = times[code % times.len()];
                code /= times.len();
                for (pick, (_, slot)) in
                    image.iter_mut().zip(&self.slots).filter(|(_, (k, _))| k.device == *device)
                {
                    *pick = slot.before(time);
                }
            }
            picks.push(image);
        }
    }

    fn mixed(&self, no: &[Pick], yes: &[Pick], take_yes: impl Fn(usize) -> bool) -> Vec<Pick> {
        (0..self.slots.len()).map(|slot| if take_yes(slot) { yes[slot] } else { no[slot] }).collect()
    }

    /// A random image: mostly kept, mostly lost, or neither, with torn ones among them.
    pub(crate) fn sample(&self, random: &mut Random) -> Vec<Pick> {
        let kept = [1, 4, 8, 12, 15][random.below(5) as usize];
        let odd = [0, 1, 4, 8][random.below(4) as usize];
        let mut draw = |(slot, states): (&(Key, &Slot), &u64)| {
            if random.below(16) < odd {
                slot.1.pick(self.machine.tear, random.below(*states))
            } else if random.below(16) < kept {
                slot.1.full()
            } else {
                Pick::default()
            }
        };
        self.slots.iter().zip(&self.states).map(&mut draw).collect()
    }
}

/// At most `most` of `0..n`, evenly spread.
fn spread(n: usize, most: usize) -> impl Iterator<Item = usize> {
    let taken = n.min(most);
    (0..taken).map(move |i| i * n / taken)
}

/// A tree over what recovery reads: it branches at a slot only where a run came to read it.
pub(crate) struct Branches {
    stack: Vec<Vec<(usize, Pick)>>,
}

impl Branches {
    pub(crate) fn new() -> Self {
        Branches { stack: vec![Vec::new()] }
    }

    pub(crate) fn next(&mut self) -> Option<Vec<(usize, Pick)>> {
        self.stack.pop()
    }

    /// Where the run of `assigned` read further slots: their other contents are still to be tried. False if those
    /// are too many.
    pub(crate) fn branch(
        &mut self,
        point: &Point,
        assigned: &[(usize, Pick)],
        read: &[usize],
        most: u64,
    ) -> bool {
        let mut prefix = assigned.to_vec();
        for &slot in read {
            if assigned.iter().any(|(s, _)| *s == slot) {
                continue;
            }
            if self.stack.len() as u64 + point.states[slot] > most.saturating_mul(2) {
                return false;
            }
            for index in 1..point.states[slot] {
                let mut other = prefix.clone();
                other.push((slot, point.slots[slot].1.pick(point.machine.tear, index)));
                self.stack.push(other);
            }
            prefix.push((slot, Pick::default()));
        }
        true
    }
}

/// Runs that are over: what they read, and what it held.
#[derive(Default)]
pub(crate) struct Known {
    groups: Vec<(Vec<usize>, HashSet<Vec<Pick>>)>,
}

/// Sets of slots remembered; a run that read yet another set is repeated, no more.
const GROUPS: usize = 32;

impl Known {
    pub(crate) fn covers(&self, picks: &[Pick]) -> bool {
        self.groups.iter().any(|(slots, runs)| {
            let held: Vec<Pick> = slots.iter().map(|s| picks[*s]).collect();
            runs.contains(&held)
        })
    }

    pub(crate) fn add(&mut self, mut slots: Vec<usize>, picks: &[Pick]) {
        slots.sort_unstable();
        let held = slots.iter().map(|s| picks[*s]).collect();
        let full = self.groups.len() == GROUPS;
        match self.groups.iter_mut().find(|(s, _)| *s == slots) {
            Some((_, runs)) => {
                runs.insert(held);
            }
            None if full => {}
            None => self.groups.push((slots, HashSet::from([held]))),
        }
    }
}

/// splitmix64: small, seeded, the same on every machine.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        ((u128::from(scramble(self.0)) * u128::from(n)) >> 64) as u64
    }
}
