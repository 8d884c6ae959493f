// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of another process under a budget, read from outside: pages that are absent are unpacked here, and the process
//! notices nothing.
//!
//! - **Flow** [`Outside::open`] reads the view (its address is in the process's slot) ──▶ [`Outside::chunk`]: a chunk's
//!   entries, access and which of its pages are present ──▶ [`Outside::page`]: a present page from `/proc/PID/mem`, an
//!   absent one from the store or the spill file, unpacked in this process
//! - **Order** a page that a thread of the process works on may lie in no place that a reader knows ([`Contents::Moving`]).
//!   A caller that stops all threads lets them go on for a moment and stops them again
//! - **Trust** nothing that is read is believed: addresses are used with checked reads only, packed bytes are unpacked with
//!   bounds, spilled pages are compared with their checksums
//! - **Not here** stopping threads ([`crate::stop`]); memory outside the arena

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use memlift_kernels::pages::{self, Packer};

use super::ARENA_BASE;
use super::entry::{Entry, Tag};
use super::table::{CHUNK_BYTES, CHUNK_PAGES, MAPPED, Mode, Record};
use super::view::{WORDS, Words};
use crate::mapping::PAGE_BYTES;
use crate::spill::{MAX_GENERATIONS, Slot};
use crate::store;

/// Bits of a word of `/proc/PID/pagemap`: the page is in memory, or in swap.
const PRESENT: u64 = 3 << 62;

/// Contents of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// The page is not mapped, or the program has no access to it.
    None,
    /// The page reads as zeros and takes no memory.
    Zeros,
    /// The page was present.
    Present,
    /// The page was absent.
    Absent,
    /// A thread is moving the page just now.
    Moving,
    /// The copy of the page is damaged, or the spill file cannot be read.
    Lost,
}

/// Pages in a row with the same access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Address of the first byte.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// The program's access, as `PROT_*`.
    pub prot: i32,
}

/// The state of the pages of one chunk, as the tables have it.
pub struct Chunk {
    index: usize,
    mode: Mode,
    busy: bool,
    access: [u8; CHUNK_PAGES],
    entries: Vec<Entry>,
    present: [u64; CHUNK_PAGES],
}

/// The memory of another process.
pub struct Outside {
    pid: u32,
    memory: File,
    pagemap: File,
    words: Words,
    packer: Box<Packer>,
    files: [Option<File>; MAX_GENERATIONS],
}

impl std::fmt::Debug for Outside {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Outside").field("pid", &self.pid).finish_non_exhaustive()
    }
}

/// Name of the environment variable that names a process to a debugger: its number, a colon, and the address of its view.
pub const ENV_READ: &str = "MEMLIFT_ZMEM_READ";

/// Opens the process that [`ENV_READ`] names; `None` if the variable is not set.
pub fn from_environment() -> Option<io::Result<Outside>> {
    let text = std::env::var(ENV_READ).ok()?;
    let numbers = text.split_once(':').and_then(|(pid, view)| Some((pid.parse().ok()?, view.parse().ok()?)));
    Some(numbers.map_or(Err(io::ErrorKind::InvalidInput.into()), |(pid, view)| Outside::open(pid, view)))
}

