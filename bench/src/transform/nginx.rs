// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows `nginx/*`: Python runs Debian's nginx (engines/nginx/nginx_bench.py), this side judges.
//!
//! Flow     definitions ─▶ `--row NAME RIVAL` ─▶ one JSON line per row, as `bench ipc` has them ─▶ row
//! Not here how a row is measured; which rows there are

use crate::definition::Definition;
use crate::dropins::Dropin;
use crate::ipc::judge;
use crate::python::Script;
use crate::row::Sink;
use crate::{BenchError, Options, Row};

/// Measures the rows; gives how many failed.
pub(crate) fn run(
    definitions: &[Definition],
    options: &Options,
    sink: &mut Sink,
) -> Result<usize, BenchError> {
    if definitions.is_empty() {
        return Ok(0);
    }
    let mut arguments = arguments(options.quick);
    for row in definitions {
        arguments.extend(["--row".to_owned(), row.name.clone(), row.rival.clone()]);
    }
    let (mut failed, mut seen) = (0, Vec::new());
    Script { path: "engines/nginx/nginx_bench.py", arguments }.run(|value| {
        let Some((definition, row)) = judge(definitions, value, options.quick) else { return };
        failed += usize::from(row.qualifies.starts_with("failed: "));
        seen.push((definition.name.clone(), definition.rival.clone()));
        sink.push(row);
    })?;
    for row in definitions.iter().filter(|row| !seen.contains(&(row.name.clone(), row.rival.clone()))) {
        failed += 1;
        sink.push(Row::failed(row, "nginx_bench.py gave no line for it"));
    }
    Ok(failed)
}

/// The drop-ins that are built, and whether to be brief: what bench and tour give their scripts.
pub(crate) fn arguments(quick: bool) -> Vec<String> {
    let mut arguments = Vec::new();
    for (flag, dropin) in [("--libz", Dropin::Libz), ("--provider", Dropin::OpenSsl)] {
        if let Some(path) = dropin.find() {
            arguments.extend([flag.to_owned(), path.display().to_string()]);
        }
    }
    if quick {
        arguments.push("--quick".to_owned());
    }
    arguments
}
