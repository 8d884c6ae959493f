// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Robust futexes: words of shared memory that the kernel marks when their owner dies, before it frees the process's memory.
//!
//! - **Flow** a thread owns words ─▶ it dies, in most cases with its process ─▶ the kernel marks each word and wakes a thread that sleeps
//!   on it ─▶ it frees the memory, 30 ms for each GiB of small pages ─▶ it closes descriptors
//! - **Layout** a word: thread number of the owner in 30 bits · [`OWNER_DIED`] · bit 31: the kernel wakes a sleeper. 0: nobody owns it
//! - **Order** a word holds its owner's number before it is in the owner's list, and leaves the list before its memory goes
//! - **Owner** the kernel has one list per thread; the list of the C library for its robust mutexes is replaced. So the owner is a thread
//!   of ours that takes no such mutex. A forked child owns nothing
//! - **Rule** the list lies in private memory, only the words are shared. A peer that writes to a word hides this process's death from
//!   those who have the same word, and from nobody else
//! - **Not here** the number as an identity: it is another one in another PID namespace. Peers look at [`OWNER_DIED`] only

use std::ffi::c_void;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The kernel sets it in a word whose owner died (`FUTEX_OWNER_DIED` of linux/futex.h).
pub const OWNER_DIED: u32 = 0x4000_0000;
/// The kernel wakes a sleeper only if it is set (`FUTEX_WAITERS`).
const WAITERS: u32 = 0x8000_0000;

/// `struct robust_list` of linux/futex.h.
#[repr(C)]
#[derive(Debug)]
struct Entry {
    next: AtomicPtr<Entry>,
}

/// `struct robust_list_head` of linux/futex.h.
#[repr(C)]
#[derive(Debug)]
struct Head {
    list: Entry,
    futex_offset: libc::c_long,
    pending: *const Entry,
}

impl Head {
    /// An empty list: it ends where it begins. The words lie `distance` bytes behind their entries.
    fn new(distance: isize) -> Box<Head> {
        let head = Box::new(Head {
            list: Entry { next: AtomicPtr::new(ptr::null_mut()) },
            futex_offset: distance as libc::c_long,
            pending: ptr::null(),
        });
        head.list.next.store(head.end(), Ordering::Relaxed);
        head
    }

    fn end(&self) -> *mut Entry {
        (&raw const self.list).cast_mut()
    }
}

/// Replaces the calling thread's list; `false`: the kernel refuses.
fn set(head: *const Head) -> bool {
    // SAFETY: the kernel keeps the address until the thread ends or sets another. `Owned` and `Roll::own` replace it before the list goes.
    unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<Head>()) == 0 }
}

fn own_number() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// A word that the calling thread owns until this is dropped.
#[derive(Debug)]
pub struct Owned<'a> {
    _head: Box<Head>,
    _entry: Box<Entry>,
    /// The list is the thread's own, so it stays with it.
    _thread: PhantomData<(*const (), &'a AtomicU32)>,
}

/// Makes the calling thread the owner of `word`. It must take no robust mutex of the C library, and own no other word. Where the kernel
/// refuses, the word is never marked.
pub fn own(word: &AtomicU32) -> Owned<'_> {
    word.store(own_number(), Ordering::Release);
    let entry = Box::new(Entry { next: AtomicPtr::new(ptr::null_mut()) });
    let at = (&raw const *entry).cast_mut();
    let head = Head::new((word.as_ptr().addr() as isize).wrapping_sub(at.addr() as isize));
    entry.next.store(head.end(), Ordering::Relaxed);
    head.list.next.store(at, Ordering::Release);
    set(&raw const *head);
    Owned { _head: head, _entry: entry, _thread: PhantomData }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        set(ptr::null());
    }
}

/// Most words of a [`Roll`]. With one word of its own, a thread can sleep on as many at once (`FUTEX_WAITV_MAX` is 128).
pub const WORDS_MAX: usize = 127;

/// Words in pages of other memory files, all owned by one thread.
///
/// The kernel finds a word at a fixed distance from its entry in the list. So there are two areas of addresses, one for entries and one
/// for pages with words: an entry lies in its area where the word lies in the other.
#[derive(Debug)]
pub struct Roll {
    head: Box<Head>,
    entries: NonNull<u8>,
    page: usize,
    /// The owner's thread number; 0: there is none.
    owner: AtomicU32,
    /// Places that are taken, one bit each.
    taken: Mutex<u128>,
}

// SAFETY: the areas are the roll's; entries are atomics that are changed under `taken`, words are atomics.
unsafe impl Send for Roll {}
// SAFETY: as for Send.
unsafe impl Sync for Roll {}

