// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Intel DSA: is there a device, has it a work queue for user space, and may this user open it?
//!
//! Source   /sys/bus/dsa/devices/{dsaN,wqN.M}, /dev/dsa/wqN.M, as the kernel's idxd driver lays them out
//! Not here driving it: memlift does that once it has a backend for it; until then all work runs on the CPU

use std::fs;
use std::path::Path;

use super::Check;

/// Device, queues, permission.
pub fn checks() -> Vec<Check> {
    checks_below(Path::new("/"))
}

fn checks_below(root: &Path) -> Vec<Check> {
    let sysfs = root.join("sys/bus/dsa/devices");
    let Ok(entries) = fs::read_dir(&sysfs) else {
        return vec![Check::absent("device", "none: the idxd driver has no device here").advise(
            "nothing to do on most machines; on Xeon 4th generation and later: modprobe idxd, VT-d on",
        )];
    };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    let read = |name: &str, file: &str| {
        fs::read_to_string(sysfs.join(name).join(file))
            .map_or("unknown".to_owned(), |text| text.trim().to_owned())
    };
    let mut checks = Vec::new();
    for name in names.iter().filter(|name| name.starts_with("dsa")) {
        let state = read(name, "state");
        let pasid = read(name, "pasid_enabled");
        checks.push(if state != "enabled" {
            Check::absent(name, format!("state {state}")).advise(format!(
                "configure it: accel-config load-config, then accel-config enable-device {name}"
            ))
        } else if pasid != "1" {
            Check::absent(name, "enabled, but without PASID: user space cannot use virtual addresses")
                .advise("boot with intel_iommu=on,sm_on")
        } else {
            Check::usable(name, "enabled, PASID on")
        });
    }
    for name in names.iter().filter(|name| name.starts_with("wq")) {
        let (state, kind) = (read(name, "state"), read(name, "type"));
        if state != "enabled" || kind != "user" {
            checks.push(
                Check::absent(name, format!("state {state}, type {kind}"))
                    .advise("accel-config config-wq --type=user --driver-name=user, then enable-wq"),
            );
            continue;
        }
        checks.push(queue(root, name, &read(name, "mode")));
    }
    if checks.is_empty() {
        checks.push(Check::absent("device", "the idxd driver is loaded and found none"));
    }
    checks
}

fn queue(root: &Path, name: &str, mode: &str) -> Check {
    let node = root.join("dev/dsa").join(name);
    match fs::OpenOptions::new().read(true).write(true).open(&node) {
        Ok(_) => Check::usable(name, format!("{mode} queue, can be opened")),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Check::absent(name, format!("{mode} queue, this user may not open /dev/dsa/{name}")).advise(
                "give your group the right: a udev rule for SUBSYSTEM==\"dsa\", or chgrp and chmod 660",
            )
        }
        Err(error) => Check::absent(name, format!("{mode} queue, /dev/dsa/{name}: {error}"))
            .advise("a dedicated queue has one user at a time; in a container pass the device in"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
        fs::write(path, text).expect("writable");
    }

    #[test]
    fn a_machine_without_it_is_fine() {
        let root = tempfile::tempdir().expect("a folder");
        let checks = checks_below(root.path());
        assert_eq!(checks.len(), 1);
        assert_eq!(checks[0].state, State::Absent);
        assert!(checks[0].advice.is_some());
    }

    #[test]
    fn states_become_advice() {
        let root = tempfile::tempdir().expect("a folder");
        for (path, text) in [
            ("dsa0/state", "enabled\n"),
            ("dsa0/pasid_enabled", "0\n"),
            ("dsa2/state", "disabled\n"),
            ("wq0.0/state", "enabled\n"),
            ("wq0.0/type", "user\n"),
            ("wq0.0/mode", "shared\n"),
            ("wq0.1/state", "disabled\n"),
            ("wq0.1/type", "none\n"),
        ] {
            put(root.path(), &format!("sys/bus/dsa/devices/{path}"), text);
        }
        put(root.path(), "dev/dsa/wq0.0", "");
        let checks = checks_below(root.path());
        let seen: Vec<_> = checks.iter().map(|check| (check.what.as_str(), check.state)).collect();
        assert_eq!(
            seen,
            [
                ("dsa0", State::Absent),
                ("dsa2", State::Absent),
                ("wq0.0", State::Usable),
                ("wq0.1", State::Absent)
            ]
        );
        assert!(checks[0].advice.as_ref().is_some_and(|advice| advice.contains("sm_on")));
    }
}
