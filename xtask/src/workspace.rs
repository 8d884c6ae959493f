// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The workspace as cargo sees it: each crate's folder, its crate roots, and its edges to other crates of the workspace.
//!
//! - **Flow** `cargo metadata --no-deps --format-version 1` ─▶ JSON ─▶ [`Workspace`]
//! - **Order** crates and edges keep cargo's order, so that two runs print the same.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::Failure;

/// Reason for an edge between crates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Part of what is built, or of a build script.
    Build,
    /// Only for tests, benches and examples of the crate.
    Test,
}

/// One crate of the workspace.
#[derive(Debug)]
pub struct Member {
    /// The crate's name.
    pub name: String,
    /// Folder of the crate, relative to the root of the workspace.
    pub folder: String,
    /// The roots of its library and its commands.
    pub roots: Vec<PathBuf>,
    /// Crates of the same workspace that it depends on, by name.
    pub edges: Vec<(String, Kind)>,
}

/// All crates of the workspace.
#[derive(Debug)]
pub struct Workspace {
    /// The folder of the root manifest.
    pub root: PathBuf,
    /// Crates of the workspace.
    pub members: Vec<Member>,
}

impl Workspace {
    /// Reads the workspace from `cargo metadata`.
    pub fn read() -> Result<Self, Failure> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .output()
            .map_err(|error| Failure::Unavailable(format!("cargo metadata does not start: {error}")))?;
        if !output.status.success() {
            return Err(Failure::Broken(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        let json = serde_json::from_slice(&output.stdout)
            .map_err(|error| Failure::Broken(format!("cargo metadata is not JSON: {error}")))?;
        Self::from_json(&json)
            .ok_or_else(|| Failure::Broken("cargo metadata lacks a field that this check reads".into()))
    }

    /// Reads what `cargo metadata` printed; `None` when a field is missing.
    pub fn from_json(json: &Value) -> Option<Self> {
        let root = PathBuf::from(json["workspace_root"].as_str()?);
        let packages = json["packages"].as_array()?;
        let names: Vec<&str> =
            packages.iter().map(|package| package["name"].as_str()).collect::<Option<_>>()?;
        let mut members = Vec::new();
        for package in packages {
            let manifest = Path::new(package["manifest_path"].as_str()?);
            let folder = manifest.parent()?.strip_prefix(&root).ok()?.to_str()?.to_owned();
            let mut roots = Vec::new();
            for target in package["targets"].as_array()? {
                let kinds = target["kind"].as_array()?;
                let is_root = kinds.iter().filter_map(Value::as_str).any(|kind| {
                    matches!(kind, "lib" | "rlib" | "cdylib" | "staticlib" | "proc-macro" | "bin")
                });
                if is_root {
                    roots.push(PathBuf::from(target["src_path"].as_str()?));
                }
            }
            let mut edges = Vec::new();
            for dependency in package["dependencies"].as_array()? {
                let name = dependency["name"].as_str()?;
                if names.contains(&name) && dependency["path"].is_string() {
                    let kind =
                        if dependency["kind"].as_str() == Some("dev") { Kind::Test } else { Kind::Build };
                    edges.push((name.to_owned(), kind));
                }
            }
            members.push(Member { name: package["name"].as_str()?.to_owned(), folder, roots, edges });
        }
        Some(Self { root, members })
    }

    /// The folder of the crate `name`.
    pub fn folder(&self, name: &str) -> Option<&str> {
        self.members.iter().find(|member| member.name == name).map(|member| member.folder.as_str())
    }
}

/// Adds the Rust files below `folder` to `found`, in order.
pub fn rust_files(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}
