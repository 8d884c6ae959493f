// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A network of four hosts on one machine, each in a namespace of its own, whose links can be cut in one direction.
//!
//! - **Layout** host i (from 0) has 10.78.0.(i + 1) and the Ethernet address 02:78:00:00:00:(i + 1); a bridge in a fifth namespace joins them
//! - **Cut** a host's entry for a neighbour gets an Ethernet address that nobody has: what it sends there is lost without an error
//! - **Owner** namespaces are named after the process and removed with the [`Net`], also after a failure
//! - **Needs** root and `ip` of iproute2; without them a test says so and is skipped

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

/// The hosts: both processes of the node, etcd, and the clients.
pub const HOSTS: [&str; 4] = ["a", "b", "etcd", "clients"];

pub struct Net {
    name: String,
}

pub fn ip_of(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 78, 0, host as u8 + 1)
}

fn mac(last: usize) -> String {
    format!("02:78:00:00:00:{last:02x}")
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("ip (iproute2) does not run: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(format!("ip {arguments}: {said}")) }
}

impl Net {
    /// `None` where there is no right or no tool to make it.
    pub fn start() -> Option<Net> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: network namespaces need root");
            return None;
        }
        let net = Net { name: format!("mlrepl{}", std::process::id()) };
        match net.make() {
            Ok(()) => Some(net),
            Err(error) => {
                println!("skipped: {error}");
                None
            }
        }
    }

    fn make(&self) -> Result<(), String> {
        let hub = self.space("hub");
        ip(&format!("netns add {hub}"))?;
        ip(&format!("-n {hub} link add br0 type bridge"))?;
        ip(&format!("-n {hub} link set br0 up"))?;
        for (index, host) in HOSTS.iter().enumerate() {
            let space = self.space(host);
            ip(&format!("netns add {space}"))?;
            ip(&format!("-n {space} link set lo up"))?;
            ip(&format!("-n {hub} link add p{index} type veth peer name e0 netns {space}"))?;
            ip(&format!("-n {hub} link set p{index} master br0 up"))?;
            ip(&format!("-n {space} link set e0 address {} up", mac(index + 1)))?;
            ip(&format!("-n {space} address add {}/24 dev e0", ip_of(index)))?;
        }
        for from in 0..HOSTS.len() {
            (0..HOSTS.len()).filter(|to| *to != from).try_for_each(|to| self.neighbour(from, to, to + 1))?;
        }
        Ok(())
    }

    pub fn space(&self, host: &str) -> String {
        format!("{}-{host}", self.name)
    }

    fn neighbour(&self, from: usize, to: usize, last: usize) -> Result<(), String> {
        let (space, to) = (self.space(HOSTS[from]), ip_of(to));
        ip(&format!("-n {space} neigh replace {to} lladdr {} nud permanent dev e0", mac(last)))
    }

    /// From now on nothing reaches `to` that `from` sends.
    pub fn cut(&self, from: usize, to: usize) {
        self.neighbour(from, to, 0xee).unwrap_or_else(|error| panic!("{error}"));
    }

    pub fn heal(&self, from: usize, to: usize) {
        self.neighbour(from, to, to + 1).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Moves this thread, and what it starts from now on, to a host.
    pub fn enter(&self, host: &str) {
        let space = std::fs::File::open(format!("/run/netns/{}", self.space(host))).expect("made");
        let network = Some(rustix::thread::LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(space.as_fd(), network).expect("moved");
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for host in HOSTS.iter().chain(&["hub"]) {
            let _ = ip(&format!("netns delete {}", self.space(host)));
        }
    }
}
