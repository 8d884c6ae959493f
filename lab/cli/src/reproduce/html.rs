// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report: one page with every figure, its numbers and what went into the models.
//!
//! - **Layout** summary · fitted inputs · each figure: drawing, verdicts, table, notes · every parameter with its source
//! - **Order** the same figures give the same bytes
//! - **Not here** scripts, fonts, pictures from elsewhere: the page is one file that any browser shows without a network

use std::fmt::Write;

use memlift_bench::drawing::escape;
use memlift_model::parameters::{Kind, Parameters};
use memlift_model::reproduce::{Figure, Role};

use super::svg;
use super::{deviation, number, paper};

const STYLE: &str = "body{font-family:sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;margin:1rem 0}td,th{border-bottom:1px solid #ddd;padding:.2rem .7rem;text-align:left}\
td.n{text-align:right;font-variant-numeric:tabular-nums}.no{color:#a4262c}.yes{color:#0b6a2b}svg{max-width:100%;height:auto}\
h2{margin-top:3rem}.note{color:#555}";

fn row(out: &mut String, cells: &[(&str, String)]) {
    out.push_str("<tr>");
    for (class, text) in cells {
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        let _ = write!(out, "<td{class}>{}</td>", escape(text));
    }
    out.push_str("</tr>\n");
}

fn head(out: &mut String, names: &[&str]) {
    out.push_str("<table>\n<tr>");
    for name in names {
        let _ = write!(out, "<th>{}</th>", escape(name));
    }
    out.push_str("</tr>\n");
}

fn mark(holds: Option<bool>) -> (&'static str, String) {
    match holds {
        Some(true) => ("yes", "yes".into()),
        Some(false) => ("no", "no".into()),
        None => ("", String::new()),
    }
}

fn figure(out: &mut String, figure: &Figure) {
    let _ = writeln!(out, "<h2 id=\"{}\">{}</h2>", figure.name, escape(figure.title));
    let _ = writeln!(out, "<p class=\"note\">{}</p>\n{}", escape(figure.source), svg::draw(figure));
    head(out, &["asked", "", "answer"]);
    for verdict in &figure.verdicts {
        row(out, &[("", verdict.question.clone()), mark(verdict.holds), ("", verdict.answer.clone())]);
    }
    out.push_str("</table>\n");
    head(out, &["row", "quantity", "paper", "model", "deviation", "row is"]);
    for line in &figure.rows {
        row(
            out,
            &[
                ("", line.label.clone()),
                ("", line.quantity.to_owned()),
                ("n", paper(line)),
                ("n", number(line.model)),
                ("n", deviation(line)),
                ("", line.role.name().to_owned()),
            ],
        );
    }
    out.push_str("</table>\n");
    for note in &figure.notes {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", escape(note));
    }
}

fn parameters(out: &mut String, all: &[Parameters], wanted: impl Fn(Kind) -> bool) {
    head(out, &["device", "parameter", "value", "kind", "source"]);
    for device in all {
        for (name, parameter) in device.iter().filter(|(_, parameter)| wanted(parameter.kind)) {
            let cells = [
                ("", device.device().to_owned()),
                ("", name.to_owned()),
                ("n", parameter.text.clone()),
                ("", parameter.kind.name().to_owned()),
                ("", parameter.source.clone()),
            ];
            row(out, &cells);
        }
    }
    out.push_str("</table>\n");
}

/// Returns the HTML page with all figures and their inputs.
pub fn page(figures: &[Figure], inputs: &[Parameters]) -> String {
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>Papers beside models</title><style>{STYLE}</style></head>\n\
         <body>\n<h1>Papers beside models</h1>\n<p>Numbers that papers print, beside what the device models of memlift give. A row that a \
         parameter was fitted to, or that is an input, says so and is left out of the mean.</p>\n"
    );
    head(&mut out, &["figure", "what", "rows predicted", "mean deviation", "asked and so"]);
    for figure in figures {
        let deviations: Vec<f64> = figure
            .rows
            .iter()
            .filter(|line| line.role == Role::Predicted)
            .filter_map(|line| Some(line.paper?.deviation(line.model).abs()))
            .collect();
        let mean = match deviations.len() {
            0 => "–".to_owned(),
            count => format!("{:.1} %", 100.0 * deviations.iter().sum::<f64>() / count as f64),
        };
        let asked = figure.verdicts.iter().filter(|verdict| verdict.holds.is_some()).count();
        let so = figure.verdicts.iter().filter(|verdict| verdict.holds == Some(true)).count();
        let _ = write!(out, "<tr><td><a href=\"#{0}\">{0}</a></td>", figure.name);
        let _ = writeln!(
            out,
            "<td>{}</td><td class=\"n\">{}</td><td class=\"n\">{mean}</td><td class=\"n\">{so} of {asked}</td></tr>",
            escape(figure.title),
            deviations.len()
        );
    }
    out.push_str("</table>\n<h2>What was fitted</h2>\n");
    parameters(&mut out, inputs, |kind| kind == Kind::Fitted);
    figures.iter().for_each(|one| figure(&mut out, one));
    out.push_str("<h2>All inputs</h2>\n");
    parameters(&mut out, inputs, |_| true);
    out.push_str("</body>\n</html>\n");
    out
}
