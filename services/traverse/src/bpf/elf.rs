// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Extracts a program from the object that `clang -target bpf -mcpu=v3 -O2 -c` writes.
//!
//! - **Flow** object ──section headers, symbols──▶ its only function, or the named one ──must have no relocation──▶ the
//!   function's bytecode
//! - **Layout** ELF64, little endian, machine 247
//! - **Order** the bytes may be hostile: every offset is checked before use
//! - **Not here** linking: functions that need it (calls, globals, constants in `.rodata`, maps) are refused with the
//!   symbol's name

use crate::error::{Error, Result};

const MACHINE_BPF: u16 = 247;
const RELOCATIONS_ADDENDS: u32 = 4;
const SYMBOLS: u32 = 2;
const RELOCATIONS: u32 = 9;
const SYMBOL_BYTES: usize = 24;
const FUNCTION: u8 = 2;
const GLOBAL: u8 = 1;

fn wrong(reason: impl Into<String>) -> Error {
    Error::Object(reason.into())
}

/// Bytes that may end before any field.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn part(self, at: u64, bytes: u64) -> Result<&'a [u8]> {
        let first = usize::try_from(at).ok();
        let end = at.checked_add(bytes).and_then(|end| usize::try_from(end).ok());
        let part = first.zip(end).and_then(|(first, end)| self.0.get(first..end));
        part.ok_or_else(|| wrong(format!("it is cut: {bytes} bytes at {at} are not there")))
    }

    fn number<const N: usize>(self, at: u64) -> Result<u64> {
        let mut number = [0; 8];
        number[..N].copy_from_slice(self.part(at, N as u64)?);
        Ok(u64::from_le_bytes(number))
    }

    fn name(self, at: u64) -> Result<String> {
        let rest = usize::try_from(at).ok().and_then(|at| self.0.get(at..));
        let rest = rest.ok_or_else(|| wrong(format!("it has no name at {at}")))?;
        let end = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
        Ok(String::from_utf8_lossy(&rest[..end]).into_owned())
    }
}

struct Section<'a> {
    name: u64,
    kind: u32,
    link: u64,
    info: u64,
    bytes: &'a [u8],
}

struct Symbol {
    name: String,
    kind: u8,
    binding: u8,
    section: u64,
    value: u64,
    bytes: u64,
}

