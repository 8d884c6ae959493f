// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many requests cross from one memory node to another, by application, placement, size of a slab and number of nodes: the
//! paper's Fig. 2 (b) and (c), counted.
//!
//! - **Flow** `fig2/APP/PLACEMENT/SLAB/NODES` ─▶ that many nodes, filled ─▶ requests from a client that sends walks on itself: each
//!   visit beyond the first is a crossing ─▶ share of the requests with one or more
//! - **Apps** web: half of a chain of 96 to 192, then the object · btree: scans of 1 to 100 records · series: windows of 1 to 8 s
//! - **Size** a row in the order of time with slabs of 1 GiB has as many GiB as nodes, so that all nodes have some; the others have
//!   less, which changes nothing: slabs go round the nodes
//! - **Check** the same requests once more, sent on by the nodes themselves: the same answers, as many packets from node to node
//! - **Not here** time; the paper partitions its web service by key, which leaves no crossings: here it is placed like the others

use memlift_traverse::client::{Answer, Client, Config, Request, Routing};
use memlift_traverse::node::Counter;
use memlift_traverse::structures::Walk;
use memlift_traverse::structures::placement::{Order, Placement, SLAB_1G, SLAB_2M, SLAB_4K};

use super::Stop;
use super::apps::nodes::{Nodes, Over, failed};
use super::apps::{pmu, records, series, web};
use super::ycsb::{Draw, Generator, Operation, Random, Workload};
use crate::definition::Definition;
use crate::{BenchError, Row};

/// Bytes of all nodes' data.
const DATA_BYTES: u64 = 96 << 20;
const DATA_BYTES_QUICK: u64 = 3 << 20;
const REQUESTS: usize = 2000;
const REQUESTS_QUICK: usize = 60;
/// Objects that a slab of 4 KiB still holds.
const OBJECT_BYTES_SMALL: usize = 2000;

/// Combination that a row counts crossings for.
#[derive(Clone, Copy, Debug)]
struct Case {
    app: App,
    order: Order,
    slab: u64,
    nodes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum App {
    Web,
    Btree,
    Series,
}

impl Case {
    fn parse([app, placement, slab, nodes]: [&str; 4]) -> Option<Case> {
        Some(Case {
            app: match app {
                "web" => App::Web,
                "btree" => App::Btree,
                "series" => App::Series,
                _ => return None,
            },
            order: match placement {
                "random" => Order::Random(1),
                "time" => Order::Time,
                _ => return None,
            },
            slab: match slab {
                "4KiB" => SLAB_4K,
                "2MiB" => SLAB_2M,
                "1GiB" => SLAB_1G,
                _ => return None,
            },
            nodes: nodes.parse().ok().filter(|nodes| (1..=4).contains(nodes))?,
        })
    }

    /// Bytes of data, and room of each node.
    fn bytes(self, quick: bool) -> (u64, u64) {
        let all = if quick { DATA_BYTES_QUICK } else { DATA_BYTES };
        let gibibytes = self.slab == SLAB_1G;
        if gibibytes && self.order == Order::Time && self.nodes > 1 && !quick {
            return (self.nodes as u64 * SLAB_1G / 20 * 19, SLAB_1G + 4096);
        }
        let each = (all / self.nodes as u64 * 3 / 2).next_multiple_of(SLAB_2M) + SLAB_2M;
        (all, if gibibytes { SLAB_1G + 4096 } else { each })
    }

    fn object_bytes(self) -> usize {
        if self.slab == SLAB_4K { OBJECT_BYTES_SMALL } else { web::OBJECT_BYTES }
    }

