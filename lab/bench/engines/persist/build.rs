// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles limits/reference.c, the routines that both sides of every comparison write and read with.

fn main() {
    println!("cargo:rerun-if-changed=../../limits/reference.c");
    cc::Build::new().file("../../limits/reference.c").opt_level(3).compile("memlift_reference");
}
