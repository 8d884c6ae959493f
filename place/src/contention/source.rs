// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interface of the sources of contention.

/// A source that measures how contended the caches are.
pub(super) trait Source: Send + std::fmt::Debug {
    /// Short lower-case name, as in `explain`.
    fn name(&self) -> &'static str;

    /// Returns how slow the caches are (1: as fast as they ever were), or `None` if it cannot be measured now. May take about
    /// a millisecond.
    fn sample(&mut self) -> Option<f64>;
}
