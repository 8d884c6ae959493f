// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the images that the simulator allows with those of a machine that is simply run.
//!
//! - **Flow** a small random program ─▶ (a) the simulator's images at each of its crash points; (b) every state that
//!   caches, write-combining buffers and a page cache can reach when they let go of what they hold at any
//!   time, one piece after the other ─▶ the same sets
//! - **Order** (b) keeps for each durable byte the age of its write, so that an older write cannot replace a younger one

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use memlift_persist::sim::{Acks, Config, Device, Mode, World, as_thread, explore};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Op {
    Store(usize, u64, u64),
    NtStore(usize, u64, u64),
    WriteBack(usize, u64),
    Fence,
    Pwrite(usize, u64, u64),
    Sync(usize),
    FailedSync(usize),
    SetLen(usize, u64),
}

/// An operation, and the thread that does it.
type Program = Vec<(u32, Op)>;
/// Of each device the bytes, as many as its size says.
type Image = Vec<Vec<u8>>;

/// The value that operation `index` writes everywhere.
fn value(index: usize) -> u8 {
    index as u8 + 1
}

/// The simulator's images, by how many operations were complete.
fn simulated(program: &Program, modes: &[Mode], len: u64, prune: bool) -> BTreeMap<usize, BTreeSet<Image>> {
    let images: RefCell<BTreeMap<usize, BTreeSet<Image>>> = RefCell::default();
    let config = modes[1..].iter().fold(Config::new(Device::new("0", modes[0], len)), |config, mode| {
        config.and(Device::new("more", *mode, len))
    });
    let fails = program.iter().filter(|(_, op)| matches!(op, Op::Sync(_) | Op::FailedSync(_)));
    let failing =
        fails.enumerate().find(|(_, (_, op))| matches!(op, Op::FailedSync(_))).map(|(i, _)| i as u64 + 1);
    let workload = |world: &World, acks: &Acks| {
        if let Some(nth) = failing {
            world.fail_fdatasync(nth);
        }
        for (index, (thread, op)) in program.iter().enumerate() {
            let _thread = as_thread(*thread);
            let bytes = |n: u64| vec![value(index); n as usize];
            match *op {
                Op::Store(d, at, n) => world.memory(d).store(at, &bytes(n)),
                Op::NtStore(d, at, n) => world.memory(d).nt_store(at, &bytes(n)),
                Op::WriteBack(d, at) => world.memory(d).write_back(at, 1),
                Op::Fence => world.memory(0).fence(),
                Op::Pwrite(d, at, n) => world.memory(d).pwrite(at, &bytes(n)),
                Op::Sync(d) => world.memory(d).fdatasync().expect("this one succeeds"),
                Op::FailedSync(d) => assert!(world.memory(d).fdatasync().is_err()),
                Op::SetLen(d, n) => world.memory(d).set_len(n),
            }
            acks.done(index as u64);
        }
    };
    let report =
        explore(&config.exhaustive(1 << 20).recovery_depth(0).prune(prune), workload, |world, acked, _| {
            let read = |d: usize| {
                let mut bytes = vec![0; world.memory(d).len() as usize];
                world.memory(d).load(0, &mut bytes);
                bytes
            };
            images
                .borrow_mut()
                .entry(acked.len())
                .or_default()
                .insert((0..world.devices()).map(read).collect());
            Ok(())
        });
    report.assert_consistent();
    assert_eq!(report.sampled_points, 0, "{report}");
    images.into_inner()
}

/// A durable byte: its value and the operation that wrote it.
type Byte = (u8, usize);
/// A piece on its way: first byte, bytes, operation.
type Piece = (u64, u64, usize);

/// A store: its operation, and its pieces that are not durable yet.
type Queued = (usize, Vec<Piece>);

/// Memory devices and what is under way to them, as hardware has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Hardware {
    durable: Vec<Vec<Byte>>,
    /// By device and line: a queue.
    lines: BTreeMap<(usize, u64), Vec<Queued>>,
    /// By thread, device and word: a queue.
    words: BTreeMap<(u32, usize, u64), Vec<Piece>>,
    /// By thread: lines written back, and the youngest store that this took.
    taken: BTreeMap<u32, BTreeMap<(usize, u64), usize>>,
}

