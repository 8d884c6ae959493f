// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two jobs beside each other (§V): one that mostly uses a small part of what it has, and one that reads a file again and again.
//!
//! - **Flow** a job's visit ─▶ page table, or a page fault with what flash holds ─▶ the controller, waiting for the unpacker if the page
//!   is packed ─▶ its bytes are compared ─▶ work ─▶ the next visit. Beside it the compressor packs as long as a block wants
//!   memory, and the kernel spills
//! - **Order** the first job fills its memory and is measured for a fixed number of visits from the second pass of the other over its
//!   file on. Flash and the unpacker serve one after another
//! - **Rule** with DMU each job has a control block, and physical memory without end until a fault caps it. Without, all pages are in
//!   block 0, each job may have four times its allocation in physical memory, packing begins when little is free, and when
//!   hardly any is, nobody goes on until pages have been spilled (MXT's interrupt)
//! - **Not here** the paper's numbers (`reproduce`)

use super::PAGE;
use super::contents;
use super::controller::Controller;
use super::kernel::{Kernel, Reclaimed, Source};
use super::layout::{Field, State};
use super::timing::{Job, Timing};
use crate::event::{Calendar, Random, Time};

const MINE: u16 = 1;
const FILE: u16 = 2;
const BYTES: u64 = PAGE as u64;

/// Measurements of the first job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Time from its first measured visit to the end of its last.
    pub time: Time,
    /// Accesses to compressed pages of the job.
    pub packed: u64,
    /// Visits of the job that found a page in storage.
    pub stored: u64,
    /// Compressed memory faults, or interrupts without DMU, of both jobs and from the beginning.
    pub faults: u64,
    /// Bytes of physical memory that the file's job had at the first of them, not scaled.
    pub fault_at: Option<u64>,
    /// Events that happened.
    pub events: u64,
    /// Events that were visits.
    pub visits: u64,
    /// Requests to memory that visits made.
    pub requests: u64,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Visit(usize),
    Compress,
    Spill(usize),
}

struct Machine<'a> {
    timing: &'a Timing,
    job: Job,
    controller: Controller,
    kernel: Kernel,
    calendar: Calendar<Event>,
    with: bool,
    compressing: bool,
    /// MXT's interrupt is being served.
    relieving: bool,
    /// Jobs that go on after a pause.
    waiting: Vec<usize>,
    flash: Time,
    unpacker: Time,
    /// Expected contents of each job's pages, one after the other.
    wanted: [Vec<u8>; 2],
    outcome: Outcome,
}

/// Result of a visit.
struct Visited {
    done: Time,
    packed: bool,
    stored: bool,
}

/// How often a page of the file packs: some do not, evenly spread.
fn file_ratio(timing: &Timing, page: u64) -> u64 {
    let raw = |page: u64| page * timing.file_raw / 1000;
    if raw(page + 1) == raw(page) { timing.file_ratio } else { 100 }
}

/// Runs both jobs, the second with a file of so many bytes (before scaling).
///
/// # Errors
/// If a page came back with other contents, memory ran out, or the controller's books do not add up.
pub fn collocate(timing: &Timing, job: Job, file: u64, with: bool) -> Result<Outcome, String> {
    let (own, hot, other) = (job.bytes / BYTES, job.hot / BYTES, file / timing.scale / BYTES);
    let memory = (job.allocation + timing.file_allocation + timing.spare) / BYTES;
    let pages = (memory * timing.physical) as u32;
    let mut machine = Machine {
        timing,
        job,
        controller: Controller::new(memory as u32, pages, timing.sampled),
        kernel: Kernel::new(pages, timing.grace),
        calendar: Calendar::new(),
        with,
        compressing: false,
        relieving: false,
        waiting: Vec::new(),
        flash: Time::ZERO,
        unpacker: Time::ZERO,
        wanted: [own, other].map(|pages| vec![0; pages as usize * PAGE]),
        outcome: Outcome::default(),
    };
    let [mine, files] = machine.wanted.each_mut().map(|bytes| bytes.as_chunks_mut::<PAGE>().0);
    mine.iter_mut().zip(0..).for_each(|(bytes, page)| contents::fill(bytes, page, 0, job.ratio));
    files.iter_mut().zip(0..).for_each(|(bytes, page)| {
        contents::fill(bytes, !page, 0, file_ratio(timing, page));
    });
    machine.start(own as usize, other as usize)?;
    let mut random = Random::new(0xd0);
    let (mut at, mut pass, mut filled, mut visits) = (0, 0, 0, 0);
    let mut begun = None;
    while let Some(event) = machine.calendar.pop() {
        match event {
            Event::Compress => machine.compress(),
            Event::Spill(job) => machine.spill(job),
            Event::Visit(job) if machine.relieving || machine.kernel.is_paused(job) => {
                machine.waiting.push(job);
            }
            Event::Visit(1) => {
                let visited = machine.visit(1, at, timing.file_lines)?;
                (at, pass) = if at + 1 == other { (0, pass + 1) } else { (at + 1, pass) };
                machine.calendar.at(visited.done + timing.file_work, Event::Visit(1));
            }
            Event::Visit(_) => {
                let now = machine.calendar.now();
                let page = match () {
                    () if filled < own => filled,
                    () if random.below(1000) < timing.cold => random.below(own),
                    () => random.below(hot),
                };
                filled += 1;
                let visited = machine.visit(0, page, job.lines)?;
                machine.calendar.at(visited.done + job.work, Event::Visit(0));
                if pass > 0 && filled > own {
                    let begun = *begun.get_or_insert(now);
                    visits += 1;
                    machine.outcome.packed += u64::from(visited.packed);
                    machine.outcome.stored += u64::from(visited.stored);
                    if visits == job.visits {
                        machine.outcome.time = visited.done + job.work - begun;
                        break;
                    }
                }
            }
        }
    }
    machine.outcome.events = machine.calendar.happened();
    machine.controller.audit().map_or(Ok(machine.outcome), Err)
}

