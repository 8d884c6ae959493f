// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The system-call filter: it traps calls whose memory may be absent; `trap` then performs them.
//!
//! - **Flow** the guard filter (only calls that change masks and dispositions) ──▶ every thread has left code of libc that
//!   blocks all signals ──▶ [`install`] of the full filter. Each filter is installed for all threads with one call
//! - **Layout** number ──binary search──▶ class ──▶ made through the gate: allow ──▶ high bits of a pointer are the arena's:
//!   trap ──▶ calls whose memory is named by memory, forks, changes of masks: trap if the instruction lies in the program's
//!   own text
//! - **Order** a number without a class is allowed before anything else is checked. The kernel therefore answers it from its
//!   bitmap and does not run the filter
//! - **Owner** a filter stays for good, also over `exec`. Therefore a rule that traps without checking a pointer is limited
//!   to the text of *this* image ([`Texts`]). The next image lies at other random addresses, so the rule does not affect it,
//!   even if it has no handler of this library. Addresses below 4 GiB are not random and are left out
//! - **Exec** the kernel limits the filters of a process to 32,768 instructions, inherited filters included. Pointers into
//!   the arena are the same in every image, so an image that inherited those rules ([`inherited`]) adds only the rules about
//!   its own text
//! - **Not here** the arguments of the calls: `table`; the handling of a trap: `trap`

use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;

use memlift_zmem::pager::{ARENA_BASE, ARENA_BYTES};

use crate::bpf::{AND, ANY_BIT, AT_LEAST, Assembler, EQUAL, Instruction, LABELS, LOAD, Label, RETURN};
use crate::gate::{self, GATE_RETURN};
use crate::sys;
use crate::table::{self, ABSENT, INDIRECT, TABLE, UNLISTED};
use crate::thread::{OURS, set_mask};

/// Value of `si_errno` in a trap of a filter with these rules. Its low byte is a hash of the rules, so another version of
/// this library, whose filter may check other calls, has another mark.
pub const MARK: i32 = MARK_FAMILY | table::hash(RULES_VERSION) as i32;
const MARK_FAMILY: i32 = 0x6d00;
/// Incremented by hand with each change of the rules about pointers that the tables do not show.
const RULES_VERSION: u8 = 2;

/// Returns true if `error`, the `si_errno` of a trap, comes from a filter of any version of this library.
pub fn is_mark(error: i32) -> bool {
    error & !0xff == MARK_FAMILY
}

/// Mark of the filter that trapped the last probe, or 0 if none did.
static PROBED: AtomicI32 = AtomicI32::new(0);

/// Notes the mark of the filter that trapped a probe; called by the signal handler.
pub fn answer_probe(mark: i32) {
    PROBED.store(mark, Relaxed);
}

/// Returns true if this process inherited a filter of this version, which already traps pointers into the arena. The handlers
/// of this library must be installed.
pub fn inherited() -> bool {
    let mask = set_mask(libc::SIG_UNBLOCK, OURS);
    PROBED.store(0, Relaxed);
    // SAFETY: the call asks for zero bytes, so the kernel writes none.
    unsafe { gate::probe(libc::SYS_getrandom as usize, [ARENA_BASE, 0, 0, 0, 0, 0]) };
    set_mask(libc::SIG_SETMASK, mask);
    PROBED.load(Relaxed) == MARK
}

const ALLOW: u32 = 0x7fff_0000;
const TRAP: u32 = 0x0003_0000 | MARK as u32;
const NOT_THERE: u32 = 0x0005_0000 | libc::ENOSYS as u32;
const X86_64: u32 = 0xc000_003e;
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FROM: u32 = 8;
const ARENA_MASK: u32 = !((ARENA_BYTES >> 32) as u32 - 1);
const ARENA_HIGH: u32 = (ARENA_BASE >> 32) as u32;

const _: () = assert!(ARENA_BYTES.is_power_of_two() && ARENA_BASE.is_multiple_of(ARENA_BYTES));

const fn low(argument: u8) -> u32 {
    16 + 8 * argument as u32
}

const fn high(argument: u8) -> u32 {
    low(argument) + 4
}

