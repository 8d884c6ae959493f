// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device's parameters: a TOML file in which every value says where it comes from.
//!
//! - **Layout** `device = "…"`, `version = 1`, then one table per parameter: `value` (a number), `unit`, `kind` (how far it can be
//!   trusted, [`Kind`]), `source` (a sentence: paper and section, or the calculation)
//! - **Order** every field of the [`Schema`] once and no other; the first that is wrong is named, with its fix
//! - **Rule** files are hostile until all of that is checked; what they can say is bounded by the schema, so no sum of times
//!   gets near the end of time
//! - **Not here** what a parameter means: the schema of its device

use crate::event::{Rate, Time};
use std::collections::BTreeMap;
use std::fmt;

/// Version of the form.
pub const VERSION: i64 = 1;
/// Most characters of a source.
const SOURCE_CHARS_MAX: usize = 400;

/// The quantity of a parameter; its file says in which unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// `ps`, `ns`, `us`, `ms`.
    Time,
    /// `B`, `KiB`, `MiB`.
    Bytes,
    /// `GB/s`, `Gb/s`, `MB/s`.
    Rate,
    /// `1`: a whole number.
    Count,
}

impl Quantity {
    const fn name(self) -> &'static str {
        match self {
            Quantity::Time => "a time",
            Quantity::Bytes => "a number of bytes",
            Quantity::Rate => "a rate",
            Quantity::Count => "a count",
        }
    }

    /// Unit and how many picoseconds, bytes, bytes per second or things it is.
    pub(crate) const fn units(self) -> &'static [(&'static str, f64)] {
        match self {
            Quantity::Time => &[("ps", 1.0), ("ns", 1e3), ("us", 1e6), ("ms", 1e9)],
            Quantity::Bytes => &[("B", 1.0), ("KiB", 1024.0), ("MiB", 1_048_576.0)],
            Quantity::Rate => &[("GB/s", 1e9), ("Gb/s", 1.25e8), ("MB/s", 1e6)],
            Quantity::Count => &[("1", 1.0)],
        }
    }
}

/// How far a value can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The source states it.
    Published,
    /// Calculated from what the source states.
    Derived,
    /// Nobody states it: chosen, with the reason.
    Assumed,
    /// Set so that named rows of a published result come out.
    Fitted,
}

impl Kind {
    const ALL: [(&'static str, Kind); 4] = [
        ("published", Kind::Published),
        ("derived", Kind::Derived),
        ("assumed", Kind::Assumed),
        ("fitted", Kind::Fitted),
    ];

    /// As in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        Kind::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// One field of a schema.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name of the field in the file.
    pub name: &'static str,
    /// Quantity that its value is of.
    pub quantity: Quantity,
    /// Least value, in picoseconds, bytes, bytes per second or things.
    pub least: u64,
    /// Largest value, in the same unit.
    pub most: u64,
}

/// A field of a schema.
pub(crate) const fn field(name: &'static str, quantity: Quantity, least: u64, most: u64) -> Field {
    Field { name, quantity, least, most }
}

/// Fields that a device's file must hold.
#[derive(Clone, Copy, Debug)]
pub struct Schema {
    /// Name of the device.
    pub device: &'static str,
    /// Fields that its file must hold.
    pub fields: &'static [Field],
}

/// A value that passed.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// In picoseconds, bytes, bytes per second or things.
    pub value: u64,
    /// As the file has it, with its unit.
    pub text: String,
    /// How far it can be trusted.
    pub kind: Kind,
    /// Where it comes from.
    pub source: String,
}

/// Why a file was refused: which file, which field, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterError(String);

impl fmt::Display for ParameterError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for ParameterError {}

impl ParameterError {
    /// For a rule between fields, which only the device knows.
    #[must_use]
    pub fn new(file: &str, field: &str, fault: impl fmt::Display) -> ParameterError {
        ParameterError(format!("{file}: {field}: {fault}"))
    }
}

