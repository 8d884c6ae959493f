// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A systemd service, read from its files: their paths, the program that it starts, its environment; and its processes.
//!
//! - **Layout** system units: /etc/systemd/system, /run/systemd/system, /usr/local/lib/systemd/system, /usr/lib/systemd/system,
//!   /lib/systemd/system; user units: $XDG_CONFIG_HOME/systemd/user, /etc/systemd/user, /usr/lib/systemd/user. Earlier folders win;
//!   foo@x.service falls back to foo@.service. *.conf is read from NAME.d, from that of the template, from foo-.service.d for
//!   foo-bar.service and from service.d, in the order of their names; of two files with one name the first found counts (systemd.unit(5))
//! - **Order** a file of EnvironmentFile= overrides Environment=, and later ones override earlier ones (systemd.exec(5))
//! - **Rule** all paths are below a root folder, which may be that of an image or a test; systemctl is not needed. Values keep their
//!   specifiers (`%i`), which systemd replaces anew for each instance
//! - **Not here** writing settings: enable.rs

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::root::Root;
use super::syntax::{assignments, escaped, fits_pattern, unescaped, words};
use crate::failure::Failure;

/// A systemd service: its settings and the program that it starts.
#[derive(Debug)]
pub struct Unit {
    /// Name of the unit, with `.service`.
    pub name: String,
    /// The folder for the administrator's own settings of this unit: NAME.d.
    pub folder: PathBuf,
    /// The program of the unit's first ExecStart, if it is a path, as the unit writes it.
    pub program: Option<PathBuf>,
    /// Environment= of its file and of its NAME.d, later ones last, without ours. Specifiers are kept.
    environment: Vec<Variable>,
    /// EnvironmentFile=, in the same order, specifiers kept.
    environment_files: Vec<EnvironmentFile>,
    /// Settings that could hide a drop-in from the unit: ProtectHome=, RootDirectory=, RootImage=.
    pub confinement: Vec<String>,
    /// UnsetEnvironment=: names and assignments.
    unset: Vec<String>,
    root: Root,
}

/// A variable of a unit's environment.
#[derive(Clone, Debug)]
struct Variable {
    name: String,
    /// The value, with the unit's specifiers.
    value: String,
    origin: Origin,
}

/// A file that EnvironmentFile= names.
#[derive(Clone, Debug)]
struct EnvironmentFile {
    path: String,
    origin: Origin,
}

/// Origin of a setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The file that contains the setting.
    pub file: PathBuf,
    /// True if systemd reads that file after ours.
    pub after_ours: bool,
    /// True if the value comes from a file that EnvironmentFile= names.
    pub from_environment_file: bool,
}

/// The system, and the scope, in which units are searched.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// The system whose units are searched.
    pub root: Root,
    /// True: the user's units instead of the system's.
    pub user: bool,
}

/// Name of the file in NAME.d that enable writes.
pub const DROPIN_FILE: &str = "memlift.conf";

