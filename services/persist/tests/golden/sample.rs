// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A small pool with one of everything: numbers, text, pointers, arrays, an object of its own slab, a freed slot, and a log
//! with transactions in it.
//!
//! - **Layout** the golden files hold what [`build`] made: a change here needs new files, and old ones must still open

use std::path::Path;

use memlift_persist::{Domain, Error, Mechanism, Options, PPtr, PSlice, Persist, Pool, Result, View};

/// A point of a list.
#[derive(Clone, Copy, Debug, PartialEq, Persist)]
#[repr(C)]
pub struct Node {
    pub key: u64,
    pub name: PSlice<u8>,
    pub next: PPtr<Node>,
    pub other: [PPtr<Node>; 2],
    pub place: Place,
    pub label: [u8; 8],
}

/// A struct in a struct.
#[derive(Clone, Copy, Debug, PartialEq, Persist)]
#[repr(C)]
pub struct Place {
    pub x: f64,
    pub y: f32,
    pub z: i32,
}

/// Larger than a slot may be.
#[derive(Clone, Copy, Debug, PartialEq, Persist)]
#[repr(C)]
pub struct Large {
    pub first: PPtr<Node>,
    pub bytes: [u8; 9000],
}

/// Keys of the list when nothing is lost.
pub const KEYS: u64 = 12;
/// Keys of these that are only in the log.
pub const WAITING: u64 = 3;

pub fn options(mechanism: Mechanism) -> Options {
    Options {
        heap_bytes: 128 << 10,
        max_bytes: 1 << 20,
        lanes: 2,
        lane_bytes: 64 << 10,
        sections: 1,
        mechanism,
        domain: Domain::Lines,
        ..Options::default()
    }
}

fn node(pool: &Pool, key: u64) -> Result<()> {
    pool.tx(|t| {
        let name = t.alloc_slice(format!("node {key}").as_bytes())?;
        let next = t.root::<Node>()?.unwrap_or(PPtr::NULL);
        let place = Place { x: key as f64 / 2.0, y: 0.5, z: -(key as i32) };
        let other = [next, PPtr::NULL];
        let node = t.alloc(Node { key, name, next, other, place, label: *b"golden\0\0" })?;
        t.set_root(node)
    })
}

/// Makes the pool at `path`; its last transactions are in the log only, and one was under way when `copy` was made of it. When
/// it is dropped, the pool is whole and clean.
pub fn build(path: &Path, mechanism: Mechanism, copy: Option<&Path>) -> Result<Pool> {
    build_with(path, &options(mechanism), copy)
}

/// As [`build`], with other options.
pub fn build_with(path: &Path, options: &Options, copy: Option<&Path>) -> Result<Pool> {
    let pool = Pool::create(path, options)?;
    for key in 0..KEYS - WAITING {
        node(&pool, key)?;
    }
    pool.tx(|t| {
        let first = t.root::<Node>()?.expect("made above");
        let mut bytes = [0; 9000];
        bytes[8999] = 0xaa;
        let large = t.alloc(Large { first, bytes })?;
        let spare = t.alloc_slice(b"freed below")?;
        t.get_mut(first)?.other[1] = PPtr::from_offset(large.offset()); // of another type: nobody follows it
        t.get_mut(first)?.other[1] = PPtr::NULL;
        t.free_slice(spare)
    })?;
    pool.apply()?;
    for key in KEYS - WAITING..KEYS {
        node(&pool, key)?;
    }
    if let Some(copy) = copy {
        let aborted: Result<()> = pool.tx(|t| {
            let first = t.root::<Node>()?.expect("made above");
            t.get_mut(first)?.key = 999;
            std::fs::copy(path, copy).expect("copied");
            Err(Error::Aborted("as intended".to_owned()))
        });
        assert!(matches!(aborted, Err(Error::Aborted(_))));
    }
    Ok(pool)
}

/// The keys, from the last to the first; what each node holds is checked.
pub fn keys(pool: &Pool) -> Result<Vec<u64>> {
    pool.read(|r| {
        let (mut keys, mut at) = (Vec::new(), r.root::<Node>()?.unwrap_or(PPtr::NULL));
        while !at.is_null() && keys.len() < 1000 {
            let node = r.get(at)?;
            let name = String::from_utf8_lossy(r.slice(node.name)?).into_owned();
            if name != format!("node {}", node.key)
                || node.place != (Place { x: node.key as f64 / 2.0, y: 0.5, z: -(node.key as i32) })
                || node.label != *b"golden\0\0"
                || node.other != [node.next, PPtr::NULL]
            {
                return Err(Error::Aborted(format!("a node is spoilt: {node:?} {name}")));
            }
            keys.push(node.key);
            at = node.next;
        }
        Ok(keys)
    })
}

/// The keys of a pool that lost nothing.
pub fn all() -> Vec<u64> {
    (0..KEYS).rev().collect()
}
