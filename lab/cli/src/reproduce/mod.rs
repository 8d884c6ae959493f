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
use memlift_model::reproduce::{ALL, Entry, Figure, Inputs, Paper, Row, named};
use serde_json::{Value, json};

use memlift_cli::failure::Failure;
use memlift_cli::{output, print};

use crate::PARAMETERS_BYTES_MAX;

/// Shown under the help text.
pub const EXAMPLES: &str = "\
Examples:
  memlift reproduce --list
  memlift reproduce pulse-table4
  memlift reproduce --svg figures
  memlift reproduce pulse-fig9 --png figures
  memlift reproduce --html report
  memlift reproduce pulse-fig9 --parameters my-pulse.toml

Each row says whether it is predicted, was fitted to, or is an input of the model.";

/// Arguments of `memlift reproduce`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Names of figures; without a name, all of them
    #[arg(value_name = "FIGURE")]
    figures: Vec<String>,
    /// Name the figures that are there, and the parameters with their sources
    #[arg(long, conflicts_with_all = ["figures", "svg", "png", "html"])]
    list: bool,
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
            Failure::Failed(format!(
                "{}: {error}: give a file of parameters, `--list` prints the fields",
                path.display()
            ))
        })?;
        inputs
            .replace(&path.display().to_string(), &text)
            .map_err(|error| Failure::Failed(error.to_string()))?;
    }
    if args.list {
        return list(&inputs.parameters, as_json);
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
            documents.push(document(&figure, &drawn));
        } else {
            let gap = if index > 0 { "\n" } else { "" };
            print::line(&format!("{gap}{}", text(&figure)))?;
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

fn list(devices: &[Parameters], as_json: bool) -> Result<(), Failure> {
    if as_json {
        let figures: Vec<Value> =
            ALL.iter().map(|entry| json!({ "name": entry.name, "title": entry.title })).collect();
        let of = |device: &Parameters| {
            let one = |(name, parameter): (&str, &Parameter)| {
                json!({ "device": device.device(), "name": name, "value": parameter.text,
                        "kind": parameter.kind.name(), "source": parameter.source })
            };
            device.iter().map(one).collect::<Vec<_>>()
        };
        let parameters: Vec<Value> = devices.iter().flat_map(of).collect();
        return print::json(&json!({ "figures": figures, "parameters": parameters }));
    }
    let figures: Vec<Vec<String>> =
        ALL.iter().map(|entry| vec![entry.name.to_owned(), entry.title.to_owned()]).collect();
    print::line(&print::table(&["figure", "what"], &figures))?;
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

fn paper(row: &Row) -> String {
    match row.paper {
        Some(Paper::Value(value)) => number(value),
        Some(Paper::Between(low, high)) => format!("{} to {}", number(low), number(high)),
        None => "–".to_owned(),
    }
}

fn deviation(row: &Row) -> String {
    row.paper.map_or("–".to_owned(), |paper| format!("{:+.1} %", 100.0 * paper.deviation(row.model)))
}

fn text(figure: &Figure) -> String {
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
    let verdicts: Vec<String> = figure
        .verdicts
        .iter()
        .map(|verdict| {
            let mark = match verdict.holds {
                Some(true) => "yes",
                Some(false) => "no ",
                None => "   ",
            };
            format!("{mark}  {}: {}", verdict.question, verdict.answer)
        })
        .collect();
    parts.push(verdicts.join("\n"));
    let notes: Vec<String> = figure.notes.iter().map(|note| format!("note: {note}")).collect();
    parts.push(notes.join("\n"));
    parts.join("\n\n")
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

fn document(figure: &Figure, drawn: &[String]) -> Value {
    let file = |kind: &str| drawn.iter().find(|path| path.ends_with(kind));
    let rows: Vec<Value> = figure
        .rows
        .iter()
        .map(|row| {
            let paper = match row.paper {
                Some(Paper::Value(value)) => json!(value),
                Some(Paper::Between(low, high)) => json!([low, high]),
                None => Value::Null,
            };
            let deviation = row.paper.map(|paper| paper.deviation(row.model));
            json!({ "label": row.label, "quantity": row.quantity, "paper": paper, "model": row.model,
                    "deviation": deviation, "role": row.role.name() })
        })
        .collect();
    let verdicts: Vec<Value> = figure
        .verdicts
        .iter()
        .map(|verdict| json!({ "question": verdict.question, "answer": verdict.answer, "holds": verdict.holds }))
        .collect();
    json!({ "name": figure.name, "title": figure.title, "source": figure.source, "rows": rows,
            "verdicts": verdicts, "notes": figure.notes, "svg": file(".svg"), "png": file(".png") })
}
