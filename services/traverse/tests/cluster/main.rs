// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clusters of nodes: walks that cross, nodes that go, ranges that move.

#[path = "../cluster_world/mod.rs"]
mod cluster_world;
mod gone;
mod mapped;
mod moves;
#[path = "../node_world/mod.rs"]
mod node_world;
mod sweep;
