// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Properties of this machine that qualify a number: CPU, cores, pages, memory, kernel.
//!
//! - **Source** /proc/cpuinfo, /proc/meminfo, /sys/kernel/mm, sysconf, sched_getaffinity. Nothing here is measured.

use std::fs;

/// Model name of the CPU as the kernel gives it, with family and model: clouds call several generations by one name.
pub fn cpu_name() -> String {
    match (cpuinfo("cpu family"), cpuinfo("model")) {
        (Some(family), Some(model)) => format!("{}, family {family} model {model}", marketing_name()),
        _ => marketing_name(),
    }
}

fn marketing_name() -> String {
    cpuinfo("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// A field of the first core in /proc/cpuinfo.
fn cpuinfo(key: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned())
}

/// [`cpu_name`] as a folder name: `amd-epyc-family-25-model-17`.
pub fn cpu_folder() -> String {
    folder(&cpu_name())
}

fn folder(name: &str) -> String {
    let mut folder = String::new();
    for character in name.replace("(R)", "").replace("(TM)", "").chars() {
        if character.is_ascii_alphanumeric() {
            folder.push(character.to_ascii_lowercase());
        } else if !folder.ends_with('-') && !folder.is_empty() {
            folder.push('-');
        }
    }
    folder.trim_end_matches('-').to_owned()
}

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Release of the running kernel.
pub fn kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Bytes that could be used without swapping.
pub fn available_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB"))
        .and_then(|kib| kib.trim().parse::<u64>().ok())
        .map_or(u64::MAX, |kib| kib * 1024)
}

/// Size of a small page.
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Size of the last-level cache as the kernel reports it; 0 if it does not.
pub fn reported_cache_bytes() -> usize {
    (0..8).filter_map(|index| reported(index, None)).max().unwrap_or(0)
}

/// Size of a core's second-level cache as the kernel reports it, or the 1 MiB that is usual.
pub fn second_level_bytes() -> usize {
    (0..8).find_map(|index| reported(index, Some("2"))).unwrap_or(1 << 20)
}

/// Bytes of one cache of the first core, if there is such a one and, where a level is asked for, it has that.
fn reported(index: usize, level: Option<&str>) -> Option<usize> {
    let folder = format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
    let read = |what: &str| fs::read_to_string(format!("{folder}/{what}")).ok();
    if level.is_some_and(|level| read("level").is_none_or(|has| has.trim() != level)) {
        return None;
    }
    Some(read("size")?.trim().strip_suffix('K')?.parse::<usize>().ok()? * 1024)
}

/// CPU time of the calling thread, seconds.
pub fn thread_cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The widest vector instruction set that the reference routines and glibc can use here.
pub fn vectors() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            return "avx512";
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            return "avx2";
        }
        "sse2"
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::env::consts::ARCH
}

/// CPU time of this process, all threads, seconds.
pub fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Page faults of this process so far.
pub fn faults() -> u64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<u64> = after_name.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
    // Fields 10 and 12 of proc(5), minor and major faults; the first here is field 3.
    fields.get(7).copied().unwrap_or(0) + fields.get(9).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_plausible() {
        let folder = cpu_folder();
        assert!(!folder.is_empty() && folder.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'));
        assert!(cores() >= 1 && page_bytes() >= 4096 && available_bytes() > 0);
        let before = cpu_seconds();
        let mut word = 1u64;
        for index in 0..3_000_000u64 {
            word = std::hint::black_box(word ^ index);
        }
        assert!(cpu_seconds() > before, "{word}");
    }

    #[test]
    fn folders_tell_families_apart() {
        assert_eq!(folder("AMD EPYC, family 25 model 17"), "amd-epyc-family-25-model-17");
        assert_eq!(
            folder("Intel(R) Xeon(R) Processor, family 6 model 143"),
            "intel-xeon-processor-family-6-model-143"
        );
    }

    #[test]
    fn faults_grow_when_memory_is_touched() {
        let before = faults();
        let memory = vec![7u8; 8 << 20];
        assert!(faults() > before, "{}", memory[1 << 20]);
    }
}
