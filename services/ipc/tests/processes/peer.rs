// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The other process: this program again, with a role, at whose end or failpoint it ends.
//!
//! - **Flow** `Peer::spawn(role, address, …)` ─▶ `child()` in `main.rs` ─▶ `play_role` ─▶ lines on stdout ─▶ `Peer::line`
//! - **Owner** a `Peer` that is dropped is killed and waited for; a child whose parent is gone reads the end of its stdin

use memlift_ground::complete::WaitPolicy;
use memlift_ground::region::{HugePages, Region, RegionOptions};
use memlift_ipc::failpoint::{Act, Step, arm};
use memlift_ipc::{
    Client, ClientOptions, Error, Outgoing, Payload, Reply, Request, Responder, Server, ServerOptions,
};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Long enough for any machine; a peer that sees a hang-up never waits for it.
pub const LONG: Duration = Duration::from_secs(30);

const ROLE: &str = "MEMLIFT_TEST_ROLE";
const ADDRESS: &str = "MEMLIFT_TEST_ADDRESS";
const ARMED: &str = "MEMLIFT_TEST_ARMED";
const USER: &str = "MEMLIFT_TEST_USER";
/// A user and a group that no process of the tests has otherwise.
pub const NOBODY: u32 = 65_534;

/// Where and how a process is to end.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub step: Step,
    pub nth: u64,
    pub act: Act,
}

pub struct Peer {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Peer {
    pub fn spawn(role: &str, address: &str, end: Option<End>) -> Peer {
        Peer::spawn_by(&[], role, address, end)
    }

    /// One that runs as [`NOBODY`].
    pub fn spawn_as_nobody(role: &str, address: &str) -> Peer {
        Peer::start(Peer::command(&[], role, address, None).env(USER, NOBODY.to_string()))
    }

    /// Started by another command, which takes its own after these arguments.
    pub fn spawn_by(by: &[&str], role: &str, address: &str, end: Option<End>) -> Peer {
        Peer::start(&mut Peer::command(by, role, address, end))
    }

    fn command(by: &[&str], role: &str, address: &str, end: Option<End>) -> Command {
        let own = std::env::current_exe().unwrap();
        let mut command = Command::new(by.first().map_or(own.as_os_str(), |by| by.as_ref()));
        if !by.is_empty() {
            command.args(&by[1..]).arg(own);
        }
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(ADDRESS, address);
        if let Some(End { step, nth, act }) = end {
            command.env(ARMED, format!("{step:?} {nth} {act:?}"));
        }
        command
    }

    fn start(command: &mut Command) -> Peer {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Peer { child, output }
    }

    /// Returns the next line that the child gave to `say`; `None`: it has ended.
    pub fn line(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).unwrap_or(0) == 0 {
                return None;
            }
            // The harness writes to the same stream, and does not always end its lines.
            if let Some(at) = line.find("say: ") {
                return Some(line[at + 5..].trim_end().to_owned());
            }
        }
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// CPU time of all its threads.
    pub fn cpu(&self) -> Duration {
        // The kernel's name for another process's clock.
        let clock = (!Pid::from_child(&self.child).as_raw_nonzero().get()) << 3 | 2;
        cpu_of(clock)
    }

    /// Returns true if it has ended.
    pub fn has_ended(&self) -> bool {
        // Left to be waited for, so that its number is still its own.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&self.child)), options).unwrap().is_some()
    }

    /// Returns when all its threads are stopped.
    pub fn is_stopped(&self) {
        waitid(WaitId::Pid(Pid::from_child(&self.child)), WaitIdOptions::STOPPED).unwrap();
    }

