// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift top`: what memlift does in every process, live; or one snapshot as text.
//!
//! - **Flow** [`Sample`] every interval ─▶ [`Change`] since the one before ─▶ three tables ─▶ terminal
//! - **Keys** q, Esc or Ctrl-C ends; the terminal is restored on every way out, a panic included
//! - **Once** `--once`, or an output that is no terminal: totals, no rates, and the command ends

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::widgets::{Block, Borders, Row, Table};
use ratatui::{DefaultTerminal, Frame};
use serde_json::json;

use crate::failure::Failure;
use crate::sample::{Change, Sample};
use crate::{print, sessions};

/// Shows it until a key ends it, or once.
pub fn run(once: bool, interval: Duration, as_json: bool) -> Result<(), Failure> {
    if as_json {
        return print::json(&json!({ "processes": Sample::take().processes }));
    }
    if once || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return print::line(&snapshot(&Sample::take()));
    }
    let mut terminal = ratatui::try_init()?;
    let outcome = live(&mut terminal, interval);
    ratatui::restore();
    Ok(outcome?)
}

/// Totals as text.
fn snapshot(sample: &Sample) -> String {
    if sample.processes.is_empty() {
        return "no process of this user does anything with memlift".to_owned();
    }
    let mut processes = Vec::new();
    let mut operations = Vec::new();
    for one in &sample.processes {
        processes.push(vec![
            one.process.pid.to_string(),
            one.process.operations.to_string(),
            print::bytes(one.process.bytes),
            one.process.sessions.to_string(),
            one.waiting.parks.to_string(),
            one.process.isa.clone(),
            one.process.command.clone(),
        ]);
        for row in &one.operations {
            let quantile = |share| row.quantile_ns(share).map_or("–".to_owned(), nanoseconds);
            operations.push(vec![
                one.process.pid.to_string(),
                row.executor.clone(),
                row.opcode.clone(),
                row.operations.to_string(),
                print::bytes(row.bytes),
                row.failures.to_string(),
                quantile(0.5),
                quantile(0.99),
            ]);
        }
    }
    let headings = [">pid", ">operations", ">bytes", ">sessions", ">parks", "isa", "command"];
    let processes = print::table(&headings, &processes);
    let headings = [">pid", "executor", "opcode", ">operations", ">bytes", ">failures", ">p50 ≤", ">p99 ≤"];
    let operations = print::table(&headings, &operations);
    format!("{processes}\n\n{operations}\n\n{}", sessions::table(sample))
}

fn live(terminal: &mut DefaultTerminal, interval: Duration) -> std::io::Result<()> {
    let mut before = Sample::take();
    let mut now = Sample::take();
    loop {
        terminal.draw(|frame| draw(frame, &before, &now, interval))?;
        let next = Instant::now() + interval;
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if !event::poll(left)? {
                break;
            }
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press && ends(key.code, key.modifiers) => {
                    return Ok(());
                }
                Event::Resize(..) => break,
                _ => {}
            }
        }
        before = std::mem::replace(&mut now, Sample::take());
    }
}

fn ends(code: KeyCode, modifiers: KeyModifiers) -> bool {
    matches!(code, KeyCode::Char('q') | KeyCode::Esc)
        || (code == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL))
}

/// A table on the screen: title, headings, widths, rows.
type Listing<'a> = (&'a str, &'a [&'a str], &'a [u16], Vec<Vec<String>>);

