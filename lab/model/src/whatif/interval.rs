// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The steps of one thread, from its records.
//!
//! - **Flow** records, one after the other ─▶ [`Builder`], which keeps those since the last mark ─▶ a mark ─▶ the steps between the two
//! - **Method** waits are where their records say. What then is left of the time between two marks, less their CPU time, was spent without a
//!   core: a thread that waited in ways that have no record did so in the longest gaps between calls; one that was displaced lost the same
//!   part of everything. Page faults are the calls' that wrote, as many as they have pages,
//!   less those of the trace's own pages, one each
//! - **Rule** marks do not go back. Calls of signal handlers may lie inside others: time never goes back for it
//! - **Not here** other threads (timeline.rs)

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use memlift_spec::formats::trace::{Chunk, FAULTS_UNKNOWN, Fault, Kind, Reason, Record};

use super::timeline::{Call, Step, Thread, Waker, What, part};

/// Shorter waits are part of computing, nanoseconds: CPU time is known to the microsecond.
const WAIT_NS: u64 = 20_000;

/// Calls of a thread at most: steps have their numbers in 32 bits, and waits are few beside them.
const CALLS_MAX: usize = 1 << 31;

/// How far a thread was.
#[derive(Clone, Copy, Default)]
struct Mark {
    at_ns: u64,
    cpu_ns: u64,
    faults: (u64, u64),
    waits: u64,
    /// Time so far in which it could run and had no core; none: unknown.
    delayed_ns: Option<u64>,
}

/// A call or a wait between two marks.
#[derive(Clone, Copy)]
struct Piece {
    at_ns: u64,
    wall_ns: u64,
    what: What,
}

/// A thread while its records are read, in their order.
pub(super) struct Builder {
    thread: Thread,
    from: Option<Mark>,
    /// Calls since the last mark: when, and their places.
    since: Vec<(u64, usize)>,
    /// Waits that were not over at the last mark.
    waits: Vec<Piece>,
    /// The place of each wait in the thread's `wakers`, and its length, by its start.
    wakers: BTreeMap<u64, (usize, u64)>,
    /// Page faults since the last mark that writing the trace has cost: the first record of each page.
    own: u64,
}

impl Builder {
    /// A thread of which nothing is known yet.
    pub fn new(head: &Chunk) -> Builder {
        Builder {
            thread: Thread { process: head.process, pid: head.pid, ..Thread::default() },
            from: None,
            since: Vec::new(),
            waits: Vec::new(),
            wakers: BTreeMap::new(),
            own: 0,
        }
    }

    /// Takes the next record, which lies at offset `at`; a call's site is the record's number until the trace's sites are known.
    ///
    /// # Errors
    /// A mark that goes back.
    pub fn take(&mut self, record: &Record, at: u64, begins_page: bool) -> Result<(), Fault> {
        let [begin, second, third, fourth, fifth, sixth, seventh] = record.words;
        match record.kind {
            Kind::Mark | Kind::End => {
                let delayed_ns = seventh.checked_sub(1);
                let faults = (third, fourth);
                let mark = Mark { at_ns: begin, cpu_ns: second, faults, waits: fifth, delayed_ns };
                self.mark(&mark, at)?;
                self.thread.ended |= record.kind == Kind::End;
            }
            Kind::Waited => self.wait(record),
            Kind::Served => self.thread.served.add(&record.words),
            kind if kind.is_call() => {
                if self.thread.calls.len() >= CALLS_MAX {
                    let fix = "a thread has at most 2^31 calls here: record again with a smaller --limit or a larger --threshold";
                    return Err(Fault {
                        at,
                        field: "thread.calls",
                        found: self.thread.calls.len() as u64,
                        fix,
                    });
                }
                let half = |word: u64| (word as u32).saturating_add((word >> 32) as u32);
                self.since.push((begin, self.thread.calls.len()));
                self.thread.calls.push(Call {
                    kind,
                    site: Some(record.site.into()).filter(|number| *number != 0),
                    parameter: record.parameter,
                    wall_ns: second,
                    cpu_ns: second,
                    source: third,
                    target: fourth,
                    read: fifth,
                    written: sixth,
                    faults: (!kind.is_work() && seventh != FAULTS_UNKNOWN).then(|| half(seventh)),
                    // A record of work has fewer than 2^32.
                    parts: if kind.is_work() { seventh as u32 } else { 0 },
                });
                self.thread.fresh.push(0);
            }
            _ => {}
        }
        // A mark counts its faults before it is written.
        self.own += u64::from(begins_page);
        Ok(())
    }

