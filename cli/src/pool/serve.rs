// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift pool serve`: a key-value store in a pool, for clients of Redis.
//!
//! - **Rule** without `--allow-remote` it listens on this machine only, because there is no authentication
//! - **End** by Ctrl-C or SIGTERM: everything is made durable and the pool is closed. After any other end all acknowledged writes are
//!   durable (with `buffered`: those older than a second), and the next start recovers them
//! - **Replica** it has to be reached at the start, else nothing is served. Later, while it is not, writes go on, and with `replicated` clients
//!   get errors. When another process takes the replica over, the server ends: it would serve what is nowhere else
//! - **Not here** protocol and store: `memlift::persist::kv`

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::ValueEnum;
use memlift::ground::ending::stop_on_signals;
use memlift::persist::kv::server::{self, ServerOptions};
use memlift::persist::{Durability, Error, Options, Pool};
use serde_json::json;

use super::replica::{self, Serving};
use super::{failure, info};
use crate::failure::Failure;
use crate::print;

/// When a reply to a write leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum When {
    /// After a commit of its own
    Sync,
    /// After a commit that it shares
    Group,
    /// At once; it is durable a second later at the latest
    Buffered,
    /// When the copy of --replicate has it, too
    Replicated,
}

/// How long a reply waits for the replica.
const REPLICA_WAIT: Duration = Duration::from_secs(10);
/// Default memory for readers in other processes, bytes.
const READERS_BYTES: u64 = 64 << 20;
/// Bytes of each lane of the log of a new pool. What is written again before half of a lane is full goes to its place on the disk once.
const LANE_BYTES: u64 = 16 << 20;

/// Settings of the server.
#[derive(Debug)]
pub struct ServeSettings {
    pub durability: When,
    pub threads: Option<usize>,
    pub memory: Option<u64>,
    pub copies: Option<PathBuf>,
    pub readers: Option<u64>,
    pub replicate: Option<String>,
}

/// Serves until a signal ends it or the disk fails.
pub fn serve(
    path: &Path,
    listen: SocketAddr,
    allow_remote: bool,
    settings: ServeSettings,
    as_json: bool,
) -> Result<(), Failure> {
    if !listen.ip().is_loopback() && !allow_remote {
        return Err(Failure::Usage(format!(
            "{listen} is reached from other machines and there is no authentication: add --allow-remote if that is meant"
        )));
    }
    if let Some(folder) = settings.copies.as_ref().filter(|folder| !folder.is_dir()) {
        return Err(Failure::Usage(format!("--copies {}: there is no such folder", folder.display())));
    }
    if settings.replicate.is_some() {
        replica::available()?; // before a pool is made
    }
    // Before any thread starts, because threads inherit which signals are blocked.
    let stop = stop_on_signals()?;
    let listener =
        TcpListener::bind(listen).map_err(|error| Failure::Failed(format!("listen on {listen}: {error}")))?;
    let address = listener.local_addr()?;
    // A section is a shard: writers of different sections do not wait for each other.
    let readers_bytes = settings.readers.unwrap_or(READERS_BYTES);
    let options = Options {
        sections: 16,
        lane_bytes: LANE_BYTES,
        mirror_bytes: settings.memory,
        readers_bytes,
        replica_wait: REPLICA_WAIT,
        ..Options::default()
    };
    let pool = match Pool::open_or_create(path, &options) {
        Err(error @ Error::InUse { .. }) => Err(error),
        // The pool is of a kind without snapshots for readers (undo, shadow), or the name of their socket is taken: so it is
        // opened without readers. Any other error occurs again.
        Err(_) if settings.readers.is_none() => {
            Pool::open_or_create(path, &Options { readers_bytes: 0, ..options })
        }
        opened => opened,
    };
    let pool = pool.map_err(failure(path))?;
    let serving = settings.replicate.as_deref().map(|url| Serving::begin(&pool, url)).transpose()?;
    let replica = settings.replicate.as_deref();
    if as_json {
        let guarantee = info::guarantee(&pool.guarantee());
        print::json(
            &json!({ "path": path, "address": address.to_string(), "guarantee": guarantee, "replica": replica }),
        )?;
    } else {
        let replica = replica.map(|url| format!("\n  replicated to {url}")).unwrap_or_default();
        print::line(&format!("{} on {address}\n  {}{replica}", path.display(), pool.guarantee()))?;
    }
    let durability = match settings.durability {
        When::Sync => Durability::Sync,
        When::Group => Durability::Group,
        When::Buffered => Durability::Buffered,
        When::Replicated => Durability::Replicated,
    };
    let plain = ServerOptions::default();
    let options = ServerOptions {
        durability,
        threads: settings.threads.unwrap_or(plain.threads),
        copies: settings.copies,
        ..plain
    };
    let (served, ended) = std::thread::scope(|scope| {
        let watch = serving.as_ref().map(|serving| scope.spawn(|| serving.watch(&stop)));
        let served = server::serve(listener, &pool, &options, &stop);
        stop.store(true, Ordering::Release);
        (served, watch.and_then(|watch| watch.join().ok()).flatten())
    });
    let sent = match (serving, &ended) {
        (Some(serving), None) => serving.finish(),
        _ => Ok(()),
    };
    served.map_err(failure(path))?;
    pool.close().map_err(failure(path))?;
    ended.map_or(sent, |why| Err(Failure::Failed(why)))
}
