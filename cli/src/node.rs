// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift node`: a memory node for walks.
//!
//! - **Flow** options ─▶ sockets ─▶ memory, log, membership (a replicated node may be a backup first) ─▶ a thread per shard and address, one that moves ranges, one that keeps the
//!   log short ─▶ a line of statistics each interval ─▶ Ctrl-C ─▶ the last line
//! - **Rule** without keys, it listens on this machine only
//! - **End** by Ctrl-C or SIGTERM: with a log, the next start has the data
//! - **Not here** the work of a node: `memlift::traverse::node`

use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use memlift::ground::input_file;
use memlift::ground::region::{Huge, RegionError};
use memlift::ground::size;
use memlift::traverse::map::migrate::Outcome;
use memlift::traverse::map::{Address, MapError, Secret, Source};
use memlift::traverse::node::{
    Alone, BackupState, Cluster, ClusterError, ClusterOptions, Counted, Counter, Durability, Node,
    NodeOptions, Replayed, ReplicaEvent, Router,
};
use memlift::traverse::resolve::resolve;
use memlift::traverse::sweep::{Reached, Sweeper};
use memlift::traverse::transport::shm::Shm;
use memlift::traverse::transport::udp::Udp;
use memlift::traverse::transport::{Transport, TransportError};
use memlift::traverse::wire::Keys;
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::node_log::LogVerb;
use crate::{input, node_log, print};

/// Most bytes of a file of keys, enough for about ten thousand tenants.
const KEYS_BYTES_MAX: u64 = 1 << 20;

/// Text at the end of `--help`.
pub const EXAMPLES: &str = "Examples:
  memlift node --memory 8G --listen shm:words
  memlift node --memory 8G --listen 127.0.0.1:7700 --log words.log
  memlift node --memory 8G --listen 127.0.0.1:7700 --name a --coordinator 127.0.0.1:7600 --log a.log
  memlift node --memory 8G --listen 10.0.0.5:7700 --keys tenants.keys --map cluster.toml --name a
  memlift node --memory 8G --listen 10.0.0.5:7700 --keys all.keys --etcd http://10.0.0.9:2379 --name a --replicate
  memlift node log check words.log

Without --replicate, a node that is lost takes what it had with it, except for what is in its log.
Keys are lines `TENANT HEX` (64 digits) in a file that nobody else may read. End it with Ctrl-C.";

/// When a change is on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum When {
    /// In the system's cache before its answer leaves, on the disk about a second later: a killed node loses nothing
    Process,
    /// On the disk before its answer leaves
    Disk,
}

/// Serve a node, or inspect its log.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct NodeArgs {
    #[command(subcommand)]
    verb: Option<NodeVerb>,
    #[command(flatten)]
    serve: Option<ServeArgs>,
}

/// Verbs that do not start a node.
#[derive(Debug, Subcommand)]
enum NodeVerb {
    /// Check the log of a node that does not run, or save what can be read of a damaged one
    Log {
        #[command(subcommand)]
        verb: LogVerb,
    },
}

/// Options of a node that serves.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Memory for data: bytes, or with K, M, G; taken at the start
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: u64,
    /// Where clients come: HOST:PORT (UDP), or shm:NAME for this machine. May be given several times
    #[arg(long, value_name = "WHERE", required = true, value_parser = place)]
    listen: Vec<Place>,
    /// Log changes here, and start with what it holds
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// When a change is durable
    #[arg(long, value_enum, default_value_t = When::Process, requires = "log")]
    durability: When,
    /// Make the log short again when it is longer than this, and than twice what is in memory
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1G", requires = "log")]
    log_limit: u64,
    /// Start although the log is a copy from before this node's last start: gives up all changes since the copy was made. Say it once,
    /// when the newest log is lost
    #[arg(long, requires_all = ["log", "cluster"])]
    accept_older_log: bool,
    /// File that says which node has which addresses (TOML); its changes are followed
    #[arg(long, value_name = "FILE", requires = "name", group = "cluster")]
    map: Option<PathBuf>,
    /// Join the cluster of this coordinator (`memlift map serve`): HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS", requires = "name", group = "cluster")]
    coordinator: Option<String>,
    /// Join the cluster whose map is in this etcd: http://HOST:PORT or https://, more of them after commas, /PREFIX, ?OPTIONS
    #[arg(long, value_name = "URL", requires = "name", group = "cluster")]
    etcd: Option<String>,
    /// Serve the node with a backup: start it on two machines with the same --name. The second one becomes the backup, has each change
    /// before its answer leaves, and takes over when the lease of the first one in etcd is over
    #[arg(long, requires = "etcd", conflicts_with_all = ["coordinator", "map"])]
    replicate: bool,
    /// The coordinator's key file
    #[arg(long, value_name = "FILE", requires = "coordinator")]
    key: Option<PathBuf>,
    /// Name of this node in the map; the same at each start
    #[arg(long, value_name = "NAME", requires = "cluster")]
    name: Option<String>,
    /// Where others reach this node, where that is not what it listens at
    #[arg(long, value_name = "HOST:PORT", value_parser = resolve, requires = "cluster")]
    advertise: Vec<SocketAddr>,
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

