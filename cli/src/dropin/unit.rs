// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A systemd service by its files: where they lie, what it starts, what its environment is; and its processes.
//!
//! - **Layout** system units: /etc/systemd/system, /run/systemd/system, /usr/local/lib/systemd/system, /usr/lib/systemd/system,
//!   /lib/systemd/system; user units: $XDG_CONFIG_HOME/systemd/user, /etc/systemd/user, /usr/lib/systemd/user.
//!   Earlier ones win; foo@x.service falls back to foo@.service; each may have NAME.d/*.conf
//! - **Rule** all below a root folder that may be another one (an image, a test); systemctl is not needed
//! - **Not here** what is written: enable.rs

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// A systemd service: its settings and the program that it starts.
#[derive(Debug)]
pub struct Unit {
    /// With `.service`.
    pub name: String,
    /// The folder that the administrator's own settings of this unit go to: NAME.d.
    pub folder: PathBuf,
    /// The program of its first ExecStart, if it is a path.
    pub program: Option<PathBuf>,
    /// Environment= of its file and of its NAME.d, later ones last; ours is left out.
    pub environment: Vec<(String, String)>,
    /// Settings that could keep a drop-in from being seen: ProtectHome=, RootDirectory=, RootImage=.
    pub confinement: Vec<String>,
}

/// Where to look.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// Put before every folder of systemd.
    pub root: Option<PathBuf>,
    /// The user's units instead of the system's.
    pub user: bool,
}

/// The file in NAME.d that enable writes.
pub const DROPIN_FILE: &str = "memlift.conf";

impl Place {
    /// Folders with units, the administrator's first.
    fn folders(&self) -> Vec<PathBuf> {
        let root = self.root.clone().unwrap_or_else(|| PathBuf::from("/"));
        let below = |path: &str| root.join(path.trim_start_matches('/'));
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

    /// The unit of this name, with or without `.service`; None where there is none.
    pub fn find(&self, name: &str) -> Result<Option<Unit>, Failure> {
        let name = if name.ends_with(".service") { name.to_owned() } else { format!("{name}.service") };
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
        if name.len() > 255 || !name.bytes().all(fits) || name.starts_with('.') {
            return Ok(None);
        }
        let folders = self.folders();
        let template = name.split_once('@').map(|(stem, _)| format!("{stem}@.service"));
        let names: Vec<&str> = std::iter::once(name.as_str()).chain(template.as_deref()).collect();
        let file = names
            .iter()
            .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
            .find(|path| path.is_file());
        let extras: Vec<PathBuf> =
            folders.iter().rev().flat_map(|folder| settings(&folder.join(format!("{name}.d")))).collect();
        if file.is_none() && extras.is_empty() {
            return Ok(None);
        }
        let folder = folders
            .first()
            .ok_or_else(|| Failure::Unavailable("user units need HOME or XDG_CONFIG_HOME".to_owned()))?;
        let mut unit = Unit {
            folder: folder.join(format!("{name}.d")),
            name,
            program: None,
            environment: Vec::new(),
            confinement: Vec::new(),
        };
        for path in file.iter().chain(&extras) {
            let text = fs::read_to_string(path)
                .map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
            unit.take(&text);
        }
        Ok(Some(unit))
    }
}

/// The settings in a NAME.d, but ours.
fn settings(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|kind| kind == "conf") && !path.ends_with(DROPIN_FILE));
    files.sort();
    files
}

impl Unit {
    fn take(&mut self, text: &str) {
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
                // An empty one takes back what stood before.
                "ExecStart" if value.is_empty() => self.program = None,
                "ExecStart" if self.program.is_none() => {
                    let first = words(value).into_iter().next().unwrap_or_default();
                    let path = first.trim_start_matches(['-', '@', ':', '+', '!', '|']);
                    self.program = Some(PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty());
                }
                "Environment" if value.is_empty() => self.environment.clear(),
                "Environment" => {
                    let pairs = words(value);
                    let pairs = pairs.iter().filter_map(|word| word.split_once('='));
                    self.environment.extend(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
                }
                "ProtectHome" | "RootDirectory" | "RootImage"
                    if !matches!(value, "" | "no" | "false" | "0" | "off") =>
                {
                    self.confinement.push(line.to_owned());
                }
                _ => {}
            }
        }
    }

    /// The last value that the unit's files give a variable.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns the processes of the unit, found by their control group.
    pub fn processes(&self) -> Vec<u32> {
        let (inside, exact) = (format!("/{}/", self.name), format!("/{}", self.name));
        let of_unit = |pid: &u32| {
            let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            groups.lines().any(|line| line.ends_with(&exact) || line.contains(&inside))
        };
        super::subject::processes().into_iter().filter(of_unit).collect()
    }
}

/// The words of a setting: separated by blanks, quoted by `"` or `'`, with C's backslashes inside them.
fn words(value: &str) -> Vec<String> {
    let (mut words, mut word, mut begun, mut quote) = (Vec::new(), String::new(), false, None);
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match (character, quote) {
            ('\\', _) => word.extend(characters.next()),
            (_, Some(open)) if character == open => quote = None,
            ('"' | '\'', None) => (quote, begun) = (Some(character), true),
            (_, None) if character.is_whitespace() => {
                if begun || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            _ => word.push(character),
        }
    }
    if begun || !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_systemd() {
        assert_eq!(words(r#"A=1 "B=two words" 'C=x'  D=\"q"#), ["A=1", "B=two words", "C=x", "D=\"q"]);
        assert_eq!(words("").len(), 0);
    }

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
        let place = Place { root: Some(folder.path().to_owned()), user: false };
        let unit = place.find("web@one").expect("readable").expect("there");
        assert_eq!(unit.program.as_deref(), Some(Path::new("/usr/sbin/web")));
        assert_eq!(
            (unit.variable("A"), unit.variable("LD_PRELOAD"), unit.variable("NO")),
            (Some("2"), None, None)
        );
        assert_eq!(unit.confinement, ["ProtectHome=yes"]);
        assert_eq!(unit.folder, etc);
        assert!(place.find("other").expect("readable").is_none());
        assert!(place.find("../etc/passwd").expect("no unit").is_none());
    }
}
