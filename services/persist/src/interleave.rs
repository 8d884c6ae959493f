// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Creating and opening pools whose heap is interleaved over several files.
//!
//! - **Flow** open: each file locked ─▶ its header read ─▶ the headers say which file is which device, and whether all are there
//!   and of one pool and one time ─▶ mapped ─▶ `medium::Striped` ─▶ recovered as any pool
//! - **Order** a header is written to all devices and made durable before device 0 gets it. So what device 0 says of generation
//!   g, another one says of g, or of g + 1 when a crash came between; anything else is a file of another time
//! - **Rule** files get their names from the last device to the first: without device 0 there is no pool
//! - **Not here** which byte lies where: `medium::striped`

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memlift_ground::locked_file::LockedFile;

use crate::error::{Error, Result};
use crate::fresh::{Fresh, file_error};
use crate::image::MAPPINGS_MAX;
use crate::layout::{HEADER_BYTES, Header, LANES_START};
use crate::medium::{DEVICES_MAX, Geometry, Mapped, Medium, STRIPE_MAX, STRIPE_MIN, Striped, stripe_fits};
use crate::open;
use crate::options::{Mechanism, Options};
use crate::pool::Pool;
use crate::recover;

fn wrong<T>(what: String) -> Result<T> {
    Err(Error::Argument { what })
}

/// The header of a new interleaved pool, as device 0 has it.
pub(crate) fn new_header(options: &Options, devices: usize, pages: bool, uuid: [u8; 16]) -> Result<Header> {
    if !(2..=DEVICES_MAX).contains(&devices) {
        return wrong(format!("a pool of {devices} files: 1 to {DEVICES_MAX} are possible"));
    }
    if !matches!(options.mechanism, Mechanism::Redo | Mechanism::Checkpoint) {
        let name = options.mechanism.name();
        return wrong(format!(
            "mechanism {name}: interleaved pools are made with redo or checkpoint, whose commits wait for one file only"
        ));
    }
    let stripe = options.stripe_bytes;
    if !stripe_fits(stripe) {
        return wrong(format!("stripe_bytes: {stripe} (a power of two from {STRIPE_MIN} to {STRIPE_MAX})"));
    }
    let header = open::new_header(options, pages, uuid)?;
    if header.heap_bytes.div_ceil(stripe) > MAPPINGS_MAX {
        let least = (header.heap_bytes / MAPPINGS_MAX).next_power_of_two();
        return wrong(format!(
            "a heap of {} bytes in stripes of {stripe} takes more than {MAPPINGS_MAX} mappings: raise Options::stripe_bytes to {least}",
            header.heap_bytes
        ));
    }
    Ok(Header { devices: devices as u16, stripe_bytes: stripe, ..header })
}

/// Files that have their names, and go again when something fails before all have.
struct Files<'a> {
    named: Vec<&'a Path>,
}

impl Drop for Files<'_> {
    fn drop(&mut self) {
        for path in &self.named {
            let _ = std::fs::remove_file(path); // those that are there
        }
    }
}

/// Makes the files of a new pool.
fn create(paths: &[&Path], options: &Options) -> Result<()> {
    for (at, path) in paths.iter().enumerate() {
        if paths[..at].contains(path) {
            return wrong(format!("{} is named twice: each device is a file of its own", path.display()));
        }
        if path.symlink_metadata().is_ok() {
            return Err(Error::Exists { path: path.to_path_buf() });
        }
    }
    let pages = open::pages(&Fresh::file(paths[0])?, paths[0], options)?;
    let header = new_header(options, paths.len(), pages, open::random_uuid()?)?;
    let geometry = Geometry::of(&header)?;
    let mut all = Vec::new();
    let mut devices = Vec::new();
    for (at, path) in paths.iter().enumerate() {
        let fresh = Fresh::file(path)?;
        let file = fresh.open()?;
        let bytes = geometry.device_bytes(at as u64, header.file_bytes());
        let zeros = if at == 0 { LANES_START } else { 2 * HEADER_BYTES };
        open::allocate(&file, path, bytes, zeros, header.heap_start)?;
        all.push(fresh);
        devices.push(Medium::Mapped(Mapped::new(file, path, bytes, options.domain, true)?));
    }
    open::format(&Medium::Striped(Striped::new(devices, geometry, header.file_bytes(), false)), &header)?;
    let mut files = Files { named: Vec::new() };
    for (fresh, path) in all.into_iter().zip(paths).rev() {
        fresh.publish()?;
        files.named.push(path);
    }
    files.named.clear(); // they stay
    Ok(())
}

