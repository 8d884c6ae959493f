// SPDX-License-Identifier: Apache-2.0 OR MIT
//! memlift as a side of a row: 64 bytes there, 8 bytes back, both sides spin, every word written and read.
//!
//! - **Flow** this program, started again as `ipc call`, starts itself once more as `ipc serve NAME`, connects, and takes the wishes of
//!   persist's parties from stdin, as engines/ipc/rust/src/main.rs does for iceoryx2
//! - **Layout** a request is eight words, its answer their exclusive or; `cpu` answers the server's CPU time, ns · `step` counts the
//!   instructions of [`STEPPED`] calls, whose answers are there long before the stepped client looks
//! - **Owner** the server ends with its stdin, the client with its own

use std::ffi::OsString;
use std::io::{BufRead, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use memlift_ground::complete::WaitPolicy;
use memlift_ipc::{Client, ClientOptions, Server, ServerOptions};
use serde_json::json;

use crate::child::Bound;
use crate::contender::CHILD_ARGUMENT;
use crate::persist::party::Ran;
use crate::persist::steps;
use crate::{BenchError, machine};

/// Word after [`CHILD_ARGUMENT`] that starts a side.
pub(crate) const NAME: &str = "ipc";

type Words = [u64; 8];

/// Calls that are stepped through.
const STEPPED: u64 = 16;

fn failed(error: memlift_ipc::Error) -> BenchError {
    BenchError::Engine { reason: error.to_string() }
}

fn this_program(words: &[&str]) -> Result<Command, BenchError> {
    let program = std::env::current_exe().map_err(BenchError::system("finding this program"))?;
    let mut command = Command::new(program);
    command.arg(CHILD_ARGUMENT).arg(NAME).args(words);
    Ok(command)
}

/// The client's process.
pub fn party() -> Result<Command, BenchError> {
    this_program(&["call"])
}

/// Runs as a side.
pub(crate) fn serve(arguments: impl Iterator<Item = OsString>) -> Result<(), BenchError> {
    let words: Vec<String> = arguments.filter_map(|word| word.into_string().ok()).collect();
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", name] => answer(name),
        ["call"] => call(),
        _ => Err(BenchError::Answer { program: "whoever started this side".into(), answer: words.join(" ") }),
    }
}

fn answer(name: &str) -> Result<(), BenchError> {
    let options = ServerOptions { wait: WaitPolicy::SPIN, handlers: 1, ..ServerOptions::default() };
    let server = Server::bind(name, options).map_err(failed)?;
    server
        .register_typed("xor64", |words: Words| Ok(words.iter().fold(0, |sum, word| sum ^ word)))
        .map_err(failed)?;
    server.register_typed("cpu", |_: u64| Ok((machine::cpu_seconds() * 1e9) as u64)).map_err(failed)?;
    server.start().map_err(failed)?;
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new()).map_err(BenchError::system("waiting for the client"))?;
    Ok(())
}

/// One step of splitmix64, as the rival draws.
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (word ^ (word >> 31)) & !(1 << 63)
}

/// One call with the next draws; gives its answer.
fn once(client: &Client, state: &mut u64) -> Result<u64, BenchError> {
    let words: Words = std::array::from_fn(|_| draw(state));
    let answer: u64 = client.call_typed("xor64", &words, None).map_err(failed)?;
    if answer == words.iter().fold(0, |sum, word| sum ^ word) {
        return Ok(answer);
    }
    let answer = "the server read other bytes than were sent".to_owned();
    Err(BenchError::Answer { program: NAME.to_owned(), answer })
}

fn run(client: &Client, seed: u64, count: u64) -> Result<Ran, BenchError> {
    let server_ns = || client.call_typed::<u64, u64>("cpu", &0, None).map_err(failed);
    let (mut state, mut checksum) = (seed, 0u64);
    let (theirs, ours, start) = (server_ns()?, machine::cpu_seconds(), Instant::now());
    for _ in 0..count {
        checksum = checksum.rotate_left(1) ^ once(client, &mut state)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let cpu_s = machine::cpu_seconds() - ours + (server_ns()? - theirs) as f64 * 1e-9;
    Ok(Ran { seconds, cpu_s, checksum: format!("{checksum:016x}"), ..Ran::default() })
}

fn step(client: &Client) -> Result<(), BenchError> {
    let mut state = 1;
    once(client, &mut state)?;
    steps::stop();
    steps::stop();
    for _ in 0..STEPPED {
        once(client, &mut state)?;
    }
    steps::stop();
    Ok(())
}

fn call() -> Result<(), BenchError> {
    let name = format!("memlift-bench-echo-{}", std::process::id());
    let piped = |what: &'static str| BenchError::system(what);
    let mut server =
        Bound::start(this_program(&["serve", &name])?.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
    let mut ready = [0; 6];
    let out = server.process().stdout.as_mut().expect("stdout is piped");
    out.read_exact(&mut ready).map_err(piped("waiting for the server"))?;
    let options = ClientOptions {
        wait: WaitPolicy::SPIN,
        timeout: Some(Duration::from_secs(60)),
        ..ClientOptions::default()
    };
    let client = Client::connect(&name, options).map_err(failed)?;
    let mut out = std::io::stdout().lock();
    let mut say = |value: serde_json::Value| {
        writeln!(out, "{value}").and_then(|()| out.flush()).map_err(piped("answering a wish"))
    };
    let version = env!("CARGO_PKG_VERSION");
    say(
        json!({"about": format!("memlift {version} from Rust, records of 64 and 8 bytes, both sides spin")}),
    )?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(piped("reading a wish"))?;
        let words: Vec<&str> = line.split(' ').collect();
        let numbers: Vec<u64> = words.iter().skip(1).filter_map(|word| word.parse().ok()).collect();
        match (&words[..], &numbers[..]) {
            (["run", ..], &[seed, count]) => {
                say(serde_json::to_value(run(&client, seed, count)?).expect("plain data"))?;
            }
            (["step"], []) => {
                step(&client)?;
                say(json!({"transactions": STEPPED}))?;
            }
            _ => {
                return Err(BenchError::Answer { program: "whoever started this side".into(), answer: line });
            }
        }
    }
    drop(server.process().stdin.take());
    Ok(())
}
