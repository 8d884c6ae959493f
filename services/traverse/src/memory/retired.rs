// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Blocks that were unlinked, and at which a walk that began earlier may still be.
//!
//! - **Order** a retired block is unlinked, so no new walk reaches it. It becomes free when the node's clock has advanced by more
//!   than [`GRACE`]: from then on a request that may have found it earlier is refused, whenever it comes (`node/clock`)
//! - **Clock** a block gets the clock of the next `stamp` or `ripe`, which is not less than the clock at which it was retired.
//!   After a restart, and in a range that has arrived, the time begins anew

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Seconds of the nodes' clock for which unlinked memory is not reused.
pub const GRACE: u32 = 30;

/// See the module's header.
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
    /// Returns the time from `now` until `bytes` bytes are free again; `None`: fewer are retired.
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

    /// Assigns this clock to the blocks that have none yet.
    pub fn stamp(&mut self, now: u32) {
        self.due.extend(self.fresh.drain(..).map(|(address, ticket)| (now, address, ticket)));
    }

    /// Removes and returns the blocks that no request can reach any more at this clock: tenant, address,
    /// bytes.
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

    /// Removes a block; returns false if there is no such block.
    pub fn remove(&mut self, tenant: u32, address: u64, bytes: u64) -> bool {
        let there = self.blocks.get(&address).is_some_and(|block| (block.0, block.1) == (bytes, tenant));
        if there {
            self.blocks.remove(&address);
            self.bytes -= bytes;
        }
        there
    }

    /// Returns true if any of these bytes is retired.
    pub fn overlaps(&self, address: u64, bytes: u64) -> bool {
        self.blocks.range(..address + bytes).next_back().is_some_and(|(at, block)| at + block.0 > address)
    }

    /// Returns the blocks that start in a stretch of addresses: tenant, address, bytes.
    pub fn within(&self, base: u64, end: u64) -> Vec<(u32, u64, u64)> {
        self.blocks.range(base..end).map(|(&at, &(bytes, tenant, _))| (tenant, at, bytes)).collect()
    }

    /// Returns the bytes of all blocks.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
