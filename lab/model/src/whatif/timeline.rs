// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a trace's records to what its threads did: they computed, waited, called, started another thread, waited for another's end.
//!
//! - **Flow** chunks, in their order ─▶ each thread's records ─▶ its steps ([`interval`]) ─▶ who began whom, and who waited for whom
//! - **Method** a thread begins when the one that started it has come as far as it had then. A wait that ends within 2 ms of the end of a
//!   thread that this one started was for that; before it, where the thread says that it is done and then ends
//! - **Rule** hostile until checked: a thread's chunks are 0, 1, 2 …, of one process; the first fault is told with its field
//! - **Not here** layout and limits of single records: `memlift_spec::trace`

use std::collections::BTreeMap;

use super::interval;
use memlift_spec::trace::{COMMAND_AT, CPU_AT, Chunk, Fault, File, Kind, RECORD_BYTES, Record, word};

/// A wait that ends this close to another thread's end was for it, nanoseconds: marks are a millisecond apart.
const JOIN_NS: u64 = 2_000_000;

/// A call that a device could have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The function that was called.
    pub kind: Kind,
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
    /// Nothing: it slept, or had no core.
    Wait,
    /// A call, by its place in [`Thread::calls`].
    Call(usize),
    /// This thread starts at that point.
    Begin(usize),
    /// The thread waits for this thread's end.
    Join(usize),
}

/// A step of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Start of the step, nanoseconds since the trace's start.
    pub at_ns: u64,
    /// Length of the step, nanoseconds.
    pub ns: u64,
    /// CPU time within it, nanoseconds.
    pub cpu_ns: u64,
    /// Action of the step.
    pub what: What,
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
    /// Actions of the thread, in order.
    pub steps: Vec<Step>,
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
    /// Calls that were only counted, by kind.
    pub counted: BTreeMap<Kind, Counted>,
}

/// A thread's records while they are read.
#[derive(Default)]
struct Raw {
    chunks: u32,
    head: Chunk,
    records: Vec<Record>,
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
                thread.records.push(Record::decode(record, at + (index * RECORD_BYTES) as u64)?);
            }
        }
        let text = |place| {
            let plain = |one: char| if one.is_control() { ' ' } else { one };
            String::from_utf8_lossy(file.text(place)).chars().map(plain).collect()
        };
        let mut trace = Trace {
            command: text(COMMAND_AT),
            cpu: text(CPU_AT),
            cores: file.word(word::CORES),
            threshold: file.word(word::THRESHOLD),
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
        for thread in raw.into_values() {
            for record in &thread.records {
                match record.kind {
                    Kind::Counted => {
                        if let Some(kind) = Kind::of(record.parameter) {
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
            self.threads.push(interval::thread(&thread.head, &thread.records)?);
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
        Ok(())
    }

    /// Finds each thread's parent, and the threads that waited for others.
    fn relate(&mut self, heads: &[Chunk]) {
        let mut first_of: BTreeMap<u32, usize> = BTreeMap::new();
        for (index, head) in heads.iter().enumerate() {
            first_of.entry(head.process).or_insert(index);
        }
        for (index, head) in heads.iter().enumerate() {
            let first = first_of[&head.process];
            // After exec, the CPU time of the first thread is that of the old one, too.
            let old =
                (0..index).rfind(|old| heads[*old].pid == head.pid && heads[*old].process != head.process);
            if let Some(old) = old.filter(|_| index == first) {
                let (end_ns, cpu_ns) = (self.threads[old].end_ns, self.threads[old].cpu_ns);
                self.threads[index].goes_on(end_ns, cpu_ns);
            }
            let begin = self.threads[index].begin_ns;
            // A process that exec has made new has its own id; one that was started has its parent's.
            let process = |wanted: u32| {
                let older = |other: &usize| other < &index && self.threads[*other].begin_ns <= begin;
                (0..heads.len())
                    .filter(older)
                    .rfind(|other| heads[*other].pid == wanted && heads[*other].process != head.process)
            };
            let parent = if index != first {
                Some(first)
            } else if head.parent != 0 {
                first_of.get(&head.parent).copied()
            } else {
                process(head.pid)
                    .or_else(|| process(head.parent_pid))
                    .map(|other| first_of[&heads[other].process])
            };
            self.threads[index].parent =
                parent.filter(|parent| *parent < index && self.threads[*parent].begin_ns <= begin);
        }
        // All beginnings first: a wait in which another thread began is two, and the second may be the one for an end.
        for child in 0..self.threads.len() {
            let (begin, parent) = (self.threads[child].begin_ns, self.threads[child].parent);
            let Some(parent) = parent else { continue };
            let from = self.threads[parent].begin_ns;
            let steps = &mut self.threads[parent].steps;
            // After its last record a thread was there, and nothing is known of it.
            let over = steps.last().map_or(from, |step| step.at_ns.saturating_add(step.ns));
            if begin > over {
                steps.push(Step { at_ns: over, ns: begin - over, cpu_ns: 0, what: What::Wait });
            }
            insert(steps, begin, Step { at_ns: begin, ns: 0, cpu_ns: 0, what: What::Begin(child) });
        }
        for child in 0..self.threads.len() {
            let Thread { begin_ns: begin, end_ns: end, ended, parent, .. } = self.threads[child];
            let Some(parent) = parent.filter(|_| ended) else { continue };
            let joins = |step: &&mut Step| {
                let over = step.at_ns.saturating_add(step.ns);
                step.what == What::Wait
                    && (begin..=end).contains(&step.at_ns)
                    && over.abs_diff(end) <= JOIN_NS
            };
            if let Some(step) = self.threads[parent].steps.iter_mut().find(joins) {
                // The rest after the child's end is the time until its parent is told.
                step.ns = step.at_ns.saturating_add(step.ns).saturating_sub(end);
                step.what = What::Join(child);
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

/// Puts a step where its time is, cutting computing or waiting in two.
fn insert(steps: &mut Vec<Step>, at_ns: u64, step: Step) {
    let place = steps.partition_point(|step| step.at_ns < at_ns);
    let Some(before) = place.checked_sub(1).map(|index| &mut steps[index]) else {
        steps.insert(0, step);
        return;
    };
    let over = before.at_ns.saturating_add(before.ns);
    if over > at_ns && matches!(before.what, What::Compute | What::Wait) {
        let ns = at_ns - before.at_ns;
        let cpu_ns = before.cpu_ns.min(ns);
        let rest = Step { at_ns, ns: over - at_ns, cpu_ns: before.cpu_ns - cpu_ns, what: before.what };
        (before.ns, before.cpu_ns) = (ns, cpu_ns);
        steps.splice(place..place, [step, rest]);
    } else {
        steps.insert(place, step);
    }
}
