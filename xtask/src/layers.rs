// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dependencies run down: fails when a crate names one that its folder must not know.
//!
//! - **Flow** `cargo metadata` ─▶ edges between folders ─▶ [`ALLOWED`] ─▶ the first forbidden ones, by name
//! - **Rule** a folder that the table does not hold fails too: a new one is entered here, in plain sight
//!   A derive crate belongs to the service that its folder lies in, and no other service may name it
//! - **Tests** edges that exist only for a crate's own tests may also lead to the conformance suite
//! - **Islands** every crate root denies unsafe code; a module that needs it is opened with `#[expect(unsafe_code, reason = "…")]`,
//!   or `allow` where some target compiles it to nothing

use std::path::Path;

use crate::Failure;
use crate::workspace::{Kind, Workspace, rust_files};

/// Folder → the folders that it may depend on. `*` stands for one path component; `**` for anything.
const ALLOWED: &[(&str, &[&str])] = &[
    ("bindings/openssl", &["kernels"]),
    ("bindings/zlib", &["kernels"]),
    ("bindings/preload", &["services/zmem", "ground"]),
    ("bindings/tap", &["spec"]),
    ("bindings/*", &["memlift"]),
    ("cli", &["memlift"]),
    ("memlift", &["services/*", "offload", "place", "ground", "devices/idxd", "spec"]),
    ("services/*/derive", &[]),
    ("services/*", &["services/*/derive", "offload", "place", "ground", "kernels", "spec"]),
    ("offload", &["place", "ground", "kernels", "devices/idxd", "spec"]),
    ("place", &["ground", "kernels", "spec"]),
    ("ground", &["kernels", "devices/idxd", "spec"]),
    ("kernels", &["spec"]),
    ("devices/*", &["spec"]),
    ("spec", &[]),
    ("lab/model", &["spec"]),
    ("lab/*", &["**"]),
    ("examples", &["**"]),
    ("xtask", &[]),
];

/// Checks the workspace that this command was started in.
pub fn check() -> Result<String, Failure> {
    let workspace = Workspace::read()?;
    let mut faults = forbidden_edges(&workspace);
    faults.extend(open_islands(&workspace));
    faults.extend(crate::circles::faults(&workspace));
    if faults.is_empty() {
        let edges: usize = workspace.members.iter().map(|member| member.edges.len()).sum();
        return Ok(format!("layers hold: {} crates, {edges} edges", workspace.members.len()));
    }
    Err(Failure::Broken(faults.join("\nxtask: ")))
}

/// One line for each edge that [`ALLOWED`] does not hold.
fn forbidden_edges(workspace: &Workspace) -> Vec<String> {
    let mut faults = Vec::new();
    for member in &workspace.members {
        let Some((_, allowed)) = ALLOWED.iter().find(|(pattern, _)| matches(pattern, &member.folder)) else {
            faults.push(format!(
                "folder {} is in no layer: enter it in xtask/src/layers.rs and in ARCHITECTURE.md",
                member.folder
            ));
            continue;
        };
        for (name, kind) in &member.edges {
            let target = workspace.folder(name).unwrap_or(name);
            // A crate's own tests may turn on features of it.
            let tests_only = *kind == Kind::Test && (target == "lab/conformance" || target == member.folder);
            let others_derive = target
                .strip_suffix("/derive")
                .is_some_and(|owner| member.folder.starts_with("services/") && member.folder != owner);
            let permitted = allowed.iter().any(|pattern| matches(pattern, target)) && !others_derive;
            if !tests_only && !permitted {
                faults.push(format!(
                    "forbidden edge: {} → {target} ({} → {name}); {} may depend on: {}",
                    member.folder,
                    member.name,
                    member.folder,
                    if allowed.is_empty() { "nothing".to_owned() } else { allowed.join(", ") }
                ));
            }
        }
    }
    faults
}

fn matches(pattern: &str, folder: &str) -> bool {
    if pattern == "**" {
        return true;
    }
    let (mut wanted, mut found) = (pattern.split('/'), folder.split('/'));
    loop {
        match (wanted.next(), found.next()) {
            (None, None) => return true,
            (Some(one), Some(other)) if one == "*" || one == other => {}
            _ => return false,
        }
    }
}

/// One line for each crate root that does not deny unsafe code, and for each island opened without a reason.
fn open_islands(workspace: &Workspace) -> Vec<String> {
    let mut faults = Vec::new();
    for member in &workspace.members {
        for root in &member.roots {
            let text = std::fs::read_to_string(root).unwrap_or_default();
            if !["#![deny(unsafe_code)]", "#![forbid(unsafe_code)]"].iter().any(|line| text.contains(line)) {
                faults.push(format!(
                    "{}: a crate root says #![deny(unsafe_code)]",
                    relative(root, &workspace.root)
                ));
            }
        }
        let mut sources = Vec::new();
        rust_files(&workspace.root.join(&member.folder).join("src"), &mut sources);
        for source in sources {
            let text = std::fs::read_to_string(&source).unwrap_or_default();
            for line in islands_without_reason(&text) {
                faults.push(format!(
                    "{}:{line}: open an island with #[expect(unsafe_code, reason = \"…\")]",
                    relative(&source, &workspace.root)
                ));
            }
        }
    }
    faults
}

