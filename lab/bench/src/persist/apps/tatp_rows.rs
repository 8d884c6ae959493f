// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TATP's tables and their first rows.
//!
//! - **Layout** [`Root`] ─▶ tables of pointers to persons · the index of numbers, open addressing, in parts · a [`Person`]: a row of
//!   SUBSCRIBER with its rows of ACCESS_INFO and SPECIAL_FACILITY, by their types · a facility ─▶ rows of CALL_FORWARDING, by
//!   their start times, objects that come and go
//! - **Sections** 0: root, tables, index, which never change · then the parts of persons
//! - **Source** Telecom Application Transaction Processing benchmark description 1.0, chapter 2

use memlift_persist::{Error, PPtr, PSlice, Persist, Pool, View};

use super::{PARTS, broken, filling, mix, row_draw, section};
use crate::persist::draw::Draw;
use crate::reference;

/// Entries of the index, and of a part of it.
pub const INDEX: u64 = 1 << 18;
pub const INDEX_PART: u64 = 1 << 10;
const INDEX_PARTS: usize = (INDEX / INDEX_PART) as usize;
/// Rows of a table of pointers, and the largest number of tables.
const TABLE: u64 = 1000;
const TABLES: usize = 100;

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct Subscriber {
    pub id: u32,
    pub bits: u32,
    pub msc: u32,
    pub vlr: u32,
    pub hex: [u8; 12],
    pub bytes: [u8; 12],
    pub number: [u8; 16],
    unused: u64,
}

impl Subscriber {
    /// Sum of the columns that no transaction changes.
    pub fn sum(&self) -> u64 {
        let mut bytes = [0; 24];
        bytes[..12].copy_from_slice(&self.hex);
        bytes[12..].copy_from_slice(&self.bytes);
        let [one, two, three] = words(&bytes);
        mix(mix(mix(u64::from(self.id) << 32 | u64::from(self.msc), one), two), three)
    }
}

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct Access {
    pub present: u32,
    pub data: [u8; 10],
    unused: [u8; 2],
}

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct Facility {
    pub present: u8,
    pub active: u8,
    pub error_control: u8,
    pub data_a: u8,
    pub data_b: [u8; 5],
    unused: [u8; 7],
    pub forwards: [PPtr<Forward>; 3],
}

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct Forward {
    pub subscriber: u32,
    pub kind: u8,
    pub start: u8,
    pub end: u8,
    unused: u8,
    pub number: [u8; 16],
}

impl Forward {
    /// Makes a row; its number is drawn from `seed`.
    pub fn new(subscriber: u32, kind: u8, start: u8, end: u8, seed: u64) -> Forward {
        let mut number = [0; 16];
        reference::pattern_of(&mut number, seed);
        Forward { subscriber, kind, start, end, unused: 0, number }
    }

    /// Sum of all its bytes, as they lie in memory.
    pub fn sum(&self) -> u64 {
        let mut bytes = [0; 24];
        bytes[..4].copy_from_slice(&self.subscriber.to_ne_bytes());
        bytes[4..7].copy_from_slice(&[self.kind, self.start, self.end]);
        bytes[8..].copy_from_slice(&self.number);
        let [one, two, three] = words(&bytes);
        mix(mix(one, two), three)
    }
}

fn words(bytes: &[u8; 24]) -> [u64; 3] {
    let (words, _) = bytes.as_chunks::<8>();
    [words[0], words[1], words[2]].map(u64::from_ne_bytes)
}

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct Person {
    pub subscriber: Subscriber,
    pub access: [Access; 4],
    pub facilities: [Facility; 4],
}

/// An entry of the index; the id 0: free.
#[derive(Clone, Copy, Debug, Persist)]
#[repr(C, align(8))]
pub struct Number {
    pub number: [u8; 16],
    pub id: u64,
}

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct Root {
    pub rows: u64,
    pub persons: [PSlice<PPtr<Person>>; TABLES],
    pub index: [PSlice<Number>; INDEX_PARTS],
}

/// The section of a subscriber.
pub fn part(pool: &Pool, id: u64) -> u16 {
    section(pool, 1 + id % PARTS)
}

/// Returns `id` as fifteen decimal digits and a zero byte.
pub fn number(mut id: u64) -> [u8; 16] {
    let mut number = *b"000000000000000\0";
    let mut at = 14;
    while id > 0 {
        number[at] = b'0' + (id % 10) as u8;
        (at, id) = (at - 1, id / 10);
    }
    number
}

/// Returns where the search for a number starts.
pub fn hash(number: &[u8; 16]) -> u64 {
    let (words, _) = number.as_chunks::<8>();
    mix(mix(0, u64::from_ne_bytes(words[0])), u64::from_ne_bytes(words[1])) % INDEX
}

