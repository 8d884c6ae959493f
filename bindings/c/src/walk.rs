// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients of memory nodes, programs, walks: the first half of `memlift_traverse.h`.
//!
//! - **Flow** connect creates a `memlift_walks`; bytecode becomes a `memlift_walk_program`. A walk is made by a call that waits, by one
//!   call for many walks, or submitted and polled.
//! - **Owner** programs and collections may outlive the handle of their client: they share the client by reference counts.
//! - **Not here** maps (`collections`).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memlift::ground::region::process_mark;
use memlift::traverse::bpf::elf;
use memlift::traverse::client::{Answer, Client, ClientError, Config, Reads, Request, Ticket};
use memlift::traverse::error::Error;
use memlift::traverse::map::Source;
use memlift::traverse::program::Program;
use memlift::traverse::structures::{Heap, Scratch, Walk, shipped};
use memlift::traverse::wire::{Keys, Status};

use crate::fault::{self, Fault, MORE, OK, TARGET_TOO_SMALL, free, null, write_boxed};

/// `memlift_walks`: a client of memory nodes.
#[derive(Clone)]
pub struct Walks {
    client: Arc<Mutex<Client>>,
    /// Process that connected.
    process: u64,
}

impl Walks {
    fn new(client: Client) -> Walks {
        Walks { client: Arc::new(Mutex::new(client)), process: process_mark() }
    }

    /// Locks the client. A forked child gets an error, because a thread that only the parent has may hold the lock for ever.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Client>, Fault> {
        if self.process != process_mark() {
            return Err(ClientError::Forked.into());
        }
        Ok(self.client.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The C type `memlift_walk_program` of `memlift_traverse.h`.
pub struct WalkProgram(Arc<Program>);

/// The C type `memlift_walk_options` of `memlift_traverse.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WalkOptions {
    key: *const u8,
    tenant: u32,
    window: u32,
    deadline_ms: u32,
    iterations: u32,
    reads: u32,
    reserved: [u32; 3],
}

/// The C type `memlift_walked` of `memlift_traverse.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Walked {
    value: u64,
    result_bytes: u64,
    outcome: u32,
    hops: u32,
}

/// The C type `memlift_walk_request` of `memlift_traverse.h`.
#[repr(C)]
pub struct WalkRequest {
    program: *const WalkProgram,
    start: u64,
    scratch: *mut c_void,
    scratch_bytes: usize,
    result: *mut c_void,
    result_room: usize,
    walked: Walked,
    code: c_int,
}

/// Returns the text at a pointer, and refuses null.
pub(crate) fn text<'a>(from: *const c_char, what: &str) -> Result<&'a str, Fault> {
    if from.is_null() {
        return Err(null(what));
    }
    // SAFETY: the caller passes a text that ends with a zero and does not change during the call.
    unsafe { CStr::from_ptr(from) }.to_str().map_err(|_| Fault::argument(&format!("{what} is no UTF-8")))
}

/// Returns the bytes at a pointer, and refuses null for one byte or more.
pub(crate) fn bytes<'a>(from: *const c_void, count: usize, what: &str) -> Result<&'a [u8], Fault> {
    match (from.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(what)),
        (false, _) if count > isize::MAX as usize => {
            Err(Fault::argument(&format!("{what} is larger than memory")))
        }
        // SAFETY: the caller passes `count` bytes, which nobody changes during the call.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(from.cast(), count) }),
    }
}

/// Borrows an object of this library, and refuses null.
pub(crate) fn borrow_object<'a, T>(object: *const T, what: &str) -> Result<&'a T, Fault> {
    // SAFETY: the caller passes null, or an object of this library that was not freed.
    unsafe { object.as_ref() }.ok_or_else(|| null(what))
}

/// Writes a result to the caller's address, and refuses null.
pub(crate) fn write_result<T>(to: *mut T, value: T, what: &str) -> Result<(), Fault> {
    if to.is_null() {
        return Err(null(what));
    }
    // SAFETY: `to` is not null, so the caller guarantees room for a `T`.
    unsafe { to.write(value) };
    Ok(())
}

