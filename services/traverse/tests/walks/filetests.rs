// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs as text with what they do: `filetests/*.walk`, on everything that runs programs.
//!
//! - **Layout** a file is one program in the text of `bpf::asm`, and lines about it:
//!   `; scratch: 64`                  bytes of the scratchpad; 64 if the line is missing
//!   `; window: -8..24`               what the verifier must infer
//!   `; lines: -1 0`                  64-byte lines it must infer, 0 being that of cur_ptr
//!   `; guards: 1`                    accesses that must be left to check while running
//!   `; memory: 0x1000 = 5, 50`       words of eight bytes from an address on; may be repeated
//!   `; run: 0x1000 [7, 0] => next 0x2000 [7, 0]`
//!   one step from an address, with the words that the scratchpad starts with (the rest
//!   is 0), gives a verdict and these first words of the scratchpad
//!   `; walk: …`                      the same, but from step to step until the verdict is not `next`
//!   `; reject: 3 a window is at`     the program is refused at that place (of eight bytes), with these words
//!   Verdicts: `next ADDRESS`, `done`, `missing`, `retry`, `emit OFFSET BYTES NEXT`, `apply KIND ADDRESS A B`,
//!   `out-of-fuel`, `bad-verdict`, `guard`. A number is decimal, 0x hexadecimal, or negative
//! - **Order** every `run` and `walk` is tried on every engine, and all must agree on the scratchpad and the walk
//! - **Not here** properties of all programs (`generated.rs`)

use memlift_traverse::bpf::asm;
use memlift_traverse::error::Error;
use memlift_traverse::interp::{self, Checked};
use memlift_traverse::ir::Inst;
use memlift_traverse::program::Program;
use memlift_traverse::step::{Verdict, Walk};
use memlift_traverse::verify::FUEL;
use std::collections::BTreeMap;
use std::path::Path;

/// Runs one step: the window's bytes, where they start, scratchpad, walk.
type Step = Box<dyn Fn(&[u8], i64, &mut [u8], &mut Walk) -> u32>;

/// Everything that runs programs.
fn engines(program: &Program) -> Vec<(&'static str, Step)> {
    let function = program.function().clone();
    let checked: Step = Box::new(move |node, first, scratch, walk| {
        Checked::new(node, first, scratch, walk).step(&function).expect("the verifier keeps its promises")
    });
    let function = program.function().clone();
    #[expect(unsafe_code, reason = "the interpreter takes addresses")]
    let trusting: Step = Box::new(move |node, first, scratch, walk| {
        let cur = node.as_ptr().wrapping_offset(-(first as isize));
        // SAFETY: the function is verified, the slices are its window and its scratchpad.
        unsafe { interp::step(&function, cur, scratch.as_mut_ptr(), walk) }
    });
    let mut engines = vec![("checking interpreter", checked), ("interpreter", trusting)];
    engines.extend(compiled(program));
    engines
}

#[cfg(feature = "jit")]
#[expect(unsafe_code, reason = "compiled code takes addresses")]
fn compiled(program: &Program) -> Option<(&'static str, Step)> {
    use memlift_traverse::jit::{CompileError, Compiled, Limits};
    let limits = Limits {
        window_first: program.window().first,
        window_bytes: program.window().bytes,
        scratch_bytes: program.scratch_bytes() as u32,
    };
    let compiled = match Compiled::new(program.function(), &limits) {
        Ok(compiled) => compiled,
        Err(CompileError::Unsupported) => return None,
        Err(error) => panic!("{}: {error}", program.name()),
    };
    let step: Step = Box::new(move |node, first, scratch, walk| {
        let cur = node.as_ptr().wrapping_offset(-(first as isize));
        // SAFETY: compiled from a verified function for these limits; the slices are window and scratchpad.
        unsafe { compiled.step(cur, scratch.as_mut_ptr(), walk) }
    });
    Some(("compiled", step))
}

#[cfg(not(feature = "jit"))]
fn compiled(_: &Program) -> Option<(&'static str, Step)> {
    None
}

