// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes down what a program does with memory, for `memlift record`: by LD_PRELOAD, into a trace that all its processes share.
//!
//! ```text
//! memcpy … ──▶ below the threshold: counted in the thread's block ──▶ libc's
//!          ──▶ else: clock, libc's, clock ──▶ a record in the thread's chunk, with the number of the call site
//! deflate, EVP_EncryptUpdate … ──▶ the same, with the library that the caller would have met
//! pthread_join, poll, read …    ──▶ clock, libc's, clock ──▶ if it has waited: who ended the wait, and a mark
//! pthread_cond_signal, write …  ──▶ who, and when, in the object's word ──▶ libc's
//! ```
//!
//! - **Flow** [`start`] maps the trace that the environment names; [`memory`], [`library`] and [`wait`] take the functions' places; [`thread`]
//!   holds what each thread has counted, and its chunk; [`site`] numbers callers; [`sink`] claims chunks and writes records
//! - **Layout** `memlift_spec::trace`, docs/formats/trace.md
//! - **Order** no lock, no allocation, no descriptor kept open, and no system call but for a thread's CPU time, faults and delays, once a
//!   millisecond, after a wait or for a large call, for what a socket or pipe that is written to is, and for the module of a call site that is new. A record counts once `used` covers it: who is killed leaves all that came before
//! - **Owner** a chunk has one thread. A forked child finds an empty page where its parent had its number, and takes one of its own
//! - **Rule** the program's result is the same: errno, signals, longjmp and cancellation meet the functions that they would have met.
//!   Where anything is not as it should be, nothing is recorded
//! - **Not here** what a trace says: `memlift whatif`
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![deny(unsafe_code)]

mod entry;
#[expect(unsafe_code, reason = "takes the place of libz's and libcrypto's functions")]
mod library;
#[expect(unsafe_code, reason = "the trace is mapped memory, which all processes share")]
mod mapping;
#[expect(unsafe_code, reason = "takes the place of libc's functions")]
mod memory;
#[expect(unsafe_code, reason = "asks the kernel what a descriptor is")]
mod object;
#[expect(unsafe_code, reason = "finds what a caller would have called")]
mod real;
#[expect(unsafe_code, reason = "writes into a file that all processes have mapped")]
mod sink;
#[expect(unsafe_code, reason = "reads the maps of its own process by system calls")]
mod site;
#[expect(unsafe_code, reason = "maps the trace before the program begins")]
mod start;
#[expect(unsafe_code, reason = "a block of static TLS")]
mod thread;
#[expect(unsafe_code, reason = "takes the place of libc's functions that wait")]
mod wait;