fn pieces(at: u64, n: u64, index: usize) -> Vec<Piece> {
    let mut found: Vec<Piece> = Vec::new();
    for byte in at..at + n {
        match found.last_mut() {
            Some(last) if byte % 8 != 0 => last.1 += 1,
            _ => found.push((byte, 1, index)),
        }
    }
    found
}

impl Hardware {
    fn persist(&mut self, device: usize, (at, n, index): Piece) {
        for byte in &mut self.durable[device][at as usize..(at + n) as usize] {
            if byte.1 <= index + 1 {
                *byte = (value(index), index + 1);
            }
        }
    }

    /// Everything that can become durable next, by itself.
    fn next(&self) -> Vec<Hardware> {
        let mut states = Vec::new();
        for (key, queue) in &self.lines {
            for piece in 0..queue[0].1.len() {
                let mut state = self.clone();
                let queue = state.lines.get_mut(key).expect("it is there");
                let piece = queue[0].1.remove(piece);
                if queue[0].1.is_empty() {
                    queue.remove(0);
                }
                if queue.is_empty() {
                    state.lines.remove(key);
                }
                state.persist(key.0, piece);
                states.push(state);
            }
        }
        for key in self.words.keys() {
            let mut state = self.clone();
            let queue = state.words.get_mut(key).expect("it is there");
            let piece = queue.remove(0);
            if queue.is_empty() {
                state.words.remove(key);
            }
            state.persist(key.1, piece);
            states.push(state);
        }
        states
    }

    fn drain_line(&mut self, key: (usize, u64), youngest: usize) {
        let queue = self.lines.remove(&key).unwrap_or_default();
        let (certain, rest): (Vec<_>, Vec<_>) = queue.into_iter().partition(|(index, _)| *index <= youngest);
        certain.into_iter().flat_map(|(_, pieces)| pieces).for_each(|piece| self.persist(key.0, piece));
        if !rest.is_empty() {
            self.lines.insert(key, rest);
        }
    }

    fn drain_words(&mut self, of: impl Fn(&(u32, usize, u64)) -> bool) {
        let keys: Vec<_> = self.words.keys().filter(|key| of(key)).copied().collect();
        for key in keys {
            for piece in self.words.remove(&key).unwrap_or_default() {
                self.persist(key.1, piece);
            }
        }
    }

    /// A store is over: what persistent caches hold of it is durable.
    fn finish(&mut self, modes: &[Mode]) {
        let keys: Vec<(usize, u64)> =
            self.lines.keys().filter(|k| modes[k.0] == Mode::Eadr).copied().collect();
        keys.into_iter().for_each(|key| self.drain_line(key, usize::MAX));
    }

    fn run(&mut self, index: usize, thread: u32, op: Op, modes: &[Mode]) {
        let keys: Vec<(usize, u64)> =
            self.lines.keys().filter(|k| modes[k.0] == Mode::Eadr).copied().collect();
        keys.into_iter().for_each(|key| self.drain_line(key, usize::MAX));
        match op {
            Op::Store(d, at, n) => {
                for piece in pieces(at, n, index) {
                    let queue = self.lines.entry((d, piece.0 / 64)).or_default();
                    match queue.last_mut() {
                        Some((last, pieces)) if *last == index => pieces.push(piece),
                        _ => queue.push((index, vec![piece])),
                    }
                }
            }
            Op::NtStore(d, at, n) => {
                for piece in pieces(at, n, index) {
                    self.words.entry((thread, d, piece.0 / 8)).or_default().push(piece);
                }
            }
            Op::WriteBack(d, at) => {
                if self.lines.contains_key(&(d, at / 64)) {
                    self.taken.entry(thread).or_default().insert((d, at / 64), index);
                }
            }
            Op::Fence => {
                let taken = self.taken.remove(&thread).unwrap_or_default();
                taken.into_iter().for_each(|(key, youngest)| self.drain_line(key, youngest));
                self.drain_words(|key| key.0 == thread);
            }
            Op::Sync(d) => {
                let keys: Vec<(usize, u64)> = self.lines.keys().filter(|k| k.0 == d).copied().collect();
                keys.into_iter().for_each(|key| self.drain_line(key, usize::MAX));
                self.drain_words(|key| key.1 == d && key.0 == thread);
            }
            Op::Pwrite(..) | Op::FailedSync(_) | Op::SetLen(..) => unreachable!("not generated for memory"),
        }
    }

