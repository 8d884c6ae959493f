// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every interleaving of a few threads, for tests: each access to a shared word is a point at which another thread may go on.
//!
//! - **Flow** [`explore`]: threads are started, one runs at a time ──[`step`], [`wait`], end──▶ the schedule says who goes on
//!   ──all ended──▶ the check ──▶ the next schedule, depth first, until there is none
//! - **Order** sequentially consistent: what weaker orders allow on other machines is not tried. Preemptions are bounded,
//!   switches at waits and ends are not. Time passes only when nobody can run: then every wait with a limit ends
//! - **Owner** a thread that dies stays where it was, as if killed: nothing of it runs before the check
//! - **Not here** a model: the code under test is the real one, its atomics are ([`super::atomic`])

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Steps after which a schedule counts as endless.
const LONGEST: usize = 20_000;

thread_local! {
    static HERE: RefCell<Option<(Arc<Run>, usize)>> = const { RefCell::new(None) };
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Thread {
    Ready,
    /// Waits for a word; the flag says if a limit of time ends the wait.
    Waits(usize, bool),
    Ended,
    Dead,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Choice {
    Goes(usize),
    Dies,
}

struct State {
    current: usize,
    threads: Vec<Thread>,
    /// The choice taken and the number of options, at each point where there was a choice.
    taken: Vec<(usize, usize)>,
    replay: Vec<usize>,
    preemptions: usize,
    /// The thread that may die; `None` once it did, or where none may.
    victim: Option<usize>,
    timeouts: usize,
    steps: usize,
    /// The check is done or something failed: threads leave.
    over: bool,
}

struct Run {
    state: Mutex<State>,
    moved: Condvar,
    on_death: Box<dyn Fn() + Send + Sync>,
}

/// Panic payload that unwinds a thread that is dead or no longer needed.
struct Leave;

/// Counts of an exploration.
#[derive(Debug, Default)]
pub struct Explored {
    /// Schedules that were tried.
    pub schedules: usize,
    /// Of these, schedules in which time had to pass.
    pub with_timeouts: usize,
    /// Of these, schedules in which the victim died.
    pub with_death: usize,
}

/// Bounds of an exploration.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Times at most that a thread which could go on is made to wait.
    pub preemptions: usize,
    /// The thread that may die, at any of its steps.
    pub victim: Option<usize>,
}

/// How one schedule ended.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Times that no thread could run until time passed.
    pub timeouts: usize,
    /// The victim died.
    pub died: bool,
}

/// Code that one schedule runs: new threads, the callback at the victim's death, and the check at the end.
pub struct Case {
    /// Bodies of the threads, one each.
    pub threads: Vec<Box<dyn FnOnce() + Send>>,
    /// Runs at the moment of death, as the kernel would make it known.
    pub on_death: Box<dyn Fn() + Send + Sync>,
    /// Runs when all have ended, waited in vain or died.
    pub check: Box<dyn FnOnce(Outcome)>,
}

/// Runs every schedule within the bounds.
pub fn explore(bounds: Bounds, case: impl Fn() -> Case) -> Explored {
    let (mut replay, mut explored) = (Vec::new(), Explored::default());
    loop {
        let (taken, outcome) = run(bounds, replay, case());
        explored.schedules += 1;
        explored.with_timeouts += usize::from(outcome.timeouts > 0);
        explored.with_death += usize::from(outcome.died);
        let Some(last) = taken.iter().rposition(|(index, options)| index + 1 < *options) else {
            return explored;
        };
        replay = taken[..=last].iter().map(|(index, _)| *index).collect();
        replay[last] += 1;
    }
}

fn run(bounds: Bounds, replay: Vec<usize>, case: Case) -> (Vec<(usize, usize)>, Outcome) {
    let count = case.threads.len();
    let state = State {
        current: usize::MAX,
        threads: vec![Thread::Ready; count],
        taken: Vec::new(),
        replay,
        preemptions: bounds.preemptions,
        victim: bounds.victim,
        timeouts: 0,
        steps: 0,
        over: false,
    };
    let run = Arc::new(Run { state: Mutex::new(state), moved: Condvar::new(), on_death: case.on_death });
    let threads: Vec<_> = case
        .threads
        .into_iter()
        .enumerate()
        .map(|(index, body)| {
            let run = run.clone();
            std::thread::spawn(move || {
                HERE.with(|here| *here.borrow_mut() = Some((run.clone(), index)));
                let ended = catch_unwind(AssertUnwindSafe(|| {
                    run.await_turn(run.lock(), index);
                    body();
                }));
                HERE.with(|here| *here.borrow_mut() = None);
                let mut state = run.lock();
                match ended {
                    Err(payload) if payload.is::<Leave>() => {}
                    Err(payload) => {
                        let schedule: Vec<usize> = state.taken.iter().map(|(index, _)| *index).collect();
                        state.over = true;
                        eprintln!("thread {index} failed in schedule {schedule:?}");
                        drop(state);
                        run.moved.notify_all();
                        resume_unwind(payload);
                    }
                    Ok(()) => {
                        state.threads[index] = Thread::Ended;
                        run.go_on(&mut state, None);
                    }
                }
            })
        })
        .collect();
    {
        let mut state = run.lock();
        run.go_on(&mut state, None);
        while !state.over && state.current != count {
            state = run.moved.wait(state).expect("no thread fails under it");
        }
    }
    let (failed, outcome, taken) = {
        let state = run.lock();
        let died = state.threads.contains(&Thread::Dead);
        (state.over, Outcome { timeouts: state.timeouts, died }, state.taken.clone())
    };
    if !failed {
        (case.check)(outcome);
    }
    run.lock().over = true;
    run.moved.notify_all();
    for thread in threads {
        if let Err(payload) = thread.join() {
            resume_unwind(payload);
        }
    }
    (taken, outcome)
}

