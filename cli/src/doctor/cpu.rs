// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The CPU: cores, the instruction set that the kernels run, and what it offers for waiting and for devices.

use super::{Check, facilities};

/// Cores and features.
pub fn checks() -> Vec<Check> {
    let mut checks = vec![cores()];
    checks.extend(facilities::OF_THE_CPU.map(facilities::check));
    checks
}

fn cores() -> Check {
    let model = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    let model = model.unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    match std::thread::available_parallelism() {
        Ok(cores) => Check::usable("cores", format!("{cores} for this process, {model}")),
        Err(error) => Check::absent("cores", format!("unknown ({error}), {model}")),
    }
}
