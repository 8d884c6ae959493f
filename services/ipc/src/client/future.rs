// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls as futures, for any runtime: no thread, no timer, one descriptor per session.
//!
//! - **Flow** `call` ─▶ sent, or waits for room ─▶ its future keeps a waker ─▶ the descriptor is readable: whichever future is polled
//!   takes all answers and wakes those they belong to
//! - **Order** the runtime holds one waker for the descriptor, the [`Baton`]; it wakes some call, and a call that is dropped wakes another
//! - **Owner** a future that is dropped abandons its call: the server finishes, and its memory stays untouched until then
//! - **Not here** the runtime: a [`Readiness`] says when the descriptor is readable. `tokio` has one (feature `tokio`).

use super::{Client, Watch, lock};
use crate::error::Error;
use crate::number_map::NumberMap;
use crate::options::CallOptions;
use crate::payload::{Outgoing, Payload};
use rustix::fd::BorrowedFd;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

/// Readiness of one descriptor, as a runtime reports it.
pub trait Readiness {
    /// Gives `Ready` if the descriptor may have become readable since the last `Ready`, and forgets it. Otherwise gives
    /// `Pending`, and calls `context`'s waker when it becomes readable. One waker at a time is enough.
    ///
    /// # Errors
    ///
    /// The runtime's error; readiness cannot be known any more.
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// Answers that are not taken yet, and wakers of calls that wait for an answer or for room.
#[derive(Default)]
struct Waiting {
    answers: NumberMap<u64, Result<Payload, Error>>,
    wakers: NumberMap<u64, Waker>,
    /// Calls that found no room, by their number in line.
    room: VecDeque<(u64, Waker)>,
    line: u64,
}

/// The waker that the runtime holds. It wakes one call, which then collects the answers of all.
struct Baton(Mutex<Waiting>);

impl Wake for Baton {
    fn wake(self: Arc<Self>) {
        self.wake_one();
    }
}

impl Baton {
    fn wake_one(&self) {
        let waker = {
            let waiting = lock(&self.0);
            waiting.wakers.values().next().or(waiting.room.front().map(|(_, waker)| waker)).cloned()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes the first call in line for room, when there may be some.
    fn wake_room(&self) {
        let first = lock(&self.0).room.pop_front();
        if let Some((_, waker)) = first {
            waker.wake();
        }
    }
}

/// A session whose calls are futures. Share it as a reference or an `Arc`; its futures may be polled on any thread.
pub struct AsyncClient<R> {
    watch: Watch,
    readiness: R,
    baton: Arc<Baton>,
    waker: Waker,
}

impl<R: Readiness> AsyncClient<R> {
    /// Takes over a session. `readiness` registers the descriptor with the runtime; the descriptor stays open as long as the
    /// client.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the runtime does not take the descriptor, or none is left.
    pub fn new(
        client: Client,
        readiness: impl FnOnce(BorrowedFd<'_>) -> io::Result<R>,
    ) -> Result<AsyncClient<R>, Error> {
        let watch = Watch::new(client)?;
        let readiness = readiness(watch.as_fd())
            .map_err(|source| Error::System { doing: "watching the session's descriptor", source })?;
        let baton = Arc::new(Baton(Mutex::default()));
        let waker = Waker::from(Arc::clone(&baton));
        Ok(AsyncClient { watch, readiness, baton, waker })
    }

    /// The session whose calls are futures.
    pub fn client(&self) -> &Client {
        self.watch.client()
    }

    /// Calls `operation`. The data is copied when the future is first polled, or when there is room. A time limit in `options` is
    /// the server's, which does not begin what is late; to stop waiting, drop the future (as `tokio::time::timeout` does).
    ///
    /// # Errors
    ///
    /// As [`Client::call`].
    pub async fn call<'a>(
        &self,
        operation: &str,
        data: impl Into<Outgoing<'a>>,
        options: impl Into<CallOptions>,
    ) -> Result<Payload, Error> {
        let (data, options) = (data.into(), options.into());
        let mut place = Place { baton: &self.baton, number: None };
        let id = poll_fn(|context| self.poll_submit(operation, &data, options, &mut place, context)).await?;
        drop(place);
        Answer { client: self, id, taken: false }.await
    }

    fn poll_submit(
        &self,
        operation: &str,
        data: &Outgoing<'_>,
        options: CallOptions,
        place: &mut Place<'_>,
        context: &mut Context<'_>,
    ) -> Poll<Result<u64, Error>> {
        let sent = self.watch.submit(operation, data, options)?;
        if sent.is_none() {
            place.enter(context.waker());
        }
        // Sending may have collected other calls' answers, for which the ring will not ring again: give them out now.
        self.turn(false)?;
        match sent {
            Some(id) => Poll::Ready(Ok(id)),
            None => self.drive().map_or_else(|error| Poll::Ready(Err(error)), |()| Poll::Pending),
        }
    }

    fn poll_answer(&self, id: u64, context: &mut Context<'_>) -> Poll<Result<Payload, Error>> {
        if let Some(answer) = self.answer(id, Some(context)) {
            return Poll::Ready(answer);
        }
        if let Err(error) = self.drive() {
            // Answers that arrived before the session's end still count.
            return Poll::Ready(self.answer(id, None).unwrap_or(Err(error)));
        }
        self.answer(id, None).map_or(Poll::Pending, Poll::Ready)
    }

    fn answer(&self, id: u64, keep: Option<&mut Context<'_>>) -> Option<Result<Payload, Error>> {
        let mut waiting = lock(&self.baton.0);
        let answer = waiting.answers.remove(&id);
        match (&answer, keep) {
            (None, Some(context)) => {
                waiting.wakers.insert(id, context.waker().clone());
            }
            (None, None) => {}
            (Some(_), _) => {
                waiting.wakers.remove(&id);
            }
        }
        answer
    }

    /// Takes answers until the descriptor is not readable any more. The runtime then wakes the baton when it is again.
    fn drive(&self) -> Result<(), Error> {
        while let Poll::Ready(ready) = self.readiness.poll_readable(&mut Context::from_waker(&self.waker)) {
            ready.map_err(|source| Error::System { doing: "watching the session's descriptor", source })?;
            self.turn(true)?;
        }
        Ok(())
    }

    fn turn(&self, rung: bool) -> Result<(), Error> {
        let answered = self.watch.turn(rung)?;
        if answered.is_empty() {
            return Ok(());
        }
        let mut waiting = lock(&self.baton.0);
        let mut wake: Vec<Waker> = Vec::new();
        for (id, answer) in answered {
            wake.extend(waiting.wakers.remove(&id));
            waiting.answers.insert(id, answer);
        }
        drop(waiting);
        wake.into_iter().for_each(Waker::wake);
        self.baton.wake_room();
        Ok(())
    }
}

/// A place in the line for room. If it is dropped after its turn came, the next in line may try.
struct Place<'a> {
    baton: &'a Baton,
    number: Option<u64>,
}

impl Place<'_> {
    /// Enters the line, or stays in it. A call whose turn came and that found no room is first again.
    fn enter(&mut self, waker: &Waker) {
        let mut waiting = lock(&self.baton.0);
        match self.number {
            None => {
                waiting.line += 1;
                let number = waiting.line;
                self.number = Some(number);
                waiting.room.push_back((number, waker.clone()));
            }
            Some(number) => match waiting.room.iter_mut().find(|place| place.0 == number) {
                Some(place) => place.1.clone_from(waker),
                None => waiting.room.push_front((number, waker.clone())),
            },
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let waited = {
            let mut waiting = lock(&self.baton.0);
            let at = waiting.room.iter().position(|place| place.0 == number);
            at.and_then(|at| waiting.room.remove(at))
        };
        if waited.is_none() {
            self.baton.wake_room();
        }
    }
}

/// The answer to a call that was sent.
struct Answer<'a, R: Readiness> {
    client: &'a AsyncClient<R>,
    id: u64,
    taken: bool,
}

impl<R: Readiness> Future for Answer<'_, R> {
    type Output = Result<Payload, Error>;

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = self.client.poll_answer(self.id, context);
        self.taken = answer.is_ready();
        answer
    }
}

