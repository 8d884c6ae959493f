// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift.persist`: dicts and arrays that survive a crash.
//!
//! - **Flow** `pool` opens a pool, begins and ends transactions, and finds names. `dict` stores keys and values as bytes (`value`) in a
//!   `memlift::persist::raw::Table`. `array` gives read-only views of the pool's memory, and changes arrays by copying.
//! - **Layout** the root's table of names: name ─▶ u8 kind · u64 offset · for an array: type letter, bytes per element, dimensions (u8
//!   each), extents (u64 each).
//! - **Order** the GIL is released wherever the code may wait for a lock or the disk.
//! - **Replicas** `replica` starts one with its pool and ends it before the pool; in a build without the feature each call says so.
//! - **Owner** a view pins its array: as long as the view exists, its bytes do not change and are not freed (`pins`).
//! - **Not here** the mapping protocol and context managers: `memlift/persist.py`.

#[expect(unsafe_code, reason = "exports pool memory by the buffer protocol")]
mod array;
mod dict;
mod pins;
mod pool;
#[cfg(feature = "replicate")]
mod replica;
#[cfg(not(feature = "replicate"))]
#[path = "persist/no_replica.rs"]
mod replica;
mod value;

use pyo3::prelude::*;

/// Adds the classes.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<pool::PersistPool>()?;
    module.add_class::<dict::PersistDict>()?;
    module.add_class::<array::Pinned>()?;
    module.add_function(wrap_pyfunction!(replica::restore_replica, module)?)?;
    module.add_function(wrap_pyfunction!(replica::replica_history, module)?)
}
