// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Scripts of transactions on a small pool, the model of what they leave, and the check of what a crash left.
//!
//! - **Flow** [`Script::run`] does the steps and acknowledges each ─▶ crash ─▶ [`Script::check`]: open, compare with the model
//!   after some step that the acknowledged ones allow, note which, push once more as another thread, close, open, fill up
//! - **Rule** what was found once is found again when the recovery, or the push after it, is crashed in: no transaction comes or
//!   goes later

use memlift_persist::sim::{Acks, Config, Device, Memory, Mode, World, as_thread, pool};
use memlift_persist::{
    Durability, Error, Mechanism, Options, PPtr, PSlice, Persist, Pool, Tx, TxOptions, View,
};

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct Root {
    pub head: PPtr<Node>,
    pub count: u64,
    pub sum: u64,
    pub large: PSlice<u64>,
}

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct Node {
    pub value: u64,
    pub next: PPtr<Node>,
    pub copies: [u64; 30],
}

/// Nodes in a slab.
const SLOTS: u64 = (16384 - 64) / 256;
/// Words of a large array: two slabs.
const LARGE: usize = 2100;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// A new head.
    Push(Durability),
    /// Several new heads at once.
    Batch(u64, Durability),
    /// The head is freed.
    Pop(Durability),
    /// Every value goes up.
    Add(Durability),
    /// The same, declared beforehand.
    Declared,
    /// A new large array, and the old one freed.
    Large,
    /// The large array freed.
    Small,
    /// All sorts of changes, and then an error.
    Abort,
    Sync,
    Apply,
    /// Stores the log's records to their place, as a snapshot for readers does.
    Place,
    Reopen,
    Close,
}

pub const SYNC: Durability = Durability::Sync;
pub const GROUP: Durability = Durability::Group;
pub const LATER: Durability = Durability::Buffered;

