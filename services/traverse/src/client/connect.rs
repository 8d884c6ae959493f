// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connects a client to its nodes: over given transports, by sockets, or by the names of rings.
//!
//! - **Flow** addresses ─▶ a transport per kind of link ─▶ each node is asked for its range ─▶ routes
//! - **Not here** maps ([`Client::use_map`]): the ranges given at the start are enough for nodes that do not change

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use memlift_ground::region::{process_mark, random};

use crate::resolve::resolve;

use super::ring::Ring;
use super::route::{Reach, Routes};
use super::row::ClientRow;
use super::session::{Heard, Session};
use super::stepper::Steppers;
use super::wait::Wait;
use super::{Client, ClientError, Config, Counts, Link, Result};
use crate::map::{ADDRESSES_MAX, Address, Map};
use crate::transport::Peer;
use crate::transport::udp::Udp;

/// Longest wait for the nodes of a map at their first addresses, if they have others.
const FIRST_ADDRESSES: Duration = Duration::from_secs(2);

impl Client {
    /// Connects to the nodes at the other ends of these links, and asks each for its range. If some answer and others are
    /// silent, only the data of the silent ones is unavailable.
    ///
    /// # Errors
    /// [`ClientError::Silent`] if no node answers; errors of the transports.
    pub fn connect(links: Vec<Link>, config: Config) -> Result<Client> {
        let _ = memlift_ground::observe::is_recorded(); // looks once for a listening `memlift record`, so that no walk has to
        let mut reaches = Vec::new();
        let mut transports = Vec::new();
        for (index, link) in links.into_iter().enumerate() {
            transports.push(link.transport);
            reaches.extend(link.nodes.into_iter().map(|(name, peer)| Reach::new(name, index, peer, 0)));
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let row = ClientRow::open(reaches.first().map_or("", |reach| reach.name.as_str()));
        let mut client = Client {
            links: transports,
            reaches,
            routes: Routes::default(),
            process: process_mark(),
            session: Session::default(),
            // From the kernel: random state of this process would be the same in a forked child.
            sender: random(),
            heard: Heard::nothing(),
            config,
            nonce: now.as_nanos() as u64,
            next_sequence: 1,
            next_ticket: 0,
            flights: BTreeMap::new(),
            done: HashMap::new(),
            wakers: HashMap::new(),
            uploads: HashMap::new(),
            uploaded: HashSet::new(),
            senders: HashSet::new(),
            unsent: HashSet::new(),
            round_trip_estimate: None,
            crossing_lost: None,
            next_retransmit_at: Instant::now(),
            next_node: 0,
            fresh: 0,
            next_inquiry: 0,
            learned_epoch: 0,
            asked_epoch: 0,
            turn_bytes: 0,
            counts: Counts::default(),
            row,
            packet: Vec::new(),
            arrived: (Vec::new(), Vec::new()),
            wait: Wait::default(),
            steppers: Steppers::default(),
        };
        client.session.client = client.config.client.unwrap_or_else(random);
        client.ask_all()?;
        Ok(client)
    }

    /// Connects to nodes that listen at these sockets.
    ///
    /// # Errors
    /// The errors of [`Client::connect`].
    pub fn udp(nodes: &[SocketAddr], config: Config) -> Result<Client> {
        let link = Client::socket_link(nodes, &config)?;
        Client::connect(vec![link], config)
    }

    /// Connects to nodes on this machine, by the names of their rings.
    ///
    /// # Errors
    /// The errors of [`Client::connect`].
    pub fn shm(nodes: &[&str], config: Config) -> Result<Client> {
        let link = |&name: &&str| -> Result<Link> {
            let transport = Ring::connect(name)?;
            Ok(Link { transport: Box::new(transport), nodes: vec![(name.to_owned(), Peer::Ring(0))] })
        };
        Client::connect(nodes.iter().map(link).collect::<Result<_>>()?, config)
    }

    /// Connects to nodes whose addresses are given as text: `HOST:PORT`, or `shm:NAME`.
    ///
    /// # Errors
    /// [`ClientError::Place`]; the errors of [`Client::connect`].
    pub fn reach(nodes: &[&str], config: Config) -> Result<Client> {
        let (mut sockets, mut links) = (Vec::new(), Vec::new());
        for &node in nodes {
            match node.strip_prefix("shm:") {
                Some(name) => {
                    let transport = Box::new(Ring::of(name, nodes.len() > 1)?);
                    links.push(Link { transport, nodes: vec![(name.to_owned(), Peer::Ring(0))] });
                }
                None => {
                    sockets.push(resolve(node).map_err(ClientError::Place)?);
                }
            }
        }
        if !sockets.is_empty() {
            links.push(Client::socket_link(&sockets, &config)?);
        }
        Client::connect(links, config)
    }

    /// Connects to the nodes of a map; each is reached by its first socket if it has one, otherwise by its ring. If no node answers
    /// there, their other sockets are tried as well.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] if a node has no address; the errors of [`Client::connect`].
    pub fn of_map(map: &Map, config: Config) -> Result<Client> {
        let has_more = map.nodes().iter().any(|node| node.sockets().count() > 1);
        let deadline = config.deadline;
        let first = if has_more { deadline.min(FIRST_ADDRESSES) } else { deadline };
        let first = Config { deadline: first, ..config.clone() };
        let connected = Client::connect(Client::links_of(map, 1, &config)?, first);
        let mut client = match connected {
            Err(ClientError::Silent { .. }) if has_more => {
                Client::connect(Client::links_of(map, ADDRESSES_MAX, &config)?, config)?
            }
            connected => connected?,
        };
        client.config.deadline = deadline;
        client.use_map(map);
        Ok(client)
    }

    /// Opens links to a map's nodes, each at this many of its UDP addresses.
    fn links_of(map: &Map, addresses: usize, config: &Config) -> Result<Vec<Link>> {
        let (mut sockets, mut links) = (Vec::new(), Vec::new());
        for node in map.nodes() {
            let ring = node.addresses.iter().find_map(|address| match address {
                Address::Shm(name) => Some(name),
                Address::Udp(_) => None,
            });
            match (node.socket(), ring) {
                (Some(_), _) => sockets.extend(node.sockets().take(addresses)),
                (None, Some(name)) => {
                    let transport = Box::new(Ring::of(name, map.nodes().len() > 1)?);
                    links.push(Link { transport, nodes: vec![(name.clone(), Peer::Ring(0))] });
                }
                (None, None) => {
                    return Err(ClientError::Unreachable { node: node.name.clone(), address: 0 });
                }
            }
        }
        if !sockets.is_empty() {
            links.push(Client::socket_link(&sockets, config)?);
        }
        Ok(links)
    }

    fn socket_link(nodes: &[SocketAddr], config: &Config) -> Result<Link> {
        let beyond = nodes.iter().any(|node| !node.ip().is_loopback());
        let any = match (beyond, nodes.first()) {
            (false, Some(SocketAddr::V6(_))) => "[::1]:0",
            (false, _) => "127.0.0.1:0",
            (true, Some(SocketAddr::V6(_))) => "[::]:0",
            (true, _) => "0.0.0.0:0",
        };
        let transport = Udp::bind(any.parse().expect("an address"), !config.keys.is_empty())?;
        let nodes = nodes.iter().map(|&node| (node.to_string(), Peer::Socket(node))).collect();
        Ok(Link { transport: Box::new(transport), nodes })
    }
}
