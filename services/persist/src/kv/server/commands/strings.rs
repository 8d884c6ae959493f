// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands of values.

use super::keys::{invalid_expiry, moment};
use super::{
    Call, NOT_A_NUMBER, Outcome, REPLY_BYTES, Refused, SYNTAX, TOO_LARGE, TOO_LONG, decimal, subsequence,
};
use crate::kv::Change;
use crate::kv::server::protocol::number;

/// Replies with a value, or with nothing.
fn give(call: &mut Call<'_, '_, '_>, value: Option<&[u8]>) {
    match value {
        Some(value) => call.out.bulk(value),
        None => call.out.nothing(),
    }
}

pub fn get(call: &mut Call<'_, '_, '_>) -> Outcome {
    let out = &mut *call.out;
    if call.at.get_with(call.arguments[0], |value, _| out.bulk(value))?.is_none() {
        call.out.nothing();
    }
    Ok(())
}

pub fn mget(call: &mut Call<'_, '_, '_>) -> Outcome {
    let (start, out) = (call.out.written(), &mut *call.out);
    out.array(call.arguments.len());
    call.at.get_many(call.arguments, |there| {
        match there {
            Some((value, _)) => out.bulk(value),
            None => out.nothing(),
        }
        if out.written() - start > REPLY_BYTES { Err(TOO_LARGE) } else { Ok(()) }
    })
}

pub fn strlen(call: &mut Call<'_, '_, '_>) -> Outcome {
    let bytes = call.at.get_with(call.arguments[0], |value, _| value.len())?;
    call.out.integer(bytes.unwrap_or(0) as i64);
    Ok(())
}

pub fn getdel(call: &mut Call<'_, '_, '_>) -> Outcome {
    let old = call.at.change(call.arguments[0], |there| {
        let old = there.map(|(value, _)| value.to_vec());
        Ok((if old.is_some() { Change::Remove } else { Change::Keep }, old))
    })?;
    give(call, old.as_deref());
    Ok(())
}

pub fn getex(call: &mut Call<'_, '_, '_>) -> Outcome {
    let name = call.command.name;
    let expires = match call.arguments[1..] {
        [] => return get(call),
        [option] if option.eq_ignore_ascii_case(b"persist") => Ok(0),
        [option, time] => match &option.to_ascii_uppercase()[..] {
            option @ (b"EX" | b"PX" | b"EXAT" | b"PXAT") => life(name, option, time),
            _ => return Err(SYNTAX),
        },
        _ => return Err(SYNTAX),
    };
    let Some(expires) = expires_of_one(call, expires)? else {
        call.out.nothing();
        return Ok(());
    };
    let old = call.at.change(call.arguments[0], |there| {
        Ok((Change::Expire(expires), there.map(|(value, _)| value.to_vec())))
    })?;
    give(call, old.as_deref());
    Ok(())
}

/// An expiry that was found wrong matters only if there is an entry.
fn expires_of_one(call: &Call<'_, '_, '_>, expires: Result<u64, Refused>) -> Result<Option<u64>, Refused> {
    match expires {
        Ok(expires) => Ok(Some(expires)),
        Err(refused) => match call.at.get_with(call.arguments[0], |_, _| ())? {
            Some(()) => Err(refused),
            None => Ok(None),
        },
    }
}

pub fn getset(call: &mut Call<'_, '_, '_>) -> Outcome {
    let value = call.arguments[1];
    let old = call.at.change(call.arguments[0], |there| {
        Ok((Change::Set(value.to_vec(), 0), there.map(|(value, _)| value.to_vec())))
    })?;
    give(call, old.as_deref());
    Ok(())
}

/// The end of an entry that an option of SET or GETEX means.
fn life(command: &str, option: &[u8], time: &[u8]) -> Result<u64, Refused> {
    let time = number(time).ok_or(NOT_A_NUMBER)?;
    if time <= 0 {
        return Err(invalid_expiry(command));
    }
    moment(command, option[0] == b'P', option.ends_with(b"AT"), time)
}

pub fn set(call: &mut Call<'_, '_, '_>) -> Outcome {
    let (key, value) = (call.arguments[0], call.arguments[1]);
    let (mut expires, mut only_new, mut only_old, mut keeps, mut gets) = (None, false, false, false, false);
    let mut options = call.arguments[2..].iter();
    while let Some(option) = options.next() {
        match &option.to_ascii_uppercase()[..] {
            b"NX" => only_new = true,
            b"XX" => only_old = true,
            b"GET" => gets = true,
            b"KEEPTTL" => keeps = true,
            name @ (b"EX" | b"PX" | b"EXAT" | b"PXAT") if expires.is_none() => {
                expires = Some((name.to_vec(), options.next().ok_or(SYNTAX)?));
            }
            _ => return Err(SYNTAX),
        }
    }
    if only_new && only_old || keeps && expires.is_some() {
        return Err(SYNTAX);
    }
    let expires = match expires {
        Some((option, time)) => life(call.command.name, &option, time)?,
        None => 0,
    };
    if !(only_new || only_old || keeps || gets) {
        call.at.set(key, value, expires)?;
        call.out.simple("OK");
        return Ok(());
    }
    let (is_set, old) = call.at.change(key, |there| {
        let old = there.filter(|_| gets).map(|(value, _)| value.to_vec());
        if there.is_some() && only_new || there.is_none() && only_old {
            return Ok((Change::Keep, (false, old)));
        }
        let kept = there.map_or(0, |(_, expires)| expires);
        Ok((Change::Set(value.to_vec(), if keeps { kept } else { expires }), (true, old)))
    })?;
    match (gets, is_set) {
        (true, _) => give(call, old.as_deref()),
        (false, true) => call.out.simple("OK"),
        (false, false) => call.out.nothing(),
    }
    Ok(())
}

