// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options of one call: who copies its data, whether the copy stays in the cache, whether it is checked on the way.
//!
//! - **Flow** `CallOptions` (or just a timeout) ─▶ every mode's call ─▶ what is left at `auto` is decided in `client/decide.rs`
//! - **Source** Rocket (arXiv 2601.06331), §IV-B: device, cache injection and mode, of which it fixes the mode at compile time;
//!   here all three belong to the call

use crate::error::Error;
use memlift_ground::observe::Executor;
use memlift_offload::Engine;
use std::str::FromStr;
use std::time::Duration;

/// How a call is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// [`Client::call`](crate::Client::call): send and wait.
    Sync,
    /// [`Client::call_async`](crate::Client::call_async): send now, ask for the answer later.
    Async,
    /// [`Pipeline`](crate::Pipeline): send many, collect answers as they come.
    Pipelined,
}

/// Executor that copies a request into shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Device {
    /// The way that was measured to be the fastest.
    #[default]
    Auto,
    /// The calling thread.
    Inline,
    /// Engine threads, while the calling thread sleeps for as long as the copy is predicted to take.
    Worker,
    /// Intel DSA, where this machine has a work queue that this program can use; else [`Error::DeviceUnavailable`].
    Dsa,
}

/// Cache policy of the copies of a request and its reply. Rocket calls a copy that stays in the cache for its reader cache
/// injection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CachePolicy {
    /// On for a synchronous call, and for an asynchronous one while its server has one session and one handler at work; off in a
    /// pipeline. Large payloads then go by what was measured.
    #[default]
    Auto,
    /// Ordinary stores: the reader finds the data in a shared cache, as far as it fits.
    On,
    /// Stores past the cache, which leave the cache to others. Below a page there are none.
    Off,
}

/// Options of one call. `None` or `Some(timeout)` stand for the default ones with that timeout.
///
/// ```
/// use memlift_ipc::{CachePolicy, CallOptions, Device};
///
/// let checked = CallOptions { crc: true, ..CallOptions::default() };
/// let apart = CallOptions { device: Device::Worker, cache: CachePolicy::Off, ..checked };
/// assert!(apart.crc);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallOptions {
    /// Time limit; `None`: the client's.
    pub timeout: Option<Duration>,
    /// Executor that copies the request.
    pub device: Device,
    /// Cache policy of the copies.
    pub cache: CachePolicy,
    /// True if a wait sleeps until shortly before the answer is expected (L = a · bytes + b, learned per operation), and only
    /// then polls for it. `false`: it polls at once, for as long as the wait policy allows.
    pub defer: bool,
    /// CRC-32C of request and reply, computed while they are copied and compared where they arrive, before anybody sees them. It
    /// finds faulty memory and programs; a malicious peer can send a matching one. The caller then copies, whatever the device.
    pub crc: bool,
    /// Request and reply cross in packed pages where they become at least an eighth smaller: they take less of the pools, and more
    /// processor time on both sides. The caller packs, whatever the device; what lies in a loan crosses as it is.
    pub pack: bool,
}

impl Default for CallOptions {
    fn default() -> CallOptions {
        CallOptions {
            timeout: None,
            device: Device::Auto,
            cache: CachePolicy::Auto,
            defer: true,
            crc: false,
            pack: false,
        }
    }
}

impl From<Option<Duration>> for CallOptions {
    fn from(timeout: Option<Duration>) -> CallOptions {
        CallOptions { timeout, ..CallOptions::default() }
    }
}

impl CallOptions {
    /// Returns true if nothing about the copy is left to be decided. DSA copies in one way only.
    pub(crate) fn leave_nothing(&self) -> bool {
        self.device == Device::Dsa || (self.device != Device::Auto && self.cache != CachePolicy::Auto)
    }
}

impl Device {
    /// Its name in Python, in C and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Device::Auto => "auto",
            Device::Inline => "inline",
            Device::Worker => "worker",
            Device::Dsa => "dsa",
        }
    }

    /// Executor that does the copy. `Auto` only gets here for small payloads, which the calling thread copies.
    pub(crate) const fn executor(self) -> Executor {
        match self {
            Device::Auto | Device::Inline => Executor::InlineTemporal,
            Device::Worker => Executor::Worker,
            Device::Dsa => Executor::Idxd,
        }
    }

    /// Checks that this process has the device.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceUnavailable`], with what to do.
    pub fn check(self) -> Result<(), Error> {
        let why = match self {
            Device::Dsa if Engine::global().dsa().is_err() => {
                "there is no DSA work queue that this program can use, and memlift doctor says why: take 'auto', 'inline' or 'worker'"
            }
            Device::Worker if Engine::global().worker().threads() == 0 => {
                "the engine has no threads: set engine.workers to 1 or more, or take 'auto' or 'inline'"
            }
            _ => return Ok(()),
        };
        Err(Error::DeviceUnavailable { device: self.name(), why })
    }
}

impl CachePolicy {
    /// Its name in Python, in C and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            CachePolicy::Auto => "auto",
            CachePolicy::On => "on",
            CachePolicy::Off => "off",
        }
    }
}

impl Mode {
    /// Its name in Python and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Sync => "sync",
            Mode::Async => "async",
            Mode::Pipelined => "pipelined",
        }
    }
}

macro_rules! by_name {
    ($type:ident, $($variant:ident),+) => {
        impl FromStr for $type {
            type Err = String;

            fn from_str(name: &str) -> Result<$type, String> {
                let all = [$($type::$variant),+];
                all.into_iter().find(|one| one.name() == name).ok_or_else(|| {
                    format!("{name:?}: choose one of {}", all.map(|one| format!("'{}'", one.name())).join(", "))
                })
            }
        }
    };
}

by_name!(Device, Auto, Inline, Worker, Dsa);
by_name!(CachePolicy, Auto, On, Off);
by_name!(Mode, Sync, Async, Pipelined);
