// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift pool dump`: prints objects as lines of text, or one JSON document per line.
//!
//! - **Order** by address in the heap, printed as they are read

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use memlift::persist::dump::{self as objects, Filter, Object, Value as Held};
use serde_json::{Map, Value, json};

use super::failure;
use crate::failure::Failure;

/// Prints up to `limit` objects.
pub fn dump(
    files: &[PathBuf],
    name: Option<String>,
    offset: Option<u64>,
    limit: Option<u64>,
    as_json: bool,
) -> Result<(), Failure> {
    let mut output = BufWriter::new(io::stdout().lock());
    let mut left = limit.unwrap_or(u64::MAX);
    let mut written: io::Result<()> = Ok(());
    objects::dump(files, &Filter { name, offset }, |object| {
        if left == 0 {
            return false;
        }
        left -= 1;
        written = if as_json {
            writeln!(output, "{}", document(&object))
        } else {
            writeln!(
                output,
                "{:#x} {} (section {}): {}",
                object.offset, object.name, object.section, object.value
            )
        };
        written.is_ok() && left > 0
    })
    .map_err(failure(&files[0]))?;
    written?;
    output.flush()?;
    Ok(())
}

fn document(object: &Object) -> Value {
    json!({
        "offset": object.offset, "type": object.name, "tag": object.tag, "section": object.section, "room": object.room,
        "value": held(&object.value),
    })
}

fn number<T: ToString + Copy>(number: T, plain: Option<Value>) -> Value {
    plain.unwrap_or_else(|| Value::String(number.to_string()))
}

/// Returns an object's contents; numbers that JSON cannot hold become text.
fn held(value: &Held) -> Value {
    match value {
        Held::Unsigned(one) => number(*one, u64::try_from(*one).ok().map(Value::from)),
        Held::Signed(one) => number(*one, i64::try_from(*one).ok().map(Value::from)),
        Held::Float(one) => number(*one, one.is_finite().then(|| json!(one))),
        Held::Double(one) => number(*one, one.is_finite().then(|| json!(one))),
        Held::Pointer { offset: 0, .. } => Value::Null,
        Held::Pointer { name, offset } => json!({ "pointer": offset, "type": name }),
        Held::Slice { name, offset, elements, first } => {
            json!({ "array": offset, "type": name, "elements": elements, "first": first.iter().map(held).collect::<Vec<_>>() })
        }
        Held::Array(values) => values.iter().map(held).collect(),
        Held::Struct(fields) => Value::Object(
            fields.iter().map(|(name, value)| (name.clone(), held(value))).collect::<Map<_, _>>(),
        ),
        Held::Bytes(bytes) => {
            json!({ "bytes": bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), "text": Held::of_bytes(bytes) })
        }
        Held::More(more) => json!({ "more": more }),
        Held::Truth(truth) => Value::Bool(*truth),
        Held::Text(text) => Value::String(text.clone()),
        Held::Map { pairs, more } => {
            let pairs: Vec<Value> =
                pairs.iter().map(|(key, value)| json!([held(key), held(value)])).collect();
            json!({ "pairs": pairs, "more": more })
        }
        Held::Tagged { name, values } => {
            json!({ "kind": name, "values": values.iter().map(held).collect::<Vec<_>>() })
        }
        _ => Value::Null,
    }
}
