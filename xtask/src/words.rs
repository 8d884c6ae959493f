// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts forms of words that the style forbids, and fails when a count rises above the recorded one.
//!
//! - **Flow** Rust sources ─▶ comment blocks and names ─▶ [`Rule`] ─▶ counts beside `xtask/words.json` ─▶ the places of rules that rose
//! - **Order** `words --record` lowers the recorded counts to today's and never raises one, so that the way is down only
//! - **Not here** the English itself: a reader judges that

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::Failure;

/// Recorded counts, one per rule.
const RECORD: &str = "xtask/words.json";
/// Words that open a comment and leave its sentence without a subject.
const OPENERS: [&str; 5] = ["What", "Who", "Whose", "Whether", "Which"];
/// Parts of names that are not terms of the field.
const NAMES: [&str; 8] = ["wish", "mind", "hands", "keep", "look", "who", "whose", "house"];
/// SAFETY texts that name neither bound nor lifetime nor owner.
const EMPTY_SAFETY: [&str; 6] =
    ["as above", "as before", "passed on", "passed on from the caller", "the caller's promise", "the same"];

/// One forbidden form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rule {
    /// A comment that opens with one of [`OPENERS`].
    Opener,
    /// A doc comment of one or two words.
    Short,
    /// A header line in aligned columns, which rustdoc joins into one paragraph.
    Header,
    /// A SAFETY comment that is one of [`EMPTY_SAFETY`].
    Safety,
    /// A name with one of [`NAMES`] in it.
    Name,
}

const RULES: [(Rule, &str, &str); 5] = [
    (Rule::Opener, "opener", "opens with What, Who, Whose, Whether or Which: give the sentence a subject"),
    (Rule::Short, "short", "has one or two words: delete it or say something"),
    (Rule::Header, "header", "is an aligned header line: make it an item, `- **Flow** …`"),
    (Rule::Safety, "safety", "only passes the obligation on: name the bound, the lifetime or the owner"),
    (Rule::Name, "name", "is not a term of the field"),
];

/// One place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    rule: Rule,
    file: PathBuf,
    line: usize,
    text: String,
}

/// Options of `cargo xtask words`.
#[derive(Debug, Default)]
pub struct Options {
    /// Lower the recorded counts to today's.
    record: bool,
    /// Print every place of this rule instead of checking.
    list: Option<String>,
    /// Only files below this folder, with `list`.
    under: Option<String>,
}

impl Options {
    /// Reads the arguments behind `words`.
    pub fn parse(arguments: &[String]) -> Result<Options, Failure> {
        let mut options = Options::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--record" => options.record = true,
                "--list" => {
                    let rule = rest.next().cloned().unwrap_or_default();
                    if !RULES.iter().any(|(_, name, _)| *name == rule) {
                        let names: Vec<_> = RULES.iter().map(|(_, name, _)| *name).collect();
                        return Err(Failure::Usage(format!("--list takes one of {}", names.join(", "))));
                    }
                    options.list = Some(rule);
                }
                folder if !folder.starts_with('-') => options.under = Some(folder.to_owned()),
                other => return Err(Failure::Usage(format!("words does not take {other}"))),
            }
        }
        Ok(options)
    }
}

/// Counts the workspace that this command was started in.
pub fn check(options: &Options) -> Result<String, Failure> {
    let root = std::env::current_dir().map_err(|error| Failure::Unavailable(error.to_string()))?;
    let mut findings = Vec::new();
    for file in sources(&root) {
        let text = std::fs::read_to_string(root.join(&file))
            .map_err(|error| Failure::Unavailable(format!("{}: {error}", file.display())))?;
        findings.extend(find(&file, &text));
    }
    if let Some(rule) = &options.list {
        let under = options.under.as_deref().unwrap_or("");
        let listed = findings
            .iter()
            .filter(|finding| name_of(finding.rule) == rule && finding.file.starts_with(under));
        let mut count = 0;
        for finding in listed {
            println!("{}:{}: {}", finding.file.display(), finding.line, finding.text);
            count += 1;
        }
        return Ok(format!("{count} places"));
    }
    let counts = count(&findings);
    let path = root.join(RECORD);
    let recorded = read_record(&path)?;
    let risen = risen(&counts, &recorded);
    let is_first = options.record && recorded.is_empty();
    if !risen.is_empty() && !is_first {
        return Err(Failure::Broken(risen.join("\nxtask: ")));
    }
    if options.record {
        let json = serde_json::to_string_pretty(&counts).expect("a map of numbers is JSON");
        std::fs::write(&path, json + "\n").map_err(|error| Failure::Unavailable(error.to_string()))?;
    }
    let summary: Vec<_> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    Ok(format!("no count rose: {}", summary.join(", ")))
}

