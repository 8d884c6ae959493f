// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Circles between modules of a crate: fails on one that is not recorded with a reason.
//!
//! - **Flow** a crate's files ─▶ paths that start with `crate`, `self` or `super` ─▶ edges between modules ─▶ strongly connected sets ─▶
//!   those that [`KNOWN`] does not hold
//! - **Rule** a module and its ancestors count as one room: their edges are left out. Tests are left out, too
//! - **Not here** edges between crates (`layers`)

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::workspace::{Workspace, rust_files};

/// Circles that are there, by crate folder: their modules and the reason that each stays.
const KNOWN: &[(&str, &[&str], &str)] = include!("circles.in");

type Module = Vec<String>;

/// One line for each circle that is not recorded, and for each record without a circle.
pub fn faults(workspace: &Workspace) -> Vec<String> {
    let mut faults = Vec::new();
    for member in &workspace.members {
        let found = circles(&edges(&workspace.root.join(&member.folder).join("src")));
        let known: Vec<_> = KNOWN.iter().filter(|(folder, _, _)| *folder == member.folder).collect();
        for circle in &found {
            let names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
            let is_known =
                known.iter().any(|(_, modules, _)| names.iter().all(|name| modules.contains(&name.as_str())));
            if !is_known {
                faults.push(format!("circle of modules in {}: {}", member.folder, names.join(", ")));
            }
        }
        for (folder, modules, _) in known {
            let is_there = |circle: &Vec<Module>| {
                circle.iter().all(|module| modules.contains(&module.join("::").as_str()))
            };
            if !found.iter().any(is_there) {
                faults.push(format!(
                    "xtask/src/circles.in: {folder} has no circle of {} any more: remove the record",
                    modules.join(", ")
                ));
            }
        }
    }
    faults
}

/// Edges between the modules of the crate whose sources lie in `source`.
fn edges(source: &Path) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut files = Vec::new();
    rust_files(source, &mut files);
    let texts: BTreeMap<Module, String> = files
        .iter()
        .map(|file| {
            let relative = file.strip_prefix(source).unwrap_or(file).with_extension("");
            let mut module: Module =
                relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
                module.pop();
            }
            (module, std::fs::read_to_string(file).unwrap_or_default())
        })
        .collect();
    let is_kin = |a: &Module, b: &Module| a.starts_with(b) || b.starts_with(a);
    let mut edges = BTreeMap::new();
    for (module, text) in &texts {
        let mut targets = BTreeSet::new();
        for path in paths(&product_code(text)) {
            if let Some(target) = target(&texts, module, &path)
                && !is_kin(module, &target)
            {
                targets.insert(target);
            }
        }
        edges.insert(module.clone(), targets);
    }
    edges
}

/// The text without comments and without the test module at its end.
fn product_code(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod tests").unwrap_or(text.len());
    text[..end].lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// Paths that start with `crate`, `self` or `super`, with the trees of `use` spread out.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    let mut rest = code;
    while let Some(start) = next_path(rest) {
        rest = &rest[start..];
        let used = spread(rest, &mut Vec::new(), &mut paths);
        rest = &rest[used.max(1)..];
    }
    paths
}

/// The offset of the next path of this crate.
fn next_path(code: &str) -> Option<usize> {
    let is_part = |sign: char| sign.is_alphanumeric() || sign == '_' || sign == ':' || sign == '$';
    ["crate::", "self::", "super::"]
        .iter()
        .filter_map(|start| {
            let mut from = 0;
            while let Some(found) = code[from..].find(start).map(|at| from + at) {
                if !code[..found].ends_with(is_part) {
                    return Some(found);
                }
                from = found + start.len();
            }
            None
        })
        .min()
}

