// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The steps of one thread, from its records.
//!
//! - **Method** waits are where their records say. What then is left of the time between two marks, less their CPU time, was spent without a
//!   core: a thread that waited in ways that have no record did so in the longest gaps between calls; one that was displaced lost the same
//!   part of everything. Page faults are the calls' that wrote, as many as they have pages,
//!   less those of the trace's own pages, one each
//! - **Rule** marks do not go back. Calls of signal handlers may lie inside others: time never goes back for it
//! - **Not here** other threads (timeline.rs)

use std::collections::BTreeMap;

use memlift_spec::trace::{Chunk, FAULTS_UNKNOWN, Fault, Kind, Reason, Record};

use super::timeline::{Call, Step, Thread, Waker, What, part};

/// Shorter waits are part of computing, nanoseconds: CPU time is known to the microsecond.
const WAIT_NS: u64 = 20_000;

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

/// The recorded waits of a thread by their start, in order; what ended one is an [`What::Await`] of the thread's `wakers`.
fn waits(thread: &mut Thread, records: &[Record]) -> Vec<Piece> {
    let mut found = BTreeMap::new();
    for record in records.iter().filter(|record| record.kind == Kind::Waited) {
        let [at_ns, wall_ns, thread_number, woken_ns, ..] = record.words;
        let waker = u32::try_from(thread_number).ok().filter(|number| *number != 0);
        let waker =
            waker.map(|thread| Waker { thread, at_ns: woken_ns, over_ns: at_ns.saturating_add(wall_ns) });
        if record.parameter == Reason::Start as u32 {
            thread.started_by = waker;
        } else {
            // A later one of the same start knows better who ended it, and was written later.
            let wait = found.entry(at_ns).or_insert((wall_ns, waker));
            wait.1 = waker.map(|waker| Waker { over_ns: at_ns.saturating_add(wait.0), ..waker }).or(wait.1);
        }
    }
    let piece = |(at_ns, (wall_ns, waker)): (u64, (u64, Option<Waker>))| {
        let what = match waker {
            Some(waker) => {
                thread.wakers.push(waker);
                What::Await(thread.wakers.len() - 1)
            }
            None => What::Sleep,
        };
        Piece { at_ns, wall_ns, what }
    };
    found.into_iter().map(piece).collect()
}

/// A thread, its steps and calls. `begins_page` says of each record whether it is the first in its page of the trace,
/// `site` gives the place in [`super::Trace::sites`] of a site's number in the thread's process.
///
/// # Errors
/// A mark that goes back.
pub(super) fn thread(
    head: &Chunk,
    records: &[Record],
    begins_page: &[bool],
    site: impl Fn(u16) -> Option<u32>,
) -> Result<Thread, Fault> {
    let mut thread = Thread { process: head.process, pid: head.pid, ..Thread::default() };
    let mut from: Option<Mark> = None;
    // Calls since the last mark: when, and their places.
    let mut since: Vec<(u64, usize)> = Vec::new();
    let waits = waits(&mut thread, records);
    let mut waits = waits.as_slice();
    // Page faults since the last mark that writing the trace has cost: the first record of each page.
    let mut own = 0;
    for (record, begins) in records.iter().zip(begins_page) {
        let [at, second, third, fourth, fifth, sixth, seventh] = record.words;
        match record.kind {
            Kind::Mark | Kind::End => {
                let delayed_ns = seventh.checked_sub(1);
                let mark =
                    Mark { at_ns: at, cpu_ns: second, faults: (third, fourth), waits: fifth, delayed_ns };
                if let Some(before) = from
                    && (mark.at_ns < before.at_ns || mark.cpu_ns < before.cpu_ns)
                {
                    let (field, found) =
                        if mark.at_ns < before.at_ns { ("mark.time", at) } else { ("mark.cpu", second) };
                    let fix = "a thread's clock went back: the file was damaged, record again";
                    return Err(Fault { at: 0, field, found, fix });
                }
                // Before the first mark the thread has run as long as it says.
                let earliest = since.first().map_or(at, |(at, _)| *at).min(at);
                let before = from
                    .unwrap_or(Mark { at_ns: at.saturating_sub(second).min(earliest), ..Mark::default() });
                if from.is_none() {
                    thread.begin_ns = before.at_ns;
                }
                let waits = over_by(&mut waits, mark.at_ns);
                let faults = mark.faults.0.saturating_sub(before.faults.0).saturating_sub(own);
                interval(&mut thread, (&before, &mark), (&since, faults), waits);
                since.clear();
                own = 0;
                from = Some(mark);
                thread.ended |= record.kind == Kind::End;
            }
            Kind::Served => thread.served.add(&record.words),
            kind if kind.is_call() => {
                let half = |word: u64| (word & 0xffff_ffff) + (word >> 32);
                since.push((at, thread.calls.len()));
                thread.calls.push(Call {
                    kind,
                    site: site(record.site),
                    parameter: record.parameter,
                    wall_ns: second,
                    cpu_ns: second,
                    source: third,
                    target: fourth,
                    read: fifth,
                    written: sixth,
                    faults: (!kind.is_work() && seventh != FAULTS_UNKNOWN).then(|| half(seventh)),
                    parts: if kind.is_work() { seventh } else { 0 },
                });
                thread.fresh.push(0);
            }
            _ => {}
        }
        // A mark counts its faults before it is written.
        own += u64::from(*begins);
    }
    // Killed: what came after the last mark has times and no CPU time, and counts as work.
    if let Some((first, _)) = since.first() {
        let before = from.unwrap_or(Mark { at_ns: *first, ..Mark::default() });
        if from.is_none() {
            thread.begin_ns = *first;
        }
        let over =
            since.iter().map(|(at, call)| at.saturating_add(thread.calls[*call].wall_ns)).max().unwrap_or(0);
        let at_ns = over.max(before.at_ns);
        let cpu_ns = before.cpu_ns.saturating_add(at_ns - before.at_ns);
        interval(&mut thread, (&before, &Mark { at_ns, cpu_ns, ..before }), (&since, 0), waits);
    }
    Ok(thread)
}

