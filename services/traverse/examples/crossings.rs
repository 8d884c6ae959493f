// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A walk over four nodes, each in a network namespace of its own: sent on by the nodes, by a switch in the kernel, by the
//! client.
//!
//!     sudo target/release/examples/crossings      (built with --features xdp)
//!
//! - **Flow** namespaces and veth (`xdp::lab`) ─▶ four nodes, a list that goes from one to the next eight times ─▶ walks in each
//!   mode
//! - **Prints** per mode: microseconds per walk (median), and what passed the switch for each walk

use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memlift_traverse::builder::{Builder, R4, R5, equal, node, scratch};
use memlift_traverse::client::{Client, Config, Link, Request, Routing};
use memlift_traverse::map::{Address, Map, Node as Entry, NodeId, Permissions, Range, Shared, State};
use memlift_traverse::node::{Node, NodeOptions, Router};
use memlift_traverse::structures::{Scratch, Walk};
use memlift_traverse::transport::Peer;
use memlift_traverse::transport::udp::Udp;
use memlift_traverse::wire::Keys;
use memlift_traverse::xdp::Through;
use memlift_traverse::xdp::lab::{Lab, SERVICE, ip_of};

const NODES: usize = 4;
const BYTES: u64 = 4 << 20;
const LIST: usize = 9;
const WALKS: usize = 2_000;

fn base(node: usize) -> u64 {
    (node as u64 + 1) << 32
}

fn at(host: usize) -> SocketAddr {
    SocketAddr::V4(SocketAddrV4::new(ip_of(host), SERVICE.port()))
}

/// Packets of this lab are authenticated: its addresses are not loopback.
fn keys() -> Keys {
    Keys::none().with(0, [7; 32])
}

fn main() -> Result<(), String> {
    let lab = match Lab::start("x", &["client", "a", "b", "c", "d"]) {
        Ok(lab) => lab,
        Err(why) => {
            println!("not measured: {why}");
            return Ok(());
        }
    };
    let (mut switch, _passes) = lab.attach()?;
    let entry = |index: usize| Entry {
        id: NodeId(index as u16),
        name: ["a", "b", "c", "d"][index].to_owned(),
        addresses: vec![Address::Udp(at(index + 1))],
        incarnation: 0,
        state: State::Up,
    };
    let range = |index: usize| Range {
        base: base(index),
        bytes: BYTES,
        owner: Some(NodeId(index as u16)),
        since: 1,
        permissions: Permissions::READ_WRITE,
        tenant: 0,
    };
    let map = Map::new(1, (0..NODES).map(entry).collect(), (0..NODES).map(range).collect())
        .map_err(|error| error.to_string())?;
    switch.update(&map).map_err(|error| error.to_string())?;

    for through in [false, true] {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| -> Result<(), String> {
            for index in 0..NODES {
                let options = NodeOptions {
                    base: base(index),
                    bytes: BYTES,
                    prefault: false,
                    keys: keys(),
                    ..NodeOptions::default()
                };
                let (node, _) = Node::open(options).map_err(|error| error.to_string())?;
                let host = ["a", "b", "c", "d"][index];
                let bind = move || Udp::bind(at(index + 1), true).map_err(|error| error.to_string());
                let udp = lab.within(host, bind)??;
                let view = Shared::new(map.clone(), Some(NodeId(index as u16))).view();
                let router: Box<dyn Router> =
                    if through { Box::new(Through::new(view, SERVICE)) } else { Box::new(view) };
                let (mut shard, stop) = (node.shard(Box::new(udp), router), &stop);
                scope.spawn(move || shard.serve(stop).map_err(|error| error.to_string()));
            }
            let measured = measure(&lab, &switch, through);
            stop.store(true, Ordering::Relaxed);
            measured
        })?;
    }
    Ok(())
}

fn measure(lab: &Lab, switch: &memlift_traverse::xdp::Switch, through: bool) -> Result<(), String> {
    let said = |error: memlift_traverse::client::ClientError| error.to_string();
    let mut b = Builder::new();
    b.load(R4, node(8)).store(scratch(0), R4).load(R5, node(0));
    b.when(equal(R5, 0), |b| {
        b.done();
    });
    b.next(R5);
    let program = Arc::new(b.program("last", 8).map_err(|error| error.to_string())?);
    let modes: &[(&str, Routing)] = if through {
        &[("xdp", Routing::Peer)]
    } else {
        &[("peer", Routing::Peer), ("bounce", Routing::Bounce)]
    };
    for &(name, routing) in modes {
        let connect = |places: Vec<SocketAddr>| -> Result<Client, String> {
            let bind = || Udp::bind(SocketAddr::V4(SocketAddrV4::new(ip_of(0), 0)), true);
            let udp = lab.within("client", bind)?.map_err(|error| error.to_string())?;
            let nodes = places.iter().map(|place| (place.to_string(), Peer::Socket(*place))).collect();
            let config =
                Config { routing, keys: keys(), deadline: Duration::from_secs(5), ..Config::default() };
            Client::connect(vec![Link { transport: Box::new(udp), nodes }], config).map_err(said)
        };
        let mut filler = connect((1..=NODES).map(at).collect())?;
        let mut allocate = |index: usize| -> Result<u64, String> {
            Ok(filler.call(Request::allocate(index % NODES, 16)).map_err(said)?.address)
        };
        let list = (0..LIST).map(&mut allocate).collect::<Result<Vec<_>, _>>()?;
        for (index, place) in list.iter().enumerate() {
            let next = list.get(index + 1).copied().unwrap_or(0);
            let bytes = [next.to_le_bytes(), (index as u64).to_le_bytes()].concat();
            filler.call(Request::write(*place, &bytes)).map_err(said)?;
        }
        let walk = Walk { program: program.clone(), start: list[0], scratch: Scratch(vec![0; 8]) };
        filler.call(Request::walk(&walk)).map_err(said)?;
        let mut client = if through { connect(vec![SocketAddr::V4(SERVICE)])? } else { filler };
        client.call(Request::walk(&walk)).map_err(said)?;
        let before = switch.counts().map_err(|error| error.to_string())?;
        let mut times = Vec::with_capacity(WALKS);
        for _ in 0..WALKS {
            let start = Instant::now();
            let answer = client.call(Request::walk(&walk)).map_err(said)?;
            times.push(start.elapsed());
            if answer.body[..] != [LIST as u8 - 1] {
                return Err(format!("a wrong answer: {:?}", answer.body));
            }
        }
        let after = switch.counts().map_err(|error| error.to_string())?;
        times.sort_unstable();
        let per = |count: u64| count as f64 / WALKS as f64;
        println!(
            "{name}: {:.1} us per walk of {} crossings; passes per walk: {:.2} by address, {:.2} by host, {} stray",
            times[WALKS / 2].as_secs_f64() * 1e6,
            LIST - 1,
            per(after.walks - before.walks),
            per(after.hosts - before.hosts),
            after.stray - before.stray,
        );
    }
    Ok(())
}