fn number(text: &str) -> u64 {
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let value = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    let value = value.unwrap_or_else(|_| panic!("`{text}` is no number"));
    if negative { value.wrapping_neg() } else { value }
}

fn words(text: &str) -> Vec<u64> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(number).collect()
}

/// `before [1, 2]`: what stands before, and the words.
fn with_words(text: &str) -> (&str, Vec<u64>) {
    match text.split_once('[') {
        Some((before, list)) => (before.trim(), words(list.trim_end().trim_end_matches(']'))),
        None => (text.trim(), Vec::new()),
    }
}

/// A verdict with what it says, as a file writes it.
fn verdict(number: u32, walk: &Walk) -> String {
    match Verdict::from_return(number) {
        Verdict::Next => format!("next {:#x}", walk.next),
        Verdict::Done => "done".into(),
        Verdict::Missing => "missing".into(),
        Verdict::Retry => "retry".into(),
        Verdict::Emit => format!("emit {:#x} {:#x} {:#x}", walk.emit_offset, walk.emit_bytes, walk.next),
        Verdict::Apply => {
            format!("apply {:#x} {:#x} {:#x} {:#x}", walk.apply, walk.address, walk.a, walk.b)
        }
        Verdict::OutOfFuel => "out-of-fuel".into(),
        Verdict::BadVerdict => "bad-verdict".into(),
        Verdict::BadEmit => "bad-emit".into(),
        Verdict::Guard => "guard".into(),
    }
}

/// The same with all numbers in one form.
fn normal(text: &str) -> String {
    let word = |word: &str| {
        if word.starts_with(|first: char| first.is_ascii_digit() || first == '-') {
            format!("{:#x}", number(word))
        } else {
            word.to_owned()
        }
    };
    text.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

/// A file's lines of one kind.
struct File<'a> {
    path: &'a Path,
    lines: Vec<(&'a str, &'a str)>,
}

