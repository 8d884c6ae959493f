// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shows the numbers by which copies are placed: those measured on this machine, or the built-in ones.

use std::time::{Duration, SystemTime};

use memlift::ground::observe::CacheState;
use memlift::offload::Engine;
use memlift::place::Origin;
use memlift::spec::Opcode;

use super::Check;
use crate::print;

/// Returns the origin and age of the numbers, and the sizes at which behaviour changes.
pub fn checks(engine: &Result<Engine, String>) -> Vec<Check> {
    let engine = match engine {
        Ok(engine) => engine,
        Err(error) => {
            return vec![Check::broken("configuration", error.clone()).advise("memlift config show")];
        }
    };
    let loaded = engine.placer().loaded();
    let path = match &loaded.origin {
        Origin::File { path } => path.display().to_string(),
        Origin::Measured => "in memory only".to_owned(),
        Origin::Untrusted { why, time_s } => {
            let found = format!("not trusted, built-in numbers used: {why}; measured on {}", age(*time_s));
            let again = "memlift calibrate again, when nothing else runs";
            return vec![Check::absent("calibration", found).advise(again), shape(engine)];
        }
        Origin::Builtin { why } => {
            return vec![
                Check::absent("calibration", format!("built-in numbers: {why}"))
                    .advise("memlift calibrate takes a second and makes large copies faster"),
                shape(engine),
            ];
        }
    };
    let found = &loaded.calibration.thresholds;
    let from = |bytes: Option<u64>| {
        bytes.map_or("never".to_owned(), |bytes| format!("from {}", print::bytes(bytes)))
    };
    vec![
        Check::usable(
            "calibration",
            format!(
                "trusted, of {}, repeats differed by {:.0} %, {path}",
                age(loaded.calibration.time_s),
                (loaded.calibration.trust.spread - 1.0) * 100.0
            ),
        ),
        shape(engine),
        Check::usable("cache", format!("{} stay there, as measured", print::bytes(found.cache_bytes))),
        Check::usable(
            "streaming stores",
            format!("pay {} cold, {} hot", from(found.nt_from_cold_bytes), from(found.nt_from_hot_bytes)),
        ),
        Check::usable("sharing a copy", format!("pays {} cold", from(found.split_from_cold_bytes))),
    ]
}

/// Returns the order in which copies past the cache walk memory.
fn shape(engine: &Engine) -> Check {
    let at = |bytes: u64| {
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        let explained = engine.explain(Opcode::MEMMOVE, size, CacheState::Cold);
        format!("{} at {}", explained.shape, print::bytes(bytes))
    };
    let found = [1 << 20, 32 << 20, 128 << 20].map(at).join(", ");
    Check::usable("shape of copies", format!("{found} (pages at once x bytes of a vector + bytes ahead)"))
}

/// Returns the day and its distance from today, for reports.
pub fn age(time_s: u64) -> String {
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(time_s);
    let old = |count: u64, unit: &str| format!("{count} {unit}{} old", if count == 1 { "" } else { "s" });
    let age = match SystemTime::now().duration_since(then).map(|age| age.as_secs()) {
        Ok(seconds @ 0..3600) => old(seconds / 60, "minute"),
        Ok(seconds @ 3600..172_800) => old(seconds / 3600, "hour"),
        Ok(seconds) => old(seconds / 86_400, "day"),
        Err(_) => "from the future: check the clock".to_owned(),
    };
    format!("{}, {age}", memlift_cli::date::date(time_s))
}