/// A file that passed.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    file: String,
    device: &'static str,
    values: BTreeMap<&'static str, Parameter>,
}

impl Parameters {
    /// Reads the file that comes with the crate.
    ///
    /// # Panics
    /// If that file is wrong: a defect, which a test of each machine rules out.
    pub(crate) fn shipped<T>(
        file: &str,
        text: &str,
        schema: &Schema,
        new: impl FnOnce(&Parameters) -> Result<T, ParameterError>,
    ) -> T {
        Parameters::parse(file, text, schema)
            .and_then(|parameters| new(&parameters))
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Reads `text`, which is called `file` in errors.
    ///
    /// # Errors
    /// The first fault, with the field's name and the fix.
    pub fn parse(file: &str, text: &str, schema: &Schema) -> Result<Parameters, ParameterError> {
        let wrong = |field: &str, fault: String| ParameterError::new(file, field, fault);
        let table = table(file, text)?;
        match table.get("version").map(|version| (version.as_integer(), version)) {
            Some((Some(VERSION), _)) => {}
            Some((_, other)) => {
                return Err(wrong(
                    "version",
                    format!(
                        "{other} is not the form that this memlift reads; bring the file to version {VERSION}"
                    ),
                ));
            }
            None => return Err(wrong("version", format!("it is missing; add `version = {VERSION}`"))),
        }
        match table.get("device").map(|device| (device.as_str(), device)) {
            Some((Some(device), _)) if device == schema.device => {}
            Some((_, other)) => {
                return Err(wrong(
                    "device",
                    format!("{other}; this is about {:?}: give its file", schema.device),
                ));
            }
            None => {
                return Err(wrong("device", format!("it is missing; add `device = {:?}`", schema.device)));
            }
        }
        for name in table.keys().filter(|name| !["version", "device"].contains(&name.as_str())) {
            if !schema.fields.iter().any(|field| field.name == name) {
                let near = schema
                    .fields
                    .iter()
                    .min_by_key(|field| distance(field.name, name))
                    .map_or(String::new(), |field| format!("; nearest is `{}`", field.name));
                return Err(wrong(
                    name,
                    format!("no parameter of {}: remove or rename it{near}", schema.device),
                ));
            }
        }
        let mut values = BTreeMap::new();
        for field in schema.fields {
            let entry = table.get(field.name).ok_or_else(|| {
                wrong(field.name, "it is missing; add its table with value, unit, kind and source".into())
            })?;
            let entry = entry.as_table().ok_or_else(|| {
                wrong(field.name, "it is no table; write [name] with value, unit, kind and source".into())
            })?;
            let parameter = parameter(field, entry).map_err(|fault| wrong(field.name, fault))?;
            values.insert(field.name, parameter);
        }
        Ok(Parameters { file: file.to_owned(), device: schema.device, values })
    }

    /// Returns the file's name.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The device that they are about.
    #[must_use]
    pub fn device(&self) -> &'static str {
        self.device
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Parameter)> {
        self.values.iter().map(|(name, parameter)| (*name, parameter))
    }

    /// A value, in picoseconds, bytes, bytes per second or things.
    ///
    /// # Panics
    /// If the schema has no such field: a defect of the device.
    #[must_use]
    pub fn value(&self, name: &str) -> u64 {
        self.values.get(name).unwrap_or_else(|| panic!("the schema has no field {name}")).value
    }

    /// Returns the value of a time field.
    #[must_use]
    pub fn time(&self, name: &str) -> Time {
        Time::from_ps(self.value(name))
    }

    /// Returns the value of a rate field.
    #[must_use]
    pub fn rate(&self, name: &str) -> Rate {
        Rate::from_bytes_per_second(self.value(name))
    }
}

