// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows `cross4/…`: walks along chains whose pieces lie on four nodes.
//!
//! - **Flow** four nodes on loopback, with one map ─▶ chains of [`HOPS`] nodes that leave a node [`CROSSINGS`] times ─▶ the same client
//!   asks by way of the nodes (peer) and by way of itself (bounce)
//! - **Order** one thread turns the four nodes' shards, so that a crossing costs packets and not a scheduler that has fewer cores than
//!   nodes; both sides ask the same nodes
//! - **Count** messages: what nodes and client received for a walk; with k crossings a peer walk takes k + 2, a bounced one 2k + 2

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use memlift_traverse::client::{Client, Config, Request, Routing};
use memlift_traverse::map;
use memlift_traverse::node::{BASE, Counter, Node, NodeOptions, Shard};
use memlift_traverse::program::Program;
use memlift_traverse::structures::{Scratch, Walk};
use memlift_traverse::transport::udp::Udp;

use super::chains::{Chains, HOPS, NODE_BYTES, VALUE_AT};
use super::drive::share;
use super::node::check;
use super::pin::{self, Held, Role};
use super::serve::{Serving, failed};
use super::ycsb::Random;
use super::{Stop, unknown};
use crate::definition::Definition;
use crate::pairs::{self, Side, Took};
use crate::{BenchError, Row, machine};

const NODES: usize = 4;
/// Times that a walk leaves a node.
pub const CROSSINGS: u64 = 4;
const PIECE: u64 = HOPS.div_ceil(CROSSINGS + 1);

/// Where the chains lie.
#[derive(Debug)]
pub struct Spread {
    nodes: Vec<Node>,
    /// First address for chain nodes, per node; buckets lie at the first node's.
    bases: Vec<u64>,
    chains: u64,
}

impl Spread {
    /// Fills nodes with so many chains. Nodes' addresses follow each other.
    pub fn new(chains: u64) -> Result<Spread, BenchError> {
        // Two of the five pieces of each chain lie on the first node, and the buckets.
        let data = chains * (2 * PIECE * NODE_BYTES + 8) + 4096;
        let each = (data + (8 << 20)).next_multiple_of(2 << 20);
        let (mut nodes, mut bases) = (Vec::new(), Vec::new());
        for index in 0..NODES as u64 {
            let options = NodeOptions { base: BASE + index * each, bytes: each, ..NodeOptions::default() };
            let (node, _) = Node::open(options).map_err(failed)?;
            let given = node.writer().allocator().allocate(0, data);
            bases
                .push(given.ok_or_else(|| failed("a node has no room for its chains"))?.next_multiple_of(64));
            node.register(0, Program::clone(&Chains::program())).map_err(failed)?;
            nodes.push(node);
        }
        let spread = Spread { nodes, bases, chains };
        for chain in 0..chains {
            for hop in 0..HOPS {
                let next = if hop + 1 == HOPS { 0 } else { spread.place(chain, hop + 1).1 };
                let key = chain * HOPS + hop + 1;
                let words = [next, key, 8, spread.value(key)].map(u64::to_le_bytes).concat();
                let (node, address) = spread.place(chain, hop);
                spread.nodes[node].memory().store(address, &words);
            }
            let bucket = spread.place(chain, 0).1.to_le_bytes();
            spread.nodes[0].memory().store(spread.bucket(chain), &bucket);
        }
        Ok(spread)
    }

    fn bucket(&self, chain: u64) -> u64 {
        self.bases[0] + self.chains * 2 * PIECE * NODE_BYTES + chain * 8
    }

    fn place(&self, chain: u64, hop: u64) -> (usize, u64) {
        let piece = hop / PIECE;
        let node = piece as usize % NODES;
        let line = (piece / NODES as u64 * PIECE + hop % PIECE) * self.chains + chain;
        (node, self.bases[node] + line * NODE_BYTES)
    }

    fn value(&self, key: u64) -> u64 {
        key.wrapping_mul(0xff51_afd7_ed55_8ccd) | 1
    }

    /// A walk along a whole chain, and what it finds.
    pub fn walk(&self, chain: u64) -> (Request, u64) {
        let key = chain * HOPS + HOPS;
        let scratch = Scratch::new().with(0, key);
        let walk = Walk { program: Chains::program(), start: self.bucket(chain), scratch };
        (Request::walk(&walk), self.value(key))
    }

    /// Draws of a seed.
    pub fn draw(&self, seed: u64, count: u64) -> Vec<u64> {
        let mut random = Random(seed);
        (0..count).map(|_| random.below(self.chains)).collect()
    }

    /// Returns all memory nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The map over these sockets.
    pub fn map(&self, sockets: &[SocketAddr]) -> Result<map::Map, BenchError> {
        let (mut nodes, mut ranges) = (Vec::new(), Vec::new());
        for (index, (node, socket)) in self.nodes.iter().zip(sockets).enumerate() {
            let id = map::NodeId(index as u16);
            nodes.push(map::Node {
                id,
                name: format!("node{index}"),
                addresses: vec![map::Address::Udp(*socket)],
                state: map::State::Up,
                incarnation: 1,
            });
            ranges.push(map::Range {
                base: node.memory().base(),
                bytes: node.memory().bytes(),
                owner: Some(id),
                since: 1,
                permissions: map::Permissions::READ_WRITE,
                tenant: 0,
            });
        }
        map::Map::new(1, nodes, ranges).map_err(failed)
    }

