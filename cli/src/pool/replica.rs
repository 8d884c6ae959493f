// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift pool replicate` and `restore`, and the replica of a pool that is served.
//!
//! - **Flow** `replicate` looks at the pool once in an interval and sends what changed, beside the program that writes it; `serve` sends by itself
//! - **Output** text: a line for what was sent, every few seconds at most. JSON: a document per segment, on one line
//! - **End** Ctrl-C or SIGTERM end `replicate` and `restore` within a tenth of a second, also while the store does not answer; what was not sent
//!   is sent the next time, and of a restore nothing is left
//! - **Not here** the work: `memlift::persist::replicate`

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use memlift::ground::ending::stop_on_signals;
use memlift::persist::replicate::{
    FollowOptions, Follower, History, ReplicaOptions, ReplicaStatus, Replication, Shipped, Stretch, history,
    parse_utc, restore_watched, utc,
};
use memlift::persist::{Error, Pool};
use serde_json::{Value, json};

use super::failure;
use crate::failure::Failure;
use crate::print;

/// Attempts to reach the store of a pool that is sent once.
const ATTEMPTS: u32 = 3;
/// Lines of text are at least so far apart.
const LINE_TIME: Duration = Duration::from_secs(5);
const PROGRESS_TIME: Duration = Duration::from_secs(1);
/// How often it is looked if a signal came.
const TICK: Duration = Duration::from_millis(50);
/// How long a server that ends waits until its replica has everything.
const FINISH_TIME: Duration = Duration::from_secs(10);

/// Settings of `replicate`.
#[derive(Debug)]
pub struct Settings {
    pub once: bool,
    pub interval: Duration,
    pub retain: Duration,
    pub take_over: bool,
}

/// Lets something through at most once in a while.
#[derive(Debug)]
struct Seldom(Mutex<Option<Instant>>, Duration);

impl Seldom {
    fn new(apart: Duration) -> Seldom {
        Seldom(Mutex::new(None), apart)
    }

    fn is_due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= self.1);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

/// Returns the error of a build without replicas; this one has them.
#[expect(clippy::unnecessary_wraps, reason = "a build without replicas has the same function")]
pub fn available() -> Result<(), Failure> {
    Ok(())
}

/// Sends a pool to its replica, once or until a signal.
pub fn replicate(path: &Path, url: &str, settings: Settings, as_json: bool) -> Result<(), Failure> {
    let stop = stop_on_signals()?;
    let (ends, progress) = (stop.clone(), Seldom::new(PROGRESS_TIME));
    let watch = move |status: &ReplicaStatus| {
        if let Some((sent, all)) = status.under_way.filter(|(_, all)| *all > 0)
            && progress.is_due()
        {
            let bytes = |pages: u64| print::bytes(pages * 4096);
            print::progress(&format!("{} of {} sent", bytes(sent), bytes(all)));
        }
        !ends.load(Ordering::Relaxed)
    };
    let options = FollowOptions {
        replica: ReplicaOptions { interval: settings.interval, retain: settings.retain },
        attempts: settings.once.then_some(ATTEMPTS),
        take_over: settings.take_over,
    };
    let closed_to_readers = |error| match error {
        Error::InUse { .. } => Failure::Unavailable(format!(
            "{} is open in a program that lets nobody else read it: let it replicate by itself (`memlift pool serve --replicate {url}`, persist.open(…, replicate=\"{url}\") in Python), or let others read it there (readers=True in Python)",
            path.display()
        )),
        error => failure(path)(error),
    };
    let mut follower = match Follower::begin(path, url, &options, watch) {
        Err(Error::Aborted(_)) if stop.load(Ordering::Relaxed) => return Ok(()),
        begun => begun.map_err(closed_to_readers)?,
    };
    if !settings.once && !as_json {
        print::line(&format!("{} to {url}", path.display()))?;
    }
    let (lines, mut trouble) = (Seldom::new(LINE_TIME), None);
    let mut left_out = None;
    while !stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        match follower.round() {
            Ok(shipped) => {
                if trouble.take().is_some() {
                    print::note("the replica gets what is committed again");
                }
                left_out = shipped.or(left_out);
                if let Some(shipped) = left_out.filter(|_| settings.once || as_json || lines.is_due()) {
                    say(path, url, &shipped, &follower.status(), &settings, as_json)?;
                    left_out = None;
                }
            }
            Err(Error::Aborted(_)) if stop.load(Ordering::Relaxed) => break,
            Err(error @ Error::Fenced { .. }) => return Err(failure(path)(error)),
            Err(error) if settings.once => return Err(closed_to_readers(error)),
            // It is tried again: the store, the disk or the writer may come back.
            Err(error) => {
                let text = error.to_string();
                if trouble.as_ref() != Some(&text) {
                    print::warn(&text);
                    trouble = Some(text);
                }
            }
        }
        if settings.once {
            return Ok(());
        }
        while !stop.load(Ordering::Relaxed) && started.elapsed() < settings.interval {
            std::thread::sleep(TICK.min(settings.interval.saturating_sub(started.elapsed())));
        }
    }
    let status = follower.status();
    if as_json {
        return Ok(());
    }
    let until = status.complete_until.map_or_else(|| "nothing new".to_owned(), utc);
    print::line(&format!("ended; the replica has {until}, {} were sent", print::bytes(status.bytes)))
}

