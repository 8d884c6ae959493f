// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The header says what the library has, and C programs that include it compile and run.
//!
//! - **Flow** memlift.h ──▶ its functions against the exported ones and the sources, its numbers against `CODES` ──▶ cc and c++ with
//!   all warnings as errors ──▶ the example and `surface.c`, run with both libraries
//! - **Order** without a C compiler the tests of programs are not run; one line says so

mod program;

use memlift::ipc::{Reply, Server, ServerOptions};
use memlift_c::fault::CODES;
use program::{STRICT, compile, compiled, crate_file, have, libraries, run, start};
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::sync::{Mutex, mpsc};

const HEADERS: [&str; 5] = [
    "include/memlift.h",
    "include/memlift_persist.h",
    "include/memlift_traverse.h",
    "include/memlift_zmem.h",
    "include/memlift_ipc.h",
];

fn header() -> String {
    HEADERS.map(|name| fs::read_to_string(crate_file(name)).expect("the header")).concat()
}

/// Names that begin with `memlift_` and are followed by a parenthesis.
fn called(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, _) in text.match_indices("memlift_") {
        let name: String =
            text[at..].chars().take_while(|&sign| sign.is_ascii_alphanumeric() || sign == '_').collect();
        let before = text[..at].chars().next_back();
        if text[at + name.len()..].starts_with('(') && before.is_none_or(|sign| sign == ' ' || sign == '*') {
            names.insert(name);
        }
    }
    names
}

/// The header without its comments.
fn code_of(header: &str) -> String {
    let mut rest = header;
    let mut code = String::new();
    while let Some((before, after)) = rest.split_once("/*") {
        code.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    code + rest
}

#[test]
fn every_function_is_declared_defined_and_exported() {
    let declared = called(&code_of(&header()));
    assert!(declared.len() > 25, "{declared:?}");
    let mut defined = BTreeSet::new();
    for file in [
        "array",
        "call",
        "collections",
        "context",
        "fault",
        "ipc",
        "nearpm",
        "persist",
        "serve",
        "stream",
        "transact",
        "value",
        "walk",
        "zmem",
    ] {
        let text = fs::read_to_string(crate_file(&format!("src/{file}.rs"))).expect("a source");
        let after_names = text.split("extern \"C\" fn ").skip(1);
        defined.extend(after_names.map(|after| after.split('(').next().unwrap_or_default().to_owned()));
    }
    assert_eq!(declared, defined);
    // SAFETY: our own library; nothing happens at load.
    let library = unsafe { libloading::Library::new(libraries().join("libmemlift_c.so")) }.expect("it loads");
    for name in declared {
        // SAFETY: the symbol is looked up, not called.
        let symbol = unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) };
        assert!(symbol.is_ok(), "{name} is not exported");
    }
}