    fn wait(&mut self, record: &Record) {
        let [at_ns, wall_ns, thread_number, woken_ns, ..] = record.words;
        let waker = u32::try_from(thread_number).ok().filter(|number| *number != 0);
        let waker = |wall_ns| {
            let over_ns = at_ns.saturating_add(wall_ns);
            waker.map(|thread| Waker { thread, at_ns: woken_ns, over_ns })
        };
        if record.parameter == Reason::Start as u32 {
            self.thread.started_by = waker(wall_ns);
            return;
        }
        match self.wakers.entry(at_ns) {
            // A later one of the same start knows better who ended it.
            Entry::Occupied(known) => {
                let (place, wall_ns) = *known.get();
                let waker = waker(wall_ns);
                self.thread.wakers[place] = waker.or(self.thread.wakers[place]);
            }
            Entry::Vacant(new) => {
                let place = self.thread.wakers.len();
                new.insert((place, wall_ns));
                self.thread.wakers.push(waker(wall_ns));
                self.waits.push(Piece { at_ns, wall_ns, what: What::Await(place as u32) });
            }
        }
    }

    fn mark(&mut self, mark: &Mark, at: u64) -> Result<(), Fault> {
        if let Some(before) = self.from
            && (mark.at_ns < before.at_ns || mark.cpu_ns < before.cpu_ns)
        {
            let (field, found) =
                if mark.at_ns < before.at_ns { ("mark.time", mark.at_ns) } else { ("mark.cpu", mark.cpu_ns) };
            let fix = "a thread's clock went back: the file was damaged, record again";
            return Err(Fault { at, field, found, fix });
        }
        // Before the first mark the thread has run as long as it says.
        let earliest = self.since.first().map_or(mark.at_ns, |(at, _)| *at).min(mark.at_ns);
        let before = self.from.unwrap_or(Mark {
            at_ns: mark.at_ns.saturating_sub(mark.cpu_ns).min(earliest),
            ..Mark::default()
        });
        if self.from.is_none() {
            self.thread.begin_ns = before.at_ns;
        }
        let waits = self.over_by(mark.at_ns);
        let faults = mark.faults.0.saturating_sub(before.faults.0).saturating_sub(self.own);
        interval(&mut self.thread, (&before, mark), (&self.since, faults), &waits);
        self.since.clear();
        self.own = 0;
        self.from = Some(*mark);
        Ok(())
    }

    /// Takes the waits that were over by this time. One may begin shortly before the mark that was made because of it.
    fn over_by(&mut self, at_ns: u64) -> Vec<Piece> {
        self.waits.sort_by_key(|wait| wait.at_ns);
        let over =
            self.waits.iter().take_while(|wait| wait.at_ns.saturating_add(wait.wall_ns) <= at_ns).count();
        self.waits.drain(..over).collect()
    }

    /// The thread, after its last record.
    pub fn finish(mut self) -> Thread {
        // Killed: what came after the last mark has times and no CPU time, and counts as work.
        if let Some((first, _)) = self.since.first() {
            let before = self.from.unwrap_or(Mark { at_ns: *first, ..Mark::default() });
            if self.from.is_none() {
                self.thread.begin_ns = *first;
            }
            let end = |(at, call): &(u64, usize)| at.saturating_add(self.thread.calls[*call].wall_ns);
            let over = self.since.iter().map(end).max().unwrap_or(0);
            let at_ns = over.max(before.at_ns);
            let cpu_ns = before.cpu_ns.saturating_add(at_ns - before.at_ns);
            self.waits.sort_by_key(|wait| wait.at_ns);
            let after = Mark { at_ns, cpu_ns, ..before };
            interval(&mut self.thread, (&before, &after), (&self.since, 0), &self.waits);
        }
        self.thread
    }
}