    fn image(&self) -> Image {
        self.durable.iter().map(|device| device.iter().map(|b| b.0).collect()).collect()
    }
}

/// A file and its page cache, as a kernel has them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kernel {
    cache: Vec<Byte>,
    disk: Vec<Byte>,
    /// Sectors that differ, as far as the kernel knows.
    dirty: BTreeSet<usize>,
    /// The sizes that the disk has yet to learn, and the operations that set them, the oldest first.
    sizes: Vec<(usize, usize)>,
    disk_size: usize,
    /// Pieces of the store that is under way.
    storing: Vec<Piece>,
}

const SECTOR: usize = 512;
const PAGE: usize = 4096;

impl Kernel {
    fn next(&self) -> Vec<Kernel> {
        let mut states = Vec::new();
        for sector in &self.dirty {
            let mut state = self.clone();
            let bytes = sector * SECTOR..(sector + 1) * SECTOR;
            state.disk[bytes.clone()].copy_from_slice(&self.cache[bytes]);
            states.push(state);
        }
        if !self.sizes.is_empty() {
            let mut state = self.clone();
            let (size, index) = state.sizes.remove(0);
            state.learn(size, index);
            states.push(state);
        }
        for piece in 0..self.storing.len() {
            let mut state = self.clone();
            let (at, n, index) = state.storing.remove(piece);
            state.write(at as usize, n as usize, index);
            states.push(state);
        }
        states
    }

    /// The disk's size changes; what is cut off is gone, unless it was written after the cut.
    fn learn(&mut self, size: usize, index: usize) {
        if size < self.disk_size {
            self.disk[size..]
                .iter_mut()
                .filter(|byte| byte.1 <= index)
                .for_each(|byte| *byte = (0, index + 1));
        }
        self.disk_size = size;
    }

    fn write(&mut self, at: usize, n: usize, index: usize) {
        self.cache[at..at + n].fill((value(index), index + 1));
        self.dirty.extend(at / SECTOR..(at + n).div_ceil(SECTOR));
    }

    fn size(&self) -> usize {
        self.sizes.last().map_or(self.disk_size, |(size, _)| *size)
    }

    fn finish(&mut self) {
        for (at, n, by) in std::mem::take(&mut self.storing) {
            self.write(at as usize, n as usize, by);
        }
    }

    fn run(&mut self, index: usize, op: Op) {
        match op {
            Op::Store(_, at, n) => self.storing = pieces(at, n, index),
            Op::Pwrite(_, at, n) => {
                if (at + n) as usize > self.size() {
                    self.sizes.push(((at + n) as usize, index));
                }
                self.write(at as usize, n as usize, index);
            }
            Op::SetLen(_, n) => {
                let page_end = (n as usize).next_multiple_of(PAGE).min(self.size());
                self.cache[n as usize..].fill((0, index + 1));
                self.dirty.retain(|sector| sector * SECTOR < n.next_multiple_of(PAGE as u64) as usize);
                if page_end > n as usize {
                    self.dirty.extend(n as usize / SECTOR..page_end.div_ceil(SECTOR));
                }
                self.sizes.push((n as usize, index));
            }
            Op::Sync(_) => {
                for sector in std::mem::take(&mut self.dirty) {
                    let bytes = sector * SECTOR..(sector + 1) * SECTOR;
                    self.disk[bytes.clone()].copy_from_slice(&self.cache[bytes]);
                }
                for (size, index) in std::mem::take(&mut self.sizes) {
                    self.learn(size, index);
                }
            }
            Op::FailedSync(_) => self.dirty.clear(),
            Op::Fence | Op::WriteBack(..) => {}
            Op::NtStore(..) => unreachable!("not generated for files"),
        }
    }

    fn image(&self) -> Image {
        vec![self.disk[..self.disk_size].iter().map(|byte| byte.0).collect()]
    }
}

