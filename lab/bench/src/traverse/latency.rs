// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows `latency/…` and `throughput/…`: a walk sent to the data, beside clients that cache.
//!
//! - **Rivals** cache: single nodes are read and kept · cache_pages: the same by pages of 4 KiB, as the paper's swap does · cache_rpc:
//!   walks of a native handler, whole answers kept
//! - **Flow** data on a node ─▶ the node's shard, and the native handler for the rivals ─▶ the same questions, drawn as YCSB's C does
//! - **Order** caches hold 6 % and have turned over twice before anything is timed
//! - **Ceiling** what `throughput` can gain at most: h c_msg / (c_msg + h t_hop), where c_msg is what a read of the rival takes and t_hop a
//!   hop of limits/walks.c; h counts the rival's reads, and the walk's hops below the line

use memlift_ground::complete::WaitPolicy;
use memlift_traverse::node::Counter;

use super::cached::{Data, Reader, SHARE};
use super::chains::{Chains, HOPS};
use super::drive::{Ask, Driver, Ran, share, word};
use super::lru::Lru;
use super::node::{OUT, check, reference_run};
use super::pages::Pages;
use super::pin::{self, Held, Role};
use super::serve::{Over, Server};
use super::tree::Tree;
use super::view::Question;
use super::ycsb::{Draw, Generator, Operation, Workload};
use super::{Stop, unknown};
use crate::definition::Definition;
use crate::pairs::{self, Side, Took};
use crate::{BenchError, Row};

/// Numbers of questions, drawn as YCSB's reads are.
struct Questions(Generator);

impl Questions {
    fn new(of: u64, seed: u64) -> Questions {
        Questions(Generator::new(Workload::C, Draw::Zipf, of, seed))
    }

    fn next(&mut self) -> u64 {
        match self.0.next() {
            Operation::Read(number) => number,
            other => unreachable!("workload C reads only, not {other:?}"),
        }
    }
}

/// Measures a row.
pub fn row(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    let tree = definition.name.contains("/btree25/");
    let latency = definition.name.starts_with("latency/");
    match (definition.rival.as_str(), latency) {
        ("cache_pages", true) if tree => Ok(compare(&Pages(&Tree::new(quick)?), definition, 1, quick)?),
        ("cache_pages", true) => Ok(compare(&Pages(&Chains::new(quick)?), definition, 1, quick)?),
        ("cache" | "cache_rpc", true) if tree => Ok(compare(&Tree::new(quick)?, definition, 1, quick)?),
        ("cache" | "cache_rpc", true) | ("cache", false) if !tree => {
            Ok(compare(&Chains::new(quick)?, definition, if latency { 1 } else { OUT }, quick)?)
        }
        ("limit", false) if !tree => Ok(compare(&Chains::new(quick)?, definition, OUT, quick)?),
        _ => Err(unknown(definition)),
    }
}

/// Whole answers, cached.
struct Answers {
    cache: Lru<u64>,
    driver: Driver,
}

impl Answers {
    fn run(
        &mut self,
        numbers: &[u64],
        asks: &[Ask],
        value_of: impl Fn(u64) -> u64,
    ) -> Result<(Ran, u64), BenchError> {
        let (mut sum, mut again, mut messages) = (0u64, 0, 0);
        let took = pairs::time(1, || {
            for (place, (number, ask)) in numbers.iter().zip(asks).enumerate() {
                let value = match self.cache.get(*number) {
                    Some(value) => value,
                    None => {
                        let ran = self.driver.run(std::slice::from_ref(ask), 1)?;
                        again += ran.again;
                        messages += 1;
                        let value = value_of(*number);
                        // The driver gives a checksum and no values: the right one must be what it saw.
                        if ran.checksum != share(0, value) {
                            let answer = "a wrong value".to_owned();
                            return Err(BenchError::Answer {
                                program: "the native handler".to_owned(),
                                answer,
                            });
                        }
                        self.cache.put(*number, value);
                        value
                    }
                };
                sum = sum.wrapping_add(share(place as u64, value));
            }
            Ok(())
        })?;
        Ok((Ran { seconds: took.seconds, cpu_s: took.cpu_s, checksum: sum, again, bytes: (0, 0) }, messages))
    }
}

