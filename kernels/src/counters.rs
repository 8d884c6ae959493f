// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts the work of a drop-in in the program that it lives in: one page of counters, which other processes may read.
//!
//! - **Flow** [`declare`] (at load: static memory only) ──▶ [`add`] per message ──▶ page ◀── [`get`]
//!   [`share`] makes the page a sealed memfd ◀──pread of /proc/PID/fd/N── [`View::parse`]
//! - **Layout** [`Page`]: a header of 256 bytes, then 60 rows of 64; `docs/formats/dropin.md`
//! - **Order** counters are relaxed: each is right, two may disagree for a moment. `magic` is stored last.
//! - **Owner** the process. A child that is forked gets a page of its own, from zero, and gives its parent's back; one
//!   that does not share keeps counting from its parent's numbers.
//! - **Not here** allocation, threads, locks, files on disk. Without [`share`] no system call either, and after it none
//!   but in `fork`: a program may have a filter (seccomp) that ends it at a call that it does not expect, so
//!   the page is made before the program goes on, and only where whoever starts it asks for it.

use core::ffi::CStr;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// First word of a page that is ready: the bytes `MLDROP01`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MLDROP01");
/// Version of the layout.
pub const VERSION: u64 = 1;
/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Rows of a page.
pub const ROWS: usize = 60;
/// The environment variable that asks for [`share`]: `1`. Drop-ins read it at load.
pub const SHARE_VARIABLE: &CStr = c"MEMLIFT_STATS";

const NAME_BYTES: usize = 32;
const REASON_BYTES: usize = 160;
/// First file descriptor for the page: programs rarely rely on numbers this high.
const FD_FROM: i32 = 500;

/// State of the drop-in: it does the work itself, or leaves it to the library that it stands in for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum State {
    /// Nothing decided yet.
    Loaded = 0,
    /// It does the work.
    Serving = 1,
    /// It stepped aside; the reason says why.
    Aside = 2,
}

/// The page, as every process sees it. Little-endian words, text filled with zeros.
#[repr(C, align(64))]
pub struct Page {
    magic: AtomicU64,
    version: AtomicU64,
    page_bytes: AtomicU64,
    pid: AtomicU64,
    start_unix_ns: AtomicU64,
    rows_used: AtomicU64,
    state: AtomicU64,
    reserved: AtomicU64,
    name: [AtomicU64; NAME_BYTES / 8],
    reason: [AtomicU64; REASON_BYTES / 8],
    rows: [Row; ROWS],
}

#[repr(C, align(64))]
struct Row {
    name: [AtomicU64; NAME_BYTES / 8],
    count: AtomicU64,
    source_bytes: AtomicU64,
    target_bytes: AtomicU64,
    failures: AtomicU64,
}

const _: () = assert!(size_of::<Page>() == PAGE_BYTES);
const _: () = assert!(core::mem::offset_of!(Page, name) == 64);
const _: () = assert!(core::mem::offset_of!(Page, reason) == 96);
const _: () = assert!(core::mem::offset_of!(Page, rows) == 256);
const _: () = assert!(size_of::<Row>() == 64);
const _: () = assert!(core::mem::offset_of!(Row, count) == 32);

/// Counts that are added to a row, or read from it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Amount {
    /// Messages that were processed.
    pub count: u64,
    /// Bytes that were read.
    pub source_bytes: u64,
    /// Bytes that were written.
    pub target_bytes: u64,
    /// Messages among `count` that were refused: wrong tag, corrupt, too small a target.
    pub failures: u64,
}

/// The page until it is shared, and the source of every other page's header.
static HOME: Page = Page::new();
/// The page in force; null: HOME.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());
static SHARED: AtomicBool = AtomicBool::new(false);
/// The memfd of `PAGE`: its number, and its inode by which it is known again.
static FD: AtomicI32 = AtomicI32::new(-1);
static INODE: AtomicU64 = AtomicU64::new(0);

/// Names the library (also its memfd: give `memlift:` and a word) and its rows, at most [`ROWS`]. Text beyond 31
/// bytes is cut. Call it at load; a second call with the same names changes nothing.
pub fn declare(name: &str, rows: &[&str]) {
    put(&HOME.name, name);
    for (row, name) in HOME.rows.iter().zip(rows) {
        put(&row.name, name);
    }
    HOME.rows_used.store(rows.len().min(ROWS) as u64, Ordering::Relaxed);
}

