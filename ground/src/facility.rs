// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Facilities of this CPU and this kernel, minus those that the user has masked.
//!
//! - **Flow** `MEMLIFT_DISABLE` / `engine.disable` ──mask──▶ [`usable`] ◀──[`probe`], once per facility. `usable` tells
//!   a caller if it may take a path; every caller has a fallback. [`detect`] gives the reason and the advice, for
//!   `memlift doctor`.
//! - **Order** a result is stored before its bit in `PROBED` (Release); a reader loads that bit with Acquire. Two
//!   threads that race for the first result probe twice and store the same.
//! - **Owner** process-wide. Masks are only added; a mask takes effect from the next call on.
//! - **Not here** instruction sets of the copy kernels: those belong to `memlift_kernels` (`MEMLIFT_ISA`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

#[expect(unsafe_code, reason = "asks the kernel by raw system calls that have no wrapper")]
mod probe;

macro_rules! facilities {
    ($($variant:ident = $name:literal, $text:literal;)*) => {
        /// A feature that a CPU or kernel may offer.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Facility {
            $(#[doc = $text] $variant,)*
        }

        impl Facility {
            /// All facilities, in the order of `memlift doctor`.
            pub const ALL: &'static [Facility] = &[$(Facility::$variant),*];

            /// Returns the name used in `MEMLIFT_DISABLE`.
            pub const fn name(self) -> &'static str {
                match self { $(Facility::$variant => $name,)* }
            }

            /// Returns one line about the facility's purpose.
            pub const fn purpose(self) -> &'static str {
                match self { $(Facility::$variant => $text,)* }
            }
        }
    };
}

facilities! {
    PopulateWrite = "populate_write", "Maps a range with one call instead of one fault per page (MADV_POPULATE_WRITE, Linux 5.14).";
    MemfdSeal = "memfd_seal", "Shared memory whose size nobody can change any more (memfd with seals).";
    HugePages = "huge_pages", "Pages of 2 MiB reserved by the administrator (hugetlb).";
    Thp = "thp", "Pages of 2 MiB given on request (transparent huge pages).";
    Numa = "numa", "More than one memory node, and the right to choose between them (mbind).";
    IoUring = "io_uring", "Submission of many system calls through shared rings.";
    Uffd = "uffd", "Faults of this process handled by itself, without a right (userfaultfd with UFFD_USER_MODE_ONLY and SIGBUS, Linux 5.11).";
    UffdWp = "uffd_wp", "Write faults on pages that have a compressed copy (userfaultfd write-protection, Linux 5.7).";
    UffdKernel = "uffd_kernel", "The same for faults inside system calls (userfaultfd without UFFD_USER_MODE_ONLY: a right).";
    UffdMove = "uffd_move", "Moving pages in user space without a copy (userfaultfd MOVE, Linux 6.8).";
    ProcessMadvise = "process_madvise", "Giving many pages back with one call (process_madvise on oneself, Linux 6.13).";
    SeccompFilter = "seccomp_filter", "Seeing the system calls of one's own program before the kernel does (seccomp filters).";
    UdpTrains = "udp_trains", "Datagrams of one peer through the kernel in one piece (UDP_SEGMENT, UDP_GRO, Linux 5.0).";
    Waitpkg = "waitpkg", "Waiting for a store without a system call on Intel (UMONITOR, UMWAIT, TPAUSE).";
    Mwaitx = "mwaitx", "Waiting for a store without a system call on AMD (MONITORX, MWAITX).";
    Movdir64b = "movdir64b", "A 64-byte store that reaches a device in one piece (MOVDIR64B).";
    Enqcmd = "enqcmd", "A 64-byte store that a shared device queue can refuse (ENQCMD).";
    Dsa = "dsa", "Memory operations done by Intel DSA (a work queue for user space).";
}

/// Result of [`detect`]: usable, masked or missing, with the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Availability {
    /// The facility exists and may be used.
    Usable,
    /// `MEMLIFT_DISABLE` or `engine.disable` names the facility; it was not probed.
    Masked,
    /// The facility does not exist here.
    Missing {
        /// The probe's finding: the reason that the facility cannot be used.
        why: String,
        /// Advice for the user: how to get it.
        advice: String,
    },
}

