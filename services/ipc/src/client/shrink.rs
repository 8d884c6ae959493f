// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pools that shrink: segments that were not used for a while go back, without a call.
//!
//! - **Flow** a pool grows ─▶ the session is entered with the process's janitor ─▶ each tick: quiet segments are retired ─▶ `Retire`
//!   ─▶ the server lets go ─▶ `Retired` ─▶ unmapped here, and the memory is gone
//! - **Order** a retired segment gives no slots. `Retired` comes behind every reply that named the segment
//! - **Owner** one janitor per process, a thread that exists only while some session has more than its first segments. It holds
//!   sessions weakly. A fork's child has a janitor of its own
//! - **Not here** the first segment of each direction, which stays for the session's life

#[cfg(feature = "failpoints")]
use super::Client;
use super::Inner;
use super::send::Expect;
use crate::error::Error;
use crate::failpoint::{Step, reach};
use crate::fork;
use crate::handshake::{REQUEST, RESPONSE};
use crate::message::{Kind, Message};
use crate::rank::{Lock, Rank};
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time between two ticks. A segment is retired at its third tick without use.
const TICK: Duration = Duration::from_secs(1);
/// Longest wait for the server's answers in a tick. They may also be taken by whoever collects next.
const PATIENCE: Duration = Duration::from_millis(100);
/// How many forks may lie between the first process with a session and one that has a janitor.
const FORKS: usize = 16;

/// The sessions of a process that have something to give back.
struct Janitor {
    sessions: Vec<Weak<Inner>>,
    runs: bool,
}

/// One janitor per fork generation: a child must not wait for a lock that its parent's janitor held when it forked.
static JANITORS: [Lock<Janitor>; FORKS] =
    [const { Lock::new(Rank::Grown, Janitor { sessions: Vec::new(), runs: false }) }; FORKS];

impl Inner {
    /// Bytes that both pools have mapped.
    pub(super) fn pool_bytes(&self) -> u64 {
        self.requests.pool.with(|pool| pool.total()) + self.responses.with(|responses| responses.total())
    }

    /// Enters the session with the janitor, after one of its pools has grown.
    pub(super) fn gives_back_later(&self) {
        if self.has_janitor.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(janitor) = JANITORS.get(fork::generation() as usize) else { return };
        let own = self.own.clone();
        let starts = janitor.with(|janitor| {
            janitor.sessions.push(own);
            !std::mem::replace(&mut janitor.runs, true)
        });
        if starts {
            let started = std::thread::Builder::new()
                .name("memlift-janitor".into())
                .stack_size(256 << 10)
                .spawn(move || run_janitor(janitor));
            if started.is_err() {
                // Without a thread the memory stays until the session ends, and the next growth tries again.
                let sessions = janitor.with(|janitor| {
                    janitor.runs = false;
                    std::mem::take(&mut janitor.sessions)
                });
                for session in sessions.iter().filter_map(Weak::upgrade) {
                    session.has_janitor.store(false, Ordering::Release);
                }
            }
        }
    }

    /// Does the work of one tick of the janitor's clock; `false`: there is nothing to give back any more.
    fn tick(&self) -> bool {
        if self.check().is_err() {
            return false;
        }
        // Answers that nobody waits for keep memory on both sides: those of abandoned calls, and those that are asked for later.
        if !self.watched.load(Ordering::Relaxed) && self.outstanding() > 0 {
            let now = Some(Instant::now());
            if self.wait_until(now, Expect::Unknown, |_| false).is_err() {
                return false;
            }
        }
        let requests = self.requests.pool.with(|pool| pool.retire_quiet());
        let responses = self.responses.with(|responses| responses.retire_quiet());
        let all = requests.iter().map(|&number| (REQUEST, number));
        for (direction, number) in all.chain(responses.iter().map(|&number| (RESPONSE, number))) {
            let mut message = Message::new(Kind::Retire, 0);
            message.status = direction as u16;
            message.segment = number;
            match self.publish_now(&message) {
                Ok(true) => reach(Step::SegmentRetired),
                Ok(false) => self.revive(direction, number),
                Err(_) => return false,
            }
        }
        // A session that an event loop watches takes the server's answers in its next turn: it was woken for them.
        if !self.watched.load(Ordering::Relaxed) && self.has_retired() {
            let until = Some(Instant::now() + PATIENCE);
            let _ = self.wait_until(until, Expect::Unknown, |_| !self.has_retired());
        }
        if self.has_grown() {
            return true;
        }
        self.has_janitor.store(false, Ordering::Release);
        // It may have grown between the look and the store.
        self.has_grown() && !self.has_janitor.swap(true, Ordering::AcqRel)
    }

    fn has_grown(&self) -> bool {
        let requests = self.requests.pool.with(|pool| pool.segments());
        requests > 1 || self.responses.with(|responses| responses.segments()) > 1
    }

    fn has_retired(&self) -> bool {
        self.requests.pool.with(|pool| pool.has_retired())
            || self.responses.with(|responses| responses.has_retired())
    }

    fn revive(&self, direction: u32, number: u32) {
        match direction {
            REQUEST => self.requests.pool.with(|pool| pool.revive(number)),
            _ => self.responses.with(|responses| responses.revive(number)),
        }
    }

    /// Takes the server's answer about a retired segment: it has let go of it, or still needs it.
    pub(super) fn retired(&self, message: &Message) -> Result<(), Error> {
        let number = message.segment;
        let known = match u32::from(message.status) {
            REQUEST => self.requests.pool.with(|pool| pool.is_retired(number)),
            RESPONSE => self.responses.with(|responses| responses.is_retired(number)),
            _ => false,
        };
        if !known {
            return Err(Error::peer_fault(format!("segment {number} is retired, which nobody asked for")));
        }
        let direction = u32::from(message.status);
        if message.bytes == 0 {
            self.revive(direction, number);
            return Ok(());
        }
        let region = match direction {
            REQUEST => self.requests.pool.with(|pool| pool.remove(number)).ok().flatten(),
            _ => self.responses.with(|responses| responses.remove(number)),
        };
        drop(region);
        self.row.set_pool_bytes(self.pool_bytes());
        reach(Step::SegmentGone);
        Ok(())
    }
}

/// The janitor's thread: ends when no session is left.
fn run_janitor(janitor: &'static Lock<Janitor>) {
    loop {
        std::thread::sleep(TICK);
        let sessions = janitor.with(|janitor| std::mem::take(&mut janitor.sessions));
        let kept: Vec<Weak<Inner>> = sessions
            .into_iter()
            .filter(|session| session.upgrade().is_some_and(|session| session.tick()))
            .collect();
        let ends = janitor.with(|janitor| {
            janitor.sessions.extend(kept);
            janitor.runs = !janitor.sessions.is_empty();
            !janitor.runs
        });
        if ends {
            return;
        }
    }
}

#[cfg(feature = "failpoints")]
impl Client {
    /// Runs as many ticks of the janitor's clock as it takes for unused segments to go back.
    pub fn idle_for_a_while(&self) {
        for _ in 0..4 {
            self.0.tick();
        }
    }
}
