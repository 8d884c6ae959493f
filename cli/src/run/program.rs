// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the program to run, and finds out if user space can cover it.
//!
//! - **Flow** name ─▶ file (found in PATH, as by the shell) ─▶ ELF header; for a script its interpreter's ─▶ [`Program`], with
//!   the reason if it cannot be covered
//! - **Reasons** statically linked · Go (its runtime makes system calls itself) · set-uid or file capabilities (the loader
//!   ignores LD_PRELOAD) · a C library other than glibc · another machine
//! - **Not here** programs that this one starts: they load the same library, or are uncovered and counted

use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::dropin::elf::{Object, Unfit};
use crate::failure::Failure;

/// Bytes of a file that are read at a time; a multiple of the alignment of Go's mark.
const PIECE_BYTES: usize = 64 << 10;
/// The range of a whole file.
const EVERYTHING: Range<u64> = 0..u64::MAX;

/// A program, with the reason if user space cannot page its memory.
#[derive(Clone, Debug)]
pub struct Program {
    /// File of the program.
    pub path: PathBuf,
    /// Reason why user space cannot page the program's memory; `None`: it can.
    pub uncovered: Option<String>,
}

/// Finds the program with a name or a path.
pub fn find(name: &OsStr) -> Result<Program, Failure> {
    let path = find_in_path(name).ok_or_else(|| {
        let path = Path::new(name);
        let named = name.as_encoded_bytes().contains(&b'/');
        let Some(found) = named.then(|| std::fs::metadata(path).ok()).flatten() else {
            return Failure::Unavailable(format!("{}: there is no such program", path.display()));
        };
        let text = format!("{}: this is not a file that may be executed", path.display());
        if found.is_file() { Failure::Unavailable(text) } else { Failure::Usage(text) }
    })?;
    let uncovered = reason(&path, 0);
    Ok(Program { path, uncovered })
}

fn find_in_path(name: &OsStr) -> Option<PathBuf> {
    let runs =
        |path: &PathBuf| std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.mode() & 0o111 != 0);
    if name.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(runs);
    }
    let folders = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(runs)
}

fn reason(path: &Path, depth: u32) -> Option<String> {
    if let Ok(meta) = std::fs::metadata(path)
        && meta.mode() & 0o6000 != 0
        && !(meta.uid() == 0 && is_root())
    {
        return Some(format!("{} is set-uid: the loader lets no library into it", path.display()));
    }
    // Some tools move the loader's name to the end of the file, so the whole file is read.
    let object = match head(path).and_then(Object::parse) {
        Ok(object) if object.interpreter.is_none() => Object::read(path),
        other => other,
    };
    match object {
        Ok(object) => of_object(path, &object),
        Err(Unfit::Script(line)) if depth < 4 => {
            let mut words = line.split_whitespace();
            let mut interpreter = words.next()?.to_owned();
            if interpreter.ends_with("/env") {
                interpreter = words.find(|word| !word.starts_with('-') && !word.contains('='))?.to_owned();
            }
            find_in_path(OsStr::new(&interpreter)).and_then(|path| reason(&path, depth + 1))
        }
        Err(Unfit::Script(_)) => None,
        Err(Unfit::Unreadable(error)) => Some(format!("{} cannot be read: {error}", path.display())),
        Err(Unfit::Other) => Some(format!("{} is no 64-bit ELF program", path.display())),
    }
}

/// Reads the first bytes of a file, which contain the headers and the loader's name. The rest is not kept in memory, because
/// the supervisor's memory counts to the job, and a program may be larger than the budget.
fn head(path: &Path) -> Result<Vec<u8>, Unfit> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(Unfit::Unreadable)?;
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return Err(Unfit::Other);
    }
    file.take(PIECE_BYTES as u64).read_to_end(&mut bytes).map_err(Unfit::Unreadable)?;
    Ok(bytes)
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}

/// The mark of Go's linker (package debug/buildinfo), with inverted bytes: otherwise it would be found in this program
/// itself.
const GO_MARK_INVERTED: [u8; 14] = {
    let mut mark = *b"\xff Go buildinf:";
    let mut at = 0;
    while at < mark.len() {
        mark[at] = !mark[at];
        at += 1;
    }
    mark
};

/// Returns true if the bytes contain the mark of Go's linker at a multiple of 16 bytes.
fn is_go(bytes: &[u8]) -> bool {
    let (blocks, _) = bytes.as_chunks::<16>();
    blocks.iter().any(|block| block.iter().zip(&GO_MARK_INVERTED).all(|(byte, inverted)| *byte == !inverted))
}

