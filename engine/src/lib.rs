// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The mind: runs descriptors. Submit, place, run, complete.
#![deny(unsafe_code)]

pub mod facility;
pub mod config;
#[expect(unsafe_code, reason = "maps memory that other processes write")]
pub mod region;
pub mod observe;
pub mod complete;
#[expect(unsafe_code, reason = "executes raw addresses that submitters vouch for")]
pub mod run;
#[expect(unsafe_code, reason = "lends buffers to executors until they are done")]
pub mod submit;
