// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a trace's records to what each thread did: it computed, it waited, it called, it started another thread, it waited for
//! another's end.
//!
//! Method   between two marks of a thread, whose CPU time they say, there is time without a core. A thread that waited by itself did so
//!          in the longest gaps between calls; one that was displaced lost the same part of everything. A wait that ends within 2 ms
//!          of the end of a thread that this one started was for that
//! Rule     hostile until checked: a thread's chunks are 0, 1, 2 …, of one process; marks do not go back; the first fault is told with
//!          its field. Calls of signal handlers may lie inside others: time never goes back for it
//! Not here layout and limits of single records: `memlift_spec::trace`

use std::collections::BTreeMap;

use memlift_spec::trace::{
    COMMAND_AT, CPU_AT, Chunk, FAULTS_UNKNOWN, Fault, File, Kind, RECORD_BYTES, Record, word,
};

/// A wait that ends this soon after another thread's end was for it, nanoseconds: marks are a millisecond apart.
const JOIN_NS: u64 = 2_000_000;
/// Shorter waits are part of computing, nanoseconds: CPU time is known to the microsecond.
const WAIT_NS: u64 = 20_000;

/// A call that somebody else could have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// What was called.
    pub kind: Kind,
    /// For memlift's own operations: the opcode.
    pub parameter: u32,
    /// How long it took, nanoseconds.
    pub wall_ns: u64,
    /// Of it, on a core.
    pub cpu_ns: u64,
    /// Address of what was read.
    pub source: u64,
    /// Address of what was written.
    pub target: u64,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Page faults in it, where they were counted.
    pub faults: Option<u64>,
}

impl Call {
    /// The size by which it is placed, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.read.max(self.written)
    }
}

/// What a thread did next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Something that is not in the trace.
    Compute,
    /// Nothing: it slept, or had no core.
    Wait,
    /// A call, by its place in [`Thread::calls`].
    Call(usize),
    /// It has come so far that this thread begins.
    Begin(usize),
    /// It waited for this thread's end.
    Join(usize),
}

/// A step of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// When, nanoseconds since the trace's start.
    pub at_ns: u64,
    /// How long, nanoseconds.
    pub ns: u64,
    /// Of it, on a core.
    pub cpu_ns: u64,
    /// What.
    pub what: What,
}

/// A thread.
#[derive(Clone, Debug, Default)]
pub struct Thread {
    /// Its process's number.
    pub process: u32,
    /// Its process's id.
    pub pid: u32,
    /// The thread that it waits for to begin; none: it begins when it began.
    pub parent: Option<usize>,
    /// When it began, as far as is known: nanoseconds since the trace's start.
    pub begin_ns: u64,
    /// When it was heard of last.
    pub end_ns: u64,
    /// CPU time up to its last mark, nanoseconds.
    pub cpu_ns: u64,
    /// Minor and major page faults up to then.
    pub faults: (u64, u64),
    /// Whether its end is in the trace.
    pub ended: bool,
    /// What it did.
    pub steps: Vec<Step>,
    /// Its calls.
    pub calls: Vec<Call>,
    /// Whether a call's target, by its place, was first touched where there were page faults: at most so many pages of it.
    pub fresh: Vec<u32>,
}

/// Calls that were only counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// How many.
    pub calls: u64,
    /// Their bytes.
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
    /// Whether the program's end is in the trace.
    pub finished: bool,
    /// From start to end, nanoseconds; where the end is not there, to the last record.
    pub wall_ns: u64,
    /// CPU time of all its processes, nanoseconds.
    pub cpu_ns: u64,
    /// Records that found no room.
    pub dropped: u64,
    /// What recording a call costs, nanoseconds.
    pub record_ns: f64,
    /// What counting a call costs, nanoseconds.
    pub count_ns: f64,
    /// Processes.
    pub processes: u32,
    /// In order of their numbers.
    pub threads: Vec<Thread>,
    /// By kind.
    pub counted: BTreeMap<Kind, Counted>,
}

/// A thread's records while they are read.
#[derive(Default)]
struct Raw {
    chunks: u32,
    head: Chunk,
    records: Vec<Record>,
}

