// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory nodes in threads of this process, as the applications use them: real packets over a real transport, memory that can be
//! filled without packets.
//!
//! - **Flow** [`Nodes::start`] ─▶ [`Nodes::ranges`]: where structures are built, by [`Nodes::sink`] ─▶ [`Nodes::client`]s ask
//! - **Order** all threads of nodes are held to the nodes' core, as in the rows of one node
//! - **Owner** dropping [`Nodes`] stops and joins the threads; a node that failed says why on stderr, and its clients time out
//! - **Not here** what is built (`web`, `records`, `series`), the rival's server (`native`)

use std::net::SocketAddr;
use std::sync::Arc;

use memlift_traverse::client::{Client, ClientError, Config};
use memlift_traverse::map;
use memlift_traverse::memory::Memory;
use memlift_traverse::node::{Alone, BASE, Counter, Node, NodeOptions, Router};
use memlift_traverse::structures::sink::Sink;
use memlift_traverse::transport::Transport;

use crate::BenchError;
pub use crate::traverse::serve::{Over, Place, Serving, failed};

/// Bytes of each node that clients allocate from.
const SPARE_BYTES: u64 = 64 << 20;

/// A client of a server.
pub fn client(place: &Place, config: Config) -> Result<Client, BenchError> {
    match place {
        Place::Ring(name) => Client::shm(&[name], config).map_err(failed),
        Place::Socket(socket) => Client::udp(&[*socket], config).map_err(failed),
    }
}

#[derive(Debug)]
struct One {
    _serving: Serving,
    node: Node,
    place: Place,
    /// Where structures are built: first address, bytes.
    range: (u64, u64),
}

/// See the module.
#[derive(Debug)]
pub struct Nodes {
    all: Vec<One>,
    map: Option<map::Map>,
    over: Over,
}

impl Nodes {
    /// Starts `count` nodes, each with room for structures of so many bytes. Several nodes know each other, over UDP.
    pub fn start(count: usize, bytes: u64, over: Over) -> Result<Nodes, BenchError> {
        Nodes::with_spare(count, bytes, SPARE_BYTES, over)
    }

    /// The same with so many bytes on each that clients allocate from.
    pub fn with_spare(count: usize, bytes: u64, spare: u64, over: Over) -> Result<Nodes, BenchError> {
        let each = (bytes + spare).next_multiple_of(2 << 20);
        let needed = each * count as u64;
        let available = crate::machine::available_bytes();
        if needed > available {
            return Err(BenchError::Memory { needed_bytes: needed, available_bytes: available });
        }
        let listening: Vec<(Place, Box<dyn Transport>)> =
            (0..count).map(|_| Place::listen(over)).collect::<Result<_, _>>()?;
        let places: Vec<Place> = listening.iter().map(|(place, _)| place.clone()).collect();
        let map = if count > 1 { Some(Nodes::map(&places, each)?) } else { None };
        let mut all = Vec::new();
        for (index, (place, transport)) in listening.into_iter().enumerate() {
            // Structures touch the pages that they need; rows with little data do not wait for the others.
            let options = NodeOptions {
                base: base(index, each),
                bytes: each,
                prefault: false,
                ..NodeOptions::default()
            };
            let (node, _) = Node::open(options).map_err(failed)?;
            let router: Box<dyn Router> = match &map {
                Some(map) => Box::new(map::Shared::new(map.clone(), Some(map::NodeId(index as u16))).view()),
                None => Box::new(Alone),
            };
            let mut shard = node.shard(transport, router);
            let address = node.writer().allocator().allocate(0, bytes);
            let address = address.ok_or_else(|| failed("a node has no room for its structures"))?;
            let serving = Serving::start(move |stop| shard.serve(stop).map_err(|error| error.to_string()))?;
            all.push(One { _serving: serving, node, place, range: (address, bytes) });
        }
        Ok(Nodes { all, map, over })
    }

    fn map(places: &[Place], bytes: u64) -> Result<map::Map, BenchError> {
        let mut nodes = Vec::new();
        let mut ranges = Vec::new();
        for (index, place) in places.iter().enumerate() {
            let id = map::NodeId(index as u16);
            let Place::Socket(socket) = place else {
                return Err(failed("nodes reach each other by sockets only"));
            };
            nodes.push(map::Node {
                id,
                name: format!("node{index}"),
                addresses: vec![map::Address::Udp(*socket)],
                state: map::State::Up,
                incarnation: 1,
            });
            ranges.push(map::Range {
                base: base(index, bytes),
                bytes,
                owner: Some(id),
                since: 1,
                permissions: map::Permissions::READ_WRITE,
                tenant: 0,
            });
        }
        map::Map::new(1, nodes, ranges).map_err(failed)
    }

    /// A client of all of them.
    pub fn client(&self, config: Config) -> Result<Client, BenchError> {
        let [one] = &self.all[..] else {
            let socket = |one: &One| match &one.place {
                Place::Socket(socket) => Some(*socket),
                Place::Ring(_) => None,
            };
            let sockets: Vec<SocketAddr> = self.all.iter().filter_map(socket).collect();
            let mut client = Client::udp(&sockets, config).map_err(failed)?;
            if let Some(map) = &self.map {
                client.use_map(map);
            }
            return Ok(client);
        };
        client(&one.place, config)
    }

    /// How packets travel.
    pub fn over(&self) -> Over {
        self.over
    }

    /// Where structures are built: first address and bytes, per node.
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        self.all.iter().map(|one| one.range).collect()
    }

    /// The memory of the first one.
    pub fn memory(&self) -> &Arc<Memory> {
        self.all[0].node.memory()
    }

    /// Returns a sink that fills their memory without packets.
    pub fn sink(&self) -> Straight<'_> {
        Straight { nodes: &self.all }
    }

    /// The sum of a counter over all of them.
    pub fn counted(&self, counter: Counter) -> u64 {
        self.all.iter().map(|one| one.node.stats().read().get(counter)).sum()
    }

    /// Names the kind of pages that the memory lies in.
    pub fn pages(&self) -> String {
        format!("{:?}", self.memory().huge()).to_lowercase()
    }
}

fn base(index: usize, bytes: u64) -> u64 {
    BASE + index as u64 * bytes
}

/// Stores into the nodes' memory directly, before any request.
#[derive(Debug)]
pub struct Straight<'n> {
    nodes: &'n [One],
}

impl Sink for Straight<'_> {
    fn put(&mut self, address: u64, bytes: &[u8]) -> Result<(), ClientError> {
        let inside = |one: &&One| {
            let (base, all) = one.range;
            address >= base && address - base <= all.saturating_sub(bytes.len() as u64)
        };
        let one = self.nodes.iter().find(inside).ok_or(ClientError::Nowhere { address, epoch: 0 })?;
        one.node.memory().store(address, bytes);
        Ok(())
    }
}