/// Copies a result to the caller's memory; if it is too small, the failure says how much is needed.
pub(crate) fn copy_out(from: &[u8], to: *mut c_void, room: usize, what: &str) -> Result<(), Fault> {
    if from.len() > room || (to.is_null() && !from.is_empty()) {
        let text = format!("{what} has {} bytes, and there is room for {room}", from.len());
        return Err(Fault { code: TARGET_TOO_SMALL, text: Some(text) });
    }
    // SAFETY: the caller passes `room` writable bytes at `to`, and `from` is memory of this library.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.cast(), from.len()) };
    Ok(())
}

fn refused(error: &Error) -> Fault {
    Fault { code: fault::BAD_PROGRAM, text: Some(error.to_string()) }
}

fn config(options: *const WalkOptions) -> Result<Config, Fault> {
    let mut config = Config::default();
    // SAFETY: the caller passes null, or readable options.
    let Some(options) = (unsafe { options.as_ref() }) else { return Ok(config) };
    config.tenant = options.tenant;
    if !options.key.is_null() {
        let key = bytes(options.key.cast(), 32, "the key")?;
        config.keys = Keys::none().with(options.tenant, key.try_into().expect("32 bytes"));
    }
    if options.window > 512 {
        return Err(Fault::argument("window is at most 512"));
    }
    if options.window != 0 {
        config.window = options.window as usize;
    }
    if options.deadline_ms != 0 {
        config.deadline = Duration::from_millis(options.deadline_ms.into());
        if config.deadline >= memlift::traverse::structures::pool::GRACE {
            return Err(Fault::argument("deadline_ms is less than 30000"));
        }
    }
    if options.iterations != 0 {
        config.iterations = options.iterations;
    }
    match options.reads {
        0 => {}
        1 => config.reads = Reads::Confirmed,
        2 => config.stale_ok = true,
        _ => return Err(Fault::argument("reads is one of enum memlift_reads")),
    }
    if options.reserved != [0; 3] {
        return Err(Fault::argument("reserved is 0: it is for later versions"));
    }
    Ok(config)
}

/// Connects to memory nodes.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`: `nodes` has `count` texts, `options` is null or readable, `walks` has room for a
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_walks_connect(
    nodes: *const *const c_char,
    count: usize,
    options: *const WalkOptions,
    walks: *mut *mut Walks,
) -> c_int {
    fault::run(|| {
        if nodes.is_null() || count == 0 || count > 4096 {
            return Err(Fault::argument("say where the nodes are: 1 to 4096 of them"));
        }
        // SAFETY: `nodes` is not null, and the caller guarantees `count` pointers to texts, which is at most 4096.
        let places = unsafe { std::slice::from_raw_parts(nodes, count) };
        let places = places.iter().map(|&place| text(place, "a node")).collect::<Result<Vec<_>, _>>()?;
        let client = Client::reach(&places, config(options)?)?;
        // SAFETY: `walks` is null, which `write_boxed` refuses, or has room for a pointer, as the header demands.
        unsafe { write_boxed(walks, Walks::new(client), "walks") }
    })
}

/// Connects to the nodes of a cluster map.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_walks_connect_map(
    map: *const c_char,
    options: *const WalkOptions,
    walks: *mut *mut Walks,
) -> c_int {
    fault::run(|| {
        let wrong = |error: memlift::traverse::map::MapError| Fault::from(ClientError::from(error));
        let source = Source::parse(text(map, "map")?).map_err(wrong)?;
        let map = source.connect().and_then(|mut source| source.read()).map_err(wrong)?;
        let client = Client::of_map(&map, config(options)?)?;
        // SAFETY: `walks` is null, which `write_boxed` refuses, or has room for a pointer, as the header demands.
        unsafe { write_boxed(walks, Walks::new(client), "walks") }
    })
}

/// Closes a client.
///
/// # Safety
///
/// `walks` is null, or was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_walks_close(walks: *mut Walks) {
    // SAFETY: the client came from `memlift_walks_connect`, and the caller does not use it again.
    unsafe { free(walks) };
}

fn program(made: Result<Arc<Program>, Fault>, to: *mut *mut WalkProgram) -> Result<(), Fault> {
    // SAFETY: the caller passes null, or room for a pointer.
    unsafe { write_boxed(to, WalkProgram(made?), "program") }
}

