// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chains and ranges at a memory node, and the same in Redis and memcached as their users write it.
//!
//! - **Flow** data from a seed ─▶ into a node and into a store ─▶ the same draws to both ─▶ rows
//! - **Rows** latency/hash48: to the end of a chain, one walk or 48 GETs, one request at a time · rate/sum48: numbers added along it,
//!   [`SUMS_DEPTH`] requests under way · range/100x240B: 100 records in order, [`RANGES_DEPTH`] under way; its time is CPU
//!   time, so its unit is requests per second and core. `/udp` behind a name: UDP against TCP, both on loopback; without
//!   it rings against a Unix socket, which are what each has for its own machine · insert/many, insert/many_ordered: keys put into
//!   collections that are there ([`many`])
//! - **Rivals** as good as they get: Unix socket or TCP without delay, pipelined where requests do not depend on each other, no
//!   persistence, one thread (there are two cores, and the client needs one), huge pages, a client that looks again before it
//!   sleeps and parses in place
//! - **Check** sums over all numbers and bytes that clients got
//! - **Not here** the tour's chapter over the same chains ([`story`])

mod line;
mod many;
mod memcached;
mod redis;
mod server;
pub(crate) mod story;

use memlift_traverse::client::{Client, Config};
use memlift_traverse::structures::bulk;
use memlift_traverse::structures::chain::{Chain, Key, node_bytes};
use memlift_traverse::structures::ordered::Handle;
use memlift_traverse::structures::placement::{Order, Placement, SLAB_2M};
use memlift_traverse::structures::sink::Sink;
use memlift_traverse::structures::{Scratch, Walk, shipped};

use self::memcached::Memcached;
pub(super) use self::redis::Redis;
pub(super) use self::server::{Server, Store};
use super::Stop;
use super::apps::nodes::{Nodes, Over, failed};
use super::apps::{Of, Reader, compare, machine_text, timed};
use super::ycsb::{Draw, Generator, Operation, Random, Workload};
use crate::definition::Definition;
use crate::pairs::Side;
use crate::{BenchError, Row, reference};

/// Nodes of a chain.
pub const HOPS: usize = 48;
/// Records of a range.
pub const RANGE: usize = 100;
/// Bytes of a record's value.
pub const VALUE_BYTES: usize = 240;
/// Requests under way.
const SUMS_DEPTH: usize = 32;
const RANGES_DEPTH: usize = 16;

/// Chains of numbers; all data from the number of chains.
#[derive(Clone, Copy, Debug)]
pub struct Chains {
    count: u64,
}

impl Chains {
    /// Makes `count` chains of [`HOPS`] nodes each.
    pub fn new(count: u64) -> Chains {
        Chains { count }
    }

    fn total(self) -> u64 {
        self.count * HOPS as u64
    }

    /// Name of the n-th node: 32 bits that no other node has.
    fn name(self, node: u64) -> u64 {
        node.wrapping_mul(0x9e37_79b1) & 0xffff_ffff
    }

    fn number(self, node: u64) -> u64 {
        Random(node ^ 0x5bd1_e995).bits() >> 24
    }

    /// The name of a chain's first node.
    pub fn head(self, chain: u64) -> u64 {
        self.name(chain * HOPS as u64)
    }

    /// The numbers along a chain.
    pub fn numbers(self, chain: u64) -> impl Iterator<Item = u64> {
        (0..HOPS as u64).map(move |hop| self.number(chain * HOPS as u64 + hop))
    }

    /// All nodes' places in the order in which they are put into memory: one that leaves neighbours of a chain far apart.
    fn order(self) -> impl Iterator<Item = u64> {
        let total = self.total();
        // A prime that no number of nodes here is a multiple of, so every place comes once.
        (0..total).map(move |turn| (u128::from(turn) * 2_654_435_761 % u128::from(total)) as u64)
    }

    /// Name, next one's name and number of all nodes, in that order.
    pub fn nodes(self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.order().map(move |node| {
            let last = (node + 1).is_multiple_of(HOPS as u64);
            let next = if last { 0xffff_ffff } else { self.name(node + 1) };
            (self.name(node), next, self.number(node))
        })
    }