/// How far a thread was.
#[derive(Clone, Copy, Default)]
struct Mark {
    at_ns: u64,
    cpu_ns: u64,
    faults: (u64, u64),
    waits: u64,
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
            self.threads.push(timeline(&thread.head, &thread.records)?);
        }
        let numbers: std::collections::BTreeSet<u32> = heads.iter().map(|head| head.process).collect();
        self.processes = numbers.len() as u32;
        // What is known of each process: its own word at its end, else its threads' last marks.
        let known: u64 = numbers
            .iter()
            .map(|process| {
                let marks = self.threads.iter().filter(|thread| thread.process == *process);
                let marks = marks.fold(0u64, |sum, thread| sum.saturating_add(thread.cpu_ns));
                exits.get(process).copied().unwrap_or(0).max(marks)
            })
            .fold(0, u64::saturating_add);
        self.cpu_ns = self.cpu_ns.max(known);
        let last = self.threads.iter().map(|thread| thread.end_ns).max().unwrap_or(0);
        if !self.finished {
            self.wall_ns = last;
        }
        self.wall_ns = self.wall_ns.max(if self.finished { 0 } else { last });
        self.relate(&heads);
        Ok(())
    }

    /// Who began whom, and who waited for whom.
    fn relate(&mut self, heads: &[Chunk]) {
        let mut first_of: BTreeMap<u32, usize> = BTreeMap::new();
        for (index, head) in heads.iter().enumerate() {
            first_of.entry(head.process).or_insert(index);
        }
        for (index, head) in heads.iter().enumerate() {
            let first = first_of[&head.process];
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
        for child in 0..self.threads.len() {
            let (begin, end, ended) = {
                let thread = &self.threads[child];
                (thread.begin_ns, thread.end_ns, thread.ended)
            };
            let Some(parent) = self.threads[child].parent else { continue };
            let steps = &mut self.threads[parent].steps;
            insert(steps, begin, Step { at_ns: begin, ns: 0, cpu_ns: 0, what: What::Begin(child) });
            if !ended {
                continue;
            }
            let joins = |step: &&mut Step| {
                let over = step.at_ns.saturating_add(step.ns);
                step.what == What::Wait
                    && step.at_ns <= end
                    && (end..=end.saturating_add(JOIN_NS)).contains(&over)
            };
            if let Some(step) = steps.iter_mut().find(joins) {
                // What is left after the child's end is how long it takes to be told.
                step.ns = step.at_ns.saturating_add(step.ns) - end;
                step.what = What::Join(child);
            }
        }
    }

    /// All calls.
    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.threads.iter().flat_map(|thread| &thread.calls)
    }

    /// CPU time in calls, nanoseconds.
    #[must_use]
    pub fn calls_ns(&self) -> u64 {
        self.calls().fold(0, |sum, call| sum.saturating_add(call.cpu_ns))
    }

    /// What recording took of the program's time, nanoseconds: a record for each call and mark, a count for each other call.
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

/// The steps of one thread.
fn timeline(head: &Chunk, records: &[Record]) -> Result<Thread, Fault> {
    let mut thread = Thread { process: head.process, pid: head.pid, ..Thread::default() };
    let mut from: Option<Mark> = None;
    // Calls since the last mark: when, and their places.
    let mut since: Vec<(u64, usize)> = Vec::new();
    for record in records {
        let [at, second, third, fourth, fifth, sixth, seventh] = record.words;
        match record.kind {
            Kind::Mark | Kind::End => {
                let mark = Mark { at_ns: at, cpu_ns: second, faults: (third, fourth), waits: fifth };
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
                interval(&mut thread, &before, &mark, &since);
                since.clear();
                from = Some(mark);
                thread.ended |= record.kind == Kind::End;
            }
            kind if kind.is_call() => {
                let half = |word: u64| (word & 0xffff_ffff) + (word >> 32);
                since.push((at, thread.calls.len()));
                thread.calls.push(Call {
                    kind,
                    parameter: record.parameter,
                    wall_ns: second,
                    cpu_ns: second,
                    source: third,
                    target: fourth,
                    read: fifth,
                    written: sixth,
                    faults: (seventh != FAULTS_UNKNOWN).then(|| half(seventh)),
                });
                thread.fresh.push(0);
            }
            _ => {}
        }
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
        interval(&mut thread, &before, &Mark { at_ns, cpu_ns, ..before }, &since);
    }
    Ok(thread)
}

/// What lies between two marks.
fn interval(thread: &mut Thread, from: &Mark, to: &Mark, calls: &[(u64, usize)]) {
    // Gaps before, between and after the calls; a call inside another takes no time of its own.
    let mut steps = Vec::with_capacity(2 * calls.len() + 1);
    let mut now = from.at_ns;
    let step = |at_ns, ns, what| Step { at_ns, ns, cpu_ns: ns, what };
    for (at, call) in calls {
        if *at > now {
            steps.push(step(now, at - now, What::Compute));
        }
        let begin = now.max(*at);
        let over = at.saturating_add(thread.calls[*call].wall_ns).max(begin);
        steps.push(step(begin, over - begin, What::Call(*call)));
        now = over;
    }
    if to.at_ns > now {
        steps.push(step(now, to.at_ns - now, What::Compute));
    }
    let sum = |steps: &[Step], of: fn(&Step) -> u64| steps.iter().map(of).fold(0, u64::saturating_add);
    let on_core = to.cpu_ns - from.cpu_ns;
    if to.waits > from.waits {
        let away = sum(&steps, |step| step.cpu_ns).saturating_sub(on_core);
        wait(&mut steps, away);
    }
    // What is left without a core was taken from it: the same part of everything.
    let worked = sum(&steps, |step| step.cpu_ns);
    if worked > on_core {
        for step in &mut steps {
            step.cpu_ns = (u128::from(step.cpu_ns) * u128::from(on_core) / u128::from(worked)) as u64;
        }
    }
    for step in &steps {
        if let What::Call(call) = step.what {
            thread.calls[call].cpu_ns = step.cpu_ns;
        }
    }
    fresh(thread, to.faults.0.saturating_sub(from.faults.0), calls);
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
        let most = done.written.div_ceil(4096).min(u64::from(u32::MAX));
        let here = done.faults.unwrap_or_else(|| faults.min(most)).min(u64::from(u32::MAX));
        thread.fresh[*call] = here as u32;
        faults = faults.saturating_sub(here);
    }
}
