// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory nodes: their memory, logs, sessions and packets.

mod compact;
mod golden_log;
mod limits;
mod log;
mod memory;
mod memory_identity;
#[path = "../node_world/mod.rs"]
mod node_world;
mod older_log;
mod once;
mod restart;
mod sessions;
mod versions;
mod wire_golden;
mod wire_packet;
#[path = "../running/mod.rs"]
mod running;
