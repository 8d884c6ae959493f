// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests as futures, for any executor and without one of our own.
//!
//! - **Flow** [`Shared::call`] makes a future ─▶ polling it polls the client: answers for all futures are received, and those futures
//!   are woken
//! - **Order** a future that is not ready asks to be polled again at once. So an executor with nothing else to do spins while
//!   requests are in flight, as a waiting client does
//! - **Owner** tasks on any threads share the client behind one lock

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use super::{Answer, Client, Request, Result, Ticket};

/// A client that many tasks use.
#[derive(Clone, Debug)]
pub struct Shared(Arc<Mutex<Client>>);

impl Shared {
    /// Makes a client that tasks can share.
    #[must_use]
    pub fn new(client: Client) -> Shared {
        Shared(Arc::new(Mutex::new(client)))
    }

    /// Locks the client; blocks while another thread holds the lock.
    pub fn lock(&self) -> MutexGuard<'_, Client> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a future for a request's answer; the request is sent when the future is first polled.
    #[must_use]
    pub fn call(&self, request: Request) -> Call {
        Call { client: self.clone(), state: State::Unsent(Some(request)) }
    }
}

#[derive(Debug)]
enum State {
    Unsent(Option<Request>),
    Sent(Ticket),
}

/// Future of [`Shared::call`]. If it is dropped before it is ready, its answer is dropped too, but a change that it asks for
/// is still made.
#[derive(Debug)]
pub struct Call {
    client: Shared,
    state: State,
}

impl Future for Call {
    type Output = Result<Answer>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Answer>> {
        let shared = self.client.clone();
        let mut client = shared.lock();
        let ticket = match &mut self.state {
            State::Sent(ticket) => *ticket,
            State::Unsent(request) => {
                let Some(request) = request.take() else { return Poll::Pending };
                match client.submit(request) {
                    Ok(ticket) => {
                        self.state = State::Sent(ticket);
                        ticket
                    }
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
        };
        if let Err(error) = client.poll() {
            return Poll::Ready(Err(error));
        }
        if let Some(answer) = client.take(ticket) {
            client.wakers.remove(&ticket);
            return Poll::Ready(answer);
        }
        client.wakers.insert(ticket, context.waker().clone());
        drop(client);
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let State::Sent(ticket) = self.state {
            let mut client = self.client.lock();
            client.wakers.remove(&ticket);
            client.abandon(ticket);
        }
    }
}
