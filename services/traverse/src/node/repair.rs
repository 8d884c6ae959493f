// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies a damaged log into one that a node can start with.
//!
//! - **Flow** records before the damage are copied unchanged ─▶ with `behind`, also those records behind it that can be carried
//!   out without the lost ones
//! - **Promise** without `behind` the copy holds a state that the node has been in. With `behind` each copied change did happen,
//!   but collections may be broken because other changes of them are lost

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::NodeError;
use super::log::{LogSaved, check_log, repair_log as copy};
use super::once::Once;
use super::registry::Registry;
use super::writer::Writer;
use crate::memory::{Allocator, Memory};

/// Most clients whose requests a repair tracks.
const CLIENTS: usize = 1 << 20;

/// Copies the good records of the log at `path` to a new log at `to`: those before the damage and, with `behind`, those
/// behind it.
///
/// # Errors
///
/// The log is open in a node, is not a log, or has a damaged head; `to` exists already, or cannot be written; with `behind`,
/// the machine has not enough memory for the node's memory.
pub fn repair_log(path: &Path, to: &Path, behind: bool) -> Result<LogSaved, NodeError> {
    if !behind {
        return Ok(copy(path, to, false, |_| true)?);
    }
    let report = check_log(path)?;
    let memory = Arc::new(Memory::new(report.base, report.memory_bytes, false)?);
    let mut writer = Writer {
        allocator: Allocator::new(memory.clone()),
        once: Once::new(CLIENTS),
        log: None,
        reserved: BTreeMap::new(),
        epoch: 0,
        clock: Arc::default(),
        logged_clock: 0,
        cluster: 0,
        declared: BTreeMap::new(),
        replica: 0,
        history: Arc::default(),
        gate: None,
        memory,
    };
    let mut registry = Registry::new(usize::MAX, false);
    Ok(copy(path, to, true, |entry| writer.again(entry.clone(), &mut registry).is_ok())?)
}
