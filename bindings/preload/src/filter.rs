// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The system-call filter: calls whose memory may be absent are trapped and done by `trap`.
//!
//! - **Flow** `guard` (masks and dispositions only) ──▶ every thread has left libc's stretches of blocked signals ──▶
//!   [`install`] (everything). Both for all threads at once.
//! - **Layout** number ──binary search──▶ class ──▶ came from the gate? allow ──▶ a pointer's high bits are the arena's? trap ──▶
//!   a call whose memory is named by memory, a fork, a mask: trapped when it came from the program's own text
//! - **Order** a number without a class is allowed before anything else is looked at, so that the kernel answers it from its
//!   bitmap and does not run the filter
//! - **Owner** a filter stays for good, also over `exec`. So what traps without a look at a pointer asks for the text of *this*
//!   image ([`Texts`]), which the next one, at other random addresses and perhaps without our handler, does not
//!   share; and what lies below 4 GiB, where addresses are not random, is left out
//! - **Exec** the kernel takes 32,768 instructions of filters for a process, inherited ones included. Pointers into the arena are
//!   the same in every image, so an image that inherited those rules ([`inherited`]) adds the rules about its text only
//! - **Not here** the meaning of the calls: `table`; the handling of a trap: `trap`

use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;

use memlift_zmem::pager::{ARENA_BASE, ARENA_BYTES};

use crate::bpf::{AND, ANY_BIT, AT_LEAST, Assembler, EQUAL, Instruction, LABELS, LOAD, Label, RETURN};
use crate::gate::{self, GATE_RETURN};
use crate::sys;
use crate::table::{self, ABSENT, INDIRECT, TABLE};
use crate::thread::{OURS, set_mask};

/// Value of `si_errno` in a trap of a filter with these rules. Its low byte is a hash of them: another version of this library,
/// whose filter may look at other calls, has another mark.
pub const MARK: i32 = MARK_FAMILY | table::hash(RULES_VERSION) as i32;
const MARK_FAMILY: i32 = 0x6d00;
/// Counts changes of the rules about pointers that the tables do not show.
const RULES_VERSION: u8 = 1;

/// Returns true if a trap's `si_errno` is that of a filter of any version.
pub fn is_mark(error: i32) -> bool {
    error & !0xff == MARK_FAMILY
}

/// Mark of the filter that trapped the last probe; 0: none did.
static PROBED: AtomicI32 = AtomicI32::new(0);

/// Called by the handler of a trapped probe.
pub fn answer_probe(mark: i32) {
    PROBED.store(mark, Relaxed);
}

/// Returns true if this process inherited a filter of this version: pointers into the arena are trapped already. Our handlers have
/// to be installed.
pub fn inherited() -> bool {
    let mask = set_mask(libc::SIG_UNBLOCK, OURS);
    PROBED.store(0, Relaxed);
    // SAFETY: no byte is asked for, so the kernel writes none.
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

/// Where the program's instructions lie: ranges that do not cross 4 GiB.
#[derive(Debug)]
pub struct Texts {
    /// Start and end.
    pub ranges: [(u64, u64); Texts::MOST],
    /// Number of ranges in use.
    pub count: usize,
}

impl Texts {
    const MOST: usize = 128;

    /// An empty list of ranges.
    pub const fn new() -> Texts {
        Texts { ranges: [(0, 0); Texts::MOST], count: 0 }
    }

    /// Adds a range, in parts where it crosses 4 GiB. Addresses below 4 GiB are left out.
    pub fn add(&mut self, mut start: u64, end: u64) {
        const FOUR_GIB: u64 = 1 << 32;
        if start < FOUR_GIB {
            return;
        }
        while start < end && self.count < Texts::MOST {
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

/// Further conditions under which a call is trapped, besides its pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Also {
    Nothing,
    /// Always, when the call comes from the program's text.
    Text,
    /// Unless the argument is null.
    Given(u8),
    /// When it makes a process of its own: `clone` without CLONE_VM.
    Process,
    /// When the signal is one of the three.
    Signal,
    /// When the mask may get more signals.
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

/// System calls that a filter looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The calls that can block the three signals or take their handlers away.
    Guard,
    /// All calls that the tables name.
    All,
    /// The part of [`Scope::All`] about the text of this image, without the rules about pointers.
    Image,
}

struct Writer<'a> {
    assembler: Assembler<'a>,
    allow: Label,
    trap: Label,
    text: Label,
    /// Where each class starts.
    starts: [Label; CLASSES],
}

/// Writes the program. Returns its length, or `None` when it did not fit.
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
    writer.search(&kinds.numbers[..kinds.count]);
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

/// The numbers and their classes: the arguments that are pointers, and the other conditions. Class 0 is for absent calls.
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
            Some(class) => match self.classes[1..self.class_count].iter().position(|&known| known == class) {
                Some(position) => position + 1,
                None => {
                    self.classes[self.class_count] = class;
                    self.class_count += 1;
                    self.class_count - 1
                }
            },
        };
        self.numbers[self.count] = (number as u32, index as u8);
        self.count += 1;
    }
}

