// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device with one parameter changed: for sweeps, and to see which parameter matters.
//!
//! - **Rule** the changed file goes through the same checks as any other: out of range, or against another field, is an error

use super::device::Device;
use crate::parameters::{ParameterError, Parameters, Schema, changed};

/// The device of `text`, with `name` set to `value`, in `unit` or in the file's own.
///
/// # Errors
/// No such parameter, a value that the schema does not allow, or one that contradicts another.
pub fn varied(
    file: &str,
    text: &str,
    schema: &Schema,
    name: &str,
    value: f64,
    unit: Option<&str>,
) -> Result<Device, ParameterError> {
    let text = changed(file, text, schema, name, value, unit)?;
    Device::new(&Parameters::parse(file, &text, schema)?)
}

/// The nearest value that a parameter can have: whole picoseconds, bytes, things.
#[must_use]
pub fn rounded(text: &str, schema: &Schema, name: &str, value: f64, unit: Option<&str>) -> f64 {
    let table: toml::Table = text.parse().unwrap_or_default();
    let own = table.get(name).and_then(|entry| entry.get("unit")).and_then(toml::Value::as_str);
    let field = schema.fields.iter().find(|field| field.name == name);
    let scale = field.zip(unit.or(own)).and_then(|(field, unit)| {
        field.quantity.units().iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale)
    });
    scale.map_or(value, |scale| (value * scale).round() / scale)
}

/// Each parameter with the device that has it halved and doubled, where the schema allows that.
#[must_use]
pub fn neighbours(text: &str, schema: &'static Schema) -> Vec<(&'static str, f64, Device)> {
    let Ok(parameters) = Parameters::parse("", text, schema) else { return Vec::new() };
    let mut found = Vec::new();
    for field in schema.fields {
        let number = parameters
            .iter()
            .find(|(name, _)| *name == field.name)
            .and_then(|(_, parameter)| parameter.text.split(' ').next()?.parse::<f64>().ok());
        let Some(number) = number else { continue };
        for factor in [0.5, 2.0] {
            if let Ok(device) = varied("", text, schema, field.name, number * factor, None) {
                found.push((field.name, factor, device));
            }
        }
    }
    found
}