impl Place {
    /// Returns the folders with units, the administrator's first.
    fn folders(&self) -> Vec<PathBuf> {
        let below = |path: &str| self.root.outside(&Path::new("/").join(path.trim_start_matches('/')));
        if !self.user {
            let folders = ["etc", "run", "usr/local/lib", "usr/lib", "lib"];
            return folders.map(|folder| below(&format!("{folder}/systemd/system"))).to_vec();
        }
        let own = std::env::var_os("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".config")))
            .map(|folder| below(&folder.join("systemd/user").to_string_lossy()));
        own.into_iter()
            .chain(["etc", "usr/lib"].map(|folder| below(&format!("{folder}/systemd/user"))))
            .collect()
    }

    /// Returns the unit of this name, with or without `.service`; `None` if there is none.
    pub fn find(&self, name: &str) -> Result<Option<Unit>, Failure> {
        let name = if name.ends_with(".service") { name.to_owned() } else { format!("{name}.service") };
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
        if name.len() > 255 || !name.bytes().all(fits) || name.starts_with('.') {
            return Ok(None);
        }
        let folders = self.folders();
        let file = std::iter::once(name.clone())
            .chain(template(&name))
            .flat_map(|name| folders.iter().map(move |folder| folder.join(&name)))
            .find(|path| path.is_file());
        let own: Vec<PathBuf> = folders.iter().map(|folder| folder.join(format!("{name}.d"))).collect();
        let is_there = file.is_some() || own.iter().any(|folder| !settings(folder).is_empty());
        if !is_there {
            return Ok(None);
        }
        let mut extras: BTreeMap<String, PathBuf> = BTreeMap::new();
        let of_names = folders
            .iter()
            .flat_map(|folder| setting_folders(&name).into_iter().map(move |one| folder.join(one)));
        for folder in of_names.chain(folders.iter().map(|folder| folder.join("service.d"))) {
            for path in settings(&folder) {
                let key = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                extras.entry(key).or_insert(path);
            }
        }
        let folder = folders
            .first()
            .ok_or_else(|| Failure::Unavailable("user units need HOME or XDG_CONFIG_HOME".to_owned()))?;
        let mut unit = Unit {
            folder: folder.join(format!("{name}.d")),
            name,
            program: None,
            environment: Vec::new(),
            environment_files: Vec::new(),
            confinement: Vec::new(),
            unset: Vec::new(),
            root: self.root.clone(),
        };
        for path in file.iter().chain(extras.values()) {
            let text = fs::read_to_string(path)
                .map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
            let after_ours =
                Some(path) != file.as_ref() && path.file_name() > Some(std::ffi::OsStr::new(DROPIN_FILE));
            unit.take(&text, &Origin { file: path.clone(), after_ours, from_environment_file: false });
        }
        Ok(Some(unit))
    }
}

/// Returns the template foo@.service of foo@x.service.
fn template(name: &str) -> Option<String> {
    let (stem, instance) = name.strip_suffix(".service")?.split_once('@')?;
    (!instance.is_empty()).then(|| format!("{stem}@.service"))
}

/// Returns the folders of a unit's settings, the nearest first: its own, those of its prefixes, that of its
/// template.
fn setting_folders(name: &str) -> Vec<String> {
    let mut folders = Vec::new();
    for name in std::iter::once(name.to_owned()).chain(template(name)) {
        let end = name.find('@').unwrap_or(name.len() - ".service".len());
        let (mut stem, rest) = (&name[..end], &name[end..]);
        folders.push(format!("{name}.d"));
        while let Some(dash) = stem.trim_end_matches('-').rfind('-') {
            stem = &stem[..=dash];
            folders.push(format!("{stem}{rest}.d"));
        }
    }
    folders
}

/// Returns the settings files in a NAME.d, without ours.
fn settings(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|kind| kind == "conf") && !path.ends_with(DROPIN_FILE));
    files.sort();
    files
}

impl Unit {
    fn take(&mut self, text: &str, origin: &Origin) {
        let text = text.replace("\\\n", " ");
        let mut section = "";
        for line in text.lines().map(str::trim) {
            if line.starts_with('[') {
                section = line;
            }
            let Some((key, value)) = line.split_once('=').filter(|_| section == "[Service]") else {
                continue;
            };
            let (key, value) = (key.trim(), value.trim());
            match key {
                // An empty value removes the earlier ones.
                "ExecStart" if value.is_empty() => self.program = None,
                "ExecStart" if self.program.is_none() => {
                    let first = words(value).into_iter().next().unwrap_or_default();
                    let path = first.trim_start_matches(['-', '@', ':', '+', '!', '|']);
                    let path = self.expanded(path).unwrap_or_else(|_| path.to_owned());
                    self.program = Some(PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty());
                }
                "Environment" if value.is_empty() => self.environment.clear(),
                "Environment" => {
                    let words = words(value);
                    let pairs = words.iter().filter_map(|word| word.split_once('='));
                    self.environment.extend(pairs.map(|(name, value)| Variable {
                        name: name.to_owned(),
                        value: value.to_owned(),
                        origin: origin.clone(),
                    }));
                }
                "EnvironmentFile" if value.is_empty() => self.environment_files.clear(),
                "EnvironmentFile" => {
                    let path = words(value).into_iter().next().unwrap_or_default();
                    let path = path.trim_start_matches('-').to_owned();
                    self.environment_files.push(EnvironmentFile { path, origin: origin.clone() });
                }
                "UnsetEnvironment" if value.is_empty() => self.unset.clear(),
                "UnsetEnvironment" => self.unset.extend(words(value)),
                "ProtectHome" | "RootDirectory" | "RootImage"
                    if !matches!(value, "" | "no" | "false" | "0" | "off") =>
                {
                    self.confinement.push(line.to_owned());
                }
                _ => {}
            }
        }
    }

