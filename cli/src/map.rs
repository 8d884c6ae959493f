// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift map`: shows and changes the owners of addresses, and runs the coordinator that keeps the map.
//!
//! - **Flow** [`From`] (a file, a coordinator, etcd) ─▶ one reading, or one change ─▶ text or JSON; [`serve`] keeps
//!   running
//! - **End** [`serve`] ends by Ctrl-C or SIGTERM; nodes continue with the map that they have
//! - **Exit** 0 done · 1 refused, or not valid · 2 usage · 3 the source does not answer
//! - **Not here** the map itself: `memlift::traverse::map`

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::{Args, Subcommand};
use memlift::ground::ending::stop_on_signals;
use memlift::traverse::map::coordinator::{self, Coordinator};
use memlift::traverse::map::migrate::MigrationPhase;
use memlift::traverse::map::{Address, Authority, Map, MapError, Order, Peer, Secret, Source, State, file};
use memlift::traverse::node::leaving;
use memlift::traverse::wire::Keys;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::{input, print};

/// Where the map is.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Where {
    /// File that holds the map
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// A coordinator: HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS")]
    coordinator: Option<String>,
    /// An etcd: http://HOST:PORT or https://, more of them after commas, /PREFIX, ?OPTIONS
    #[arg(long, value_name = "URL")]
    etcd: Option<String>,
}

/// Where the map is, and the key to it.
#[derive(Debug, Args)]
pub struct From {
    #[command(flatten)]
    place: Where,
    /// The coordinator's key file
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

/// Verbs of `map`.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Print nodes, ranges and what is moving
    #[command(
        override_usage = "memlift map show [OPTIONS]\n           --map <FILE>|--coordinator <ADDRESS>|--etcd <URL>",
        after_help = "Examples:\n  memlift map show --coordinator 127.0.0.1:7600\n  memlift map show --map cluster.toml --json"
    )]
    Show {
        #[command(flatten)]
        from: From,
    },
    /// Say whether a map file is valid, and if not, which line is wrong
    Check {
        /// Map file to check
        file: PathBuf,
    },
    /// Keep a map for nodes that join, until it is stopped
    #[command(
        after_help = "Examples:\n  memlift map serve --file map --listen 127.0.0.1:7600\n  memlift map serve --file map --listen 10.0.0.9:7600 --key key     (openssl rand -hex 32 > key; chmod 600 key)"
    )]
    Serve {
        /// Where the map is kept; made if it is not there
        #[arg(long, value_name = "FILE")]
        file: PathBuf,
        /// HOST:PORT or unix:PATH
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7600")]
        listen: String,
        /// The key file; needed beyond this machine
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
        /// Seconds after which a node that says nothing is down
        #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
        lease_s: u64,
    },
    /// Move addresses to another node while they are used, and wait until it is done
    #[command(
        override_usage = "memlift map move [OPTIONS] <BASE> <BYTES> <NODE>\n           --map <FILE>|--coordinator <ADDRESS>|--etcd <URL>",
        after_help = "Examples:\n  memlift map move 0x100000000 1G b --coordinator 127.0.0.1:7600\n\nInterrupted, the move goes on: `memlift map show` prints it, `memlift map cancel` ends it."
    )]
    Move {
        /// First address of the range
        #[arg(value_parser = number)]
        base: u64,
        /// How many bytes
        #[arg(value_parser = number)]
        bytes: u64,
        /// To which node, by name
        node: String,
        /// Only plan it
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        from: From,
    },
    /// Do not make a move that was planned
    #[command(
        override_usage = "memlift map cancel [OPTIONS] <ID>\n           --map <FILE>|--coordinator <ADDRESS>|--etcd <URL>"
    )]
    Cancel {
        /// Number of the move, as `memlift map show` prints it
        id: u64,
        #[command(flatten)]
        from: From,
    },
    /// A node that is down will not come back: its data is lost
    #[command(
        override_usage = "memlift map forget [OPTIONS] <NODE>\n           --map <FILE>|--coordinator <ADDRESS>|--etcd <URL>"
    )]
    Forget {
        /// Name of the node
        node: String,
        #[command(flatten)]
        from: From,
    },
}

fn number(text: &str) -> Result<u64, String> {
    file::number(text).ok_or_else(|| "write a number of bytes, 0x…, or one with K, M, G or T".to_owned())
}

fn failure(error: MapError) -> Failure {
    match error {
        MapError::Unreachable { .. } => Failure::Unavailable(error.to_string()),
        MapError::Source { .. } => Failure::Usage(error.to_string()),
        other => Failure::of(&other),
    }
}

