// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TATP: seven transactions on subscribers of a telephone network.
//!
//! - **Mix** GET_SUBSCRIBER_DATA 35 · GET_NEW_DESTINATION 10 · GET_ACCESS_DATA 35 · UPDATE_SUBSCRIBER_DATA 2 · UPDATE_LOCATION 14 ·
//!   INSERT_CALL_FORWARDING 2 · DELETE_CALL_FORWARDING 2; of a hundred
//! - **Draw** kind, subscriber (not uniform, A = 65535), then what the kind needs
//! - **Undone** an update of a facility that there is not, an insert of what is there or of no facility, a delete of what is not there
//! - **Check** every row of CALL_FORWARDING hangs where its columns say, at a facility that there is
//! - **Source** Telecom Application Transaction Processing benchmark description 1.0, chapters 3 and 4

use std::mem::offset_of;

use memlift_persist::{Durability, Error, PPtr, Pool, Reader, Tx, TxOptions, View};

use super::tatp_rows::{
    Facility, Forward, INDEX, INDEX_PART, Person, Root, Subscriber, find, hash, number, part,
};
use super::{Program, Tally, broken, mix};
use crate::persist::draw::Draw;

/// The program on its tables.
#[derive(Debug)]
pub struct Tatp {
    root: Root,
    persons: Vec<PPtr<Person>>,
}

/// Reason that a transaction did not happen.
enum Stop {
    NoSuchRow,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

/// Where a facility's field lies in its person.
const fn facility(kind: u64, field: usize) -> usize {
    offset_of!(Person, facilities) + kind as usize * size_of::<Facility>() + field
}

/// Where a pointer to a call forwarding lies in its person.
const fn forward(kind: u64, start: u64) -> usize {
    facility(kind, offset_of!(Facility, forwards)) + start as usize * size_of::<PPtr<Forward>>()
}

impl Tatp {
    /// On a pool that was filled.
    pub fn open(pool: &Pool) -> Result<Tatp, Error> {
        let (root, persons) = find(pool)?;
        if persons.len() as u64 != root.rows {
            return Err(broken("subscribers are missing"));
        }
        Ok(Tatp { root, persons })
    }

    /// The id of a number.
    fn find_subscriber(&self, pool: &Pool, number: &[u8; 16]) -> Result<u64, Error> {
        pool.read_in(&[0], |r| {
            let mut at = hash(number);
            loop {
                let entry = r.slice(self.root.index[(at / INDEX_PART) as usize])?[(at % INDEX_PART) as usize];
                if entry.id == 0 {
                    return Err(broken("a subscriber is not in the index"));
                }
                if entry.number == *number {
                    return Ok(entry.id);
                }
                at = (at + 1) % INDEX;
            }
        })
    }

