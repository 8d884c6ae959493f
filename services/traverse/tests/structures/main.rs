// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Structures that walks traverse, and their programs.

mod collections;
mod expiring;
mod programs;
mod table1;
