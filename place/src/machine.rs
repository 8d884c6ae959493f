// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine that a calibration is valid for.
//!
//! - **Layout** CPU (vendor, family, model, stepping, microcode), number of CPUs that this process may use, kernel
//!   release
//! - **Not here** cache sizes from cpuid: virtual machines report caches that they do not have

use serde::{Deserialize, Serialize};

/// The properties of a machine on which the speed of its copies depends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Lines of /proc/cpuinfo that identify the first CPU.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// The kernel's release.
    pub kernel: String,
}

/// Names of the lines of /proc/cpuinfo that distinguish CPUs, on x86-64 and on aarch64.
const TELLING: &[&str] = &[
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "stepping",
    "microcode",
    "CPU implementer",
    "CPU variant",
    "CPU part",
    "CPU revision",
];

impl Machine {
    /// Reads the identity of this machine.
    pub fn read() -> Machine {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Machine {
            cpu: cpu(&text),
            cpus: std::thread::available_parallelism().map_or(1, |count| count.get()),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        }
    }

    /// Returns 16 hexadecimal digits that identify the machine: FNV-1a over all its properties.
    pub fn digest(&self) -> String {
        let text = format!("{}\n{}\n{}\n{}", self.cpu, self.cpus, self.kernel, super::model::FORMAT);
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        format!("{hash:016x}")
    }
}

fn cpu(cpuinfo: &str) -> String {
    let first = cpuinfo.split("\n\n").next().unwrap_or_default();
    let telling = first.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        TELLING.contains(&name.trim()).then(|| format!("{} {}", name.trim(), value.trim()))
    });
    telling.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cpu_tells() {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 143\nflags\t: fpu\n\nprocessor\t: 1\nmodel\t: 9\n";
        assert_eq!(cpu(text), "vendor_id GenuineIntel, model 143");
    }

    #[test]
    fn digests_tell_machines_apart() {
        let machine = |cpus| Machine { cpu: "a".into(), cpus, kernel: "6.1".into() };
        assert_eq!(machine(2).digest(), machine(2).digest());
        assert_ne!(machine(2).digest(), machine(3).digest());
    }
}
