// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Help by service: the list of verbs in groups, a page for each service, and manual pages.
//!
//! - **Flow** [`command`] ─▶ clap, with the groups in the place of its list · [`page`] ─▶ `memlift help SERVICE` · [`manuals`] ─▶
//!   `memlift man FOLDER`
//! - **Order** each verb is in one group: a test compares them with the grammar

use std::fmt::Write;
use std::fs;
use std::path::Path;

use clap::CommandFactory;
use memlift_cli::failure::Failure;
use memlift_cli::print;

use crate::grammar::Arguments;

/// Columns of the help where the terminal has as many, or where there is none.
const COLUMNS: usize = 100;

/// A group of verbs: a service, or verbs that concern several services.
struct Group {
    name: &'static str,
    /// The group's work in one sentence.
    does: &'static str,
    verbs: &'static [&'static str],
    /// Ways in which programs use the service, one per line.
    faces: &'static [&'static str],
    guide: &'static str,
}

const GROUPS: [Group; 7] = [
    Group {
        name: "ipc",
        does: "Pass arrays and objects between processes at memory speed",
        verbs: &["ipc"],
        faces: &[
            "Python  from memlift import Queue, Executor; memlift.ipc.Server, Client; memlift.aio",
            "C       memlift.h: memlift_call, memlift_array",
            "Rust    memlift::ipc",
        ],
        guide: "docs/guides/ipc.md",
    },
    Group {
        name: "transform",
        does: "Pack, unpack and encrypt while copying",
        verbs: &["dropin"],
        faces: &[
            "any program  memlift dropin enable UNIT|COMMAND: a faster libz, AES-GCM for OpenSSL",
            "Python       memlift.zlib, memlift.gzip, memlift.transform, memlift.codecs, memlift.web",
            "C, Rust      memlift.h; memlift::transform",
        ],
        guide: "docs/guides/transform.md",
    },
    Group {
        name: "persist",
        does: "Keep objects in a file that survives crashes and power cuts",
        verbs: &["pool"],
        faces: &[
            "Python  memlift.persist.open(FILE): a dict whose commits are durable",
            "Redis   memlift pool serve FILE: strings and keys for Redis clients",
            "C       memlift_persist.h",
            "Rust    memlift::persist",
        ],
        guide: "docs/guides/persist.md",
    },
    Group {
        name: "traverse",
        does: "Keep indexes on memory nodes that walk them for their clients",
        verbs: &["node", "map"],
        faces: &[
            "Python  memlift.traverse: HashMap, OrderedMap, List, walks of your own",
            "C       memlift_traverse.h",
            "Rust    memlift::traverse",
        ],
        guide: "docs/guides/traverse-python.md, traverse-cluster.md, traverse-apps.md",
    },
    Group {
        name: "zmem",
        does: "Run a program under an exact budget of memory",
        verbs: &["run", "job", "jupyter"],
        faces: &[
            "any program  memlift run --memory 2G --spill FOLDER -- PROGRAM",
            "Python       memlift.zmem",
            "C            memlift_zmem.h",
        ],
        guide: "docs/guides/zmem.md",
    },
    Group {
        name: "devices",
        does: "Estimate what an accelerator would buy a program",
        verbs: &["record", "whatif", "reproduce"],
        faces: &["any program  memlift record -o FILE -- PROGRAM; memlift whatif --device dsa FILE"],
        guide: "docs/guides/whatif.md",
    },
    Group {
        name: "machine",
        does: "See and set up all of it",
        verbs: &[
            "doctor",
            "top",
            "metrics",
            "explain",
            "config",
            "calibrate",
            "tour",
            "bench",
            "completions",
            "man",
        ],
        faces: &[],
        guide: "docs/guides/command.md",
    },
];

/// Returns the clap command, with its verbs in groups.
pub fn command() -> clap::Command {
    let command = Arguments::command();
    let columns = columns();
    let paragraph = |text: &str| print::wrapped(text, columns).join("\n");
    let mut list = String::new();
    for group in &GROUPS {
        let _ = writeln!(list, "{}", paragraph(&format!("{} ({})", group.does, group.name)));
        let verbs = group.verbs.iter().filter_map(|verb| command.find_subcommand(verb));
        let verbs: Vec<_> = verbs.map(|verb| (verb.get_name().to_owned(), about(verb))).collect();
        write_list(&mut list, &verbs, columns, 11);
        list.push('\n');
    }
    let names: Vec<&str> = GROUPS.iter().map(|group| group.name).collect();
    let help = format!("Help of a verb, or of a service ({})", names.join(", "));
    write_list(&mut list, &[("help".to_owned(), help)], columns, 11);
    command.help_template(format!(
        "{}\n\n{{usage-heading}} {{usage}}\n\n{list}\nOptions:\n{{options}}{{after-help}}",
        paragraph(
            "Memory work lifted off the core: copies between processes, packing, encryption, durable objects, remote indexes, \
             memory budgets."
        ),
    ))
}