#[test]
fn numbers_are_those_of_the_library() {
    let code = code_of(&header());
    let value = |name: &str| -> i32 {
        let after = code.split_once(&format!("{name} = ")).unwrap_or_else(|| panic!("no {name}")).1;
        let number = after.split([',', '\n', ' ']).next().unwrap_or_default();
        number.parse().unwrap_or_else(|_| panic!("{name}: {number}"))
    };
    for &(name, number) in CODES {
        assert_eq!(value(name), number, "{name}");
        // SAFETY: static text.
        let text = unsafe { std::ffi::CStr::from_ptr(memlift_c::fault::memlift_error(number)) };
        assert!(text.to_bytes().len() > 3);
    }
    let codes = code.split_once("enum memlift_code {").expect("codes").1.split_once('}').expect("an end").0;
    assert_eq!(codes.matches(" = ").count(), CODES.len());
    for format in memlift::transform::Format::ALL {
        assert_eq!(value(&format!("MEMLIFT_{}", format.name().to_uppercase())), format as i32);
    }
    // SAFETY: static text.
    let version = unsafe { std::ffi::CStr::from_ptr(memlift_c::fault::memlift_version()) };
    assert_eq!(version.to_str(), Ok(env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_header_is_c11_and_cpp() {
    for (compiler, standard, language) in [("cc", "-std=c11", "c"), ("c++", "-std=c++17", "c++")] {
        if have(compiler) {
            for name in HEADERS {
                let mut command = Command::new(compiler);
                command.args(STRICT).args([standard, "-fsyntax-only", "-x", language, "-I"]);
                run(command.arg(crate_file("include")).arg(crate_file(name)));
            }
        }
    }
}

#[test]
fn the_example_runs() {
    if let Some(said) = compiled("examples/compcpy.c", false) {
        assert!(said.contains("opened again: the same"), "{said}");
        assert!(said.contains("not aligned"), "{said}");
    }
}

#[test]
fn the_example_runs_with_the_static_library() {
    if let Some(said) = compiled("examples/compcpy.c", true) {
        assert!(said.contains("opened again: the same"), "{said}");
    }
}

#[test]
fn every_function_does_what_the_header_says() {
    for program in ["tests/surface.c", "tests/zmem.c"] {
        if let Some(said) = compiled(program, false) {
            assert!(said.ends_with("all as the header says\n"), "{said}");
        }
    }
}

#[test]
fn every_way_to_call_does_what_the_header_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program");
    if !compile("tests/ipc.c", &program, false) {
        return;
    }
    let address = folder.path().join("c.sock").display().to_string();
    let server =
        Server::bind(&address, ServerOptions { handlers: 1, ..ServerOptions::default() }).expect("bound");
    let (go_on, told) = mpsc::channel();
    let told = Mutex::new(told);
    server.register("echo", |request| Ok(Reply::bytes(request.to_vec()))).expect("new");
    server.register("fail", |_| Err("no luck today".into())).expect("new");
    let hold = move |request: &memlift::ipc::Request| {
        request.progress().report(1, 4);
        told.lock().expect("whole").recv().map_err(|error| error.to_string())?;
        Ok(Reply::bytes(request.to_vec()))
    };
    server.register("hold", hold).expect("new");
    server.start().expect("started");
    // Of another server: whether one runs beside an operation that takes the only handler depends on how long it took before.
    let gate_address = folder.path().join("gate.sock").display().to_string();
    let gate = Server::bind(&gate_address, ServerOptions::default()).expect("bound");
    let go = move |_: &memlift::ipc::Request| {
        go_on.send(()).map_err(|error| error.to_string())?;
        Ok(Reply::none())
    };
    gate.register("go", go).expect("new");
    gate.start().expect("started");
    let said = run(start(&program).arg(&address).arg(&gate_address));
    assert!(said.ends_with("all as the header says\n"), "{said}");
}

#[test]
fn a_server_in_c_does_what_the_header_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program");
    if compile("tests/serve.c", &program, false) {
        let said = run(start(&program).arg(folder.path().join("c.sock")));
        assert!(said.ends_with("all as the header says\n"), "{said}");
    }
}

#[test]
fn arrays_are_arrays_on_the_other_side() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program");
    if !compile("tests/arrays.c", &program, false) {
        return;
    }
    let said = run(start(&program).arg(folder.path().join("c.sock")));
    assert!(said.ends_with("all as the header says\n"), "{said}");

    let address = folder.path().join("rust.sock").display().to_string();
    let server = Server::bind(&address, ServerOptions::default()).expect("bound");
    let double = |request: &memlift::ipc::Request| {
        let tensor = *request.as_tensor().ok_or("no array")?;
        let numbers = request.to_vec();
        let numbers = numbers.as_chunks::<4>().0.iter().map(|bytes| 2.0 * f32::from_ne_bytes(*bytes));
        Reply::tensor(tensor, numbers.flat_map(f32::to_ne_bytes).collect::<Vec<u8>>())
    };
    server.register("double", double).expect("new");
    server.start().expect("started");
    let said = run(start(&program).args(["unused", &address]));
    assert!(said.ends_with("all as the header says\n"), "{said}");
}

/// Kills so many servers and so many clients in each mode.
fn kills(count: u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("kills");
    if !compile("tests/kills.c", &program, false) {
        return;
    }
    for mode in ["sync", "async", "pipelined", "watch", "limited"] {
        let prefix = folder.path().join(mode);
        let said = run(start(&program).arg(count.to_string()).arg(mode).arg(prefix));
        println!("{}", said.trim_end());
    }
}

#[test]
fn killed_peers_leave_no_program_in_c_waiting() {
    kills(4);
}

#[test]
#[ignore = "long: run by make soak"]
fn soak_killed_peers_leave_no_program_in_c_waiting() {
    kills(std::env::var("MEMLIFT_KILLS").map_or(10_000, |text| text.parse().expect("a number")));
}
