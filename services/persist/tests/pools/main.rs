// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pools in use: transactions, files, readers in other processes, copies, the room in them.
//!
//! - **Not here** tests that count what the whole process has (`apply_behind`, `disk`, `trim`, `replicate_follow`): each is a program

mod backup;
mod buffered;
mod compact;
mod devices;
mod devices_crash;
mod devices_tools;
mod fences;
mod group;
mod large;
mod many_ranges;
mod pages;
mod pool;
mod readers;
mod space;
