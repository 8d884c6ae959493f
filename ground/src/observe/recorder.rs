// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connects to the trace of `memlift record` if its library is loaded into this process: operations, and work that services do on their
//! own, are written to the trace.
//!
//! - **Flow** the first operation asks [`is_recorded`] ──▶ the library's functions, by name; [`operation`] calls one of them, [`work`] the
//!   other
//! - **Order** [`work_begins`] is one relaxed load if nothing is recorded. [`work`] takes no lock and allocates nothing, so a page-fault
//!   handler may call it
//! - **Not here** the trace: bindings/tap, docs/formats/trace.md

use std::ffi::{CStr, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use memlift_spec::formats::trace::Kind;

use super::{DecisionRecord, page};

/// Arguments: opcode, start on `CLOCK_MONOTONIC`, nanoseconds, source, target, bytes.
type OperationFn = unsafe extern "C" fn(u32, u64, u64, u64, u64, u64);
/// Arguments: kind, parameter, start on `CLOCK_MONOTONIC`, nanoseconds, bytes read, bytes written, parts.
type WorkFn = unsafe extern "C" fn(u32, u32, u64, u64, u64, u64, u64);

static OPERATION: OnceLock<Option<OperationFn>> = OnceLock::new();
static WORK: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Work that a service did on its own, without a descriptor or a queue.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Kind of the work ([`Kind::is_work`] is true); it determines the meaning of the other fields.
    pub kind: Kind,
    /// Parameter of the work; its meaning depends on the [`Kind`].
    pub parameter: u32,
    /// Bytes that were read.
    pub read: u64,
    /// Bytes that were written.
    pub written: u64,
    /// Number of parts; its meaning depends on the [`Kind`].
    pub parts: u64,
}

/// Returns the start time of work that will be recorded; `None` if no recorder is loaded, or no operation has searched for
/// it yet ([`is_recorded`]).
#[inline]
pub fn work_begins() -> Option<u64> {
    (!WORK.load(Ordering::Relaxed).is_null()).then(page::now_ns)
}

/// Records work that began at `began_ns` and ends now.
#[cold]
pub fn work(began_ns: u64, work: &Work) {
    let function = WORK.load(Ordering::Relaxed);
    if function.is_null() {
        return;
    }
    let took_ns = page::now_ns().saturating_sub(began_ns);
    // SAFETY: not null, so it is the library's function of this type (`find`), which only takes numbers; the library stays
    // loaded.
    unsafe {
        std::mem::transmute::<*mut c_void, WorkFn>(function)(
            work.kind as u32,
            work.parameter,
            began_ns,
            took_ns,
            work.read,
            work.written,
            work.parts,
        );
    }
}

/// Returns true if `memlift record` records this process. The first call looks for its library.
#[inline]
pub fn is_recorded() -> bool {
    OPERATION.get_or_init(find).is_some()
}

/// Records an operation with the addresses that it read and wrote.
#[cold]
pub fn operation(decision: &DecisionRecord, source: u64, target: u64) {
    let Some(function) = *OPERATION.get_or_init(find) else { return };
    let opcode = decision.opcode.0.into();
    // SAFETY: all arguments are numbers; the library was loaded before the program, so it stays loaded as long as the process
    // lives.
    unsafe { function(opcode, decision.time_ns, decision.measured_ns, source, target, decision.size) }
}

fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: `name` is a string that ends with a zero byte.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

#[cold]
fn find() -> Option<OperationFn> {
    std::env::var_os("MEMLIFT_TRACE")?;
    WORK.store(symbol(c"memlift_tap_work"), Ordering::Relaxed);
    let found = symbol(c"memlift_tap_operation");
    // SAFETY: a symbol with that name is the library's function, whose type is given above.
    (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, OperationFn>(found) })
}
