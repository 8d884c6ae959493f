// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands of connections and of the server.

use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Call, NOT_A_NUMBER, Outcome, Refused, SYNTAX};
use crate::error::Error;
use crate::kv::server::pattern::matches;
use crate::kv::server::protocol::number;
use crate::kv::server::session::is_name;
use crate::kv::turn::At;
use crate::options::Durability;

/// The version of Redis whose commands and replies these are.
const LIKE: &str = "7.2.0";

pub const NO_DATABASE: Refused = Refused::new("ERR DB index is out of range");
const NAME: Refused = Refused::new("ERR Client names cannot contain spaces, newlines or special characters.");

pub fn ping(call: &mut Call<'_, '_, '_>) -> Outcome {
    match call.arguments {
        [] => call.out.simple("PONG"),
        [text] => call.out.bulk(text),
        _ => return Err(Refused::arguments(call.command.name)),
    }
    Ok(())
}

pub fn echo(call: &mut Call<'_, '_, '_>) -> Outcome {
    call.out.bulk(call.arguments[0]);
    Ok(())
}

pub fn quit(call: &mut Call<'_, '_, '_>) -> Outcome {
    call.out.simple("OK");
    Ok(())
}

pub fn reset(call: &mut Call<'_, '_, '_>) -> Outcome {
    call.session.multi = None;
    call.session.watched.clear();
    call.out.resp3 = false;
    call.session.described(|described| {
        described.name.clear();
        described.resp3 = false;
    });
    call.out.simple("RESET");
    Ok(())
}

pub fn select(call: &mut Call<'_, '_, '_>) -> Outcome {
    match number(call.arguments[0]) {
        Some(0) => call.out.simple("OK"),
        Some(database) if i32::try_from(database).is_err() => {
            let text = "ERR value is out of range, value must between -2147483648 and 2147483647";
            return Err(Refused::new(text));
        }
        Some(_) => return Err(NO_DATABASE),
        None => return Err(NOT_A_NUMBER),
    }
    Ok(())
}

const NO_PASSWORD: Refused = Refused::new(
    "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
);
const WRONG_PASSWORD: Refused = Refused::new("WRONGPASS invalid username-password pair or user is disabled.");

/// Anybody is the default user, as in a Redis without passwords.
pub fn auth(call: &mut Call<'_, '_, '_>) -> Outcome {
    match call.arguments {
        [_] => return Err(NO_PASSWORD),
        [b"default", _] => call.out.simple("OK"),
        [_, _] => return Err(WRONG_PASSWORD),
        _ => return Err(SYNTAX),
    }
    Ok(())
}

