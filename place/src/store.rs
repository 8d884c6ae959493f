// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The calibration on disk: JSON, one file per machine, in the user's cache folder.
//!
//! - **Flow** $MEMLIFT_CALIBRATION (or `engine.calibration`), otherwise $XDG_CACHE_HOME/memlift/calibration-DIGEST.json
//!   (or ~/.cache/…) ──▶ checked ──▶ `Loaded`
//! - **Order** written to a file beside and renamed, so that a reader sees the old file or the new one
//! - **Failure** if the file is missing, damaged, of another format, machine or instruction set, or was measured on a
//!   busy machine, the built-in numbers are used, and `Origin` gives the reason. If it cannot be written, the
//!   calibration stays in memory, and the caller gets an error.

use super::machine::Machine;
use super::model::{Calibration, FORMAT};
use super::{builtin, shapes};
use memlift_kernels::Isa;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Origin of a calibration.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Origin {
    /// The built-in numbers, assumed for this machine.
    Builtin {
        /// Reason that there is nothing better, and what to do about it.
        why: String,
    },
    /// The built-in numbers, because the machine was busy during its measurement.
    Untrusted {
        /// Signs that the machine was busy.
        why: String,
        /// Time of the measurement, seconds since 1970.
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

/// A calibration and its origin.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Loaded {
    /// The numbers in use.
    pub calibration: Calibration,
    /// Origin of the numbers.
    pub origin: Origin,
}

impl Loaded {
    /// Returns true if the numbers were measured on this machine.
    pub fn is_measured(&self) -> bool {
        matches!(self.origin, Origin::File { .. } | Origin::Measured)
    }

    /// Returns the built-in numbers, in place of those measured on a busy machine.
    pub fn untrusted(measured: &Calibration) -> Loaded {
        let origin = Origin::Untrusted { why: measured.trust.why.clone(), time_s: measured.time_s };
        Loaded { calibration: builtin::calibration(), origin }
    }
}

/// Reason that a calibration was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Neither variable names a folder.
    #[error("no cache folder is known: set XDG_CACHE_HOME or HOME, or MEMLIFT_CALIBRATION to a file")]
    NoFolder,
    /// The file system returned an error.
    #[error("cannot write {}: {source}; set MEMLIFT_CALIBRATION to a file that can be written", path.display())]
    Write {
        /// Path of the file that could not be written.
        path: PathBuf,
        /// Error of the file system.
        source: io::Error,
    },
}

/// Returns the path at which the calibration of `machine` is stored.
pub fn default_path(machine: &Machine) -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("memlift").join(format!("calibration-{}.json", machine.digest())))
}

/// Loads the calibration of this machine for the kernels of `isa` from `path` (or the default path); returns the
/// built-in one if there is none.
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

/// Most bytes of a calibration file.
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

/// Returns `path`, or the default path for `machine`.
pub fn default_or(path: Option<&Path>, machine: &Machine) -> Result<PathBuf, StoreError> {
    path.map(Path::to_owned).or_else(|| default_path(machine)).ok_or(StoreError::NoFolder)
}

/// Seconds after which a busy machine is measured again.
const RETRY_S: u64 = 3600;

/// Returns true if measuring is worthwhile: there are no numbers of this machine, and no attempt has failed
/// lately.
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

/// Writes `calibration` to `path` (or the default path); returns the path.
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
        // Best effort, because the folder may be the cause of the failure.
        let _ = fs::remove_file(&beside);
    }
    written
}
