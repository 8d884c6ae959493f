// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The OS beside the controller: page tables, reclaim, and the module that gives jobs machine memory and handles their faults.
//!
//! - **Flow** a page without memory ─▶ [`Kernel::map`]: a free physical page, its control block stored into its node (figure 13) ·
//!   a compressed memory fault ─▶ [`Kernel::faulted`]: grace, cap ─▶ [`Kernel::spill`] until twice the grace is unused ─▶
//!   the grace goes back. A second fault before that pauses the job
//! - **Order** each job's pages are reclaimed oldest first, one that was used since its last turn later; all jobs together in
//!   proportion to what they have
//! - **Owner** the kernel has the only copy of what was spilled from anonymous memory; pages of a file are dropped
//! - **Not here** time (`experiment`): the kernel says what it did

use super::PAGE;
use super::controller::Controller;
use super::layout::Field;
use std::collections::VecDeque;

/// A job: its control block, its memory, its cap.
#[derive(Clone, Debug)]
pub struct Job {
    block: u16,
    /// True if its pages are a file's.
    file: bool,
    /// One more than the physical page of each of its pages; 0 where there is none.
    table: Vec<u32>,
    /// Spilled pages by page number; `None`: not spilled.
    swap: Vec<Option<Box<[u8; PAGE]>>>,
    /// Its pages, next to be reclaimed first.
    list: VecDeque<u32>,
    used: Vec<bool>,
    /// Most pages that it may have (its Cgroup).
    limit: Option<usize>,
    /// Credit in the turns of reclaim among all jobs.
    credit: i64,
    grace: bool,
    paused: bool,
}

/// Where a page comes from that had no memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// No earlier contents: zeros.
    Fresh,
    /// A file that holds it.
    File,
    /// Where it had been spilled to.
    Swap(Box<[u8; PAGE]>),
}

/// A page that was reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reclaimed {
    /// True if it had to be written to storage.
    pub written: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Kernel {
    jobs: Vec<Job>,
    free: Vec<u32>,
    grace: u64,
}

impl Kernel {
    /// A kernel of so many physical pages that gives so many bytes of grace.
    #[must_use]
    pub fn new(pages: u32, grace: u64) -> Kernel {
        Kernel { jobs: Vec::new(), free: (0..pages).rev().collect(), grace }
    }

    /// A job of so many pages on a control block, with as much physical memory as `limit` says: its number.
    pub fn start(&mut self, block: u16, pages: usize, file: bool, limit: Option<usize>) -> usize {
        self.jobs.push(Job {
            block,
            file,
            table: vec![0; pages],
            swap: vec![None; pages],
            list: VecDeque::new(),
            used: vec![false; pages],
            limit,
            credit: 0,
            grace: false,
            paused: false,
        });
        self.jobs.len() - 1
    }

    /// Pages of a job that have memory.
    #[must_use]
    pub fn resident(&self, job: usize) -> usize {
        self.jobs[job].list.len()
    }

    /// Returns true if a job must not go on.
    #[must_use]
    pub fn is_paused(&self, job: usize) -> bool {
        self.jobs[job].paused
    }

    /// Returns true if a job has to give a page for the next that it gets.
    #[must_use]
    pub fn is_full(&self, job: usize) -> bool {
        let job = &self.jobs[job];
        job.limit.is_some_and(|limit| job.list.len() >= limit.max(1))
    }

    /// The job of a control block.
    #[must_use]
    pub fn job_of(&self, block: u16) -> Option<usize> {
        self.jobs.iter().position(|job| job.block == block)
    }

    /// The physical page of a job's page.
    pub fn translate(&mut self, job: usize, page: usize) -> Option<u32> {
        let job = &mut self.jobs[job];
        let physical = job.table[page].checked_sub(1)?;
        job.used[page] = true;
        Some(physical)
    }

    /// Gives a job's page memory; `None` if no physical page is free.
    pub fn map(&mut self, job: usize, page: usize, controller: &mut Controller) -> Option<(u32, Source)> {
        let physical = self.free.pop()?;
        let job = &mut self.jobs[job];
        controller
            .store(Field::Page(physical).at(), job.block.into())
            .expect("the kernel's pages have nodes");
        job.table[page] = physical + 1;
        job.list.push_back(page as u32);
        job.used[page] = true;
        let source = match job.swap[page].take() {
            Some(bytes) => Source::Swap(bytes),
            None if job.file => Source::File,
            None => Source::Fresh,
        };
        Some((physical, source))
    }

    /// Takes a page from a job; `None` if it has none.
    pub fn reclaim(&mut self, job: usize, controller: &mut Controller) -> Option<Reclaimed> {
        let job = &mut self.jobs[job];
        let page = loop {
            let page = job.list.pop_front()?;
            if !std::mem::take(&mut job.used[page as usize]) {
                break page as usize;
            }
            job.list.push_back(page);
        };
        let physical = std::mem::take(&mut job.table[page]) - 1;
        let bytes = controller.free_page(physical);
        self.free.push(physical);
        if !job.file {
            job.swap[page] = bytes.map(Box::new);
        }
        Some(Reclaimed { written: !job.file })
    }

