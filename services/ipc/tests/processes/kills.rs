// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Peers that die at every step, at any time, and peers that stop.
//!
//! - **Goal** the survivor learns it by the hang-up; slots, descriptors and mappings are as before; a new peer is served
//! - **Method** failpoints × roles × SIGKILL and abort; random times in the soak

use crate::alone;
use crate::peer::{End, Footprint, Peer, eventually, exercise, serve, small, unique};
use memlift_ipc::failpoint::{Act, Side, Step, reached};
use memlift_ipc::{Client, Error, Outgoing, Server, ServerOptions};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// A server of this process, a client that nothing may happen to, and what the process holds then.
pub struct Survivor {
    pub server: Server,
    bystander: Client,
    pub before: Footprint,
}

impl Survivor {
    pub fn new(address: &str) -> Survivor {
        let server = serve(address, ServerOptions::default());
        let bystander = Client::connect(address, small()).unwrap();
        // A first session makes everything that a process makes once.
        drop(exercise(address).unwrap());
        eventually("the end of the first session", || server.stats().sessions == 1);
        bystander.call("forget", Outgoing::none(), None).unwrap();
        let before = Footprint::settled();
        Survivor { server, bystander, before }
    }

    /// A client is dead: its session goes, with what it had left with the server.
    pub fn forgets(&self) {
        eventually("the hang-up", || self.server.stats().sessions == 1);
        self.bystander.call("forget", Outgoing::none(), None).unwrap();
    }

    /// A client is dead: everything is as it was, and a new one is served.
    pub fn has_lost_nothing(&self, address: &str) {
        self.forgets();
        self.before.comes_back();
        drop(exercise(address).unwrap());
        eventually("the end of the new session", || self.server.stats().sessions == 1);
        self.before.comes_back();
        assert_eq!(self.server.stats().faults, 0, "dying breaks no rule");
    }
}

pub fn ends(side: Side) -> impl Iterator<Item = End> {
    let steps = Step::ALL.iter().copied().filter(move |step| [side, Side::Both].contains(&step.side()));
    steps.flat_map(|step| [Act::Kill, Act::Abort].map(|act| End { step, nth: 1, act }))
}

pub fn signal(act: Act) -> Option<i32> {
    Some(
        match act {
            Act::Kill => Signal::KILL,
            Act::Abort => Signal::ABORT,
            Act::Stop => Signal::STOP,
        }
        .as_raw(),
    )
}

/// Returns true if an error says that the server is gone, and not that time was up.
pub fn says_gone(error: &Error) -> bool {
    matches!(error, Error::PeerDied { peer: "server", .. } | Error::ServerUnavailable { .. })
}

#[test]
fn a_normal_session_takes_every_step() {
    let _alone = alone();
    let before: Vec<u64> = Step::ALL.iter().map(|&step| reached(step)).collect();
    let address = unique("steps");
    let server = serve(&address, ServerOptions::default());
    drop(exercise(&address).unwrap());
    drop(server);
    for (&step, &before) in Step::ALL.iter().zip(&before) {
        assert!(reached(step) > before, "{step:?} is never reached");
    }
}

#[test]
fn a_client_may_die_at_any_step() {
    let _alone = alone();
    let address = unique("client-dies");
    let survivor = Survivor::new(&address);
    for end in ends(Side::Client) {
        let mut client = Peer::spawn("client", &address, Some(end));
        let said = client.line();
        assert_eq!((client.wait(), said), (signal(end.act), None), "{end:?}");
        survivor.has_lost_nothing(&address);
    }
}

#[test]
fn a_server_may_die_at_any_step() {
    let _alone = alone();
    let address = unique("server-dies");
    // A first server and client make everything that a process makes once.
    drop((serve(&unique("first"), ServerOptions::default()), exercise("nobody")));
    let before = Footprint::settled();
    for end in ends(Side::Server) {
        let mut server = Peer::spawn("server", &address, Some(end));
        // Going to sleep, it may be dead before it says that it is ready.
        let _ready = server.line();
        let error = exercise(&address).map(drop).expect_err("the server died");
        assert!(says_gone(&error), "{end:?}: {error:?}");
        assert_eq!(server.wait(), signal(end.act), "{end:?}");
        before.comes_back();
    }
    let mut next = Peer::spawn("server", &address, None);
    assert_eq!(next.line().as_deref(), Some("ready"));
    drop(exercise(&address).expect("a server of the same name serves"));
}

