// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads a trace: its chunks, one at a time, into threads with steps and calls.
//!
//! - **Flow** chunks (`input`), in their order ─▶ each record to its thread's builder (`interval`), its code (`site`) or its counts ─▶ threads in the
//!   order of their numbers ─▶ events between them (`timeline`)
//! - **Rule** hostile until checked: a thread's chunks are 0, 1, 2 …, of one process; the first fault is told with its field
//! - **Not here** layout and limits of single records: `memlift_spec::formats::trace`

use std::collections::{BTreeMap, HashMap};
use std::io::Read;

use memlift_spec::formats::trace::{
    COMMAND_TEXT, CPU_TEXT, Chunk, Fault, HEADER_BYTES, Header, Kind, RECORD_BYTES, Record, word,
};

use super::input::{Chunks, TraceError};
use super::interval::Builder;
use super::load::Load;
use super::site::Code;
use super::timeline::{Counted, Trace};

/// A thread while it is read.
struct Reading {
    head: Chunk,
    chunks: u32,
    builder: Builder,
    /// The module that it told last.
    module: Option<(u32, u64)>,
}

/// Records that are not of one thread.
#[derive(Default)]
struct Sums {
    code: Code,
    counted: BTreeMap<Kind, Counted>,
    /// CPU time of processes that have ended.
    exits: BTreeMap<u32, u64>,
}

impl Trace {
    /// Reads a trace in memory, finished or not.
    ///
    /// # Errors
    /// The first field that is wrong.
    ///
    /// # Panics
    /// Never: memory can be read.
    pub fn read(bytes: &[u8]) -> Result<Trace, Fault> {
        let Some((head, rest)) = bytes.split_first_chunk() else {
            return Err(Header::too_short(bytes.len() as u64));
        };
        Trace::read_from(head, rest).map_err(|error| match error {
            TraceError::Fault(fault) => fault,
            TraceError::Io(error) => unreachable!("memory can be read: {error}"),
        })
    }

    /// Reads a trace, finished or not: its header, and `rest`, which follows it. Holds one chunk of the input at a time.
    ///
    /// # Errors
    /// The first field that is wrong; the input ends too soon, or cannot be read.
    pub fn read_from(head: &[u8; HEADER_BYTES], rest: impl Read) -> Result<Trace, TraceError> {
        let header = Header::open(head)?;
        let (mut threads, mut places) = (Vec::new(), HashMap::new());
        let mut sums = Sums::default();
        let mut chunks = Chunks::new(header, rest)?;
        while let Some((head, at, records)) = chunks.next()? {
            let place = *places.entry(head.thread).or_insert_with(|| {
                let builder = Builder::new(&head);
                threads.push(Reading { head, chunks: 0, builder, module: None });
                threads.len() - 1
            });
            let thread = &mut threads[place];
            thread.check(&head, &header, at - RECORD_BYTES as u64)?;
            thread.chunks += 1;
            for (index, record) in records.as_chunks::<RECORD_BYTES>().0.iter().enumerate() {
                let at = at + (index * RECORD_BYTES) as u64;
                let record = Record::decode(record, at)?;
                sums.take(head.process, &record, &mut thread.module);
                let begins_page = index == 0 || at.is_multiple_of(HEADER_BYTES as u64);
                thread.builder.take(&record, at, begins_page)?;
            }
        }
        let text = |place| {
            let plain = |one: char| if one.is_control() { ' ' } else { one };
            String::from_utf8_lossy(header.text(place)).chars().map(plain).collect()
        };
        let mut trace = Trace {
            command: text(COMMAND_TEXT),
            cpu: text(CPU_TEXT),
            cores: header.word(word::CORES),
            threshold: header.word(word::THRESHOLD),
            start_unix_ns: header.word(word::START_UNIX_NS),
            finished: header.word(word::FINISHED) == 1,
            wall_ns: header.word(word::WALL_NS),
            cpu_ns: header.word(word::CPU_NS),
            dropped: header.word(word::DROPPED),
            record_ns: header.word(word::RECORD_COST_PS) as f64 / 1e3,
            count_ns: header.word(word::COUNT_COST_PS) as f64 / 1e3,
            ..Trace::default()
        };
        threads.sort_by_key(|thread| thread.head.thread);
        trace.fill(threads, sums);
        Ok(trace)
    }