/// Returns a file's text with one parameter changed, in `unit` or in the file's own.
///
/// # Errors
/// The file is wrong as it is, or has no such parameter. The new value is not checked.
pub fn changed(
    file: &str,
    text: &str,
    schema: &Schema,
    name: &str,
    value: f64,
    unit: Option<&str>,
) -> Result<String, ParameterError> {
    // A fault of the file itself is told first.
    Parameters::parse(file, text, schema)?;
    let mut table = table(file, text)?;
    let Some(entry) = table.get_mut(name).and_then(toml::Value::as_table_mut) else {
        let names: Vec<&str> = schema.fields.iter().map(|field| field.name).collect();
        let fault = format!("no parameter of {}; there are: {}", schema.device, names.join(", "));
        return Err(ParameterError::new(file, name, fault));
    };
    entry.insert("value".to_owned(), toml::Value::Float(value));
    if let Some(unit) = unit {
        entry.insert("unit".to_owned(), toml::Value::String(unit.to_owned()));
    }
    Ok(table.to_string())
}

/// Returns the device that a file says it is about, if it says so.
///
/// # Errors
/// If it is no TOML, with the line.
pub fn device(file: &str, text: &str) -> Result<Option<String>, ParameterError> {
    Ok(table(file, text)?
        .get("device")
        .map(|device| device.as_str().map_or(device.to_string(), str::to_owned)))
}

fn table(file: &str, text: &str) -> Result<toml::Table, ParameterError> {
    text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].lines().count().max(1));
        let fault = format!("{}; correct this line, it is no TOML", error.message());
        ParameterError::new(file, &format!("line {line}"), fault)
    })
}

fn parameter(field: &Field, entry: &toml::Table) -> Result<Parameter, String> {
    const KEYS: [&str; 4] = ["value", "unit", "kind", "source"];
    if let Some(other) = entry.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(format!("`{other}` means nothing here; it has value, unit, kind and source"));
    }
    let string = |key: &str| match entry.get(key) {
        Some(toml::Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err(format!("`{key}` is a string; put it in quotation marks")),
        None => Err(format!("`{key}` is missing; add it")),
    };
    let number = match entry.get("value") {
        Some(toml::Value::Integer(number)) => *number as f64,
        Some(toml::Value::Float(number)) => *number,
        Some(_) => return Err("`value` is a number without unit or quotation marks".into()),
        None => return Err("`value` is missing; add it".into()),
    };
    let (unit, units) = (string("unit")?, field.quantity.units());
    let Some((_, scale)) = units.iter().find(|(name, _)| *name == unit) else {
        let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
        return Err(format!("unit {unit:?}; it is {}: one of {}", field.quantity.name(), names.join(", ")));
    };
    let scaled = number * scale;
    let (least, most) = (field.least as f64, field.most as f64);
    // NaN is in no range.
    if !(least..=most).contains(&scaled) {
        return Err(format!(
            "{number} {unit} is not in its range: give {} to {} {unit}",
            least / scale,
            most / scale
        ));
    }
    if scaled.round() != scaled && (scaled - scaled.round()).abs() > 1e-6 * scaled {
        return Err(format!("{number} {unit} is no whole number of {}; round it", base(field.quantity)));
    }
    let kind = string("kind")?;
    let Some((_, kind)) = Kind::ALL.iter().find(|(name, _)| *name == kind) else {
        return Err(format!("kind {kind:?}; it is published, derived, assumed or fitted"));
    };
    let source = string("source")?.trim();
    if source.is_empty() {
        return Err("`source` is empty; say where the value comes from".into());
    }
    if source.chars().count() > SOURCE_CHARS_MAX {
        return Err(format!("`source` is longer than {SOURCE_CHARS_MAX} characters; shorten it"));
    }
    let text = format!("{number} {}", if unit == "1" { "" } else { unit });
    Ok(Parameter {
        value: scaled.round() as u64,
        text: text.trim_end().to_owned(),
        kind: *kind,
        source: source.to_owned(),
    })
}

const fn base(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::Time => "picoseconds",
        Quantity::Bytes => "bytes",
        Quantity::Rate => "bytes per second",
        Quantity::Count => "things",
    }
}

