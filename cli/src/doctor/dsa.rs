// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Intel DSA: checks if this program can use it, and finds the reason if it cannot.
//!
//! - **Flow** device on the bus? ─▶ driver? ─▶ device enabled, with PASID? ─▶ an enabled queue for user space? ─▶ permission to open it?
//!   ─▶ kind of portal? ─▶ near this CPU? ─▶ does it answer a NOOP (sent by the engine, and only on the real machine)
//! - **Advice** command lines for accel-config that contain this machine's names
//! - **Source** /sys/bus/{pci,dsa}/devices, /dev/dsa/wqN.M, /proc/cmdline, /proc/self/status

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use memlift::ground::facility::{self, Availability, Facility};
use memlift::idxd::portal::{Instructions, Ways, ways};
use memlift::idxd::{Device, DsaInventory, Mode, WorkQueue};
use memlift::offload::Engine;
use memlift::spec::Opcode;

use super::Check;

/// DSA's identifiers on the PCI bus: Sapphire Rapids and its successors, as the kernel's driver lists them.
const PCI_DEVICES: [&str; 3] = ["0x0b25", "0x1212", "0x11fb"];
/// Capability needed to map a portal if the kernel holds direct submissions by programs unsafe (`user_submission_safe`).
const CAP_SYS_RAWIO: u32 = 17;

/// Entries, members of a batch and bytes of a transfer that a queue is advised to have, where the device has so many.
const ADVISED: (u32, u32, u64) = (64, 32, 1 << 31);

/// Facts about DSA that come from the process and not from sysfs.
struct Here {
    instructions: Instructions,
    node: Option<u32>,
    /// True if the process has CAP_SYS_RAWIO.
    raw_io: bool,
    /// Opens a queue and asks the kernel which ways into it there are.
    ways: fn(&WorkQueue) -> io::Result<Ways>,
}

/// Checks everything that a program needs to use a device.
pub fn checks() -> Vec<Check> {
    if facility::detect(Facility::Dsa) == Availability::Masked {
        return vec![
            Check::absent("device", "masked").advise("take dsa out of MEMLIFT_DISABLE and engine.disable"),
        ];
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let here = Here {
        instructions: Instructions {
            enqcmd: facility::usable(Facility::Enqcmd),
            movdir64b: facility::usable(Facility::Movdir64b),
        },
        node: memlift::offload::run::node(),
        raw_io: has_capability(&status, CAP_SYS_RAWIO),
        ways,
    };
    let root = Path::new("/");
    let machine = DsaInventory::discover(root);
    let mut checks = checks_of(root, &machine, &here);
    if !machine.candidates(here.node).is_empty() {
        checks.push(match Engine::global().dsa() {
            Ok(_) => Check::usable("answer", "a NOOP came back; copies that are queued go there from 4 KiB on"),
            Err(why) => Check::absent("answer", why.to_string())
                .advise("accel-config disable-wq and enable-wq, or reset the device: what runs meanwhile runs on the CPU"),
        });
    }
    checks
}

fn has_capability(status: &str, bit: u32) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> bit & 1 == 1)
}

fn checks_of(root: &Path, machine: &DsaInventory, here: &Here) -> Vec<Check> {
    if machine.devices.is_empty() {
        return vec![no_device(root, machine)];
    }
    let mut checks: Vec<Check> = machine.devices.iter().map(|it| device(root, machine, it)).collect();
    checks.extend(machine.queues.iter().map(|it| queue(machine, it, here)));
    let near = |queue: &&WorkQueue| here.node.is_none() || queue.node.is_none() || queue.node == here.node;
    let candidates = machine.candidates(here.node);
    if let (Some(node), false) = (here.node, candidates.is_empty() || candidates.iter().any(near)) {
        checks.push(
            Check::absent("memory node", format!("every usable queue belongs to another node than this CPU's, {node}"))
                .advise("it is used all the same; bind the program (numactl --cpunodebind) or configure a device of this node"),
        );
    }
    checks
}