pub fn hello(call: &mut Call<'_, '_, '_>) -> Outcome {
    let mut resp3 = call.out.resp3;
    let mut options = call.arguments.iter();
    if let Some(version) = options.next() {
        resp3 = match number(version) {
            Some(2) => false,
            Some(3) => true,
            Some(_) => return Err(Refused::new("NOPROTO unsupported protocol version")),
            None => return Err(Refused::new("ERR Protocol version is not an integer or out of range")),
        };
    }
    let mut name = None;
    while let Some(option) = options.next() {
        match &option.to_ascii_uppercase()[..] {
            b"AUTH" => match (options.next(), options.next()) {
                (Some(user), Some(_)) if **user == *b"default" => {}
                (Some(_), Some(_)) => return Err(WRONG_PASSWORD),
                _ => return Err(SYNTAX),
            },
            b"SETNAME" => name = Some(options.next().filter(|name| is_name(name)).ok_or(NAME)?),
            _ => return Err(SYNTAX),
        }
    }
    call.out.resp3 = resp3;
    call.session.described(|described| {
        described.resp3 = resp3;
        if let Some(name) = name {
            described.name = name.to_vec();
        }
    });
    let (out, id) = (&mut *call.out, call.session.id);
    out.map(7);
    for (name, value) in
        [("server", "memlift"), ("version", LIKE), ("mode", "standalone"), ("role", "master")]
    {
        out.bulk(name.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"proto");
    out.integer(if resp3 { 3 } else { 2 });
    out.bulk(b"id");
    out.integer(id as i64);
    out.bulk(b"modules");
    out.array(0);
    Ok(())
}

pub fn client(call: &mut Call<'_, '_, '_>) -> Outcome {
    let (verb, rest) = (call.arguments[0], &call.arguments[1..]);
    match (&verb.to_ascii_uppercase()[..], rest) {
        (b"ID", []) => call.out.integer(call.session.id as i64),
        (b"SETNAME", [name]) => {
            if !is_name(name) {
                return Err(NAME);
            }
            call.session.described(|described| described.name = name.to_vec());
            call.out.simple("OK");
        }
        (b"GETNAME", []) => match call.session.described(|described| described.name.clone()) {
            name if name.is_empty() => call.out.nothing(),
            name => call.out.bulk(&name),
        },
        (b"SETINFO", [what, value]) => {
            let what = what.to_ascii_lowercase();
            if !is_name(value) {
                let text = format!(
                    "ERR {} cannot contain spaces, newlines or special characters.",
                    super::shown(&what, 64)
                );
                return Err(Refused::Text(text.into()));
            }
            call.session.described(|described| {
                match &what[..] {
                    b"lib-name" => described.library_name = value.to_vec(),
                    b"lib-ver" => described.library_version = value.to_vec(),
                    _ => {
                        return Err(Refused::Text(
                            format!("ERR Unrecognized option '{}'", super::shown(&what, 64)).into(),
                        ));
                    }
                }
                Ok(())
            })?;
            call.out.simple("OK");
        }
        (b"INFO", []) => {
            let id = call.session.id;
            let line = call.session.described(|described| described.line(id));
            call.out.text(&format!("{line}\n"));
        }
        (b"LIST", options) => {
            let ids: Option<Vec<u64>> = match options {
                [] => None,
                [kind, what] if kind.eq_ignore_ascii_case(b"type") => {
                    if what.eq_ignore_ascii_case(b"normal") { None } else { Some(Vec::new()) }
                }
                [which, ids @ ..] if which.eq_ignore_ascii_case(b"id") && !ids.is_empty() => {
                    let invalid = Refused::new("ERR Invalid client ID");
                    let ids = ids
                        .iter()
                        .map(|id| number(id).and_then(|id| u64::try_from(id).ok()))
                        .collect::<Option<_>>();
                    Some(ids.ok_or(invalid)?)
                }
                _ => return Err(SYNTAX),
            };
            let mut text = String::new();
            for (id, described) in call.session.all().open() {
                if ids.as_ref().is_none_or(|ids| ids.contains(&id)) {
                    let _ = writeln!(text, "{}", described.line(id));
                }
            }
            call.out.text(&text);
        }
        // Nobody is ever sent away for want of memory in the order of use.
        (b"NO-EVICT" | b"NO-TOUCH", [word]) => {
            if !word.eq_ignore_ascii_case(b"on") && !word.eq_ignore_ascii_case(b"off") {
                return Err(SYNTAX);
            }
            call.out.simple("OK");
        }
        _ => return Err(SYNTAX),
    }
    Ok(())
}

pub fn config(call: &mut Call<'_, '_, '_>) -> Outcome {
    let (verb, rest) = (call.arguments[0], &call.arguments[1..]);
    match (&verb.to_ascii_uppercase()[..], rest) {
        (b"GET", patterns @ [_, ..]) => {
            let options = &call.shared.options;
            let fsync = if options.durability == Durability::Buffered { "everysec" } else { "always" };
            let all = [
                ("appendfsync", fsync.to_owned()),
                ("appendonly", "yes".to_owned()),
                ("databases", "1".to_owned()),
                ("maxclients", options.clients.to_string()),
                ("maxmemory", "0".to_owned()),
                ("maxmemory-policy", "noeviction".to_owned()),
                ("proto-max-bulk-len", options.limits.bulk_bytes.to_string()),
                ("save", String::new()),
                ("timeout", "0".to_owned()),
            ];
            let patterns: Vec<Vec<u8>> = patterns.iter().map(|one| one.to_ascii_lowercase()).collect();
            let named = |name: &str| patterns.iter().any(|pattern| matches(pattern, name.as_bytes()));
            let named: Vec<_> = all.iter().filter(|(name, _)| named(name)).collect();
            call.out.map(named.len());
            for (name, value) in named {
                call.out.bulk(name.as_bytes());
                call.out.bulk(value.as_bytes());
            }
        }
        (b"RESETSTAT", []) => {
            call.shared.commands.store(0, Relaxed);
            call.shared.connections.store(0, Relaxed);
            call.out.simple("OK");
        }
        _ => return Err(SYNTAX),
    }
    Ok(())
}

pub fn dbsize(call: &mut Call<'_, '_, '_>) -> Outcome {
    let entries = call.at.len()?;
    call.out.integer(entries as i64);
    Ok(())
}

/// FLUSHALL and FLUSHDB.
pub fn flush(call: &mut Call<'_, '_, '_>) -> Outcome {
    match call.arguments {
        [] => {}
        [how] if how.eq_ignore_ascii_case(b"async") || how.eq_ignore_ascii_case(b"sync") => {}
        _ => return Err(SYNTAX),
    }
    call.at.clear()?;
    call.out.simple("OK");
    Ok(())
}

pub fn time(call: &mut Call<'_, '_, '_>) -> Outcome {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    call.out.array(2);
    call.out.bulk(since.as_secs().to_string().as_bytes());
    call.out.bulk(since.subsec_micros().to_string().as_bytes());
    Ok(())
}

/// Asks for a copy of the pool.
pub fn bgsave(call: &mut Call<'_, '_, '_>) -> Outcome {
    let scheduled = match call.arguments {
        [] => false,
        [word] if word.eq_ignore_ascii_case(b"SCHEDULE") => true,
        _ => return Err(SYNTAX),
    };
    if call.shared.options.copies.is_none() {
        return Err(Refused::new(
            "ERR no folder for copies was named: start the server with --copies FOLDER",
        ));
    }
    if !call.shared.saves.ask() && !scheduled {
        return Err(Refused::new("ERR Background save already in progress"));
    }
    call.out.simple("Background saving started");
    Ok(())
}

pub fn lastsave(call: &mut Call<'_, '_, '_>) -> Outcome {
    call.out.integer(call.shared.saves.last_s() as i64);
    Ok(())
}

pub fn info(call: &mut Call<'_, '_, '_>) -> Outcome {
    let sections = sections(call)?;
    let wanted: Vec<String> =
        call.arguments.iter().map(|one| String::from_utf8_lossy(one).to_lowercase()).collect();
    let all =
        wanted.is_empty() || wanted.iter().any(|one| ["all", "default", "everything"].contains(&&one[..]));
    let mut text = String::new();
    for (name, lines) in sections {
        if !all && !wanted.contains(&name.to_lowercase()) {
            continue;
        }
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        let _ = write!(text, "# {name}\r\n");
        for (name, value) in lines {
            let _ = write!(text, "{name}:{value}\r\n");
        }
    }
    call.out.text(&text);
    Ok(())
}

type Section = (&'static str, Vec<(&'static str, String)>);