/// Says whether the drop-in serves, and why (at most 159 bytes).
pub fn set_state(state: State, reason: &str) {
    for page in [&HOME, current()] {
        put(&page.reason, reason);
        page.state.store(state as u64, Ordering::Relaxed);
    }
}

/// Makes the page visible to other processes of the same user, in this process and in every forked child. Call it after
/// [`declare`]. If the system refuses, counting goes on in private.
pub fn share() {
    if !SHARED.swap(true, Ordering::AcqRel) {
        // SAFETY: the handler makes system calls and stores to atomics, which is allowed in the child of a threaded
        // process. The drop-ins are never unloaded (`-z nodelete`), so the function stays where it is.
        unsafe { libc::pthread_atfork(None, None, Some(renew)) };
        PAGE.store(map(), Ordering::Release);
    }
}

/// Shares if [`SHARE_VARIABLE`] is `1`. A program that runs with more rights than its caller ignores the variable.
pub fn share_if_asked() {
    // SAFETY: the name is a C string; what getenv gives is valid while nobody changes the environment, and this
    // is called while a library is being loaded.
    let asked = unsafe {
        let value = libc::getenv(SHARE_VARIABLE.as_ptr());
        libc::getauxval(libc::AT_SECURE) == 0 && !value.is_null() && CStr::from_ptr(value) == c"1"
    };
    if asked {
        share();
    }
}

/// Adds to the row of this number, which [`declare`] named.
#[inline]
pub fn add(row: usize, amount: &Amount) {
    let row = &current().rows[row];
    row.count.fetch_add(amount.count, Ordering::Relaxed);
    row.source_bytes.fetch_add(amount.source_bytes, Ordering::Relaxed);
    row.target_bytes.fetch_add(amount.target_bytes, Ordering::Relaxed);
    if amount.failures != 0 {
        row.failures.fetch_add(amount.failures, Ordering::Relaxed);
    }
}

/// Returns the counts of a row so far.
pub fn get(row: usize) -> Amount {
    let row = &current().rows[row];
    Amount {
        count: row.count.load(Ordering::Relaxed),
        source_bytes: row.source_bytes.load(Ordering::Relaxed),
        target_bytes: row.target_bytes.load(Ordering::Relaxed),
        failures: row.failures.load(Ordering::Relaxed),
    }
}

#[inline]
fn current() -> &'static Page {
    // SAFETY: PAGE is null, or points to a mapping that is undone only by `renew`, when no other thread is there.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }.unwrap_or(&HOME)
}

/// Runs in a forked child: gives it a page of its own, so that it does not count into its parent's.
extern "C" fn renew() {
    let inherited = PAGE.swap(ptr::null_mut(), Ordering::AcqRel);
    if !inherited.is_null() {
        let fd = FD.load(Ordering::Relaxed);
        // SAFETY: this thread is the only one of the child, so nobody else looks at the mapping. The number is closed
        // only if it still means the page: the program may have closed it and opened something else.
        unsafe {
            libc::munmap(inherited.cast(), PAGE_BYTES);
            if inode(fd) == Some(INODE.load(Ordering::Relaxed)) {
                libc::close(fd);
            }
        }
    }
    PAGE.store(map(), Ordering::Release);
}

fn inode(fd: i32) -> Option<u64> {
    // SAFETY: the structure is plain data for the system to fill in; the call fails if there is no such fd.
    unsafe {
        let mut about: libc::stat = core::mem::zeroed();
        (libc::fstat(fd, &mut about) == 0).then_some(about.st_ino)
    }
}

