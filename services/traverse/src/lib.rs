// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pointer walks that run where the data lives, many of them interleaved on a core, and from node to node without coming back.
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicBool, Ordering};
//!
//! use memlift_traverse::client::{Client, Config};
//! use memlift_traverse::node::{Alone, Node, NodeOptions};
//! use memlift_traverse::structures::HashMap;
//! use memlift_traverse::transport::udp::Udp;
//!
//! // A memory node, here in a thread; `memlift node` is the same as a program.
//! let udp = Udp::bind("127.0.0.1:0".parse()?, false)?;
//! let address = udp.address();
//! let (node, _) = Node::open(NodeOptions { bytes: 8 << 20, prefault: false, ..NodeOptions::default() })?;
//! let mut shard = node.shard(Box::new(udp), Box::new(Alone));
//! let stop = Arc::new(AtomicBool::new(false));
//! let stopped = Arc::clone(&stop);
//! let thread = std::thread::spawn(move || shard.serve(&stopped).map_err(|error| error.to_string()));
//!
//! let mut client = Client::udp(&[address], Config::default())?;
//! let mut map = HashMap::create(&mut client, 6)?; // 2^6 buckets
//! map.insert(&mut client, 7_u64, b"seven")?;
//! assert_eq!(map.get(&mut client, 7_u64)?.as_deref(), Some(&b"seven"[..])); // one round trip, however long the chain
//!
//! stop.store(true, Ordering::Relaxed);
//! thread.join().expect("no panic")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - **Flow** a program (from `builder`, or C compiled to BPF and read by `bpf`) ──▶ `lower` ──▶ `ir` ──▶ `verify` ──▶
//!   [`program::Program`]. The client sends it with `wire` over a `transport` ──▶ a node: `round` steps many walks in turn (with `jit`
//!   or `interp`) on the node's `memory`; each walk reads only the window that `verify` has proved. A walk that leaves the node's
//!   addresses continues at the next node (`map`) ──▶ answer to the client
//! - **Order** reads see whole words and may run beside a writer; each change is one compare-and-swap or addition at the owner of its
//!   address, exactly once whatever packets do (`node/once`)
//! - **Rule** safety never depends on what is in memory: only the runtime follows addresses, and checks each against ranges,
//!   permissions and the program's window
//! - **Layout** `docs/formats/{walk,packet,map}.md`
//! - **Copies** a replicated node has a backup, which gets each record before its answer leaves (`node/replica`)
//!
//! The interface is that of PULSE (`init` at the client; `next` and `end` sent to the data); the accelerator is this CPU.
#![deny(unsafe_code)]

pub mod bpf;
pub mod builder;
pub mod client;
pub mod error;
#[doc(hidden)]
pub mod generate;
pub mod interp;
pub mod ir;
#[cfg(feature = "jit")]
#[expect(unsafe_code, reason = "calls the code that it has written")]
pub mod jit;
pub mod map;
pub mod lower;
#[expect(unsafe_code, reason = "its words are atomics at addresses that were checked")]
pub mod memory;
#[expect(unsafe_code, reason = "steps walks at addresses that were checked")]
pub mod node;
pub mod program;
pub mod resolve;
#[expect(unsafe_code, reason = "prefetches, and steps what its caller vouches for")]
pub mod round;
pub mod slot;
pub mod step;
pub mod structures;
pub mod sweep;
pub mod verify;
pub mod transport;
pub mod wire;
#[cfg(feature = "xdp")]
pub mod xdp;
