// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report as text: as wide as the terminal, but at least 60 columns, and in colour on a terminal.

use std::io::IsTerminal;

use memlift_cli::print;

use super::{Check, State, Verdict};

/// If fewer columns are left for a finding, it is printed on lines of its own.
const LEAST_FOUND: usize = 40;

/// Layout of the report.
pub struct Page {
    /// Columns of a line; `None` if nothing is wrapped.
    columns: Option<usize>,
    colour: bool,
}

impl Page {
    /// Makes a page for standard output: wrapped to its columns, and coloured on a terminal. `NO_COLOR` is respected.
    pub fn of_terminal() -> Self {
        let columns = print::columns();
        let colour = std::io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { columns, colour }
    }

    /// Prints all sections: each check with its finding and its advice.
    pub fn sections(&self, sections: &[(&str, Vec<Check>)]) -> String {
        let checks = || sections.iter().flat_map(|(_, checks)| checks);
        let width = checks().map(|check| check.what.chars().count()).max().unwrap_or(0);
        let mut lines = Vec::new();
        for (name, checks) in sections {
            if !lines.is_empty() {
                lines.push(String::new());
            }
            lines.push((*name).to_owned());
            for check in checks {
                self.entry(&mut lines, check.state, &check.what, width, &check.found);
                if let Some(advice) = &check.advice {
                    self.under(&mut lines, width, advice);
                }
            }
        }
        lines.join("\n")
    }

    /// Prints a line for each service.
    pub fn verdicts(&self, verdicts: &[Verdict]) -> String {
        let width = verdicts.iter().map(|verdict| verdict.service.len()).max().unwrap_or(0);
        let mut lines = vec!["verdict".to_owned()];
        for verdict in verdicts {
            let words = match &verdict.reason {
                None => verdict.words().to_owned(),
                Some((missing, _)) => format!("{}: {missing}", verdict.words()),
            };
            self.entry(&mut lines, verdict.state, verdict.service, width, &words);
            if let Some((_, Some(advice))) = &verdict.reason {
                self.under(&mut lines, width, advice);
            }
        }
        lines.join("\n")
    }

    fn entry(&self, lines: &mut Vec<String>, state: State, what: &str, width: usize, found: &str) {
        let (mark, colour) = match state {
            State::Usable => ('✓', 32),
            State::Absent => ('–', 33),
            State::Broken => ('✗', 31),
        };
        let mark = if self.colour { format!("\x1b[{colour}m{mark}\x1b[0m") } else { mark.to_string() };
        let indent = self.indent(width);
        let mut found = self.wrapped(found, indent).into_iter();
        if indent > width {
            let padding = " ".repeat(width - what.chars().count());
            let first = found.next().unwrap_or_default();
            lines.push(format!("  {mark} {what}{padding}  {first}").trim_end().to_owned());
        } else {
            lines.push(format!("  {mark} {what}"));
        }
        lines.extend(found.map(|line| format!("{}{line}", " ".repeat(indent))));
    }

    fn under(&self, lines: &mut Vec<String>, width: usize, advice: &str) {
        let indent = self.indent(width);
        for (index, line) in self.wrapped(advice, indent + 2).into_iter().enumerate() {
            let arrow = if index == 0 { "→" } else { " " };
            lines.push(format!("{}{arrow} {line}", " ".repeat(indent)));
        }
    }

    /// Returns the column in which findings begin.
    fn indent(&self, width: usize) -> usize {
        let beside = width + 6;
        match self.columns {
            Some(columns) if columns < beside + LEAST_FOUND => 6,
            _ => beside,
        }
    }

    fn wrapped(&self, text: &str, indent: usize) -> Vec<String> {
        let Some(columns) = self.columns else { return vec![text.to_owned()] };
        print::wrapped(text, columns.saturating_sub(indent).max(20))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks() -> Vec<Check> {
        vec![
            Check::usable("memory", "4 GiB"),
            Check::absent("huge pages", "none").advise("sysctl vm.nr_hugepages=512"),
        ]
    }

    #[test]
    fn a_line_says_state_and_advice() {
        let page = Page { columns: None, colour: false };
        assert_eq!(
            page.sections(&[("memory", checks())]),
            "memory\n  ✓ memory      4 GiB\n  – huge pages  none\n                → sysctl vm.nr_hugepages=512"
        );
    }

    #[test]
    fn a_narrow_terminal_is_wide_enough() {
        let long =
            "a sentence of many words that goes on and on until no terminal in the world has room for it";
        let mut all = checks();
        all.push(Check::broken("system calls on compressed memory", long).advise(long));
        for columns in [60, 80, 120] {
            let page = Page { columns: Some(columns), colour: false };
            let text = page.sections(&[("memory", checks()), ("all", all.iter().map(copy).collect())]);
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}: {text}");
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words(&text).contains(long), "{columns}: {text}");
        }
    }

    fn copy(check: &Check) -> Check {
        let copied =
            Check::usable(&check.what, check.found.clone()).advise(check.advice.clone().unwrap_or_default());
        Check { state: check.state, ..copied }
    }
}
