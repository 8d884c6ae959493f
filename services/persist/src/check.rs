// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that a pool's file is sound, and lists its content: everything is read, nothing is written.
//!
//! - **Flow** headers ─▶ lanes (`lanes`) ─▶ recovery into a private mapping (`snapshot`) ─▶ catalog (`types`) ─▶ directory
//!   (`directory`) ─▶ bitmaps, root, pointers (`objects`) ─▶ what the root leads to (`reached`), tables and stores
//!   (`owned`), objects of C (`foreign`), keys that damage costs (`lost_keys`) ─▶ [`Report`]
//! - **Rule** damage is content that memlift never writes. Content that a program may have meant (an object that nothing points
//!   to, a pointer to a freed one) is a note
//! - **Not here** changing anything: `repair`

pub(crate) mod directory;
mod files;
pub(crate) mod foreign;
pub(crate) mod home;
pub(crate) mod lanes;
pub(crate) mod lost_keys;
pub(crate) mod objects;
pub(crate) mod owned;
mod reached;
pub(crate) mod snapshot;
pub(crate) mod types;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::catalog::Catalog;
use crate::checksums::{Checksums, Expected, PAGE, SLAB_PAGES, used_pages};
use crate::error::Result;
use crate::layout::{CATALOG_BYTES, CATALOG_START, Entry, Header, SLAB_BYTES};
use crate::medium::Guarantee;
use crate::options::Mechanism;
pub use files::Files;
pub(crate) use files::family;
pub use lanes::{LaneReport, Tail};
use objects::Heap;
use snapshot::Snapshot;
use types::Types;

/// Severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// A program may have meant it.
    Note,
    /// Content that memlift never writes.
    Damage,
}

/// The part of a pool that a finding is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Part {
    /// The file's length.
    File,
    /// Header A or B.
    Header,
    /// Lane heads and records.
    Log,
    /// The list of types.
    Catalog,
    /// The table of slabs: use, type and section of each.
    Directory,
    /// The bits that say which slots are in use.
    Bitmap,
    /// The superblock, which names the root object.
    Root,
    /// Pointers and what they lead to.
    Objects,
    /// Pages of the heap and their checksums.
    Pages,
    /// Keys that cannot be read any more.
    Keys,
}

impl Part {
    /// The part's name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Part::File => "file",
            Part::Header => "header",
            Part::Log => "log",
            Part::Catalog => "catalog",
            Part::Directory => "directory",
            Part::Bitmap => "bitmap",
            Part::Root => "root",
            Part::Objects => "objects",
            Part::Pages => "pages",
            Part::Keys => "keys",
        }
    }
}

/// A fault or a note.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Severity of the finding.
    pub level: Level,
    /// Part of the pool that it is about.
    pub part: Part,
    /// Bytes from the start of the file.
    pub offset: Option<u64>,
    /// A sentence for the user.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = if self.level == Level::Damage { "damage" } else { "note" };
        write!(f, "{level}: {}", self.part.name())?;
        if let Some(offset) = self.offset {
            write!(f, " at {offset:#x}")?;
        }
        write!(f, ": {}", self.what)
    }
}

/// Number and bytes of a type's objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TypeUsage {
    /// The tag that directory entries name it by.
    pub tag: u32,
    /// Its name; an array's is in brackets.
    pub name: String,
    /// Objects in use.
    pub objects: u64,
    /// Bytes of their slots or runs.
    pub bytes: u64,
    /// Slabs that it has.
    pub slabs: u64,
}

/// Content of a pool's file, and its faults.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Bytes of the file.
    pub file_bytes: u64,
    /// The durability that a pool in this file has here.
    pub guarantee: Guarantee,
    /// Headers A and B; None: no good one.
    pub headers: [Option<Header>; 2],
    /// Each lane of the log.
    pub lanes: Vec<LaneReport>,
    /// Transactions in the log that the next open brings to their place (or takes back, where the mechanism is undo), and their
    /// bytes.
    pub waiting: (u64, u64),
    /// Slabs of the heap, and how many of them are nobody's.
    pub slabs: (u64, u64),
    /// Types, those with most bytes first.
    pub types: Vec<TypeUsage>,
    /// True if the pages of the heap have checksums.
    pub checksums: bool,
    /// The root object: its place in the heap and its type.
    pub root: Option<(u64, String)>,
    /// Faults and notes, damage first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The header that holds.
    pub fn header(&self) -> Option<&Header> {
        self.headers.iter().flatten().max_by_key(|header| header.generation)
    }

    /// Returns true if there is no damage.
    pub fn sound(&self) -> bool {
        self.findings.iter().all(|one| one.level != Level::Damage)
    }

    /// The findings that are damage.
    pub fn damage(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|one| one.level == Level::Damage)
    }
}