/// SETEX and PSETEX.
pub fn setex(call: &mut Call<'_, '_, '_>) -> Outcome {
    let [key, time, value] = call.arguments[..3] else { return Err(SYNTAX) };
    let option: &[u8] = if call.command.name == "psetex" { b"PX" } else { b"EX" };
    let expires = life(call.command.name, option, time)?;
    call.at.set(key, value, expires)?;
    call.out.simple("OK");
    Ok(())
}

pub fn setnx(call: &mut Call<'_, '_, '_>) -> Outcome {
    let value = call.arguments[1];
    let new = call.at.change(call.arguments[0], |there| {
        Ok(if there.is_some() { (Change::Keep, 0) } else { (Change::Set(value.to_vec(), 0), 1) })
    })?;
    call.out.integer(new);
    Ok(())
}

/// Keys and values of MSET and MSETNX.
fn pairs<'w>(call: &Call<'_, '_, '_>, words: &'w [&'w [u8]]) -> Result<&'w [[&'w [u8]; 2]], Refused> {
    let (pairs, odd) = words.as_chunks::<2>();
    if odd.is_empty() { Ok(pairs) } else { Err(Refused::arguments(call.command.name)) }
}

pub fn mset(call: &mut Call<'_, '_, '_>) -> Outcome {
    let pairs = pairs(call, call.arguments)?;
    let keys: Vec<&[u8]> = pairs.iter().map(|[key, _]| *key).collect();
    call.at.write(&keys, |turn| pairs.iter().try_for_each(|[key, value]| turn.set(key, value, 0)))?;
    call.out.simple("OK");
    Ok(())
}

pub fn msetnx(call: &mut Call<'_, '_, '_>) -> Outcome {
    let pairs = pairs(call, call.arguments)?;
    let keys: Vec<&[u8]> = pairs.iter().map(|[key, _]| *key).collect();
    let are_set = call.at.write(&keys, |turn| {
        for key in &keys {
            if turn.get_with(key, |_, _| ())?.is_some() {
                return Ok(false);
            }
        }
        pairs.iter().try_for_each(|[key, value]| turn.set(key, value, 0))?;
        Ok(true)
    })?;
    call.out.integer(i64::from(are_set));
    Ok(())
}

/// Changes the bytes of a value, none for a missing one, and returns how many there are then; `most`: a lower bound of that.
fn edit(
    call: &mut Call<'_, '_, '_>,
    most: usize,
    mut change: impl FnMut(&mut Vec<u8>),
) -> Result<usize, Refused> {
    let limit = call.shared.options.limits.bulk_bytes;
    if most > limit {
        return Err(TOO_LONG);
    }
    let done = call.at.change(call.arguments[0], |there| {
        let (mut value, expires) =
            there.map_or((Vec::new(), 0), |(value, expires)| (value.to_vec(), expires));
        change(&mut value);
        let bytes = value.len();
        Ok(if bytes > limit { (Change::Keep, None) } else { (Change::Set(value, expires), Some(bytes)) })
    })?;
    done.ok_or(TOO_LONG)
}

pub fn append(call: &mut Call<'_, '_, '_>) -> Outcome {
    let more = call.arguments[1];
    let bytes = edit(call, more.len(), |value| value.extend_from_slice(more))?;
    call.out.integer(bytes as i64);
    Ok(())
}

pub fn setrange(call: &mut Call<'_, '_, '_>) -> Outcome {
    let part = call.arguments[2];
    let at = number(call.arguments[1]).ok_or(NOT_A_NUMBER)?;
    let at = usize::try_from(at).map_err(|_| Refused::new("ERR offset is out of range"))?;
    if part.is_empty() {
        return strlen(call);
    }
    let end = at.checked_add(part.len()).ok_or(TOO_LONG)?;
    let bytes = edit(call, end, |value| {
        value.resize(value.len().max(end), 0);
        value[at..end].copy_from_slice(part);
    })?;
    call.out.integer(bytes as i64);
    Ok(())
}

