// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Crashes a workload wherever a crash can differ, and checks every image that is tried.
//!
//! - **Flow** the workload runs once and is recorded ─▶ its trace is walked ─▶ at each crash point, images are
//!   selected and built ─▶ the check runs on each ─▶ what the check itself did is walked in the same way
//! - **Order** crash points: before and after every fence and fdatasync, at the end, and after every store where
//!   caches are persistent. Between two of them what may be lost only grows, so that no image is missed
//! - **Owner** the exploration owns the recordings; a check owns its image while it runs
//! - **Not here** the rules of what survives (machine), the choice among images (select), the words (finding).
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::config::{Config, Faults};
use super::finding::{Crash, Finding, Place, Replay, describe};
use super::lint::{Lint, Lints};
use super::machine::{Machine, Pick};
use super::reads::Reads;
use super::select::{Branches, Known, Point, Random};
use super::trace::{Action, Call, Site};
use super::world::{Acks, Counters, Mode, Recording, World};

/// Result of an exploration.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The first image that the check did not accept.
    pub finding: Option<Finding>,
    /// Events of the workload.
    pub events: u64,
    /// Calls and bytes of the workload.
    pub counters: Counters,
    /// Crash points of the workload.
    pub crash_points: u64,
    /// Crash points of recoveries.
    pub recovery_crash_points: u64,
    /// Crash points of which every image was tried, or skipped as one that recovery cannot tell from another.
    pub exhaustive_points: u64,
    /// Crash points with too many images: a structured set and random samples were tried.
    pub sampled_points: u64,
    /// Images that the check ran on.
    pub images: u64,
    /// Images that had been tried before, at this or another crash point.
    pub duplicates: u64,
    /// Images skipped because an image equal in all that recovery read had been tried.
    pub pruned: u64,
    /// Work that the workload did for nothing, and steps that it acknowledged before they were durable.
    pub lints: Vec<Lint>,
    /// Sites of write-backs, fences and syncs, of recoveries too where those are crashed in.
    pub sites: BTreeSet<Site>,
}

impl Report {
    /// For tests: nothing, if nothing was found.
    ///
    /// # Panics
    /// With the finding's text, if there is one.
    #[track_caller]
    pub fn assert_consistent(&self) {
        if let Some(finding) = &self.finding {
            panic!("{finding}");
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} events, {} crash points ({} in recovery; {} exhaustive, {} sampled), {} images checked, {} seen \
             before, {} alike to recovery",
            self.events,
            self.crash_points + self.recovery_crash_points,
            self.recovery_crash_points,
            self.exhaustive_points,
            self.sampled_points,
            self.images,
            self.duplicates,
            self.pruned
        )?;
        self.lints.iter().try_for_each(|lint| writeln!(f, "note: {lint}"))?;
        match &self.finding {
            Some(finding) => finding.fmt(f),
            None => write!(f, "no image failed the check"),
        }
    }
}

/// A check, with its arguments: the machine after the crash, on which it recovers; the acknowledged steps, in the order of
/// acknowledgement; the steps in flight, in the order of beginning.
pub(crate) type Check<'c> = dyn Fn(&World, &[u64], &[u64]) -> Result<(), String> + 'c;

/// Runs `workload` once (again for every fault, see [`Faults`]), crashes it wherever that can differ, and runs
/// `check` on what the crashes may leave, until one is not accepted.
///
/// A check recovers from the image (which is a machine of its own: what recovery writes is crashed in as well, see
/// [`Config::recovery_depth`]) and returns what is wrong; a panic counts as that. It must depend on the image and
/// the steps only, or images are skipped that should not be and findings do not replay.
pub fn explore(
    config: &Config,
    workload: impl Fn(&World, &Acks),
    check: impl Fn(&World, &[u64], &[u64]) -> Result<(), String>,
) -> Report {
    explore_dyn(config, &workload, &check)
}

pub(crate) fn explore_dyn(config: &Config, workload: &dyn Fn(&World, &Acks), check: &Check) -> Report {
    let mut explorer = Explorer {
        config,
        check,
        seen: HashMap::new(),
        report: Report::default(),
        path: Vec::new(),
        failing: None,
    };
    let first = match (&config.replay, config.faults) {
        (Some(replay), _) => replay.failing,
        (None, Faults::Nth(nth)) => Some(nth),
        (None, _) => None,
    };
    explorer.explore(workload, first);
    if config.replay.is_none() && config.faults == Faults::Each {
        let mut nth = 1;
        while explorer.report.finding.is_none() && nth <= explorer.report.counters.fdatasyncs {
            explorer.explore(workload, Some(nth));
            nth += 1;
        }
    }
    explorer.report
}

struct Explorer<'e> {
    config: &'e Config,
    check: &'e Check<'e>,
    /// By image and steps: how deep its recoveries were crashed in, and what they read.
    seen: HashMap<(u128, u64), (u32, Arc<Reads>)>,
    report: Report,
    /// The crashes that led to the machine being walked.
    path: Vec<Crash>,
    failing: Option<u64>,
}