    /// Builds the application's structure and draws requests for it.
    fn walks(self, nodes: &Nodes, bytes: u64, many: usize) -> Result<Vec<Walk>, BenchError> {
        let mut placement = Placement::new(&nodes.ranges(), self.slab, self.order);
        let mut random = Random(7);
        match self.app {
            App::Web => {
                let object = self.object_bytes();
                let records = bytes / (object as u64).next_multiple_of(256);
                // Chains of 96 to 192.
                let log2 = (records / 96).max(1).ilog2();
                let handle = web::build(nodes, records, log2, object, &mut placement)?;
                let mut generator = Generator::new(Workload::C, Draw::Zipf, records, 3);
                let walk = |_| match generator.next() {
                    Operation::Read(key) => web::walk(handle, key),
                    other => Err(failed(format!("workload C does not {other:?}"))),
                };
                (0..many).map(walk).collect()
            }
            App::Btree => {
                let records = bytes / records::RECORD_BYTES;
                let handle = records::build(nodes, records, &mut placement)?;
                let mut generator = Generator::new(Workload::E, Draw::Zipf, records, 3);
                Ok(std::iter::from_fn(|| Some(generator.next()))
                    .filter_map(|operation| records::walk(handle, operation))
                    .take(many)
                    .collect())
            }
            App::Series => {
                let seconds = bytes / series::SAMPLE_BYTES / pmu::HERTZ / pmu::CHANNELS;
                let series = series::build(nodes, seconds, &mut placement)?;
                let longest = 8.min(seconds);
                let window = |_| {
                    let seconds = 1 + random.below(longest);
                    series.window(&mut random, seconds * pmu::HERTZ).2
                };
                Ok((0..many).map(window).collect())
            }
        }
    }
}

/// All answers to walks.
fn answers(client: &mut Client, walks: &[Walk]) -> Result<Vec<Answer>, BenchError> {
    let answers = client.call_many(walks.iter().map(Request::walk));
    answers.into_iter().map(|answer| answer.map_err(failed)).collect()
}

/// Counts the crossings of a row.
pub fn row(definition: &Definition, name: [&str; 4], quick: bool) -> Result<Row, Stop> {
    let Some(case) = Case::parse(name) else { return Err(super::unknown(definition)) };
    let (bytes, room) = case.bytes(quick);
    let nodes = Nodes::start(case.nodes, room, Over::Udp)?;
    let walks = case.walks(&nodes, bytes, if quick { REQUESTS_QUICK } else { REQUESTS })?;
    // Few at a time: nothing is measured, and nothing shall be lost in a socket's buffer and sent twice.
    let config = |routing| Config { routing, window: 4, hops: u8::MAX, ..Config::default() };
    let mut bounce = nodes.client(config(Routing::Bounce))?;
    let crossed = answers(&mut bounce, &walks)?;
    let mut crossings: Vec<u64> = crossed.iter().map(|answer| u64::from(answer.visits) - 1).collect();

    let mut peer = nodes.client(config(Routing::Peer))?;
    let before = nodes.counted(Counter::Forwarded);
    let sent_on = answers(&mut peer, &walks)?;
    let forwarded = nodes.counted(Counter::Forwarded) - before;
    let same = |(one, other): (&Answer, &Answer)| {
        one.status == other.status && one.result == other.result && one.body == other.body
    };
    if !crossed.iter().zip(&sent_on).all(same) {
        return Err(Stop::Failed(failed(
            "walks that nodes sent on have other answers than those that the client sent on",
        )));
    }
    let all: u64 = crossings.iter().sum();
    // A packet that was sent again is forwarded again.
    if forwarded < all || (peer.counts().again == 0 && bounce.counts().again == 0 && forwarded != all) {
        let reason = format!("nodes sent {forwarded} walks on, where {all} crossings were counted");
        return Err(Stop::Failed(failed(reason)));
    }

    crossings.sort_unstable();
    let many = crossings.len();
    let crossing = crossings.iter().filter(|&&times| times > 0).count();
    let hops: u64 = crossed.iter().map(|answer| u64::from(answer.iterations)).sum();
    let mut row = Row::new(definition);
    row.ours = Some(crossing as f64 / many as f64);
    for (what, count) in [
        ("requests", many as u64),
        ("requests_that_cross", crossing as u64),
        ("crossings", all),
        ("crossings_p50", crossings[many / 2]),
        ("crossings_p90", crossings[many * 9 / 10]),
        ("crossings_max", crossings[many - 1]),
        ("hops", hops),
        ("nodes", case.nodes as u64),
    ] {
        row.count.insert(what.to_owned(), count);
    }
    let app = match case.app {
        App::Web => format!("YCSB C on objects of {} B", case.object_bytes()),
        App::Btree => "scans of YCSB E".to_owned(),
        App::Series => format!("windows of 1 to 8 s of {} channels at {} Hz", pmu::CHANNELS, pmu::HERTZ),
    };
    row.qualifies = format!("{app}; {} MiB of data; answers equal to those that nodes sent on", bytes >> 20);
    row.verdict = definition.judge(&row, quick);
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(name: &str) -> Row {
        let definition = Definition {
            name: name.to_owned(),
            rival: "none".to_owned(),
            unit: "share".to_owned(),
            ratio: None,
            count_max: Default::default(),
            note: String::new(),
        };
        let parts: Vec<&str> = name.split('/').skip(1).collect();
        row(&definition, parts.try_into().expect("four parts"), true).expect("a row")
    }

    #[test]
    fn one_node_has_no_crossings_and_time_crosses_less_than_chance() {
        assert_eq!(share("fig2/series/random/4KiB/1").count["crossings"], 0);
        for app in ["btree", "series"] {
            let random = share(&format!("fig2/{app}/random/4KiB/4"));
            let time = share(&format!("fig2/{app}/time/2MiB/4"));
            assert!(random.count["crossings"] > 4 * time.count["crossings"], "{random:?} {time:?}");
            assert!(random.ours > Some(0.8) && time.count["requests"] == REQUESTS_QUICK as u64);
        }
    }
}
