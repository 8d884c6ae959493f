// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the kernel's description of DSA devices and their work queues.
//!
//! - **Flow** `sys/bus/dsa/devices/{dsaN,wqN.M}` below a root folder (`/` except in tests) ──▶ [`DsaInventory`] ──▶ queues in the order in
//!   which to try them.
//! - **Layout** `op_cap` and `op_config` are 256 bits as hexadecimal groups, the highest first, separated by commas. A kernel that
//!   refuses BATCH to unprivileged programs leaves out its bit.
//! - **Order** queues of the CPU's own memory node come first; among these, shared ones come before dedicated ones (which have one user
//!   at a time).
//! - **Not here** opening a queue: an entry tells how the queue is configured, not that it works.
//!
//! A field that cannot be read counts as absent, or gets the most restrictive value.

use memlift_spec::Opcode;
use std::fs;
use std::path::{Path, PathBuf};

/// Sharing of a queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Mode {
    /// Any number of processes may use the queue; a full queue refuses descriptors (ENQCMD).
    Shared,
    /// One user has the queue and must count its descriptors (MOVDIR64B).
    Dedicated,
}

/// A DSA device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Name of the device, `dsaN`.
    pub name: String,
    /// True if its state is `enabled`.
    pub enabled: bool,
    /// True if the device accepts addresses of a process.
    pub pasid: bool,
    /// Memory node of the device, if the kernel tells it.
    pub node: Option<u32>,
    /// GENCAP register: capabilities of the device besides its operations.
    pub gen_cap: u64,
    /// Bitmap in which bit n is set if the device has operation n.
    pub opcodes: [u64; 4],
    /// True if its queues can be given sizes; a device of a virtual machine may have them fixed.
    pub configurable: bool,
    /// Entries that its queues have together; 0 if the kernel does not tell.
    pub entries: u32,
    /// Most members of one batch; 0 if the kernel does not tell.
    pub batch_max: u32,
    /// Most bytes of one descriptor; 0 if the kernel does not tell.
    pub transfer_bytes_max: u64,
}

/// A work queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkQueue {
    /// Name of the queue, `wqN.M`.
    pub name: String,
    /// Name of its device, `dsaN`.
    pub device: String,
    /// True if its state is `enabled`.
    pub enabled: bool,
    /// Use of the queue, as the kernel reports it: `user`, `kernel`, `none`.
    pub kind: String,
    /// Shared or dedicated.
    pub mode: Mode,
    /// Number of descriptors that the queue holds.
    pub size: u32,
    /// Number of descriptors from which on a shared queue refuses those of programs; 0 if the kernel does not tell.
    pub threshold: u32,
    /// Most bytes of one descriptor.
    pub transfer_bytes_max: u64,
    /// Most members of one batch; 0 or 1 if there are no batches.
    pub batch_max: u32,
    /// True if a descriptor may wait for a page fault (BLOCK_ON_FAULT).
    pub blocks_on_fault: bool,
    /// True if the device supports the cache hint.
    pub cache_control: bool,
    /// True if the target of a copy may overlap its source.
    pub overlap: bool,
    /// Bitmap in which bit n is set if operation n may be submitted to the queue.
    pub opcodes: [u64; 4],
    /// Memory node of the device.
    pub node: Option<u32>,
    /// Path of the queue's file, `/dev/dsa/wqN.M`.
    pub path: PathBuf,
}

/// All devices and queues that the kernel lists.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DsaInventory {
    /// True if the bus exists, that is, the driver is loaded.
    pub driver: bool,
    /// All devices, sorted by name.
    pub devices: Vec<Device>,
    /// All work queues, sorted by name.
    pub queues: Vec<WorkQueue>,
}

/// Bits of the GENCAP register.
const OVERLAP: u64 = 1 << 1;
const CACHE_CONTROL: u64 = 1 << 2;

