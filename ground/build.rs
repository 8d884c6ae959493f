// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns the feature `_loom` into `cfg(loom)`, which the sources ask for: as a compiler flag it would rebuild every dependency.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE__LOOM").is_some() {
        println!("cargo:rustc-cfg=loom");
    }
}
