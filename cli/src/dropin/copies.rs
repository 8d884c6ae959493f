// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds a program's copies of zlib and OpenSSL, and finds out which of them a drop-in can replace.
//!
//! - **Flow** files (maps of a process, or the libraries that a program needs, searched as the loader does) ─▶ one [`Copy`] per
//!   library, or per copy inside a file
//! - **Kinds** system: libz.so.1 or libcrypto.so.3 of the distribution · bundled: the same as a shared library elsewhere (conda,
//!   a wheel's NAME.libs) · static: compiled into a program or into another library
//! - **Reach** a shared libz is replaced by LD_PRELOAD, because symbols are looked up in load order; a static one is not.
//!   OpenSSL from 3.0 on reads OPENSSL_CONF, even if it is compiled in, unless it was built without modules
//! - **Signs** the symbols deflate and inflate; the texts `deflate 1.… Copyright`, `OpenSSL 3.…` and `CRYPTOGAMS by` (its
//!   assembly) that the libraries contain

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use memlift_cli::libraries::Dropin;

use super::elf::{Object, Unfit};
use super::root::Root;

/// Limits of the search in the modules of a Python or a Java: number of files, their bytes, and depth below the folder.
const MODULES_MAX: usize = 4000;
const MODULES_BYTES_MAX: u64 = 4 << 30;
const MODULES_DEPTH: usize = 6;

/// Way in which a copy came into the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The distribution's shared library.
    System,
    /// A shared library from elsewhere.
    Bundled,
    /// Compiled into another file.
    Static,
}

impl Kind {
    /// Returns the name that tables and JSON show.
    pub fn name(self) -> &'static str {
        match self {
            Kind::System => "system",
            Kind::Bundled => "bundled",
            Kind::Static => "static",
        }
    }
}

/// One copy of a library.
#[derive(Debug)]
pub struct Copy {
    /// The drop-in that replaces it.
    pub dropin: Dropin,
    /// Kind of the copy.
    pub kind: Kind,
    /// The file that contains the copy.
    pub path: PathBuf,
    /// The version that the copy reports.
    pub version: String,
    /// True if the drop-in replaces the copy.
    pub reached: bool,
    /// Reason for `reached`, or a step that the user can take.
    pub remark: String,
}

/// Result of the search.
#[derive(Debug, Default)]
pub struct Found {
    /// The copies, without duplicates.
    pub copies: Vec<Copy>,
    /// Needed libraries that were not found, and other limits of the search.
    pub remarks: Vec<String>,
}

/// Searches the files that are loaded into a process.
pub fn of_files(files: &[PathBuf]) -> Found {
    let mut found = Found::default();
    for path in files {
        if let Ok(object) = Object::read(path) {
            found.copies.extend(copies_in(path, &object, &Root::default()));
        }
    }
    found
}

/// Searches a program and its libraries; for a Python also its extension modules.
pub fn of_program(named: &Path, root: &Root) -> Result<Found, String> {
    let mut found = Found::default();
    let resolved = |path: &Path| {
        let path = root.outside(path);
        path.canonicalize().unwrap_or(path)
    };
    let mut program = resolved(named);
    for _ in 0..4 {
        match Object::read(&program) {
            Ok(_) => break,
            Err(Unfit::Script(line)) => {
                let next = interpreter(&line)
                    .ok_or_else(|| format!("{}: its interpreter `{line}` is not here", program.display()))?;
                let script = program.display();
                found.remarks.push(format!(
                    "{script} is a script of {}; name the program that it starts, or a process",
                    next.display()
                ));
                program = resolved(&next);
            }
            Err(Unfit::Unreadable(error)) => return Err(format!("{}: {error}", program.display())),
            Err(Unfit::Other) => return Err(format!("{} is no 64-bit program", program.display())),
        }
    }
    let mut waiting = vec![program.clone()];
    // A virtual environment's Python is a link to another Python, and has packages of its own.
    let named = root.outside(named);
    let own = [&named, &program].into_iter().flat_map(|one| modules(&program, one));
    let own: HashSet<PathBuf> = own.map(|path| path.canonicalize().unwrap_or(path)).collect();
    waiting.extend(own.iter().cloned());
    let mut seen = HashSet::new();
    while let Some(path) = waiting.pop() {
        let path = path.canonicalize().unwrap_or(path);
        if !seen.insert(path.clone()) {
            continue;
        }
        let Ok(object) = Object::read(&path) else { continue };
        found.copies.extend(copies_in(&path, &object, root));
        for name in &object.needed {
            match library(name, &object.paths, &path, root) {
                Some(next) => waiting.push(next),
                // A module's own libraries are loaded before it, from wherever its package keeps them.
                None if own.contains(&path) => {}
                None => found.remarks.push(format!("{name}, which {} needs, was not found", path.display())),
            }
        }
    }
    found.copies.sort_by(|a, b| (a.dropin.file(), &a.path).cmp(&(b.dropin.file(), &b.path)));
    found.remarks.sort();
    found.remarks.dedup();
    Ok(found)
}

