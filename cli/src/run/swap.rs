// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Swap on zram, the kernel's own compressed memory: the alternative for programs that user space cannot cover, and the better one
//! for heaps of small objects where root may set it up.
//!
//! - **Flow** /proc/swaps and the kernel's module ─▶ [`State`] ─▶ a line of `memlift doctor`, and the end of a refusal
//! - **Not here** swap is never set up by memlift: it is the whole machine's

use std::fs;
use std::path::Path;

use crate::doctor::Check;
use crate::print;

/// Commands that set up swap on zram; the size is that of the uncompressed pages.
const SET_UP: &str = "modprobe zram && device=$(zramctl --find --size 8G --algorithm lz4) && mkswap \"$device\" && \
                      swapon --priority 100 \"$device\"";

/// Swap on zram of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It is on, with this many bytes.
    On(u64),
    /// The kernel has it, and it is off.
    Off,
    /// The kernel does not have it, or no modules are to be seen here.
    Missing,
}

fn state() -> State {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    match zram_bytes(&swaps) {
        0 if has_module() => State::Off,
        0 => State::Missing,
        bytes => State::On(bytes),
    }
}

/// Returns the size of the zram devices in a text like /proc/swaps, bytes.
fn zram_bytes(swaps: &str) -> u64 {
    let device = |line: &str| {
        let mut fields = line.split_whitespace();
        let name = fields.next()?;
        let kib: u64 = fields.nth(1)?.parse().ok()?;
        name.starts_with("/dev/zram").then_some(kib.saturating_mul(1024))
    };
    swaps.lines().filter_map(device).fold(0, u64::saturating_add)
}

fn has_module() -> bool {
    if Path::new("/sys/class/zram-control").exists() || Path::new("/sys/module/zram").exists() {
        return true;
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    ["modules.dep", "modules.builtin"].iter().any(|file| {
        let path = Path::new("/lib/modules").join(&release).join(file);
        fs::read_to_string(path).is_ok_and(|text| text.contains("/zram.ko"))
    })
}

/// Returns the check for `memlift doctor`; `None` if this user could not set swap up anyway.
pub fn check() -> Option<Check> {
    let root = rustix::process::geteuid().is_root();
    let what = "swap on zram";
    Some(match state() {
        State::On(bytes) => Check::usable(
            what,
            format!("on, {}: it also serves static and Go programs, which memlift run cannot", print::bytes(bytes)),
        ),
        State::Off if root => Check::absent(
            what,
            "off; for heaps of small objects it takes fewer faults than memlift run, since the kernel sees which pages are used, \
             and it serves static and Go programs; it is for the whole machine and has no exact budget",
        )
        .extra()
        .advise(SET_UP),
        State::Missing if root => Check::absent(what, "this kernel has no zram").extra(),
        State::Off | State::Missing => return None,
    })
}

/// Returns the sentence that ends a refusal: the alternative that this machine has.
pub fn alternative() -> String {
    match state() {
        State::On(bytes) => format!(
            "Swap on zram is on ({}): without memlift run, the kernel compresses this program's memory when memory is short",
            print::bytes(bytes)
        ),
        State::Off => format!("Or swap on zram, for the whole machine, as root: {SET_UP}"),
        State::Missing => {
            "Or run it where the limit is larger: this kernel has no zram to swap to".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zram_devices_among_swaps_are_found() {
        let swaps = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                     /dev/zram0                              partition\t8388604\t\t0\t\t100\n\
                     /dev/sda2                               partition\t1000\t\t0\t\t-2\n";
        assert_eq!(zram_bytes(swaps), 8_388_604 * 1024);
        assert_eq!(zram_bytes("Filename Type Size Used Priority\n/swapfile file 4096 0 -2\n"), 0);
        assert!(alternative().contains("zram"));
    }
}
