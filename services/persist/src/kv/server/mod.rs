// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server for a store that speaks the Redis protocol.
//!
//! - **Flow** threads, each with its connections and an epoll (`worker`): read what came ─▶ run every whole request (`protocol`,
//!   `commands`) ─▶ one sync for all of them ─▶ write the replies
//! - **Order** with [`Durability::Group`], the default, no reply leaves before everything that it may have seen is durable: the
//!   requests of a round, of all connections, run buffered and share one fence or fdatasync. With [`Durability::Replicated`] they share the
//!   wait for the replica, too
//! - **Copies** another thread makes them, one at a time (`saves`)
//! - **Room** a thread gives room back to the disk when much was removed ([`ServerOptions::tidy`])
//! - **Rule** a client that does not read its replies is not read from. A client that sends nonsense, and one beyond a limit,
//!   gets an error and is closed: what it still sends is thrown away for a while, for an early end would take the error with it.
//!   Nothing that a client sends ends the server
//! - **Not here** passwords and encryption: listen on trusted networks only

use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Kv;
use crate::error::{Error, Result};
use crate::holes::punchable;
use crate::options::Durability;
use crate::pool::Pool;

mod client;
mod commands;
mod pattern;
pub mod protocol;
mod saves;
mod session;
mod worker;

use commands::Shared;
use protocol::Limits;
use worker::Worker;

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// When a reply to a write leaves: `Sync`: after a commit of its own. `Group`: after one that it shares. `Buffered`: at
    /// once; it is durable a second later at the latest. `Replicated`: as `Group`, when the replica has it, too.
    pub durability: Durability,
    /// Threads that serve.
    pub threads: usize,
    /// Connections at one time.
    pub clients: u64,
    /// Bytes of requests and replies that one thread keeps for its connections; beyond it the connection with most is closed.
    pub buffer_bytes: usize,
    /// Upper bounds of a request.
    pub limits: Limits,
    /// How often the pool is looked at for room that a compaction would give back to the disk ([`Pool::compact`]); zero: never.
    pub tidy: Duration,
    /// The folder for copies of the pool that BGSAVE asks for; None: it is refused.
    pub copies: Option<PathBuf>,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4);
        ServerOptions {
            durability: Durability::Group,
            threads,
            clients: 10_000,
            buffer_bytes: 512 << 20,
            limits: Limits::default(),
            tidy: Duration::from_secs(5),
            copies: None,
        }
    }
}

/// Bytes that one read takes in, and that an idle connection keeps.
const READ_BYTES: usize = 64 << 10;
/// How long a thread waits at most before it looks whether to stop.
const TICK: Duration = Duration::from_millis(100);
/// A compaction rests so long between two of its transactions: it takes at most every other moment from the clients.
const REST: Duration = Duration::from_micros(500);
/// Less than this is not given back.
const TIDY_BYTES: u64 = 8 << 20;

/// Serves the store in `pool` on `listener` until `stop` is true or the pool stops.
///
/// # Errors
///
/// As [`Kv::open`]; [`Error::Stopped`] when the disk fails: replies to what is not durable were not sent.
pub fn serve(listener: TcpListener, pool: &Pool, options: &ServerOptions, stop: &AtomicBool) -> Result<()> {
    let durability = match options.durability {
        Durability::Group | Durability::Replicated => Durability::Buffered, // until the round's sync
        other => other,
    };
    let kv = Kv::open(pool, durability)?;
    listener.set_nonblocking(true).map_err(|error| refused("listen", &error))?;
    let shared = Shared::new(options);
    let failure = Mutex::new(None);
    let fail = |error: Error| {
        stop.store(true, Ordering::Release);
        failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(error);
    };
    std::thread::scope(|scope| {
        if !options.tidy.is_zero() {
            scope.spawn(|| {
                if let Err(error) = tidy(pool, options.tidy, &shared, stop) {
                    fail(error);
                }
            });
        }
        if let Some(folder) = &options.copies {
            scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    if let Err(error) = shared.saves.serve(pool, folder, stop) {
                        fail(error);
                    }
                    std::thread::sleep(TICK);
                }
            });
        }
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| {
                let worker = Worker::new(&listener, &kv, options, &shared);
                if let Err(error) = worker.and_then(|worker| worker.run(stop)) {
                    fail(error);
                }
            });
        }
    });
    let failure = failure.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    failure.map_or_else(|| kv.sync(), Err)
}

/// Gives room back to the disk, until `stop`: when half a heap of bytes was freed since the last look and what is free in pieces, or has
/// blocks, is a quarter of what is in use.
fn tidy(pool: &Pool, every: Duration, shared: &Shared, stop: &AtomicBool) -> Result<()> {
    let store = pool.store();
    if punchable(&store.medium, store.mechanism as u8).is_none() {
        return Ok(()); // it keeps its blocks
    }
    let mut looked = store.freed_bytes.load(Ordering::Relaxed);
    loop {
        let next = Instant::now() + every;
        while Instant::now() < next {
            if stop.load(Ordering::Acquire) {
                return Ok(());
            }
            std::thread::sleep(TICK.min(every));
        }
        let (heap, free) = pool.usage();
        let freed = store.freed_bytes.load(Ordering::Relaxed);
        // Looking at all slabs reads a page of each.
        if freed.wrapping_sub(looked) < (heap / 2).max(TIDY_BYTES) {
            continue;
        }
        looked = freed;
        if store.sparse_bytes() < ((heap - free) / 4).max(TIDY_BYTES) {
            continue;
        }
        let done = pool.compact_while(|_, _| {
            std::thread::sleep(REST);
            !stop.load(Ordering::Acquire)
        });
        match done {
            Ok(done) => {
                shared.compactions.fetch_add(1, Ordering::Relaxed);
                shared.given_back.fetch_add(done.before.saturating_sub(done.after), Ordering::Relaxed);
            }
            Err(error @ Error::Stopped { .. }) => return Err(error),
            // A damaged page, or no room: what moved has moved, and it is tried again when as much was freed.
            Err(_) => {}
        }
        // Moving frees, too.
        looked = store.freed_bytes.load(Ordering::Relaxed);
    }
}

fn refused(what: &str, error: &io::Error) -> Error {
    Error::Argument { what: format!("the server cannot {what}: {error}") }
}
