// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift reproduce`: figures of papers beside what the device models here give.
//!
//! - **Flow** names ─▶ `memlift_model::reproduce` runs the machines ─▶ a table, the verdicts, the notes; JSON; one SVG or
//!   PNG per figure; one page of all
//! - **Order** names are checked before anything runs; figures come in the order of the list; the numbers are the same everywhere
//! - **Rule** it fails only if a machine gave a wrong answer; a figure that is far off is printed as it is
//! - **Not here** the machines and the papers' numbers (`lab/model`)

mod html;
#[cfg_attr(not(feature = "png"), path = "no_png.rs")]
mod png;
mod svg;

use std::fs;
use std::path::{Path, PathBuf};

use memlift::ground::input_file;
use memlift_model::parameters::{Parameter, Parameters};
use memlift_model::reproduce::{
    ALL, ALONE, Cover, Entry, Figure, Inputs, LeftOut, PUBLISHED, Paper, Published, Row, Span, left_out,
    named,
};
use serde_json::{Value, json};

use memlift_cli::failure::Failure;
use memlift_cli::{output, print};

use crate::PARAMETERS_BYTES_MAX;

/// Shown under the help text.
pub const EXAMPLES: &str = "\
Examples:
  memlift reproduce --list
  memlift reproduce pulse-table4
  memlift reproduce rocket-fig5 --ranges                        for which values of what is assumed are the answers the same?
  memlift reproduce --left-out                                  fitted values without the row that they are judged on
  memlift reproduce --svg figures
  memlift reproduce pulse-fig9 --png figures
  memlift reproduce --html report
  memlift reproduce pulse-fig9 --parameters my-pulse.toml

Each row says whether it is predicted, was fitted to, or is an input of the model. An answer that hangs on a value that nobody published is called
fitted.";

/// Arguments of `memlift reproduce`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Names of figures; without a name, all of them
    #[arg(value_name = "FIGURE")]
    figures: Vec<String>,
    /// Name what the papers measured, with the figures here or why there is none, and the parameters with their sources
    #[arg(long, conflicts_with_all = ["figures", "svg", "png", "html"])]
    list: bool,
    /// For each answer that hangs on an assumed or fitted value: the range of that value in which it is the same; runs a figure once for each value
    #[arg(long, conflicts_with = "list")]
    ranges: bool,
    /// Fit each fitted value again without one row, and predict that row
    #[arg(long, conflicts_with_all = ["figures", "svg", "png", "html", "list", "ranges"])]
    left_out: bool,
    /// Draw each figure into a file in this folder
    #[arg(long, value_name = "FOLDER")]
    svg: Option<PathBuf>,
    /// The same as PNG, twice as many pixels either way
    #[arg(long, value_name = "FOLDER")]
    png: Option<PathBuf>,
    /// Write one page with all of it, and no other file, into this folder: reproduce.html
    #[arg(long, value_name = "FOLDER")]
    html: Option<PathBuf>,
    /// Replace drawings that are there
    #[arg(long)]
    force: bool,
    /// Another file of parameters for the device that it names
    #[arg(long, value_name = "FILE")]
    parameters: Option<PathBuf>,
}