/// All states that can be reached from these without the program.
fn closure<S: Clone + Ord>(states: BTreeSet<S>, next: impl Fn(&S) -> Vec<S>) -> BTreeSet<S> {
    let mut open: Vec<S> = states.iter().cloned().collect();
    let mut all = states;
    while let Some(state) = open.pop() {
        for other in next(&state) {
            if all.insert(other.clone()) {
                open.push(other);
            }
        }
    }
    all
}

/// The images that a crash can leave when an operation is complete, and while it runs.
struct Step {
    complete: BTreeSet<Image>,
    during: BTreeSet<Image>,
}

/// The images that running the machine gives, by how many operations were begun.
fn run<S: Clone + Ord>(
    program: &Program,
    start: S,
    next: impl Fn(&S) -> Vec<S>,
    run: impl Fn(&mut S, usize, u32, Op),
    finish: impl Fn(&mut S),
    image: impl Fn(&S) -> Image,
) -> Vec<Step> {
    let with = |states: BTreeSet<S>, change: &dyn Fn(&mut S)| {
        let changed = states.into_iter().map(|mut state| {
            change(&mut state);
            state
        });
        closure(changed.collect(), &next)
    };
    let mut states = BTreeSet::from([start]);
    let images = |states: &BTreeSet<S>| states.iter().map(&image).collect();
    let mut steps = vec![Step { complete: images(&states), during: images(&states) }];
    for (index, (thread, op)) in program.iter().enumerate() {
        states = with(states, &|state| run(state, index, *thread, *op));
        let during = images(&states);
        states = with(states, &finish);
        steps.push(Step { complete: images(&states), during });
    }
    steps
}

fn hardware(program: &Program, modes: &[Mode], len: u64) -> Vec<Step> {
    let start = Hardware {
        durable: vec![vec![(0, 0); len as usize]; modes.len()],
        lines: BTreeMap::new(),
        words: BTreeMap::new(),
        taken: BTreeMap::new(),
    };
    let one = |state: &mut Hardware, index: usize, thread: u32, op: Op| state.run(index, thread, op, modes);
    run(program, start, Hardware::next, one, |state| state.finish(modes), Hardware::image)
}

fn kernel(program: &Program, len: u64) -> Vec<Step> {
    let room = 2 * PAGE;
    let start = Kernel {
        cache: vec![(0, 0); room],
        disk: vec![(0, 0); room],
        dirty: BTreeSet::new(),
        sizes: Vec::new(),
        disk_size: len as usize,
        storing: Vec::new(),
    };
    run(
        program,
        start,
        Kernel::next,
        |state, index, _, op| state.run(index, op),
        Kernel::finish,
        Kernel::image,
    )
}

/// Where the simulator crashes, both sets must be the same, or (unless `equal`) its own the larger.
fn compare(
    program: &Program,
    simulated: &BTreeMap<usize, BTreeSet<Image>>,
    run: &[Step],
    equal: bool,
) -> Result<(), TestCaseError> {
    let last = program.len();
    prop_assert_eq!(simulated.keys().next_back().copied().unwrap_or(last), last);
    // Before the first crash point nothing is simulated; what that lacks, later points must have.
    let mut missing: HashMap<&Image, usize> = HashMap::new();
    for complete in 0..=last {
        let mut legal: BTreeSet<&Image> = run[complete].complete.iter().collect();
        // The crash points around an operation that orders, and in a store to persistent caches: it was not
        // acknowledged yet.
        if simulated.contains_key(&complete) && complete < last {
            legal.extend(&run[complete + 1].during);
        }
        let Some(simulated) = simulated.get(&complete) else {
            missing.extend(legal.into_iter().map(|image| (image, complete)));
            continue;
        };
        let simulated: BTreeSet<&Image> = simulated.iter().collect();
        missing.retain(|image, _| !simulated.contains(image));
        prop_assert!(missing.is_empty(), "never simulated: {:?}", missing);
        let lacking: Vec<_> = legal.difference(&simulated).collect();
        prop_assert!(lacking.is_empty(), "after {complete}, legal but not simulated: {lacking:?}");
        if equal {
            let excess: Vec<_> = simulated.difference(&legal).collect();
            prop_assert!(excess.is_empty(), "after {complete}, simulated but not legal: {excess:?}");
        }
    }
    Ok(())
}

