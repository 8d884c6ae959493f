// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift top`: shows memlift's work in every process, live; or one snapshot as text.
//!
//! - **Flow** [`Sample`] every interval ─▶ [`Change`] since the one before ─▶ [`Screen`] ─▶ terminal
//! - **Keys** q, Esc or Ctrl-C ends · s sorts by the next column · / filters · ↑ ↓ select a process · d shows its decisions. The terminal
//!   is always restored, even after a panic
//! - **Once** with `--once`, or if the output is not a terminal: totals without rates, and the command ends

use std::collections::{HashMap, VecDeque};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use memlift::ground::observe::{self, Decision, OperationStats, RowStats, RowValue, Snapshot};
use memlift::place::reason_text;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::widgets::{Block, Borders, Row, Table};
use ratatui::{DefaultTerminal, Frame};

use crate::failure::Failure;
use crate::print;
use crate::sample::{Change, Rate, Sample, program};

/// Number of rates in a sparkline.
const HISTORY: usize = 24;
/// Heights of a sparkline's bars.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Shows the table until a key ends it, or prints it once.
pub fn run(once: bool, interval: Duration, as_json: bool) -> Result<(), Failure> {
    if as_json {
        return print::json(&Sample::take().json());
    }
    if once || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let text = snapshot(&Sample::take());
        return print::line(&match print::columns() {
            Some(columns) => print::cut(&text, columns),
            None => text,
        });
    }
    let mut terminal = ratatui::try_init()?;
    let outcome = live(&mut terminal, interval);
    ratatui::restore();
    Ok(outcome?)
}

/// Returns the totals as text.
fn snapshot(sample: &Sample) -> String {
    if sample.processes.is_empty() && sample.jobs.is_empty() && sample.dropins.is_empty() {
        return "no process of this user does anything with memlift".to_owned();
    }
    let mut processes = Vec::new();
    let mut operations = Vec::new();
    for one in &sample.processes {
        processes.push(vec![
            one.process.pid.to_string(),
            one.process.operations.to_string(),
            print::bytes(one.process.bytes),
            one.process.rows.to_string(),
            one.waiting.parks.to_string(),
            one.process.isa.clone(),
            one.process.command.clone(),
        ]);
        for row in &one.operations {
            operations.push(vec![
                one.process.pid.to_string(),
                row.executor.clone(),
                row.opcode.clone(),
                row.operations.to_string(),
                print::bytes(row.bytes),
                row.failures.to_string(),
                quantile(row, 0.5),
                quantile(row, 0.99),
            ]);
        }
    }
    let services = services(sample, |_, value| number(value));
    let tables = [
        (&[">pid", ">operations", ">bytes", ">services", ">parks", "isa", "command"][..], processes),
        (
            &[">pid", "executor", "opcode", ">operations", ">bytes", ">failures", ">p50 ≤", ">p99 ≤"],
            operations,
        ),
        (&[">pid", "service", "role", "name", "numbers"], services),
    ];
    let shown = tables.iter().filter(|(_, rows)| !rows.is_empty());
    shown.map(|(headings, rows)| print::table(headings, rows)).collect::<Vec<_>>().join("\n\n")
}

fn quantile(row: &OperationStats, share: f64) -> String {
    row.quantile_ns(share).map_or("–".to_owned(), nanoseconds)
}

/// Item to which a row belongs.
pub enum RowOwner<'a> {
    Process(&'a Snapshot, &'a RowStats),
    Job(&'a crate::sample::Job),
}

