// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pool's file at hostile bytes: opening, reading, writing and every tool give an orderly answer.
//!
//! - **Order** what opens can be read and written to, closes, opens again and has what it had; what is repaired opens
//! - **Layout** mechanism and state u8 · then changes: region u8 · place u16 · bytes u8 · bytes. Bit 7 of the region: the checksum of the
//!   header, head or record that was changed is made good, as somebody hostile would
//! - **Why** changes to a small good pool, not whole files: of a file most bytes are zeros, and its checksums refuse the rest

use std::path::Path;
use std::sync::OnceLock;

use memlift_persist::layout::{
    CATALOG_START, Entry, HEAD_BYTES, HEADER_BYTES, HEADS_START, Header, LANES_START, SUPERBLOCK_OFFSET,
    crc32c,
};
use memlift_persist::{
    Domain, Error, Mechanism, Options, PPtr, PSlice, Persist, Pool, View, check, dump, repair,
};

use crate::Input;

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Node {
    key: u64,
    text: PSlice<u8>,
    next: PPtr<Node>,
}

const LANE_BYTES: u64 = 64 << 10;

fn options(mechanism: Mechanism) -> Options {
    Options {
        heap_bytes: 128 << 10,
        max_bytes: 1 << 20,
        lanes: 2,
        lane_bytes: LANE_BYTES,
        mechanism,
        domain: Domain::Lines,
        ..Options::default()
    }
}

/// A small pool of each mechanism: closed, and with its log full.
fn good() -> &'static Vec<[Vec<u8>; 2]> {
    static GOOD: OnceLock<Vec<[Vec<u8>; 2]>> = OnceLock::new();
    GOOD.get_or_init(|| Mechanism::ALL.iter().map(|mechanism| build(*mechanism).expect("a pool")).collect())
}

fn build(mechanism: Mechanism) -> Result<[Vec<u8>; 2], Error> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("good.pool");
    let pool = Pool::create(&path, &options(mechanism))?;
    for key in 0..6 {
        if key == 3 {
            pool.apply()?;
        }
        pool.tx(|t| {
            let text = t.alloc_slice(format!("node {key}").as_bytes())?;
            let next = t.root::<Node>()?.unwrap_or(PPtr::NULL);
            let node = t.alloc(Node { key, text, next })?;
            t.set_root(node)
        })?;
    }
    let mut full = Vec::new();
    let _: Result<(), Error> = pool.tx(|t| {
        let root = t.root::<Node>()?.expect("made above");
        t.get_mut(root)?.key = 99;
        full = std::fs::read(&path).expect("read");
        Err(Error::Aborted(String::new()))
    });
    pool.close()?;
    Ok([std::fs::read(&path).expect("read"), full])
}

