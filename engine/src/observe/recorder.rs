// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations go into the trace of `memlift record`, where that has loaded its library into this process.
//!
//! Flow    the first operation that asks whether somebody listens ──[`find`]──▶ the library's function, by name ──▶ a tap that calls it
//! Not here the trace: bindings/tap, docs/formats/trace.md

use memlift_spec::{Completion, Descriptor};

use super::{DecisionRecord, Tap};

/// opcode, start on `CLOCK_MONOTONIC`, nanoseconds, source, target, bytes.
type OperationFn = unsafe extern "C" fn(u32, u64, u64, u64, u64, u64);

struct Recorder(OperationFn);

impl Tap for Recorder {
    fn record(&self, descriptor: &Descriptor, _completion: &Completion, decision: &DecisionRecord) {
        // SAFETY: numbers only; the library stays loaded as long as the process lives, since it was loaded before the program.
        unsafe {
            self.0(
                decision.opcode.0.into(),
                decision.time_ns,
                decision.measured_ns,
                descriptor.source,
                descriptor.target,
                decision.size,
            );
        }
    }
}

/// The recorder of this process.
pub(super) fn find() -> Option<Box<dyn Tap>> {
    std::env::var_os("MEMLIFT_TRACE")?;
    // SAFETY: a name with its zero; whatever has that name is the library's function, whose type is above.
    let found = unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, c"memlift_tap_operation".as_ptr());
        if found.is_null() {
            return None;
        }
        std::mem::transmute::<*mut libc::c_void, OperationFn>(found)
    };
    Some(Box::new(Recorder(found)))
}
