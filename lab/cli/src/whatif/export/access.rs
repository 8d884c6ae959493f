// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lines of memory that calls touch: which, in which order, and when.
//!
//! - **Flow** [`by_start`] or [`by_line`]: calls, or their lines, over all threads ─▶ [`Line::accesses`] ─▶ [`Frames::place`]: at the program's
//!   address, or in a frame that its page gets when it is first touched
//! - **Rule** two processes have no frame in common: a trace does not say which memory they share

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use memlift_model::whatif::{Call, Thread, Trace, What};

/// Bytes of a line.
pub const LINE: u64 = 64;
/// Bytes of a page and of a frame.
const PAGE: u64 = 4096;

/// One load or store of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// First address of the line.
    pub address: u64,
    /// True if it writes.
    pub store: bool,
}

/// A line of a call's source and one of its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    first: Option<Access>,
    second: Option<Access>,
}

/// Number of the first line, and how many there are.
fn lines(address: u64, bytes: u64) -> (u64, u64) {
    let first = address / LINE;
    (first, if bytes == 0 { 0 } else { address.saturating_add(bytes).div_ceil(LINE).saturating_sub(first) })
}

impl Line {
    /// Number of lines of a call.
    pub fn count(call: &Call) -> u64 {
        let (.., reads, writes) = Line::ranges(call);
        reads.max(writes)
    }

    /// Lines of both sides: first of the source, first of the target, number of each.
    fn ranges(call: &Call) -> (u64, u64, u64, u64) {
        // Two sides are compared.
        let second = if call.written == 0 && call.target != 0 { call.read } else { call.written };
        let ((source, reads), (target, writes)) = (lines(call.source, call.read), lines(call.target, second));
        (source, target, reads, writes)
    }

    /// A call's line of this number.
    pub fn at(call: &Call, index: u64) -> Line {
        let (source, target, reads, writes) = Line::ranges(call);
        let access = |line: u64, store| Access { address: (line + index) * LINE, store };
        Line {
            first: (index < reads).then(|| access(source, false)),
            second: (index < writes).then(|| access(target, call.written > 0)),
        }
    }

    /// All lines of a call.
    pub fn of(call: &Call) -> impl Iterator<Item = Line> + '_ {
        (0..Line::count(call)).map(|index| Line::at(call, index))
    }

    /// Its loads and stores, in order.
    pub fn accesses(self) -> impl Iterator<Item = Access> {
        [self.first, self.second].into_iter().flatten()
    }
}

/// Calls of a thread that have addresses: start and length, nanoseconds, and the call.
pub fn calls(thread: &Thread) -> impl Iterator<Item = (u64, u64, &Call)> {
    let made = thread.steps.iter().filter_map(|step| match step.what {
        What::Call(index) => Some((step.at_ns, step.ns, &thread.calls[index as usize])),
        _ => None,
    });
    made.filter(|(_, _, call)| !call.kind.is_work())
}

/// Calls of all threads by their start, nanoseconds, with their processes.
pub fn by_start(trace: &Trace) -> Vec<(u64, u32, &Call)> {
    let of = |thread| calls(thread).map(move |(at_ns, _, call)| (at_ns, thread.process, call));
    let mut all: Vec<_> = trace.threads.iter().flat_map(of).collect();
    all.sort_by_key(|(at_ns, ..)| *at_ns);
    all
}

/// Lines of all threads by their time, picoseconds, with their threads: those of a call spread evenly over the time that it took.
pub fn by_line(trace: &Trace) -> impl Iterator<Item = (u64, usize, Line)> + '_ {
    let mut rest: Vec<_> = trace.threads.iter().map(|thread| calls(thread).peekable()).collect();
    let mut index = vec![0; rest.len()];
    let mut heap = BinaryHeap::new();
    let next = move |rest: &mut [std::iter::Peekable<_>], index: &[u64], thread: usize| {
        let (at_ns, ns, call): &(u64, u64, &Call) = rest[thread].peek()?;
        let part = u128::from(*ns) * 1000 * u128::from(index[thread]) / u128::from(Line::count(call).max(1));
        Some((at_ns.saturating_mul(1000).saturating_add(part as u64), thread))
    };
    for thread in 0..rest.len() {
        heap.extend(next(&mut rest, &index, thread).map(Reverse));
    }
    std::iter::from_fn(move || {
        loop {
            let Reverse((tick_ps, thread)) = heap.pop()?;
            let call = rest[thread].peek()?.2;
            let found = (index[thread] < Line::count(call)).then(|| Line::at(call, index[thread]));
            index[thread] += 1;
            if index[thread] >= Line::count(call) {
                rest[thread].next();
                index[thread] = 0;
            }
            heap.extend(next(&mut rest, &index, thread).map(Reverse));
            if let Some(line) = found {
                return Some((tick_ps, thread, line));
            }
        }
    })
}

