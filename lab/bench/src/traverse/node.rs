// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows `node/…`: what one core of a memory node answers, beside a native handler and beside the bare memory.
//!
//! - **Flow** chains in a node ─▶ the node's shard and the native handler, each a thread on the nodes' core, over the same transport
//!   ─▶ one client thread asks both the same, in turns
//! - **Order** before each run the client sweeps the last-level cache: neither side walks what the other one has fetched
//! - **Check** the checksum of every run is that of the right answers
//! - **Limit** limits/walks.c on the nodes' core, with the number of walks in turn that it is fastest with

use std::sync::Arc;
use std::time::Instant;

use memlift_ground::complete::WaitPolicy;
use memlift_traverse::node::{Counter, Node};
use memlift_traverse::program::Program;

use super::chains::{self, Chains, HOPS};
use super::drive::{Ask, Driver};
use super::pin::{self, Held, Role};
use super::serve::{Handler, Over, Server};
use super::view::{self, View};
use super::{Stop, unknown};
use crate::area::Area;
use crate::definition::Definition;
use crate::pairs::{self, Side, Took};
use crate::{BenchError, Row, cache, machine, reference};

/// Requests under way.
pub const OUT: usize = 128;
/// Walks in turn that are tried, up to the number of requests under way.
const WIDTHS: [usize; 6] = [16, 32, 48, 64, 96, 128];

/// Area that a sweep reads to evict everything else from the cache.
pub struct Sweep(Area);

impl Sweep {
    /// For this machine's last-level cache.
    pub fn new(quick: bool) -> Result<Sweep, BenchError> {
        let bytes = if quick { 1 << 20 } else { cache::sweep_bytes(0) };
        Ok(Sweep(Area::private(bytes)?))
    }

    /// Gets everything else out of the cache.
    pub fn now(&self) {
        std::hint::black_box(reference::xor64(self.0.part(0, self.0.bytes())));
    }
}

/// Fails unless the checksum of a run is right.
pub fn check(definition: &Definition, got: u64, right: u64) -> Result<(), BenchError> {
    if got == right {
        return Ok(());
    }
    Err(BenchError::Differ {
        name: definition.name.clone(),
        rival: definition.rival.clone(),
        sums: [got, right].map(|sum| format!("{sum:016x}")),
    })
}

/// Data that a node and a native handler both serve.
pub struct Served<'n> {
    /// The memory node that serves it.
    pub node: &'n Node,
    /// The program of its walks.
    pub program: Arc<Program>,
    /// Where that leaves a value in the scratchpad.
    pub value_at: usize,
    /// The same natively; its answers begin with the value.
    pub handler: Box<dyn Handler>,
}

/// How it is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// How packets travel.
    pub over: Over,
    /// Walks under way.
    pub out: usize,
    /// True if CPU time is what counts.
    pub cpu: bool,
    /// Walks of a run.
    pub count: u64,
}

/// Measures a row.
pub fn row(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    let parts: Vec<&str> = definition.name.split('/').collect();
    let (over, out, cpu) = match (&parts[1..], definition.rival.as_str()) {
        (["hash48", "shm"], "rpc") => (Over::Shm, OUT, false),
        (["hash48", "udp"], "rpc") => (Over::Udp, OUT, false),
        (["hash48", "shm", "cpu"], "rpc") => (Over::Shm, OUT, true),
        (["depth1"], "rpc") => (Over::Shm, 1, false),
        (["hash48", "shm"], "limit") => return Ok(against_limit(definition, quick)?),
        _ => return Err(unknown(definition)),
    };
    let chains = Chains::new(quick)?;
    let served = Served {
        node: &chains.node,
        program: Chains::program(),
        value_at: chains::VALUE_AT,
        handler: Box::new(chains.handler()),
    };
    let question = Question { over, out, cpu, count: if out == 1 { 2000 } else { 8000 } };
    let draw = |seed, count| {
        let (questions, right) = chains.draw(seed, count);
        (chains::asks(&questions), right)
    };
    let mut row = against_rpc(definition, served, question, draw, quick)?;
    row.qualifies.push_str(&format!("; {}", scale(&chains)));
    Ok(row)
}

