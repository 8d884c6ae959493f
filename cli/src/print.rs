// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Output of a command: text or JSON to standard output, progress to standard error.
//!
//! - **Rule** a reader that goes away (`memlift doctor | head -1`) ends the command quietly, see [`Failure::OutputClosed`].

use std::io::{self, IsTerminal, Write};

pub use memlift::ground::size::readable as bytes;
use serde_json::Value;

use crate::failure::Failure;

/// Columns of a terminal whose width is unknown, and the least width that output is wrapped to.
const NARROW: usize = 60;

/// Writes `text` and a line end to standard output.
pub fn line(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    // One write: a reader of the first line may then be gone.
    output.write_all(format!("{text}\n").as_bytes()).and_then(|()| output.flush()).map_err(unwritten)
}

/// Converts an error of writing to standard output.
pub fn unwritten(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Failed(format!("standard output: {error}")),
    }
}

/// Returns the columns that output is wrapped to: those of the terminal that standard output is, otherwise those that the variable
/// `COLUMNS` gives; `None`: output is not wrapped.
pub fn columns() -> Option<usize> {
    let output = io::stdout();
    let columns = if output.is_terminal() {
        Some(rustix::termios::tcgetwinsize(&output).map_or(NARROW, |size| usize::from(size.ws_col)))
    } else {
        std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok())
    };
    columns.map(|columns| columns.max(NARROW))
}

/// Cuts each line to at most `most` columns; the last column of a line that was cut is `…`.
pub fn cut(text: &str, most: usize) -> String {
    let cut = |line: &str| match line.char_indices().nth(most) {
        Some(_) => line.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        None => line.to_owned(),
    };
    text.lines().map(cut).collect::<Vec<String>>().join("\n")
}

/// Breaks a text into lines of at most `most` columns, between words.
pub fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is one");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= most {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Writes one JSON document to standard output.
pub fn json(value: &Value) -> Result<(), Failure> {
    line(&format!("{value:#}"))
}

/// Prints progress of long work on standard error, if that is a terminal.
pub fn progress(text: &str) {
    if io::stderr().is_terminal() {
        let _ = writeln!(io::stderr(), "memlift: {text}");
    }
}

/// Prints information for the user on standard error.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "memlift: {text}");
}

/// Prints a warning on standard error.
pub fn warn(text: &str) {
    let _ = writeln!(io::stderr(), "memlift: warning: {text}");
}

/// Formats rows under headings; each column is as wide as its widest cell.
///
/// A column whose heading starts with `>` is aligned to the right.
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let right: Vec<bool> = headings.iter().map(|heading| heading.starts_with('>')).collect();
    let headings: Vec<String> =
        headings.iter().map(|heading| heading.trim_start_matches('>').to_owned()).collect();
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .chain(headings.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let mut text = String::new();
    for row in std::iter::once(&headings).chain(rows) {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate().take(widths.len()) {
            if column > 0 {
                line.push_str("  ");
            }
            let padding = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            if right[column] {
                line.push_str(&padding);
                line.push_str(cell);
            } else {
                line.push_str(cell);
                line.push_str(&padding);
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.pop();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["copy".into(), "7".into()], vec!["fill".into(), "1234".into()]];
        assert_eq!(table(&["opcode", ">count"], &rows), "opcode  count\ncopy        7\nfill     1234");
    }

    #[test]
    fn long_lines_are_cut_and_say_so() {
        assert_eq!(cut("1234\n12345\n→→→→→", 4), "1234\n123…\n→→→…");
    }
}
