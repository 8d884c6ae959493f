// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Crashes in the persistence simulator: every image that a power cut may leave is opened and checked.
//!
//! - **Not here** real processes that are killed: `pools`, `replicate`

mod far;
mod growth;
mod large;
mod migrate;
mod overwrite;
mod pool;
mod protocols;
mod reclaim;
mod rules;
