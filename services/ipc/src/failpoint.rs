// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Failpoints: the steps of a session at which a test can end or stop a process.
//!
//! - **Flow** in the process that is to die: `arm(step, nth, act)` … `reach(step)` for the nth time ─▶ the act
//! - **Layout** steps stand in the order of a call's life; each says which side takes it
//! - **Order** a step's name says what has just been done; what follows from it has not
//! - **Owner** one armed failpoint per process
//! - **Not here** without the feature `failpoints`, [`reach`] is empty: the feature is on for this crate's own tests only

/// Side of a session that takes a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The client takes it.
    Client,
    /// The server takes it.
    Server,
    /// Either side takes it, in its own direction.
    Both,
}

macro_rules! steps {
    ($($(#[doc = $text:literal])+ $name:ident: $side:ident,)+) => {
        /// A step of a session.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Step {
            $($(#[doc = $text])+ $name,)+
        }

        impl Step {
            /// All of them.
            pub const ALL: &[Step] = &[$(Step::$name,)+];

            /// Returns the side that takes this step.
            pub fn side(self) -> Side {
                match self {
                    $(Step::$name => Side::$side,)+
                }
            }
        }
    };
}

steps! {
    /// The socket is connected; nothing was said.
    Connected: Client,
    /// The session's memory is made; nobody else knows of it.
    MemoryMade: Client,
    /// The greeting and its descriptors are on their way.
    HelloSent: Client,
    /// A connection is accepted; it has not greeted.
    Accepted: Server,
    /// A greeting was taken and its memory mapped; the client does not know.
    SessionOpened: Server,
    /// The client is welcome, and the session is not served yet.
    WelcomeSent: Server,
    /// A request slot is taken and empty.
    RequestSlotTaken: Client,
    /// A request is nearly copied, and the server was woken for it.
    RequestHalfFilled: Client,
    /// A request is complete; nobody was told.
    RequestFilled: Client,
    /// The request pool has a new segment; the server does not know.
    RequestSegmentMade: Client,
    /// The server was told of a new request segment; the pool does not have it yet.
    RequestSegmentSent: Client,
    /// The call is entered as unanswered; it is not in the ring.
    CallEntered: Client,
    /// A message is written into the ring's entry; the tail is as before.
    EntryWritten: Both,
    /// The tail is published; a sleeper was not rung.
    TailPublished: Both,
    /// The other side was rung, if it slept.
    PeerRung: Both,
    /// A message is taken, and its entry given back; nothing was done about it.
    EntryTaken: Both,
    /// It was announced that the server sleeps; it does not sleep yet.
    ParkAnnounced: Server,
    /// A call is judged and its payload viewed; no handler has it.
    CallViewed: Server,
    /// A handler is about to run.
    HandlerEntered: Server,
    /// A handler has run, and its call is answered.
    HandlerLeft: Server,
    /// A response slot is taken and empty.
    ResponseSlotTaken: Server,
    /// A reply is complete; nobody was told.
    ResponseFilled: Server,
    /// An answer waits to be pushed.
    AnswerQueued: Server,
    /// A reply waits for room, and the client is to be asked for it.
    RoomWanted: Server,
    /// The response pool has a new segment; the server does not know.
    ResponseSegmentMade: Client,
    /// A later segment of either pool is mapped; nothing uses it.
    SegmentMapped: Server,
    /// A reply that had waited for room has its slot and is empty.
    LateSlotTaken: Server,
    /// An answer is judged; its call is still entered as unanswered.
    AnswerJudged: Client,
    /// An answer is matched with its call; nobody has taken it.
    AnswerMatched: Client,
    /// The last view of an answer is gone; the server was not told.
    ReleaseNoted: Client,
    /// A response slot came back and is free.
    ResponseSlotFreed: Server,
    /// The last view of a request is gone, after its answer; the client was not told.
    RequestReleased: Server,
    /// A request slot that the server had kept is free.
    RequestSlotFreed: Client,
    /// The server was asked to let go of a segment that is not used any more.
    SegmentRetired: Client,
    /// A retired segment is not mapped any more; the client was not told.
    SegmentLetGo: Server,
    /// A retired segment is gone on both sides.
    SegmentGone: Client,
}

/// Notes that a step was taken. Does nothing else, unless a test armed the step.
#[inline(always)]
pub(crate) fn reach(step: Step) {
    #[cfg(feature = "failpoints")]
    armed::reach(step);
    #[cfg(not(feature = "failpoints"))]
    let _ = step;
}

#[cfg(feature = "failpoints")]
pub use armed::{Act, arm, reached};

#[cfg(feature = "failpoints")]
#[expect(unsafe_code, reason = "raises a signal")]
mod armed {
    use super::Step;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Way in which an armed failpoint ends or stops its process.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Act {
        /// Kills it with SIGKILL.
        Kill,
        /// Ends it with `abort`.
        Abort,
        /// Stops it with SIGSTOP: it goes on from there when it is continued.
        Stop,
    }

    static ARMED: OnceLock<(Step, u64, Act)> = OnceLock::new();
    static REACHED: [AtomicU64; Step::ALL.len()] = [const { AtomicU64::new(0) }; Step::ALL.len()];

    /// Arms a failpoint: when `step` is taken for the `nth` time from now (1: the next), the process does `act`. Gives true for
    /// the first call in a process; later ones change nothing.
    pub fn arm(step: Step, nth: u64, act: Act) -> bool {
        ARMED.set((step, reached(step) + nth, act)).is_ok()
    }

    /// How often this process has taken a step.
    pub fn reached(step: Step) -> u64 {
        REACHED[step as usize].load(Ordering::Relaxed)
    }

    pub(super) fn reach(step: Step) {
        let count = REACHED[step as usize].fetch_add(1, Ordering::Relaxed) + 1;
        match ARMED.get() {
            Some(&(armed, nth, act)) if armed == step && nth == count => end(act),
            _ => {}
        }
    }

    #[cold]
    fn end(act: Act) {
        let signal = match act {
            Act::Kill => libc::SIGKILL,
            Act::Stop => libc::SIGSTOP,
            Act::Abort => std::process::abort(),
        };
        // SAFETY: raise has no preconditions. It names this thread, so that no other one goes on in its place.
        unsafe { libc::raise(signal) };
    }
}