/// Runs, prints and draws.
pub fn run(args: &Args, as_json: bool) -> Result<(), Failure> {
    let mut inputs = Inputs::shipped();
    if let Some(path) = &args.parameters {
        let text = input_file::text(path, PARAMETERS_BYTES_MAX).map_err(|error| {
            let path = path.display();
            let text = format!("{path}: {error}: give a file of parameters, `--list` prints the fields");
            Failure::about(&error, text)
        })?;
        inputs
            .replace(&path.display().to_string(), &text)
            .map_err(|error| Failure::Failed(error.to_string()))?;
    }
    if args.list {
        return list(&inputs.parameters, as_json);
    }
    if args.left_out {
        let rows = left_out(&inputs).map_err(Failure::Failed)?;
        return without(&rows, as_json);
    }
    let entries = chosen(&args.figures)?;
    for folder in args.svg.iter().chain(&args.png).chain(&args.html) {
        fs::create_dir_all(folder).map_err(|error| {
            Failure::Failed(format!("{}: {error}: give a folder that can be written", folder.display()))
        })?;
    }
    let raster = args.png.is_some().then(png::Raster::new).transpose().map_err(Failure::Unavailable)?;
    let (mut documents, mut figures) = (Vec::new(), Vec::new());
    for (index, entry) in entries.iter().enumerate() {
        let figure =
            entry.run(&inputs).map_err(|error| Failure::Failed(format!("{}: {error}", entry.name)))?;
        let spans = if args.ranges {
            print::progress(&format!("{}: ranges", entry.name));
            entry
                .ranges(&inputs, &figure)
                .map_err(|error| Failure::Failed(format!("{}: {error}", entry.name)))?
        } else {
            Vec::new()
        };
        let mut drawn = Vec::new();
        if let Some(folder) = &args.svg {
            drawn.push(write(
                folder,
                args.force,
                &format!("{}.svg", figure.name),
                svg::draw(&figure).as_bytes(),
            )?);
        }
        if let (Some(folder), Some(raster)) = (&args.png, &raster) {
            let picture = raster
                .draw(&svg::draw(&figure))
                .map_err(|error| Failure::Failed(format!("{}: {error}", figure.name)))?;
            drawn.push(write(folder, args.force, &format!("{}.png", figure.name), &picture)?);
        }
        if as_json {
            documents.push(document(entry, &figure, &spans, &drawn));
        } else {
            let gap = if index > 0 { "\n" } else { "" };
            print::line(&format!("{gap}{}", text(entry, &figure, &spans)))?;
            for path in drawn {
                print::line(&format!("drawn in {path}"))?;
            }
        }
        figures.push(figure);
    }
    let page = match &args.html {
        Some(folder) => Some(write(
            folder,
            args.force,
            "reproduce.html",
            html::page(&figures, &inputs.parameters).as_bytes(),
        )?),
        None => None,
    };
    match (as_json, page) {
        (true, page) => print::json(&json!({ "figures": documents, "html": page })),
        (false, Some(path)) => print::line(&format!("\nthe report is {path}")),
        (false, None) => Ok(()),
    }
}

/// Writes a file into a folder that is there; its path.
fn write(folder: &Path, force: bool, name: &str, bytes: &[u8]) -> Result<String, Failure> {
    let path = folder.join(name);
    output::write(&path, "drawing", force, bytes)?;
    Ok(path.display().to_string())
}

/// The entries of these names, each once; all without a name.
fn chosen(names: &[String]) -> Result<Vec<&'static Entry>, Failure> {
    for name in names {
        if named(name).is_none() {
            let there: Vec<&str> = ALL.iter().map(|entry| entry.name).collect();
            return Err(Failure::Usage(format!("no figure {name:?}; there are: {}", there.join(", "))));
        }
    }
    Ok(ALL.iter().filter(|entry| names.is_empty() || names.iter().any(|name| name == entry.name)).collect())
}

/// Assumed and fitted parameters that answers of a figure hang on, each once.
fn assumed(entry: &Entry) -> Vec<&'static str> {
    let mut found: Vec<&str> = entry.rests().iter().map(|rest| rest.parameter).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn list(devices: &[Parameters], as_json: bool) -> Result<(), Failure> {
    if as_json {
        let one = |entry: &Entry| json!({ "name": entry.name, "title": entry.title, "compares_no_number": entry.without, "hangs_on": assumed(entry) });
        let figures: Vec<Value> = ALL.iter().map(one).collect();
        let published: Vec<Value> = PUBLISHED
            .iter()
            .map(|Published { paper, place, shows, cover }| {
                let (by, why) = match cover {
                    Cover::By(name) => (Some(name), None),
                    Cover::OutOfReach(why) => (None, Some(why)),
                };
                json!({ "paper": paper, "place": place, "shows": shows, "figure": by, "out_of_reach": why })
            })
            .collect();
        let of = |device: &Parameters| {
            let one = |(name, parameter): (&str, &Parameter)| {
                json!({ "device": device.device(), "name": name, "value": parameter.text,
                        "kind": parameter.kind.name(), "source": parameter.source })
            };
            device.iter().map(one).collect::<Vec<_>>()
        };
        let parameters: Vec<Value> = devices.iter().flat_map(of).collect();
        return print::json(&json!({ "figures": figures, "published": published, "parameters": parameters }));
    }
    let row = |entry: &Entry| {
        let numbers = entry.without.map_or("yes".to_owned(), |why| format!("none: {why}"));
        vec![entry.name.to_owned(), entry.title.to_owned(), assumed(entry).join(", "), numbers]
    };
    let figures: Vec<Vec<String>> = ALL.iter().map(row).collect();
    let headings = ["figure", "what", "answers hang on", "compares numbers that nobody fitted"];
    print::line(&print::table(&headings, &figures))?;
    let published: Vec<Vec<String>> = PUBLISHED
        .iter()
        .map(|Published { paper, place, shows, cover }| {
            let cover = match cover {
                Cover::By(name) => (*name).to_owned(),
                Cover::OutOfReach(why) => format!("out of reach: {why}"),
            };
            vec![(*paper).to_owned(), (*place).to_owned(), (*shows).to_owned(), cover]
        })
        .collect();
    print::line(&format!("\n{}", print::table(&["paper", "place", "shows", "here"], &published)))?;
    for device in devices {
        let rows: Vec<Vec<String>> = device
            .iter()
            .map(|(name, parameter)| {
                let kind = parameter.kind.name().to_owned();
                vec![name.to_owned(), parameter.text.clone(), kind, parameter.source.clone()]
            })
            .collect();
        let table = print::table(&[device.device(), ">value", "kind", "source"], &rows);
        print::line(&format!("\n{table}"))?;
    }
    Ok(())
}

fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn published(paper: Paper) -> String {
    match paper {
        Paper::Value(value) => number(value),
        Paper::Between(low, high) if low == high => number(low),
        Paper::Between(low, high) if high.is_infinite() => format!("at least {}", number(low)),
        Paper::Between(low, high) => format!("{} to {}", number(low), number(high)),
    }
}

fn paper(row: &Row) -> String {
    row.paper.map_or("–".to_owned(), published)
}

fn deviation(row: &Row) -> String {
    row.paper.map_or("–".to_owned(), |paper| format!("{:+.1} %", 100.0 * paper.deviation(row.model)))
}

fn text(entry: &Entry, figure: &Figure, spans: &[Span]) -> String {
    let mut parts = vec![format!("{}\n{}", figure.title, figure.source)];
    for quantity in quantities(figure) {
        let rows: Vec<Vec<String>> = figure
            .rows
            .iter()
            .filter(|row| row.quantity == quantity)
            .map(|row| {
                vec![
                    row.label.clone(),
                    paper(row),
                    number(row.model),
                    deviation(row),
                    row.role.name().to_owned(),
                ]
            })
            .collect();
        parts.push(print::table(&[quantity, ">paper", ">model", ">deviation", "row is"], &rows));
    }
    parts.push(numbers(entry, figure));
    let verdicts: Vec<String> = figure
        .verdicts
        .iter()
        .enumerate()
        .map(|(index, verdict)| {
            let mark = match verdict.holds {
                Some(true) => "yes",
                Some(false) => "no ",
                None => "   ",
            };
            let mut lines = vec![format!("{mark}  {}: {}", verdict.question, verdict.answer)];
            let ranges = spans.iter().filter(|span| span.verdict == index).map(range);
            lines.extend(ranges.map(|range| format!("     fitted: {range}")));
            let rests: Vec<&str> = entry.rests_of(index).map(|rest| rest.parameter).collect();
            if let (true, Some(rest)) = (spans.is_empty(), entry.rests_of(index).next()) {
                lines.push(format!("     fitted: {}", hangs(&rests.join(", "), rest.device)));
            }
            lines.join("\n")
        })
        .collect();
    parts.push(verdicts.join("\n"));
    let notes: Vec<String> = figure.notes.iter().map(|note| format!("note: {note}")).collect();
    parts.push(notes.join("\n"));
    parts.join("\n\n")
}

fn hangs(parameter: &str, device: &str) -> String {
    format!(
        "it hangs on {parameter} of {device}, which nobody published; --ranges finds for which values it is the same"
    )
}

/// Range of a value in which an answer is the same.
fn range(span: &Span) -> String {
    let Span { parameter, unit, kind, value, same: (low, high), tried: (least, most), .. } = span;
    let unit = if unit == "1" { String::new() } else { format!(" {unit}") };
    format!(
        "the same for {parameter} from {low}{unit} to {high}{unit} ({} {value}{unit}; tried {least} to {most})",
        kind.name()
    )
}

/// Numbers of the paper that nobody fitted.
fn numbers(entry: &Entry, figure: &Figure) -> String {
    let off = figure.distances();
    if off.is_empty() {
        return format!("compares no number that nobody fitted: {}", entry.without.unwrap_or("it has none"));
    }
    format!(
        "compares {} number{} that nobody fitted: off by {:.1} % on average, {:.1} % at most",
        off.len(),
        if off.len() == 1 { "" } else { "s" },
        100.0 * off.iter().sum::<f64>() / off.len() as f64,
        100.0 * off.iter().copied().fold(0.0, f64::max)
    )
}

