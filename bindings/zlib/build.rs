// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gives the cdylib libz's name and symbol versions, and compiles the one function that needs C's `...`.
//!
//! - **Flow** `libz.map` (the version nodes, without symbols) ──linker──▶ verdefs; `.symver` in the code puts each symbol into
//!   its node; cfg `symbol_versions` turns those on.
//! - **Order** rustc hands the linker an anonymous version script of its own. GNU ld refuses a second one beside it; the
//!   lld that comes with rustc takes both, so this library asks for it. Without that lld the library has no symbol
//!   versions: it works, and the loader prints "no version information available" where a program names one.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=libz.map");
    println!("cargo::rerun-if-changed=src/print.c");
    println!("cargo::rustc-check-cfg=cfg(symbol_versions)");
    cc::Build::new().file("src/print.c").warnings(true).compile("memlift_z_print");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libz.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    match lld() {
        Some(folder) => {
            let map = Path::new(&env::var("CARGO_MANIFEST_DIR").unwrap_or_default()).join("libz.map");
            println!("cargo::rustc-cfg=symbol_versions");
            println!("cargo::rustc-cdylib-link-arg=-B{}", folder.display());
            println!("cargo::rustc-cdylib-link-arg=-fuse-ld=lld");
            println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
        }
        None => println!(
            "cargo::warning=libmemlift_z.so gets no symbol versions: this rustc comes without gcc-ld/ld.lld"
        ),
    }
}

/// The folder of rustc's own `ld.lld`.
fn lld() -> Option<PathBuf> {
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let output = Command::new(rustc).args(["--print", "sysroot"]).output().ok()?;
    let root = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    let folder = root.join("lib/rustlib").join(env::var("HOST").ok()?).join("bin/gcc-ld");
    (env::var("HOST") == env::var("TARGET") && folder.join("ld.lld").exists()).then_some(folder)
}