impl Writer<'_> {
    /// Jumps to the class of the loaded number; allows a call that is none of these numbers.
    fn search(&mut self, numbers: &[(u32, u8)]) {
        if numbers.len() <= 3 {
            for &(number, class) in numbers {
                self.assembler.jump_if(EQUAL, number, self.starts[class as usize]);
            }
            return self.assembler.jump(self.allow);
        }
        let (below, above) = numbers.split_at(numbers.len() / 2);
        let upper = self.assembler.label();
        self.assembler.jump_if(AT_LEAST, above[0].0, upper);
        self.search(below);
        self.assembler.place(upper);
        self.search(above);
    }

    /// The rules of one class.
    fn check(&mut self, scope: Scope, mask: u8, also: Also) {
        if mask != 0 {
            // The gate is not in the program's text: only the rules about pointers have to ask for it.
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
                    // A thread that is in a stretch of blocked signals leaves it by this, and could not be trapped.
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

    /// Traps calls that come from the program's text, allows the rest.
    fn texts(&mut self, texts: &Texts) {
        self.assembler.place(self.text);
        for &(start, end) in &texts.ranges[..texts.count] {
            let next = self.assembler.label();
            self.assembler.push(LOAD, 0, 0, FROM + 4);
            self.assembler.jump_unless(EQUAL, (start >> 32) as u32, next);
            self.assembler.push(LOAD, 0, 0, FROM);
            self.assembler.jump_unless(AT_LEAST, start as u32, next);
            // The end may be a multiple of 4 GiB: its last byte is compared.
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

/// Why a filter could not be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It did not fit into the instructions.
    Size,
    /// The kernel refused it with this error number.
    Kernel(i32),
    /// This thread has a filter of its own.
    Thread(i32),
}

/// The most instructions that the kernel takes.
pub const MOST: usize = 4096;

/// Installs a filter for all threads.
///
/// # Errors
///
/// [`Refused`].
pub fn install(
    scope: Scope,
    texts: &Texts,
    instructions: &mut [Instruction],
    places: &mut [u32; LABELS],
) -> Result<(), Refused> {
    let length =
        write(scope, texts, instructions, places).filter(|&length| length <= MOST).ok_or(Refused::Size)?;
    let program = Program { length: length as u16, instructions: instructions.as_ptr() };
    const SET_MODE_FILTER: usize = 1;
    const FOR_ALL_THREADS: usize = 1;
    const SPECULATION_AS_BEFORE: usize = 4;
    let flags = FOR_ALL_THREADS | SPECULATION_AS_BEFORE;
    // SAFETY: the program and its instructions live as long as the calls.
    unsafe {
        // With the right to, without giving up set-user-ID programs.
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
