// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One simulated machine: its devices, and the record of what was done to them.
//!
//! - **Flow** a call on [`Memory`] ─▶ what loads see changes ─▶ an event with thread and call site is recorded
//! - **Order** one lock; the order in which it is taken is the order in which stores become visible
//! - **Owner** a [`World`] and its [`Memory`]s are handles of the same machine; the last one frees it
//! - **Not here** what survives a crash (machine) and which crashes are tried (explore).
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard};

use super::memory::Memory;
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

/// A device of a [`World`]: its name in findings, its mode, and its first content, which is durable.
#[derive(Clone)]
pub struct Device {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) is_direct: bool,
    pub(crate) content: Pages,
}

impl Device {
    /// A device of `len` bytes of zero.
    pub fn new(name: &str, mode: Mode, len: u64) -> Self {
        Device { name: name.to_owned(), mode, is_direct: false, content: Pages::new(len) }
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

/// Cost of a run, so that a test can say "exactly one fence". A call that was dropped as a mutation is not counted.
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

    /// The cost since `earlier`.
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

pub(super) struct State {
    pub(super) devices: Vec<Device>,
    start: Vec<Pages>,
    trace: Trace,
    /// False for an image whose own crashes are not explored: nothing is kept.
    recording: bool,
    pub(super) reads: Option<Reads>,
    pub(super) counters: Counters,
    dropped: Vec<Site>,
    pub(super) failing: Option<u64>,
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

    pub(super) fn record(&mut self, site: Site, action: Action, bytes: &[u8]) {
        if self.recording {
            let thread = self.thread();
            self.trace.push(Event { thread, site, action }, bytes);
        }
    }

    pub(super) fn drops(&self, site: Site) -> bool {
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

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
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
        Memory::new(self.clone(), index as u32)
    }

    /// The cost of the run so far.
    pub fn counters(&self) -> Counters {
        self.lock().counters
    }

    /// The events of the run so far.
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

/// The start of a run and its trace: with these, any crash of it can be made.
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
