// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The replica of a pool, and restores: `include/memlift_persist.h` describes each function.
//!
//! - **Order** a replica begins after its pool is opened, and ends before it is closed
//! - **Not here** the work: `memlift::persist::replicate`. A library that was built without it says so

use memlift::persist::{Error, Pool};
use std::path::Path;
use std::time::Duration;

/// The C type `memlift_replica` of `memlift_persist.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CReplica {
    /// Transactions up to this one are in the replica.
    pub sequence: u64,
    /// The last transaction that was committed.
    pub committed: u64,
    /// Bytes that were sent since the pool was opened.
    pub sent_bytes: u64,
    /// Everything older than this is in the replica; below 0: nothing was sent yet.
    pub lag_s: f64,
    /// Not 0: nothing will be sent any more.
    pub ended: u32,
    /// A later release may use it; 0 until then.
    pub reserved: u32,
}

const _: () = assert!(size_of::<CReplica>() == 40);

/// The replica of a pool.
#[derive(Debug)]
pub(crate) struct Replica {
    #[cfg(feature = "replicate")]
    replication: memlift::persist::replicate::Replication,
    #[cfg_attr(not(feature = "replicate"), expect(dead_code, reason = "there is no replica"))]
    patience: Duration,
}

#[cfg(feature = "replicate")]
impl Replica {
    /// Takes the replica over; pages follow.
    pub fn begin(pool: &Pool, url: &str, patience: Duration) -> Result<Replica, Error> {
        let replication = pool.replicate(url, &memlift::persist::replicate::ReplicaOptions::default())?;
        Ok(Replica { replication, patience })
    }

    /// Returns how far it is, and the reason that nothing was sent lately.
    pub fn status(&self) -> (CReplica, String) {
        let status = self.replication.status();
        let found = CReplica {
            sequence: status.sequence,
            committed: status.committed.unwrap_or(status.sequence),
            sent_bytes: status.bytes,
            lag_s: status.lag.map_or(-1.0, |lag| lag.as_secs_f64()),
            ended: u32::from(status.ended),
            reserved: 0,
        };
        (found, status.trouble.unwrap_or_default())
    }

    /// Waits until it has everything.
    pub fn wait(&self, timeout: Duration) -> Result<(), Error> {
        self.replication.wait(timeout)
    }

    /// Waits until it has everything, and ends it.
    pub fn end(self) -> Result<(), Error> {
        self.replication.finish(self.patience)
    }
}

/// Makes a new file of a replica, as it was at a moment; 0: the last one.
#[cfg(feature = "replicate")]
pub(crate) fn restore(url: &str, target: &Path, time_us: u64) -> Result<(), Error> {
    let at = std::time::UNIX_EPOCH + Duration::from_micros(time_us);
    memlift::persist::replicate::restore(url, target, (time_us > 0).then_some(at)).map(drop)
}

#[cfg(not(feature = "replicate"))]
fn missing(url: &str) -> Error {
    let what =
        "this library was built without replicas: build it with the feature `replicate` (on by default)";
    Error::ReplicaStore { url: url.to_owned(), what: what.to_owned() }
}

#[cfg(not(feature = "replicate"))]
impl Replica {
    /// Refuses to begin a replica.
    pub fn begin(_: &Pool, url: &str, _: Duration) -> Result<Replica, Error> {
        Err(missing(url))
    }

    /// Nothing calls it: there is no replica.
    pub fn status(&self) -> (CReplica, String) {
        Default::default()
    }

    /// Nothing calls it: there is no replica.
    pub fn wait(&self, _: Duration) -> Result<(), Error> {
        Ok(())
    }

    /// Nothing calls it: there is no replica.
    pub fn end(self) -> Result<(), Error> {
        Ok(())
    }
}

/// Refuses to restore.
#[cfg(not(feature = "replicate"))]
pub(crate) fn restore(url: &str, _: &Path, _: u64) -> Result<(), Error> {
    Err(missing(url))
}
