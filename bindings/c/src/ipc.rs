// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls to another process: `memlift_ipc.h`.
//!
//! - **Flow** connecting gives a `memlift_client`. It makes calls that wait, jobs that are polled, pipelines, or watches for an event
//!   loop; all of them give answers.
//! - **Owner** jobs, pipelines, watches, loans and answers keep what they need of their client's session alive, and may be freed after
//!   the client.
//! - **Not here** the server's side: [`serve`](crate::serve).

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::time::Duration;

use memlift::ipc::{
    Batch, CachePolicy, CallOptions, Client, ClientOptions, Device, Error, Job, JobState, Loan, Outgoing,
    Payload, Pipeline, RemoteFailure, Watch,
};

use crate::fault::{self, Fault, free, make, run, write_boxed};
use crate::walk::{borrow_object, bytes, text, write_result};

/// The C type `memlift_call_options` of `memlift_ipc.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct COptions {
    timeout_s: f64,
    device: u32,
    cache: u32,
    look_at_once: u32,
    crc: u32,
    pack: u32,
    reserved: u32,
}

/// The C type `memlift_load` of `memlift_ipc.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CLoad {
    sessions: u32,
    handlers: u32,
    busy_handlers: u32,
    queued: u32,
}

/// The C type `memlift_job_state_t` of `memlift_ipc.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CState {
    ahead: u64,
    done: u64,
    total: u64,
    state: u32,
    reserved: u32,
}

/// `memlift_watch`: a watch, and the answers that arrived but were not fetched yet.
pub struct Watched {
    watch: Watch,
    answered: VecDeque<(u64, Result<Payload, Error>)>,
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        let code = match &error {
            Error::ServerUnavailable { .. } | Error::Refused { .. } => fault::NO_SERVER,
            Error::PeerDied { .. } => fault::PEER_DIED,
            Error::PeerFault { .. } => fault::PEER_FAULT,
            Error::DeadlineExceeded { .. } | Error::Remote(RemoteFailure::Deadline { .. }) => fault::LATE,
            Error::Corrupted { .. } | Error::Remote(RemoteFailure::Corrupted { .. }) => fault::CHECKSUM,
            Error::Remote(RemoteFailure::OutOfMemory { .. }) | Error::PoolFull { .. } | Error::Memory(_) => {
                fault::NO_MEMORY
            }
            Error::Remote(_) => fault::CALL_FAILED,
            Error::MessageTooLarge { .. } => fault::TOO_LONG,
            Error::Busy { .. } => fault::BUSY,
            Error::DeviceUnavailable { .. } => fault::NO_DEVICE,
            Error::BadAddress { .. } | Error::UnsupportedType(_) => fault::BAD_ARGUMENT,
            Error::AddressInUse { .. } => fault::ADDRESS_IN_USE,
            Error::Closed { .. } | Error::Forked { .. } | Error::OperationExists { .. } => fault::BAD_ORDER,
            Error::System { .. } => fault::FILE_FAILED,
            _ => fault::INTERNAL,
        };
        Fault { code, text: Some(error.to_string()) }
    }
}

/// Converts a limit in seconds; 0 and what is too long for a duration mean no limit.
fn limit(seconds: f64) -> Result<Option<Duration>, Fault> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(limit) => Ok(Some(limit).filter(|_| seconds != 0.0)),
        Err(_) if seconds > 0.0 => Ok(None),
        Err(_) => Err(Fault::argument("a time limit is below zero, or no number")),
    }
}

