// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks the needs of walks: permission to run compiled code, huge pages, the transports between node and client, and the
//! tools for programs in C, for a switch in the kernel, and for comparisons.
//!
//! - **Method** a program is verified, compiled and run for one step; a small node serves two clients for some hundred round
//!   trips each
//! - **Cost** some tens of milliseconds

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memlift::ground::region::Huge;
use memlift::traverse::client::{Client, Config, Request};
use memlift::traverse::node::{Alone, Node, NodeOptions, Runner};
use memlift::traverse::program::Program;
use memlift::traverse::structures::shipped;
use memlift::traverse::transport::shm::Shm;
use memlift::traverse::transport::udp::Udp;

use super::Check;

/// Memory of the node that the check starts: a few huge pages.
const NODE_BYTES: u64 = 8 << 20;
const TRIPS: usize = 300;
/// Buffer that a node's socket requests from the kernel.
const SOCKET_BUFFER_BYTES: u64 = 4 << 20;

/// Runs all checks of this section.
pub fn checks() -> Vec<Check> {
    let mut checks = vec![compiler()];
    match served() {
        Ok(found) => checks.extend(found),
        Err(error) => checks.push(Check::absent("memory node", error)),
    }
    checks.extend([socket_buffers(), clang(), switch()]);
    checks.extend(others());
    checks
}

/// Checks that walks run as machine code.
fn compiler() -> Check {
    let begun = Instant::now();
    let made = shipped::HASH_FIND.bytecode().and_then(|code| Program::new("hash_find", &code, 1024));
    let runner = match made {
        Ok(program) => Runner::new(program, true),
        Err(error) => return Check::absent("walks", error.to_string()),
    };
    let took = begun.elapsed();
    if runner.is_compiled() {
        let found = format!(
            "machine code, in pages that are never writable and executable at once; verified and compiled in {:.2} ms",
            took.as_secs_f64() * 1e3
        );
        return Check::usable("walks", found);
    }
    Check::absent(
        "walks",
        "interpreted, several times slower: this processor or this system lets no code be made",
    )
    .advise("on SELinux allow execmem; or build for x86-64 or aarch64 with the feature `jit`")
}

/// Starts a small node in this process, and measures the round trips of its clients.
fn served() -> Result<Vec<Check>, String> {
    let name = format!("doctor-{}", std::process::id());
    let udp = Udp::bind("127.0.0.1:0".parse().expect("an address"), false).map_err(text)?;
    let (address, shm) = (udp.address(), Shm::listen(&name).map_err(text)?);
    let options = NodeOptions { bytes: NODE_BYTES, workspaces: Some(8), ..NodeOptions::default() };
    let (node, _) = Node::open(options).map_err(text)?;
    let pages = match node.memory().huge() {
        Huge::None => Check::absent("a node's memory", "ordinary pages: each hop of a walk over gigabytes misses the TLB, too")
            .advise("sysctl vm.nr_hugepages=…, or echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root"),
        huge => Check::usable("a node's memory", format!("huge pages ({huge:?})")),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = [Box::new(udp) as Box<dyn memlift::traverse::transport::Transport>, Box::new(shm)]
        .into_iter()
        .map(|transport| {
            let mut shard = node.shard(transport, Box::new(Alone));
            let stopped = Arc::clone(&stop);
            std::thread::spawn(move || shard.serve(&stopped).map_err(text))
        })
        .collect();
    let trips = [
        ("UDP", Client::udp(&[address], Config::default())),
        ("shared memory", Client::shm(&[&name], Config::default())),
    ]
    .map(|(what, client)| match client.map_err(text).and_then(|client| trip(client).map_err(text)) {
        Ok(median) => Check::usable(
            what,
            format!("{:.1} µs for a round trip to a node on this machine", median.as_secs_f64() * 1e6),
        ),
        Err(error) => Check::absent(what, error),
    });
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_| "a shard panicked; report this".to_owned())??;
    }
    Ok([pages].into_iter().chain(trips).collect())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Returns the median round trip.
fn trip(mut client: Client) -> memlift::traverse::client::Result<Duration> {
    let mut times = Vec::with_capacity(TRIPS);
    for _ in 0..TRIPS {
        let begun = Instant::now();
        client.call(Request::map(0))?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    Ok(times[TRIPS / 2])
}

/// Checks the kernel's limit for socket buffers, which must hold a burst of packets.
fn socket_buffers() -> Check {
    let read = |name: &str| -> Option<u64> {
        std::fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?.trim().parse().ok()
    };
    match read("rmem_max") {
        Some(most) if most < SOCKET_BUFFER_BYTES => {
            let found = format!(
                "{} KiB at most: a burst of some hundred clients loses packets, which are sent again",
                most >> 10
            );
            Check::absent("socket buffers", found).advise(format!(
                "sysctl net.core.rmem_max={SOCKET_BUFFER_BYTES} net.core.wmem_max={SOCKET_BUFFER_BYTES}"
            ))
        }
        Some(most) => Check::usable("socket buffers", format!("{} KiB at most", most >> 10)),
        None => Check::absent("socket buffers", "net.core.rmem_max cannot be read here"),
    }
}

/// Finds the first of these programs on the search path.
fn find(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    names.iter().find_map(|name| folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file()))
}

fn clang() -> Check {
    let names = ["clang", "clang-20", "clang-19", "clang-18", "clang-17", "clang-16", "clang-15", "clang-14"];
    let Some(found) = find(&names) else {
        return Check::absent("clang", "not found: programs in Python and Rust need none, those in C do")
            .extra()
            .advise("apt install clang");
    };
    let targets =
        Command::new(&found).arg("--print-targets").output().map(|output| output.stdout).unwrap_or_default();
    let shown = found.display();
    if String::from_utf8_lossy(&targets).lines().any(|line| line.trim_start().starts_with("bpf")) {
        return Check::usable("clang", format!("{shown} compiles programs in C (-target bpf)"));
    }
    Check::absent("clang", format!("{shown} has no target bpf")).extra().advise("apt install clang")
}

/// Checks that the kernel would accept the switch.
fn switch() -> Check {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).map(str::trim);
    let capabilities = capabilities.and_then(|bits| u64::from_str_radix(bits, 16).ok()).unwrap_or(0);
    // CAP_NET_ADMIN is bit 12, CAP_BPF bit 39; CAP_SYS_ADMIN (bit 21) includes the latter.
    let may = capabilities >> 12 & 1 == 1 && (capabilities >> 39 & 1 == 1 || capabilities >> 21 & 1 == 1);
    let filesystems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    match (filesystems.contains("bpf"), may) {
        (true, true) => {
            Check::usable("switch (XDP)", "this kernel has BPF, and this user may load it (feature `xdp`)")
        }
        (true, false) => {
            Check::absent("switch (XDP)", "needs root: nodes send walks on to each other without it").extra()
        }
        (false, _) => {
            Check::absent("switch (XDP)", "this kernel has no BPF: nodes send walks on to each other").extra()
        }
    }
}

/// Checks for programs with which benches compare, and for stores of maps.
fn others() -> Vec<Check> {
    let all = [
        ("redis-server", "redis-server", "memlift bench traverse compares with it"),
        ("memcached", "memcached", "memlift bench traverse compares with it"),
        ("etcd", "etcd-server", "maps of nodes can be kept in it"),
    ];
    let check = |(name, package, use_of): (&str, &str, &str)| match find(&[name]) {
        Some(found) => Check::usable(name, format!("{}: {use_of}", found.display())),
        None => Check::absent(name, format!("not found: {use_of}"))
            .extra()
            .advise(format!("apt install {package}")),
    };
    all.map(check).into()
}