/// Address at which a node listens for clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// Rings in shared memory.
    Shm(String),
    /// UDP socket at this address.
    Udp(SocketAddr),
}

fn place(text: &str) -> Result<Place, String> {
    match text.strip_prefix("shm:") {
        Some(name) => Ok(Place::Shm(name.to_owned())),
        None => resolve(text).map(Place::Udp).map_err(|reason| format!("{reason}, or shm: and a name")),
    }
}

fn size(text: &str) -> Result<u64, String> {
    match size::parse(text) {
        Ok(0) => Err("write more than 0".to_owned()),
        Ok(bytes) => bytes
            .checked_next_multiple_of(4096)
            .ok_or_else(|| "that is more than a machine can have".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Serves until a signal ends the node, or runs a verb on a log.
pub fn run(args: &NodeArgs, as_json: bool) -> Result<(), Failure> {
    match args {
        NodeArgs { verb: Some(NodeVerb::Log { verb }), .. } => node_log::run(verb, as_json),
        NodeArgs { serve: Some(args), .. } => serve(args, as_json),
        NodeArgs { .. } => Err(Failure::Usage("say --memory and --listen, or log check FILE".to_owned())),
    }
}

fn serve(args: &ServeArgs, as_json: bool) -> Result<(), Failure> {
    // Before any thread starts, because threads inherit which signals are blocked.
    let stop = memlift::ground::ending::stop_on_signals()?;
    let keys = match &args.keys {
        None => Keys::none(),
        Some(path) => {
            input::stream(path)?;
            let mode = std::fs::metadata(path).map_err(|error| at(path, &error))?.permissions().mode();
            if mode & 0o077 != 0 {
                return Err(Failure::Failed(format!("others may read {0}: chmod 600 {0}", path.display())));
            }
            let text = input_file::text(path, KEYS_BYTES_MAX).map_err(|error| at(path, &error))?;
            Keys::parse(&text).map_err(|error| match error.line {
                0 => Failure::Failed(format!(
                    "{}: there is no key in it; a line is `TENANT HEX`, with 64 digits (openssl rand -hex 32)",
                    path.display()
                )),
                _ => at(path, &error),
            })?
        }
    };
    args.log.iter().try_for_each(|path| input::plain(path))?;
    let options = NodeOptions {
        bytes: args.memory,
        keys: keys.clone(),
        log: args.log.clone().map(|path| {
            (path, if args.durability == When::Disk { Durability::Disk } else { Durability::Process })
        }),
        workspaces: args.workspaces.map(usize::from),
        accept_older_log: args.accept_older_log,
        ..NodeOptions::default()
    };
    let Listening { transports, places, sockets, speaker } = listen(args, !keys.is_empty())?;
    let opened = open(args, options, &places, &sockets, speaker, as_json, &stop)?;
    // A backup that was stopped before it became the node.
    let Some((node, mut cluster, replayed)) = opened else { return Ok(()) };
    let bytes: u64 = node.writer().stretches().iter().map(|(_, bytes)| bytes).sum();
    let start = json!({
        "listen": places,
        "base": node.memory().base(),
        "bytes": bytes,
        "huge_pages": format!("{:?}", node.memory().huge()),
        "workspaces": node.workspaces(),
        "programs": node.programs().len(),
        "log_records": replayed.records,
        "log_cut_bytes": replayed.cut_bytes,
    });
    if as_json {
        print::line(&start.to_string())?;
    } else {
        let (from, width) = (node.memory().base(), node.workspaces());
        let pages = if node.memory().huge() == Huge::None { "ordinary" } else { "huge" };
        print::line(&format!(
            "node on {}: {} from {from:#x} on, {pages} pages, {width} walks in flight per shard and program",
            places.join(", "),
            print::bytes(bytes),
        ))?;
        if args.log.is_some() {
            let (records, cut) = (replayed.records, replayed.cut_bytes);
            print::line(&format!("  log: {records} records replayed, {cut} bytes of a torn end cut off"))?;
        }
    }
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for transport in transports {
            let router: Box<dyn Router> = match &cluster {
                Some(cluster) => Box::new(cluster.shared().view()),
                None => Box::new(Alone),
            };
            let mut shard = node.shard(transport, router);
            let stop = &stop;
            threads.push(scope.spawn(move || {
                let served = shard.serve(stop).map_err(failed);
                // A shard that cannot continue ends the node, because its clients would wait in vain.
                stop.store(true, Ordering::Relaxed);
                served
            }));
        }
        let reached = match &cluster {
            Some(cluster) => Reached::Map(Arc::clone(cluster.shared())),
            None => Reached::Places(places.iter().take(1).cloned().collect()),
        };
        if let Some(cluster) = &mut cluster {
            let stop = &stop;
            threads.push(scope.spawn(move || {
                let moved = move_ranges(cluster, as_json, stop);
                stop.store(true, Ordering::Relaxed);
                moved
            }));
        }
        let mut sweeper = Sweeper::new(node.clone(), reached, keys.clone(), Arc::clone(&stop));
        threads.push(scope.spawn(move || {
            sweeper.serve();
            Ok(())
        }));
        if args.log.is_some() {
            let (node, stop, limit_bytes) = (&node, &stop, args.log_limit);
            threads.push(scope.spawn(move || compact_log(node, limit_bytes, as_json, stop)));
        }
        let mut ended = tell(&node, args.interval, as_json, &stop);
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            let served = match thread.join() {
                Ok(served) => served,
                Err(_) => Err(Failure::Failed("a shard panicked; report this".to_owned())),
            };
            ended = ended.and(served);
        }
        ended
    })
}

