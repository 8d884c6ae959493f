// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The buffer device: the arbiter's decisions (figure 6) on what the memory controller reads and writes.
//!
//! - **Flow** slots ─▶ address ─▶ configuration registers, or the translation table: a source's line goes to DRAM's reader and, computed,
//!   into the scratchpad; a destination's line comes from the scratchpad, and a write-back of it is replaced by what lies
//!   there. After a page's last line it is DRAM alone
//! - **Layout** registers at [`CONFIG`]: read of line 0, free scratchpad pages u64; of line 1 + i, pending page numbers 8 i to 8 i + 7,
//!   [`NO_PAGE`] behind the last. Write of lines 1 and 2: the context of the next message ([`dsa`](super::dsa)). Write of line
//!   0 registers a page: source page u64, destination page u64, which page of the message u64; page 0 takes the context, the
//!   others follow it. Read at [`result`] of a destination page: what its message came to, 16 B; a whole
//!   record's and a packed page's while it is pending, a part of a tag until it was read once or the page is registered again
//! - **Order** a registration takes a scratchpad page, a configuration page and two translations, all given back with the last line
//! - **Rule** a read that comes before its line is computed is answered with ALERT_N; a write-back that does is ignored (S7)
//! - **Owner** DRAM's bytes
//! - **Not here** when commands come (`controller`)

use super::cuckoo::Table;
use super::ddr::{Access, Closed, Command, Decoder};
use super::dsa::Dsa;
use super::index::Index;
use super::scratchpad::{Found, Scratchpad};
use super::{LINE, Line, PAGE};
use crate::event::Time;
use std::collections::BTreeMap;

/// Where the registers lie: above all memory.
pub const CONFIG: u64 = 1 << 42;
/// Behind the last pending page.
pub const NO_PAGE: u64 = u64::MAX;

/// Where it is read what the message of a destination page came to.
#[must_use]
pub fn result(page: u64) -> u64 {
    CONFIG + (1 << 41) + page % (1 << 34) * LINE
}

/// Result of a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mapping {
    /// A source: its message in the configuration memory, and which page of that it is.
    Source { context: u32, part: u64 },
    /// A destination: its page of the scratchpad.
    Destination { pad: u32 },
}

/// The device's answer on the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing: no column command, or a write.
    None,
    /// The line that a read asked for.
    Data(Line),
    /// ALERT_N: try again.
    Alert,
}

/// Reason why the device did nothing; each is the host's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A column command to a closed bank.
    Closed(u8),
    /// A registration while the scratchpad is full.
    Full,
    /// A registration that the translation table has no room for.
    Table,
    /// A registration of a page that is registered, or of a page as its own destination.
    Registered,
    /// A registration whose context says nothing that the device knows, or of a page that follows none.
    Context,
}

impl From<Closed> for Fault {
    fn from(closed: Closed) -> Fault {
        Fault::Closed(closed.0)
    }
}

impl From<Fault> for String {
    fn from(fault: Fault) -> String {
        match fault {
            Fault::Closed(bank) => format!("a column command to bank {bank}, which is closed"),
            Fault::Full => "a registration while the scratchpad is full".into(),
            Fault::Table => "a registration while the translation table is full".into(),
            Fault::Registered => "a registration of a page that is registered".into(),
            Fault::Context => "a registration without a context that means something".into(),
        }
    }
}

/// The device's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of column commands.
    pub accesses: u64,
    /// Write-backs that recycled a line.
    pub recycled: u64,
    /// Write-backs before their line was computed.
    pub ignored: u64,
    /// Answers with ALERT_N.
    pub alerts: u64,
    /// Reads of a destination that the scratchpad answered.
    pub served: u64,
}

#[derive(Clone, Copy, Debug)]
struct Registered {
    source: u64,
    context: u32,
}

/// A message in the configuration memory.
#[derive(Clone, Debug)]
struct Message {
    dsa: Dsa,
    /// Pages of the scratchpad, by page of the message.
    pads: BTreeMap<u64, u32>,
    /// Pages that have not been recycled.
    pages: u32,
    /// True if the host has read the result.
    asked: bool,
}

impl Message {
    /// Returns true if nobody needs the message any more. A partial tag stays until the host has read it, even after the last
    /// page was recycled.
    fn over(&self) -> bool {
        self.pages == 0 && (self.dsa.alone() || self.asked)
    }
}

impl std::ops::Add for Counts {
    type Output = Counts;