impl From {
    /// Returns the source, in the form that `memlift node` accepts too.
    pub fn source(&self) -> Result<Source, Failure> {
        self.place.map.iter().chain(&self.key).try_for_each(|path| input::stream(path))?;
        let text = match &self.place {
            Where { map: Some(path), .. } => format!("file:{}", path.display()),
            Where { coordinator: Some(address), .. } => format!("coordinator:{address}"),
            Where { etcd: Some(url), .. } => format!("etcd:{url}"),
            Where { .. } => return Err(Failure::Usage("give --map, --coordinator or --etcd".to_owned())),
        };
        let source = Source::parse(&text).map_err(failure)?;
        match &self.key {
            Some(path) => Ok(source.with_secret(Secret::read(path).map_err(failure)?)),
            None => Ok(source),
        }
    }

    fn connect(&self) -> Result<Box<dyn Authority>, Failure> {
        self.source()?.connect().map_err(failure)
    }
}

/// Runs one verb of `memlift map`.
pub fn run(verb: Verb, json: bool) -> Result<(), Failure> {
    match verb {
        Verb::Show { from } => show(&from.connect()?.read().map_err(failure)?, json),
        Verb::Check { file } => {
            input::stream(&file)?;
            let map = file::read(&file).map_err(failure)?;
            if json {
                return print::json(
                    &json!({"valid": true, "epoch": map.epoch(), "nodes": map.nodes().len(), "ranges": map.ranges().len()}),
                );
            }
            let (nodes, ranges) = (map.nodes().len(), map.ranges().len());
            print::line(&format!(
                "{}: valid, epoch {}, {nodes} nodes, {ranges} ranges",
                file.display(),
                map.epoch()
            ))
        }
        Verb::Serve { file, listen, key, lease_s } => serve(file, &listen, key, lease_s),
        Verb::Move { base, bytes, node, no_wait, from } => {
            let mut authority = from.connect()?;
            let order = Order::Plan { base, bytes, to: node.clone() };
            let (map, id) = authority.order(&order).map_err(failure)?;
            if no_wait && json {
                return print::json(&json!({"move": id}));
            }
            if no_wait {
                return print::line(&format!(
                    "move {id} to {node} is planned; `memlift map show` says when it is made"
                ));
            }
            follow(&mut *authority, map, id, json)
        }
        Verb::Cancel { id, from } => {
            let (map, _) = from.connect()?.order(&Order::Cancel(id)).map_err(failure)?;
            done(&map, &format!("move {id} is cancelled"), json)
        }
        Verb::Forget { node, from } => {
            let (map, _) = from.connect()?.order(&Order::Forget(node.clone())).map_err(failure)?;
            done(&map, &format!("node {node} is forgotten, its data is lost"), json)
        }
    }
}

/// Prints the progress of a move until it ends, and its result.
fn follow(authority: &mut dyn Authority, mut map: Map, id: u64, json: bool) -> Result<(), Failure> {
    let Some(one) = map.moves().iter().find(|one| one.id == id).copied() else {
        return Err(Failure::Failed(format!("move {id} is not in the map that was to plan it; report this")));
    };
    let name = |map: &Map, id| map.node(id).map_or_else(|| "?".to_owned(), |node| node.name.clone());
    let (from, to) = (name(&map, one.from.0), name(&map, one.to.0));
    if !json {
        print::line(&format!("move {id}: {} from {from} to {to}", print::bytes(one.bytes)))?;
    }
    let mut said = None;
    while map.moves().iter().any(|one| one.id == id) {
        let socket = map.node(one.from.0).and_then(|node| {
            node.addresses.iter().find_map(|address| match address {
                Address::Udp(socket) => Some(*socket),
                Address::Shm(_) => None,
            })
        });
        // If packets need keys the node does not answer, and then only the end is seen.
        let now = socket
            .and_then(|socket| leaving(socket, one.base, &Keys::none(), 0, Duration::from_millis(200)))
            .map(|now| (now.step, now.settled * 20 / now.pieces.max(1)));
        if let Some((step, twentieths)) = now.filter(|now| !json && said != Some(*now)) {
            let doing = match step {
                MigrationPhase::Offering => "the target is asked",
                MigrationPhase::Copying => "copying, reads and writes go on",
                MigrationPhase::Draining => "writes wait for the last of it",
                MigrationPhase::Sealing => "the target makes it last",
                MigrationPhase::Committing => "the map is asked",
                MigrationPhase::Cancelling => "it cannot be made, the map is told",
            };
            print::line(&format!("  {:3} % {doing}", twentieths * 5))?;
            said = now;
        }
        match authority.wait(map.epoch(), Duration::from_millis(200)) {
            Ok(newer) => map = newer.unwrap_or(map),
            // The source may be away for a while; the move continues or waits meanwhile.
            Err(MapError::Unreachable { .. }) => std::thread::sleep(Duration::from_millis(500)),
            Err(other) => return Err(failure(other)),
        }
    }
    let owner = map.find(one.base).and_then(|range| range.owner);
    if owner != Some(one.to.0) {
        return Err(Failure::Failed(format!(
            "move {id} was not made: the range is {}'s; nodes {from} and {to} say why in their output",
            owner.map_or_else(|| "nobody".to_owned(), |owner| name(&map, owner))
        )));
    }
    if json {
        return print::json(&json!({"move": id, "epoch": map.epoch(), "node": to}));
    }
    print::line(&format!("move {id}: the range is {to}'s, epoch {}", map.epoch()))
}

