// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the public interface, in one binary.

mod bad;
mod chains;
mod corpus;
mod incremental;
mod pool;
mod restart;