/// The first `count` of the numbers below `N`, in random order.
fn choose<const N: usize>(draw: &mut Draw, count: usize) -> impl Iterator<Item = usize> + use<N> {
    let mut chosen: [usize; N] = std::array::from_fn(|at| at);
    for at in 0..count {
        chosen.swap(at, at + (draw.next() % (N - at) as u64) as usize);
    }
    chosen.into_iter().take(count)
}

/// A person, and the rows of CALL_FORWARDING that are to hang there: type, start and row.
fn person(id: u64) -> (Person, Vec<(usize, usize, Forward)>) {
    let mut draw = row_draw(1, id);
    let (bits, msc, vlr) = ((draw.next() % 1024) as u32, draw.next() as u32, draw.next() as u32);
    let (mut hex, mut bytes) = ([0; 12], [0; 12]);
    hex[..10].fill_with(|| (draw.next() % 16) as u8);
    bytes[..10].fill_with(|| draw.next() as u8);
    let number = number(id);
    let subscriber = Subscriber { id: id as u32, bits, msc, vlr, hex, bytes, number, unused: 0 };
    let mut access = [Access { present: 0, data: [0; 10], unused: [0; 2] }; 4];
    let count = 1 + (draw.next() % 4) as usize;
    for kind in choose::<4>(&mut draw, count) {
        access[kind].present = 1;
        reference::pattern_of(&mut access[kind].data, draw.next());
    }
    let none = Facility {
        present: 0,
        active: 0,
        error_control: 0,
        data_a: 0,
        data_b: [0; 5],
        unused: [0; 7],
        forwards: [PPtr::NULL; 3],
    };
    let (mut facilities, mut forwards) = ([none; 4], Vec::new());
    let count = 1 + (draw.next() % 4) as usize;
    for kind in choose::<4>(&mut draw, count) {
        let facility = &mut facilities[kind];
        facility.present = 1;
        facility.active = (draw.next() % 100 < 85).into();
        facility.error_control = draw.next() as u8;
        facility.data_a = draw.next() as u8;
        reference::pattern_of(&mut facility.data_b, draw.next());
        let count = (draw.next() % 4) as usize;
        for start in choose::<3>(&mut draw, count) {
            let begin = 8 * start as u8;
            let end = begin + 1 + (draw.next() % 8) as u8;
            forwards.push((kind, start, Forward::new(id as u32, kind as u8 + 1, begin, end, draw.next())));
        }
    }
    (Person { subscriber, access, facilities }, forwards)
}

/// Tables of a new pool; `rows` subscribers, numbered from 1.
pub fn fill(pool: &Pool, rows: u64) -> Result<(), Error> {
    let mut persons = vec![PPtr::NULL; rows as usize];
    for part_of in 0..PARTS {
        let ids: Vec<u64> = (1..=rows).filter(|id| id % PARTS == part_of).collect();
        for ids in ids.chunks(64) {
            pool.tx_with(filling(&[part(pool, part_of)]), |t| {
                for id in ids {
                    let (mut person, forwards) = person(*id);
                    for (kind, start, forward) in forwards {
                        person.facilities[kind].forwards[start] = t.alloc(forward)?;
                    }
                    persons[*id as usize - 1] = t.alloc(person)?;
                }
                Ok::<_, Error>(())
            })?;
        }
    }
    let mut index = vec![Number { number: [0; 16], id: 0 }; INDEX as usize];
    for id in 1..=rows {
        let number = number(id);
        let mut at = hash(&number) as usize;
        while index[at].id != 0 {
            at = (at + 1) % INDEX as usize;
        }
        index[at] = Number { number, id };
    }
    let mut root = Root { rows, persons: [PSlice::EMPTY; TABLES], index: [PSlice::EMPTY; INDEX_PARTS] };
    for (place, persons) in root.persons.iter_mut().zip(persons.chunks(TABLE as usize)) {
        *place = pool.tx_with(filling(&[0]), |t| t.alloc_slice(persons))?;
    }
    for (place, part) in root.index.iter_mut().zip(index.chunks(INDEX_PART as usize)) {
        *place = pool.tx_with(filling(&[0]), |t| t.alloc_slice(part))?;
    }
    pool.tx_with(filling(&[0]), |t| {
        let place = t.alloc(root)?;
        t.set_root(place)
    })
}

/// The root, and where persons are.
pub fn find(pool: &Pool) -> Result<(Root, Vec<PPtr<Person>>), Error> {
    pool.read_in(&[0], |r| {
        let root = *r.get(r.root::<Root>()?.ok_or_else(|| broken("there is no root"))?)?;
        let mut persons = Vec::new();
        for table in root.persons {
            persons.extend_from_slice(r.slice(table)?);
        }
        Ok((root, persons))
    })
}