    /// Packets that nodes have received so far, and walks that they have sent on.
    pub fn counted(&self) -> (u64, u64) {
        let sum = |counter| self.nodes.iter().map(|node| node.stats().read().get(counter)).sum();
        (sum(Counter::Received), sum(Counter::Forwarded))
    }
}

/// Runs walks one after the other. Returns their time, and the numbers of messages, forwards and packets that were sent again.
pub fn run(
    spread: &Spread,
    client: &mut Client,
    seed: u64,
    count: u64,
) -> Result<(Took, [u64; 3]), BenchError> {
    let chains = spread.draw(seed, count);
    let walks: Vec<(Request, u64)> = chains.iter().map(|chain| spread.walk(*chain)).collect();
    let right = walks
        .iter()
        .enumerate()
        .fold(0, |sum: u64, (number, (_, value))| sum.wrapping_add(share(number as u64, *value)));
    let (received, forwarded) = spread.counted();
    let (heard, again) = (client.counts().received, client.counts().again);
    let mut sum = 0u64;
    let took = pairs::time(count as usize, || {
        for (number, (request, _)) in walks.into_iter().enumerate() {
            let answer = client.call(request).map_err(failed)?;
            sum = sum.wrapping_add(share(number as u64, answer.scratch().word(VALUE_AT)));
        }
        Ok(())
    })?;
    if sum != right {
        let answer = format!("wrong values: {sum:016x}, not {right:016x}");
        return Err(BenchError::Answer { program: "four nodes".to_owned(), answer });
    }
    let after = spread.counted();
    let messages = after.0 - received + client.counts().received - heard;
    Ok((took, [messages, after.1 - forwarded, client.counts().again - again]))
}

/// Measures a row.
pub fn row(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    match (definition.name.as_str(), definition.rival.as_str()) {
        ("cross4/peer", "bounce") => Ok(peer(definition, quick)?),
        ("cross4/xdp", "bounce") => super::xdp::row(definition, quick),
        _ => Err(unknown(definition)),
    }
}

/// A client of these nodes.
pub fn client(sockets: &[SocketAddr], map: &map::Map, routing: Routing) -> Result<Client, BenchError> {
    let mut client = Client::udp(sockets, Config { routing, ..Config::default() }).map_err(failed)?;
    client.use_map(map);
    Ok(client)
}

/// Asks both clients in turns and judges.
pub fn compare(
    definition: &Definition,
    spread: &Spread,
    clients: &mut [Client; 2],
    quick: bool,
) -> Result<Row, BenchError> {
    let count: u64 = if quick { 50 } else { 1000 };
    let (mut turns, mut messages) = ([0; 2], [[0; 3]; 2]);
    let samples = pairs::interleave(quick, |side| {
        let at = usize::from(side == Side::Theirs);
        turns[at] += 1;
        let (took, counted) = run(spread, &mut clients[at], turns[at], count)?;
        messages[at].iter_mut().zip(counted).for_each(|(sum, one)| *sum += one);
        Ok(took)
    })?;
    let walks = turns[0] * count;
    let mut row = Row::new(definition);
    row.cpu_s = samples.cpu_s;
    for (name, number) in [
        ("messages", messages[0][0].div_ceil(walks)),
        ("crossings", messages[0][1].div_ceil(walks)),
        ("theirs_messages", messages[1][0].div_ceil(walks)),
        ("messages_of_all", messages[0][0]),
        ("walks", walks),
        ("sent_again", messages[0][2]),
        ("theirs_sent_again", messages[1][2]),
        ("hops", HOPS),
    ] {
        row.count.insert(name.to_owned(), number);
    }
    Ok(row.measured(definition, &samples.pairs, quick))
}

/// Turns shards, one after the other, on the nodes' core.
pub fn turns(mut shards: Vec<Shard>) -> Result<Serving, BenchError> {
    Serving::start(move |stop| {
        while !stop.load(Ordering::Relaxed) {
            for shard in &mut shards {
                shard.turn().map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    })
}

fn peer(definition: &Definition, quick: bool) -> Result<Row, BenchError> {
    let spread = Spread::new(if quick { 1 << 10 } else { 1 << 15 })?;
    let mut transports = Vec::new();
    for _ in 0..NODES {
        transports.push(Udp::bind(SocketAddr::from(([127, 0, 0, 1], 0)), false).map_err(failed)?);
    }
    let sockets: Vec<SocketAddr> = transports.iter().map(Udp::address).collect();
    let map = spread.map(&sockets)?;
    let shards: Vec<_> = transports
        .into_iter()
        .enumerate()
        .map(|(index, transport)| {
            let view = map::Shared::new(map.clone(), Some(map::NodeId(index as u16))).view();
            spread.nodes[index].shard(Box::new(transport), Box::new(view))
        })
        .collect();
    let serving = turns(shards)?;
    let measured = || {
        let mut clients = [client(&sockets, &map, Routing::Peer)?, client(&sockets, &map, Routing::Bounce)?];
        let _held = Held::new(Role::Client);
        compare(definition, &spread, &mut clients, quick)
    };
    let row = measured();
    drop(serving);
    let mut row = row?;
    // A packet that was sent again is an extra message; without one the count is exact.
    let (walks, all) = (row.count["walks"], row.count["messages_of_all"]);
    if row.count["sent_again"] == 0 {
        check(definition, all, walks * (CROSSINGS + 2))?;
    }
    row.qualifies = format!(
        "one client, one walk at a time; four nodes take turns on one core; UDP on loopback; {}; {} cores",
        pin::text(),
        machine::cores()
    );
    Ok(row)
}
