// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The size that `Effort::Default` promises: at most 1.09 times what zlib's level 6 makes of the same messages.
//!
//! - **Flow** class of bytes (this repository's sources and pages, and what a seed makes) ──messages of 4, 16, 64 and 256 KiB──▶
//!   `Packer`, and `PackStream` in pushes of 8 KiB, beside the system's zlib ──sums of all messages of a class──▶ compared
//! - **Order** the promise is about the messages of a class together: a single one may be larger, or smaller.
//! - **Not here** classes that need files from elsewhere: `examples/deflate_table.rs` takes a folder.
#![cfg(feature = "deflate")]

use memlift_kernels::deflate::{Effort, Flush, Format, PackStream, Packer, Unpacker, bound};
use std::ffi::{c_int, c_ulong};
use std::path::Path;

const SIZES: [usize; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];

type Compress = unsafe extern "C" fn(*mut u8, *mut c_ulong, *const u8, c_ulong, c_int) -> c_int;

/// The system's zlib at level 6.
fn zlib() -> impl Fn(&[u8]) -> usize {
    // SAFETY: loading zlib runs nothing of interest.
    let library = unsafe { libloading::Library::new("libz.so.1") }
        .expect("libz.so.1 is what sizes are compared with: sudo apt install zlib1g");
    // SAFETY: the type is that of zlib.h.
    let compress = unsafe { *library.get::<Compress>(b"compress2").expect("zlib has compress2") };
    move |message| {
        let _stays = &library;
        let mut target = vec![0; message.len() + message.len() / 100 + 64];
        let mut bytes = target.len() as c_ulong;
        // SAFETY: pointers and lengths of slices; zlib's compressBound is less than the target has.
        let code = unsafe {
            compress(target.as_mut_ptr(), &mut bytes, message.as_ptr(), message.len() as c_ulong, 6)
        };
        assert_eq!(code, 0);
        bytes as usize
    }
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % sides
    }

    /// Small numbers often, large ones rarely.
    fn skewed(&mut self, sides: usize) -> usize {
        self.roll(sides) * self.roll(sides) / sides * self.roll(sides) / sides
    }
}

/// The sources and pages of this repository with this ending.
fn files(folder: &Path, ending: &str, all: &mut Vec<u8>) {
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() && !path.ends_with("target") {
            files(&path, ending, all);
        } else if path.extension().is_some_and(|found| found == ending) {
            all.extend(std::fs::read(path).expect("a file of this repository can be read"));
        }
    }
}

fn repository(ending: &str) -> Vec<u8> {
    let mut all = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["src", "tests", "examples", "../docs", "../spec"] {
        files(&root.join(folder), ending, &mut all);
    }
    all
}

/// Words that follow each other as letters do in English: each letter depends on the one before.
fn vocabulary(dice: &mut Dice) -> Vec<String> {
    let after = |letter: u8| match letter {
        b'a' | b'e' | b'i' | b'o' | b'u' => &b"nrstlmdcpv"[..],
        b't' | b's' | b'c' => &b"hieaorut"[..],
        _ => &b"eaioury"[..],
    };
    let word = |dice: &mut Dice| {
        let mut word = vec![b"tascwibopfmhnr"[dice.skewed(14)]];
        for _ in 0..1 + dice.roll(5) + dice.roll(4) {
            let next = after(word[word.len() - 1]);
            word.push(next[dice.skewed(next.len())]);
        }
        String::from_utf8(word).expect("letters")
    };
    (0..3000).map(|_| word(dice)).collect()
}

fn text(dice: &mut Dice, words: &[String]) -> String {
    let mut text = String::new();
    for at in 0..6 + dice.roll(14) {
        if at != 0 {
            text += if dice.roll(9) == 0 { ", " } else { " " };
        }
        text += &words[dice.skewed(words.len())];
    }
    text + ".\n"
}

