// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs every interleaving of a few threads, for tests: at each access to a shared word, another thread may continue instead.
//!
//! - **Flow** [`explore`]: the threads are started and one runs at a time ──at [`step`], [`wait`] or its end──▶ the schedule
//!   chooses the thread that continues ──all ended──▶ the check runs ──▶ the next schedule, depth first, until there is none
//!   left
//! - **Order** sequentially consistent: effects of weaker memory orders on other machines are not tried. The number of
//!   preemptions is bounded; the number of switches at waits and at ends is not. Time passes only when no thread can run:
//!   then every wait that has a time limit ends
//! - **Owner** a thread that dies stays where it was, as if it were killed: none of its code runs before the check
//! - **Not here** a model of the code: the code under test is the real one, with its atomics replaced ([`super::atomic`])

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Number of steps after which a schedule counts as endless.
const LONGEST: usize = 20_000;

thread_local! {
    static HERE: RefCell<Option<(Arc<Run>, usize)>> = const { RefCell::new(None) };
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Thread {
    Ready,
    /// Waits for the word at this address; the flag is true if the wait has a time limit.
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
    /// The index of the choice taken and the number of options, at each point where there was a choice.
    taken: Vec<(usize, usize)>,
    replay: Vec<usize>,
    preemptions: usize,
    /// The thread that may die. `None` after it died, or if none may die.
    victim: Option<usize>,
    timeouts: usize,
    steps: usize,
    /// True when the check is done or a thread failed: the other threads then leave.
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
    /// Number of schedules in which time had to pass.
    pub with_timeouts: usize,
    /// Number of schedules in which the victim died.
    pub with_death: usize,
}

/// Bounds of an exploration.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Upper bound of the number of times that a thread which could continue is made to wait.
    pub preemptions: usize,
    /// The thread that may die, at any of its steps.
    pub victim: Option<usize>,
}

/// How one schedule ended.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Number of times that no thread could run until time passed.
    pub timeouts: usize,
    /// True if the victim died.
    pub died: bool,
}

/// The code that one schedule runs: new threads, a callback at the victim's death, and the check at the end.
pub struct Case {
    /// Bodies of the threads, one each.
    pub threads: Vec<Box<dyn FnOnce() + Send>>,
    /// Runs at the moment of the victim's death; makes the death visible as the kernel would.
    pub on_death: Box<dyn Fn() + Send + Sync>,
    /// Runs when every thread has ended or died.
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

    /// Chooses the thread that runs next; `from` is the calling thread if it could continue itself.
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
                // Accesses that `on_death` makes must not count as steps of the thread that died.
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
    // A thread that is unwinding already continues to its end.
    if !std::thread::panicking() {
        resume_unwind(Box::new(Leave));
    }
}

fn here() -> Option<(Arc<Run>, usize)> {
    // Returns nothing while the thread's local variables are being destroyed.
    HERE.try_with(|here| here.borrow().clone()).ok().flatten()
}

/// Returns true if the calling thread belongs to an exploration.
pub fn is_explored() -> bool {
    here().is_some()
}

/// A point of the code at which another thread may continue.
pub fn step() {
    let Some((run, index)) = here() else { return };
    let mut state = run.lock();
    if state.over {
        drop(state);
        return leave();
    }
    if state.current != index {
        // The final check or `on_death` is running; neither is scheduled.
        return;
    }
    run.go_on(&mut state, Some(index));
    if state.current != index {
        run.await_turn(state, index);
    }
}

/// Behaves as a futex wait. Returns false if the calling thread belongs to no exploration.
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

/// Behaves as a futex wake of all waiters. Returns false if the calling thread belongs to no exploration.
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
