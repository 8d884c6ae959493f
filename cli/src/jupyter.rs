// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift jupyter`: kernels of notebooks that run under a budget.
//!
//! - **Flow** a kernel that Jupyter has ─▶ its `kernel.json`, with `memlift run --memory SIZE … --` before its command ─▶ a kernel of
//!   another name in this user's folder, which Jupyter then offers
//! - **Order** a folder that this command did not make is never changed or removed: its `kernel.json` says who made it
//! - **Owner** the kernel ends when the server that started it ends (`--end-with-parent`), since `memlift run` stands between them
//! - **Not here** the budget itself: run/

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::print;
use crate::run::{enough, size};

/// Key of `metadata` in `kernel.json` that says that this command made it.
const OURS: &str = "memlift";
/// Longest `kernel.json` that is read.
const MOST_BYTES: u64 = 1 << 20;

/// Verbs of `jupyter`.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Add a kernel that runs under a budget
    Install {
        /// Budget of real memory of each such kernel
        #[arg(long, short, value_name = "SIZE", value_parser = size)]
        memory: u64,
        /// Folder on a disk of this machine for what does not fit even compressed
        #[arg(long, value_name = "FOLDER")]
        spill: Option<PathBuf>,
        /// Kernel that is put under the budget
        #[arg(long, value_name = "NAME", default_value = "python3")]
        kernel: String,
        /// Name of the new kernel [default: the kernel's name and the budget]
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Install into FOLDER/share/jupyter, for example of an environment [default: this user's folder]
        #[arg(long, value_name = "FOLDER")]
        prefix: Option<PathBuf>,
    },
    /// Remove a kernel that `install` added
    Remove {
        /// Name of the kernel to remove
        name: String,
        /// Where it was installed [default: this user's folder]
        #[arg(long, value_name = "FOLDER")]
        prefix: Option<PathBuf>,
    },
}

/// Runs one verb.
pub fn run(verb: &Verb, as_json: bool) -> Result<(), Failure> {
    match verb {
        Verb::Install { memory, spill, kernel, name, prefix } => {
            enough(*memory)?;
            let base = Base::find(kernel)?;
            let name =
                name.clone().unwrap_or_else(|| format!("{}-{}", kernel.to_lowercase(), short(*memory)));
            check_name(&name)?;
            let folder = kernels(prefix.as_deref())?.join(&name);
            let spill = spill.as_deref().map(absolute).transpose()?;
            let spec = base.under_budget(*memory, spill.as_deref())?;
            write(&folder, &spec, &base.folder)?;
            if as_json {
                return print::json(&json!({"name": name, "folder": folder, "kernel": base.folder}));
            }
            print::line(&format!(
                "{name}: {} under {}, in {}; remove it with: memlift jupyter remove {name}",
                base.title(),
                print::bytes(*memory),
                folder.display()
            ))
        }
        Verb::Remove { name, prefix } => {
            check_name(name)?;
            let folder = kernels(prefix.as_deref())?.join(name);
            remove(&folder)?;
            if as_json {
                print::json(&json!({"removed": folder}))
            } else {
                print::line(&format!("{name}: removed"))
            }
        }
    }
}

/// A kernel that Jupyter has.
struct Base {
    folder: PathBuf,
    spec: Map<String, Value>,
}

impl Base {
    /// Finds a kernel where Jupyter looks for kernels.
    fn find(name: &str) -> Result<Base, Failure> {
        check_name(name)?;
        let folders = search_folders();
        for folder in &folders {
            let folder = folder.join("kernels").join(name);
            if let Some(spec) = read(&folder.join("kernel.json"))? {
                return Ok(Base { folder, spec });
            }
        }
        let shown: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        Err(Failure::Unavailable(format!(
            "there is no Jupyter kernel {name} in {}: pip install ipykernel, or activate its environment first",
            shown.join(", ")
        )))
    }

    fn title(&self) -> &str {
        self.spec.get("display_name").and_then(Value::as_str).unwrap_or("the kernel")
    }

