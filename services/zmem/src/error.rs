// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can go wrong before anything ran, and what to do about it.

/// Why a job, an arena or a spill file was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel gave no memory or address space.
    #[error("no room for {what}, {bytes} bytes: {source}; raise the limit (ulimit -v, vm.max_map_count) or ask for less")]
    Map {
        /// What it was for.
        what: &'static str,
        /// How much.
        bytes: usize,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
