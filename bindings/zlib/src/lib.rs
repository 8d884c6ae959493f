// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A faster libz, as a drop-in library for programs that are not recompiled.
//!
//! `libmemlift_z.so` has every symbol of libz 1.2.13 with its version, and libz's SONAME: name it in `LD_PRELOAD`, or put it as
//! `libz.so.1` into a folder of `LD_LIBRARY_PATH`.
//!
//! - **Flow** an exported function (`deflate`, `inflate`, `whole`) works on the state that `z_stream.state` points to. deflate: the fast
//!   path is `memlift_kernels::deflate` with tables from the [`pool`]; for flushes and everything else that zlib's interface allows, the
//!   tables live as long as the stream. inflate: a decoder of our own ([`inflate`]). `gz*` ([`gz`]) calls these two.
//! - **Layout** a deflate stream is fast with level 1–6, the default strategy, a window of 8 KiB or more, and no flush before the last.
//!   This is decided at the first `deflate`; if something else is requested later, the stream becomes chained
//!   ([`deflate::chained`](deflate)). On the fast path, levels 1–6 are `Effort`s of the kernels ([`deflate::settings`](deflate)); the
//!   output differs from zlib's, and every inflate can read it.
//! - **Order** a `z_stream` that was initialized by this library is only handled by it: each state has a mark and points back to its
//!   stream, and for any other stream the functions return `Z_STREAM_ERROR`.
//! - **Owner** the memory that a stream keeps between two calls comes from the program's own `zalloc` at init, about as much as zlib asks
//!   for: a program that drops its arena without `deflateEnd` leaks nothing. The tables of the fast path are lent by the pool for one
//!   call only; if there is no memory for them, the stream becomes chained. There is no lock and no thread: after a fork between two
//!   calls both processes can continue.
//! - **Not here** threads, files (except by `gz*`); at load, anything but naming the counters and sharing them if `MEMLIFT_STATS=1`
//!   ([`counts`]).
#![deny(unsafe_code)]
#![allow(non_snake_case, reason = "libz's names")]

#[macro_use]
mod export;
#[expect(unsafe_code, reason = "the program's allocator and its buffers")]
mod memory;
#[expect(unsafe_code, reason = "a function that the loader calls")]
mod counts;
#[expect(unsafe_code, reason = "owns boxes through atomic pointers")]
mod pool;
#[expect(unsafe_code, reason = "reads and writes the z_stream of a C program")]
mod strm;
#[expect(unsafe_code, reason = "exports a C interface")]
mod deflate;
#[expect(unsafe_code, reason = "exports a C interface")]
mod gz;
#[expect(unsafe_code, reason = "exports a C interface")]
mod inflate;
#[expect(unsafe_code, reason = "exports a C interface")]
mod whole;
#[expect(unsafe_code, reason = "exports a C interface")]
mod pass;
#[expect(unsafe_code, reason = "exports a C interface")]
mod print;
