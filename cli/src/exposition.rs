// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The text format that Prometheus reads, version 0.0.4.
//!
//! - **Layout** `# HELP name text` · `# TYPE name kind` · `name{label="value",…} number` for each sample; samples of a
//!   family stand together
//! - **Rule** in a label's value `\`, `"` and line ends are escaped; in a help text `\` and line ends

use std::fmt::Write;

/// Kind of a family of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// Cumulative buckets, a sum and a count.
    Histogram,
}

/// Collects families of samples.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// Starts a family; its samples must follow.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Adds one sample to the family that was started last.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.text.push(if index == 0 { '{' } else { ',' });
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{label}=\"{text}\"");
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        // A whole number is written without an exponent: 9007199254740992, not 9.007e15.
        let _ = writeln!(self.text, " {value}");
    }

    /// Adds the cumulative buckets of a histogram. `buckets` holds pairs of upper bound and count of the bucket alone;
    /// `beyond` is the count above the last bound.
    pub fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        buckets: &[(f64, u64)],
        beyond: u64,
        sum: f64,
    ) {
        let bucket_name = format!("{name}_bucket");
        let mut count = 0_u64;
        let with_bound = |text: &mut Self, bound: &str, count: u64| {
            let mut all = labels.to_vec();
            all.push(("le", bound));
            text.sample(&bucket_name, &all, count as f64);
        };
        for (bound, of_this) in buckets {
            count += of_this;
            with_bound(self, &bound.to_string(), count);
        }
        count += beyond;
        with_bound(self, "+Inf", count);
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, count as f64);
    }

    /// Returns the text of the page.
    pub fn finish(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_reads_as_the_format_says() {
        let mut page = Exposition::default();
        page.family("memlift_bytes_total", Kind::Counter, "Bytes\nmoved \\ read.");
        page.sample(
            "memlift_bytes_total",
            &[("process", "a \"b\" \\ c\n"), ("pid", "7")],
            9_007_199_254_740_992.0,
        );
        page.sample("memlift_up", &[], 1.0);
        assert_eq!(
            page.finish(),
            "# HELP memlift_bytes_total Bytes\\nmoved \\\\ read.\n# TYPE memlift_bytes_total counter\n\
             memlift_bytes_total{process=\"a \\\"b\\\" \\\\ c\\n\",pid=\"7\"} 9007199254740992\nmemlift_up 1\n"
        );
    }

    #[test]
    fn buckets_are_cumulative() {
        let mut page = Exposition::default();
        page.histogram("t", &[("op", "copy")], &[(0.5, 2), (1.0, 3)], 1, 2.25);
        assert_eq!(
            page.finish(),
            "t_bucket{op=\"copy\",le=\"0.5\"} 2\nt_bucket{op=\"copy\",le=\"1\"} 5\nt_bucket{op=\"copy\",le=\"+Inf\"} 6\n\
             t_sum{op=\"copy\"} 2.25\nt_count{op=\"copy\"} 6\n"
        );
    }
}
