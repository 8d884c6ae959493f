// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift node`: a memory node for walks.
//!
//! Flow     options ─▶ memory, log ─▶ a thread per shard and address ─▶ a line each interval ─▶ Ctrl-C ─▶ the last line
//! Rule     this machine only, unless there are keys
//! End      by Ctrl-C or SIGTERM: with a log, the next start has the data
//! Not here what a node does: `memlift::traverse::node`

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use memlift::engine::region::Huge;
use memlift::traverse::map::{self, NodeId, Shared};
use memlift::traverse::node::{
    Alone, Counted, Counter, Durability, Node, NodeOptions, Router, stop_on_signals,
};
use memlift::traverse::transport::shm::Shm;
use memlift::traverse::transport::udp::Udp;
use memlift::traverse::transport::{Transport, TransportError};
use memlift::traverse::wire::Keys;
use serde_json::{Map, Value, json};

use crate::explain::parse_bytes;
use crate::failure::Failure;
use crate::print;

/// What `--help` ends with.
pub const EXAMPLES: &str = "Examples:
  memlift node --memory 8G --listen shm:words
  memlift node --memory 8G --listen 127.0.0.1:7700 --log words.log
  memlift node --memory 8G --listen 10.0.0.5:7700 --keys tenants.keys --map cluster.toml --name a

There is no replication: a node that is lost takes what it had with it, except for what is in its log.
Keys are lines `TENANT HEX` (64 digits) in a file that nobody else may read. End it with Ctrl-C.";

/// When a change is on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum When {
    /// In the system's cache before its answer leaves: a killed node loses nothing, a machine without power may
    Process,
    /// On the disk before its answer leaves
    Disk,
}

/// The options.
#[derive(Debug, Args)]
pub struct Wish {
    /// Memory for data: bytes, or with K, M, G; taken at the start
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: u64,
    /// Where clients come: ADDRESS:PORT (UDP), or shm:NAME for this machine. May be given several times
    #[arg(long, value_name = "WHERE", required = true, value_parser = place)]
    listen: Vec<Place>,
    /// Log changes here, and start with what it holds
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// When a change is durable
    #[arg(long, value_enum, default_value_t = When::Process, requires = "log")]
    durability: When,
    /// Which node has which addresses (TOML)
    #[arg(long, value_name = "FILE", requires = "name")]
    map: Option<PathBuf>,
    /// What this node is called in the map
    #[arg(long, value_name = "NAME", requires = "map")]
    name: Option<String>,
    /// The tenants' keys: packets without the right one are dropped
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// Threads for each address
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    shards: u16,
    /// Walks in flight per shard and program [default: measured]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workspaces: Option<u16>,
    /// Seconds between two lines about what it does; 0: none
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    interval: u64,
}

/// Where clients come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// Rings in shared memory.
    Shm(String),
    /// UDP.
    Udp(SocketAddr),
}

fn place(text: &str) -> Result<Place, String> {
    match text.strip_prefix("shm:") {
        Some(name) => Ok(Place::Shm(name.to_owned())),
        None => text
            .parse()
            .map(Place::Udp)
            .map_err(|_| "write an address with a port, like 127.0.0.1:7700, or shm: and a name".to_owned()),
    }
}

fn size(text: &str) -> Result<u64, String> {
    match parse_bytes(text) {
        Some(bytes) if bytes > 0 => Ok((bytes as u64).next_multiple_of(4096)),
        _ => Err("write bytes, or a number with K, M or G".to_owned()),
    }
}

/// Serves until it is told to end.
pub fn run(wish: &Wish, as_json: bool) -> Result<(), Failure> {
    // Before any thread starts: they inherit which signals are blocked.
    let stop = stop_on_signals()?;
    let keys = match &wish.keys {
        None => Keys::none(),
        Some(path) => {
            let mode = std::fs::metadata(path).map_err(|error| at(path, &error))?.permissions().mode();
            if mode & 0o077 != 0 {
                return Err(Failure::Failed(format!("others may read {0}: chmod 600 {0}", path.display())));
            }
            let text = std::fs::read_to_string(path).map_err(|error| at(path, &error))?;
            Keys::parse(&text).map_err(|error| match error.line {
                0 => at(
                    path,
                    &"there is no key in it; a line is `TENANT HEX`, with 64 digits (openssl rand -hex 32)",
                ),
                _ => at(path, &error),
            })?
        }
    };
    let shared = match (&wish.map, &wish.name) {
        (Some(path), Some(name)) => Some(shared(path, name)?),
        _ => None,
    };
    let base = match &shared {
        Some((shared, id)) => fitting(shared, *id, wish.memory)?,
        None => NodeOptions::default().base,
    };
    let options = NodeOptions {
        base,
        bytes: wish.memory,
        keys: keys.clone(),
        log: wish.log.clone().map(|path| {
            (path, if wish.durability == When::Disk { Durability::Disk } else { Durability::Process })
        }),
        workspaces: wish.workspaces.map(usize::from),
        ..NodeOptions::default()
    };
    let (node, replayed) = Node::open(options).map_err(failed)?;
    let (transports, places) = listen(wish, !keys.is_empty())?;
    let start = json!({
        "listen": places,
        "base": node.memory().base(),
        "bytes": node.memory().bytes(),
        "huge_pages": format!("{:?}", node.memory().huge()),
        "workspaces": node.workspaces(),
        "programs": node.programs().len(),
        "log_records": replayed.records,
        "log_cut_bytes": replayed.cut_bytes,
    });
    if as_json {
        print::line(&start.to_string())?;
    } else {
        let (from, bytes, width) = (node.memory().base(), node.memory().bytes(), node.workspaces());
        let pages = if node.memory().huge() == Huge::None { "ordinary" } else { "huge" };
        print::line(&format!(
            "node on {}: {} from {from:#x} on, {pages} pages, {width} walks in flight per shard and program",
            places.join(", "),
            print::bytes(bytes),
        ))?;
        if wish.log.is_some() {
            let (records, cut) = (replayed.records, replayed.cut_bytes);
            print::line(&format!("  log: {records} records replayed, {cut} bytes of a torn end cut off"))?;
        }
    }
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for transport in transports {
            let router: Box<dyn Router> = match &shared {
                Some((shared, _)) => Box::new(shared.view()),
                None => Box::new(Alone),
            };
            let mut shard = node.shard(transport, router);
            let stop = &stop;
            threads.push(scope.spawn(move || {
                let served = shard.serve(stop);
                // One shard that cannot go on ends the node: its clients would wait for nobody.
                stop.store(true, Ordering::Relaxed);
                served
            }));
        }
        let mut ended = tell(&node, wish.interval, as_json, &stop);
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            let served = match thread.join() {
                Ok(served) => served.map_err(failed),
                Err(_) => Err(Failure::Failed("a shard panicked; report this".to_owned())),
            };
            ended = ended.and(served);
        }
        ended
    })
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}

