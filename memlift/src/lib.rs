// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The door: one crate for programs that lift memory work off the core. It re-exports and holds no logic.
//!
//! ```text
//! memlift::spec      descriptors, opcodes, status, the Backend trait
//! memlift::ground    regions, waiting, statistics, configuration, facilities of this machine
//! memlift::place     the decider: calibration, cost model, reasons
//! memlift::offload   copies here and now, shared between cores, or as descriptors on queues
//! memlift::idxd      Intel DSA as a backend
//! memlift::ipc       call another process with arrays                                   (feature `ipc`, on)
//! memlift::transform copy that seals, opens, packs, unpacks or checks on the way        (feature `transform`, on)
//! memlift::persist   objects that survive a crash, one fence per transaction                (feature `persist`, on)
//! memlift::traverse  pointer walks that run where the data lives                                    (feature `traverse`)
//! memlift::zmem      more memory than the budget, and never more than the budget        (feature `zmem`, on)
//! ```
//!
//! One feature per service, so that nobody compiles one that they do not use.
#![forbid(unsafe_code)]

pub use memlift_ground as ground;
pub use memlift_idxd as idxd;
#[cfg(feature = "ipc")]
pub use memlift_ipc as ipc;
pub use memlift_offload as offload;
#[cfg(feature = "persist")]
pub use memlift_persist as persist;
pub use memlift_place as place;
pub use memlift_spec as spec;
#[cfg(feature = "transform")]
pub use memlift_transform as transform;
#[cfg(feature = "traverse")]
pub use memlift_traverse as traverse;
#[cfg(feature = "zmem")]
pub use memlift_zmem as zmem;

/// The README's Rust is compiled and run as it stands there.
#[cfg(all(doctest, feature = "ipc"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// The former name of what is in [`ground`], [`place`] and [`offload`] now.
#[deprecated(note = "use memlift::ground, memlift::place or memlift::offload")]
pub mod engine {
    pub use memlift_ground::*;
    pub use memlift_offload::*;
    pub use memlift_place as place;
}
