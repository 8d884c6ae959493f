// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A command: its name, its words, its keys.

use super::{Call, Outcome, Refused, shown};
use crate::kv::KEY_BYTES_MAX;
use crate::kv::server::protocol::Reply;

pub type Run = fn(&mut Call<'_, '_, '_>) -> Outcome;

/// How a command goes together with MULTI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It waits for EXEC.
    Plain,
    /// It waits for EXEC, which then takes the whole store.
    Whole,
    /// It is done at once.
    Now,
}

/// A command as clients name it.
#[derive(Debug)]
pub struct Command {
    /// In lower case, as replies have it.
    pub name: &'static str,
    /// How many words it has with its name; negative: so many at least.
    pub arity: i32,
    pub flags: &'static [&'static str],
    /// Where its keys are: the first, the last (negative: from the end), and every how many.
    pub keys: (i32, i32, i32),
    pub role: Role,
    pub group: &'static str,
    pub summary: &'static str,
    pub run: Run,
}

impl Command {
    /// Returns true if MULTI does not keep it.
    pub fn is_for_now(&self) -> bool {
        self.role == Role::Now
    }

    /// Returns true if it may touch any key.
    pub fn needs_all(&self) -> bool {
        self.role == Role::Whole
    }

    /// Why it does not take these words. Nothing was done yet.
    pub fn refuses(&self, words: &[&[u8]]) -> Option<Refused> {
        if !takes(self.arity, words.len()) {
            return Some(Refused::arguments(self.name));
        }
        let verbs = self.verbs();
        if let Some(verb) = words.get(1).filter(|_| !verbs.is_empty()) {
            let lower = shown(verb, 64).to_lowercase();
            let Some((_, arity)) = verbs.iter().find(|(name, _)| *name == lower) else {
                let (verb, name) = (shown(verb, 128), self.name.to_uppercase());
                let text = format!("ERR unknown subcommand '{verb}'. Try COMMAND DOCS {name}.");
                return Some(Refused::Text(text.into()));
            };
            if !takes(*arity, words.len()) {
                return Some(Refused::arguments(&format!("{}|{lower}", self.name)));
            }
        }
        let is_write = self.flags.contains(&"write");
        let long = self.keys_of(words).find(|key| is_write && key.len() > KEY_BYTES_MAX)?;
        let text = format!("ERR a key of {} bytes: the longest has {KEY_BYTES_MAX}", long.len());
        Some(Refused::Text(text.into()))
    }

    /// The words that may be its second one, and how many words there are then.
    fn verbs(&self) -> &'static [(&'static str, i32)] {
        match self.name {
            "client" => &[
                ("id", 2),
                ("setname", 3),
                ("getname", 2),
                ("setinfo", 4),
                ("info", 2),
                ("list", -2),
                ("no-evict", 3),
                ("no-touch", 3),
            ],
            "command" => &[("count", 2), ("docs", -2), ("getkeys", -3), ("info", -2), ("list", 2)],
            "config" => &[("get", -3), ("resetstat", 2)],
            "object" => &[("encoding", 3), ("refcount", 3), ("idletime", 3)],
            _ => &[],
        }
    }

    /// Its keys among the words of a call.
    pub fn keys_of<'w>(&self, words: &[&'w [u8]]) -> impl Iterator<Item = &'w [u8]> {
        let (first, last, step) = self.keys;
        let end = if last < 0 { words.len() as i32 + last + 1 } else { last + 1 };
        let end = if first == 0 { 0 } else { end.clamp(0, words.len() as i32) };
        (first.max(1)..end).step_by(step.max(1) as usize).map(|at| words[at as usize])
    }
}

/// Returns true if an arity allows so many words.
pub fn takes(arity: i32, words: usize) -> bool {
    let words = i32::try_from(words).unwrap_or(i32::MAX);
    if arity < 0 { words >= -arity } else { words == arity }
}

/// Replies with the description of a command, for COMMAND INFO.
pub fn inform(command: &Command, out: &mut Reply) {
    out.array(10);
    out.bulk(command.name.as_bytes());
    out.integer(command.arity.into());
    out.array(command.flags.len());
    command.flags.iter().for_each(|flag| out.simple(flag));
    let (first, last, step) = command.keys;
    [first, last, step].iter().for_each(|place| out.integer((*place).into()));
    // Categories of access lists and tips: none.
    out.array(0);
    out.array(0);
    out.array(usize::from(first > 0));
    if first > 0 {
        out.map(3);
        out.bulk(b"flags");
        out.array(1);
        out.simple(if command.flags.contains(&"write") { "RW" } else { "RO" });
        out.bulk(b"begin_search");
        out.map(2);
        out.bulk(b"type");
        out.bulk(b"index");
        out.bulk(b"spec");
        out.map(1);
        out.bulk(b"index");
        out.integer(first.into());
        out.bulk(b"find_keys");
        out.map(2);
        out.bulk(b"type");
        out.bulk(b"range");
        out.bulk(b"spec");
        out.map(3);
        let last = if last < 0 { last } else { last - first };
        for (name, value) in [("lastkey", last), ("keystep", step), ("limit", 0)] {
            out.bulk(name.as_bytes());
            out.integer(value.into());
        }
    }
    // Its verbs: none are described.
    out.array(0);
}