type Found<T> = Result<T, Box<Finding>>;

impl Explorer<'_> {
    fn explore(&mut self, workload: &dyn Fn(&World, &Acks), failing: Option<u64>) {
        self.failing = failing;
        let world = World::new(self.config.devices.iter().cloned());
        self.config.dropped.iter().for_each(|site| world.drop_site(*site));
        if let Some(nth) = failing {
            world.fail_fdatasync(nth);
        }
        workload(&world, &Acks::of(&world));
        let recording = world.take_recording();
        self.report.events += recording.trace.events.len() as u64;
        if self.report.counters == Counters::default() {
            self.report.counters = recording.counters;
        }
        if let Err(finding) = self.walk(&recording, &[], &[]) {
            self.report.finding = Some(*finding);
        }
    }

    /// Crashes a recorded run wherever that can differ. Returns what the checks read.
    fn walk(&mut self, recording: &Recording, acked: &[u64], in_flight: &[u64]) -> Found<Reads> {
        let events = &recording.trace.events;
        let mut machine = Machine::new(recording, self.config.tear, acked, in_flight);
        let mut lints = (self.path.is_empty() && self.report.lints.is_empty()).then(Lints::default);
        let mut reads = Reads::default();
        let settled = events.iter().rposition(|e| e.action == Action::Settle).map_or(0, |i| i + 1);
        let mut changed = false;
        for (index, event) in events.iter().enumerate() {
            if matches!(event.site.call, Call::WriteBack | Call::Fence | Call::Fdatasync) {
                self.report.sites.insert(event.site);
            }
            machine.complete_store();
            let orders = match event.action {
                Action::Fence => machine.has_memory(),
                Action::Fdatasync { .. } => true,
                _ => false,
            };
            if orders && changed && index >= settled {
                reads.extend(&self.point(recording, &machine, Place::Before(index as u32))?);
            }
            if event.action == Action::Recovered {
                break;
            }
            if let Some(lints) = &mut lints {
                lints.check(&machine, index as u32);
            }
            machine.step(index);
            changed |= !matches!(event.action, Action::WriteBack { .. } | Action::Settle);
            let visible =
                matches!(event.action, Action::Store { device, .. } if machine.mode(device) == Mode::Eadr);
            if (orders || visible) && index >= settled {
                reads.extend(&self.point(recording, &machine, Place::After(index as u32))?);
                changed = false;
            }
        }
        machine.complete_store();
        if let Some(lints) = lints {
            self.report.lints = lints.found();
        }
        if changed {
            reads.extend(&self.point(recording, &machine, Place::End)?);
        }
        Ok(reads)
    }

    /// Tries images of a crash here.
    fn point(&mut self, recording: &Recording, machine: &Machine, place: Place) -> Found<Reads> {
        let here = Here { recording, place, point: Point::new(machine) };
        if let Some(replay) = &self.config.replay {
            let Some(crash) = replay.crashes.get(self.path.len()).filter(|crash| crash.place == place) else {
                return Ok(Reads::default());
            };
            let picks = crash.picks(&here.point);
            return self.run(&here, &picks).map(|reads| (*reads).clone());
        }
        let (limit, samples) = if self.path.is_empty() {
            self.report.crash_points += 1;
            (self.config.exhaustive, self.config.samples)
        } else {
            self.report.recovery_crash_points += 1;
            (self.config.exhaustive / 16, self.config.samples / 8)
        };
        let mut tried = Tried::default();
        let complete = if here.point.images() <= limit {
            self.all(&here, limit, &mut tried)?
        } else {
            for picks in here.point.structured(limit as usize) {
                self.try_one(&here, &picks, &mut tried)?;
            }
            here.point.images_of(&tried.slots) <= limit
                && self.config.prune
                && self.all(&here, limit, &mut tried)?
        };
        if complete {
            self.report.exhaustive_points += 1;
        } else {
            let mut random = Random(self.config.seed ^ (self.report.crash_points << 32) ^ self.report.images);
            for _ in 0..samples {
                let picks = here.point.sample(&mut random);
                self.try_one(&here, &picks, &mut tried)?;
            }
            self.report.sampled_points += 1;
        }
        Ok(tried.reads)
    }

    /// Every image, or every one that recovery can tell apart. False if those are more than `limit`.
    fn all(&mut self, here: &Here, limit: u64, tried: &mut Tried) -> Found<bool> {
        if !self.config.prune {
            for index in 0..here.point.images() {
                self.try_one(here, &here.point.nth(index), tried)?;
            }
            return Ok(true);
        }
        let mut branches = Branches::new();
        let mut runs = 0;
        while let Some(assigned) = branches.next() {
            let mut picks = here.point.none();
            assigned.iter().for_each(|(slot, pick)| picks[*slot] = *pick);
            let reads = self.run(here, &picks)?;
            let read = here.point.read_slots(&reads);
            runs += 1;
            if runs > limit || !branches.branch(&here.point, &assigned, &read, limit) {
                return Ok(false);
            }
            tried.add(&reads, read, &picks);
        }
        self.report.pruned += here.point.images().min(limit).saturating_sub(runs);
        Ok(true)
    }

    fn try_one(&mut self, here: &Here, picks: &[Pick], tried: &mut Tried) -> Found<()> {
        if self.config.prune && tried.known.covers(picks) {
            self.report.pruned += 1;
            return Ok(());
        }
        let reads = self.run(here, picks)?;
        if self.config.prune {
            tried.add(&reads, here.point.read_slots(&reads), picks);
        }
        Ok(())
    }

    /// Builds one image, checks it, and crashes its recovery. Returns what all that read.
    fn run(&mut self, here: &Here, picks: &[Pick]) -> Found<Arc<Reads>> {
        let machine = here.point.machine;
        let depth = self.config.recovery_depth.saturating_sub(self.path.len() as u32);
        let image = machine.image(&here.point.slots, picks);
        let mut steps = DefaultHasher::new();
        (&machine.acked, &machine.in_flight).hash(&mut steps);
        let content = image.iter().fold(0u128, |hash, pages| hash.rotate_left(1) ^ pages.hash());
        let key = (content, steps.finish());
        if let Some((depth_before, reads)) = self.seen.get(&key)
            && *depth_before >= depth
        {
            self.report.duplicates += 1;
            return Ok(reads.clone());
        }
        let devices = here.recording.devices.iter().zip(image);
        let devices =
            devices.map(|(device, content)| super::world::Device { content, ..device.clone() }).collect();
        let world = World::with(devices, depth > 0, self.config.prune.then(Reads::default));
        self.config.dropped.iter().for_each(|site| world.drop_site(*site));
        self.report.images += 1;
        if let Err(reason) = self.check(&world, machine) {
            return Err(Box::new(self.finding(here, picks, reason)));
        }
        let mut reads = world.take_reads().unwrap_or_default();
        let recording = world.take_recording();
        if !recording.trace.events.is_empty() {
            self.path.push(Crash::new(here.place, &here.point, picks));
            let nested = self.walk(&recording, &machine.acked, &machine.in_flight);
            self.path.pop();
            match nested {
                Ok(nested) => reads.extend(&nested),
                Err(mut finding) => {
                    finding.crashes.insert(0, here.describe(picks));
                    return Err(finding);
                }
            }
        }
        let reads = Arc::new(reads);
        self.seen.insert(key, (depth, reads.clone()));
        Ok(reads)
    }

    fn check(&self, world: &World, machine: &Machine) -> Result<(), String> {
        catch_unwind(AssertUnwindSafe(|| (self.check)(world, &machine.acked, &machine.in_flight)))
            .unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("(no text)");
                Err(format!("the check panicked: {text}"))
            })
    }

    /// Reports the failure, with as little lost as still makes it fail.
    fn finding(&self, here: &Here, picks: &[Pick], mut reason: String) -> Finding {
        /// Runs of the check at most, to find out which losses matter.
        const RUNS: usize = 256;
        let machine = here.point.machine;
        let mut picks = picks.to_vec();
        let all = here.point.all();
        let lost: Vec<usize> =
            (0..picks.len()).filter(|slot| picks[*slot] != all[*slot]).take(RUNS).collect();
        for slot in lost.into_iter().filter(|_| self.config.replay.is_none()) {
            let before = std::mem::replace(&mut picks[slot], all[slot]);
            let image = machine.image(&here.point.slots, &picks);
            let devices = here.recording.devices.iter().zip(image);
            let devices = devices.map(|(device, content)| super::world::Device { content, ..device.clone() });
            let world = World::with(devices.collect(), false, None);
            self.config.dropped.iter().for_each(|site| world.drop_site(*site));
            match self.check(&world, machine) {
                Err(still) => reason = still,
                Ok(()) => picks[slot] = before,
            }
        }
        let mut crashes = self.path.clone();
        crashes.push(Crash::new(here.place, &here.point, &picks));
        Finding {
            reason,
            acked: machine.acked.clone(),
            in_flight: machine.in_flight.clone(),
            seed: self.config.seed,
            replay: Replay { failing: self.failing, crashes },
            crashes: vec![here.describe(&picks)],
        }
    }
}

/// A crash point of a recording.
struct Here<'h> {
    recording: &'h Recording,
    place: Place,
    point: Point<'h>,
}

impl Here<'_> {
    fn describe(&self, picks: &[Pick]) -> String {
        describe(self.recording, self.place, &self.point, picks)
    }
}

/// The images that were tried at a crash point, and what recovery read of them.
#[derive(Default)]
struct Tried {
    known: Known,
    reads: Reads,
    slots: HashSet<usize>,
}

impl Tried {
    fn add(&mut self, reads: &Reads, slots: Vec<usize>, picks: &[Pick]) {
        self.reads.extend(reads);
        self.slots.extend(&slots);
        self.known.add(slots, picks);
    }
}