fn sections(call: &Call<'_, '_, '_>) -> Result<Vec<Section>, Error> {
    let (kv, shared) = (call.at.kv(), call.shared);
    let mut memory = vec![("maxmemory", "0".to_owned())];
    // Counts of the heap and of the log are behind locks that an EXEC holds already.
    if let At::Alone(kv) = &*call.at {
        let (heap, free) = kv.pool().usage();
        memory.push(("used_memory", heap.saturating_sub(free).to_string()));
        memory.push(("heap_bytes", heap.to_string()));
        memory.push(("heap_free_bytes", free.to_string()));
        memory.push(("hardens", kv.pool().counters().hardens.to_string()));
    }
    let uptime = shared.started.elapsed().as_secs();
    let entries = call.at.len()?;
    let text = |value: &dyn std::fmt::Display| value.to_string();
    let keyspace =
        if entries == 0 { vec![] } else { vec![("db0", format!("keys={entries},expires=0,avg_ttl=0"))] };
    let replica = kv.pool().store().replica_status();
    let replica = replica.iter().flat_map(|status| {
        let state = if status.ended {
            "ended"
        } else if status.trouble.is_some() {
            "failing"
        } else {
            "ok"
        };
        let lag = status.lag.map_or_else(|| "-1".to_owned(), |lag| format!("{:.3}", lag.as_secs_f64()));
        let line = |text: &str| text.replace(['\r', '\n'], " ");
        [
            ("replica", state.to_owned()),
            ("replica_sequence", status.sequence.to_string()),
            ("replica_lag_seconds", lag),
            ("replica_sent_bytes", status.bytes.to_string()),
            ("replica_trouble", line(status.trouble.as_deref().unwrap_or_default())),
        ]
    });
    let mut persistence = vec![
        ("loading", text(&0)),
        ("aof_enabled", text(&1)),
        ("mechanism", text(&kv.pool().mechanism().name())),
        ("guarantee", text(&kv.pool().guarantee())),
        ("damaged_pages_found", text(&shared.damaged().len())),
        ("rdb_bgsave_in_progress", text(&u8::from(shared.saves.is_under_way()))),
        ("rdb_last_save_time", text(&shared.saves.last_s())),
        ("rdb_last_bgsave_status", text(&if shared.saves.has_failed() { "err" } else { "ok" })),
        ("compactions", text(&shared.compactions.load(Relaxed))),
        ("compacted_bytes", text(&shared.given_back.load(Relaxed))),
    ];
    persistence.extend(replica);
    Ok(vec![
        (
            "Server",
            vec![
                ("redis_version", text(&LIKE)),
                ("memlift_version", text(&env!("CARGO_PKG_VERSION"))),
                ("redis_mode", text(&"standalone")),
                ("os", text(&"Linux")),
                ("arch_bits", text(&usize::BITS)),
                ("process_id", text(&std::process::id())),
                ("uptime_in_seconds", text(&uptime)),
                ("uptime_in_days", text(&(uptime / 86_400))),
            ],
        ),
        (
            "Clients",
            vec![
                ("connected_clients", text(&shared.clients.load(Relaxed))),
                ("maxclients", text(&shared.options.clients)),
                ("blocked_clients", text(&0)),
            ],
        ),
        ("Memory", memory),
        ("Persistence", persistence),
        (
            "Stats",
            vec![
                ("total_connections_received", text(&shared.connections.load(Relaxed))),
                ("total_commands_processed", text(&shared.commands.load(Relaxed))),
                ("expired_keys", text(&kv.expired())),
                ("evicted_keys", text(&0)),
            ],
        ),
        ("Replication", vec![("role", text(&"master")), ("connected_slaves", text(&0))]),
        ("Cluster", vec![("cluster_enabled", text(&0))]),
        ("Keyspace", keyspace),
    ])
}
