// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The door: one crate for programs that lift memory work off the core. It re-exports and holds no logic.
//!
//! ```text
//! memlift::spec      the words of the engine: descriptor, opcodes, status, the Backend trait
//! memlift::engine    regions, the life of a descriptor, calibration, waiting, stats
//! memlift::ipc       call another process with arrays                                   (feature `ipc`, on)
//! memlift::transform copy that seals, opens, packs, unpacks or checks on the way        (feature `transform`, on)
//! memlift::persist   objects that survive a crash, one fence per transaction                (feature `persist`, on)
//! memlift::traverse  pointer walks that run where the data lives                                    (feature `traverse`)
//! memlift::zmem      more memory than the budget, and never more than the budget        (feature `zmem`, on)
//! ```
//!
//! One feature per service, so that nobody compiles one that they do not use.
#![forbid(unsafe_code)]

pub use memlift_engine as engine;
#[cfg(feature = "ipc")]
pub use memlift_ipc as ipc;
#[cfg(feature = "persist")]
pub use memlift_persist as persist;
pub use memlift_spec as spec;
#[cfg(feature = "transform")]
pub use memlift_transform as transform;
#[cfg(feature = "traverse")]
pub use memlift_traverse as traverse;
#[cfg(feature = "zmem")]
pub use memlift_zmem as zmem;

/// The README's Rust is compiled and run as it stands there.
#[cfg(all(doctest, feature = "ipc"))]
#[doc = include_str!("../../README.md")]
struct Readme;