/// Prints rows with scalars that were fitted on the others.
fn without(rows: &[LeftOut], as_json: bool) -> Result<(), Failure> {
    if as_json {
        let left: Vec<Value> = rows
            .iter()
            .map(|row| {
                let (shipped, model) = row.deviations();
                json!({ "figure": row.figure, "row": row.row, "scalars": row.scalars, "paper": value(row.paper), "shipped": row.shipped,
                        "model": row.model, "deviation_shipped": shipped, "deviation": model })
            })
            .collect();
        let alone: Vec<Value> = ALONE
            .iter()
            .map(|(figure, scalars, why)| json!({ "figure": figure, "scalars": scalars, "why": why }))
            .collect();
        return print::json(&json!({ "left_out": left, "alone": alone }));
    }
    let mut figures: Vec<&str> = rows.iter().map(|row| row.figure).collect();
    figures.dedup();
    for figure in figures {
        let of: Vec<&LeftOut> = rows.iter().filter(|row| row.figure == figure).collect();
        let table: Vec<Vec<String>> = of
            .iter()
            .map(|row| {
                let (shipped, model) = row.deviations();
                vec![
                    row.row.clone(),
                    published(row.paper),
                    number(row.shipped),
                    format!("{:+.1} %", 100.0 * shipped),
                    row.scalars.clone(),
                    number(row.model),
                    format!("{:+.1} %", 100.0 * model),
                ]
            })
            .collect();
        let headings =
            [figure, ">paper", ">shipped", ">deviation", "fitted without the row", ">model", ">deviation"];
        print::line(&print::table(&headings, &table))?;
        let mean = |of: &dyn Fn(&LeftOut) -> f64, rows: &[&LeftOut]| {
            100.0 * rows.iter().map(|row| of(row).abs()).sum::<f64>() / rows.len() as f64
        };
        print::line(&format!(
            "mean distance: {:.1} % with the shipped scalars, {:.1} % with scalars that never saw the row\n",
            mean(&|row| row.deviations().0, &of),
            mean(&|row| row.deviations().1, &of)
        ))?;
    }
    for (figure, scalars, why) in ALONE {
        print::line(&format!("{figure}: {scalars}: {why}"))?;
    }
    Ok(())
}

/// Each once, in the order of the rows.
fn quantities(figure: &Figure) -> Vec<&'static str> {
    let mut seen = Vec::new();
    for row in &figure.rows {
        if !seen.contains(&row.quantity) {
            seen.push(row.quantity);
        }
    }
    seen
}

/// The paper's number, or the ends of its range; a range without an upper end has null there.
fn value(paper: Paper) -> Value {
    match paper {
        Paper::Value(value) => json!(value),
        Paper::Between(low, high) => json!([low, Some(high).filter(|high| high.is_finite())]),
    }
}

fn document(entry: &Entry, figure: &Figure, spans: &[Span], drawn: &[String]) -> Value {
    let file = |kind: &str| drawn.iter().find(|path| path.ends_with(kind));
    let rows: Vec<Value> = figure
        .rows
        .iter()
        .map(|row| {
            let paper = row.paper.map_or(Value::Null, value);
            let deviation = row.paper.map(|paper| paper.deviation(row.model));
            json!({ "label": row.label, "quantity": row.quantity, "paper": paper, "model": row.model,
                    "deviation": deviation, "role": row.role.name() })
        })
        .collect();
    let verdicts: Vec<Value> = figure
        .verdicts
        .iter()
        .enumerate()
        .map(|(index, verdict)| {
            let hangs: Vec<&str> = entry.rests_of(index).map(|rest| rest.parameter).collect();
            let ranges: Vec<Value> = spans
                .iter()
                .filter(|span| span.verdict == index)
                .map(|span| {
                    json!({ "parameter": span.parameter, "unit": span.unit, "kind": span.kind.name(), "value": span.value,
                            "from": span.same.0, "to": span.same.1, "tried": [span.tried.0, span.tried.1] })
                })
                .collect();
            json!({ "question": verdict.question, "answer": verdict.answer, "holds": verdict.holds,
                    "fitted": !hangs.is_empty(), "hangs_on": hangs, "ranges": ranges })
        })
        .collect();
    let off = figure.distances();
    json!({ "compared": off.len(), "name": figure.name, "title": figure.title, "source": figure.source, "rows": rows,
            "verdicts": verdicts, "notes": figure.notes, "svg": file(".svg"), "png": file(".png") })
}
