// SPDX-License-Identifier: Apache-2.0 OR MIT
//! System calls already in flight in other threads when paging is enabled. They were not trapped, so their buffers are not
//! pinned yet.
//!
//! - **Flow** the filter is installed for all threads ──▶ [`pin_call_in_flight`] for each thread. If the thread waits in a
//!   system call (`/proc/self/task/…/syscall` names the call and its arguments), the memory that the call names is pinned.
//!   If the thread runs, it is sent a signal: when it receives that, it is in no system call, and its next call will be
//!   trapped ──▶ at the thread's next trapped call, the old call has ended, and [`returned`] releases its pins
//! - **Order** all of this happens before the first page can be absent, so everything can still be read and pinned. The
//!   signal sent is one that faults cause (SIGBUS), and not the filter's (SIGSYS). If two of one signal are pending, the
//!   kernel drops the second. A lost trap would be a system call that was never made, while a lost fault happens again.
//!   Before SIGBUS, a signal is sent that is ignored by default, because a thread in the middle of an `exec` receives none,
//!   and the program that it becomes would die of SIGBUS
//! - **Owner** pins by thread, in one list; the child of a fork forgets them
//! - **Not here** calls that wait on a plain futex: the kernel reads the word only when they begin. A wait with a time limit
//!   that goes on after the process was stopped begins again, by `restart_syscall`, which is trapped

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use memlift_zmem::lock::Lock;
use memlift_zmem::pager::Pager;

use crate::held::{Held, Mark, Pinned};
use crate::thread::Quiet;
use crate::trap::Scene;
use crate::{activate, sys};

static STANDING: Lock<Vec<(i32, Vec<Pinned>)>> = Lock::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The thread that last received the signal.
static TAKEN: AtomicI32 = AtomicI32::new(0);
/// The process that sent the signal last, or 0.
static PROBER: AtomicI32 = AtomicI32::new(0);

/// The signal by which [`pin_call_in_flight`] finds out that a thread has left its system call.
pub const PROBE_SIGNAL: i32 = libc::SIGBUS;

/// The signal that is sent before [`PROBE_SIGNAL`], if the program has no handler for it.
pub const POLITE_PROBE_SIGNAL: i32 = libc::SIGURG;

/// Number of checks after which a thread that has not received [`POLITE_PROBE_SIGNAL`], because it blocks that signal, is
/// sent [`PROBE_SIGNAL`].
const POLITE_CHECKS: usize = 500;
const PAUSE_NS: i64 = 100_000;
/// Number of checks after which a thread that receives no signal is left alone: it is stopped, or waits for a device.
const MOST_CHECKS: usize = 2_000;

/// Notes in `TAKEN` that this thread has received the signal of [`pin_call_in_flight`]. Returns false, and notes nothing, if
/// the signal that arrived is another process's.
pub fn take_probe_signal(sender: i32) -> bool {
    if sender != PROBER.load(Ordering::Acquire) || sender == 0 {
        return false;
    }
    // SAFETY: the call takes no argument.
    TAKEN.store(unsafe { sys!(libc::SYS_gettid) } as i32, Ordering::Release);
    true
}

/// State of a thread according to `/proc`.
enum State {
    Gone,
    Runs,
    Waits(usize, [usize; 6]),
}

fn state_of(thread: &[u8], buffer: &mut [u8]) -> State {
    let Some(text) = activate::read_of_thread(thread, b"/syscall", buffer) else { return State::Gone };
    let mut fields = text.split(|&byte| byte == b' ' || byte == b'\n');
    let number = fields.next().and_then(|field| std::str::from_utf8(field).ok()?.parse::<i64>().ok());
    let Some(number) = number else { return State::Runs };
    let mut arguments = [0; 6];
    for (place, field) in arguments.iter_mut().zip(fields) {
        *place = activate::hexadecimal(field.strip_prefix(b"0x").unwrap_or(field)) as usize;
    }
    // A negative number means that the thread was interrupted outside of any system call.
    usize::try_from(number).map_or(State::Gone, |number| State::Waits(number, arguments))
}