impl Outside {
    /// Opens the memory of process `pid`, whose view lies at `view`.
    ///
    /// # Errors
    ///
    /// The kernel's, if this process may not read that one's memory; [`io::ErrorKind::InvalidData`] if there is no view of
    /// this version.
    pub fn open(pid: u32, view: u64) -> io::Result<Outside> {
        let file = |name: &str| format!("/proc/{pid}/{name}");
        // The right to read the memory includes the right to write it.
        let memory = File::options().read(true).write(true).open(file("mem"))?;
        let pagemap = File::open(file("pagemap"))?;
        let mut bytes = [0; 8 * WORDS];
        memory.read_exact_at(&mut bytes, view)?;
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let words = Words::read(words).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Outside {
            pid,
            memory,
            pagemap,
            words,
            packer: Box::default(),
            files: [const { None }; MAX_GENERATIONS],
        })
    }

    /// Returns the process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the first address of the arena, and the address after its end.
    pub fn arena(&self) -> (u64, u64) {
        (ARENA_BASE as u64, ARENA_BASE as u64 + self.words.arena_bytes)
    }

    /// Returns true if the address lies in the arena.
    pub fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(ARENA_BASE as u64) < self.words.arena_bytes
    }

    /// Reads memory of the process as the kernel has it.
    ///
    /// # Errors
    ///
    /// The kernel's: part of the range is not mapped, or absent.
    pub fn read(&self, address: u64, target: &mut [u8]) -> io::Result<()> {
        self.memory.read_exact_at(target, address)
    }

    /// Writes memory of the process as the kernel does it. In the arena, the caller asks [`Outside::may_be_written`] first.
    ///
    /// # Errors
    ///
    /// The kernel's: part of the range is not mapped, or absent.
    pub fn write(&self, address: u64, source: &[u8]) -> io::Result<()> {
        self.memory.write_all_at(source, address)
    }

    /// Returns true if faults on absent pages are signals of the kind that wrong accesses have, SIGSEGV, and not SIGBUS.
    pub fn faults_are_sigsegv(&self) -> bool {
        self.words.revokes_access != 0
    }

    /// Fills `words` with the kernel's word about each page from `address` on.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn pagemap(&self, address: u64, words: &mut [u64]) -> io::Result<()> {
        let mut bytes = [0; 8 * CHUNK_PAGES];
        let mut offset = address / PAGE_BYTES as u64 * 8;
        for words in words.chunks_mut(CHUNK_PAGES) {
            let bytes = &mut bytes[..8 * words.len()];
            self.pagemap.read_exact_at(bytes, offset)?;
            for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *word = u64::from_le_bytes(*bytes);
            }
            offset += bytes.len() as u64;
        }
        Ok(())
    }

    /// Returns true if the kernel's word says that the page takes memory or swap.
    pub fn is_present(word: u64) -> bool {
        word & PRESENT != 0
    }

    /// Returns the number of chunks that were ever used.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn chunk_count(&self) -> io::Result<usize> {
        let mut word = [0; 8];
        self.read(self.words.reached, &mut word)?;
        let most = self.words.arena_bytes as usize / CHUNK_BYTES;
        Ok(usize::try_from(u64::from_le_bytes(word)).unwrap_or(most).min(most))
    }

    fn at(address: u64, index: usize, bytes: usize) -> u64 {
        address.wrapping_add((index as u64).wrapping_mul(bytes as u64))
    }

    /// Reads what the tables say about a chunk.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn chunk(&self, index: usize) -> io::Result<Chunk> {
        let [entries_at, chunks_at, access_at] = self.words.tables;
        let mut record = [0; Record::BYTES];
        self.read(Self::at(chunks_at, index, Record::BYTES), &mut record)?;
        let record = Record::read(&record);
        let busy = record.mode == Mode::Busy;
        let mode = if busy { record.before } else { record.mode };
        let mut chunk = Chunk {
            index,
            mode,
            busy,
            access: [record.access.unwrap_or(0); CHUNK_PAGES],
            entries: Vec::new(),
            present: [0; CHUNK_PAGES],
        };
        if record.access.is_none() {
            self.read(Self::at(access_at, index, CHUNK_PAGES), &mut chunk.access)?;
        }
        if mode == Mode::Armed {
            let mut bytes = [0; 8 * CHUNK_PAGES];
            self.read(Self::at(entries_at, index, bytes.len()), &mut bytes)?;
            chunk.entries =
                bytes.as_chunks::<8>().0.iter().map(|word| Entry(u64::from_le_bytes(*word))).collect();
        }
        if mode != Mode::Vacant {
            self.pagemap(chunk.address(), &mut chunk.present)?;
        }
        Ok(chunk)
    }

    /// Returns the chunk that an address of the arena lies in.
    ///
    /// # Errors
    ///
    /// The kernel's; [`io::ErrorKind::InvalidInput`] outside the arena.
    pub fn chunk_of(&self, address: u64) -> io::Result<Chunk> {
        if !self.contains(address) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.chunk((address as usize - ARENA_BASE) / CHUNK_BYTES)
    }

    /// Reads the page of the arena that an address lies in, of a process that may be running: if the page's state changes
    /// meanwhile, it is read again.
    pub fn page_at(&mut self, address: u64, target: &mut [u8; PAGE_BYTES]) -> Contents {
        const ATTEMPTS: u32 = 150;
        /// After so many attempts a thread that moves the page is not running just now, or is stopped.
        const QUICK_ATTEMPTS: u32 = 20;
        let (mut contents, mut last) = (Contents::Moving, None);
        for attempt in 0..ATTEMPTS {
            let Ok(chunk) = self.chunk_of(address) else { return Contents::None };
            let index = chunk.index_of(address);
            contents = self.page(&chunk, index, target);
            let Ok(again) = self.chunk_of(address) else { return Contents::None };
            let found = !matches!(contents, Contents::Moving | Contents::Lost);
            if found && !chunk.busy && chunk.is_as(&again, index) {
                // Where access is taken away, a page that left and came back between the two looks may have been read while
                // it was being written, so two reads must agree.
                if self.words.revokes_access == 0 || contents != Contents::Present || last == Some(*target) {
                    return contents;
                }
                last = Some(*target);
            } else {
                last = None;
            }
            if attempt < QUICK_ATTEMPTS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        // A page that the program writes to all the time does not read the same twice.
        if last.is_some() || contents != Contents::Present { contents } else { Contents::Moving }
    }

    /// Returns true if a write of another process to an address of the arena is a change like the program's own.
    pub fn may_be_written(&self, address: u64) -> bool {
        self.chunk_of(address).is_ok_and(|chunk| chunk.may_be_written(chunk.index_of(address)))
    }

    /// Reads page `index` of a chunk to `target`, which is zeros unless the contents are present or absent.
    pub fn page(&mut self, chunk: &Chunk, index: usize, target: &mut [u8; PAGE_BYTES]) -> Contents {
        target.fill(0);
        if !chunk.is_accessible(index) {
            return Contents::None;
        }
        let present = Self::is_present(chunk.present[index]);
        let Some(entry) = chunk.entries.get(index).copied() else {
            return self.present_page(chunk, index, present, target);
        };
        match entry.tag() {
            Tag::Closed | Tag::Empty => Contents::Zeros,
            Tag::Dirty | Tag::Clean | Tag::Shared => self.present_page(chunk, index, present, target),
            Tag::Busy => self.busy_page(chunk, index, entry.unparked(), target),
            Tag::Unknown => Contents::Lost,
            _ => self.absent_page(chunk.page_number(index), entry, target),
        }
    }

    fn present_page(
        &self,
        chunk: &Chunk,
        index: usize,
        present: bool,
        target: &mut [u8; PAGE_BYTES],
    ) -> Contents {
        // Reading a page that takes no memory would make the kernel map one.
        if !present {
            return Contents::Zeros;
        }
        match self.read(chunk.address_of(index), target) {
            Ok(()) => Contents::Present,
            Err(_) => Contents::Moving,
        }
    }

    /// Reads a page that a thread works on; `old` is the entry that the thread found.
    fn busy_page(
        &mut self,
        chunk: &Chunk,
        index: usize,
        old: Entry,
        target: &mut [u8; PAGE_BYTES],
    ) -> Contents {
        let away = if old.tag() == Tag::Clean { old.away() } else { old };
        if Self::is_present(chunk.present[index]) {
            // Where access is taken away, a page that comes back is written before access is granted, and may be half
            // written. Its copy is still there.
            if self.words.revokes_access != 0 && old.is_away() {
                return self.absent_page(chunk.page_number(index), old, target);
            }
            return self.present_page(chunk, index, true, target);
        }
        match old.tag() {
            Tag::Closed | Tag::Empty => Contents::Zeros,
            Tag::Dirty | Tag::Shared | Tag::Unknown | Tag::Busy => Contents::Moving,
            _ => self.absent_page(chunk.page_number(index), away, target),
        }
    }

    /// Writes the contents of an absent page to `target`.
    fn absent_page(&mut self, page: u64, entry: Entry, target: &mut [u8; PAGE_BYTES]) -> Contents {
        let whole = match entry.tag() {
            Tag::Filled => {
                pages::fill(entry.word(), target);
                true
            }
            Tag::Word => self.object(entry.handle_of_store()).is_some_and(|word| {
                word[..].try_into().map(|word| pages::fill(u64::from_le_bytes(word), target)).is_ok()
            }),
            Tag::Stored => self
                .object(entry.handle_of_store())
                .is_some_and(|packed| self.packer.unpack(&packed, target).is_ok()),
            Tag::Spilled => entry.slot().is_some_and(|slot| self.spilled(page, slot, target)),
            _ => false,
        };
        if whole {
            return Contents::Absent;
        }
        target.fill(0);
        Contents::Lost
    }

    /// Reads an object of the store.
    fn object(&self, handle: u32) -> Option<Vec<u8>> {
        let [data, data_bytes, handles, handle_bytes] = self.words.store;
        if u64::from(handle) >= handle_bytes / 8 {
            return None;
        }
        let place = || {
            let mut word = [0; 8];
            self.read(Self::at(handles, handle as usize, 8), &mut word).ok()?;
            store::object_of(u64::from_le_bytes(word))
        };
        let (offset, bytes) = place()?;
        if (offset + bytes) as u64 > data_bytes {
            return None;
        }
        let mut object = vec![0; bytes];
        self.read(data.wrapping_add(offset as u64), &mut object).ok()?;
        // In a running process the object may have been moved meanwhile, and its old place used again.
        (place() == Some((offset, bytes))).then_some(object)
    }

    /// Reads a page of the spill file. Returns false if it is not the one that was written.
    fn spilled(&mut self, page: u64, slot: Slot, target: &mut [u8; PAGE_BYTES]) -> bool {
        let [sums, sum_bytes, files] = self.words.spill;
        let (generation, index) = (slot.generation(), slot.index());
        if files == 0 || generation >= MAX_GENERATIONS || index as u64 >= sum_bytes / 4 {
            return false;
        }
        let (mut word, mut number) = ([0; 4], [0; 4]);
        if self.read(Self::at(sums, index, 4), &mut word).is_err()
            || self.read(Self::at(files, generation, 4), &mut number).is_err()
        {
            return false;
        }
        if self.files[generation].is_none() {
            let path = PathBuf::from(format!("/proc/{}/fd/{}", self.pid, i32::from_le_bytes(number)));
            self.files[generation] = File::open(path).ok();
        }
        let read = self.files[generation]
            .as_ref()
            .is_some_and(|file| file.read_exact_at(target, index as u64 * PAGE_BYTES as u64).is_ok());
        read && pages::checksum(page, target) == u32::from_le_bytes(word)
    }
}