/// Returns a line for each session, pool, node, job and drop-in, with its numbers formatted by `text`; numbers whose text
/// is empty are left out.
pub fn services(sample: &Sample, text: impl Fn(&RowOwner<'_>, &RowValue) -> String) -> Vec<Vec<String>> {
    let numbers = |owner: &RowOwner<'_>, row: &RowStats| {
        let shown = row.values.iter().filter_map(|value| {
            let text = text(owner, value);
            (!text.is_empty()).then(|| format!("{} {text}", label(&value.name)))
        });
        shown.collect::<Vec<_>>().join(", ")
    };
    let mut rows = Vec::new();
    for job in &sample.jobs {
        let pid = job.pids.first().map_or("–".to_owned(), u32::to_string);
        let numbers = numbers(&RowOwner::Job(job), &job.row);
        rows.push(vec![pid, job.row.service.clone(), job.row.role.clone(), job.row.name.clone(), numbers]);
    }
    for one in &sample.processes {
        for row in &one.rows {
            let numbers = numbers(&RowOwner::Process(one, row), row);
            let pid = one.process.pid.to_string();
            rows.push(vec![pid, row.service.clone(), row.role.clone(), row.name.clone(), numbers]);
        }
    }
    for dropin in &sample.dropins {
        let page = &dropin.page;
        let name = page.name.strip_prefix("memlift:").unwrap_or(&page.name).to_owned();
        let counted = page.rows.iter().filter(|row| row.count > 0);
        let counted = counted.map(|row| format!("{} {}", row.name, row.count));
        let numbers: Vec<String> = std::iter::once(page.state.to_owned()).chain(counted).collect();
        rows.push(vec![
            dropin.pid.to_string(),
            "transform".into(),
            "drop-in".into(),
            name,
            numbers.join(", "),
        ]);
    }
    rows
}

/// Returns a field's name for people: `pool_bytes` becomes `pool`, `calls_total` becomes `calls`.
fn label(name: &str) -> String {
    let name = name.strip_suffix("_total").unwrap_or(name);
    name.strip_suffix("_bytes").unwrap_or(name).replace('_', " ")
}

/// Formats a number as a total; zero gives an empty text.
pub fn number(value: &RowValue) -> String {
    match value.value {
        0 => String::new(),
        count if is_bytes(&value.name) => print::bytes(count),
        count => count.to_string(),
    }
}

fn is_bytes(name: &str) -> bool {
    name.contains("bytes")
}

/// Columns by which processes are sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Sort {
    #[default]
    Pid,
    Operations,
    Bytes,
    Command,
}

impl Sort {
    const fn next(self) -> Sort {
        match self {
            Sort::Pid => Sort::Operations,
            Sort::Operations => Sort::Bytes,
            Sort::Bytes => Sort::Command,
            Sort::Command => Sort::Pid,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Sort::Pid => "pid",
            Sort::Operations => "ops/s",
            Sort::Bytes => "bytes/s",
            Sort::Command => "command",
        }
    }
}

/// Reaction to a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KeyAction {
    Nothing,
    Draw,
    End,
}

/// The user's choices, and the rates so far.
#[derive(Debug, Default)]
struct Screen {
    sort: Sort,
    filter: String,
    editing: bool,
    selected: usize,
    decisions: bool,
    /// Operations per second of each process, by pid and start time.
    history: HashMap<(u32, u64), VecDeque<f64>>,
}

fn live(terminal: &mut DefaultTerminal, interval: Duration) -> std::io::Result<()> {
    let mut before = Sample::take();
    let mut now = Sample::take();
    let mut screen = Screen::default();
    loop {
        screen.remember(&before, &now);
        terminal.draw(|frame| screen.draw(frame, &before, &now, interval))?;
        let next = Instant::now() + interval;
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if !event::poll(left)? {
                break;
            }
            let after = match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => screen.key(key.code, key.modifiers),
                Event::Resize(..) => KeyAction::Draw,
                _ => KeyAction::Nothing,
            };
            match after {
                KeyAction::End => return Ok(()),
                KeyAction::Draw => {
                    terminal.draw(|frame| screen.draw(frame, &before, &now, interval))?;
                }
                KeyAction::Nothing => {}
            }
        }
        before = std::mem::replace(&mut now, Sample::take());
    }
}

