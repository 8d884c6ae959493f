// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows of each service and the target of each row: `definitions/*.toml`, embedded.
//!
//! - **Verdict** `ratio`: ok when the lower bound of the ratio reaches it · `count_max`: ok when no named count exceeds
//!   its limit · both: ok when both hold · neither: ok when the row ran and verified

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{BenchError, Row, Verdict};

const FILES: &[(&str, &str)] = &[
    ("copy", include_str!("../definitions/copy.toml")),
    ("devices", include_str!("../definitions/devices.toml")),
    ("ipc", include_str!("../definitions/ipc.toml")),
    ("persist", include_str!("../definitions/persist.toml")),
    ("transform", include_str!("../definitions/transform.toml")),
    ("traverse", include_str!("../definitions/traverse.toml")),
    ("zmem", include_str!("../definitions/zmem.toml")),
];

/// One row that is to be measured.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// The row's name.
    pub name: String,
    /// Name of the rival.
    pub rival: String,
    /// Unit of `ours` and `theirs`.
    pub unit: String,
    /// Target that the lower bound of the ratio must reach.
    #[serde(default)]
    pub ratio: Option<f64>,
    /// Limits that the named counts must not exceed.
    #[serde(default)]
    pub count_max: BTreeMap<String, u64>,
    /// A remark for the reader.
    #[serde(default)]
    pub note: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    row: Vec<toml::Table>,
}

/// Lists that a row may have, in place of `{size}`, `{file}` and `{level}` in its name.
const LISTS: [&str; 3] = ["size", "file", "level"];

/// One definition, or one for each combination of the lists' values.
fn listed(mut row: toml::Table) -> Result<Vec<Definition>, toml::de::Error> {
    let lists = LISTS.map(|list| (list, row.remove(list)));
    let definition: Definition = row.try_into()?;
    let mut names = vec![definition.name.clone()];
    for (list, values) in lists {
        let Some(values) = values else { continue };
        let values: Vec<toml::Value> = values.try_into()?;
        let text = |value: &toml::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let named = |name: &String| -> Vec<String> {
            values.iter().map(|value| name.replace(&format!("{{{list}}}"), &text(value))).collect()
        };
        names = names.iter().flat_map(named).collect();
    }
    Ok(names.into_iter().map(|name| Definition { name, ..definition.clone() }).collect())
}

impl Definition {
    /// The verdict on a row that ran and verified. None: time was not measured well enough for one.
    pub fn judge(&self, row: &Row, quick: bool) -> Option<Verdict> {
        let verdict = |holds: bool| Some(if holds { Verdict::Ok } else { Verdict::Short });
        let counts = || self.count_max.iter().map(|(name, max)| (row.count.get(name), max));
        if counts().any(|(count, max)| count.map_or(!quick, |count| count > max)) {
            return verdict(false);
        }
        match self.ratio {
            // A quick run does not take every count.
            None if counts().any(|(count, _)| count.is_none()) => None,
            None => verdict(true),
            Some(_) if quick => None,
            Some(target) => verdict(row.low.is_some_and(|low| low >= target)),
        }
    }
}

/// The rows of a service, in order.
pub fn all(service: &str) -> Result<Vec<Definition>, BenchError> {
    let (_, text) = FILES
        .iter()
        .find(|(name, _)| *name == service)
        .ok_or_else(|| BenchError::UnknownService(service.to_owned()))?;
    let wrong = |source| BenchError::Definition { service: service.to_owned(), source };
    let file: File = toml::from_str(text).map_err(wrong)?;
    let rows: Vec<Vec<Definition>> =
        file.row.into_iter().map(listed).collect::<Result<_, _>>().map_err(wrong)?;
    Ok(rows.concat())
}

/// The rows of a service that `only` fits.
pub fn select(service: &str, only: Option<&str>) -> Result<Vec<Definition>, BenchError> {
    let mut rows = all(service)?;
    let Some(only) = only else { return Ok(rows) };
    let example = rows.first().map_or_else(String::new, |row| row.name.clone());
    rows.retain(|row| fits(only, &row.name));
    if rows.is_empty() {
        return Err(BenchError::NoRow { service: service.to_owned(), only: only.to_owned(), example });
    }
    Ok(rows)
}

