// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Intel DSA: checks if this program can use it, and finds the reason if it cannot.
//!
//! - **Flow** device on the bus? ─▶ driver? ─▶ device enabled, with PASID? ─▶ an enabled queue for user space? ─▶ permission to open it?
//!   ─▶ kind of portal? ─▶ near this CPU? ─▶ does it answer a NOOP (sent by the engine, and only on the real machine)
//! - **Advice** command lines for accel-config that contain this machine's names
//! - **Source** /sys/bus/{pci,dsa}/devices, /dev/dsa/wqN.M, /proc/cmdline, /proc/self/status

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use memlift::ground::facility::{self, Availability, Facility};
use memlift::idxd::portal::Instructions;
use memlift::idxd::{Device, DsaInventory, Mode, WorkQueue};
use memlift::offload::Engine;

use super::Check;

/// DSA's identifiers on the PCI bus: Sapphire Rapids and its successors, as the kernel's driver lists them.
const PCI_DEVICES: [&str; 3] = ["0x0b25", "0x1212", "0x11fb"];
/// Capability needed to map a portal if the kernel does not trust the device with data written by programs.
const CAP_SYS_RAWIO: u32 = 17;

/// Facts about DSA that come from the process and not from sysfs.
struct Here {
    instructions: Instructions,
    node: Option<u32>,
    may_map: bool,
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
        may_map: has_capability(&status, CAP_SYS_RAWIO),
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
        return Check::absent(name, "disabled").advise(configure(device, mine().next(), true));
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
            device,
            mine().next(),
            false,
        ));
    }
    let node = device.node.map_or(String::new(), |node| format!(", memory node {node}"));
    Check::usable(name, format!("enabled, PASID on{node}"))
}

/// Returns the command lines that set up one shared queue of a device.
fn configure(device: &Device, queue: Option<&WorkQueue>, enable: bool) -> String {
    let number = device.name.trim_start_matches("dsa");
    let (name, queue) = (&device.name, queue.map_or(format!("wq{number}.0"), |queue| queue.name.clone()));
    let device = if enable { format!("accel-config enable-device {name}; ") } else { String::new() };
    format!(
        "accel-config config-engine {name}/engine{number}.0 --group-id=0; accel-config config-wq {name}/{queue} --group-id=0 \
         --mode=shared --type=user --driver-name=user --name=memlift --wq-size=64 --threshold=64 --priority=10 \
         --max-batch-size=32 --max-transfer-size=2147483648; {device}accel-config enable-wq {name}/{queue}"
    )
}

fn queue(machine: &DsaInventory, queue: &WorkQueue, here: &Here) -> Check {
    let WorkQueue { name, device, kind, .. } = queue;
    let mode = if queue.mode == Mode::Shared { "shared" } else { "dedicated" };
    let owner = machine.devices.iter().find(|it| it.name == *device);
    match kind.as_str() {
        "user" if !queue.enabled => {
            return Check::absent(name, format!("{mode} queue for user space, disabled"))
                .advise(format!("accel-config enable-wq {device}/{name}"));
        }
        "user" => {}
        "kernel" => {
            let lines = owner.map_or(String::new(), |owner| configure(owner, Some(queue), false));
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
    let path = queue.path.display();
    if let Err(error) = fs::OpenOptions::new().read(true).write(true).open(&queue.path) {
        let (found, advice) = match error.kind() {
            ErrorKind::PermissionDenied => (
                format!("{mode} queue, this user may not open {path}"),
                format!(
                    "chgrp GROUP {path} and chmod 660 {path}; for good, a udev rule for SUBSYSTEM==\"dsa\""
                ),
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
        return Check::absent(name, found).advise(advice);
    }
    let (instruction, has) = match queue.mode {
        Mode::Shared => ("ENQCMD", here.instructions.enqcmd),
        Mode::Dedicated => ("MOVDIR64B", here.instructions.movdir64b),
    };
    match (has, here.may_map) {
        (true, true) => Check::usable(name, format!("{mode} queue, by {instruction}")),
        (false, _) => Check::usable(name, format!("{mode} queue, by write(2)"))
            .advise(format!("this CPU lacks {instruction}, or it is masked: every submission is a system call")),
        (true, false) => Check::usable(name, format!("{mode} queue, by write(2), batches one by one")).advise(
            "kernels since 6.9 map a queue for CAP_SYS_RAWIO alone (INTEL-SA-01084): give the program that right for cheaper submissions, \
             if you trust it with the machine",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    const HERE: Here =
        Here { instructions: Instructions { enqcmd: true, movdir64b: true }, node: Some(0), may_map: true };

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
        let unprivileged = Here { may_map: false, ..HERE };
        says(&found(&GOOD, &unprivileged)[1], State::Usable, "by write(2)", "CAP_SYS_RAWIO");
        let old = Here { instructions: Instructions { enqcmd: false, movdir64b: true }, ..HERE };
        says(&found(&GOOD, &old)[1], State::Usable, "by write(2)", "lacks ENQCMD");
        let far = Here { node: Some(1), ..HERE };
        says(&found(&GOOD, &far)[2], State::Absent, "another node", "numactl");
        let without: Vec<_> = GOOD.into_iter().filter(|(path, _)| !path.contains("dev/dsa/")).collect();
        says(&found(&without, &HERE)[1], State::Absent, "is not there", "--device=");
    }

    #[test]
    fn rights_are_read_from_the_effective_set() {
        let status = |mask: &str| format!("Name:\tx\nCapPrm:\tffffffffff\nCapEff:\t{mask}\n");
        assert!(has_capability(&status("0000000000020000"), CAP_SYS_RAWIO));
        assert!(!has_capability(&status("00000000a80425fb"), CAP_SYS_RAWIO));
        assert!(!has_capability("", CAP_SYS_RAWIO));
    }
}