impl<R: Readiness> Drop for Answer<'_, R> {
    fn drop(&mut self) {
        let answer = {
            let mut waiting = lock(&self.client.baton.0);
            waiting.wakers.remove(&self.id);
            waiting.answers.remove(&self.id)
        };
        // Its lease takes locks of its own.
        drop(answer);
        if !self.taken {
            self.client.watch.abandon(self.id);
            // It may have been this one that was woken to look for all.
            self.client.baton.wake_one();
        }
    }
}

#[cfg(feature = "tokio")]
#[expect(unsafe_code, reason = "registers a descriptor with tokio")]
mod tokio_readiness {
    use super::{AsyncClient, Client, Error, Readiness};
    use rustix::fd::OwnedFd;
    use std::io;
    use std::task::{Context, Poll, ready};
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    /// tokio's watch over a session's descriptor.
    pub struct Tokio(AsyncFd<OwnedFd>);

    impl Readiness for Tokio {
        fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            ready!(self.0.poll_read_ready(context))?.clear_ready();
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncClient<Tokio> {
        /// Takes a session over, in a tokio runtime whose I/O is enabled.
        ///
        /// # Errors
        ///
        /// As [`new`](AsyncClient::new).
        ///
        /// # Panics
        ///
        /// Outside of such a runtime.
        pub fn tokio(client: Client) -> Result<AsyncClient<Tokio>, Error> {
            AsyncClient::new(client, |fd| {
                let fd = fd.try_clone_to_owned()?;
                // SAFETY: an `OwnedFd` always has the same open descriptor, and closes it when it is dropped.
                let watched = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
                Ok(Tokio(watched.map_err(|error| error.into_parts().1)?))
            })
        }
    }
}

#[cfg(feature = "tokio")]
pub use tokio_readiness::Tokio;
