// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a trace's records to what its threads did: they computed, waited, called, started and woke others.
//!
//! - **Flow** chunks, in their order ─▶ each thread's records ─▶ its steps ([`interval`]) ─▶ events: who started whom, and who ended whose
//!   wait
//! - **Method** a thread goes on as long after an event as it did then, wherever the event lies now. Who ended a wait is recorded. A wait
//!   without a record that ends within 2 ms of the end of a thread that this one started is taken to be for that end
//! - **Rule** hostile until checked: a thread's chunks are 0, 1, 2 …, of one process; the first fault is told with its field
//! - **Not here** layout and limits of single records: `memlift_spec::trace`

use std::collections::BTreeMap;

use super::interval;
use super::load::{Load, Served};
use super::site::{Code, Site};
use memlift_spec::trace::{
    COMMAND_TEXT, CPU_TEXT, Chunk, Fault, File, HEADER_BYTES, Kind, RECORD_BYTES, Record, word,
};

/// A wait that ends this close to another thread's end was for it, nanoseconds: marks are a millisecond apart.
const JOIN_NS: u64 = 2_000_000;

/// A call that a device could have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The function that was called.
    pub kind: Kind,
    /// The place that called it, in [`Trace::sites`]; none: not known.
    pub site: Option<u32>,
    /// For memlift's own operations the opcode, for its services' work what [`Kind`] says.
    pub parameter: u32,
    /// Wall time of the call, nanoseconds.
    pub wall_ns: u64,
    /// CPU time within it, nanoseconds.
    pub cpu_ns: u64,
    /// Address of what was read.
    pub source: u64,
    /// Address of what was written.
    pub target: u64,
    /// Bytes that it read.
    pub read: u64,
    /// Bytes that it wrote.
    pub written: u64,
    /// Page faults in it, where they were counted.
    pub faults: Option<u64>,
    /// Number of parts, for a service's own work.
    pub parts: u64,
}

impl Call {
    /// The size by which it is placed, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.read.max(self.written)
    }
}

/// The next action of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Something that is not in the trace.
    Compute,
    /// Nothing: it had no core, and has no record of what it waited for.
    Wait,
    /// A call, by its place in [`Thread::calls`].
    Call(usize),
    /// Nothing: it waited for a time, or for somebody outside of the program.
    Sleep,
    /// It lets an event happen, which is another thread's [`What::Await`].
    Signal(usize),
    /// It waits until so long (the step's `ns`) after an event.
    Await(usize),
}

/// A step of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Start of the step, nanoseconds since the trace's start.
    pub at_ns: u64,
    /// Length of the step; for [`What::Await`] the time from the event to the step's end. Nanoseconds.
    pub ns: u64,
    /// CPU time within it, nanoseconds.
    pub cpu_ns: u64,
    /// Action of the step.
    pub what: What,
}

/// The end of a wait, by another thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waker {
    /// Number of that thread in the trace.
    pub thread: u32,
    /// Time at which it did so, nanoseconds since the trace's start.
    pub at_ns: u64,
    /// End of the wait, nanoseconds since the trace's start.
    pub over_ns: u64,
}

/// A thread of the trace.
#[derive(Clone, Debug, Default)]
pub struct Thread {
    /// Number of its process in the trace.
    pub process: u32,
    /// Process id, as the kernel had it.
    pub pid: u32,
    /// The thread that it waits for to begin; none: it begins when it began.
    pub parent: Option<usize>,
    /// First time that is known of it, nanoseconds since the trace's start.
    pub begin_ns: u64,
    /// Last time that is known of it, nanoseconds since the trace's start.
    pub end_ns: u64,
    /// CPU time up to its last mark, nanoseconds.
    pub cpu_ns: u64,
    /// Minor and major page faults up to then.
    pub faults: (u64, u64),
    /// True if its end is in the trace.
    pub ended: bool,
    /// Time in which it could have run and had no core, nanoseconds.
    pub displaced_ns: u64,
    /// Requests that it has answered.
    pub served: Served,
    /// Actions of the thread, in order.
    pub steps: Vec<Step>,
    /// The thread that started it, where that is in the trace.
    pub(super) started_by: Option<Waker>,
    /// Threads that ended its waits, by the number in [`What::Await`] until events are known.
    pub(super) wakers: Vec<Waker>,
    /// Calls of the thread, in order.
    pub calls: Vec<Call>,
    /// For each call, the number of pages of its target that it may have touched first; `None` without page faults.
    pub fresh: Vec<u32>,
}

