// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Topics: values that are published to whoever follows, the latest only or each of them.
//!
//! - **Flow** `announce` makes a value the latest, and gives the packets that are to be sent · `ask` gives the one that a subscriber gets
//! - **Order** a subscriber is sent one value for each time that it asks, so its socket never fills up. Values are numbered by topic
//! - **Owner** a value that waits, or was sent and not taken, is held by the arena

use super::books::Books;
use super::handle::BlockId;
use super::packet::{FOLLOWS, PUBLISHED, Packet};
use super::topic::{DEPTH_MAX, Following, Parcel};
use std::collections::VecDeque;
use std::sync::Arc;

impl Books {
    /// Process of a subscriber that has no room for one more value, if there is one.
    pub fn slow_subscriber(&self, topic: &str) -> Option<u32> {
        let full = |following: &Following| following.topic == topic && following.is_full();
        self.seats.iter().find(|seat| seat.following.as_ref().is_some_and(full)).map(|seat| seat.peer.pid)
    }

    /// Makes a value the latest of its topic; gives what is to be sent.
    pub fn announce(&mut self, topic: &str, id: BlockId) -> Vec<Parcel> {
        if !self.hold(id) {
            return Vec::new();
        }
        let known = self.topics.entry(topic.to_owned()).or_default();
        known.published += 1;
        let number = known.published;
        let before = known.latest.replace(id);
        if let Some(before) = before {
            self.let_go(before);
        }
        let mut parcels = Vec::new();
        for at in 0..self.seats.len() {
            let follows = |following: &Following| following.topic == topic;
            if !self.seats[at].following.as_ref().is_some_and(follows) || !self.hold(id) {
                continue;
            }
            let mut dropped = None;
            if let Some(following) = &mut self.seats[at].following {
                let full = following.waiting.len() as u64 >= following.depth.max(1);
                if full && let Some((oldest, _)) = following.waiting.pop_front() {
                    following.missed += 1;
                    dropped = Some(oldest);
                }
                following.waiting.push_back((id, number));
            }
            if let Some(dropped) = dropped {
                self.let_go(dropped);
            }
            parcels.extend(self.next_for(at));
        }
        parcels
    }

    /// The packet that a subscriber is to get now, if it asked and there is one.
    fn next_for(&mut self, at: usize) -> Option<Parcel> {
        let seat = &mut self.seats[at];
        let following = seat.following.as_mut().filter(|following| following.asks)?;
        let (id, number) = following.waiting.pop_front()?;
        following.asks = false;
        // It asked for another value, so it has taken the one before, or does not want it.
        let before = following.sent.replace(id);
        let missed = following.missed;
        let packet =
            Packet { block: id.block, generation: id.generation, number, missed, ..Packet::new(PUBLISHED) };
        let parcel = (seat.number, Arc::clone(&seat.socket), packet);
        if let Some(before) = before {
            self.let_go(before);
        }
        Some(parcel)
    }

    fn seat_at(&self, number: u64) -> Option<usize> {
        self.seats.iter().position(|seat| seat.number == number)
    }

    /// A reader follows a topic from now on, beginning with its latest value. False if it follows one already.
    pub fn follow(&mut self, number: u64, topic: &str, depth: u64) -> bool {
        let Some(at) = self.seat_at(number).filter(|&at| self.seats[at].following.is_none()) else {
            return false;
        };
        let known = self.topics.get(topic);
        let latest = known.and_then(|known| known.latest.map(|id| (id, known.published)));
        let mut waiting = VecDeque::new();
        if let Some((id, published)) = latest
            && self.hold(id)
        {
            waiting.push_back((id, published));
        }
        let depth = depth.min(DEPTH_MAX);
        self.seats[at].following =
            Some(Following { topic: topic.to_owned(), depth, waiting, sent: None, asks: false, missed: 0 });
        true
    }

    /// The packet that tells a subscriber that it misses nothing from now on.
    pub fn acknowledge(&self, number: u64) -> Option<Parcel> {
        let seat = &self.seats[self.seat_at(number)?];
        Some((number, Arc::clone(&seat.socket), Packet::new(FOLLOWS)))
    }

    /// A subscriber asks for its next value.
    pub fn ask(&mut self, number: u64) -> Option<Parcel> {
        let at = self.seat_at(number)?;
        self.seats[at].following.as_mut()?.asks = true;
        self.next_for(at)
    }

    /// A subscriber has its lease of the value that was sent last.
    pub fn took(&mut self, number: u64) -> bool {
        let at = self.seat_at(number);
        let sent = at.and_then(|at| self.seats[at].following.as_mut()?.sent.take());
        sent.is_some_and(|id| self.let_go(id))
    }
}