impl Machine<'_> {
    /// Stores the values of the OS before the jobs begin.
    fn start(&mut self, own: usize, other: usize) -> Result<(), String> {
        let timing = self.timing;
        let allocations = [(MINE, self.job.allocation), (FILE, timing.file_allocation)];
        for (index, (block, bytes)) in allocations.into_iter().enumerate() {
            let limit = (!self.with).then_some((bytes * timing.physical / BYTES) as usize);
            let block = if self.with { block } else { 0 };
            self.kernel.start(block, [own, other][index], index == 1, limit);
            let mut store = |field: Field, value| {
                let refused = |refusal| format!("{field:?} of {value}: {refusal:?}");
                self.controller.store(field.at(), value).map_err(refused)
            };
            if self.with {
                store(Field::Total(block), bytes)?;
            }
            store(Field::Unused(block), if self.with { timing.unused } else { timing.low })?;
            self.calendar.after(Time::ZERO, Event::Visit(index));
        }
        Ok(())
    }

    /// A job visits a page: its own pages are written, the file's are read.
    fn visit(&mut self, job: usize, page: u64, lines: u64) -> Result<Visited, String> {
        let (timing, mut done, mut source) = (self.timing, self.calendar.now(), None);
        let physical = match self.kernel.translate(job, page as usize) {
            Some(physical) => physical,
            None => {
                done = done + timing.page_fault;
                while self.kernel.is_full(job) {
                    let Some(reclaimed) = self.kernel.reclaim(job, &mut self.controller) else { break };
                    done = self.spilled(done, reclaimed);
                }
                let mapped = self.kernel.map(job, page as usize, &mut self.controller);
                let (physical, from) = mapped.ok_or("no physical page is free: give `physical` more")?;
                match &from {
                    Source::Swap(_) => done = self.flash(done, timing.flash),
                    Source::File => done = self.flash(done, timing.stream),
                    Source::Fresh => {}
                }
                source = Some(from);
                physical
            }
        };
        let visit = self.controller.visit(physical, lines).map_err(|exhausted| exhausted.to_string())?;
        let packed = visit.found == State::Packed;
        if packed {
            done = done.max(self.unpacker) + timing.unpack;
            self.unpacker = done;
        }
        let stored = matches!(source, Some(Source::Swap(_) | Source::File));
        let (bytes, wanted) =
            (self.controller.page_mut(visit), &mut self.wanted[job].as_chunks_mut::<PAGE>().0[page as usize]);
        match source {
            Some(Source::Swap(swapped)) => *bytes = *swapped,
            Some(Source::File | Source::Fresh) => *bytes = *wanted,
            None => {}
        }
        // A plain page is looked at in its first word only.
        if bytes[..8] != wanted[..8] || stored | packed && bytes != wanted {
            return Err(format!("page {page} of job {job} came back with other contents"));
        }
        if job == 0 {
            let version = (contents::version(bytes) + 1).to_le_bytes();
            bytes[..8].copy_from_slice(&version);
            wanted[..8].copy_from_slice(&version);
        }
        self.outcome.visits += 1;
        self.outcome.requests += lines;
        self.attend();
        Ok(Visited { done: done + timing.line * lines, packed, stored })
    }

    /// Reads or writes a page of flash, as soon as it is free.
    fn flash(&mut self, from: Time, takes: Time) -> Time {
        self.flash = from.max(self.flash) + takes;
        self.flash
    }

    fn spilled(&mut self, from: Time, reclaimed: Reclaimed) -> Time {
        let done = from + self.timing.spill;
        if reclaimed.written { self.flash(done, self.timing.flash) } else { done }
    }

    /// Faults, interrupts, and work for the compressor that a visit or a page of the compressor made.
    fn attend(&mut self) {
        while let Some(block) = self.controller.fault() {
            // Without DMU nobody listens; block 0 has no job.
            let Some(job) = self.kernel.job_of(block).filter(|_| self.with) else { continue };
            self.count(1);
            if self.kernel.faulted(job, &mut self.controller) {
                self.calendar.after(self.timing.page_fault, Event::Spill(job));
            }
        }
        if !self.with && !self.relieving && self.unused() < self.timing.empty as i64 {
            self.count(1);
            self.relieving = true;
            self.calendar.after(self.timing.page_fault, Event::Spill(0));
        }
        if !self.compressing && self.controller.is_short() {
            self.compressing = true;
            self.calendar.after(self.timing.pack, Event::Compress);
        }
    }

    fn count(&mut self, file: usize) {
        self.outcome.faults += 1;
        let has = self.kernel.resident(file) as u64 * BYTES * self.timing.scale;
        self.outcome.fault_at.get_or_insert(has);
    }

    fn unused(&self) -> i64 {
        self.controller.reserved().unused(0)
    }

    fn compress(&mut self) {
        self.controller.compress();
        self.compressing = self.controller.is_short();
        if self.compressing {
            self.calendar.after(self.timing.pack, Event::Compress);
        }
        self.attend();
    }

    /// The kernel's next page: of a job with DMU, of anybody without.
    fn spill(&mut self, job: usize) {
        let reclaimed = match self.with {
            true => self.kernel.spill(job, &mut self.controller),
            false if self.unused() >= self.timing.low as i64 => None,
            false => self.kernel.reclaim_any(&mut self.controller),
        };
        match reclaimed {
            Some(reclaimed) => {
                let done = self.spilled(self.calendar.now(), reclaimed);
                self.calendar.at(done, Event::Spill(job));
            }
            None => {
                self.relieving = false;
                for job in std::mem::take(&mut self.waiting) {
                    self.calendar.after(Time::ZERO, Event::Visit(job));
                }
            }
        }
        self.attend();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dmu::timing::{PARAMETERS, SCHEMA};
    use crate::parameters::Parameters;

    /// The shipped machine with a quarter of its memory.
    fn small() -> Timing {
        let text = PARAMETERS.replace("[scale]\nvalue = 64", "[scale]\nvalue = 256");
        assert_ne!(text, PARAMETERS);
        let timing = Timing::new(&Parameters::parse("small.toml", &text, &SCHEMA).unwrap()).unwrap();
        Timing { graph: Job { visits: 2000, ..timing.graph }, ..timing }
    }

    #[test]
    fn the_same_inputs_give_the_same_picosecond() {
        let timing = small();
        let run = || collocate(&timing, timing.graph, 2 << 30, true).unwrap();
        let outcome = run();
        assert_eq!(run(), outcome);
        assert!(outcome.packed > 0 && outcome.requests > outcome.events, "{outcome:?}");
    }

    #[test]
    fn a_large_file_spills_its_own_job_with_dmu_and_everybody_without() {
        let timing = small();
        let run = |file, with| collocate(&timing, timing.graph, file, with).unwrap();
        let (alone, with, without) = (run(200 << 20, true), run(2 << 30, true), run(2 << 30, false));
        assert_eq!((alone.faults, alone.stored, with.stored), (0, 0, 0));
        assert!(with.faults > 0 && with.fault_at.is_some_and(|bytes| bytes < 2 << 30));
        assert!(without.stored > 0 && without.faults > 10, "{with:?} {without:?}");
        assert!(with.time.as_us() < 1.05 * alone.time.as_us() && without.time > with.time);
    }

    #[test]
    fn memory_that_is_too_small_ends_the_run() {
        // Nothing packs, nothing is kept free, and the interrupt never comes.
        let timing = Timing { file_raw: 1000, low: 0, empty: 0, ..small() };
        let error = collocate(&timing, timing.graph, 2 << 30, false).unwrap_err();
        assert!(error.starts_with("no machine page is free"), "{error}");
    }
}
