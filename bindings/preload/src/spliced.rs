// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that `vmsplice` put into a pipe: the pipe has the program's own pages, so later writes of the program are seen by the
//! reader of the pipe.
//!
//! - **Flow** [`pin`] pins the memory ──unmapped, moved or mapped over──▶ [`release`]
//! - **Layout** one list, oldest first. Nothing tells when a pipe was read, so pins stay until the memory is gone, or until
//!   newer ones take more than a quarter of the budget
//! - **Owner** the child of a fork begins with an empty list, because pages that it shares are copied when they are written

use memlift_zmem::lock::Lock;
use memlift_zmem::pager::{Pager, Pins};

use crate::start;
use crate::thread::Quiet;
use crate::trap::in_arena;

const PAGE_BYTES: usize = 4096;
const MOST_RANGES: usize = 4096;

static SPLICED: Lock<Vec<(usize, usize, Pins<'static>)>> = Lock::new(Vec::new());

/// Clears the list in the child of a fork.
pub fn forked() {
    // SAFETY: the child has one thread, and no fork happens while this library's own code holds the lock.
    unsafe { SPLICED.reset() };
    std::mem::forget(std::mem::take(&mut *SPLICED.lock()));
}

/// Keeps a range present from now on.
pub fn pin(pager: &'static Pager, address: usize, bytes: usize) {
    if bytes == 0 || !in_arena(address) || pager.accessible(address, bytes, false) < bytes {
        return;
    }
    let (start, end) = (address & !(PAGE_BYTES - 1), (address + bytes).next_multiple_of(PAGE_BYTES));
    let _quiet = Quiet::begin();
    if SPLICED.lock().iter().any(|(from, to, _)| *from <= start && end <= *to) {
        return;
    }
    // A page that the program may write must have memory of its own now, so that no later write gives it other memory.
    let write = pager.accessible(start, end - start, true) == end - start;
    let Ok(pins) = pager.pin(start, end - start, write) else { return };
    let most = start::total_bytes() / 4;
    let mut dropped = Vec::new();
    {
        let mut list = SPLICED.lock();
        list.push((start, end, pins));
        let mut sum: usize = list.iter().map(|(from, to, _)| to - from).sum();
        while list.len() > 1 && (sum > most || list.len() > MOST_RANGES) {
            let oldest = list.remove(0);
            sum -= oldest.1 - oldest.0;
            dropped.push(oldest);
        }
    }
    drop(dropped);
}

/// Releases the ranges of which a part is unmapped, moved or mapped over.
pub fn release(address: usize, bytes: usize) {
    let _quiet = Quiet::begin();
    let gone: Vec<_> = {
        let mut list = SPLICED.lock();
        if list.is_empty() {
            return;
        }
        let end = address.saturating_add(bytes);
        list.extract_if(.., |(from, to, _)| *from < end && address < *to).collect()
    };
    drop(gone);
}