    /// Returns the kernel's command with its program and folder as paths, because Jupyter itself would fill them in only at the
    /// beginning of the command.
    fn command(&self) -> Result<Vec<String>, Failure> {
        let wrong = || Failure::Failed(format!("{}: kernel.json has no command", self.folder.display()));
        let words = self.spec.get("argv").and_then(Value::as_array).ok_or_else(wrong)?;
        let mut command: Vec<String> = words
            .iter()
            .map(|word| word.as_str().map(str::to_owned))
            .collect::<Option<_>>()
            .ok_or_else(wrong)?;
        let program = command.first_mut().ok_or_else(wrong)?;
        if !program.contains('/') {
            // PREFIX/share/jupyter/kernels/NAME
            let beside = self.folder.ancestors().nth(4).map(|prefix| prefix.join("bin").join(&*program));
            if let Some(path) = beside.filter(|path| path.is_file()) {
                *program = path.display().to_string();
            }
        }
        let folder = self.folder.display().to_string();
        Ok(command.into_iter().map(|word| word.replace("{resource_dir}", &folder)).collect())
    }

    fn under_budget(&self, memory: u64, spill: Option<&Path>) -> Result<Map<String, Value>, Failure> {
        let own = std::env::current_exe().map_err(|error| Failure::Failed(error.to_string()))?;
        let mut argv =
            vec![own.display().to_string(), "run".to_owned(), "--memory".to_owned(), memory.to_string()];
        if let Some(folder) = spill {
            argv.extend(["--spill".to_owned(), folder.display().to_string()]);
        }
        argv.extend(["--end-with-parent".to_owned(), "--".to_owned()]);
        argv.extend(self.command()?);
        let mut spec = self.spec.clone();
        spec.insert("argv".to_owned(), json!(argv));
        spec.insert(
            "display_name".to_owned(),
            json!(format!("{} under {}", self.title(), print::bytes(memory))),
        );
        let metadata = spec.entry("metadata").or_insert_with(|| json!({}));
        match metadata.as_object_mut() {
            Some(metadata) => metadata.insert(OURS.to_owned(), json!({"memory_bytes": memory})),
            None => return Err(Failure::Failed(format!("{}: metadata is no object", self.folder.display()))),
        };
        // A signal to the process group would reach the kernel twice: from its sender, and passed on by `memlift run`.
        if spec.get("language").and_then(Value::as_str) == Some("python") {
            spec.insert("interrupt_mode".to_owned(), json!("message"));
        }
        Ok(spec)
    }
}

/// Returns the folders in which Jupyter looks for kernels: those of its variables, of this user, of active environments and of
/// interpreters in PATH, and of the system.
fn search_folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        std::env::var_os("JUPYTER_PATH").iter().flat_map(std::env::split_paths).collect();
    folders.extend(user_folder());
    let environments =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let paths: Vec<PathBuf> = std::env::var_os("PATH").iter().flat_map(std::env::split_paths).collect();
    let in_path = paths.iter().filter(|folder| folder.ends_with("bin")).filter_map(|folder| folder.parent());
    folders
        .extend(environments.chain(in_path.map(Path::to_owned)).map(|prefix| prefix.join("share/jupyter")));
    folders.extend(["/usr/local/share/jupyter", "/usr/share/jupyter"].map(PathBuf::from));
    let mut seen = std::collections::HashSet::new();
    folders.retain(|folder| seen.insert(folder.clone()));
    folders
}

fn user_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from);
    set("JUPYTER_DATA_DIR")
        .or_else(|| Some(set("XDG_DATA_HOME")?.join("jupyter")))
        .or_else(|| Some(set("HOME")?.join(".local/share/jupyter")))
}

fn kernels(prefix: Option<&Path>) -> Result<PathBuf, Failure> {
    let data = match prefix {
        Some(prefix) => Some(absolute(prefix)?.join("share/jupyter")),
        None => user_folder(),
    };
    let data = data.ok_or_else(|| Failure::Usage("HOME is not set: write --prefix FOLDER".to_owned()))?;
    Ok(data.join("kernels"))
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
}

/// Refuses names that Jupyter refuses, and with them every path.
fn check_name(name: &str) -> Result<(), Failure> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
    if name.is_empty() || name.starts_with('.') || !name.chars().all(fits) {
        return Err(Failure::Usage(format!(
            "{name:?}: names of kernels have letters, digits, '.', '_' and '-'"
        )));
    }
    Ok(())
}

