// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of system calls is consistent.

#[path = "../src/table.rs"]
#[allow(dead_code, reason = "the library's other parts use the rest")]
mod table;