/// A new sealed memfd with HOME's header, mapped; null if the system says no.
fn map() -> *mut Page {
    let mut name = [0u8; NAME_BYTES + 1];
    take(&HOME.name, &mut name[..NAME_BYTES]);
    // SAFETY: plain system calls on an fd that was made here; `name` ends with a zero. Moving the fd up leaves
    // the low numbers to the program, which may count on them.
    unsafe {
        let low = libc::memfd_create(name.as_ptr().cast(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        if low < 0 {
            return ptr::null_mut();
        }
        let high = libc::fcntl(low, libc::F_DUPFD_CLOEXEC, FD_FROM);
        let fd = if high < 0 { low } else { high };
        if high >= 0 {
            libc::close(low);
        }
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        if libc::ftruncate(fd, PAGE_BYTES as i64) != 0 || libc::fcntl(fd, libc::F_ADD_SEALS, seals) != 0 {
            libc::close(fd);
            return ptr::null_mut();
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let mapped = libc::mmap(ptr::null_mut(), PAGE_BYTES, access, libc::MAP_SHARED, fd, 0);
        if mapped == libc::MAP_FAILED {
            libc::close(fd);
            return ptr::null_mut();
        }
        (*mapped.cast::<Page>()).fill();
        FD.store(fd, Ordering::Relaxed);
        INODE.store(inode(fd).unwrap_or(0), Ordering::Relaxed);
        mapped.cast()
    }
}

impl Page {
    const fn new() -> Page {
        Page {
            magic: AtomicU64::new(0),
            version: AtomicU64::new(VERSION),
            page_bytes: AtomicU64::new(PAGE_BYTES as u64),
            pid: AtomicU64::new(0),
            start_unix_ns: AtomicU64::new(0),
            rows_used: AtomicU64::new(0),
            state: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            name: [const { AtomicU64::new(0) }; NAME_BYTES / 8],
            reason: [const { AtomicU64::new(0) }; REASON_BYTES / 8],
            rows: [const { Row::new() }; ROWS],
        }
    }

    /// Takes over HOME's header; the counters stay at zero.
    fn fill(&self) {
        let copy = |from: &AtomicU64, to: &AtomicU64| {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        let text = |from: &[AtomicU64], to: &[AtomicU64]| {
            from.iter().zip(to).for_each(|(from, to)| copy(from, to));
        };
        for (from, to) in [
            (&HOME.version, &self.version),
            (&HOME.page_bytes, &self.page_bytes),
            (&HOME.rows_used, &self.rows_used),
            (&HOME.state, &self.state),
        ] {
            copy(from, to);
        }
        text(&HOME.name, &self.name);
        text(&HOME.reason, &self.reason);
        for (from, to) in HOME.rows.iter().zip(&self.rows) {
            text(&from.name, &to.name);
        }
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.start_unix_ns.store(since_1970.as_nanos() as u64, Ordering::Relaxed);
        self.pid.store(u64::from(std::process::id()), Ordering::Relaxed);
        self.magic.store(MAGIC, Ordering::Release);
    }
}

impl Row {
    const fn new() -> Row {
        Row {
            name: [const { AtomicU64::new(0) }; NAME_BYTES / 8],
            count: AtomicU64::new(0),
            source_bytes: AtomicU64::new(0),
            target_bytes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }
}

/// Stores text into words; the last byte stays zero.
fn put(words: &[AtomicU64], text: &str) {
    let text = &text.as_bytes()[..text.len().min(words.len() * 8 - 1)];
    let mut pieces = text.chunks(8);
    for word in words {
        let mut bytes = [0u8; 8];
        if let Some(piece) = pieces.next() {
            bytes[..piece.len()].copy_from_slice(piece);
        }
        word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
}

fn take(words: &[AtomicU64], text: &mut [u8]) {
    for (word, piece) in words.iter().zip(text.chunks_exact_mut(8)) {
        piece.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
}

/// A copy of a page of another process, as `pread` gave it. Its owner may have written anything into it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8; PAGE_BYTES]);

impl<'a> View<'a> {
    /// `None`: not a page of this version.
    pub fn parse(bytes: &'a [u8]) -> Option<View<'a>> {
        let view = View(bytes.try_into().ok()?);
        (view.word(0) == MAGIC && view.word(8) == VERSION && view.word(16) == PAGE_BYTES as u64)
            .then_some(view)
    }

    /// The process that counts, as it sees itself.
    pub fn pid(&self) -> u64 {
        self.word(24)
    }

    /// When the page was made, nanoseconds since 1970.
    pub fn start_unix_ns(&self) -> u64 {
        self.word(32)
    }

    /// Returns the drop-in's state. A value that this version does not know reads as [`State::Loaded`].
    pub fn state(&self) -> State {
        match self.word(48) {
            1 => State::Serving,
            2 => State::Aside,
            _ => State::Loaded,
        }
    }

    /// The library, as `memlift:openssl`. Printable ASCII only.
    pub fn name(&self) -> impl Iterator<Item = char> + 'a {
        self.text(64, NAME_BYTES)
    }

    /// Why it serves or not.
    pub fn reason(&self) -> impl Iterator<Item = char> + 'a {
        self.text(96, REASON_BYTES)
    }

    /// The rows that are in use: name and numbers.
    pub fn rows(self) -> impl Iterator<Item = (impl Iterator<Item = char> + 'a, Amount)> + 'a {
        let view = self;
        (0..ROWS.min(view.word(40) as usize)).map(move |row| {
            let at = 256 + row * 64;
            let amount = Amount {
                count: view.word(at + 32),
                source_bytes: view.word(at + 40),
                target_bytes: view.word(at + 48),
                failures: view.word(at + 56),
            };
            (view.text(at, NAME_BYTES), amount)
        })
    }

    fn word(&self, at: usize) -> u64 {
        let mut bytes = [0u8; 8];
        bytes.copy_from_slice(&self.0[at..at + 8]);
        u64::from_le_bytes(bytes)
    }

    fn text(&self, at: usize, bytes: usize) -> impl Iterator<Item = char> + use<'a> {
        let text = self.0[at..at + bytes].iter().take_while(|byte| **byte != 0);
        text.filter(|byte| (b' '..=b'~').contains(byte)).map(|byte| char::from(*byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: impl Iterator<Item = char>) -> String {
        text.collect()
    }

    /// One test for the whole life, because the page belongs to the process.
    #[test]
    fn counts_at_home_then_in_a_page_that_others_can_read() {
        declare("memlift:test", &["seal", "open"]);
        let amount = Amount { count: 1, source_bytes: 10, target_bytes: 26, failures: 0 };
        add(0, &amount);
        assert_eq!(get(0), amount);
        assert_eq!(get(1), Amount::default());

        share();
        add(1, &Amount { failures: 1, ..amount });
        set_state(State::Serving, "because\u{7} of this test");
        let copy = pages().pop().expect("the page is a memfd of this process");
        let view = View::parse(&copy).expect("a page");
        assert_eq!(view.pid(), u64::from(std::process::id()));
        assert_eq!(view.state(), State::Serving);
        assert_eq!(number(view.name()), "memlift:test");
        assert_eq!(number(view.reason()), "because of this test");
        let rows: Vec<_> = view.rows().map(|(name, amount)| (number(name), amount)).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0], ("seal".to_string(), Amount::default()));
        assert_eq!(rows[1], ("open".to_string(), Amount { failures: 1, ..amount }));

        // A child has its own page and no other, from zero, before it counts anything.
        // SAFETY: the child reads files of its own and leaves by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let pages = pages();
            let own = View::parse(&pages[0]).is_some_and(|view| {
                view.pid() == u64::from(std::process::id()) && view.state() == State::Serving
            });
            let zero = get(1) == Amount::default();
            // SAFETY: no destructor of the parent's runs in the child.
            unsafe { libc::_exit(i32::from(!(pages.len() == 1 && own && zero))) };
        }
        let mut status = 0;
        // SAFETY: our child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(get(1).failures, 1);
        assert_eq!(pages().len(), 1);
    }

    fn pages() -> Vec<Vec<u8>> {
        let entries = std::fs::read_dir("/proc/self/fd").unwrap();
        let ours = entries.filter_map(|entry| {
            let path = entry.ok()?.path();
            let target = std::fs::read_link(&path).ok()?;
            (target.to_str()? == "/memfd:memlift:test (deleted)").then(|| std::fs::read(path).unwrap())
        });
        ours.collect()
    }

    #[test]
    fn what_is_no_page_is_refused() {
        assert!(View::parse(&[0; PAGE_BYTES]).is_none());
        assert!(View::parse(&[0; 100]).is_none());
        let mut page = [0xffu8; PAGE_BYTES];
        page[..8].copy_from_slice(b"MLDROP01");
        page[8..16].copy_from_slice(&VERSION.to_le_bytes());
        page[16..24].copy_from_slice(&(PAGE_BYTES as u64).to_le_bytes());
        let view = View::parse(&page).unwrap();
        assert_eq!(view.rows().count(), ROWS);
        assert_eq!(number(view.name()), "");
    }
}
