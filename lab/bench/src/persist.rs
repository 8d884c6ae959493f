// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift bench persist`: objects that survive a crash, against the stores in use today.
//!
//! - **Flow** definitions ─▶ a kind by the row's name, a rival by its name ─▶ two parties (processes of their own) ─▶ interleaved runs
//!   with the same draws ─▶ rows
//! - **Served** rows `serve/*` are redis-benchmark's, of servers ([`scripted`])
//! - **Rivals** libpmemobj, its example maps and whole programs on it, on /dev/shm with PMEM_IS_PMEM_FORCE=1 · copies of whole pages,
//!   alone and under the same programs · SQLite, redb and LMDB on a file system · limits: a loaded fence, a sync
//! - **Check** both sides sum up what they left or read after every run, outside its window; the sums must be equal
//! - **Missing** a rival that can be neither fetched nor built makes its rows `missing`; they say what to install
//! - **Not here** how a rival works (lab/bench/engines/persist/)

mod apps;
mod disk;
mod draw;
pub(crate) mod engines;
mod limit;
#[cfg(test)]
mod model;
mod ours;
mod pages;
pub(crate) mod party;
mod rows;
mod serve;
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "steps a child process through its transactions")
)]
pub(crate) mod steps;

use std::process::Command;

use memlift_persist::Mechanism;

use self::apps::App;
pub(crate) use self::disk::Folder;
use self::disk::Shared;
use self::ours::pages::Way;
use self::pages::Shape;
use self::party::Party;
use self::rows::{Plan, Sides};
pub(crate) use self::serve::{NAME, serve};
use crate::definition::Definition;
use crate::row::{self, Sink, Stop};
use crate::{BenchError, Options, Row, scripted};

/// Room that one pool of a row needs in /dev/shm.
const SHARED_BYTES: u64 = 512 << 20;

