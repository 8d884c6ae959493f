// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The calls on a device: a structure under test uses them instead of storing, fencing, writing and syncing.
//!
//! - **Flow** check the bounds ─▶ change what loads see ─▶ count ─▶ record
//! - **Order** each call is one event, under the machine's lock
//! - **Not here** the durability of a call: `machine`
use std::io;
use std::panic::Location;
use std::sync::MutexGuard;

use super::trace::{Action, Call, Site};
use super::world::{Mode, State, World};

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
    pub(super) fn new(world: World, device: u32) -> Self {
        Memory { world, device, caller: None }
    }

    /// The same device; calls through this handle are recorded as coming from `location`.
    pub fn called_from(&self, location: &'static Location<'static>) -> Memory {
        Memory { caller: Some(location), ..self.clone() }
    }

    /// How the device loses what was not made durable.
    pub fn mode(&self) -> Mode {
        self.world.lock().devices[self.device as usize].mode
    }

    /// Returns true if the log of a pool on this device is written past the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.world.lock().devices[self.device as usize].is_direct
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
        self.sync(None)
    }

    /// Makes durable what was written to a part of this device, its size included: what a write with `O_DSYNC` does at its end.
    ///
    /// # Errors
    /// As [`Memory::fdatasync`].
    #[track_caller]
    pub fn fdatasync_range(&self, offset: u64, len: u64) -> io::Result<()> {
        self.sync(Some((offset, len)))
    }

    #[track_caller]
    fn sync(&self, within: Option<(u64, u64)>) -> io::Result<()> {
        const EIO: i32 = 5;
        let site = self.site(Call::Fdatasync);
        let mut state = self.world.lock();
        if state.drops(site) {
            return Ok(());
        }
        state.counters.fdatasyncs += 1;
        let succeeded = state.failing != Some(state.counters.fdatasyncs);
        state.record(site, Action::Fdatasync { device: self.device, succeeded, within }, &[]);
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