    /// Returns the value that a variable has at the unit's start without our file, with specifiers, and its origin.
    ///
    /// # Errors
    ///
    /// A file of EnvironmentFile= exists and cannot be read.
    pub fn variable(&self, name: &str) -> Result<Option<(String, Origin)>, Failure> {
        for one in self.environment_files.iter().rev() {
            for path in self.matching(&one.path) {
                let text = match fs::read_to_string(&path) {
                    Ok(text) => text,
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(Failure::Failed(format!("{}: {error}", path.display()))),
                };
                if let Some((_, value)) = assignments(&text).into_iter().rev().find(|(key, _)| key == name) {
                    let after_ours = one.origin.after_ours;
                    let origin = Origin { file: path, after_ours, from_environment_file: true };
                    return Ok(Some((escaped(&value), origin)));
                }
            }
        }
        let found = self.environment.iter().rev().find(|variable| variable.name == name);
        Ok(found.map(|variable| (variable.value.clone(), variable.origin.clone())))
    }

    /// Returns true if the unit removes the variable, whatever sets it.
    pub fn unsets(&self, name: &str) -> bool {
        self.unset.iter().any(|word| word.split('=').next() == Some(name))
    }

    /// Returns the files that a path of EnvironmentFile= names, the last first, because systemd takes the last one's
    /// value.
    fn matching(&self, path: &str) -> Vec<PathBuf> {
        let Ok(path) = self.expanded(path) else { return Vec::new() };
        let path = Path::new(&path);
        let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
        else {
            return Vec::new();
        };
        if !name.contains(['*', '?']) {
            return vec![self.root.outside(path)];
        }
        let entries = fs::read_dir(self.root.outside(folder)).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = entries
            .filter(|entry| entry.file_name().to_str().is_some_and(|one| fits_pattern(name, one)))
            .map(|entry| entry.path())
            .collect();
        files.sort();
        files.reverse();
        files
    }