/// Address ranges of the program's instructions; no range crosses a multiple of 4 GiB.
#[derive(Debug)]
pub struct Texts {
    /// Start and end of each range.
    pub ranges: [(u64, u64); Texts::MOST_RANGES],
    /// Number of ranges in use.
    pub count: usize,
}

impl Texts {
    const MOST_RANGES: usize = 128;

    /// Makes an empty list of ranges.
    pub const fn new() -> Texts {
        Texts { ranges: [(0, 0); Texts::MOST_RANGES], count: 0 }
    }

    /// Adds a range, split at multiples of 4 GiB. A range that starts below 4 GiB is left out.
    pub fn add(&mut self, mut start: u64, end: u64) {
        const FOUR_GIB: u64 = 1 << 32;
        if start < FOUR_GIB {
            return;
        }
        while start < end && self.count < Texts::MOST_RANGES {
            let stop = end.min((start / FOUR_GIB + 1) * FOUR_GIB);
            self.ranges[self.count] = (start, stop);
            self.count += 1;
            start = stop;
        }
    }
}

impl Default for Texts {
    fn default() -> Texts {
        Texts::new()
    }
}

/// A further condition under which a call is trapped, besides its pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Also {
    Nothing,
    /// Trapped if the call comes from the program's text.
    Text,
    /// Trapped if the argument of this index is not null.
    Given(u8),
    /// Trapped if the call makes a process with its own memory: `clone` without CLONE_VM.
    Process,
    /// Trapped if the signal is SIGBUS, SIGSEGV or SIGSYS.
    Signal,
    /// Trapped if the call may add signals to the mask.
    Mask,
}

fn also(number: i64) -> Also {
    match number {
        libc::SYS_clone => Also::Process,
        libc::SYS_rt_sigaction => Also::Signal,
        libc::SYS_rt_sigprocmask => Also::Mask,
        libc::SYS_rt_sigsuspend | libc::SYS_sigaltstack => Also::Given(0),
        libc::SYS_ppoll => Also::Given(3),
        libc::SYS_pselect6 => Also::Given(5),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => Also::Given(4),
        number if INDIRECT.contains(&number) => Also::Text,
        _ => Also::Nothing,
    }
}

/// The system calls that a filter checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The calls that can block SIGBUS, SIGSEGV and SIGSYS or replace their handlers.
    Guard,
    /// All calls that the tables name.
    All,
    /// The part of [`Scope::All`] that refers to the text of this image, without the rules about pointers.
    Image,
}

struct Writer<'a> {
    assembler: Assembler<'a>,
    allow: Label,
    trap: Label,
    text: Label,
    /// Label of the rules of each class.
    starts: [Label; CLASSES],
}

/// Writes the filter's program. Returns its length, or `None` if it did not fit.
pub fn write(
    scope: Scope,
    texts: &Texts,
    instructions: &mut [Instruction],
    places: &mut [u32; LABELS],
) -> Option<usize> {
    let mut kinds =
        Kinds { numbers: [(0, 0); 512], count: 0, classes: [(0, Also::Nothing); CLASSES], class_count: 1 };
    match scope {
        Scope::Guard => {
            kinds.add(libc::SYS_rt_sigaction, Some((0, also(libc::SYS_rt_sigaction))));
            kinds.add(libc::SYS_rt_sigprocmask, Some((0, also(libc::SYS_rt_sigprocmask))));
        }
        Scope::Image => {
            let numbers = TABLE.iter().map(|(number, _)| number).chain(INDIRECT);
            for &number in numbers.filter(|&&number| also(number) != Also::Nothing) {
                kinds.add(number, Some((0, also(number))));
            }
        }
        Scope::All => {
            ABSENT.iter().for_each(|&number| kinds.add(number, None));
            for &(number, pointers) in TABLE {
                let mask = pointers.iter().fold(0, |mask, (argument, _)| mask | 1 << argument);
                kinds.add(number, Some((mask, also(number))));
            }
            INDIRECT.iter().for_each(|&number| kinds.add(number, Some((0, also(number)))));
        }
    }
    kinds.numbers[..kinds.count].sort_unstable();
    let unlisted = kinds.class_of((ALL_ARGUMENTS, Also::Nothing));

    let mut assembler = Assembler::new(instructions, places);
    let (allow, trap, absent, text) =
        (assembler.label(), assembler.label(), assembler.label(), assembler.label());
    let mut starts = [absent; CLASSES];
    for start in &mut starts[1..kinds.class_count] {
        *start = assembler.label();
    }
    let mut writer = Writer { assembler, allow, trap, text, starts };
    writer.assembler.push(LOAD, 0, 0, ARCHITECTURE);
    writer.assembler.jump_unless(EQUAL, X86_64, allow);
    writer.assembler.push(LOAD, 0, 0, NUMBER);
    let numbers = &kinds.numbers[..kinds.count];
    if scope == Scope::All {
        let (listed, upper) = numbers.split_at(numbers.partition_point(|(number, _)| *number < UNLISTED));
        let new = writer.assembler.label();
        writer.assembler.jump_if(AT_LEAST, UNLISTED, new);
        writer.search(listed, writer.allow);
        writer.assembler.place(new);
        writer.search(upper, starts[usize::from(unlisted)]);
    } else {
        writer.search(numbers, writer.allow);
    }
    for (start, (mask, also)) in starts.into_iter().zip(kinds.classes).take(kinds.class_count).skip(1) {
        writer.assembler.place(start);
        writer.check(scope, mask, also);
    }
    writer.texts(texts);
    writer.assembler.place(allow);
    writer.assembler.push(RETURN, 0, 0, ALLOW);
    writer.assembler.place(trap);
    writer.assembler.push(RETURN, 0, 0, TRAP);
    writer.assembler.place(absent);
    writer.assembler.push(RETURN, 0, 0, NOT_THERE);
    writer.assembler.finish()
}

