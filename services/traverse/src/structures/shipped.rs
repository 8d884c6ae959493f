// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs that come with the crate: compiled from `programs/`, committed as text, embedded, verified at their first use.
//!
//! - **Layout** a line per instruction: its bytes in hexadecimal (16 digits, or 32 for an instruction of two places), ` ; `, its
//!   place, its text; lines that start with `;` name the source
//! - **Order** the bytes are what is loaded; `tests/structures/programs.rs` checks the text against them, and both against the C
//!   sources where clang is installed
//! - **Not here** the C sources, which users copy from: `programs/table1` (the paper's 13), `programs/collections`

use std::sync::{Arc, OnceLock};

use crate::error::{Error, Result};
use crate::program::Program;
use memlift_spec::formats::walk::SCRATCH_BYTES_DEFAULT;

/// A program that comes with the crate.
#[derive(Debug)]
pub struct Shipped {
    /// Name of the program and of its C source.
    pub name: &'static str,
    /// Folder of the C source, in `programs/`.
    pub folder: &'static str,
    /// The committed text: one line per instruction, as the module's header describes.
    pub text: &'static str,
    program: OnceLock<Arc<Program>>,
}

impl Shipped {
    /// Returns the bytecode in the text.
    ///
    /// # Errors
    /// The line that cannot be parsed.
    pub fn bytecode(&self) -> Result<Vec<u8>> {
        bytecode(self.text)
    }

    /// Returns true if the program asks for changes. Decided by its name; tests compare this with the
    /// verifier's result.
    #[must_use]
    pub fn writes(&self) -> bool {
        ["insert", "remove", "add", "unlink", "append"].iter().any(|word| self.name.contains(word))
    }

    /// Returns the program, verified once per process, for a scratchpad of 1 KiB.
    ///
    /// # Panics
    /// If the verifier refuses it: a defect of this crate, which its tests rule out.
    #[must_use]
    pub fn program(&self) -> Arc<Program> {
        let make = || {
            self.bytecode()
                .and_then(|bytecode| Program::new(self.name, &bytecode, SCRATCH_BYTES_DEFAULT))
                .unwrap_or_else(|error| panic!("the shipped program {}: {error}", self.name))
        };
        Arc::clone(self.program.get_or_init(|| Arc::new(make())))
    }
}

/// Parses a text in the form of [`Shipped::text`].
///
/// # Errors
/// The line that cannot be parsed.
pub fn bytecode(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let digits = line.split(';').next().unwrap_or("").trim();
        if !matches!(digits.len(), 0 | 16 | 32) {
            let reason = format!("`{digits}` is not 16 or 32 hexadecimal digits");
            return Err(Error::Text { line: index + 1, reason });
        }
        for pair in digits.as_bytes().chunks(2) {
            let byte = std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
            let wrong = || Error::Text { line: index + 1, reason: format!("`{digits}` is not hexadecimal") };
            bytes.push(byte.ok_or_else(wrong)?);
        }
    }
    Ok(bytes)
}

macro_rules! shipped {
    ($($folder:literal { $($name:ident $file:literal)* })*) => {
        $($(
            #[doc = concat!("`programs/", $folder, "/", $file, ".c`")]
            pub static $name: Shipped = Shipped {
                name: $file,
                folder: $folder,
                text: include_str!(concat!("../../programs/compiled/", $file, ".txt")),
                program: OnceLock::new(),
            };
        )*)*
        /// All shipped programs.
        pub static ALL: &[&Shipped] = &[$($(&$name,)*)*];
    };
}

shipped! {
    "table1" {
        STL_LIST "stl_list"
        STL_FORWARD_LIST "stl_forward_list"
        STL_MAP "stl_map"
        STL_MULTIMAP "stl_multimap"
        STL_SET "stl_set"
        STL_MULTISET "stl_multiset"
        STL_UNORDERED_MAP "stl_unordered_map"
        BOOST_BIMAP "boost_bimap"
        BOOST_UNORDERED_MAP "boost_unordered_map"
        BOOST_UNORDERED_SET "boost_unordered_set"
        BOOST_AVL "boost_avl"
        BOOST_SPLAY "boost_splay"
        BOOST_SCAPEGOAT "boost_scapegoat"
        GOOGLE_BTREE "google_btree"
    }
    "collections" {
        HASH_FIND "hash_find"
        HASH_FIND_BYTES "hash_find_bytes"
        HASH_GET "hash_get"
        HASH_GET_BYTES "hash_get_bytes"
        HASH_INSERT "hash_insert"
        HASH_INSERT_BYTES "hash_insert_bytes"
        HASH_REMOVE "hash_remove"
        HASH_REMOVE_BYTES "hash_remove_bytes"
        HASH_ADD "hash_add"
        CHAIN_UNLINK "chain_unlink"
        CHAIN_SCAN "chain_scan"
        LIST_APPEND "list_append"
        LIST_SUM "list_sum"
        ORDERED_GET "ordered_get"
        ORDERED_GET_RECORD "ordered_get_record"
        ORDERED_SCAN "ordered_scan"
        ORDERED_SCAN_RECORDS "ordered_scan_records"
        ORDERED_AGGREGATE "ordered_aggregate"
        ORDERED_PATH "ordered_path"
    }
}

/// Returns true if a program is one of the collections': its walks always end, so they need no limit of
/// iterations.
#[must_use]
pub fn is_library(program: &Program) -> bool {
    let known = named(program.name()).filter(|shipped| shipped.folder == "collections");
    known.is_some_and(|shipped| shipped.program().hash() == program.hash())
}

/// Returns the program of the collections whose hash begins like this.
#[must_use]
pub fn library(hash: &[u8]) -> Option<&'static Shipped> {
    ALL.iter()
        .copied()
        .filter(|shipped| shipped.folder == "collections")
        .find(|shipped| shipped.program().hash().starts_with(hash))
}

/// Returns the shipped program with this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Shipped> {
    ALL.iter().copied().find(|shipped| shipped.name == name)
}