/// Checks the options of a call; null means the defaults.
pub(crate) fn checked_options(options: *const COptions) -> Result<CallOptions, Fault> {
    let COptions { timeout_s, device, cache, look_at_once, crc, pack, reserved } =
        borrow_object(options, "options").map_or(COptions::default(), |options| *options);
    if reserved != 0 {
        return Err(Fault::argument("what is reserved in the options of a call is not 0"));
    }
    Ok(CallOptions {
        timeout: limit(timeout_s)?,
        device: match device {
            0 => Device::Auto,
            1 => Device::Inline,
            2 => Device::Worker,
            3 => Device::Dsa,
            other => return Err(Fault::argument(&format!("{other} is no device"))),
        },
        cache: match cache {
            0 => CachePolicy::Auto,
            1 => CachePolicy::On,
            2 => CachePolicy::Off,
            other => return Err(Fault::argument(&format!("{other} is no cache policy"))),
        },
        defer: look_at_once == 0,
        crc: crc != 0,
        pack: pack != 0,
    })
}

/// Checks the arguments that every kind of call has.
fn call<'a>(
    operation: *const c_char,
    data: *const c_void,
    count: usize,
    options: *const COptions,
) -> Result<(&'a str, Outgoing<'a>, CallOptions), Fault> {
    let data = match count {
        0 => Outgoing::none(),
        _ => Outgoing::from(bytes(data, count, "data")?),
    };
    Ok((text(operation, "operation")?, data, checked_options(options)?))
}

