// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads an ELF file's tables from its bytes: nothing is loaded and nothing is run.
//!
//! - **Flow** file ─▶ [`Object`]: interpreter, needed libraries, search paths, own name, dynamic symbols ─▶ copies.rs
//! - **Layout** ELF64, little-endian, as defined by the System V ABI and its x86-64 and AArch64 supplements
//! - **Rule** every offset in the file is checked: a truncated or hostile file gives an error or fewer entries, never a
//!   panic
//! - **Not here** 32-bit and big-endian programs, which drop-ins do not support

use std::path::Path;

/// Larger files are not searched.
const FILE_BYTES_MAX: u64 = 1 << 30;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;
const LOAD: u32 = 1;
const SYMBOLS: u32 = 11;

/// A program or a shared library.
#[derive(Debug, Default)]
pub struct Object {
    /// The whole file.
    pub bytes: Vec<u8>,
    /// Path of the loader; dynamically loaded programs name one.
    pub interpreter: Option<String>,
    /// True if the object has a dynamic section.
    pub dynamic: bool,
    /// Libraries named in DT_NEEDED.
    pub needed: Vec<String>,
    /// DT_RUNPATH and DT_RPATH, as written.
    pub paths: Vec<String>,
    /// Name in DT_SONAME, if it has one.
    pub name: Option<String>,
    /// Names of the dynamic symbols that the object defines.
    pub defines: Vec<String>,
}

/// Reason that a file is not a readable ELF object.
#[derive(Debug)]
pub enum Unfit {
    /// The file cannot be read.
    Unreadable(std::io::Error),
    /// The file is a script, with the text that follows `#!`.
    Script(String),
    /// The file is something else.
    Other,
}

fn number(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(width)?)?;
    Some(field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(number(bytes, at, 8)?).ok()
}

fn text(bytes: &[u8], at: usize) -> Option<String> {
    let rest = bytes.get(at..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&rest[..end]).into_owned())
}

impl Object {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Object, Unfit> {
        let meta = std::fs::metadata(path).map_err(Unfit::Unreadable)?;
        if !meta.is_file() || meta.len() > FILE_BYTES_MAX {
            return Err(Unfit::Other);
        }
        Self::parse(std::fs::read(path).map_err(Unfit::Unreadable)?)
    }

    /// Parses the bytes of a file.
    pub fn parse(bytes: Vec<u8>) -> Result<Object, Unfit> {
        if let Some(rest) = bytes.strip_prefix(b"#!") {
            let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
            return Err(Unfit::Script(String::from_utf8_lossy(line).trim().to_owned()));
        }
        if bytes.get(..6) != Some(b"\x7fELF\x02\x01") {
            return Err(Unfit::Other);
        }
        let mut object = Object { bytes, ..Object::default() };
        // A damaged table only loses its own entries; those read before are kept.
        let _ = object.read_segments();
        let _ = object.read_symbols();
        Ok(object)
    }

    /// Returns the program headers: kind, offset in the file, address, bytes in the file.
    fn segments(&self) -> Vec<(u32, usize, usize, usize)> {
        let bytes = &self.bytes;
        let table = || -> Option<(usize, usize, usize)> {
            let (at, width) = (word(bytes, 32)?, number(bytes, 54, 2)? as usize);
            Some((at, width, number(bytes, 56, 2)? as usize))
        };
        let Some((start, width, count)) = table() else { return Vec::new() };
        let segment = |index: usize| {
            let at = start.checked_add(index.checked_mul(width)?)?;
            let field = |offset: usize| word(bytes, at.checked_add(offset)?);
            Some((number(bytes, at, 4)? as u32, field(8)?, field(16)?, field(32)?))
        };
        (0..count).map_while(segment).collect()
    }

    fn read_segments(&mut self) -> Option<()> {
        let segments = self.segments();
        // Converts an address of the loaded object to its offset in the file.
        let place = |address: usize| {
            let inside = |at: usize, bytes: usize| address.checked_sub(at).filter(|within| *within < bytes);
            let mut loads = segments.iter().filter(|segment| segment.0 == LOAD);
            loads.find_map(|(_, offset, at, bytes)| offset.checked_add(inside(*at, *bytes)?))
        };
        if let Some((_, at, _, _)) = segments.iter().find(|segment| segment.0 == INTERPRETER) {
            self.interpreter = text(&self.bytes, *at);
        }
        let (_, at, _, size) = *segments.iter().find(|segment| segment.0 == DYNAMIC)?;
        self.dynamic = true;
        let entry = |index: usize| {
            let at = at.checked_add(index * 16)?;
            Some((word(&self.bytes, at)?, word(&self.bytes, at.saturating_add(8))?))
        };
        let entries: Vec<(usize, usize)> =
            (0..size / 16).map_while(entry).take_while(|(tag, _)| *tag != 0).collect();
        let strings = place(entries.iter().find(|(tag, _)| *tag == 5)?.1)?;
        let value = |at: usize| text(&self.bytes, strings.checked_add(at)?);
        let (mut needed, mut paths, mut name) = (Vec::new(), Vec::new(), None);
        for (tag, at) in entries {
            match tag {
                1 => needed.extend(value(at)),
                14 => name = value(at),
                15 | 29 => paths.extend(value(at).iter().flat_map(|list| list.split(':')).map(str::to_owned)),
                _ => {}
            }
        }
        (self.needed, self.paths, self.name) = (needed, paths, name);
        Some(())
    }

