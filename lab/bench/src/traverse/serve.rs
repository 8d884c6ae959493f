// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Servers in threads of this process, on the nodes' core: a memory node, and the native handler that stands in for one.
//!
//! - **Flow** [`Place::listen`] ─▶ a thread that serves ─▶ [`Server::link`]: a client's end of the same transport
//! - **Layout** both sides speak the nodes' packets, so that bytes, batches and system calls are the same; handlers answer with the value
//!   alone
//! - **Order** a handler carries a request to its end before it takes the next one
//! - **Owner** dropping a [`Serving`] stops and joins its thread; a server with nothing to do sleeps, and costs the other side nothing

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use memlift_ground::complete::WaitPolicy;
use memlift_traverse::node::{Alone, Node};
use memlift_traverse::transport::shm::Shm;
use memlift_traverse::transport::udp::Udp;
use memlift_traverse::transport::{Peer, Transport};
use memlift_traverse::wire::{Header, Packet, Status};

use super::pin::{Held, Role};
use crate::BenchError;

/// Packets taken at a time, as a node does.
const BATCH: usize = 64;
const SLEEP: Duration = Duration::from_millis(50);

/// How packets travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// A ring in shared memory.
    Shm,
    /// UDP on the loopback interface.
    Udp,
}

impl Over {
    /// Names the transport in words.
    pub fn text(self) -> &'static str {
        match self {
            Over::Shm => "rings in shared memory",
            Over::Udp => "UDP on loopback",
        }
    }
}

/// For `map_err` on errors of nodes, clients and transports.
pub fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Library { library: "memlift traverse".to_owned(), reason: error.to_string() }
}

/// Answers requests; the answer's body is appended.
pub trait Handler: Send + 'static {
    /// Carries out one request.
    fn answer(&mut self, header: &Header, body: &[u8], answer: &mut Vec<u8>) -> Status;
}

impl Handler for Box<dyn Handler> {
    fn answer(&mut self, header: &Header, body: &[u8], answer: &mut Vec<u8>) -> Status {
        (**self).answer(header, body, answer)
    }
}

impl<F: FnMut(&Header, &[u8], &mut Vec<u8>) -> Status + Send + 'static> Handler for F {
    fn answer(&mut self, header: &Header, body: &[u8], answer: &mut Vec<u8>) -> Status {
        self(header, body, answer)
    }
}

/// Where a server listens.
#[derive(Clone, Debug)]
pub enum Place {
    /// A ring's name.
    Ring(String),
    /// Address of a UDP socket.
    Socket(SocketAddr),
}

impl Place {
    /// Listens somewhere new.
    pub fn listen(over: Over) -> Result<(Place, Box<dyn Transport>), BenchError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ok(match over {
            Over::Shm => {
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                let name = format!("bench-{}-{number}", std::process::id());
                let shm = Shm::listen(&name).map_err(failed)?;
                (Place::Ring(name), Box::new(shm))
            }
            Over::Udp => {
                let udp = Udp::bind(SocketAddr::from(([127, 0, 0, 1], 0)), false).map_err(failed)?;
                (Place::Socket(udp.address()), Box::new(udp))
            }
        })
    }
}

/// A client's end, and the peer that it asks.
#[derive(Debug)]
pub struct Link {
    /// Transport that carries the packets.
    pub transport: Box<dyn Transport>,
    /// The server as the transport addresses it.
    pub to: Peer,
}

/// A thread that serves until it is dropped.
#[derive(Debug)]
pub struct Serving {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Runs `serve`, which ends when it sees the flag, or returns why it ended before.
    pub fn start(
        serve: impl FnOnce(&AtomicBool) -> Result<(), String> + Send + 'static,
    ) -> Result<Serving, BenchError> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move || {
            let _held = Held::new(Role::Node);
            if let Err(reason) = serve(&stopped) {
                eprintln!("a server of the bench ended: {reason}");
            }
        };
        let thread = std::thread::Builder::new().name("bench-node".to_owned()).spawn(run);
        Ok(Serving { stop, thread: Some(thread.map_err(BenchError::system("starting a thread"))?) })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// Where it listens.
    pub place: Place,
    _serving: Serving,
}

impl Server {
    /// One shard of a node.
    pub fn node(node: &Node, over: Over) -> Result<Server, BenchError> {
        let (place, transport) = Place::listen(over)?;
        let mut shard = node.shard(transport, Box::new(Alone));
        let serving = Serving::start(move |stop| shard.serve(stop).map_err(|error| error.to_string()))?;
        Ok(Server { place, _serving: serving })
    }

    /// A native handler.
    pub fn native(over: Over, mut handler: impl Handler) -> Result<Server, BenchError> {
        let (place, mut transport) = Place::listen(over)?;
        let serving = Serving::start(move |stop| {
            let (mut out, mut body, mut ends) = (Vec::new(), Vec::new(), Vec::new());
            while !stop.load(Ordering::Relaxed) {
                let mut take = |peer: Peer, bytes: &[u8]| {
                    let Ok(packet) = Packet::parse(bytes) else { return };
                    body.clear();
                    let status = handler.answer(&packet.header, packet.body, &mut body);
                    packet.header.answer(status).format(&body, &mut out);
                    ends.push((peer, out.len()));
                };
                let got = transport.receive(BATCH, &mut take).map_err(|error| error.to_string())?;
                let mut start = 0;
                for (peer, end) in ends.drain(..) {
                    transport.send(peer, &out[start..end]).map_err(|error| error.to_string())?;
                    start = end;
                }
                out.clear();
                transport.flush().map_err(|error| error.to_string())?;
                if got == 0 {
                    transport.wait(SLEEP).map_err(|error| error.to_string())?;
                }
            }
            Ok(())
        })?;
        Ok(Server { place, _serving: serving })
    }

    /// Returns a client's end, which waits in this way. Make it before the thread is held: on one core no thread spins.
    pub fn link(&self, wait: WaitPolicy) -> Result<Link, BenchError> {
        Ok(match &self.place {
            Place::Ring(name) => {
                let shm = Shm::connect(name).map_err(failed)?.waiting(wait);
                Link { transport: Box::new(shm), to: Peer::Ring(0) }
            }
            Place::Socket(socket) => {
                let udp = Udp::bind(SocketAddr::from(([127, 0, 0, 1], 0)), false).map_err(failed)?;
                Link { transport: Box::new(udp.waiting(wait)), to: Peer::Socket(*socket) }
            }
        })
    }
}
