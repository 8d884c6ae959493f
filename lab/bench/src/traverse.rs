// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift bench traverse`: walks that run where the data lives, against the ways to follow pointers in use today.
//!
//! - **Flow** definitions ─▶ the family by the first part of the row's name ─▶ its module measures pairs ─▶ rows
//! - **Rivals** rpc: a native handler over the same transport, one walk at a time · cache, cache_rpc: a client with a cache that reads
//!   node by node, or asks the handler · bounce: crossings by way of the client · limit: reference loops of the same run
//! - **Check** both sides answer the same draws; one checksum over all answers must be equal
//! - **Missing** a rival that is not installed makes its rows `missing`; they say what to install
//! - **Not here** applications and their rivals (traverse/apps.rs)

mod apps;
mod cached;
mod chains;
mod cross;
mod drive;
mod fig2;
mod latency;
mod lru;
mod node;
mod pages;
mod pin;
mod places;
mod replicated;
mod serve;
mod stores;
mod table1;
mod tree;
mod verify;
#[expect(unsafe_code, reason = "reads a node's memory as native code does")]
mod view;
mod xdp;
mod ycsb;

pub(crate) use self::replicated::{NAME, serve as serve_replicated};
pub(crate) use self::stores::story;
use crate::definition::Definition;
use crate::row::{self, Sink, Stop};
use crate::{BenchError, Options, Row};

/// There is no row of this name against this rival.
fn unknown(definition: &Definition) -> Stop {
    let reason = format!(
        "nobody measures {} against {}; see lab/bench/src/traverse.rs",
        definition.name, definition.rival
    );
    Stop::Failed(BenchError::Engine { reason })
}

fn row(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    if let Some(row) = apps::row(definition, quick) {
        return row;
    }
    match definition.name.split('/').next() {
        Some("node") => node::row(definition, quick),
        Some("verify_compile") => verify::row(definition, quick),
        Some("latency" | "throughput") => latency::row(definition, quick),
        Some("table1") => table1::row(definition, quick),
        Some("cross4") => cross::row(definition, quick),
        Some("replicated" | "failover") => replicated::row(definition, quick),
        _ => Err(unknown(definition)),
    }
}

/// Measures the rows; gives how many failed.
pub(crate) fn run(
    definitions: &[Definition],
    options: &Options,
    sink: &mut Sink,
) -> Result<usize, BenchError> {
    Ok(row::each(definitions, sink, |definition| row(definition, options.quick)))
}