#[test]
fn a_stopped_server_costs_its_clients_only_time() {
    let _alone = alone();
    let address = unique("server-stops");
    let end = End { step: Step::HandlerEntered, nth: 2, act: Act::Stop };
    let mut server = Peer::spawn("server", &address, Some(end));
    assert_eq!(server.line().as_deref(), Some("ready"));
    let client = Client::connect(&address, small()).unwrap();
    let request = vec![7; 30_000];
    client.call("echo", request.as_slice(), None).unwrap();
    for round in 1..=2 {
        let patience = Some(Duration::from_millis(30));
        let late = client.call("echo", request.as_slice(), patience).unwrap_err();
        assert!(matches!(late, Error::DeadlineExceeded { .. }), "{late}");
        let stats = client.stats();
        assert_eq!((stats.outstanding, stats.request_used_bytes), (round, round as u64 * 30_000));
    }
    client.check().expect("a peer that stops has not ended its session");
    server.signal(Signal::CONT);
    assert_eq!(client.call("echo", b"again".as_slice(), None).unwrap().to_vec(), b"again");
    eventually("the late answers", || {
        client.call("echo", b"x".as_slice(), None).unwrap();
        client.stats().outstanding == 0
    });
    assert_eq!(client.stats().request_used_bytes, 0, "their slots are free");

    server.signal(Signal::STOP);
    server.is_stopped();
    let late = client.call("echo", request.as_slice(), Some(Duration::from_millis(10))).unwrap_err();
    assert!(matches!(late, Error::DeadlineExceeded { .. }), "{late}");
    server.signal(Signal::KILL);
    let died = client.call("echo", b"x".as_slice(), None).unwrap_err();
    assert!(says_gone(&died), "{died}");
    assert_eq!(client.stats().request_used_bytes, 0, "death ends the lease");
}

#[test]
fn a_stopped_client_keeps_its_memory_until_it_dies() {
    let _alone = alone();
    let address = unique("client-stops");
    let survivor = Survivor::new(&address);
    let end = End { step: Step::AnswerMatched, nth: 3, act: Act::Stop };
    let mut client = Peer::spawn("client", &address, Some(end));
    client.is_stopped();
    let holding = Footprint::settled();
    assert_ne!(holding, survivor.before);
    drop(exercise(&address).expect("others are served"));
    eventually("the end of the other session", || survivor.server.stats().sessions == 2);
    holding.comes_back();
    assert_eq!(Footprint::settled(), holding, "its slots stay leased");
    client.signal(Signal::CONT);
    assert_eq!(client.line().as_deref(), Some("done"), "it goes on where it was");
    client.wait();
    survivor.has_lost_nothing(&address);

    let client = Peer::spawn("client", &address, Some(end));
    client.is_stopped();
    client.signal(Signal::KILL);
    assert_eq!(client.wait(), signal(Act::Kill));
    survivor.has_lost_nothing(&address);
}

/// Times in order, and what of them is looked at.
pub fn quantiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    format!("median {:?}, p99 {:?}, longest {:?} of {}", at(0.5), at(0.99), at(1.0), times.len())
}

/// 10,000 peers, every other one a server, killed at random times. Measured from the hang-up of their stdout, which the kernel
/// closes before the session's socket: until the server holds nothing of a client; until a client that waits has its error.
#[test]
#[ignore = "long: run by make soak"]
fn soak_random_kills() {
    let _alone = alone();
    let count: u64 = std::env::var("MEMLIFT_KILLS").map_or(10_000, |text| text.parse().unwrap());
    let (mut reclaimed, mut told) = (Vec::new(), Vec::new());
    let address = unique("soak");
    let survivor = Survivor::new(&address);
    let mut random = 88_172_645_463_325_252u64;
    for round in 0..count {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let pause = Duration::from_micros(random % 30_000);
        if round % 2 == 0 {
            let mut client = Peer::spawn("restless client", &address, None);
            eventually("its session", || survivor.server.stats().sessions == 2);
            std::thread::sleep(pause);
            // Between two of its sessions there may be none.
            let open = survivor.server.stats().sessions == 2;
            client.signal(Signal::KILL);
            assert_eq!(client.line(), None);
            let start = Instant::now();
            eventually("the hang-up", || survivor.server.stats().sessions == 1);
            survivor.bystander.call("forget", Outgoing::none(), None).unwrap();
            if open {
                reclaimed.push(start.elapsed());
            }
            client.wait();
            survivor.before.comes_back();
        } else {
            let address = unique("soak-server");
            let mut server = Peer::spawn("server", &address, None);
            assert_eq!(server.line().as_deref(), Some("ready"));
            let calls = std::thread::spawn(move || {
                loop {
                    if let Err(error) = exercise(&address) {
                        return (Instant::now(), error);
                    }
                }
            });
            std::thread::sleep(pause);
            server.signal(Signal::KILL);
            assert_eq!(server.line(), None);
            let start = Instant::now();
            let (end, error) = calls.join().unwrap();
            assert!(says_gone(&error), "{error:?}");
            told.push(end.saturating_duration_since(start));
            server.wait();
            survivor.before.comes_back();
        }
    }
    survivor.has_lost_nothing(&address);
    println!(
        "reclaimed after the hang-up: {}\nerror after the hang-up: {}",
        quantiles(reclaimed),
        quantiles(told)
    );
}
