// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that the tests notice a missing write-back, fence or sync: each call in the library that issues one is left out once.
//!
//! - **Flow** the calls that the cases reach ─▶ for each, the cases that reach it, until one of them fails without it
//! - **Rule** a harden is one call, whether the device makes a fence or a sync of it. Where the device's caches are persistent, a
//!   fence has less to do, so those cases do not count

use std::collections::BTreeMap;

use memlift_persist::Mechanism;
use memlift_persist::sim::{Call, Config, Mode, Site};

use super::cases::{Case, cases};

/// A call: file, line, column, and whether it is a harden.
type Place = (&'static str, u32, u32, bool);

/// How the log is written.
type Way = fn(Config) -> Config;

fn place(site: &Site) -> Place {
    (site.file, site.line, site.column, site.call != Call::WriteBack)
}

#[test]
fn every_write_back_fence_and_sync_is_missed_when_it_is_left_out() {
    let cases: Vec<Case> = Mechanism::ALL
        .into_iter()
        .flat_map(|mechanism| [Mode::Lines, Mode::File].map(|mode| (mechanism, mode)))
        .flat_map(|(mechanism, mode)| cases(mechanism, mode, 1))
        .collect();
    let mut places: BTreeMap<Place, Vec<(Site, &Case, Way)>> = BTreeMap::new();
    for case in &cases {
        let ways: &[Way] =
            if case.is_direct() { &[|config| config, Config::direct] } else { &[|config| config] };
        for way in ways {
            let sites = case.explore(|config| way(config.exhaustive(16).samples(0))).sites;
            for site in sites.into_iter().filter(|site| site.file.contains("/src/")) {
                places.entry(place(&site)).or_default().push((site, case, *way));
            }
        }
    }
    let mut survivors = Vec::new();
    for (place, found) in &places {
        let started = std::time::Instant::now();
        let by = found
            .iter()
            .find(|(site, case, way)| case.explore(|config| way(config.drop_site(*site))).finding.is_some())
            // Two torn headers are one image of many: try more images before the call counts as one that is not missed.
            .or_else(|| {
                found.iter().find(|(site, case, way)| {
                    case.explore(|config| way(config.samples(3000).drop_site(*site))).finding.is_some()
                })
            });
        let (file, line, ..) = place;
        match by {
            Some((site, case, _)) => {
                println!("{:?} {file}:{line}: {:?} missed by {}", site.call, started.elapsed(), case.name)
            }
            None => survivors.push(place),
        }
    }
    println!("{} of {} calls are missed", places.len() - survivors.len(), places.len());
    assert!(survivors.is_empty(), "nobody misses {survivors:?}");
}