impl Thread {
    /// Takes over from a thread that exec replaced, which ended at `end_ns` after `cpu_ns` of CPU time.
    fn goes_on(&mut self, end_ns: u64, cpu_ns: u64) {
        self.cpu_ns = self.cpu_ns.saturating_sub(cpu_ns);
        let early = end_ns.saturating_sub(self.begin_ns);
        if let Some(step) = self.steps.first_mut().filter(|step| step.what == What::Compute) {
            let cut = early.min(step.ns);
            (step.at_ns, step.ns) = (step.at_ns + cut, step.ns - cut);
            step.cpu_ns = step.cpu_ns.saturating_sub(cpu_ns).min(step.ns);
            self.begin_ns += cut;
        }
    }
}

/// Calls that were only counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Number of calls.
    pub calls: u64,
    /// Bytes of these calls.
    pub bytes: u64,
}

/// Time of all threads in which they had no core, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// They waited for a thread of the program, which is known.
    pub explained_ns: u64,
    /// They waited for a time, or for somebody outside of the program.
    pub outside_ns: u64,
    /// They could have run, and had no core.
    pub displaced_ns: u64,
    /// They waited in a way that has no record.
    pub unexplained_ns: u64,
}

impl Waits {
    /// All of it, nanoseconds.
    #[must_use]
    pub fn all_ns(&self) -> u64 {
        [self.outside_ns, self.displaced_ns, self.unexplained_ns]
            .into_iter()
            .fold(self.explained_ns, u64::saturating_add)
    }
}

/// A trace that passed.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The command line.
    pub command: String,
    /// The CPU that it ran on.
    pub cpu: String,
    /// CPUs that it could use.
    pub cores: u64,
    /// Calls of the memcpy family below this were counted only, bytes.
    pub threshold: u64,
    /// Time at which it began, nanoseconds since 1970.
    pub start_unix_ns: u64,
    /// True if the program's end is in the trace.
    pub finished: bool,
    /// From start to end, nanoseconds; where the end is not there, to the last record.
    pub wall_ns: u64,
    /// CPU time of all its processes, nanoseconds.
    pub cpu_ns: u64,
    /// Records that found no room.
    pub dropped: u64,
    /// Cost of recording a call, nanoseconds.
    pub record_ns: f64,
    /// Cost of counting a call, nanoseconds.
    pub count_ns: f64,
    /// Number of processes.
    pub processes: u32,
    /// Threads, in order of their numbers.
    pub threads: Vec<Thread>,
    /// Number of events.
    pub events: usize,
    /// How much of its time without a core is explained.
    pub waits: Waits,
    /// Calls that were only counted, by kind.
    pub counted: BTreeMap<Kind, Counted>,
    /// Places that calls came from, each once.
    pub sites: Vec<Site>,
    /// Load of a server; none: it answered no request that was recorded.
    pub load: Option<Load>,
}

/// A thread's records while they are read.
#[derive(Default)]
struct Raw {
    chunks: u32,
    head: Chunk,
    records: Vec<Record>,
    /// For each record, true if it is the first in its page of the file.
    begins_page: Vec<bool>,
}

