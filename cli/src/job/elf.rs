// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bytes of an ELF core file: header, program headers, notes.
//!
//! - **Layout** the header, the notes and the segments' pages, then the program headers and, if there are more than 65,534 of them, one
//!   section header with their number
//! - **Not here** the source of the bytes: core.rs

use std::path::Path;

use memlift::zmem::stop::{SIGNAL_INFO_BYTES, Thread};

/// Bytes of a page, to which segments are aligned.
pub const PAGE_BYTES: u64 = 4096;
/// Bytes of the ELF header.
pub const HEADER_BYTES: u64 = 64;
const PROGRAM_HEADER_BYTES: u64 = 56;
const SECTION_HEADER_BYTES: u64 = 64;
/// Number of program headers that means: the section header has the number.
const MANY: u16 = 0xffff;
const NT_PRSTATUS: u32 = 1;
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_FILE: u32 = 0x4649_4c45;
const NT_SIGINFO: u32 = 0x5349_4749;
const NT_X86_XSTATE: u32 = 0x202;
/// Bytes of all registers with those of AVX-512 and protection keys.
const XSTATE_BYTES: usize = 2696;
/// Offset of the registers in the status of a thread.
const REGISTERS_AT: usize = 112;

/// A part of the process's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Address of its first byte.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// Access: 1 read, 2 write, 4 execute.
    pub prot: u32,
    /// Offset of its pages in the file.
    pub offset: u64,
    /// Bytes of it that are in the file.
    pub file_bytes: u64,
}

/// The state of a process beside its memory.
#[derive(Debug)]
pub struct Process<'a> {
    /// Number of the process.
    pub pid: u32,
    /// Fields of `/proc/PID/stat` after the name.
    pub stat: Vec<String>,
    /// Real user and group.
    pub user: [u32; 2],
    /// Name of the program, as the kernel has it.
    pub name: String,
    /// Arguments, with a zero byte after each.
    pub arguments: Vec<u8>,
    /// The auxiliary vector.
    pub vector: Vec<u8>,
    /// Its threads, the first one first.
    pub threads: &'a [Thread],
    /// Mappings of files: start, end, offset in the file in bytes, path.
    pub files: Vec<(u64, u64, u64, String)>,
}

/// Bytes in the order of this machine.
#[derive(Debug, Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn half(&mut self, value: u16) {
        self.0.extend(value.to_ne_bytes());
    }

    fn word(&mut self, value: u32) {
        self.0.extend(value.to_ne_bytes());
    }

    fn long(&mut self, value: u64) {
        self.0.extend(value.to_ne_bytes());
    }

    /// Appends `bytes` bytes of a text, cut or padded with zeros; the last one is a zero.
    fn text(&mut self, text: &[u8], bytes: usize) {
        let cut = text.len().min(bytes - 1);
        self.0.extend(&text[..cut]);
        self.0.extend(std::iter::repeat_n(0, bytes - cut));
    }

    fn pad(&mut self, unit: usize) {
        self.0.resize(self.0.len().next_multiple_of(unit), 0);
    }

    fn note(&mut self, name: &str, kind: u32, contents: &[u8]) {
        self.word(name.len() as u32 + 1);
        self.word(contents.len() as u32);
        self.word(kind);
        self.0.extend(name.as_bytes());
        self.0.push(0);
        self.pad(4);
        self.0.extend(contents);
        self.pad(4);
    }
}

/// Returns the ELF header of a core with `count` program headers at `at`.
pub fn header(at: u64, count: usize) -> Vec<u8> {
    const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    const CORE: u16 = 4;
    let many = count >= usize::from(MANY);
    let mut bytes = Bytes::default();
    bytes.0.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    bytes.half(CORE);
    bytes.half(MACHINE);
    bytes.word(1);
    bytes.long(0);
    bytes.long(at);
    bytes.long(if many { at + count as u64 * PROGRAM_HEADER_BYTES } else { 0 });
    bytes.word(0);
    bytes.half(HEADER_BYTES as u16);
    bytes.half(PROGRAM_HEADER_BYTES as u16);
    bytes.half(if many { MANY } else { count as u16 });
    bytes.half(if many { SECTION_HEADER_BYTES as u16 } else { 0 });
    bytes.half(u16::from(many));
    bytes.half(0);
    bytes.0
}

/// Returns the program headers of the notes, which lie behind the ELF header, and of the segments.
pub fn program_headers(note_bytes: usize, segments: &[Segment]) -> Vec<u8> {
    const LOAD: u32 = 1;
    const NOTE: u32 = 4;
    let mut bytes = Bytes::default();
    bytes.word(NOTE);
    bytes.word(0);
    for word in [HEADER_BYTES, 0, 0, note_bytes as u64, 0, 4] {
        bytes.long(word);
    }
    for segment in segments {
        // ELF's bits are those of PROT_* in reverse.
        let flags = segment.prot >> 2 & 1 | segment.prot & 2 | (segment.prot & 1) << 2;
        bytes.word(LOAD);
        bytes.word(flags);
        let memory_bytes = segment.end - segment.start;
        for word in [segment.offset, segment.start, 0, segment.file_bytes, memory_bytes, PAGE_BYTES] {
            bytes.long(word);
        }
    }
    if segments.len() + 1 >= usize::from(MANY) {
        let mut section = [0; SECTION_HEADER_BYTES as usize];
        section[44..48].copy_from_slice(&(segments.len() as u32 + 1).to_ne_bytes());
        bytes.0.extend(section);
    }
    bytes.0
}

