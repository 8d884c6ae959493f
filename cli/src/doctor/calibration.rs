// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which numbers decide about copies: those measured on this machine, or the built-in ones.

use std::time::{Duration, SystemTime};

use memlift::engine::Engine;
use memlift::engine::place::Origin;

use super::Check;
use crate::print;

/// Origin, age, and the sizes at which behaviour changes.
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
        Origin::Builtin { why } => {
            return vec![
                Check::absent("calibration", format!("built-in numbers: {why}"))
                    .advise("memlift calibrate takes a second and makes large copies faster"),
            ];
        }
    };
    let found = &loaded.calibration.thresholds;
    let from = |bytes: Option<u64>| {
        bytes.map_or("never".to_owned(), |bytes| format!("from {}", print::bytes(bytes)))
    };
    vec![
        Check::usable("calibration", format!("{}, {path}", age(loaded.calibration.time_s))),
        Check::usable("cache", format!("{} stay there, as measured", print::bytes(found.cache_bytes))),
        Check::usable(
            "streaming stores",
            format!("pay {} cold, {} hot", from(found.nt_from_cold_bytes), from(found.nt_from_hot_bytes)),
        ),
        Check::usable("sharing a copy", format!("pays {} cold", from(found.split_from_cold_bytes))),
    ]
}

fn age(time_s: u64) -> String {
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(time_s);
    match SystemTime::now().duration_since(then).map(|age| age.as_secs()) {
        Ok(seconds @ 0..3600) => format!("{} minutes old", seconds / 60),
        Ok(seconds @ 3600..172_800) => format!("{} hours old", seconds / 3600),
        Ok(seconds) => format!("{} days old", seconds / 86_400),
        Err(_) => "from the future: check the clock".to_owned(),
    }
}
