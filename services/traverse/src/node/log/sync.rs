// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tracks how much of a log is on the disk; a thread syncs the log if commits do not.
//!
//! - **Flow** [`Sync::wrote`] after each write ─▶ with [`Durability::Process`] a thread syncs new bytes once a second ─▶
//!   [`Sync::durable`] for the records that follow
//! - **Owner** the log. Dropping it waits for the thread, after which nothing holds the file or its lock

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use memlift_ground::locked_file::LockedFile;

use super::Durability;

/// Pause between two syncs by the thread.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct SyncProgress {
    written: AtomicU64,
    durable: AtomicU64,
    stop: AtomicBool,
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Sync {
    progress: Arc<SyncProgress>,
    thread: Option<JoinHandle<()>>,
}

impl Sync {
    /// Starts the thread if commits do not sync. `bytes` bytes of the file are on the disk already.
    pub fn start(file: &Arc<LockedFile>, durability: Durability, bytes: u64) -> Sync {
        let progress = Arc::new(SyncProgress {
            written: AtomicU64::new(bytes),
            durable: AtomicU64::new(bytes),
            stop: AtomicBool::new(false),
        });
        let thread = (durability == Durability::Process).then(|| {
            let (file, progress) = (file.clone(), progress.clone());
            let run = move || {
                while !progress.stop.load(Ordering::Acquire) {
                    std::thread::park_timeout(PAUSE);
                    let written = progress.written.load(Ordering::Acquire);
                    // A failed sync leaves `durable` unchanged: later records then claim less of the file to
                    // be on the disk.
                    if written > progress.durable.load(Ordering::Relaxed) && file.sync_data().is_ok() {
                        progress.durable.store(written, Ordering::Release);
                    }
                }
            };
            // The log works without the thread too; its records then claim less of the file to be on the
            // disk.
            std::thread::Builder::new().name("memlift-log".to_owned()).spawn(run).ok()
        });
        Sync { progress, thread: thread.flatten() }
    }

    /// Notes that the file now has `bytes` bytes, and if `durable` that they were synced.
    pub fn wrote(&self, bytes: u64, durable: bool) {
        self.progress.written.store(bytes, Ordering::Release);
        if durable {
            self.progress.durable.store(bytes, Ordering::Release);
        }
    }

    /// Returns a number of bytes of the file that are on the disk; in fact there may be more.
    pub fn durable(&self) -> u64 {
        self.progress.durable.load(Ordering::Acquire)
    }
}

impl Drop for Sync {
    fn drop(&mut self) {
        self.progress.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The join fails only if the thread panicked; the log is closed in any case.
            let _ = thread.join();
        }
    }
}