impl Roll {
    /// Reserves the addresses. No thread owns the roll yet.
    ///
    /// # Errors
    ///
    /// Those of `mmap`, when there are no addresses left.
    pub fn new() -> Result<Roll, Errno> {
        let page = rustix::param::page_size();
        let area = WORDS_MAX * page;
        let none = ProtFlags::empty();
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), 2 * area, none, quiet()) }?;
        let entries = NonNull::new(base.cast()).expect("the kernel maps nothing at 0");
        let roll = Roll {
            head: Head::new(area as isize),
            entries,
            page,
            owner: AtomicU32::new(0),
            taken: Mutex::default(),
        };
        // SAFETY: the first half of the range that was reserved for it.
        unsafe {
            rustix::mm::mprotect(
                base,
                area,
                rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE,
            )?;
            // A huge page for a few entries would be a waste. Without advice there may be one.
            let _ = rustix::mm::madvise(base, area, Advice::LinuxNoHugepage);
            // A child owns no word, and is to hold no peer's memory.
            rustix::mm::madvise(base, 2 * area, Advice::LinuxDontFork)?;
        }
        Ok(roll)
    }

    /// Makes the calling thread the owner while `run` runs, with its argument `true`, or `false` if the kernel refuses. The thread must
    /// take no robust mutex of the C library, and own no other word.
    pub fn own<R>(&self, run: impl FnOnce(bool) -> R) -> R {
        struct Own<'a>(&'a Roll);
        impl Drop for Own<'_> {
            fn drop(&mut self) {
                self.0.owner.store(0, Ordering::Release);
                set(ptr::null());
            }
        }
        let _own = Own(self);
        let owns = set(&raw const *self.head);
        if owns {
            self.owner.store(own_number(), Ordering::Release);
        }
        run(owns)
    }

    /// Enters the word at `offset` of a memory file, a multiple of 8. None: the roll is full or has no owner, or the page cannot be mapped.
    pub fn enter(&self, file: BorrowedFd<'_>, offset: u64) -> Option<RobustWord<'_>> {
        assert!(offset.is_multiple_of(8), "an entry is as far into its page as its word, and has 8 bytes");
        let owner = self.owner.load(Ordering::Acquire);
        if owner == 0 {
            return None;
        }
        let inside = (offset % self.page as u64) as usize;
        let index = {
            let mut taken = self.taken();
            let free = (0..WORDS_MAX).find(|index| *taken >> index & 1 == 0)?;
            *taken |= 1 << free;
            free
        };
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        let at = self.words(index);
        // SAFETY: replaces a page of the roll that is nobody's but this place's.
        let mapped =
            unsafe { rustix::mm::mmap(at.cast(), self.page, access, flags, file, offset - inside as u64) };
        let mut entered = RobustWord { roll: self, index, inside, listed: false };
        mapped.ok()?;
        // SAFETY: the page was mapped above.
        unsafe { rustix::mm::madvise(at.cast(), self.page, Advice::LinuxDontFork) }.ok()?;
        entered.word().store(owner | WAITERS, Ordering::Release);
        entered.link();
        Some(entered)
    }

    fn taken(&self) -> MutexGuard<'_, u128> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The page for entries of a place.
    fn entries(&self, index: usize) -> *mut u8 {
        assert!(index < WORDS_MAX);
        // SAFETY: within the first area.
        unsafe { self.entries.as_ptr().add(index * self.page) }
    }

    /// The page with the word of a place.
    fn words(&self, index: usize) -> *mut u8 {
        // SAFETY: within the second area, which is as large as the first.
        unsafe { self.entries(index).add(WORDS_MAX * self.page) }
    }
}

impl Drop for Roll {
    fn drop(&mut self) {
        // SAFETY: no word borrows the roll any more, and no thread owns it.
        let _ = unsafe { rustix::mm::munmap(self.entries.as_ptr().cast(), 2 * WORDS_MAX * self.page) };
    }
}

/// Flags of addresses without memory.
fn quiet() -> MapFlags {
    MapFlags::PRIVATE | MapFlags::NORESERVE
}

/// A word of a [`Roll`]. It leaves the roll when this is dropped; its value stays.
#[derive(Debug)]
pub struct RobustWord<'a> {
    roll: &'a Roll,
    index: usize,
    inside: usize,
    listed: bool,
}

impl RobustWord<'_> {
    /// The word, at its place in the roll.
    pub fn word(&self) -> &AtomicU32 {
        // SAFETY: `enter` mapped the page there, for as long as `self` lives; aligned; used as an atomic only.
        unsafe { AtomicU32::from_ptr(self.roll.words(self.index).add(self.inside).cast()) }
    }

    fn entry(&self) -> &Entry {
        // SAFETY: within the area of entries, which is writable; `inside` is a multiple of 8 in a page. Only atomics lie there.
        unsafe { &*self.roll.entries(self.index).add(self.inside).cast::<Entry>() }
    }

    /// Puts the entry first. At each moment the kernel can follow the list.
    fn link(&mut self) {
        let _taken = self.roll.taken();
        let first = &self.roll.head.list.next;
        self.entry().next.store(first.load(Ordering::Relaxed), Ordering::Relaxed);
        first.store(ptr::from_ref(self.entry()).cast_mut(), Ordering::Release);
        self.listed = true;
    }

    fn unlink(&mut self) {
        let _taken = self.roll.taken();
        let own = ptr::from_ref(self.entry()).cast_mut();
        let mut before = &self.roll.head.list;
        loop {
            let next = before.next.load(Ordering::Relaxed);
            if next == own {
                break;
            }
            assert!(next != self.roll.head.end(), "an entry is in the list until it leaves");
            // SAFETY: entries in the list belong to words that are entered, and the lock keeps them there.
            before = unsafe { &*next };
        }
        before.next.store(self.entry().next.load(Ordering::Relaxed), Ordering::Release);
        self.listed = false;
    }
}

