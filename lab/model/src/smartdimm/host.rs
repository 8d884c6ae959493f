// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cores that call CompCpy one call after another (§VII-A), beside others that use the same cache.
//!
//! - **Flow** Algorithm 2: free pages are counted lazily ─▶ Force-Recycle if there are too few ─▶ the source is flushed, pages are
//!   registered ─▶ line by line: the source is read through the cache, the destination written into it, and others fill
//!   `contention` lines ─▶ dirty lines that leave the cache are written back, and recycle the scratchpad
//! - **Order** cores take turns by time; a call copies its lines in order, each after the one before it was read (`ordered`), which
//!   Deflate needs; others' lines are random in 64 GiB
//! - **Rule** the count is read again after Force-Recycle: the algorithm as printed reserves what it may not have. Every page that was
//!   recycled is compared with what its source has to become (`message`)
//! - **Channels** lines go to one after the other, `grain` at a time (§V-D). A record is registered with every device and its tag added up by
//!   the CPU; a page for Deflate lies in one channel
//! - **Not here** what reads the destination

use super::cache::{APART, Cache, OTHERS};
use super::command::register;
use super::controller::Controller;
use super::device::{CONFIG, Counts, Device, NO_PAGE, result};
use super::dsa::{Context, tls};
use super::index::Index;
use super::message::Message;
pub use super::message::Ulp;
use super::timing::Timing;
use super::{LINE, Line, PAGE};
use crate::event::{Calendar, Random, Time};
use std::rc::Rc;

const LINES: u64 = PAGE / LINE;

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Ways of the cache.
    pub ways: usize,
    /// Calls of all cores.
    pub calls: u64,
    /// Seed of all random numbers.
    pub seed: u64,
    /// The transform that the cores ask for.
    pub ulp: Ulp,
    /// Channels, each with a device: 1, 2 or 4.
    pub channels: u64,
}

impl Run {
    /// Records through one channel, as the prototype has.
    #[must_use]
    pub fn tls(ways: usize, calls: u64) -> Run {
        Run { ways, calls, seed: 1, ulp: Ulp::Tls, channels: 1 }
    }
}

/// One command on a bus, with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cas {
    /// Time at which the command was asked for.
    pub time: Time,
    /// Address of the line.
    pub address: u64,
    /// True for wrCAS, false for rdCAS.
    pub write: bool,
}

/// Result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Scratchpad in use, bytes, mean of the second half.
    pub occupied: f64,
    /// Most of the scratchpad in use, bytes, of the device that used most.
    pub most: u64,
    /// Number of calls.
    pub calls: u64,
    /// Calls that found too few pages and recycled by force.
    pub forced: u64,
    /// Calls that read the count of free pages.
    pub counted: u64,
    /// Time from the read of a source's line to the write-back of its destination: the least.
    pub slack: Time,
    /// The devices' counters.
    pub counts: Counts,
    /// Events that happened: lines that were copied.
    pub events: u64,
    /// Accesses of the cache, by calls and by others.
    pub accesses: u64,
    /// Commands on the buses.
    pub commands: u64,
    /// Time at which the last line was copied.
    pub time: Time,
    /// Pages that were compared after they had been recycled.
    pub compared: u64,
    /// Scratchpad in use, bytes, at twenty equal distances of calls.
    pub course: Vec<u64>,
    /// Bytes of pages for Deflate, and what they became.
    pub packed: (u64, u64),
    /// Reads and write-backs of calls' buffers, in order.
    pub trace: Vec<Cas>,
}

#[derive(Clone, Debug)]
struct Call {
    message: Rc<Message>,
    source: u64,
    destination: u64,
    /// Index of the next line.
    line: u64,
}

/// A destination page on its way.
#[derive(Clone, Debug)]
struct Pending {
    message: Rc<Message>,
    part: u64,
    /// Channels whose lines have not been recycled.
    channels: u64,
    /// Size that its device reported.
    size: u64,
}

