// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift bench devices`: how fast the papers' machines run here, and how near they come to their papers.
//!
//! - **Flow** `events/*`  a machine runs to its end ─▶ seconds per event, beside the goal's
//!   `figure/*`  a figure of a paper ─▶ how far its predicted rows are off, what was asked and answered
//! - **Not here** what machines do, and the papers' numbers (`lab/model`)

mod events;
mod figures;

use crate::definition::Definition;
use crate::row::{self, Sink, Stop};
use crate::{BenchError, Options};

/// Measures the wanted rows; gives how many failed.
pub fn run(definitions: &[Definition], options: &Options, sink: &mut Sink) -> Result<usize, BenchError> {
    Ok(row::each(definitions, sink, |definition| match definition.name.split_once('/') {
        Some(("events", machine)) => events::row(definition, machine, options.quick),
        Some(("figure", name)) => figures::row(definition, name, options.quick),
        _ => Err(Stop::Failed(BenchError::NoRow {
            service: "devices".to_owned(),
            only: definition.name.clone(),
            example: "events/pulse".to_owned(),
        })),
    }))
}