/// A locked file and its header.
struct Found<'a> {
    path: &'a Path,
    file: LockedFile,
    header: Header,
}

/// Puts the files in the order of their devices; refuses what is not one whole pool.
fn sort(found: Vec<Found<'_>>) -> Result<Vec<Found<'_>>> {
    let (first, count) = (&found[0], found[0].header.devices);
    for one in &found {
        let path = one.path.display();
        if one.header.devices == 1 {
            return wrong(format!("{path} is a pool of one file: open it with Pool::open"));
        }
        if one.header.uuid != first.header.uuid {
            return wrong(format!(
                "{path} belongs to another pool than {}: name the files of one pool",
                first.path.display()
            ));
        }
        if one.header.devices != count {
            return Err(Error::corrupt(format!(
                "{path} says that the pool has {} files, {} says {count}",
                one.header.devices,
                first.path.display()
            )));
        }
    }
    let mut places: Vec<Option<Found<'_>>> = (0..count).map(|_| None).collect();
    for one in found {
        let place = &mut places[usize::from(one.header.device)];
        if let Some(other) = place {
            return wrong(format!(
                "{} and {} are both device {} of the pool: one of them is a copy; name the other devices instead",
                other.path.display(),
                one.path.display(),
                one.header.device
            ));
        }
        *place = Some(one);
    }
    let missing: Vec<String> =
        (0..places.len()).filter(|at| places[*at].is_none()).map(|at| at.to_string()).collect();
    if !missing.is_empty() {
        return wrong(format!("the pool has {count} files, and device {} is missing", missing.join(", ")));
    }
    Ok(places.into_iter().flatten().collect())
}

/// Checks that the headers of the other devices agree with device 0, and that each file is as long as it must be.
fn agree(found: &[Found<'_>], geometry: Geometry) -> Result<()> {
    let log = &found[0].header;
    for (at, one) in found.iter().enumerate() {
        let (header, path) = (&one.header, one.path.display());
        let shape =
            |h: &Header| (h.stripe_bytes, h.heap_start, h.mechanism, h.lanes, h.lane_bytes, h.sections);
        if shape(header) != shape(log) {
            return Err(Error::corrupt(format!("device {at} ({path}) describes another pool than device 0")));
        }
        if header.generation < log.generation || header.generation - log.generation > 1 {
            let older = if header.generation < log.generation { at } else { 0 };
            return Err(Error::corrupt(format!(
                "device 0 is of generation {}, device {at} ({path}) of {}: device {older} is a file of an earlier time; take all files from one backup",
                log.generation, header.generation
            )));
        }
        let wanted = geometry.device_bytes(at as u64, log.file_bytes());
        let bytes = one.file.metadata().map_err(file_error("stat", one.path))?.len();
        if bytes < wanted {
            return Err(Error::corrupt(format!(
                "device {at} ({path}) has {bytes} bytes and should have {wanted}: it was truncated"
            )));
        }
    }
    Ok(())
}

/// Opens the files of a pool, in whatever order, as one medium.
fn medium(paths: &[&Path], options: &Options) -> Result<Medium> {
    let mut found: Vec<Found<'_>> = Vec::with_capacity(paths.len());
    let mut seen = Vec::with_capacity(paths.len());
    for path in paths {
        let about = std::fs::metadata(path).map_err(file_error("open", path))?;
        if let Some(other) = seen.iter().position(|one| *one == (about.dev(), about.ino())) {
            return wrong(format!("{} and {} are one file", paths[other].display(), path.display()));
        }
        seen.push((about.dev(), about.ino()));
        let file = open::lock_file(path, options)?;
        let header = recover::header_of(&file, path)?;
        found.push(Found { path, file, header });
    }
    let most = |geometry: &Geometry, header: &Header| {
        geometry.heap_start + options.max_bytes.clamp(header.heap_bytes, 1 << 43)
    };
    sorted(found, options.sync_every_device, |at, file, path, geometry, header| {
        let reserve = geometry.device_bytes(at, most(geometry, header));
        Mapped::new(file, path, reserve, options.domain, !options.read_only)
    })
}

/// One medium of files that the caller has locked, in whatever order; `map` gets each with the bytes that it has.
pub(crate) fn of_files(
    files: Vec<LockedFile>,
    paths: &[PathBuf],
    map: impl Fn(LockedFile, &Path, u64) -> Result<Mapped>,
) -> Result<Medium> {
    let mut found = Vec::with_capacity(files.len());
    for (file, path) in files.into_iter().zip(paths) {
        let header = recover::header_of(&file, path)?;
        found.push(Found { path, file, header });
    }
    sorted(found, false, |at, file, path, geometry, header| {
        map(file, path, geometry.device_bytes(at, header.file_bytes()))
    })
}

/// The paths in the order of their devices.
pub(crate) fn in_order(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let found = paths.iter().map(|path| {
        let file = File::open(path).map_err(file_error("open", path))?;
        Ok(Found { header: recover::header_of(&file, path)?, path, file: file.into() })
    });
    Ok(sort(found.collect::<Result<_>>()?)?.into_iter().map(|one| one.path.to_owned()).collect())
}

fn sorted(
    found: Vec<Found<'_>>,
    every: bool,
    map: impl Fn(u64, LockedFile, &Path, &Geometry, &Header) -> Result<Mapped>,
) -> Result<Medium> {
    let found = sort(found)?;
    let header = found[0].header;
    let mechanism = Mechanism::from_byte(header.mechanism);
    if !matches!(mechanism, Some(Mechanism::Redo | Mechanism::Checkpoint)) {
        return Err(Error::corrupt("the header says interleaved and a mechanism that is not"));
    }
    let geometry = Geometry::of(&header)?;
    agree(&found, geometry)?;
    let mut devices = Vec::with_capacity(found.len());
    for (at, Found { path, file, .. }) in found.into_iter().enumerate() {
        devices.push(Medium::Mapped(map(at as u64, file, path, &geometry, &header)?));
    }
    let striped = Striped::new(devices, geometry, header.file_bytes(), every);
    Ok(Medium::Striped(striped))
}

impl Pool {
    /// Creates a pool whose heap is interleaved over several files, best on as many devices: bandwidth adds up, and a commit
    /// still waits for one sync only, that of the log in the first file (see [`Options::sync_every_device`]). A crash
    /// meanwhile leaves a whole pool, or files without the first one, which are no pool and may be removed.
    ///
    /// # Errors
    ///
    /// As [`Pool::create`]; [`Error::Argument`] for a mechanism other than redo and checkpoint, and for a stripe
    /// ([`Options::stripe_bytes`]) that does not fit.
    pub fn create_interleaved(paths: &[impl AsRef<Path>], options: &Options) -> Result<Pool> {
        let paths: Vec<&Path> = paths.iter().map(AsRef::as_ref).collect();
        if let [only] = paths[..] {
            return Pool::create(only, options);
        }
        create(&paths, options)?;
        Pool::open_interleaved(&paths, options)
    }

    /// Opens such a pool and recovers it. The order of the paths does not matter: each file says which one it is.
    ///
    /// # Errors
    ///
    /// As [`Pool::open`]; [`Error::Argument`] when files are missing, named twice, or of another pool; [`Error::Corrupt`] when
    /// one is of another time, or too short.
    pub fn open_interleaved(paths: &[impl AsRef<Path>], options: &Options) -> Result<Pool> {
        let paths: Vec<&Path> = paths.iter().map(AsRef::as_ref).collect();
        match paths[..] {
            [] => wrong("a pool has one file at least: name it".to_owned()),
            [only] => Pool::open(only, options),
            _ => open::in_turn(options, || open::open_medium(medium(&paths, options)?, options))
                .map(Pool::of_files),
        }
    }

    /// Syncs of each file since the pool was opened, recovery included; where lines are durable, store fences, which are of no
    /// file and are counted for the first one.
    pub fn device_syncs(&self) -> Vec<u64> {
        match self.store().medium.device_syncs() {
            one if one.is_empty() => vec![self.counters().hardens + self.applier_counters().hardens],
            many => many,
        }
    }
}
