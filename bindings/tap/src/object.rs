// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Objects that threads wait for, and their last wakes: a word of the trace per object.
//!
//! - **Method** an object is the hash of its identity, which selects a word of [`WAKES`]. Two objects that share a word can only be
//!   distinguished by the times of their wakes.
//! - **Rule** memory belongs to one process unless it is marked as shared. A pipe is identified by its inode, a connected socket by both
//!   of its names in the direction of the bytes, any other socket by the port or path at which it can be reached.
//! - **Not here** unnamed pairs of sockets, whose ends do not know each other, and eventfds, which have no identity.

use core::ffi::{c_int, c_void};
use core::mem::{MaybeUninit, size_of};
use core::sync::atomic::Ordering::{Acquire, Release};

use memlift_spec::formats::trace::{WAKES, Wake};

use crate::mapping;

/// Something that threads wait for.
#[derive(Clone, Copy)]
pub struct Object(u64);

/// Class of an identity, so that equal numbers of two classes are different objects.
#[derive(Clone, Copy)]
enum Class {
    Memory = 1,
    Shared = 2,
    Process = 3,
    Pipe = 4,
    Connection = 5,
    Listener = 6,
    Start = 7,
}

/// Direction of bytes through a descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StreamDirection {
    /// Bytes come in.
    In,
    /// Bytes go out.
    Out,
}

fn mixed(state: u64, word: u64) -> u64 {
    let product = u128::from(state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    (product >> 64) as u64 ^ product as u64
}

impl Object {
    fn new(class: Class, words: &[u64]) -> Object {
        let hash =
            words.iter().fold(mixed(0x243f_6a88_85a3_08d3, class as u64), |hash, word| mixed(hash, *word));
        Object(hash)
    }

    /// Returns the object for memory of this process: a condition, a lock, a futex, the handle of a thread.
    pub fn memory(address: usize) -> Object {
        Object::new(Class::Memory, &[mapping::process().into(), address as u64])
    }

    /// Returns the object for memory that processes share at the same address.
    pub fn shared(address: usize) -> Object {
        Object::new(Class::Shared, &[address as u64])
    }

    /// Returns the object for the end of a process.
    pub fn process(pid: u32) -> Object {
        Object::new(Class::Process, &[pid.into()])
    }

    /// Returns the object for the start of a thread of this process.
    pub fn thread_started(handle: libc::pthread_t) -> Object {
        Object::new(Class::Start, &[mapping::process().into(), handle])
    }

    /// Returns the object for the bytes through a descriptor; `None` if it is neither a pipe nor a socket with a name.
    pub fn stream(file: c_int, direction: StreamDirection) -> Option<Object> {
        let mut status = MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: the kernel fills the structure, for which zeros are also valid.
        let status = unsafe {
            if libc::fstat(file, status.as_mut_ptr()) != 0 {
                return None;
            }
            status.assume_init()
        };
        match status.st_mode & libc::S_IFMT {
            libc::S_IFIFO => Some(Object::new(Class::Pipe, &[status.st_dev, status.st_ino])),
            libc::S_IFSOCK => {
                let Some(peer) = Name::of(file, libc::getpeername) else {
                    return (direction == StreamDirection::In).then(|| Object::accepting(file)).flatten();
                };
                let own = Name::of(file, libc::getsockname)?;
                if own.is_empty() && peer.is_empty() {
                    return None;
                }
                let (to, from) = if direction == StreamDirection::In { (own, peer) } else { (peer, own) };
                Some(Object::new(Class::Connection, &[to.hash, from.hash]))
            }
            _ => None,
        }
    }

    /// Returns the object for the port or path at this address, to which others connect or send.
    ///
    /// # Safety
    /// `address` is null or has `bytes` bytes.
    pub unsafe fn address(address: *const c_void, bytes: u32) -> Option<Object> {
        let mut name = Name { bytes: [0; Name::BYTES], length: (bytes as usize).min(Name::BYTES), hash: 0 };
        if address.is_null() {
            return None;
        }
        // SAFETY: the caller guarantees `bytes` bytes at `address`, and `length` is at most that and at most the room.
        unsafe { core::ptr::copy_nonoverlapping(address.cast::<u8>(), name.bytes.as_mut_ptr(), name.length) };
        name.listener()
    }

    /// Returns the object for a socket to which others connect or send.
    pub fn accepting(file: c_int) -> Option<Object> {
        Name::of(file, libc::getsockname)?.listener()
    }

    fn word(self) -> Option<&'static core::sync::atomic::AtomicU64> {
        mapping::wakes(self.0 as usize % WAKES)
    }

    /// Returns the last wake of this object.
    pub fn last_wake(self) -> Option<Wake> {
        Wake::decode(self.word()?.load(Acquire))
    }

    /// Stores a wake of this object.
    pub fn wake(self, thread: u32, time_ns: u64) {
        if let (Some(place), Some(word)) = (self.word(), (Wake { thread, time_ns }).encode()) {
            place.store(word, Release);
        }
    }
}

/// The name of a socket, or of its peer.
struct Name {
    bytes: [u8; Name::BYTES],
    length: usize,
    hash: u64,
}

type AskFn = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int;

impl Name {
    const BYTES: usize = size_of::<libc::sockaddr_un>();

    fn of(file: c_int, ask: AskFn) -> Option<Name> {
        let mut name = Name { bytes: [0; Name::BYTES], length: 0, hash: 0 };
        let mut bytes = Name::BYTES as libc::socklen_t;
        // SAFETY: the name has room for the number of bytes in `bytes`.
        let result = unsafe { ask(file, name.bytes.as_mut_ptr().cast(), &raw mut bytes) };
        name.length = (bytes as usize).min(Name::BYTES);
        name.hash = name.words().iter().fold(0, |hash, word| mixed(hash, *word));
        (result == 0 && name.length >= 2).then_some(name)
    }

    fn family(&self) -> c_int {
        c_int::from(u16::from_ne_bytes([self.bytes[0], self.bytes[1]]))
    }

    /// Returns true for a socket of a local pair, whose name has only a family.
    fn is_empty(&self) -> bool {
        self.length <= 2
    }

    fn port(&self) -> u64 {
        u16::from_be_bytes([self.bytes[2], self.bytes[3]]).into()
    }

    /// Returns the name as words; an IPv4 address inside an IPv6 address gives the words of the IPv4 address.
    fn words(&self) -> [u64; 3] {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&self.bytes[at..at + 8]);
            u64::from_ne_bytes(word)
        };
        match self.family() {
            libc::AF_INET => [self.port(), word(4) & 0xffff_ffff, 0],
            libc::AF_INET6 if word(8) == 0 && word(16) & 0xffff_ffff == 0xffff_0000 => {
                [self.port(), word(16) >> 32, 0]
            }
            libc::AF_INET6 => [self.port(), word(8), word(16)],
            _ => [1 << 32, self.path(), 0],
        }
    }

    fn path(&self) -> u64 {
        self.bytes[2..self.length.max(2)].iter().fold(0, |hash, byte| mixed(hash, u64::from(*byte) + 1))
    }

    fn listener(&self) -> Option<Object> {
        match self.family() {
            libc::AF_INET | libc::AF_INET6 => Some(Object::new(Class::Listener, &[self.port()])),
            libc::AF_UNIX if self.length > 2 => Some(Object::new(Class::Listener, &[self.path()])),
            _ => None,
        }
    }
}
