// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A switch with hosts around it on one machine, each in a network namespace behind a veth pair: for tests and measurements.
//!
//! - **Layout** host i (from 0) has 10.77.0.(i + 1) and the Ethernet address 02:77:00:00:00:(i + 1); the switch's side of its
//!   pair is p0, p1, …
//! - **Owner** namespaces are named after the process and removed with the [`Lab`], also after a failure
//! - **Needs** root and `ip` of iproute2; if one is missing [`Lab::start`] returns an error that says so

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use super::{Pass, Port, Switch, SwitchError};

/// Most hosts that a lab has.
pub const HOSTS_MAX: usize = 16;

/// See the module's header.
#[derive(Debug)]
pub struct Lab {
    name: String,
    hosts: Vec<String>,
}

/// The service address of the switch.
pub const SERVICE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 100), 7700);

/// Returns the IP address of a host.
#[must_use]
pub fn ip_of(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, host as u8 + 1)
}

/// Returns the Ethernet address of a host.
#[must_use]
pub fn mac_of(host: usize) -> [u8; 6] {
    [2, 0x77, 0, 0, 0, host as u8 + 1]
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("ip (iproute2) does not run: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(format!("ip {arguments}: {said}")) }
}

impl Lab {
    /// Makes a namespace for each of these hosts, and one for the switch, without a program.
    ///
    /// # Errors
    ///
    /// The missing right or tool, or the error of `ip`; for people to read
    pub fn start(name: &str, hosts: &[&str]) -> Result<Lab, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("namespaces and XDP need root".to_owned());
        }
        if hosts.len() > HOSTS_MAX {
            return Err(format!("{} hosts: there is room for {HOSTS_MAX}", hosts.len()));
        }
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let lab = Lab { name: format!("memlift{}{name}", std::process::id()), hosts };
        let switch = lab.space("switch");
        ip(&format!("netns add {switch}"))?;
        for (index, host) in lab.hosts.iter().enumerate() {
            let space = lab.space(host);
            ip(&format!("netns add {space}"))?;
            ip(&format!("-n {switch} link add p{index} type veth peer name e0 netns {space}"))?;
            ip(&format!("-n {switch} link set p{index} address {}", text([2, 0x77, 0, 0, 1, 1])))?;
            ip(&format!("-n {switch} link set p{index} up"))?;
            ip(&format!("-n {space} link set e0 address {}", text(mac_of(index))))?;
            ip(&format!("-n {space} address add {}/24 dev e0", ip_of(index)))?;
            ip(&format!("-n {space} link set e0 up"))?;
            // Neighbours are entered by hand, because the switch does not answer ARP.
            let others = (0..lab.hosts.len()).map(ip_of).chain([*SERVICE.ip()]);
            for other in others.filter(|other| *other != ip_of(index)) {
                let mac = text([2, 0x77, 0, 0, 1, 1]);
                ip(&format!("-n {space} neigh replace {other} lladdr {mac} dev e0"))?;
            }
        }
        Ok(lab)
    }

    fn space(&self, host: &str) -> String {
        format!("{}-{host}", self.name)
    }

    /// Runs a function in the namespace of a host, or of the `switch`: sockets that it opens stay in that namespace.
    ///
    /// # Errors
    ///
    /// The namespace cannot be entered, for people to read
    pub fn within<T: Send>(&self, host: &str, run: impl FnOnce() -> T + Send) -> Result<T, String> {
        let path = format!("/run/netns/{}", self.space(host));
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let space = std::fs::File::open(&path).map_err(|error| format!("{path}: {error}"))?;
                let network = Some(rustix::thread::LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(space.as_fd(), network)
                    .map_err(|error| format!("{path}: {error}"))?;
                Ok(run())
            });
            thread.join().unwrap_or_else(|_| Err("what ran in the namespace panicked".to_owned()))
        })
    }

    /// Returns the port through which the switch reaches each host, in the order of the hosts.
    ///
    /// # Errors
    ///
    /// The errors of [`Lab::within`]
    pub fn ports(&self) -> Result<Vec<Port>, String> {
        (0..self.hosts.len())
            .map(|index| {
                let interface = self.within("switch", move || {
                    let socket = UdpSocket::bind("127.0.0.1:0").map(std::os::fd::OwnedFd::from)?;
                    Ok(rustix::net::netdevice::name_to_index(socket, &format!("p{index}"))?)
                })?;
                let interface = interface.map_err(|error: std::io::Error| format!("p{index}: {error}"))?;
                Ok(Port { ip: ip_of(index), interface, mac: mac_of(index) })
            })
            .collect()
    }

    /// Attaches the switch to all ports, and programs that let packets pass to the hosts' ends. All stay attached as long as
    /// the returned values live.
    ///
    /// # Errors
    ///
    /// The kernel refused, or an error of [`Lab::within`]; for people to read
    pub fn attach(&self) -> Result<(Switch, Vec<Pass>), String> {
        let ports = self.ports()?;
        let names: Vec<String> = (0..ports.len()).map(|index| format!("p{index}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let said = |error: SwitchError| error.to_string();
        let switch = self.within("switch", || Switch::attach(&names, SERVICE, &ports))?.map_err(said)?;
        let pass = |host: &String| self.within(host, || Pass::attach("e0"))?.map_err(said);
        Ok((switch, self.hosts.iter().map(pass).collect::<Result<_, _>>()?))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for host in self.hosts.iter().map(String::as_str).chain(["switch"]) {
            let _ = ip(&format!("netns delete {}", self.space(host)));
        }
    }
}