/// Makes a program from bytecode.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_walk_program_new(
    name: *const c_char,
    bytecode: *const c_void,
    count: usize,
    scratch_bytes: u32,
    made: *mut *mut WalkProgram,
) -> c_int {
    fault::run(|| {
        let (name, bytecode) = (text(name, "name")?, bytes(bytecode, count, "bytecode")?);
        let new = Program::new(name, bytecode, scratch_bytes as usize).map_err(|error| refused(&error));
        program(new.map(Arc::new), made)
    })
}

/// Makes a program from an object file.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_walk_program_object(
    name: *const c_char,
    object: *const c_void,
    count: usize,
    scratch_bytes: u32,
    made: *mut *mut WalkProgram,
) -> c_int {
    fault::run(|| {
        let (name, object) = (text(name, "name")?, bytes(object, count, "object")?);
        let new = elf::function(object, None)
            .and_then(|bytecode| Program::new(name, &bytecode, scratch_bytes as usize))
            .map_err(|error| refused(&error));
        program(new.map(Arc::new), made)
    })
}

/// Makes a program that is part of memlift.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_walk_program_shipped(
    name: *const c_char,
    made: *mut *mut WalkProgram,
) -> c_int {
    fault::run(|| {
        let name = text(name, "name")?;
        let found = shipped::named(name).ok_or_else(|| Fault {
            code: fault::BAD_PROGRAM,
            text: Some(format!("no program {name}: the header's folder of them is programs/")),
        });
        program(found.map(shipped::Shipped::program), made)
    })
}

/// Frees a program.
///
/// # Safety
///
/// `program` is null, or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_walk_program_free(program: *mut WalkProgram) {
    // SAFETY: the program came from one of the functions above, and the caller does not use it again.
    unsafe { free(program) };
}

fn walk_of(
    program: *const WalkProgram,
    start: u64,
    scratch: *const c_void,
    count: usize,
) -> Result<Walk, Fault> {
    let program = Arc::clone(&borrow_object(program, "program")?.0);
    if count > program.scratch_bytes() {
        let most = program.scratch_bytes();
        return Err(Fault::argument(&format!("a scratchpad of {count} bytes: the program's has {most}")));
    }
    Ok(Walk { program, start, scratch: Scratch(bytes(scratch, count, "scratch")?.to_vec()) })
}

/// Writes an answer to the caller's addresses: the first bytes of the scratchpad, the result, and how the walk ended.
fn write_answer(
    answer: &Answer,
    scratch: (*mut c_void, usize),
    result: (*mut c_void, usize),
    walked: *mut Walked,
) -> Result<(), Fault> {
    let outcome = match answer.status {
        Status::Done => 0,
        Status::Missing => 1,
        Status::Applied => 2,
        Status::Differs => 3,
        status => {
            let reason = "no answer to a walk".to_owned();
            return Err(ClientError::Rejected { status, reason }.into());
        }
    };
    let said = Walked {
        value: answer.value,
        result_bytes: answer.result.len() as u64,
        outcome,
        hops: answer.iterations,
    };
    if !walked.is_null() {
        write_result(walked, said, "walked")?;
    }
    if scratch.1 > 0 {
        // Bytes of the scratchpad beyond the answer are zero.
        let mut pad = answer.body.clone();
        pad.resize(scratch.1, 0);
        copy_out(&pad, scratch.0, scratch.1, "the scratchpad")?;
    }
    copy_out(&answer.result, result.0, result.1, "the result")
}

/// Makes a walk and waits for its answer.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_walk(
    walks: *const Walks,
    program: *const WalkProgram,
    start: u64,
    scratch: *mut c_void,
    scratch_bytes: usize,
    result: *mut c_void,
    result_room: usize,
    walked: *mut Walked,
) -> c_int {
    fault::run(|| {
        let walk = walk_of(program, start, scratch, scratch_bytes)?;
        let answer = borrow_object(walks, "walks")?.lock()?.call(Request::walk(&walk))?;
        write_answer(&answer, (scratch, scratch_bytes), (result, result_room), walked)
    })
}

