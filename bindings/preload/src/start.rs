// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The start: from the loader's call to a process that is under its budget.
//!
//! - **Flow** [`begin`] (a constructor). If the environment names no job, the process is inert: only malloc is replaced.
//!   Otherwise: gate, handlers, job, spill file, pager ──▶ covered. If one of these fails, a message is printed and the
//!   process ends, since a process that is not counted breaks the budget of all. When memory becomes short, the pager calls
//!   `activate`. A process that is not small gets its evictor ([`start_evictor_if_due`])
//! - **Order** handlers before the pager, and the pager before the first pointer into the arena
//! - **Owner** job and pager live as long as the process
//! - **Not here** the filter's rules

use std::ffi::{c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicUsize, Ordering};

use memlift_zmem::block::{ENV_SPILL, Job};
use memlift_zmem::pager::{Options, Pager};
use memlift_zmem::spill::Spill;

use crate::thread::{self, Quiet};
use crate::{
    activate, descriptors, ending, foreign, fork, gate, kept, limits, locked, members, processes, robust,
    signal, spliced, stacks, standing, sys, whole, words,
};

const EARLY: u8 = 0;
const COVERED: u8 = 1;
const INERT: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(EARLY);
static PROCESS: AtomicI32 = AtomicI32::new(0);
static NEEDS_EVICTOR: AtomicBool = AtomicBool::new(false);
static JOB: AtomicUsize = AtomicUsize::new(0);

/// Upper bound of a spill file, bytes; the disk is full before that.
const SPILL_BYTES: usize = 1 << 42;
const OWN_STACK_BYTES: usize = 256 << 10;
/// Half of the bytes that a small program has outside the arena after its start: this half is charged before the program
/// begins, the other half when it is a member of the job.
pub const PROGRAM_BYTES: usize = 512 << 10;
/// Returns the size below which a process gets no evictor, bytes. Such a process has only its own threads, as it has without
/// this library. Programs count on that which drop privileges (setpriv, su), enter a user namespace (unshare, bubblewrap) or
/// fork others (Chromium's zygotes), and they are small compared with the budget.
fn small_bytes() -> usize {
    (total_bytes() / 32).max((16 << 20).min(total_bytes() / 8))
}

/// Returns true if the constructor has run.
pub fn begun() -> bool {
    STATE.load(Ordering::Acquire) != EARLY
}

/// Returns true if this process is under a budget.
pub fn covered() -> bool {
    STATE.load(Ordering::Acquire) == COVERED
}

/// Returns the job, once this process is a member of it.
fn job() -> Option<&'static Job> {
    let job = JOB.load(Ordering::Acquire) as *const Job;
    // SAFETY: the address is null, or that of the job that `cover` leaked, which lives as long as the process.
    unsafe { job.as_ref() }
}

/// Returns the job's current total, bytes.
pub fn total_bytes() -> usize {
    job().map_or(0, |job| usize::try_from(job.total()).unwrap_or(0))
}

