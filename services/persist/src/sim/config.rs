// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Configuration of an exploration: the devices, how many images it may try, which faults and mutations it applies.
use super::finding::Replay;
use super::machine::Tear;
use super::trace::Site;
use super::world::Device;

/// Selects the calls of fdatasync in the workload that fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Faults {
    /// No call fails.
    #[default]
    None,
    /// The `n`-th, from 1, over all devices.
    Nth(u64),
    /// None at first; then the workload is run again for each call, with that one failing.
    Each,
}

/// How [`explore`](super::explore) goes about it.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) devices: Vec<Device>,
    pub(crate) seed: u64,
    pub(crate) exhaustive: u64,
    pub(crate) samples: u64,
    pub(crate) recovery_depth: u32,
    pub(crate) prune: bool,
    pub(crate) tear: Tear,
    pub(crate) faults: Faults,
    pub(crate) dropped: Vec<Site>,
    pub(crate) replay: Option<Replay>,
}

impl Config {
    /// A machine with this device: seed 0, exhaustive up to 4,096 images a crash point, 256 samples beyond, one
    /// crash in recovery, pruning, pieces of a store in any order, no faults.
    pub fn new(device: Device) -> Self {
        Config {
            devices: vec![device],
            seed: 0,
            exhaustive: 4096,
            samples: 256,
            recovery_depth: 1,
            prune: true,
            tear: Tear::default(),
            faults: Faults::default(),
            dropped: Vec::new(),
            replay: None,
        }
    }

    /// One more device: the next index.
    pub fn and(mut self, device: Device) -> Self {
        self.devices.push(device);
        self
    }

    /// Sets the seed of the random samples.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Up to how many images a crash point is explored exhaustively, and how many a structured set has beyond
    /// that. Crash points in recovery get a sixteenth.
    pub fn exhaustive(mut self, images: u64) -> Self {
        self.exhaustive = images;
        self
    }

    /// How many random images are tried where not all are. Crash points in recovery get an eighth.
    pub fn samples(mut self, images: u64) -> Self {
        self.samples = images;
        self
    }

    /// How often recovery itself is crashed in: 0 not at all, 1 once, 2 also the recovery from that, …
    pub fn recovery_depth(mut self, depth: u32) -> Self {
        self.recovery_depth = depth;
        self
    }

    /// If true, skips images that differ only in bytes that recovery did not read. Set it to false for a check that does not
    /// depend on the image alone.
    pub fn prune(mut self, prune: bool) -> Self {
        self.prune = prune;
        self
    }

    /// In which order the pieces of a long store become visible.
    pub fn tear(mut self, tear: Tear) -> Self {
        self.tear = tear;
        self
    }

    /// Has the log of pools on files written past the page cache: what is appended is durable at once, and makes nothing else durable.
    pub fn direct(mut self) -> Self {
        for device in &mut self.devices {
            device.is_direct = device.mode == super::Mode::File;
        }
        self
    }

    /// Selects the fdatasyncs that fail.
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// A mutation: the write-back, fence or fdatasync of this site does nothing, in the workload and in recovery.
    pub fn drop_site(mut self, site: Site) -> Self {
        self.dropped.push(site);
        self
    }

    /// Only this image, of a [`Finding`](super::Finding).
    pub fn replay(mut self, replay: Replay) -> Self {
        self.replay = Some(replay);
        self
    }
}
