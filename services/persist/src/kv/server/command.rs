// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the server's commands.
//!
//! - **Flow** arguments ─▶ [`run`] ─▶ calls of the store ─▶ reply appended
//! - **Rule** a command that fails has changed nothing; its reply says why. One that nobody knows is an error and not a
//!   disconnect
//! - **Owner** [`Cursors`] remembers where walks are: a client's cursor is a number, a walk's place is a key

use std::collections::{BTreeSet, VecDeque};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::pattern::{literal_prefix, matches};
use super::protocol::{number, reply};
use crate::error::Error;
use crate::kv::{Change, Kv, after_prefix, now_ms};

/// Walks that are remembered, and bytes of their keys.
const CURSORS: usize = 4096;
const CURSOR_BYTES: usize = 16 << 20;
/// Keys that one SCAN looks at, at most.
const COUNT_MAX: i64 = 10_000;
/// Bytes of one reply, at most.
const REPLY_BYTES: usize = 64 << 20;

/// State that all connections share.
#[derive(Debug, Default)]
pub struct Shared {
    cursors: Mutex<Cursors>,
    /// Connections that are open.
    pub clients: AtomicU64,
    /// Commands so far.
    pub commands: AtomicU64,
    /// Compactions so far, and the bytes that they gave back to the disk.
    pub compactions: AtomicU64,
    pub given_back: AtomicU64,
    damaged: Mutex<BTreeSet<u64>>,
}