fn failed(error: impl std::error::Error + 'static) -> Failure {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(one) = cause {
        if let Some(RegionError::Headroom { .. }) = one.downcast_ref() {
            return Failure::Unavailable(error.to_string());
        }
        cause = one.source();
    }
    Failure::of(&error)
}

/// Converts an error of listening: an address at which nobody may listen is a wrong argument.
fn refused(error: TransportError) -> Failure {
    match error {
        TransportError::Name(_) | TransportError::NotLoopback(_) => Failure::Usage(error.to_string()),
        other => failed(other),
    }
}

fn at(path: &Path, error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::about(error, format!("{}: {error}", path.display()))
}

/// Returns the source of the map of the cluster that this node joins; `None`: it joins none.
fn source(args: &ServeArgs) -> Result<Option<Source>, Failure> {
    args.map.iter().chain(&args.key).try_for_each(|path| input::stream(path))?;
    let text = match args {
        ServeArgs { map: Some(path), .. } => format!("file:{}", path.display()),
        ServeArgs { coordinator: Some(address), .. } => format!("coordinator:{address}"),
        ServeArgs { etcd: Some(url), .. } => format!("etcd:{url}"),
        _ => return Ok(None),
    };
    let source = Source::parse(&text).map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(Some(match &args.key {
        Some(path) => source.with_secret(Secret::read(path).map_err(failed)?),
        None => source,
    }))
}

