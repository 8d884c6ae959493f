// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift.traverse`: walks at memory nodes, and the collections that they walk through.
//!
//! - **Flow** `client` makes walks, one, many, or in an event loop, by `memlift::traverse::client`. `collections` and `load` do this for
//!   maps and lists. `node` runs a memory node in this process; `program` is the program of a walk.
//! - **Order** the GIL is released in every wait; signals are handled several times a second.
//! - **Owner** a client is behind one lock, so its threads use it in turn. Bytes that came from a node are in a [`block::Block`], of
//!   which numpy has views without a copy.
//! - **Not here** mappings, coroutines, iterators made of Python functions: `memlift/traverse/`.

#[expect(unsafe_code, reason = "exports memory by the buffer protocol")]
mod block;
mod client;
mod collections;
mod expiring;
#[expect(unsafe_code, reason = "takes Arrow streams over, and reads buffers of Python objects")]
mod load;
mod node;
mod program;

use pyo3::prelude::*;

/// Adds the classes.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<block::Block>()?;
    module.add_class::<program::WalkProgram>()?;
    module.add_class::<client::WalkClient>()?;
    module.add_class::<collections::WalkHash>()?;
    module.add_class::<expiring::WalkExpiring>()?;
    module.add_class::<collections::WalkOrdered>()?;
    module.add_class::<collections::WalkList>()?;
    module.add_class::<node::WalkNode>()?;
    module.add_function(wrap_pyfunction!(load::walk_load_arrow, module)?)?;
    module.add_function(wrap_pyfunction!(load::walk_load_csv, module)?)?;
    module.add_function(wrap_pyfunction!(load::walk_load_arrays, module)?)?;
    module.add_function(wrap_pyfunction!(load::walk_load_pairs, module)?)
}