/// Prints what was sent, and where the replica is.
fn say(
    path: &Path,
    url: &str,
    shipped: &Shipped,
    status: &ReplicaStatus,
    settings: &Settings,
    as_json: bool,
) -> Result<(), Failure> {
    let lag_s = status.lag.map(|lag| lag.as_secs_f64());
    if as_json {
        return print::line(
            &json!({
                "path": path, "url": url, "segment": shipped.segment, "snapshot": shipped.snapshot, "pages": shipped.pages,
                "bytes": shipped.bytes, "time": utc(shipped.time), "sequence": Some(shipped.sequence).filter(|one| *one > 0),
                "complete_until": status.complete_until.map(utc), "lag_s": lag_s, "sent_bytes": status.bytes,
            })
            .to_string(),
        );
    }
    let what = if shipped.snapshot { "snapshot" } else { "segment" };
    let sent = if settings.once {
        String::new()
    } else {
        format!(", {:.1} s behind; {} sent in all", lag_s.unwrap_or_default(), print::bytes(status.bytes))
    };
    print::line(&format!(
        "{what} {}: {} pages, {}; the pool as of {}{sent}",
        shipped.segment,
        shipped.pages,
        print::bytes(shipped.bytes),
        utc(shipped.time)
    ))
}

/// Makes the new file `target` of a replica.
pub fn restore(url: &str, target: &Path, at: Option<&str>, as_json: bool) -> Result<(), Failure> {
    let at = at.map(|text| {
        parse_utc(text).ok_or_else(|| {
            let wanted = "write a time in UTC as 2026-11-30T05:12:33Z, or seconds since 1970";
            Failure::Usage(format!("--at {text}: {wanted}"))
        })
    });
    let at = at.transpose()?;
    let (stop, progress) = (stop_on_signals()?, Seldom::new(PROGRESS_TIME));
    let done = restore_watched(url, target, at, move |fetched| {
        if fetched.total > 0 && progress.is_due() {
            print::progress(&format!("{} of {}", print::bytes(fetched.done), print::bytes(fetched.total)));
        }
        !stop.load(Ordering::Relaxed)
    });
    let done = done.map_err(failure(target))?;
    if as_json {
        return print::json(&json!({
            "path": target, "url": url, "time": utc(done.time), "sequence": Some(done.sequence).filter(|one| *one > 0),
            "segments": done.segments, "bytes": done.bytes,
        }));
    }
    print::line(&format!(
        "{}: the pool as of {}; {} in {} segments, each compared with its checksum",
        target.display(),
        utc(done.time),
        print::bytes(done.bytes),
        done.segments
    ))
}