impl Trace {
    /// Reads a trace, finished or not.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn read(bytes: &[u8]) -> Result<Trace, Fault> {
        let file = File::open(bytes)?;
        let mut raw: BTreeMap<u32, Raw> = BTreeMap::new();
        for chunk in file.chunks() {
            let (head, at, records) = chunk?;
            let chunk_at = at - RECORD_BYTES as u64;
            let wrong = |field, found: u32, fix| Fault { at: chunk_at, field, found: found.into(), fix };
            for (field, number, most) in [
                ("chunk.thread", head.thread, file.word(word::THREADS)),
                ("chunk.process", head.process, file.word(word::PROCESSES)),
            ] {
                if u64::from(number) > most {
                    return Err(wrong(
                        field,
                        number,
                        "the header counts fewer: the file was damaged, record again",
                    ));
                }
            }
            let thread = raw.entry(head.thread).or_default();
            if thread.chunks > 0 && (thread.head.process, thread.head.tid) != (head.process, head.tid) {
                let fix = "another process or thread id than the thread's first chunk says: record again";
                return Err(wrong("chunk.thread", head.thread, fix));
            }
            if head.sequence != thread.chunks {
                let fix = "the thread's chunks are not in order: the file was damaged, record again";
                return Err(wrong("chunk.sequence", head.sequence, fix));
            }
            if thread.chunks == 0 {
                thread.head = head;
            }
            thread.chunks += 1;
            let (records, _) = records.as_chunks::<RECORD_BYTES>();
            for (index, record) in records.iter().enumerate() {
                let at = at + (index * RECORD_BYTES) as u64;
                thread.records.push(Record::decode(record, at)?);
                thread.begins_page.push(index == 0 || at.is_multiple_of(HEADER_BYTES as u64));
            }
        }
        let text = |place| {
            let plain = |one: char| if one.is_control() { ' ' } else { one };
            String::from_utf8_lossy(file.text(place)).chars().map(plain).collect()
        };
        let mut trace = Trace {
            command: text(COMMAND_TEXT),
            cpu: text(CPU_TEXT),
            cores: file.word(word::CORES),
            threshold: file.word(word::THRESHOLD),
            start_unix_ns: file.word(word::START_UNIX_NS),
            finished: file.word(word::FINISHED) == 1,
            wall_ns: file.word(word::WALL_NS),
            cpu_ns: file.word(word::CPU_NS),
            dropped: file.word(word::DROPPED),
            record_ns: file.word(word::RECORD_COST_PS) as f64 / 1e3,
            count_ns: file.word(word::COUNT_COST_PS) as f64 / 1e3,
            ..Trace::default()
        };
        trace.fill(raw)?;
        Ok(trace)
    }

    fn fill(&mut self, raw: BTreeMap<u32, Raw>) -> Result<(), Fault> {
        let mut heads = Vec::new();
        let mut exits: BTreeMap<u32, u64> = BTreeMap::new();
        let mut code = Code::default();
        for thread in raw.values() {
            code.take(thread.head.process, &thread.records);
        }
        let (sites, numbered) = code.sites();
        self.sites = sites;
        for thread in raw.into_values() {
            for record in &thread.records {
                match record.kind {
                    Kind::Counted => {
                        if let Some(kind) = Kind::from_number(record.parameter) {
                            let counted = self.counted.entry(kind).or_default();
                            counted.calls = counted.calls.saturating_add(record.words[1]);
                            counted.bytes = counted.bytes.saturating_add(record.words[2]);
                        }
                    }
                    Kind::Exit => {
                        exits.insert(thread.head.process, record.words[1]);
                    }
                    _ => {}
                }
            }
            heads.push(thread.head);
            let process = thread.head.process;
            let site = |number: u16| numbered.get(&(process, number)).copied();
            self.threads.push(interval::thread(&thread.head, &thread.records, &thread.begins_page, site)?);
        }
        let numbers: std::collections::BTreeSet<u32> = heads.iter().map(|head| head.process).collect();
        self.processes = numbers.len() as u32;
        // CPU time of each process: its own record at its end, else its threads' last marks. A process made new by exec goes on
        // counting from what was before.
        let mut known: BTreeMap<u32, u64> = BTreeMap::new();
        for process in &numbers {
            let threads = || self.threads.iter().filter(|thread| thread.process == *process);
            let marks = threads().fold(0u64, |sum, thread| sum.saturating_add(thread.cpu_ns));
            let cpu_ns = exits.get(process).copied().unwrap_or(0).max(marks);
            let of_pid = known.entry(threads().next().map_or(0, |thread| thread.pid)).or_default();
            *of_pid = cpu_ns.max(*of_pid);
        }
        self.cpu_ns = self.cpu_ns.max(known.into_values().fold(0, u64::saturating_add));
        let last = self.threads.iter().map(|thread| thread.end_ns).max().unwrap_or(0);
        if !self.finished {
            self.wall_ns = last;
        }
        self.wall_ns = self.wall_ns.max(if self.finished { 0 } else { last });
        self.relate(&heads);
        self.load = Load::recorded(self.threads.iter().map(|thread| (thread.process, &thread.served)));
        if let Some(load) = &self.load {
            for thread in self.threads.iter_mut().filter(|thread| load.counts(thread.process)) {
                thread.cut(load.served.first_ns);
                thread.cut(load.served.last_ns);
            }
        }
        Ok(())
    }

    /// Finds each thread's parent.
    fn find_parents(&mut self, heads: &[Chunk]) {
        // A process begins with the thread that has its id, whichever made the first record.
        let mut first_of: BTreeMap<u32, usize> = BTreeMap::new();
        for (index, head) in heads.iter().enumerate() {
            let first = first_of.entry(head.process).or_insert(index);
            if head.tid == head.pid && heads[*first].tid != head.pid {
                *first = index;
            }
        }
        let mut of_pid: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (index, head) in heads.iter().enumerate() {
            let first = first_of[&head.process];
            let of = |pid: u32| of_pid.get(&pid).map_or(&[][..], Vec::as_slice);
            let another = |other: &&usize| heads[**other].process != head.process;
            let parent = if index != first {
                Some(first)
            } else {
                // After exec, the CPU time of the first thread is that of the old one, too.
                if let Some(old) = of(head.pid).iter().rfind(another) {
                    let (end_ns, cpu_ns) = (self.threads[*old].end_ns, self.threads[*old].cpu_ns);
                    self.threads[index].goes_on(end_ns, cpu_ns);
                }
                // A process that exec has made new has its own id; one that was started has its parent's.
                let begin = self.threads[index].begin_ns;
                let older = |pid: u32| {
                    let mut others = of(pid).iter().filter(another);
                    others.rfind(|other| self.threads[**other].begin_ns <= begin).copied()
                };
                if head.parent != 0 {
                    first_of.get(&head.parent).copied()
                } else {
                    older(head.pid)
                        .or_else(|| older(head.parent_pid))
                        .map(|other| first_of[&heads[other].process])
                }
            };
            let begin = self.threads[index].begin_ns;
            self.threads[index].parent =
                parent.filter(|parent| *parent != index && self.threads[*parent].begin_ns <= begin);
            of_pid.entry(head.pid).or_default().push(index);
        }
    }

    /// Makes events of starts and of the ends of waits.
    fn relate(&mut self, heads: &[Chunk]) {
        self.find_parents(heads);
        let number: BTreeMap<u32, usize> =
            heads.iter().zip(0..).map(|(head, index)| (head.thread, index)).collect();
        let mut edges = Vec::new();
        let mut starts = vec![None; self.threads.len()];
        for (index, thread) in self.threads.iter_mut().enumerate() {
            let mut at_ns = thread.begin_ns;
            if let Some(waker) = thread.started_by
                && let Some(starter) = number.get(&waker.thread).filter(|starter| **starter != index)
            {
                thread.parent = Some(*starter);
                at_ns = waker.at_ns.min(at_ns);
            }
            if let Some(parent) = thread.parent {
                starts[index] = Some(edges.len());
                edges.push(Edge { waker: parent, at_ns, over_ns: thread.begin_ns, placed_ns: 0 });
            }
        }
        self.guess_joins(heads);
        let mut wakes: Vec<Vec<Option<usize>>> = Vec::with_capacity(self.threads.len());
        for (index, thread) in self.threads.iter().enumerate() {
            let mut event = |waker: &Waker| {
                let other = number.get(&waker.thread)?;
                if *other == index || waker.at_ns > waker.over_ns {
                    return None;
                }
                edges.push(Edge { waker: *other, at_ns: waker.at_ns, over_ns: waker.over_ns, placed_ns: 0 });
                Some(edges.len() - 1)
            };
            wakes.push(thread.wakers.iter().map(&mut event).collect());
        }
        let mut signals = vec![Vec::new(); self.threads.len()];
        for (event, edge) in edges.iter().enumerate() {
            signals[edge.waker].push(event);
        }
        for (thread, signals) in self.threads.iter_mut().zip(signals) {
            thread.signal(signals, &mut edges);
        }
        for ((thread, start), wakes) in self.threads.iter_mut().zip(starts).zip(wakes) {
            self.waits.displaced_ns = self.waits.displaced_ns.saturating_add(thread.displaced_ns);
            for step in &mut thread.steps {
                let of = match step.what {
                    What::Wait => &mut self.waits.unexplained_ns,
                    What::Sleep => &mut self.waits.outside_ns,
                    What::Await(waker) => match wakes[waker].map(|event| (event, &edges[event])) {
                        Some((event, edge)) if edge.placed_ns <= edge.over_ns => {
                            self.waits.explained_ns = self.waits.explained_ns.saturating_add(step.ns);
                            (step.ns, step.what) = (edge.over_ns - edge.placed_ns, What::Await(event));
                            continue;
                        }
                        _ => {
                            step.what = What::Sleep;
                            &mut self.waits.outside_ns
                        }
                    },
                    What::Compute | What::Call(_) | What::Signal(_) => continue,
                };
                *of = of.saturating_add(step.ns);
            }
            if let Some(event) = start {
                let Edge { placed_ns, over_ns, .. } = edges[event];
                let ns = over_ns.saturating_sub(placed_ns);
                thread.steps.insert(0, Step { at_ns: over_ns - ns, ns, cpu_ns: 0, what: What::Await(event) });
            }
        }
        self.events = edges.len();
    }

    /// Waits without a record that end with a thread that this one started were for its end.
    fn guess_joins(&mut self, heads: &[Chunk]) {
        for (child, head) in heads.iter().enumerate() {
            let Thread { begin_ns: begin, end_ns: end, ended, parent, .. } = self.threads[child];
            let Some(parent) = parent.filter(|_| ended) else { continue };
            let Thread { steps, wakers, .. } = &mut self.threads[parent];
            let over = |step: &Step| step.at_ns.saturating_add(step.ns);
            let first = steps.partition_point(|step| over(step) < end.saturating_sub(JOIN_NS));
            let near = steps[first..].iter_mut().take_while(|step| step.at_ns <= end);
            let mut waits = near.filter(|step| step.what == What::Wait && step.at_ns >= begin);
            if let Some(step) = waits.find(|step| over(step).abs_diff(end) <= JOIN_NS) {
                let at_ns = end.min(over(step));
                wakers.push(Waker { thread: head.thread, at_ns, over_ns: over(step) });
                step.what = What::Await(wakers.len() - 1);
            }
        }
    }

    /// Returns the calls of all threads.
    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.threads.iter().flat_map(|thread| &thread.calls)
    }

    /// CPU time in calls, nanoseconds.
    #[must_use]
    pub fn calls_ns(&self) -> u64 {
        self.calls().fold(0, |sum, call| sum.saturating_add(call.cpu_ns))
    }

    /// Cost of recording, nanoseconds: a record for each call and mark, a count for each other call.
    #[must_use]
    pub fn overhead_ns(&self) -> f64 {
        let counted: f64 = self.counted.values().map(|counted| counted.calls as f64).sum();
        self.calls().count() as f64 * self.record_ns + counted * self.count_ns
    }
}

