// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks the CPU: cores, the instruction set of the kernels, and its instructions for waiting and for devices.

use memlift::offload::Engine;

use super::{Check, facilities};

/// Features that memlift's kernels use or depend on, as /proc/cpuinfo calls them.
const FEATURES: [&str; 11] = [
    "sse4_2",
    "pclmulqdq",
    "avx2",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "vpclmulqdq",
    "erms",
    "fsrm",
    "clflushopt",
    "clwb",
];

/// Checks cores and features.
pub fn checks(engine: &Result<Engine, String>) -> Vec<Check> {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut checks = vec![cores(&cpuinfo), kernels(engine), features(&cpuinfo)];
    checks.extend(facilities::OF_THE_CPU.map(facilities::check));
    checks
}

fn line<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    let line =
        cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|before| before.trim() == name))?;
    Some(line.split_once(':')?.1.trim())
}

fn cores(cpuinfo: &str) -> Check {
    let model = line(cpuinfo, "model name").unwrap_or(std::env::consts::ARCH);
    match std::thread::available_parallelism() {
        Ok(cores) => Check::usable("cores", format!("{cores} for this process, {model}")),
        Err(error) => Check::absent("cores", format!("unknown ({error}), {model}")),
    }
}

fn kernels(engine: &Result<Engine, String>) -> Check {
    match engine {
        Ok(engine) => {
            let isa = engine.kernels().isa;
            let check = Check::usable("instruction set", format!("the kernels run {isa}"));
            match std::env::var("MEMLIFT_ISA") {
                Ok(wanted) if !wanted.is_empty() => {
                    check.advise(format!("MEMLIFT_ISA={wanted} decides; unset it to let the CPU decide"))
                }
                _ => check,
            }
        }
        Err(_) => Check::absent("instruction set", "unknown: see the section calibration"),
    }
}

fn features(cpuinfo: &str) -> Check {
    let flags: Vec<&str> = line(cpuinfo, "flags").unwrap_or_default().split_whitespace().collect();
    let (there, missing): (Vec<&str>, Vec<&str>) = FEATURES.iter().partition(|name| flags.contains(name));
    let list = |names: &[&str]| if names.is_empty() { "none".to_owned() } else { names.join(" ") };
    Check::usable("features", format!("{}; without: {}", list(&there), list(&missing)))
}