/// A name fits when it is the pattern, starts with it at a `/`, or matches it as a glob (`*` is any run).
fn fits(pattern: &str, name: &str) -> bool {
    if !pattern.contains('*') {
        return name
            .strip_prefix(pattern)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || pattern.ends_with('/'));
    }
    let mut rest = name;
    let mut parts = pattern.split('*').peekable();
    let first = parts.next().unwrap_or("");
    let Some(after) = rest.strip_prefix(first) else { return false };
    rest = after;
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_parses_and_no_row_stands_twice() {
        for service in crate::SERVICES {
            let rows = all(service).expect("embedded definitions parse");
            for (index, row) in rows.iter().enumerate() {
                // Rows of the other services are named by what is compared.
                let names_service = row.name.starts_with(&format!("{service}/"));
                assert!(
                    names_service
                        || ["copy", "devices", "persist", "transform", "traverse", "zmem"].contains(service),
                    "{}",
                    row.name
                );
                let twice = rows[..index].iter().any(|r| r.name == row.name && r.rival == row.rival);
                assert!(!twice, "{} against {} stands twice", row.name, row.rival);
            }
        }
    }

    #[test]
    fn a_row_of_several_sizes_stands_once_for_each() {
        let rows = select("ipc", Some("ipc/array/65536")).expect("rows");
        let rivals: Vec<&str> = rows.iter().map(|row| row.rival.as_str()).collect();
        assert!(
            ["mp_queue", "mp_pipe", "zmq", "grpc_uds", "flight", "iceoryx2"]
                .iter()
                .all(|rival| rivals.contains(rival))
        );
        assert!(all("ipc").expect("parses").iter().all(|row| !row.name.contains('{')));
    }

    #[test]
    fn patterns() {
        assert!(fits("ipc/array", "ipc/array/1048576"));
        assert!(fits("ipc/", "ipc/array/1048576"));
        assert!(!fits("ipc/array/1", "ipc/array/1048576"));
        assert!(fits("copy/*/cold", "copy/33554432/cold"));
        assert!(!fits("copy/*/cold", "copy/33554432/cold/1core"));
        assert!(fits("*hot*", "copy/64/hot/misaligned"));
        assert!(matches!(select("ipc", Some("nothing")), Err(BenchError::NoRow { .. })));
        assert!(matches!(select("nothing", None), Err(BenchError::UnknownService(_))));
    }

    #[test]
    fn verdicts() {
        let rows = all("ipc").expect("parses");
        let timed = rows.iter().find(|row| row.ratio == Some(6.0)).expect("a timed row");
        let mut row = Row::new(timed);
        assert_eq!(timed.judge(&row, false), Some(Verdict::Short));
        row.low = Some(6.0);
        assert_eq!(timed.judge(&row, false), Some(Verdict::Ok));
        assert_eq!(timed.judge(&row, true), None);
        let counted = rows.iter().find(|row| row.name == "ipc/idle").expect("a counted row");
        let mut row = Row::new(counted);
        assert_eq!(counted.judge(&row, true), None);
        assert_eq!(counted.judge(&row, false), Some(Verdict::Short));
        row.count.insert("wakeups".to_owned(), 0);
        assert_eq!(counted.judge(&row, true), Some(Verdict::Ok));
        row.count.insert("wakeups".to_owned(), 1);
        assert_eq!(counted.judge(&row, false), Some(Verdict::Short));
        // A row with both is ok only when both hold.
        let both = Definition { ratio: Some(2.0), ..counted.clone() };
        row.low = Some(3.0);
        assert_eq!(both.judge(&row, false), Some(Verdict::Short));
        row.count.insert("wakeups".to_owned(), 0);
        assert_eq!(both.judge(&row, false), Some(Verdict::Ok));
        row.low = Some(1.0);
        assert_eq!(both.judge(&row, false), Some(Verdict::Short));
    }
}
