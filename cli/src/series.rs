// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbers of an exporter over time: the counts of processes that have ended stay in the sums.
//!
//! - **Flow** [`Metric`]s of one sample ─▶ summed by name and labels ─▶ the counts of sources that have ended are added ─▶ families
//! - **Rule** a counter never falls, so that `rate()` is right even if a process ends, or reports less than before
//! - **Rule** at most [`TEXTS_MAX`] different values of a label; later ones become `other`, because the names come from others and
//!   are unbounded
//! - **Rule** of several sources with the same labels, gauges are added. Of times (`…_timestamp_seconds`) the earliest counts
//! - **Not here** counts between the last sample and the end of a process

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::exposition::{Exposition, Kind};

/// Most different values of one label.
const TEXTS_MAX: usize = 500;
/// The label value that stands for values beyond the limit.
const OTHER: &str = "other";
/// Bounds of a histogram's buckets: 2^8 to 2^34 nanoseconds, each four times the one before.
const BOUNDS: [u32; 14] = [8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34];

/// The source of a number: a process, a row in it, a drop-in, a job.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Source {
    pub pid: u32,
    pub start_unix_ns: u64,
    pub part: String,
}

/// A number, or a histogram of latencies.
#[derive(Clone, PartialEq, Debug)]
pub enum Amount {
    Counter(u64),
    Gauge(u64),
    /// Counts by floor(log2(nanoseconds)), and the sum of all nanoseconds.
    Latency {
        histogram: Vec<u64>,
        total_ns: u64,
    },
}

