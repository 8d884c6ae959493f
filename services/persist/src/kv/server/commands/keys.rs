// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands of entries, whatever their values are.

use super::{Call, NOT_A_NUMBER, Outcome, Refused, SYNTAX};
use crate::kv::server::protocol::number;
use crate::kv::{Change, now_ms};
use crate::layout::crc32c;

/// A value of DUMP begins with this and ends with its CRC-32C.
const DUMPED: &[u8] = b"memlift\x01";

pub fn invalid_expiry(command: &str) -> Refused {
    Refused::Text(format!("ERR invalid expire time in '{command}' command").into())
}

/// The moment that a time means, in milliseconds since 1970.
pub fn moment(command: &str, milliseconds: bool, absolute: bool, time: i64) -> Result<u64, Refused> {
    let time = if milliseconds { Some(time) } else { time.checked_mul(1000) };
    let base = if absolute { 0 } else { now_ms() as i64 };
    let at = time.and_then(|time| time.checked_add(base)).ok_or_else(|| invalid_expiry(command))?;
    Ok(at.max(1) as u64) // 0 would mean never
}

pub fn del(call: &mut Call<'_, '_, '_>) -> Outcome {
    let keys = call.arguments;
    let gone = call
        .at
        .write(keys, |turn| keys.iter().try_fold(0, |gone, key| Ok(gone + i64::from(turn.remove(key)?))))?;
    call.out.integer(gone);
    Ok(())
}

pub fn exists(call: &mut Call<'_, '_, '_>) -> Outcome {
    let mut there = 0;
    call.at.get_many(call.arguments, |entry| {
        there += i64::from(entry.is_some());
        Ok::<_, Refused>(())
    })?;
    call.out.integer(there);
    Ok(())
}

pub fn kind(call: &mut Call<'_, '_, '_>) -> Outcome {
    let there = call.at.get_with(call.arguments[0], |_, _| ())?.is_some();
    call.out.simple(if there { "string" } else { "none" });
    Ok(())
}

/// EXPIRE, PEXPIRE, EXPIREAT, PEXPIREAT.
pub fn expire(call: &mut Call<'_, '_, '_>) -> Outcome {
    let name = call.command.name;
    let [mut never, mut has, mut later, mut sooner] = [false; 4];
    for option in &call.arguments[2..] {
        match &option.to_ascii_uppercase()[..] {
            b"NX" => never = true,
            b"XX" => has = true,
            b"GT" => later = true,
            b"LT" => sooner = true,
            _ => {
                let text = format!("ERR Unsupported option {}", super::shown(option, 64));
                return Err(Refused::Text(text.into()));
            }
        }
    }
    if never && (has || later || sooner) {
        let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
        return Err(Refused::new(text));
    }
    if later && sooner {
        return Err(Refused::new("ERR GT and LT options at the same time are not compatible"));
    }
    let time = number(call.arguments[1]).ok_or(NOT_A_NUMBER)?;
    let at = moment(name, name.starts_with('p'), name.ends_with("at"), time)?;
    let is_set = call.at.change(call.arguments[0], |there| {
        let Some((_, expires)) = there else { return Ok((Change::Keep, false)) };
        // An entry without an end ends after all others.
        let now = if expires == 0 { u64::MAX } else { expires };
        if never && expires != 0 || has && expires == 0 || later && at <= now || sooner && at >= now {
            return Ok((Change::Keep, false));
        }
        Ok((if at <= now_ms() { Change::Remove } else { Change::Expire(at) }, true))
    })?;
    call.out.integer(i64::from(is_set));
    Ok(())
}

pub fn persist(call: &mut Call<'_, '_, '_>) -> Outcome {
    let had = call.at.change(call.arguments[0], |there| {
        Ok((Change::Expire(0), there.is_some_and(|(_, expires)| expires != 0)))
    })?;
    call.out.integer(i64::from(had));
    Ok(())
}

/// TTL and PTTL.
pub fn ttl(call: &mut Call<'_, '_, '_>) -> Outcome {
    ends(call, |expires| expires.saturating_sub(now_ms()))
}

/// EXPIRETIME and PEXPIRETIME.
pub fn expiretime(call: &mut Call<'_, '_, '_>) -> Outcome {
    ends(call, |expires| expires)
}

fn ends(call: &mut Call<'_, '_, '_>, milliseconds: impl FnOnce(u64) -> u64) -> Outcome {
    let value = match call.at.get_with(call.arguments[0], |_, expires| expires)? {
        None => -2,
        Some(0) => -1,
        Some(expires) => {
            let value = milliseconds(expires).min(i64::MAX as u64) as i64;
            let is_left = call.command.name.ends_with("ttl");
            match call.command.name.starts_with('p') {
                true => value,
                false if is_left => value.saturating_add(500) / 1000,
                false => value / 1000,
            }
        }
    };
    call.out.integer(value);
    Ok(())
}

