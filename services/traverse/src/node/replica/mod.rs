// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The copies of a replicated node: a primary that serves, and a backup that has all its records.
//!
//! - **Flow** processes with the same name: the first one joins as the primary; the next one connects to it and becomes its backup. Backup:
//!   snapshot ─▶ records as they are made ─▶ it is listed in etcd ─▶ when the primary's lease is over, it joins as the primary
//! - **Order** records leave in the writer's order over one connection, which the backup has opened. It closes the connection before it
//!   asks to take over, so it acknowledges nothing of a primary that it replaces
//! - **Rule** a primary whose backup is gone, or does not answer, answers nothing until etcd lists no backup (`gate`)
//! - **Not here** the decision who may be primary (`map/replicas`), a process's way from one role to the next (`cluster`)

pub(super) mod backup;
mod message;
pub(super) mod primary;
pub(super) mod stale;

pub use primary::BackupState;

use crate::map::Secret;
use crate::wire::Keys;

/// Returns the secret of connections between nodes; `None`: packets are not authenticated, so connections are not either.
pub(super) fn secret(keys: &Keys) -> Option<Secret> {
    keys.nodes_key().map(Secret::new)
}