/// One thread's start or end of a wait by another.
#[derive(Clone, Copy)]
struct Edge {
    waker: usize,
    /// Time at which it did so.
    at_ns: u64,
    /// Time at which the other one went on.
    over_ns: u64,
    /// Time of the signal's place in the waker's steps.
    placed_ns: u64,
}

impl Thread {
    /// Cuts the computing of this time in two.
    fn cut(&mut self, at_ns: u64) {
        let place = self.steps.partition_point(|step| step.at_ns < at_ns);
        let Some(step) = place.checked_sub(1).and_then(|before| self.steps.get_mut(before)) else { return };
        // Times of a damaged trace may be in any order.
        let ns = at_ns.saturating_sub(step.at_ns);
        if step.what != What::Compute || ns == 0 || ns >= step.ns {
            return;
        }
        let cpu_ns = part(step.cpu_ns, ns, step.ns);
        let rest = Step { at_ns, ns: step.ns - ns, cpu_ns: step.cpu_ns - cpu_ns, what: What::Compute };
        (step.ns, step.cpu_ns) = (ns, cpu_ns);
        self.steps.insert(place, rest);
    }

    /// Puts signals where they belong in the steps. Computing and waiting are cut in two for it; what cannot be is done later than the
    /// signal.
    fn signal(&mut self, mut signals: Vec<usize>, edges: &mut [Edge]) {
        if signals.is_empty() {
            return;
        }
        signals.sort_unstable_by_key(|event| (edges[*event].at_ns, *event));
        let mut signals = signals
            .into_iter()
            .map(|event| (event, edges[event].at_ns))
            .collect::<Vec<_>>()
            .into_iter()
            .peekable();
        let mut placed = Vec::with_capacity(self.steps.len() + 2 * signals.len());
        let mut put = |placed: &mut Vec<Step>, event: usize, at_ns| {
            edges[event].placed_ns = at_ns;
            placed.push(Step { at_ns, ns: 0, cpu_ns: 0, what: What::Signal(event) });
        };
        let mut over = self.begin_ns;
        for mut step in std::mem::take(&mut self.steps) {
            let end = step.at_ns.saturating_add(step.ns);
            while let Some((event, at_ns)) = signals.next_if(|(_, at_ns)| *at_ns < end) {
                if matches!(step.what, What::Compute | What::Wait) && at_ns > step.at_ns {
                    let ns = at_ns - step.at_ns;
                    let cpu_ns = part(step.cpu_ns, ns, step.ns);
                    placed.push(Step { ns, cpu_ns, ..step });
                    step = Step { at_ns, ns: step.ns - ns, cpu_ns: step.cpu_ns - cpu_ns, ..step };
                }
                put(&mut placed, event, step.at_ns);
            }
            over = over.max(end);
            placed.push(step);
        }
        // After its last record nothing is known of a thread: what it still did is as long after that.
        for (event, _) in signals {
            put(&mut placed, event, over);
        }
        self.steps = placed;
    }
}

/// Returns `of` times `some` over `all`; `all` is at least `some` and not 0.
pub(super) fn part(of: u64, some: u64, all: u64) -> u64 {
    (u128::from(of) * u128::from(some) / u128::from(all)) as u64
}
