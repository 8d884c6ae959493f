// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program's limits on address space, as the process carries them through fork and `exec`: in limits of the kernel.
//!
//! - **Layout** the program's soft limits lie in the soft limit of `RLIMIT_LOCKS`, which no kernel since 2.4 uses ([`Marked`]);
//!   its hard limits are the kernel's hard limits minus [`MARK`]
//! - **Order** [`lift`] comes before this library maps anything
//! - **Not here** the kernel's soft limits, which include this library's reservations: `limits`

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::sys;

/// A limit that does not exist.
pub const INFINITE: u64 = u64::MAX;
/// Added to a hard limit of the program, which makes the kernel's hard limit. No limit of a program is that high.
pub const MARK: u64 = 1 << 62;
/// A kernel's limit below this was set from outside: one that this library sets contains the arena, or at least the heap.
const LEAST_RAISED_BYTES: [u64; 2] = [1 << 39, 1 << 36];
/// The limits that this library raises.
pub const LIMITED: [u32; 2] = [libc::RLIMIT_AS, libc::RLIMIT_DATA];
/// The limit that carries the soft limits of the program.
pub const CARRIER: u32 = libc::RLIMIT_LOCKS;

/// The last soft limits that this process set, bytes. [`Marked`] rounds to KiB.
pub static EXACT: [AtomicU64; 2] = [const { AtomicU64::new(INFINITE) }; 2];

/// A limit, with the layout of `rlimit64`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The limit that holds, bytes.
    pub soft: u64,
    /// Upper bound of the soft limit, bytes.
    pub hard: u64,
}

/// The program's soft limits in KiB, `RLIMIT_AS` and `RLIMIT_DATA` in 31 bits each, as the soft limit of [`CARRIER`]; all bits
/// set stand for no limit.
///
/// | bits | meaning |
/// |---|---|
/// | 63..62 | `01`: marked |
/// | 61..31 | `RLIMIT_AS`, KiB |
/// | 30..0 | `RLIMIT_DATA`, KiB |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked(u64);

impl Marked {
    const BITS: u32 = 31;
    const NONE: u64 = (1 << Marked::BITS) - 1;

    /// Returns the soft limits in the carrier, or `None` if it has none.
    pub fn decode(carrier: Limit) -> Option<Marked> {
        (carrier.soft >> 62 == 1).then_some(Marked(carrier.soft))
    }

    /// Returns soft limits that do not limit.
    pub const fn without_limits() -> Marked {
        Marked(MARK | Marked::NONE << Marked::BITS | Marked::NONE)
    }

    /// Returns the soft limit of this index in [`LIMITED`], bytes.
    pub fn get(self, index: usize) -> u64 {
        let kib = self.0 >> (Marked::BITS * (1 - index as u32)) & Marked::NONE;
        if kib == Marked::NONE { INFINITE } else { kib << 10 }
    }

    /// Returns these soft limits with another one at this index.
    pub fn with(self, index: usize, bytes: u64) -> Marked {
        let place = Marked::BITS * (1 - index as u32);
        Marked(self.0 & !(Marked::NONE << place) | (bytes >> 10).min(Marked::NONE) << place)
    }
}

/// Returns a limit of the kernel; process 0 is this one.
pub fn kernel(process: usize, resource: u32) -> Limit {
    let mut limit = Limit { soft: INFINITE, hard: INFINITE };
    // SAFETY: the limit lives over the call.
    unsafe { sys!(libc::SYS_prlimit64, process, resource, 0, &raw mut limit) };
    limit
}

/// Sets a limit of the kernel. Returns the result of the call.
pub fn set_kernel(process: usize, resource: u32, limit: Limit) -> isize {
    // SAFETY: the limit lives over the call.
    unsafe { sys!(libc::SYS_prlimit64, process, resource, &raw const limit, 0) }
}

/// Notes the soft limits of the program for the next image and for later questions. Returns false if the kernel refuses that.
pub fn mark(process: usize, index: usize, soft: u64) -> bool {
    let carrier = kernel(process, CARRIER);
    let marked = Marked::decode(carrier).unwrap_or_else(|| {
        // The other limit, if there is one, was not set by this library.
        Marked::without_limits().with(1 - index, kernel(process, LIMITED[1 - index]).soft)
    });
    let marked = marked.with(index, soft);
    set_kernel(process, CARRIER, Limit { soft: marked.0, hard: carrier.hard }) == 0
}

/// Takes over limits of which the kernel's are not the raised ones yet: those under which the process was started, and those
/// that were set from outside. The process can only do that if the hard limit allows it.
pub fn adopt() {
    for (index, resource) in LIMITED.into_iter().enumerate() {
        let limit = kernel(0, resource);
        let raisable = limit.hard >= MARK;
        let marked = Marked::decode(kernel(0, CARRIER)).is_some_and(|marked| marked.get(index) != INFINITE);
        if raisable && limit.soft < MARK && (!marked || limit.soft < LEAST_RAISED_BYTES[index]) {
            EXACT[index].store(limit.soft, Relaxed);
            mark(0, index, limit.soft);
        }
    }
}

/// Lifts the soft limits as far as the hard limits allow. Called before this library maps anything.
pub fn lift() {
    adopt();
    if Marked::decode(kernel(0, CARRIER)).is_some() {
        for resource in LIMITED {
            let hard = kernel(0, resource).hard;
            set_kernel(0, resource, Limit { soft: hard, hard });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marked_limit_has_both_soft_limits_and_no_limit_at_all() {
        let marked = Marked::without_limits();
        assert_eq!([marked.get(0), marked.get(1)], [INFINITE; 2]);
        let marked = marked.with(0, (1 << 30) + 5).with(1, 3 << 40);
        assert_eq!([marked.get(0), marked.get(1)], [1 << 30, INFINITE]);
        assert_eq!(marked.with(0, INFINITE).with(1, 4096).get(1), 4096);
        assert_eq!(Marked::decode(Limit { soft: marked.0, hard: INFINITE }), Some(marked));
        assert_eq!(Marked::decode(Limit { soft: INFINITE, hard: INFINITE }), None);
    }
}
