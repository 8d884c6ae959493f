// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies of the served pool: BGSAVE asks for one, a thread of the server makes it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::backup::BackupOptions;
use crate::error::{Error, Result};
use crate::pool::Pool;

/// State of the copies that clients ask for.
#[derive(Debug, Default)]
pub struct Saves {
    /// One was asked for and has not ended.
    under_way: AtomicBool,
    /// When the last good one ended, or the server started. Seconds since 1970.
    last: AtomicU64,
    /// The last one failed.
    failed: AtomicBool,
}

impl Saves {
    /// Of a server that starts now.
    pub fn new() -> Saves {
        Saves { last: AtomicU64::new(now_s()), ..Saves::default() }
    }

    /// Asks for a copy; false: one is being made.
    pub fn ask(&self) -> bool {
        !self.under_way.swap(true, Ordering::AcqRel)
    }

    /// Returns true if one was asked for and has not ended.
    pub fn is_under_way(&self) -> bool {
        self.under_way.load(Ordering::Acquire)
    }

    /// When the last good one ended. Seconds since 1970.
    pub fn last_s(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// Returns true if the last one failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Makes the copy that was asked for, if one was. An error is the pool's.
    pub fn serve(&self, pool: &Pool, folder: &Path, stop: &AtomicBool) -> Result<()> {
        if !self.is_under_way() {
            return Ok(());
        }
        let made = save(pool, folder, stop);
        self.failed.store(made.is_err(), Ordering::Relaxed);
        if made.is_ok() {
            self.last.store(now_s(), Ordering::Relaxed);
        }
        self.under_way.store(false, Ordering::Release);
        match made {
            Err(error @ Error::Stopped { .. }) => Err(error),
            Err(error) => {
                eprintln!("memlift: the pool was not copied: {error}");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

/// A copy into a new file: the pool's name, and the second in which it began.
fn save(pool: &Pool, folder: &Path, stop: &AtomicBool) -> Result<()> {
    let path = pool.store().medium.paths().into_iter().next().unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let target = |second: u64| -> PathBuf { folder.join(format!("{name}.{second}")) };
    let goes_on = |_, _| !stop.load(Ordering::Acquire);
    let mut second = now_s();
    loop {
        match pool.backup(target(second), BackupOptions::default(), goes_on) {
            Err(Error::Exists { .. }) => second += 1,
            made => return made.map(drop),
        }
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
