// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Python face: `import memlift`.
//!
//! Flow    numpy array, bytes ──`convert`──▶ `Outgoing` ─▶ memlift::ipc ─▶ `Payload` ──`slot`──▶ read-only numpy view
//! Order   the GIL is released in every wait and every large copy; signals are looked at while waiting
//! Owner   a view's base object is a `Slot`; the slot goes back to its pool when the last view is gone
//! Not here the Python-side conveniences (`memlift/ipc.py`) and all decisions.
#![deny(unsafe_code)]

use pyo3::prelude::*;

#[expect(unsafe_code, reason = "borrows memory from Python buffers while they are exported")]
mod convert;
mod client;
mod errors;
mod server;
#[expect(unsafe_code, reason = "exports pool memory by the buffer protocol")]
mod slot;

#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<client::Client>()?;
    module.add_class::<client::Future>()?;
    module.add_class::<client::Pipeline>()?;
    module.add_class::<server::Server>()?;
    module.add_class::<slot::Slot>()?;
    Ok(())
}
