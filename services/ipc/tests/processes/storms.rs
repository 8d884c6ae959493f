// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Peers that die while calls are unanswered and both pools grow, in every mode.
//!
//! - **Goal** whoever waits has an error soon after the hang-up, in whatever step and mode; the survivor keeps nothing
//! - **Method** failpoints × modes × sides, with three calls that are never answered and sizes that make either pool grow; random times in
//!   the soak. A call that does not end is found by its thread not ending, not by how long it takes

use crate::alone;
use crate::kills::{Survivor, ends, quantiles, says_gone, signal};
use crate::peer::{Footprint, LONG, Peer, eventually, small, unique};
use memlift_ipc::failpoint::{Act, Side};
use memlift_ipc::{AsyncClient, Client, Error, Job, Outgoing, Watch};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How a storm calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Sync,
    Async,
    Pipelined,
    Watch,
    Future,
}

impl Mode {
    pub const ALL: [Mode; 5] = [Mode::Sync, Mode::Async, Mode::Pipelined, Mode::Watch, Mode::Future];

    /// The role of a child that calls like this without end.
    fn role(self) -> String {
        format!("storm {self:?}")
    }

    pub fn of_role(role: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.role() == role)
    }
}

/// Sizes of requests and replies: in the message, in the first segment, and each beyond what is there.
const SIZES: [usize; 6] = [40, 5_000, 70_000, 300_000, 1_500_000, 5_000_000];

/// One session in that mode.
pub fn storm(address: &str, mode: Mode) -> Result<(), Error> {
    let client = Client::connect(address, small())?;
    let held = (0..3u8).map(|i| client.call_async("hold", vec![i; 5_000].as_slice(), None));
    let held: Vec<Job> = held.collect::<Result<_, _>>()?;
    match mode {
        Mode::Sync => SIZES.iter().try_for_each(|&bytes| {
            let data = vec![7; bytes];
            client.call("echo", data.as_slice(), None).map(|answer| assert!(answer.to_vec() == data))
        })?,
        Mode::Async => {
            for bytes in SIZES {
                let jobs = (0..3u8).map(|i| client.call_async("echo", vec![i; bytes].as_slice(), None));
                for (i, job) in jobs.collect::<Result<Vec<Job>, _>>()?.iter_mut().enumerate() {
                    assert!(job.wait(None)?.to_vec() == vec![i as u8; bytes]);
                }
            }
        }
        Mode::Pipelined => {
            let mut pipeline = client.pipeline(4);
            for bytes in SIZES {
                for i in 0..3 {
                    pipeline.submit("echo", vec![i; bytes].as_slice(), None)?;
                }
            }
            while let Some((_, answer)) = pipeline.next(None)? {
                answer?;
            }
        }
        Mode::Watch => watched(&Watch::new(client.clone())?)?,
        Mode::Future => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
            runtime.block_on(async {
                let calls = AsyncClient::tokio(client.clone())?;
                for bytes in SIZES {
                    let (one, other) = (vec![1; bytes], vec![2; bytes]);
                    let both = tokio::join!(
                        calls.call("echo", one.as_slice(), None),
                        calls.call("echo", other.as_slice(), None)
                    );
                    assert!(both.0?.to_vec() == one && both.1?.to_vec() == other);
                }
                Ok::<(), Error>(())
            })?;
        }
    }
    if !matches!(mode, Mode::Watch | Mode::Future) {
        client.idle_for_a_while();
        client.check()?;
    }
    drop(held);
    Ok(())
}

fn watched(watch: &Watch) -> Result<(), Error> {
    for bytes in SIZES {
        let data = vec![7; bytes];
        let outgoing = Outgoing::from(data.as_slice());
        let mut wanted = Vec::new();
        while wanted.len() < 3 {
            wanted.extend(watch.post("echo", &outgoing, None)?);
            for (id, answer) in watch.turn(false)? {
                answer?;
                wanted.retain(|&own| own != id);
            }
        }
        watch.flush();
        while !wanted.is_empty() {
            let mut readable = [PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN)];
            poll(&mut readable, None).unwrap();
            for (id, answer) in watch.turn(true)? {
                answer?;
                wanted.retain(|&own| own != id);
            }
        }
    }
    Ok(())
}

/// Storms in a thread of its own until the session ends, which it must; gives the error and when it came.
struct Storming(mpsc::Receiver<(Instant, Error)>);

impl Storming {
    fn start(address: &str, mode: Mode) -> Storming {
        let (say, said) = mpsc::channel();
        let address = address.to_owned();
        std::thread::spawn(move || {
            loop {
                if let Err(error) = storm(&address, mode) {
                    let _ = say.send((Instant::now(), error));
                    return;
                }
            }
        });
        Storming(said)
    }

    fn ended(self, what: &str) -> (Instant, Error) {
        self.0.recv_timeout(LONG).unwrap_or_else(|_| panic!("{what}: the calls do not end"))
    }
}