impl Drop for RobustWord<'_> {
    fn drop(&mut self) {
        if self.listed {
            self.unlink();
        }
        let (words, entries) = (self.roll.words(self.index), self.roll.entries(self.index));
        let page = self.roll.page;
        // SAFETY: both pages belong to this place; nothing refers to them any more.
        unsafe {
            let none = ProtFlags::empty();
            let empty =
                rustix::mm::mmap_anonymous(words.cast::<c_void>(), page, none, quiet() | MapFlags::FIXED);
            // If the system refuses, the place is lost.
            if empty.is_err() {
                return;
            }
            let _ = rustix::mm::madvise(words.cast(), page, Advice::LinuxDontFork);
            let _ = rustix::mm::madvise(entries.cast(), page, Advice::LinuxDontNeed);
        }
        *self.roll.taken() &= !(1 << self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::fs::MemfdFlags;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    const WORD_AT: u64 = 640;

    fn file() -> rustix::fd::OwnedFd {
        let file = rustix::fs::memfd_create("memlift-test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        file
    }

    fn value(file: &impl AsFd) -> u32 {
        let mut bytes = [0; 4];
        rustix::io::pread(file, &mut bytes, WORD_AT).unwrap();
        u32::from_ne_bytes(bytes)
    }

    /// Ends the calling thread as a signal would: nothing is dropped.
    fn die() -> ! {
        // SAFETY: nobody joins the thread, and what it borrows lives for ever.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        unreachable!()
    }

    fn eventually(what: &str, condition: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(30);
        while !condition() {
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_dead_thread_s_words_are_marked_and_those_that_left_are_not() {
        let roll: &'static Roll = Box::leak(Box::new(Roll::new().unwrap()));
        let files: Vec<_> = (0..WORDS_MAX + 1).map(|_| file()).collect();
        assert!(roll.enter(files[0].as_fd(), WORD_AT).is_none(), "nobody owns the roll");
        let (owned, is_owned) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            roll.own(|owns| {
                owned.send((owns, rustix::thread::gettid())).unwrap();
                ends.recv().unwrap();
                die()
            })
        });
        let (is_owner, thread) = is_owned.recv().unwrap();
        assert!(is_owner);
        let enter = |index: usize| roll.enter(files[index].as_fd(), WORD_AT);
        let mut words: Vec<_> = (0..WORDS_MAX).map(|index| enter(index).unwrap()).collect();
        assert!(enter(WORDS_MAX).is_none(), "no place is left");
        // The first, the last and one between leave; one comes in their place, and another is spoilt.
        for index in [WORDS_MAX - 1, 60, 0] {
            drop(words.swap_remove(index));
        }
        words.push(enter(WORDS_MAX).unwrap());
        let spoilt = words[30].word().fetch_xor(1, Ordering::Relaxed) ^ 1;
        end.send(()).unwrap();
        // The kernel marks one word after the other, and removes the thread when all are marked.
        let task = format!("/proc/self/task/{}", thread.as_raw_nonzero());
        eventually("the thread is gone", || !std::path::Path::new(&task).exists());
        let all: Vec<u32> = files.iter().map(value).collect();
        let unmarked: Vec<usize> = (0..all.len()).filter(|&index| all[index] & OWNER_DIED == 0).collect();
        let mut expected = vec![0, 60, WORDS_MAX - 1];
        expected.push(all.iter().position(|&value| value == spoilt).unwrap());
        expected.sort_unstable();
        assert_eq!(unmarked, expected);
    }

    #[test]
    fn a_thread_that_ends_owning_marks_its_word_and_one_that_let_go_does_not() {
        for lets_go in [false, true] {
            let word: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
            let (gone, is_gone) = mpsc::channel();
            std::thread::spawn(move || {
                let owned = own(word);
                if lets_go {
                    drop(owned);
                }
                gone.send(own_number()).unwrap();
                die()
            });
            let number = is_gone.recv().unwrap();
            let task = format!("/proc/self/task/{number}");
            eventually("the thread's end", || !std::path::Path::new(&task).exists());
            assert_eq!(word.load(Ordering::Acquire), if lets_go { number } else { OWNER_DIED });
        }
    }
}