/// What cannot be listened on whatever the machine's state is a wrong argument.
fn refused(error: TransportError) -> Failure {
    match error {
        TransportError::Name(_) | TransportError::NotLoopback(_) => Failure::Usage(error.to_string()),
        other => failed(other),
    }
}

fn at(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Failed(format!("{}: {error}", path.display()))
}

fn shared(path: &Path, name: &str) -> Result<(std::sync::Arc<Shared>, NodeId), Failure> {
    let map = map::file::read(path).map_err(failed)?;
    let Some(id) = map.node_named(name).map(|node| node.id) else {
        return Err(Failure::Usage(format!("{} has no node called {name}", path.display())));
    };
    Ok((Shared::new(map, Some(id)), id))
}

/// Where this node's ranges start, once they fit into its memory.
fn fitting(shared: &Shared, id: NodeId, bytes: u64) -> Result<u64, Failure> {
    let map = shared.map();
    let own = || map.ranges().iter().filter(|range| range.owner == Some(id));
    let (Some(base), Some(end)) = (own().map(|range| range.base).min(), own().map(|range| range.end()).max())
    else {
        return Err(Failure::Usage("the map gives this node no range".to_owned()));
    };
    if end - base > bytes {
        return Err(Failure::Usage(format!(
            "the map gives this node {} bytes: say --memory {0}",
            end - base
        )));
    }
    Ok(base)
}

/// A transport per shard and address.
type Transports = Vec<Box<dyn Transport>>;

/// The transports, and what the addresses are.
fn listen(wish: &Wish, authenticated: bool) -> Result<(Transports, Vec<String>), Failure> {
    let (mut transports, mut places) = (Transports::new(), Vec::new());
    for place in &wish.listen {
        match place {
            Place::Shm(name) => {
                let first = Shm::listen(name).map_err(refused)?;
                let more = (1..wish.shards)
                    .map(|_| first.another())
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(refused)?;
                transports.push(Box::new(first));
                transports.extend(more.into_iter().map(|shm| Box::new(shm) as Box<dyn Transport>));
                places.push(format!("shm:{name}"));
            }
            Place::Udp(address) => {
                let sockets =
                    Udp::bind_shared(*address, authenticated, wish.shards.into()).map_err(refused)?;
                places.extend(sockets.first().map(|socket| socket.address().to_string()));
                transports.extend(sockets.into_iter().map(|udp| Box::new(udp) as Box<dyn Transport>));
            }
        }
    }
    Ok((transports, places))
}

/// One line each interval, and one at the end.
fn tell(node: &Node, interval: u64, as_json: bool, stop: &AtomicBool) -> Result<(), Failure> {
    let mut before = (Instant::now(), node.stats().read());
    loop {
        let next = before.0 + Duration::from_secs(interval.max(1));
        while Instant::now() < next && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let ends = stop.load(Ordering::Relaxed);
        if interval > 0 || ends {
            let now = (Instant::now(), node.stats().read());
            print::line(&line(node, &before, &now, as_json))?;
            before = now;
        } else {
            before.0 = Instant::now();
        }
        if ends {
            return Ok(());
        }
    }
}

fn line(node: &Node, before: &(Instant, Counted), now: &(Instant, Counted), as_json: bool) -> String {
    let (free, log, (clients, open)) = node.writer().size();
    if as_json {
        let mut fields: Map<String, Value> =
            now.1.iter().map(|(name, count)| (name.to_owned(), json!(count))).collect();
        for (name, count) in
            [("free_bytes", free), ("log_bytes", log), ("clients", clients as u64), ("open", open as u64)]
        {
            fields.insert(name.to_owned(), json!(count));
        }
        return Value::Object(fields).to_string();
    }
    let seconds = (now.0 - before.0).as_secs_f64();
    let rate = |counter: Counter| (now.1.get(counter) - before.1.get(counter)) as f64 / seconds;
    let dropped: u64 = [Counter::Malformed, Counter::Forged, Counter::Replayed, Counter::Foreign]
        .iter()
        .map(|&counter| now.1.get(counter))
        .sum();
    format!(
        "{:.0} walks/s, {:.0} hops/s, {:.0} changes/s, {} free, {dropped} packets dropped, {} answers lost",
        rate(Counter::Walks),
        rate(Counter::Hops),
        rate(Counter::Changes),
        print::bytes(free),
        now.1.get(Counter::Lost),
    )
}
