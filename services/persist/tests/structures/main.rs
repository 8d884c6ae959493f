// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Structures on pools: maps against models, the store of keys and values, the server, and Redis beside it.

mod kv;
mod model;
mod redis_beside;
mod server;