/// Returns true if this is a child of vfork before its exec, which shares its parent's memory.
pub fn in_vfork_child() -> bool {
    // SAFETY: the call takes no argument.
    unsafe { sys!(libc::SYS_getpid) as i32 != PROCESS.load(Ordering::Relaxed) }
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = begin;

extern "C" fn begin(_count: c_int, _arguments: *const *const c_char, _environment: *const *const c_char) {
    let quiet = Quiet::begin();
    note_process();
    let state = match cover() {
        Ok(true) => COVERED,
        Ok(false) => INERT,
        Err(text) => {
            words::say_text(&format!("memlift: this process cannot be put under its budget: {text}\n"));
            words::die(&[]);
        }
    };
    STATE.store(state, Ordering::Release);
    limits::begin();
    drop(quiet);
    if state == COVERED {
        start_evictor_if_due();
    }
}

fn note_process() {
    // SAFETY: the call takes no argument.
    PROCESS.store(unsafe { sys!(libc::SYS_getpid) } as i32, Ordering::Relaxed);
}

fn cover() -> Result<bool, String> {
    if std::env::var_os(memlift_zmem::block::ENV_FD).is_none() {
        foreign::begin();
        return Ok(false);
    }
    gate::open().map_err(|number| {
        format!(
            "the page at {:#x} could not be mapped: {}; the address has to be free and `ulimit -v` high enough",
            gate::GATE,
            std::io::Error::from_raw_os_error(number)
        )
    })?;
    let before = descriptors::open_now();
    let inherited = std::env::var(memlift_zmem::block::ENV_FD).ok().and_then(|number| number.parse().ok());
    let Some(job) = Job::from_environment().map_err(|error| error.to_string())? else { return Ok(false) };
    let job: &'static Job = Box::leak(Box::new(job));
    JOB.store(std::ptr::from_ref(job) as usize, Ordering::Release);
    job.charge_begun(PROGRAM_BYTES);
    members::note();
    let spill = match std::env::var_os(ENV_SPILL).filter(|folder| !folder.is_empty()) {
        Some(folder) => spill_in(PathBuf::from(folder))?,
        None => None,
    };
    stacks::begin();
    signal::unblock();
    signal::install()
        .map_err(|number| format!("signal handlers: {}", std::io::Error::from_raw_os_error(number)))?;
    let pager = Pager::start(job, Options { is_whole: true, ..Options::default() })
        .map_err(|error| error.to_string())?;
    if let Some(spill) = spill {
        pager.spill_to(spill).map_err(|error| error.to_string())?;
    }
    pager.on_activate(activate::hook);
    // Keep every descriptor that is new (such as the spill file), and the registry's, which later processes inherit.
    let now = descriptors::open_now();
    now.into_iter()
        .filter(|fd| !before.contains(fd) || Some(*fd) == inherited)
        .for_each(descriptors::register_own);
    // SAFETY: the three functions live as long as the process. They are registered before any of malloc's, so that `prepare`
    // runs last before a fork and the others run first after it.
    unsafe { libc::pthread_atfork(Some(fork::prepare), Some(fork::parent), Some(fork::child)) };
    NEEDS_EVICTOR.store(true, Ordering::Relaxed);
    Ok(true)
}

/// Makes the spill file. A user who may not write to the folder (the job may have dropped its privileges) goes on without
/// one, after a message.
fn spill_in(folder: PathBuf) -> Result<Option<Spill>, String> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(folder.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: the path ends with a zero byte and lives over the call.
    let denied = unsafe { libc::eaccess(path.as_ptr(), libc::W_OK | libc::X_OK) } != 0
        && std::io::Error::last_os_error().raw_os_error() == Some(libc::EACCES);
    if denied {
        let folder = folder.display();
        words::say_text(&format!("memlift: this process spills nothing: its user may not write {folder}\n"));
        return Ok(None);
    }
    Spill::create(&folder, SPILL_BYTES).map(Some).map_err(|error| error.to_string())
}

/// Resets the state of all modules in the child of a fork, before anything else.
pub fn forked() {
    note_process();
    stacks::forked();
    standing::forked();
    kept::forked();
    locked::forked();
    whole::forked();
    spliced::forked();
    processes::forked();
    ending::forked();
    robust::forked();
    NEEDS_EVICTOR.store(true, Ordering::Relaxed);
}

/// Starts the evictor if there is none and the process is not small. A small process, in a job whose memory is short, becomes
/// active instead, and gives back what it does not use. Called where threads can be made, that is, not in handlers.
pub fn start_evictor_if_due() {
    if !NEEDS_EVICTOR.load(Ordering::Relaxed) || thread::inside() || ending::first_ends() {
        return;
    }
    let (Some(job), Some(pager)) = (job(), Pager::get()) else { return };
    if pager.admitted_bytes() < small_bytes() {
        if job.active() && !pager.active() {
            let _quiet = Quiet::begin();
            pager.activate();
        }
        return;
    }
    if !NEEDS_EVICTOR.swap(false, Ordering::Relaxed) {
        return;
    }
    let _quiet = Quiet::begin();
    ending::add_own();
    if !make_thread(evict) {
        ending::remove_own();
        // Without an evictor, each fault that finds no room makes room itself.
        words::say(&[c"memlift: no thread for the evictor; faults are slower\n"]);
    }
}

/// Makes a thread of this library. Returns false if there is none. Called in this library's own code.
pub fn make_thread(body: extern "C" fn(*mut c_void) -> *mut c_void) -> bool {
    // SAFETY: attributes and thread live over the calls, and `body` has the type of a thread's function.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        let mut thread: libc::pthread_t = 0;
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstacksize(&raw mut attributes, OWN_STACK_BYTES);
        libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let result = libc::pthread_create(&raw mut thread, &raw const attributes, body, std::ptr::null_mut());
        libc::pthread_attr_destroy(&raw mut attributes);
        result == 0
    }
}

extern "C" fn evict(_: *mut c_void) -> *mut c_void {
    thread::stay_inside();
    // SAFETY: the name ends with a zero byte, and is a constant.
    unsafe { sys!(libc::SYS_prctl, libc::PR_SET_NAME, c"memlift".as_ptr()) };
    if let Some(pager) = Pager::get() {
        pager.evictor();
    }
    std::ptr::null_mut()
}
