// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The multi-device handler: what this device knows of commands that several devices execute (§5.3.2, figures 11 and 12).
//!
//! - **Flow** All complete ─begin▶ Executing ─local─▶ Local complete ─all remotes─▶ All complete, or the remotes first
//! - **Order** a remote device may be done before this one has begun
//! - **Owner** one per device; it survives a power failure with the requests that it is about

use std::collections::BTreeMap;

/// A command's name: thread and transaction.
pub type Key = (u16, u64);

/// Where a command stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not begun, or all devices are done.
    AllComplete,
    /// This device and another one are at it.
    Executing,
    /// Others are at it.
    LocalComplete,
    /// Only this device is.
    RemoteComplete,
}

#[derive(Clone, Copy, Debug, Default)]
struct Status {
    wanted: u8,
    done: u8,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Handler {
    own: u8,
    status: BTreeMap<Key, Status>,
}

impl Handler {
    /// The one of a device.
    #[must_use]
    pub fn new(device: usize) -> Handler {
        Handler { own: 1 << device, status: BTreeMap::new() }
    }

    /// Where a command stands.
    #[must_use]
    pub fn state(&self, key: Key) -> State {
        match self.status.get(&key) {
            Some(status) if status.wanted & !status.done != 0 => {
                match (status.done & self.own != 0, status.wanted & !status.done & !self.own != 0) {
                    (true, _) => State::LocalComplete,
                    (false, true) => State::Executing,
                    (false, false) => State::RemoteComplete,
                }
            }
            _ => State::AllComplete,
        }
    }

    /// This device begins a command that these devices got.
    pub fn begin(&mut self, key: Key, participants: u8) {
        self.status.entry(key).or_default().wanted = participants;
    }

    /// A device is done; whether all are now, in which case the command is forgotten.
    pub fn complete(&mut self, key: Key, device: usize) -> bool {
        let status = self.status.entry(key).or_default();
        status.done |= 1 << device;
        let all = status.wanted != 0 && status.wanted & !status.done == 0;
        if all {
            self.status.remove(&key);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_machine_is_figure_12() {
        let (mut handler, key) = (Handler::new(0), (3, 7));
        handler.begin(key, 3);
        assert_eq!(handler.state(key), State::Executing);
        assert!(!handler.complete(key, 0));
        assert_eq!(handler.state(key), State::LocalComplete);
        assert!(handler.complete(key, 1));
        assert_eq!(handler.state(key), State::AllComplete);
        // The other one is faster, before this one has begun.
        assert!(!handler.complete(key, 1));
        handler.begin(key, 3);
        assert_eq!(handler.state(key), State::RemoteComplete);
        assert!(handler.complete(key, 0));
        // Alone.
        handler.begin((3, 8), 1);
        assert!(handler.complete((3, 8), 0));
        assert!(handler.status.is_empty());
    }
}
