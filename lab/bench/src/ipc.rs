// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift bench ipc`: arrays and bytes handed to another process, against the ways in use today.
//!
//! - **Flow** definitions ─▶ rows whose name has `rust` in it: two parties, as in persist ([`echo`] and the program of engines/ipc/rust) ·
//!   all others: Python ([`scripted`])
//! - **Missing** a rival that is not installed, or cannot be built, makes its rows `missing`; they say what to install

mod echo;

use std::path::PathBuf;
use std::process::Command;

use crate::definition::Definition;
use crate::pairs::{self, Side, Took};
use crate::persist::engines;
use crate::persist::party::Party;
use crate::row::{self, Sink, Stop};
use crate::{BenchError, Options, Row, machine, python, scripted};

pub(crate) use self::echo::{NAME, serve};

/// Calls of one sample.
const CALLS: u64 = 20_000;
const CALLS_QUICK: u64 = 50;

/// Measures the rows; gives how many failed.
pub(crate) fn run(
    definitions: &[Definition],
    options: &Options,
    sink: &mut Sink,
) -> Result<usize, BenchError> {
    let (here, there): (Vec<Definition>, Vec<Definition>) =
        definitions.iter().cloned().partition(|row| row.name.split('/').any(|part| part == "rust"));
    let mut failed = 0;
    if !there.is_empty() {
        failed += scripted::run("engines/ipc/ipc_bench.py", Vec::new(), &there, options, sink)?;
    }
    failed += row::each(&here, sink, |definition| match definition.name.ends_with("/instructions") {
        true => counted(definition, options.quick),
        false => spinning(definition, options.quick),
    });
    Ok(failed)
}

/// The rival's program.
fn rival() -> Result<PathBuf, String> {
    let sources = python::unpack().map_err(|error| error.to_string())?.join("engines/ipc/rust");
    let folder = python::cache_folder().map_err(|error| error.to_string())?.join("ipc-rivals");
    eprintln!("building iceoryx2 in {}; the first time takes minutes …", folder.display());
    engines::crates(&sources, &folder, "memlift-ipc-rivals")
}

/// A call of 64 bytes whose both sides spin, even while there is no call: so each sample has its processes to itself.
fn spinning(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    if machine::cores() < 2 {
        return Err(Stop::Missing("two processes that spin need two cores".to_owned()));
    }
    let rival = rival().map_err(Stop::Missing)?;
    let calls = if quick { CALLS_QUICK } else { CALLS };
    let (mut turns, mut sums, mut abouts) =
        (0, [String::new(), String::new()], [String::new(), String::new()]);
    let samples = pairs::interleave(quick, |side| {
        let (mut party, at) = match side {
            Side::Ours => (Party::start("memlift", &mut echo::party()?)?, 0),
            Side::Theirs => (Party::start("iceoryx2", &mut Command::new(&rival))?, 1),
        };
        party.run(turns / 2, calls / 10)?;
        let ran = party.run(turns / 2, calls)?;
        abouts[at].clone_from(&party.about);
        party.end()?;
        sums[at] = ran.checksum;
        turns += 1;
        if turns % 2 == 0 && sums[0] != sums[1] {
            let answer = format!("{} and {}: the sides saw different answers", sums[0], sums[1]);
            return Err(BenchError::Answer { program: "a side of a row".to_owned(), answer });
        }
        Ok(Took { seconds: ran.seconds / calls as f64, cpu_s: ran.cpu_s / calls as f64 })
    })?;
    let mut row = Row::new(definition);
    row.cpu_s = samples.cpu_s;
    let [ours, theirs] = abouts;
    row.qualifies = format!(
        "{calls} calls back to back per sample after a tenth as many, two processes of their own, one outstanding, every word written, read and \
         compared; {} cores, not pinned; ours: {ours}; theirs: {theirs}",
        machine::cores(),
    );
    Ok(row.measured(definition, &samples.pairs, quick))
}

/// Counts the instructions of a call's client. A quick run only checks that they can be counted: another build has another
/// number.
fn counted(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    let mut party = Party::start("memlift", &mut echo::party()?)?;
    party.run(1, CALLS_QUICK)?;
    let mut row = Row::new(definition);
    row.qualifies =
        format!("ours: {}; the client's thread, in user space, one instruction at a time", party.about);
    if let Some((steps, calls)) = party.step()? {
        let per_call = steps.instructions / calls;
        row.ours = Some(per_call as f64);
        row.count = [("locked", steps.locked / calls), ("fences", steps.fences / calls)]
            .map(|(name, count)| (name.to_owned(), count))
            .into();
        if !quick {
            row.count.insert("instructions".to_owned(), per_call);
        }
    }
    party.end()?;
    row.verdict = definition.judge(&row, quick);
    Ok(row)
}

#[cfg(test)]
mod tests {
    const SCRIPTS: &[&str] = &[
        include_str!("../engines/ipc/transports.py"),
        include_str!("../engines/ipc/rows_torch.py"),
        include_str!("../engines/ipc/rivals.py"),
        include_str!("../engines/ipc/rivals_memory.py"),
        include_str!("../engines/ipc/rivals_sockets.py"),
    ];

    #[test]
    fn every_definition_is_a_kind_and_every_rival_is_somebody() {
        for row in crate::definition::all("ipc").expect("parses") {
            let parts: Vec<&str> =
                row.name.split('/').skip(1).filter(|part| part.parse::<u64>().is_err()).collect();
            let kind = format!("\"{}\": ", parts.join("/"));
            assert!(
                parts.contains(&"rust") || include_str!("../engines/ipc/ipc_bench.py").contains(&kind),
                "nobody measures {}",
                row.name
            );
            let named = format!("\"{}\"", row.rival);
            assert!(
                ["limit", "none", "steady", "block", "best_fixed", "zlib1", "plain"]
                    .contains(&row.rival.as_str())
                    || SCRIPTS.iter().any(|script| script.contains(&named)),
                "nobody is called {}",
                row.rival
            );
        }
    }
}
