// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cores that call CompCpy one call after another (§VII-A), beside others that use the same cache.
//!
//! Flow     Algorithm 2: free pages are counted lazily ─▶ Force-Recycle if there are too few ─▶ the source is flushed, pages are
//!          registered ─▶ line by line: the source is read through the cache, the destination written into it, and others fill
//!          `contention` lines ─▶ dirty lines that leave the cache are written back, and recycle the scratchpad
//! Order    cores take turns by time; others' lines are random in 64 GiB
//! Rule     the count is read again after Force-Recycle: the algorithm as printed reserves what it may not have. Every page that was
//!          recycled is compared with what its source makes of it
//! Not here copies with fences (`ordered`); what reads the destination

use super::cache::Cache;
use super::controller::Controller;
use super::device::{CONFIG, Counts, Device, NO_PAGE, turned};
use super::timing::Timing;
use super::{LINE, Line, PAGE};
use crate::event::{Calendar, Random, Time};
use std::collections::BTreeMap;

/// Between the buffers of two cores (§VII-A: 32 MB between calls).
const APART: u64 = 1 << 33;
/// Where others' lines are.
const OTHERS: u64 = 1 << 40;

/// What a run gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Scratchpad in use, bytes, mean of the second half.
    pub occupied: f64,
    /// Most of it in use, bytes.
    pub most: u64,
    /// Calls.
    pub calls: u64,
    /// Calls that found too few pages and recycled by force.
    pub forced: u64,
    /// Calls that read the count of free pages.
    pub counted: u64,
    /// Time from the read of a source's line to the write-back of its destination: the least.
    pub slack: Time,
    /// What the device counted.
    pub counts: Counts,
    /// Events that happened.
    pub events: u64,
    /// Commands on the bus.
    pub commands: u64,
    /// When the last line was copied.
    pub time: Time,
    /// Pages that were compared after they had been recycled.
    pub compared: u64,
    /// Scratchpad in use, bytes, at twenty equal distances of calls.
    pub course: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    number: u64,
    source: u64,
    destination: u64,
    /// Next line.
    line: u64,
}

struct Host<'a> {
    timing: &'a Timing,
    cache: Cache,
    ways: usize,
    memory: Controller,
    /// The global variable of Algorithm 2.
    free: i64,
    random: Random,
    /// Context of each destination page that is pending, and its source.
    pending: BTreeMap<u64, (u64, u64)>,
    outcome: Outcome,
    slack: Option<Time>,
    /// When the source of each line of a pending destination was read.
    read_at: BTreeMap<u64, Time>,
}

/// Runs so many calls with a cache of so many ways.
///
/// # Errors
/// A fault of the device, or a page that holds something else than it should.
pub fn run(timing: &Timing, ways: usize, calls: u64, seed: u64) -> Result<Outcome, String> {
    let device = Device::new(timing.scratchpad, timing.table, timing.cam, timing.compute);
    let mut host = Host {
        timing,
        cache: Cache::new(ways, timing.way),
        ways,
        memory: Controller::new(timing, device),
        free: -1,
        random: Random::new(seed),
        pending: BTreeMap::new(),
        outcome: Outcome::default(),
        slack: None,
        read_at: BTreeMap::new(),
    };
    let mut calendar: Calendar<(u64, Option<Call>)> = Calendar::new();
    (0..timing.cores).for_each(|core| calendar.at(Time::from_ns(core), (core, None)));
    let (mut begun, mut samples, mut sum) = (0, 0_u64, 0_u64);
    while let Some((core, call)) = calendar.pop() {
        let now = calendar.now();
        let mut call = match call {
            Some(call) => call,
            None if begun == calls => continue,
            None => {
                begun += 1;
                if begun % (calls / 20).max(1) == 0 {
                    host.outcome.course.push(host.occupied());
                }
                host.begin(begun - 1, core, now)?
            }
        };
        let done = host.copy(&mut call, now)?;
        host.compare()?;
        if 2 * begun > calls {
            samples += 1;
            sum += host.occupied();
        }
        let lines = timing.message * (PAGE / LINE);
        calendar.at(done, (core, (call.line < lines).then_some(call)));
    }
    let mut outcome = host.outcome;
    outcome.occupied = sum as f64 / samples.max(1) as f64;
    outcome.most = host.memory.device.pad().most() as u64 * PAGE;
    outcome.calls = begun;
    outcome.slack = host.slack.unwrap_or(Time::ZERO);
    outcome.counts = host.memory.device.counts();
    outcome.events = calendar.happened();
    outcome.commands = host.memory.commands();
    outcome.time = calendar.now();
    Ok(outcome)
}

