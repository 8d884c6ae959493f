// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several files as one: the heap is interleaved over them, everything below the heap lies in the first.
//!
//! - **Layout** offsets are virtual: those of a pool in one file. Below heap_start: device 0, at the same offset. Heap byte h:
//!   device (h / stripe) mod devices, at heap_start + h / (stripe · devices) · stripe + h mod stripe. Each file starts with the
//!   pool's header, with its own device index; between header and heap_start files from 1 on have a hole
//! - **Order** [`Striped::harden_log`] synchronises the log's device only: what a commit needs. [`Striped::harden`] synchronises
//!   every device that has something pending; it comes before the log forgets a record, so recovery data is kept until all
//!   devices have what it says (delayed synchronisation). Headers: all others are durable before device 0's
//! - **Rule** a device is marked pending after a store, and unmarked before its sync, under the device's lock. A thread that
//!   finds it unmarked knows that its stores are durable. A device whose sync has failed never counts as clean again
//! - **Source** NearPM §5 (PPO invariants 3 and 4 over several devices)
//! - **Not here** which file is which device, and whether they belong together: `interleave`

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{Counters, Guarantee, Mapped, Medium};
use crate::error::{Error, Result};
use crate::layout::{HEADER_BYTES, Header, LANES_START, SLAB_BYTES};

/// Files that a pool can have.
pub(crate) const DEVICES_MAX: usize = 64;
/// The smallest stripe.
pub(crate) const STRIPE_MIN: u64 = 64 << 10;
/// The largest one.
pub(crate) const STRIPE_MAX: u64 = 1 << 40;

/// How the heap is divided over the files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    pub heap_start: u64,
    pub stripe: u64,
    pub devices: u64,
}

impl Geometry {
    /// The geometry that a pool's header describes.
    pub fn of(header: &Header) -> Result<Geometry> {
        if !stripe_fits(header.stripe_bytes) {
            return Err(Error::corrupt(format!("a stripe of {} bytes", header.stripe_bytes)));
        }
        Ok(Geometry {
            heap_start: header.heap_start,
            stripe: header.stripe_bytes,
            devices: u64::from(header.devices),
        })
    }

    /// Device and place of a byte, and the number of bytes that follow there.
    #[inline]
    pub fn place(&self, offset: u64) -> (usize, u64, u64) {
        let Some(heap) = offset.checked_sub(self.heap_start) else {
            return (0, offset, self.heap_start - offset);
        };
        let (stripe, inside) = (heap / self.stripe, heap % self.stripe);
        let local = self.heap_start + stripe / self.devices * self.stripe + inside;
        ((stripe % self.devices) as usize, local, self.stripe - inside)
    }

    /// Bytes that a device's file has when the pool has `bytes` in all.
    pub fn device_bytes(&self, device: u64, bytes: u64) -> u64 {
        let heap = bytes.saturating_sub(self.heap_start);
        let row = self.stripe * self.devices;
        let rest = (heap % row).saturating_sub(device * self.stripe).min(self.stripe);
        self.heap_start + heap / row * self.stripe + rest
    }
}

/// Returns true if a stripe can be that long: a power of two, so whole slabs.
pub(crate) fn stripe_fits(bytes: u64) -> bool {
    bytes.is_power_of_two() && bytes.is_multiple_of(SLAB_BYTES) && (STRIPE_MIN..=STRIPE_MAX).contains(&bytes)
}

#[derive(Debug)]
struct Device {
    medium: Medium,
    /// Something was stored since the last sync began.
    pending: AtomicBool,
    /// Held while it is synchronised; true when that has failed.
    failed: Mutex<bool>,
    syncs: AtomicU64,
}

/// See the module's header.
#[derive(Debug)]
pub struct Striped {
    devices: Vec<Device>,
    geometry: Geometry,
    length: AtomicU64,
    /// Every commit synchronises every device.
    every: bool,
}

impl Striped {
    /// Combines devices, in their order; each file is as long as its part of `bytes`.
    pub fn new(devices: Vec<Medium>, geometry: Geometry, bytes: u64, every: bool) -> Striped {
        let device = |medium| Device {
            medium,
            pending: AtomicBool::new(false),
            failed: Mutex::new(false),
            syncs: AtomicU64::new(0),
        };
        let devices = devices.into_iter().map(device).collect();
        Striped { devices, geometry, length: AtomicU64::new(bytes), every }
    }

