// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The base of all services: memory that other processes may change, waits that cost nothing when idle, one page of statistics
//! per process, the configuration, and the facilities of this kernel and CPU.
//!
//! - **Rule** shared memory is never behind a reference: [`region`] copies out of windows, and callers validate the copy
//! - **Owner** regions own mapped memory; the stats page belongs to the process
//! - **Not here** decisions about work (`place`) and work itself (`offload`)
#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "blocks signals and waits for them")]
pub mod ending;
pub mod facility;
pub mod config;
#[expect(unsafe_code, reason = "maps memory that other processes write")]
pub mod region;
#[expect(unsafe_code, reason = "gives the kernel a list of words to mark when a thread dies")]
pub mod robust;
pub mod fresh_file;
pub mod input_file;
pub mod locked_file;
pub mod on_wait;
pub mod own_file;
pub mod rights;
pub mod size;
pub mod socket_file;
pub mod observe;
pub mod complete;