/// Returns true if one of the `parts` of a file contains the mark of Go's linker; the file is read in pieces.
fn holds_go(path: &Path, parts: &[Range<u64>]) -> bool {
    let mut piece = vec![0; PIECE_BYTES];
    let Ok(file) = File::open(path) else { return false };
    for part in parts {
        // The mark is aligned in memory, and so also in the file, because pages are mapped whole.
        let mut at = part.start / 16 * 16;
        while at < part.end {
            let wanted = usize::try_from(part.end - at).map_or(PIECE_BYTES, |rest| rest.min(PIECE_BYTES));
            match read_at(&file, &mut piece[..wanted], at) {
                // The file was readable a moment ago; if it is not any more, starting it will give the reason.
                0 => break,
                bytes if is_go(&piece[..bytes]) => return true,
                bytes => at += bytes as u64,
            }
        }
    }
    false
}

/// Fills `piece` from the file as far as possible; returns the number of bytes.
fn read_at(file: &File, piece: &mut [u8], at: u64) -> usize {
    let mut filled = 0;
    while filled < piece.len() {
        match file.read_at(&mut piece[filled..], at + filled as u64) {
            Ok(bytes @ 1..) => filled += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(_) | Err(_) => break,
        }
    }
    filled
}

/// Returns the parts of the file that are loaded as writable segments. Go's linker puts its mark into one of them
/// (debug/buildinfo searches there too), and the code segment would take long to read. Returns the whole file if the headers
/// do not give the segments.
fn written_parts(head: &[u8]) -> Vec<Range<u64>> {
    const LOAD: u64 = 1;
    const WRITE: u64 = 2;
    let number = |at: u64, bytes: usize| {
        let at = usize::try_from(at).ok()?;
        let field = head.get(at..at.checked_add(bytes)?)?;
        Some(field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    let segments = || -> Option<Vec<Range<u64>>> {
        let (table, width, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        let mut parts = Vec::new();
        for index in 0..count {
            let at = table.checked_add(index * width)?;
            let field = |offset: u64, bytes| number(at.checked_add(offset)?, bytes);
            let (kind, access, start, length) = (field(0, 4)?, field(4, 4)?, field(8, 8)?, field(32, 8)?);
            if kind == LOAD && access & WRITE != 0 {
                parts.push(start..start.checked_add(length)?);
            }
        }
        Some(parts)
    };
    segments().unwrap_or_else(|| vec![EVERYTHING])
}

fn of_object(path: &Path, object: &Object) -> Option<String> {
    let shown = path.display();
    let machine = object.bytes.get(18..20).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    let ours = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    if machine != Some(ours) {
        return Some(format!("{shown} is for another machine"));
    }
    if holds_go(path, &written_parts(&object.bytes)) {
        return Some(format!(
            "{shown} is a Go program: its runtime calls the kernel itself, past any library; GOMEMLIMIT in its environment makes \
             its collector keep to a size"
        ));
    }
    let Some(loader) = &object.interpreter else {
        return Some(format!(
            "{shown} is statically linked: no library can be loaded before it; link it dynamically, where that is possible"
        ));
    };
    if loader.contains("musl") {
        return Some(format!(
            "{shown} uses musl: the library is for glibc; use a build for glibc, where there is one"
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_programs_are_covered_and_others_say_why() {
        let sh = find(OsStr::new("sh")).expect("there is a shell");
        assert!(sh.path.is_absolute() && sh.uncovered.is_none(), "{sh:?}");
        assert!(matches!(find(OsStr::new("no-such-program-here")), Err(Failure::Unavailable(_))));
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, bytes: &[u8]| {
            use std::os::unix::fs::PermissionsExt;
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("set");
            find(path.as_os_str()).expect("found").uncovered
        };
        assert_eq!(write("script", b"#!/bin/sh\necho\n"), None);
        assert_eq!(write("env", b"#!/usr/bin/env -S sh -e\necho\n"), None);
        let mut elf = std::fs::read(&sh.path).expect("read");
        assert!(write("whole", &elf).is_none());
        // Without program headers no loader is named.
        elf[56..58].copy_from_slice(&[0, 0]);
        assert!(write("static", &elf).is_some_and(|why| why.contains("statically linked")));
        let mut go = std::fs::read(&sh.path).expect("read");
        let parts = written_parts(&go);
        assert!(!parts.is_empty() && parts.iter().all(|part| part.end <= go.len() as u64), "{parts:?}");
        let at = usize::try_from(parts[0].start.next_multiple_of(16)).expect("a place in the file");
        go[at..][..14].copy_from_slice(&GO_MARK_INVERTED.map(|byte| !byte));
        assert!(write("go", &go).is_some_and(|why| why.contains("Go program")));
        // The headers lie beyond the bytes read, so the whole file is searched.
        assert_eq!(written_parts(&go[..63]), [EVERYTHING]);
        go[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(written_parts(&go), [EVERYTHING]);
        // This program contains the text of the test, but is not a Go program.
        assert!(!holds_go(Path::new("/proc/self/exe"), &[EVERYTHING]));
        elf[18] = 243;
        assert!(write("riscv", &elf).is_some_and(|why| why.contains("another machine")));
        assert!(write("text", b"hello").is_some_and(|why| why.contains("no 64-bit ELF")));
    }
}