fn no_device(root: &Path, machine: &DsaInventory) -> Check {
    let on_bus =
        fs::read_dir(root.join("sys/bus/pci/devices")).into_iter().flatten().flatten().any(|entry| {
            let says = |file: &str| {
                fs::read_to_string(entry.path().join(file)).unwrap_or_default().trim().to_owned()
            };
            says("vendor") == "0x8086" && PCI_DEVICES.contains(&says("device").as_str())
        });
    match (on_bus, machine.driver) {
        (true, false) => Check::absent("device", "there is one, and the idxd driver is not loaded")
            .advise("modprobe idxd; where that fails the kernel lacks CONFIG_INTEL_IDXD"),
        (true, true) => Check::absent("device", "there is one, and the idxd driver has not taken it")
            .advise("dmesg | grep idxd says why; a device that is given to a virtual machine (vfio-pci) is not free"),
        (false, true) => Check::absent("device", "the idxd driver is loaded and found none")
            .advise("nothing to do on most machines; on Xeon of the 4th generation and later, enable it in the firmware's setup"),
        (false, false) => Check::absent("device", "none on this machine").advise(
            "nothing to do on most machines; on Xeon of the 4th generation and later, enable it in the firmware's setup, and pass it \
             into the virtual machine or container",
        ),
    }
}

fn device(root: &Path, machine: &DsaInventory, device: &Device) -> Check {
    let name = &device.name;
    let mine = || machine.queues.iter().filter(|queue| queue.device == *name);
    if !device.enabled {
        return Check::absent(name, "disabled").advise(configure(machine, device, mine().next()));
    }
    if !device.pasid {
        let line = fs::read_to_string(root.join("proc/cmdline")).unwrap_or_default();
        let on = line.contains("intel_iommu=on") && line.contains("sm_on");
        return Check::absent(name, "enabled, without PASID: it cannot use a program's own addresses").advise(if on {
            "the kernel was booted with intel_iommu=on,sm_on: enable VT-d and its scalable mode in the firmware's setup; a virtual \
             machine needs a virtual IOMMU with PASID"
        } else {
            "boot the kernel with intel_iommu=on,sm_on, and enable VT-d in the firmware's setup"
        });
    }
    if !mine().any(WorkQueue::is_for_users) {
        return Check::absent(name, "enabled, without a work queue for user space").advise(configure(
            machine,
            device,
            mine().next(),
        ));
    }
    let node = device.node.map_or(String::new(), |node| format!(", memory node {node}"));
    Check::usable(name, format!("enabled, PASID on{node}"))
}

/// Returns the command lines that set up one shared queue of a device. The kernel refuses a size while the device is enabled, sizes that
/// exceed the device's entries together, a threshold above the size, and batches and transfers above the device's limits.
fn configure(machine: &DsaInventory, device: &Device, queue: Option<&WorkQueue>) -> String {
    let number = device.name.trim_start_matches("dsa");
    let name = &device.name;
    let own = queue.map_or(format!("wq{number}.0"), |queue| queue.name.clone());
    let mut lines = Vec::new();
    let mut options = "--type=user --driver-name=user --name=memlift".to_owned();
    let mut enabled = device.enabled;
    if device.configurable {
        let others = machine.queues.iter().filter(|other| other.device == *name && other.name != own);
        let taken = others.fold(0, |sum: u32, other| sum.saturating_add(other.size));
        let left = device.entries.saturating_sub(taken);
        let has = queue.map_or(0, |queue| queue.size);
        let size = match (enabled && has > 0, device.entries) {
            (true, _) => has,
            (false, 0) => ADVISED.0,
            (false, entries) if left == 0 => {
                return format!(
                    "its other queues have all {entries} entries: accel-config disable-device {name}, then accel-config config-wq \
                     {name}/QUEUE --wq-size=N with fewer for one of them, and run memlift doctor again"
                );
            }
            (false, _) => ADVISED.0.min(left),
        };
        if enabled && has == 0 {
            lines.push(format!("accel-config disable-device {name}"));
            enabled = false;
        }
        lines.push(format!("accel-config config-engine {name}/engine{number}.0 --group-id=0"));
        options = format!("--group-id=0 --mode=shared {options}");
        if !enabled {
            options += &format!(" --wq-size={size}");
        }
        options += &format!(" --threshold={size} --priority=10");
        // Both are rounded up to a power of two, and refused if they are above the device's limit then.
        for (option, advised, most) in [
            ("max-batch-size", ADVISED.1.into(), u64::from(device.batch_max)),
            ("max-transfer-size", ADVISED.2, device.transfer_bytes_max),
        ] {
            if most > 0 {
                options += &format!(" --{option}={}", advised.min(1 << most.ilog2()));
            }
        }
    }
    lines.push(format!("accel-config config-wq {name}/{own} {options}"));
    if !enabled {
        lines.push(format!("accel-config enable-device {name}"));
    }
    lines.push(format!("accel-config enable-wq {name}/{own}"));
    lines.join("; ")
}

