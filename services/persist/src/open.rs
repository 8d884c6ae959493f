// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Creating and opening pools.
//!
//! - **Create** a file without a name gets its size and contents, is made durable, and is then linked to its name: a crash leaves
//!   a whole pool or none
//! - **Open** lock (flock) ─▶ map ─▶ recover ─▶ image ─▶ directory read: free slabs, and which slabs each section can look for
//!   slots in. No object is touched, so the time does not grow with the data
//! - **Reading** with `Options::read_only` the file is mapped privately and recovered there: a pool that nobody closed is read as
//!   the next writer will find it, and the file stays as it is
//! - **Reading beside a writer** the file is locked: its owner is asked for a snapshot (`readers`)
//! - **Owner** one opener at a time; the lock goes with the descriptor, also when the process dies

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use memlift_ground::locked_file::LockedFile;
use rustix::io::Errno;

use crate::beside::WriterSnapshot;
use crate::biased::Biased;
use crate::catalog::Catalog;
use crate::check::types::Types;
use crate::checksums::{Checksums, Plan, damaged};
use crate::error::{Error, Result};
use crate::fresh::{Fresh, file_error};
use crate::heap::{FreeSlabs, walk};
use crate::holes::Holes;
use crate::image::{Image, Kind};
use crate::lane::Lane;
use crate::layout::{
    Entry, FEATURE_CHECKSUMS, FEATURE_CLAIMS, HEAP_BYTES_MIN, Header, LANES_MAX, LANES_START, LaneHead,
    SLAB_BYTES, SUPERBLOCK_SLAB, ZONE_SLABS, is_system,
};
use crate::medium::{Counters, Mapped, Medium};
use crate::options::{Mechanism, Options};
use crate::readers;
use crate::recover::{self, Loss, Recovered, State};
use crate::renew::fill_directory;
use crate::section::Section;
use crate::shadow::{self, Shadow};
use crate::span::Covered;
use crate::store::{Parts, Store};

/// Alignment of heaps in the file, in bytes, unless they are small.
const ALIGN: u64 = 2 << 20;

/// The header of a new pool. `pages`: they are what becomes durable.
pub(crate) fn new_header(options: &Options, pages: bool, uuid: [u8; 16]) -> Result<Header> {
    let wrong = |what: String| Err(Error::Argument { what });
    if !(2..=LANES_MAX).contains(&options.lanes) {
        return wrong(format!("lanes: {} (2 to {LANES_MAX} are possible)", options.lanes));
    }
    if !(1..=1 << 16).contains(&options.sections) {
        return wrong(format!("sections: {} (1 to 65536 are possible)", options.sections));
    }
    let lane_bytes = options.lane_bytes.max(4096).checked_next_power_of_two().unwrap_or(u64::MAX);
    if !(4096..=1 << 32).contains(&lane_bytes) {
        return wrong(format!("lane_bytes: {} (4096 to 4 GiB are possible)", options.lane_bytes));
    }
    let heap_bytes = options.heap_bytes.max(HEAP_BYTES_MIN).next_multiple_of(SLAB_BYTES);
    if heap_bytes > 1 << 43 {
        return wrong(format!("heap_bytes: {} (8 TiB are the most)", options.heap_bytes));
    }
    let end = LANES_START + u64::from(options.lanes) * lane_bytes;
    let end = if options.mechanism == Mechanism::Shadow {
        end + shadow::table_bytes(options.max_bytes.max(heap_bytes))
    } else {
        end
    };
    // The hole in between costs nothing.
    let align = if heap_bytes.max(options.max_bytes) >= 8 * ALIGN { ALIGN } else { 4096 };
    let header = Header {
        generation: 1,
        uuid,
        compat: 0,
        ro_compat: 0,
        incompat: FEATURE_CLAIMS,
        mechanism: options.mechanism as u8,
        lanes: options.lanes,
        lane_bytes,
        heap_start: end.next_multiple_of(align),
        heap_bytes,
        sections: options.sections,
        epoch: 1,
        clean: true,
        device: 0,
        devices: 1,
        stripe_bytes: 0,
        checksum_index: 0,
        checksum_chunks: 0,
    };
    let possible = pages && matches!(options.mechanism, Mechanism::Redo | Mechanism::Checkpoint);
    Ok(if possible && options.checksums { with_checksums(&header) } else { header })
}