/// Borrows an object of this library for a change, and refuses null.
///
/// # Safety
///
/// `object` is null, or came from this library, and nobody else uses it during the call.
unsafe fn borrow_mut_object<'a, T>(object: *mut T, what: &str) -> Result<&'a mut T, Fault> {
    // SAFETY: the caller guarantees that `object` is null, or was not freed and nobody else uses it during the call.
    unsafe { object.as_mut() }.ok_or_else(|| fault::null(what))
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// Each pointer is null, comes from this library, or points to enough room, as `memlift_ipc.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_client_connect(address: *const c_char, client: *mut *mut Client) -> c_int {
    run(|| {
        let address = text(address, "address")?;
        let config = memlift::ground::config::Config::load()
            .map_err(|error| Fault::argument(&format!("the configuration: {error}")))?;
        let opened = Client::connect(address, ClientOptions::from_config(&config))?;
        // SAFETY: the caller passes room for a pointer.
        unsafe { write_boxed(client, opened, "client") }
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// The pointer is null, or came from [`memlift_client_connect`]; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_client_free(client: *mut Client) {
    // SAFETY: null, or boxed by `memlift_client_connect`; the caller gives it up.
    unsafe { free(client) }
}

/// See `memlift_ipc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_client_load(client: *const Client, load: *mut CLoad) -> c_int {
    run(|| {
        let says = borrow_object(client, "client")?.load();
        let found = CLoad {
            sessions: says.sessions,
            handlers: says.handlers,
            busy_handlers: says.busy_handlers,
            queued: says.queued,
        };
        write_result(load, found, "load")
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// Each pointer is null, comes from this library, or points to enough room, as `memlift_ipc.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_call(
    client: *const Client,
    operation: *const c_char,
    data: *const c_void,
    count: usize,
    options: *const COptions,
    answer: *mut *mut Payload,
) -> c_int {
    run(|| {
        let (operation, data, options) = call(operation, data, count, options)?;
        let payload = borrow_object(client, "client")?.call(operation, data, options)?;
        // SAFETY: the caller passes room for a pointer.
        unsafe { write_boxed(answer, payload, "answer") }
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// Each pointer is null, comes from this library, or points to enough room, as `memlift_ipc.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_call_async(
    client: *const Client,
    operation: *const c_char,
    data: *const c_void,
    count: usize,
    options: *const COptions,
    job: *mut *mut Job,
) -> c_int {
    run(|| {
        let (operation, data, options) = call(operation, data, count, options)?;
        let sent = borrow_object(client, "client")?.call_async(operation, data, options)?;
        // SAFETY: the caller passes room for a pointer.
        unsafe { write_boxed(job, sent, "job") }
    })
}

/// See `memlift_ipc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_job_done(job: *const Job) -> c_int {
    let mut done = false;
    let code = run(|| {
        done = borrow_object(job, "job")?.is_done();
        Ok(())
    });
    if code == fault::OK { c_int::from(done) } else { code }
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// `job` came from [`memlift_call_async`], and nobody else uses it during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_job_wait(job: *mut Job, timeout_s: f64, answer: *mut *mut Payload) -> c_int {
    run(|| {
        // SAFETY: `job` is null, or from `memlift_call_async` and used by this thread alone, as the header demands.
        let payload = unsafe { borrow_mut_object(job, "job") }?.wait(limit(timeout_s)?)?;
        // SAFETY: the caller passes room for a pointer.
        unsafe { write_boxed(answer, payload, "answer") }
    })
}

/// See `memlift_ipc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_job_state(job: *const Job, timeout_s: f64, state: *mut CState) -> c_int {
    run(|| {
        let found = match borrow_object(job, "job")?.state(limit(timeout_s)?)? {
            JobState::Queued { ahead } => CState { state: 1, ahead, ..CState::default() },
            JobState::Taken { done, total } => CState { state: 2, done, total, ..CState::default() },
            JobState::Answered => CState { state: 3, ..CState::default() },
        };
        write_result(state, found, "state")
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// The pointer is null, or came from [`memlift_call_async`]; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_job_free(job: *mut Job) {
    // SAFETY: null, or boxed by `memlift_call_async`; the caller gives it up.
    unsafe { free(job) }
}

/// See `memlift_ipc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_pipeline_new(client: *const Client, depth: usize, batch: usize) -> *mut Pipeline {
    make(|| {
        let batch = if batch == 0 { Batch::Auto } else { Batch::Of(batch) };
        Ok(borrow_object(client, "client")?.pipeline(depth).with_batch(batch))
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// `pipeline` came from [`memlift_pipeline_new`], and nobody else uses it during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_pipeline_submit(
    pipeline: *mut Pipeline,
    operation: *const c_char,
    data: *const c_void,
    count: usize,
    options: *const COptions,
    id: *mut u64,
) -> c_int {
    run(|| {
        let (operation, data, options) = call(operation, data, count, options)?;
        // SAFETY: `pipeline` is null, or from `memlift_pipeline_new` and used by this thread alone, as the header demands.
        let sent = unsafe { borrow_mut_object(pipeline, "pipeline") }?.submit(operation, data, options)?;
        write_result(id, sent, "id")
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// The conditions of [`memlift_pipeline_submit`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_pipeline_flush(pipeline: *mut Pipeline) -> c_int {
    run(|| {
        // SAFETY: `pipeline` is null, or from `memlift_pipeline_new` and used by this thread alone, as the header demands.
        unsafe { borrow_mut_object(pipeline, "pipeline") }?.flush();
        Ok(())
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// The conditions of [`memlift_pipeline_submit`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_pipeline_next(
    pipeline: *mut Pipeline,
    timeout_s: f64,
    id: *mut u64,
    answer: *mut *mut Payload,
) -> c_int {
    run(|| {
        write_result(id, 0, "id")?;
        write_result(answer, std::ptr::null_mut(), "answer")?;
        // SAFETY: `pipeline` is null, or from `memlift_pipeline_new` and used by this thread alone, as the header demands.
        let next = unsafe { borrow_mut_object(pipeline, "pipeline") }?.next(limit(timeout_s)?)?;
        write_next(next, id, answer)
    })
}

/// Writes the next answer, if there is one, to the addresses that the caller gave.
fn write_next(
    answered: Option<(u64, Result<Payload, Error>)>,
    id: *mut u64,
    answer: *mut *mut Payload,
) -> Result<(), Fault> {
    let Some((number, payload)) = answered else { return Ok(()) };
    write_result(id, number, "id")?;
    // SAFETY: the caller passes room for a pointer.
    unsafe { write_boxed(answer, payload?, "answer") }
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// The pointer is null, or came from [`memlift_pipeline_new`]; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_pipeline_free(pipeline: *mut Pipeline) {
    // SAFETY: null, or boxed by `memlift_pipeline_new`; the caller gives it up.
    unsafe { free(pipeline) }
}

/// See `memlift_ipc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_watch_new(client: *const Client) -> *mut Watched {
    make(|| {
        let watch = Watch::new(borrow_object(client, "client")?.clone())?;
        Ok(Watched { watch, answered: VecDeque::new() })
    })
}

/// See `memlift_ipc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_watch_fd(watch: *const Watched) -> c_int {
    let mut fd = -1;
    let code = run(|| {
        fd = borrow_object(watch, "watch")?.watch.as_fd().as_raw_fd();
        Ok(())
    });
    if code == fault::OK { fd } else { code }
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// `watch` came from [`memlift_watch_new`], and nobody else uses it during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_watch_submit(
    watch: *mut Watched,
    operation: *const c_char,
    data: *const c_void,
    count: usize,
    options: *const COptions,
    id: *mut u64,
) -> c_int {
    run(|| {
        let (operation, data, options) = call(operation, data, count, options)?;
        // SAFETY: `watch` is null, or from `memlift_watch_new` and used by this thread alone, as the header demands.
        let watched = unsafe { borrow_mut_object(watch, "watch") }?;
        let sent = watched.watch.submit(operation, &data, options)?;
        watched.answered.extend(watched.watch.turn(false)?);
        match sent {
            Some(sent) => write_result(id, sent, "id"),
            None => Err(Fault {
                code: fault::BUSY,
                text: Some("as many calls are unanswered as may be: take answers, then try again".to_owned()),
            }),
        }
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// The conditions of [`memlift_watch_submit`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_watch_next(
    watch: *mut Watched,
    id: *mut u64,
    answer: *mut *mut Payload,
) -> c_int {
    run(|| {
        write_result(id, 0, "id")?;
        write_result(answer, std::ptr::null_mut(), "answer")?;
        // SAFETY: `watch` is null, or from `memlift_watch_new` and used by this thread alone, as the header demands.
        let watched = unsafe { borrow_mut_object(watch, "watch") }?;
        if watched.answered.is_empty() {
            watched.answered.extend(watched.watch.turn(true)?);
        }
        write_next(watched.answered.pop_front(), id, answer)
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// The pointer is null, or came from [`memlift_watch_new`]; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_watch_free(watch: *mut Watched) {
    // SAFETY: null, or boxed by `memlift_watch_new`; the caller gives it up.
    unsafe { free(watch) }
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// Each pointer is null, comes from this library, or points to enough room, as `memlift_ipc.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_loan_new(client: *const Client, count: u64, loan: *mut *mut Loan) -> c_int {
    run(|| {
        let lent = borrow_object(client, "client")?.loan(count)?;
        // SAFETY: the caller passes room for a pointer.
        unsafe { write_boxed(loan, lent, "loan") }
    })
}

/// See `memlift_ipc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_loan_data(loan: *const Loan) -> *mut c_void {
    let mut data = std::ptr::null_mut();
    run(|| {
        data = borrow_object(loan, "loan")?.as_mut_ptr().cast();
        Ok(())
    });
    data
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// The pointer is null, or came from [`memlift_loan_new`]; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_loan_free(loan: *mut Loan) {
    // SAFETY: null, or boxed by `memlift_loan_new`; the caller gives it up.
    unsafe { free(loan) }
}

/// See `memlift_ipc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_answer_data(answer: *const Payload) -> *const c_void {
    let mut data = std::ptr::null();
    run(|| {
        data = borrow_object(answer, "answer")?.as_ptr().cast();
        Ok(())
    });
    data
}

/// See `memlift_ipc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_answer_bytes(answer: *const Payload) -> u64 {
    let mut count = 0;
    run(|| {
        count = borrow_object(answer, "answer")?.bytes();
        Ok(())
    });
    count
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// `answer` is null, or an answer; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_answer_free(answer: *mut Payload) {
    // SAFETY: null, or an answer that `write_boxed` boxed; the caller gives it up.
    unsafe { free(answer) }
}
