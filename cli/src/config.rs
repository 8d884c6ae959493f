// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift config show`: each setting, its value, and the origin of the value.

use memlift::ground::config::Config;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::print;

/// Loads the configuration. A mistake in it is reported as a failure, which the user must correct.
pub fn load() -> Result<Config, Failure> {
    Config::load().map_err(|error| Failure::of(&error))
}

/// Prints the configuration in effect and the origin of each value.
pub fn show(as_json: bool) -> Result<(), Failure> {
    let config = load()?;
    let unknown = config.unknown_variables();
    let files: Vec<String> = Config::search_path().iter().map(|path| path.display().to_string()).collect();
    if as_json {
        let settings: Vec<Value> = config
            .entries()
            .iter()
            .map(|entry| {
                json!({
                    "key": entry.key,
                    "value": entry.value,
                    "origin": entry.origin.to_string(),
                    "variable": entry.variable,
                    "meaning": entry.doc,
                })
            })
            .collect();
        return print::json(&json!({ "settings": settings, "files": files, "unknown_variables": unknown }));
    }
    let rows: Vec<Vec<String>> = config
        .entries()
        .into_iter()
        .map(|entry| {
            let value = if entry.value.is_empty() { "–".to_owned() } else { entry.value };
            vec![entry.key.to_owned(), value, entry.origin.to_string(), entry.variable]
        })
        .collect();
    print::line(&print::table(&["key", "value", "origin", "variable"], &rows))?;
    print::line(&format!("\nfiles, the first that exists: {}", files.join(", ")))?;
    for name in unknown {
        print::warn(&format!("{name} is set, but no setting has that variable; the table names them all"));
    }
    Ok(())
}