/// Checks everything in a pool. One that a process has open for writing is checked as it is now, without its log, if that process lets
/// others read ([`crate::Options::readers_bytes`]).
///
/// # Errors
///
/// [`crate::Error::InUse`], [`crate::Error::NotAPool`], [`crate::Error::Version`], [`crate::Error::File`]; for an interleaved
/// pool also those of [`crate::Pool::open_interleaved`], when its files do not belong together. Damage is no error: the report
/// says it.
pub fn check(files: impl Files) -> Result<Report> {
    examine(&files, true)
}

/// As [`check()`], without following pointers: the time does not grow with the number of objects, but with their slabs' bitmaps.
///
/// # Errors
///
/// As [`check()`].
pub fn summary(files: impl Files) -> Result<Report> {
    examine(&files, false)
}

/// The findings so far, with an upper bound for each kind.
#[derive(Default)]
struct Findings {
    all: Vec<Finding>,
    told: BTreeMap<(Level, Part), u64>,
}

const TOLD: u64 = 100;

impl Findings {
    fn add(&mut self, level: Level, part: Part, offset: impl Into<Option<u64>>, what: impl Into<String>) {
        let told = self.told.entry((level, part)).or_default();
        *told += 1;
        if *told <= TOLD || part == Part::Keys {
            self.all.push(Finding { level, part, offset: offset.into(), what: what.into() });
        }
    }

    fn damage(&mut self, part: Part, offset: impl Into<Option<u64>>, what: impl Into<String>) {
        self.add(Level::Damage, part, offset, what);
    }

    fn note(&mut self, part: Part, offset: impl Into<Option<u64>>, what: impl Into<String>) {
        self.add(Level::Note, part, offset, what);
    }

    fn finish(mut self) -> Vec<Finding> {
        for ((level, part), told) in &self.told {
            if *told > TOLD && *part != Part::Keys {
                let what = format!("and {} more of these", told - TOLD);
                self.all.push(Finding { level: *level, part: *part, offset: None, what });
            }
        }
        self.all.sort_by_key(|one| (std::cmp::Reverse(one.level), one.part));
        self.all
    }
}

fn examine(files: &impl Files, pointers: bool) -> Result<Report> {
    let mut snapshot = Snapshot::open(files)?;
    let mut findings = Findings::default();
    let mut report = Report {
        file_bytes: snapshot.file_bytes,
        guarantee: snapshot.medium.guarantee(),
        headers: [0, 1].map(|at: usize| snapshot.headers[at].as_ref().ok().copied()),
        lanes: Vec::new(),
        waiting: (0, 0),
        slabs: (0, 0),
        types: Vec::new(),
        checksums: false,
        root: None,
        findings: Vec::new(),
    };
    headers(&snapshot, &mut findings);
    if let Some(header) = snapshot.header().filter(|_| snapshot.whole()) {
        // A snapshot of another process's pool is without a log.
        let lanes = if snapshot.medium.is_beside() { 0 } else { header.lanes };
        for lane in 0..lanes {
            report.lanes.push(lanes::inspect(&snapshot.medium, &header, lane)?);
        }
        if lanes > 0
            && let Some(epoch) = lanes::later_epoch(&snapshot.medium, &header)?
        {
            let what = format!(
                "the log has transactions of epoch {epoch}, this header is of epoch {}: the newest one is lost, and opening would leave them out",
                header.epoch
            );
            let offset = header.generation % 2 * crate::layout::HEADER_BYTES;
            findings.damage(Part::Header, offset, what);
        }
        snapshot.recover()?;
        log(&snapshot, &header, &report.lanes, &mut findings);
        if let Some(Ok(recovered)) = snapshot.recovered {
            report.waiting = (recovered.transactions, recovered.log_bytes);
        }
        heap(&snapshot, header, pointers, &mut report, &mut findings)?;
    }
    report.findings = findings.finish();
    Ok(report)
}

