// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The processes that /proc shows.

use std::fs;

/// Returns every process that /proc shows.
pub fn processes() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
