// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts of the `memlift` command that `memlift-lab` uses too: exit codes, printing, reading and writing files, finding libraries.
//!
//! - **Not here** verbs: they are modules of the two programs
#![deny(unsafe_code)]

pub mod arguments;
pub mod date;
pub mod failure;
pub mod input;
pub mod libraries;
pub mod machine;
pub mod output;
pub mod print;
#[expect(unsafe_code, reason = "calls a libz or libcrypto that a program of this machine uses")]
pub mod probe;
#[expect(missing_docs, reason = "names and meanings are those of zlib.h")]
pub mod zlib_h;
