// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The shipped programs: their text is their bytes', the bytes are the C's, and the verifier takes them all.
//!
//! - **Flow** `programs/**/*.c` ──clang──▶ object ──▶ bytes ──▶ text, compared with `programs/compiled/*.txt`
//! - **Not here** what the programs do: `structures/table1.rs`, `structures/collections.rs`
//!
//! `MEMLIFT_COMPILE_PROGRAMS=1 cargo test -p memlift-traverse --test structures programs::` writes the texts anew. Without clang,
//! or with another version than a text names, the comparison with C is left out: compilers differ from version to version.

use std::path::{Path, PathBuf};
use std::process::Command;

use memlift_traverse::bpf::{decode, elf};
use memlift_traverse::program::Program;
use memlift_traverse::structures::shipped::{self, Shipped};

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}

/// Version of clang, and the folder of its headers; `None` where there is none.
fn clang() -> Option<(String, String)> {
    let said = |argument| {
        let output = Command::new("clang").arg(argument).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let version = said("--version")?;
    let version = version.split("version ").nth(1)?.split_whitespace().next()?.to_owned();
    Some((version, said("-print-resource-dir")?))
}

fn compile(shipped: &Shipped, resources: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let object = folder.path().join("walk.o");
    let source = programs().join(shipped.folder).join(shipped.name).with_extension("c");
    let output = Command::new("clang")
        .args(["-Wall", "-Wextra", "-Werror", "-ffreestanding", "-nostdinc", "-O2", "-fno-jump-tables"])
        .args(["-target", "bpf", "-mcpu=v3", "-isystem", &format!("{resources}/include"), "-c"])
        .arg(&source)
        .arg("-o")
        .arg(&object)
        .output()
        .expect("clang runs");
    assert!(output.status.success(), "{}: {}", source.display(), String::from_utf8_lossy(&output.stderr));
    elf::function(&std::fs::read(object).expect("the object"), Some("step")).expect("a step")
}

/// The form of `programs/compiled`.
fn text(shipped: &Shipped, version: &str, bytecode: &[u8]) -> String {
    let code = decode::decode(bytecode).expect("clang's instructions");
    let mut text = format!("; programs/{}/{}.c, clang {version}\n", shipped.folder, shipped.name);
    for (instruction, &place) in code.instructions.iter().zip(&code.places) {
        let at = place as usize * 8;
        for byte in &bytecode[at..at + instruction.places() as usize * 8] {
            text += &format!("{byte:02x}");
        }
        text += &format!(" ; {place} {instruction}\n");
    }
    text
}

fn version_of(shipped: &Shipped) -> &str {
    shipped.text.lines().next().and_then(|line| line.split("clang ").nth(1)).unwrap_or("").trim()
}

#[test]
fn every_text_says_what_its_bytes_do() {
    for shipped in shipped::ALL {
        let bytecode = shipped.bytecode().expect("hexadecimal");
        if std::env::var_os("MEMLIFT_COMPILE_PROGRAMS").is_none() {
            assert_eq!(shipped.text, text(shipped, version_of(shipped), &bytecode), "{}", shipped.name);
        }
    }
    assert!(shipped::bytecode("7b02 ; cut").is_err() && shipped::bytecode("zz00000000000000").is_err());
}

#[test]
fn every_text_is_what_the_compiler_makes_of_the_c() {
    let Some((version, resources)) = clang() else { return eprintln!("no clang here: not compared with C") };
    for shipped in shipped::ALL {
        let compiled = text(shipped, &version, &compile(shipped, &resources));
        if std::env::var_os("MEMLIFT_COMPILE_PROGRAMS").is_some() {
            let path = programs().join("compiled").join(shipped.name).with_extension("txt");
            std::fs::write(path, compiled).expect("written");
        } else if version == version_of(shipped) {
            assert_eq!(shipped.text, compiled, "{}: MEMLIFT_COMPILE_PROGRAMS=1 writes it anew", shipped.name);
        }
    }
}

#[test]
fn every_source_is_shipped_and_every_program_accepted() {
    for folder in ["table1", "collections"] {
        for entry in std::fs::read_dir(programs().join(folder)).expect("the folder") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "c") {
                let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
                assert!(shipped::named(name).is_some(), "{name} is not in shipped.rs");
            }
        }
    }
    for shipped in shipped::ALL {
        let bytecode = shipped.bytecode().expect("hexadecimal");
        let program = Program::new(shipped.name, &bytecode, 1024).expect(shipped.name);
        let window = program.window();
        assert!(window.first >= -256 && usize::from(window.bytes) <= 256, "{}: {window:?}", shipped.name);
        assert_eq!(program.uses_apply(), shipped.writes(), "{}", shipped.name);
    }
    assert_eq!(
        shipped::named("stl_list").map(|shipped| shipped.program().name().to_owned()),
        Some("stl_list".into())
    );
}