fn html(dice: &mut Dice, words: &[String]) -> String {
    let (name, id) = (&words[dice.skewed(words.len())], dice.roll(300));
    match dice.roll(4) {
        0 => format!("<h2 id=\"{name}\">{name}<a class=\"headerlink\" href=\"#{name}\">¶</a></h2>\n"),
        1 => format!(
            "<li class=\"toctree-l1\"><a class=\"reference internal\" href=\"{name}.html#n{id}\">{name}</a></li>\n"
        ),
        2 => format!(
            "<dt class=\"sig\"><code class=\"docutils literal\"><span class=\"pre\">{name}</span></code></dt>\n"
        ),
        _ => format!("<p>{}</p>\n", text(dice, words)),
    }
}

fn css(dice: &mut Dice, words: &[String]) -> String {
    const SIZES: [&str; 9] = [
        "margin-top",
        "margin-bottom",
        "padding",
        "padding-left",
        "border-radius",
        "font-size",
        "line-height",
        "width",
        "min-height",
    ];
    const KINDS: [(&str, &str); 12] = [
        ("display", "flex"),
        ("display", "inline-block"),
        ("position", "relative"),
        ("text-align", "center"),
        ("overflow", "hidden"),
        ("white-space", "nowrap"),
        ("flex-wrap", "wrap"),
        ("align-items", "stretch"),
        ("cursor", "pointer"),
        ("pointer-events", "none"),
        ("text-decoration", "underline"),
        ("opacity", "0.65"),
    ];
    const COLOURS: [&str; 4] = ["color", "background-color", "border-color", "outline-color"];
    let (name, other) = (&words[dice.skewed(words.len())], &words[dice.skewed(words.len())]);
    let mut rule = match dice.roll(4) {
        0 => format!(
            "@media (min-width: {}px) {{ .{name} {{ display: none; }} }}\n.{name} {{\n",
            dice.roll(1600)
        ),
        1 => format!(".{name} > .{other}:hover {{\n"),
        2 => format!(".{name}-{other},\n.{name}-{} {{\n", ["sm", "md", "lg", "xl"][dice.roll(4)]),
        _ => format!("#{other} .{name} {{\n"),
    };
    for _ in 0..1 + dice.roll(6) {
        rule += &match dice.roll(5) {
            0 => format!("  --bs-{other}-{name}: {};\n", words[dice.roll(words.len())]),
            1 => format!("  {}: #{:06x};\n", COLOURS[dice.roll(4)], dice.roll(1 << 24)),
            2 => {
                let (property, value) = KINDS[dice.roll(12)];
                format!("  {property}: {value};\n")
            }
            _ => format!("  {}: {}.{}rem;\n", SIZES[dice.roll(9)], dice.roll(4), dice.roll(1000)),
        };
    }
    rule + "}\n"
}

fn json(dice: &mut Dice, words: &[String]) -> String {
    let (name, other) = (&words[dice.skewed(words.len())], &words[dice.skewed(words.len())]);
    let (id, score, open) = (dice.roll(100_000), dice.roll(10_000) as f64 / 100.0, dice.roll(2) == 0);
    format!(
        "{{\"id\": {id}, \"name\": \"{name} {other}\", \"score\": {score}, \"tags\": [\"{other}\"], \"open\": {open}}},\n"
    )
}

fn csv(dice: &mut Dice, words: &[String]) -> String {
    let (day, hour) = (1 + dice.roll(28), dice.roll(24));
    format!(
        "{},2024-03-{day:02}T{hour:02}:00,{},{}\n",
        dice.roll(9999),
        words[dice.skewed(50)],
        dice.roll(500)
    )
}

fn log(dice: &mut Dice, words: &[String]) -> String {
    let level = ["INFO", "INFO", "DEBUG", "WARN"][dice.roll(4)];
    let (name, took) = (&words[dice.skewed(40)], dice.skewed(900));
    format!(
        "12:{:02}:{:02} {level} [{name}] request {} took {took} ms\n",
        dice.roll(60),
        dice.roll(60),
        dice.roll(99999)
    )
}

fn lines(line: fn(&mut Dice, &[String]) -> String) -> Vec<u8> {
    let mut dice = Dice(5);
    let words = vocabulary(&mut dice);
    let mut all = Vec::new();
    while all.len() < 1 << 20 {
        all.extend(line(&mut dice, &words).into_bytes());
    }
    all
}

