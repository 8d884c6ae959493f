// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes a copy of an openssl.cnf that also loads the provider: its text stays unchanged, and our sections are appended.
//!
//! - **Flow** [`merge`]: text ─▶ find the sections that choose providers and algorithms ─▶ text + a block at its end
//! - **Layout** sections with the same name are one section, and the last value of a name counts (config(5)), so no part of the
//!   text has to be changed. The block sets openssl_conf, providers and alg_section only if they are not set
//! - **Default** once any provider is activated, OpenSSL does not load the default provider automatically. So the block lists
//!   and activates it too, unless the text activates providers and deliberately omits it
//! - **Prefer** default_properties = ?provider=memlift: our provider for its algorithms, any other for the rest
//! - **Refused** a text whose sections are named by variables, or that already prefers another provider
//! - **Not here** the original: it is never written

use std::path::{Path, PathBuf};

use super::root::Root;

/// Name that the block uses; a text that contains it was already merged.
const OURS: &str = "memlift_provider";
/// First line of the block.
pub const ADDED: &str = "# Added by memlift dropin enable: AES-GCM by memlift, everything else as above.";
const PREFERENCE: &str = "?provider=memlift";
const INCLUDE_DEPTH: usize = 4;

/// Entries of a configuration in order: section, name, value.
#[derive(Debug, Default)]
struct Entries(Vec<(String, String, String)>);

impl Entries {
    /// Parses a text and the files that it includes.
    fn read(text: &str, root: &Root) -> Entries {
        let mut entries = Entries::default();
        let mut section = "default".to_owned();
        entries.take(text, &mut section, root, 0);
        entries
    }

    fn take(&mut self, text: &str, section: &mut String, root: &Root, depth: usize) {
        let text = text.replace("\\\n", "");
        for line in text.lines() {
            let line = without_comment(line).trim();
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                *section = name.0.trim().to_owned();
            } else if let Some(rest) = line.strip_prefix(".include") {
                let path = rest.trim_start_matches(|mark: char| mark.is_whitespace() || mark == '=').trim();
                for path in included(&root.outside(Path::new(path.trim_matches('"')))) {
                    if let Some(text) = std::fs::read_to_string(path).ok().filter(|_| depth < INCLUDE_DEPTH) {
                        self.take(&text, section, root, depth + 1);
                    }
                }
            } else if let Some((name, value)) = line.split_once('=') {
                let value = value.trim().trim_matches('"').to_owned();
                // NAME may contain its section: SECTION::NAME.
                let (section, name) = name.trim().split_once("::").unwrap_or((section, name.trim()));
                self.0.push((section.to_owned(), name.to_owned(), value));
            }
        }
    }

    fn value(&self, section: &str, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|entry| entry.0 == section && entry.1 == name).map(|entry| entry.2.as_str())
    }

    fn of<'a>(&'a self, section: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0
            .iter()
            .filter(move |entry| entry.0 == section)
            .map(|entry| (entry.1.as_str(), entry.2.as_str()))
    }
}

fn included(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(path) else { return vec![path.to_owned()] };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|kind| kind == "cnf" || kind == "conf"));
    files.sort();
    files
}

fn without_comment(line: &str) -> &str {
    let mut quoted = false;
    let mut before = ' ';
    for (at, character) in line.char_indices() {
        match character {
            '"' if before != '\\' => quoted = !quoted,
            '#' if !quoted && before != '\\' => return &line[..at],
            _ => {}
        }
        before = character;
    }
    line
}

fn is_on(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "1" | "yes" | "true" | "on" | "y" | "t")
}

