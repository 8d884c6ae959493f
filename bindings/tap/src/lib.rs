// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records how a program uses memory, for `memlift record`: loaded by LD_PRELOAD, it writes a trace that all processes of the program share.
//!
//! ```text
//! memcpy … ──▶ below the threshold: counted in the thread's block ──▶ libc's function
//! ──▶ else: clock, libc's function, clock ──▶ a record in the thread's chunk, with the number of the call site
//! deflate, EVP_EncryptUpdate … ──▶ the same, with the function that the caller would have called without this library
//! pthread_join, poll, read …    ──▶ clock, libc's function, clock ──▶ if it has waited: the thread that ended the wait, and a mark
//! pthread_cond_signal, write …  ──▶ thread and time into the object's word ──▶ libc's function
//! ```
//!
//! - **Flow** [`start`] maps the trace that the environment names; [`memory`], [`library`] and [`wait`] replace the functions; [`thread`]
//!   holds the counts of each thread, and its chunk; [`request`] counts what accepted connections ask for; [`site`] numbers callers;
//!   [`sink`] claims chunks and writes records.
//! - **Layout** `memlift_spec::formats::trace`, docs/formats/trace.md.
//! - **Order** there is no lock, no allocation and no descriptor that stays open. System calls are made only to read a thread's CPU time,
//!   faults and delays (once a millisecond, after a wait, or for a large call), to identify a socket or pipe that is written to, and to
//!   find the module of a new call site. A record counts once `used` covers it, so a process that is killed leaves all records before.
//! - **Owner** a chunk belongs to one thread. A forked child finds an empty page where its parent had its process number, and takes a
//!   number of its own.
//! - **Rule** the program's results are the same: errno, signals, longjmp and cancellation behave as without this library. If anything
//!   unexpected is found, nothing is recorded.
//! - **Not here** the evaluation of a trace: `memlift whatif`.
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
mod request;
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