/// Numbers of four bytes that rise, records of different fields, samples of a wave.
fn tables() -> [(&'static str, Vec<u8>); 3] {
    let mut dice = Dice(9);
    let rising = (0..1u32 << 17).flat_map(|n| (n * 7 + dice.roll(300) as u32).to_le_bytes()).collect();
    let mut dice = Dice(10);
    let mut record = |n: u64| {
        let (kind, place, bytes) =
            (dice.roll(5) as u32, n * 48 + dice.roll(32) as u64, dice.skewed(4000) as u32);
        [&kind.to_le_bytes()[..], &bytes.to_le_bytes(), &place.to_le_bytes(), &[0; 8]].concat()
    };
    let records = (0..20_000).flat_map(&mut record).collect();
    let mut dice = Dice(11);
    let mut wave = |n: u32| ((f64::from(n) / 40.0).sin() * 9000.0) as i16 + dice.roll(40) as i16;
    let samples = (0..1 << 18).flat_map(|n| wave(n).to_le_bytes()).collect();
    [("rising numbers", rising), ("records", records), ("samples", samples)]
}

fn streamed(stream: &mut PackStream, message: &[u8], target: &mut [u8]) -> usize {
    stream.reset(Format::Zlib, Effort::Default);
    let (mut read, mut written) = (0, 0);
    while read < message.len() {
        let piece = &message[read..message.len().min(read + 8192)];
        let pushed = stream.push(piece, &mut target[written..], Flush::None);
        (read, written) = (read + pushed.read, written + pushed.written);
    }
    let pushed = stream.push(&[], &mut target[written..], Flush::Finish);
    assert!(!pushed.more);
    written + pushed.written
}

#[test]
fn size_promise() {
    let zlib = zlib();
    let mut dice = Dice(3);
    let mut classes = vec![
        ("Rust", repository("rs")),
        ("Markdown", repository("md")),
        ("text", lines(text)),
        ("HTML", lines(html)),
        ("CSS", lines(css)),
        ("JSON", lines(json)),
        ("CSV", lines(csv)),
        ("log", lines(log)),
        ("noise", (0..1 << 19).map(|_| dice.roll(256) as u8).collect()),
        ("hexadecimal", (0..1 << 19).map(|_| b"0123456789abcdef"[dice.roll(16)]).collect()),
        ("zeros", vec![0; 1 << 19]),
    ];
    classes.extend(tables());
    let (mut packer, mut stream) = (Packer::new(), PackStream::new(Format::Zlib, Effort::Default));
    let mut unpacker = Unpacker::new();
    let mut broken = Vec::new();
    for (name, bytes) in &classes {
        for size in SIZES {
            let messages: Vec<&[u8]> = bytes.chunks_exact(size).collect();
            let step = (messages.len() * size / (1 << 19)).max(1);
            let (mut theirs, mut ours, mut pieces, mut count) = (0, 0, 0, 0);
            let mut target = vec![0; bound(Format::Zlib, size) + 64];
            let mut again = vec![0; size];
            for message in messages.into_iter().step_by(step) {
                theirs += zlib(message);
                let used = packer
                    .pack(Format::Zlib, Effort::Default, message, &mut target)
                    .expect("bound is enough");
                unpacker.unpack(Format::Zlib, &target[..used], &mut again).expect("valid");
                assert!(again == message, "{name} {size}");
                ours += used;
                let used = streamed(&mut stream, message, &mut target);
                unpacker.unpack(Format::Zlib, &target[..used], &mut again).expect("valid");
                assert!(again == message, "{name} {size}, in pieces");
                pieces += used;
                count += 1;
            }
            let ratio = |bytes: usize| bytes as f64 / theirs as f64;
            println!(
                "{name:<16}{size:>7} x {count:<4}{:.3} at once, {:.3} in pieces",
                ratio(ours),
                ratio(pieces)
            );
            assert!(count != 0 || *name == "Markdown", "{name} has {} bytes", bytes.len());
            if ours.max(pieces) * 100 > theirs * 109 {
                broken.push((*name, size, ours, pieces, theirs));
            }
        }
    }
    assert!(broken.is_empty(), "larger than 1.09 times zlib's level 6: {broken:?}");
}
