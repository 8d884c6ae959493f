// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walks and maps from C: every function of memlift_traverse.h and the example, against a node in this process.

#[expect(dead_code, reason = "the other tests use the rest")]
mod program;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use memlift::traverse::node::{Alone, BASE, Node, NodeOptions};
use memlift::traverse::transport::udp::Udp;
use program::{compile, run, start};

const NODE_BYTES: u64 = 32 << 20;

/// A node, until it is dropped.
struct Running {
    place: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn new() -> Running {
        let udp = Udp::bind("127.0.0.1:0".parse().expect("an address"), false).expect("a port");
        let place = udp.address().to_string();
        let options = NodeOptions { bytes: NODE_BYTES, prefault: false, ..NodeOptions::default() };
        let (node, _) = Node::open(options).expect("memory");
        let mut shard = node.shard(Box::new(udp), Box::new(Alone));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || shard.serve(&stopped).expect("it serves"));
        Running { place, stop, thread: Some(thread) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok() || std::thread::panicking(), "the node panicked");
        }
    }
}

#[test]
fn every_function_does_what_the_header_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program");
    if !compile("tests/traverse.c", &program, false) {
        return;
    }
    let node = Running::new();
    let map = folder.path().join("map.toml");
    let text = format!(
        "epoch = 1\n[[node]]\nname = \"a\"\naddresses = [\"udp:{}\"]\n[[range]]\nbase = \"{BASE:#x}\"\nbytes = {NODE_BYTES}\nnode = \"a\"\n",
        node.place
    );
    std::fs::write(&map, text).expect("a map");
    let map = format!("file:{}", map.display());
    let said = run(start(&program).arg(folder.path()).arg(&node.place).arg(map));
    assert!(said.ends_with("all as the header says\n"), "{said}");
}

#[test]
fn the_example_averages_at_the_node() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program");
    if !compile("examples/walk.c", &program, true) {
        return;
    }
    let node = Running::new();
    let said = run(start(&program).arg(&node.place));
    assert!(
        said.starts_with("10: 20\n11: 27\n") && said.ends_with("100 prices, 24.50 on average\n"),
        "{said}"
    );
}