/// Takes the waits that were over by this time. One may begin shortly before the mark that was made because of it.
fn over_by<'a>(waits: &mut &'a [Piece], at_ns: u64) -> &'a [Piece] {
    let over = waits.iter().take_while(|wait| wait.at_ns.saturating_add(wait.wall_ns) <= at_ns).count();
    let (over, later) = waits.split_at(over);
    *waits = later;
    over
}

/// Adds the steps between two marks, with so many page faults of the program.
fn interval(
    thread: &mut Thread,
    (from, to): (&Mark, &Mark),
    (calls, faults): (&[(u64, usize)], u64),
    waits: &[Piece],
) {
    let call = |(at_ns, call): &(u64, usize)| Piece {
        at_ns: *at_ns,
        wall_ns: thread.calls[*call].wall_ns,
        what: What::Call(*call),
    };
    let mut pieces: Vec<Piece> = calls.iter().map(call).chain(waits.iter().copied()).collect();
    if !waits.is_empty() {
        pieces.sort_by_key(|piece| piece.at_ns);
    }
    // Gaps before, between and after the pieces; one inside another takes no time of its own.
    let mut steps = Vec::with_capacity(2 * pieces.len() + 1);
    let mut now = from.at_ns;
    let step = |at_ns, ns, what| {
        let works = matches!(what, What::Compute | What::Call(_));
        Step { at_ns, ns, cpu_ns: if works { ns } else { 0 }, what }
    };
    for piece in &pieces {
        if piece.at_ns > now {
            steps.push(step(now, piece.at_ns - now, What::Compute));
        }
        let begin = now.max(piece.at_ns);
        let over = piece.at_ns.saturating_add(piece.wall_ns).max(begin);
        steps.push(step(begin, over - begin, piece.what));
        now = over;
    }
    if to.at_ns > now {
        steps.push(step(now, to.at_ns - now, What::Compute));
    }
    let sum = |steps: &[Step], of: fn(&Step) -> u64| steps.iter().map(of).fold(0, u64::saturating_add);
    let on_core = to.cpu_ns - from.cpu_ns;
    if to.waits.saturating_sub(from.waits) > waits.len() as u64 {
        let delayed = to.delayed_ns.unwrap_or(0).saturating_sub(from.delayed_ns.unwrap_or(0));
        let away = sum(&steps, |step| step.cpu_ns).saturating_sub(on_core).saturating_sub(delayed);
        wait(&mut steps, away);
    }
    // The rest of the time without a core was taken from it: the same part of everything.
    let worked = sum(&steps, |step| step.cpu_ns);
    if worked > on_core {
        thread.displaced_ns = thread.displaced_ns.saturating_add(worked - on_core);
        for step in &mut steps {
            step.cpu_ns = part(step.cpu_ns, on_core, worked);
        }
    }
    for step in &steps {
        if let What::Call(call) = step.what {
            thread.calls[call].cpu_ns = step.cpu_ns;
        }
    }
    fresh(thread, faults, calls);
    thread.steps.extend(steps);
    thread.cpu_ns = to.cpu_ns;
    thread.faults = to.faults;
    thread.end_ns = thread.end_ns.max(to.at_ns).max(now);
}

/// Makes waits of the longest gaps' ends.
fn wait(steps: &mut Vec<Step>, mut waited: u64) {
    let mut gaps: Vec<(u64, usize)> = steps
        .iter()
        .enumerate()
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
        let here = done.faults.unwrap_or_else(|| faults.min(most)).min(u64::from(u32::MAX));
        thread.fresh[*call] = here as u32;
        faults = faults.saturating_sub(here);
    }
}