impl Shared {
    /// Where in the heap pages were found damaged.
    pub fn damaged(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.damaged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Places of walks, the oldest first.
#[derive(Debug, Default)]
struct Cursors {
    next: u64,
    bytes: usize,
    places: VecDeque<(u64, Vec<u8>)>,
}

impl Cursors {
    fn keep(&mut self, key: Vec<u8>) -> u64 {
        while self.places.len() >= CURSORS || self.bytes > CURSOR_BYTES {
            let Some((_, old)) = self.places.pop_front() else { break };
            self.bytes -= old.len();
        }
        self.next += 1;
        self.bytes += key.len();
        self.places.push_back((self.next, key));
        self.next
    }

    fn find(&self, cursor: u64) -> Option<&[u8]> {
        let at = self.places.binary_search_by_key(&cursor, |(number, _)| *number).ok()?;
        Some(&self.places[at].1)
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
enum Refused {
    Text(&'static str),
    Arguments,
    Store(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::Store(error)
    }
}

const SYNTAX: Refused = Refused::Text("ERR syntax error");
const NOT_A_NUMBER: Refused = Refused::Text("ERR value is not an integer or out of range");
const BAD_EXPIRY: Refused = Refused::Text("ERR invalid expire time");

/// Runs one command and appends its reply. An error is the store's own: it cannot go on.
pub fn run(kv: &Kv<'_>, shared: &Shared, arguments: &[&[u8]], out: &mut Vec<u8>) -> Result<Then, Error> {
    let Some((name, rest)) = arguments.split_first() else { return Ok(Then::Continue) };
    shared.commands.fetch_add(1, Ordering::Relaxed);
    let name = name.to_ascii_uppercase();
    let start = out.len();
    let refused = match command(kv, shared, &name, rest, out) {
        Ok(then) => return Ok(then),
        Err(refused) => refused,
    };
    out.truncate(start);
    match refused {
        Refused::Text(text) => reply::error(out, text),
        Refused::Arguments => {
            let name = String::from_utf8_lossy(&name[..name.len().min(64)]).to_lowercase();
            reply::error(out, &format!("ERR wrong number of arguments for '{name}' command"));
        }
        Refused::Store(error @ Error::Stopped { .. }) => return Err(error),
        Refused::Store(error @ Error::Full { .. }) => reply::error(out, &format!("OOM {error}")),
        Refused::Store(error) => reply::error(out, &format!("ERR {error}")),
    }
    Ok(Then::Continue)
}

fn command(
    kv: &Kv<'_>,
    shared: &Shared,
    name: &[u8],
    rest: &[&[u8]],
    out: &mut Vec<u8>,
) -> Result<Then, Refused> {
    match (name, rest) {
        (b"GET", [key]) => {
            if kv.look(key, |value, _| reply::bulk(out, value))?.is_none() {
                reply::nothing(out);
            }
        }
        (b"SET", [key, value, options @ ..]) => set(kv, key, value, options, out)?,
        (b"SETNX", [key, value]) => {
            let new = kv.change(key, |there| {
                Ok(if there.is_some() { (Change::Keep, 0) } else { (Change::Set(value.to_vec(), 0), 1) })
            })?;
            reply::integer(out, new);
        }
        (b"DEL" | b"UNLINK", keys @ [_, ..]) => reply::integer(out, kv.remove(keys)? as i64),
        (b"EXISTS", keys @ [_, ..]) => {
            let mut there = 0;
            for key in keys {
                there += i64::from(kv.look(key, |_, _| ())?.is_some());
            }
            reply::integer(out, there);
        }
        (b"TYPE", [key]) => {
            let there = kv.look(key, |_, _| ())?.is_some();
            reply::simple(out, if there { "string" } else { "none" });
        }
        (b"STRLEN", [key]) => reply::integer(out, kv.look(key, |value, _| value.len())?.unwrap_or(0) as i64),
        (b"MGET", keys @ [_, ..]) => {
            let start = out.len();
            reply::array(out, keys.len());
            for key in keys {
                if kv.look(key, |value, _| reply::bulk(out, value))?.is_none() {
                    reply::nothing(out);
                }
                if out.len() - start > REPLY_BYTES {
                    return Err(Refused::Text("ERR the reply is too large: ask for fewer keys"));
                }
            }
        }
        (b"MSET", entries @ [_, _, ..]) => {
            let (pairs, odd) = entries.as_chunks::<2>();
            if !odd.is_empty() {
                return Err(Refused::Arguments);
            }
            kv.set_many(&pairs.iter().map(|[key, value]| (*key, *value)).collect::<Vec<_>>())?;
            reply::simple(out, "OK");
        }
        (b"INCR", [key]) => add(kv, key, 1, out)?,
        (b"DECR", [key]) => add(kv, key, -1, out)?,
        (b"INCRBY", [key, more]) => add(kv, key, number(more).ok_or(NOT_A_NUMBER)?, out)?,
        (b"EXPIRE" | b"PEXPIRE" | b"EXPIREAT" | b"PEXPIREAT", [key, time]) => {
            let at = moment(name.starts_with(b"P"), name.ends_with(b"AT"), time, false)?;
            let there = kv.change(key, |there| {
                let change = if at <= now_ms() { Change::Remove } else { Change::Expire(at) };
                Ok((change, there.is_some()))
            })?;
            reply::integer(out, i64::from(there));
        }
        (b"PERSIST", [key]) => {
            let had = kv.change(key, |there| {
                Ok((Change::Expire(0), there.is_some_and(|(_, expires)| expires != 0)))
            })?;
            reply::integer(out, i64::from(had));
        }
        (b"TTL" | b"PTTL", [key]) => {
            let left = match kv.look(key, |_, expires| expires)? {
                None => -2,
                Some(0) => -1,
                Some(expires) => expires.saturating_sub(now_ms()).min(i64::MAX as u64) as i64,
            };
            reply::integer(
                out,
                if name == b"TTL" && left >= 0 { left.saturating_add(500) / 1000 } else { left },
            );
        }
        (b"SCAN", [cursor, options @ ..]) => scan(kv, shared, cursor, options, out)?,
        (b"DBSIZE", []) => reply::integer(out, kv.len()? as i64),
        (b"FLUSHALL" | b"FLUSHDB", [] | [_]) => {
            kv.clear()?;
            reply::simple(out, "OK");
        }
        (b"PING", []) => reply::simple(out, "PONG"),
        (b"PING" | b"ECHO", [text]) => reply::bulk(out, text),
        (b"SELECT", [database]) => match number(database) {
            Some(0) => reply::simple(out, "OK"),
            _ => return Err(Refused::Text("ERR there is one database, 0")),
        },
        (b"INFO", _) => reply::bulk(out, information(kv, shared)?.as_bytes()),
        (b"CONFIG", [verb, names @ ..]) if verb.eq_ignore_ascii_case(b"get") => {
            reply::array(out, names.len() * 2);
            for name in names {
                reply::bulk(out, name);
                reply::bulk(out, b"");
            }
        }
        (b"COMMAND", [verb, ..]) if verb.eq_ignore_ascii_case(b"count") => reply::integer(out, 0),
        (b"COMMAND", _) => reply::array(out, 0),
        (b"CLIENT", [verb, ..])
            if verb.eq_ignore_ascii_case(b"setname") || verb.eq_ignore_ascii_case(b"setinfo") =>
        {
            reply::simple(out, "OK");
        }
        (b"QUIT", _) => {
            reply::simple(out, "OK");
            return Ok(Then::Close);
        }
        (
            b"GET" | b"SET" | b"SETNX" | b"DEL" | b"UNLINK" | b"EXISTS" | b"TYPE" | b"STRLEN" | b"MGET"
            | b"MSET" | b"INCR" | b"DECR" | b"INCRBY" | b"EXPIRE" | b"PEXPIRE" | b"EXPIREAT" | b"PEXPIREAT"
            | b"PERSIST" | b"TTL" | b"PTTL" | b"SCAN" | b"DBSIZE" | b"FLUSHALL" | b"FLUSHDB" | b"PING"
            | b"ECHO" | b"SELECT" | b"CONFIG" | b"CLIENT",
            _,
        ) => return Err(Refused::Arguments),
        _ => {
            let name = String::from_utf8_lossy(&name[..name.len().min(64)]).into_owned();
            reply::error(out, &format!("ERR unknown command '{}'", name.escape_default()));
        }
    }
    Ok(Then::Continue)
}

/// The moment that an argument means, in milliseconds since 1970.
fn moment(milliseconds: bool, absolute: bool, text: &[u8], positive: bool) -> Result<u64, Refused> {
    let time = number(text).ok_or(NOT_A_NUMBER)?;
    if positive && time <= 0 {
        return Err(BAD_EXPIRY);
    }
    let time = if milliseconds { Some(time) } else { time.checked_mul(1000) };
    let base = if absolute { 0 } else { now_ms() as i64 };
    let at = time.and_then(|time| time.checked_add(base)).ok_or(BAD_EXPIRY)?;
    Ok(at.max(1) as u64) // 0 would mean never
}

fn set(kv: &Kv<'_>, key: &[u8], value: &[u8], options: &[&[u8]], out: &mut Vec<u8>) -> Result<(), Refused> {
    let (mut expires, mut only_new, mut only_old, mut keep) = (None, false, false, false);
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match &option.to_ascii_uppercase()[..] {
            b"NX" => only_new = true,
            b"XX" => only_old = true,
            b"KEEPTTL" => keep = true,
            name @ (b"EX" | b"PX" | b"EXAT" | b"PXAT") if expires.is_none() => {
                let time = options.next().ok_or(SYNTAX)?;
                expires = Some(moment(name[0] == b'P', name.ends_with(b"AT"), time, true)?);
            }
            _ => return Err(SYNTAX),
        }
    }
    if only_new && only_old || keep && expires.is_some() {
        return Err(SYNTAX);
    }
    if !(only_new || only_old || keep) {
        kv.set(key, value, expires.unwrap_or(0))?;
        reply::simple(out, "OK");
        return Ok(());
    }
    let done = kv.change(key, |there| {
        if there.is_some() && only_new || there.is_none() && only_old {
            return Ok((Change::Keep, false));
        }
        let kept = there.map_or(0, |(_, expires)| expires);
        Ok((Change::Set(value.to_vec(), if keep { kept } else { expires.unwrap_or(0) }), true))
    })?;
    if done {
        reply::simple(out, "OK");
    } else {
        reply::nothing(out);
    }
    Ok(())
}

fn add(kv: &Kv<'_>, key: &[u8], more: i64, out: &mut Vec<u8>) -> Result<(), Refused> {
    let sum = kv.change(key, |there| {
        let (now, expires) = there.map_or((Some(0), 0), |(value, expires)| (number(value), expires));
        Ok(match now.map(|now| now.checked_add(more)) {
            Some(Some(sum)) => (Change::Set(sum.to_string().into_bytes(), expires), Ok(sum)),
            Some(None) => (Change::Keep, Err(Refused::Text("ERR increment or decrement would overflow"))),
            None => (Change::Keep, Err(NOT_A_NUMBER)),
        })
    })??;
    reply::integer(out, sum);
    Ok(())
}

fn scan(
    kv: &Kv<'_>,
    shared: &Shared,
    cursor: &[u8],
    options: &[&[u8]],
    out: &mut Vec<u8>,
) -> Result<(), Refused> {
    let invalid = Refused::Text("ERR invalid cursor");
    let cursor: u64 = std::str::from_utf8(cursor).ok().and_then(|text| text.parse().ok()).ok_or(invalid)?;
    let (mut pattern, mut count, mut strings) = (&b"*"[..], 10, true);
    let (pairs, odd) = options.as_chunks::<2>();
    if !odd.is_empty() {
        return Err(SYNTAX);
    }
    for [option, value] in pairs {
        match &option.to_ascii_uppercase()[..] {
            b"MATCH" => pattern = value,
            b"COUNT" => count = number(value).filter(|count| *count > 0).ok_or(SYNTAX)?.min(COUNT_MAX),
            b"TYPE" => strings = value.eq_ignore_ascii_case(b"string"),
            _ => return Err(SYNTAX),
        }
    }
    let prefix = literal_prefix(pattern);
    let place =
        match cursor {
            0 => None,
            _ => {
                let cursors = shared.cursors.lock().unwrap_or_else(PoisonError::into_inner);
                let found = cursors.find(cursor).map(<[u8]>::to_vec);
                Some(found.ok_or(Refused::Text(
                    "ERR this cursor is too old or was never given: start again at 0",
                ))?)
            }
        };
    let start = place.as_deref().map_or(Bound::Included(prefix), Bound::Excluded);
    let end = after_prefix(prefix);
    let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let (mut keys, mut seen, mut last, mut more) = (Vec::new(), 0, Vec::new(), false);
    let empty = matches!((start, end), (Bound::Excluded(start), Bound::Excluded(end)) if start >= end);
    if !empty {
        kv.scan((start, end), |key, _| {
            if seen == count {
                more = true;
                return ControlFlow::Break(());
            }
            seen += 1;
            last.clear();
            last.extend_from_slice(key);
            if strings && matches(pattern, key) {
                keys.push(key.to_vec());
            }
            ControlFlow::Continue(())
        })?;
    }
    let next =
        if more { shared.cursors.lock().unwrap_or_else(PoisonError::into_inner).keep(last) } else { 0 };
    reply::array(out, 2);
    reply::bulk(out, next.to_string().as_bytes());
    reply::array(out, keys.len());
    keys.iter().for_each(|key| reply::bulk(out, key));
    Ok(())
}

fn information(kv: &Kv<'_>, shared: &Shared) -> Result<String, Error> {
    let (heap, free) = kv.pool().usage();
    let counters = kv.pool().counters();
    Ok(format!(
        "# Server\r\nmemlift_version:{}\r\n\r\n# Clients\r\nconnected_clients:{}\r\n\r\n# Memory\r\nheap_bytes:{heap}\r\n\
         heap_free_bytes:{free}\r\n\r\n# Persistence\r\nmechanism:{}\r\nguarantee:{}\r\nhardens:{}\r\ndamaged_pages_found:{}\r\ncompactions:{}\r\ncompacted_bytes:{}\r\n\r\n# Stats\r\n\
         total_commands_processed:{}\r\nexpired_keys:{}\r\n\r\n# Keyspace\r\ndb0:keys={}\r\n",
        env!("CARGO_PKG_VERSION"),
        shared.clients.load(Ordering::Relaxed),
        kv.pool().mechanism().name(),
        kv.pool().guarantee(),
        counters.hardens,
        shared.damaged().len(),
        shared.compactions.load(Ordering::Relaxed),
        shared.given_back.load(Ordering::Relaxed),
        shared.commands.load(Ordering::Relaxed),
        kv.expired(),
        kv.len()?,
    ))
}