fn headers(snapshot: &Snapshot, findings: &mut Findings) {
    for (at, header) in snapshot.headers.iter().enumerate() {
        let (name, offset) = (["A", "B"][at], at as u64 * crate::layout::HEADER_BYTES);
        if let Err(error) = header {
            let other = snapshot.headers[1 - at].as_ref().ok();
            // A new pool has one; from then on both are good, but for the one that a crash interrupted.
            if other.is_some_and(|header| header.generation == 1) {
                continue;
            }
            let what = match error {
                crate::Error::Corrupt { what } => what.clone(),
                other => other.to_string(),
            };
            match other {
                Some(other) => findings.note(
                    Part::Header,
                    offset,
                    format!(
                        "header {name} is not good ({what}); the other one holds, generation {}",
                        other.generation
                    ),
                ),
                None => findings.damage(Part::Header, offset, format!("header {name}: {what}")),
            }
        }
    }
    if let Some(header) = snapshot.header() {
        let wanted = header.file_bytes();
        if snapshot.file_bytes < wanted {
            let lost = wanted - snapshot.file_bytes;
            let what = format!("the file was truncated: {lost} bytes of {wanted} are missing at its end");
            findings.damage(Part::File, snapshot.file_bytes, what);
        } else if snapshot.file_bytes > wanted {
            let more = snapshot.file_bytes - wanted;
            let what = format!("{more} bytes behind the heap belong to nothing: growing was interrupted");
            findings.note(Part::File, wanted, what);
        }
    }
}

fn log(snapshot: &Snapshot, header: &Header, lanes: &[LaneReport], findings: &mut Findings) {
    for report in lanes {
        let lane = report.lane;
        let offset = crate::layout::LaneHead::offset(lane, 0);
        match report.heads {
            [Some(_), Some(_)] => {}
            [None, None] => {
                findings.damage(Part::Log, offset, format!("both heads of lane {lane} are torn"));
            }
            _ => findings.note(Part::Log, offset, format!("one of the two heads of lane {lane} is torn")),
        }
        if report.tail == Tail::Torn {
            let start = crate::layout::LANES_START + u64::from(lane) * header.lane_bytes;
            let at = start + report.end % header.lane_bytes;
            let what = if report.behind == 0 {
                "a transaction was being written when its writer ended: it was not acknowledged, and is left out"
                    .to_owned()
            } else {
                format!("a record is torn, and {} good ones lie behind it", report.behind)
            };
            findings.note(Part::Log, at, format!("lane {lane}: {what}"));
        }
    }
    match &snapshot.recovered {
        Some(Err(error)) => {
            let what = format!("it cannot be replayed ({error}); what follows is without it");
            findings.damage(Part::Log, None, what);
        }
        Some(Ok(recovered)) if recovered.transactions > 0 => {
            let undo = header.mechanism == Mechanism::Undo as u8;
            let what = if undo { "are taken back" } else { "are brought to their place" };
            findings.note(
                Part::Log,
                None,
                format!(
                    "{} transactions wait ({} bytes) and {what} at the next open",
                    recovered.transactions, recovered.log_bytes
                ),
            );
        }
        _ => {}
    }
}

/// Reads the directory as it lies; in a zone that has none, what is there instead.
pub(crate) fn directory_words(snapshot: &Snapshot, header: &Header) -> Result<Vec<directory::Words>> {
    let slabs = header.heap_bytes / SLAB_BYTES;
    let mut words = Vec::with_capacity(slabs as usize);
    let mut slab = 0;
    while slab < slabs {
        let count = crate::layout::ZONE_SLABS.min(slabs - slab);
        // The last zone may be shorter than its directory; slabs beyond it have no entry.
        let bytes = (count * 16).min(header.heap_bytes - Entry::offset(slab));
        let mut zone = vec![0; bytes as usize];
        snapshot.heap(Entry::offset(slab), &mut zone)?;
        let (pairs, _) = zone.as_chunks::<16>();
        words.extend(pairs.iter().map(|pair| {
            let word = |at: usize| u64::from_le_bytes(pair[at..at + 8].try_into().expect("8 bytes"));
            [word(0), word(8)]
        }));
        words.resize((slab + count) as usize, [0; 2]);
        slab += count;
    }
    Ok(words)
}

fn catalog(snapshot: &Snapshot, findings: &mut Findings) -> Result<Types> {
    let catalog = Catalog::read(&snapshot.medium)?;
    let end = catalog.end();
    let mut rest = vec![0; (CATALOG_BYTES - end) as usize];
    snapshot.medium.read(CATALOG_START + end, &mut rest)?;
    if rest.iter().any(|byte| *byte != 0) {
        let what = format!(
            "the list of types ends after {} of them in a record that is not whole: torn by a crash, or damaged",
            catalog.records().len()
        );
        findings.note(Part::Catalog, CATALOG_START + end, what);
    }
    Ok(Types::new(catalog.records()))
}