/// Places and lengths near each other, so that stores meet in lines and words.
fn extent(len: u64) -> impl Strategy<Value = (u64, u64)> {
    (prop_oneof![Just(0), Just(4), Just(8), Just(16), Just(56), Just(60), Just(64), 0..len - 24], 1u64..=20)
}

fn memory_op(devices: usize) -> impl Strategy<Value = (u32, Op)> {
    let device = || 0..devices;
    let op = prop_oneof![
        4 => (device(), extent(128)).prop_map(|(d, (at, n))| Op::Store(d, at, n)),
        3 => (device(), extent(128)).prop_map(|(d, (at, n))| Op::NtStore(d, at, n)),
        3 => (device(), prop_oneof![Just(0u64), Just(64)]).prop_map(|(d, at)| Op::WriteBack(d, at)),
        2 => Just(Op::Fence),
        1 => device().prop_map(Op::Sync),
    ];
    (0u32..2, op)
}

fn file_op() -> impl Strategy<Value = (u32, Op)> {
    let place = || prop_oneof![Just(0u64), Just(500), Just(508), Just(1020), 0..1000u64];
    let op = prop_oneof![
        3 => (place(), 1u64..30).prop_map(|(at, n)| Op::Pwrite(0, at, n)),
        2 => (prop_oneof![Just(0u64), Just(500), Just(508), 0..580u64], 1u64..20).prop_map(|(at, n)| Op::Store(0, at, n)),
        2 => Just(Op::Sync(0)),
        1 => Just(Op::Fence),
    ];
    op.prop_map(|op| (0, op))
}

/// As before, with cuts and one failing sync.
fn faulty_file_op() -> impl Strategy<Value = (u32, Op)> {
    prop_oneof![
        3 => prop_oneof![Just(0u64), Just(500), Just(1020), 0..1000u64]
            .prop_flat_map(|at| (1u64..30).prop_map(move |n| (0, Op::Pwrite(0, at, n)))),
        1 => Just((0, Op::Sync(0))),
        1 => (1u64..1500).prop_map(|n| (0, Op::SetLen(0, n))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lines_lose_what_caches_and_buffers_lose(program in prop::collection::vec(memory_op(1), 1..8)) {
        let modes = [Mode::Lines];
        compare(&program, &simulated(&program, &modes, 128, false), &hardware(&program, &modes, 128), true)?;
    }

    #[test]
    fn pruning_loses_no_image_that_recovery_can_see(program in prop::collection::vec(memory_op(1), 1..8)) {
        let modes = [Mode::Lines];
        prop_assert_eq!(simulated(&program, &modes, 128, true), simulated(&program, &modes, 128, false));
    }

    #[test]
    fn two_devices_lose_independently(program in prop::collection::vec(memory_op(2), 1..7)) {
        let modes = [Mode::Lines, Mode::Eadr];
        compare(&program, &simulated(&program, &modes, 128, false), &hardware(&program, &modes, 128), true)?;
    }

    #[test]
    fn persistent_caches_lose_what_buffers_hold(program in prop::collection::vec(memory_op(1), 1..8)) {
        let modes = [Mode::Eadr];
        compare(&program, &simulated(&program, &modes, 128, false), &hardware(&program, &modes, 128), true)?;
    }

    #[test]
    fn files_lose_what_a_page_cache_loses(program in prop::collection::vec(file_op(), 1..6)) {
        compare(&program, &simulated(&program, &[Mode::File], 600, false), &kernel(&program, 600), true)?;
    }

    /// After a failed sync, and where files are cut, the simulator allows more than this kernel does.
    #[test]
    fn a_failed_sync_or_a_cut_file_loses_at_least_that(
        mut program in prop::collection::vec(faulty_file_op(), 1..5),
        at in 0usize..5,
    ) {
        if at < program.len() {
            program.insert(at, (0, Op::FailedSync(0)));
        }
        compare(&program, &simulated(&program, &[Mode::File], 600, false), &kernel(&program, 600), false)?;
    }
}
