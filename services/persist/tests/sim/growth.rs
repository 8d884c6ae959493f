// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Growth of a heap whose pages have checksums, whatever crashes while it gets another part of them.

use memlift_persist::sim::{Config, Device, Mode, World, explore, pool};
use memlift_persist::{Error, Mechanism, Options, PPtr, PSlice, Persist, Pool, View};

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
struct Link {
    next: PPtr<Link>,
    value: PSlice<u64>,
}

/// The first part of the checksums is for so many bytes of heap.
const PART_BYTES: u64 = 4 << 20;
/// A heap of one part has room for three such values.
const WORDS: usize = (1 << 20) / 8;
const ROOM: u64 = 3;

fn push(pool: &Pool, number: u64) -> Result<(), Error> {
    pool.tx(|t| {
        let next = t.root::<Link>()?.unwrap_or(PPtr::NULL);
        let value = t.alloc_slice(&vec![number; WORDS])?;
        let link = t.alloc(Link { next, value })?;
        t.set_root(link)
    })
}

/// How many values there are; each is whole.
fn count(pool: &Pool) -> Result<u64, Error> {
    pool.read(|r| {
        let (mut values, mut at) = (Vec::new(), r.root::<Link>()?.unwrap_or(PPtr::NULL));
        while !at.is_null() {
            let link = r.get(at)?;
            let value = r.slice(link.value)?;
            assert!(value.len() == WORDS && value.iter().all(|word| *word == value[0]));
            values.push(value[0]);
            at = link.next;
        }
        assert!(values.iter().rev().copied().eq(1..=values.len() as u64), "{values:?}");
        Ok(values.len() as u64)
    })
}

fn looks_right(world: &World, options: &Options, acked: u64, begun: u64) -> Result<(), String> {
    let pool = pool::open(&world.memory(0), options).map_err(|error| error.to_string())?;
    let whole = (|| {
        let found = count(&pool)?;
        // One more than was begun, where this very check was interrupted by a crash.
        if !(acked..=begun + 1).contains(&found) {
            return Err(Error::Aborted(format!("{found} found, {acked} acknowledged, {begun} begun")));
        }
        if found <= begun {
            push(&pool, found + 1)?;
        }
        pool.apply()?;
        let damaged = pool.scrub(u64::MAX)?;
        if damaged.is_empty() { Ok(()) } else { Err(Error::Aborted(format!("damaged: {damaged:x?}"))) }
    })();
    whole.map_err(|error| error.to_string())
}

#[test]
fn crashes_while_the_heap_gets_another_part() {
    for (mechanism, direct) in
        [(Mechanism::Redo, true), (Mechanism::Redo, false), (Mechanism::Checkpoint, true)]
    {
        let options = Options {
            heap_bytes: PART_BYTES,
            max_bytes: 4 * PART_BYTES,
            lanes: 2,
            lane_bytes: if mechanism == Mechanism::Redo { 16 << 10 } else { 8 << 20 },
            mechanism,
            group_wait: std::time::Duration::ZERO,
            ..Options::default()
        };
        let config = Config::new(Device::new("pool", Mode::File, 0)).exhaustive(12).samples(4);
        let config = if direct { config.direct() } else { config };
        let report = explore(
            &config,
            |world, acks| {
                let pool = pool::create(&world.memory(0), &options).expect("created");
                (1..=ROOM).for_each(|number| push(&pool, number).expect("pushed"));
                pool.apply().expect("at its place");
                assert_eq!(pool.header().checksum_chunks, 1);
                world.settle();
                acks.begin(1);
                push(&pool, ROOM + 1).expect("pushed");
                acks.done(1);
                assert_eq!(pool.header().checksum_chunks, 2, "the heap has grown");
                acks.begin(2);
                pool.apply().expect("at its place");
                acks.done(2);
            },
            |world, acked, in_flight| {
                let acked = acked.len() as u64;
                let pushed = ROOM + acked.min(1);
                looks_right(world, &options, pushed, (pushed + in_flight.len() as u64).min(ROOM + 1))
            },
        );
        println!("{mechanism:?}: {report}");
        report.assert_consistent();
        assert!(report.crash_points > 4 && report.images > 15, "{report}");
    }
}