/// Pins the memory that a system call in flight in another thread names; `buffer` is room for a line. `politely` is true if
/// this library has installed a handler for [`POLITE_PROBE_SIGNAL`].
pub fn pin_call_in_flight(thread: &[u8], buffer: &mut [u8], politely: bool) {
    let number = std::str::from_utf8(thread).ok().and_then(|text| text.parse::<i32>().ok());
    let (Some(number), Some(pager)) = (number, Pager::get()) else { return };
    // SAFETY: the calls take no argument.
    let (own, process) = unsafe { (sys!(libc::SYS_gettid) as i32, sys!(libc::SYS_getpid) as i32) };
    if number == own {
        return;
    }
    let mut ran = 0;
    TAKEN.store(0, Ordering::Release);
    for _ in 0..MOST_CHECKS {
        match state_of(thread, buffer) {
            State::Gone => break,
            State::Waits(call, arguments) => {
                pin(pager, number, call, arguments);
                break;
            }
            State::Runs if TAKEN.load(Ordering::Acquire) == number => break,
            State::Runs => {
                let probe_signal = match ran {
                    0 if politely => Some(POLITE_PROBE_SIGNAL),
                    0 => Some(PROBE_SIGNAL),
                    POLITE_CHECKS if politely => Some(PROBE_SIGNAL),
                    _ => None,
                };
                ran += 1;
                if let Some(probe_signal) = probe_signal {
                    PROBER.store(process, Ordering::Release);
                    // SAFETY: the call takes numbers only, and this library handles the signal.
                    unsafe { sys!(libc::SYS_tgkill, process, number, probe_signal) };
                }
                let pause = libc::timespec { tv_sec: 0, tv_nsec: PAUSE_NS };
                // SAFETY: `pause` lives over the call.
                unsafe { sys!(libc::SYS_nanosleep, &raw const pause, 0) };
            }
        }
    }
}

/// Returns true if the kernel writes the word of a futex when the call ends: the thread gets a futex with priority
/// inheritance.
fn writes_word([_, operation, ..]: [usize; 6]) -> bool {
    const LOCK_PI2: i32 = 13;
    let operation = operation as i32 & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
    matches!(operation, libc::FUTEX_LOCK_PI | LOCK_PI2 | libc::FUTEX_WAIT_REQUEUE_PI)
}

fn pin(pager: &'static Pager, thread: i32, call: usize, arguments: [usize; 6]) {
    if call as i64 == libc::SYS_futex && !writes_word(arguments) {
        return;
    }
    if matches!(call as i64, libc::SYS_vmsplice | libc::SYS_sendto | libc::SYS_sendmsg | libc::SYS_sendmmsg) {
        pager.stop_recycling();
    }
    let mark = Mark::make();
    let scene = Scene {
        held: Held::new(&mark),
        quiet: Quiet::in_handler(),
        mask: 0,
        context: std::ptr::null_mut(),
        pager,
    };
    scene.pin_all(call, arguments);
    let pins = scene.held.take();
    if !pins.is_empty() {
        STANDING.lock().push((thread, pins));
        COUNT.fetch_add(1, Ordering::Release);
    }
}

/// Notes that this thread makes another system call, and releases the pins of its old one.
pub fn returned() {
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    // SAFETY: the call takes no argument.
    let own = unsafe { sys!(libc::SYS_gettid) } as i32;
    let mut list = STANDING.lock();
    let Some(place) = list.iter().position(|(thread, _)| *thread == own) else { return };
    let gone = list.swap_remove(place);
    COUNT.fetch_sub(1, Ordering::Release);
    drop(list);
    drop(gone);
}

/// Clears the list in the child of a fork, which does not have those threads.
pub fn forked() {
    // SAFETY: the child has one thread, and the thread that forked did not hold the lock. `pin_call_in_flight` and
    // `returned` release the lock only when the list is consistent.
    unsafe { STANDING.reset() };
    std::mem::forget(std::mem::take(&mut *STANDING.lock()));
    COUNT.store(0, Ordering::Release);
}