/// Kind of row that a name asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A transaction that overwrites this many records; `per_range`: its time is divided by them.
    Records { ranges: u64, per_range: bool },
    /// Inserts into a new map.
    Map { kind: &'static str, inserts: u64 },
    /// Changes of pages.
    Pages(Shape, Way),
    /// One workload of a store on a disk.
    Store { workload: &'static str },
    /// Fences of transactions or of groups; no rival.
    Fences { of: &'static str },
    /// Opening a pool of this size that was closed; no rival.
    Open { bytes: u64 },
    /// Opening one whose process was killed; no rival.
    Recover,
    /// A whole program.
    App { app: App, mechanism: Mechanism, threads: u64 },
    /// Processes that read a store beside the one that writes it.
    Readers { workload: &'static str },
    /// A pool over two files.
    Devices,
    /// How far a replica is behind; no rival.
    ReplicaWindow,
    /// Making a pool of a replica.
    ReplicaRestore,
}

impl Kind {
    fn parse(name: &str) -> Option<Kind> {
        const MAPS: [&str; 4] = ["btree", "hashmap", "rbtree", "skiplist"];
        let parts: Vec<&str> = name.split('/').collect();
        let number = |text: &str| text.parse::<u64>().ok().filter(|number| *number > 0);
        Some(match parts[..] {
            ["tx", shape] => Kind::Records { ranges: number(shape.strip_prefix("64x")?)?, per_range: false },
            ["log", shape] => Kind::Records { ranges: number(shape.strip_prefix("64x")?)?, per_range: true },
            ["map", kind, inserts] => {
                Kind::Map { kind: MAPS.into_iter().find(|map| *map == kind)?, inserts: number(inserts)? }
            }
            ["checkpoint", "4096", "8of64", ref way @ ..] => Kind::Pages(Shape::Checkpoint, Way::parse(way)?),
            ["shadow", "4096", "8of64", "x4", ref way @ ..] => Kind::Pages(Shape::Shadow, Way::parse(way)?),
            ["ext4", "commit"] => Kind::Store { workload: "commit" },
            ["ext4", "group16"] => Kind::Store { workload: "group16" },
            ["read", "get"] => Kind::Store { workload: "get" },
            ["read", "scan"] => Kind::Store { workload: "scan" },
            ["readers", "4procs"] => Kind::Readers { workload: "readers4" },
            ["readers", "writer_slowdown"] => Kind::Readers { workload: "beside" },
            ["fences", "redo"] => Kind::Fences { of: "redo" },
            ["fences", "group"] => Kind::Fences { of: "group" },
            ["open", "10GB"] => Kind::Open { bytes: 10 << 30 },
            ["recover", "per_GB_log"] => Kind::Recover,
            ["app", app, mechanism, threads] => Kind::App {
                app: App::parse(app)?,
                mechanism: Mechanism::ALL.into_iter().find(|one| one.name() == mechanism)?,
                threads: number(threads).filter(|threads| *threads <= apps::THREADS_MAX)?,
            },
            ["devices", "2", "delayed"] => Kind::Devices,
            ["replica", "window"] => Kind::ReplicaWindow,
            ["replica", "restore"] => Kind::ReplicaRestore,
            _ => return None,
        })
    }

    /// Returns the rows that are in a store before anything is timed.
    fn loaded(workload: &str, quick: bool) -> u64 {
        if matches!(workload, "get" | "scan" | "readers4" | "beside") && !quick { 1_000_000 } else { 10_000 }
    }

    /// Runs are some ten milliseconds of the slower side. Stepping through maps, applications and shadow pages takes tens of seconds:
    /// under `--quick` one application, records and single pages are.
    fn plan(self, quick: bool) -> Plan {
        let plan = |count, count_quick| Plan {
            count: if quick { count_quick } else { count },
            per: 1,
            compares: true,
            steps: false,
        };
        match self {
            Kind::Records { ranges, per_range } => Plan {
                per: if per_range { ranges } else { 1 },
                steps: true,
                ..plan(40_000 / (ranges + 1), 200)
            },
            // A map with fewer inserts would be another row.
            Kind::Map { inserts, .. } => Plan { steps: !quick, ..plan(inserts, inserts) },
            Kind::Pages(shape, _) => {
                Plan { steps: !quick || shape == Shape::Checkpoint, ..plan(8000 / shape.pages() as u64, 100) }
            }
            // As many as SQLite needs for its own checkpoint, after 1,000 pages of log: the upkeep of both sides lies in each run.
            Kind::Store { workload: "commit" } => plan(1000, 5),
            Kind::Store { workload: "group16" } => plan(2048, 64),
            Kind::Store { workload: "scan" } => plan(2000, 100),
            Kind::Store { .. } => plan(50_000, 1000),
            Kind::Readers { workload: "beside" } => plan(400, 5),
            Kind::Readers { .. } => plan(100_000, 1000),
            Kind::Fences { .. } => plan(4096, 64),
            Kind::Open { .. } | Kind::Recover => plan(1, 1),
            // Stepping works for one thread only. A copy of a page is one instruction with a step for each of its iterations:
            // too many.
            Kind::App { app, mechanism, threads } => {
                let lines = matches!(mechanism, Mechanism::Redo | Mechanism::Undo);
                let steps = lines && threads == 1 && (!quick || app.name() == "kv");
                Plan { steps, ..plan(app.count(), app.count() / 16) }
            }
            Kind::Devices => plan(200, 20),
            Kind::ReplicaWindow => plan(300, 5),
            Kind::ReplicaRestore => plan(1, 1),
        }
    }
}

/// Places where a row's parties write; dropping it removes them.
#[derive(Debug, Default)]
struct Place {
    shared: Vec<Shared>,
    folder: Option<Folder>,
}

impl Place {
    fn shared(&mut self) -> Result<&std::path::Path, Stop> {
        self.shared.push(Shared::new(SHARED_BYTES).map_err(Stop::Missing)?);
        Ok(&self.shared[self.shared.len() - 1].path)
    }

    fn folder(&mut self, name: &str) -> Result<std::path::PathBuf, Stop> {
        if self.folder.is_none() {
            self.folder = Some(Folder::new().map_err(Stop::Missing)?);
        }
        let folder = self.folder.as_ref().expect("made above").path.join(name);
        std::fs::create_dir_all(&folder).map_err(BenchError::file(&folder))?;
        Ok(folder)
    }
}

/// Starts the rival of a row. The second value is false where it is a limit, which does not do the work.
fn theirs(kind: Kind, rival: &str, place: &mut Place, quick: bool) -> Result<(Party, bool), Stop> {
    let libpmemobj = |program: &str, arguments: &[&str], place: &mut Place| -> Result<Party, Stop> {
        let mut command = Command::new(engines::pmdk().map_err(Stop::Missing)?.with_file_name(program));
        command.arg(place.shared()?).args(arguments).env("PMEM_IS_PMEM_FORCE", "1");
        // Any other setting of flushing in the user's environment would keep libpmem from its best mode.
        for name in ["PMEM_NO_FLUSH", "PMEM_NO_CLWB", "PMEM_NO_MOVNT", "PMEM_NO_GENERIC_MEMCPY"] {
            command.env_remove(name);
        }
        Ok(Party::start("libpmemobj", &mut command)?)
    };
    let fence = |bytes: &str, place: &mut Place| -> Result<Party, Stop> {
        Ok(Party::start("limit", &mut serve::party(&["fence", bytes], place.shared()?)?)?)
    };
    let store = |store: &str, workload: &str, place: &mut Place| -> Result<Party, Stop> {
        let mut command = Command::new(engines::stores().map_err(Stop::Missing)?);
        command.arg(place.folder("theirs")?).args([store, workload]);
        command.arg(Kind::loaded(workload, quick).to_string());
        Ok(Party::start("the rival store", &mut command)?)
    };
    let party = match (kind, rival) {
        (Kind::Records { ranges, .. }, "libpmemobj") => {
            libpmemobj("pmdk", &["tx", &ranges.to_string()], place)?
        }
        (Kind::Map { kind, .. }, "libpmemobj") => libpmemobj("pmdk", &["map", kind], place)?,
        (Kind::App { app, threads, .. }, "libpmemobj") => {
            libpmemobj("apps", &["libpmemobj", app.name(), &threads.to_string()], place)?
        }
        (
            Kind::App { app, mechanism: mechanism @ (Mechanism::Checkpoint | Mechanism::Shadow), threads },
            "page_copies",
        ) => {
            let mut command = Command::new(engines::pages().map_err(Stop::Missing)?);
            command.arg(place.shared()?).args([mechanism.name(), app.name(), &threads.to_string()]);
            Party::start("copies of pages", &mut command)?
        }
        (Kind::Devices, "software_sync") => {
            let mut command = serve::party(&["devices", rival], &place.folder("theirs")?)?;
            Party::start("memlift, every file synced", &mut command)?
        }
        (Kind::ReplicaRestore, "limit") => {
            let bytes = restored_bytes(quick).to_string();
            let mut command = serve::party(&["replica", "limit", &bytes], &place.folder("limit")?)?;
            return Ok((Party::start("limit", &mut command)?, false));
        }
        (Kind::Pages(shape, _), "memcpy_clwb" | "nt_copy") => {
            let mut command = serve::party(&["page", rival, shape.name()], place.shared()?)?;
            Party::start("a copy of whole pages", &mut command)?
        }
        (Kind::Store { workload: "group16" }, "sqlite_wal_full_batched") => {
            store("sqlite", "batched16", place)?
        }
        (Kind::Store { workload }, "sqlite_wal_full") => store("sqlite", workload, place)?,
        (Kind::Store { workload }, "redb" | "lmdb") => store(rival, workload, place)?,
        (Kind::Readers { workload: "readers4" }, "lmdb") => store(rival, "readers4", place)?,
        (Kind::Readers { workload: "beside" }, "alone") => {
            let loaded = Kind::loaded("beside", quick).to_string();
            let mut command = serve::party(&["readers", "alone", &loaded], &place.folder("theirs")?)?;
            Party::start("memlift, without readers", &mut command)?
        }
        (Kind::Records { ranges, .. }, "limit") => {
            // The records, and one cache line for their description in a log.
            return Ok((fence(&((ranges + 1) * 64).to_string(), place)?, false));
        }
        (Kind::Pages(shape, _), "limit") => {
            return Ok((fence(&((8 * shape.pages() + 1) * 64).to_string(), place)?, false));
        }
        (Kind::Store { workload: "commit" }, "limit") => {
            let mut command = serve::party(&["sync"], &place.folder("limit")?)?;
            return Ok((Party::start("limit", &mut command)?, false));
        }
        _ => {
            let reason = format!("nobody is called {rival} for this row; see lab/bench/src/persist.rs");
            return Err(Stop::Failed(BenchError::Engine { reason }));
        }
    };
    Ok((party, true))
}

/// Bytes of values in the pool that is restored.
fn restored_bytes(quick: bool) -> u64 {
    if quick { 32 << 20 } else { 256 << 20 }
}

/// Starts memlift for a row.
fn ours(kind: Kind, place: &mut Place, quick: bool) -> Result<Party, Stop> {
    let mut command = match kind {
        Kind::Records { ranges, .. } => serve::party(&["records", &ranges.to_string()], place.shared()?)?,
        Kind::Map { kind, .. } => serve::party(&["map", kind], place.shared()?)?,
        Kind::Pages(shape, way) => serve::party(&["pages", shape.name(), way.name()], place.shared()?)?,
        Kind::Store { workload } => {
            let loaded = Kind::loaded(workload, quick).to_string();
            serve::party(&["store", workload, &loaded], &place.folder("ours")?)?
        }
        Kind::Readers { workload } => {
            let loaded = Kind::loaded(workload, quick).to_string();
            serve::party(&["readers", workload, &loaded], &place.folder("ours")?)?
        }
        Kind::Fences { of } => serve::party(&["fences", of], place.shared()?)?,
        Kind::Open { bytes } => {
            let bytes = if quick { bytes / 16 } else { bytes };
            serve::party(&["opening", &bytes.to_string()], &place.folder("ours")?)?
        }
        Kind::Recover => {
            let bytes: u64 = if quick { 8 << 20 } else { 200 << 20 };
            serve::party(&["recovering", &bytes.to_string()], &place.folder("ours")?)?
        }
        Kind::App { app, mechanism, threads } => {
            serve::party(&["app", app.name(), mechanism.name(), &threads.to_string()], place.shared()?)?
        }
        Kind::Devices => serve::party(&["devices", "delayed"], &place.folder("ours")?)?,
        Kind::ReplicaWindow | Kind::ReplicaRestore if !cfg!(feature = "replicate") => {
            let what = "this memlift-lab was built without replicas: build it with its feature `replicate`";
            return Err(Stop::Missing(what.to_owned()));
        }
        Kind::ReplicaWindow => serve::party(&["replica", "window"], &place.folder("ours")?)?,
        Kind::ReplicaRestore => {
            let bytes = restored_bytes(quick).to_string();
            serve::party(&["replica", "restore", &bytes], &place.folder("ours")?)?
        }
    };
    Ok(Party::start("memlift", &mut command)?)
}

/// Describes the conditions that make a row's comparison fair or unfair, whoever the rival is.
fn qualifies(kind: Kind, place: &Place) -> String {
    let durable = match &place.folder {
        Some(folder) => format!("durable on {}", folder.file_system),
        None => "pools in /dev/shm: durable against the death of the process".to_owned(),
    };
    match kind {
        Kind::App { app, threads, .. } => {
            format!("{}; {threads} threads on both sides; {durable}", app.scale())
        }
        Kind::Devices => format!("both files on one disk; {durable}"),
        _ => durable,
    }
}

fn row(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    let kind = Kind::parse(&definition.name).ok_or_else(|| {
        let reason = format!("{} is no row of persist; see lab/bench/src/persist.rs", definition.name);
        Stop::Failed(BenchError::Engine { reason })
    })?;
    let mut place = Place::default();
    if definition.rival == "none" {
        let ours = ours(kind, &mut place, quick)?;
        return Ok(rows::alone(definition, ours, kind.plan(quick).count, &qualifies(kind, &place), quick)?);
    }
    let (theirs, compares) = theirs(kind, &definition.rival, &mut place, quick)?;
    let ours = ours(kind, &mut place, quick)?;
    let plan = Plan { compares, ..kind.plan(quick) };
    let qualifies = qualifies(kind, &place);
    Ok(rows::row(definition, Sides { ours, theirs }, plan, &qualifies, quick)?)
}

/// Measures the rows; gives how many failed.
pub(crate) fn run(
    definitions: &[Definition],
    options: &Options,
    sink: &mut Sink,
) -> Result<usize, BenchError> {
    let (served, rest): (Vec<Definition>, Vec<Definition>) =
        definitions.iter().cloned().partition(|row| row.name.starts_with("serve/"));
    let failed = row::each(&rest, sink, |definition| row(definition, options.quick));
    if served.is_empty() {
        return Ok(failed);
    }
    let program = std::env::current_exe().map_err(BenchError::system("finding this program"))?;
    let folder = match Folder::new() {
        Ok(folder) => folder,
        Err(reason) => {
            served.iter().for_each(|definition| sink.push(Row::missing(definition, &reason)));
            return Ok(failed);
        }
    };
    let text = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
    let memlift = text(program.with_file_name("memlift"));
    let arguments = ["--memlift".to_owned(), memlift, "--folder".to_owned(), text(folder.path.clone())];
    Ok(failed + scripted::run("engines/persist/serve_bench.py", arguments.into(), &served, options, sink)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_is_a_kind() {
        for row in crate::definition::all("persist").expect("parses") {
            assert!(row.name.starts_with("serve/") || Kind::parse(&row.name).is_some(), "{}", row.name);
        }
        assert_eq!(Kind::parse("tx/64x0"), None);
        assert_eq!(Kind::parse("map/trie/10"), None);
        assert_eq!(Kind::parse("app/tpcc/redo/17"), None);
        assert_eq!(Kind::parse("app/tpcb/redo/1"), None);
        assert_eq!(Kind::parse("log/64x4"), Some(Kind::Records { ranges: 4, per_range: true }));
    }
}
