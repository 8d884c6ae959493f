// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys put into a collection that is there, thousands at a time, and into Redis as its users write it: pipelined.
//!
//! - **Flow** [`KEYS`] new random keys and values of 8 bytes from a seed ─▶ `insert_many` of a hash map or an ordered map · SET or ZADD
//!   for each, [`DEPTH`] under way ─▶ rows
//! - **Check** all keys are read again on both sides after the time was taken; sums over what came
//! - **Order** no key comes twice in a row's runs, so collections grow; what an ordered map replaces rests for its grace

use memlift_traverse::client::Config;
use memlift_traverse::structures::{HashMap, Key, OrderedMap};

use super::redis::Redis;
use super::server::{Server, Store};
use super::{Nodes, Random, Stop, compare, failed, machine_text, over, timed};
use crate::definition::Definition;
use crate::pairs::Side;
use crate::traverse::apps::{Of, Ran};
use crate::{BenchError, Row};

/// A collection, and the command that is measured beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A hash map, against SET.
    Hash,
    /// An ordered map, against ZADD.
    Ordered,
}

/// Keys of a run.
const KEYS: usize = 20_000;
const KEYS_QUICK: usize = 500;
/// Commands of the store that are under way.
const DEPTH: usize = 256;
/// Bytes of the node that runs may use.
const SPARE: u64 = 1 << 30;
const SPARE_QUICK: u64 = 64 << 20;
/// Chains of the hash map, as a power of two.
const LOG2: u32 = 20;
const LOG2_QUICK: u32 = 10;

enum Ours {
    Hash(HashMap),
    Ordered(OrderedMap),
}

/// Measures a row.
pub fn row(definition: &Definition, kind: Kind, udp: bool, quick: bool) -> Result<Row, Stop> {
    let server = Server::start(Store::Redis, udp, SPARE)?;
    let mut redis = Redis::new(server.line()?);
    // Pipelined, a client that sleeps costs less of its core and hardly waits longer.
    redis.spins(false);
    let nodes = Nodes::with_spare(1, 2 << 20, if quick { SPARE_QUICK } else { SPARE }, over(udp))?;
    let mut client = nodes.client(Config::default())?;
    let mut ours = match kind {
        Kind::Hash => {
            let log2 = if quick { LOG2_QUICK } else { LOG2 };
            Ours::Hash(HashMap::create(&mut client, log2).map_err(failed)?)
        }
        Kind::Ordered => Ours::Ordered(OrderedMap::create(&mut client, 8).map_err(failed)?),
    };
    let count = if quick { KEYS_QUICK } else { KEYS };
    let mut row = compare(definition, Of::Time, quick, |side, seed| {
        let mut random = Random(seed.wrapping_mul(0xc2b2_ae3d_27d4_eb4f));
        // Scores of a sorted set are floats.
        let pairs: Vec<(u64, u64)> = (0..count).map(|_| (random.bits(), random.bits() >> 12)).collect();
        let keys: Vec<u64> = pairs.iter().map(|pair| pair.0).collect();
        if side == Side::Theirs {
            let ran = timed(count, Some(server.process()), || {
                match kind {
                    Kind::Hash => redis.set(&pairs, DEPTH)?,
                    Kind::Ordered => redis.zadd(&pairs, DEPTH)?,
                }
                Ok(0)
            })?;
            let values = if kind == Kind::Hash { redis.get_many(&keys)? } else { redis.scores(&keys)? };
            return Ok(checked(ran, values));
        }
        let bytes: Vec<[u8; 8]> = pairs.iter().map(|pair| pair.1.to_le_bytes()).collect();
        let ran = timed(count, None, || {
            let inserted = match &mut ours {
                Ours::Hash(map) => {
                    let pairs: Vec<(Key<'_>, &[u8])> =
                        keys.iter().zip(&bytes).map(|(&key, value)| (Key::Number(key), &value[..])).collect();
                    map.insert_many(&mut client, &pairs).map_err(failed)?
                }
                Ours::Ordered(map) => {
                    let pairs: Vec<(u64, &[u8])> =
                        keys.iter().zip(&bytes).map(|(&key, value)| (key, &value[..])).collect();
                    map.insert_many(&mut client, &pairs).map_err(failed)?
                }
            };
            if inserted == count as u64 { Ok(0) } else { Err(failed("a key was there before")) }
        })?;
        let found = match &mut ours {
            Ours::Hash(map) => map.get_many(&mut client, &keys),
            Ours::Ordered(map) => map.get_many(&mut client, &keys),
        };
        let word = |value: Option<Vec<u8>>| -> Result<u64, BenchError> {
            let value = value.ok_or_else(|| failed("a key is not there"))?;
            value.try_into().map(u64::from_le_bytes).map_err(|_| failed("a value of another length"))
        };
        let values = found.map_err(failed)?.into_iter().map(word).collect::<Result<Vec<u64>, _>>()?;
        Ok(checked(ran, values))
    })?;
    row.qualifies = format!(
        "{count} new random keys with values of 8 B into a collection that grows; ours: insert_many, {}, node's pages: {}; theirs: {}, {}, one \
         thread, no persistence, {}, {DEPTH} under way; {}",
        nodes.over().text(),
        nodes.pages(),
        server.version,
        if udp { "TCP on loopback" } else { "Unix socket" },
        if kind == Kind::Hash { "a SET each" } else { "a ZADD each" },
        machine_text()
    );
    Ok(row)
}

/// The run with a checksum over what was read again.
fn checked(ran: Ran, values: Vec<u64>) -> Ran {
    let checksum = values.into_iter().fold(0_u64, |sum, value| sum.rotate_left(1) ^ value);
    Ran { checksum, ..ran }
}