pub fn getrange(call: &mut Call<'_, '_, '_>) -> Outcome {
    let start = number(call.arguments[1]).ok_or(NOT_A_NUMBER)?;
    let end = number(call.arguments[2]).ok_or(NOT_A_NUMBER)?;
    let out = &mut *call.out;
    let there = call.at.get_with(call.arguments[0], |value, _| {
        let length = value.len() as i64;
        let from_end = |at: i64| if at < 0 { (at + length).max(0) } else { at };
        let are_crossed = start < 0 && end < 0 && start > end;
        let (start, end) = (from_end(start), from_end(end).min(length - 1));
        let is_empty = are_crossed || start > end || value.is_empty();
        out.bulk(if is_empty { b"" } else { &value[start as usize..=end as usize] });
    })?;
    if there.is_none() {
        call.out.bulk(b"");
    }
    Ok(())
}

pub fn incr(call: &mut Call<'_, '_, '_>) -> Outcome {
    add(call, 1)
}

pub fn decr(call: &mut Call<'_, '_, '_>) -> Outcome {
    add(call, -1)
}

pub fn incrby(call: &mut Call<'_, '_, '_>) -> Outcome {
    let more = number(call.arguments[1]).ok_or(NOT_A_NUMBER)?;
    add(call, more)
}

pub fn decrby(call: &mut Call<'_, '_, '_>) -> Outcome {
    let less = number(call.arguments[1]).ok_or(NOT_A_NUMBER)?;
    add(call, less.checked_neg().ok_or(Refused::new("ERR decrement would overflow"))?)
}

fn add(call: &mut Call<'_, '_, '_>, more: i64) -> Outcome {
    let sum = call.at.change(call.arguments[0], |there| {
        let (now, expires) = there.map_or((Some(0), 0), |(value, expires)| (number(value), expires));
        Ok(match now.map(|now| now.checked_add(more)) {
            Some(Some(sum)) => (Change::Set(sum.to_string().into_bytes(), expires), Ok(sum)),
            Some(None) => (Change::Keep, Err(Refused::new("ERR increment or decrement would overflow"))),
            None => (Change::Keep, Err(NOT_A_NUMBER)),
        })
    })??;
    call.out.integer(sum);
    Ok(())
}

pub fn incrbyfloat(call: &mut Call<'_, '_, '_>) -> Outcome {
    let not_a_float = || Refused::new("ERR value is not a valid float");
    let more = call.arguments[1];
    let sum = call.at.change(call.arguments[0], |there| {
        let (now, expires) = there.unwrap_or((b"0", 0));
        Ok(match decimal::sum(now, more) {
            Ok(Some(sum)) => (Change::Set(sum.clone().into_bytes(), expires), Ok(sum)),
            Ok(None) => (Change::Keep, Err(Refused::new("ERR increment would produce NaN or Infinity"))),
            Err(()) => (Change::Keep, Err(not_a_float())),
        })
    })??;
    call.out.bulk(sum.as_bytes());
    Ok(())
}

pub fn lcs(call: &mut Call<'_, '_, '_>) -> Outcome {
    let (mut length_only, mut places, mut least, mut with_lengths) = (false, false, 0, false);
    let mut options = call.arguments[2..].iter();
    while let Some(option) = options.next() {
        match &option.to_ascii_uppercase()[..] {
            b"LEN" => length_only = true,
            b"IDX" => places = true,
            b"WITHMATCHLEN" => with_lengths = true,
            b"MINMATCHLEN" => {
                let named = number(options.next().ok_or(SYNTAX)?).ok_or(NOT_A_NUMBER)?;
                least = usize::try_from(named).unwrap_or(0);
            }
            _ => return Err(SYNTAX),
        }
    }
    if length_only && places {
        return Err(Refused::new("ERR If you want both the length and indexes, please just use IDX."));
    }
    let mut values = Vec::new();
    call.at.get_many(&call.arguments[..2], |there| {
        values.push(there.map_or(Vec::new(), |(value, _)| value.to_vec()));
        Ok::<_, Refused>(())
    })?;
    let (a, b) = (&values[0], &values[1]);
    let found = subsequence::longest(a, b);
    let found = found.ok_or(Refused::new("ERR Insufficient memory, string size too large for LCS"))?;
    let length: usize = found.iter().map(|run| run.length).sum();
    let out = &mut *call.out;
    if length_only {
        out.integer(length as i64);
    } else if places {
        out.map(2);
        out.bulk(b"matches");
        let shown: Vec<_> = found.iter().rev().filter(|run| run.length >= least).collect();
        out.array(shown.len());
        for run in shown {
            out.array(if with_lengths { 3 } else { 2 });
            for start in [run.a, run.b] {
                out.array(2);
                out.integer(start as i64);
                out.integer((start + run.length - 1) as i64);
            }
            if with_lengths {
                out.integer(run.length as i64);
            }
        }
        out.bulk(b"len");
        out.integer(length as i64);
    } else {
        let bytes: Vec<u8> = found.iter().flat_map(|run| &a[run.a..run.a + run.length]).copied().collect();
        out.bulk(&bytes);
    }
    Ok(())
}
