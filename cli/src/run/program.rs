// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program that is to run, and whether user space can cover it.
//!
//! Flow     name ─▶ file (PATH, as the shell looks) ─▶ ELF header; a script's interpreter instead of the script ─▶
//!          [`Program`] with the reason why not, where there is one
//! Reasons  statically linked · Go (its runtime calls the kernel itself) · set-uid or file capabilities (the loader ignores
//!          LD_PRELOAD) · another C library than glibc · another machine
//! Not here programs that this one starts: they meet the same library, or are outside and counted

use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::dropin::elf::{Object, Unfit};
use crate::failure::Failure;

/// A multiple of the distance at which Go's mark may lie.
const PIECE_BYTES: usize = 64 << 10;

/// A program.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its file.
    pub path: PathBuf,
    /// Why user space cannot cover it.
    pub uncovered: Option<String>,
}

/// Finds it.
pub fn find(name: &OsStr) -> Result<Program, Failure> {
    let path = look_up(name).ok_or_else(|| {
        Failure::Unavailable(format!("{}: there is no such program", Path::new(name).display()))
    })?;
    let uncovered = reason(&path, 0);
    Ok(Program { path, uncovered })
}

fn look_up(name: &OsStr) -> Option<PathBuf> {
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
    // Some tools move the loader's name to the end of the file.
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
            look_up(OsStr::new(&interpreter)).and_then(|path| reason(&path, depth + 1))
        }
        Err(Unfit::Script(_)) => None,
        Err(Unfit::Unreadable(error)) => Some(format!("{} cannot be read: {error}", path.display())),
        Err(Unfit::Other) => Some(format!("{} is no 64-bit ELF program", path.display())),
    }
}

/// The first bytes of a file: they hold the headers and the loader's name. The rest is not held: what the supervisor has counts to the
/// job, and a program may be larger than the budget.
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

/// The mark of Go's linker (package debug/buildinfo), inverted: in its own words it would be found in this program.
const GO_MARK_INVERTED: [u8; 14] = {
    let mut mark = *b"\xff Go buildinf:";
    let mut at = 0;
    while at < mark.len() {
        mark[at] = !mark[at];
        at += 1;
    }
    mark
};

/// Whether Go's linker left its mark, which lies at a multiple of 16 bytes.
fn is_go(bytes: &[u8]) -> bool {
    let (blocks, _) = bytes.as_chunks::<16>();
    blocks.iter().any(|block| block.iter().zip(&GO_MARK_INVERTED).all(|(byte, inverted)| *byte == !inverted))
}

/// Whether a file holds that mark, read in pieces.
fn holds_go(path: &Path) -> bool {
    let mut piece = vec![0; PIECE_BYTES];
    let Ok(mut file) = File::open(path) else { return false };
    loop {
        let mut filled = 0;
        while filled < PIECE_BYTES {
            match file.read(&mut piece[filled..]) {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // It was readable a moment ago; whoever starts it will say why it is not.
                Err(_) => return false,
            }
        }
        if filled == 0 {
            return false;
        }
        if is_go(&piece[..filled]) {
            return true;
        }
    }
}

fn of_object(path: &Path, object: &Object) -> Option<String> {
    let shown = path.display();
    let machine = object.bytes.get(18..20).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    let ours = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    if machine != Some(ours) {
        return Some(format!("{shown} is for another machine"));
    }
    if holds_go(path) {
        return Some(format!(
            "{shown} is a Go program: its runtime calls the kernel itself, past any library"
        ));
    }
    let Some(loader) = &object.interpreter else {
        return Some(format!("{shown} is statically linked: no library can be loaded before it"));
    };
    if loader.contains("musl") {
        return Some(format!("{shown} uses musl: the library is for glibc"));
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
        // Program headers away: no loader is named.
        elf[56..58].copy_from_slice(&[0, 0]);
        assert!(write("static", &elf).is_some_and(|why| why.contains("statically linked")));
        let mut go = std::fs::read(&sh.path).expect("read");
        go.resize(go.len().next_multiple_of(16), 0);
        go.extend(GO_MARK_INVERTED.map(|byte| !byte));
        go.extend([0, 0]);
        assert!(write("go", &go).is_some_and(|why| why.contains("Go program")));
        // This very program holds the words of the test, and is none.
        assert!(!holds_go(Path::new("/proc/self/exe")));
        elf[18] = 243;
        assert!(write("riscv", &elf).is_some_and(|why| why.contains("another machine")));
        assert!(write("text", b"hello").is_some_and(|why| why.contains("no 64-bit ELF")));
    }
}