/// Reads a path or a tree of paths at the start of `code` below `prefix`; returns the bytes that it took.
fn spread(code: &str, prefix: &mut Vec<String>, paths: &mut Vec<Vec<String>>) -> usize {
    let depth = prefix.len();
    let mut at = 0;
    loop {
        at += code[at..].len() - code[at..].trim_start().len();
        if code[at..].starts_with('{') {
            at += 1;
            loop {
                at += spread(&code[at..], prefix, paths);
                at += code[at..].len() - code[at..].trim_start().len();
                match code[at..].chars().next() {
                    Some(',') => at += 1,
                    Some('}') => {
                        at += 1;
                        break;
                    }
                    _ => break,
                }
            }
            break;
        }
        let part =
            code[at..].chars().take_while(|sign| sign.is_alphanumeric() || *sign == '_').collect::<String>();
        at += part.len();
        if part.is_empty() {
            // `*`, or the end of a list.
            at += usize::from(code[at..].starts_with('*'));
            paths.push(prefix.clone());
            break;
        }
        prefix.push(part);
        if !code[at..].starts_with("::") {
            paths.push(prefix.clone());
            if code[at..].trim_start().starts_with("as ") {
                let end = code[at..].find([',', '}', ';']).unwrap_or(0);
                at += end;
            }
            break;
        }
        at += 2;
    }
    prefix.truncate(depth);
    at
}

/// The module of the crate that `path`, seen from `module`, leads into.
fn target(texts: &BTreeMap<Module, String>, module: &Module, path: &[String]) -> Option<Module> {
    let mut full: Module = Vec::new();
    let mut parts = path.iter().peekable();
    match parts.peek()?.as_str() {
        "crate" => {
            parts.next();
        }
        "self" => {
            parts.next();
            full.clone_from(module);
        }
        "super" => full.clone_from(module),
        _ => return None,
    }
    while parts.peek().is_some_and(|part| *part == "super") {
        parts.next();
        full.pop()?;
    }
    full.extend(parts.cloned());
    while !texts.contains_key(&full) {
        full.pop()?;
    }
    (!full.is_empty()).then_some(full)
}

/// Sets of two or more modules of which each reaches each other, in order.
fn circles(edges: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<Vec<Module>> {
    let reach = |from: &Module| {
        let mut seen = BTreeSet::new();
        let mut open: Vec<&Module> = edges.get(from).into_iter().flatten().collect();
        while let Some(module) = open.pop() {
            if seen.insert(module.clone()) {
                open.extend(edges.get(module).into_iter().flatten());
            }
        }
        seen
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        edges.keys().map(|module| (module, reach(module))).collect();
    let mut found: Vec<Vec<Module>> = Vec::new();
    for (module, seen) in &reached {
        let circle: Vec<Module> = seen
            .iter()
            .filter(|other| reached.get(other).is_some_and(|back| back.contains(*module)))
            .cloned()
            .collect();
        if circle.len() > 1 && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &str) -> Module {
        path.split("::").map(str::to_owned).collect()
    }

    #[test]
    fn trees_of_use_are_spread_out() {
        let code =
            "use crate::{a::{b, c as d}, e::*};\nuse super::f;\nfn g() { self::h::i(); memcrate::no(); }";
        let found: Vec<String> = paths(code).iter().map(|path| path.join("::")).collect();
        assert_eq!(found, ["crate::a::b", "crate::a::c", "crate::e", "super::f", "self::h::i"]);
    }

    #[test]
    fn a_planted_circle_is_found_and_parents_are_not_one() {
        let folder = std::env::temp_dir().join(format!("circles-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("a")).expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect("writable");
        write("lib.rs", "mod a;\nmod b;\nmod c;\nuse crate::a::A;");
        write("a.rs", "mod inner;\nuse self::inner::I;\nuse crate::b::{self, B};");
        write("a/inner.rs", "use super::A;");
        write("b.rs", "// use crate::c;\nuse crate::a::A;\n#[cfg(test)]\nmod tests {\n use crate::c::C;\n}");
        write("c.rs", "fn c() { crate::b::b() }");
        let found = circles(&edges(&folder));
        std::fs::remove_dir_all(&folder).expect("removed");
        assert_eq!(found, [vec![module("a"), module("b")]]);
    }
}