/// RENAME and RENAMENX.
pub fn rename(call: &mut Call<'_, '_, '_>) -> Outcome {
    let (from, to, only_new) = (call.arguments[0], call.arguments[1], call.command.name == "renamenx");
    let is_done = call.at.write(&[from, to], |turn| {
        let Some((value, expires)) = turn.get_with(from, |value, expires| (value.to_vec(), expires))? else {
            return Ok(None);
        };
        if only_new && turn.get_with(to, |_, _| ())?.is_some() {
            return Ok(Some(false));
        }
        if from != to {
            turn.remove(from)?;
            turn.set(to, &value, expires)?;
        }
        Ok(Some(true))
    })?;
    match (is_done.ok_or(Refused::new("ERR no such key"))?, only_new) {
        (is_done, true) => call.out.integer(i64::from(is_done)),
        (_, false) => call.out.simple("OK"),
    }
    Ok(())
}

pub fn copy(call: &mut Call<'_, '_, '_>) -> Outcome {
    let (from, to, mut replaces) = (call.arguments[0], call.arguments[1], false);
    let mut options = call.arguments[2..].iter();
    while let Some(option) = options.next() {
        match &option.to_ascii_uppercase()[..] {
            b"REPLACE" => replaces = true,
            b"DB" => {
                let database = number(options.next().ok_or(SYNTAX)?).ok_or(NOT_A_NUMBER)?;
                if database != 0 {
                    return Err(super::server::NO_DATABASE);
                }
            }
            _ => return Err(SYNTAX),
        }
    }
    if from == to {
        return Err(Refused::new("ERR source and destination objects are the same"));
    }
    let is_done = call.at.write(&[from, to], |turn| {
        let there = turn.get_with(from, |value, expires| (value.to_vec(), expires))?;
        let Some((value, expires)) = there else { return Ok(false) };
        if !replaces && turn.get_with(to, |_, _| ())?.is_some() {
            return Ok(false);
        }
        turn.set(to, &value, expires)?;
        Ok(true)
    })?;
    call.out.integer(i64::from(is_done));
    Ok(())
}

pub fn dump(call: &mut Call<'_, '_, '_>) -> Outcome {
    let there = call.at.get_with(call.arguments[0], |value, _| {
        let mut bytes = [DUMPED, value].concat();
        bytes.extend_from_slice(&crc32c(&[&bytes]).to_le_bytes());
        bytes
    })?;
    match there {
        Some(bytes) => call.out.bulk(&bytes),
        None => call.out.nothing(),
    }
    Ok(())
}

pub fn restore(call: &mut Call<'_, '_, '_>) -> Outcome {
    let [key, life, dumped] = call.arguments[..3] else { return Err(SYNTAX) };
    let (mut replaces, mut absolute) = (false, false);
    let mut options = call.arguments[3..].iter();
    while let Some(option) = options.next() {
        match &option.to_ascii_uppercase()[..] {
            b"REPLACE" => replaces = true,
            b"ABSTTL" => absolute = true,
            // How long ago, and how often, it was used: nobody asks for it here.
            b"IDLETIME" | b"FREQ" => {
                number(options.next().ok_or(SYNTAX)?).ok_or(NOT_A_NUMBER)?;
            }
            _ => return Err(SYNTAX),
        }
    }
    let life = number(life).ok_or(NOT_A_NUMBER)?;
    if life < 0 {
        return Err(Refused::new("ERR Invalid TTL value, must be >= 0"));
    }
    let whole = dumped.split_last_chunk::<4>().filter(|(text, sum)| crc32c(&[text]).to_le_bytes() == **sum);
    let value = whole.and_then(|(text, _)| text.strip_prefix(DUMPED));
    let value = value.ok_or(Refused::new("ERR DUMP payload version or checksum are wrong"))?;
    let expires = if life == 0 { 0 } else { moment(call.command.name, true, absolute, life)? };
    let is_done = call.at.change(key, |there| {
        Ok(if there.is_some() && !replaces {
            (Change::Keep, false)
        } else if expires != 0 && expires <= now_ms() {
            (Change::Remove, true)
        } else {
            (Change::Set(value.to_vec(), expires), true)
        })
    })?;
    if !is_done {
        return Err(Refused::new("BUSYKEY Target key name already exists."));
    }
    call.out.simple("OK");
    Ok(())
}

pub fn object(call: &mut Call<'_, '_, '_>) -> Outcome {
    let [verb, key] = call.arguments[..2] else { return Err(SYNTAX) };
    let there = call.at.get_with(key, |value, _| match number(value) {
        Some(_) => "int",
        None if value.len() <= 44 => "embstr",
        None => "raw",
    })?;
    let Some(encoding) = there else {
        call.out.nothing();
        return Ok(());
    };
    match &verb.to_ascii_uppercase()[..] {
        b"ENCODING" => call.out.bulk(encoding.as_bytes()),
        b"REFCOUNT" => call.out.integer(1),
        _ => call.out.integer(0),
    }
    Ok(())
}
