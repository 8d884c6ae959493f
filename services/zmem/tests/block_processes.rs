// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Blocks as processes share them: charges of the killed come back, turns pass, admission holds, exec and fork keep count.
//!
//! - **Method** this test program, started again as a member of a job ([`ROLE`] says as what)

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use memlift_zmem::Error;
use memlift_zmem::block::{Admission, Charge, GRACE_BYTES, Job, Objectives, OnOverflow, Registry};

const ROLE: &str = "MEMLIFT_TEST_ROLE";
const MIB: usize = 1 << 20;

fn objectives(total: usize) -> Objectives {
    Objectives { total, unused: 0, min_uncompressed: 0, on_overflow: OnOverflow::Fail }
}

/// A member of the job: does what each line of its input says and answers with a line.
#[test]
fn member() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let job = Job::from_environment().expect("a job").expect("named by the environment");
    println!("\nready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let (word, number) = line.split_once(' ').unwrap_or((&line, "0"));
        let number: usize = number.parse().expect("a number");
        match word {
            "charge" => drop(job.charge(number)),
            "uncharge" => job.uncharge(number),
            "want" => job.want_eviction(true),
            "leave" => job.want_eviction(false),
            "visit" => drop(job.visit().expect("it is in the ring")),
            "hold" => std::mem::forget(job.visit().expect("it is in the ring")),
            "publish" => job.publish(number as u64, 0, 0),
            "others" => println!("others {}", job.charge_by_others(number, false)),
            "overflow" => println!("overflow {:?}", job.overflow(number)),
            other => panic!("{other}?"),
        }
        println!("done {}", job.unused());
    }
}

struct Member {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Member {
    fn start(job: &Admission) -> Member {
        Member::with(job, None)
    }

    fn with(job: &Admission, number: Option<i32>) -> Member {
        let inherited = job.inheritable().expect("a descriptor");
        let number = number.unwrap_or(inherited.as_raw_fd());
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "member", "--nocapture", "--test-threads=1"])
            .env(ROLE, "member")
            .envs(job.environment(number))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let mut member = Member { child, input, output: BufReader::new(output) };
        member.until("ready");
        member
    }

    fn until(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).expect("read") > 0, "it ended before it said {word}");
            if let Some(at) = line.find(word) {
                return line[at..].trim().to_owned();
            }
        }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it listens");
    }

    fn told(&mut self, line: &str) {
        self.say(line);
        self.until("done");
    }

    fn kill(mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it ends");
    }
}

#[test]
fn what_a_killed_process_charged_comes_back_once() {
    let registry = Registry::create(1 << 30).expect("a registry");
    let job = registry.admit("test", &objectives(256 * MIB)).expect("room");
    let (mut one, mut other) = (Member::start(&job), Member::start(&job));
    one.told(&format!("charge {}", 100 * MIB));
    other.told(&format!("charge {}", 50 * MIB));
    other.told(&format!("uncharge {}", 20 * MIB));
    assert_eq!(job.control().unused(), 126 * MIB as i64);
    one.kill();
    registry.sweep_block(job.block());
    registry.sweep();
    assert_eq!(job.control().unused(), 226 * MIB as i64);
    assert_eq!(registry.processes(job.block()).count(), 1);
    other.kill();
    assert_eq!(registry.implicit().unused(), (1 << 30) - 256 * MIB as i64);
    drop(job);
    assert_eq!(registry.implicit().unused(), 1 << 30, "the job's memory is everybody's again");
    assert_eq!(registry.jobs().count(), 0);
}

#[test]
fn before_a_job_overflows_what_the_dead_had_is_given_back_and_nobody_else_has_to_look() {
    let registry = Registry::create(1 << 30).expect("a registry");
    let job = registry.admit("test", &objectives(64 * MIB)).expect("room");
    let (mut one, mut two, mut left) = (Member::start(&job), Member::start(&job), Member::start(&job));
    one.told(&format!("charge {}", 40 * MIB));
    two.told(&format!("charge {}", 20 * MIB));
    one.kill();
    left.say(&format!("others {}", 32 * MIB));
    assert_eq!(left.until("others"), "others true");
    left.told(&format!("charge {}", 40 * MIB));
    left.say(&format!("overflow {}", 40 * MIB));
    assert_eq!(left.until("overflow"), "overflow Fail(75)", "no room as long as the other lives");
    two.kill();
    left.told(&format!("uncharge {}", 10 * MIB));
    left.say(&format!("overflow {}", 40 * MIB));
    assert_eq!(left.until("overflow"), "overflow Spill");
    left.kill();
}

