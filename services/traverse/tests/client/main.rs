// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients and nodes over each transport.

mod load;
mod node;
mod pause;
mod presence;
mod udp;
#[path = "../running/mod.rs"]
mod running;