/// Opens the node with its memory and its log and, if it has a source, joins the cluster.
fn open(
    args: &ServeArgs,
    options: NodeOptions,
    places: &[String],
    sockets: &[SocketAddr],
    speaker: Option<UdpSocket>,
    as_json: bool,
    stop: &AtomicBool,
) -> Result<Option<(Node, Option<Cluster>, Replayed)>, Failure> {
    let (Some(source), Some(name)) = (source(args)?, args.name.clone()) else {
        let (node, replayed) = Node::open(options).map_err(failed)?;
        return Ok(Some((node, None, replayed)));
    };
    let udp = if args.advertise.is_empty() { sockets } else { &args.advertise };
    let mut addresses: Vec<Address> = udp.iter().map(|socket| Address::Udp(*socket)).collect();
    addresses.extend(
        places
            .iter()
            .filter_map(|place| place.strip_prefix("shm:"))
            .map(|name| Address::Shm(name.to_owned())),
    );
    if udp.iter().any(|socket| socket.ip().is_unspecified()) {
        return Err(Failure::Usage(
            "others cannot reach an unspecified address: say --advertise HOST:PORT".to_owned(),
        ));
    }
    let by_hand = matches!(source, Source::File(_));
    let options = ClusterOptions { node: options, source, name, addresses };
    let opened = if args.replicate {
        let speaker = speaker.ok_or_else(|| {
            Failure::Usage("a replicated node listens at a UDP address: say --listen HOST:PORT".to_owned())
        })?;
        let mut told = |event: ReplicaEvent| {
            // A closed output ends the node later, when it prints what it does.
            let _ = tell_replica(&event, as_json);
        };
        Cluster::open_replicated(&options, speaker, args.log_limit, stop, &mut told)
    } else {
        Cluster::open(options, speaker).map(Some)
    };
    let opened = opened.map_err(|error| match error {
        ClusterError::Map(MapError::Unreachable { .. }) => Failure::Unavailable(error.to_string()),
        ClusterError::Map(MapError::Refused { .. }) if by_hand => Failure::Usage(error.to_string()),
        other => failed(other),
    })?;
    Ok(opened.map(|(cluster, replayed)| (cluster.node().clone(), Some(cluster), replayed)))
}

/// Prints what happens to a process of a replicated node before it is the primary.
fn tell_replica(event: &ReplicaEvent, as_json: bool) -> Result<(), Failure> {
    let text = match event {
        ReplicaEvent::Copying(primary) => format!("backup: copying the node from {primary}"),
        ReplicaEvent::Following(primary) => format!("backup: has all of {primary}, and gets each change"),
        ReplicaEvent::Waiting(why) => format!("backup: waits: {why}"),
    };
    print::line(&if as_json { json!({"event": "replica", "text": text}).to_string() } else { text })
}

/// Prints a change of the backup's state.
fn tell_backup(state: &BackupState, as_json: bool) -> Result<(), Failure> {
    let text = match state {
        BackupState::None => {
            "backup: none; a failure of this machine loses what is not in the log".to_owned()
        }
        BackupState::Refused(at, why) => format!("backup: none; {at} asked to be it and was refused: {why}"),
        BackupState::Copying(at) => format!("backup: {at} gets a copy"),
        BackupState::Listed(at) => {
            format!("backup: {at} has everything, and takes over if this process fails")
        }
        BackupState::Dropping => "backup: gone; changes wait until etcd lists none".to_owned(),
    };
    print::line(&if as_json { json!({"event": "backup", "text": text}).to_string() } else { text })
}

/// Moves ranges in and out until `stop`; a problem with the map is reported once.
fn move_ranges(cluster: &mut Cluster, as_json: bool, stop: &AtomicBool) -> Result<(), Failure> {
    let (mut trouble, mut backup) = (None, None);
    while !stop.load(Ordering::Relaxed) {
        cluster.turn(Duration::from_millis(50)).map_err(failed)?;
        let state = cluster.backup();
        if state != backup {
            state.iter().try_for_each(|state| tell_backup(state, as_json))?;
            backup = state;
        }
        for outcome in cluster.mover().outcomes() {
            let (event, id, text) = match outcome {
                Outcome::Given { id, pieces, held } => {
                    let held_ms = held.as_millis();
                    (
                        "given",
                        id,
                        format!("move {id}: given away, {pieces} KiB sent, writes waited {held_ms} ms"),
                    )
                }
                Outcome::Taken { id } => ("taken", id, format!("move {id}: the range is this node's")),
                Outcome::Cancelled { id, why } => ("cancelled", id, format!("move {id} is not made: {why}")),
            };
            print::line(&if as_json {
                json!({"event": event, "move": id, "text": text}).to_string()
            } else {
                text
            })?;
        }
        let now = cluster.trouble();
        if now != trouble {
            let text = now.as_deref().unwrap_or("the map's keeper answers again");
            print::line(&if as_json {
                json!({"event": "map", "text": text}).to_string()
            } else {
                text.to_owned()
            })?;
            trouble = now;
        }
    }
    Ok(())
}

