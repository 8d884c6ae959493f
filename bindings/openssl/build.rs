// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Links the provider so that it is never unloaded: the cipher library in it leaves destructors with every thread that
//! used it, and they must find their code after the provider was closed.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,now");
}
