// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Row `cross4/xdp`: crossings by a switch in the kernel, between hosts in network namespaces of their own.
//!
//! Layout   a namespace for the switch and one for each host; a pair of virtual Ethernet devices joins each host to the switch
//! Flow     ours: a node gives a walk that leaves it to the switch, which reads its address and hands it to the node that has it ·
//!          bounce: the node answers the client, which asks the next node; all packets of both sides pass the switch
//! Needs    root, `ip` (iproute2), a kernel that takes XDP on veth; what is missing is said in the row
//! Owner    namespaces are named after this process, and removed with [`Hosts`]

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memlift_traverse::client::{Client, Config, Link, Routing};
use memlift_traverse::node::{Owner, Router};
use memlift_traverse::transport::Peer;
use memlift_traverse::transport::udp::Udp;
use memlift_traverse::xdp::{Pass, Port, Switch};

use super::Stop;
use super::cross::{CROSSINGS, Spread, compare};
use super::pin::{self, Held, Role};
use super::serve::failed;
use crate::definition::Definition;
use crate::{BenchError, Row};

const SERVICE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 1, 100), 7700);
const HOSTS: [&str; 5] = ["client", "a", "b", "c", "d"];
const SWITCH_MAC: [u8; 6] = [2, 0x77, 1, 0, 1, 1];

fn ip_of(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 1, host as u8 + 1)
}

fn mac_of(host: usize) -> [u8; 6] {
    [2, 0x77, 1, 0, 0, host as u8 + 1]
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).stdin(Stdio::null()).output();
    let output = output.map_err(|_| "the switch needs `ip`: apt install iproute2".to_owned())?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(format!("ip {arguments}: {said}")) }
}

/// A switch's namespace and the hosts' around it.
struct Hosts {
    name: String,
}

impl Hosts {
    fn space(&self, host: &str) -> String {
        format!("{}-{host}", self.name)
    }

    fn start() -> Result<Hosts, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("the switch needs root: namespaces are made and XDP is loaded".to_owned());
        }
        let hosts = Hosts { name: format!("memlift-bench{}", std::process::id()) };
        let switch = hosts.space("switch");
        ip(&format!("netns add {switch}"))?;
        for (index, host) in HOSTS.iter().enumerate() {
            let space = hosts.space(host);
            ip(&format!("netns add {space}"))?;
            ip(&format!("-n {switch} link add p{index} type veth peer name e0 netns {space}"))?;
            ip(&format!("-n {switch} link set p{index} address {}", text(SWITCH_MAC)))?;
            ip(&format!("-n {switch} link set p{index} up"))?;
            ip(&format!("-n {space} link set e0 address {}", text(mac_of(index))))?;
            ip(&format!("-n {space} address add {}/24 dev e0", ip_of(index)))?;
            ip(&format!("-n {space} link set e0 up"))?;
            // Nobody asks who has an address: a switch of walks does not answer that.
            let others = (0..HOSTS.len()).map(ip_of).chain([*SERVICE.ip()]);
            for other in others.filter(|other| *other != ip_of(index)) {
                ip(&format!("-n {space} neigh replace {other} lladdr {} dev e0", text(SWITCH_MAC)))?;
            }
        }
        Ok(hosts)
    }

    /// Runs something in a namespace: sockets that it opens stay there.
    fn within<T: Send>(&self, host: &str, run: impl FnOnce() -> T + Send) -> Result<T, String> {
        let path = format!("/run/netns/{}", self.space(host));
        let moved = || {
            let space = std::fs::File::open(&path).map_err(|error| format!("{path}: {error}"))?;
            let network = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(space.as_fd(), network)
                .map_err(|error| format!("{path}: {error}"))?;
            Ok(run())
        };
        std::thread::scope(|scope| scope.spawn(moved).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn port(&self, index: usize) -> Result<Port, String> {
        let interface = self.within("switch", || -> Result<u32, String> {
            let socket =
                UdpSocket::bind("127.0.0.1:0").map(OwnedFd::from).map_err(|error| error.to_string())?;
            rustix::net::netdevice::name_to_index(socket, &format!("p{index}"))
                .map_err(|error| error.to_string())
        })??;
        Ok(Port { ip: ip_of(index), interface, mac: mac_of(index) })
    }

    fn bind(&self, index: usize, port: u16) -> Result<Udp, String> {
        // Nobody beyond these namespaces reaches it: as on loopback, packets carry no keys.
        self.within(HOSTS[index], || Udp::bind((ip_of(index), port).into(), true))?
            .map_err(|error| error.to_string())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in HOSTS.iter().chain(&["switch"]) {
            let _ = ip(&format!("netns delete {}", self.space(host)));
        }
    }
}

/// A node that knows its own addresses and the switch.
#[derive(Debug)]
struct Switched {
    base: u64,
    bytes: u64,
}

impl Router for Switched {
    fn epoch(&self) -> u64 {
        1
    }

    fn owner(&mut self, _: u64, address: u64, _: bool) -> Owner {
        if address.wrapping_sub(self.base) < self.bytes {
            return Owner::Local { base: self.base, bytes: self.bytes };
        }
        Owner::Peer(SocketAddr::V4(SERVICE))
    }

    fn is_node(&self, socket: SocketAddr) -> bool {
        (1..HOSTS.len()).any(|host| socket == SocketAddr::from((ip_of(host), SERVICE.port())))
    }

    fn entry(&self, _: u64) -> Vec<u8> {
        Vec::new()
    }
}

/// Measures the row.
pub fn row(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    let spread = Spread::new(if quick { 1 << 10 } else { 1 << 15 })?;
    let hosts = Hosts::start().map_err(Stop::Missing)?;
    let ports = (0..HOSTS.len()).map(|index| hosts.port(index)).collect::<Result<Vec<_>, _>>();
    let ports = ports.map_err(Stop::Missing)?;
    let attached =
        hosts.within("switch", || Switch::attach(&["p0", "p1", "p2", "p3", "p4"], SERVICE, &ports));
    let mut switch = attached.map_err(Stop::Missing)?.map_err(|error| Stop::Missing(error.to_string()))?;
    let mut passes = Vec::new();
    for host in HOSTS {
        let pass = hosts.within(host, || Pass::attach("e0")).map_err(Stop::Missing)?;
        passes.push(pass.map_err(|error| Stop::Missing(error.to_string()))?);
    }
    let sockets: Vec<SocketAddr> =
        (1..HOSTS.len()).map(|host| SocketAddr::from((ip_of(host), SERVICE.port()))).collect();
    let map = spread.map(&sockets)?;
    switch.update(&map).map_err(failed)?;
    let mut shards = Vec::new();
    for (index, node) in spread.nodes().iter().enumerate() {
        let transport = hosts.bind(index + 1, SERVICE.port()).map_err(failed)?;
        let router = Switched { base: node.memory().base(), bytes: node.memory().bytes() };
        shards.push(node.shard(Box::new(transport), Box::new(router)));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let turning = move || {
        let _held = Held::new(Role::Node);
        while !stopped.load(Ordering::Relaxed) {
            for shard in &mut shards {
                if let Err(error) = shard.turn() {
                    return eprintln!("a node of the bench ended: {error}");
                }
            }
        }
    };
    let thread =
        std::thread::Builder::new().spawn(turning).map_err(BenchError::system("starting a thread"))?;
    let client = |routing| -> Result<Client, BenchError> {
        let transport = Box::new(hosts.bind(0, 0).map_err(failed)?);
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
    stop.store(true, Ordering::Relaxed);
    let _ = thread.join();
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