impl Screen {
    fn key(&mut self, code: KeyCode, modifiers: KeyModifiers) -> KeyAction {
        if code == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL) {
            return KeyAction::End;
        }
        if self.editing {
            match code {
                KeyCode::Enter => self.editing = false,
                KeyCode::Esc => (self.editing, self.filter) = (false, String::new()),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(letter) => self.filter.push(letter),
                _ => return KeyAction::Nothing,
            }
            return KeyAction::Draw;
        }
        match code {
            KeyCode::Char('q') => return KeyAction::End,
            KeyCode::Esc if self.decisions => self.decisions = false,
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Esc => return KeyAction::End,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('/') => self.editing = true,
            KeyCode::Char('d') | KeyCode::Enter => self.decisions = !self.decisions,
            KeyCode::Down | KeyCode::Char('j') => self.selected += 1,
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            _ => return KeyAction::Nothing,
        }
        KeyAction::Draw
    }

    /// Appends the rates of this sample to the history.
    fn remember(&mut self, before: &Sample, now: &Sample) {
        let change = Change::between(before, now);
        let mut history = std::mem::take(&mut self.history);
        for one in &now.processes {
            let key = (one.process.pid, one.process.start_unix_ns);
            let mut rates = history.remove(&key).unwrap_or_default();
            if rates.len() == HISTORY {
                rates.pop_front();
            }
            rates.push_back(change.process(one).operations);
            self.history.insert(key, rates);
        }
    }

    /// Returns the displayed processes in their order, each with its rate.
    fn processes<'a>(&self, change: &Change<'_>, now: &'a Sample) -> Vec<(&'a Snapshot, Rate)> {
        let matches = |one: &&Snapshot| {
            let pid = one.process.pid.to_string();
            self.filter.is_empty() || pid == self.filter || one.process.command.contains(&self.filter)
        };
        let rated = now.processes.iter().filter(matches).map(|one| (one, change.process(one)));
        let mut shown: Vec<(&Snapshot, Rate)> = rated.collect();
        match self.sort {
            Sort::Pid => {} // samples are sorted by pid already
            Sort::Operations => shown.sort_by(|one, other| other.1.operations.total_cmp(&one.1.operations)),
            Sort::Bytes => shown.sort_by(|one, other| other.1.bytes.total_cmp(&one.1.bytes)),
            Sort::Command => shown.sort_by_key(|(one, _)| program(&one.process.command)),
        }
        shown
    }

    fn draw(&mut self, frame: &mut Frame, before: &Sample, now: &Sample, interval: Duration) {
        let change = Change::between(before, now);
        let shown = self.processes(&change, now);
        self.selected = self.selected.min(shown.len().saturating_sub(1));
        let selected = shown.get(self.selected).map(|(one, _)| *one);
        let mut processes = Vec::new();
        let mut operations = Vec::new();
        for (index, (one, rate)) in shown.iter().enumerate() {
            let history = self.history.get(&(one.process.pid, one.process.start_unix_ns));
            processes.push(vec![
                format!("{}{}", if index == self.selected { "▶" } else { " " }, one.process.pid),
                per_second(rate.operations),
                bytes_per_second(rate.bytes),
                history.map_or_else(String::new, sparkline),
                one.process.isa.clone(),
                one.process.command.clone(),
            ]);
            for row in &one.operations {
                let rate = change.operation(one, row);
                operations.push(vec![
                    one.process.pid.to_string(),
                    row.executor.clone(),
                    row.opcode.clone(),
                    per_second(rate.operations),
                    bytes_per_second(rate.bytes),
                    quantile(row, 0.5),
                    quantile(row, 0.99),
                ]);
            }
        }
        let services = services(now, |owner, value| {
            let rate = match owner {
                RowOwner::Process(of, row) => change.row(of, row, value),
                RowOwner::Job(job) => change.job(job, value),
            };
            match value.name.ends_with("_total") {
                false => number(value),
                true if rate == 0.0 => String::new(),
                true if is_bytes(&value.name) => bytes_per_second(rate),
                true => format!("{rate:.0}/s"),
            }
        });
        let filter = match (self.editing, self.filter.as_str()) {
            (true, text) => format!(" · filter: {text}▏"),
            (false, "") => String::new(),
            (false, text) => format!(" · filter: {text}"),
        };
        let title = format!(
            " memlift: {} processes, every {} ms, by {}{filter} · s sorts, / filters, d decisions, q ends ",
            shown.len(),
            interval.as_millis(),
            self.sort.name()
        );
        let middle = match selected.filter(|_| self.decisions) {
            Some(of) => decisions(of),
            None => Listing {
                title: " operations ".to_owned(),
                headings: &["pid", "executor", "opcode", "ops/s", "bytes/s", "p50 ≤", "p99 ≤"],
                widths: &[8, 16, 14, 10, 14, 10, 10],
                rows: operations,
            },
        };
        let tables = [
            Listing {
                title,
                headings: &["pid", "ops/s", "bytes/s", "ops/s so far", "isa", "command"],
                widths: &[9, 10, 14, HISTORY as u16, 8, 40],
                rows: processes,
            },
            middle,
            Listing {
                title: " services ".to_owned(),
                headings: &["pid", "service", "role", "name", "numbers"],
                widths: &[8, 10, 8, 24, 60],
                rows: services,
            },
        ];
        let areas = Layout::vertical([Constraint::Fill(2), Constraint::Fill(3), Constraint::Fill(3)]);
        for (area, table) in areas.split(frame.area()).iter().zip(tables) {
            let heading = Row::new(table.headings.iter().copied());
            // The last column takes the remaining width.
            let last = table.widths.len() - 1;
            let widths = table.widths.iter().enumerate().map(|(index, width)| match index == last {
                true => Constraint::Min(*width),
                false => Constraint::Length(*width),
            });
            let block = Block::new().borders(Borders::TOP).title(table.title);
            let table = Table::new(table.rows.into_iter().map(Row::new), widths)
                .header(heading.style(Style::new().add_modifier(Modifier::BOLD)))
                .block(block);
            frame.render_widget(table, *area);
        }
    }
}

