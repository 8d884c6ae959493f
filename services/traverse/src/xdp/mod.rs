// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A switch in the kernel: walks sent to one service address are redirected, at the first network card, to the node that has
//! their `cur_ptr`.
//!
//! - **Flow** [`Switch::attach`] loads `switch.o` at each interface ─▶ [`Switch::update`] writes a map's ranges, and does so
//!   again after each change of the map ─▶ [`Switch::counts`] returns the numbers of packets
//! - **Layout** the tables as `switch.c` defines them, little-endian; two halves of ranges, and one entry that names the half in
//!   use
//! - **Order** a half is written before it is used. A packet that was routed by the old half may reach a node that is not the
//!   owner any more; that node forwards it or answers with the owner. So the switch is only a shortcut, and its errors do no harm
//! - **Owner** the programs stay loaded as long as the [`Switch`] lives; loading them requires root (CAP_BPF, CAP_NET_ADMIN)
//! - **Not here** answers: nodes answer the client directly, at its address
//!
//! `switch.o` is the exact output of clang 14 for `switch.c`; tests/xdp_switch.rs builds it again where clang 14 is installed,
//! and compares.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

pub mod lab;
mod through;

use aya::maps::{Array, HashMap, MapData, PerCpuArray};
use aya::programs::Xdp;
use aya::programs::xdp::XdpMode;
use aya::{Ebpf, EbpfLoader};

pub use through::Through;

use crate::map::{Address, Map, Place};

/// Most ranges that a switch holds; adjacent ranges of one owner count as one.
pub const RANGES_MAX: usize = 256;

const PORT_BYTES: usize = 12;
const RANGE_BYTES: usize = 8 + 8 + 4 + PORT_BYTES;
const CONFIG_BYTES: usize = 16;

const _: () = assert!(RANGE_BYTES == 32 && RANGE_BYTES.is_multiple_of(8));

/// Reason that there is no switch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchError {
    /// The kernel refused.
    #[error("{what}: {source}. A switch needs root and a kernel with XDP (5.9 or newer)")]
    Kernel {
        /// Step that the kernel refused.
        what: String,
        /// Error that the kernel returned.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The map does not fit in a switch.
    #[error("{0}")]
    Map(String),
}

fn kernel<E: std::error::Error + Send + Sync + 'static>(
    what: impl Into<String>,
) -> impl FnOnce(E) -> SwitchError {
    let what = what.into();
    move |source| SwitchError::Kernel { what, source: Box::new(source) }
}

/// Port of the switch towards a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// IPv4 address of the host.
    pub ip: Ipv4Addr,
    /// The switch's interface that leads to the host.
    pub interface: u32,
    /// Ethernet address of the host.
    pub mac: [u8; 6],
}

impl Port {
    fn encode(&self) -> [u8; PORT_BYTES] {
        let mut bytes = [0; PORT_BYTES];
        bytes[..4].copy_from_slice(&self.interface.to_ne_bytes());
        bytes[4..10].copy_from_slice(&self.mac);
        bytes
    }
}

/// Packets that passed the switch, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets redirected to the node that has their address.
    pub walks: u64,
    /// Packets redirected to the host that they name, mostly answers.
    pub hosts: u64,
    /// Packets with an address that no node has; the first node answers them.
    pub stray: u64,
    /// Packets left to the kernel.
    pub passed: u64,
}

/// A switch that is loaded at its interfaces.
pub struct Switch {
    config: Array<MapData, [u8; CONFIG_BYTES]>,
    ranges: Array<MapData, [u8; RANGE_BYTES]>,
    counts: PerCpuArray<MapData, u64>,
    service: SocketAddrV4,
    ports: Vec<Port>,
    half: u32,
    epoch: u64,
    _loaded: Ebpf,
}

impl std::fmt::Debug for Switch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Switch")
            .field("service", &self.service)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

fn load(name: &'static str, interfaces: &[&str]) -> Result<Ebpf, SwitchError> {
    let object = aya::include_bytes_aligned!("switch.o");
    let mut loaded = EbpfLoader::new().load(object).map_err(kernel("loading the switch"))?;
    let program =
        loaded.program_mut(name).ok_or_else(|| SwitchError::Map(format!("switch.o has no {name}")))?;
    let program: &mut Xdp = program.try_into().map_err(kernel("loading the switch"))?;
    program.load().map_err(kernel("loading the switch"))?;
    for interface in interfaces {
        program
            .attach(interface, XdpMode::default())
            .map_err(kernel(format!("attaching the switch to {interface}")))?;
    }
    Ok(loaded)
}

/// A program that lets every packet pass. The far end of a veth pair needs a program, or packets redirected to it are
/// dropped.
#[derive(Debug)]
pub struct Pass {
    _loaded: Ebpf,
}

impl Pass {
    /// Attaches the program to an interface of this network namespace.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Kernel`]
    pub fn attach(interface: &str) -> Result<Pass, SwitchError> {
        Ok(Pass { _loaded: load("memlift_pass", &[interface])? })
    }
}

