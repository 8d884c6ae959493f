// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of regions, and what to do about them.

use super::RegionOffset;
use crate::size::readable;

/// Reason that a region could not be made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// Zero bytes were asked for.
    #[error("a region of 0 bytes was asked for; ask for at least one")]
    Empty,
    /// The caller's `stop` returned true while the region was made.
    #[error("making a region of {bytes} bytes was stopped")]
    Stopped {
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// More bytes than an address space has.
    #[error("a region of {} does not fit into the address space; ask for less", readable(*.bytes))]
    TooLarge {
        /// Bytes asked for.
        bytes: u64,
    },
    /// Touching that much memory could make the kernel's OOM killer act.
    #[error(
        "{} are needed but {} are left by {origin}; free memory, ask for a smaller region, or raise that limit",
        readable(*.needed),
        readable(*.available)
    )]
    Headroom {
        /// Bytes that were requested, with the margin that is kept free.
        needed: u64,
        /// Bytes that can still be touched.
        available: u64,
        /// The tightest limit: a file of the memory cgroup, or /proc/meminfo.
        origin: String,
    },
    /// A peer's memory is smaller than the peer announced.
    #[error("the peer's memory holds {actual} bytes where {expected} were announced; drop the session")]
    TooShort {
        /// Bytes that the peer announced.
        expected: u64,
        /// Bytes that its memory holds.
        actual: u64,
    },
    /// A peer's memory could be shrunk while this process uses it.
    #[error(
        "the peer's memory is not sealed against resizing; drop the session (the peer must be a memlift \
         process with the facility memfd_seal)"
    )]
    NotSealed,
    /// The range does not lie inside the region.
    #[error("{bytes} bytes at {offset} do not lie inside a region of {region_bytes} bytes")]
    Bounds {
        /// Start of the range.
        offset: RegionOffset,
        /// Bytes of the range.
        bytes: u64,
        /// Bytes of the region.
        region_bytes: u64,
    },
    /// The control word is not aligned to its size.
    #[error("offset {offset} is not aligned to {align} bytes")]
    Misaligned {
        /// The offset, in bytes from the region's start.
        offset: RegionOffset,
        /// The alignment that was needed, bytes.
        align: usize,
    },
    /// The region is mapped for loads only, and the operation would store.
    #[error("the region is mapped read-only; map it with Access::ReadWrite to store into it")]
    ReadOnly,
    /// A system call failed.
    #[error("{call} failed: {source}")]
    Os {
        /// Name of the system call.
        call: &'static str,
        /// The kernel's error.
        #[source]
        source: std::io::Error,
    },
}

impl RegionError {
    pub(crate) fn os(call: &'static str, source: rustix::io::Errno) -> RegionError {
        RegionError::Os { call, source: source.into() }
    }
}