    /// Lays them out in a node's memory; the heads' addresses.
    fn build(self, nodes: &Nodes) -> Result<Vec<u64>, BenchError> {
        let mut placement = Placement::new(&nodes.ranges(), SLAB_2M, Order::Random(1));
        let full = || failed("the node is full");
        let mut addresses = vec![0_u64; self.total() as usize];
        for node in self.order() {
            addresses[node as usize] = placement.next(32).ok_or_else(full)?;
        }
        let mut sink = nodes.sink();
        for node in self.order() {
            let last = (node + 1).is_multiple_of(HOPS as u64);
            let next = if last { 0 } else { addresses[node as usize + 1] };
            let number = self.number(node);
            let bytes = node_bytes(next, Key::Number(number), &number.to_le_bytes()).map_err(failed)?;
            sink.put(addresses[node as usize], &bytes).map_err(failed)?;
        }
        let mut heads = Vec::new();
        for first in addresses.chunks(HOPS).map(|chain| chain[0]) {
            let head = placement.next(16).ok_or_else(full)?;
            sink.put(head, &first.to_le_bytes()).map_err(failed)?;
            heads.push(head);
        }
        Ok(heads)
    }
}

/// Records under keys of 8 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Records {
    /// Number of records.
    pub count: u64,
}

impl Records {
    /// The key of the n-th one.
    pub fn key(self, at: u64) -> u64 {
        Random(at ^ 0xc2b2_ae35).bits() >> 1
    }

    /// Returns the value of the record with this key.
    pub fn value(self, key: u64) -> [u8; VALUE_BYTES] {
        let mut random = Random(key);
        let mut value = [0; VALUE_BYTES];
        for word in value.chunks_exact_mut(8) {
            word.copy_from_slice(&random.bits().to_le_bytes());
        }
        value
    }

    fn keys(self) -> Vec<u64> {
        let mut keys: Vec<u64> = (0..self.count).map(|at| self.key(at)).collect();
        keys.sort_unstable();
        keys
    }

    fn build(self, nodes: &Nodes, keys: &[u64]) -> Result<Handle, BenchError> {
        let mut placement = Placement::new(&nodes.ranges(), SLAB_2M, Order::Random(1));
        let pairs = keys.iter().map(|&key| Ok((key, self.value(key))));
        bulk::ordered(pairs, VALUE_BYTES, &mut placement, &mut nodes.sink(), |_| {}).map_err(failed)
    }
}

/// Measures a row against a store; `None`: there is no such row.
pub fn row(definition: &Definition, quick: bool) -> Option<Result<Row, Stop>> {
    let (name, udp) = match definition.name.strip_suffix("/udp") {
        Some(name) => (name, true),
        None => (definition.name.as_str(), false),
    };
    Some(match (name, definition.rival.as_str()) {
        ("latency/hash48", "redis_get_chain") => chain(definition, Store::Redis, udp, quick),
        ("latency/hash48", "memcached_get_chain") => chain(definition, Store::Memcached, udp, quick),
        ("rate/sum48", "redis_lua") => sums(definition, udp, quick),
        ("range/100x240B", "redis_zrange_mget") => ranges(definition, udp, quick),
        ("insert/many", "redis_set") => many::row(definition, many::Kind::Hash, udp, quick),
        ("insert/many_ordered", "redis_zadd") => many::row(definition, many::Kind::Ordered, udp, quick),
        _ => return None,
    })
}

fn over(udp: bool) -> Over {
    if udp { Over::Udp } else { Over::Shm }
}

/// The walk to a chain's last node; its value is the number.
fn find(head: u64, number: u64) -> Result<Walk, BenchError> {
    Chain(head).find_walk(Key::Number(number), false).map_err(failed)
}

/// The number that [`find`] brought.
fn found(scratch: &Scratch) -> u64 {
    scratch.word(32)
}

/// The walk that adds the numbers along a chain.
fn sum(head: u64) -> Walk {
    Walk { program: shipped::LIST_SUM.program(), start: head, scratch: Scratch::new().with(8, head) }
}

/// The sum that [`sum`] brought.
fn summed(scratch: &Scratch) -> u64 {
    scratch.word(152)
}

/// Draws the chains that are asked for.
fn picks(chains: u64, requests: usize, seed: u64) -> Vec<u64> {
    let mut generator = Generator::new(Workload::C, Draw::Uniform, chains, seed);
    let pick = |operation| if let Operation::Read(chain) = operation { chain } else { 0 };
    (0..requests).map(|_| pick(generator.next())).collect()
}

/// A client of a store that follows chains.
enum Follower {
    Redis(Redis),
    Memcached(Memcached),
}

