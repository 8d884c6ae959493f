// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Servers: the last part of `memlift_ipc.h`.
//!
//! - **Flow** bind creates a server; C functions are registered by operation name; after start the server's threads call them, and they
//!   answer or fail each request.
//! - **Owner** a request belongs to the C function that it is passed to. Answering or failing it ends it, on any thread and at any time.
//!   It keeps what it needs of the session alive, and may outlive the server.
//! - **Not here** decisions: the service decides on which device an operation runs and what a client may do.

use std::ffi::{c_char, c_int, c_void};

use memlift::ipc::{Outgoing, Progress, Request, Responder, Server, ServerOptions, Trust};

use crate::fault::{Fault, free, null, run, write_boxed};
use crate::walk::{borrow_object, bytes, text};

/// The C type `memlift_server_options` of `memlift_ipc.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CServerOptions {
    handlers: u32,
    trust: u32,
    pool_bytes_max: u64,
    message_bytes_max: u64,
    sessions_max: u32,
    shared: u32,
}

/// `memlift_request`: a request, with the right to answer it.
pub struct PendingRequest {
    request: Request,
    progress: Progress,
    responder: Responder,
}

/// The C type `memlift_handler` of `memlift_ipc.h`.
pub type Handler = unsafe extern "C" fn(request: *mut PendingRequest, user: *mut c_void);

/// The `user` pointer that is passed to a C function.
struct User(*mut c_void);

// SAFETY: the header says that several threads may call the handler with `user` at the same time, so the C program allows it.
unsafe impl Send for User {}
// SAFETY: the header says that several threads may call the handler with `user` at the same time, so the C program allows it.
unsafe impl Sync for User {}

impl User {
    /// Returns the pointer. A closure that calls this method captures all of `User`, which is `Send`, and not only the field,
    /// which is not.
    fn pointer(&self) -> *mut c_void {
        self.0
    }
}

/// Checks the options of a server; null and fields that are 0 mean the defaults.
fn checked_options(options: *const CServerOptions) -> Result<ServerOptions, Fault> {
    let config = memlift::ground::config::Config::load()
        .map_err(|error| Fault::argument(&format!("the configuration: {error}")))?;
    let base = ServerOptions::from_config(&config);
    let Ok(said) = borrow_object(options, "options") else { return Ok(base) };
    if said.shared > 1 {
        return Err(Fault::argument("shared in the options of a server is neither 0 nor 1"));
    }
    let or = |said: u64, otherwise: u64| if said == 0 { otherwise } else { said };
    Ok(ServerOptions {
        handlers: or(said.handlers.into(), base.handlers as u64) as usize,
        trust: match said.trust {
            0 => Trust::View,
            1 => Trust::Copy,
            other => return Err(Fault::argument(&format!("{other} is no trust"))),
        },
        pool_bytes_max: or(said.pool_bytes_max, base.pool_bytes_max),
        message_bytes_max: or(said.message_bytes_max, base.message_bytes_max),
        sessions_max: or(said.sessions_max.into(), base.sessions_max as u64) as usize,
        shared: said.shared == 1,
        ..base
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// Each pointer is null, comes from this library, or points to enough room, as `memlift_ipc.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_server_bind(
    address: *const c_char,
    options: *const CServerOptions,
    server: *mut *mut Server,
) -> c_int {
    run(|| {
        let bound = Server::bind(text(address, "address")?, checked_options(options)?)?;
        // SAFETY: the caller passes room for a pointer.
        unsafe { write_boxed(server, bound, "server") }
    })
}

/// See `memlift_ipc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_server_register(
    server: *const Server,
    operation: *const c_char,
    handler: Option<Handler>,
    user: *mut c_void,
) -> c_int {
    run(|| {
        let handler = handler.ok_or_else(|| null("handler"))?;
        let user = User(user);
        let call = move |request: Request, responder: Responder| {
            let asked = PendingRequest { progress: request.progress(), request, responder };
            // SAFETY: the header requires a function that any thread may call with these arguments while the server exists.
            unsafe { handler(Box::into_raw(Box::new(asked)), user.pointer()) }
        };
        Ok(borrow_object(server, "server")?.register_raw(text(operation, "operation")?, call)?)
    })
}

/// See `memlift_ipc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_server_start(server: *const Server) -> c_int {
    run(|| Ok(borrow_object(server, "server")?.start()?))
}

/// See `memlift_ipc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_server_stop(server: *const Server) -> c_int {
    run(|| {
        borrow_object(server, "server")?.stop();
        Ok(())
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// The pointer is null, or came from [`memlift_server_bind`]; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_server_free(server: *mut Server) {
    // SAFETY: null, or boxed by `memlift_server_bind`; the caller gives it up.
    unsafe { free(server) }
}

/// See `memlift_ipc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_request_data(request: *const PendingRequest) -> *const c_void {
    let mut data = std::ptr::null();
    run(|| {
        data = borrow_object(request, "request")?.request.as_ptr().cast();
        Ok(())
    });
    data
}

/// See `memlift_ipc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_request_bytes(request: *const PendingRequest) -> u64 {
    let mut count = 0;
    run(|| {
        count = borrow_object(request, "request")?.request.bytes();
        Ok(())
    });
    count
}

/// See `memlift_ipc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_request_uid(request: *const PendingRequest) -> u32 {
    let mut uid = u32::MAX;
    run(|| {
        uid = borrow_object(request, "request")?.request.peer_uid();
        Ok(())
    });
    uid
}

/// See `memlift_ipc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_request_progress(request: *const PendingRequest, done: u64, total: u64) -> c_int {
    run(|| {
        borrow_object(request, "request")?.progress.report(done, total);
        Ok(())
    })
}

impl PendingRequest {
    /// Returns the request.
    pub fn request(&self) -> &Request {
        &self.request
    }
}

/// Answers a request, and ends it.
pub(crate) fn answered(asked: PendingRequest, data: &Outgoing<'_>) {
    let PendingRequest { request, responder, .. } = asked;
    // The answer's data may lie in the request, so it is staged before the request is dropped.
    let staged = responder.stage(data);
    drop(request);
    responder.commit(staged);
}

/// Takes a request back from C.
///
/// # Safety
///
/// `request` is null, or was passed to a handler; it is not used afterwards.
pub(crate) unsafe fn take_request(request: *mut PendingRequest) -> Result<PendingRequest, Fault> {
    if request.is_null() {
        return Err(null("request"));
    }
    // SAFETY: the request was boxed for a handler's call, and the caller guarantees to give it back once.
    Ok(*unsafe { Box::from_raw(request) })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// `request` was passed to a handler; it is not used afterwards, unless its data is null and not empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_request_answer(
    request: *mut PendingRequest,
    data: *const c_void,
    count: usize,
) -> c_int {
    run(|| {
        let data = match count {
            0 => Outgoing::none(),
            _ => Outgoing::from(bytes(data, count, "data")?),
        };
        // SAFETY: `request` is null, or was passed to a handler and not ended; the caller gives it up.
        answered(unsafe { take_request(request) }?, &data);
        Ok(())
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// `request` was passed to a handler; it is not used afterwards, unless the reason is null or no UTF-8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_request_fail(request: *mut PendingRequest, reason: *const c_char) -> c_int {
    run(|| {
        let reason = text(reason, "reason")?;
        // SAFETY: `request` is null, or was passed to a handler and not ended; the caller gives it up.
        let PendingRequest { request, responder, .. } = unsafe { take_request(request) }?;
        drop(request);
        responder.fail(reason);
        Ok(())
    })
}