impl Chunk {
    /// Pages of a chunk.
    pub const PAGES: usize = CHUNK_PAGES;

    fn address(&self) -> u64 {
        (ARENA_BASE + self.index * CHUNK_BYTES) as u64
    }

    /// Returns the address of a page.
    pub fn address_of(&self, index: usize) -> u64 {
        self.address() + (index * PAGE_BYTES) as u64
    }

    /// Returns the index of the page that an address of the chunk lies in.
    pub fn index_of(&self, address: u64) -> usize {
        (address.wrapping_sub(self.address()) as usize / PAGE_BYTES).min(CHUNK_PAGES - 1)
    }

    /// Returns the number of a page in the arena.
    fn page_number(&self, index: usize) -> u64 {
        (self.index * CHUNK_PAGES + index) as u64
    }

    fn is_accessible(&self, index: usize) -> bool {
        self.mode != Mode::Vacant && self.access[index] & MAPPED != 0
    }

    /// Returns true if a later look found a page in the same state.
    fn is_as(&self, later: &Chunk, index: usize) -> bool {
        self.mode == later.mode
            && self.entries.get(index) == later.entries.get(index)
            && Outside::is_present(self.present[index]) == Outside::is_present(later.present[index])
    }

    /// Returns true if a thread changes the chunk as a whole just now, so that the rest may be out of date.
    pub fn is_changing(&self) -> bool {
        self.busy
    }

