// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that are killed in the middle. Afterwards their tables keep their rules and hold every acknowledged transaction.
//!
//! - **Flow** [`the_child`] fills a pool and runs transactions until it is killed, and says how many are done ─▶ it is killed ─▶ the pool is
//!   opened again ─▶ all tables are looked through
//! - **Exactly** with one thread, the same transactions run on another pool, one by one: for some number of them that is not less than
//!   what was acknowledged, its tables are those of the killed one

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use memlift_persist::{Mechanism, Pool};

use super::{App, Program, Tally, options, state};
use crate::persist::disk::Shared;

const ROWS: u64 = 1000;
/// Transactions between two acknowledgements.
const EVERY: u64 = 16;
const CHILD: &str = "MEMLIFT_BENCH_KILLED";

fn parse(text: &str) -> (App, Mechanism, u64) {
    let parts: Vec<&str> = text.split(' ').collect();
    let mechanism = Mechanism::ALL.into_iter().find(|mechanism| mechanism.name() == parts[1]);
    let threads = parts[2].parse().expect("a number");
    (App::parse(parts[0]).expect("an app"), mechanism.expect("a mechanism"), threads)
}

/// The transaction of a thread with this number.
fn transaction(program: &mut Box<dyn Program>, pool: &Pool, thread: usize, number: u64) {
    let state = state(number + 1, thread);
    program.prepare(0, state, 1);
    program.work(pool, 0, state, 1, &mut Tally::default()).expect("committed");
}

#[test]
#[ignore = "started by the tests beside it"]
fn the_child() {
    let (Ok(what), Ok(path)) = (std::env::var(CHILD), std::env::var("MEMLIFT_BENCH_POOL")) else { return };
    let (app, mechanism, threads) = parse(&what);
    let pool = Pool::create(path, &options(app, mechanism, threads)).expect("created");
    app.fill(&pool, ROWS).expect("filled");
    pool.sync().expect("durable");
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..threads as usize {
            let (pool, done) = (&pool, &done);
            let mut program = app.program(pool, ROWS).expect("opened");
            scope.spawn(move || {
                for number in 0.. {
                    transaction(&mut program, pool, thread, number);
                    let done = done.fetch_add(1, Ordering::SeqCst) + 1;
                    if done % EVERY == 0 {
                        let mut stdout = std::io::stdout().lock();
                        writeln!(stdout, "done {done}").and_then(|()| stdout.flush()).expect("heard");
                    }
                }
            });
        }
    });
}

/// Kills a child that has done this many; returns how many it acknowledged.
fn kill(what: &str, path: &Path, after: u64) -> u64 {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "persist::apps::killed::the_child", "--ignored", "--nocapture"])
        .env(CHILD, what)
        .env("MEMLIFT_BENCH_POOL", path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut said = BufReader::new(child.stdout.take().expect("piped"));
    let number = |line: &str| line.trim_end().strip_prefix("done ").and_then(|done| done.parse::<u64>().ok());
    let (mut acknowledged, mut line) = (0, String::new());
    while acknowledged < after {
        line.clear();
        assert!(said.read_line(&mut line).expect("heard") > 0, "{what}: it ended by itself");
        acknowledged = acknowledged.max(number(&line).unwrap_or(0));
    }
    child.kill().expect("killed");
    child.wait().expect("reaped");
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("heard");
    // Its last line may have been cut.
    let whole = rest.rfind('\n').map_or("", |end| &rest[..end]);
    whole.lines().filter_map(number).fold(acknowledged, u64::max)
}

fn audit(program: &dyn Program, pool: &Pool) -> Tally {
    let mut tally = Tally::default();
    program.audit(pool, &mut tally).expect("the rules of the tables hold");
    tally
}

#[test]
fn one_thread_is_killed_and_exactly_its_first_transactions_are_there() {
    for app in [App::Tpcc, App::Tatp, App::Kv] {
        for mechanism in Mechanism::ALL {
            let what = format!("{} {} 1", app.name(), mechanism.name());
            let [killed, model] = [(), ()].map(|()| Shared::new(512 << 20).expect("room in memory"));
            let acknowledged = kill(&what, &killed.path, 100);
            let options = options(app, mechanism, 1);
            let pool = Pool::open(&killed.path, &options).expect("recovered");
            let there = audit(&*app.program(&pool, ROWS).expect("opened"), &pool);
            pool.close().expect("closed");

            let pool = Pool::create(&model.path, &options).expect("created");
            app.fill(&pool, ROWS).expect("filled");
            let mut program = app.program(&pool, ROWS).expect("opened");
            (0..acknowledged).for_each(|number| transaction(&mut program, &pool, 0, number));
            // The child may have done more than it acknowledged.
            let mut number = acknowledged;
            while audit(&*program, &pool) != there {
                assert!(
                    number <= acknowledged + EVERY,
                    "{what}: no first {acknowledged} transactions leave what is there"
                );
                transaction(&mut program, &pool, 0, number);
                number += 1;
            }
        }
    }
}

#[test]
fn four_threads_are_killed_and_the_rules_of_the_tables_hold() {
    for app in [App::Tpcc, App::Tatp, App::KvMixed] {
        for mechanism in Mechanism::ALL {
            let what = format!("{} {} 4", app.name(), mechanism.name());
            let place = Shared::new(512 << 20).expect("room in memory");
            kill(&what, &place.path, 400);
            let pool = Pool::open(&place.path, &options(app, mechanism, 4)).expect("recovered");
            let program = app.program(&pool, ROWS).expect("opened");
            audit(&*program, &pool);
            // The program goes on after recovery.
            let mut program = program;
            (0..20).for_each(|number| transaction(&mut program, &pool, 9, number));
            audit(&*program, &pool);
        }
    }
}
