// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file of the simulator: the same calls as of a real one, on a device that crashes.
//!
//! - **Flow** lines: append is a non-temporal store, harden a fence. Pages: append is pwrite, harden is fdatasync; past the page cache, append
//!   is pwrite of whole sectors and a sync of these. All: store is a store (through the mapping), read a load
//! - **Order** what each call makes durable is the device's (`sim`); calls are recorded as those of the pool's own code
//! - **Owner** a pool that was stopped half-way may be interleaved: see [`Simulated::interleave`]

use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};

use super::detect::{Guarantee, Survives};
use crate::error::{Error, Result};
use crate::options::Domain;
use crate::sim::{Memory, Mode};

/// The least that a file's log is written in.
const SECTOR_BYTES: u64 = 512;

/// Work of another thread, done before a harden.
type Work = Box<dyn FnOnce() + Send>;

/// See the module's header.
pub struct Simulated {
    memory: Memory,
    mode: Mode,
    is_direct: bool,
    /// Hardens to come before the work is done, and the work.
    other: Mutex<Option<(u64, Work)>>,
}

impl fmt::Debug for Simulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulated").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl Simulated {
    /// The device, as a pool's file.
    pub fn new(memory: Memory) -> Simulated {
        let (mode, is_direct) = (memory.mode(), memory.is_direct());
        Simulated { memory, mode, is_direct, other: Mutex::new(None) }
    }

    /// Lets `work` happen right before the `nth` harden from now, from 1: what another thread gets done while this one has
    /// written and not hardened.
    pub fn interleave(&self, nth: u64, work: Work) {
        *self.other.lock().unwrap_or_else(PoisonError::into_inner) = Some((nth, work));
    }

    fn due(&self) -> Option<Work> {
        let mut other = self.other.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, _) = other.as_mut()?;
        *left -= 1;
        if *left == 0 { other.take().map(|(_, work)| work) } else { None }
    }

    pub(super) fn pages(&self) -> bool {
        self.mode == Mode::File
    }

    pub(super) fn len(&self) -> u64 {
        self.memory.len()
    }

    #[track_caller]
    pub(super) fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        if self.memory.pread(offset, target) < target.len() {
            return Err(Error::corrupt("the simulated file ends before what is read"));
        }
        Ok(())
    }

    #[track_caller]
    pub(super) fn append(&self, offset: u64, source: &[u8]) -> Result<()> {
        if self.is_direct {
            if let Some(work) = self.due() {
                work();
            }
            // The bytes of the sector before them stay; those behind them are lost.
            let end = offset + source.len() as u64;
            let spoilt = vec![0; (end.next_multiple_of(SECTOR_BYTES) - end) as usize];
            let bytes = [source, &spoilt].concat();
            self.memory.pwrite(offset, &bytes);
            return self.memory.fdatasync_range(offset, bytes.len() as u64).map_err(stopped);
        }
        if self.pages() {
            self.memory.pwrite(offset, source);
        } else {
            self.memory.nt_store(offset, source);
        }
        Ok(())
    }

    #[track_caller]
    pub(super) fn store(&self, offset: u64, source: &[u8]) -> Result<()> {
        self.memory.store(offset, source);
        Ok(())
    }

    #[track_caller]
    pub(super) fn write_back(&self, offset: u64, bytes: u64) {
        if self.mode == Mode::Lines {
            self.memory.write_back(offset, bytes);
        }
    }

    #[track_caller]
    pub(super) fn harden(&self) -> Result<()> {
        if let Some(work) = self.due() {
            work();
        }
        if !self.pages() {
            self.memory.fence();
            return Ok(());
        }
        self.sync()
    }

    /// As [`Simulated::harden`], for the log alone.
    #[track_caller]
    pub(super) fn harden_log(&self) -> Result<()> {
        if self.is_direct { Ok(()) } else { self.harden() }
    }

    /// Bytes behind the log's end that an append may overwrite.
    pub(super) fn log_gap(&self) -> u64 {
        if self.is_direct { SECTOR_BYTES } else { 0 }
    }

    #[track_caller]
    fn sync(&self) -> Result<()> {
        self.memory.fdatasync().map_err(stopped)
    }

    #[track_caller]
    pub(super) fn grow(&self, bytes: u64) -> Result<()> {
        if bytes <= self.len() {
            return Ok(());
        }
        self.memory.set_len(bytes);
        self.sync()
    }

    pub(super) fn guarantee(&self) -> Guarantee {
        let (domain, by) = match self.mode {
            Mode::File => (Domain::Pages, "fdatasync"),
            Mode::Lines => (Domain::Lines, "write-back of lines + sfence"),
            Mode::Eadr => (Domain::Lines, "sfence (eADR)"),
        };
        Guarantee { survives: Survives::PowerFailure, domain, by, reason: "simulated".to_owned() }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn stopped(error: io::Error) -> Error {
    Error::Stopped { reason: format!("fdatasync: {error}") }
}
