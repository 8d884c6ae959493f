// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pool in the simulator: every mechanism, on memory, on memory with persistent caches and on files.

mod cases;
mod crashes;
mod score;
mod script;
mod threads;