fn done(map: &Map, text: &str, json: bool) -> Result<(), Failure> {
    if json {
        return print::json(&json!({"epoch": map.epoch()}));
    }
    print::line(&format!("{text}, epoch {}", map.epoch()))
}

fn document(map: &Map) -> Value {
    let name = |id| map.node(id).map(|node| node.name.clone());
    let nodes = map.nodes().iter().map(|node| {
        let addresses: Vec<String> = node.addresses.iter().map(ToString::to_string).collect();
        json!({"id": node.id.0, "name": node.name, "addresses": addresses, "up": node.state == State::Up})
    });
    let ranges = map.ranges().iter().map(|range| {
        json!({"base": range.base, "bytes": range.bytes, "node": range.owner.and_then(name), "since": range.since,
            "write": range.permissions.write(), "tenant": range.tenant})
    });
    let moves = map.moves().iter().map(|one| {
        json!({"id": one.id, "base": one.base, "bytes": one.bytes, "from": name(one.from.0), "to": name(one.to.0)})
    });
    json!({"epoch": map.epoch(), "nodes": nodes.collect::<Vec<_>>(), "ranges": ranges.collect::<Vec<_>>(), "moves": moves.collect::<Vec<_>>()})
}

fn show(map: &Map, json: bool) -> Result<(), Failure> {
    if json {
        return print::json(&document(map));
    }
    let name = |id| map.node(id).map_or_else(|| "?".to_owned(), |node| node.name.clone());
    let nodes: Vec<Vec<String>> = map
        .nodes()
        .iter()
        .map(|node| {
            let addresses: Vec<String> = node.addresses.iter().map(ToString::to_string).collect();
            let state = if node.state == State::Up { "up" } else { "down" };
            vec![node.name.clone(), state.to_owned(), addresses.join(" ")]
        })
        .collect();
    let ranges: Vec<Vec<String>> = map
        .ranges()
        .iter()
        .map(|range| {
            let rights = if range.permissions.write() { "rw" } else { "r" };
            let owner = range.owner.map_or_else(|| "lost".to_owned(), name);
            vec![
                format!("{:#x}", range.base),
                format!("{:#x}", range.end()),
                owner,
                rights.to_owned(),
                range.tenant.to_string(),
                range.since.to_string(),
            ]
        })
        .collect();
    let mut text =
        format!("epoch {}\n\n{}", map.epoch(), print::table(&["node", "state", "addresses"], &nodes));
    text.push_str("\n\n");
    text.push_str(&print::table(&[">base", ">end", "node", "rights", ">tenant", ">since epoch"], &ranges));
    for one in map.moves() {
        let (from, to) = (name(one.from.0), name(one.to.0));
        text.push_str(&format!("\nmove {}: {:#x} to {:#x} from {from} to {to}", one.id, one.base, one.end()));
    }
    print::line(text.trim_end())
}

fn serve(file: PathBuf, listen: &str, key: Option<PathBuf>, lease_s: u64) -> Result<(), Failure> {
    let peer = Peer::parse(listen)
        .ok_or_else(|| Failure::Usage("--listen takes HOST:PORT or unix:PATH".to_owned()))?;
    input::plain(&file)?;
    key.iter().try_for_each(|path| input::stream(path))?;
    let secret = key.map(|path| Secret::read(&path)).transpose().map_err(failure)?;
    let kept = file.display().to_string();
    let options = coordinator::Options { file, lease: Duration::from_secs(lease_s), secret };
    // Before any thread starts, because threads inherit which signals are blocked.
    let stop = stop_on_signals()?;
    let running = Coordinator::start(&peer, options).map_err(|error| match error {
        MapError::Encoding { .. } => Failure::Failed(format!("{kept}: {error}")),
        other => failure(other),
    })?;
    let mut map = running.map();
    print::line(&format!("coordinator at {}, epoch {}", running.address(), map.epoch()))?;
    while !stop.load(Ordering::Relaxed) {
        let newer = running.wait_newer(map.epoch(), Duration::from_millis(100));
        if newer.epoch() > map.epoch() {
            print::line(&newer.since(&map).to_string())?;
        }
        map = newer;
    }
    Ok(())
}
