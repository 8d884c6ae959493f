// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Row `cross4/xdp`: crossings by a switch in the kernel, between hosts in network namespaces of their own.
//!
//! - **Layout** that of `memlift_traverse::xdp::lab`
//! - **Flow** ours: a node gives a walk that leaves it to the switch, which reads its address and hands it to the node that has it ·
//!   bounce: the node answers the client, which asks the next node; all packets of both sides pass the switch
//! - **Needs** root, `ip` (iproute2), a kernel that takes XDP on veth; what is missing is said in the row

use std::net::SocketAddr;

use memlift_traverse::client::{Client, Config, Link, Routing};
use memlift_traverse::map;
use memlift_traverse::transport::Peer;
use memlift_traverse::transport::udp::Udp;
use memlift_traverse::xdp::Through;
use memlift_traverse::xdp::lab::{Lab, SERVICE, ip_of};

use super::Stop;
use super::cross::{CROSSINGS, Spread, compare, turns};
use super::pin::{self, Held, Role};
use super::serve::failed;
use crate::definition::Definition;
use crate::{BenchError, Row};

const HOSTS: [&str; 5] = ["client", "a", "b", "c", "d"];

fn at(host: usize) -> SocketAddr {
    SocketAddr::from((ip_of(host), SERVICE.port()))
}

/// Binds a socket of a host. Nothing outside these namespaces reaches it: as on loopback, packets carry no keys.
fn bind(lab: &Lab, host: usize, port: u16) -> Result<Udp, BenchError> {
    let bound = lab.within(HOSTS[host], || Udp::bind((ip_of(host), port).into(), true)).map_err(failed)?;
    bound.map_err(failed)
}

/// Measures the row.
pub fn row(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    let spread = Spread::new(if quick { 1 << 10 } else { 1 << 15 })?;
    let lab = Lab::start("bench", &HOSTS).map_err(Stop::Missing)?;
    let (mut switch, _passes) = lab.attach().map_err(Stop::Missing)?;
    let sockets: Vec<SocketAddr> = (1..HOSTS.len()).map(at).collect();
    let map = spread.map(&sockets)?;
    switch.update(&map).map_err(failed)?;
    let mut shards = Vec::new();
    for (index, node) in spread.nodes().iter().enumerate() {
        let transport = bind(&lab, index + 1, SERVICE.port())?;
        let view = map::Shared::new(map.clone(), Some(map::NodeId(index as u16))).view();
        let router = Through::new(view, SERVICE);
        shards.push(node.shard(Box::new(transport), Box::new(router)));
    }
    let serving = turns(shards)?;
    let client = |routing| -> Result<Client, BenchError> {
        let transport = Box::new(bind(&lab, 0, 0)?);
        let nodes = sockets.iter().map(|socket| (socket.to_string(), Peer::Socket(*socket))).collect();
        let config = Config { routing, ..Config::default() };
        Client::connect(vec![Link { transport, nodes }], config).map_err(failed)
    };
    let measured = || -> Result<Row, BenchError> {
        let mut clients = [client(Routing::Peer)?, client(Routing::Bounce)?];
        let _held = Held::new(Role::Client);
        // Passes of one walk of ours alone.
        let before = switch.counts().map_err(failed)?;
        super::cross::run(&spread, &mut clients[0], 0, 100)?;
        let after = switch.counts().map_err(failed)?;
        let mut row = compare(definition, &spread, &mut clients, quick)?;
        row.count
            .insert("passes".to_owned(), (after.walks + after.hosts - before.walks - before.hosts) / 100);
        row.count.insert("passes_by_address".to_owned(), (after.walks - before.walks) / 100);
        row.verdict = definition.judge(&row, quick);
        Ok(row)
    };
    let row = measured();
    drop(serving);
    let mut row = row?;
    if row.count["passes_by_address"] < CROSSINGS {
        return Err(Stop::Failed(failed("walks did not cross by the switch")));
    }
    row.qualifies = format!(
        "one client, one walk at a time; four nodes take turns on one core; five hosts in network namespaces around an XDP switch, \
         which all packets of both sides pass; {}",
        pin::text()
    );
    Ok(row)
}