/// Returns the notes of a process and its threads.
pub fn notes(process: &Process<'_>) -> Vec<u8> {
    let mut notes = Bytes::default();
    for (index, thread) in process.threads.iter().enumerate() {
        let general = thread.registers.iter().find(|(kind, _)| *kind == NT_PRSTATUS);
        notes.note(
            "CORE",
            NT_PRSTATUS,
            &status(process, thread, general.map_or(&[], |(_, bytes)| bytes.as_slice())),
        );
        if index == 0 {
            notes.note("CORE", NT_PRPSINFO, &information(process));
            notes.note("CORE", NT_SIGINFO, &thread.signal_info[..SIGNAL_INFO_BYTES]);
            notes.note("CORE", NT_AUXV, &process.vector);
            notes.note("CORE", NT_FILE, &files(&process.files));
        }
        for (kind, bytes) in thread.registers.iter().filter(|(kind, _)| *kind != NT_PRSTATUS) {
            let mut bytes = bytes.clone();
            if *kind == NT_X86_XSTATE {
                // Some kernels give less than their own mask of features says, and debuggers complain.
                bytes.resize(bytes.len().max(XSTATE_BYTES), 0);
            }
            notes.note(if *kind < 0x100 { "CORE" } else { "LINUX" }, *kind, &bytes);
        }
    }
    notes.0
}

impl Process<'_> {
    /// Returns a number of `/proc/PID/stat`; the state is field 0.
    fn number(&self, field: usize) -> u64 {
        self.stat.get(field).and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

/// Returns the status of a thread, `struct elf_prstatus`.
fn status(process: &Process<'_>, thread: &Thread, registers: &[u8]) -> Vec<u8> {
    let mut bytes = Bytes::default();
    bytes.word(thread.signal as u32);
    bytes.long(0);
    bytes.half(thread.signal as u16);
    bytes.half(0);
    bytes.long(0);
    bytes.long(0);
    bytes.word(thread.number as u32);
    for field in [1, 2, 3] {
        bytes.word(process.number(field) as u32);
    }
    bytes.0.resize(REGISTERS_AT, 0);
    bytes.0.extend(registers);
    bytes.word(1);
    bytes.pad(8);
    bytes.0
}

/// Returns the information on a process, `struct elf_prpsinfo`.
fn information(process: &Process<'_>) -> Vec<u8> {
    let state = process.stat.first().and_then(|state| state.bytes().next()).unwrap_or(b'R');
    let mut bytes = Bytes::default();
    bytes.0.extend([0, state, u8::from(state == b'Z'), process.number(16) as u8, 0, 0, 0, 0]);
    bytes.long(process.number(6));
    for id in process.user {
        bytes.word(id);
    }
    bytes.word(process.pid);
    for field in [1, 2, 3] {
        bytes.word(process.number(field) as u32);
    }
    bytes.text(process.name.as_bytes(), 16);
    let end = process.arguments.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let line: Vec<u8> = process.arguments[..end].iter().map(|byte| byte.max(&b' ')).copied().collect();
    bytes.text(&line, 80);
    bytes.0
}

/// Returns the list of mapped files.
fn files(files: &[(u64, u64, u64, String)]) -> Vec<u8> {
    let mut bytes = Bytes::default();
    bytes.long(files.len() as u64);
    bytes.long(PAGE_BYTES);
    for (start, end, offset, _) in files {
        bytes.long(*start);
        bytes.long(*end);
        bytes.long(offset / PAGE_BYTES);
    }
    for (_, _, _, path) in files {
        bytes.0.extend(Path::new(path).as_os_str().as_encoded_bytes());
        bytes.0.push(0);
    }
    bytes.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_their_sizes_and_many_are_counted_elsewhere() {
        let segment = Segment { start: 0x1000, end: 0x3000, prot: 3, offset: 0x2000, file_bytes: 0x1000 };
        assert_eq!(header(0x9000, 2).len() as u64, HEADER_BYTES);
        let one = program_headers(8, &[segment]);
        assert_eq!(one.len() as u64, 2 * PROGRAM_HEADER_BYTES);
        assert_eq!(one[56..64], [1, 0, 0, 0, 6, 0, 0, 0]);
        let many = program_headers(8, &vec![segment; 70_000]);
        let end = many.len() - SECTION_HEADER_BYTES as usize;
        assert_eq!(many[end + 44..end + 48], 70_001u32.to_ne_bytes());
        assert_eq!(header(0x9000, 70_001)[56..58], MANY.to_ne_bytes());
        assert_eq!(header(0x9000, 70_001)[40..48], (0x9000 + 70_001 * PROGRAM_HEADER_BYTES).to_ne_bytes());
    }

    #[test]
    fn notes_have_the_kernels_sizes() {
        let registers = if cfg!(target_arch = "x86_64") { 27 * 8 } else { 34 * 8 };
        let thread = Thread {
            number: 7,
            signal: 11,
            signal_info: [0; SIGNAL_INFO_BYTES],
            registers: vec![(1, vec![5; registers])],
        };
        let process = Process {
            pid: 7,
            stat: "S 1 2 3".split(' ').map(str::to_owned).collect(),
            user: [0, 0],
            name: "a name that is too long".to_owned(),
            arguments: b"a\0b\0".to_vec(),
            vector: Vec::new(),
            threads: &[],
            files: vec![(0, 0x1000, 0x2000, "/lib/x".to_owned())],
        };
        assert_eq!(status(&process, &thread, &thread.registers[0].1).len(), REGISTERS_AT + registers + 8);
        let information = information(&process);
        assert_eq!(information.len(), 136);
        assert_eq!(&information[40..56], b"a name that is \0");
        assert_eq!(&information[56..60], b"a b\0");
        assert_eq!(files(&process.files).len(), 16 + 24 + 7);
    }
}
