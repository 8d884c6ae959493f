// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One simulated machine: its devices, and the record of what was done to them.
//!
//! Flow    a call on [`Memory`] ─▶ what loads see changes ─▶ an event with thread and call site is recorded
//! Order   one lock; the order in which it is taken is the order in which stores become visible
//! Owner   a [`World`] and its [`Memory`]s are handles of the same machine; the last one frees it
//! Not here what survives a crash (machine) and which crashes are tried (explore).
use std::cell::Cell;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard};

use super::pages::Pages;
use super::reads::Reads;
use super::trace::{Action, Call, Event, Site, Thread, Trace};

/// How a device loses what was not made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Memory whose persistence domain begins behind the caches (x86-64 ADR). Of each 64-byte line, any prefix of
    /// its stores survives, down to what a fence made certain; [`Memory::write_back`] takes the prefix that the
    /// next fence *of the same thread* makes certain. Non-temporal stores survive word by word (8 bytes, aligned)
    /// in any order until the storing thread fences.
    Lines,
    /// Memory whose caches are persistent (eADR, GPF): a store survives as soon as it is visible. Non-temporal
    /// stores still need the fence.
    Eadr,
    /// A file behind the page cache. Of what was written since the last successful [`Memory::fdatasync`], any
    /// pages survive, at any content that they had since, torn at sectors of 512 bytes; the size may lag behind.
    /// Stores are stores through a mapping. Write-backs and fences do nothing.
    File,
}

/// A device of a [`World`]: what it is called in findings, how it loses data, what it holds at first (durably).
#[derive(Clone)]
pub struct Device {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) content: Pages,
}

impl Device {
    /// A device of `len` bytes of zero.
    pub fn new(name: &str, mode: Mode, len: u64) -> Self {
        Device { name: name.to_owned(), mode, content: Pages::new(len) }
    }

    /// A device that holds `bytes`, durably.
    pub fn holding(name: &str, mode: Mode, bytes: &[u8]) -> Self {
        let mut device = Device::new(name, mode, bytes.len() as u64);
        device.content.write(0, bytes);
        device
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({:?}, {} bytes)", self.name, self.mode, self.content.len())
    }
}

/// What a run cost: so that a test can say "exactly one fence". A call that was dropped as a mutation is not
/// counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls of [`Memory::store`].
    pub stores: u64,
    /// Bytes that they stored.
    pub store_bytes: u64,
    /// Calls of [`Memory::nt_store`].
    pub nt_stores: u64,
    /// 8-byte words that they touched.
    pub nt_words: u64,
    /// 64-byte lines that they touched, per call.
    pub nt_lines: u64,
    /// 64-byte lines written back.
    pub write_back_lines: u64,
    /// Fences, one for all devices.
    pub fences: u64,
    /// Calls of [`Memory::pwrite`].
    pub pwrites: u64,
    /// Bytes that they wrote.
    pub pwrite_bytes: u64,
    /// Calls of [`Memory::fdatasync`], failed ones included.
    pub fdatasyncs: u64,
    /// Calls of [`Memory::set_len`].
    pub set_lens: u64,
}

impl std::ops::Sub for Counters {
    type Output = Counters;

    /// What was spent since `earlier`.
    fn sub(self, earlier: Counters) -> Counters {
        Counters {
            stores: self.stores - earlier.stores,
            store_bytes: self.store_bytes - earlier.store_bytes,
            nt_stores: self.nt_stores - earlier.nt_stores,
            nt_words: self.nt_words - earlier.nt_words,
            nt_lines: self.nt_lines - earlier.nt_lines,
            write_back_lines: self.write_back_lines - earlier.write_back_lines,
            fences: self.fences - earlier.fences,
            pwrites: self.pwrites - earlier.pwrites,
            pwrite_bytes: self.pwrite_bytes - earlier.pwrite_bytes,
            fdatasyncs: self.fdatasyncs - earlier.fdatasyncs,
            set_lens: self.set_lens - earlier.set_lens,
        }
    }
}

struct State {
    devices: Vec<Device>,
    start: Vec<Pages>,
    trace: Trace,
    /// False for an image whose own crashes are not explored: nothing is kept.
    recording: bool,
    reads: Option<Reads>,
    counters: Counters,
    dropped: Vec<Site>,
    failing: Option<u64>,
    threads: Vec<std::thread::ThreadId>,
}

