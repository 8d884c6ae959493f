// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters in stripes: each thread adds to a stripe of its own, by a load and a store.
//!
//! - **Flow** a thread counts for the first time: it claims a free stripe ─▶ each further count finds the stripe with two loads ─▶ the
//!   thread ends: the stripe is released with its numbers, which only grow
//! - **Order** a claim acquires the stores of the stripe's last owner, so the counters continue from there
//! - **Rule** threads that find no free stripe, or have released theirs, share the last stripe and use locked instructions
//! - **Owner** a claim is marked with the pid of the claiming process: in a forked child all stripes are free, and its page is new

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{STRIPES, StatsPage, StripeCells};
use super::page::{Installed, installed};
use crate::region::own_pid;

/// Number of stripes that belong to one thread each.
const EXCLUSIVE: usize = STRIPES - 1;

static CLAIMS: [AtomicU64; EXCLUSIVE] = [const { AtomicU64::new(0) }; EXCLUSIVE];

/// The stripe of a thread. It has no destructor, so that finding it is a load and cannot panic; [`Claim`] releases it.
struct Own {
    /// A word that is zero in a forked child: the other fields are valid only if it is not zero.
    mark: Cell<Option<&'static AtomicU64>>,
    page: Cell<Option<&'static Installed>>,
    /// The thread's stripe; `None`: the shared one.
    stripe: Cell<Option<&'static StripeCells>>,
}

impl Own {
    /// Returns true if the rest is of this process.
    #[inline(always)]
    fn is_own(&self) -> bool {
        self.mark.get().is_some_and(|mark| mark.load(Ordering::Relaxed) != 0)
    }

    /// Returns true if the other fields belong to this process and to this page.
    #[inline(always)]
    fn is_of(&self, installed: &'static Installed) -> bool {
        self.is_own() && self.page.get().is_some_and(|page| std::ptr::eq(page, installed))
    }
}

/// The number of a claimed stripe; releases it when the thread ends.
struct Claim(Cell<Option<usize>>);

impl Drop for Claim {
    fn drop(&mut self) {
        // Later counts of this thread go to the shared stripe.
        OWN.with(|own| own.stripe.set(None));
        if let Some(index) = self.0.get() {
            // Fails after a fork, when the claim is the parent's or another thread's.
            let _ = CLAIMS[index].compare_exchange(own_pid(), 0, Ordering::Release, Ordering::Relaxed);
        }
    }
}

thread_local! {
    static OWN: Own = const { Own { mark: Cell::new(None), page: Cell::new(None), stripe: Cell::new(None) } };
    static CLAIM: Claim = const { Claim(Cell::new(None)) };
}

const _: () = assert!(!std::mem::needs_drop::<Own>());

/// Returns the stripes to which any thread may have added.
pub(super) fn used(page: &StatsPage) -> impl Iterator<Item = &StripeCells> {
    let claimed = page.header.stripes.load(Ordering::Relaxed) as usize;
    page.stripes[..claimed.min(EXCLUSIVE)].iter().chain(&page.stripes[EXCLUSIVE..])
}

/// Cells of a stripe, each with the amount to add; `None` if there are none.
type Cells<const N: usize> = Option<[(&'static AtomicU64, u64); N]>;

/// Adds to counters of a row of `installed`; does nothing if that is another process's page.
#[inline(always)]
pub(super) fn add<const N: usize>(
    installed: &'static Installed,
    cells: impl Fn(&'static StripeCells) -> Cells<N>,
) {
    match OWN.with(|own| own.stripe.get().filter(|_| own.is_of(installed))) {
        Some(stripe) => add_to(stripe, cells),
        None => add_slowly(installed, cells),
    }
}

/// Does what [`add`] does, for a thread that has no stripe yet, or gets none.
#[cold]
#[inline(never)]
fn add_slowly<const N: usize>(
    installed: &'static Installed,
    cells: impl Fn(&'static StripeCells) -> Cells<N>,
) {
    // A thread that found no free stripe, or has released its own, does not search again.
    let own = OWN.with(|own| if own.is_of(installed) { None } else { claim(own, installed) });
    match own {
        Some(stripe) => add_to(stripe, cells),
        None if installed.is_own() => {
            for (cell, amount) in cells(&installed.page().stripes[EXCLUSIVE]).into_iter().flatten() {
                cell.fetch_add(amount, Ordering::Relaxed);
            }
        }
        None => {}
    }
}

/// Counts an operation without a time.
#[inline(always)]
pub(super) fn add_small(slot: usize, bytes: u64) {
    let cells = move |stripe: &'static StripeCells| {
        let [operations, sum] = stripe.small.get(slot)?;
        Some([(operations, 1), (sum, bytes)])
    };
    match OWN.with(|own| own.stripe.get().filter(|_| own.is_own())) {
        Some(stripe) => add_to(stripe, cells),
        None => first_small(cells),
    }
}

#[cold]
#[inline(never)]
fn first_small(cells: impl Fn(&'static StripeCells) -> Cells<2>) {
    if let Some(installed) = installed() {
        add_slowly(installed, cells);
    }
}

#[inline(always)]
fn add_to<const N: usize>(stripe: &'static StripeCells, cells: impl Fn(&'static StripeCells) -> Cells<N>) {
    for (cell, amount) in cells(stripe).into_iter().flatten() {
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
    own.mark.set(Some(mark));
    own.page.set(Some(installed));
    own.stripe.set(None);
    // In a thread that is ending, `CLAIM` may be gone already: then no destructor would release the stripe.
    let stripe = CLAIM.try_with(|claim| {
        let index = CLAIMS.iter().position(free);
        claim.0.set(index);
        index
    });
    let index = stripe.ok().flatten()?;
    let page = installed.page();
    page.header.stripes.fetch_max(index as u64 + 1, Ordering::Relaxed);
    own.stripe.set(Some(&page.stripes[index]));
    Some(&page.stripes[index])
}
