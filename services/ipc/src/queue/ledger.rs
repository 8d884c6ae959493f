// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debts: what members took from a queue and have not settled yet.
//!
//! - **Flow** take ─▶ the member's debt grows ─▶ `task_done` or `settle_call` ─▶ `is_settled` for joiners, `lost` for who started a worker
//! - **Layout** one word per member: the number of tasks ([`Ledger::Tasks`]), or the first word of the call's label plus one
//!   ([`Ledger::Calls`])
//! - **Order** a debt is written before its item is taken, both under the lock. So a member that dies has a debt for whatever it took; what it
//!   had not quite taken still waits
//! - **Owner** the debts of the dead are forgiven: tasks by joiners, who ask the kernel who lives; a call by `lost`, whose caller knows that the
//!   member is dead. Until then nobody else gets that member's number

use super::layout::*;
use super::member::Member;
use super::table::Table;
use crate::error::Error;
use std::sync::atomic::Ordering::Relaxed;

impl Table<'_> {
    /// Notes that a member takes an item with that label.
    pub(super) fn owe(&self, identity: u32, label: u64) -> Result<(), Error> {
        match self.limits.ledger {
            Ledger::None => {}
            Ledger::Tasks => {
                let debt = debt(self.region, Member::number_of(identity))?;
                debt.store(debt.load(Relaxed).saturating_add(1), Relaxed);
            }
            Ledger::Calls => {
                debt(self.region, Member::number_of(identity))?.store(label.wrapping_add(1), Relaxed)
            }
        }
        Ok(())
    }

    fn members(&self) -> u32 {
        self.head.members.load(Relaxed).min(MEMBERS)
    }

    /// Takes one task off a debt: the member's own, else that of any other, which took the item and handed it on. `None`: there is none;
    /// `true`: no task is left.
    pub(super) fn pay(&self, identity: u32) -> Result<Option<bool>, Error> {
        let own = Member::number_of(identity);
        for number in std::iter::once(own).chain(0..self.members()) {
            let debt = debt(self.region, number)?;
            let tasks = debt.load(Relaxed);
            if tasks != 0 {
                debt.store(tasks - 1, Relaxed);
                return Ok(Some(tasks == 1 && self.length() == 0));
            }
        }
        Ok(None)
    }

    /// Returns true if nothing waits and no living member owes a task. Forgives the dead.
    pub(super) fn is_settled(&self, member: &Member) -> Result<bool, Error> {
        if self.length() != 0 {
            return Ok(false);
        }
        for number in 0..self.members() {
            let debt = debt(self.region, number)?;
            if debt.load(Relaxed) == 0 {
                continue;
            }
            if member.is_number_alive(number) {
                return Ok(false);
            }
            debt.store(0, Relaxed);
        }
        Ok(true)
    }

    /// Takes the call that a dead member had begun; `None`: it had none, or the call still waits for another member.
    pub(super) fn lost(&self, identity: u32) -> Result<Option<u64>, Error> {
        if !Member::had_number_last(self.region, identity)? {
            return Ok(None);
        }
        let owed = debt(self.region, Member::number_of(identity))?.swap(0, Relaxed);
        let Some(label) = owed.checked_sub(1) else { return Ok(None) };
        let (taken, put) = (self.head.taken.load(Relaxed), self.head.put.load(Relaxed));
        for at in 0..put.wrapping_sub(taken).min(SLOTS) {
            let slot = self.slot(self.order(taken.wrapping_add(at))?.load(Relaxed))?;
            if slot.label[0].load(Relaxed) == label {
                return Ok(None);
            }
        }
        Ok(Some(label))
    }
}
