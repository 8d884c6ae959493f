// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Blocks that were unlinked, and that a walk which began before may still be at.
//!
//! - **Order** what is retired was unlinked: no new walk comes to it. It is free when the node's clock is more than [`GRACE`]
//!   further: a request that may have found it before is refused from then on, whenever it comes (`node/clock`)
//! - **Clock** a block gets the clock of the next `stamp` or `ripe`, which is not less than that at which it was retired; after a
//!   restart, and in a range that came, the time begins anew

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Seconds of the nodes' clock for which unlinked memory is left as it is.
pub const GRACE: u32 = 30;

/// See the module.
#[derive(Debug)]
pub(super) struct Retired {
    pub grace_s: u32,
    /// First address → bytes, tenant, ticket.
    blocks: BTreeMap<u64, (u64, u32, u64)>,
    /// Clock, address, ticket.
    due: VecDeque<(u32, u64, u64)>,
    /// Address and ticket of blocks that have no clock yet.
    fresh: Vec<(u64, u64)>,
    next_ticket: u64,
    bytes: u64,
}

impl Default for Retired {
    fn default() -> Retired {
        Retired {
            grace_s: GRACE,
            blocks: BTreeMap::new(),
            due: VecDeque::new(),
            fresh: Vec::new(),
            next_ticket: 0,
            bytes: 0,
        }
    }
}

impl Retired {
    /// Returns how long it takes from `now` on until `bytes` bytes are free again; `None`: fewer are retired.
    pub fn wait_for(&self, bytes: u64, now: u32) -> Option<Duration> {
        let mut left = bytes;
        let fresh = self.fresh.iter().map(|&(address, ticket)| (now, address, ticket));
        for (since, address, ticket) in self.due.iter().copied().chain(fresh) {
            let Some(block) = self.blocks.get(&address).filter(|block| block.2 == ticket) else { continue };
            left = left.saturating_sub(block.0);
            if left == 0 {
                let end = since.saturating_add(self.grace_s).saturating_add(1);
                return Some(Duration::from_secs(end.saturating_sub(now).into()));
            }
        }
        None
    }

    pub fn add(&mut self, tenant: u32, address: u64, bytes: u64) {
        self.next_ticket += 1;
        self.blocks.insert(address, (bytes, tenant, self.next_ticket));
        self.fresh.push((address, self.next_ticket));
        self.bytes += bytes;
    }

    /// Gives this clock to the blocks that have none yet.
    pub fn stamp(&mut self, now: u32) {
        self.due.extend(self.fresh.drain(..).map(|(address, ticket)| (now, address, ticket)));
    }

    /// Takes out the blocks that no request may be at any more, at this clock: tenant, address, bytes.
    pub fn ripe(&mut self, now: u32) -> Vec<(u32, u64, u64)> {
        self.stamp(now);
        let mut ripe = Vec::new();
        while let Some(&(since, address, ticket)) = self.due.front()
            && (self.grace_s == 0 || now > since.saturating_add(self.grace_s))
        {
            self.due.pop_front();
            if let Some(&(bytes, tenant, _)) = self.blocks.get(&address).filter(|block| block.2 == ticket) {
                self.remove(tenant, address, bytes);
                ripe.push((tenant, address, bytes));
            }
        }
        ripe
    }

    /// Takes a block out; false: there is no such block.
    pub fn remove(&mut self, tenant: u32, address: u64, bytes: u64) -> bool {
        let there = self.blocks.get(&address).is_some_and(|block| (block.0, block.1) == (bytes, tenant));
        if there {
            self.blocks.remove(&address);
            self.bytes -= bytes;
        }
        there
    }

    /// True if any of these bytes is retired.
    pub fn overlaps(&self, address: u64, bytes: u64) -> bool {
        self.blocks.range(..address + bytes).next_back().is_some_and(|(at, block)| at + block.0 > address)
    }

    /// Those that start in a stretch of addresses: tenant, address, bytes.
    pub fn within(&self, base: u64, end: u64) -> Vec<(u32, u64, u64)> {
        self.blocks.range(base..end).map(|(&at, &(bytes, tenant, _))| (tenant, at, bytes)).collect()
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