#[test]
fn a_member_whose_descriptors_were_closed_finds_its_job_by_the_owner() {
    let registry = Registry::create(1 << 30).expect("a registry");
    let job = registry.admit("test", &objectives(64 * MIB)).expect("room");
    let mut member = Member::with(&job, Some(987));
    member.told("charge 4096");
    assert_eq!(job.control().unused(), 64 * MIB as i64 - 4096);
    member.kill();
}

#[test]
fn a_holder_of_the_turn_that_is_killed_or_stopped_passes_it() {
    let registry = Registry::create(1 << 30).expect("a registry");
    let job = registry.admit("test", &objectives(64 * MIB)).expect("room");
    let (mut holder, mut waiter) = (Member::start(&job), Member::start(&job));
    holder.told("want");
    holder.told("hold");
    waiter.told("want");
    // The holder lives and does not pass: it loses the turn all the same.
    waiter.told("visit");
    holder.told("hold");
    holder.kill();
    waiter.told("visit");
    waiter.told("visit");
    waiter.kill();
}

#[test]
fn totals_beyond_the_machine_are_refused_and_objectives_change_live() {
    let registry = Registry::create(256 * MIB).expect("a registry");
    let job = registry.admit("one", &objectives(200 * MIB)).expect("room");
    assert!(matches!(registry.admit("two", &objectives(100 * MIB)), Err(Error::Admission { .. })));
    assert!(matches!(registry.set_total(job.block(), 300 * MIB), Err(Error::Admission { .. })));
    registry.set_unused_objective(job.block(), 10 * MIB);
    registry.set_total(job.block(), 100 * MIB).expect("less");
    assert_eq!(job.control().unused_objective(), 5 * MIB as i64, "it keeps its share of the total");
    let two = registry.admit("two", &objectives(100 * MIB)).expect("room now");
    assert_eq!(registry.implicit().unused(), 56 * MIB as i64);
    assert!(!registry.steal(two.block(), 200 * MIB), "it has not that much");
    assert!(registry.steal(two.block(), 60 * MIB));
    assert_eq!((two.control().total(), two.control().unused()), (40 * MIB as i64, 40 * MIB as i64));
    assert_eq!(registry.implicit().unused(), 116 * MIB as i64);
    assert!(matches!(registry.set_total(99, MIB), Err(Error::NoBlock { block: 99 })));
    assert!(matches!(registry.set_total(0, MIB), Err(Error::NoBlock { block: 0 })));
}

#[test]
fn what_lies_outside_is_in_the_sum_and_the_grace_is_lent_by_all() {
    let registry = Registry::create(1 << 30).expect("a registry");
    let admission = registry.admit("test", &objectives(64 * MIB)).expect("room");
    let job = Job::attach(registry.clone(), admission.block()).expect("a slot");
    assert_eq!(job.charge(50 * MIB), Charge::Ok);
    registry.set_outside(admission.block(), 10 * MIB as i64);
    assert_eq!(job.unused(), 4 * MIB as i64);
    assert!(!job.active());
    assert_eq!(job.charge(5 * MIB), Charge::Over { by: MIB });
    assert!(job.active(), "a job that is short compresses");
    assert_eq!(job.unused(), GRACE_BYTES - MIB as i64);
    assert_eq!(registry.implicit().unused(), (1 << 30) - 64 * MIB as i64 - GRACE_BYTES);
    assert_eq!(admission.ledger().events(), 1);
    registry.set_outside(admission.block(), 2 * MIB as i64);
    job.uncharge(20 * MIB);
    assert_eq!((job.unused(), admission.ledger().borrowed()), (27 * MIB as i64, 0));
    job.leave();
    assert_eq!(job.unused(), 62 * MIB as i64);
    drop(admission);
    assert_eq!(registry.implicit().unused(), 1 << 30);
}

#[test]
fn garbage_is_no_registry() {
    let file = tempfile::tempfile().expect("a file");
    file.set_len(1 << 20).expect("grown");
    assert!(matches!(Registry::from_fd(file.into()), Err(Error::NotARegistry)));
    for number in [-1, 0, 1, 2, 500_000] {
        assert!(matches!(Registry::from_inherited(number), Err(Error::NotARegistry)), "{number}");
    }
}