impl Step {
    /// Returns true if its acknowledgement says that it, and all before it, is durable.
    fn hardens(self) -> bool {
        match self {
            Step::Push(how) | Step::Batch(_, how) | Step::Pop(how) | Step::Add(how) => how != LATER,
            Step::Abort => false,
            _ => true,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    /// Values on the list, newest first.
    pub list: Vec<u64>,
    pub large: Option<u64>,
}

/// Step numbers of a check's own.
const FOUND: u64 = 1 << 32;
const MORE: u64 = 1 << 33;
/// Values that a check pushes.
const MORE_VALUES: u64 = 1 << 40;
const CREATE: u64 = 0;

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Script {
    pub name: &'static str,
    pub mechanism: Mechanism,
    pub mode: Mode,
    pub steps: Vec<Step>,
    /// Slabs of the heap: five of the system's, one for the root, the others for nodes and large arrays.
    pub slabs: u64,
    /// Slabs up to which it may grow.
    pub most: u64,
    pub lane_bytes: u64,
    /// True if only recovery is crashed in: the run itself ends with everything durable, and a transaction under way.
    pub settled: bool,
    /// True if its creation is crashed in.
    pub create: bool,
    /// True if the pool must say that it was closed; for crashes of the script, not for those of recoveries.
    pub ends: bool,
    /// True if all the rest of the heap must be there after recovery.
    pub fill: bool,
    /// True if the log goes to its place behind the commits.
    pub behind: bool,
}

impl Script {
    pub fn new(name: &'static str, mechanism: Mechanism, mode: Mode, steps: &[Step]) -> Script {
        let lane_bytes = if mechanism == Mechanism::Checkpoint { 16384 } else { 4096 };
        Script {
            name,
            mechanism,
            mode,
            steps: steps.to_vec(),
            slabs: 8,
            most: 8,
            lane_bytes,
            settled: false,
            create: false,
            ends: false,
            fill: false,
            behind: false,
        }
    }

    pub fn options(&self) -> Options {
        let checksums = 2 * u64::from(
            self.mode == Mode::File && matches!(self.mechanism, Mechanism::Redo | Mechanism::Checkpoint),
        );
        Options {
            heap_bytes: (self.slabs + checksums) << 14,
            max_bytes: (self.most + checksums) << 14,
            lanes: 2,
            lane_bytes: self.lane_bytes,
            mechanism: self.mechanism,
            group_wait: std::time::Duration::ZERO,
            apply_behind: self.behind,
            ..Options::default()
        }
    }

    /// A machine with an empty device for it.
    pub fn config(&self) -> Config {
        Config::new(Device::new("pool", self.mode, 0))
    }

    /// The content after 0, 1, 2, … steps.
    pub fn models(&self) -> Vec<Model> {
        let mut models = vec![Model::default()];
        for (index, step) in self.steps.iter().enumerate() {
            let mut next = models[index].clone();
            step.model(&mut next, index as u64 + 1);
            models.push(next);
        }
        models
    }

    /// Does the steps, from 1 on; stops at the first that the disk refuses.
    pub fn run(&self, world: &World, acks: &Acks) {
        let memory = world.memory(0);
        let options = self.options();
        acks.begin(CREATE);
        let Ok(pool) = pool::create(&memory, &options) else { return };
        let mut pool = Some(pool);
        if !self.create {
            world.settle();
        }
        acks.done(CREATE);
        for (index, step) in self.steps.iter().enumerate() {
            let number = index as u64 + 1;
            acks.begin(number);
            match self.step(*step, number, &mut pool, &memory) {
                Ok(()) => acks.done(number),
                Err(Error::Stopped { .. }) => return stopped(world, pool),
                Err(error) => panic!("{} {:?}: step {number}, {step:?}: {error}", self.name, self.mechanism),
            }
        }
        if self.settled
            && let Some(pool) = pool.take()
        {
            leave_under_way(pool);
            world.settle();
            acks.done(CREATE);
        }
        std::mem::forget(pool); // neither closed nor dropped: the crash comes first
    }

    fn step(&self, step: Step, number: u64, pool: &mut Option<Pool>, memory: &Memory) -> Result<(), Error> {
        let open = pool.as_ref().expect("open until it is closed");
        match step {
            Step::Sync => open.sync(),
            Step::Apply => open.apply(),
            Step::Place => pool::place(open),
            Step::Close => pool.take().map_or(Ok(()), Pool::close),
            Step::Reopen => {
                pool.take().map_or(Ok(()), Pool::close)?;
                *pool = Some(pool::open(memory, &self.options())?);
                Ok(())
            }
            Step::Abort => match open.tx(|t| step.change(t, number).and(Err(Tx::aborted("no")))) {
                Err(Error::Aborted(_)) => Ok(()),
                Err(error) => Err(error),
                Ok(()) => panic!("an error ended as a success"),
            },
            Step::Push(durability)
            | Step::Batch(_, durability)
            | Step::Pop(durability)
            | Step::Add(durability) => {
                open.tx_with(TxOptions { durability, sections: None }, |t| step.change(t, number))
            }
            Step::Declared | Step::Large | Step::Small => open.tx(|t| step.change(t, number)),
        }
    }

    /// Opens what a crash left and judges it.
    pub fn check(&self, world: &World, acked: &[u64], in_flight: &[u64]) -> Result<(), String> {
        let (memory, options, models) = (world.memory(0), self.options(), self.models());
        let pool = match pool::open(&memory, &options) {
            Err(_) if !acked.contains(&CREATE) => return Ok(()), // no pool yet: the file had no name
            opened => opened.map_err(|error| format!("it does not open: {error}"))?,
        };
        let (found, more) = split(read(&pool)?);
        let step = |number: u64| (number > 0 && number < FOUND).then_some(number as usize);
        let begun = acked.iter().chain(in_flight).copied().filter_map(step).max().unwrap_or(0);
        let hardened = |at: &usize| self.steps[*at - 1].hardens();
        let durable = acked.iter().copied().filter_map(step).filter(hardened).max().unwrap_or(0);
        let before =
            acked.iter().find(|number| **number & FOUND != 0).map(|number| (number ^ FOUND) as usize);
        let range = before.map_or(durable..=begun, |before| before..=before);
        let Some(at) = range.clone().rev().find(|at| models[*at] == found) else {
            return Err(format!(
                "{found:?} is not what any of the steps {range:?} left: {:?}",
                &models[range.clone()]
            ));
        };
        let done = acked.iter().filter(|number| **number >= MORE).count() as u64;
        let maybe = in_flight.iter().filter(|number| **number >= MORE).count() as u64;
        let all_there = (0..done + maybe)
            .filter(|n| acked.contains(&(MORE + n)))
            .all(|n| more.contains(&(MORE_VALUES + n)));
        if !all_there || more.iter().any(|value| value - MORE_VALUES >= done + maybe) {
            return Err(format!(
                "after recovery {done} pushes were acknowledged, and now there are {more:?}"
            ));
        }
        if before.is_none() {
            let closed = self.ends
                && in_flight.is_empty()
                && acked
                    .iter()
                    .copied()
                    .filter_map(step)
                    .max()
                    .is_some_and(|at| self.steps[at - 1] == Step::Close);
            if closed && (!pool.recovered().clean || pool.recovered().transactions > 0) {
                return Err("it was closed, and does not say so".to_owned());
            }
            Acks::of(world).done(FOUND | at as u64);
        }
        self.go_on(world, pool, done + maybe)
    }

    /// Checks that a recovered pool works as any other.
    fn go_on(&self, world: &World, pool: Pool, nth: u64) -> Result<(), String> {
        let wrong = |error: Error| format!("after recovery: {error}");
        let (memory, acks) = (world.memory(0), Acks::of(world));
        let mut expected = read(&pool)?;
        {
            let _other = as_thread(9);
            acks.begin(MORE + nth);
            pool.tx(|t| push(t, MORE_VALUES + nth)).map_err(wrong)?;
            acks.done(MORE + nth);
        }
        world.recovered();
        expected.list.insert(0, MORE_VALUES + nth);
        pool.close().map_err(wrong)?;
        let pool = pool::open(&memory, &self.options()).map_err(wrong)?;
        if !pool.recovered().clean || pool.recovered().transactions != 0 {
            return Err(format!("it was closed, and opens with {:?}", pool.recovered()));
        }
        let found = read(&pool)?;
        if found != expected {
            return Err(format!("closed as {expected:?}, opened as {found:?}"));
        }
        if self.fill {
            let large = if found.large.is_some() { 2 } else { 0 };
            let room = (self.most - 6 - large) * SLOTS - found.list.len() as u64;
            let filled = fill(&pool)?;
            if filled != room {
                return Err(format!("{filled} nodes can be allocated, and {room} are free"));
            }
            read(&pool)?; // nothing was overwritten
        }
        Ok(())
    }
}

/// A transaction that has changed something and never ends: its thread waits for ever.
fn leave_under_way(pool: Pool) {
    let (changed, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        pool.tx(|t| {
            push(t, 77)?;
            Step::Add(SYNC).change(t, 77)?;
            changed.send(()).expect("somebody waits");
            loop {
                std::thread::park();
            }
            #[expect(unreachable_code, reason = "says the type")]
            Ok::<(), Error>(())
        })
    });
    wait.recv().expect("changed");
}

/// Checks that after the disk's error nothing is tried again, and nothing works.
fn stopped(world: &World, pool: Option<Pool>) {
    let Some(pool) = pool else { return };
    let syncs = world.counters().fdatasyncs;
    let again = pool.tx(|t| push(t, 1));
    assert!(matches!(again, Err(Error::Stopped { .. })), "a stopped pool did a transaction: {again:?}");
    assert!(matches!(pool.apply(), Err(Error::Stopped { .. })), "a stopped pool applies");
    assert!(matches!(pool.close(), Err(Error::Stopped { .. })), "a stopped pool closes");
    assert_eq!(world.counters().fdatasyncs, syncs, "a failed sync was tried again");
}

impl Step {
    fn change(self, t: &mut Tx<'_>, number: u64) -> Result<(), Error> {
        match self {
            Step::Push(_) => push(t, number),
            Step::Batch(n, _) => (0..n).try_for_each(|at| push(t, number * 100 + at)),
            Step::Pop(_) => pop(t),
            Step::Add(_) | Step::Declared => {
                let nodes = nodes(t)?;
                if self == Step::Declared {
                    t.declare(&nodes)?;
                }
                let root = root(t)?;
                t.get_mut(root)?.sum += 1000 * nodes.len() as u64;
                nodes.into_iter().try_for_each(|node| {
                    t.get_mut(node)?.value += 1000;
                    Ok(())
                })
            }
            Step::Large => {
                let root = root(t)?;
                let old = t.get(root)?.large;
                t.free_slice(old)?;
                let new = t.alloc_slice(&vec![number; LARGE])?;
                t.get_mut(root)?.large = new;
                Ok(())
            }
            Step::Small => {
                let root = root(t)?;
                let old = t.get(root)?.large;
                t.free_slice(old)?;
                t.get_mut(root)?.large = PSlice::EMPTY;
                Ok(())
            }
            Step::Abort => {
                push(t, number)?;
                Step::Add(SYNC).change(t, number)?;
                pop(t)?;
                pop(t)?;
                push(t, number + 1)
            }
            Step::Sync | Step::Apply | Step::Place | Step::Reopen | Step::Close => Ok(()),
        }
    }

