// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A libz that is faster: a drop-in for programs that were never recompiled.
//!
//! `libmemlift_z.so` has every symbol of libz 1.2.13 under its versions, and libz's SONAME: put it into `LD_PRELOAD`,
//! or into a folder of `LD_LIBRARY_PATH` as `libz.so.1`.
//!
//! - **Flow** exported function (`deflate`, `inflate`, `whole`) ──▶ the state that `z_stream.state` points to. deflate: the fast
//!   path, `memlift_kernels::deflate` with tables from the [`pool`], or, for flushes and whatever else zlib's interface asks for, tables that
//!   live with the stream. inflate: a decoder of our own ([`inflate`]). `gz*` ([`gz`]) calls these two.
//! - **Layout** which deflate streams are fast: level 1–6, default strategy, windows of 8 KiB or more, no flush before the last. Decided at the first
//!   `deflate`; when something else is asked for later, the stream becomes chained ([`deflate::chained`](deflate)). On the fast path, levels
//!   1–6 are `Effort`s of the kernels ([`deflate::settings`](deflate)); the output differs from zlib's and any inflate reads it.
//! - **Order** a `z_stream` that was initialized here is only ever handled here: each state has a mark and points back to
//!   its stream, and what does not match is `Z_STREAM_ERROR`.
//! - **Owner** what a stream keeps between two calls comes from the program's own `zalloc` at init, about as much as zlib asks for: a
//!   program that drops its arena without `deflateEnd` leaks nothing. The fast path's tables are lent by the pool for the length of
//!   one call only, and where there is no memory for them the stream does without. No lock and no thread: a fork between two calls leaves both
//!   processes whole.
//! - **Not here** threads, files (but `gz*`); anything at load except naming the counters, and sharing them where
//!   `MEMLIFT_STATS=1` asks for it ([`counts`]).
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
