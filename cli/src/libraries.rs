// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the libraries that programs load: libmemlift_z.so, libmemlift_openssl.so, and those of `memlift run` and `memlift record`.
//!
//! - **Order** $MEMLIFT_DROPINS ─▶ the folder of this program ─▶ ../lib/memlift beside it, where a wheel or `make install` puts them
//! - **Not here** the current folder, where a stranger may have put a library; the work of the libraries, and attaching them to a program

use std::env;
use std::path::{Path, PathBuf};

/// A library of memlift that an unchanged program can load.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dropin {
    /// A libz, loaded by LD_PRELOAD.
    Libz,
    /// A provider of OpenSSL 3, loaded by OPENSSL_CONF.
    OpenSsl,
}

impl Dropin {
    /// Both drop-ins, in order.
    pub const ALL: [Dropin; 2] = [Dropin::Libz, Dropin::OpenSsl];

    /// Returns the name of the drop-in's file.
    pub fn file(self) -> &'static str {
        match self {
            Dropin::Libz => "libmemlift_z.so",
            Dropin::OpenSsl => "libmemlift_openssl.so",
        }
    }

    /// Returns the name of the drop-in's crate.
    pub fn package(self) -> &'static str {
        match self {
            Dropin::Libz => "memlift-zlib",
            Dropin::OpenSsl => "memlift-openssl",
        }
    }

    /// Returns one line that says how to get the drop-in.
    pub fn advice(self) -> String {
        advice(self.file(), self.package())
    }

    /// Returns the absolute path of the drop-in's file; `None` if it is not built.
    pub fn find(self) -> Option<PathBuf> {
        find(self.file())
    }
}

/// Returns the absolute path of the library that is loaded into programs under `memlift run`; `None` if it is
/// not built.
pub fn preload() -> Option<PathBuf> {
    find("libmemlift_preload.so")
}

/// Returns the absolute path of the library that is loaded into programs under `memlift record`; `None` if it
/// is not built.
pub fn tap() -> Option<PathBuf> {
    find("libmemlift_tap.so")
}

/// Returns one line that says how to get a library.
pub fn advice(file: &str, package: &str) -> String {
    format!(
        "{file} is not here: install the wheel, which carries it; in a checkout: cargo build --release -p {package}; or name its folder in \
         MEMLIFT_DROPINS"
    )
}

fn find(file: &str) -> Option<PathBuf> {
    let program = env::current_exe().ok();
    let beside = program.as_deref().and_then(Path::parent);
    let mut places: Vec<PathBuf> = Vec::new();
    places.extend(env::var_os("MEMLIFT_DROPINS").map(PathBuf::from));
    places.extend(beside.map(Path::to_path_buf));
    places.extend(beside.map(|folder| folder.join("../lib/memlift")));
    let found = places.iter().map(|place| place.join(file)).find(|path| path.is_file())?;
    found.canonicalize().ok()
}

/// Returns the drop-ins that are built, as arguments for the scripts of bench and tour.
pub fn arguments() -> Vec<String> {
    [("--libz", Dropin::Libz), ("--provider", Dropin::OpenSsl)]
        .into_iter()
        .filter_map(|(flag, dropin)| Some([flag.to_owned(), dropin.find()?.display().to_string()]))
        .flatten()
        .collect()
}