    fn model(self, model: &mut Model, number: u64) {
        match self {
            Step::Push(_) => model.list.insert(0, number),
            Step::Batch(n, _) => (0..n).for_each(|at| model.list.insert(0, number * 100 + at)),
            Step::Pop(_) => drop(model.list.remove(0)),
            Step::Add(_) | Step::Declared => model.list.iter_mut().for_each(|value| *value += 1000),
            Step::Large => model.large = Some(number),
            Step::Small => model.large = None,
            Step::Abort | Step::Sync | Step::Apply | Step::Place | Step::Reopen | Step::Close => {}
        }
    }
}

fn root(t: &mut Tx<'_>) -> Result<PPtr<Root>, Error> {
    t.root_or(|_| Ok(Root { head: PPtr::NULL, count: 0, sum: 0, large: PSlice::EMPTY }))
}

fn nodes(t: &mut Tx<'_>) -> Result<Vec<PPtr<Node>>, Error> {
    let root = root(t)?;
    let (mut all, mut at) = (Vec::new(), t.get(root)?.head);
    while !at.is_null() {
        all.push(at);
        at = t.get(at)?.next;
    }
    Ok(all)
}

/// A new head.
pub fn push(t: &mut Tx<'_>, value: u64) -> Result<(), Error> {
    let root = root(t)?;
    let next = t.get(root)?.head;
    let node = t.alloc(Node { value, next, copies: [value; 30] })?;
    let root = t.get_mut(root)?;
    root.head = node;
    root.count += 1;
    root.sum += value;
    Ok(())
}

fn pop(t: &mut Tx<'_>) -> Result<(), Error> {
    let root = root(t)?;
    let head = t.get(root)?.head;
    let Node { value, next, .. } = *t.get(head)?;
    t.free(head)?;
    let root = t.get_mut(root)?;
    root.head = next;
    root.count -= 1;
    root.sum -= value;
    Ok(())
}

/// The pool's contents, and whether they agree with each other.
pub fn read(pool: &Pool) -> Result<Model, String> {
    let read = pool.read(|r| {
        let Some(root) = r.root::<Root>()? else { return Ok((Model::default(), true)) };
        let root = *r.get(root)?;
        let (mut list, mut at, mut whole) = (Vec::new(), root.head, true);
        while !at.is_null() && list.len() < 10_000 {
            let node = r.get(at)?;
            whole &= node.copies.iter().all(|copy| copy % 1000 == node.value % 1000);
            list.push(node.value);
            at = node.next;
        }
        whole &= root.count == list.len() as u64 && root.sum == list.iter().sum::<u64>();
        let large = r.slice(root.large)?;
        whole &= large.iter().all(|word| *word == large[0]);
        Ok((Model { list, large: large.first().copied() }, whole))
    });
    let known: Vec<String> = pool.types().into_iter().map(|one| one.name).collect();
    let named = |name: &str| known.iter().any(|one| one.ends_with(name));
    match read {
        Ok((model, true)) if !(model.list.is_empty() || named("Root") && named("Node")) => {
            Err(format!("there are objects of types that the pool does not know: it has {known:?}"))
        }
        Ok((model, true)) => Ok(model),
        Ok((model, false)) => Err(format!("parts of transactions are there: {model:?}")),
        Err(error) => Err(Error::to_string(&error)),
    }
}

/// Splits off the values that checks pushed after the script's own.
fn split(mut model: Model) -> (Model, Vec<u64>) {
    let more = model.list.iter().take_while(|value| **value >= MORE_VALUES).count();
    let more = model.list.drain(..more).collect();
    (model, more)
}

/// Pushes until there is no more room; how often.
fn fill(pool: &Pool) -> Result<u64, String> {
    let mut filled = 0;
    loop {
        match pool.tx_with(TxOptions { durability: LATER, sections: None }, |t| push(t, filled)) {
            Ok(()) => filled += 1,
            Err(Error::Full { .. }) => return Ok(filled),
            Err(error) => return Err(format!("while it was filled up: {error}")),
        }
    }
}
