// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands that users of Redis write where memlift walks: GETs along a chain, a Lua script that adds along it, ZRANGE with
//! MGET for a range.
//!
//! - **Layout** RESP2. A chain's node: key = its name (8 characters), value = the next one's name and the number in decimal. A
//!   record: key = its 8 bytes in big endian, value = 240 bytes; all keys stand in a sorted set with score 0, so it is in the
//!   order of bytes
//! - **Order** pipelined in two groups: while the answers to one are read, the store works on the other one
//! - **Source** commands and their costs: redis.io/docs

use super::line::Line;
use super::{Chains, Records};
use crate::BenchError;
use crate::reference;

/// Adds along a chain, at the store.
const SUM: &str = "local name, sum = KEYS[1], 0
for _ = 1, 48 do
    local node = redis.call('GET', name)
    name = string.sub(node, 1, 8)
    sum = sum + tonumber(string.sub(node, 9))
end
return sum";
/// Keys of one write while the store is filled.
const FILL: usize = 1000;

/// A connection to Redis.
#[derive(Debug)]
pub struct Redis {
    line: Line,
    out: Vec<u8>,
    /// The script's name at the store.
    sum: Vec<u8>,
}

/// Beginning of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Head {
    Simple,
    Integer(i64),
    /// Bytes that follow; `None`: there is no such value.
    Bulk(Option<usize>),
    Array(usize),
}

fn wrong(answer: &[u8]) -> BenchError {
    let answer = String::from_utf8_lossy(&answer[..answer.len().min(200)]).into_owned();
    BenchError::Answer { program: "redis".to_owned(), answer }
}

impl Redis {
    /// Over this connection.
    pub fn new(line: Line) -> Redis {
        Redis { line, out: Vec::new(), sum: Vec::new() }
    }

    /// Sets whether the client polls for a while before it sleeps.
    pub fn spins(&mut self, spin: bool) {
        self.line.spins(spin);
    }

    fn begin(&mut self, words: usize) {
        self.out.extend_from_slice(format!("*{words}\r\n").as_bytes());
    }

    fn word(&mut self, word: &[u8]) {
        self.out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        self.out.extend_from_slice(word);
        self.out.extend_from_slice(b"\r\n");
    }

    fn command(&mut self, words: &[&[u8]]) {
        self.begin(words.len());
        words.iter().for_each(|word| self.word(word));
    }

    fn send(&mut self) -> Result<(), BenchError> {
        let sent = self.line.write(&self.out);
        self.out.clear();
        sent
    }

    fn head(&mut self) -> Result<Head, BenchError> {
        let length = self.line.line()?;
        let text = &self.line.here()[..length];
        let number = || {
            let digits = text.get(1..).and_then(|digits| std::str::from_utf8(digits).ok());
            digits.and_then(|digits| digits.parse::<i64>().ok())
        };
        let many = |number: i64| usize::try_from(number).ok();
        let head = match (text.first(), number()) {
            (Some(b'+'), _) => Head::Simple,
            (Some(b':'), Some(number)) => Head::Integer(number),
            (Some(b'$'), Some(-1)) => Head::Bulk(None),
            (Some(b'$'), Some(number)) => Head::Bulk(many(number)),
            (Some(b'*'), Some(number)) => Head::Array(many(number).ok_or_else(|| wrong(text))?),
            _ => return Err(wrong(text)),
        };
        self.line.taken(length + 2);
        Ok(head)
    }

    /// The bytes of a value.
    fn bulk<T>(&mut self, read: impl FnOnce(&[u8]) -> T) -> Result<T, BenchError> {
        let Head::Bulk(Some(bytes)) = self.head()? else { return Err(wrong(b"no value")) };
        self.line.need(bytes + 2)?;
        let value = read(&self.line.here()[..bytes]);
        self.line.taken(bytes + 2);
        Ok(value)
    }

    /// Fills the store with chains.
    pub fn fill_chains(&mut self, chains: &Chains) -> Result<(), BenchError> {
        let nodes: Vec<(u64, u64, u64)> = chains.nodes().collect();
        for nodes in nodes.chunks(FILL) {
            self.begin(1 + 2 * nodes.len());
            self.word(b"MSET");
            for &(name, next, number) in nodes {
                self.word(&name_of(name));
                let value = [&name_of(next)[..], number.to_string().as_bytes()].concat();
                self.word(&value);
            }
            self.send()?;
            self.head()?;
        }
        self.command(&[b"SCRIPT", b"LOAD", SUM.as_bytes()]);
        self.send()?;
        self.sum = self.bulk(<[u8]>::to_vec)?;
        Ok(())
    }