/// Makes several walks at the same time, and waits for their answers.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`: `requests` has `count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_walk_many(
    walks: *const Walks,
    requests: *mut WalkRequest,
    count: usize,
) -> c_int {
    fault::run(|| {
        let client = borrow_object(walks, "walks")?;
        if count == 0 {
            return Ok(());
        }
        if requests.is_null() || count > isize::MAX as usize / size_of::<WalkRequest>() {
            return Err(Fault::argument("requests is NULL, or more than memory holds"));
        }
        // SAFETY: the caller guarantees `count` requests, which nobody else uses during the call.
        let requests = unsafe { std::slice::from_raw_parts_mut(requests, count) };
        let wanted = requests
            .iter()
            .map(|one| walk_of(one.program, one.start, one.scratch, one.scratch_bytes))
            .collect::<Result<Vec<Walk>, Fault>>()?;
        let answers = client.lock()?.call_many(wanted.iter().map(Request::walk));
        for (one, answer) in requests.iter_mut().zip(answers) {
            let (pad, result) = ((one.scratch, one.scratch_bytes), (one.result, one.result_room));
            one.code = fault::run(|| write_answer(&answer?, pad, result, &raw mut one.walked));
        }
        Ok(())
    })
}

/// Sends a walk, and returns a ticket for its answer.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_walk_submit(
    walks: *const Walks,
    program: *const WalkProgram,
    start: u64,
    scratch: *const c_void,
    scratch_bytes: usize,
    ticket: *mut u64,
) -> c_int {
    fault::run(|| {
        let client = borrow_object(walks, "walks")?;
        let walk = walk_of(program, start, scratch, scratch_bytes)?;
        if ticket.is_null() {
            return Err(null("ticket"));
        }
        let mut client = client.lock()?;
        let sent = client.submit(Request::walk(&walk))?;
        // Sends the packet now: the caller may not poll before long.
        client.poll()?;
        write_result(ticket, sent.number(), "ticket")
    })
}

/// Polls for the answer of a walk.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_walk_poll(
    walks: *const Walks,
    ticket: u64,
    wait_ms: u32,
    scratch: *mut c_void,
    scratch_bytes: usize,
    result: *mut c_void,
    result_room: usize,
    walked: *mut Walked,
) -> c_int {
    let mut more = false;
    let code = fault::run(|| {
        let mut client = borrow_object(walks, "walks")?.lock()?;
        let ticket = Ticket::numbered(ticket);
        let until = std::time::Instant::now() + Duration::from_millis(wait_ms.into());
        loop {
            let came = client.poll()?;
            if let Some(answer) = client.take(ticket) {
                return write_answer(&answer?, (scratch, scratch_bytes), (result, result_room), walked);
            }
            if !client.is_under_way(ticket) {
                return Err(ClientError::NotUnderWay(ticket.number()).into());
            }
            let left = until.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                more = true;
                return Ok(());
            }
            if came == 0 {
                client.wait(left.min(Duration::from_millis(5)))?;
            }
        }
    });
    if code == OK && more { MORE } else { code }
}

/// Drops the answer of a walk that will not be polled.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_walk_abandon(walks: *const Walks, ticket: u64) -> c_int {
    fault::run(|| {
        borrow_object(walks, "walks")?.lock()?.abandon(Ticket::numbered(ticket));
        Ok(())
    })
}

/// Allocates memory on the nodes.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_walks_alloc(walks: *const Walks, count: u64, address: *mut u64) -> c_int {
    fault::run(|| {
        let made = borrow_object(walks, "walks")?.lock()?.allocate(count)?;
        write_result(address, made, "address")
    })
}

/// Frees memory on the nodes.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_walks_free(walks: *const Walks, address: u64, count: u64) -> c_int {
    fault::run(|| Ok(borrow_object(walks, "walks")?.lock()?.free(address, count)?))
}

/// Reads memory of the nodes.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_walks_read(
    walks: *const Walks,
    address: u64,
    target: *mut c_void,
    count: usize,
) -> c_int {
    fault::run(|| {
        let read = borrow_object(walks, "walks")?.lock()?.read(address, count)?;
        copy_out(&read, target, count, "what was read")
    })
}

/// Writes memory of the nodes.
///
/// # Safety
///
/// The conditions of `memlift_traverse.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_walks_write(
    walks: *const Walks,
    address: u64,
    source: *const c_void,
    count: usize,
) -> c_int {
    fault::run(|| {
        let data = bytes(source, count, "source")?;
        Ok(borrow_object(walks, "walks")?.lock()?.write(address, data)?)
    })
}
