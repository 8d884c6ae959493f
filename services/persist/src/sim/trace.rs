// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The trace of a run: what it did to its devices, event by event, with thread and call site.
//!
//! - **Layout** events in the order in which they became visible; the bytes that they wrote lie in one arena beside
//! - **Not here** the part that survives a crash: `machine`
use std::fmt;
use std::panic::Location;

/// Kind of the call that an [`Event`] came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Call {
    /// A store through the cache.
    Store,
    /// A non-temporal store.
    NtStore,
    /// A write-back of cache lines (`clwb`).
    WriteBack,
    /// A store fence (`sfence`).
    Fence,
    /// A write through the file.
    Pwrite,
    /// A sync of the file's data.
    Fdatasync,
    /// A change of the file's size.
    SetLen,
    /// A step began, or was acknowledged.
    Step,
    /// The run declared a state of its own: [`World::settle`](super::World::settle) or
    /// [`World::recovered`](super::World::recovered).
    Mark,
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Call::Store => "store",
            Call::NtStore => "nt_store",
            Call::WriteBack => "write_back",
            Call::Fence => "fence",
            Call::Pwrite => "pwrite",
            Call::Fdatasync => "fdatasync",
            Call::SetLen => "set_len",
            Call::Step => "step",
            Call::Mark => "mark",
        }
    }
}

/// A place in the source that issues one kind of call. Two calls of different kinds on one line are two sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// The source file, as the compiler was given it.
    pub file: &'static str,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
    /// Kind of the call there.
    pub call: Call,
}

impl Site {
    pub(crate) fn new(location: &'static Location<'static>, call: Call) -> Self {
        Site { file: location.file(), line: location.line(), column: location.column(), call }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}:{}:{}", self.call.name(), self.file, self.line, self.column)
    }
}

/// Effect of an event. Devices are numbered as they were configured; offsets and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Bytes were stored through the cache.
    Store {
        /// The device's number.
        device: u32,
        /// The first byte's offset.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Bytes were stored past the cache.
    NtStore {
        /// The device's number.
        device: u32,
        /// The first byte's offset.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The lines that hold these bytes were written back.
    WriteBack {
        /// The device's number.
        device: u32,
        /// The first byte's offset.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The thread fenced, over all devices.
    Fence,
    /// Bytes were written through the file.
    Pwrite {
        /// The device's number.
        device: u32,
        /// The first byte's offset.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The file's data was synced.
    Fdatasync {
        /// The device's number.
        device: u32,
        /// True if it succeeded; if not, what was dirty is lost or not, and no longer dirty.
        succeeded: bool,
        /// First byte and length of the part that it was about; `None`: all.
        within: Option<(u64, u64)>,
    },
    /// The file's size changed.
    SetLen {
        /// The device's number.
        device: u32,
        /// The new size.
        len: u64,
    },
    /// A step began.
    Begin {
        /// The step's number.
        step: u64,
    },
    /// A step was acknowledged.
    Done {
        /// The step's number.
        step: u64,
    },
    /// Everything so far was declared durable.
    Settle,
    /// A recovery declared itself complete.
    Recovered,
}

/// One entry of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The simulated thread.
    pub thread: Thread,
    /// Where in the source.
    pub site: Site,
    /// Effect of the call.
    pub action: Action,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = format_args!("{}:{}:{}", self.site.file, self.site.line, self.site.column);
        let name = self.site.call.name();
        let thread = self.thread;
        match self.action {
            Action::Store { device, offset, len }
            | Action::NtStore { device, offset, len }
            | Action::WriteBack { device, offset, len }
            | Action::Pwrite { device, offset, len } => {
                write!(f, "{thread} {name} device {device}, {len} bytes at {offset:#x}, {at}")
            }
            Action::Fence => write!(f, "{thread} {name}, {at}"),
            Action::Fdatasync { device, succeeded, within } => {
                write!(f, "{thread} {name} device {device}")?;
                if let Some((offset, len)) = within {
                    write!(f, ", {len} bytes at {offset:#x}")?;
                }
                let end = if succeeded { "" } else { " FAILED (injected)" };
                write!(f, "{end}, {at}")
            }
            Action::SetLen { device, len } => {
                write!(f, "{thread} {name} device {device} to {len} bytes, {at}")
            }
            Action::Begin { step } => write!(f, "{thread} begins step {step}, {at}"),
            Action::Done { step } => write!(f, "{thread} acknowledges step {step}, {at}"),
            Action::Settle => write!(f, "{thread} all settled, {at}"),
            Action::Recovered => write!(f, "{thread} recovered, {at}"),
        }
    }
}

/// A simulated thread: a real one, or a number that [`as_thread`](super::as_thread) set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Thread(pub(crate) u32);

impl Thread {
    pub(crate) const SCRIPTED: u32 = 1 << 31;
}

impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 & Thread::SCRIPTED {
            0 => write!(f, "thread {}", self.0),
            _ => write!(f, "scripted thread {}", self.0 & !Thread::SCRIPTED),
        }
    }
}

/// Events, and the bytes that they wrote.
#[derive(Default)]
pub(crate) struct Trace {
    pub(crate) events: Vec<Event>,
    /// Beside each event: where its bytes begin in `bytes`.
    pub(crate) starts: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Trace {
    pub(crate) fn push(&mut self, event: Event, bytes: &[u8]) {
        self.events.push(event);
        self.starts.push(self.bytes.len());
        self.bytes.extend_from_slice(bytes);
    }
}
