// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters that a thread adds to alone, by a load and a store.
//!
//! - **Flow** first count of a thread: a stripe that nobody has is claimed ─▶ each further count: two loads find it ─▶ the thread ends:
//!   the stripe is given back with its numbers, which only grow
//! - **Order** a claim acquires what its last owner stored; so counters go on from there
//! - **Rule** threads that find no stripe, or have given theirs back, share the last one by locked instructions
//! - **Owner** a claim is the pid of the claimer: in a forked child all stripes are free, and its page is new

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{STRIPES, StatsPage, StripeCells};
use super::page::{Installed, installed};
use crate::region::own_pid;

/// Stripes that one thread has to itself.
const EXCLUSIVE: usize = STRIPES - 1;

static CLAIMS: [AtomicU64; EXCLUSIVE] = [const { AtomicU64::new(0) }; EXCLUSIVE];

/// The stripe of a thread.
struct Own {
    /// Says whether the rest is of this process: zero in a forked child.
    mark: Cell<Option<&'static AtomicU64>>,
    page: Cell<Option<&'static Installed>>,
    /// None: the shared one.
    stripe: Cell<Option<&'static StripeCells>>,
    claim: Cell<usize>,
}

impl Own {
    /// Returns true if the rest is of this process.
    #[inline(always)]
    fn is_own(&self) -> bool {
        self.mark.get().is_some_and(|mark| mark.load(Ordering::Relaxed) != 0)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if self.stripe.get().is_some() {
            // Another's after a fork.
            let _ =
                CLAIMS[self.claim.get()].compare_exchange(own_pid(), 0, Ordering::Release, Ordering::Relaxed);
        }
    }
}

thread_local! {
    static OWN: Own = const {
        Own { mark: Cell::new(None), page: Cell::new(None), stripe: Cell::new(None), claim: Cell::new(0) }
    };
}

/// The stripes that any thread may have added to.
pub(super) fn used(page: &StatsPage) -> impl Iterator<Item = &StripeCells> {
    let claimed = page.header.stripes.load(Ordering::Relaxed) as usize;
    page.stripes[..claimed.min(EXCLUSIVE)].iter().chain(&page.stripes[EXCLUSIVE..])
}

/// Adds to counters of a row of `installed`; nothing where that is another process's page.
#[inline(always)]
pub(super) fn add<const N: usize>(
    installed: &'static Installed,
    cells: impl Fn(&'static StripeCells) -> [(&'static AtomicU64, u64); N],
) {
    let own = OWN.try_with(|own| {
        let is_ready = own.is_own() && own.page.get().is_some_and(|page| std::ptr::eq(page, installed));
        own.stripe.get().filter(|_| is_ready)
    });
    match own {
        Ok(Some(stripe)) => add_to(stripe, cells),
        _ => add_slowly(installed, cells),
    }
}

/// As [`add`], by a thread that has no stripe yet, or gets none.
#[cold]
#[inline(never)]
fn add_slowly<const N: usize>(
    installed: &'static Installed,
    cells: impl Fn(&'static StripeCells) -> [(&'static AtomicU64, u64); N],
) {
    let own = OWN.try_with(|own| {
        // A thread that found no stripe does not look again.
        let has_looked = own.is_own() && own.page.get().is_some_and(|page| std::ptr::eq(page, installed));
        if has_looked { None } else { claim(own, installed) }
    });
    match own {
        Ok(Some(stripe)) => add_to(stripe, cells),
        // No stripe is left, or the thread is ending.
        _ if installed.is_own() => {
            for (cell, amount) in cells(&installed.page().stripes[EXCLUSIVE]) {
                cell.fetch_add(amount, Ordering::Relaxed);
            }
        }
        _ => {}
    }
}

/// Counts an operation that is not timed.
#[inline]
pub(super) fn add_small(slot: usize, bytes: u64) {
    let cells = |stripe: &'static StripeCells| {
        let [operations, sum] = &stripe.small[slot];
        [(operations, 1), (sum, bytes)]
    };
    let own = OWN.try_with(|own| own.stripe.get().filter(|_| own.is_own()));
    match own {
        Ok(Some(stripe)) => add_to(stripe, cells),
        _ => first_small(cells),
    }
}

#[cold]
#[inline(never)]
fn first_small(cells: impl Fn(&'static StripeCells) -> [(&'static AtomicU64, u64); 2]) {
    if let Some(installed) = installed() {
        add_slowly(installed, cells);
    }
}

#[inline]
fn add_to<const N: usize>(
    stripe: &'static StripeCells,
    cells: impl Fn(&'static StripeCells) -> [(&'static AtomicU64, u64); N],
) {
    for (cell, amount) in cells(stripe) {
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }
}

#[cold]
#[inline(never)]
fn claim(own: &Own, installed: &'static Installed) -> Option<&'static StripeCells> {
    if !installed.is_own() {
        return None;
    }
    let mark = installed.wiped_mark()?;
    let pid = own_pid();
    let free = |claim: &AtomicU64| {
        let holder = claim.load(Ordering::Relaxed);
        holder != pid && claim.compare_exchange(holder, pid, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let index = CLAIMS.iter().position(free);
    let page = installed.page();
    let stripe = index.map(|index| {
        page.header.stripes.fetch_max(index as u64 + 1, Ordering::Relaxed);
        &page.stripes[index]
    });
    own.mark.set(Some(mark));
    own.page.set(Some(installed));
    own.stripe.set(stripe);
    own.claim.set(index.unwrap_or(0));
    stripe
}