    fn fill(&mut self, threads: Vec<Reading>, sums: Sums) {
        let (sites, numbered) = sums.code.sites();
        self.sites = sites;
        self.counted = sums.counted;
        let mut heads = Vec::with_capacity(threads.len());
        // Of each process: the id of its first thread, and the CPU time of all up to their last marks.
        let mut processes: BTreeMap<u32, (u32, u64)> = BTreeMap::new();
        for Reading { head, builder, .. } in threads {
            let mut thread = builder.finish();
            let known = numbered.get(&head.process);
            for call in &mut thread.calls {
                call.site = call.site.and_then(|number| *known?.get(number as usize)?);
            }
            let (_, cpu_ns) = processes.entry(head.process).or_insert((thread.pid, 0));
            *cpu_ns = cpu_ns.saturating_add(thread.cpu_ns);
            heads.push(head);
            self.threads.push(thread);
        }
        self.processes = processes.len() as u32;
        // CPU time of each process: its own record at its end, else its threads' last marks. A process made new by exec goes on
        // counting from what was before.
        let mut known: BTreeMap<u32, u64> = BTreeMap::new();
        for (process, (pid, marks)) in processes {
            let cpu_ns = sums.exits.get(&process).copied().unwrap_or(0).max(marks);
            let of_pid = known.entry(pid).or_default();
            *of_pid = cpu_ns.max(*of_pid);
        }
        let seen = known.into_values().fold(0, u64::saturating_add);
        self.unrecorded_ns = self.cpu_ns.saturating_sub(seen);
        self.cpu_ns = self.cpu_ns.max(seen);
        let last = self.threads.iter().map(|thread| thread.end_ns).max().unwrap_or(0);
        if !self.finished {
            self.wall_ns = self.wall_ns.max(last);
        }
        self.relate(&heads);
        self.load = Load::recorded(self.threads.iter().map(|thread| (thread.process, &thread.served)));
        if let Some(load) = &self.load {
            for thread in self.threads.iter_mut().filter(|thread| load.counts(thread.process)) {
                thread.cut(load.served.first_ns);
                thread.cut(load.served.last_ns);
            }
        }
    }
}

impl Reading {
    /// Checks the head of a chunk of this thread, which lies at offset `at`.
    fn check(&self, head: &Chunk, header: &Header<'_>, at: u64) -> Result<(), Fault> {
        let wrong = |field, found: u32, fix| Err(Fault { at, field, found: found.into(), fix });
        for (field, number, most) in [
            ("chunk.thread", head.thread, header.word(word::THREADS)),
            ("chunk.process", head.process, header.word(word::PROCESSES)),
        ] {
            if u64::from(number) > most {
                return wrong(field, number, "the header counts fewer: the file was damaged, record again");
            }
        }
        if (self.head.process, self.head.tid) != (head.process, head.tid) {
            let fix = "another process or thread id than the thread's first chunk says: record again";
            return wrong("chunk.thread", head.thread, fix);
        }
        if head.sequence != self.chunks {
            let fix = "the thread's chunks are not in order: the file was damaged, record again";
            return wrong("chunk.sequence", head.sequence, fix);
        }
        Ok(())
    }
}

impl Sums {
    fn take(&mut self, process: u32, record: &Record, module: &mut Option<(u32, u64)>) {
        match record.kind {
            Kind::Counted => {
                if let Some(kind) = Kind::from_number(record.parameter) {
                    let counted = self.counted.entry(kind).or_default();
                    counted.calls = counted.calls.saturating_add(record.words[1]);
                    counted.bytes = counted.bytes.saturating_add(record.words[2]);
                }
            }
            Kind::Exit => {
                self.exits.insert(process, record.words[1]);
            }
            Kind::Site | Kind::Module | Kind::ModuleName => self.code.take(process, record, module),
            _ => {}
        }
    }
}