    fn transaction(&self, pool: &Pool, draw: &mut Draw, tally: &mut Tally) -> Result<(), Stop> {
        let kind = draw.next() % 100;
        let (one, other) = (draw.next() % 65_536, 1 + draw.next() % self.root.rows);
        let mut id = (one | other) % self.root.rows + 1;
        if kind >= 82 {
            id = self.find_subscriber(pool, &number(id))?;
        }
        let person = *self.persons.get(id as usize - 1).ok_or_else(|| broken("the index names nobody"))?;
        let sections = [part(pool, id)];
        if kind < 80 {
            return pool.read_in(&sections, |r| Ok(read(r, r.get(person)?, kind, draw, tally)?));
        }
        let options = TxOptions { durability: Durability::Sync, sections: Some(&sections) };
        pool.tx_with(options, |t| match kind {
            80..82 => update_subscriber(t, person, draw),
            82..96 => {
                let place = offset_of!(Person, subscriber) + offset_of!(Subscriber, vlr);
                *t.part_mut::<Person, u32>(person, place)? = draw.next() as u32;
                Ok(())
            }
            _ => {
                let (of, start) = (draw.next() % 4, draw.next() % 3);
                let end = (start * 8 + 1 + draw.next() % 8) as u8;
                let seed = draw.next();
                let facility = t.get(person)?.facilities[of as usize];
                let there = facility.forwards[start as usize];
                if facility.present == 0 || (kind < 98) != there.is_null() {
                    return Err(Stop::NoSuchRow);
                }
                let mut place = PPtr::NULL;
                if kind < 98 {
                    place = t.alloc(Forward::new(id as u32, of as u8 + 1, start as u8 * 8, end, seed))?;
                } else {
                    t.free(there)?;
                }
                *t.part_mut::<Person, PPtr<Forward>>(person, forward(of, start))? = place;
                Ok(())
            }
        })
    }
}

/// GET_SUBSCRIBER_DATA, GET_NEW_DESTINATION, GET_ACCESS_DATA.
fn read(r: &Reader<'_>, person: &Person, kind: u64, draw: &mut Draw, tally: &mut Tally) -> Result<(), Error> {
    match kind {
        0..35 => {
            tally.settle(person.subscriber.sum());
            tally.race(mix(person.subscriber.bits.into(), person.subscriber.vlr.into()));
        }
        35..45 => {
            let facility = &person.facilities[(draw.next() % 4) as usize];
            let start = draw.next() % 3;
            let end = 1 + draw.next() % 24;
            if facility.present == 1 && facility.active == 1 {
                for place in &facility.forwards[..=start as usize] {
                    if place.is_null() {
                        continue;
                    }
                    let forward = r.get(*place)?;
                    if end < u64::from(forward.end) {
                        tally.race(forward.sum());
                    }
                }
            }
        }
        _ => {
            let access = &person.access[(draw.next() % 4) as usize];
            if access.present == 1 {
                let (words, rest) = access.data.as_chunks::<8>();
                let rest = u64::from(rest[0]) << 8 | u64::from(rest[1]);
                tally.settle(mix(u64::from_ne_bytes(words[0]), rest));
            }
        }
    }
    Ok(())
}

fn update_subscriber(t: &mut Tx<'_>, person: PPtr<Person>, draw: &mut Draw) -> Result<(), Stop> {
    let (bit, of, data_a) = ((draw.next() % 2) as u32, draw.next() % 4, draw.next() as u8);
    let place = offset_of!(Person, subscriber) + offset_of!(Subscriber, bits);
    let bits = t.part_mut::<Person, u32>(person, place)?;
    *bits = *bits & !1 | bit;
    if t.get(person)?.facilities[of as usize].present == 0 {
        return Err(Stop::NoSuchRow);
    }
    *t.part_mut::<Person, u8>(person, facility(of, offset_of!(Facility, data_a)))? = data_a;
    Ok(())
}

impl Program for Tatp {
    fn work(
        &self,
        pool: &Pool,
        _thread: usize,
        state: u64,
        count: u64,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let (mut draw, mut undone) = (Draw::new(state), 0);
        for _ in 0..count {
            match self.transaction(pool, &mut draw, tally) {
                Ok(()) => {}
                Err(Stop::NoSuchRow) => undone += 1,
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
        tally.aborted += undone;
        // The number of inserts and deletes that fail depends on the order of the threads.
        tally.race(undone);
        Ok(())
    }

    fn audit(&self, pool: &Pool, tally: &mut Tally) -> Result<(), Error> {
        pool.read(|r| {
            for (id, place) in (1..).zip(&self.persons) {
                let person = r.get(*place)?;
                let subscriber = &person.subscriber;
                if u64::from(subscriber.id) != id || subscriber.number != number(id) {
                    return Err(broken("a subscriber is not where it belongs"));
                }
                tally.settle(subscriber.sum());
                tally.race(mix(id, u64::from(subscriber.bits) << 32 | u64::from(subscriber.vlr)));
                for (kind, facility) in (0..).zip(&person.facilities) {
                    tally.race(mix(id << 8 | kind, facility.data_a.into()));
                    for (start, place) in (0..).zip(facility.forwards) {
                        if place.is_null() {
                            continue;
                        }
                        let row = r.get(place)?;
                        let columns = (u64::from(row.subscriber), u64::from(row.kind), row.start);
                        if facility.present != 1 || columns != (id, kind + 1, start * 8) {
                            return Err(broken("a call forwarding is not where it belongs"));
                        }
                        tally.race(row.sum());
                    }
                }
            }
            Ok(())
        })
    }
}