impl Run {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread fails under it")
    }

    /// Waits until it is this thread's turn.
    fn await_turn(&self, mut state: MutexGuard<'_, State>, index: usize) {
        while state.current != index && !state.over {
            state = self.moved.wait(state).expect("no thread fails under it");
        }
        if state.over {
            drop(state);
            leave();
        }
    }

    /// Chooses the thread that runs next; `from` is the thread that could go on itself.
    fn go_on(&self, state: &mut State, from: Option<usize>) {
        state.steps += 1;
        assert!(state.steps < LONGEST, "this schedule does not end: {:?}", state.threads);
        if !state.threads.contains(&Thread::Ready) {
            let timed = |thread: &Thread| matches!(thread, Thread::Waits(_, true));
            if state.threads.iter().any(timed) {
                state.timeouts += 1;
                for thread in state.threads.iter_mut().filter(|thread| timed(thread)) {
                    *thread = Thread::Ready;
                }
            } else {
                assert!(
                    state.threads.iter().all(|thread| matches!(thread, Thread::Ended | Thread::Dead)),
                    "nobody can go on: {:?}",
                    state.threads
                );
                state.current = state.threads.len();
                self.moved.notify_all();
                return;
            }
        }
        let ready = |state: &State, index: &usize| state.threads[*index] == Thread::Ready;
        let mut choices: Vec<Choice> = from.into_iter().map(Choice::Goes).collect();
        if from.is_some() && from == state.victim {
            choices.push(Choice::Dies);
        }
        if from.is_none() || state.preemptions > 0 {
            let others = (0..state.threads.len()).filter(|index| Some(*index) != from && ready(state, index));
            choices.extend(others.map(Choice::Goes));
        }
        let chosen = match choices.len() {
            1 => 0,
            options => {
                let index = state.replay.get(state.taken.len()).copied().unwrap_or(0);
                state.taken.push((index, options));
                index
            }
        };
        match (choices[chosen], from) {
            (Choice::Goes(next), _) => {
                state.preemptions -= usize::from(from.is_some_and(|from| from != next));
                state.current = next;
            }
            (Choice::Dies, from) => {
                let index = from.expect("the victim itself");
                (state.victim, state.threads[index]) = (None, Thread::Dead);
                // Accesses of `on_death` are no steps of the thread that died.
                let here = HERE.with(|here| here.borrow_mut().take());
                (self.on_death)();
                HERE.with(|own| *own.borrow_mut() = here);
                self.go_on(state, None);
                return;
            }
        }
        self.moved.notify_all();
    }
}

fn leave() {
    // A thread that unwinds already runs on to its end.
    if !std::thread::panicking() {
        resume_unwind(Box::new(Leave));
    }
}

fn here() -> Option<(Arc<Run>, usize)> {
    // Not while the thread's own places are taken down.
    HERE.try_with(|here| here.borrow().clone()).ok().flatten()
}

/// Returns true if this thread is one of an exploration's.
pub fn rules() -> bool {
    here().is_some()
}

/// A point at which another thread may go on.
pub fn step() {
    let Some((run, index)) = here() else { return };
    let mut state = run.lock();
    if state.over {
        drop(state);
        return leave();
    }
    if state.current != index {
        // The final check or `on_death` runs.
        return;
    }
    run.go_on(&mut state, Some(index));
    if state.current != index {
        run.await_turn(state, index);
    }
}

/// As a futex's wait; false where no schedule rules.
pub fn wait(word: &AtomicU32, expected: u32, limited: bool) -> bool {
    let Some((run, index)) = here() else { return false };
    step();
    let mut state = run.lock();
    if state.over || word.load(Ordering::SeqCst) != expected {
        return true;
    }
    state.threads[index] = Thread::Waits(word.as_ptr().addr(), limited);
    run.go_on(&mut state, None);
    if state.current != index {
        run.await_turn(state, index);
    }
    true
}

/// As a futex's wake of all; false where no schedule rules.
pub fn wake(word: &AtomicU32) -> bool {
    let Some((run, _)) = here() else { return false };
    step();
    for thread in &mut run.lock().threads {
        if matches!(thread, Thread::Waits(at, _) if *at == word.as_ptr().addr()) {
            *thread = Thread::Ready;
        }
    }
    true
}