fn mode(queue: &WorkQueue) -> &'static str {
    if queue.mode == Mode::Shared { "shared" } else { "dedicated" }
}

fn queue(machine: &DsaInventory, queue: &WorkQueue, here: &Here) -> Check {
    let WorkQueue { name, device, kind, .. } = queue;
    let mode = mode(queue);
    let owner = machine.devices.iter().find(|it| it.name == *device);
    match kind.as_str() {
        "user" if !queue.enabled => {
            return Check::absent(name, format!("{mode} queue for user space, disabled"))
                .advise(format!("accel-config enable-wq {device}/{name}"));
        }
        "user" => {}
        "kernel" => {
            let lines = owner.map_or(String::new(), |owner| configure(machine, owner, Some(queue)));
            return Check::absent(name, format!("{mode} queue that belongs to the kernel (type kernel)"))
                .advise(format!(
                    "leave it to the kernel, or: accel-config disable-wq {device}/{name}; {lines}"
                ));
        }
        _ => return Check::absent(name, "not configured"),
    }
    if owner.is_none_or(|owner| !owner.enabled || !owner.pasid) {
        return Check::absent(name, format!("{mode} queue; its device cannot be used"));
    }
    let ways = match (here.ways)(queue) {
        Ok(ways) => ways,
        Err(error) => return closed(queue, &error),
    };
    way(queue, ways, here)
}

/// The reason why a queue's file cannot be opened.
fn closed(queue: &WorkQueue, error: &io::Error) -> Check {
    let WorkQueue { name, device, .. } = queue;
    let (mode, path) = (mode(queue), queue.path.display());
    let (found, advice) = match error.kind() {
        ErrorKind::PermissionDenied => (
            format!("{mode} queue, this user may not open {path}"),
            format!("chgrp GROUP {path} and chmod 660 {path}; for good, a udev rule for SUBSYSTEM==\"dsa\""),
        ),
        ErrorKind::NotFound => (
            format!("{mode} queue, {path} is not there"),
            format!("pass it into the container: --device={path}"),
        ),
        ErrorKind::ResourceBusy => (
            format!("dedicated queue, in use by another program ({path})"),
            format!(
                "end that program, or make the queue shared: accel-config disable-wq {device}/{name}, config-wq --mode=shared"
            ),
        ),
        _ => (format!("{mode} queue, {path}: {error}"), "dmesg | grep idxd says why".to_owned()),
    };
    Check::absent(name, found).advise(advice)
}

