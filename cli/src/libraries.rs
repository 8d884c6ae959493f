// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the libraries that programs load: libmemlift_z.so, libmemlift_openssl.so, and those of `memlift run` and `memlift record`.
//!
//! - **Order** $MEMLIFT_DROPINS ─▶ the folder of this program ─▶ ../lib/memlift beside it, where a wheel or `make install` puts them
//! - **Not here** the current folder, where a stranger may have put a library; what the libraries do, and how a program is attached to them

use std::env;
use std::path::{Path, PathBuf};

/// A library of memlift that a program loads without being rebuilt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dropin {
    /// A libz, by LD_PRELOAD.
    Libz,
    /// A provider of OpenSSL 3, by OPENSSL_CONF.
    OpenSsl,
}

impl Dropin {
    /// All of them.
    pub const ALL: [Dropin; 2] = [Dropin::Libz, Dropin::OpenSsl];

    /// The name of its file.
    pub fn file(self) -> &'static str {
        match self {
            Dropin::Libz => "libmemlift_z.so",
            Dropin::OpenSsl => "libmemlift_openssl.so",
        }
    }

    /// The name of its crate.
    pub fn package(self) -> &'static str {
        match self {
            Dropin::Libz => "memlift-zlib",
            Dropin::OpenSsl => "memlift-openssl",
        }
    }

    /// How to get it, one line.
    pub fn advice(self) -> String {
        advice(self.file(), self.package())
    }

    /// Its file, absolute; None where it is not built.
    pub fn find(self) -> Option<PathBuf> {
        find(self.file())
    }
}

/// The library that is loaded into programs under `memlift run`, absolute; None where it is not built.
pub fn preload() -> Option<PathBuf> {
    find("libmemlift_preload.so")
}

/// The library that is loaded into programs under `memlift record`, absolute; None where it is not built.
pub fn tap() -> Option<PathBuf> {
    find("libmemlift_tap.so")
}

/// Says how to get a library, one line.
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

/// The drop-ins that are built, as arguments of the scripts of bench and tour.
pub fn arguments() -> Vec<String> {
    [("--libz", Dropin::Libz), ("--provider", Dropin::OpenSsl)]
        .into_iter()
        .filter_map(|(flag, dropin)| Some([flag.to_owned(), dropin.find()?.display().to_string()]))
        .flatten()
        .collect()
}
