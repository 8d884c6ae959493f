// SPDX-License-Identifier: Apache-2.0 OR MIT
//! System calls already in flight in other threads when paging is enabled. They were not trapped, so their buffers are not pinned
//! yet.
//!
//! - **Flow** filter in place for all threads ──▶ [`settle`], thread by thread: waits in a call (`/proc/self/task/…/syscall`
//!   names it and its arguments)? what that names is pinned · runs? a signal to it: when it takes that, no call is
//!   under way, and the next one is trapped ──▶ the thread's next trapped call: the old one is over, [`returned`]
//! - **Order** before the first page can be absent, so that everything can still be read and pinned. The signal is one that a
//!   fault sends, not the filter's: of two that are pending at once the kernel keeps the first, and a trap that was
//!   lost would be a call that nobody made, while a fault comes again. Before it one is sent that is ignored by default: a
//!   thread in the middle of an `exec` takes none, and what it becomes would die of the other
//! - **Owner** pins by thread, in one list; a fork's child forgets them
//! - **Not here** calls that wait on a futex: the kernel reads the word when they begin

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use memlift_zmem::lock::Lock;
use memlift_zmem::pager::Pager;

use crate::held::{Held, Mark, Pinned};
use crate::thread::Quiet;
use crate::trap::Scene;
use crate::{activate, sys};

static STANDING: Lock<Vec<(i32, Vec<Pinned>)>> = Lock::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The thread that took the signal last.
static TAKEN: AtomicI32 = AtomicI32::new(0);
/// The process that sends it, while it does.
static ASKING: AtomicI32 = AtomicI32::new(0);

/// The signal that asks.
pub const QUESTION: i32 = libc::SIGBUS;

/// The signal that asks first, where the program has left it alone.
pub const POLITE: i32 = libc::SIGURG;

/// After so many looks a thread that has not taken that one, because it blocks it, is asked by the other.
const INSIST: usize = 500;
const PAUSE_NS: i64 = 100_000;
/// After so many looks a thread that takes no signal is left alone: it is stopped, or waits for a device.
const LOOKS: usize = 2_000;

/// Returns true if a signal of this process to itself is the question of [`settle`]; then it is answered.
pub fn is_asked(sender: i32) -> bool {
    if sender != ASKING.load(Ordering::Acquire) || sender == 0 {
        return false;
    }
    // SAFETY: asks for a number.
    TAKEN.store(unsafe { sys!(libc::SYS_gettid) } as i32, Ordering::Release);
    true
}

/// State of a thread, as `/proc` shows it.
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
    // Interrupted outside of any call.
    usize::try_from(number).map_or(State::Gone, |number| State::Waits(number, arguments))
}

/// Pins what a call in flight of another `thread` names; `buffer` is room for a line. `politely`: [`POLITE`] is ours.
pub fn settle(thread: &[u8], buffer: &mut [u8], politely: bool) {
    let number = std::str::from_utf8(thread).ok().and_then(|text| text.parse::<i32>().ok());
    let (Some(number), Some(pager)) = (number, Pager::get()) else { return };
    // SAFETY: asks for numbers.
    let (own, process) = unsafe { (sys!(libc::SYS_gettid) as i32, sys!(libc::SYS_getpid) as i32) };
    if number == own {
        return;
    }
    let mut ran = 0;
    TAKEN.store(0, Ordering::Release);
    for _ in 0..LOOKS {
        match state_of(thread, buffer) {
            State::Gone => break,
            State::Waits(call, arguments) => {
                pin(pager, number, call, arguments);
                break;
            }
            State::Runs if TAKEN.load(Ordering::Acquire) == number => break,
            State::Runs => {
                let question = match ran {
                    0 if politely => Some(POLITE),
                    0 => Some(QUESTION),
                    INSIST if politely => Some(QUESTION),
                    _ => None,
                };
                ran += 1;
                if let Some(question) = question {
                    ASKING.store(process, Ordering::Release);
                    // SAFETY: a signal that this library handles.
                    unsafe { sys!(libc::SYS_tgkill, process, number, question) };
                }
                let pause = libc::timespec { tv_sec: 0, tv_nsec: PAUSE_NS };
                // SAFETY: the time lives as long as the call.
                unsafe { sys!(libc::SYS_nanosleep, &raw const pause, 0) };
            }
        }
    }
}

fn pin(pager: &'static Pager, thread: i32, call: usize, arguments: [usize; 6]) {
    if call as i64 == libc::SYS_futex {
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

/// Notes that this thread makes another call: the pins of its old one are released.
pub fn returned() {
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    // SAFETY: asks for a number.
    let own = unsafe { sys!(libc::SYS_gettid) } as i32;
    let mut list = STANDING.lock();
    let Some(place) = list.iter().position(|(thread, _)| *thread == own) else { return };
    let gone = list.swap_remove(place);
    COUNT.fetch_sub(1, Ordering::Release);
    drop(list);
    drop(gone);
}

/// In the child of a fork: those threads are not here.
pub fn forked() {
    // SAFETY: the child has one thread; `settle` and `returned` run with the list whole whenever they let go of it, and the
    // fork's own thread held it not.
    unsafe { STANDING.reset() };
    std::mem::forget(std::mem::take(&mut *STANDING.lock()));
    COUNT.store(0, Ordering::Release);
}