/// A table on the screen: title, headings, rows.
struct Listing {
    title: String,
    headings: &'static [&'static str],
    widths: &'static [u16],
    rows: Vec<Vec<String>>,
}

/// Lists the last decisions of a process, the newest first.
fn decisions(of: &Snapshot) -> Listing {
    Listing {
        title: format!(" decisions of {} ({}) ", of.process.pid, program(&of.process.command)),
        headings: &["ago", "opcode", "size", "cache", "executor", "predicted", "measured", "why"],
        widths: &[10, 12, 10, 8, 16, 10, 10, 30],
        rows: of.decisions.iter().rev().map(cells).collect(),
    }
}

/// Returns a decision as cells: age, opcode, size, cache, executor, predicted, measured, reason.
pub fn cells(decision: &Decision) -> Vec<String> {
    vec![
        nanoseconds(observe::now_ns().saturating_sub(decision.time_ns)),
        decision.opcode.clone(),
        print::bytes(decision.size),
        decision.cache_state.clone(),
        decision.executor.clone(),
        nanoseconds(decision.predicted_ns),
        nanoseconds(decision.measured_ns),
        reason_text(decision.reason).to_owned(),
    ]
}

fn per_second(rate: f64) -> String {
    format!("{rate:.0}")
}

fn bytes_per_second(rate: f64) -> String {
    format!("{}/s", print::bytes(rate as u64))
}

/// Draws rates as bars, scaled to the largest.
fn sparkline(rates: &VecDeque<f64>) -> String {
    let most = rates.iter().copied().fold(0.0, f64::max);
    let bar = |rate: &f64| match *rate {
        0.0 => ' ',
        rate => BARS[((rate / most * 8.0).ceil() as usize).clamp(1, 8) - 1],
    };
    rates.iter().map(bar).collect()
}