    fn add(self, other: Counts) -> Counts {
        Counts {
            accesses: self.accesses + other.accesses,
            recycled: self.recycled + other.recycled,
            ignored: self.ignored + other.ignored,
            alerts: self.alerts + other.alerts,
            served: self.served + other.served,
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Device {
    decoder: Decoder,
    table: Table<Mapping>,
    pad: Scratchpad,
    messages: Vec<Option<Message>>,
    free_contexts: Vec<u32>,
    /// Written, for the next message.
    staged: [Line; 2],
    /// The message that was begun last.
    last: Option<u32>,
    /// Lines of a page that come here where channels are interleaved.
    mine: u64,
    /// By destination page.
    registered: Index<Registered>,
    /// Messages of destination pages that were recycled, where the message stays.
    ended: Index<u32>,
    dram: Index<Box<[Line; 64]>>,
    /// Lines for the scratchpad that a line which is read makes.
    ready: Vec<(u64, Line)>,
    /// From a read to its computed line.
    takes: Time,
    /// Destination pages that were recycled and nobody has asked about.
    done: Vec<u64>,
    counts: Counts,
}

impl Device {
    /// A device with so many pages of scratchpad and as many of configuration memory, and a table of so many entries. `mine`: which
    /// lines of a page come to it where channels are interleaved.
    #[must_use]
    pub fn new(pages: u32, entries: usize, cam: usize, takes: Time, mine: u64) -> Device {
        Device {
            decoder: Decoder::default(),
            table: Table::new(entries, cam),
            pad: Scratchpad::new(pages),
            messages: vec![None; pages as usize],
            free_contexts: (0..pages).rev().collect(),
            staged: [[0; 64]; 2],
            last: None,
            mine,
            registered: Index::default(),
            ended: Index::default(),
            dram: Index::default(),
            ready: Vec::new(),
            takes,
            done: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the scratchpad, to be inspected.
    #[must_use]
    pub fn pad(&self) -> &Scratchpad {
        &self.pad
    }

    /// Returns the number of entries in the translation table.
    #[must_use]
    pub fn held(&self) -> usize {
        self.table.held()
    }

    /// The row that is open in a bank.
    #[must_use]
    pub fn open(&self, bank: u8) -> Option<u32> {
        self.decoder.open(bank)
    }

    /// Destination pages whose last line was recycled since the last call.
    pub fn take_done(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.done)
    }

    /// A line of DRAM.
    #[must_use]
    pub fn dram(&self, address: u64) -> Line {
        let line = (address % PAGE / LINE) as usize;
        self.dram.get(&(address / PAGE)).map_or([0; 64], |page| page[line])
    }

    /// Writes a line of DRAM, as a device that puts a message there does.
    pub fn set_dram(&mut self, address: u64, data: Line) {
        let page = self.dram.entry(address / PAGE).or_insert_with(|| Box::new([[0; 64]; 64]));
        page[(address % PAGE / LINE) as usize] = data;
    }

    /// One slot of a clock.
    ///
    /// # Errors
    /// What the host did wrong.
    pub fn slot(&mut self, command: Command, now: Time) -> Result<Answer, Fault> {
        // The table settles beside whatever comes.
        self.table.settle();
        match self.decoder.slot(command)? {
            None => Ok(Answer::None),
            Some(Access::Read(address)) => {
                self.counts.accesses += 1;
                Ok(self.read(address, now))
            }
            Some(Access::Write(address, data)) => {
                self.counts.accesses += 1;
                self.write(address, data, now)?;
                Ok(Answer::None)
            }
        }
    }

    fn read(&mut self, address: u64, now: Time) -> Answer {
        if address >= result(0) {
            return Answer::Data(self.came_to((address - result(0)) / LINE));
        }
        if address >= CONFIG {
            return Answer::Data(self.register(((address - CONFIG) / LINE) as usize));
        }
        const LINES: u64 = PAGE / LINE;
        let line = (address % PAGE / LINE) as usize;
        let data = self.dram(address);
        match self.table.find(address / PAGE) {
            None => Answer::Data(data),
            Some(Mapping::Source { context, part }) => {
                if let Some(message) = &mut self.messages[context as usize] {
                    message.dsa.line(part * LINES + line as u64, &data, &mut self.ready);
                    for (place, turned) in self.ready.drain(..) {
                        if let Some(pad) = message.pads.get(&(place / LINES)) {
                            self.pad.put(*pad, (place % LINES) as usize, turned, now + self.takes);
                        }
                    }
                }
                Answer::Data(data)
            }
            Some(Mapping::Destination { pad }) => match self.pad.find(pad, line) {
                Found::Here(data, ready) if ready <= now => {
                    self.counts.served += 1;
                    Answer::Data(data)
                }
                Found::Here(..) => {
                    self.counts.alerts += 1;
                    Answer::Alert
                }
                Found::Missing | Found::Recycled => Answer::Data(data),
            },
        }
    }

    fn came_to(&mut self, page: u64) -> Line {
        let mut data = [0xff; 64];
        let context = self.registered.get(&page).map(|at| at.context).or(self.ended.get(&page).copied());
        if let Some(context) = context
            && let Some(message) = &mut self.messages[context as usize]
        {
            data[..16].copy_from_slice(&message.dsa.result());
            message.asked = true;
            self.let_go(context);
        }
        data
    }

    /// Gives a message's place in the configuration memory back if nobody needs it any more.
    fn let_go(&mut self, context: u32) {
        let message = &mut self.messages[context as usize];
        if message.as_ref().is_some_and(Message::over) {
            *message = None;
            self.free_contexts.push(context);
            self.last = self.last.filter(|last| *last != context);
            self.ended.retain(|_, ended| *ended != context);
        }
    }

    fn register(&self, line: usize) -> Line {
        let mut data = [0; 64];
        let words = data.as_chunks_mut::<8>().0;
        match line.checked_sub(1) {
            None => words[0] = (self.pad.free() as u64).to_le_bytes(),
            Some(list) => {
                words.fill(NO_PAGE.to_le_bytes());
                for (word, page) in words.iter_mut().zip(self.pad.pending().skip(8 * list)) {
                    *word = page.to_le_bytes();
                }
            }
        }
        data
    }

    fn write(&mut self, address: u64, data: Line, now: Time) -> Result<(), Fault> {
        if address >= CONFIG {
            return match (address - CONFIG) / LINE {
                0 => self.begin(&data),
                line @ 1..=2 => {
                    self.staged[line as usize - 1] = data;
                    Ok(())
                }
                _ => Ok(()),
            };
        }
        let (page, line) = (address / PAGE, (address % PAGE / LINE) as usize);
        let Some(Mapping::Destination { pad }) = self.table.find(page) else {
            self.set_dram(address, data);
            return Ok(());
        };
        match self.pad.find(pad, line) {
            Found::Here(turned, ready) if ready <= now => {
                self.set_dram(address, turned);
                self.counts.recycled += 1;
                if self.pad.recycle(pad, line).is_some() {
                    self.end(page);
                }
            }
            Found::Here(..) | Found::Missing => self.counts.ignored += 1,
            Found::Recycled => self.set_dram(address, data),
        }
        Ok(())
    }

    /// Registers a source page and its destination page.
    fn begin(&mut self, data: &Line) -> Result<(), Fault> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| data[at + byte]));
        let (source, destination, part) = (word(0), word(8), word(16));
        if source == destination || [source, destination].iter().any(|page| self.table.find(*page).is_some())
        {
            return Err(Fault::Registered);
        }
        if !self.table.room(2) {
            return Err(Fault::Table);
        }
        if self.pad.free() == 0 {
            return Err(Fault::Full);
        }
        // A page that is used again: nobody will ask about the message before.
        if let Some(context) = self.ended.remove(&destination)
            && let Some(message) = &mut self.messages[context as usize]
        {
            message.asked = true;
            self.let_go(context);
        }
        let context = match (part, self.last) {
            (0, _) => {
                let dsa = Dsa::new(&self.staged).ok_or(Fault::Context)?;
                let context = self.free_contexts.pop().expect("there are as many contexts as pages");
                self.messages[context as usize] =
                    Some(Message { dsa, pads: BTreeMap::new(), pages: 0, asked: false });
                self.last = Some(context);
                context
            }
            (_, Some(last)) => last,
            (_, None) => return Err(Fault::Context),
        };
        let message = self.messages[context as usize].as_mut().ok_or(Fault::Context)?;
        let mine = if message.dsa.alone() { u64::MAX } else { self.mine };
        let pad = self.pad.take(destination, mine).ok_or(Fault::Full)?;
        message.pads.insert(part, pad);
        message.pages += 1;
        self.registered.insert(destination, Registered { source, context });
        for (page, mapping) in
            [(source, Mapping::Source { context, part }), (destination, Mapping::Destination { pad })]
        {
            self.table.insert(page, mapping).expect("the CAM has room for two");
        }
        Ok(())
    }

    /// A destination's last line has been recycled.
    fn end(&mut self, destination: u64) {
        if let Some(Registered { source, context }) = self.registered.remove(&destination) {
            self.table.remove(source);
            self.table.remove(destination);
            self.done.push(destination);
            self.ended.insert(destination, context);
            if let Some(message) = &mut self.messages[context as usize] {
                message.pages -= 1;
            }
            self.let_go(context);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ddr::{Place, place};
    use super::super::dsa::Context;
    use super::super::dsa::tls::{Keys, TAG};
    use super::*;
    use crate::naive::gcm;

    fn device(pages: u32) -> Device {
        Device::new(pages, 12, 2, Time::from_ns(60), u64::MAX)
    }

    fn send(device: &mut Device, address: u64, data: Option<Line>, now: u64) -> Result<Answer, Fault> {
        let Place { bank, row, column } = place(address);
        device.slot(Command::Activate { bank, row }, Time::ZERO)?;
        let command =
            data.map_or(Command::Read { bank, column }, |data| Command::Write { bank, column, data });
        device.slot(command, Time::from_ns(now))
    }

    fn keys() -> Keys {
        Keys { key: vec![3; 16], nonce: [4; 12], aad: Vec::new(), length: PAGE - TAG }
    }

    fn register(device: &mut Device, source: u64, destination: u64) -> Result<Answer, Fault> {
        for (line, data) in (1..).zip(Context::Tls(keys()).lines(1)) {
            send(device, CONFIG + line * LINE, Some(data), 0)?;
        }
        let mut line = [0; 64];
        line[..8].copy_from_slice(&source.to_le_bytes());
        line[8..16].copy_from_slice(&destination.to_le_bytes());
        send(device, CONFIG, Some(line), 0)
    }

    fn word(answer: Answer, at: usize) -> u64 {
        let Answer::Data(line) = answer else { panic!("{answer:?}") };
        u64::from_le_bytes(line[8 * at..8 * at + 8].try_into().unwrap())
    }

    #[test]
    fn a_line_goes_through_every_state_of_the_arbiter() {
        let mut device = device(2);
        let (source, destination) = (5 * PAGE, 9 * PAGE);
        for line in 0..64 {
            device.set_dram(source + line * LINE, [line as u8; 64]);
        }
        register(&mut device, 5, 9).unwrap();
        let mut ask = |address, data, now| send(&mut device, address, data, now).unwrap();
        assert_eq!(word(ask(CONFIG, None, 0), 0), 1);
        assert_eq!([0, 1].map(|at| word(ask(CONFIG + LINE, None, 0), at)), [9, NO_PAGE]);
        let text: Vec<u8> = (0..PAGE - TAG).map(|at| (at / LINE) as u8).collect();
        let (cipher, tag) = gcm(true, &keys().key, &keys().nonce, &[], &text);
        let wanted: Line = cipher[192..256].try_into().unwrap();
        // A write-back before the source was read, and one before the line is computed, are ignored.
        ask(destination + 3 * LINE, Some([1; 64]), 0);
        assert_eq!(ask(source + 3 * LINE, None, 100), Answer::Data([3; 64]), "the host gets the plain line");
        ask(destination + 3 * LINE, Some([1; 64]), 159);
        assert_eq!(ask(destination + 3 * LINE, None, 159), Answer::Alert);
        assert_eq!(ask(destination + 3 * LINE, None, 160), Answer::Data(wanted));
        ask(destination + 3 * LINE, Some([1; 64]), 161);
        assert_eq!(ask(destination + 3 * LINE, None, 162), Answer::Data(wanted), "from DRAM");
        ask(destination + 3 * LINE, Some([2; 64]), 163);
        assert_eq!(
            ask(destination + 3 * LINE, None, 164),
            Answer::Data([2; 64]),
            "written after it was recycled"
        );
        for line in (0..64).filter(|line| *line != 3) {
            ask(source + line * LINE, None, 200);
            ask(destination + line * LINE, Some([0; 64]), 300);
        }
        assert_eq!(word(ask(CONFIG, None, 400), 0), 2);
        let Answer::Data(last) = ask(destination + 63 * LINE, None, 400) else { panic!("no line") };
        assert_eq!(
            (&last[..48], &last[48..]),
            (&cipher[cipher.len() - 48..], &tag[..]),
            "text, then the tag"
        );
        assert_eq!((device.take_done(), device.held()), (vec![9], 0));
        let counts = device.counts();
        assert_eq!((counts.ignored, counts.alerts, counts.served, counts.recycled), (2, 1, 1, 64));
    }

    #[test]
    fn what_the_host_does_wrong_is_refused() {
        let mut device = device(2);
        assert_eq!(device.slot(Command::Read { bank: 1, column: 0 }, Time::ZERO), Err(Fault::Closed(1)));
        assert_eq!(register(&mut device, 5, 5), Err(Fault::Registered));
        register(&mut device, 5, 9).unwrap();
        for (source, destination) in [(5, 7), (7, 9), (9, 7), (7, 5)] {
            assert_eq!(register(&mut device, source, destination), Err(Fault::Registered));
        }
        send(&mut device, CONFIG + LINE, Some([0; 64]), 0).unwrap();
        let mut line = [0; 64];
        (line[0], line[8]) = (6, 10);
        assert_eq!(send(&mut device, CONFIG, Some(line), 0), Err(Fault::Context));
        register(&mut device, 6, 10).unwrap();
        assert_eq!(register(&mut device, 7, 11), Err(Fault::Full));
    }
}