impl WorkQueue {
    /// Returns true if `opcode` may be submitted to the queue.
    pub const fn supports(&self, opcode: Opcode) -> bool {
        self.opcodes[(opcode.0 >> 6) as usize] >> (opcode.0 & 63) & 1 == 1
    }

    /// Returns how many descriptors of a program the queue holds at most. Programs submit through the limited portal, for which a
    /// shared queue is full once it holds `threshold` descriptors, whoever submitted them.
    pub const fn room(&self) -> u32 {
        match self.mode {
            Mode::Shared if self.threshold > 0 && self.threshold < self.size => self.threshold,
            _ => self.size,
        }
    }

    /// Returns true if the queue is configured for programs.
    pub fn is_for_users(&self) -> bool {
        self.enabled && self.kind == "user" && self.size > 0
    }
}

impl DsaInventory {
    /// Reads the sysfs below `root`.
    pub fn discover(root: &Path) -> DsaInventory {
        let folder = root.join("sys/bus/dsa/devices");
        let Ok(entries) = fs::read_dir(&folder) else {
            return DsaInventory { driver: root.join("sys/bus/dsa").is_dir(), ..DsaInventory::default() };
        };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        let attributes = |name: &String| Attributes(folder.join(name));
        let devices: Vec<Device> = names
            .iter()
            .filter(|name| number_after("dsa", name).is_some())
            .map(|name| device(name, &attributes(name)))
            .collect();
        let queues = names.iter().filter_map(|name| {
            let owner = format!("dsa{}", name.strip_prefix("wq")?.split('.').next()?);
            // Queues of the analytics accelerator (IAA) have the same names, but another device.
            let device = devices.iter().find(|device| device.name == owner)?;
            Some(queue(name, device, &attributes(name), root))
        });
        DsaInventory { driver: true, queues: queues.collect(), devices: devices.clone() }
    }

    /// Returns the queues that programs may use, in the order in which to try them on a CPU of memory node `node`.
    pub fn candidates(&self, node: Option<u32>) -> Vec<&WorkQueue> {
        let works = |name: &str| self.devices.iter().any(|d| d.name == name && d.enabled && d.pasid);
        let mut queues: Vec<&WorkQueue> =
            self.queues.iter().filter(|queue| queue.is_for_users() && works(&queue.device)).collect();
        let far = |queue: &WorkQueue| node.is_some() && queue.node.is_some() && queue.node != node;
        queues.sort_by_key(|queue| (far(queue), queue.mode, std::cmp::Reverse(queue.room())));
        queues
    }
}

/// Returns the number after `prefix`, if the rest of the name is a number.
fn number_after(prefix: &str, name: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.parse().ok()
}

/// A folder of attributes.
struct Attributes(PathBuf);

impl Attributes {
    fn text(&self, name: &str) -> Option<String> {
        Some(fs::read_to_string(self.0.join(name)).ok()?.trim().to_owned())
    }

