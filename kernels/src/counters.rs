// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts the work of a drop-in library inside the program that loaded it: one page of counters, which other processes may read.
//!
//! - **Flow** [`declare`] at load (static memory only) ──▶ [`add`] per message ──▶ page ──▶ [`get`]. [`share`] moves the page to a sealed
//!   memfd, which another process reads by `pread` of /proc/PID/fd/N and decodes by [`View::parse`].
//! - **Layout** [`Page`]: a header of 256 bytes, then 60 rows of 64; see `docs/formats/dropin.md`.
//! - **Order** counters are relaxed: each is right, but two of them may disagree for a moment. `magic` is stored last.
//! - **Owner** the process. A forked child unmaps its parent's page and gets its own, which starts at zero; a child whose parent does not
//!   share continues from its parent's numbers.
//! - **Not here** allocation, threads, locks, files on disk. Without [`share`] there is no system call either, and after it none except
//!   in `fork`: a program may have a filter (seccomp) that ends it at an unexpected call, so the page is made before the program goes on,
//!   and only if the user asked for it.

use core::ffi::CStr;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// First word of a page that is ready to be read: the bytes `MLDROP01`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MLDROP01");
/// Version of the layout.
pub const VERSION: u64 = 1;
/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Rows of a page.
pub const ROWS: usize = 60;
/// Environment variable that asks for [`share`] if it is `1`. Drop-ins read it at load.
pub const SHARE_VARIABLE: &CStr = c"MEMLIFT_STATS";

const NAME_BYTES: usize = 32;
const REASON_BYTES: usize = 160;
/// First file descriptor for the page: programs rarely rely on numbers this high.
const FD_FROM: i32 = 500;

/// State of the drop-in: it does the work itself, or leaves it to the library that it replaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum State {
    /// Not decided yet.
    Loaded = 0,
    /// The drop-in does the work itself.
    Serving = 1,
    /// The drop-in passes all calls on to the replaced library; the reason of the page says why.
    PassingOn = 2,
}

/// The page as every process sees it. Words are little-endian, text is filled with zeros.
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

/// The page until it is shared, and the source of the header of every shared page.
static PRIVATE_PAGE: Page = Page::new();
/// The page that is counted into; null means `PRIVATE_PAGE`.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());
static SHARED: AtomicBool = AtomicBool::new(false);
/// File descriptor of `PAGE`'s memfd, and its inode, by which the descriptor is verified before it is closed.
static FD: AtomicI32 = AtomicI32::new(-1);
static INODE: AtomicU64 = AtomicU64::new(0);

/// Sets the names of the library (also the name of its memfd: `memlift:` and a word) and of its rows, at most [`ROWS`]. Text
/// beyond 31 bytes is cut. Call it at load; a second call with the same names changes nothing.
pub fn declare(name: &str, rows: &[&str]) {
    put(&PRIVATE_PAGE.name, name);
    for (row, name) in PRIVATE_PAGE.rows.iter().zip(rows) {
        put(&row.name, name);
    }
    PRIVATE_PAGE.rows_used.store(rows.len().min(ROWS) as u64, Ordering::Relaxed);
}

/// Sets the drop-in's state and the reason for it (at most 159 bytes).
pub fn set_state(state: State, reason: &str) {
    for page in [&PRIVATE_PAGE, current()] {
        put(&page.reason, reason);
        page.state.store(state as u64, Ordering::Relaxed);
    }
}

/// Makes the page visible to other processes of the same user, in this process and in every forked child. Call it after
/// [`declare`]. If the system refuses, counting continues in private memory.
pub fn share() {
    if !SHARED.swap(true, Ordering::AcqRel) {
        // SAFETY: the handler makes system calls and stores to atomics, which is allowed in the child of a threaded
        // process. The drop-ins are never unloaded (`-z nodelete`), so the function stays where it is.
        unsafe { libc::pthread_atfork(None, None, Some(renew)) };
        PAGE.store(map(), Ordering::Release);
    }
}

/// Calls [`share`] if [`SHARE_VARIABLE`] is `1`. A program that runs with more rights than its caller ignores the variable.
pub fn share_if_asked() {
    // SAFETY: the name is a C string; the value is valid while nobody changes the environment, and this is called while a
    // library is being loaded.
    let asked = unsafe {
        let value = libc::getenv(SHARE_VARIABLE.as_ptr());
        libc::getauxval(libc::AT_SECURE) == 0 && !value.is_null() && CStr::from_ptr(value) == c"1"
    };
    if asked {
        share();
    }
}

/// Adds to the row with this index, which [`declare`] named.
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