fn name_of(rule: Rule) -> &'static str {
    RULES.iter().find(|(of, _, _)| *of == rule).map_or("", |(_, name, _)| name)
}

fn count(findings: &[Finding]) -> BTreeMap<String, usize> {
    let of = |rule: Rule| findings.iter().filter(|finding| finding.rule == rule).count();
    RULES.iter().map(|(rule, name, _)| ((*name).to_owned(), of(*rule))).collect()
}

/// One line for each rule that is broken more often than recorded.
fn risen(counts: &BTreeMap<String, usize>, recorded: &BTreeMap<String, usize>) -> Vec<String> {
    let fault = |(_, name, why): &(Rule, &str, &str)| {
        let (now, before) = (counts[*name], recorded.get(*name).copied().unwrap_or(0));
        (now > before).then(|| {
            format!("{name}: {now} places, {before} recorded; each {why}; `cargo xtask words --list {name}` shows them")
        })
    };
    RULES.iter().filter_map(fault).collect()
}

fn read_record(path: &Path) -> Result<BTreeMap<String, usize>, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text)
            .map_err(|error| Failure::Broken(format!("{}: {error}", path.display()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(Failure::Unavailable(format!("{}: {error}", path.display()))),
    }
}

/// Rust files below `root`, relative to it, in order. Hidden folders, build outputs and this file, whose tests plant faults, are left out.
fn sources(root: &Path) -> Vec<PathBuf> {
    let mut folders = vec![root.to_path_buf()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && !name.starts_with('.') && name != "target" {
                folders.push(path);
            } else if !is_folder && name.ends_with(".rs") && !path.ends_with(file!()) {
                files.push(path.strip_prefix(root).unwrap_or(&path).to_path_buf());
            }
        }
    }
    files.sort();
    files
}

/// The comment sign that a line starts with, and the text behind it.
fn comment(line: &str) -> Option<(&'static str, &str)> {
    let line = line.trim_start();
    ["///", "//!", "//"].into_iter().find_map(|sign| line.strip_prefix(sign).map(|text| (sign, text)))
}

/// Every place of one file that breaks a rule.
fn find(file: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |rule, line: usize, text: &str| {
        findings.push(Finding {
            rule,
            file: file.to_path_buf(),
            line: line + 1,
            text: text.trim().to_owned(),
        });
    };
    let lines: Vec<&str> = text.lines().collect();
    let mut at = 0;
    while at < lines.len() {
        let Some((sign, _)) = comment(lines[at]) else {
            if names(lines[at]).any(|name| is_foreign(&name)) {
                add(Rule::Name, at, lines[at]);
            }
            at += 1;
            continue;
        };
        let start = at;
        let mut block = Vec::new();
        while let Some((_, text)) =
            lines.get(at).and_then(|line| comment(line)).filter(|(other, _)| *other == sign)
        {
            block.push(text);
            at += 1;
        }
        check_block(sign, &block, |rule, offset| add(rule, start + offset, lines[start + offset]));
    }
    findings
}

/// Checks one run of comment lines with the same sign; `add` takes the line's offset in it.
fn check_block(sign: &str, block: &[&str], mut add: impl FnMut(Rule, usize)) {
    let words: Vec<&str> = block.iter().flat_map(|line| line.split_whitespace()).collect();
    // A link or a piece of code says something in one word.
    if sign == "///" && words.len() <= 2 && !words.iter().any(|word| word.contains('`')) {
        add(Rule::Short, 0);
    }
    let mut opens = true;
    for (offset, line) in block.iter().enumerate() {
        let text = line.trim();
        if opens
            && OPENERS
                .iter()
                .any(|word| text.strip_prefix(word).is_some_and(|rest| rest.starts_with([' ', ','])))
        {
            add(Rule::Opener, offset);
        }
        // An empty line ends a paragraph.
        opens = text.is_empty();
        if sign == "//!" && is_aligned(line) {
            add(Rule::Header, offset);
        }
        if let Some(text) = text.strip_prefix("SAFETY:")
            && EMPTY_SAFETY.contains(&text.trim().trim_end_matches('.'))
            && block.get(offset + 1).is_none_or(|next| next.trim().is_empty())
        {
            add(Rule::Safety, offset);
        }
    }
}