/// Line numbers, from 1, of attributes that let unsafe code in and do not say why.
fn islands_without_reason(text: &str) -> Vec<usize> {
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let code = line.trim_start();
        if !code.starts_with("#") {
            continue;
        }
        let attribute: String = text.lines().skip(index).take(5).map(str::trim).collect();
        let attribute = &attribute[..attribute.find(']').map_or(attribute.len(), |end| end + 1)];
        let lets_in = ["expect(unsafe_code", "allow(unsafe_code", "warn(unsafe_code"]
            .iter()
            .any(|start| attribute.contains(start));
        if lets_in && !attribute.contains("reason") {
            lines.push(index + 1);
        }
    }
    lines
}

fn relative(path: &Path, root: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn package(folder: &str, name: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
        let dependencies: Vec<Value> = dependencies
            .iter()
            .map(|(name, kind)| json!({ "name": name, "kind": kind, "path": format!("/memlift/{name}") }))
            .collect();
        json!({
            "name": name,
            "manifest_path": format!("/memlift/{folder}/Cargo.toml"),
            "targets": [],
            "dependencies": dependencies,
        })
    }

    fn workspace(packages: Vec<Value>) -> Workspace {
        Workspace::from_json(&json!({ "workspace_root": "/memlift", "packages": packages }))
            .expect("complete")
    }

    #[test]
    fn the_drawing_is_allowed() {
        let workspace = workspace(vec![
            package("spec", "memlift-spec", &[]),
            package("kernels", "memlift-kernels", &[("memlift-spec", None)]),
            package("offload", "memlift-offload", &[("memlift-kernels", None), ("memlift-spec", None)]),
            package("services/ipc", "memlift-ipc", &[("memlift-offload", None)]),
            package("memlift", "memlift", &[("memlift-offload", None), ("memlift-ipc", None)]),
            package("bindings/python", "memlift-python", &[("memlift", None)]),
            package("lab/bench", "memlift-bench", &[("memlift-kernels", None), ("memlift", None)]),
            package("cli", "memlift-cli", &[("memlift", None)]),
        ]);
        assert_eq!(forbidden_edges(&workspace), Vec::<String>::new());
    }

    #[test]
    fn a_forged_edge_is_named() {
        let workspace = workspace(vec![
            package("offload", "memlift-offload", &[("memlift-ipc", None)]),
            package("services/ipc", "memlift-ipc", &[("memlift-persist", None)]),
            package("services/persist", "memlift-persist", &[]),
        ]);
        let faults = forbidden_edges(&workspace);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].contains("offload → services/ipc"), "{}", faults[0]);
        assert!(faults[1].contains("services/ipc → services/persist"), "{}", faults[1]);
    }

    #[test]
    fn tests_may_use_the_conformance_suite_and_nothing_else() {
        let workspace = workspace(vec![
            package("lab/conformance", "memlift-conformance", &[]),
            package("lab/bench", "memlift-bench", &[]),
            package(
                "offload",
                "memlift-offload",
                &[("memlift-conformance", Some("dev")), ("memlift-bench", Some("dev"))],
            ),
            package("kernels", "memlift-kernels", &[("memlift-conformance", None)]),
        ]);
        let faults = forbidden_edges(&workspace);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].contains("offload → lab/bench"), "{}", faults[0]);
        assert!(faults[1].contains("kernels → lab/conformance"), "{}", faults[1]);
    }

    #[test]
    fn a_drop_in_knows_only_the_kernels() {
        let workspace = workspace(vec![
            package("kernels", "memlift-kernels", &[]),
            package("memlift", "memlift", &[]),
            package("bindings/zlib", "memlift-zlib", &[("memlift-kernels", None), ("memlift", None)]),
        ]);
        let faults = forbidden_edges(&workspace);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].contains("bindings/zlib → memlift"), "{}", faults[0]);
    }

    #[test]
    fn a_derive_crate_is_its_services_own() {
        let workspace = workspace(vec![
            package("services/persist/derive", "memlift-persist-derive", &[("memlift-spec", None)]),
            package("services/persist", "memlift-persist", &[("memlift-persist-derive", None)]),
            package("services/ipc", "memlift-ipc", &[("memlift-persist-derive", None)]),
            package("memlift", "memlift", &[("memlift-persist", None), ("memlift-persist-derive", None)]),
            package("spec", "memlift-spec", &[]),
        ]);
        let faults = forbidden_edges(&workspace);
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(faults[0].contains("services/persist/derive → spec"), "{}", faults[0]);
        assert!(faults[1].contains("services/ipc → services/persist/derive"), "{}", faults[1]);
        assert!(faults[2].contains("memlift → services/persist/derive"), "{}", faults[2]);
    }

    #[test]
    fn an_unknown_folder_fails() {
        let faults = forbidden_edges(&workspace(vec![package("extras", "memlift-extras", &[])]));
        assert_eq!(faults.len(), 1);
        assert!(faults[0].contains("folder extras is in no layer"), "{}", faults[0]);
    }

    #[test]
    fn an_island_needs_a_reason() {
        assert!(
            islands_without_reason("#[expect(unsafe_code, reason = \"maps memory\")]\nmod region;")
                .is_empty()
        );
        assert!(
            islands_without_reason(
                "#[expect(\n    unsafe_code,\n    reason = \"maps memory\"\n)]\nmod region;"
            )
            .is_empty()
        );
        assert_eq!(islands_without_reason("mod a;\n#[expect(unsafe_code)]\nmod region;"), [2]);
        assert_eq!(islands_without_reason("#![allow(unsafe_code)]"), [1]);
        assert!(
            islands_without_reason("#[allow(unsafe_code, reason = \"empty elsewhere\")]\nmod vector;")
                .is_empty()
        );
    }
}
