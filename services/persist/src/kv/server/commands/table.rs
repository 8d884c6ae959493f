// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The commands by name, and COMMAND, which tells clients about them.

use super::command::Role::{Now, Plain, Whole};
use super::command::{Command, inform, takes};
use super::{Call, Outcome, Refused, keys, server, strings, transaction, walk};

const READ: &[&str] = &["readonly"];
const FAST_READ: &[&str] = &["readonly", "fast"];
const WRITE: &[&str] = &["write"];
const FAST_WRITE: &[&str] = &["write", "fast"];
const GROWS: &[&str] = &["write", "denyoom"];
const FAST_GROWS: &[&str] = &["write", "denyoom", "fast"];
const ABOUT: &[&str] = &["loading", "stale"];
const FAST_ABOUT: &[&str] = &["loading", "stale", "fast"];

const NO_KEY: (i32, i32, i32) = (0, 0, 0);
const ONE_KEY: (i32, i32, i32) = (1, 1, 1);
const SECOND: (i32, i32, i32) = (2, 2, 1);
const TWO_KEYS: (i32, i32, i32) = (1, 2, 1);
const ALL_KEYS: (i32, i32, i32) = (1, -1, 1);
const PAIRS: (i32, i32, i32) = (1, -1, 2);

macro_rules! commands {
    ($($name:literal $arity:literal $flags:ident $keys:ident $role:ident $group:literal $run:path, $summary:literal;)*) => {
        &[$(Command {
            name: $name, arity: $arity, flags: $flags, keys: $keys, role: $role, group: $group, summary: $summary, run: $run,
        }),*]
    };
}