/// Prints the contents of a replica.
pub fn list(url: &str, as_json: bool) -> Result<(), Failure> {
    let stop = stop_on_signals()?;
    let found = history(url, move || !stop.load(Ordering::Relaxed)).map_err(failure(Path::new(url)))?;
    if as_json {
        return print::json(&document(url, &found));
    }
    print::line(&text(url, &found))
}

fn document(url: &str, found: &History) -> Value {
    let moments = |all: &[SystemTime]| all.iter().copied().map(utc).collect::<Vec<_>>();
    let stretch = |one: &Stretch| {
        json!({
            "from": utc(one.from), "until": utc(one.until), "snapshots": moments(&one.snapshots), "segments": one.segments,
        })
    };
    let stretches: Vec<Value> = found.stretches.iter().map(stretch).collect();
    let writers: Vec<Value> =
        found.writers.iter().map(|one| json!({ "since": utc(one.since), "owner": one.owner })).collect();
    json!({
        "url": url, "stretches": stretches, "writers": writers, "segments": found.segments, "bytes": found.bytes,
        "missing": found.missing,
    })
}

fn text(url: &str, found: &History) -> String {
    let mut lines = vec![format!("{url}: {} in {} segments", print::bytes(found.bytes), found.segments)];
    for one in &found.stretches {
        let count = one.snapshots.len();
        let snapshots = if count == 1 { "1 snapshot".to_owned() } else { format!("{count} snapshots") };
        lines.push(format!(
            "  any time from {} to {}  ({snapshots}, {} segments)",
            utc(one.from),
            utc(one.until),
            one.segments
        ));
    }
    if found.stretches.is_empty() {
        lines.push("  no snapshot yet: nothing can be restored".to_owned());
    }
    if !found.missing.is_empty() {
        let numbers: Vec<String> = found.missing.iter().take(10).map(u64::to_string).collect();
        let more = if found.missing.len() > 10 { ", …" } else { "" };
        lines.push(format!("  ✗ segments are missing or cannot be read: {}{more}", numbers.join(", ")));
    }
    lines.push("  written by".to_owned());
    lines.extend(found.writers.iter().map(|one| format!("    {}  {}", utc(one.since), one.owner)));
    lines.join("\n")
}

/// The replica of a pool that is served.
#[derive(Debug)]
pub struct Serving {
    replication: Replication,
    url: String,
}

impl Serving {
    /// Takes the replica over; pages follow while the pool is served.
    pub fn begin(pool: &Pool, url: &str) -> Result<Serving, Failure> {
        let begun = pool.replicate(url, &ReplicaOptions::default()).map_err(|error| match error {
            Error::ReplicaStore { .. } => Failure::Unavailable(format!(
                "{error}. Nothing is served: leave --replicate out to serve without a copy"
            )),
            error => failure(Path::new(url))(error),
        });
        Ok(Serving { replication: begun?, url: url.to_owned() })
    }

    /// Says on standard error how it goes, until `stop`. If another process takes the replica over, it sets `stop` and gives the reason.
    pub fn watch(&self, stop: &AtomicBool) -> Option<String> {
        let mut trouble = None;
        while !stop.load(Ordering::Acquire) {
            std::thread::sleep(TICK);
            if let Some(why) = self.replication.ended() {
                let stopped_with_it = stop.swap(true, Ordering::AcqRel);
                return (!stopped_with_it).then_some(why);
            }
            let now = self.replication.trouble();
            match (&trouble, &now) {
                (before, Some(text)) if before.as_ref() != Some(text) => print::warn(text),
                (Some(_), None) => print::note(&format!("{} gets what is committed again", self.url)),
                _ => {}
            }
            trouble = now;
        }
        None
    }

    /// Waits until the replica has everything, but not for long.
    pub fn finish(self) -> Result<(), Failure> {
        self.replication.finish(FINISH_TIME).map_err(|error| {
            Failure::Failed(format!(
                "{error}. Everything is in the pool's file; the next start sends it, or `memlift pool replicate` does"
            ))
        })
    }
}
