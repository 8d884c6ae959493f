// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift.persist`: dicts and arrays that survive a crash.
//!
//! - **Flow** `pool`: open, begin, end, names ─▶ `dict`: keys and values as bytes (`value`) ─▶ `memlift::persist::raw::Table`
//!   `array`: read-only views on top of the pool's memory, changes by copy
//! - **Layout** the root's table of names: name ─▶ u8 kind · u64 offset · for an array: letter of its kind, bytes of an element,
//!   dimensions (u8 each), extents (u64 each)
//! - **Order** the GIL is released wherever a lock or the disk may be waited for
//! - **Owner** a view pins its array: as long as there is a view, its bytes do not change and are not given back (`pins`)
//! - **Not here** mapping protocol, context managers, names for people: `memlift/persist.py`

#[expect(unsafe_code, reason = "exports pool memory by the buffer protocol")]
mod array;
mod dict;
mod pins;
mod pool;
mod value;

use pyo3::prelude::*;

/// Adds the classes.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<pool::PersistPool>()?;
    module.add_class::<dict::PersistDict>()?;
    module.add_class::<array::Pinned>()
}