/// All commands, in the order of their names.
#[rustfmt::skip]
static TABLE: &[Command] = commands! {
    "append" 3 FAST_GROWS ONE_KEY Plain "string" strings::append, "Appends to a value; its length";
    "auth" -2 FAST_ABOUT NO_KEY Plain "connection" server::auth, "Refused: there are no passwords";
    "bgsave" -1 ABOUT NO_KEY Plain "server" server::bgsave, "A copy of the pool, in the folder that the server was given";
    "client" -2 ABOUT NO_KEY Plain "connection" server::client, "ID, SETNAME, GETNAME, SETINFO, INFO, LIST, NO-EVICT, NO-TOUCH";
    "command" -1 ABOUT NO_KEY Plain "server" command, "COUNT, DOCS, INFO, LIST, GETKEYS: what there is";
    "config" -2 ABOUT NO_KEY Plain "server" server::config, "GET, RESETSTAT; options are given to the server at its start";
    "copy" -3 GROWS TWO_KEYS Plain "generic" keys::copy, "Copies an entry";
    "dbsize" 1 FAST_READ NO_KEY Whole "server" server::dbsize, "How many entries there are";
    "decr" 2 FAST_GROWS ONE_KEY Plain "string" strings::decr, "Subtracts 1";
    "decrby" 3 FAST_GROWS ONE_KEY Plain "string" strings::decrby, "Subtracts a whole number";
    "del" -2 WRITE ALL_KEYS Plain "generic" keys::del, "Removes entries, together";
    "discard" 1 FAST_ABOUT NO_KEY Now "transactions" transaction::discard, "Forgets the commands since MULTI";
    "dump" 2 READ ONE_KEY Plain "generic" keys::dump, "A value as RESTORE takes it";
    "echo" 2 FAST_ABOUT NO_KEY Plain "connection" server::echo, "The same text";
    "exec" 1 ABOUT NO_KEY Now "transactions" transaction::exec, "Does the commands since MULTI as one transaction";
    "exists" -2 FAST_READ ALL_KEYS Plain "generic" keys::exists, "How many of the keys there are";
    "expire" -3 FAST_WRITE ONE_KEY Plain "generic" keys::expire, "Sets the life of an entry in seconds";
    "expireat" -3 FAST_WRITE ONE_KEY Plain "generic" keys::expire, "Sets the end of an entry in seconds since 1970";
    "expiretime" 2 FAST_READ ONE_KEY Plain "generic" keys::expiretime, "The end of an entry in seconds since 1970";
    "flushall" -1 WRITE NO_KEY Whole "server" server::flush, "Removes everything";
    "flushdb" -1 WRITE NO_KEY Whole "server" server::flush, "Removes everything";
    "get" 2 FAST_READ ONE_KEY Plain "string" strings::get, "A value";
    "getdel" 2 FAST_WRITE ONE_KEY Plain "string" strings::getdel, "A value, which is removed";
    "getex" -2 FAST_WRITE ONE_KEY Plain "string" strings::getex, "A value, whose life is set";
    "getrange" 4 READ ONE_KEY Plain "string" strings::getrange, "Part of a value";
    "getset" 3 FAST_GROWS ONE_KEY Plain "string" strings::getset, "A value, in whose place another is put";
    "hello" -1 FAST_ABOUT NO_KEY Plain "connection" server::hello, "Chooses the version of the protocol";
    "incr" 2 FAST_GROWS ONE_KEY Plain "string" strings::incr, "Adds 1";
    "incrby" 3 FAST_GROWS ONE_KEY Plain "string" strings::incrby, "Adds a whole number";
    "incrbyfloat" 3 FAST_GROWS ONE_KEY Plain "string" strings::incrbyfloat, "Adds a number";
    "info" -1 ABOUT NO_KEY Whole "server" server::info, "State and counters of the server";
    "keys" 2 READ NO_KEY Whole "generic" walk::keys, "The keys that a pattern means";
    "lastsave" 1 FAST_ABOUT NO_KEY Plain "server" server::lastsave, "When the last copy was made, in seconds since 1970";
    "lcs" -3 READ TWO_KEYS Plain "string" strings::lcs, "The longest common subsequence of two values";
    "mget" -2 FAST_READ ALL_KEYS Plain "string" strings::mget, "Several values";
    "mset" -3 GROWS PAIRS Plain "string" strings::mset, "Puts several values, together";
    "msetnx" -3 GROWS PAIRS Plain "string" strings::msetnx, "Puts several values if none of the keys is there";
    "multi" 1 FAST_ABOUT NO_KEY Now "transactions" transaction::multi, "The commands that follow wait for EXEC";
    "object" -2 READ SECOND Plain "generic" keys::object, "ENCODING, REFCOUNT, IDLETIME";
    "persist" 2 FAST_WRITE ONE_KEY Plain "generic" keys::persist, "An entry stays for ever";
    "pexpire" -3 FAST_WRITE ONE_KEY Plain "generic" keys::expire, "Sets the life of an entry in milliseconds";
    "pexpireat" -3 FAST_WRITE ONE_KEY Plain "generic" keys::expire, "Sets the end of an entry in milliseconds since 1970";
    "pexpiretime" 2 FAST_READ ONE_KEY Plain "generic" keys::expiretime, "The end of an entry in milliseconds since 1970";
    "ping" -1 FAST_ABOUT NO_KEY Plain "connection" server::ping, "PONG, or the same text";
    "psetex" 4 GROWS ONE_KEY Plain "string" strings::setex, "Puts a value with a life in milliseconds";
    "pttl" 2 FAST_READ ONE_KEY Plain "generic" keys::ttl, "Milliseconds that an entry has left";
    "quit" -1 FAST_ABOUT NO_KEY Now "connection" server::quit, "Closes the connection";
    "randomkey" 1 READ NO_KEY Whole "generic" walk::randomkey, "Some key, not all with equal chance";
    "rename" 3 WRITE TWO_KEYS Plain "generic" keys::rename, "Gives an entry another key";
    "renamenx" 3 FAST_WRITE TWO_KEYS Plain "generic" keys::rename, "Gives an entry another key if that is not there";
    "reset" 1 FAST_ABOUT NO_KEY Now "connection" server::reset, "The connection is as a new one";
    "restore" -4 GROWS ONE_KEY Plain "generic" keys::restore, "Puts a value that DUMP gave";
    "scan" -2 READ NO_KEY Whole "generic" walk::scan, "Some keys, and where to go on";
    "select" 2 FAST_ABOUT NO_KEY Plain "connection" server::select, "There is one database, 0";
    "set" -3 GROWS ONE_KEY Plain "string" strings::set, "Puts a value";
    "setex" 4 GROWS ONE_KEY Plain "string" strings::setex, "Puts a value with a life in seconds";
    "setnx" 3 FAST_GROWS ONE_KEY Plain "string" strings::setnx, "Puts a value if the key is not there";
    "setrange" 4 GROWS ONE_KEY Plain "string" strings::setrange, "Overwrites part of a value";
    "strlen" 2 FAST_READ ONE_KEY Plain "string" strings::strlen, "How long a value is";
    "substr" 4 READ ONE_KEY Plain "string" strings::getrange, "Part of a value";
    "time" 1 FAST_ABOUT NO_KEY Plain "server" server::time, "Seconds since 1970, and microseconds";
    "touch" -2 FAST_READ ALL_KEYS Plain "generic" keys::exists, "How many of the keys there are";
    "ttl" 2 FAST_READ ONE_KEY Plain "generic" keys::ttl, "Seconds that an entry has left";
    "type" 2 FAST_READ ONE_KEY Plain "generic" keys::kind, "string, or none";
    "unlink" -2 FAST_WRITE ALL_KEYS Plain "generic" keys::del, "Removes entries, together";
    "unwatch" 1 FAST_ABOUT NO_KEY Plain "transactions" transaction::unwatch, "Forgets what is watched";
    "watch" -2 FAST_ABOUT ALL_KEYS Now "transactions" transaction::watch, "EXEC does nothing if one of the keys changes before";
};