/// Frames of the pages that were touched.
#[derive(Debug, Default)]
pub struct Frames {
    /// By process and page; none: addresses stay the program's.
    frames: Option<HashMap<(u32, u64), u64>>,
}

impl Frames {
    /// None yet; false: addresses stay the program's.
    pub fn new(frames: bool) -> Frames {
        Frames { frames: frames.then(HashMap::new) }
    }

    /// The access in its frame.
    pub fn place(&mut self, process: u32, access: Access) -> Access {
        let Some(frames) = &mut self.frames else { return access };
        let next = frames.len() as u64;
        let frame = *frames.entry((process, access.address / PAGE)).or_insert(next);
        Access { address: frame * PAGE + access.address % PAGE, ..access }
    }

    /// Number of frames so far.
    pub fn count(&self) -> usize {
        self.frames.as_ref().map_or(0, HashMap::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlift::spec::formats::trace::Kind;
    use memlift_model::whatif::Step;

    fn copy(source: u64, target: u64, bytes: u64) -> Call {
        Call {
            kind: Kind::Copy,
            site: None,
            parameter: 0,
            wall_ns: 0,
            cpu_ns: 0,
            source,
            target,
            read: bytes,
            written: bytes,
            faults: None,
            parts: 0,
        }
    }

    /// A thread of a process with calls from these times on, so many nanoseconds each.
    fn thread(process: u32, calls: &[(u64, u64, Call)]) -> Thread {
        let mut thread = Thread::default();
        thread.process = process;
        for (index, (at_ns, ns, call)) in calls.iter().enumerate() {
            thread.calls.push(*call);
            thread.steps.push(Step { at_ns: *at_ns, ns: *ns, cpu_ns: *ns, what: What::Call(index as u32) });
        }
        thread
    }

    #[test]
    fn lines_of_threads_come_by_their_time_and_none_is_lost() {
        let trace = Trace {
            threads: vec![
                thread(
                    1,
                    &[(100, 40, copy(0, 4096, 256)), (200, 1, copy(0, 64, 0)), (300, 8, copy(64, 128, 64))],
                ),
                thread(1, &[(110, 5, copy(8192, 8256, 64))]),
            ],
            ..Trace::default()
        };
        let found: Vec<(u64, usize, Vec<u64>)> = by_line(&trace)
            .map(|(tick_ps, thread, line)| {
                (tick_ps, thread, line.accesses().map(|access| access.address).collect())
            })
            .collect();
        let wanted = [
            (100_000, 0, vec![0, 4096]),
            (110_000, 0, vec![64, 4160]),
            (110_000, 1, vec![8192, 8256]),
            (120_000, 0, vec![128, 4224]),
            (130_000, 0, vec![192, 4288]),
            (300_000, 0, vec![64, 128]),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn calls_across_lines_touch_both_and_comparisons_load_two_sides() {
        let across: Vec<Access> = Line::of(&copy(60, 128, 8)).flat_map(Line::accesses).collect();
        let access = |address, store| Access { address, store };
        assert_eq!(across, [access(0, false), access(128, true), access(64, false)]);
        let compared = Call { written: 0, kind: Kind::Compare, ..copy(0, 640, 64) };
        let both: Vec<Access> = Line::of(&compared).flat_map(Line::accesses).collect();
        assert_eq!(both, [access(0, false), access(640, false)]);
        let filled = Call { read: 0, source: 0, kind: Kind::Fill, ..copy(0, 640, 64) };
        assert_eq!(Line::of(&filled).flat_map(Line::accesses).collect::<Vec<_>>(), [access(640, true)]);
    }

    #[test]
    fn pages_get_frames_in_the_order_of_their_first_touch() {
        let mut frames = Frames::new(true);
        let mut of = |process, address| frames.place(process, Access { address, store: true }).address;
        assert_eq!((of(1, 0x7000_0040), of(1, 0x1000), of(1, 0x7000_0fc0)), (0x40, 0x1000, 0xfc0));
        assert_eq!(of(2, 0x1000), 0x2000, "another process has another memory");
        assert_eq!(frames.count(), 3);
        let mut none = Frames::new(false);
        assert_eq!(none.place(2, Access { address: 0x1234, store: false }).address, 0x1234);
        assert_eq!(none.count(), 0);
    }
}
