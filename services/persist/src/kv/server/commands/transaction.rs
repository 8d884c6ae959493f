// SPDX-License-Identifier: Apache-2.0 OR MIT
//! MULTI, EXEC, DISCARD, WATCH: commands that change the store together.
//!
//! - **Rule** all commands of an EXEC are one transaction of the pool: after a crash there are all of their changes or none. A
//!   command that is refused is an error in its place, and the others are done, as in Redis. Where the store cannot go on (it is
//!   full, a page is damaged), nothing is done, and EXEC says why
//! - **Rule** a watched entry has changed when its value or its expiry differs from what it was at WATCH

use std::hash::BuildHasher;

use super::command::Command;
use super::{Call, Find, Outcome, Refused, Shared, say};
use crate::error::Error;
use crate::kv::server::session::{Multi, Seen, Session};
use crate::kv::turn::{At, Turn};

/// Bytes of watched keys, at most.
const WATCHED_BYTES: usize = 16 << 20;

pub fn multi(call: &mut Call<'_, '_, '_>) -> Outcome {
    if call.session.multi.is_some() {
        return Err(Refused::new("ERR MULTI calls can not be nested"));
    }
    call.session.multi = Some(Multi::default());
    call.out.simple("OK");
    Ok(())
}

pub fn discard(call: &mut Call<'_, '_, '_>) -> Outcome {
    if call.session.multi.take().is_none() {
        return Err(Refused::new("ERR DISCARD without MULTI"));
    }
    call.session.watched.clear();
    call.out.simple("OK");
    Ok(())
}

/// The state of an entry now, for WATCH.
fn seen(shared: &Shared, value: &[u8], expires: u64) -> (u64, [u64; 2]) {
    (expires, [0, 1].map(|at| shared.hashes[at].hash_one(value)))
}

pub fn watch(call: &mut Call<'_, '_, '_>) -> Outcome {
    if call.session.multi.is_some() {
        return Err(Refused::new("ERR WATCH inside MULTI is not allowed"));
    }
    let watched = call.session.watched.iter().map(|(key, _)| &key[..]);
    let bytes: usize = watched.chain(call.arguments.iter().copied()).map(|key| key.len() + 64).sum();
    if bytes > WATCHED_BYTES {
        return Err(Refused::new("ERR too many keys are watched"));
    }
    for key in call.arguments {
        let there: Seen = call.at.get_with(key, |value, expires| seen(call.shared, value, expires))?;
        // Watched before: then it counts from then on.
        if !call.session.watched.iter().any(|(one, _)| one == key) {
            call.session.watched.push((key.to_vec(), there));
        }
    }
    call.out.simple("OK");
    Ok(())
}

pub fn unwatch(call: &mut Call<'_, '_, '_>) -> Outcome {
    call.session.watched.clear();
    call.out.simple("OK");
    Ok(())
}

/// An EXEC that cannot be understood ends the transaction, too.
pub fn aborted(session: &mut Session, refused: Refused) -> Refused {
    session.multi = None;
    session.watched.clear();
    match refused {
        Refused::Text(why) => {
            let why = why.strip_prefix("ERR ").unwrap_or(&why);
            Refused::Text(format!("EXECABORT Transaction discarded because of: {why}").into())
        }
        refused => refused,
    }
}

pub fn exec(call: &mut Call<'_, '_, '_>) -> Outcome {
    let Some(multi) = call.session.multi.take() else {
        return Err(Refused::new("ERR EXEC without MULTI"));
    };
    let watched = std::mem::take(&mut call.session.watched);
    if multi.is_spoilt {
        return Err(Refused::new("EXECABORT Transaction discarded because of previous errors."));
    }
    let commands: Vec<(&'static Command, Vec<&[u8]>)> = multi
        .commands
        .iter()
        .filter_map(|one| Some(((call.find)(&one[0])?, one.iter().map(Vec::as_slice).collect())))
        .collect();
    let mut keys: Vec<&[u8]> = watched.iter().map(|(key, _)| &key[..]).collect();
    for (command, arguments) in &commands {
        keys.extend(command.keys_of(arguments));
    }
    let needs_all = commands.iter().any(|(command, _)| command.needs_all());
    let (kv, start) = (call.at.kv(), call.out.written());
    let (session, shared, out, find) = (&mut *call.session, call.shared, &mut *call.out, call.find);
    let work = |turn: &mut Turn<'_, '_>| {
        out.truncate(start);
        for (key, before) in &watched {
            if turn.get_with(key, |value, expires| seen(shared, value, expires))? != *before {
                out.no_array();
                return Ok(());
            }
        }
        out.array(commands.len());
        for (command, arguments) in &commands {
            one(turn, command, (shared, find), session, &arguments[1..], out)?;
        }
        Ok(())
    };
    if needs_all { kv.write_all(work) } else { kv.write(&keys, work) }?;
    Ok(())
}

/// Runs a command of an EXEC. An error ends all of it.
fn one(
    turn: &mut Turn<'_, '_>,
    command: &'static Command,
    (shared, find): (&Shared, Find),
    session: &mut Session,
    arguments: &[&[u8]],
    out: &mut super::Reply,
) -> Result<(), Error> {
    let before = out.written();
    let at = &mut At::Within(turn.again());
    let done = (command.run)(&mut Call { at, shared, session, find, command, arguments, out: &mut *out });
    match done {
        Ok(()) => Ok(()),
        Err(Refused::Store(error)) if !matches!(error, Error::Argument { .. }) => Err(error),
        Err(refused) => {
            out.truncate(before);
            say(refused, out)
        }
    }
}
