// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waiting for a server that is not there yet, or not any more.
//!
//! - **Flow** try to open the session ─▶ nobody listens: sleep 1 ms, 2 ms, … 20 ms ─▶ try again, until the wait is over
//! - **Order** a server that dies under the opening has begun no call, so the session is opened with another one that shares its address.
//!   Every try ends by the end of the wait, also one with a server that is stopped
//! - **Not here** which calls may be made again with the new session: the caller decides that
//!
//! The wait polls because a name in the abstract namespace is in no folder that inotify could watch, and because a socket file is there
//! before its server listens.

use super::{Client, ClientOptions};
use crate::address::Address;
use crate::error::Error;
use std::io;
use std::time::{Duration, Instant};

/// Sleep after the first try.
const PAUSE: Duration = Duration::from_millis(1);
/// Longest sleep between two tries.
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// Shortest time that a try gets. The kernel takes 0 for no limit.
const TRY: Duration = Duration::from_millis(1);

/// Servers that may die under an opening in a row. Of those that share an address, the next one takes the next connection.
const DEATHS_MAX: u32 = 8;

/// Opens a session with a server that is there, within the time limit of the options.
pub(super) fn open_now(address: &Address, options: &ClientOptions) -> Result<Client, Error> {
    let begun = Instant::now();
    let mut opened = Client::open(address.clone(), options.clone(), options.timeout);
    for _ in 1..DEATHS_MAX {
        let left = options.timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
        if !matches!(opened, Err(Error::PeerDied { .. })) || left.is_some_and(|left| left.is_zero()) {
            break;
        }
        opened = match Client::open(address.clone(), options.clone(), left) {
            // It was the only one.
            Err(Error::ServerUnavailable { .. }) => return opened,
            again => again,
        };
    }
    opened
}

/// Opens a session within `wait`.
pub(super) fn open_within(
    address: &Address,
    options: &ClientOptions,
    wait: Duration,
) -> Result<Client, Error> {
    let begun = Instant::now();
    let left = || wait.saturating_sub(begun.elapsed());
    let mut pause = PAUSE;
    loop {
        let limit = options.timeout.map_or(left(), |timeout| timeout.min(left())).max(TRY);
        let source = match Client::open(address.clone(), options.clone(), Some(limit)) {
            Err(Error::ServerUnavailable { source, .. }) if may_pass(&source) => source,
            // It ended while it had the greeting.
            Err(Error::PeerDied { .. }) => io::ErrorKind::ConnectionReset.into(),
            Err(Error::DeadlineExceeded { .. }) => io::ErrorKind::TimedOut.into(),
            opened => return opened,
        };
        if left().is_zero() {
            return Err(Error::ServerUnavailable { address: address.to_string(), source });
        }
        std::thread::sleep(pause.min(left()));
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Returns true if the error means that nobody listens there at the moment.
fn may_pass(source: &io::Error) -> bool {
    matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}
