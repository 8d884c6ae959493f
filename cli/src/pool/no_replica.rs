// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The verbs of replicas in a build without the feature `replicate`: each says how to get one that has it.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use memlift::persist::Pool;

use crate::failure::Failure;

/// Settings of `replicate`.
#[derive(Debug)]
#[expect(dead_code, reason = "the command line has them in every build")]
pub struct Settings {
    pub once: bool,
    pub interval: Duration,
    pub retain: Duration,
    pub take_over: bool,
}

fn missing() -> Failure {
    Failure::Unavailable(
        "this memlift was built without replicas of pools: build it with the feature `replicate` of the crate memlift-cli (on by default), or copy pools with `memlift pool backup`"
            .to_owned(),
    )
}

/// Returns the error of a build without replicas.
pub fn available() -> Result<(), Failure> {
    Err(missing())
}

/// Refuses `memlift pool replicate`.
pub fn replicate(_: &Path, _: &str, _: Settings, _: bool) -> Result<(), Failure> {
    Err(missing())
}

/// Refuses `memlift pool restore`.
pub fn restore(_: &str, _: &Path, _: Option<&str>, _: bool) -> Result<(), Failure> {
    Err(missing())
}

/// Refuses `memlift pool restore --list`.
pub fn list(_: &str, _: bool) -> Result<(), Failure> {
    Err(missing())
}

/// The replica of a pool that is served: there is none.
#[derive(Debug)]
pub enum Serving {}

impl Serving {
    /// Refuses `memlift pool serve --replicate`.
    pub fn begin(_: &Pool, _: &str) -> Result<Serving, Failure> {
        Err(missing())
    }

    /// Nothing calls it: this type has no value.
    pub fn watch(&self, _: &AtomicBool) -> Option<String> {
        match *self {}
    }

    /// Nothing calls it: this type has no value.
    pub fn finish(self) -> Result<(), Failure> {
        match self {}
    }
}
