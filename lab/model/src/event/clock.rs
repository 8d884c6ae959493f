// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Time in whole picoseconds, and rates that turn bytes into it.
//!
//! - **Order** integers only; sums stop at the end of time (213 days) rather than wrap

use std::fmt;
use std::ops::{Add, Mul, Sub};

/// A time or a duration, picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// Start of a run.
    pub const ZERO: Time = Time(0);

    /// A time of `ps` picoseconds.
    #[must_use]
    pub const fn from_ps(ps: u64) -> Time {
        Time(ps)
    }

    /// A time of `ns` nanoseconds.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Time {
        Time(ns.saturating_mul(1000))
    }

    /// Returns the time in picoseconds.
    #[must_use]
    pub const fn as_ps(self) -> u64 {
        self.0
    }

    /// In microseconds, for people.
    #[must_use]
    pub fn as_us(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl Add for Time {
    type Output = Time;

    #[inline]
    fn add(self, other: Time) -> Time {
        Time(self.0.saturating_add(other.0))
    }
}

impl Sub for Time {
    type Output = Time;

    #[inline]
    fn sub(self, other: Time) -> Time {
        Time(self.0.saturating_sub(other.0))
    }
}

impl Mul<u64> for Time {
    type Output = Time;

    #[inline]
    fn mul(self, times: u64) -> Time {
        Time(self.0.saturating_mul(times))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{:03} ns", self.0 / 1000, self.0 % 1000)
    }
}

/// How fast bytes go, in bytes per second; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(u64);

impl Rate {
    /// A rate of `rate` bytes per second, at least one.
    #[must_use]
    pub fn from_bytes_per_second(rate: u64) -> Rate {
        Rate(rate.max(1))
    }

    /// How long so many bytes take, rounded up.
    #[must_use]
    #[inline]
    pub fn time_of(self, bytes: u64) -> Time {
        let ps = (u128::from(bytes) * 1_000_000_000_000).div_ceil(u128::from(self.0));
        Time(u64::try_from(ps).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_round_up_and_nothing_wraps() {
        let rate = Rate::from_bytes_per_second(25_000_000_000);
        assert_eq!(rate.time_of(256).as_ps(), 10_240);
        assert_eq!(Rate::from_bytes_per_second(3).time_of(1).as_ps(), 333_333_333_334);
        assert_eq!(Rate::from_bytes_per_second(0).time_of(u64::MAX), Time::from_ps(u64::MAX));
        assert_eq!(Time::from_ps(u64::MAX) + Time::from_ns(1), Time::from_ps(u64::MAX));
        assert_eq!(Time::from_ps(1) - Time::from_ns(1), Time::ZERO);
        assert_eq!(Time::from_ps(132_005).to_string(), "132.005 ns");
    }
}
