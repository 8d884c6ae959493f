// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names of functions for call sites: from the symbol table of the file that held the code.
//!
//! - **Flow** site ─▶ its module's file, read once ─▶ address in the file's own terms, by its load segments ─▶ the function that holds it
//! - **Rule** a trace names files, and is hostile: only a regular file with the recorded inode that was not changed since the recording
//!   began is read, and of it at most [`TABLE_BYTES_MAX`] per table. Where anything does not fit, the site is an offset in its file
//! - **Layout** ELF, 64 bits, little endian: file header, program headers, section headers, `.symtab` or else `.dynsym`
//! - **Not here** lines of source, and functions that a compiler put into others: they count as the one that holds them

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use memlift_model::whatif::{Site, Trace};

/// Longest table of a file that is read, bytes.
const TABLE_BYTES_MAX: u64 = 256 << 20;
const LOAD: u64 = 1;
const SYMTAB: u64 = 2;
const DYNSYM: u64 = 11;
const SYMBOL_BYTES: usize = 24;
const FUNCTION: u8 = 2;
const INDIRECT_FUNCTION: u8 = 10;

/// A place in a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Name of the function, as its file has it.
    pub name: String,
    /// Bytes from the function's begin to the address that a call returns to.
    pub offset: u64,
}

/// Functions of the files of a trace.
pub struct Symbols<'a> {
    trace: &'a Trace,
    files: HashMap<String, Option<Functions>>,
}

impl<'a> Symbols<'a> {
    /// For the sites of this trace.
    pub fn new(trace: &'a Trace) -> Symbols<'a> {
        Symbols { trace, files: HashMap::new() }
    }

    /// The function that holds a site; none: its file has no name for it, is not there, or is not the recorded one.
    pub fn of(&mut self, site: &Site) -> Option<Symbol> {
        let read = || Functions::read(site, self.trace.start_unix_ns);
        self.files.entry(site.module.clone()).or_insert_with(read).as_ref()?.at(site.offset)
    }
}

/// Functions of a file, by address.
struct Functions {
    /// Segments: offset in the file, address, bytes.
    loads: Vec<(u64, u64, u64)>,
    /// Address, bytes, name.
    functions: Vec<(u64, u64, String)>,
}

fn number(bytes: &[u8], at: usize, count: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(count)?)?;
    Some(bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

fn part(file: &File, at: u64, bytes: u64) -> Option<Vec<u8>> {
    if bytes > TABLE_BYTES_MAX {
        return None;
    }
    let mut part = vec![0; bytes as usize];
    file.read_exact_at(&mut part, at).ok()?;
    Some(part)
}

impl Functions {
    fn read(site: &Site, recorded_unix_ns: u64) -> Option<Functions> {
        let path = Path::new(&site.module);
        let status = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        let changed_ns = i128::from(status.mtime()) * 1_000_000_000 + i128::from(status.mtime_nsec());
        if status.ino() != site.inode || changed_ns > i128::from(recorded_unix_ns) {
            return None;
        }
        let file = File::open(path).ok()?;
        let head = part(&file, 0, 64)?;
        if !head.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let at = |at, count| number(&head, at, count);
        let table = |from: u64, each: u64, count: u64| part(&file, from, each.checked_mul(count)?);
        let (each, count) = (at(54, 2)?, at(56, 2)?);
        let segments = table(at(32, 8)?, each, count)?;
        let loads = segments
            .chunks_exact(each.max(1) as usize)
            .filter(|one| number(one, 0, 4) == Some(LOAD))
            .filter_map(|one| Some((number(one, 8, 8)?, number(one, 16, 8)?, number(one, 32, 8)?)))
            .collect();
        let (each, count) = (at(58, 2)?, at(60, 2)?);
        let headers = table(at(40, 8)?, each, count)?;
        let sections: Vec<&[u8]> = headers.chunks_exact(each.max(1) as usize).collect();
        let found = |kind| sections.iter().find(|one| number(one, 4, 4) == Some(kind));
        let section = found(SYMTAB).or_else(|| found(DYNSYM))?;
        let content = |section: &[u8]| part(&file, number(section, 24, 8)?, number(section, 32, 8)?);
        let symbols = content(section)?;
        let names = content(sections.get(number(section, 40, 4)? as usize)?)?;
        let mut functions: Vec<(u64, u64, String)> =
            symbols.chunks_exact(SYMBOL_BYTES).filter_map(|symbol| function(symbol, &names)).collect();
        functions.sort_unstable();
        Some(Functions { loads, functions })
    }

    fn at(&self, offset: u64) -> Option<Symbol> {
        // The call is before the address that it returns to.
        let call = offset.checked_sub(1)?;
        let (from, address, _) = self
            .loads
            .iter()
            .find(|(from, _, bytes)| call.checked_sub(*from).is_some_and(|within| within < *bytes))?;
        let call = (call - from).checked_add(*address)?;
        let place = self.functions.partition_point(|(address, ..)| *address <= call).checked_sub(1)?;
        let (address, bytes, name) = &self.functions[place];
        (call - address < *bytes).then(|| Symbol { name: name.clone(), offset: call + 1 - address })
    }
}

/// A function's address, bytes and name, from an entry of a symbol table.
fn function(symbol: &[u8], names: &[u8]) -> Option<(u64, u64, String)> {
    let kind = symbol.get(4)? & 15;
    let (address, bytes) = (number(symbol, 8, 8)?, number(symbol, 16, 8)?);
    if !matches!(kind, FUNCTION | INDIRECT_FUNCTION) || bytes == 0 {
        return None;
    }
    let name = names.get(number(symbol, 0, 4)? as usize..)?;
    let name = String::from_utf8_lossy(&name[..name.iter().position(|byte| *byte == 0)?]);
    let plain = name.chars().map(|one| if one.is_control() { ' ' } else { one }).collect();
    Some((address, bytes, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file offset of an address of this program, from its own maps.
    fn site_of(address: u64) -> Site {
        let maps = fs::read_to_string("/proc/self/maps").expect("maps");
        let line = maps.lines().find_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let (first, end) = words.next()?.split_once('-')?;
            let (first, end) = (u64::from_str_radix(first, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
            let offset = u64::from_str_radix(words.nth(1)?, 16).ok()?;
            let inode = words.nth(1)?.parse().ok()?;
            let module = words.next()?.to_owned();
            (first..end).contains(&address).then(|| Site { module, inode, offset: address - first + offset })
        });
        line.expect("a mapping holds the address")
    }

    #[inline(never)]
    fn named_function(number: u64) -> u64 {
        std::hint::black_box(number) + 1
    }

    #[test]
    fn a_function_of_this_program_is_found_and_a_changed_file_is_not_read() {
        let site = site_of(named_function as *const () as u64 + 4);
        let mut trace = Trace { start_unix_ns: u64::MAX, ..Trace::default() };
        let found = Symbols::new(&trace).of(&site).expect("a name");
        assert!(found.name.contains("named_function") && found.offset == 4, "{found:?}");
        assert_eq!(Symbols::new(&trace).of(&Site { inode: site.inode + 1, ..site.clone() }), None);
        trace.start_unix_ns = 0;
        assert_eq!(Symbols::new(&trace).of(&site), None, "written after the recording");
        for module in ["/dev/zero", "/", "", "/etc/hostname", "/proc/self/maps"] {
            trace.start_unix_ns = u64::MAX;
            let inode = fs::metadata(module).map_or(0, |status| status.ino());
            let site = Site { module: module.to_owned(), inode, offset: 4 };
            assert_eq!(Symbols::new(&trace).of(&site), None, "{module}");
        }
    }
}