/// Returns the columns that the help may have.
fn columns() -> usize {
    print::columns().map_or(COLUMNS, |columns| columns.min(COLUMNS))
}

fn about(verb: &clap::Command) -> String {
    let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
    about.trim_end_matches(" (starts memlift-lab)").to_owned()
}

/// Appends a line or more for each name and its text, the texts below each other.
fn write_list(list: &mut String, entries: &[(String, String)], columns: usize, least: usize) {
    let width = entries.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(least);
    for (name, text) in entries {
        for (index, line) in print::wrapped(text, columns.saturating_sub(width + 4)).iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            let _ = writeln!(list, "  {name:<width$}  {line}");
        }
    }
}

/// Lists a verb, or the verbs inside of it where it is nothing by itself.
fn inner_verbs(verb: &clap::Command, name: &str, list: &mut Vec<(String, String)>) {
    let inner: Vec<_> = verb.get_subcommands().filter(|inner| inner.get_name() != "help").collect();
    if inner.is_empty() || !verb.is_subcommand_required_set() {
        list.push((name.to_owned(), about(verb)));
    }
    for verb in inner {
        inner_verbs(verb, &format!("{name} {}", verb.get_name()), list);
    }
}

/// Returns the help of a service that is not a verb, or has more help than its verb; `None` for anything else.
pub fn page(service: &str) -> Option<String> {
    let group = GROUPS.iter().find(|group| group.name == service)?;
    let (command, columns) = (Arguments::command(), columns());
    let title = format!("{}: {}", group.name, lower_first(group.does));
    let mut page = format!("{}\n\nVerbs:\n", print::wrapped(&title, columns).join("\n"));
    let mut verbs = Vec::new();
    for verb in group.verbs {
        inner_verbs(command.find_subcommand(verb)?, verb, &mut verbs);
    }
    write_list(&mut page, &verbs, columns, 11);
    if !group.faces.is_empty() {
        let _ = write!(page, "\nFor programs:\n");
        let faces: Vec<_> = group.faces.iter().filter_map(|face| face.split_once("  ")).collect();
        let faces: Vec<_> =
            faces.iter().map(|(who, how)| ((*who).to_owned(), how.trim().to_owned())).collect();
        write_list(&mut page, &faces, columns, 0);
    }
    let guide = format!("memlift VERB --help has the options. Guide: {}", group.guide);
    let _ = write!(page, "\n{}", print::wrapped(&guide, columns).join("\n"));
    Some(page)
}

fn lower_first(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// Writes a manual page for the command and each verb into a folder.
pub fn manuals(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder)?;
    let mut command = command();
    command.build();
    write(folder, &command, "memlift")?;
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        let name = format!("memlift-{}", verb.get_name());
        write(folder, verb, &name)?;
        for inner in verb.get_subcommands().filter(|inner| inner.get_name() != "help") {
            write(folder, inner, &format!("{name}-{}", inner.get_name()))?;
        }
    }
    print::note(&format!("manual pages are in {}", folder.display()));
    Ok(())
}

fn write(folder: &Path, command: &clap::Command, name: &str) -> Result<(), Failure> {
    // The title, and the name by which `man` finds the page. clap needs a static string; the leak is small, and the
    // program ends soon.
    let command = command.clone().name(&*name.to_owned().leak()).version(env!("CARGO_PKG_VERSION"));
    let mut text = Vec::new();
    clap_mangen::Man::new(command).manual("memlift").render(&mut text)?;
    let path = folder.join(format!("{name}.1"));
    fs::write(&path, text).map_err(|error| Failure::about(&error, format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_verb_is_in_one_group() {
        let command = Arguments::command();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|group| group.verbs).copied().collect();
        let mut there: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        grouped.sort_unstable();
        there.sort_unstable();
        assert_eq!(grouped, there);
    }

    #[test]
    fn help_fits_the_terminal_and_names_every_service() {
        let help = command().render_help().to_string();
        for group in &GROUPS {
            assert!(help.contains(group.name) && help.contains(group.does), "{}: {help}", group.name);
            let page = page(group.name).expect("each group has a page");
            assert!(group.faces.iter().all(|face| face.contains("  ")), "{page}");
        }
        let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > COLUMNS).collect();
        assert!(long.is_empty(), "{long:?}");
        assert!(page("doctor").is_none());
    }
}
