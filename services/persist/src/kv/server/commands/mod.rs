// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the server's commands.
//!
//! - **Flow** arguments ─▶ [`run`] ─▶ the table's entry (`table`) ─▶ calls of the store ─▶ reply appended
//! - **Rule** a command that fails has changed nothing; its reply says why. One that nobody knows is an error and not a
//!   disconnect
//! - **Source** names, arguments, replies and errors as in Redis 7.2

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::ServerOptions;
use super::protocol::Reply;
use super::saves::Saves;
use super::session::{Multi, Session, Sessions};
use crate::error::Error;
use crate::kv::{Kv, turn::At};

mod command;
mod decimal;
mod keys;
mod server;
mod strings;
mod subsequence;
mod table;
mod transaction;
mod walk;

use command::Command;
use walk::Cursors;

/// Bytes of one reply, at most.
const REPLY_BYTES: usize = 64 << 20;

/// State that all connections share.
#[derive(Debug)]
pub struct Shared {
    /// The options of the server.
    pub options: ServerOptions,
    /// The open connections.
    pub sessions: Arc<Mutex<Sessions>>,
    cursors: Mutex<Cursors>,
    /// Keys for the hashes of watched values.
    hashes: [std::hash::RandomState; 2],
    started: Instant,
    /// Connections that are open, and those that were so far.
    pub clients: AtomicU64,
    pub connections: AtomicU64,
    /// Commands so far.
    pub commands: AtomicU64,
    /// Compactions so far, and the bytes that they gave back to the disk.
    pub compactions: AtomicU64,
    pub given_back: AtomicU64,
    /// Copies of the pool.
    pub saves: Saves,
    damaged: Mutex<BTreeSet<u64>>,
}

impl Shared {
    /// Of a server that starts now.
    pub fn new(options: &ServerOptions) -> Shared {
        Shared {
            options: options.clone(),
            sessions: Arc::default(),
            cursors: Mutex::default(),
            hashes: Default::default(),
            started: Instant::now(),
            clients: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            compactions: AtomicU64::new(0),
            given_back: AtomicU64::new(0),
            saves: Saves::new(),
            damaged: Mutex::default(),
        }
    }

    /// Where in the heap pages were found damaged.
    pub fn damaged(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.damaged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says if the connection stays open after a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Then {
    /// It serves further commands.
    Continue,
    /// It closes when its replies are out.
    Close,
}

/// Reason why a command was not done.
#[derive(Debug)]
enum Refused {
    Text(Cow<'static, str>),
    Store(Error),
}

impl Refused {
    const fn new(text: &'static str) -> Refused {
        Refused::Text(Cow::Borrowed(text))
    }

    fn arguments(name: &str) -> Refused {
        Refused::Text(format!("ERR wrong number of arguments for '{name}' command").into())
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::Store(error)
    }
}

const SYNTAX: Refused = Refused::new("ERR syntax error");
const NOT_A_NUMBER: Refused = Refused::new("ERR value is not an integer or out of range");
const TOO_LONG: Refused = Refused::new("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
const TOO_LARGE: Refused = Refused::new("ERR the reply is too large: ask for fewer keys");

type Outcome = Result<(), Refused>;

/// The command of a name.
type Find = fn(&[u8]) -> Option<&'static Command>;

/// A command that runs.
struct Call<'c, 'a, 't> {
    at: &'c mut At<'a, 't>,
    shared: &'c Shared,
    session: &'c mut Session,
    find: Find,
    command: &'static Command,
    /// The words after the name.
    arguments: &'c [&'c [u8]],
    out: &'c mut Reply,
}

/// Text of a client, as part of an error: up to a zero, as in Redis.
fn shown(text: &[u8], most: usize) -> String {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(&text[..text.len().min(most)]).into_owned()
}

fn unknown(name: &[u8], arguments: &[&[u8]]) -> Refused {
    let mut text = format!("ERR unknown command '{}', with args beginning with: ", shown(name, 128));
    for argument in arguments {
        if text.len() > 256 {
            break;
        }
        text.push_str(&format!("'{}' ", shown(argument, 128)));
    }
    Refused::Text(text.into())
}

/// Runs one command, or keeps it for EXEC, and appends its reply. An error is the store's own: it cannot go on.
pub fn run(
    kv: &Kv<'_>,
    shared: &Shared,
    session: &mut Session,
    arguments: &[&[u8]],
    out: &mut Reply,
) -> Result<Then, Error> {
    let Some((name, rest)) = arguments.split_first() else { return Ok(Then::Continue) };
    shared.commands.fetch_add(1, Ordering::Relaxed);
    let (start, mut was_run) = (out.written(), false);
    // A web page may have a browser send commands in what it takes for HTTP: nothing of that is done.
    if [&b"post"[..], b"host:"].iter().any(|one| one.eq_ignore_ascii_case(name)) {
        out.error("ERR this is no server of HTTP: the connection closes");
        return Ok(Then::Close);
    }
    let done = match table::find(name) {
        None => Err(unknown(name, rest)),
        Some(command) if let Some(refused) = command.refuses(arguments) => {
            Err(if command.name == "exec" { transaction::aborted(session, refused) } else { refused })
        }
        Some(command) => match &mut session.multi {
            Some(multi) if !command.is_for_now() => enqueue(multi, shared, arguments, out),
            _ => {
                let at = &mut At::Alone(kv);
                was_run = true;
                (command.run)(&mut Call {
                    at,
                    shared,
                    session,
                    find: table::find,
                    command,
                    arguments: rest,
                    out,
                })
                .map(|()| if command.name == "quit" { Then::Close } else { Then::Continue })
            }
        },
    };
    let refused = match done {
        Ok(then) => return Ok(then),
        Err(refused) => refused,
    };
    out.truncate(start);
    if let Some(multi) = session.multi.as_mut().filter(|_| !was_run) {
        multi.is_spoilt = true;
    }
    say(refused, out)?;
    Ok(Then::Continue)
}

/// Replies with the reason.
fn say(refused: Refused, out: &mut Reply) -> Result<(), Error> {
    match refused {
        Refused::Text(text) => out.error(&text),
        Refused::Store(error @ Error::Stopped { .. }) => return Err(error),
        Refused::Store(error @ Error::Full { .. }) => out.error(&format!("OOM {error}")),
        Refused::Store(error) => out.error(&format!("ERR {error}")),
    }
    Ok(())
}

/// Keeps a command for EXEC.
fn enqueue(
    multi: &mut Multi,
    shared: &Shared,
    arguments: &[&[u8]],
    out: &mut Reply,
) -> Result<Then, Refused> {
    let bytes: usize = arguments.iter().map(|argument| argument.len() + size_of::<Vec<u8>>()).sum();
    if multi.bytes + bytes > shared.options.limits.request_bytes {
        return Err(Refused::new("ERR the commands since MULTI are too large together"));
    }
    if !multi.is_spoilt {
        multi.bytes += bytes;
        multi.commands.push(arguments.iter().map(|argument| argument.to_vec()).collect());
    }
    out.simple("QUEUED");
    Ok(Then::Continue)
}