    /// Returns true if the page has contents other than zeros, or may have.
    pub fn holds(&self, index: usize) -> bool {
        self.is_accessible(index)
            && match self.entries.get(index) {
                Some(entry) => !matches!(entry.tag(), Tag::Closed | Tag::Empty),
                None => Outside::is_present(self.present[index]),
            }
    }

    /// Returns true if a write of another process to the page is a change like the program's own.
    pub fn may_be_written(&self, index: usize) -> bool {
        let in_place = self.entries.get(index).is_none_or(|entry| entry.tag() == Tag::Dirty);
        !self.busy && in_place && self.is_accessible(index) && Outside::is_present(self.present[index])
    }

    /// Returns true if a page is in no place where [`Outside::page`] finds it.
    pub fn is_moving(&self, index: usize) -> bool {
        let Some(entry) = self.entries.get(index).filter(|entry| entry.is_busy()) else { return false };
        let old = entry.unparked();
        self.is_accessible(index) && old.has_no_copy() && !Outside::is_present(self.present[index])
    }

    /// Returns true if a thread works on a page of the chunk.
    pub fn is_busy(&self) -> bool {
        self.busy || self.entries.iter().any(|entry| entry.is_busy())
    }

    /// Returns the runs of mapped pages with the same access.
    pub fn runs(&self) -> Vec<Run> {
        let (mut runs, mut index) = (Vec::new(), 0);
        while index < CHUNK_PAGES {
            let (first, access) = (index, self.access[index]);
            while index < CHUNK_PAGES && self.access[index] == access {
                index += 1;
            }
            if self.mode != Mode::Vacant && access & MAPPED != 0 {
                let prot = i32::from(access) & (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
                runs.push(Run { start: self.address_of(first), end: self.address_of(index), prot });
            }
        }
        runs
    }
}
