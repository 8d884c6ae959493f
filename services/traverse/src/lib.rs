// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pointer walks that run where the data lives, many of them interleaved on a core, and from node to node without coming back.
//!
//! The interface is that of PULSE (`init` at the client; `next` and `end` sent to the data); the accelerator is this CPU.
#![deny(unsafe_code)]

pub mod bpf;
pub mod builder;
pub mod client;
pub mod error;
#[doc(hidden)]
pub mod generate;
pub mod interp;
pub mod ir;
#[cfg(feature = "jit")]
#[expect(unsafe_code, reason = "calls the code that it has written")]
pub mod jit;
pub mod map;
pub mod lower;
#[expect(unsafe_code, reason = "its words are atomics at addresses that were checked")]
pub mod memory;
#[expect(unsafe_code, reason = "steps walks at addresses that were checked")]
pub mod node;
pub mod program;
#[expect(unsafe_code, reason = "prefetches, and steps what its caller vouches for")]
pub mod round;
pub mod slot;
pub mod step;
pub mod structures;
pub mod verify;
pub mod transport;
pub mod wire;
#[cfg(feature = "xdp")]
pub mod xdp;