fn sections(object: Bytes<'_>) -> Result<Vec<Section<'_>>> {
    let (table, size, count) = (object.number::<8>(40)?, object.number::<2>(58)?, object.number::<2>(60)?);
    if size != 64 {
        return Err(wrong(format!("its section headers have {size} bytes; they have 64")));
    }
    let mut sections = Vec::new();
    for index in 0..count {
        let at = table.checked_add(index * size).ok_or_else(|| wrong("its section headers are nowhere"))?;
        let header = Bytes(object.part(at, size)?);
        let kind = header.number::<4>(4)? as u32;
        // Sections of type null (0) and nobits (8) have no bytes in the file.
        let bytes = match kind {
            0 | 8 => &[][..],
            _ => object.part(header.number::<8>(24)?, header.number::<8>(32)?)?,
        };
        let (name, link, info) = (header.number::<4>(0)?, header.number::<4>(40)?, header.number::<4>(44)?);
        sections.push(Section { name, kind, link, info, bytes });
    }
    Ok(sections)
}

fn symbols(sections: &[Section<'_>], table: &Section<'_>) -> Result<Vec<Symbol>> {
    let names = sections.get(table.link as usize).ok_or_else(|| wrong("its symbols have no names"))?;
    let read = |entry: &[u8]| {
        let entry = Bytes(entry);
        let info = entry.number::<1>(4)? as u8;
        Ok(Symbol {
            name: Bytes(names.bytes).name(entry.number::<4>(0)?)?,
            kind: info & 0xf,
            binding: info >> 4,
            section: entry.number::<2>(6)?,
            value: entry.number::<8>(8)?,
            bytes: entry.number::<8>(16)?,
        })
    };
    table.bytes.chunks_exact(SYMBOL_BYTES).map(read).collect()
}

/// Returns the bytecode of the function `name`, or of the only global one.
///
/// # Errors
/// [`Error::Object`] if the bytes are not such an object, it holds no such function, or the function needs a
/// linker.
pub fn function(object: &[u8], name: Option<&str>) -> Result<Vec<u8>> {
    let file = Bytes(object);
    if object.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Err(wrong("it is no ELF file of 64 bits, little endian"));
    }
    if file.number::<2>(18)? as u16 != MACHINE_BPF {
        return Err(wrong("it is for another machine; compile it with clang -target bpf -mcpu=v3 -O2 -c"));
    }
    let sections = sections(file)?;
    let section_names = sections.get(file.number::<2>(62)? as usize).map_or(&[][..], |names| names.bytes);
    let table = sections.iter().find(|section| section.kind == SYMBOLS);
    let symbols = symbols(&sections, table.ok_or_else(|| wrong("it has no symbols; do not strip it"))?)?;
    let mut found = symbols.iter().filter(|symbol| {
        symbol.kind == FUNCTION && name.map_or(symbol.binding == GLOBAL, |name| symbol.name == name)
    });
    let function = found.next().ok_or_else(|| match name {
        Some(name) => wrong(format!("it has no function {name}")),
        None => wrong("it has no global function"),
    })?;
    if let Some(other) = found.next() {
        return Err(wrong(format!(
            "it has the functions {} and {}; make all but one static and always inlined, or name one",
            function.name, other.name
        )));
    }
    let code =
        sections.get(function.section as usize).ok_or_else(|| wrong("its function is in no section"))?;
    for relocations in &sections {
        let size = match relocations.kind {
            RELOCATIONS => 16,
            RELOCATIONS_ADDENDS => 24,
            _ => continue,
        };
        if relocations.info != function.section {
            continue;
        }
        for entry in relocations.bytes.chunks_exact(size) {
            let (at, info) = (Bytes(entry).number::<8>(0)?, Bytes(entry).number::<8>(8)?);
            let Some(inside) = at.checked_sub(function.value).filter(|inside| *inside < function.bytes)
            else {
                continue;
            };
            let symbol = symbols.get((info >> 32) as usize);
            let mut what = symbol.map(|symbol| symbol.name.clone()).unwrap_or_default();
            if let Some(section) = symbol.and_then(|symbol| sections.get(symbol.section as usize))
                && what.is_empty()
            {
                what = Bytes(section_names).name(section.name)?;
            }
            return Err(wrong(format!(
                "instruction {} of {} refers to `{what}`, and a walk has no calls, globals, tables or constants in memory; \
                 inline functions, and compile with -fno-jump-tables",
                inside / 8,
                function.name
            )));
        }
    }
    Ok(Bytes(code.bytes).part(function.value, function.bytes)?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name: u8, info: u8, section: u8, value: u64, bytes: u64) -> Vec<u8> {
        let mut symbol = vec![name, 0, 0, 0, info, 0, section, 0];
        symbol.extend([value.to_le_bytes(), bytes.to_le_bytes()].concat());
        symbol
    }

    /// Builds an object with these functions in 16 bytes of code, and a relocation of `f` at `relocated`.
    fn object(functions: &[Vec<u8>], relocated: u64) -> Vec<u8> {
        let names = b"\0step\0other\0table\0";
        let code: Vec<u8> = (0..16).collect();
        let mut symbols = [symbol(0, 0, 0, 0, 0), symbol(12, 0x11, 0, 0, 4)].concat();
        symbols.extend(functions.concat());
        let relocation = [relocated.to_le_bytes(), (1_u64 << 32 | 10).to_le_bytes()].concat();
        let mut file = vec![0; 64];
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        (file[18], file[58], file[60], file[62]) = (247, 64, 5, 1);
        let mut headers = vec![[0; 64]];
        for (kind, link, info, bytes) in
            [(3_u8, 0_u8, 0_u8, &names[..]), (1, 0, 0, &code), (2, 1, 0, &symbols), (9, 3, 2, &relocation)]
        {
            let mut header = [0; 64];
            (header[4], header[40], header[44]) = (kind, link, info);
            header[24..32].copy_from_slice(&(file.len() as u64).to_le_bytes());
            header[32..40].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
            headers.push(header);
            file.extend(bytes);
        }
        let table = (file.len() as u64).to_le_bytes();
        file[40..48].copy_from_slice(&table);
        file.extend(headers.concat());
        file
    }

    fn refused(object: &[u8], name: Option<&str>) -> String {
        function(object, name).expect_err("refused").to_string()
    }

    #[test]
    fn a_function_is_taken_if_it_is_the_only_one_or_named() {
        let (step, other) = (symbol(1, 0x12, 2, 0, 8), symbol(6, 0x12, 2, 8, 8));
        let one = object(std::slice::from_ref(&step), 99);
        assert_eq!(function(&one, None).expect("taken"), [0, 1, 2, 3, 4, 5, 6, 7]);
        let two = object(&[step, other], 99);
        assert_eq!(function(&two, Some("other")).expect("taken"), [8, 9, 10, 11, 12, 13, 14, 15]);
        assert!(refused(&two, None).contains("the functions step and other"));
        assert!(refused(&two, Some("third")).contains("no function third"));
        assert!(refused(&object(&[], 99), None).contains("no global function"));
    }

    #[test]
    fn what_needs_a_linker_is_refused_by_name_where_it_is_in_the_function() {
        let functions = [symbol(1, 0x12, 2, 0, 8), symbol(6, 0x12, 2, 8, 8)];
        let object = object(&functions, 8);
        assert!(function(&object, Some("step")).is_ok());
        assert!(refused(&object, Some("other")).contains("instruction 0 of other refers to `table`"));
    }

    #[test]
    fn cut_and_foreign_files_are_refused() {
        let whole = object(&[symbol(1, 0x12, 2, 0, 8)], 99);
        for bytes in 0..whole.len() {
            assert!(function(&whole[..bytes], None).is_err(), "{bytes} bytes");
        }
        let mut other = whole.clone();
        other[18] = 62;
        assert!(refused(&other, None).contains("another machine"));
        let beyond = object(&[symbol(1, 0x12, 2, 8, 16)], 99);
        assert!(refused(&beyond, None).contains("cut"));
        let wrapping = object(&[symbol(1, 0x12, 2, u64::MAX, 8)], 99);
        assert!(refused(&wrapping, None).contains("cut"));
    }
}