/// Returns the program that a `#!` line names.
fn interpreter(line: &str) -> Option<PathBuf> {
    let mut words = line.split_whitespace();
    let first = words.next()?;
    if !first.ends_with("/env") {
        return Some(PathBuf::from(first)).filter(|path| path.is_file());
    }
    let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|place| place.join(name))
        .find(|path| path.is_file())
}

/// Returns the path at which the loader finds a library: in RUNPATH, LD_LIBRARY_PATH, the system's folders.
fn library(name: &str, paths: &[String], user: &Path, root: &Root) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(root.outside(Path::new(name))).filter(|path| path.is_file());
    }
    let user = root.inside(user)?;
    let origin = user.parent()?.to_string_lossy();
    let own = paths
        .iter()
        .map(|path| PathBuf::from(path.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin)));
    let variable = std::env::var_os("LD_LIBRARY_PATH").filter(|_| root.is_this_machine()).unwrap_or_default();
    own.chain(std::env::split_paths(&variable))
        .chain(system_folders(root))
        .map(|folder| root.outside(&folder.join(name)))
        .find(|path| path.is_file())
}

/// Returns the loader's folders: those of the distributions, and those in /etc/ld.so.conf.d.
fn system_folders(root: &Root) -> Vec<PathBuf> {
    let machine = std::env::consts::ARCH;
    let mut folders = Vec::new();
    for file in
        std::fs::read_dir(root.outside(Path::new("/etc/ld.so.conf.d"))).into_iter().flatten().flatten()
    {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        folders.extend(text.lines().map(str::trim).filter(|line| line.starts_with('/')).map(PathBuf::from));
    }
    for base in ["/lib", "/usr/lib", "/usr/local/lib"] {
        folders.extend(
            [format!("{base}/{machine}-linux-gnu"), format!("{base}64"), base.to_owned()].map(PathBuf::from),
        );
    }
    folders
}

/// Returns true if the loader finds the file without settings, in one of the distribution's folders.
fn of_the_system(path: &Path, root: &Root) -> bool {
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    let local = root.outside(Path::new("/usr/local"));
    folder.is_some_and(|folder| {
        !folder.starts_with(local)
            && system_folders(root)
                .iter()
                .any(|one| root.outside(one).canonicalize().is_ok_and(|one| one == folder))
    })
}

/// Returns the files that a program loads itself, without the loader: a Python's extension modules and its wheels'
/// libraries, a Java's own libraries. They lie near the folder of `named`, which is the program or a link to it.
fn modules(program: &Path, named: &Path) -> Vec<PathBuf> {
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(prefix) = named.parent().and_then(Path::parent) else { return Vec::new() };
    let mut waiting = match name.strip_prefix("python").filter(|rest| rest.starts_with('3')) {
        Some(version) => {
            let library = prefix.join("lib").join(format!("python{version}"));
            vec![(library.join("lib-dynload"), 0), (library.join("site-packages"), 0)]
        }
        // The program is JAVA_HOME/bin/java; version 8 has one folder level more.
        None if name == "java" && prefix.join("lib/libjava.so").is_file() => vec![(prefix.join("lib"), 0)],
        None if name == "java" && prefix.join("lib/amd64").is_dir() => vec![(prefix.join("lib/amd64"), 0)],
        None => return Vec::new(),
    };
    let (mut modules, mut bytes) = (Vec::new(), 0);
    while let Some((folder, depth)) = waiting.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            // Links are skipped: their targets lie in one of these folders, or are found as needed libraries.
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && depth < MODULES_DEPTH {
                waiting.push((path, depth + 1));
            } else if kind.is_file() && (name.ends_with(".so") || name.contains(".so.")) {
                bytes += entry.metadata().map_or(0, |meta| meta.len());
                if modules.len() < MODULES_MAX && bytes < MODULES_BYTES_MAX {
                    modules.push(path);
                }
            }
        }
    }
    modules
}

