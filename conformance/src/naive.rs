// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What sealing and packing mean, written down from their standards, one byte or bit at a time.
//!
//! Not here anything fast, or in constant time: keys in here are tests' keys

mod aes;
mod gcm;
mod inflate;
mod streams;

pub(crate) use gcm::gcm;
#[cfg(test)]
pub(crate) use inflate::Inflated;
pub(crate) use inflate::unpack;
pub(crate) use streams::{fixed, stored, wrap};
