// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The other verbs: pools, nodes, replicas, drop-ins, and how the command speaks.

mod commands;
mod dropin;
mod node;
mod pool;
mod replica;
