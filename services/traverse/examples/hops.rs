// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nanoseconds per hop of a hash-bucket walk: compiled round, round in Rust around the compiled step, and a native loop.
//!
//! - **Flow** 2 GiB of nodes in chains of 48, placed at random, huge pages ──▶ W walks in flight, each to the end of its chain
//!   ──▶ the median of the ratio over pairs of runs, in both orders
//! - **Layout** a node is key, value, global address of the next; `NODE` bytes apart
//!
//! `cargo run --release -p memlift-traverse --example hops [gibibytes] [bytes per node]`
#![allow(unsafe_code)]

#[path = "../tests/jit_programs/mod.rs"]
mod jit_programs;

use jit_programs::hash_find;
use memlift_traverse::builder::{Builder, NODE, R4, R5, R6, R7, R8, at, equal, greater, less, node, scratch};
use memlift_traverse::jit::{Compiled, Limits};
use memlift_traverse::program::Program;
use memlift_traverse::round::{prefetch, round};
use memlift_traverse::slot::{FREE, RUN, Region, STOPPED, Slot};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use std::time::Instant;

const CHAIN: u64 = 48;
const BASE: u64 = 0x0001_0000_0000_0000;

/// Median milliseconds to verify and compile, and bytes of code.
fn compile_times() {
    let [mut find, mut sum, mut tree] = core::array::from_fn(|_| Builder::new());
    find.load(R4, node(0)).load(R5, scratch(0));
    find.when(equal(R4, R5), |b| {
        b.load(R4, node(8)).store(scratch(8), R4).done();
    });
    find.load(R4, node(16));
    find.when(equal(R4, 0), |b| {
        b.missing();
    });
    find.next(R4);
    sum.load(R4, node(8)).load(R5, scratch(8)).add(R5, R4).store(scratch(8), R5);
    sum.load(R4, scratch(16)).add(R4, 1).store(scratch(16), R4);
    sum.load(R4, node(16));
    sum.when(equal(R4, 0), |b| {
        b.done();
    });
    sum.next(R4);
    // 15 keys after their count, 16 children after those.
    tree.load(R4, node(0)).load(R5, scratch(0)).set(R6, 0);
    tree.when(greater(R4, 15), |b| {
        b.missing();
    });
    tree.repeat_while(less(R6, R4), |b| {
        b.set(R7, R6).shl(R7, 3).add(R7, NODE).load(R8, at(R7, 8));
        b.when(greater(R8, R5), |b| {
            b.set(R4, 0);
        });
        b.add(R6, 1);
    });
    tree.shl(R6, 3).and(R6, 0x78).add(R6, NODE).load(R8, at(R6, 128)).next(R8);
    for (name, builder) in [("hash find", &find), ("list sum", &sum), ("tree node", &tree)] {
        let bytecode = builder.bytecode().expect("assembles");
        let (mut verify, mut compile, mut bytes) = (Vec::new(), Vec::new(), 0);
        for _ in 0..101 {
            let start = Instant::now();
            let program = match Program::new(name, &bytecode, 64) {
                Ok(program) => program,
                Err(error) => return println!("{name}: {error}"),
            };
            verify.push(start.elapsed().as_secs_f64() * 1e3);
            let window = program.window();
            let limits = Limits { window_first: window.first, window_bytes: window.bytes, scratch_bytes: 64 };
            let start = Instant::now();
            bytes = Compiled::new(program.function(), &limits).expect("compiles").code_bytes();
            compile.push(start.elapsed().as_secs_f64() * 1e3);
        }
        println!(
            "{name}: verify {:.3} ms, compile {:.3} ms, {bytes} bytes of code",
            median(&verify),
            median(&compile)
        );
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

struct Heap {
    host: *mut u8,
    node: u64,
    nodes: u64,
}

impl Heap {
    fn new(bytes: u64, node: u64) -> Heap {
        // SAFETY: a new mapping, that nothing else has an address of.
        let host = unsafe {
            mmap_anonymous(
                core::ptr::null_mut(),
                bytes as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .expect("memory");
        // SAFETY: advice on the mapping just made.
        unsafe { madvise(host, bytes as usize, Advice::LinuxHugepage) }.expect("huge pages");
        let heap = Heap { host: host.cast(), node, nodes: bytes / node };
        let usable = heap.nodes / CHAIN * CHAIN;
        for index in 0..usable {
            let next = if index % CHAIN == CHAIN - 1 { 0 } else { BASE + heap.place(index + 1) };
            // SAFETY: `place` is below the bytes mapped, and a multiple of a node that holds three words.
            unsafe {
                let words: *mut u64 = heap.host.add(heap.place(index) as usize).cast();
                words.write(index + 1);
                words.add(1).write(index * 7);
                words.add(2).write(next);
            }
        }
        heap
    }

    /// A permutation of the nodes: odd multiplication and shifts, modulo a power of two.
    fn place(&self, index: u64) -> u64 {
        let mask = self.nodes - 1;
        let half = self.nodes.ilog2() / 2;
        let mut value = index;
        for _ in 0..3 {
            value = value.wrapping_mul(0x9E37_79B9_7F4A_7C15) & mask;
            value ^= value >> half;
        }
        value * self.node
    }

    /// A walk's first node, and the key at its end. `sum` is what was found so far: a processor that foresees the end of a walk
    /// does not begin the next one before it is there, as it could not if another process asked for it.
    fn chain(&self, walk: u64, sum: u64) -> (u64, u64) {
        let walk = walk + (sum >> 63);
        let chain = walk.wrapping_mul(0x2545_F491_4F6C_DD1D) % (self.nodes / CHAIN);
        (self.place(chain * CHAIN), chain * CHAIN + CHAIN)
    }
}

fn native(heap: &Heap, walks: u64, width: usize, seed: u64) -> u64 {
    struct Cursor {
        host: *const u64,
        key: u64,
    }
    let delta = (heap.host as u64).wrapping_sub(BASE);
    let mut issued = 0;
    let mut sum = 0_u64;
    let mut take = |sum| {
        if issued == walks {
            return None;
        }
        issued += 1;
        let (place, key) = heap.chain(seed + issued, sum);
        let host: *const u64 = heap.host.wrapping_add(place as usize).cast();
        prefetch(host.cast());
        Some(Cursor { host, key })
    };
    let mut cursors: Vec<Cursor> = (0..width).map_while(|_| take(0)).collect();
    while !cursors.is_empty() {
        let mut at = 0;
        while at < cursors.len() {
            let cursor = &mut cursors[at];
            // SAFETY: `host` points at a node of the heap, whose three words are mapped and written.
            let (key, next) = unsafe { (cursor.host.read_volatile(), cursor.host.add(2).read_volatile()) };
            if key != cursor.key && next != 0 {
                cursor.host = core::ptr::with_exposed_provenance(next.wrapping_add(delta) as usize);
                prefetch(cursor.host.cast());
                at += 1;
                continue;
            }
            // SAFETY: `host` points at the same node, whose second word is its value.
            sum = sum.wrapping_add(unsafe { cursor.host.add(1).read_volatile() });
            match take(sum) {
                Some(new) => {
                    cursors[at] = new;
                    at += 1;
                }
                None => drop(cursors.swap_remove(at)),
            }
        }
    }
    sum
}

fn rounds(
    heap: &Heap,
    walks: u64,
    width: usize,
    seed: u64,
    mut step: impl FnMut(&mut [Slot]) -> usize,
) -> u64 {
    let mut scratch = vec![[0_u64; 128]; width];
    let mut slots: Vec<Slot> = (0..width).map(|_| Slot::default()).collect();
    let mut issued = 0;
    let mut running = width;
    let mut sum = 0_u64;
    for (slot, scratch) in slots.iter_mut().zip(&mut scratch) {
        slot.scratch = scratch.as_mut_ptr().cast();
        slot.state = STOPPED;
        slot.walk.fuel = 1000;
    }
    let mut stopped = width;
    while running > 0 {
        if stopped > 0 {
            for slot in slots.iter_mut().filter(|slot| slot.state == STOPPED) {
                let words: *mut u64 = slot.scratch.cast();
                // SAFETY: `scratch` points at the slot's own 128 words.
                unsafe {
                    if slot.verdict == 1 {
                        sum = sum.wrapping_add(*words.add(1));
                    }
                    if issued == walks {
                        slot.state = FREE;
                        running -= 1;
                        continue;
                    }
                    issued += 1;
                    let (place, key) = heap.chain(seed + issued, sum);
                    *words = key;
                    let host = heap.host.wrapping_add(place as usize);
                    prefetch(host);
                    slot.start(BASE + place, host, 4096);
                }
            }
        }
        stopped = step(&mut slots);
    }
    sum
}

fn main() {
    let argument =
        |at, default| std::env::args().nth(at).map_or(default, |text| text.parse().expect("a number"));
    let (gibibytes, node): (u64, u64) = (argument(1, 2), argument(2, 64));
    let heap = Heap::new(gibibytes << 30, node);
    compile_times();
    let program = hash_find();
    let limits = Limits { window_first: 0, window_bytes: 24, scratch_bytes: 1024 };
    let compiled = Compiled::new(&program, &limits).expect("compiles");
    let region = Region::new(BASE, gibibytes << 30, heap.host, 0, 24);
    println!(
        "{} bytes of code, prefetch offsets {:?}, {RUN}",
        compiled.code_bytes(),
        compiled.prefetch_offsets()
    );
    let walks = 60_000_u64;
    println!("{gibibytes} GiB, {node} bytes per node; ns per hop and share of native");
    for width in [1_usize, 8, 16, 32, 64] {
        let walks = if width == 1 { walks / 8 } else { walks };
        let time = |run: &dyn Fn() -> u64| {
            let start = Instant::now();
            let sum = run();
            (start.elapsed().as_secs_f64() * 1e9 / (walks * CHAIN) as f64, sum)
        };
        let mut rows: [Vec<f64>; 3] = Default::default();
        for pair in 0..7_u64 {
            let seed = pair * 1_000_003;
            let kinds: [&dyn Fn() -> u64; 3] = [
                &|| native(&heap, walks, width, seed),
                // SAFETY: `rounds` fills the slots with nodes of the heap, which `region` describes.
                &|| rounds(&heap, walks, width, seed, |slots| unsafe { compiled.round(slots, &region) }),
                &|| {
                    rounds(&heap, walks, width, seed, |slots| {
                        // SAFETY: `rounds` fills the slots with nodes of the heap, which `region` describes; `round` calls the
                        // step with a slot's own node, scratchpad and walk.
                        unsafe {
                            round(slots, &region, compiled.prefetch_offsets(), |node, scratch, walk| {
                                compiled.step(node, scratch, walk)
                            })
                        }
                    })
                },
            ];
            let order: [usize; 3] = if pair % 2 == 0 { [0, 1, 2] } else { [2, 1, 0] };
            let mut sums = [0; 3];
            for kind in order {
                let (ns, sum) = time(kinds[kind]);
                rows[kind].push(ns);
                sums[kind] = sum;
            }
            assert!(sums[0] == sums[1] && sums[1] == sums[2], "the walks found the same values: {sums:?}");
        }
        let ratio = |kind: usize| {
            median(&rows[0].iter().zip(&rows[kind]).map(|(native, ours)| native / ours).collect::<Vec<_>>())
        };
        println!(
            "W {width:3}: native {:6.2}   round {:6.2} ({:.3})   rust loop {:6.2} ({:.3})",
            median(&rows[0]),
            median(&rows[1]),
            ratio(1),
            median(&rows[2]),
            ratio(2)
        );
    }
}