/// Formats a time with a unit: `1.5 µs`.
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
    use crate::sample::tests::{sample as of, snapshot as process};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn sample(operations: u64, later: u64) -> Sample {
        of(Instant::now() + Duration::from_secs(later), vec![process(4711, operations)])
    }

    fn drawn(screen: &mut Screen, before: &Sample, now: &Sample) -> String {
        let mut terminal = Terminal::new(TestBackend::new(140, 24)).expect("a terminal");
        terminal.draw(|frame| screen.draw(frame, before, now, Duration::from_secs(1))).expect("drawn");
        terminal.backend().buffer().content.iter().map(|cell| cell.symbol()).collect()
    }

    #[test]
    fn the_screen_shows_rates_and_their_history() {
        let mut screen = Screen::default();
        let (before, now) = (sample(100, 0), sample(1100, 1));
        screen.remember(&before, &now);
        let text = drawn(&mut screen, &before, &now);
        for wanted in
            ["4711", "inline_nt", "memmove", "features", "3.9 MiB/s", "1 processes", "█", "pool 1.0 MiB"]
        {
            assert!(text.contains(wanted), "no {wanted} in: {text}");
        }
        assert!(text.contains(" 1000 ") || text.contains(" 999 "), "{text}");
        assert!(text.contains("calls 1000/s") || text.contains("calls 999/s"), "{text}");
    }

    #[test]
    fn processes_are_sorted_filtered_and_asked_for_their_decisions() {
        let time = Instant::now();
        let (mut slow, mut fast) = (process(1, 10), process(2, 10));
        slow.process.command = "alpha".into();
        fast.process.command = "beta".into();
        let before = of(time, vec![slow.clone(), fast.clone()]);
        fast.process.operations = 1_000;
        fast.decisions.push(Decision {
            number: 0,
            time_ns: 1,
            opcode: "memmove".into(),
            executor: "worker".into(),
            cache_state: "cold".into(),
            size: 4096,
            predicted_ns: 7,
            measured_ns: 8,
            reason: 22,
        });
        let now = of(time + Duration::from_secs(1), vec![slow, fast]);
        let change = Change::between(&before, &now);
        let mut screen = Screen::default();
        let order = |screen: &Screen| -> Vec<u32> {
            screen.processes(&change, &now).iter().map(|(one, _)| one.process.pid).collect()
        };
        assert_eq!(order(&screen), [1, 2]);
        assert_eq!(screen.key(KeyCode::Char('s'), KeyModifiers::NONE), KeyAction::Draw);
        assert_eq!((screen.sort, order(&screen)), (Sort::Operations, vec![2, 1]));
        for letter in "/alp".chars() {
            screen.key(KeyCode::Char(letter), KeyModifiers::NONE);
        }
        assert_eq!(order(&screen), [1]);
        screen.key(KeyCode::Esc, KeyModifiers::NONE);
        assert_eq!(order(&screen), [2, 1]);
        screen.key(KeyCode::Char('d'), KeyModifiers::NONE);
        let text = drawn(&mut screen, &before, &now);
        assert!(text.contains("decisions of 2 (beta)") && text.contains(reason_text(22)), "{text}");
        assert_eq!(screen.key(KeyCode::Esc, KeyModifiers::NONE), KeyAction::Draw, "closes the decisions");
        assert_eq!(screen.key(KeyCode::Esc, KeyModifiers::NONE), KeyAction::End);
    }

    #[test]
    fn a_snapshot_shows_totals() {
        let text = snapshot(&sample(100, 0));
        assert!(text.contains("4711"), "{text}");
        assert!(text.lines().any(|line| line.contains("memmove") && line.contains("400.0 KiB")), "{text}");
        assert!(text.contains("calls 100, replies 99, bytes in 400.0 KiB, pool 1.0 MiB"), "{text}");
        assert!(snapshot(&of(Instant::now(), Vec::new())).contains("no process"));
    }

    #[test]
    fn keys_end_it() {
        let mut screen = Screen::default();
        assert_eq!(screen.key(KeyCode::Char('q'), KeyModifiers::NONE), KeyAction::End);
        assert_eq!(screen.key(KeyCode::Char('c'), KeyModifiers::CONTROL), KeyAction::End);
        assert_eq!(screen.key(KeyCode::Char('c'), KeyModifiers::NONE), KeyAction::Nothing);
    }
}
