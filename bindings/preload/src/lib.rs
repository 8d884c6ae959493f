// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Puts unmodified programs under zmem by LD_PRELOAD.
//!
//! ```text
//! malloc, mmap family ──▶ the arena (pager)          touched while absent ──SIGBUS──▶ signal ──▶ pager
//! system call with a pointer into the arena ──seccomp──SIGSYS──▶ trap ──▶ faulted in, pinned, called through the gate
//! fork ──▶ pager and heap are locked ──▶ the child's arena is registered anew ──▶ the program goes on
//! ```
//!
//! - **Flow** [`start`] (constructor) attaches the process to the job that the environment names. Until the budget is nearly
//!   used up, nothing is trapped and nothing is absent; then [`activate`] sets up the handlers and the filter for all threads
//! - **Layout** gate (one system-call instruction) < heap (this library's) < arena (the program's), at fixed addresses
//! - **Order** this library's own code runs inside a [`thread::Quiet`]: signals wait, replaced functions of libc call the
//!   kernel directly, and `malloc` uses this library's heap. That code uses no thread-local storage that the loader allocates
//! - **Not here** pages and budgets: `memlift-zmem`
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "makes system calls")]
pub mod gate;
#[expect(unsafe_code, reason = "reaches the thread's static block")]
pub mod thread;
#[expect(unsafe_code, reason = "is a heap")]
pub mod heap;
#[expect(unsafe_code, reason = "writes to stderr by a system call")]
pub mod words;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod allocator;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod memory;
#[expect(unsafe_code, reason = "makes system calls")]
pub mod locked;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod whole;
#[expect(unsafe_code, reason = "makes system calls")]
pub mod marks;
#[expect(unsafe_code, reason = "exports a C interface; handles signals")]
pub mod signal;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod wrappers;
#[expect(unsafe_code, reason = "makes system calls")]
pub mod carried;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod limits;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod descriptors;
#[expect(unsafe_code, reason = "exports a C interface in assembly")]
pub mod loader;
pub mod bpf;
pub mod table;
#[expect(unsafe_code, reason = "hands a program to the kernel")]
pub mod filter;
#[expect(unsafe_code, reason = "reads frames and the program's memory")]
pub mod trap;
#[expect(unsafe_code, reason = "keeps records on a list of the thread's")]
pub mod held;
#[expect(unsafe_code, reason = "exports a C interface; maps stacks")]
pub mod stacks;
#[expect(unsafe_code, reason = "asks what a descriptor is")]
pub mod transfer;
#[expect(unsafe_code, reason = "reads the program's vectors")]
pub mod vector;
#[expect(unsafe_code, reason = "reads the program's structures")]
pub mod named;
#[expect(unsafe_code, reason = "copies the program's texts")]
pub mod exec;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod members;
#[expect(unsafe_code, reason = "forks")]
pub mod fork;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod processes;
#[expect(unsafe_code, reason = "makes system calls")]
pub mod itself;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod ending;
#[expect(unsafe_code, reason = "resets a lock in the child of a fork")]
pub mod spliced;
#[expect(unsafe_code, reason = "reads a list of the C library's")]
pub mod robust;
#[expect(unsafe_code, reason = "makes system calls")]
pub mod kept;
#[expect(unsafe_code, reason = "reads memory that it shares with the kernel")]
pub mod rings;
#[expect(unsafe_code, reason = "copies to where a debugger says")]
pub mod foreign;
#[expect(unsafe_code, reason = "makes system calls")]
pub mod standing;
#[expect(unsafe_code, reason = "makes system calls")]
pub mod activate;
#[expect(unsafe_code, reason = "is called by the loader and makes a thread")]
pub mod start;