/// Asks a node and its native stand-in the same, in turns. `draw` gives what a seed asks, and the checksum of the right answers.
pub fn against_rpc(
    definition: &Definition,
    served: Served<'_>,
    question: Question,
    draw: impl Fn(u64, u64) -> (Vec<Ask>, u64),
    quick: bool,
) -> Result<Row, BenchError> {
    let Question { over, out, cpu, count } = question;
    let servers = [Server::node(served.node, over)?, Server::native(over, served.handler)?];
    // A thread with a core to itself spins. Where CPU time is counted, it sleeps when that is cheaper.
    let wait = if cpu { WaitPolicy::AUTO } else { WaitPolicy::SPIN };
    let mut drivers = [
        Driver::new(servers[0].link(wait)?, &served.program, served.value_at),
        Driver::new(servers[1].link(wait)?, &served.program, 0),
    ];
    let _held = Held::new(Role::Client);
    let sweep = Sweep::new(quick)?;
    let count = if quick { 200 } else { count };
    let (mut turns, mut again, mut bytes) = ([0; 2], 0, [(0, 0); 2]);
    let before = served.node.stats().read();
    let samples = pairs::interleave(quick, |side| {
        let at = usize::from(side == Side::Theirs);
        turns[at] += 1;
        let (asks, right) = draw(turns[at], count);
        sweep.now();
        let ran = drivers[at].run(&asks, out)?;
        check(definition, ran.checksum, right)?;
        again += ran.again;
        bytes[at] = ran.bytes;
        let cpu_s = ran.cpu_s / count as f64;
        Ok(Took { seconds: if cpu { cpu_s } else { ran.seconds / count as f64 }, cpu_s })
    })?;
    let after = served.node.stats().read();
    let counted = |counter| after.get(counter) - before.get(counter);
    let mut row = Row::new(definition);
    row.cpu_s = samples.cpu_s;
    for (name, number) in [
        // The first iteration is no hop.
        ("hops", (counted(Counter::Hops) / counted(Counter::Walks).max(1)).saturating_sub(1)),
        ("walks_per_run", count),
        ("walks_under_way", out as u64),
        ("sent_again", again),
        ("bytes_asked", bytes[0].0 / count),
        ("bytes_answered", bytes[0].1 / count),
        ("theirs_bytes_asked", bytes[1].0 / count),
        ("theirs_bytes_answered", bytes[1].1 / count),
    ] {
        row.count.insert(name.to_owned(), number);
    }
    row.qualifies = format!(
        "ours: `{}`, {} walks in turn; theirs: the same walk in Rust, one to its end before the next; {}; {}; cold before each run; {:?} \
         pages on both sides; right answers of both checked",
        served.program.name(),
        served.node.workspaces(),
        pin::text(),
        over.text(),
        served.node.memory().huge(),
    );
    Ok(row.measured(definition, &samples.pairs, quick))
}

fn scale(chains: &Chains) -> String {
    format!("{} MiB of chains in a random order", (chains.count() * HOPS * chains::NODE_BYTES) >> 20)
}

/// Runs these walks in the reference loop on the nodes' core; returns wall and CPU seconds, and the sum of the values.
pub fn reference_run(
    view: &View,
    questions: &[view::Question],
    width: usize,
) -> Result<(Took, u64), BenchError> {
    let run = || {
        let _held = Held::new(Role::Node);
        let (cpu, start) = (machine::thread_cpu_seconds(), Instant::now());
        let sum = view::reference_walks(view, questions, width)?;
        let seconds = start.elapsed().as_secs_f64();
        Ok((Took { seconds, cpu_s: machine::thread_cpu_seconds() - cpu }, sum))
    };
    std::thread::scope(|scope| scope.spawn(run).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn against_limit(definition: &Definition, quick: bool) -> Result<Row, BenchError> {
    let chains = Chains::new(quick)?;
    let server = Server::node(&chains.node, Over::Shm)?;
    let mut driver = Driver::new(server.link(WaitPolicy::SPIN)?, &Chains::program(), chains::VALUE_AT);
    let _held = Held::new(Role::Client);
    let sweep = Sweep::new(quick)?;
    let count: u64 = if quick { 200 } else { 20_000 };
    let mut best = (f64::INFINITY, 0);
    for width in WIDTHS {
        let (questions, _) = chains.draw(width as u64, count);
        sweep.now();
        let (took, _) = reference_run(&chains.view, &questions, width)?;
        best = if took.seconds < best.0 { (took.seconds, width) } else { best };
    }
    let mut turns = [0; 2];
    let samples = pairs::interleave(quick, |side| {
        let at = usize::from(side == Side::Theirs);
        turns[at] += 1;
        let (questions, right) = chains.draw(turns[at], count);
        let asks = chains::asks(&questions);
        sweep.now();
        let took = if side == Side::Ours {
            let ran = driver.run(&asks, OUT)?;
            check(definition, ran.checksum, right)?;
            Took { seconds: ran.seconds, cpu_s: ran.cpu_s }
        } else {
            let (took, sum) = reference_run(&chains.view, &questions, best.1)?;
            let value = |question: &view::Question| chains.question(question.key / HOPS - 1).1;
            let right = questions.iter().map(value).fold(0, u64::wrapping_add);
            check(definition, sum, right)?;
            took
        };
        Ok(Took { seconds: took.seconds / count as f64, cpu_s: took.cpu_s / count as f64 })
    })?;
    let mut row = Row::new(definition);
    row.cpu_s = samples.cpu_s;
    for (name, number) in [
        ("hops", HOPS),
        ("walks_per_run", count),
        ("walks_under_way", OUT as u64),
        ("limit_in_turn", best.1 as u64),
    ] {
        row.count.insert(name.to_owned(), number);
    }
    row.qualifies = format!(
        "ours: `hash_find`, {} walks in turn; {}; {}; {}; cold before each run; {:?} pages on both sides; right answers of both checked",
        chains.node.workspaces(),
        pin::text(),
        Over::Shm.text(),
        scale(&chains),
        chains.node.memory().huge(),
    );
    Ok(row.measured(definition, &samples.pairs, quick))
}