/// Returns a size as it was probably typed: `4g`, `512m`.
fn short(bytes: u64) -> String {
    let units = [(40, 't'), (30, 'g'), (20, 'm'), (10, 'k')];
    let unit = units.into_iter().find(|(shift, _)| bytes >> shift << shift == bytes && bytes >> shift > 0);
    unit.map_or_else(|| format!("{bytes}b"), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// Reads a `kernel.json`; `None` if there is none.
fn read(file: &Path) -> Result<Option<Map<String, Value>>, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Failed(format!("{}: {error}", file.display()));
    match fs::metadata(file) {
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(failed(&error)),
        Ok(meta) if !meta.is_file() || meta.len() > MOST_BYTES => {
            return Err(failed(&"this is no kernel.json"));
        }
        Ok(_) => {}
    }
    let text = fs::read_to_string(file).map_err(|error| failed(&error))?;
    serde_json::from_str(&text).map(Some).map_err(|error| failed(&error))
}

fn is_ours(folder: &Path) -> bool {
    let spec = read(&folder.join("kernel.json")).ok().flatten();
    spec.is_some_and(|spec| spec.get("metadata").is_some_and(|metadata| metadata.get(OURS).is_some()))
}

fn refuse_foreign(folder: &Path) -> Result<(), Failure> {
    if fs::symlink_metadata(folder).is_ok() && !is_ours(folder) {
        return Err(Failure::Usage(format!(
            "{} is not a kernel that memlift jupyter install made: choose another name",
            folder.display()
        )));
    }
    Ok(())
}

fn write(folder: &Path, spec: &Map<String, Value>, base: &Path) -> Result<(), Failure> {
    refuse_foreign(folder)?;
    let failed = |error: std::io::Error| Failure::Failed(format!("{}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(failed)?;
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(b"logo-") {
            // Pictures are not needed for the kernel to run.
            let _ = fs::copy(entry.path(), folder.join(name));
        }
    }
    let text = format!("{:#}\n", Value::Object(spec.clone()));
    let partial = folder.join("kernel.json.part");
    fs::write(&partial, text).and_then(|()| fs::rename(&partial, folder.join("kernel.json"))).map_err(failed)
}

fn remove(folder: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::about(&error, format!("{}: {error}", folder.display()));
    fs::symlink_metadata(folder).map_err(failed)?;
    refuse_foreign(folder)?;
    for entry in fs::read_dir(folder).map_err(failed)?.flatten() {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        if name.starts_with(b"logo-") || matches!(name, b"kernel.json" | b"kernel.json.part") {
            fs::remove_file(entry.path()).map_err(failed)?;
        }
    }
    fs::remove_dir(folder).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_gets_its_command_behind_the_budget() {
        let prefix = tempfile::tempdir().expect("a folder");
        let folder = prefix.path().join("share/jupyter/kernels/python3");
        fs::create_dir_all(&folder).expect("made");
        fs::create_dir(prefix.path().join("bin")).expect("made");
        fs::write(prefix.path().join("bin/python"), "").expect("written");
        let spec = json!({"argv": ["python", "-m", "x", "{resource_dir}/y", "-f", "{connection_file}"], "language": "python"});
        let base = Base { folder: folder.clone(), spec: spec.as_object().expect("an object").clone() };
        let made = base.under_budget(4 << 30, Some(Path::new("/scratch"))).expect("made");
        let argv: Vec<&str> =
            made["argv"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
        let python = prefix.path().join("bin/python").display().to_string();
        let resource = format!("{}/y", folder.display());
        let wanted = ["run", "--memory", "4294967296", "--spill", "/scratch", "--end-with-parent", "--"];
        assert_eq!(argv[1..8], wanted);
        assert_eq!(argv[8..], [&*python, "-m", "x", &*resource, "-f", "{connection_file}"]);
        assert_eq!(made["interrupt_mode"], "message");
        assert_eq!(made["metadata"]["memlift"]["memory_bytes"], 4u64 << 30);
    }

    #[test]
    fn folders_of_others_stay_as_they_are() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path().join("own");
        let spec = json!({"metadata": {OURS: {}}});
        let spec = spec.as_object().expect("an object");
        write(&own, spec, folder.path()).expect("written");
        write(&own, spec, folder.path()).expect("written over its own");
        let foreign = folder.path().join("foreign");
        fs::create_dir(&foreign).expect("made");
        fs::write(foreign.join("kernel.json"), "{}").expect("written");
        assert!(matches!(write(&foreign, spec, folder.path()), Err(Failure::Usage(_))));
        assert!(matches!(remove(&foreign), Err(Failure::Usage(_))));
        assert_eq!(fs::read_to_string(foreign.join("kernel.json")).expect("there"), "{}");
        remove(&own).expect("removed");
        assert!(!own.exists() && matches!(remove(&own), Err(Failure::Unavailable(_))));
        for wrong in ["", "..", "a/b", ".x", "a b"] {
            assert!(check_name(wrong).is_err(), "{wrong}");
        }
        assert_eq!([short(4 << 30), short(1536 << 20), short(4097)].join(" "), "4g 1536m 4097b");
    }
}