/// A number of one source.
#[derive(Clone, Debug)]
pub struct Metric {
    pub source: Source,
    pub name: String,
    pub help: String,
    pub labels: Vec<(&'static str, String)>,
    pub amount: Amount,
}

/// The name and the labels of a sum.
type Key = (String, Vec<(&'static str, String)>);

/// State of an exporter between samples.
#[derive(Debug, Default)]
pub struct Series {
    /// Counters of the sources in the last sample.
    last: HashMap<(Source, Key), Amount>,
    /// Counters of sources that have ended.
    departed: BTreeMap<Key, Amount>,
    /// Help texts of families.
    helps: BTreeMap<String, String>,
    texts: HashMap<&'static str, HashSet<String>>,
    /// The sums of the last sample.
    sums: BTreeMap<Key, Amount>,
}

impl Series {
    /// Adds a sample.
    pub fn take(&mut self, metrics: Vec<Metric>) {
        let mut now: HashMap<(Source, Key), Amount> = HashMap::new();
        let mut gauges: BTreeMap<Key, Amount> = BTreeMap::new();
        for metric in metrics {
            let labels = metric.labels.into_iter().filter(|(_, text)| !text.is_empty());
            let labels = labels.map(|(label, text)| (label, self.bounded(label, text))).collect();
            self.helps.entry(metric.name.clone()).or_insert(metric.help);
            let key = (metric.name, labels);
            match metric.amount {
                Amount::Gauge(value) if key.0.ends_with("_timestamp_seconds") => {
                    let earliest = gauges.entry(key).or_insert(Amount::Gauge(value));
                    if let Amount::Gauge(before) = earliest {
                        *before = value.min(*before);
                    }
                }
                Amount::Gauge(_) => add(gauges.entry(key), &metric.amount),
                amount => {
                    let entry = (metric.source, key);
                    let grown = match self.last.remove(&entry) {
                        Some(before) => at_least(amount, &before),
                        None => amount,
                    };
                    now.insert(entry, grown);
                }
            }
        }
        for ((_, key), amount) in self.last.drain() {
            add(self.departed.entry(key), &amount);
        }
        let mut sums = self.departed.clone();
        for ((_, key), amount) in &now {
            add(sums.entry(key.clone()), amount);
        }
        sums.extend(gauges);
        (self.last, self.sums) = (now, sums);
    }

    fn bounded(&mut self, label: &'static str, text: String) -> String {
        let texts = self.texts.entry(label).or_default();
        if texts.contains(&text) {
            return text;
        }
        if texts.len() >= TEXTS_MAX {
            return OTHER.to_owned();
        }
        texts.insert(text.clone());
        text
    }

    /// Returns the page for Prometheus.
    pub fn page(&self) -> String {
        let mut page = Exposition::default();
        let mut family = "";
        for ((name, labels), amount) in &self.sums {
            if name != family {
                let kind = match amount {
                    Amount::Counter(_) => Kind::Counter,
                    Amount::Gauge(_) => Kind::Gauge,
                    Amount::Latency { .. } => Kind::Histogram,
                };
                page.family(name, kind, self.helps.get(name).map_or("", String::as_str));
                family = name;
            }
            let labels: Vec<(&str, &str)> =
                labels.iter().map(|(label, text)| (*label, text.as_str())).collect();
            match amount {
                // Durations are counted in nanoseconds, and exported in seconds.
                Amount::Counter(value) if name.contains("_seconds") => {
                    page.sample(name, &labels, *value as f64 / 1e9);
                }
                Amount::Counter(value) | Amount::Gauge(value) => page.sample(name, &labels, *value as f64),
                Amount::Latency { histogram, total_ns } => {
                    let (buckets, beyond) = buckets(histogram);
                    page.histogram(name, &labels, &buckets, beyond, *total_ns as f64 / 1e9);
                }
            }
        }
        page.finish()
    }
}

/// Adds to a sum.
fn add(entry: std::collections::btree_map::Entry<'_, Key, Amount>, amount: &Amount) {
    match (entry.or_insert_with(|| zero(amount)), amount) {
        (Amount::Counter(sum), Amount::Counter(value)) | (Amount::Gauge(sum), Amount::Gauge(value)) => {
            *sum = sum.saturating_add(*value);
        }
        (Amount::Latency { histogram: sums, total_ns: total }, Amount::Latency { histogram, total_ns }) => {
            sums.resize(sums.len().max(histogram.len()), 0);
            sums.iter_mut().zip(histogram).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
            *total = total.saturating_add(*total_ns);
        }
        // Two programs use one name for different kinds of numbers: the first kind seen is kept.
        _ => {}
    }
}

fn zero(like: &Amount) -> Amount {
    match like {
        Amount::Counter(_) => Amount::Counter(0),
        Amount::Gauge(_) => Amount::Gauge(0),
        Amount::Latency { .. } => Amount::Latency { histogram: Vec::new(), total_ns: 0 },
    }
}

/// Returns a counter that is not less than `before`.
fn at_least(now: Amount, before: &Amount) -> Amount {
    match (now, before) {
        (Amount::Counter(now), Amount::Counter(before)) => Amount::Counter(now.max(*before)),
        (Amount::Latency { mut histogram, total_ns: now }, Amount::Latency { histogram: past, total_ns }) => {
            histogram.iter_mut().zip(past).for_each(|(now, before)| *now = (*now).max(*before));
            Amount::Latency { histogram, total_ns: now.max(*total_ns) }
        }
        (now, _) => now,
    }
}

/// Returns the counts up to each of the bounds, in seconds, and the count beyond the last.
fn buckets(histogram: &[u64]) -> (Vec<(f64, u64)>, u64) {
    let sum = |from: u32, to: usize| {
        let to = to.min(histogram.len());
        histogram[(from as usize).min(to)..to].iter().fold(0u64, |sum, count| sum.saturating_add(*count))
    };
    let mut from = 0;
    let counted = BOUNDS.map(|bound| {
        let count = sum(from, bound as usize);
        from = bound;
        (((1u64 << bound) - 1) as f64 / 1e9, count)
    });
    (counted.to_vec(), sum(from, histogram.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(pid: u32, name: &str, label: &str, amount: Amount) -> Metric {
        Metric {
            source: Source { pid, start_unix_ns: 1, part: String::new() },
            name: name.to_owned(),
            help: "Help.".to_owned(),
            labels: vec![("name", label.to_owned())],
            amount,
        }
    }

    fn value(series: &Series, line: &str) -> f64 {
        let text = series.page();
        let found = text.lines().find_map(|one| one.strip_prefix(line)?.trim().parse().ok());
        found.unwrap_or_else(|| panic!("no {line} in {text}"))
    }

    #[test]
    fn counters_of_processes_that_ended_stay_and_gauges_go() {
        let mut series = Series::default();
        let counter = |pid, value| metric(pid, "c_total", "a", Amount::Counter(value));
        let gauge = |pid, value| metric(pid, "g", "a", Amount::Gauge(value));
        let total = |series: &Series| value(series, "c_total{name=\"a\"}");
        series.take(vec![counter(1, 10), counter(2, 5), gauge(1, 7)]);
        assert_eq!((total(&series), value(&series, "g{name=\"a\"}")), (15.0, 7.0));
        // One source ends, another begins, and one reports less than before.
        series.take(vec![counter(2, 4), counter(3, 1)]);
        assert_eq!(total(&series), 16.0);
        assert!(!series.page().contains("# TYPE g "), "{}", series.page());
        series.take(Vec::new());
        assert_eq!(total(&series), 16.0);
        series.take(vec![counter(3, 1)]);
        assert_eq!(total(&series), 17.0, "a process that is there again begins anew");
        let text = series.page();
        assert!(text.starts_with("# HELP c_total Help.\n# TYPE c_total counter\n"), "{text}");
    }

    #[test]
    fn of_several_times_the_earliest_is_shown() {
        let mut series = Series::default();
        let time = |pid, value| metric(pid, "t_timestamp_seconds", "a", Amount::Gauge(value));
        series.take(vec![time(1, 300), time(2, 100), time(3, 200)]);
        assert_eq!(value(&series, "t_timestamp_seconds{name=\"a\"}"), 100.0);
        series.take(vec![time(1, 400), time(3, 500)]);
        assert_eq!(value(&series, "t_timestamp_seconds{name=\"a\"}"), 400.0);
    }

    #[test]
    fn names_without_end_become_one() {
        let mut series = Series::default();
        for number in 0..5_000 {
            series.take(vec![metric(number, "c_total", &format!("queue {number}"), Amount::Counter(1))]);
        }
        assert_eq!(series.page().lines().count(), 2 + TEXTS_MAX + 1);
        assert_eq!(value(&series, "c_total{name=\"other\"}"), (5_000 - TEXTS_MAX) as f64);
        assert!(series.last.len() <= 1 && series.departed.len() <= TEXTS_MAX + 1);
    }

    #[test]
    fn histograms_are_cumulative_and_whole() {
        let mut series = Series::default();
        let mut histogram = vec![0; 40];
        (histogram[3], histogram[8], histogram[39]) = (1, 2, 4);
        let amount = Amount::Latency { histogram, total_ns: 3_000_000_000 };
        series.take(vec![metric(1, "t_seconds", "", amount.clone())]);
        series.take(vec![metric(2, "t_seconds", "", amount)]);
        for (line, wanted) in [
            ("t_seconds_bucket{le=\"0.000000255\"}", 2.0),
            ("t_seconds_bucket{le=\"0.000001023\"}", 6.0),
            ("t_seconds_bucket{le=\"17.179869183\"}", 6.0),
            ("t_seconds_bucket{le=\"+Inf\"}", 14.0),
            ("t_seconds_count", 14.0),
            ("t_seconds_sum", 6.0),
        ] {
            assert_eq!(value(&series, line), wanted, "{line}");
        }
    }
}