/// Returns `text`, a file of the system below `root`, with the lines that load `module`; `serves` is the measurement of the
/// provider. The error is the reason that the text cannot be merged.
pub fn merge(text: &str, module: &Path, root: &Root, serves: Option<bool>) -> Result<String, String> {
    let entries = Entries::read(text, root);
    let mut block = String::new();
    let mut section = |set: Option<&str>, parent: &str, key: &str, ours: &str| -> Result<String, String> {
        match set {
            Some(name) if name.contains('$') => {
                Err(format!("{key} = {name} in [{parent}] is a variable; write the section's name"))
            }
            Some(name) if !name.is_empty() => Ok(name.to_owned()),
            _ => {
                block += &format!("[{parent}]\n{key} = {ours}\n");
                Ok(ours.to_owned())
            }
        }
    };
    let init = section(entries.value("default", "openssl_conf"), "default", "openssl_conf", "memlift_init")?;
    let providers = section(entries.value(&init, "providers"), &init, "providers", "memlift_providers")?;
    let algorithms =
        section(entries.value(&init, "alg_section"), &init, "alg_section", "memlift_algorithms")?;
    let ours = |(name, value): &(&str, &str)| *name == "memlift" || *value == OURS;
    if entries.of(&providers).any(|entry| ours(&entry)) || entries.of(OURS).next().is_some() {
        return Err("it names the provider of memlift already; take that out, or use it as it is".to_owned());
    }
    let activated = entries.of(&providers).any(|(_, own)| entries.value(own, "activate").is_some_and(is_on));
    block += &format!("[{providers}]\nmemlift = {OURS}\n");
    if !activated {
        let own = match entries.value(&providers, "default") {
            Some(own) => own.to_owned(),
            None => {
                block += "default = memlift_default\n";
                "memlift_default".to_owned()
            }
        };
        block += &format!("[{own}]\nactivate = 1\n");
    }
    block += &format!("[{OURS}]\nmodule = {}\nactivate = 1\n", module.display());
    if let Some(serves) = serves {
        block += &format!("serves = {}\n", if serves { "yes" } else { "no" });
    }
    let preference = match entries.value(&algorithms, "default_properties") {
        None | Some("") => PREFERENCE.to_owned(),
        Some(own) if own.contains("provider") => {
            return Err(format!(
                "default_properties = {own} prefers a provider already; take that out first"
            ));
        }
        Some(own) => format!("{own},{PREFERENCE}"),
    };
    block += &format!("[{algorithms}]\ndefault_properties = {preference}\n");
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    Ok(format!("{text}{end}\n{ADDED}\n{block}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEBIAN: &str = "HOME = .\nopenssl_conf = openssl_init\n[openssl_init]\nproviders = provider_sect\nssl_conf = ssl_sect\n\
        [provider_sect]\ndefault = default_sect\n[default_sect]\n# activate = 1\n[ssl_sect]\nsystem_default = tls\n";

    fn value(text: &str, section: &str, name: &str) -> Option<String> {
        Entries::read(text, &Root::default()).value(section, name).map(str::to_owned)
    }

    #[test]
    fn an_empty_configuration_gets_every_section() {
        let merged = merge("", Path::new("/x/m.so"), &Root::default(), None).expect("merged");
        assert_eq!(value(&merged, "default", "openssl_conf").as_deref(), Some("memlift_init"));
        assert_eq!(value(&merged, "memlift_providers", "default").as_deref(), Some("memlift_default"));
        assert_eq!(value(&merged, "memlift_default", "activate").as_deref(), Some("1"));
        assert_eq!(value(&merged, OURS, "module").as_deref(), Some("/x/m.so"));
        assert_eq!(value(&merged, "memlift_algorithms", "default_properties").as_deref(), Some(PREFERENCE));
    }

    #[test]
    fn what_stands_there_stays_and_the_default_provider_is_activated() {
        let merged = merge(DEBIAN, Path::new("/x/m.so"), &Root::default(), None).expect("merged");
        assert!(merged.starts_with(DEBIAN));
        assert_eq!(value(&merged, "default", "openssl_conf").as_deref(), Some("openssl_init"));
        assert_eq!(value(&merged, "openssl_init", "ssl_conf").as_deref(), Some("ssl_sect"));
        assert_eq!(value(&merged, "openssl_init", "alg_section").as_deref(), Some("memlift_algorithms"));
        assert_eq!(value(&merged, "provider_sect", "memlift").as_deref(), Some(OURS));
        assert_eq!(value(&merged, "default_sect", "activate").as_deref(), Some("1"));
        assert!(merge(&merged, Path::new("/x/m.so"), &Root::default(), None).is_err(), "twice");
    }

    #[test]
    fn a_choice_of_providers_is_kept() {
        let fips = "openssl_conf = i\n[i]\nproviders = p\nalg_section = a\n[p]\nfips = f\n[f]\nactivate = yes\n[a]\ndefault_properties = fips=yes\n";
        let merged = merge(fips, Path::new("/x/m.so"), &Root::default(), None).expect("merged");
        assert_eq!(value(&merged, "p", "default"), None);
        assert_eq!(value(&merged, "a", "default_properties").as_deref(), Some("fips=yes,?provider=memlift"));
    }

    #[test]
    fn what_cannot_be_merged_is_refused() {
        for text in [
            "openssl_conf = $x\n",
            "openssl_conf=i\n[i]\nalg_section=a\n[a]\ndefault_properties = provider=other\n",
        ] {
            assert!(merge(text, Path::new("/x/m.so"), &Root::default(), None).is_err(), "{text}");
        }
    }

    #[test]
    fn includes_and_comments_are_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let part = folder.path().join("part.cnf");
        std::fs::write(&part, "[i]\nproviders = from_part # \"not this\"\n").expect("written");
        let text = format!("openssl_conf = i\n.include {}\n", part.display());
        assert_eq!(value(&text, "i", "providers").as_deref(), Some("from_part"));
    }
}