/// The places of the checksums of a heap without objects: its first slabs.
fn checksum_plan(heap_bytes: u64) -> Plan {
    Plan::new(heap_bytes / SLAB_BYTES, SUPERBLOCK_SLAB + 1, None, 0)
}

fn with_checksums(header: &Header) -> Header {
    // One slab at least is for objects.
    let plan = match checksum_plan(header.heap_bytes) {
        plan if plan.end < plan.slabs => plan,
        plan => checksum_plan((plan.slabs + 1) * SLAB_BYTES),
    };
    Header {
        incompat: header.incompat | FEATURE_CHECKSUMS,
        checksum_index: plan.index as u32,
        checksum_chunks: plan.chunks.len() as u32,
        heap_bytes: plan.slabs * SLAB_BYTES,
        ..*header
    }
}

/// Writes an empty pool to a medium that is zero and long enough. Durable when its maker has synced the file, which it does
/// before the file gets its name.
pub(crate) fn format(medium: &Medium, header: &Header) -> Result<()> {
    let mut counters = Counters::default();
    for lane in 0..header.lanes {
        for turn in 0..2 {
            medium.store(LaneHead::offset(lane, turn), &LaneHead::default().encode(), &mut counters)?;
        }
    }
    let system = Entry { tag: Entry::TAG_SYSTEM, state: Entry::SYSTEM, ..Entry::default() };
    for slab in (0..ZONE_SLABS).filter(|slab| is_system(*slab)) {
        let [word, rest] = system.words();
        let offset = header.heap_start + Entry::offset(slab);
        medium.store(offset, &word.to_le_bytes(), &mut counters)?;
        medium.store(offset + 8, &rest.to_le_bytes(), &mut counters)?;
    }
    if header.has_checksums() {
        Checksums::make(medium, header, &checksum_plan(header.heap_bytes), is_system, &mut counters)?;
    }
    for place in [header.generation, header.generation + 1] {
        if matches!(medium, Medium::Striped(_)) {
            medium.store_header(header, place, &mut counters)?; // each device has its own
        } else {
            medium.store(place % 2 * crate::layout::HEADER_BYTES, &header.encode(), &mut counters)?;
        }
    }
    Ok(())
}

pub(crate) fn random_uuid() -> Result<[u8; 16]> {
    let mut uuid = [0; 16];
    let mut source = File::open("/dev/urandom").map_err(file_error("open", Path::new("/dev/urandom")))?;
    io::Read::read_exact(&mut source, &mut uuid).map_err(file_error("read", Path::new("/dev/urandom")))?;
    Ok(uuid)
}

/// Makes the file of a new pool.
pub(crate) fn create(path: &Path, options: &Options) -> Result<()> {
    let fresh = Fresh::file(path)?;
    create_in(&fresh, path, options)?;
    fresh.publish()
}

/// Makes a new pool in a file that `path` will name.
pub(crate) fn create_in(fresh: &Fresh, path: &Path, options: &Options) -> Result<()> {
    let header = new_header(options, pages(fresh, path, options)?, random_uuid()?)?;
    let file = fresh.open()?;
    allocate(&file, path, header.file_bytes(), LANES_START, header.allocated_from())?;
    let mapped = Mapped::new(file, path, header.file_bytes(), options.domain, true)?;
    format(&Medium::Mapped(mapped), &header)
}

/// Returns true if pages, and not lines, are what becomes durable in a new file.
pub(crate) fn pages(fresh: &Fresh, path: &Path, options: &Options) -> Result<bool> {
    let file = fresh.open()?;
    file.set_len(LANES_START).map_err(file_error("size", path))?;
    Ok(Medium::Mapped(Mapped::new(file, path, LANES_START, options.domain, true)?).pages())
}

/// Makes a new file `bytes` long, with zeros up to `zeros` and blocks from `from` on. The lanes in between get blocks as far as
/// the log gets ([`Lane`](crate::lane::Lane)).
pub(crate) fn allocate(file: &File, path: &Path, bytes: u64, zeros: u64, from: u64) -> Result<()> {
    use std::os::unix::fs::FileExt;
    file.set_len(bytes).map_err(file_error("size", path))?;
    file.write_all_at(&vec![0; zeros as usize], 0).map_err(file_error("write", path))?;
    if from >= bytes {
        return Ok(());
    }
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), from, bytes - from) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(errno) => Err(file_error("allocate", path)(errno.into())),
    }
}