/// A line of a message.
fn message(call: u64, line: u64) -> Line {
    let mut random = Random::new(call << 16 ^ line);
    std::array::from_fn(|byte| if byte % 8 == 0 { random.word() as u8 } else { byte as u8 })
}

impl Host<'_> {
    fn occupied(&self) -> u64 {
        self.memory.device.pad().used() as u64 * PAGE
    }

    /// Algorithm 2 up to the copy; a message lies in DRAM.
    fn begin(&mut self, number: u64, core: u64, now: Time) -> Result<Call, String> {
        let pages = self.timing.message;
        let slot = number / self.timing.cores % self.timing.buffers;
        let source = core * APART + 2 * slot * pages * PAGE;
        let destination = source + pages * PAGE;
        if self.free <= pages as i64 {
            self.outcome.counted += 1;
            self.count(now)?;
            if self.free <= pages as i64 {
                self.outcome.forced += 1;
                self.force(pages + 1, now)?;
                self.count(now)?;
            }
        }
        self.free -= 1 + pages as i64;
        // A buffer whose last results still wait is written back by its owner before it is used again.
        for page in 0..pages {
            if self.pending.contains_key(&((destination + page * PAGE) / PAGE)) {
                self.flush(destination + page * PAGE, now)?;
            }
        }
        self.compare()?;
        for line in 0..pages * (PAGE / LINE) {
            let at = source + line * LINE;
            self.cache.flush(at);
            self.memory.device.set_dram(at, message(number, line));
        }
        self.memory.drain(0)?;
        for page in 0..pages {
            let (from, to) = (source / PAGE + page, destination / PAGE + page);
            let mut register = [0; 64];
            register[..8].copy_from_slice(&from.to_le_bytes());
            register[8..16].copy_from_slice(&to.to_le_bytes());
            let context = number << 8 | page;
            register[16..24].copy_from_slice(&context.to_le_bytes());
            self.memory.write(CONFIG, register, now)?;
            self.memory.drain(0)?;
            self.pending.insert(to, (number, page));
        }
        self.outcome.calls += 1;
        Ok(Call { number, source, destination, line: 0 })
    }

    /// Reads how many pages of the scratchpad are free.
    fn count(&mut self, now: Time) -> Result<(), String> {
        let (line, _) = self.memory.read(CONFIG, now)?;
        self.free = line.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes));
        Ok(())
    }

    /// Algorithm 1: flushes pending pages until so many are free.
    fn force(&mut self, wanted: u64, now: Time) -> Result<(), String> {
        let mut list = 0;
        while self.memory.device.pad().free() as u64 <= wanted {
            list += 1;
            let (line, _) = self.memory.read(CONFIG + list * LINE, now)?;
            let pages: Vec<u64> =
                line.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
            for page in pages.iter().filter(|page| **page != NO_PAGE) {
                self.flush(page * PAGE, now)?;
            }
            if pages.contains(&NO_PAGE) {
                break;
            }
        }
        Ok(())
    }

    fn flush(&mut self, page: u64, now: Time) -> Result<(), String> {
        for line in 0..PAGE / LINE {
            if self.cache.flush(page + line * LINE) {
                self.leave(page + line * LINE, now)?;
            }
        }
        Ok(self.memory.drain(0)?)
    }

    /// A dirty line leaves the cache: what it holds is the plain copy, which the device replaces.
    fn leave(&mut self, address: u64, now: Time) -> Result<(), String> {
        if let Some(read) = self.read_at.remove(&address) {
            let slack = self.memory.now().max(now) - read;
            self.slack = Some(self.slack.map_or(slack, |least| least.min(slack)));
        }
        let data = self
            .pending
            .get(&(address / PAGE))
            .map_or([0; 64], |(number, page)| message(*number, page * (PAGE / LINE) + address % PAGE / LINE));
        Ok(self.memory.write(address, data, now)?)
    }

    fn access(&mut self, address: u64, write: bool, now: Time) -> Result<bool, String> {
        let access = self.cache.access(address, self.ways, write);
        if let Some(written) = access.written {
            self.leave(written, now)?;
        }
        Ok(access.hit)
    }

    /// Copies a line; others use the cache meanwhile.
    fn copy(&mut self, call: &mut Call, now: Time) -> Result<Time, String> {
        let (source, destination) = (call.source + call.line * LINE, call.destination + call.line * LINE);
        let mut done = now;
        if !self.access(source, false, now)? {
            let (line, there) = self.memory.read(source, now)?;
            debug_assert_eq!(line, message(call.number, call.line));
            self.read_at.insert(destination, there);
            done = there;
        }
        self.access(destination, true, done)?;
        for _ in 0..self.timing.contention {
            let other = OTHERS + self.random.below(1 << 30) * LINE;
            self.access(other, false, done)?;
        }
        call.line += 1;
        Ok(done + self.timing.line)
    }

    /// What DRAM holds of pages that were recycled has to be what their sources make.
    fn compare(&mut self) -> Result<(), String> {
        for page in self.memory.device.take_done() {
            let Some((number, part)) = self.pending.remove(&page) else { continue };
            let mut context = [0; 48];
            context[..8].copy_from_slice(&(number << 8 | part).to_le_bytes());
            for line in 0..PAGE / LINE {
                let wanted = turned(&context, line as usize, &message(number, part * (PAGE / LINE) + line));
                if self.memory.device.dram(page * PAGE + line * LINE) != wanted {
                    return Err(format!(
                        "line {line} of page {page:#x}, call {number}, is not what its source makes"
                    ));
                }
            }
            self.outcome.compared += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A scratchpad of 64 pages and a cache of 128 KiB.
    fn small(contention: u64) -> Timing {
        Timing { scratchpad: 64, table: 384, way: 32 << 10, contention, buffers: 64, ..Timing::shipped() }
    }

    #[test]
    fn pages_are_recycled_by_write_backs_alone_where_others_use_the_cache() {
        let timing = small(8);
        let outcome = run(&timing, 4, 200, 1).unwrap();
        assert_eq!(run(&timing, 4, 200, 1).unwrap(), outcome);
        assert_ne!(run(&timing, 4, 200, 2).unwrap().time, outcome.time);
        assert_eq!((outcome.calls, outcome.forced, outcome.counts.ignored), (200, 0, 0));
        // All but what the cache still holds, with the right bytes.
        assert!(outcome.compared > 700 && outcome.compared <= 800, "{outcome:?}");
        assert!(outcome.most < 64 * PAGE && outcome.counted < outcome.calls, "{outcome:?}");
        assert!(outcome.counts.recycled >= outcome.compared * 64);
    }

    #[test]
    fn a_cache_that_keeps_everything_needs_force_and_bytes_are_right() {
        let outcome = run(&Timing { way: 1 << 20, ..small(0) }, 4, 200, 1).unwrap();
        assert!(outcome.forced > 5 && outcome.compared > 700, "{outcome:?}");
        assert!(outcome.most > 60 * PAGE, "{outcome:?}");
    }

    #[test]
    fn more_cache_keeps_more_in_the_scratchpad() {
        let occupied = [2, 4, 8].map(|ways| run(&small(16), ways, 150, 1).unwrap().occupied);
        assert!(occupied[0] < occupied[1] && occupied[1] < occupied[2], "{occupied:?}");
    }
}