impl Follower {
    fn fill(store: Store, server: &Server, chains: &Chains) -> Result<Follower, BenchError> {
        Ok(match store {
            Store::Redis => {
                let mut redis = Redis::new(server.line()?);
                redis.fill_chains(chains)?;
                Follower::Redis(redis)
            }
            Store::Memcached => {
                let mut memcached = Memcached::new(server.line()?);
                memcached.fill(chains)?;
                Follower::Memcached(memcached)
            }
        })
    }

    fn chain(&mut self, head: u64) -> Result<u64, BenchError> {
        match self {
            Follower::Redis(redis) => redis.chain(head),
            Follower::Memcached(memcached) => memcached.chain(head),
        }
    }
}

/// Both sides of the rows over chains.
struct ChainSides {
    chains: Chains,
    heads: Vec<u64>,
    nodes: Nodes,
    client: Client,
    server: Server,
    follower: Follower,
}

impl ChainSides {
    fn start(store: Store, udp: bool, count: u64) -> Result<ChainSides, Stop> {
        let chains = Chains::new(count);
        let server = Server::start(store, udp, chains.total() * 128)?;
        let follower = Follower::fill(store, &server, &chains)?;
        let nodes = Nodes::start(1, chain_bytes(chains), over(udp))?;
        let heads = chains.build(&nodes)?;
        let client = nodes.client(Config::default())?;
        Ok(ChainSides { chains, heads, nodes, client, server, follower })
    }

    fn text(&self, udp: bool, store: &str) -> String {
        format!(
            "{} chains of {HOPS} nodes, far apart; ours: {}, node's pages: {}; theirs: {}, {}, one thread, no persistence, {store}; {}",
            self.heads.len(),
            self.nodes.over().text(),
            self.nodes.pages(),
            self.server.version,
            if udp { "TCP on loopback" } else { "Unix socket" },
            machine_text()
        )
    }
}

/// Room for chains.
fn chain_bytes(chains: Chains) -> u64 {
    (chains.total() * 32 * 5 / 4).next_multiple_of(SLAB_2M) + SLAB_2M
}

const CHAINS: u64 = 20_000;
const CHAINS_QUICK: u64 = 100;

fn chain(definition: &Definition, store: Store, udp: bool, quick: bool) -> Result<Row, Stop> {
    let mut sides = ChainSides::start(store, udp, if quick { CHAINS_QUICK } else { CHAINS })?;
    let requests = if quick { 10 } else { 60 };
    let mut row = compare(definition, Of::Time, quick, |side, seed| {
        let picks = picks(sides.chains.count, requests, seed);
        if side == Side::Theirs {
            let follower = &mut sides.follower;
            return timed(requests, Some(sides.server.process()), || {
                picks.iter().try_fold(0_u64, |sum, &pick| {
                    Ok(sum.rotate_left(1) ^ follower.chain(sides.chains.head(pick))?)
                })
            });
        }
        let walk = |&pick: &u64| {
            let last = sides.chains.numbers(pick).last().unwrap_or_default();
            find(sides.heads[pick as usize], last)
        };
        let walks: Vec<Walk> = picks.iter().map(walk).collect::<Result<_, _>>()?;
        timed(requests, None, || {
            walks.iter().try_fold(0_u64, |sum, walk| {
                let answer =
                    sides.client.call(memlift_traverse::client::Request::walk(walk)).map_err(failed)?;
                Ok(sum.rotate_left(1) ^ found(&answer.scratch()))
            })
        })
    })?;
    row.count.insert("round_trips".to_owned(), 1);
    row.count.insert("theirs_round_trips".to_owned(), HOPS as u64);
    row.qualifies =
        sides.text(udp, "a GET per node, its client looks again before it sleeps; one request at a time");
    Ok(row)
}

fn sums(definition: &Definition, udp: bool, quick: bool) -> Result<Row, Stop> {
    let mut sides = ChainSides::start(Store::Redis, udp, if quick { CHAINS_QUICK } else { CHAINS })?;
    let Follower::Redis(redis) = &mut sides.follower else { return Err(super::unknown(definition)) };
    let mut reader = Reader::Remote(sides.nodes.client(Config::default())?, SUMS_DEPTH);
    let requests = if quick { 40 } else { 3000 };
    let (chains, heads, server) = (sides.chains, &sides.heads, &sides.server);
    let mut row = compare(definition, Of::Time, quick, |side, seed| {
        let picks = picks(chains.count, requests, seed);
        if side == Side::Theirs {
            let names: Vec<u64> = picks.iter().map(|&pick| chains.head(pick)).collect();
            return timed(requests, Some(server.process()), || redis.sums(&names, SUMS_DEPTH));
        }
        let walks: Vec<Walk> = picks.iter().map(|&pick| sum(heads[pick as usize])).collect();
        timed(requests, None, || {
            let mut checksum = 0_u64;
            reader.walk_all(&walks, |_, walked| {
                checksum = checksum.rotate_left(1) ^ summed(&walked.scratch);
                Ok(())
            })?;
            Ok(checksum)
        })
    })?;
    row.qualifies = sides.text(udp, "EVALSHA of a script that GETs along the chain, pipelined");
    row.qualifies += &format!("; {SUMS_DEPTH} requests under way on both sides");
    Ok(row)
}