const CLASSES: usize = 96;
const ALL_ARGUMENTS: u8 = 0x3f;

/// The numbers of system calls and their classes. A class is the set of arguments that are pointers, and the other condition.
/// Class 0 is for absent calls.
struct Kinds {
    numbers: [(u32, u8); 512],
    count: usize,
    classes: [(u8, Also); CLASSES],
    class_count: usize,
}

impl Kinds {
    fn add(&mut self, number: i64, class: Option<(u8, Also)>) {
        if self.numbers[..self.count].iter().any(|(known, _)| i64::from(*known) == number) {
            return;
        }
        let index = match class {
            None => 0,
            Some(class) => self.class_of(class),
        };
        self.numbers[self.count] = (number as u32, index);
        self.count += 1;
    }

    /// Returns the index of a class, which is new or known.
    fn class_of(&mut self, class: (u8, Also)) -> u8 {
        match self.classes[1..self.class_count].iter().position(|&known| known == class) {
            Some(position) => position as u8 + 1,
            None => {
                self.classes[self.class_count] = class;
                self.class_count += 1;
                self.class_count as u8 - 1
            }
        }
    }
}

impl Writer<'_> {
    /// Jumps to the class of the loaded number, or to `otherwise` if it is none of these numbers.
    fn search(&mut self, numbers: &[(u32, u8)], otherwise: Label) {
        if numbers.len() <= 3 {
            for &(number, class) in numbers {
                self.assembler.jump_if(EQUAL, number, self.starts[class as usize]);
            }
            return self.assembler.jump(otherwise);
        }
        let (below, above) = numbers.split_at(numbers.len() / 2);
        let upper = self.assembler.label();
        self.assembler.jump_if(AT_LEAST, above[0].0, upper);
        self.search(below, otherwise);
        self.assembler.place(upper);
        self.search(above, otherwise);
    }

    /// Writes the rules of one class.
    fn check(&mut self, scope: Scope, mask: u8, also: Also) {
        if mask != 0 {
            // The gate does not lie in the program's text, so only the rules about pointers must check for it.
            let past = self.assembler.label();
            self.assembler.push(LOAD, 0, 0, FROM);
            self.assembler.jump_unless(EQUAL, GATE_RETURN as u32, past);
            self.assembler.push(LOAD, 0, 0, FROM + 4);
            self.assembler.jump_if(EQUAL, (GATE_RETURN >> 32) as u32, self.allow);
            self.assembler.place(past);
        }
        for argument in (0..6).filter(|argument| mask >> argument & 1 != 0) {
            self.assembler.push(LOAD, 0, 0, high(argument));
            self.assembler.push(AND, 0, 0, ARENA_MASK);
            self.assembler.jump_if(EQUAL, ARENA_HIGH, self.trap);
        }
        match also {
            Also::Nothing => {}
            Also::Text => return self.assembler.jump(self.text),
            Also::Given(argument) => {
                for half in [low(argument), high(argument)] {
                    self.assembler.push(LOAD, 0, 0, half);
                    self.assembler.jump_unless(EQUAL, 0, self.text);
                }
            }
            Also::Process => {
                self.assembler.push(LOAD, 0, 0, low(0));
                self.assembler.jump_unless(ANY_BIT, libc::CLONE_VM as u32, self.text);
            }
            Also::Signal => {
                self.assembler.push(LOAD, 0, 0, low(0));
                for signal in [libc::SIGBUS, libc::SIGSEGV, libc::SIGSYS] {
                    self.assembler.jump_if(EQUAL, signal as u32, self.text);
                }
            }
            Also::Mask => {
                self.assembler.push(LOAD, 0, 0, low(0));
                self.assembler.jump_if(EQUAL, libc::SIG_UNBLOCK as u32, self.allow);
                if scope == Scope::Guard {
                    // A thread in code that blocks all signals leaves it by this call, and could not receive the trap.
                    self.assembler.jump_if(EQUAL, libc::SIG_SETMASK as u32, self.allow);
                }
                for half in [low(1), high(1)] {
                    self.assembler.push(LOAD, 0, 0, half);
                    self.assembler.jump_unless(EQUAL, 0, self.text);
                }
            }
        }
        self.assembler.jump(self.allow);
    }

    /// Traps calls whose instruction lies in the program's text, and allows the others.
    fn texts(&mut self, texts: &Texts) {
        self.assembler.place(self.text);
        for &(start, end) in &texts.ranges[..texts.count] {
            let next = self.assembler.label();
            self.assembler.push(LOAD, 0, 0, FROM + 4);
            self.assembler.jump_unless(EQUAL, (start >> 32) as u32, next);
            self.assembler.push(LOAD, 0, 0, FROM);
            self.assembler.jump_unless(AT_LEAST, start as u32, next);
            // The end may be a multiple of 4 GiB, so the last byte of the range is compared instead.
            self.assembler.push(0x25, 1, 0, (end - 1) as u32);
            self.assembler.jump(self.trap);
            self.assembler.place(next);
        }
    }
}