struct Host<'a> {
    timing: &'a Timing,
    run: Run,
    cache: Cache,
    channels: Vec<Controller>,
    /// The global variable of Algorithm 2.
    free: i64,
    random: Random,
    /// By destination page.
    pending: Index<Pending>,
    outcome: Outcome,
    slack: Option<Time>,
    /// Time at which the source of each line of a pending destination was read.
    read_at: Index<Time>,
    /// Addresses of dirty lines that leave for those of others.
    left: Vec<u64>,
}

/// Runs calls.
///
/// # Errors
/// A fault of a device, or a page that holds something else than it should.
pub fn run(timing: &Timing, run: Run) -> Result<Outcome, String> {
    let device = |channel: u64| {
        let mine = (0..LINES)
            .filter(|line| line / timing.grain % run.channels == channel)
            .fold(0, |mine, line| mine | 1 << line);
        Device::new(timing.scratchpad, timing.table, timing.cam, timing.compute, mine)
    };
    let mut host = Host {
        timing,
        run,
        cache: Cache::new(run.ways, timing.way),
        channels: (0..run.channels).map(|channel| Controller::new(timing, device(channel))).collect(),
        free: -1,
        random: Random::new(run.seed),
        pending: Index::default(),
        outcome: Outcome::default(),
        slack: None,
        read_at: Index::default(),
        left: Vec::new(),
    };
    let mut calendar: Calendar<(u64, Option<Call>)> = Calendar::new();
    (0..timing.cores).for_each(|core| calendar.at(Time::from_ns(core), (core, None)));
    let (mut begun, mut samples, mut sum) = (0, 0_u64, 0_u64);
    while let Some((core, call)) = calendar.pop() {
        let now = calendar.now();
        let mut call = match call {
            Some(call) => call,
            None if begun == run.calls => continue,
            None => {
                begun += 1;
                if begun % (run.calls / 20).max(1) == 0 {
                    host.outcome.course.push(host.occupied());
                }
                host.begin(begun - 1, core, now)?
            }
        };
        let done = host.copy(&mut call, now)?;
        host.compare(done)?;
        if 2 * begun > run.calls {
            samples += 1;
            sum += host.occupied();
        }
        let lines = timing.message * LINES;
        calendar.at(done, (core, (call.line < lines).then_some(call)));
    }
    let mut outcome = host.outcome;
    outcome.occupied = sum as f64 / samples.max(1) as f64;
    outcome.calls = begun;
    outcome.slack = host.slack.unwrap_or(Time::ZERO);
    for channel in &host.channels {
        outcome.most = outcome.most.max(channel.device.pad().most() as u64 * PAGE);
        outcome.counts = outcome.counts + channel.device.counts();
        outcome.commands += channel.commands();
    }
    outcome.events = calendar.happened();
    outcome.time = calendar.now();
    Ok(outcome)
}