/// Edits between two names.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = (diagonal + usize::from(x != *y)).min(above + 1).min(row[j] + 1);
            diagonal = above;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: Schema = Schema {
        device: "toy",
        fields: &[
            Field { name: "latency", quantity: Quantity::Time, least: 1000, most: 1_000_000 },
            Field { name: "units", quantity: Quantity::Count, least: 1, most: 4 },
        ],
    };
    const GOOD: &str = "device = \"toy\"\nversion = 1\n[latency]\nvalue = 5.1\nunit = \"ns\"\nkind = \"published\"\nsource = \"a table\"\n[units]\nvalue = 2\nunit = \"1\"\nkind = \"assumed\"\nsource = \"two\"\n";

    #[test]
    fn a_good_file_gives_whole_picoseconds() {
        let parameters = Parameters::parse("toy.toml", GOOD, &SCHEMA).unwrap();
        assert_eq!((parameters.time("latency").as_ps(), parameters.value("units")), (5100, 2));
        let (name, latency) = parameters.iter().next().unwrap();
        assert_eq!((name, latency.text.as_str(), latency.kind.name()), ("latency", "5.1 ns", "published"));
    }

    #[test]
    fn every_fault_names_its_field_and_the_fix() {
        for (from, to, wanted) in [
            ("version = 1", "version = 2", "toy.toml: version: 2 is not the form"),
            ("version = 1", "", "toy.toml: version: it is missing; add `version = 1`"),
            ("\"toy\"", "\"pulse\"", "toy.toml: device: \"pulse\"; this is about \"toy\": give its file"),
            (
                "[latency]",
                "[latnecy]",
                "toy.toml: latnecy: no parameter of toy: remove or rename it; nearest is `latency`",
            ),
            ("[latency]", "[units.x]", "toy.toml: latency: it is missing; add its table"),
            ("5.1", "\"5.1\"", "latency: `value` is a number without unit"),
            ("5.1", "-5.1", "latency: -5.1 ns is not in its range: give 1 to 1000 ns"),
            ("5.1", "nan", "latency: NaN ns is not in its range"),
            ("5.1", "inf", "latency: inf ns is not in its range"),
            ("5.1", "1e300", "is not in its range"),
            ("5.1", "5.10002", "latency: 5.10002 ns is no whole number of picoseconds; round it"),
            ("\"ns\"", "\"GB/s\"", "latency: unit \"GB/s\"; it is a time: one of ps, ns, us, ms"),
            ("\"ns\"", "7", "latency: `unit` is a string"),
            (
                "\"published\"",
                "\"true\"",
                "latency: kind \"true\"; it is published, derived, assumed or fitted",
            ),
            ("\"a table\"", "\" \"", "latency: `source` is empty; say where"),
            ("source = \"a table\"", "", "latency: `source` is missing; add it"),
            ("source = \"a table\"", "sauce = 1", "latency: `sauce` means nothing here"),
            ("value = 2", "value = 2.5", "units: 2.5 1 is no whole number of things"),
            ("value = 2", "value = 5", "units: 5 1 is not in its range: give 1 to 4"),
            ("value = 2", "value = ", "toy.toml: line 9: "),
            ("[units]\n", "[latency]\n", "toy.toml: line 8: "),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let text = GOOD.replacen(from, to, 1);
            let error = Parameters::parse("toy.toml", &text, &SCHEMA).expect_err(to).to_string();
            assert!(error.contains(wanted) && error.lines().count() == 1, "{to}: {error}");
        }
        let long = GOOD.replace("a table", &"x".repeat(401));
        let error = Parameters::parse("toy.toml", &long, &SCHEMA).unwrap_err().to_string();
        assert!(error.contains("latency: `source` is longer"), "{error}");
        let flat = "device = \"toy\"\nversion = 1\nlatency = 3\n";
        let error = Parameters::parse("toy.toml", flat, &SCHEMA).unwrap_err().to_string();
        assert!(error.contains("latency: it is no table"), "{error}");
    }
}
