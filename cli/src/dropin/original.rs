// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The merged openssl.cnf of a unit or a command: its path, and the original of which it is a copy.
//!
//! - **Layout** beside a unit's settings, or one file per command in the user's configuration; its first lines name the
//!   original
//! - **Not here** the merging: openssl_cnf.rs

use std::fs;
use std::path::{Path, PathBuf};

use super::files::sum;
use super::root::Root;
use super::subject::Subject;
use crate::failure::Failure;

/// Name of the merged file beside a unit's settings; systemd ignores it because it reads *.conf only.
pub const OPENSSL_FILE: &str = "memlift-openssl.cnf";
/// Start of the line in a copied openssl.cnf that gives the hash and the path of its original.
const BASE: &str = "# original ";

/// Returns the path of the merged configuration: beside the unit's settings, or one file per command in the user's
/// configuration.
pub fn openssl_file(subject: &Subject) -> Result<PathBuf, Failure> {
    if let Subject::Unit(unit) = subject {
        return Ok(unit.folder.join(OPENSSL_FILE));
    }
    let program = subject.program().unwrap_or_default();
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = folder.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".config")));
    let folder = folder.ok_or_else(|| {
        Failure::Unavailable("set HOME or XDG_CONFIG_HOME: the merged openssl.cnf goes there".into())
    })?;
    let sum = sum(&program.to_string_lossy());
    Ok(folder.join(format!("memlift/dropin/{name}-{sum:016x}.cnf")))
}

/// The openssl.cnf of which a copy is made.
#[derive(Debug)]
pub struct Base {
    /// Its path in the subject's system.
    pub inside: PathBuf,
    /// Its path on this machine.
    pub outside: PathBuf,
    /// Its whole text.
    pub text: String,
}

impl Base {
    /// Returns the first lines of a copy; [`outdated_remark`] reads the second one.
    pub fn heading(&self) -> String {
        format!(
            "# A copy with one provider more; the original is not read by whoever reads this one.\n{BASE}{:016x} {}\n",
            sum(&self.text),
            self.inside.display()
        )
    }
}

/// Returns a remark if the original of the copy that enable made for the subject has changed since.
pub fn outdated_remark(subject: &Subject, root: &Root) -> Option<String> {
    let copy = fs::read_to_string(openssl_file(subject).ok()?).ok()?;
    let stated = copy.lines().take(3).find_map(|line| line.strip_prefix(BASE))?;
    let (stated, base) = stated.split_once(' ')?;
    // --openssl-conf may have named a file outside of --root.
    let places = [root.outside(Path::new(base)), PathBuf::from(base)];
    let text = places.iter().find_map(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    (u64::from_str_radix(stated, 16).ok()? != sum(&text)).then(|| {
        format!(
            "{base} has changed since it was copied for {}: memlift dropin enable copies it again",
            subject.name()
        )
    })
}