    /// Fills the store with records.
    pub fn fill_records(&mut self, records: &Records) -> Result<(), BenchError> {
        for first in (0..records.count).step_by(FILL) {
            let keys: Vec<u64> =
                (first..records.count.min(first + FILL as u64)).map(|at| records.key(at)).collect();
            self.begin(1 + 2 * keys.len());
            self.word(b"MSET");
            for &key in &keys {
                self.word(&key.to_be_bytes());
                self.word(&records.value(key));
            }
            self.begin(2 + 2 * keys.len());
            self.word(b"ZADD");
            self.word(b"index");
            for &key in &keys {
                self.word(b"0");
                self.word(&key.to_be_bytes());
            }
            self.send()?;
            self.head()?;
            self.head()?;
        }
        Ok(())
    }

    /// Sets each of these to its value, a command each, pipelined.
    pub fn set(&mut self, pairs: &[(u64, u64)], depth: usize) -> Result<(), BenchError> {
        self.pipelined(pairs, depth, |redis, (key, value)| {
            redis.command(&[b"SET", &key.to_be_bytes(), &value.to_le_bytes()]);
        })
    }

    /// Sets a key to a value, and waits for the reply. With `waits` it also waits until a replica has it; returns how many have.
    pub fn set_safely(&mut self, key: u64, value: u64, waits: bool) -> Result<i64, BenchError> {
        self.command(&[b"SET", &key.to_be_bytes(), &value.to_le_bytes()]);
        if waits {
            self.command(&[b"WAIT", b"1", b"1000"]);
        }
        self.send()?;
        if self.head()? != Head::Simple {
            return Err(wrong(b"SET was refused"));
        }
        match waits.then(|| self.head()).transpose()? {
            None => Ok(0),
            Some(Head::Integer(replicas)) => Ok(replicas),
            Some(_) => Err(wrong(b"no number of replicas")),
        }
    }

    /// Gives each of these its value as its score in a sorted set, a command each, pipelined.
    pub fn zadd(&mut self, pairs: &[(u64, u64)], depth: usize) -> Result<(), BenchError> {
        self.pipelined(pairs, depth, |redis, (key, value)| {
            redis.command(&[b"ZADD", b"ordered", value.to_string().as_bytes(), &key.to_be_bytes()]);
        })
    }

    fn pipelined(
        &mut self,
        pairs: &[(u64, u64)],
        depth: usize,
        command: impl Fn(&mut Redis, (u64, u64)),
    ) -> Result<(), BenchError> {
        let mut groups = pairs.chunks((depth / 2).max(1));
        let mut under_way = std::collections::VecDeque::new();
        loop {
            while under_way.len() < 2
                && let Some(group) = groups.next()
            {
                group.iter().for_each(|&pair| command(self, pair));
                self.send()?;
                under_way.push_back(group.len());
            }
            let Some(replies) = under_way.pop_front() else { return Ok(()) };
            for _ in 0..replies {
                if !matches!(self.head()?, Head::Simple | Head::Integer(1)) {
                    return Err(wrong(b"no new key"));
                }
            }
        }
    }

    /// The values of these keys, as [`Redis::set`] has put them.
    pub fn get_many(&mut self, keys: &[u64]) -> Result<Vec<u64>, BenchError> {
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks(FILL) {
            self.begin(1 + keys.len());
            self.word(b"MGET");
            keys.iter().for_each(|key| self.word(&key.to_be_bytes()));
            self.send()?;
            let Head::Array(many) = self.head()? else { return Err(wrong(b"no array")) };
            for _ in 0..many {
                let value = self.bulk(|value| value.try_into().map(u64::from_le_bytes).ok())?;
                values.push(value.ok_or_else(|| wrong(b"no value of 8 bytes"))?);
            }
        }
        Ok(values)
    }

    /// The scores of these keys, as [`Redis::zadd`] has put them.
    pub fn scores(&mut self, keys: &[u64]) -> Result<Vec<u64>, BenchError> {
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks(FILL) {
            self.begin(2 + keys.len());
            self.word(b"ZMSCORE");
            self.word(b"ordered");
            keys.iter().for_each(|key| self.word(&key.to_be_bytes()));
            self.send()?;
            let Head::Array(many) = self.head()? else { return Err(wrong(b"no array")) };
            for _ in 0..many {
                let score = self.bulk(|score| std::str::from_utf8(score).ok()?.parse::<u64>().ok())?;
                values.push(score.ok_or_else(|| wrong(b"no score"))?);
            }
        }
        Ok(values)
    }

    /// Follows a chain with one GET per node; the number of its last node.
    pub fn chain(&mut self, first: u64) -> Result<u64, BenchError> {
        let (mut name, mut number) = (name_of(first), 0);
        for _ in 0..super::HOPS {
            self.command(&[b"GET", &name]);
            self.send()?;
            let node = self.bulk(|node| {
                let (next, digits) = node.split_at_checked(8)?;
                Some((
                    <[u8; 8]>::try_from(next).ok()?,
                    std::str::from_utf8(digits).ok()?.parse::<u64>().ok()?,
                ))
            })?;
            (name, number) = node.ok_or_else(|| wrong(b"no node of a chain"))?;
        }
        Ok(number)
    }