/// Returns the counts of a row.
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
    // SAFETY: `PAGE` is null or points to a mapping that only `renew` removes, while no other thread exists.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }.unwrap_or(&PRIVATE_PAGE)
}

/// Runs in a forked child: gives the child a page of its own, so that it does not count into its parent's.
extern "C" fn renew() {
    let inherited = PAGE.swap(ptr::null_mut(), Ordering::AcqRel);
    if !inherited.is_null() {
        let fd = FD.load(Ordering::Relaxed);
        // SAFETY: this is the only thread of the child, so nobody else uses the mapping. The descriptor is closed only if it
        // still is the page: the program may have closed it and opened something else under its number.
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
    // SAFETY: `stat` is plain data that the system fills in; the call fails if there is no such descriptor.
    unsafe {
        let mut about: libc::stat = core::mem::zeroed();
        (libc::fstat(fd, &mut about) == 0).then_some(about.st_ino)
    }
}

/// Creates and maps a sealed memfd with `PRIVATE_PAGE`'s header; returns null if the system refuses.
fn map() -> *mut Page {
    let mut name = [0u8; NAME_BYTES + 1];
    copy_text(&PRIVATE_PAGE.name, &mut name[..NAME_BYTES]);
    // SAFETY: plain system calls on a descriptor that was made here; `name` ends with a zero. The descriptor is moved up because
    // the program may count on getting the low numbers.
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

    /// Copies `PRIVATE_PAGE`'s header; the counters stay at zero.
    fn fill(&self) {
        let copy = |from: &AtomicU64, to: &AtomicU64| {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        let text = |from: &[AtomicU64], to: &[AtomicU64]| {
            from.iter().zip(to).for_each(|(from, to)| copy(from, to));
        };
        for (from, to) in [
            (&PRIVATE_PAGE.version, &self.version),
            (&PRIVATE_PAGE.page_bytes, &self.page_bytes),
            (&PRIVATE_PAGE.rows_used, &self.rows_used),
            (&PRIVATE_PAGE.state, &self.state),
        ] {
            copy(from, to);
        }
        text(&PRIVATE_PAGE.name, &self.name);
        text(&PRIVATE_PAGE.reason, &self.reason);
        for (from, to) in PRIVATE_PAGE.rows.iter().zip(&self.rows) {
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

fn copy_text(words: &[AtomicU64], text: &mut [u8]) {
    for (word, piece) in words.iter().zip(text.chunks_exact_mut(8)) {
        piece.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
}

/// A copy of another process's page, as `pread` returned it. Its contents are not trusted.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8; PAGE_BYTES]);

impl<'a> View<'a> {
    /// Checks the bytes; returns `None` if they are not a page of this version.
    pub fn parse(bytes: &'a [u8]) -> Option<View<'a>> {
        let view = View(bytes.try_into().ok()?);
        (view.word(0) == MAGIC && view.word(8) == VERSION && view.word(16) == PAGE_BYTES as u64)
            .then_some(view)
    }

    /// Returns the process id that the counting process has in its own namespace.
    pub fn pid(&self) -> u64 {
        self.word(24)
    }

    /// Returns the time at which the page was made, nanoseconds since 1970.
    pub fn start_unix_ns(&self) -> u64 {
        self.word(32)
    }

    /// Returns the drop-in's state; an unknown value is returned as [`State::Loaded`].
    pub fn state(&self) -> State {
        match self.word(48) {
            1 => State::Serving,
            2 => State::PassingOn,
            _ => State::Loaded,
        }
    }

    /// Returns the library's name, such as `memlift:openssl`, in printable ASCII.
    pub fn name(&self) -> impl Iterator<Item = char> + 'a {
        self.text(64, NAME_BYTES)
    }

    /// Returns the reason for the state.
    pub fn reason(&self) -> impl Iterator<Item = char> + 'a {
        self.text(96, REASON_BYTES)
    }

    /// Returns name and counts of each row that is in use.
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

    /// A single test for the whole sequence, because there is one page per process.
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

        // Before it counts anything, a child has a page of its own that starts at zero, and no other.
        // SAFETY: the child only reads its own files and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let pages = pages();
            let own = View::parse(&pages[0]).is_some_and(|view| {
                view.pid() == u64::from(std::process::id()) && view.state() == State::Serving
            });
            let zero = get(1) == Amount::default();
            // SAFETY: `_exit` runs no destructor of the parent in the child.
            unsafe { libc::_exit(i32::from(!(pages.len() == 1 && own && zero))) };
        }
        let mut status = 0;
        // SAFETY: `child` is a child of this process, and `status` is writable.
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