fn heap(
    snapshot: &Snapshot,
    header: Header,
    pointers: bool,
    report: &mut Report,
    findings: &mut Findings,
) -> Result<()> {
    let types = catalog(snapshot, findings)?;
    let words = directory_words(snapshot, &header)?;
    let marked = directory::marked(snapshot, &header)?;
    let (mut directory, mut odd) = directory::judge(&words, &marked, &header, &types);
    if pointers {
        objects::resolve(snapshot, &mut directory, &mut odd, &types)?;
    }
    let home = snapshot.home()?;
    let in_file = |offset: u64| home.place(offset);
    for one in odd {
        let place = one.proposed.first().map(|(offset, _)| in_file(*offset));
        findings.damage(Part::Directory, place, one.what);
    }
    let damaged = pages(snapshot, &header, &directory, &marked, &types, report, findings)?;
    let (heap, beyond) = Heap::new(snapshot, directory, &types)?;
    for one in beyond {
        let what = format!("slab {} has bits for slots that it does not have", one.slab);
        findings.damage(Part::Bitmap, in_file(one.words[0].0), what);
    }
    usage(&heap, report);
    for usage in &report.types {
        if types.get(usage.tag).is_none() {
            let what =
                format!("the list of types lacks {:08x}, which has {} objects", usage.tag, usage.objects);
            findings.note(Part::Catalog, CATALOG_START, what);
        }
    }
    let (root, layout) = heap.root()?;
    if types.migrating(layout) || report.types.iter().any(|usage| types.moving(usage.tag)) {
        let what = "a migration is under way: everything is there, and Pool::migrate, called as before, goes on with it";
        findings.note(Part::Objects, None, what);
    }
    let place = heap.place(root).filter(|place| root != 0 && place.start == root);
    report.root = place.map(|place| (root, types.name(place.tag)));
    if pointers {
        reached::check(&heap, &header, root, &damaged, findings)?;
    }
    Ok(())
}

/// Compares the pages that are in use with their checksums. Returns those that differ.
fn pages(
    snapshot: &Snapshot,
    header: &Header,
    directory: &[Entry],
    marked: &BTreeSet<u64>,
    types: &Types,
    report: &mut Report,
    findings: &mut Findings,
) -> Result<BTreeSet<u64>> {
    let mut damaged = BTreeSet::new();
    let checksums = match Checksums::read(&snapshot.medium, header) {
        Ok(Some(checksums)) => checksums,
        Ok(None) => return Ok(damaged),
        Err(error) => {
            findings.damage(Part::Pages, None, error.to_string());
            return Ok(damaged);
        }
    };
    report.checksums = true;
    let home = snapshot.home()?;
    for page in used_pages(directory, marked) {
        if checksums.holds(&snapshot.medium, page)? {
            continue;
        }
        let entry = directory[(page / SLAB_PAGES) as usize];
        let holds = match entry.tag {
            0 | Entry::TAG_SYSTEM => "the directory of slabs".to_owned(),
            tag => types.name(tag),
        };
        let what = match checksums.expected(&snapshot.medium, page)? {
            Expected::Sum(_) => format!("4096 bytes of {holds} do not have their checksum"),
            Expected::Unknown => format!("the checksum of 4096 bytes of {holds} is damaged"),
        };
        findings.damage(Part::Pages, home.place(page * PAGE), what);
        damaged.insert(page);
    }
    Ok(damaged)
}

fn usage(heap: &Heap<'_>, report: &mut Report) {
    let mut types: BTreeMap<u32, TypeUsage> = BTreeMap::new();
    report.slabs = (heap.directory.len() as u64, 0);
    for (slab, entry) in heap.directory.iter().enumerate() {
        if entry.state == Entry::FREE && !crate::layout::is_system(slab as u64) {
            report.slabs.1 += 1;
        }
        if !matches!(entry.state, Entry::SLOTS | Entry::RUN | Entry::SPAN) {
            continue;
        }
        let usage = types.entry(entry.tag).or_insert_with(|| TypeUsage {
            tag: entry.tag,
            name: heap.types.name(entry.tag),
            objects: 0,
            bytes: 0,
            slabs: 0,
        });
        usage.slabs += entry.slabs();
        for place in heap.in_slab(slab as u64) {
            usage.objects += 1;
            usage.bytes += place.room;
        }
    }
    report.types = types.into_values().collect();
    report.types.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.name.cmp(&b.name)));
}