impl Switch {
    /// Attaches a switch to interfaces of this network namespace, for hosts that are reached through them. Walks are sent to
    /// `service`, an address that no host has.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Kernel`]
    pub fn attach(interfaces: &[&str], service: SocketAddrV4, ports: &[Port]) -> Result<Switch, SwitchError> {
        let mut loaded = load("memlift_switch", interfaces)?;
        let mut take = |name: &str| {
            loaded.take_map(name).ok_or_else(|| SwitchError::Map(format!("switch.o has no table {name}")))
        };
        let config = Array::try_from(take("config")?).map_err(kernel("opening a table"))?;
        let ranges = Array::try_from(take("ranges")?).map_err(kernel("opening a table"))?;
        let counts = PerCpuArray::try_from(take("counts")?).map_err(kernel("opening a table"))?;
        let mut hosts: HashMap<MapData, [u8; 4], [u8; PORT_BYTES]> =
            HashMap::try_from(take("hosts")?).map_err(kernel("opening a table"))?;
        for port in ports {
            hosts.insert(port.ip.octets(), port.encode(), 0).map_err(kernel("entering a host"))?;
        }
        let ports = ports.to_vec();
        Ok(Switch { config, ranges, counts, service, ports, half: 0, epoch: 0, _loaded: loaded })
    }

    /// Adopts a map if it is newer than the present one.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Map`] if a node cannot be reached through this switch, or there are too many ranges; then the present
    /// map stays
    pub fn update(&mut self, map: &Map) -> Result<(), SwitchError> {
        if map.epoch() <= self.epoch {
            return Ok(());
        }
        let entries = entries(map, &self.ports, self.service.port())?;
        let half = 1 - self.half;
        for (index, entry) in entries.iter().enumerate() {
            let place = half * RANGES_MAX as u32 + index as u32;
            self.ranges.set(place, entry, 0).map_err(kernel("entering a range"))?;
        }
        let mut config = [0; CONFIG_BYTES];
        config[..4].copy_from_slice(&half.to_ne_bytes());
        config[4..8].copy_from_slice(&(entries.len() as u32).to_ne_bytes());
        config[8..12].copy_from_slice(&self.service.ip().octets());
        config[12..14].copy_from_slice(&self.service.port().to_be_bytes());
        self.config.set(0, config, 0).map_err(kernel("switching to the new map"))?;
        (self.half, self.epoch) = (half, map.epoch());
        Ok(())
    }

    /// Returns the numbers of packets so far.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Kernel`]
    pub fn counts(&self) -> Result<Counts, SwitchError> {
        let read = |index| -> Result<u64, SwitchError> {
            Ok(self.counts.get(&index, 0).map_err(kernel("reading a counter"))?.iter().sum())
        };
        Ok(Counts { walks: read(0)?, hosts: read(1)?, stray: read(2)?, passed: read(3)? })
    }
}

/// Encodes the ranges of a map with their ports; adjacent ranges with the same port are merged.
fn entries(map: &Map, ports: &[Port], service_port: u16) -> Result<Vec<[u8; RANGE_BYTES]>, SwitchError> {
    let mut merged: Vec<(u64, u64, Port)> = Vec::new();
    for range in map.ranges() {
        // A node that is down still gets packets for its ranges: no other node could answer them better.
        let (Place::Owned(_, node) | Place::Down(_, node)) = map.place(range.base) else { continue };
        let ip = node.addresses.iter().find_map(|address| match address {
            Address::Udp(socket) if socket.port() == service_port => match socket.ip() {
                IpAddr::V4(ip) => Some(ip),
                IpAddr::V6(_) => None,
            },
            _ => None,
        });
        let port = ip.and_then(|ip| ports.iter().find(|port| port.ip == ip)).ok_or_else(|| {
            SwitchError::Map(format!(
                "node {} has no IPv4 address with port {service_port} behind this switch: the switch changes hosts, not ports",
                node.name
            ))
        })?;
        match merged.last_mut() {
            Some(last) if last.1 == range.base && last.2 == *port => last.1 = range.end(),
            _ => merged.push((range.base, range.end(), *port)),
        }
    }
    if merged.len() > RANGES_MAX {
        return Err(SwitchError::Map(format!(
            "{} ranges: a switch holds {RANGES_MAX}; let nodes send walks on themselves",
            merged.len()
        )));
    }
    Ok(merged
        .iter()
        .map(|(first, end, port)| {
            let mut bytes = [0; RANGE_BYTES];
            bytes[..8].copy_from_slice(&first.to_ne_bytes());
            bytes[8..16].copy_from_slice(&end.to_ne_bytes());
            bytes[16..20].copy_from_slice(&port.ip.octets());
            bytes[20..].copy_from_slice(&port.encode());
            bytes
        })
        .collect())
}
