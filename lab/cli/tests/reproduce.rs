// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift-lab reproduce` as its users meet it: its list, its numbers, its drawings, what bad input gets.
//!
//! - **Method** the short figures; the long table is run where it is made (`lab/model`)

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn reproduce(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memlift-lab"));
    command.arg("reproduce").args(arguments).env_remove("MEMLIFT_CONFIG").stdin(Stdio::null());
    command.output().expect("the command starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn refused(arguments: &[&str], code: i32) -> String {
    let output = reproduce(arguments);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{arguments:?}");
    text(&output.stderr)
}

#[test]
fn the_list_names_figures_and_every_parameter_with_its_source() {
    let output = reproduce(&["--list"]);
    let list = text(&output.stdout);
    assert!(
        output.status.success() && list.contains("pulse-table4") && list.contains("§6.2, figure 10"),
        "{list}"
    );
    let json: Value = serde_json::from_slice(&reproduce(&["--list", "--json"]).stdout).expect("JSON");
    let parameters = json["parameters"].as_array().expect("a list");
    assert!(parameters.iter().all(|one| one["source"].as_str().is_some_and(|source| !source.is_empty())));
    for (device, count) in [("pulse", 2), ("nearpm", 2), ("dsa", 1)] {
        let fitted = |one: &&Value| one["device"] == device && one["kind"] == "fitted";
        assert_eq!(parameters.iter().filter(fitted).count(), count, "{device}");
    }
}

#[test]
fn the_list_has_a_line_for_every_measurement_with_a_figure_or_a_reason() {
    let list = text(&reproduce(&["--list"]).stdout);
    for wanted in ["out of reach: ", "figure 12", "section V-C", "section VI", "pulse-table3", "nearpm-fig1"]
    {
        assert!(list.contains(wanted), "{wanted}: {list}");
    }
    let json: Value = serde_json::from_slice(&reproduce(&["--list", "--json"]).stdout).expect("JSON");
    let lines = json["published"].as_array().expect("a list");
    assert!(
        lines.len() >= 45 && lines.iter().all(|one| one["figure"].is_null() != one["out_of_reach"].is_null())
    );
}

#[test]
fn an_answer_that_hangs_on_an_assumption_is_called_fitted_and_has_a_range() {
    let shown = text(&reproduce(&["rocket-fig5"]).stdout);
    assert!(shown.contains("fitted: it hangs on working_set of dsa"), "{shown}");
    assert!(shown.contains("compares no number that nobody fitted"), "{shown}");
    let json: Value =
        serde_json::from_slice(&reproduce(&["rocket-fig5", "--ranges", "--json"]).stdout).expect("JSON");
    let verdicts = json["figures"][0]["verdicts"].as_array().expect("a list");
    assert_eq!((&verdicts[0]["fitted"], &verdicts[1]["fitted"]), (&false.into(), &true.into()));
    // Three threads lose by injection only where their working sets just fit the cache without it.
    let range = &verdicts[1]["ranges"][0];
    let of = |field: &str| range[field].as_f64().expect("a number");
    assert!((16.0..18.0).contains(&of("from")) && (22.0..25.0).contains(&of("to")), "{range}");
    assert!(range["value"] == 18.0 && of("to") < range["tried"][1].as_f64().expect("a number"), "{range}");
    // The list says what answers hang on, without running anything.
    let json: Value = serde_json::from_slice(&reproduce(&["--list", "--json"]).stdout).expect("JSON");
    for (figure, parameters) in [
        ("pulse-table4", vec!["arbitration", "contexts_per_workspace", "host", "memory_stages"]),
        ("rocket-fig11", vec!["batch", "message"]),
        ("smartdimm-fig10", vec!["contention", "message"]),
    ] {
        let mut figures = json["figures"].as_array().expect("a list").iter();
        let found = figures.find(|one| one["name"] == figure).expect("listed");
        assert_eq!(found["hangs_on"], serde_json::json!(parameters), "{figure}");
    }
}

/// `docs/design/model.md` has a line for each range, and none besides.
#[test]
#[ignore = "soak: runs each figure some dozen times"]
fn soak_ranges_in_the_docs_are_those_of_the_command() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/design/model.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let output = reproduce(&["--ranges", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut lines = Vec::new();
    for figure in json["figures"].as_array().expect("a list") {
        for (index, verdict) in figure["verdicts"].as_array().expect("a list").iter().enumerate() {
            for range in verdict["ranges"].as_array().expect("a list") {
                let unit = range["unit"].as_str().filter(|unit| *unit != "1").unwrap_or_default();
                let number = |field: &str| range[field].as_f64().expect("a number");
                let answer = if verdict["holds"] == true { "yes" } else { "no" };
                lines.push(format!(
                    "| {} | {} | {answer} | `{}` | {} | {}{}{unit} | {} to {} | {} to {} |",
                    figure["name"].as_str().expect("a name"),
                    index + 1,
                    range["parameter"].as_str().expect("a name"),
                    range["kind"].as_str().expect("a kind"),
                    number("value"),
                    if unit.is_empty() { "" } else { " " },
                    number("from"),
                    number("to"),
                    range["tried"][0].as_f64().expect("a number"),
                    range["tried"][1].as_f64().expect("a number"),
                ));
            }
        }
    }
    let missing: Vec<&String> = lines.iter().filter(|line| !page.contains(line.as_str())).collect();
    assert!(missing.is_empty(), "not in the page: {missing:#?}");
    let heading = "| figure | question | answer | hangs on |";
    let table = page.split(heading).nth(1).expect("the table");
    let shown = table
        .lines()
        .take_while(|line| line.starts_with('|') || line.is_empty())
        .filter(|line| line.contains('`'))
        .count();
    assert_eq!(shown, lines.len(), "lines of the page");
}

#[test]
fn fitted_values_are_fitted_again_without_a_row() {
    let shown = text(&reproduce(&["--left-out"]).stdout);
    for wanted in [
        "rocket-fig9",
        "pulse-table4",
        "dmu-fig19",
        "smartdimm-fig10",
        "scalars that never saw the row",
        "nearpm-fig17: command",
    ] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    let json: Value = serde_json::from_slice(&reproduce(&["--left-out", "--json"]).stdout).expect("JSON");
    assert_eq!(json["left_out"].as_array().map(Vec::len), Some(39));
}

#[test]
fn a_figure_is_drawn_as_png_with_its_words_or_what_to_install_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("new");
    let output = reproduce(&["pulse-fig10", "--json", "--png", path.to_str().expect("UTF-8")]);
    if !output.status.success() {
        assert_eq!(output.status.code(), Some(3));
        assert!(text(&output.stderr).contains("apt install fonts-"), "{}", text(&output.stderr));
        return;
    }
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let file = json["figures"][0]["png"].as_str().expect("the path");
    assert!(json["figures"][0]["svg"].is_null());
    let picture = std::fs::read(file).expect("drawn");
    let number = |at: usize| u32::from_be_bytes(picture[at..at + 4].try_into().expect("four bytes"));
    assert!(picture.starts_with(b"\x89PNG\r\n\x1a\n"));
    assert!(number(16) == 1640 && number(20) > 200, "{} by {}", number(16), number(20));
}

#[test]
fn a_figure_has_paper_and_model_side_by_side_and_is_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("new");
    let path = path.to_str().expect("UTF-8");
    let output = reproduce(&["pulse-fig10", "pulse-fig9", "--svg", path]);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for wanted in
        ["paper", "model", "deviation", "132.0", "input", "1.020 to 1.150", "predicted", "pulse-fig9.svg"]
    {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    let drawn = std::fs::read_to_string(format!("{path}/pulse-fig10.svg")).expect("drawn");
    assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n") && drawn.contains("network stack"));
    let json: Value = serde_json::from_slice(&reproduce(&["pulse-fig10", "--json"]).stdout).expect("JSON");
    let row = &json["figures"][0]["rows"][0];
    assert_eq!(
        (row["paper"].as_f64(), row["model"].as_f64(), row["role"].as_str()),
        (Some(430.0), Some(430.0), Some("input"))
    );
}

#[test]
fn the_report_is_one_page_that_needs_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("report");
    let output = reproduce(&["pulse-fig10", "nearpm-fig17", "--html", path.to_str().expect("UTF-8")]);
    assert!(output.status.success() && text(&output.stdout).contains("the report is "));
    let files: Vec<_> = std::fs::read_dir(&path).expect("a folder").collect();
    let page = std::fs::read_to_string(path.join("reproduce.html")).expect("a page");
    assert!(files.len() == 1 && page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    assert_eq!((page.matches("<svg ").count(), page.matches("<h2 id=").count()), (2, 2));
    assert_eq!(page.matches("<table>").count(), page.matches("</table>").count());
    for wanted in
        ["<td class=\"n\">1.130</td>", "fitted", "+0.4 %", "figure 17", "What was fitted", "cpu_line"]
    {
        assert!(page.contains(wanted), "{wanted}");
    }
    for outside in ["<script", "<img", "<link", "src=", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn bad_input_gets_a_line_that_says_what_to_do() {
    let unknown = refused(&["pulse-table4", "pulse-fig99"], 2);
    assert!(
        unknown.contains("no figure \"pulse-fig99\"; there are: pulse-table3, pulse-table4"),
        "{unknown}"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("mine.toml");
    let path = file.to_str().expect("UTF-8");
    assert!(refused(&["pulse-fig10", "--parameters", path], 3).contains("give a file of parameters"));
    std::fs::write(&file, "device = \"pulse\"\nversion = 1\n[scheduler]\nvalue = -1\n").expect("written");
    let missing = refused(&["pulse-fig10", "--parameters", path], 1);
    assert!(missing.contains("mine.toml: network_stack: it is missing; add its table"), "{missing}");
    let blocked = folder.path().join("mine.toml/figures");
    assert!(
        refused(&["pulse-fig10", "--svg", blocked.to_str().expect("UTF-8")], 1).contains("give a folder")
    );
}