fn compare<D: Data>(data: &D, definition: &Definition, out: usize, quick: bool) -> Result<Row, BenchError> {
    let over = Over::Udp;
    let (program, value_at) = data.program();
    let servers = [Server::node(data.node(), over)?, Server::native(over, data.handler())?];
    let mut ours = Driver::new(servers[0].link(WaitPolicy::SPIN)?, &program, value_at);
    let mut reader = Reader::new(data, servers[1].link(WaitPolicy::SPIN)?);
    let driver = Driver::new(servers[1].link(WaitPolicy::SPIN)?, &program, 0);
    let mut answers = Answers { cache: Lru::new((data.questions() as f64 * SHARE) as usize), driver };
    let _held = Held::new(Role::Client);
    let mut warm = Questions::new(data.questions(), 0);
    let whole_answers = definition.rival == "cache_rpc";
    if whole_answers {
        for _ in 0..data.questions() / 4 {
            let number = warm.next();
            if answers.cache.get(number).is_none() {
                answers.cache.put(number, data.ask(number).1);
            }
        }
    } else {
        reader.warm(|| warm.next());
    }
    let count: u64 = match (quick, out) {
        (true, _) => 30,
        (false, 1) => 200,
        (false, _) => 3000,
    };
    let limit = definition.rival == "limit";
    let (mut turns, mut messages, mut again, mut costs) = ([0; 2], 0, 0, Vec::new());
    let hops_before = data.node().stats().read();
    let samples = pairs::interleave(quick, |side| {
        let at = usize::from(side == Side::Theirs);
        turns[at] += 1;
        let mut questions = Questions::new(data.questions(), turns[at]);
        let numbers: Vec<u64> = (0..count).map(|_| questions.next()).collect();
        let (asks, values): (Vec<Ask>, Vec<u64>) = numbers.iter().map(|number| data.ask(*number)).unzip();
        let right = values
            .iter()
            .enumerate()
            .fold(0u64, |sum, (number, value)| sum.wrapping_add(share(number as u64, *value)));
        let (ran, sent) = match side {
            Side::Ours => (ours.run(&asks, out)?, 0),
            Side::Theirs if whole_answers => answers.run(&numbers, &asks, |number| data.ask(number).1)?,
            Side::Theirs => reader.run(&numbers, out)?,
        };
        check(definition, ran.checksum, right)?;
        again += ran.again;
        messages += sent;
        let mut took = Took { seconds: ran.seconds / count as f64, cpu_s: ran.cpu_s / count as f64 };
        if side == Side::Theirs && out > 1 {
            let hop_s = hop_seconds(data, &asks)?;
            let message_s = ran.seconds / sent as f64;
            let reads = sent as f64 / count as f64;
            let limit_s = message_s + HOPS as f64 * hop_s;
            costs.push((message_s, hop_s, reads * message_s / limit_s));
            if limit {
                took.seconds = limit_s;
            }
        }
        Ok(took)
    })?;
    let mut row = Row::new(definition);
    row.cpu_s = samples.cpu_s;
    let hops = data.node().stats().read();
    let counted = |counter| hops.get(counter) - hops_before.get(counter);
    for (name, number) in [
        ("walks_per_run", count),
        ("walks_under_way", out as u64),
        // Iterations include the first one, which is no hop.
        ("hops", (counted(Counter::Hops) / counted(Counter::Walks).max(1)).saturating_sub(1)),
        ("theirs_messages_per_100_walks", messages * 100 / (turns[1] * count)),
        ("sent_again", again),
    ] {
        row.count.insert(name.to_owned(), number);
    }
    if !costs.is_empty() {
        let median = |of: fn(&(f64, f64, f64)) -> f64| crate::statistics::median(costs.iter().map(of));
        for (name, number) in [
            ("c_msg_ns", median(|cost| cost.0 * 1e9)),
            ("t_hop_ps", median(|cost| cost.1 * 1e12)),
            ("ceiling_percent", median(|cost| cost.2 * 100.0)),
        ] {
            row.count.insert(name.to_owned(), number as u64);
        }
    }
    row.qualifies = format!(
        "keys drawn as YCSB's workload C does (scrambled Zipf 0.99); theirs: {}; {}; {}; {} MiB of data, {:?} pages; right answers of \
         both checked",
        if whole_answers {
            "whole answers to 6 % of the questions cached, else the native handler"
        } else if definition.rival == "cache_pages" {
            "6 % of the data cached, in pages of 4 KiB as by a swap, least recently used first; a read is answered by a native handler"
        } else {
            "6 % of the data cached, node by node, least recently used first; a read is answered by a native handler"
        },
        pin::text(),
        over.text(),
        (data.pieces() * size_of::<D::Piece>() as u64) >> 20,
        data.node().memory().huge(),
    );
    Ok(row.measured(definition, &samples.pairs, quick))
}

/// Measures seconds per hop when 48 walks of chains are interleaved and nothing else is done.
fn hop_seconds<D: Data>(data: &D, asks: &[Ask]) -> Result<f64, BenchError> {
    let question = |ask: &Ask| Question { bucket: ask.address, key: word(&ask.body, 0) };
    let questions: Vec<Question> = asks.iter().map(question).collect();
    let (took, _) = reference_run(data.view(), &questions, 48)?;
    Ok(took.seconds / (asks.len() as u64 * HOPS) as f64)
}