    fn number(&self, name: &str) -> Option<u64> {
        let text = self.text(name)?;
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// A number of entries or members, 0 without the attribute.
    fn count(&self, name: &str) -> u32 {
        self.number(name).unwrap_or(0).min(1 << 16) as u32
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.text(name).is_some_and(|text| text == value)
    }

    fn opcodes(&self, name: &str) -> Option<[u64; 4]> {
        bitmap(&self.text(name)?)
    }
}

/// Parses a bitmap in the kernel's format `%*pb`; older kernels print four numbers with `0x`, the lowest first.
fn bitmap(text: &str) -> Option<[u64; 4]> {
    let mut words = [0; 4];
    if text.contains("0x") {
        for (word, digits) in words.iter_mut().zip(text.split_whitespace()) {
            *word = u64::from_str_radix(digits.strip_prefix("0x")?, 16).ok()?;
        }
        return Some(words);
    }
    let groups: Vec<&str> = text.split(',').collect();
    if groups.is_empty() || groups.len() > 8 {
        return None;
    }
    for (place, digits) in groups.iter().rev().enumerate() {
        words[place / 2] |= u64::from(u32::from_str_radix(digits, 16).ok()?) << (place % 2 * 32);
    }
    Some(words)
}

fn device(name: &str, attributes: &Attributes) -> Device {
    Device {
        name: name.to_owned(),
        enabled: attributes.is("state", "enabled"),
        pasid: attributes.is("pasid_enabled", "1"),
        // -1 means that the machine has one node, or that the node is unknown.
        node: attributes.text("numa_node").and_then(|text| text.parse().ok()),
        gen_cap: attributes.number("gen_cap").unwrap_or(0),
        opcodes: attributes.opcodes("op_cap").unwrap_or_default(),
        configurable: !attributes.is("configurable", "0"),
        entries: attributes.count("max_work_queues_size"),
        batch_max: attributes.count("max_batch_size"),
        transfer_bytes_max: attributes.number("max_transfer_size").unwrap_or(0),
    }
}

fn queue(name: &str, device: &Device, attributes: &Attributes, root: &Path) -> WorkQueue {
    let configured = attributes.opcodes("op_config").unwrap_or(device.opcodes);
    let mut opcodes = [0; 4];
    for (both, (configured, has)) in opcodes.iter_mut().zip(configured.iter().zip(device.opcodes)) {
        *both = configured & has;
    }
    WorkQueue {
        name: name.to_owned(),
        device: device.name.clone(),
        enabled: attributes.is("state", "enabled"),
        kind: attributes.text("type").unwrap_or_default(),
        mode: if attributes.is("mode", "shared") { Mode::Shared } else { Mode::Dedicated },
        size: attributes.count("size"),
        threshold: attributes.count("threshold"),
        transfer_bytes_max: attributes.number("max_transfer_size").unwrap_or(0),
        batch_max: attributes.count("max_batch_size"),
        blocks_on_fault: attributes.is("block_on_fault", "1"),
        cache_control: device.gen_cap & CACHE_CONTROL != 0,
        overlap: device.gen_cap & OVERLAP != 0,
        opcodes,
        node: device.node,
        path: root.join("dev/dsa").join(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = root.path().join("sys/bus/dsa/devices").join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
            fs::write(path, text).expect("writable");
        }
        root
    }

    /// The attributes that a Sapphire Rapids device has, with the GENCAP of idxd-config issue 40.
    const CAPABLE: &str = "00000000,00000000,00000000,00000000,00000000,00000000,00000001,003f03ff\n";

    fn two_nodes() -> tempfile::TempDir {
        let mut files = Vec::new();
        for (device, node) in [("dsa0", "0\n"), ("dsa2", "1\n")] {
            files.extend([
                (format!("{device}/state"), "enabled\n"),
                (format!("{device}/pasid_enabled"), "1\n"),
                (format!("{device}/numa_node"), node),
                (format!("{device}/gen_cap"), "0x40915f0107\n"),
                (format!("{device}/op_cap"), CAPABLE),
            ]);
        }
        for (queue, mode, size, kind, state) in [
            ("wq0.0", "dedicated\n", "32\n", "user\n", "enabled\n"),
            ("wq0.1", "shared\n", "16\n", "user\n", "enabled\n"),
            ("wq0.2", "shared\n", "64\n", "kernel\n", "enabled\n"),
            ("wq0.3", "shared\n", "64\n", "user\n", "disabled\n"),
            ("wq2.0", "shared\n", "64\n", "user\n", "enabled\n"),
            ("wq1.0", "shared\n", "64\n", "user\n", "enabled\n"),
        ] {
            files.extend([
                (format!("{queue}/mode"), mode),
                (format!("{queue}/size"), size),
                (format!("{queue}/type"), kind),
                (format!("{queue}/state"), state),
                (format!("{queue}/max_transfer_size"), "2097152\n"),
                (format!("{queue}/max_batch_size"), "32\n"),
                (format!("{queue}/block_on_fault"), "1\n"),
            ]);
        }
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        tree(&files)
    }

    #[test]
    fn queues_of_this_node_come_first_and_those_for_others_never() {
        let root = two_nodes();
        let machine = DsaInventory::discover(root.path());
        let names =
            |node| machine.candidates(node).iter().map(|queue| queue.name.clone()).collect::<Vec<_>>();
        // wq1.0 belongs to a device that is not a DSA.
        assert_eq!(names(Some(0)), ["wq0.1", "wq0.0", "wq2.0"]);
        assert_eq!(names(Some(1)), ["wq2.0", "wq0.1", "wq0.0"]);
        assert_eq!(names(None), ["wq2.0", "wq0.1", "wq0.0"]);
    }

    #[test]
    fn limits_are_read_and_what_is_missing_is_narrow() {
        let root = two_nodes();
        let machine = DsaInventory::discover(root.path());
        let queue = &machine.queues[0];
        assert_eq!((queue.name.as_str(), queue.mode, queue.size), ("wq0.0", Mode::Dedicated, 32));
        assert_eq!((queue.transfer_bytes_max, queue.batch_max), (2 << 20, 32));
        assert!(queue.blocks_on_fault && queue.cache_control && queue.overlap);
        assert!(queue.supports(Opcode::MEMMOVE) && queue.supports(Opcode::COPY_CRC));
        assert!(queue.supports(Opcode::CACHE_FLUSH) && !queue.supports(Opcode::SEAL));
        let bare = tree(&[("dsa0/state", "enabled\n"), ("wq0.0/state", "enabled\n")]);
        let machine = DsaInventory::discover(bare.path());
        assert!(!machine.queues[0].supports(Opcode::NOOP) && !machine.queues[0].overlap);
        assert!(machine.candidates(None).is_empty());
    }

    #[test]
    fn a_shared_queue_is_full_for_programs_at_its_threshold() {
        let root = two_nodes();
        for (queue, threshold) in [("wq0.1", "12\n"), ("wq0.0", "0\n"), ("wq2.0", "70\n")] {
            fs::write(root.path().join("sys/bus/dsa/devices").join(queue).join("threshold"), threshold)
                .unwrap();
        }
        let machine = DsaInventory::discover(root.path());
        let room = |name: &str| machine.queues.iter().find(|queue| queue.name == name).unwrap().room();
        assert_eq!(["wq0.1", "wq0.0", "wq2.0"].map(room), [12, 32, 64]);
    }

    #[test]
    fn a_queue_takes_no_more_than_it_is_configured_for() {
        let root = two_nodes();
        let config = "00000000,00000000,00000000,00000000,00000000,00000000,00000001,0000000d\n";
        fs::write(root.path().join("sys/bus/dsa/devices/wq0.1/op_config"), config).unwrap();
        let machine = DsaInventory::discover(root.path());
        let queue = machine.queues.iter().find(|queue| queue.name == "wq0.1").unwrap();
        let known = [Opcode::NOOP, Opcode::BATCH, Opcode::DRAIN, Opcode::MEMMOVE, Opcode::FILL];
        assert_eq!(known.map(|opcode| queue.supports(opcode)), [true, false, true, true, false]);
    }

    #[test]
    fn bitmaps_of_every_kernel_are_read() {
        assert_eq!(bitmap("1,003f03ff"), Some([0x1_003f_03ff, 0, 0, 0]));
        assert_eq!(bitmap("0x1003f03ff 0x2 0x0 0x0"), Some([0x1_003f_03ff, 2, 0, 0]));
        for nonsense in ["", "x", "1,,2", "1,2,3,4,5,6,7,8,9", "fffffffff"] {
            assert_eq!(bitmap(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_machine_without_the_driver_has_nothing() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(DsaInventory::discover(root.path()), DsaInventory::default());
        fs::create_dir_all(root.path().join("sys/bus/dsa/devices")).unwrap();
        assert!(DsaInventory::discover(root.path()).driver);
    }
}