/// Shortens the log whenever it exceeds its limit, until `stop`. A log that cannot be shortened is reported; it stays valid.
fn compact_log(node: &Node, limit_bytes: u64, as_json: bool, stop: &AtomicBool) -> Result<(), Failure> {
    let mut next = Instant::now();
    let mut is_full = false;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(100));
        if node.is_log_full() != is_full {
            is_full = !is_full;
            let text = match is_full {
                true => "log: its disk is full: changes are refused until there is room, reads go on",
                false => "log: there is room again, changes are taken",
            };
            let event = json!({"event": "log", "text": text}).to_string();
            print::line(if as_json { &event } else { text })?;
        }
        if Instant::now() < next {
            continue;
        }
        let text = match node.compact_beyond(limit_bytes) {
            Ok(None) => continue,
            Ok(Some(done)) => {
                let (before, after) = (print::bytes(done.before_bytes), print::bytes(done.after_bytes));
                format!("log: {before} became {after}")
            }
            Err(error) => {
                next = Instant::now() + Duration::from_secs(60);
                format!("log: not made short: {error}; tried again in a minute")
            }
        };
        print::line(&if as_json { json!({"event": "log", "text": text}).to_string() } else { text })?;
    }
    Ok(())
}

/// A transport per shard and address.
type Transports = Vec<Box<dyn Transport>>;

/// The transports, addresses and sockets of this node.
struct Listening {
    transports: Transports,
    places: Vec<String>,
    sockets: Vec<SocketAddr>,
    /// Socket for messages to other nodes.
    speaker: Option<UdpSocket>,
}

/// Opens the transports.
fn listen(args: &ServeArgs, authenticated: bool) -> Result<Listening, Failure> {
    let (mut transports, mut places) = (Transports::new(), Vec::new());
    let (mut addresses, mut speaker) = (Vec::new(), None);
    for place in &args.listen {
        match place {
            Place::Shm(name) => {
                let first = Shm::listen(name).map_err(refused)?;
                let more = (1..args.shards)
                    .map(|_| first.another())
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(refused)?;
                transports.push(Box::new(first));
                transports.extend(more.into_iter().map(|shm| Box::new(shm) as Box<dyn Transport>));
                places.push(format!("shm:{name}"));
            }
            Place::Udp(address) => {
                let sockets =
                    Udp::bind_shared(*address, authenticated, args.shards.into()).map_err(refused)?;
                if let Some(first) = sockets.first() {
                    places.push(first.address().to_string());
                    addresses.push(first.address());
                    if speaker.is_none() {
                        speaker = Some(first.speaker().map_err(failed)?);
                    }
                }
                transports.extend(sockets.into_iter().map(|udp| Box::new(udp) as Box<dyn Transport>));
            }
        }
    }
    Ok(Listening { transports, places, sockets: addresses, speaker })
}

/// Prints one line each interval, and one at the end.
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
    let mut writer = node.writer();
    let (usage, (_, log, (clients, open))) = (writer.usage(), writer.size());
    drop(writer);
    if as_json {
        let mut fields: Map<String, Value> =
            now.1.iter().map(|(name, count)| (name.to_owned(), json!(count))).collect();
        let more = [
            ("free_bytes", usage.free),
            ("live_bytes", usage.live),
            ("retired_bytes", usage.retired),
            ("waste_bytes", usage.waste),
            ("largest_free_bytes", usage.largest_free),
            ("log_bytes", log),
            ("clients", clients as u64),
            ("open", open as u64),
        ];
        for (name, count) in more {
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
        print::bytes(usage.free),
        now.1.get(Counter::Lost),
    )
}