fn seal(bytes: &mut [u8], from: usize, to: usize, seed: &[&[u8]]) {
    let crc = crc32c(&[seed, &[&bytes[from + 4..to]]].concat());
    bytes[from..from + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Makes the checksum good of what lies at a changed place.
fn forge(bytes: &mut [u8], region: usize, at: usize, salts: [u32; 2]) {
    match region {
        0 => {
            let start = at / HEADER_BYTES as usize * HEADER_BYTES as usize;
            let header = &mut bytes[start..start + 128];
            let crc = crc32c(&[&header[..8], &header[12..]]);
            header[8..12].copy_from_slice(&crc.to_le_bytes());
        }
        1 => {
            let start = at / HEAD_BYTES as usize * HEAD_BYTES as usize;
            seal(bytes, start, start + HEAD_BYTES as usize, &[]);
        }
        3 => {
            // The record that starts at or before the place, if its size leads past it.
            let lanes = LANES_START as usize;
            let lane = (at - lanes) / LANE_BYTES as usize;
            let first = lanes + lane * LANE_BYTES as usize;
            let found = (first..at + 1).step_by(64).rev().find(|start| {
                let size =
                    u32::from_le_bytes(bytes[start + 4..start + 8].try_into().expect("4 bytes")) as usize;
                size >= 64
                    && size.is_multiple_of(64)
                    && start + size > at
                    && start + size <= first + LANE_BYTES as usize
            });
            if let Some(start) = found {
                let size =
                    u32::from_le_bytes(bytes[start + 4..start + 8].try_into().expect("4 bytes")) as usize;
                // A CRC goes on from the salt as from the CRC of earlier bytes.
                let crc =
                    memlift_offload::Engine::global().crc32c(&bytes[start + 4..start + size], salts[lane]);
                bytes[start..start + 4].copy_from_slice(&crc.to_le_bytes());
            }
        }
        _ => {}
    }
}

/// Start and length of each region.
fn regions(header: &Header) -> [(u64, u64); 8] {
    let heap = header.heap_start;
    [
        (0, 2 * HEADER_BYTES),
        (HEADS_START, 4 * HEAD_BYTES),
        (CATALOG_START, 1024),
        (LANES_START, 2 * LANE_BYTES),
        (heap, 8 * size_of::<Entry>() as u64),
        (heap + SUPERBLOCK_OFFSET, 64),
        (heap + SUPERBLOCK_OFFSET + (16 << 10), 1024),
        (LANES_START + 2 * LANE_BYTES, heap - LANES_START - 2 * LANE_BYTES + 4096),
    ]
}

fn read(pool: &Pool) -> Result<Vec<(u64, usize)>, Error> {
    pool.read(|r| {
        let (mut all, mut at) = (Vec::new(), r.root::<Node>()?.unwrap_or(PPtr::NULL));
        while !at.is_null() && all.len() < 1000 {
            let node = r.get(at)?;
            all.push((node.key, r.slice(node.text)?.len()));
            at = node.next;
        }
        Ok(all)
    })
}

fn tools(path: &Path) {
    let _ = check::check(path);
    let _ = dump::dump(path, &dump::Filter::default(), |object| !object.value.to_string().is_empty());
    let target = path.with_extension("repaired");
    if let Ok(repaired) = repair::repair(path, &target) {
        let opened = Pool::open(&target, &options(Mechanism::Redo));
        assert!(opened.is_ok(), "{:?} after {:?}", opened.err(), repaired.changes);
        std::fs::remove_file(&target).expect("removed");
    }
}

/// Panics when something is wrong.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = usize::from(input.byte());
    let mut bytes = good()[choice % 4][choice / 4 % 2].clone();
    let newest = [0, HEADER_BYTES as usize]
        .into_iter()
        .filter_map(|at| Header::decode(&bytes[at..at + 128]).ok())
        .max_by_key(|header| header.generation)
        .expect("a good header");
    let (regions, salts) = (regions(&newest), [newest.salt(0), newest.salt(1)]);
    while !input.is_empty() {
        let region = input.byte();
        let (forged, region) = (region & 0x80 != 0, usize::from(region & 0x7f) % regions.len());
        let (start, length) = regions[region];
        let at = (start + input.word() as u64 % length.max(1)) as usize;
        let count = usize::from(input.byte()) % 16 + 1;
        for (index, byte) in input.take(count).iter().enumerate() {
            if let Some(target) = bytes.get_mut(at + index) {
                *target = *byte;
            }
        }
        if forged && at < bytes.len() {
            forge(&mut bytes, region, at, salts);
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("hostile.pool");
    std::fs::write(&path, &bytes).expect("written");
    tools(&path);
    let options = options(Mechanism::Redo);
    let Ok(pool) = Pool::open(&path, &options) else { return };
    let before = read(&pool).ok();
    let _ = pool.tx(|t| {
        let text = t.alloc_slice(b"later")?;
        t.alloc(Node { key: 7, text, next: PPtr::NULL })
    });
    if pool.close().is_ok() {
        let pool = Pool::open(&path, &options).expect("what was closed opens");
        if let (Some(before), Ok(after)) = (before, read(&pool)) {
            assert_eq!(before.len(), after.len(), "a list of another length came back");
        }
    }
    tools(&path);
}

/// No change, and one in each region, with and without a good checksum.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = (0..8).map(|choice| vec![choice]).collect();
    for region in 0..8u8 {
        for choice in 0..8 {
            seeds.push(vec![choice, region, 24, 0, 3, 1, 2, 0xff, 0x80]);
            seeds.push(vec![choice, region | 0x80, 64, 0, 7, 1, 0, 0, 0, 0, 0, 0, 0xff]);
        }
    }
    // A sealed record of nonsense: what repair does must be what open does.
    seeds.push(vec![6, 0x83, 0x40, 8, 3, 1, 0, 0, 0, 0xff, 0, 0, 0, 0, 2, 0, 0xff]);
    seeds.push(vec![6, 0x83, 0x40, 8, 3, 1, 0, 0, 0xff, 0, 0, 0, 0, 2, 0, 0xff]);
    seeds
}
