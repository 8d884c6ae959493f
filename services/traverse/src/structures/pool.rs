// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The time for which memory of unlinked nodes rests before it is reused; memory nodes enforce it (`crate::memory`).

use std::time::Duration;

/// Time for which retired memory rests, by the nodes' clock. A request that takes longer is made again, or ends with
/// [`crate::client::ClientError::Outdated`].
pub const GRACE: Duration = Duration::from_secs(crate::node::GRACE as u64);
