// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Applications over memory nodes, and what their users have today.
//!
//! Flow     a row's name ─▶ the application or rival that measures it; `None`: not one of these

use super::Stop;
use crate::Row;
use crate::definition::Definition;

/// Measures a row of an application.
pub fn row(_definition: &Definition, _quick: bool) -> Option<Result<Row, Stop>> {
    None
}
