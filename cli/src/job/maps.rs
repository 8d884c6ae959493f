// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The mappings of a process, as `/proc/PID/smaps` has them.

use std::fs::File;
use std::io::{self, BufRead, BufReader};

/// A mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Address of its first byte.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// Access: 1 read, 2 write, 4 execute.
    pub prot: u32,
    /// True if writes reach other processes or a file.
    pub shared: bool,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// True if the mapping is of a file that has an inode.
    pub file: bool,
    /// Path of the file, or the kernel's name; empty if there is none.
    pub path: String,
    /// Bytes that differ from the file, or have none.
    pub changed_bytes: u64,
    /// True if the mapping is to be left out of cores, or must not be read (memory of a device).
    pub left_out: bool,
}

impl Mapping {
    /// Returns true if the mapping is of a file that other programs can open, and not of memory.
    pub fn is_of_named_file(&self) -> bool {
        self.file
            && !self.path.ends_with(" (deleted)")
            && !self.path.starts_with("/dev/shm/")
            && !self.path.starts_with("/dev/zero")
    }
}

/// Reads the mappings of a process.
///
/// # Errors
///
/// The kernel's.
pub fn read(pid: u32) -> io::Result<Vec<Mapping>> {
    parse(BufReader::new(File::open(format!("/proc/{pid}/smaps"))?))
}

fn parse(lines: impl BufRead) -> io::Result<Vec<Mapping>> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in lines.split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let left_out = flags.split_whitespace().any(|flag| matches!(flag, "dd" | "io" | "pf"));
            if let Some(last) = mappings.last_mut() {
                last.left_out = left_out;
            }
        } else if let Some(kib) = line.strip_prefix("Anonymous:").or(line.strip_prefix("Swap:")) {
            let kib = kib.trim().strip_suffix(" kB").and_then(|kib| kib.parse::<u64>().ok());
            if let Some(last) = mappings.last_mut() {
                last.changed_bytes += kib.unwrap_or(0) << 10;
            }
        } else if let Some(mapping) = heading(&line) {
            mappings.push(mapping);
        }
    }
    Ok(mappings)
}

/// Reads the first line of a mapping; `None` if the line is another one.
fn heading(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut next = || {
        let (word, after) = rest.split_once(' ')?;
        rest = after;
        Some(word)
    };
    let (start, end) = next()?.split_once('-')?;
    let address = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = (address(start)?, address(end)?);
    let rights = next()?.as_bytes();
    let offset = address(next()?)?;
    let (_device, inode) = (next()?, next().or(Some(rest))?);
    let bit = |index: usize, letter: u8| u32::from(rights.get(index) == Some(&letter)) << index;
    Some(Mapping {
        start,
        end,
        prot: bit(0, b'r') | bit(1, b'w') | bit(2, b'x'),
        shared: rights.get(3) == Some(&b's'),
        offset,
        file: inode.trim().parse::<u64>().is_ok_and(|inode| inode != 0),
        path: rest.trim_start().to_owned(),
        changed_bytes: 0,
        left_out: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_read_as_the_kernel_writes_them() {
        let text = "\
55d0c0000000-55d0c0001000 r-xp 00002000 fd:00 1234                       /usr/bin/a b
Size:                  4 kB
Anonymous:             4 kB
Swap:                  8 kB
VmFlags: rd ex mr mw me
200000000000-200000200000 rw-p 00000000 00:00 0 
VmFlags: rd wr mr mw me nr dd
7f0000000000-7f0000001000 rw-s 00000000 00:01 77                         /memfd:x (deleted)
VmFlags: rd wr sh
";
        let mappings = parse(text.as_bytes()).expect("read");
        let [text, arena, shared] = &mappings[..] else { panic!("{mappings:?}") };
        assert_eq!((text.prot, text.offset, text.path.as_str()), (5, 0x2000, "/usr/bin/a b"));
        assert!(text.is_of_named_file() && !text.left_out && !text.shared && text.changed_bytes == 12 << 10);
        assert!(!arena.file && arena.left_out && arena.path.is_empty() && arena.prot == 3);
        assert!(shared.file && shared.shared && !shared.is_of_named_file());
        assert!(read(std::process::id()).expect("own").iter().any(|mapping| mapping.path == "[stack]"));
    }
}
