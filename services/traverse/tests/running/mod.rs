// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node that a thread of this process serves until its owner is dropped. A panic of that thread fails the test.
#![allow(dead_code, reason = "each test program uses a part")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use memlift_traverse::client::{Client, Config};
use memlift_traverse::node::{Alone, BASE, Node, NodeOptions, Router};
use memlift_traverse::transport::Transport;
use memlift_traverse::transport::udp::Udp;

pub struct Running {
    pub node: Node,
    at: Option<SocketAddr>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Options of a node with so much memory, at the first addresses.
pub fn options(bytes: u64) -> NodeOptions {
    NodeOptions { base: BASE, bytes, prefault: false, workspaces: Some(8), ..NodeOptions::default() }
}

impl Running {
    pub fn start(options: NodeOptions, transport: Box<dyn Transport>, router: Box<dyn Router>) -> Running {
        let at = transport.local();
        let (node, _) = Node::open(options).expect("memory, and the log opens");
        let mut shard = node.shard(transport, router);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || shard.serve(&stopped).expect("it serves"));
        Running { node, at, stop, thread: Some(thread) }
    }

    /// A node alone, at this address or at a free port.
    pub fn udp(at: Option<SocketAddr>, options: NodeOptions) -> Running {
        let any = "127.0.0.1:0".parse().expect("an address");
        let udp = Udp::bind(at.unwrap_or(any), false).expect("a port");
        Running::start(options, Box::new(udp), Box::new(Alone))
    }

    pub fn at(&self) -> SocketAddr {
        self.at.expect("a node with a socket")
    }

    pub fn client(&self) -> Client {
        let config = Config { deadline: Duration::from_secs(60), ..Config::default() };
        Client::udp(&[self.at()], config).expect("the node answers")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let served = thread.join();
            assert!(std::thread::panicking() || served.is_ok(), "the node panicked");
        }
    }
}
