// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pointer walks that run where the data lives, many of them interleaved on a core, and from node to node without coming back.
//!
//! The interface is that of PULSE (`init` at the client; `next` and `end` sent to the data); the accelerator is this CPU.
#![deny(unsafe_code)]

pub mod ir;
pub mod step;
