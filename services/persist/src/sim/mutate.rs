// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that the tests notice a missing call: every write-back, fence and sync is left out once.
//!
//! - **Flow** explore as it is ─▶ the sites that issued one ─▶ explore without each ─▶ those that nobody missed
use std::fmt;

use super::config::Config;
use super::explore::{Report, explore_dyn};
use super::trace::Site;
use super::world::{Acks, World};

/// How many left-out calls were noticed.
#[derive(Clone, Debug)]
pub struct Score {
    /// The exploration with nothing left out. If it has a finding, nothing else was tried.
    pub unmutated: Report,
    /// The sites of write-backs, fences and syncs.
    pub sites: Vec<Site>,
    /// How many of them made the check fail when they were left out.
    pub caught: usize,
    /// The sites whose call nobody missed: it is not needed, or the workload or the check is too weak.
    pub survivors: Vec<Site>,
}

impl Score {
    /// Returns true if there was something to leave out, and all of it was missed.
    pub fn is_complete(&self) -> bool {
        self.unmutated.finding.is_none() && !self.sites.is_empty() && self.survivors.is_empty()
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(finding) = &self.unmutated.finding {
            return write!(f, "not mutated, because it fails as it is: {finding}");
        }
        write!(f, "{} of {} left-out calls were noticed", self.caught, self.sites.len())?;
        self.survivors.iter().try_for_each(|site| write!(f, "\n  not missed: {site}"))
    }
}

/// Explores as [`explore`](super::explore) does, then again without each write-back, fence and fdatasync that was
/// seen. Those of recovery count where [`Config::recovery_depth`] is at least 1. A helper that issues them for
/// several callers counts as one site unless it is `#[track_caller]`.
pub fn mutation_score(
    config: &Config,
    workload: impl Fn(&World, &Acks),
    check: impl Fn(&World, &[u64], &[u64]) -> Result<(), String>,
) -> Score {
    let unmutated = explore_dyn(config, &workload, &check);
    let mut score = Score { sites: Vec::new(), caught: 0, survivors: Vec::new(), unmutated };
    if score.unmutated.finding.is_some() {
        return score;
    }
    score.sites = score.unmutated.sites.iter().copied().collect();
    for site in &score.sites {
        match explore_dyn(&config.clone().drop_site(*site), &workload, &check).finding {
            Some(_) => score.caught += 1,
            None => score.survivors.push(*site),
        }
    }
    score
}