#[test]
fn a_server_may_die_at_any_step_while_calls_wait_and_pools_grow() {
    let _alone = alone();
    let before = Footprint::settled();
    for mode in Mode::ALL {
        for end in ends(Side::Server).filter(|end| end.act == Act::Kill) {
            let address = unique("storm-server");
            let mut server = Peer::spawn("server", &address, Some(end));
            let _ready = server.line();
            let storming = Storming::start(&address, mode);
            // Some steps are no part of some modes.
            let what = format!("{mode:?} {end:?}");
            let ended = match storming.0.recv_timeout(Duration::from_millis(500)) {
                Ok(ended) => ended,
                Err(_) => {
                    server.signal(Signal::KILL);
                    storming.ended(&what)
                }
            };
            assert!(says_gone(&ended.1), "{what}: {:?}", ended.1);
            server.wait();
            before.comes_back();
        }
    }
}

#[test]
fn a_client_may_die_at_any_step_while_calls_wait_and_pools_grow() {
    let _alone = alone();
    let address = unique("storm-client");
    let survivor = Survivor::new(&address);
    for mode in Mode::ALL {
        for end in ends(Side::Client).filter(|end| end.act == Act::Kill) {
            let client = Peer::spawn(&mode.role(), &address, Some(end));
            let storming = Instant::now();
            while !client.has_ended() && storming.elapsed() < Duration::from_millis(500) {
                std::thread::sleep(Duration::from_millis(1));
            }
            client.signal(Signal::KILL);
            assert_eq!(client.wait(), signal(Act::Kill), "{mode:?} {end:?}");
            survivor.has_lost_nothing(&address);
        }
    }
}

/// A server that stands still reads neither its ring nor its socket: a call that has to tell it of a segment ends by its own limit.
#[test]
fn a_stopped_server_does_not_hold_up_calls_that_grow_the_pool() {
    let _alone = alone();
    let address = unique("storm-stopped");
    let mut server = Peer::spawn("server", &address, None);
    assert_eq!(server.line().as_deref(), Some("ready"));
    let client = Client::connect(&address, small()).unwrap();
    client.call("echo", b"x".as_slice(), None).unwrap();
    server.signal(Signal::STOP);
    server.is_stopped();
    let (say, said) = mpsc::channel();
    let calling = client.clone();
    std::thread::spawn(move || {
        // Each takes a segment of its own, and the socket holds only a few packets.
        for round in 0..40 {
            let data = vec![1; 1_000_000];
            let late = calling.call("echo", data.as_slice(), Some(Duration::from_millis(5))).unwrap_err();
            assert!(matches!(late, Error::DeadlineExceeded { .. }), "{round}: {late}");
        }
        say.send(()).unwrap();
    });
    said.recv_timeout(LONG).expect("every call ends by its limit");
    client.check().expect("a peer that stops has not ended its session");
    server.signal(Signal::CONT);
    assert_eq!(client.call("echo", b"again".as_slice(), None).unwrap().to_vec(), b"again");
    // Now one that waits for the socket when the server dies.
    server.signal(Signal::STOP);
    server.is_stopped();
    let waiting = std::thread::spawn(move || {
        let jobs: Vec<_> =
            (0..40).map(|_| client.call_async("hold", vec![1; 3_000_000].as_slice(), None)).collect();
        let answers = jobs.into_iter().map(|job| job.and_then(|mut job| job.wait(None).map(drop)));
        answers.map(|answer| answer.unwrap_err()).collect::<Vec<_>>()
    });
    std::thread::sleep(Duration::from_millis(300));
    server.signal(Signal::KILL);
    eventually("the end of all calls", || waiting.is_finished());
    let errors = waiting.join().unwrap();
    assert!(errors.iter().all(says_gone), "{errors:?}");
}

/// Kills at random times, `count` per side and mode.
fn storms(count: u64) {
    let survivor_address = unique("storms");
    let survivor = Survivor::new(&survivor_address);
    let mut random = 88_172_645_463_325_252u64;
    for mode in Mode::ALL {
        let (mut reclaimed, mut told) = (Vec::new(), Vec::new());
        for _ in 0..count {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let pause = Duration::from_micros(random % 40_000);
            let address = unique("storms-server");
            let mut server = Peer::spawn("server", &address, None);
            assert_eq!(server.line().as_deref(), Some("ready"));
            let storming = Storming::start(&address, mode);
            std::thread::sleep(pause);
            server.signal(Signal::KILL);
            assert_eq!(server.line(), None);
            let start = Instant::now();
            let (end, error) = storming.ended(&format!("{mode:?}"));
            assert!(says_gone(&error), "{mode:?}: {error:?}");
            told.push(end.saturating_duration_since(start));
            server.wait();

            let mut client = Peer::spawn(&mode.role(), &survivor_address, None);
            eventually("its session", || survivor.server.stats().sessions == 2);
            std::thread::sleep(pause);
            client.signal(Signal::KILL);
            assert_eq!(client.line(), None);
            let start = Instant::now();
            survivor.forgets();
            reclaimed.push(start.elapsed());
            client.wait();
            survivor.before.comes_back();
        }
        println!(
            "{mode:?}: error after the hang-up of a server: {}; session of a client gone: {}",
            quantiles(told),
            quantiles(reclaimed)
        );
    }
    survivor.has_lost_nothing(&survivor_address);
}

#[test]
fn kills_at_random_times_leave_nobody_waiting() {
    let _alone = alone();
    storms(4);
}

#[test]
#[ignore = "long: run by make soak"]
fn soak_storms() {
    let _alone = alone();
    storms(std::env::var("MEMLIFT_KILLS").map_or(10_000, |text| text.parse().unwrap()) / 10);
}
