// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The calibration on disk: JSON, one file per machine, in the user's cache folder.
//!
//! - **Flow** $MEMLIFT_CALIBRATION (or `engine.calibration`), else
//!   $XDG_CACHE_HOME/memlift/calibration-DIGEST.json (or ~/.cache/…) ──▶ checked ──▶ `Loaded`
//! - **Order** written beside and renamed, so that a reader sees the old file or the new one
//! - **Failure** missing, damaged, of another format, another machine or another instruction set, or measured while the
//!   machine was busy: the built-in numbers serve, and `Origin` says why. Unwritable: the calibration stays in
//!   memory, and the caller is told.

use super::machine::Machine;
use super::model::{Calibration, FORMAT};
use super::{builtin, shapes};
use memlift_kernels::Isa;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Where a calibration came from.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Origin {
    /// The built-in numbers, assumed for this machine.
    Builtin {
        /// Why there is nothing better, and what to do about it.
        why: String,
    },
    /// The built-in numbers, because the machine was busy when it was measured.
    Untrusted {
        /// Signs that the machine was busy.
        why: String,
        /// When, seconds since 1970.
        time_s: u64,
    },
    /// Read from a calibration file.
    File {
        /// Path of the file.
        path: PathBuf,
    },
    /// Measured by this process.
    Measured,
}

/// A calibration and where it came from.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Loaded {
    /// The numbers in use.
    pub calibration: Calibration,
    /// Where they came from.
    pub origin: Origin,
}

impl Loaded {
    /// True if the numbers are of this machine.
    pub fn is_measured(&self) -> bool {
        matches!(self.origin, Origin::File { .. } | Origin::Measured)
    }

    /// The built-in numbers instead of those that were measured on a busy machine.
    pub fn untrusted(measured: &Calibration) -> Loaded {
        let origin = Origin::Untrusted { why: measured.trust.why.clone(), time_s: measured.time_s };
        Loaded { calibration: builtin::calibration(), origin }
    }
}

/// Why a calibration was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Neither variable names a folder.
    #[error("no cache folder is known: set XDG_CACHE_HOME or HOME, or MEMLIFT_CALIBRATION to a file")]
    NoFolder,
    /// The file system refused.
    #[error("cannot write {}: {source}; set MEMLIFT_CALIBRATION to a file that can be written", path.display())]
    Write {
        /// Path of the file that could not be written.
        path: PathBuf,
        /// Error of the file system.
        source: io::Error,
    },
}

/// Where the calibration of `machine` is kept.
pub fn default_path(machine: &Machine) -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("memlift").join(format!("calibration-{}.json", machine.digest())))
}

/// The calibration of this machine for the kernels of `isa` from `path` (or its usual place), or the built-in one.
pub fn load(path: Option<&Path>, isa: Isa) -> Loaded {
    let machine = Machine::read();
    let path = match default_or(path, &machine) {
        Ok(path) => path,
        Err(error) => return builtin(error.to_string()),
    };
    if !path.exists() {
        return builtin(format!(
            "this machine is not measured yet ({}); run `memlift calibrate`",
            path.display()
        ));
    }
    match read(&path, &machine, isa) {
        Ok(calibration) if !calibration.trust.trusted => Loaded::untrusted(&calibration),
        Ok(calibration) => Loaded { calibration, origin: Origin::File { path } },
        Err(why) => builtin(format!("{}: {why}; run `memlift calibrate`", path.display())),
    }
}

fn builtin(why: String) -> Loaded {
    Loaded { calibration: builtin::calibration(), origin: Origin::Builtin { why } }
}

/// A file this long is not one of ours.
const BYTES_MAX: u64 = 1 << 20;

fn read(path: &Path, machine: &Machine, isa: Isa) -> Result<Calibration, String> {
    let text = memlift_ground::input_file::text(path, BYTES_MAX).map_err(|error| error.to_string())?;
    let calibration: Calibration =
        serde_json::from_str(&text).map_err(|error| format!("damaged: {error}"))?;
    if calibration.format != FORMAT {
        return Err(format!("format {}, this version reads {FORMAT}", calibration.format));
    }
    if calibration.machine != *machine {
        return Err("measured on another machine or kernel".to_owned());
    }
    if calibration.isa != isa.name() {
        return Err(format!(
            "measured with the instruction set {}, this process uses {isa}",
            calibration.isa
        ));
    }
    if !calibration.model.is_sane() || !shapes::are_sane(&calibration.shapes) {
        return Err("damaged: coefficients out of range".to_owned());
    }
    Ok(calibration)
}

/// `path`, or the usual place for `machine`.
pub fn default_or(path: Option<&Path>, machine: &Machine) -> Result<PathBuf, StoreError> {
    path.map(Path::to_owned).or_else(|| default_path(machine)).ok_or(StoreError::NoFolder)
}

/// A busy machine is measured again after so many seconds.
const RETRY_S: u64 = 3600;

/// True if numbers of this machine are wanted: there are none, and none were measured in vain lately.
pub fn is_worth_measuring(loaded: &Loaded) -> bool {
    match loaded.origin {
        Origin::Builtin { .. } => true,
        Origin::Untrusted { time_s, .. } => {
            let now_s = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs());
            now_s.saturating_sub(time_s) >= RETRY_S
        }
        Origin::File { .. } | Origin::Measured => false,
    }
}

/// Keeps `calibration` at `path` (or its usual place); gives where.
pub fn save(calibration: &Calibration, path: Option<&Path>) -> Result<PathBuf, StoreError> {
    let path = default_or(path, &calibration.machine)?;
    let written = write(calibration, &path);
    written.map_err(|source| StoreError::Write { path: path.clone(), source })?;
    Ok(path)
}

fn write(calibration: &Calibration, path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".{}", std::process::id()));
    let beside = path.with_file_name(name);
    let mut opened = false;
    let written = (|| {
        let mut file = memlift_ground::own_file::open(&beside, |start| start.starts_with(b"{"))?;
        file.set_len(0)?;
        opened = true;
        serde_json::to_writer_pretty(&mut file, calibration)?;
        file.write_all(b"\n")?;
        fs::rename(&beside, path)
    })();
    if written.is_err() && opened {
        // Best effort: the folder may be what fails.
        let _ = fs::remove_file(&beside);
    }
    written
}