impl State {
    fn thread(&mut self) -> Thread {
        if let Some(number) = SCRIPTED.get() {
            return Thread(Thread::SCRIPTED | number);
        }
        let id = std::thread::current().id();
        let index = self.threads.iter().position(|t| *t == id).unwrap_or_else(|| {
            self.threads.push(id);
            self.threads.len() - 1
        });
        Thread(index as u32)
    }

    fn record(&mut self, site: Site, action: Action, bytes: &[u8]) {
        if self.recording {
            let thread = self.thread();
            self.trace.push(Event { thread, site, action }, bytes);
        }
    }

    fn drops(&self, site: Site) -> bool {
        self.dropped.contains(&site)
    }
}

/// One simulated machine. Cloning gives another handle of the same one.
#[derive(Clone)]
pub struct World {
    state: Arc<Mutex<State>>,
}

impl World {
    /// A machine with these devices, in this order, holding durably what they are given with.
    pub fn new(devices: impl IntoIterator<Item = Device>) -> Self {
        World::with(devices.into_iter().collect(), true, None)
    }

    pub(crate) fn with(devices: Vec<Device>, recording: bool, reads: Option<Reads>) -> Self {
        let start = if recording { devices.iter().map(|d| d.content.clone()).collect() } else { Vec::new() };
        let state = State {
            devices,
            start,
            trace: Trace::default(),
            recording,
            reads,
            counters: Counters::default(),
            dropped: Vec::new(),
            failing: None,
            threads: Vec::new(),
        };
        World { state: Arc::new(Mutex::new(state)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock leaves no half-done change: the calls check before they change anything.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// How many devices there are.
    pub fn devices(&self) -> usize {
        self.lock().devices.len()
    }

    /// The `index`-th device.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn memory(&self, index: usize) -> Memory {
        let devices = self.devices();
        assert!(index < devices, "device {index} of a simulated machine that has {devices}");
        Memory { world: self.clone(), device: index as u32, caller: None }
    }

    /// What was spent so far.
    pub fn counters(&self) -> Counters {
        self.lock().counters
    }

    /// What was done so far.
    pub fn events(&self) -> Vec<Event> {
        self.lock().trace.events.clone()
    }

    /// From now on, the write-back, fence or fdatasync that this site issues does nothing (and says that it
    /// succeeded).
    pub fn drop_site(&self, site: Site) {
        self.lock().dropped.push(site);
    }

    /// The `nth` fdatasync from the start (from 1, over all devices) fails with `EIO`: what was dirty on its
    /// device is lost or not, and no later sync brings it back.
    pub fn fail_fdatasync(&self, nth: u64) {
        self.lock().failing = Some(nth);
    }

    /// Declares all that was done so far durable, and not to be crashed in: for a set-up that is not what the
    /// test is about.
    #[track_caller]
    pub fn settle(&self) {
        self.lock().record(Site::new(Location::caller(), Call::Mark), Action::Settle, &[]);
    }

    /// In a check: recovery ends here. What the check does afterwards is not crashed in.
    #[track_caller]
    pub fn recovered(&self) {
        self.lock().record(Site::new(Location::caller(), Call::Mark), Action::Recovered, &[]);
    }

    #[track_caller]
    pub(crate) fn step(&self, action: Action) {
        self.lock().record(Site::new(Location::caller(), Call::Step), action, &[]);
    }
}

/// What a machine began with, and what was done to it.
pub(crate) struct Recording {
    pub(crate) devices: Vec<Device>,
    pub(crate) trace: Trace,
    pub(crate) counters: Counters,
}

impl World {
    pub(crate) fn take_reads(&self) -> Option<Reads> {
        self.lock().reads.take()
    }

    /// The recording, which then is no longer here.
    pub(crate) fn take_recording(&self) -> Recording {
        let mut state = self.lock();
        let start = std::mem::take(&mut state.start);
        let with_start = |(device, content): (&Device, Pages)| Device { content, ..device.clone() };
        Recording {
            devices: state.devices.iter().zip(start).map(with_start).collect(),
            trace: std::mem::take(&mut state.trace),
            counters: state.counters,
        }
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("World")
            .field("devices", &state.devices)
            .field("events", &state.trace.events.len())
            .finish_non_exhaustive()
    }
}

/// A device of a [`World`]: memory or a file. Cheap to clone, and usable from any thread.
///
/// Every call is recorded with the place it was called from; a wrapper that wants its own callers recorded says
/// `#[track_caller]`, or uses [`Memory::called_from`].
#[derive(Clone, Debug)]
pub struct Memory {
    world: World,
    device: u32,
    caller: Option<&'static Location<'static>>,
}

impl Memory {
    /// The same device; calls through this handle are recorded as coming from `location`.
    pub fn called_from(&self, location: &'static Location<'static>) -> Memory {
        Memory { caller: Some(location), ..self.clone() }
    }

    /// The machine that it belongs to.
    pub fn world(&self) -> &World {
        &self.world
    }

    #[track_caller]
    fn site(&self, call: Call) -> Site {
        Site::new(self.caller.unwrap_or(Location::caller()), call)
    }

    /// The device, for a change of `len` bytes at `offset` that must lie inside it.
    #[track_caller]
    fn inside(&self, call: &str, offset: u64, len: usize) -> MutexGuard<'_, State> {
        let mut state = self.world.lock();
        if let Some(reads) = &mut state.reads {
            reads.size(self.device);
        }
        let size = state.devices[self.device as usize].content.len();
        if offset.checked_add(len as u64).is_none_or(|end| end > size) {
            let name = state.devices[self.device as usize].name.clone();
            drop(state);
            panic!("{call} of {len} bytes at {offset:#x} in {name:?}, which has {size} bytes");
        }
        state
    }

    /// Stores `bytes` through the cache (in [`Mode::File`], through a mapping).
    ///
    /// # Panics
    /// Beyond the device's end, as a mapping would fault.
    #[track_caller]
    pub fn store(&self, offset: u64, bytes: &[u8]) {
        let site = self.site(Call::Store);
        let mut state = self.inside("store", offset, bytes.len());
        state.counters.stores += 1;
        state.counters.store_bytes += bytes.len() as u64;
        state.devices[self.device as usize].content.write(offset, bytes);
        let len = bytes.len() as u64;
        state.record(site, Action::Store { device: self.device, offset, len }, bytes);
    }

    /// Stores `bytes` past the cache.
    ///
    /// # Panics
    /// Beyond the device's end, as a mapping would fault.
    #[track_caller]
    pub fn nt_store(&self, offset: u64, bytes: &[u8]) {
        let site = self.site(Call::NtStore);
        let mut state = self.inside("nt_store", offset, bytes.len());
        let len = bytes.len() as u64;
        state.counters.nt_stores += 1;
        state.counters.nt_words += units(offset, len, 8);
        state.counters.nt_lines += units(offset, len, 64);
        state.devices[self.device as usize].content.write(offset, bytes);
        state.record(site, Action::NtStore { device: self.device, offset, len }, bytes);
    }

    /// Starts to write back every line that holds one of these bytes; the calling thread's next fence completes
    /// it.
    ///
    /// # Panics
    /// Beyond the device's end.
    #[track_caller]
    pub fn write_back(&self, offset: u64, len: u64) {
        let site = self.site(Call::WriteBack);
        let mut state = self.inside("write_back", offset, len as usize);
        if state.drops(site) {
            return;
        }
        state.counters.write_back_lines += units(offset, len, 64);
        state.record(site, Action::WriteBack { device: self.device, offset, len }, &[]);
    }

    /// Completes the calling thread's write-backs and non-temporal stores, on all devices.
    #[track_caller]
    pub fn fence(&self) {
        let site = self.site(Call::Fence);
        let mut state = self.world.lock();
        if state.drops(site) {
            return;
        }
        state.counters.fences += 1;
        state.record(site, Action::Fence, &[]);
    }

    /// Reads what is visible (not what is durable).
    ///
    /// # Panics
    /// Beyond the device's end, as a mapping would fault.
    #[track_caller]
    pub fn load(&self, offset: u64, target: &mut [u8]) {
        let mut state = self.inside("load", offset, target.len());
        if let Some(reads) = &mut state.reads {
            reads.bytes(self.device, offset, target.len() as u64);
        }
        state.devices[self.device as usize].content.read(offset, target);
    }

    /// Reads up to the end of the file; returns how many bytes there were.
    pub fn pread(&self, offset: u64, target: &mut [u8]) -> usize {
        let mut state = self.world.lock();
        let n =
            state.devices[self.device as usize].content.len().saturating_sub(offset).min(target.len() as u64);
        if let Some(reads) = &mut state.reads {
            reads.size(self.device);
            reads.bytes(self.device, offset, n);
        }
        state.devices[self.device as usize].content.read(offset, &mut target[..n as usize]);
        n as usize
    }

    /// Writes through the file, which grows where `bytes` reach beyond its end. On memory (a DAX file), what was
    /// written is uncertain word by word until [`Memory::fdatasync`].
    #[track_caller]
    pub fn pwrite(&self, offset: u64, bytes: &[u8]) {
        let site = self.site(Call::Pwrite);
        let mut state = self.world.lock();
        let end = offset + bytes.len() as u64;
        let device = self.device as usize;
        if let Some(reads) = &mut state.reads {
            reads.size(self.device);
        }
        if end > state.devices[device].content.len() {
            state.devices[device].content.set_len(end);
            state.record(site, Action::SetLen { device: self.device, len: end }, &[]);
        }
        state.counters.pwrites += 1;
        state.counters.pwrite_bytes += bytes.len() as u64;
        state.devices[device].content.write(offset, bytes);
        let len = bytes.len() as u64;
        state.record(site, Action::Pwrite { device: self.device, offset, len }, bytes);
    }

    /// Makes durable what was written to this device, its size included. On memory (a DAX file) also what was
    /// stored through the cache, and the calling thread's non-temporal stores.
    ///
    /// # Errors
    /// `EIO`, where [`World::fail_fdatasync`] or [`Faults`](super::Faults) asked for it.
    #[track_caller]
    pub fn fdatasync(&self) -> io::Result<()> {
        const EIO: i32 = 5;
        let site = self.site(Call::Fdatasync);
        let mut state = self.world.lock();
        if state.drops(site) {
            return Ok(());
        }
        state.counters.fdatasyncs += 1;
        let succeeded = state.failing != Some(state.counters.fdatasyncs);
        state.record(site, Action::Fdatasync { device: self.device, succeeded }, &[]);
        if succeeded { Ok(()) } else { Err(io::Error::from_raw_os_error(EIO)) }
    }

    /// Changes the file's size; a part that is added reads as zero.
    #[track_caller]
    pub fn set_len(&self, len: u64) {
        let site = self.site(Call::SetLen);
        let mut state = self.world.lock();
        state.counters.set_lens += 1;
        state.devices[self.device as usize].content.set_len(len);
        state.record(site, Action::SetLen { device: self.device, len }, &[]);
    }

    /// The size, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a device's size, which is seldom zero")]
    pub fn len(&self) -> u64 {
        let mut state = self.world.lock();
        if let Some(reads) = &mut state.reads {
            reads.size(self.device);
        }
        state.devices[self.device as usize].content.len()
    }
}

fn units(offset: u64, len: u64, size: u64) -> u64 {
    if len == 0 { 0 } else { (offset + len - 1) / size - offset / size + 1 }
}

/// Records which steps of a workload began and which were acknowledged: what a check is told.
#[derive(Clone, Debug)]
pub struct Acks {
    pub(crate) world: World,
}

impl Acks {
    /// The recorder of a machine that is not explored (of [`explore`](super::explore)'s, it hands it over).
    pub fn of(world: &World) -> Self {
        Acks { world: world.clone() }
    }

    /// The step may have effects from now on: a crash finds it in flight.
    #[track_caller]
    pub fn begin(&self, step: u64) {
        self.world.step(Action::Begin { step });
    }

    /// The step is acknowledged: a crash must not lose it.
    #[track_caller]
    pub fn done(&self, step: u64) {
        self.world.step(Action::Done { step });
    }
}

thread_local! {
    static SCRIPTED: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Until the guard is dropped, what this real thread does counts as done by simulated thread `number`: a
/// deterministic interleaving of several threads, written down in one.
#[must_use = "the thread is another one only while the guard lives"]
pub fn as_thread(number: u32) -> ThreadScope {
    ThreadScope { previous: SCRIPTED.replace(Some(number & !Thread::SCRIPTED)), here: PhantomData }
}

/// See [`as_thread`].
#[derive(Debug)]
pub struct ThreadScope {
    previous: Option<u32>,
    here: PhantomData<*const ()>, // stays on the real thread
}

impl Drop for ThreadScope {
    fn drop(&mut self) {
        SCRIPTED.set(self.previous);
    }
}