    /// The sums along chains, `depth` scripts under way.
    pub fn sums(&mut self, heads: &[u64], depth: usize) -> Result<u64, BenchError> {
        let mut checksum = 0_u64;
        let mut groups = heads.chunks((depth / 2).max(1));
        let mut under_way = std::collections::VecDeque::new();
        loop {
            while under_way.len() < 2
                && let Some(group) = groups.next()
            {
                for &head in group {
                    self.begin(4);
                    self.word(b"EVALSHA");
                    let script = std::mem::take(&mut self.sum);
                    self.word(&script);
                    self.sum = script;
                    self.word(b"1");
                    self.word(&name_of(head));
                }
                self.send()?;
                under_way.push_back(group.len());
            }
            let Some(replies) = under_way.pop_front() else { return Ok(checksum) };
            for _ in 0..replies {
                match self.head()? {
                    Head::Integer(sum) => checksum = checksum.rotate_left(1) ^ sum as u64,
                    _ => return Err(wrong(b"no sum")),
                }
            }
        }
    }

    /// Ranges of [`super::RANGE`] records: the keys of a group, then their values, while those of the other group are on their way.
    /// Their sums are added in the order asked.
    pub fn ranges(&mut self, firsts: &[u64], depth: usize) -> Result<u64, BenchError> {
        let mut checksum = 0_u64;
        let mut groups = firsts.chunks((depth / 2).max(1));
        let limit = super::RANGE.to_string();
        // Requests of each group under way, oldest first: keys (false) or values (true).
        let mut under_way = std::collections::VecDeque::new();
        loop {
            while under_way.len() < 2
                && let Some(group) = groups.next()
            {
                for first in group {
                    let from = [&b"["[..], &first.to_be_bytes()].concat();
                    self.command(&[
                        b"ZRANGE",
                        b"index",
                        &from,
                        b"+",
                        b"BYLEX",
                        b"LIMIT",
                        b"0",
                        limit.as_bytes(),
                    ]);
                }
                self.send()?;
                under_way.push_back((group.len(), false));
            }
            let Some((replies, values)) = under_way.pop_front() else { return Ok(checksum) };
            for _ in 0..replies {
                let Head::Array(many) = self.head()? else { return Err(wrong(b"no array")) };
                if values {
                    for _ in 0..many {
                        let sum = self.bulk(reference::checksum_of)?;
                        checksum = checksum.rotate_left(1) ^ sum;
                    }
                } else {
                    self.begin(1 + many);
                    self.word(b"MGET");
                    for _ in 0..many {
                        let key = self.bulk(|key| <[u8; 8]>::try_from(key).ok())?;
                        self.word(&key.ok_or_else(|| wrong(b"no key of 8 bytes"))?);
                    }
                }
            }
            if !values {
                self.send()?;
                under_way.push_back((replies, true));
            }
        }
    }
}

/// A node's name: 8 characters.
pub fn name_of(name: u64) -> [u8; 8] {
    let mut text = [0; 8];
    for (at, byte) in text.iter_mut().rev().enumerate() {
        *byte = b"0123456789abcdef"[(name >> (at * 4) & 15) as usize];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::server::{Server, Store};
    use super::*;
    use crate::traverse::Stop;

    #[test]
    fn a_real_redis_answers_as_the_data_says() {
        let server = match Server::start(Store::Redis, false, 1 << 20) {
            Ok(server) => server,
            Err(Stop::Missing(what)) => return eprintln!("skipped: {what}"),
            Err(Stop::Failed(error)) => panic!("{error}"),
        };
        assert!(server.version.starts_with("redis 7"), "{}", server.version);
        let mut redis = Redis::new(server.line().expect("it listens"));
        let chains = Chains::new(20);
        redis.fill_chains(&chains).expect("it takes them");
        let heads: Vec<u64> = (0..20).map(|chain| chains.head(chain)).collect();
        let mut wanted = 0_u64;
        for (chain, &head) in heads.iter().enumerate() {
            let numbers: Vec<u64> = chains.numbers(chain as u64).collect();
            assert_eq!(redis.chain(head).expect("an answer"), numbers[super::super::HOPS - 1]);
            wanted = wanted.rotate_left(1) ^ numbers.iter().sum::<u64>();
        }
        assert_eq!(redis.sums(&heads, 8).expect("answers"), wanted);
        let records = Records { count: 500 };
        redis.fill_records(&records).expect("it takes them");
        let mut keys: Vec<u64> = (0..500).map(|at| records.key(at)).collect();
        keys.sort_unstable();
        let firsts = [keys[3], keys[399], keys[10] + 1];
        let mut wanted = 0_u64;
        for from in [3, 399, 11] {
            for &key in &keys[from..from + 100] {
                wanted = wanted.rotate_left(1) ^ reference::checksum_of(&records.value(key));
            }
        }
        for depth in [1, 2, 4, 16] {
            assert_eq!(redis.ranges(&firsts, depth).expect("answers"), wanted, "in the order asked");
        }
    }
}
