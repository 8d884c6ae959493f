// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Call another process with arrays: sync, async and pipelined, over memory that both map.
//!
//! - **Flow** client: array ──one copy, or a loan──▶ request pool ──message──▶ request ring ─▶ server: handler sees
//!   the bytes in place ─▶ reply copied into the response pool ──message──▶ response ring ─▶ client: view
//! - **Layout** one control segment (rings, park words: [`layout`]) and payload segments, all sealed memfds that the
//!   client makes and is charged for; they travel over a Unix socket that stays open (`docs/formats/ipc.md`)
//! - **Order** a message's bytes are complete before its ring's tail is published (Release); payload before message
//! - **Owner** a request slot belongs to the client until its reply, and beyond it while the server still views it;
//!   a response slot belongs to the client's view until the last one is dropped
//! - **Queues** several processes on equal terms, without a server: [`queue`]
//! - **Arena** one process writes, any number reads in place: [`arena`]
//! - **Not here** placing the copies and waiting: that is the engine's.
//!
//! After Rocket (arXiv 2601.06331): request dispatcher, handlers, and a query side that collects results, with
//! the mode chosen per call instead of at compile time.
//!
//! ```no_run
//! use memlift_ipc::{Client, ClientOptions, Reply, Server, ServerOptions};
//!
//! let server = Server::bind("doubler", ServerOptions::default())?;
//! server.register("double", |request| {
//!     let bytes: Vec<u8> = request.to_vec().iter().map(|b| b * 2).collect();
//!     Ok(Reply::bytes(bytes))
//! })?;
//! server.start()?;
//!
//! let client = Client::connect("doubler", ClientOptions::default())?;
//! let answer = client.call("double", b"\x01\x02".as_slice(), None)?;
//! assert_eq!(answer.to_vec(), [2, 4]);
//! # Ok::<(), memlift_ipc::Error>(())
//! ```
#![deny(unsafe_code)]

pub mod address;
pub mod arena;
pub mod client;
pub mod error;
pub mod failpoint;
pub mod layout;
pub mod message;
pub mod options;
pub mod packed;
mod byte_lock;
mod clock;
mod payload;
pub mod queue;
pub mod server;
pub mod typed;

#[expect(unsafe_code, reason = "asks a socket for the other end's credentials")]
mod credentials;
mod fork;
mod handshake;
mod health;
mod number_map;
mod pool;
mod rank;
mod robust;
mod row;
#[expect(unsafe_code, reason = "messages are read from and written to memory that the peer can change")]
mod ring;
mod transfer;

pub use address::Address;
pub use arena::{Arena, ArenaOptions, ArenaStats, WhenFull};
pub use bytemuck;
pub use client::{
    Answer, AsyncClient, Batch, Candidate, Client, ClientOptions, ClientStats, Explanation, Job, JobState,
    Limit, Loan, Pipeline, ServerLoad, Watch,
};
pub use error::{Error, RemoteFailure};
pub use handshake::Opening;
pub use health::{Health, HealthState, PING};
pub use memlift_ground::on_wait::OnWait;
pub use message::{ElementType, Tensor};
pub use options::{CachePolicy, CallOptions, Device, Mode};
pub use payload::{Outgoing, Payload, Writable};
pub use queue::{Item, Label, Ledger, Queue, QueueOptions, QueueStats, Reserved};
pub use server::{
    Behaviour, Pace, Progress, Reply, Request, Responder, Server, ServerOptions, ServerStats, Trust,
};