impl<'a> File<'a> {
    fn all(&self, kind: &'a str) -> impl Iterator<Item = &'a str> {
        self.lines.iter().filter(move |line| line.0 == kind).map(|line| line.1)
    }

    fn one(&self, kind: &'a str) -> Option<&'a str> {
        self.all(kind).next()
    }
}

fn read<'a>(path: &'a Path, text: &'a str) -> File<'a> {
    const KINDS: [&str; 9] =
        ["scratch", "window", "lines", "guards", "memory", "run", "walk", "reject", "note"];
    let mut lines = Vec::new();
    for line in text.lines() {
        let Some(line) = line.trim().strip_prefix("; ") else { continue };
        let Some((kind, rest)) = line.split_once(": ") else { continue };
        if kind.bytes().all(|letter| letter.is_ascii_lowercase()) {
            assert!(KINDS.contains(&kind), "{}: `{kind}` is none of {KINDS:?}", path.display());
            lines.push((kind, rest.trim()));
        }
    }
    File { path, lines }
}

fn check_inferred(file: &File<'_>, program: &Program) {
    let window = program.window();
    let end = i64::from(window.first) + i64::from(window.bytes);
    if let Some(expected) = file.one("window") {
        assert_eq!(format!("{}..{end}", window.first), expected, "{}: window", file.path.display());
    }
    if let Some(expected) = file.one("lines") {
        let found = (-4..4).filter(|line| program.lines() >> (line + 4) & 1 == 1);
        let found: Vec<String> = found.map(|line| line.to_string()).collect();
        assert_eq!(found.join(" "), expected, "{}: lines", file.path.display());
    }
    if let Some(expected) = file.one("guards") {
        let guards =
            program.function().blocks.iter().flat_map(|block| &block.insts).filter(|inst| match inst {
                Inst::Load { address, .. } | Inst::Store { address, .. } => {
                    address.index.is_some_and(|index| index.guard)
                }
                _ => false,
            });
        assert_eq!(guards.count().to_string(), expected, "{}: guards", file.path.display());
    }
}

fn check_run(file: &File<'_>, line: &str, follow: bool, program: &Program, memory: &BTreeMap<u64, u8>) {
    let at = || format!("{}: `{line}`", file.path.display());
    let (given, expected) = line.split_once("=>").unwrap_or_else(|| panic!("{}: => is missing", at()));
    let (start, given) = with_words(given);
    let (expected, expected_words) = with_words(expected);
    let window = program.window();
    let mut outcomes = Vec::new();
    for (engine, step) in engines(program) {
        let mut scratch = vec![0; program.scratch_bytes()];
        for (place, word) in scratch.chunks_exact_mut(8).zip(&given) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let (mut walk, mut cur) = (Walk { fuel: FUEL, ..Walk::default() }, number(start));
        let found = loop {
            let first = cur.wrapping_add(i64::from(window.first) as u64);
            let node: Vec<u8> = (0..u64::from(window.bytes))
                .map(|byte| {
                    let address = first.wrapping_add(byte);
                    *memory.get(&address).unwrap_or_else(|| panic!("{}: nothing at {address:#x}", at()))
                })
                .collect();
            let returned = step(&node, i64::from(window.first), &mut scratch, &mut walk);
            if !follow || Verdict::from_return(returned) != Verdict::Next {
                break verdict(returned, &walk);
            }
            cur = walk.next;
        };
        assert_eq!(found, normal(expected), "{} on the {engine}", at());
        let found: Vec<u64> =
            scratch.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        assert_eq!(found[..expected_words.len()], expected_words, "{} on the {engine}: scratchpad", at());
        outcomes.push((engine, scratch, walk));
    }
    for pair in outcomes.windows(2) {
        assert_eq!(
            (&pair[0].1, &pair[0].2),
            (&pair[1].1, &pair[1].2),
            "{}: {} and {}",
            at(),
            pair[0].0,
            pair[1].0
        );
    }
}

fn check(path: &Path) -> usize {
    let text = std::fs::read_to_string(path).expect("a text");
    let file = read(path, &text);
    let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let bytecode = asm::assemble(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let scratch = file.one("scratch").map_or(64, |bytes| number(bytes) as usize);
    let program = Program::new(name, &bytecode, scratch);
    if let Some(reject) = file.one("reject") {
        let (place, words) = reject.split_once(' ').expect("`; reject: PLACE WORDS`");
        let error = program.expect_err(&format!("{}: accepted", path.display()));
        let text = error.to_string();
        let (Error::Rejected { at, .. } | Error::Malformed { at, .. }) = error else {
            panic!("{}: {text}", path.display())
        };
        assert_eq!(at.to_string(), place, "{}: {text}", path.display());
        assert!(text.contains(words), "{}: `{text}` does not say `{words}`", path.display());
        return 1;
    }
    let program = program.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    check_inferred(&file, &program);
    let mut memory = BTreeMap::new();
    for line in file.all("memory") {
        let (address, list) = line.split_once('=').expect("`; memory: ADDRESS = WORDS`");
        let bytes = words(list).into_iter().flat_map(u64::to_le_bytes);
        memory.extend((number(address.trim())..).zip(bytes));
    }
    let runs = file.all("run").map(|line| (line, false)).chain(file.all("walk").map(|line| (line, true)));
    let mut count = 0;
    for (line, follow) in runs {
        check_run(&file, line, follow, &program, &memory);
        count += 1;
    }
    assert!(count > 0, "{}: nothing is run", path.display());
    count
}

#[test]
fn every_file_does_what_it_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("filetests");
    let entries = std::fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "walk")).collect();
    paths.sort();
    // All of them, so that one failure does not hide the next.
    let tried: Vec<_> = paths.iter().map(|path| std::panic::catch_unwind(|| check(path))).collect();
    let failed: Vec<_> = paths.iter().zip(&tried).filter(|(_, tried)| tried.is_err()).collect();
    assert!(failed.is_empty(), "{} of {} files failed", failed.len(), paths.len());
    let runs: usize = tried.into_iter().flatten().sum();
    println!("{} files, {runs} runs", paths.len());
    assert!(paths.len() >= 30, "{} files", paths.len());
}