/// Adds the steps between two marks, with so many page faults of the program.
fn interval(
    thread: &mut Thread,
    (from, to): (&Mark, &Mark),
    (calls, faults): (&[(u64, usize)], u64),
    waits: &[Piece],
) {
    // Gaps before, between and after the pieces; one inside another takes no time of its own.
    let begin = thread.steps.len();
    let mut now = from.at_ns;
    let step = |at_ns, ns, what| {
        let works = matches!(what, What::Compute | What::Call(_));
        Step { at_ns, ns, cpu_ns: if works { ns } else { 0 }, what }
    };
    let steps = &mut thread.steps;
    let mut put = |piece: Piece| {
        if piece.at_ns > now {
            steps.push(step(now, piece.at_ns - now, What::Compute));
        }
        let begin = now.max(piece.at_ns);
        let over = piece.at_ns.saturating_add(piece.wall_ns).max(begin);
        steps.push(step(begin, over - begin, piece.what));
        now = over;
    };
    let call = |(at_ns, call): &(u64, usize)| Piece {
        at_ns: *at_ns,
        wall_ns: thread.calls[*call].wall_ns,
        what: What::Call(*call as u32),
    };
    if waits.is_empty() {
        calls.iter().map(call).for_each(&mut put);
    } else {
        let mut pieces: Vec<Piece> = calls.iter().map(call).chain(waits.iter().copied()).collect();
        pieces.sort_by_key(|piece| piece.at_ns);
        pieces.into_iter().for_each(&mut put);
    }
    if to.at_ns > now {
        steps.push(step(now, to.at_ns - now, What::Compute));
    }
    let sum = |steps: &[Step], of: fn(&Step) -> u64| steps.iter().map(of).fold(0, u64::saturating_add);
    let on_core = to.cpu_ns - from.cpu_ns;
    if to.waits.saturating_sub(from.waits) > waits.len() as u64 {
        let delayed = to.delayed_ns.unwrap_or(0).saturating_sub(from.delayed_ns.unwrap_or(0));
        let away = sum(&steps[begin..], |step| step.cpu_ns).saturating_sub(on_core).saturating_sub(delayed);
        wait(steps, begin, away);
    }
    // The rest of the time without a core was taken from it: the same part of everything.
    let steps = &mut steps[begin..];
    let worked = sum(steps, |step| step.cpu_ns);
    let displaced = worked > on_core;
    if displaced {
        thread.displaced_ns = thread.displaced_ns.saturating_add(worked - on_core);
    }
    for step in steps {
        if displaced {
            step.cpu_ns = part(step.cpu_ns, on_core, worked);
        }
        if let What::Call(call) = step.what {
            thread.calls[call as usize].cpu_ns = step.cpu_ns;
        }
    }
    fresh(thread, faults, calls);
    thread.cpu_ns = to.cpu_ns;
    thread.faults = to.faults;
    thread.end_ns = thread.end_ns.max(to.at_ns).max(now);
}

/// Makes waits of the longest gaps' ends, from a step on.
fn wait(steps: &mut Vec<Step>, begin: usize, mut waited: u64) {
    let mut gaps: Vec<(u64, usize)> = steps
        .iter()
        .enumerate()
        .skip(begin)
        .filter(|(_, step)| step.what == What::Compute)
        .map(|(index, step)| (step.ns, index))
        .collect();
    gaps.sort_unstable_by(|one, other| other.cmp(one));
    let mut found = Vec::new();
    for (ns, index) in gaps {
        if waited < WAIT_NS {
            break;
        }
        let here = ns.min(waited);
        found.push((index, here));
        waited -= here;
    }
    found.sort_unstable();
    for (index, ns) in found.into_iter().rev() {
        let work = steps[index].ns - ns;
        let over = Step { at_ns: steps[index].at_ns + work, ns, cpu_ns: 0, what: What::Wait };
        if work > 0 {
            (steps[index].ns, steps[index].cpu_ns) = (work, work);
            steps.insert(index + 1, over);
        } else {
            steps[index] = over;
        }
    }
}

/// Gives the interval's page faults to the calls that wrote memory, as many as a call has pages, in their order.
fn fresh(thread: &mut Thread, mut faults: u64, calls: &[(u64, usize)]) {
    for (_, call) in calls {
        let done = &thread.calls[*call];
        if done.kind.is_work() {
            continue;
        }
        let most = done.written.div_ceil(4096).min(u64::from(u32::MAX));
        let here = done.faults.map_or_else(|| faults.min(most), u64::from).min(u64::from(u32::MAX));
        thread.fresh[*call] = here as u32;
        faults = faults.saturating_sub(here);
    }
}
