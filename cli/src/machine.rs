// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names of this machine's parts.

/// Returns this CPU's name in /proc/cpuinfo.
pub fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}
