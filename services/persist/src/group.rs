// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Group commit: the lane that commits share, and the leader that makes its records durable with one harden.
//!
//! - **Flow** a record is appended to the mirror ─▶ a commit that needs it durable joins the group that collects ─▶ the first
//!   member that finds no leader leads: closes the group, writes all appended records, hardens once ─▶ wakes the group, and
//!   one member of the next group, which collected meanwhile
//! - **Rule** a leader with [`Durability::Group`] waits for company only if the last group had more members than have joined by
//!   now, and no longer than [`group_wait`](crate::Options::group_wait): a lone commit waits for nobody. A member that does
//!   not wait for company ([`Durability::Sync`]) ends the leader's wait
//! - **Source** group commit as in DeWitt et al. 1984
//! - **Not here** the lane and the state of the groups: `shared_lane`; records: `commit`

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::commit::Committed;
use crate::error::Result;
use crate::lock::lock;
use crate::medium::Counters;
use crate::options::Durability;
use crate::store::Store;
use memlift_ground::observe::now_ns;

impl Store {
    /// Has the pool's own thread make buffered transactions durable in time. Without a thread they wait for the next flush.
    #[inline]
    fn flush_later(&self) {
        let wait = self.options.buffered_wait;
        if !wait.is_zero() {
            self.flush_thread.arm(wait);
        }
    }

    /// Waits until the shared lane is durable up to `position` (u64::MAX: all that is there now), as leader or behind one.
    pub fn flush(&self, position: u64) -> Result<()> {
        self.flush_in_company(position, Duration::ZERO)
    }

    /// As [`Store::flush`]; a leader waits up to `wait` for company, if the last group had more members.
    fn flush_in_company(&self, position: u64, wait: Duration) -> Result<()> {
        let shared = &self.shared;
        let mut state = lock(&shared.state);
        let position = position.min(state.appended);
        let joins = position > state.closed;
        let group = if joins { state.group } else { state.group.wrapping_sub(1) };
        if joins {
            state.joined += 1;
            if wait.is_zero() {
                state.wanted = 0;
            }
            if state.gathers && state.joined >= state.wanted {
                shared.company.notify_one();
            }
        }
        loop {
            if state.durable >= position {
                return Ok(());
            }
            if let Err(error) = self.running() {
                shared.wake_all([0, 1], state.asleep);
                return Err(error);
            }
            if !state.led {
                break;
            }
            state = shared.sleep(state, group);
        }
        state.led = true;
        if !wait.is_zero() && state.joined < state.wanted {
            state = shared.gather(state, wait);
        }
        let (from, to, group) = (state.durable, state.appended, state.group);
        (state.closed, state.group) = (to, group + 1);
        (state.wanted, state.joined) = (state.joined, 0);
        drop(state);
        let mut counters = Counters::default();
        let began_ns = now_ns();
        let written =
            self.write_shared(from, to, &mut counters).and_then(|()| self.medium.harden_log(&mut counters));
        let mut state = lock(&shared.state);
        state.led = false;
        state.counters += counters;
        let result = match written {
            Ok(()) => {
                state.durable = to;
                shared.lane.publish(to);
                shared.unflushed.fetch_sub(to - from, Ordering::AcqRel);
                Ok(())
            }
            Err(error) => Err(self.stop(error)),
        };
        let asleep = state.asleep;
        drop(state);
        shared.wake_all([group], asleep);
        if result.is_err() {
            shared.wake_all([group + 1], asleep);
        } else if asleep[((group + 1) % 2) as usize] > 0 {
            shared.done[((group + 1) % 2) as usize].notify_one();
        }
        result?;
        if self.row.synced(to - from, began_ns) {
            self.show_sizes();
        }
        self.relieve(shared.lane.tail() - shared.lane.head(), shared.lane.capacity)
    }

    /// Writes the mirror's [from, to) to the log.
    fn write_shared(&self, from: u64, to: u64, counters: &mut Counters) -> Result<()> {
        let lane = &self.shared.lane;
        let mut at = from;
        while at < to {
            let left = lane.capacity - at % lane.capacity;
            let piece = left.min(to - at);
            self.medium.append(lane.offset(at), lane.appended(at, piece), counters)?;
            at += piece;
        }
        Ok(())
    }

    /// Waits for company if asked to, then makes a commit durable.
    #[inline]
    pub fn await_durable(&self, committed: Committed, durability: Durability) -> Result<()> {
        if committed == Committed::Durable {
            return Ok(());
        }
        self.await_shared(committed, durability)
    }

    #[inline(never)]
    fn await_shared(&self, committed: Committed, durability: Durability) -> Result<()> {
        let position = match (committed, durability) {
            (Committed::Durable, _) => return Ok(()),
            (Committed::Marked(_), Durability::Buffered) => {
                self.flush_later();
                return Ok(());
            }
            (Committed::At(position), _) => position,
            (Committed::Marked(mark), _) => {
                if !self.options.group_wait.is_zero() {
                    std::thread::sleep(self.options.group_wait);
                }
                let position = self.checkpoint(mark)?;
                return self.flush(position);
            }
        };
        match durability {
            Durability::Sync => self.flush(position),
            Durability::Group | Durability::Replicated => {
                self.flush_in_company(position, self.options.group_wait)
            }
            Durability::Buffered => {
                let most = (self.shared.lane.capacity / 4).min(self.options.buffered_bytes);
                if self.shared.unflushed.load(Ordering::Relaxed) > most {
                    return self.flush(position);
                }
                self.flush_later();
                Ok(())
            }
        }
    }
}
