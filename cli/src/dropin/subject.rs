// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The subject of a verb: a process by its number, a service by its name, or a command.
//!
//! - **Order** digits ─▶ process · a unit of that name ─▶ service (`NAME.service` is never anything else) · a path or a word
//!   on the PATH ─▶ command
//! - **Not here** the files loaded into it: copies.rs

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::processes::processes;
use super::unit::{Place, Unit};
use crate::failure::Failure;
use crate::input;

/// The subject of a verb.
#[derive(Debug)]
pub enum Subject {
    /// A running process.
    Process(u32),
    /// A systemd service.
    Unit(Unit),
    /// A program, by its absolute path.
    Command(PathBuf),
}

impl Subject {
    /// Finds the process, service or command that `name` names.
    pub fn find(name: &str, place: &Place) -> Result<Subject, Failure> {
        if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
            let pid = name.parse::<u32>().ok().filter(|pid| Path::new(&format!("/proc/{pid}")).is_dir());
            return pid.map(Subject::Process).ok_or_else(|| {
                Failure::Unavailable(format!(
                    "there is no process {name}: name a process, a service or a command"
                ))
            });
        }
        if let Some(unit) =
            Some(name).filter(|name| !name.contains('/')).map(|name| place.find(name)).transpose()?.flatten()
        {
            return Ok(Subject::Unit(unit));
        }
        if name.ends_with(".service") || place.user || !place.root.is_this_machine() {
            return Err(Failure::Unavailable(format!(
                "there is no unit {name}: systemctl list-unit-files --type=service shows them (--user for a user's own)"
            )));
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
        places.extend(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from));
        if name.contains('/') {
            input::plain(Path::new(name))?;
        }
        let candidates: Vec<PathBuf> = if name.contains('/') {
            vec![PathBuf::from(name)]
        } else {
            places.iter().map(|place| place.join(name)).collect()
        };
        let runs = |path: &PathBuf| {
            fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        };
        let found = candidates.into_iter().find(runs).and_then(|path| std::path::absolute(path).ok());
        found.map(Subject::Command).ok_or_else(|| {
            Failure::Unavailable(format!("{name} is no process, no service and no command of this machine"))
        })
    }

    /// Returns the name that messages use.
    pub fn name(&self) -> String {
        match self {
            Subject::Process(pid) => format!("process {pid}"),
            Subject::Unit(unit) => unit.name.clone(),
            Subject::Command(path) => path.display().to_string(),
        }
    }

    /// Returns `process`, `unit` or `command`.
    pub fn kind(&self) -> &'static str {
        match self {
            Subject::Process(_) => "process",
            Subject::Unit(_) => "unit",
            Subject::Command(_) => "command",
        }
    }

    /// Returns the file of the subject's program.
    pub fn program(&self) -> Option<PathBuf> {
        match self {
            Subject::Process(pid) => program_of(*pid),
            Subject::Unit(unit) => unit.program.clone(),
            Subject::Command(path) => Some(path.clone()),
        }
    }

    /// Returns the subject's present processes. A process counts with its children, because a server works in
    /// them.
    pub fn processes(&self) -> Vec<u32> {
        match self {
            Subject::Process(pid) => family(*pid),
            Subject::Unit(unit) => unit.processes(),
            Subject::Command(path) => {
                let program = path.canonicalize().ok();
                let of_command = |pid: &u32| program.is_some() && program_of(*pid) == program;
                processes().into_iter().filter(of_command).collect()
            }
        }
    }
}

fn program_of(pid: u32) -> Option<PathBuf> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    // If the program was replaced since (an upgrade), the link ends with this suffix.
    Some(path.to_str().and_then(|text| text.strip_suffix(" (deleted)")).map_or(path.clone(), PathBuf::from))
}

fn family(pid: u32) -> Vec<u32> {
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        next += 1;
        let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            let children = children.split_whitespace().filter_map(|word| word.parse().ok());
            let new: Vec<u32> = children.filter(|child| !family.contains(child)).collect();
            family.extend(new);
        }
    }
    family
}

/// Returns the files that are mapped into a process, without duplicates; the error says who may read them.
pub fn mapped(pid: u32) -> Result<Vec<PathBuf>, Failure> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).map_err(|error| {
        Failure::Unavailable(format!(
            "the maps of process {pid}: {error}; only its own user and root may look (sudo)"
        ))
    })?;
    let mut files: Vec<PathBuf> = Vec::new();
    for line in maps.lines() {
        let Some(start) = line.find(" /") else { continue };
        let path = line[start + 1..].trim_end_matches(" (deleted)");
        if !path.starts_with("/memfd:")
            && !path.starts_with("/dev/")
            && files.last().is_none_or(|last| last != Path::new(path))
        {
            files.push(PathBuf::from(path));
        }
    }
    files.sort();
    files.dedup();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_with_its_files() {
        let pid = std::process::id();
        let subject = Subject::find(&pid.to_string(), &Place::default()).expect("it runs");
        let program = std::env::current_exe().expect("a program");
        assert_eq!(subject.program().as_ref(), Some(&program));
        assert!(subject.processes().contains(&pid));
        assert!(mapped(pid).expect("its own").contains(&program));
    }

    #[test]
    fn who_is_not_there_is_said() {
        for name in ["4194305", "no-such-thing.service", "no-such-command-at-all", "/no/such/path"] {
            assert!(matches!(Subject::find(name, &Place::default()), Err(Failure::Unavailable(_))), "{name}");
        }
        assert!(
            matches!(Subject::find("sh", &Place::default()), Ok(Subject::Command(path)) if path.is_absolute())
        );
    }
}