    /// Reads the section of dynamic symbols, which stripped libraries still have.
    fn read_symbols(&mut self) -> Option<()> {
        let bytes = &self.bytes;
        let (start, width) = (word(bytes, 40)?, number(bytes, 58, 2)? as usize);
        let count = number(bytes, 60, 2)? as usize;
        let section = |index: usize| -> Option<(u32, usize, usize, usize)> {
            let at = start.checked_add(index.checked_mul(width)?)?;
            let link = number(bytes, at.checked_add(40)?, 4)? as usize;
            Some((
                number(bytes, at.saturating_add(4), 4)? as u32,
                word(bytes, at.saturating_add(24))?,
                word(bytes, at.saturating_add(32))?,
                link,
            ))
        };
        let (_, table, size, link) = (0..count).map_while(section).find(|section| section.0 == SYMBOLS)?;
        let (_, strings, _, _) = section(link)?;
        let symbol = |index: usize| -> Option<Option<String>> {
            let at = table.checked_add(index.checked_mul(24)?)?;
            let (name, defined) =
                (number(bytes, at, 4)? as usize, number(bytes, at.saturating_add(6), 2)? != 0);
            Some(defined.then(|| text(bytes, strings.checked_add(name)?)).flatten())
        };
        self.defines = (0..size / 24).map_while(symbol).flatten().collect();
        Some(())
    }

    /// Returns true if the object defines a dynamic symbol of this name.
    pub fn defines(&self, name: &str) -> bool {
        self.defines.iter().any(|symbol| symbol == name)
    }

    /// Returns the first text in the file that begins with `start` and for which `fits` returns true; at most 80
    /// printable characters.
    pub fn find_text(&self, start: &str, fits: impl Fn(&str) -> bool) -> Option<String> {
        memchr::memmem::find_iter(&self.bytes, start).find_map(|at| {
            let printable = |byte: &&u8| (b' '..=b'~').contains(*byte);
            let text = self.bytes[at..].iter().take(80).take_while(printable);
            Some(text.map(|byte| char::from(*byte)).collect()).filter(|text: &String| fits(text))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Object {
        Object::read(&std::env::current_exe().expect("a program")).expect("an ELF file")
    }

    #[test]
    fn this_program_says_what_it_needs() {
        let object = own();
        assert!(object.interpreter.is_some_and(|path| path.contains("ld-")));
        assert!(object.needed.iter().any(|name| name.starts_with("libc.so")), "{:?}", object.needed);
    }

    #[test]
    fn damaged_files_give_less_and_never_a_panic() {
        let whole = own().bytes;
        let small = &whole[..whole.len().min(1 << 16)];
        for length in (0..4096).chain([small.len() / 2, small.len()]) {
            let _ = Object::parse(small[..length.min(small.len())].to_vec());
        }
        let mut random = 7_u64;
        for _ in 0..500 {
            let mut bytes = small[..4096.min(small.len())].to_vec();
            for _ in 0..8 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = 6 + (random >> 33) as usize % 500;
                bytes[at] = (random >> 20) as u8;
            }
            let _ = Object::parse(bytes);
        }
    }

    #[test]
    fn scripts_name_their_interpreter() {
        let script = Object::parse(b"#!/usr/bin/env python3\nprint()\n".to_vec());
        assert!(matches!(script, Err(Unfit::Script(line)) if line == "/usr/bin/env python3"));
        assert!(matches!(Object::parse(b"text".to_vec()), Err(Unfit::Other)));
    }

    #[test]
    fn texts_are_found_where_they_fit() {
        let object =
            Object { bytes: b"xdeflate \0deflate 1.2.13 Copyright\x01".to_vec(), ..Object::default() };
        let found = object.find_text("deflate ", |text| text.contains("Copyright"));
        assert_eq!(found.as_deref(), Some("deflate 1.2.13 Copyright"));
        assert_eq!(object.find_text("inflate ", |_| true), None);
    }
}
