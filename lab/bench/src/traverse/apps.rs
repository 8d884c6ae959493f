// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Applications over memory nodes, and what their users have today.
//!
//! - **Flow** a row's name ─▶ the application or store that measures it; `None`: not one of these
//! - **Rivals** rpc: the same operation as native code beside the data, one request at a time, same packets, same client ([`native`]) ·
//!   cache: a client that reads node by node and keeps 6 % of the data · Redis and memcached ([`super::stores`])
//! - **Order** against rpc [`DEPTH`] requests are under way on both sides, over rings; against a cache one, over UDP: what a cache is
//!   against is a network
//! - **Check** a sum over every byte that clients got must be equal on both sides after each run

pub(super) mod native;
pub(super) mod nodes;
pub(super) mod pmu;
pub(super) mod records;
pub(super) mod series;
pub(super) mod web;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use memlift_traverse::client::cache::Cache;
use memlift_traverse::client::{Answer, Client, Config, Request};
use memlift_traverse::structures::{Outcome, Scratch, Walk, Walked};
use memlift_traverse::wire::Status;

use self::native::Native;
use self::nodes::{Nodes, Over, failed};
use super::pin::{self, Held, Role};
use super::{Stop, stores};
use crate::definition::Definition;
use crate::pairs::{self, Side, Took};
use crate::{BenchError, Row, machine};

/// Requests under way against `rpc`.
const DEPTH: usize = 16;
/// Capacity of a client's cache, percent of the data.
const CACHE_PERCENT: u64 = 6;
/// Age that a piece of a cache may reach, longer than any run.
const CACHE_AGE: Duration = Duration::from_secs(3600);

/// Measures a row of an application.
pub fn row(definition: &Definition, quick: bool) -> Option<Result<Row, Stop>> {
    let parts: Vec<&str> = definition.name.split('/').collect();
    Some(match parts[..] {
        ["app", "web"] => web::row(definition, super::ycsb::Workload::C, quick),
        ["app", "web", "a"] => web::row(definition, super::ycsb::Workload::A, quick),
        ["app", "web", "b"] => web::row(definition, super::ycsb::Workload::B, quick),
        ["app", "btree_e"] => records::row(definition, quick),
        ["app", "series", seconds] => series::row(definition, seconds.parse().ok()?, quick),
        ["fig2", app, placement, slab, nodes] => {
            super::fig2::row(definition, [app, placement, slab, nodes], quick)
        }
        _ => return stores::row(definition, quick),
    })
}

/// Rival in the row of an application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rival {
    Rpc,
    Cache,
}

impl Rival {
    fn of(definition: &Definition) -> Result<Rival, Stop> {
        match definition.rival.as_str() {
            "rpc" => Ok(Rival::Rpc),
            "cache" => Ok(Rival::Cache),
            _ => Err(super::unknown(definition)),
        }
    }

    fn over(self) -> Over {
        if self == Rival::Rpc { Over::Shm } else { Over::Udp }
    }

    fn depth(self) -> usize {
        if self == Rival::Rpc { DEPTH } else { 1 }
    }
}

/// Client of one side of a row, and how it reads.
pub(super) enum Reader {
    /// Walks at a node, or at the native handler, this many at a time.
    Remote(Client, usize),
    /// Walks at the client, through a cache.
    Local(Client, Cache),
}

/// Both sides of a row: readers, and the client that changes things for both.
struct Sides {
    ours: Reader,
    theirs: Reader,
    writer: Client,
    /// Lives as long as its clients.
    _native: Option<Native>,
}

impl Sides {
    /// Connects them to one node; `bytes` are the data's.
    fn connect(nodes: &Nodes, rival: Rival, bytes: u64) -> Result<Sides, BenchError> {
        let config = || Config { window: DEPTH.max(64), ..Config::default() };
        let client = || nodes.client(config());
        let mut native = None;
        let theirs = match rival {
            Rival::Rpc => {
                let server = Native::start(nodes.memory(), nodes.over())?;
                let client = nodes::client(&server.place, config())?;
                native = Some(server);
                Reader::Remote(client, DEPTH)
            }
            Rival::Cache => {
                let kept = bytes * CACHE_PERCENT / 100;
                Reader::Local(client()?, Cache::new(kept as usize, CACHE_AGE))
            }
        };
        Ok(Sides {
            ours: Reader::Remote(client()?, rival.depth()),
            theirs,
            writer: client()?,
            _native: native,
        })
    }

    fn reader(&mut self, side: Side) -> (&mut Reader, &mut Client) {
        let reader = if side == Side::Ours { &mut self.ours } else { &mut self.theirs };
        (reader, &mut self.writer)
    }
}