/// The longest name.
const NAME_BYTES: usize = 16;

/// The command of a name, in letters of any case.
pub fn find(name: &[u8]) -> Option<&'static Command> {
    let mut lower = [0; NAME_BYTES];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let at = TABLE.binary_search_by(|command| command.name.as_bytes().cmp(lower)).ok()?;
    Some(&TABLE[at])
}

fn command(call: &mut Call<'_, '_, '_>) -> Outcome {
    let Some((verb, names)) = call.arguments.split_first() else {
        call.out.array(TABLE.len());
        TABLE.iter().for_each(|command| inform(command, call.out));
        return Ok(());
    };
    let out = &mut *call.out;
    match &verb.to_ascii_uppercase()[..] {
        b"COUNT" => out.integer(TABLE.len() as i64),
        b"LIST" => {
            out.array(TABLE.len());
            TABLE.iter().for_each(|command| out.bulk(command.name.as_bytes()));
        }
        b"INFO" if names.is_empty() => {
            out.array(TABLE.len());
            TABLE.iter().for_each(|command| inform(command, out));
        }
        b"INFO" => {
            out.array(names.len());
            for name in names {
                match find(name) {
                    Some(command) => inform(command, out),
                    None => out.nothing(),
                }
            }
        }
        b"DOCS" => {
            let named: Vec<&Command> = names.iter().filter_map(|name| find(name)).collect();
            let all = if names.is_empty() { TABLE.iter().collect() } else { named };
            out.map(all.len());
            for command in all {
                out.bulk(command.name.as_bytes());
                out.map(2);
                out.bulk(b"summary");
                out.bulk(command.summary.as_bytes());
                out.bulk(b"group");
                out.bulk(command.group.as_bytes());
            }
        }
        _ => {
            let of = find(names[0]).ok_or(Refused::new("ERR Invalid command specified"))?;
            if !takes(of.arity, names.len()) {
                return Err(Refused::new("ERR Invalid number of arguments specified for command"));
            }
            let keys: Vec<&[u8]> = of.keys_of(names).collect();
            if keys.is_empty() {
                return Err(Refused::new("ERR The command has no key arguments"));
            }
            out.array(keys.len());
            keys.iter().for_each(|key| out.bulk(key));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_by_its_name() {
        for command in TABLE {
            assert!(std::ptr::eq(find(command.name.to_uppercase().as_bytes()).expect("found"), command));
        }
        assert!(TABLE.is_sorted_by_key(|command| command.name));
        assert!(find(b"").is_none() && find(b"gett").is_none() && find(&[b'a'; 1000]).is_none());
    }

    #[test]
    fn keys_are_where_the_table_says() {
        let keys = |line: &str| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let command = find(words[0]).expect("a command");
            let keys = command.keys_of(&words).map(|key| String::from_utf8_lossy(key).into_owned());
            keys.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(keys("get a"), "a");
        assert_eq!(keys("set a 1 ex 2"), "a");
        assert_eq!(keys("mset a 1 b 2"), "a b");
        assert_eq!(keys("del a b c"), "a b c");
        assert_eq!(keys("rename a b"), "a b");
        assert_eq!(keys("ping"), "");
        assert_eq!(keys("get"), "");
    }
}