    /// Takes a page from whoever's turn it is.
    pub fn reclaim_any(&mut self, controller: &mut Controller) -> Option<Reclaimed> {
        let mut sum = 0;
        for job in &mut self.jobs {
            let has = job.list.len() as i64;
            job.credit += has;
            sum += has;
        }
        let turn = (0..self.jobs.len()).max_by_key(|&job| self.jobs[job].credit)?;
        self.jobs[turn].credit -= sum;
        self.reclaim(turn, controller)
    }

    /// A compressed memory fault of a job: true if it is the first, and [`Kernel::spill`] has to begin.
    pub fn faulted(&mut self, job: usize, controller: &mut Controller) -> bool {
        let job = &mut self.jobs[job];
        if job.grace {
            job.paused = true;
            return false;
        }
        let total = controller.reserved().total(job.block);
        // Block 0 may have less than that: then the job has to wait at once.
        job.paused = controller.store(Field::Total(job.block).at(), total + self.grace).is_err();
        job.grace = !job.paused;
        job.limit = Some(job.list.len());
        true
    }

    /// Spills a page of a job; `None` when it has as much unused as it should, and goes on with its cap.
    pub fn spill(&mut self, job: usize, controller: &mut Controller) -> Option<Reclaimed> {
        let (block, grace) = (self.jobs[job].block, self.grace);
        let enough = controller.reserved().unused(block) > 2 * grace as i64;
        let reclaimed = if enough { None } else { self.reclaim(job, controller) };
        let own = &mut self.jobs[job];
        own.limit = Some(own.list.len());
        if reclaimed.is_none() {
            if std::mem::take(&mut own.grace) {
                let total = controller.reserved().total(block);
                controller.store(Field::Total(block).at(), total - grace).expect("the job has its grace");
            }
            own.paused = false;
        }
        reclaimed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dmu::contents;

    const BYTES: u64 = PAGE as u64;

    fn write(kernel: &mut Kernel, controller: &mut Controller, job: usize, page: usize) {
        let (physical, _) = kernel.map(job, page, controller).unwrap();
        let visit = controller.visit(physical, 64).unwrap();
        *controller.page_mut(visit) = contents::page(page as u64, 1, 100);
    }

    #[test]
    fn a_fault_gives_grace_once_spills_and_caps() {
        let (mut controller, mut kernel) = (Controller::new(64, 256, 1), Kernel::new(256, 4 * BYTES));
        controller.store(Field::Total(2).at(), 20 * BYTES).unwrap();
        let job = kernel.start(2, 100, false, None);
        (0..21).for_each(|page| write(&mut kernel, &mut controller, job, page));
        let block = controller.fault().unwrap();
        assert_eq!((kernel.job_of(block), kernel.job_of(7)), (Some(job), None));
        assert!(kernel.faulted(job, &mut controller) && !kernel.is_paused(job) && kernel.is_full(job));
        assert_eq!((controller.reserved().total(2), controller.reserved().unused(2)), (24 * BYTES, 3 * 4096));
        // It grows on, and faults again: now it is paused.
        (21..25).for_each(|page| write(&mut kernel, &mut controller, job, page));
        assert_eq!(controller.fault(), Some(2));
        assert!(!kernel.faulted(job, &mut controller) && kernel.is_paused(job));
        let mut spilled = 0;
        while let Some(reclaimed) = kernel.spill(job, &mut controller) {
            assert!(reclaimed.written);
            spilled += 1;
        }
        // Nine of 24 pages are more than twice the grace.
        assert_eq!((spilled, kernel.resident(job), kernel.is_paused(job)), (10, 15, false));
        assert_eq!((controller.reserved().total(2), controller.audit()), (20 * BYTES, None));
        assert!(kernel.is_full(job));
        // A spilled page comes back from its place.
        assert_eq!(kernel.translate(job, 0), None);
        let (physical, source) = kernel.map(job, 0, &mut controller).unwrap();
        assert_eq!(source, Source::Swap(Box::new(contents::page(0, 1, 100))));
        assert_eq!(kernel.translate(job, 0), Some(physical));
    }

    #[test]
    fn reclaim_is_in_proportion_and_pages_in_use_wait() {
        let (mut controller, mut kernel) = (Controller::new(64, 256, 1), Kernel::new(256, BYTES));
        let small = kernel.start(0, 10, false, None);
        let large = kernel.start(0, 30, true, Some(30));
        (0..10).for_each(|page| write(&mut kernel, &mut controller, small, page));
        (0..30).for_each(|page| write(&mut kernel, &mut controller, large, page));
        assert!(kernel.is_full(large) && !kernel.is_full(small));
        let written = (0..20).filter(|_| kernel.reclaim_any(&mut controller).unwrap().written).count();
        assert_eq!((written, kernel.resident(large)), (5, 15));
        kernel.translate(large, 15);
        kernel.reclaim(large, &mut controller).unwrap();
        assert!(kernel.translate(large, 15).is_some() && kernel.translate(large, 16).is_none());
        assert_eq!(kernel.map(large, 16, &mut controller).unwrap().1, Source::File);
        while kernel.reclaim_any(&mut controller).is_some() {}
        assert_eq!((controller.free(), controller.audit(), kernel.free.len()), (64, None, 256));
    }
}
