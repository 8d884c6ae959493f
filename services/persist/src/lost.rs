// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that a file cannot give: it was truncated under its mapping, or the disk is full or broken.
//!
//! - **Flow** kernel ─▶ SIGBUS handler ─▶ in a mapping that is watched: zeros in the page's place, the mapping marked, the
//!   instruction runs again ─▶ elsewhere: what was installed before
//! - **Rule** whoever read or stored asks [`Watch::lost`] before he believes what he saw, or says that something is durable. A store
//!   through [`store`] is told itself, and the mapping is not marked: it may write what the store was to write
//! - **Owner** nodes are never freed, since a handler may be at one; a watch that ends leaves its node to the next
//! - **Order** the handler calls nothing but mmap and sigaction

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Mutex, Once, PoisonError};

/// A range of addresses that is watched: empty when nobody uses the node.
#[derive(Debug)]
struct Node {
    base: AtomicUsize,
    end: AtomicUsize,
    lost: AtomicBool,
    next: AtomicPtr<Node>,
}

static NODES: AtomicPtr<Node> = AtomicPtr::new(ptr::null_mut());
static CHANGES: Mutex<()> = Mutex::new(());

/// The nodes, used or not.
fn nodes() -> impl Iterator<Item = &'static Node> {
    let mut next = NODES.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: nodes are leaked boxes, linked before they are published, and never freed.
        let node = unsafe { next.as_ref() }?;
        next = node.next.load(Ordering::Acquire);
        Some(node)
    })
}

/// Watches a mapping for as long as it lives.
#[derive(Debug)]
pub(crate) struct Watch(&'static Node);

impl Watch {
    /// Watches `bytes` bytes of address space from `base` on, which the caller keeps reserved meanwhile.
    pub fn over(base: *const u8, bytes: u64) -> Watch {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(install);
        let _changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        let node = nodes().find(|node| node.end.load(Ordering::Acquire) == 0).unwrap_or_else(|| {
            let first = NODES.load(Ordering::Acquire);
            let (base, end) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let node = Node { base, end, lost: AtomicBool::new(false), next: AtomicPtr::new(first) };
            let node: &'static mut Node = Box::leak(Box::new(node));
            NODES.store(node, Ordering::Release);
            node
        });
        node.lost.store(false, Ordering::Relaxed);
        node.base.store(base.addr(), Ordering::Release);
        node.end.store(base.addr().saturating_add(bytes as usize), Ordering::Release);
        Watch(node)
    }

    /// Returns true if a page was asked for that the file could not give.
    #[inline]
    pub fn lost(&self) -> bool {
        self.0.lost.load(Ordering::Acquire)
    }

    /// Marks the mapping: a page lies in zeros' place for good.
    #[cold]
    pub fn lose(&self) {
        self.0.lost.store(true, Ordering::Release);
    }
}

thread_local! {
    /// The first address and the end of what this thread stores to by [`store`], and true if a page was missing.
    static STORE: Cell<(usize, usize, bool)> = const { Cell::new((0, 0, false)) };
}

/// Stores `source` at `target`, in a mapping that is watched. False: the file could not give a page, zeros lie in its place, and only
/// the caller knows.
///
/// # Safety
///
/// `target` is valid for writes of the source's length, and nobody else reads or stores there meanwhile.
pub(crate) unsafe fn store(target: *mut u8, source: &[u8]) -> bool {
    STORE.set((target.addr(), target.addr() + source.len(), false));
    compiler_fence(Ordering::SeqCst); // the handler runs in this thread
    // SAFETY: as the caller guarantees.
    unsafe { ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
    compiler_fence(Ordering::SeqCst);
    let (.., missing) = STORE.replace((0, 0, false));
    !missing
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.end.store(0, Ordering::Release);
        self.0.base.store(0, Ordering::Release);
    }
}

/// The action that was installed before ours.
struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written once, before the handler that reads it is installed.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous = Previous(UnsafeCell::new(MaybeUninit::zeroed()));

fn install() {
    // SAFETY: a sigaction of zeros is a valid one; its handler has the signature that SA_SIGINFO asks for. The action before is
    // read first, so that a handler that runs at once finds it.
    unsafe {
        libc::sigaction(libc::SIGBUS, ptr::null(), PREVIOUS.0.get().cast());
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = handler as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut());
    }
}

/// Puts zeros where the file has no page; false: the address is none of ours.
fn replaced(address: usize) -> bool {
    let inside = |node: &&Node| {
        let (base, end) = (node.base.load(Ordering::Acquire), node.end.load(Ordering::Acquire));
        (base..end).contains(&address)
    };
    let Some(node) = nodes().find(inside) else { return false };
    let page = address / 4096 * 4096;
    // SAFETY: the page lies in a mapping whose owner keeps it reserved while it is watched, and who no longer relies on its bytes
    // once it is marked.
    let mapped = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        libc::mmap(page as *mut libc::c_void, 4096, access, kind, -1, 0)
    };
    let (from, to, _) = STORE.get();
    if (from..to).contains(&address) {
        STORE.set((from, to, true));
    } else {
        node.lost.store(true, Ordering::Release);
    }
    mapped != libc::MAP_FAILED
}

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo; errno is this thread's. What was installed before is called as it was declared, and
    // with the default action the instruction runs again and ends the process as it would have.
    unsafe {
        let errno = *libc::__errno_location();
        let fault = matches!((*info).si_code, libc::BUS_ADRERR | libc::BUS_OBJERR);
        if fault && replaced((*info).si_addr() as usize) {
            *libc::__errno_location() = errno;
            return;
        }
        let previous = &*PREVIOUS.0.get().cast::<libc::sigaction>();
        match previous.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                let mut default: libc::sigaction = std::mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &raw const default, ptr::null_mut());
                if !fault {
                    libc::raise(signal);
                }
            }
            action if previous.sa_flags & libc::SA_SIGINFO != 0 => {
                let call: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(action);
                call(signal, info, context);
            }
            action => {
                let call: extern "C" fn(i32) = std::mem::transmute(action);
                call(signal);
            }
        }
        *libc::__errno_location() = errno;
    }
}
