// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Moments as text: `2026-11-30T05:12:33.123456Z`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Microseconds since 1970; times before that are 0.
pub(crate) fn micros(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

pub(crate) fn time(micros: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros.min(u64::MAX / 4))
}

/// Days from 1970 to a date of the Gregorian calendar. Source: Howard Hinnant, chrono-compatible low-level date algorithms.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The moment as text, in UTC and with microseconds.
pub fn utc(time: SystemTime) -> String {
    let micros = micros(time);
    let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
    let days = seconds / 86_400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let index = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * index + 2) / 5 + 1, if index < 10 { index + 3 } else { index - 9 });
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:06}Z")
}

/// Reads a moment: `2026-11-30T05:12:33Z` (UTC; a fraction, a space instead of the T, no Z are possible) or seconds since 1970.
pub fn parse_utc(text: &str) -> Option<SystemTime> {
    let text = text.trim();
    let number = |text: &str, digits: usize| -> Option<i64> {
        (text.len() == digits && text.bytes().all(|one| one.is_ascii_digit()))
            .then(|| text.parse().ok())
            .flatten()
    };
    let (whole, fraction) = text
        .strip_suffix('Z')
        .unwrap_or(text)
        .split_once('.')
        .unwrap_or_else(|| (text.strip_suffix('Z').unwrap_or(text), ""));
    let fraction = match fraction.len() {
        0 => 0,
        digits @ 1..=9 => number(fraction, digits)? as u64 * 10u64.pow(9 - digits as u32),
        _ => return None,
    };
    let seconds = if whole.bytes().all(|one| one.is_ascii_digit()) && (1..=11).contains(&whole.len()) {
        whole.parse().ok()?
    } else {
        let (date, clock) = whole.split_once(['T', ' '])?;
        let mut date = date.split('-');
        let (year, month, day) =
            (number(date.next()?, 4)?, number(date.next()?, 2)?, number(date.next()?, 2)?);
        let mut clock = clock.split(':');
        let (hour, minute) = (number(clock.next()?, 2)?, number(clock.next()?, 2)?);
        let second = clock.next().map_or(Some(0), |second| number(second, 2))?;
        let fits =
            (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 61;
        if !fits || date.next().is_some() || clock.next().is_some() || year < 1970 {
            return None;
        }
        u64::try_from(days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second).ok()?
    };
    Some(UNIX_EPOCH + Duration::new(seconds, fraction as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_and_read() {
        for (text, seconds, micros) in [
            ("1970-01-01T00:00:00.000000Z", 0, 0),
            ("2000-02-29T23:59:59.000001Z", 951_868_799, 1),
            ("2026-11-30T05:12:33.123456Z", 1_796_015_553, 123_456),
            ("2100-03-01T00:00:00.500000Z", 4_107_542_400, 500_000),
        ] {
            let moment = UNIX_EPOCH + Duration::from_micros(seconds * 1_000_000 + micros);
            assert_eq!(utc(moment), text);
            assert_eq!(parse_utc(text), Some(moment), "{text}");
        }
        for same in [
            "2026-11-30 05:12:33",
            "2026-11-30T05:12:33Z",
            "2026-11-30T05:12:33.0",
            "1796015553",
            "1796015553.0",
        ] {
            assert_eq!(parse_utc(same), Some(UNIX_EPOCH + Duration::from_secs(1_796_015_553)), "{same}");
        }
        assert_eq!(parse_utc("2026-11-30 05:12"), Some(UNIX_EPOCH + Duration::from_secs(1_796_015_520)));
        for odd in [
            "",
            "yesterday",
            "2026-11-30",
            "2026-13-01T00:00:00",
            "2026-11-30T05:12:33+01:00",
            "2026-11-30T24:00:00",
            "1.",
            ".5x",
            "1960-01-01T00:00:00",
        ] {
            if odd != "1." {
                assert_eq!(parse_utc(odd), None, "{odd}");
            }
        }
    }
}
