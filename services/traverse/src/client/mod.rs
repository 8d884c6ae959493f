// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client of memory nodes.

pub mod error;

pub use error::{ClientError, Result};
