// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One lookup along a chain of 48 in five ways, for the tour.
//!
//! - **Flow** chains at a node, and in Redis ─▶ each way looks the same chains up, one after the other ─▶ [`Way`]s
//! - **Ways** a walk at the node to the last number · a walk that adds the numbers up · the same client, reading node by node ·
//!   Redis: a GET per node · Redis: a Lua script that adds, which users may write where they know the chain's names
//! - **Check** every lookup brings the number that the data says
//! - **Missing** Redis: the ways over it are left out, and the text says what to install

use std::time::{Duration, Instant};

use memlift_traverse::client::cache::Cache;
use memlift_traverse::client::{Client, Config};
use memlift_traverse::structures::Heap;

use super::redis::Redis;
use super::server::{Server, Store};
use super::{Chains, HOPS, find, found, picks, sum, summed};
use crate::BenchError;
use crate::machine;
use crate::traverse::Stop;
use crate::traverse::apps::cpu_of;
use crate::traverse::apps::nodes::{Nodes, Over, failed};
use crate::traverse::pin::{Held, Role};

const CHAINS: u64 = 20_000;
const CHAINS_QUICK: u64 = 100;

/// How one way went.
#[derive(Clone, Debug)]
pub struct Way {
    /// Name of the way.
    pub way: &'static str,
    /// Round trips of a lookup.
    pub round_trips: u64,
    /// Median time of a lookup, seconds.
    pub median_s: f64,
    /// 99th percentile of a lookup's time, seconds.
    pub slow_s: f64,
    /// CPU time of a lookup, client and server together, seconds.
    pub cpu_s: f64,
    /// Number of timed lookups.
    pub lookups: usize,
}

/// The whole story.
#[derive(Clone, Debug)]
pub struct Story {
    /// Name and version of Redis; `Err`: what to install.
    pub redis: Result<String, String>,
    /// Number of chains, and of their nodes in all.
    pub chains: (u64, u64),
    /// All ways, in the order of their measurement.
    pub ways: Vec<Way>,
}

/// Looks chains up, one after the other, and times each.
fn told(
    way: &'static str,
    round_trips: u64,
    (chains, lookups): (Chains, usize),
    other: Option<u32>,
    right: impl Fn(u64) -> u64,
    mut lookup: impl FnMut(u64) -> Result<u64, BenchError>,
) -> Result<Way, BenchError> {
    let cpu = || machine::cpu_seconds() + other.map_or(0.0, cpu_of);
    for pick in picks(chains.count, lookups / 8 + 1, 1) {
        lookup(pick)?;
    }
    let before = cpu();
    let mut times: Vec<f64> = Vec::with_capacity(lookups);
    for pick in picks(chains.count, lookups, 2) {
        let start = Instant::now();
        let answer = lookup(pick)?;
        times.push(start.elapsed().as_secs_f64());
        if answer != right(pick) {
            let sums = [right(pick), answer].map(|number| number.to_string());
            return Err(BenchError::Differ { name: "the tour".to_owned(), rival: way.to_owned(), sums });
        }
    }
    let cpu_s = (cpu() - before) / lookups as f64;
    times.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    Ok(Way { way, round_trips, median_s: at(0.5), slow_s: at(0.99), cpu_s, lookups })
}

/// Measures all ways.
pub fn tell(quick: bool) -> Result<Story, BenchError> {
    let chains = Chains::new(if quick { CHAINS_QUICK } else { CHAINS });
    let many = |full: usize| (chains, if quick { 10 } else { full });
    let nodes = Nodes::start(1, super::chain_bytes(chains), Over::Shm)?;
    let heads = chains.build(&nodes)?;
    let server = match Server::start(Store::Redis, false, 0) {
        Ok(server) => Ok(server),
        Err(Stop::Missing(what)) => Err(what),
        Err(Stop::Failed(error)) => return Err(error),
    };
    let mut redis = None;
    if let Ok(server) = &server {
        let mut client = Redis::new(server.line()?);
        client.fill_chains(&chains)?;
        redis = Some(client);
    }
    let _held = Held::new(Role::Client);
    let last = |pick: u64| chains.numbers(pick).last().unwrap_or_default();
    let all = |pick: u64| chains.numbers(pick).sum::<u64>();
    let mut client: Client = nodes.client(Config::default())?;
    let mut ways = vec![told("memlift: a walk", 1, many(20_000), None, last, |pick| {
        let walk = find(heads[pick as usize], last(pick))?;
        Ok(found(&client.walk(&walk).map_err(failed)?.scratch))
    })?];
    ways.push(told("memlift: a sum on the way", 1, many(20_000), None, all, |pick| {
        Ok(summed(&client.walk(&sum(heads[pick as usize])).map_err(failed)?.scratch))
    })?);
    // The head, and then every node.
    ways.push(told("node by node: reads", HOPS as u64 + 1, many(1000), None, last, |pick| {
        let walk = find(heads[pick as usize], last(pick))?;
        let mut cache = Cache::new(0, Duration::ZERO);
        let (walked, _) = client.walk_locally(&mut cache, &walk).map_err(failed)?;
        Ok(found(&walked.scratch))
    })?);
    if let (Ok(server), Some(redis)) = (&server, &mut redis) {
        let process = Some(server.process());
        ways.push(told("node by node: Redis GET", HOPS as u64, many(1000), process, last, |pick| {
            redis.chain(chains.head(pick))
        })?);
        ways.push(told("Redis: a sum in Lua", 1, many(5000), process, all, |pick| {
            redis.sums(&[chains.head(pick)], 1)
        })?);
    }
    Ok(Story {
        redis: server.map(|server| server.version.clone()),
        chains: (chains.count, chains.total()),
        ways,
    })
}