impl Host<'_> {
    fn occupied(&self) -> u64 {
        self.channels.iter().map(|channel| channel.device.pad().used() as u64).max().unwrap_or(0) * PAGE
    }

    /// The channel of a line.
    fn channel(&mut self, address: u64) -> &mut Controller {
        let channels = self.run.channels;
        let channel = match self.run.ulp {
            Ulp::Deflate if address < OTHERS => address / PAGE / 2,
            _ => address / LINE / self.timing.grain,
        };
        &mut self.channels[(channel % channels) as usize]
    }

    /// Channels that a page's lines go to.
    fn of_page(&self, page: u64) -> std::ops::Range<usize> {
        match self.run.ulp {
            Ulp::Tls => 0..self.channels.len(),
            Ulp::Deflate => {
                let channel = (page / 2 % self.run.channels) as usize;
                channel..channel + 1
            }
        }
    }

    /// Algorithm 2 up to the copy; a message lies in DRAM.
    fn begin(&mut self, number: u64, core: u64, now: Time) -> Result<Call, String> {
        let pages = self.timing.message;
        let slot = number / self.timing.cores % self.timing.buffers;
        let source = core * APART + 2 * slot * pages * PAGE;
        // Pages of a source and of its destination lie side by side, so that both are in the same channel.
        let (from, to) = (|page: u64| source + 2 * page * PAGE, |page: u64| source + (2 * page + 1) * PAGE);
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
            if self.pending.contains_key(&(to(page) / PAGE)) {
                self.flush(to(page), now)?;
            }
        }
        self.compare(now)?;
        let message = Rc::new(Message::new(self.run.ulp, number, pages));
        for line in 0..pages * LINES {
            let at = from(line / LINES) + line % LINES * LINE;
            self.cache.flush(at);
            self.channel(at).device.set_dram(at, message.line(line));
        }
        for page in 0..pages {
            let channels = self.of_page(from(page) / PAGE);
            // A page for Deflate is a message of its own.
            let part = if self.run.ulp == Ulp::Tls { page } else { 0 };
            for channel in &mut self.channels[channels.clone()] {
                let wanted = [from(page) / PAGE, to(page) / PAGE, part];
                register(channel, wanted, &message.context, channels.len() as u32, now)?;
            }
            let pending =
                Pending { message: message.clone(), part: page, channels: channels.len() as u64, size: 0 };
            self.pending.insert(to(page) / PAGE, pending);
        }
        self.outcome.calls += 1;
        Ok(Call { message, source, destination: to(0), line: 0 })
    }

    /// Reads how many pages of the scratchpads are free: of the fullest.
    fn count(&mut self, now: Time) -> Result<(), String> {
        self.free = i64::MAX;
        for channel in &mut self.channels {
            let (line, _) = channel.read(CONFIG, now)?;
            self.free = self.free.min(line.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes)));
        }
        Ok(())
    }

    /// Algorithm 1: flushes pending pages until so many are free.
    fn force(&mut self, wanted: u64, now: Time) -> Result<(), String> {
        for at in 0..self.channels.len() {
            let mut list = 0;
            while self.channels[at].device.pad().free() as u64 <= wanted {
                list += 1;
                let (line, _) = self.channels[at].read(CONFIG + list * LINE, now)?;
                let pages: Vec<u64> =
                    line.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
                for page in pages.iter().filter(|page| **page != NO_PAGE) {
                    self.flush(page * PAGE, now)?;
                }
                if pages.contains(&NO_PAGE) {
                    break;
                }
            }
        }
        Ok(())
    }

    fn flush(&mut self, page: u64, now: Time) -> Result<(), String> {
        for at in (0..LINES).map(|line| page + line * LINE) {
            if self.cache.flush(at) {
                self.leave(at, now)?;
            } else {
                // It may have left before its result was there, and nobody else would write it again.
                let (line, there) = self.channel(at).read(at, now)?;
                self.channel(at).write(at, line, there)?;
            }
        }
        for channel in &mut self.channels {
            channel.drain(0)?;
        }
        Ok(())
    }

    fn note(&mut self, time: Time, address: u64, write: bool) {
        if address < OTHERS {
            self.outcome.trace.push(Cas { time, address, write });
        }
    }

    /// A dirty line leaves the cache: what it holds is the plain copy, which the device replaces.
    fn leave(&mut self, address: u64, now: Time) -> Result<(), String> {
        let at = self.channel(address).now().max(now);
        if let Some(read) = self.read_at.remove(&address) {
            let slack = at - read;
            self.slack = Some(self.slack.map_or(slack, |least| least.min(slack)));
        }
        self.note(at, address, true);
        let data = self
            .pending
            .get(&(address / PAGE))
            .map_or([0; 64], |pending| pending.message.line(pending.part * LINES + address % PAGE / LINE));
        Ok(self.channel(address).write(address, data, now)?)
    }

    fn access(&mut self, address: u64, write: bool, now: Time) -> Result<bool, String> {
        self.outcome.accesses += 1;
        let access = self.cache.access(address, write);
        if let Some(written) = access.written {
            self.leave(written, now)?;
        }
        Ok(access.hit)
    }

    /// Copies a line; others use the cache meanwhile.
    fn copy(&mut self, call: &mut Call, now: Time) -> Result<Time, String> {
        let at = call.line / LINES * 2 * PAGE + call.line % LINES * LINE;
        let (source, destination) = (call.source + at, call.destination + at);
        let mut done = now;
        if !self.access(source, false, now)? {
            let (line, there) = self.channel(source).read(source, now)?;
            debug_assert_eq!(line, call.message.line(call.line));
            self.note(there, source, false);
            self.read_at.insert(destination, there);
            done = there;
        }
        self.access(destination, true, done)?;
        self.others(done)?;
        call.line += 1;
        if call.line.is_multiple_of(LINES) {
            self.ask(destination / PAGE, call, done)?;
        }
        Ok(done + self.timing.line)
    }

    /// Others read their lines. What leaves the cache for them changes nothing in it, so it can leave afterwards.
    fn others(&mut self, now: Time) -> Result<(), String> {
        let mut left = std::mem::take(&mut self.left);
        let random = &mut self.random;
        let lines = (0..self.timing.contention).map(|_| random.below(1 << 30) as u32);
        self.cache.read(lines, &mut left);
        self.outcome.accesses += self.timing.contention;
        for address in left.drain(..) {
            self.leave(address, now)?;
        }
        self.left = left;
        Ok(())
    }

    /// A page has been read: how long it became, or what the tag is where devices have parts of it.
    fn ask(&mut self, page: u64, call: &Call, now: Time) -> Result<(), String> {
        let word = |line: &Line| u128::from_be_bytes(std::array::from_fn(|byte| line[byte]));
        match &call.message.context {
            Context::Deflate(_) => {
                let (line, _) = self.channel(page * PAGE).read(result(page), now)?;
                let size = line.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                self.outcome.packed.0 += PAGE;
                self.outcome.packed.1 += size.min(PAGE);
                if let Some(pending) = self.pending.get_mut(&page) {
                    pending.size = size;
                }
            }
            Context::Tls(keys) if self.channels.len() > 1 && call.line == self.timing.message * LINES => {
                let mut parts = Vec::new();
                for channel in &mut self.channels {
                    parts.push(word(&channel.read(result(page), now)?.0));
                }
                let tag = tls::whole(keys, parts.into_iter());
                if tag.to_be_bytes() != call.message.tag() {
                    return Err(format!(
                        "the parts of the tag of the record at {:#x} do not add up",
                        call.source
                    ));
                }
            }
            Context::Tls(_) => {}
        }
        Ok(())
    }

    /// DRAM must hold, for pages that were recycled, the transform of their sources.
    fn compare(&mut self, now: Time) -> Result<(), String> {
        let done: Vec<u64> =
            self.channels.iter_mut().flat_map(|channel| channel.device.take_done()).collect();
        for page in done {
            let Some(pending) = self.pending.get_mut(&page) else { continue };
            pending.channels -= 1;
            if pending.channels > 0 {
                continue;
            }
            let Some(pending) = self.pending.remove(&page) else { continue };
            self.compare_page(page, &pending, now)?;
            self.outcome.compared += 1;
        }
        Ok(())
    }

    fn compare_page(&mut self, page: u64, pending: &Pending, now: Time) -> Result<(), String> {
        let Pending { message, part, size, .. } = pending;
        if self.run.ulp == Ulp::Tls && self.channels.len() > 1 && part + 1 == self.timing.message {
            // The CPU writes the tag that it added up, once the devices have let go of the page.
            let at = page * PAGE + PAGE - LINE;
            let mut line = self.channel(at).device.dram(at);
            line[(LINE - tls::TAG) as usize..].copy_from_slice(message.tag());
            self.channel(at).write(at, line, now)?;
            self.channel(at).drain(0)?;
        }
        let mut found = Vec::with_capacity(PAGE as usize);
        for line in 0..LINES {
            let at = page * PAGE + line * LINE;
            found.extend(self.channel(at).device.dram(at));
        }
        if message.right(*part, &found, *size) {
            Ok(())
        } else {
            Err(format!("page {page:#x}, page {part} of its message, is not what its source makes"))
        }
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
        let outcome = run(&timing, Run::tls(4, 60)).unwrap();
        assert_eq!(run(&timing, Run::tls(4, 60)).unwrap(), outcome);
        assert_ne!(run(&timing, Run { seed: 2, ..Run::tls(4, 60) }).unwrap().time, outcome.time);
        assert_eq!((outcome.calls, outcome.forced, outcome.counts.ignored), (60, 0, 0));
        // All but what the cache still holds, with the right bytes.
        assert!(outcome.compared > 150 && outcome.compared <= 240);
        assert!(outcome.most < 64 * PAGE && outcome.counted < outcome.calls);
        assert!(outcome.counts.recycled >= outcome.compared * 64);
    }

    #[test]
    fn a_cache_that_keeps_everything_needs_force_and_bytes_are_right() {
        let outcome = run(&Timing { way: 1 << 20, ..small(0) }, Run::tls(4, 60)).unwrap();
        assert!(outcome.forced > 1 && outcome.compared > 150);
        assert!(outcome.most > 50 * PAGE, "{}", outcome.most);
    }

    #[test]
    fn more_cache_keeps_more_in_the_scratchpad() {
        let occupied = [2, 4, 8].map(|ways| run(&small(16), Run::tls(ways, 80)).unwrap().occupied);
        assert!(occupied[0] < occupied[1] && occupied[1] < occupied[2], "{occupied:?}");
    }

    #[test]
    fn bytes_are_right_with_one_channel_and_with_more() {
        for ulp in [Ulp::Tls, Ulp::Deflate] {
            for (channels, grain) in [(1, 1), (2, 1), (2, 4), (4, 1), (4, 2)] {
                let timing = Timing { grain, ..small(16) };
                let outcome = run(&timing, Run { ulp, channels, ..Run::tls(4, 80) }).unwrap();
                assert!(outcome.compared > 60, "{ulp:?} {channels} {}", outcome.compared);
                if ulp == Ulp::Tls {
                    assert_eq!(outcome.counts.ignored, 0, "{channels}");
                } else {
                    assert!(outcome.packed.1 * 5 < outcome.packed.0 * 4, "{:?}", outcome.packed);
                }
            }
        }
    }

    #[test]
    fn a_part_of_a_tag_waits_for_whoever_adds_it_up() {
        // So much other work that a device has recycled all its lines of the last page before the record's last line is read.
        let timing =
            Timing { grain: 4, way: 16 << 10, contention: 100, queue_high: 2, queue_low: 0, ..small(0) };
        let outcome = run(&timing, Run { channels: 4, ..Run::tls(1, 24) }).unwrap();
        assert!(outcome.compared >= 30, "{}", outcome.compared);
    }

    #[test]
    fn a_call_reads_its_source_from_the_first_line_to_the_last() {
        let outcome = run(&small(16), Run::tls(4, 8)).unwrap();
        let reads: Vec<&Cas> = outcome.trace.iter().filter(|cas| !cas.write && cas.address < APART).collect();
        assert_eq!(reads.len() as u64 % (small(16).message * LINES), 0);
        let call = &reads[..(small(16).message * LINES) as usize];
        assert!(call.windows(2).all(|pair| pair[0].address < pair[1].address && pair[0].time < pair[1].time));
    }
}