/// Returns the copies in one file: the file itself, or copies compiled into it.
fn copies_in(path: &Path, object: &Object, root: &Root) -> Vec<Copy> {
    let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if file.starts_with("libmemlift_") {
        return Vec::new();
    }
    // The name of the file or its soname is that of the library, possibly as renamed by wheels: libz-1a2b3c.so.1.2.11
    let named = |stem: &str| {
        let own = |name: &str| {
            name.strip_prefix(stem).is_some_and(|rest| rest.starts_with(".so") || rest.starts_with('-'))
        };
        own(file) || object.name.as_deref().is_some_and(own)
    };
    let kind = || if of_the_system(path, root) { Kind::System } else { Kind::Bundled };
    let path = path.to_owned();
    let mut copies = Vec::new();
    let deflate = || {
        let fits =
            |text: &str| text.contains("Copyright") && text.as_bytes().get(8).is_some_and(u8::is_ascii_digit);
        object.find_text("deflate ", fits).map(|text| zlib_version(&text))
    };
    if named("libz") && object.defines("deflate") {
        let version = deflate().unwrap_or_else(|| "unknown".to_owned());
        let remark = "a shared library: LD_PRELOAD comes before it".to_owned();
        copies.push(Copy {
            dropin: Dropin::Libz,
            kind: kind(),
            path: path.clone(),
            version,
            reached: true,
            remark,
        });
    } else if let Some(version) = deflate() {
        let remark =
            "compiled in: no drop-in reaches it; build or install the program with the system's zlib"
                .to_owned();
        copies.push(Copy {
            dropin: Dropin::Libz,
            kind: Kind::Static,
            path: path.clone(),
            version,
            reached: false,
            remark,
        });
    }
    let shared = named("libcrypto") && object.defines("EVP_EncryptUpdate");
    // Programs that only use OpenSSL also contain the version text, from their build.
    let inside = || object.find_text("CRYPTOGAMS by ", |_| true).is_some();
    if let Some(version) = object.find_text("OpenSSL ", openssl_version).filter(|_| shared || inside()) {
        let version = version.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        let third = version.as_bytes().get(8).is_some_and(|digit| (b'3'..=b'9').contains(digit));
        let (kind, reached) = if shared { (kind(), third) } else { (Kind::Static, false) };
        let remark = match (shared, third) {
            (_, false) => "older than OpenSSL 3: it knows no providers",
            (true, true) => "it reads OPENSSL_CONF",
            (false, true) => {
                "compiled in: OPENSSL_CONF reaches it unless it was built without modules; memlift dropin status proves it"
            }
        };
        copies.push(Copy {
            dropin: Dropin::OpenSsl,
            kind,
            path,
            version,
            reached,
            remark: remark.to_owned(),
        });
    }
    copies
}

/// Returns true for a version text of libcrypto, like `OpenSSL 3.0.17 1 Jul 2025`, and not for OpenSSL's name in another
/// message.
fn openssl_version(text: &str) -> bool {
    let rest = &text["OpenSSL ".len()..];
    let mut words = rest.split_whitespace();
    let number = words.next().unwrap_or_default();
    let dots = number.bytes().filter(|byte| *byte == b'.').count();
    let plain = number.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-+".contains(&byte));
    let dated =
        words.next().is_some_and(|day| day.len() <= 2 && day.bytes().all(|byte| byte.is_ascii_digit()));
    number.starts_with(|digit: char| digit.is_ascii_digit()) && dots == 2 && plain && dated
}

fn zlib_version(text: &str) -> String {
    format!("zlib {}", text.split_whitespace().nth(1).unwrap_or("unknown"))
}

/// Returns the configuration folder that was built into a libcrypto.
pub fn openssl_folder(library: &Path) -> Option<PathBuf> {
    let object = Object::read(library).ok()?;
    let text = object.find_text("OPENSSLDIR: \"", |_| true)?;
    let folder = text.split('"').nth(1)?;
    Some(PathBuf::from(folder)).filter(|folder| folder.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(bytes: &[u8], defines: &[&str], name: Option<&str>) -> Object {
        Object {
            bytes: bytes.to_vec(),
            defines: defines.iter().map(|&name| name.to_owned()).collect(),
            name: name.map(str::to_owned),
            ..Object::default()
        }
    }

    #[test]
    fn shared_bundled_and_static_copies_are_told_apart() {
        let zlib = b"\0 deflate 1.2.11 Copyright 1995-2017 Jean-loup Gailly\0";
        let wheel = copies_in(
            Path::new("/opt/app/app.libs/libz-0ab1.so.1.2.11"),
            &object(zlib, &["deflate"], None),
            &Root::default(),
        );
        assert_eq!(
            (wheel[0].kind, wheel[0].reached, wheel[0].version.as_str()),
            (Kind::Bundled, true, "zlib 1.2.11")
        );
        let inside = copies_in(Path::new("/opt/app/server"), &object(zlib, &[], None), &Root::default());
        assert_eq!((inside[0].kind, inside[0].reached), (Kind::Static, false));
        let mentions = copies_in(
            Path::new("/opt/app/server"),
            &object(b"cannot deflate it", &[], None),
            &Root::default(),
        );
        assert!(mentions.is_empty());
    }

    #[test]
    fn only_an_openssl_of_providers_is_reached() {
        let of = |text: &[u8], file: &str| {
            copies_in(Path::new(file), &object(text, &["EVP_EncryptUpdate"], None), &Root::default())
        };
        let old = of(b"\0OpenSSL 1.1.1w  11 Sep 2023\0", "/opt/lib/libcrypto.so.1.1");
        assert_eq!((old[0].kind, old[0].reached), (Kind::Bundled, false));
        let new = of(b"\0OpenSSL 3.0.17 1 Jul 2025\0", "/opt/lib/libcrypto.so.3");
        assert_eq!((new[0].reached, new[0].version.as_str()), (true, "OpenSSL 3.0.17"));
        let built = b"built with OpenSSL 3.5.1 1 Jul 2025\0";
        assert!(of(built, "/opt/app/server").is_empty());
        let inside =
            of(b"\0OpenSSL 3.5.1 1 Jul 2025\0CRYPTOGAMS by <appro@openssl.org>\0", "/opt/app/_rust.abi3.so");
        assert_eq!((inside[0].kind, inside[0].reached), (Kind::Static, false));
        assert!(of(b"\0OpenSSL 1.1.1 or newer is needed\0", "/opt/app/x").is_empty());
    }
}
