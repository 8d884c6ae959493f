// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Collections whose nodes lie on memory nodes, and the programs that walk them.
//!
//! Not here requests, timers and caches (`client`)

pub mod shipped;
