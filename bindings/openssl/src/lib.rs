// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AES-GCM for every program that uses OpenSSL 3: a provider.
//!
//! `libmemlift_openssl.so` brings vector AES (VAES) to programs on OpenSSL 3.0, which has no code for it: TLS 1.2, TLS 1.3 and every
//! caller of EVP. A few lines of configuration switch it on (see `openssl.cnf` in the folder of this crate); nothing is rebuilt. If it
//! would not be faster, it leaves the work to OpenSSL.
//!
//! - **Flow** OpenSSL ──▶ [`provider`], which serves or not by [`choice`] ──▶ [`table`] ──▶ [`cipher`], the C functions ([`abi`],
//!   [`param`]) ──▶ [`context`], one key and one message at a time; [`record`], TLS 1.2 ──▶ `memlift_kernels::aead`. [`tally`] counts
//!   into `memlift_kernels::counters`, which `memlift dropin status` reads.
//! - **Order** a nonce seals one message, unless the caller gives it again. No panic leaves: every entry point catches panics.
//! - **Owner** all state belongs to a context or a library context of OpenSSL, so a fork needs no special care: each process continues
//!   with its own copy. The library is never unloaded (`-z nodelete`).
//! - **Not here** threads, locks, files, allocation per message, symbols of libcrypto, other ciphers (other providers serve them).
#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "C structs that are constants and hold addresses")]
mod abi;
#[expect(unsafe_code, reason = "reads and writes the caller's memory as its lists describe it")]
mod param;
#[expect(unsafe_code, reason = "calls functions that the core passed as addresses")]
mod core;
#[expect(unsafe_code, reason = "reads the environment of the program it was loaded into")]
mod choice;
mod tally;
#[expect(unsafe_code, reason = "ciphers memory that the caller gives by address")]
mod context;
#[expect(unsafe_code, reason = "ciphers memory that the caller gives by address")]
mod record;
#[expect(unsafe_code, reason = "functions that C calls")]
mod cipher;
#[expect(unsafe_code, reason = "functions that C calls")]
mod table;
#[expect(unsafe_code, reason = "functions that C calls")]
mod provider;

pub use provider::OSSL_provider_init;