    /// How the heap is divided over the files.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The file of a device, if it is one of the system.
    pub fn mapped(&self, device: usize) -> Option<&Mapped> {
        match &self.devices[device].medium {
            Medium::Mapped(mapped) => Some(mapped),
            _ => None,
        }
    }

    /// The files of the devices.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.devices.iter().flat_map(|device| device.medium.paths()).collect()
    }

    /// Syncs of each device since it was opened (store fences, where lines are durable, count for device 0).
    pub fn syncs(&self) -> Vec<u64> {
        self.devices.iter().map(|device| device.syncs.load(Ordering::Relaxed)).collect()
    }

    /// Calls `each` with device, place and part of [0, bytes) for every piece that lies together.
    #[inline]
    #[track_caller]
    fn pieces(
        &self,
        offset: u64,
        bytes: usize,
        mut each: impl FnMut(&Device, u64, std::ops::Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let mut at = 0;
        while at < bytes {
            let (device, place, left) = self.geometry.place(offset + at as u64);
            let end = bytes.min(at + usize::try_from(left).unwrap_or(usize::MAX));
            each(&self.devices[device], place, at..end)?;
            at = end;
        }
        Ok(())
    }

    pub(super) fn lost(&self) -> bool {
        self.devices.iter().any(|device| device.medium.lost())
    }

    /// Allocates a range of the log, which device 0 has.
    pub(super) fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        self.devices[0].medium.allocate(offset, bytes)
    }

    pub(super) fn allocate_fixed(&self, header: &Header) -> Result<()> {
        for (at, device) in self.devices.iter().enumerate() {
            let Medium::Mapped(mapped) = &device.medium else { continue };
            let start = if at == 0 { LANES_START } else { 2 * HEADER_BYTES };
            mapped.allocate_all(&[(0, start), (header.heap_start, mapped.len())])?;
        }
        Ok(())
    }

    pub(super) fn pages(&self) -> bool {
        self.devices[0].medium.pages()
    }

    pub(super) fn len(&self) -> u64 {
        self.length.load(Ordering::Acquire)
    }

    pub(super) fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.pieces(offset, target.len(), |device, place, part| device.medium.read(place, &mut target[part]))
    }

    pub(super) fn load(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.pieces(offset, target.len(), |device, place, part| device.medium.load(place, &mut target[part]))
    }

    #[track_caller]
    #[inline]
    pub(super) fn append(&self, offset: u64, source: &[u8]) -> Result<()> {
        self.pieces(offset, source.len(), |device, place, part| {
            device.medium.append(place, &source[part], &mut Counters::default())?;
            device.pending.store(true, Ordering::Release);
            Ok(())
        })
    }

    /// Records lie in lanes, and lanes on device 0.
    #[track_caller]
    #[inline]
    pub(super) fn append_record(&self, offset: u64, record: &mut [u8], salt: u32) -> Result<()> {
        debug_assert!(offset + record.len() as u64 <= self.geometry.heap_start);
        let log = &self.devices[0];
        log.medium.append_record(offset, record, salt, &mut Counters::default())?;
        log.pending.store(true, Ordering::Release);
        Ok(())
    }

    #[track_caller]
    #[inline]
    pub(super) fn store(&self, offset: u64, source: &[u8]) -> Result<()> {
        self.pieces(offset, source.len(), |device, place, part| {
            device.medium.store(place, &source[part], &mut Counters::default())?;
            device.pending.store(true, Ordering::Release);
            Ok(())
        })
    }

    #[track_caller]
    #[inline]
    pub(super) fn write_back(&self, offset: u64, bytes: u64) {
        let done = self.pieces(offset, bytes as usize, |device, place, part| {
            device.medium.write_back(place, part.len() as u64, &mut Counters::default());
            Ok(())
        });
        debug_assert!(done.is_ok(), "write-backs do not fail");
    }

    /// Stores the pool's header in every file, in device 0's last: when that one is durable, the others are.
    #[track_caller]
    pub(super) fn store_header(&self, header: &Header, place: u64, counters: &mut Counters) -> Result<()> {
        let offset = place % 2 * HEADER_BYTES;
        let store = |at: usize| {
            let bytes = Header { device: at as u16, ..*header }.encode();
            let device = &self.devices[at];
            device.medium.store(offset, &bytes, &mut Counters::default())?;
            device.medium.write_back(offset, bytes.len() as u64, &mut Counters::default());
            device.pending.store(true, Ordering::Release);
            Ok(())
        };
        (1..self.devices.len()).try_for_each(store)?;
        counters.hardens += self.harden()?;
        store(0)
    }

    /// Syncs one file, unless that was done since the caller's last store; returns the number of syncs, 0 or 1.
    #[track_caller]
    fn sync(&self, at: usize, anyway: bool) -> Result<u64> {
        let device = &self.devices[at];
        let mut failed = device.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if *failed {
            return Err(Error::Stopped { reason: format!("device {at} has failed before") });
        }
        if !device.pending.swap(false, Ordering::AcqRel) && !anyway {
            return Ok(0);
        }
        *failed = true; // unless what follows comes back, in whatever way
        device.medium.harden(&mut Counters::default()).map_err(|error| match error {
            Error::Stopped { reason } => Error::Stopped { reason: format!("device {at}: {reason}") },
            other => other,
        })?;
        *failed = false;
        device.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(1)
    }

    /// Fences once for all devices whose lines are durable: a fence is the processor's, not a device's.
    #[track_caller]
    fn fence(&self) -> Result<u64> {
        match self.devices.iter().find(|device| !device.medium.pages()) {
            Some(device) => {
                device.medium.harden(&mut Counters::default())?;
                device.syncs.fetch_add(1, Ordering::Relaxed);
                Ok(1)
            }
            None => Ok(0),
        }
    }

    /// Makes durable what this thread stored, on any device; returns the number of fences and syncs.
    #[track_caller]
    pub(super) fn harden(&self) -> Result<u64> {
        let mut count = self.fence()?;
        for (at, device) in self.devices.iter().enumerate() {
            if device.medium.pages() {
                count += self.sync(at, false)?;
            }
        }
        Ok(count)
    }

    /// Makes durable what this thread appended to the log; returns the number of fences and syncs.
    #[track_caller]
    #[inline]
    pub(super) fn harden_log(&self) -> Result<u64> {
        if self.every {
            let mut count = self.fence()?;
            for at in (0..self.devices.len()).filter(|at| self.devices[*at].medium.pages()) {
                count += self.sync(at, true)?;
            }
            return Ok(count);
        }
        if self.pages() { self.sync(0, false) } else { self.fence() }
    }

    #[track_caller]
    pub(super) fn grow(&self, bytes: u64) -> Result<()> {
        for (at, device) in self.devices.iter().enumerate() {
            device.medium.grow(self.geometry.device_bytes(at as u64, bytes))?;
            device.pending.store(true, Ordering::Release);
        }
        self.length.fetch_max(bytes, Ordering::AcqRel);
        Ok(())
    }

    /// The weakest of its devices' guarantees.
    pub(super) fn guarantee(&self) -> Guarantee {
        let of = |device: &Device| device.medium.guarantee();
        let weakest =
            self.devices.iter().map(of).min_by_key(|one| one.survives).expect("one device at least");
        Guarantee {
            reason: format!("the weakest of {} devices: {}", self.devices.len(), weakest.reason),
            ..weakest
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_place_and_files_are_as_long_as_they_must_be() {
        for devices in [2u64, 3, 5] {
            let geometry = Geometry { heap_start: 4096 * 30, stripe: 64 << 10, devices };
            for slabs in [6, 7, 8, 12, 13, 4 * devices, 4 * devices + 1, 100] {
                let bytes = geometry.heap_start + slabs * SLAB_BYTES;
                let mut lengths = vec![geometry.heap_start; devices as usize];
                for slab in 0..slabs {
                    let (device, place, left) = geometry.place(geometry.heap_start + slab * SLAB_BYTES);
                    assert_eq!(place, lengths[device], "slabs of a device lie side by side");
                    assert!(left >= SLAB_BYTES);
                    lengths[device] += SLAB_BYTES;
                }
                for (device, length) in lengths.iter().enumerate() {
                    assert_eq!(geometry.device_bytes(device as u64, bytes), *length, "{devices} {slabs}");
                }
            }
            assert_eq!(geometry.place(4096), (0, 4096, geometry.heap_start - 4096));
            let inside = geometry.heap_start + (64 << 10) * (devices + 1) + 100;
            let place = geometry.heap_start + (64 << 10) + 100;
            assert_eq!(geometry.place(inside), (1, place, (64 << 10) - 100));
        }
    }

    #[test]
    fn stripes_are_powers_of_two_and_not_too_small() {
        assert!(stripe_fits(64 << 10) && stripe_fits(1 << 20));
        assert!(!stripe_fits(32 << 10) && !stripe_fits(96 << 10) && !stripe_fits(0));
        assert!(!stripe_fits(STRIPE_MAX * 2));
    }
}
