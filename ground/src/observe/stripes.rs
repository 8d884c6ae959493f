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

/// The stripe of a thread. Without a destructor, so that finding it is a load and cannot panic; [`Claim`] gives it back.
struct Own {
    /// Says whether the rest is of this process: zero in a forked child.
    mark: Cell<Option<&'static AtomicU64>>,
    page: Cell<Option<&'static Installed>>,
    /// None: the shared one.
    stripe: Cell<Option<&'static StripeCells>>,
}

impl Own {
    /// Returns true if the rest is of this process.
    #[inline(always)]
    fn is_own(&self) -> bool {
        self.mark.get().is_some_and(|mark| mark.load(Ordering::Relaxed) != 0)
    }

    /// Returns true if the rest is of this process, and of this page.
    #[inline(always)]
    fn is_of(&self, installed: &'static Installed) -> bool {
        self.is_own() && self.page.get().is_some_and(|page| std::ptr::eq(page, installed))
    }
}

/// The number of a claimed stripe; gives it back when the thread ends.
struct Claim(Cell<Option<usize>>);

impl Drop for Claim {
    fn drop(&mut self) {
        // Later counts of this thread go to the shared one.
        OWN.with(|own| own.stripe.set(None));
        if let Some(index) = self.0.get() {
            // Another's after a fork.
            let _ = CLAIMS[index].compare_exchange(own_pid(), 0, Ordering::Release, Ordering::Relaxed);
        }
    }
}

thread_local! {
    static OWN: Own = const { Own { mark: Cell::new(None), page: Cell::new(None), stripe: Cell::new(None) } };
    static CLAIM: Claim = const { Claim(Cell::new(None)) };
}

const _: () = assert!(!std::mem::needs_drop::<Own>());

/// The stripes that any thread may have added to.
pub(super) fn used(page: &StatsPage) -> impl Iterator<Item = &StripeCells> {
    let claimed = page.header.stripes.load(Ordering::Relaxed) as usize;
    page.stripes[..claimed.min(EXCLUSIVE)].iter().chain(&page.stripes[EXCLUSIVE..])
}

/// Cells of a stripe, each with what is added to it; None: there are none.
type Cells<const N: usize> = Option<[(&'static AtomicU64, u64); N]>;

/// Adds to counters of a row of `installed`; nothing where that is another process's page.
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

/// As [`add`], by a thread that has no stripe yet, or gets none.
#[cold]
#[inline(never)]
fn add_slowly<const N: usize>(
    installed: &'static Installed,
    cells: impl Fn(&'static StripeCells) -> Cells<N>,
) {
    // A thread that found no stripe, or has given its own back, does not look again.
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

/// Counts an operation that is not timed.
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
    // A thread that is ending has no destructor left that would give a stripe back.
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
