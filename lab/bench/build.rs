// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles limits/*.c and corpora/rmat.c into this crate, and limits/reference.c and corpora/rmat.c into the shared library that is
//! unpacked for Python.
//! Compiles engines/nginx/load.c, a program that is unpacked with the Python side.

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=limits");
    println!("cargo:rerun-if-changed=corpora/rmat.c");
    let mut build = cc::Build::new();
    build
        .files([
            "limits/reference.c",
            "limits/loops.c",
            "limits/durable.c",
            "limits/walks.c",
            "corpora/rmat.c",
        ])
        .opt_level(3)
        .pic(true)
        .warnings(true);
    build.compile("memlift_reference");

    let library =
        PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("libreference.so");
    let status = build
        .get_compiler()
        .to_command()
        .args(["-shared", "-o"])
        .arg(&library)
        .args(["limits/reference.c", "corpora/rmat.c"])
        .status()
        .expect("the C compiler that cc found cannot be started; install gcc or clang");
    assert!(status.success(), "linking {} failed: {status}", library.display());

    println!("cargo:rerun-if-changed=engines/nginx/load.c");
    let load = library.with_file_name("nginx_load");
    let status = build
        .get_compiler()
        .to_command()
        .args(["-fPIE", "-pie", "-o"])
        .arg(&load)
        .args(["engines/nginx/load.c", "-ldl"])
        .status()
        .expect("the C compiler started a moment ago");
    assert!(status.success(), "linking {} failed: {status}", load.display());
}