fn ranges(definition: &Definition, udp: bool, quick: bool) -> Result<Row, Stop> {
    let records = Records { count: if quick { 2000 } else { 200_000 } };
    let server = Server::start(Store::Redis, udp, records.count * 512)?;
    let mut redis = Redis::new(server.line()?);
    redis.fill_records(&records)?;
    // Pipelined, a client that sleeps costs less of its core and hardly waits longer.
    redis.spins(false);
    let bytes = (records.count * (256 + 20) * 9 / 8).next_multiple_of(SLAB_2M) + SLAB_2M;
    let nodes = Nodes::start(1, bytes, over(udp))?;
    let keys = records.keys();
    let handle = records.build(&nodes, &keys)?;
    let mut reader = Reader::Remote(nodes.client(Config::default())?, RANGES_DEPTH);
    let requests = if quick { 20 } else { 400 };
    let mut row = compare(definition, Of::Core, quick, |side, seed| {
        let mut random = Random(seed);
        let from = |_| keys[random.below(keys.len() as u64 - RANGE as u64) as usize];
        let firsts: Vec<u64> = (0..requests).map(from).collect();
        if side == Side::Theirs {
            return timed(requests, Some(server.process()), || redis.ranges(&firsts, RANGES_DEPTH));
        }
        let walks: Vec<Walk> =
            firsts.iter().map(|&first| handle.range_walk(first..=u64::MAX, RANGE as u64)).collect();
        timed(requests, None, || {
            let mut checksum = 0_u64;
            reader.walk_all(&walks, |_, walked| {
                for record in walked.result.chunks_exact(8 + VALUE_BYTES) {
                    checksum = checksum.rotate_left(1) ^ reference::checksum_of(&record[8..]);
                }
                Ok(())
            })?;
            Ok(checksum)
        })
    })?;
    row.qualifies = format!(
        "requests per second of CPU time, client and server together; {} records of 8 + {VALUE_BYTES} B; ours: one walk, {}, node's \
         pages: {}; theirs: {}, {}, one thread, no persistence, ZRANGE BYLEX LIMIT and then MGET, pipelined; {RANGES_DEPTH} under way on both \
         sides; {}",
        records.count,
        nodes.over().text(),
        nodes.pages(),
        server.version,
        if udp { "TCP on loopback" } else { "Unix socket" },
        machine_text()
    );
    Ok(row)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use memlift_traverse::structures::Heap;

    use super::*;

    #[test]
    fn every_node_has_a_name_of_its_own_and_is_placed_once() {
        let chains = Chains::new(500);
        let names: HashSet<u64> = chains.nodes().map(|(name, ..)| name).collect();
        assert_eq!((names.len() as u64, names.contains(&0xffff_ffff)), (chains.total(), false));
        assert_eq!(chains.order().collect::<HashSet<_>>().len() as u64, chains.total());
        for count in [CHAINS, CHAINS_QUICK] {
            assert_ne!(count * HOPS as u64 % 2_654_435_761, 0);
        }
    }

    #[test]
    fn a_node_answers_as_the_data_says() {
        let nodes = Nodes::start(1, 4 << 20, Over::Shm).expect("a node");
        let chains = Chains::new(30);
        let heads = chains.build(&nodes).expect("room");
        let mut client = nodes.client(Config::default()).expect("a client");
        for (chain, &head) in heads.iter().enumerate() {
            let numbers: Vec<u64> = chains.numbers(chain as u64).collect();
            let last = numbers[HOPS - 1];
            let walked = client.walk(&find(head, last).expect("a key")).expect("an answer");
            assert_eq!(found(&walked.scratch), last);
            let walked = client.walk(&sum(head)).expect("an answer");
            assert_eq!(summed(&walked.scratch), numbers.iter().sum::<u64>());
        }
    }
}
