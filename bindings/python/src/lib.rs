// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Python interface: `import memlift`.
//!
//! - **Flow** numpy array or bytes ──`convert`──▶ `Outgoing` ──▶ memlift::ipc ──▶ `Payload` ──`slot`──▶ read-only numpy view.
//!   Any value ──`values`──▶ description and arrays ──`queue`──▶ memlift::ipc::Queue, ──`arena`──▶ memlift::ipc::Arena.
//!   Any contiguous buffer ──`memory`──▶ addresses ──`transform`, `pieces`──▶ memlift::transform ──▶ `out`, or new bytes.
//!   Names, keys, values, arrays ──`persist`──▶ memlift::persist: objects that survive a crash.
//!   Programs, addresses, keys ──`traverse`──▶ memlift::traverse: walks at the memory nodes that hold the data.
//!   Any contiguous buffer ──`zlib`──▶ libmemlift_z.so, loaded in addition to the interpreter's libz.
//!   Arrays under a memory budget ──`zmem`──▶ memlift::zmem: numpy's allocator over the arena.
//! - **Order** the GIL is released in every wait and every large copy; signals are handled while waiting.
//! - **Owner** the base object of a view is a `Slot`; the slot is returned to its pool when the last view is gone.
//! - **Not here** the parts written in Python (`memlift/ipc.py`, `memlift/transform.py`, `memlift/persist.py`, `memlift/traverse/`,
//!   `memlift/zmem.py`), and all decisions.
#![deny(unsafe_code)]

use pyo3::prelude::*;

#[expect(unsafe_code, reason = "borrows memory from Python buffers while they are exported")]
mod convert;
mod arena;
mod client;
mod errors;
#[expect(unsafe_code, reason = "calls Python by a declaration that may unwind")]
mod exit;
#[expect(unsafe_code, reason = "borrows memory of Python objects and makes bytes in place")]
mod memory;
#[expect(unsafe_code, reason = "reads and writes memory of Python objects")]
mod pieces;
mod handler;
mod options;
mod persist;
mod queue;
mod reply;
mod server;
#[expect(unsafe_code, reason = "exports pool memory by the buffer protocol")]
mod slot;
#[expect(unsafe_code, reason = "reads and writes memory of Python objects")]
mod transform;
mod traverse;
mod values;
mod watch;
mod zlib;
#[expect(unsafe_code, reason = "allocates for numpy by its C interface")]
mod zmem;

#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<arena::Arena>()?;
    module.add_class::<arena::Ref>()?;
    module.add_class::<arena::Subscription>()?;
    module.add_class::<client::Client>()?;
    module.add_class::<client::Future>()?;
    module.add_class::<client::Pipeline>()?;
    module.add_class::<queue::Queue>()?;
    module.add_class::<watch::Session>()?;
    module.add_class::<watch::Failed>()?;
    module.add_class::<server::Server>()?;
    module.add_class::<reply::Reply>()?;
    module.add_class::<slot::Slot>()?;
    module.add_function(wrap_pyfunction!(values::_check, module)?)?;
    module.add_function(wrap_pyfunction!(values::_encode, module)?)?;
    module.add_function(wrap_pyfunction!(values::_decode, module)?)?;
    module.add_class::<transform::Step>()?;
    module.add_class::<transform::PyChain>()?;
    module.add_class::<transform::Outcome>()?;
    module.add_class::<pieces::Packer>()?;
    module.add_class::<pieces::Sealer>()?;
    module.add_class::<pieces::Opener>()?;
    persist::register(module)?;
    traverse::register(module)?;
    zmem::register(module)?;
    zlib::register(module)?;
    exit::register(module)?;
    module.add_function(wrap_pyfunction!(server::progress, module)?)?;
    module.add_function(wrap_pyfunction!(client::_health, module)?)?;
    module.add_function(wrap_pyfunction!(transform::copy, module)?)?;
    module.add_function(wrap_pyfunction!(transform::crc32c, module)?)?;
    module.add_function(wrap_pyfunction!(transform::explain, module)?)?;
    Ok(())
}