    /// Lets it end by itself.
    pub fn end(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Waits for its end, with its pipes closed; gives the signal that ended it, if it was one.
    pub fn wait(mut self) -> Option<i32> {
        drop(self.child.stdin.take());
        self.child.wait().unwrap().signal()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a CPU clock of the kernel.
pub fn cpu_of(clock: i32) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    assert_eq!(unsafe { libc::clock_gettime(clock, &raw mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub fn say(text: &str) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "say: {text}").and_then(|()| output.flush()).expect("the parent reads");
}

/// Does what the environment says, if it says something, and ends the process.
pub fn play_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let address = std::env::var(ADDRESS).unwrap();
    // An abort is not to leave its memory on disk.
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(rustix::process::Resource::Core, none).unwrap();
    if let Ok(armed) = std::env::var(ARMED) {
        let words: Vec<&str> = armed.split(' ').collect();
        let step = Step::ALL.iter().find(|step| format!("{step:?}") == words[0]).unwrap();
        let act = [Act::Kill, Act::Abort, Act::Stop].into_iter().find(|act| format!("{act:?}") == words[2]);
        assert!(arm(*step, words[1].parse().unwrap(), act.unwrap()));
    }
    if let Ok(user) = std::env::var(USER) {
        let user = user.parse().unwrap();
        // SAFETY: no preconditions; the whole process changes, groups first.
        let done = unsafe { (libc::setgroups(0, std::ptr::null()), libc::setgid(user), libc::setuid(user)) };
        assert_eq!(done, (0, 0, 0));
    }
    match role.as_str() {
        "client" => say(&match exercise(&address) {
            Ok(_) => "done".to_owned(),
            Err(error) => format!("{error:?}"),
        }),
        "restless client" => loop {
            exercise(&address).unwrap();
        },
        "copied client" => {
            let client = Client::connect(&address, small()).unwrap();
            let _job = client.call_async("hold", [1; 5_000].as_slice(), None).unwrap();
            leave_copies();
            say("ready");
            until_the_parent_ends();
        }
        "large client" => say(&match crate::boxes::large(&address) {
            Ok(()) => "done".to_owned(),
            Err(error) => format!("{error:?}"),
        }),
        "greedy client" => crate::boxes::greedy(&address),
        "crowded client" => crate::boxes::crowded(&address),
        "crowded server" => {
            limit_descriptors(64);
            let _server = serve(&address, ServerOptions::default());
            say("ready");
            until_the_parent_ends();
        }
        "server" | "blocking server" => {
            let wait = if role == "server" { WaitPolicy::AUTO } else { WaitPolicy::BLOCK };
            let server = serve(&address, ServerOptions { wait, ..ServerOptions::default() });
            server
                .register("leave copies", |_| {
                    leave_copies();
                    Ok(Reply::none())
                })
                .unwrap();
            say("ready");
            until_the_parent_ends();
        }
        "shared server" => {
            let _server = serve(&address, ServerOptions { shared: true, ..ServerOptions::default() });
            say("ready");
            until_the_parent_ends();
        }
        "joiner" => say(&crate::shared::join(&address, &crate::shared::JOIN).to_string()),
        "large server" => {
            touch(crate::deaths::gib());
            let _server = serve(&address, ServerOptions::default());
            say("ready");
            until_the_parent_ends();
        }
        other => match crate::storms::Mode::of_role(other) {
            Some(mode) => loop {
                crate::storms::storm(&address, mode).unwrap();
            },
            None => panic!("no role {other}"),
        },
    }
    std::process::exit(0);
}

/// Leaves a process that holds a copy of every descriptor, as a child does that was made without the C library's knowledge. It ends when
/// the parent lets go of this process's stdin.
fn leave_copies() {
    // SAFETY: the child makes system calls only, and ends by one.
    unsafe {
        if libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) == 0 {
            let mut byte = 0_u8;
            while libc::read(0, (&raw mut byte).cast(), 1) > 0 {}
            libc::_exit(0);
        }
    }
}

/// Touches so many GiB, page by page, and keeps them.
pub fn touch(gib: u64) {
    let bytes = gib << 30;
    let options = RegionOptions { huge_pages: HugePages::Never, ..RegionOptions::default() };
    std::mem::forget(Region::anonymous(bytes, &options).unwrap());
}

pub fn until_the_parent_ends() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// A server with operations for every way through a session.
pub fn serve(address: &str, options: ServerOptions) -> Server {
    let server = Server::bind(address, options).unwrap();
    let echo = |request: &Request| Ok(Reply::bytes(request.to_vec()));
    server.register("echo", echo).unwrap();
    server.register("fail", |_| Err("no luck today".into())).unwrap();
    let kept: Arc<Mutex<Vec<Payload>>> = Arc::default();
    let held: Arc<Mutex<Vec<(Request, Responder)>>> = Arc::default();
    let (keep, hold) = (Arc::clone(&kept), Arc::clone(&held));
    // Not answered before somebody forgets it.
    let hold = move |request, responder| hold.lock().unwrap().push((request, responder));
    server.register_raw("hold", hold).unwrap();
    server
        .register("keep", move |request| {
            keep.lock().unwrap().push(request.payload().clone());
            Ok(Reply::none())
        })
        .unwrap();
    server
        .register("forget", move |_| {
            let forgotten = std::mem::take(&mut *kept.lock().unwrap());
            drop(std::mem::take(&mut *held.lock().unwrap()));
            Ok(Reply::bytes(forgotten.len().to_string()))
        })
        .unwrap();
    server.start().unwrap();
    server
}

/// So many descriptors and no more.
pub fn limit_descriptors(count: u64) {
    let limit = rustix::process::Rlimit { current: Some(count), maximum: Some(count) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
}

/// Pools so small that they have to grow.
pub fn small() -> ClientOptions {
    ClientOptions {
        request_pool_bytes: 64 << 10,
        response_pool_bytes: 64 << 10,
        timeout: Some(LONG),
        ..ClientOptions::default()
    }
}

/// One session with everything in it: sync, async and pipelined calls, small and large, loans, failures, kept requests.
pub fn exercise(address: &str) -> Result<Client, Error> {
    let client = Client::connect(address, small())?;
    let outcome = calls(&client);
    match outcome {
        Ok(()) => Ok(client),
        Err(error) => {
            assert_eq!(client.stats().outstanding, 0, "a session that ended has no unanswered call");
            assert_eq!(client.stats().request_used_bytes, 0, "nor a slot in use: {error}");
            assert!(client.call("echo", b"x".as_slice(), None).is_err(), "it stays ended");
            Err(error)
        }
    }
}

fn calls(client: &Client) -> Result<(), Error> {
    // From 4 MiB on, a sleeping server is woken before the copy is complete.
    let large: Vec<u8> =
        (0..(4 << 20) + 5_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let echo = |bytes: &[u8]| -> Result<(), Error> {
        assert!(client.call("echo", bytes, None)?.to_vec() == bytes);
        Ok(())
    };
    echo(b"")?;
    echo(b"small")?;
    echo(&large)?;
    let mut jobs = Vec::new();
    for i in 0..3u8 {
        jobs.push((i, client.call_async("echo", vec![i; 500].as_slice(), None)?));
    }
    for (i, mut job) in jobs {
        assert_eq!(job.wait(None)?.to_vec(), vec![i; 500]);
    }
    let mut pipeline = client.pipeline(3);
    for i in 0..8u8 {
        pipeline.submit("echo", vec![i; 9000].as_slice(), None)?;
    }
    while let Some((_, answer)) = pipeline.next(None)? {
        assert_eq!(answer?.bytes(), 9000);
    }
    let mut loan = client.loan(3000)?;
    loan.write_at(0, &[9; 3000]);
    assert_eq!(client.call("echo", &loan, None)?.to_vec(), [9; 3000]);
    drop(loan);
    for operation in ["fail", "nothing of that name"] {
        match client.call(operation, Outgoing::none(), None) {
            Err(Error::Remote(_)) => {}
            Err(other) => return Err(other),
            Ok(_) => panic!("{operation} worked"),
        }
    }
    client.call("keep", &large[..200_000], None)?;
    client.call("forget", Outgoing::none(), None)?;
    // The releases come before this answer, or before the next.
    echo(b"last")?;
    echo(b"last")?;
    // The large segments go back, and come again.
    client.idle_for_a_while();
    let stats = client.stats();
    if client.check().is_ok() {
        assert_eq!((stats.request_pool_bytes, stats.response_pool_bytes), (64 << 10, 64 << 10));
    }
    echo(&large)
}

/// Descriptors of a process, and the segments of sessions that it has mapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Footprint {
    descriptors: usize,
    /// Mapped segments, with their lengths.
    segments: Vec<String>,
}

impl Footprint {
    pub fn own() -> Footprint {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let of_sessions = |line: &&str| {
            ["control", "request", "response"]
                .iter()
                .any(|what| line.contains(&format!("memfd:memlift-{what}")))
        };
        let segments = maps.lines().filter(of_sessions);
        let mut segments: Vec<String> =
            segments.map(|line| line.split(' ').next().unwrap().to_owned()).collect();
        segments.sort_unstable();
        Footprint { descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(), segments }
    }

    /// Returns the footprint when it stays the same: threads that were still letting go of something have done so.
    pub fn settled() -> Footprint {
        let (mut seen, mut times) = (Footprint::own(), 0);
        while times < 10 {
            std::thread::sleep(Duration::from_millis(2));
            let now = Footprint::own();
            times = if now == seen { times + 1 } else { 0 };
            seen = now;
        }
        seen
    }

    /// Returns when this process holds as much as it did.
    pub fn comes_back(&self) {
        let end = Instant::now() + LONG;
        while Footprint::own() != *self {
            assert!(Instant::now() < end, "before {self:#?}, now {:#?}", Footprint::own());
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Returns when `condition` holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// An address of its own.
pub fn unique(name: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{name}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