impl Facility {
    const fn bit(self) -> u32 {
        1 << self as u8
    }

    /// Returns the facility called `name`.
    pub fn from_name(name: &str) -> Option<Facility> {
        Facility::ALL.iter().copied().find(|facility| facility.name() == name)
    }
}

impl std::fmt::Display for Facility {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

const _: () = assert!(Facility::ALL.len() <= 32, "the sets below are 32 bits");

/// Bits of the facilities that were probed.
static PROBED: AtomicU32 = AtomicU32::new(0);
/// Bits of the probed facilities that exist.
static PRESENT: AtomicU32 = AtomicU32::new(0);
/// Bits of the facilities masked by [`mask`], besides those of the environment.
static MASKED: AtomicU32 = AtomicU32::new(0);

/// Returns true if `facility` exists and is not masked. Cached; costs two loads.
pub fn usable(facility: Facility) -> bool {
    if masked(facility) {
        return false;
    }
    if PROBED.load(Ordering::Acquire) & facility.bit() == 0 {
        let present = probe::probe(facility).is_ok();
        if present {
            PRESENT.fetch_or(facility.bit(), Ordering::Relaxed);
        }
        PROBED.fetch_or(facility.bit(), Ordering::Release);
    }
    PRESENT.load(Ordering::Relaxed) & facility.bit() != 0
}

/// Probes now, and returns the reason and the advice if the facility is missing. Slow; for reports.
pub fn detect(facility: Facility) -> Availability {
    if masked(facility) {
        return Availability::Masked;
    }
    match probe::probe(facility) {
        Ok(()) => Availability::Usable,
        Err(probe::Absent { why, advice }) => Availability::Missing { why, advice },
    }
}

/// Masks facilities by name, as `MEMLIFT_DISABLE` does: names separated by commas. Returns the names that no
/// facility has.
#[must_use = "unknown names were not masked: tell the user, with the known ones"]
pub fn mask(names: &str) -> Vec<String> {
    let (bits, unknown) = parse(names);
    MASKED.fetch_or(bits, Ordering::Relaxed);
    unknown
}

/// Returns all facility names, separated by commas, for messages.
pub fn known_names() -> String {
    Facility::ALL.iter().map(|facility| facility.name()).collect::<Vec<_>>().join(", ")
}

fn masked(facility: Facility) -> bool {
    (environment_mask() | MASKED.load(Ordering::Relaxed)) & facility.bit() != 0
}

fn environment_mask() -> u32 {
    static MASK: OnceLock<u32> = OnceLock::new();
    *MASK.get_or_init(|| {
        let Some(names) = std::env::var_os("MEMLIFT_DISABLE") else { return 0 };
        let (bits, unknown) = parse(&names.to_string_lossy());
        if !unknown.is_empty() {
            eprintln!(
                "memlift: MEMLIFT_DISABLE names no facility called {}; known are {}",
                unknown.join(", "),
                known_names()
            );
        }
        bits
    })
}

fn parse(names: &str) -> (u32, Vec<String>) {
    let mut bits = 0;
    let mut unknown = Vec::new();
    for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        match Facility::from_name(name) {
            Some(facility) => bits |= facility.bit(),
            None => unknown.push(name.to_owned()),
        }
    }
    (bits, unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found_again() {
        for &facility in Facility::ALL {
            assert_eq!(Facility::from_name(facility.name()), Some(facility));
        }
        assert_eq!(Facility::from_name("nonsense"), None);
    }

    #[test]
    fn a_list_with_blanks_and_strangers_is_parsed() {
        let (bits, unknown) = parse(" memfd_seal, ,bogus,thp,");
        assert_eq!(bits, Facility::MemfdSeal.bit() | Facility::Thp.bit());
        assert_eq!(unknown, ["bogus"]);
    }

    #[test]
    fn usable_agrees_with_detect() {
        for &facility in Facility::ALL {
            let detected = detect(facility);
            assert_eq!(usable(facility), detected == Availability::Usable, "{facility}: {detected:?}");
            if let Availability::Missing { why, advice } = detected {
                assert!(!why.is_empty() && !advice.is_empty(), "{facility} must say why and what to do");
            }
        }
    }
}