#[repr(C)]
struct Program {
    length: u16,
    instructions: *const Instruction,
}

/// The reason why a filter could not be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The program did not fit into the instructions.
    Size,
    /// The kernel refused the filter with this error number.
    Kernel(i32),
    /// The thread with this number has a filter of its own.
    Thread(i32),
}

/// Upper bound of the instructions of one filter, set by the kernel.
pub const MOST_INSTRUCTIONS: usize = 4096;

/// Installs a filter for all threads.
///
/// # Errors
///
/// [`Refused`] says why the filter could not be installed.
pub fn install(
    scope: Scope,
    texts: &Texts,
    instructions: &mut [Instruction],
    places: &mut [u32; LABELS],
) -> Result<(), Refused> {
    let length = write(scope, texts, instructions, places)
        .filter(|&length| length <= MOST_INSTRUCTIONS)
        .ok_or(Refused::Size)?;
    let program = Program { length: length as u16, instructions: instructions.as_ptr() };
    const SET_MODE_FILTER: usize = 1;
    const FOR_ALL_THREADS: usize = 1;
    const SPECULATION_AS_BEFORE: usize = 4;
    let flags = FOR_ALL_THREADS | SPECULATION_AS_BEFORE;
    // SAFETY: the program and its instructions live over the calls.
    unsafe {
        // First try without PR_SET_NO_NEW_PRIVS, which would disable set-user-ID programs; that needs a privilege.
        let mut result = sys!(libc::SYS_seccomp, SET_MODE_FILTER, flags, &raw const program);
        if result == -(libc::EACCES as isize) {
            sys!(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            result = sys!(libc::SYS_seccomp, SET_MODE_FILTER, flags, &raw const program);
        }
        match result {
            0 => Ok(()),
            thread if thread > 0 => Err(Refused::Thread(thread as i32)),
            error => Err(Refused::Kernel(-error as i32)),
        }
    }
}