/// An answer as collections read it.
fn walked(answer: Answer) -> Result<Walked, BenchError> {
    let outcome = match answer.status {
        Status::Done => Outcome::Done,
        Status::Missing => Outcome::Missing,
        status => return Err(failed(format!("a walk that reads ended with {status:?}"))),
    };
    Ok(Walked { outcome, scratch: Scratch(answer.body), result: answer.result, since: answer.since })
}

impl Reader {
    /// Makes walks, as many at a time as the reader may, and hands out the results in order. Others are under way while one is
    /// handed out.
    pub(super) fn walk_all(
        &mut self,
        walks: &[Walk],
        mut take: impl FnMut(usize, Walked) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let (client, depth) = match self {
            Reader::Local(client, cache) => {
                for (index, walk) in walks.iter().enumerate() {
                    let (walked, _) = client.walk_locally(cache, walk).map_err(failed)?;
                    take(index, walked)?;
                }
                return Ok(());
            }
            Reader::Remote(client, depth) => (client, *depth),
        };
        let mut under_way = VecDeque::with_capacity(depth);
        let mut walks = walks.iter().enumerate();
        loop {
            while under_way.len() < depth
                && let Some((index, walk)) = walks.next()
            {
                under_way.push_back((index, client.submit(Request::walk(walk)).map_err(failed)?));
            }
            let Some(&(index, ticket)) = under_way.front() else { return Ok(()) };
            if let Some(answer) = client.take(ticket) {
                under_way.pop_front();
                if let Some((index, walk)) = walks.next() {
                    under_way.push_back((index, client.submit(Request::walk(walk)).map_err(failed)?));
                    client.poll().map_err(failed)?;
                }
                take(index, walked(answer.map_err(failed)?)?)?;
            } else if client.poll().map_err(failed)? == 0 {
                client.wait(Duration::from_millis(1)).map_err(failed)?;
            }
        }
    }
}

/// Result of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ran {
    /// Checksum over all that was read.
    pub checksum: u64,
    /// Wall time of a request.
    pub seconds: f64,
    /// CPU time of a request, in all threads and processes.
    pub cpu_s: f64,
}

/// CPU time of a process, all its threads, seconds; 0 of one that is gone.
pub(super) fn cpu_of(process: u32) -> f64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else { return 0.0 };
    let nanoseconds = |task: std::fs::DirEntry| -> Option<u64> {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    tasks.flatten().filter_map(nanoseconds).sum::<u64>() as f64 * 1e-9
}

/// Times `requests` requests of this process and, where there is one, of another process.
pub(super) fn timed(
    requests: usize,
    other: Option<u32>,
    work: impl FnOnce() -> Result<u64, BenchError>,
) -> Result<Ran, BenchError> {
    let cpu = || machine::cpu_seconds() + other.map_or(0.0, cpu_of);
    let (before, start) = (cpu(), Instant::now());
    let checksum = work()?;
    let seconds = start.elapsed().as_secs_f64();
    let each = requests as f64;
    Ok(Ran { checksum, seconds: seconds / each, cpu_s: (cpu() - before) / each })
}

/// Quantity that a row's ratio compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Of {
    /// Wall time of a request.
    Time,
    /// CPU time: requests per second and core.
    Core,
}

/// Interleaves runs of both sides and judges; run n of both sides has seed n, and their checksums must be equal.
pub(super) fn compare(
    definition: &Definition,
    of: Of,
    quick: bool,
    mut run: impl FnMut(Side, u64) -> Result<Ran, BenchError>,
) -> Result<Row, BenchError> {
    let _held = Held::new(Role::Client);
    let mut ran: [Vec<u64>; 2] = [Vec::new(), Vec::new()];
    let samples = pairs::interleave(quick, |side| {
        let at = usize::from(side == Side::Theirs);
        let one = run(side, ran[at].len() as u64 + 1)?;
        ran[at].push(one.checksum);
        if let (Some(ours), Some(theirs)) = (ran[0].last(), ran[1].last())
            && ran[0].len() == ran[1].len()
            && ours != theirs
        {
            return Err(BenchError::Differ {
                name: definition.name.clone(),
                rival: definition.rival.clone(),
                sums: [format!("{ours:016x}"), format!("{theirs:016x}")],
            });
        }
        Ok(Took { seconds: if of == Of::Core { one.cpu_s } else { one.seconds }, cpu_s: one.cpu_s })
    })?;
    let mut row = Row::new(definition);
    row.cpu_s = samples.cpu_s;
    Ok(row.measured(definition, &samples.pairs, quick))
}

/// Returns the part of `qualifies` that all rows here share.
pub(super) fn machine_text() -> String {
    format!("{}; equal checksums of both sides after each run", pin::text())
}