/// Returns true for ` Flow     text`, ` Not here text`: a capitalised key in a column of its own.
fn is_aligned(line: &str) -> bool {
    let Some(text) = line.strip_prefix(' ') else { return false };
    if text.starts_with("Not here ") {
        return true;
    }
    let key = text.bytes().take_while(u8::is_ascii_alphabetic).count();
    key > 1 && text.starts_with(|first: char| first.is_ascii_uppercase()) && text[key..].starts_with("  ")
}

/// Returns true for a name with one of [`NAMES`] in it. Names of more than three parts are tests, which are sentences.
fn is_foreign(name: &str) -> bool {
    name.split('_').count() <= 3 && name.split('_').any(|part| NAMES.contains(&part))
}

/// Names that a line declares, in lower case with `_` between their parts.
fn names(line: &str) -> impl Iterator<Item = String> {
    // The names of a C interface are somebody else's.
    let line = if line.contains("extern \"C\"") { "" } else { line };
    let words: Vec<&str> = line.split(|sign: char| !sign.is_alphanumeric() && sign != '_').collect();
    let declared: Vec<String> = words
        .windows(2)
        .filter(|pair| ["fn", "struct", "enum", "trait", "type", "mod"].contains(&pair[0]))
        .map(|pair| snake(pair[1]))
        .collect();
    declared.into_iter()
}

fn snake(name: &str) -> String {
    let mut snake = String::new();
    for sign in name.chars() {
        if sign.is_uppercase() && !snake.is_empty() && !snake.ends_with('_') {
            snake.push('_');
        }
        snake.extend(sign.to_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Vec<(Rule, usize)> {
        find(Path::new("a.rs"), text).into_iter().map(|finding| (finding.rule, finding.line)).collect()
    }

    #[test]
    fn each_planted_fault_is_found_where_it_is() {
        let planted = "//! A file of faults.\n\
                       //!\n\
                       //! Flow     one thing after the other\n\
                       //! Not here anything else\n\
                       \n\
                       /// Whether it is so.\n\
                       fn is_kept() {}\n\
                       /// Whose.\n\
                       struct Wish;\n\
                       // Which of them, and why.\n\
                       fn look_up() {}\n\
                       // SAFETY: as above.\n\
                       unsafe {}\n";
        assert_eq!(
            rules(planted),
            [
                (Rule::Header, 3),
                (Rule::Header, 4),
                (Rule::Opener, 6),
                (Rule::Short, 8),
                (Rule::Name, 9),
                (Rule::Opener, 10),
                (Rule::Name, 11),
                (Rule::Safety, 12),
            ]
        );
    }

    #[test]
    fn plain_sentences_pass() {
        let plain = "//! Counts words.\n\
                     //!\n\
                     //! - **Flow** one thing after the other\n\
                     \n\
                     /// Returns true if the page is dirty.\n\
                     fn is_dirty() {}\n\
                     /// Finds the entry. Whatever follows is left alone.\n\
                     fn lookup_entry() {}\n\
                     // SAFETY: the mapping lives as long as `self`.\n\
                     unsafe {}\n";
        assert_eq!(rules(plain), []);
    }

    #[test]
    fn a_count_that_rises_is_a_fault_and_one_that_falls_is_not() {
        let counts = |safety: usize| {
            RULES
                .iter()
                .map(|(rule, name, _)| ((*name).to_owned(), if *rule == Rule::Safety { safety } else { 3 }))
                .collect()
        };
        assert!(risen(&counts(3), &counts(4)).is_empty());
        assert_eq!(risen(&counts(5), &counts(4)).len(), 1);
        assert_eq!(risen(&counts(1), &BTreeMap::new()).len(), RULES.len());
    }
}