/// Least lane whose log is written past the page cache: a record and the WRAP before it must not share a block.
const DIRECT_LANE_BYTES: u64 = 16 << 10;

/// Least and most time between two attempts to lock a file that another process has.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

/// Tries `attempt` again while another process has the pool, for as long as the options say.
pub(crate) fn in_turn<T>(options: &Options, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    let [mut pause, most] = RETRY_PAUSES;
    loop {
        let result = attempt();
        let left = options.wait.saturating_sub(started.elapsed());
        if !matches!(result, Err(Error::InUse { .. })) || left.is_zero() {
            return result;
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(most);
    }
}

/// Opens the file of a pool and recovers it.
pub(crate) fn open(path: &Path, options: &Options) -> Result<(Store, Recovered)> {
    in_turn(options, || open_now(path, options))
}

fn open_now(path: &Path, options: &Options) -> Result<(Store, Recovered)> {
    let file = match lock_file(path, options) {
        Err(Error::InUse { .. }) if options.read_only => return open_beside(path, options),
        locked => locked?,
    };
    if options.read_only {
        return open_medium(Medium::Mapped(Mapped::private_view(file, path)?), options);
    }
    let length = file.metadata().map_err(file_error("stat", path))?.len();
    // A header that is not good is refused once the file is mapped.
    let header = recover::header_of(&file, path);
    let wanted = header.as_ref().map_or(length, |header| {
        let heap_bytes = options.max_bytes.clamp(header.heap_bytes, 1 << 43);
        Header { heap_bytes, ..*header }.file_bytes()
    });
    let wanted = wanted.max(length);
    let by_records = matches!(
        header.as_ref().map(|header| Mechanism::from_byte(header.mechanism)),
        Ok(Some(Mechanism::Redo | Mechanism::Checkpoint))
    ) && header.as_ref().is_ok_and(|header| header.lane_bytes >= DIRECT_LANE_BYTES);
    let mut mapped = Mapped::new(file, path, wanted, options.domain, true)?;
    if by_records {
        mapped = mapped.with_direct_log();
    }
    let old = readers::table(options, wanted, path)?;
    open_medium(Medium::Mapped(mapped.keeping_old_pages(old)), options)
}

/// Opens the file of a pool that another process has open for writing.
pub(crate) fn open_beside(path: &Path, options: &Options) -> Result<(Store, Recovered)> {
    open_medium(medium_beside(path)?, options)
}

/// Such a pool's file, as it is now.
pub(crate) fn medium_beside(path: &Path) -> Result<Medium> {
    let file = File::open(path).map_err(|source| refused(path, true, source))?;
    let snapshot = WriterSnapshot::of(&file, path).map_err(|error| match error {
        // Its writer closes it just now: whoever waits for it gets it then.
        Error::SnapshotGone { .. } => Error::InUse { path: path.to_owned() },
        other => other,
    })?;
    Ok(Medium::Mapped(Mapped::beside(file, path, snapshot)?))
}

/// Opens a file and locks it: nobody else owns it until the result is dropped. A file that was replaced meanwhile (by
/// `memlift pool convert`) counts as in use.
pub(crate) fn lock_file(path: &Path, options: &Options) -> Result<LockedFile> {
    let file = OpenOptions::new()
        .read(true)
        .write(!options.read_only)
        .open(path)
        .map_err(|source| refused(path, options.read_only, source))?;
    let locked = if options.read_only { LockedFile::shared(file) } else { LockedFile::exclusive(file) };
    let file = locked.map_err(|errno| match errno {
        Errno::WOULDBLOCK => Error::InUse { path: path.to_owned() },
        other => file_error("lock", path)(other.into()),
    })?;
    let about = file.metadata().map_err(file_error("stat", path))?;
    if !about.is_file() {
        return Err(Error::Argument { what: format!("{} is not a file", path.display()) });
    }
    let named = std::fs::metadata(path).map_err(file_error("stat", path))?;
    if (named.dev(), named.ino()) != (about.dev(), about.ino()) {
        return Err(Error::InUse { path: path.to_owned() });
    }
    Ok(file)
}

fn refused(path: &Path, read_only: bool, source: io::Error) -> Error {
    if source.kind() == io::ErrorKind::PermissionDenied && !read_only {
        return Error::File {
            action: "open for writing (Options::read_only opens it for reading)",
            path: path.to_owned(),
            source,
        };
    }
    Error::File { action: "open", path: path.to_owned(), source }
}

/// The image of a recovered heap.
fn image(
    medium: &Medium,
    header: &Header,
    options: &Options,
    mechanism: Mechanism,
    shadow: Option<&Shadow>,
) -> Result<Image> {
    let kind = match mechanism {
        Mechanism::Shadow => Kind::Filled,
        // Slabs are read when they are wanted: `verify`.
        _ if medium.is_beside() => Kind::Filled,
        // A snapshot has what its recovery stored, the file has not.
        _ if medium.is_private() => Kind::InPlace,
        Mechanism::Undo => Kind::InPlace,
        Mechanism::Redo | Mechanism::Checkpoint => Kind::Mirror,
    };
    if mechanism == Mechanism::Shadow {
        let headroom = memlift_ground::region::Headroom::read();
        headroom.check(header.heap_bytes).map_err(|error| Error::Argument {
            what: format!("a shadow pool is read into memory when it is opened: {error}"),
        })?;
    }
    let mut image = Image::new(medium, header.heap_start, header.heap_bytes, options.max_bytes, kind)?;
    if image.in_place() || !image.is_filled() {
        return Ok(image);
    }
    if medium.is_beside() {
        fill_directory(&image, medium, header)?;
        return Ok(image);
    }
    let Some(shadow) = shadow else {
        image.fill(0, header.heap_bytes, |target| medium.read(header.heap_start, target))?;
        return Ok(image);
    };
    for page in 0..header.heap_bytes / 4096 {
        let place = shadow::place(header.heap_start, page, shadow.copy(page));
        image.fill(page * 4096, 4096, |target| medium.read(place, target))?;
    }
    Ok(image)
}

/// Checks that a mirror can have all of its pages at once: no `mirror_bytes` below the heap, and enough free memory.
fn prefault_fits(header: &Header, options: &Options) -> Result<()> {
    if options.mirror_bytes.is_some_and(|limit| limit < header.heap_bytes) {
        let what =
            "prefault makes the whole mirror private, mirror_bytes says how much of it may be: choose one";
        return Err(Error::Argument { what: what.to_owned() });
    }
    let headroom = memlift_ground::region::Headroom::read();
    headroom.check(header.heap_bytes).map_err(|error| Error::Argument {
        what: format!("prefault takes memory for the whole heap, open the pool without it: {error}"),
    })
}

/// An object of many slabs, as far as the directory was read: its slabs follow each other and belong to it alone.
#[derive(Clone, Copy, Default, Debug)]
struct Run {
    first: Entry,
    next: u64,
    left: u32,
}

impl Run {
    /// Returns true if this entry is what must come next.
    fn goes_on(&mut self, slab: u64, entry: Entry) -> bool {
        if self.left > 0 {
            let right = slab == self.next && entry == Entry { state: Entry::RUN_REST, ..self.first };
            (self.next, self.left) = (slab + 1, self.left - 1);
            return right;
        }
        match entry.state {
            Entry::RUN => {
                *self = Run { first: entry, next: slab + 1, left: entry.run.saturating_sub(1) };
                entry.run > 0
            }
            Entry::RUN_REST => false,
            _ => true,
        }
    }

    /// Returns true if slabs are missing.
    fn is_open(&self) -> bool {
        self.left > 0
    }
}

/// Refuses a directory whose entries have other sizes than the catalog: pointers would be followed into the wrong slots.
fn sizes_fit(image: &Image, slabs: u64, types: &Types) -> Result<()> {
    let (mut last, mut misfit) = (Entry::default(), None);
    walk(image, 0, slabs, |slab, entry| {
        // Slabs of one type lie in rows.
        if entry != last && misfit.is_none() {
            misfit = types.misfit(entry).map(|what| format!("slab {slab} has {what}"));
            last = entry;
        }
    });
    misfit.map_or(Ok(()), |what| Err(Error::corrupt(what)))
}

/// Recovers a medium and puts the store together.
pub(crate) fn open_medium(medium: Medium, options: &Options) -> Result<(Store, Recovered)> {
    let _ = memlift_ground::observe::is_recorded(); // whether `memlift record` listens is asked once, not at a commit
    let mut holes = Holes::default();
    if !options.read_only {
        let header = recover::read_header(&medium)?;
        header.check_writable()?;
        medium.allocate_fixed(&header)?;
        holes = Holes::find(&medium, &header)?;
    }
    let State { header, positions, applier, recovered, shadow, lost: _ } =
        recover::recover(&medium, !options.read_only || medium.is_private(), Loss::Refuse, &holes)?;
    let mechanism = Mechanism::from_byte(header.mechanism)
        .ok_or_else(|| Error::corrupt("the header names no known mechanism"))?;
    readers::possible(options, mechanism)?;
    let image = image(&medium, &header, options, mechanism, shadow.as_ref())?;
    if options.prefault && !medium.is_private() && !medium.is_beside() {
        if image.is_mirror() {
            prefault_fits(&header, options)?;
        }
        image.prefault();
    }
    let mut sections: Vec<Section> = (0..header.sections).map(|_| Section::default()).collect();
    let mut free_slabs = FreeSlabs::default();
    let slabs = header.heap_bytes / SLAB_BYTES;
    free_slabs.grow(slabs);
    let catalog = Catalog::read(&medium)?;
    let types = Types::new(catalog.records());
    let mut odd = None;
    let mut run = Run::default();
    let mut covered = Covered::read(&image, &header)?;
    let checksums = Checksums::read(&medium, &header)?;
    if let Some(checksums) = &checksums
        && let Some(page) = checksums.odd_system_page(&medium, slabs, |zone| image.is_body(zone))?
    {
        return Err(damaged(page));
    }
    walk(&image, 0, slabs, |slab, entry| match entry.state {
        _ if !run.goes_on(slab, entry) => odd = Some(slab),
        _ if covered.within(slab) => odd = odd.or((entry != Entry::default()).then_some(slab)),
        Entry::SPAN => {
            if !covered.admit(slab, entry) || usize::from(entry.section) >= sections.len() {
                odd = Some(slab);
            }
        }
        Entry::FREE => free_slabs.give(slab, 1),
        Entry::SLOTS => match sections.get_mut(usize::from(entry.section)) {
            Some(section) if entry.stride >= 16 && u64::from(entry.stride) <= crate::layout::STRIDE_MAX => {
                // Nothing is allocated where a migration left off.
                if !types.moving(entry.tag) {
                    section.shelf(entry.tag, entry.stride).slabs.push(slab);
                }
            }
            _ => odd = Some(slab),
        },
        Entry::RUN | Entry::RUN_REST => {
            if usize::from(entry.section) >= sections.len() {
                odd = Some(slab);
            }
        }
        _ => odd = Some(slab),
    });
    // A system slab whose entry is another's would let a pointer write over the directory or the superblock.
    let system = (0..slabs).filter(|slab| is_system(*slab) && !image.is_body(slab / ZONE_SLABS));
    let mut used = system.filter(|slab| !matches!(image.entry(*slab).state, Entry::FREE | Entry::SYSTEM));
    if let Some(slab) = odd.or_else(|| used.next()).or_else(|| run.is_open().then_some(slabs)) {
        return Err(Error::corrupt(format!("the directory's entry of slab {slab} makes no sense")));
    }
    covered.idle.iter().for_each(|zone| free_slabs.give_idle(*zone));
    for (first, count) in checksums.iter().flat_map(Checksums::slabs) {
        if !free_slabs.withhold(first, count) {
            return Err(Error::corrupt(format!("slab {first} has an object, and checksums of pages")));
        }
    }
    sizes_fit(&image, slabs, &types)?;
    if holes.any() {
        // A sparse copy of the file lacks blocks of zeros.
        let mut used = Vec::new();
        walk(&image, 0, slabs, |slab, entry| match entry.state {
            Entry::FREE => {}
            Entry::SPAN => used.push((slab, entry.slabs())),
            _ => used.push((slab, 1)),
        });
        used.iter()
            .try_for_each(|(slab, count)| holes.reserve(&medium, header.heap_start, *slab, *count, 0))?;
    }
    let sequence = applier.applied;
    let sections = sections.into_iter().map(Biased::new).collect();
    let options = options.clone();
    let parts = Parts {
        medium,
        image,
        header,
        options,
        positions,
        sequence,
        applier,
        sections,
        free_slabs,
        holes,
        catalog,
        shadow,
        checksums,
    };
    let store = Store::new(parts)?;
    if store.options.prefault && !store.options.read_only {
        store.shared.lane.prefault();
        store.lanes.iter().for_each(Lane::prefault);
    }
    store.running()?;
    store.show_sizes();
    Ok((store, recovered))
}
