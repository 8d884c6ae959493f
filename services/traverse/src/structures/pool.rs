// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Time for which memory of unlinked nodes rests before it is reused; the memory nodes see to it (`crate::memory`).

use std::time::Duration;

/// How long retired memory rests, by the nodes' clock. A request that takes longer than that is made again, or ends with
/// [`crate::client::ClientError::Outdated`].
pub const GRACE: Duration = Duration::from_secs(crate::node::GRACE as u64);
