// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Applies the file and the environment to the defaults.
//!
//! - **Flow** [`search_path`] ──▶ [`first_file`] ──▶ [`apply_file`] ──▶ [`apply_variables`]
//! - **Order** only the first file that exists is used; a file that MEMLIFT_CONFIG names must exist. At the customary paths, a file
//!   that this user may not read and does not own counts as missing

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::input_file;

use super::keys::{KEYS, Key};
use super::{Kind, Origin, Value};

/// Reason that the configuration could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{}: {source}; make it readable, or unset MEMLIFT_CONFIG", path.display())]
    Unreadable {
        /// The file's path.
        path: PathBuf,
        /// Error of the read.
        #[source]
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{}: not valid TOML; correct this: {detail}", path.display())]
    Syntax {
        /// The file's path.
        path: PathBuf,
        /// Position and kind of the error.
        detail: String,
    },
    /// The file has an unknown key.
    #[error("{}: unknown key `{key}`; remove it, or use one of: {known}", path.display())]
    UnknownKey {
        /// The file's path.
        path: PathBuf,
        /// The key, as written in the file.
        key: String,
        /// All existing keys, for the message.
        known: String,
    },
    /// A value is not allowed.
    #[error("{origin}: `{value}` is not allowed for `{key}`; use {allowed}")]
    BadValue {
        /// File or variable that contains the value.
        origin: Origin,
        /// Full name of the key.
        key: &'static str,
        /// The value, as it was written.
        value: String,
        /// The allowed values, as text.
        allowed: String,
    },
}

/// A path where the file may be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Candidate {
    /// Named by the user; the file must exist.
    Named(PathBuf),
    /// A customary path; the file may be missing.
    Customary(PathBuf),
}

impl Candidate {
    /// Returns the path of either kind.
    pub fn path(&self) -> &Path {
        match self {
            Candidate::Named(path) | Candidate::Customary(path) => path,
        }
    }
}

/// Returns the paths to search, best first.
pub(super) fn search_path(variable: impl Fn(&str) -> Option<OsString>) -> Vec<Candidate> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = set("MEMLIFT_CONFIG") {
        return vec![Candidate::Named(path)];
    }
    let mut candidates = vec![Candidate::Customary(PathBuf::from("memlift.toml"))];
    // The XDG specification requires that relative paths are ignored.
    let folder = set("XDG_CONFIG_HOME")
        .filter(|folder| folder.is_absolute())
        .or_else(|| set("HOME").map(|home| home.join(".config")));
    candidates.extend(folder.map(|folder| Candidate::Customary(folder.join("memlift/memlift.toml"))));
    candidates
}

/// Most bytes of a configuration file.
const FILE_BYTES_MAX: u64 = 1 << 20;

pub(super) fn first_file(candidates: &[Candidate]) -> Result<Option<(PathBuf, String)>, ConfigError> {
    for candidate in candidates {
        let path = candidate.path().to_owned();
        match input_file::text(&path, FILE_BYTES_MAX) {
            Ok(text) => return Ok(Some((path, text))),
            Err(error)
                if matches!(candidate, Candidate::Customary(_))
                    && matches!(
                        error.kind(),
                        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                    ) => {}
            Err(error)
                if matches!(candidate, Candidate::Customary(_))
                    && error.kind() == std::io::ErrorKind::PermissionDenied
                    && !is_own(&path) => {}
            Err(source) => return Err(ConfigError::Unreadable { path, source }),
        }
    }
    Ok(None)
}

/// Returns true if this user owns the file at `path`. A process that has dropped its rights may still have the HOME or the
/// folder of another user, whose file it cannot read and should not use.
fn is_own(path: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    path.symlink_metadata().is_ok_and(|stat| std::os::unix::fs::MetadataExt::uid(&stat) == own)
}

pub(super) fn apply_file(values: &mut [(Value, Origin)], path: &Path, text: &str) -> Result<(), ConfigError> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| ConfigError::Syntax {
        path: path.to_owned(),
        detail: error.to_string().trim().to_owned(),
    })?;
    let unknown = |key: &str| ConfigError::UnknownKey {
        path: path.to_owned(),
        key: key.to_owned(),
        known: KEYS.iter().map(|key| key.name).collect::<Vec<_>>().join(", "),
    };
    for (section, content) in &table {
        let toml::Value::Table(content) = content else { return Err(unknown(section)) };
        for (name, value) in content {
            let name = format!("{section}.{name}");
            let index = KEYS.iter().position(|key| key.name == name).ok_or_else(|| unknown(&name))?;
            let origin = Origin::File(path.to_owned());
            let parsed = KEYS[index]
                .kind
                .parse_toml(value)
                .ok_or_else(|| bad(&KEYS[index], toml_text(value), origin.clone()))?;
            values[index] = (parsed, origin);
        }
    }
    Ok(())
}

/// Applies the variables to the values; returns the `MEMLIFT_*` names that belong to no key.
pub(super) fn apply_variables(
    values: &mut [(Value, Origin)],
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<String>, ConfigError> {
    let mut unknown = Vec::new();
    for (name, text) in variables {
        let Some(name) = name.to_str().filter(|name| name.starts_with("MEMLIFT_")) else { continue };
        if name == "MEMLIFT_CONFIG" || text == OsStr::new("") {
            continue;
        }
        let Some(index) = KEYS.iter().position(|key| key.variable() == name) else {
            unknown.push(name.to_owned());
            continue;
        };
        let origin = Origin::Environment(name.to_owned());
        let parsed = match (KEYS[index].kind, text.to_str()) {
            // `facility` warns of unknown names, because a typo there must not stop a program.
            (Kind::Facilities, Some(text)) => Some(Value::Text(text.to_owned())),
            (kind, text) => text.and_then(|text| kind.parse(text)),
        };
        let parsed =
            parsed.ok_or_else(|| bad(&KEYS[index], text.to_string_lossy().into_owned(), origin.clone()))?;
        values[index] = (parsed, origin);
    }
    unknown.sort();
    Ok(unknown)
}

fn bad(key: &Key, value: String, origin: Origin) -> ConfigError {
    ConfigError::BadValue { origin, key: key.name, value, allowed: key.kind.allowed() }
}

fn toml_text(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