    /// Replaces the specifiers of a value, as systemd does for this unit (systemd.unit(5), "Specifiers").
    ///
    /// # Errors
    ///
    /// A specifier whose value is not known before the unit starts, or an instance specifier in a unit without an
    /// instance.
    pub fn expanded(&self, value: &str) -> Result<String, String> {
        let full = self.name.strip_suffix(".service").unwrap_or(&self.name);
        let (prefix, instance) = match full.split_once('@') {
            Some((prefix, instance)) => (prefix, Some(instance).filter(|instance| !instance.is_empty())),
            None => (full, Some("")),
        };
        let last = |text: &str| text.rsplit('-').next().unwrap_or(text).to_owned();
        let mut text = String::new();
        let mut characters = value.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                text.push(character);
                continue;
            }
            let specifier = characters.next();
            let of_instance = || {
                let none = || format!("{} names no instance for %i: name NAME@INSTANCE", self.name);
                instance.map(str::to_owned).ok_or_else(none)
            };
            text += &match specifier {
                Some('%') => "%".to_owned(),
                Some('i') => of_instance()?,
                Some('I') => unescaped(&of_instance()?),
                Some('n') => self.name.clone(),
                Some('N') => full.to_owned(),
                Some('p') => prefix.to_owned(),
                Some('P') => unescaped(prefix),
                Some('j') => last(prefix),
                Some('J') => unescaped(&last(prefix)),
                Some('E') => "/etc".to_owned(),
                Some('S') => "/var/lib".to_owned(),
                Some('C') => "/var/cache".to_owned(),
                Some('L') => "/var/log".to_owned(),
                Some('t') => "/run".to_owned(),
                other => {
                    let shown: String = std::iter::once('%').chain(other).collect();
                    return Err(format!("{value}: what {shown} means is known to systemd only"));
                }
            };
        }
        Ok(text)
    }

    /// Returns the processes of the unit, found by their control group.
    pub fn processes(&self) -> Vec<u32> {
        let (inside, exact) = (format!("/{}/", self.name), format!("/{}", self.name));
        let of_unit = |pid: &u32| {
            let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            groups.lines().any(|line| line.ends_with(&exact) || line.contains(&inside))
        };
        super::processes::processes().into_iter().filter(of_unit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_its_file_and_its_settings() {
        let folder = tempfile::tempdir().expect("a folder");
        let lib = folder.path().join("usr/lib/systemd/system");
        let etc = folder.path().join("etc/systemd/system/web@one.service.d");
        fs::create_dir_all(&lib).expect("made");
        fs::create_dir_all(&etc).expect("made");
        fs::write(
            lib.join("web@.service"),
            "[Unit]\nEnvironment=NO=1\n[Service]\nExecStart=-/usr/sbin/web -g \\\n 'daemon off;'\nEnvironment=A=1 LD_PRELOAD=/x.so\n\
             ProtectHome=yes\n",
        )
        .expect("written");
        fs::write(etc.join("own.conf"), "[Service]\nEnvironment=\nEnvironment=\"A=2\"\n").expect("written");
        fs::write(etc.join(DROPIN_FILE), "[Service]\nEnvironment=A=3\n").expect("written");
        let place = Place { root: Root::new(Some(folder.path().to_owned())), user: false };
        let unit = place.find("web@one").expect("readable").expect("there");
        assert_eq!(unit.program.as_deref(), Some(Path::new("/usr/sbin/web")));
        let value = |name: &str| unit.variable(name).expect("readable").map(|(value, _)| value);
        assert_eq!((value("A"), value("LD_PRELOAD"), value("NO")), (Some("2".to_owned()), None, None));
        assert_eq!(unit.confinement, ["ProtectHome=yes"]);
        assert_eq!(unit.folder, etc);
        assert!(place.find("other").expect("readable").is_none());
        assert!(place.find("../etc/passwd").expect("no unit").is_none());
    }

    #[test]
    fn environment_files_come_last_and_settings_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |path: &str| folder.path().join(path);
        for one in ["usr/lib/systemd/system", "etc/default", "etc/systemd/system/web@.service.d"] {
            fs::create_dir_all(at(one)).expect("made");
        }
        fs::create_dir_all(at("run/systemd/system/web@.service.d")).expect("made");
        fs::write(
            at("usr/lib/systemd/system/web@.service"),
            "[Service]\nExecStart=/opt/%i/web\nEnvironmentFile=-/etc/default/web-%i\nEnvironmentFile=-/etc/absent\n\
             Environment=A=unit B=/opt/%i/b.so\nUnsetEnvironment=C\n",
        )
        .expect("written");
        fs::write(at("etc/default/web-x"), "# A=no\nA='of 100%' \n").expect("written");
        fs::write(at("etc/systemd/system/web@.service.d/z.conf"), "[Service]\nEnvironment=D=4\n")
            .expect("written");
        // Of two files with one name, the administrator's counts.
        fs::write(at("run/systemd/system/web@.service.d/z.conf"), "[Service]\nEnvironment=D=5\n")
            .expect("written");
        let place = Place { root: Root::new(Some(folder.path().to_owned())), user: false };
        let unit = place.find("web@x").expect("readable").expect("there");
        assert_eq!(unit.program.as_deref(), Some(Path::new("/opt/x/web")));
        let (value, origin) = unit.variable("A").expect("readable").expect("set");
        assert_eq!((value.as_str(), origin.from_environment_file), ("of 100%%", true));
        assert_eq!(unit.expanded(&value).as_deref(), Ok("of 100%"));
        let (value, origin) = unit.variable("B").expect("readable").expect("set");
        assert_eq!((value.as_str(), origin.after_ours), ("/opt/%i/b.so", false));
        let (value, origin) = unit.variable("D").expect("readable").expect("set");
        assert_eq!((value.as_str(), origin.after_ours), ("4", true));
        assert!(unit.unsets("C") && !unit.unsets("A"));
        let template = place.find("web@").expect("readable").expect("there");
        assert!(template.expanded("%i").is_err_and(|reason| reason.contains("instance")));
    }

    #[test]
    fn folders_of_settings_are_those_of_systemd() {
        let folders = ["a-b@x.service.d", "a-@x.service.d", "a-b@.service.d", "a-@.service.d"];
        assert_eq!(setting_folders("a-b@x.service"), folders);
    }
}