fn draw(frame: &mut Frame, before: &Sample, now: &Sample, interval: Duration) {
    let change = Change::between(before, now);
    let per_second = |rate: f64| format!("{rate:.0}");
    let bytes_per_second = |rate: f64| format!("{}/s", print::bytes(rate as u64));
    let mut processes = Vec::new();
    let mut operations = Vec::new();
    let mut sessions = Vec::new();
    for one in &now.processes {
        let pid = one.process.pid.to_string();
        let rate = change.process(one);
        processes.push(vec![
            pid.clone(),
            per_second(rate.operations),
            bytes_per_second(rate.bytes),
            one.process.sessions.to_string(),
            one.process.isa.clone(),
            one.process.command.clone(),
        ]);
        for row in &one.operations {
            let rate = change.operation(one, row);
            let quantile = |share| row.quantile_ns(share).map_or("–".to_owned(), nanoseconds);
            operations.push(vec![
                pid.clone(),
                row.executor.clone(),
                row.opcode.clone(),
                per_second(rate.operations),
                bytes_per_second(rate.bytes),
                quantile(0.5),
                quantile(0.99),
            ]);
        }
        for row in &one.sessions {
            let rate = change.session(one, row);
            sessions.push(vec![
                pid.clone(),
                row.name.clone(),
                row.role.clone(),
                row.peer_pid.to_string(),
                per_second(rate.operations),
                bytes_per_second(rate.bytes),
                row.outstanding.to_string(),
                print::bytes(row.pool_bytes),
            ]);
        }
    }
    let areas =
        Layout::vertical([Constraint::Fill(2), Constraint::Fill(3), Constraint::Fill(3)]).split(frame.area());
    let title =
        format!(" memlift: {} processes, every {} ms, q ends ", now.processes.len(), interval.as_millis());
    let tables: [Listing; 3] = [
        (
            &title,
            &["pid", "ops/s", "bytes/s", "sessions", "isa", "command"],
            &[8, 10, 14, 9, 8, 40],
            processes,
        ),
        (
            " operations ",
            &["pid", "executor", "opcode", "ops/s", "bytes/s", "p50 ≤", "p99 ≤"],
            &[8, 16, 14, 10, 14, 10, 10],
            operations,
        ),
        (
            " ipc sessions ",
            &["pid", "server", "role", "peer", "calls/s", "bytes/s", "under way", "pools"],
            &[8, 24, 7, 8, 10, 14, 10, 12],
            sessions,
        ),
    ];
    for (area, (title, headings, widths, rows)) in areas.iter().zip(tables) {
        let heading = Row::new(headings.iter().copied()).style(Style::new().add_modifier(Modifier::BOLD));
        let widths = widths.iter().map(|width| Constraint::Min(*width));
        let table = Table::new(rows.into_iter().map(Row::new), widths)
            .header(heading)
            .block(Block::new().borders(Borders::TOP).title(title.to_owned()));
        frame.render_widget(table, *area);
    }
}

/// A time with a unit: `1.5 µs`.
pub fn nanoseconds(nanoseconds: u64) -> String {
    match nanoseconds {
        0..1_000 => format!("{nanoseconds} ns"),
        1_000..1_000_000 => format!("{:.1} µs", nanoseconds as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanoseconds as f64 / 1e6),
        _ => format!("{:.2} s", nanoseconds as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::tests::snapshot as process;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn sample(operations: u64, later: u64) -> Sample {
        Sample {
            time: Instant::now() + Duration::from_secs(later),
            processes: vec![process(4711, operations)],
        }
    }

    #[test]
    fn the_screen_shows_rates() {
        let mut terminal = Terminal::new(TestBackend::new(120, 24)).expect("a terminal");
        let (before, now) = (sample(100, 0), sample(1100, 1));
        terminal.draw(|frame| draw(frame, &before, &now, Duration::from_secs(1))).expect("drawn");
        let screen: String = terminal.backend().buffer().content.iter().map(|cell| cell.symbol()).collect();
        for wanted in ["4711", "inline_nt", "memmove", "features", "3.9 MiB/s", "1 processes"] {
            assert!(screen.contains(wanted), "no {wanted} in: {screen}");
        }
        assert!(screen.contains(" 1000 ") || screen.contains(" 999 "), "{screen}");
    }

    #[test]
    fn a_snapshot_shows_totals() {
        let text = snapshot(&sample(100, 0));
        assert!(text.contains("4711"), "{text}");
        assert!(text.lines().any(|line| line.contains("memmove") && line.contains("400.0 KiB")), "{text}");
        assert!(snapshot(&Sample { time: Instant::now(), processes: Vec::new() }).contains("no process"));
    }

    #[test]
    fn keys_end_it() {
        assert!(ends(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(ends(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!ends(KeyCode::Char('c'), KeyModifiers::NONE));
    }
}