/// The way by which descriptors get into a queue that can be opened.
fn way(queue: &WorkQueue, ways: Ways, here: &Here) -> Check {
    let (name, mode) = (&queue.name, mode(queue));
    let (instruction, has) = match queue.mode {
        Mode::Shared => ("ENQCMD", here.instructions.enqcmd),
        Mode::Dedicated => ("MOVDIR64B", here.instructions.movdir64b),
    };
    let lacks = format!("this CPU lacks {instruction}, or it is masked");
    match (has, ways) {
        (true, Ways { maps: true, .. }) => Check::usable(name, format!("{mode} queue, by {instruction}")),
        (_, Ways { writes: true, .. }) => {
            let batches = if queue.supports(Opcode::BATCH) { "" } else { ", batches one by one" };
            Check::usable(name, format!("{mode} queue, by write(2){batches}")).advise(match (has, here.raw_io) {
                (false, _) => format!("{lacks}: every submission is a system call"),
                (true, false) => "this kernel maps queues of a device that it holds unsafe (INTEL-SA-01084) for CAP_SYS_RAWIO alone: give \
                                  the program that right for cheaper submissions, if you trust it with the machine"
                    .to_owned(),
                (true, true) => "the kernel did not map the queue, although this program has CAP_SYS_RAWIO: dmesg | grep idxd says why"
                    .to_owned(),
            })
        }
        (false, Ways { maps: true, .. }) => {
            Check::absent(name, format!("{mode} queue; {lacks}, and this kernel takes nothing by write(2)")).advise(
                "write(2) to a queue came with Linux 6.9 and the stable kernels that have the fix of INTEL-SA-01084: update the kernel",
            )
        }
        (_, Ways { maps: false, .. }) => {
            Check::absent(name, format!("{mode} queue; the kernel neither maps it nor takes write(2)"))
                .advise("dmesg | grep idxd says why")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    const HERE: Here = Here {
        instructions: Instructions { enqcmd: true, movdir64b: true },
        node: Some(0),
        raw_io: true,
        ways: |queue| open(queue, true, true),
    };

    /// A kernel that maps queues or takes write(2).
    fn open(queue: &WorkQueue, maps: bool, writes: bool) -> io::Result<Ways> {
        fs::OpenOptions::new().read(true).write(true).open(&queue.path)?;
        Ok(Ways { maps, writes })
    }

    /// Builds a machine from lines `file text` and checks it. Files lie below `sys/bus/dsa/devices` unless
    /// the line gives another path.
    fn found(lines: &[(&str, &str)], here: &Here) -> Vec<Check> {
        let root = tempfile::tempdir().expect("a folder");
        for (path, text) in lines {
            let path = match path.contains("sys/") || path.contains("proc/") || path.contains("dev/") {
                true => root.path().join(path),
                false => root.path().join("sys/bus/dsa/devices").join(path),
            };
            fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
            fs::write(path, text).expect("writable");
        }
        checks_of(root.path(), &DsaInventory::discover(root.path()), here)
    }

    /// A working machine; the tests change single lines of it.
    const GOOD: [(&str, &str); 9] = [
        ("dsa0/state", "enabled\n"),
        ("dsa0/pasid_enabled", "1\n"),
        ("dsa0/numa_node", "0\n"),
        ("wq0.0/state", "enabled\n"),
        ("wq0.0/type", "user\n"),
        ("wq0.0/mode", "shared\n"),
        ("wq0.0/size", "64\n"),
        ("dev/dsa/wq0.0", ""),
        ("proc/cmdline", "quiet\n"),
    ];

    fn spoilt(file: &str, text: &str) -> Vec<Check> {
        let mut lines = GOOD.to_vec();
        lines.iter_mut().filter(|(path, _)| *path == file).for_each(|line| line.1 = text);
        found(&lines, &HERE)
    }

    fn says(check: &Check, state: State, found: &str, advice: &str) {
        assert_eq!(check.state, state, "{check:?}");
        assert!(check.found.contains(found), "{check:?}");
        assert!(check.advice.as_deref().unwrap_or_default().contains(advice), "{check:?}");
    }

    #[test]
    fn a_machine_without_a_device_learns_which_part_is_missing() {
        let pci = |device| {
            [
                ("sys/bus/pci/devices/0000:6a:01.0/vendor", "0x8086\n"),
                ("sys/bus/pci/devices/0000:6a:01.0/device", device),
            ]
        };
        let bus = ("sys/bus/dsa/drivers/idxd", "");
        says(&found(&[], &HERE)[0], State::Absent, "none on this machine", "firmware");
        says(&found(&pci("0x0b25\n"), &HERE)[0], State::Absent, "not loaded", "modprobe idxd");
        says(&found(&[bus], &HERE)[0], State::Absent, "found none", "firmware");
        let [vendor, device] = pci("0x11fb\n");
        says(&found(&[vendor, device, bus], &HERE)[0], State::Absent, "has not taken it", "dmesg");
        says(&found(&pci("0x1234\n"), &HERE)[0], State::Absent, "none on this machine", "");
    }

    #[test]
    fn a_device_that_is_off_or_has_no_addresses_gets_its_lines() {
        let off = spoilt("dsa0/state", "disabled\n");
        says(
            &off[0],
            State::Absent,
            "disabled",
            "accel-config enable-device dsa0; accel-config enable-wq dsa0/wq0.0",
        );
        says(&off[1], State::Absent, "its device cannot be used", "");
        says(
            &spoilt("dsa0/pasid_enabled", "0\n")[0],
            State::Absent,
            "without PASID",
            "boot the kernel with intel_iommu=on,sm_on",
        );
        let mut lines = GOOD.to_vec();
        (lines[1].1, lines[8].1) = ("0\n", "intel_iommu=on,sm_on\n");
        says(&found(&lines, &HERE)[0], State::Absent, "without PASID", "virtual IOMMU");
    }

    #[test]
    fn a_queue_that_is_not_for_programs_gets_its_lines() {
        let kernel = spoilt("wq0.0/type", "kernel\n");
        says(
            &kernel[0],
            State::Absent,
            "without a work queue for user space",
            "--type=user --driver-name=user",
        );
        says(
            &kernel[1],
            State::Absent,
            "type kernel",
            "accel-config disable-wq dsa0/wq0.0; accel-config config-engine",
        );
        says(
            &spoilt("wq0.0/state", "disabled\n")[1],
            State::Absent,
            "disabled",
            "accel-config enable-wq dsa0/wq0.0",
        );
        says(&spoilt("wq0.0/type", "none\n")[1], State::Absent, "not configured", "");
    }

    #[test]
    fn the_way_into_a_queue_is_named() {
        let good = found(&GOOD, &HERE);
        says(&good[0], State::Usable, "PASID on, memory node 0", "");
        says(&good[1], State::Usable, "shared queue, by ENQCMD", "");
        let far = Here { node: Some(1), ..HERE };
        says(&found(&GOOD, &far)[2], State::Absent, "another node", "numactl");
        let without: Vec<_> = GOOD.into_iter().filter(|(path, _)| !path.contains("dev/dsa/")).collect();
        says(&found(&without, &HERE)[1], State::Absent, "is not there", "--device=");
    }

    #[test]
    fn each_kernel_and_each_right_has_its_way() {
        let capable = "00000000,00000000,00000000,00000000,00000000,00000000,00000001,003f03ff\n";
        let barred = "00000000,00000000,00000000,00000000,00000000,00000000,00000001,003f03fd\n";
        let with = |opcodes, instructions, raw_io, ways| {
            let instructions = Instructions { enqcmd: instructions, movdir64b: instructions };
            let mut lines = GOOD.to_vec();
            lines.push(("dsa0/op_cap", opcodes));
            found(&lines, &Here { instructions, raw_io, ways, ..HERE }).swap_remove(1)
        };
        type Kernel = fn(&WorkQueue) -> io::Result<Ways>;
        let before: Kernel = |queue| open(queue, true, false);
        let safe: Kernel = |queue| open(queue, true, true);
        let unsafe_here: Kernel = |queue| open(queue, false, true);
        // Before 6.9: every program may map, and nothing can be written.
        says(&with(capable, true, false, before), State::Usable, "shared queue, by ENQCMD", "");
        says(&with(capable, false, false, before), State::Absent, "lacks ENQCMD", "Linux 6.9");
        // Since: devices that the kernel holds safe are mapped for every program, the others for CAP_SYS_RAWIO.
        says(&with(capable, true, false, safe), State::Usable, "shared queue, by ENQCMD", "");
        says(&with(barred, true, true, safe), State::Usable, "shared queue, by ENQCMD", "");
        let check = with(barred, true, false, unsafe_here);
        says(&check, State::Usable, "by write(2), batches one by one", "CAP_SYS_RAWIO");
        let check = with(capable, true, false, unsafe_here);
        assert_eq!(check.found, "shared queue, by write(2)", "a device of version 2 gets batches, too");
        says(&with(barred, true, true, unsafe_here), State::Usable, "by write(2)", "although");
        says(&with(barred, false, false, unsafe_here), State::Usable, "by write(2)", "lacks ENQCMD");
        let nothing = with(barred, true, true, |queue| open(queue, false, false));
        says(&nothing, State::Absent, "neither maps it nor takes write(2)", "dmesg");
    }

    #[test]
    fn advised_sizes_are_those_that_the_kernel_takes() {
        let advice = |lines: &[(&str, &str)]| {
            let mut all: Vec<(&str, &str)> = GOOD.to_vec();
            all.extend([("dsa0/max_work_queues_size", "128\n"), ("dsa0/max_batch_size", "1024\n")]);
            all.push(("dsa0/max_transfer_size", "2147483648\n"));
            for line in lines {
                all.retain(|(path, _)| path != &line.0);
                all.push(*line);
            }
            let check = found(&all, &HERE).swap_remove(0);
            check.advice.expect("advice")
        };
        let off = ("dsa0/state", "disabled\n");
        assert_eq!(
            advice(&[off]),
            "accel-config config-engine dsa0/engine0.0 --group-id=0; accel-config config-wq dsa0/wq0.0 --group-id=0 --mode=shared \
             --type=user --driver-name=user --name=memlift --wq-size=64 --threshold=64 --priority=10 --max-batch-size=32 \
             --max-transfer-size=2147483648; accel-config enable-device dsa0; accel-config enable-wq dsa0/wq0.0"
        );
        // Another queue has most entries; the device takes less than is advised.
        let small = advice(&[off, ("wq0.1/size", "100\n"), ("dsa0/max_batch_size", "16\n")]);
        assert!(
            small.contains("--wq-size=28 --threshold=28") && small.contains("--max-batch-size=16"),
            "{small}"
        );
        let odd = advice(&[off, ("dsa0/max_transfer_size", "3000000\n")]);
        assert!(odd.contains("--max-transfer-size=2097152"), "{odd}");
        assert!(advice(&[off, ("wq0.1/size", "128\n")]).contains("all 128 entries"));
        // An enabled device takes no sizes: the queue keeps its own, or the device is disabled first.
        let own = advice(&[("wq0.0/type", "none\n"), ("wq0.0/size", "16\n")]);
        assert!(
            own.contains("--threshold=16") && !own.contains("wq-size") && !own.contains("-device"),
            "{own}"
        );
        let empty = advice(&[("wq0.0/type", "none\n"), ("wq0.0/size", "0\n")]);
        assert!(
            empty.starts_with("accel-config disable-device dsa0; ") && empty.contains("--wq-size=64"),
            "{empty}"
        );
        // A device whose queues are fixed gets a type and a name.
        let fixed = advice(&[("wq0.0/type", "none\n"), ("dsa0/configurable", "0\n")]);
        assert_eq!(
            fixed,
            "accel-config config-wq dsa0/wq0.0 --type=user --driver-name=user --name=memlift; accel-config enable-wq dsa0/wq0.0"
        );
    }

    #[test]
    fn rights_are_read_from_the_effective_set() {
        let status = |mask: &str| format!("Name:\tx\nCapPrm:\tffffffffff\nCapEff:\t{mask}\n");
        assert!(has_capability(&status("0000000000020000"), CAP_SYS_RAWIO));
        assert!(!has_capability(&status("00000000a80425fb"), CAP_SYS_RAWIO));
        assert!(!has_capability("", CAP_SYS_RAWIO));
    }
}
