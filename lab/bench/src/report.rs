// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report of a bench: one page with both sides over size, all ratios, and every row.
//!
//! - **Flow** rows ─▶ [`families`]: rows whose names differ in a size only ─▶ a drawing per family and quantity (time, CPU time, memory) ·
//!   rows with a ratio ─▶ one drawing of ratios with their bounds ─▶ table ─▶ index.html
//! - **Layout** memlift's curve is thick, a rival's thin; both axes are logarithmic. Memory is `ours_kib` and `theirs_kib` of a row's counts
//! - **Order** the same rows give the same bytes, but for the line that says where and when
//! - **Not here** scripts, fonts, pictures from elsewhere: the page is one file that any browser shows without a network

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use crate::drawing::{LogAxis, curve, document, dot, escape, label, line};
use crate::row::three_digits;
use crate::statistics::median;
use crate::{BenchError, Row, Verdict, machine, record};

const STYLE: &str = "body{font-family:sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;margin:1rem 0;font-size:.85rem}td,th{border-bottom:1px solid #ddd;padding:.2rem .6rem;text-align:left;\
vertical-align:top}td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}.short{color:#a4262c}.ok{color:#0b6a2b}\
.missing,.note{color:#666}svg{max-width:100%;height:auto}h2{margin-top:2.5rem}";
const OURS: &str = "#0b6fb8";
const THEIRS: &[&str] = &[
    "#c4472b", "#3a8f3a", "#8a5bb5", "#b8860b", "#d1568f", "#4d4d4d", "#1c9a9a", "#93633c", "#7a8f1a",
    "#e0822e", "#5a6acf",
];
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
/// Room for the names of the curves.
const RIGHT: f64 = 130.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 46.0;

/// A quantity of both sides of a row.
struct Quantity {
    title: &'static str,
    unit: &'static str,
    of: fn(&Row) -> (Option<f64>, Option<f64>),
}

const QUANTITIES: &[Quantity] = &[
    Quantity {
        title: "Time",
        unit: "µs",
        of: |row| (microseconds(row, row.ours), microseconds(row, row.theirs)),
    },
    Quantity {
        title: "CPU time of all processes",
        unit: "µs",
        of: |row| (row.cpu_s.ours.map(|s| s * 1e6), row.cpu_s.theirs.map(|s| s * 1e6)),
    },
    Quantity {
        title: "Memory beyond the data itself",
        unit: "MiB",
        of: |row| {
            let mib = |name| row.count.get(name).map(|kib: &u64| *kib as f64 / 1024.0);
            (mib("ours_kib"), mib("theirs_kib"))
        },
    },
];

/// Returns a value of a row in microseconds; None if its unit is no time.
fn microseconds(row: &Row, value: Option<f64>) -> Option<f64> {
    let factor = match row.unit.as_str() {
        "s" => 1e6,
        "ms" => 1e3,
        "us" => 1.0,
        "ns" => 1e-3,
        _ => return None,
    };
    Some(value? * factor)
}

/// A name without the number that is a size, and that size.
fn sized(name: &str) -> Option<(String, u64)> {
    let parts: Vec<&str> = name.split('/').collect();
    let at = parts.iter().position(|part| part.parse::<u64>().is_ok_and(|size| size > 0))?;
    let size = parts[at].parse().ok()?;
    let family: Vec<&str> =
        parts.iter().enumerate().filter(|(index, _)| *index != at).map(|(_, part)| *part).collect();
    Some((family.join("/"), size))
}

/// Groups rows whose names differ in a size only and have several sizes.
fn families(rows: &[Row]) -> BTreeMap<String, Vec<(u64, &Row)>> {
    let mut families: BTreeMap<String, Vec<(u64, &Row)>> = BTreeMap::new();
    for row in rows {
        if let Some((family, size)) = sized(&row.name) {
            families.entry(family).or_default().push((size, row));
        }
    }
    families.retain(|_, rows| rows.iter().map(|(size, _)| size).collect::<BTreeSet<_>>().len() > 1);
    families
}

fn bytes(size: f64) -> String {
    let (value, unit) = [(30, "GiB"), (20, "MiB"), (10, "KiB")]
        .iter()
        .find(|(power, _)| size >= f64::from(1 << power))
        .map_or((size, "B"), |(power, unit)| (size / f64::from(1 << power), unit));
    if value.fract() == 0.0 { format!("{value} {unit}") } else { format!("{} {unit}", three_digits(value)) }
}

/// Draws one quantity of a family; None where no row has it.
fn family(name: &str, quantity: &Quantity, rows: &[(u64, &Row)]) -> Option<String> {
    let mut ours: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    let mut theirs: BTreeMap<&str, BTreeMap<u64, f64>> = BTreeMap::new();
    for (size, row) in rows {
        let (our, their) = (quantity.of)(row);
        ours.entry(*size).or_default().extend(our.filter(|value| *value > 0.0));
        if let Some(value) = their.filter(|value| *value > 0.0) {
            theirs.entry(&row.rival).or_default().insert(*size, value);
        }
    }
    let ours: BTreeMap<u64, f64> = ours
        .into_iter()
        .filter(|(_, values)| !values.is_empty())
        .map(|(size, values)| (size, median(values)))
        .collect();
    let values = || ours.values().chain(theirs.values().flat_map(BTreeMap::values)).copied();
    let sizes = || ours.keys().chain(theirs.values().flat_map(BTreeMap::keys)).map(|size| *size as f64);
    let across = LogAxis::over(sizes(), LEFT, WIDTH - RIGHT)?;
    let up = LogAxis::over(values(), HEIGHT - BOTTOM, TOP)?;
    let mut body = String::new();
    label(
        &mut body,
        16.0,
        24.0,
        "start",
        15,
        &format!("{name}: {}, {}", quantity.title.to_lowercase(), quantity.unit),
    );
    for tick in across.ticks(4.0) {
        line(&mut body, (across.at(tick), TOP), (across.at(tick), HEIGHT - BOTTOM), "#eeeeee", 1.0);
        label(&mut body, across.at(tick), HEIGHT - BOTTOM + 18.0, "middle", 11, &bytes(tick));
    }
    for tick in up.ticks(10.0) {
        line(&mut body, (LEFT, up.at(tick)), (WIDTH - RIGHT, up.at(tick)), "#dddddd", 1.0);
        label(&mut body, LEFT - 8.0, up.at(tick) + 4.0, "end", 11, &three_digits(tick));
    }
    let mut named: Vec<(f64, String, &str)> = Vec::new();
    let mut draw = |name: &str, points: &BTreeMap<u64, f64>, color: &'static str, width: f64| {
        let places: Vec<(f64, f64)> =
            points.iter().map(|(size, value)| (across.at(*size as f64), up.at(*value))).collect();
        if let Some((_, y)) = places.last() {
            curve(&mut body, &places, color, width);
            named.push((*y, name.to_owned(), color));
        }
    };
    for ((rival, points), color) in theirs.iter().zip(THEIRS.iter().cycle()) {
        draw(rival, points, color, 1.4);
    }
    draw("memlift", &ours, OURS, 3.0);
    names(&mut body, named);
    Some(document(WIDTH, HEIGHT, &body))
}

/// Names at the ends of their curves, moved apart where they would meet.
fn names(body: &mut String, mut named: Vec<(f64, String, &str)>) {
    named.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut free = TOP - 20.0;
    for (wanted, name, color) in named {
        let y = wanted.max(free);
        free = y + 14.0;
        line(body, (WIDTH - RIGHT + 4.0, wanted), (WIDTH - RIGHT + 14.0, y), color, 1.0);
        let _ = writeln!(body, "<g fill=\"{color}\">");
        label(body, WIDTH - RIGHT + 18.0, y + 4.0, "start", 12, &name);
        body.push_str("</g>\n");
    }
}

/// Every ratio with its lower bound, on one logarithmic axis.
pub(crate) fn ratios(rows: &[Row]) -> Option<String> {
    const LINE: f64 = 18.0;
    let rows: Vec<(&Row, f64)> =
        rows.iter().filter_map(|row| Some((row, row.ratio.filter(|ratio| *ratio > 0.0)?))).collect();
    if rows.is_empty() {
        return None;
    }
    let values = rows.iter().flat_map(|(row, ratio)| [*ratio, row.low.unwrap_or(*ratio)]).chain([1.0]);
    let across = LogAxis::over(values, 330.0, WIDTH - 30.0)?;
    let bottom = TOP + LINE * rows.len() as f64;
    let mut body = String::new();
    label(
        &mut body,
        16.0,
        24.0,
        "start",
        15,
        "how many times better than the rival; to the left: the 95 % lower bound",
    );
    for tick in across.ticks(2.0) {
        line(&mut body, (across.at(tick), TOP), (across.at(tick), bottom), "#e4e4e4", 1.0);
        label(&mut body, across.at(tick), bottom + 16.0, "middle", 11, &three_digits(tick));
    }
    line(&mut body, (across.at(1.0), TOP), (across.at(1.0), bottom), "#444444", 1.4);
    for (index, (row, ratio)) in rows.iter().enumerate() {
        let y = TOP + LINE * (index as f64 + 0.5);
        let name = match sized(&row.name) {
            Some((family, size)) if size >= 1024 => format!("{family} {}", bytes(size as f64)),
            _ => row.name.clone(),
        };
        label(&mut body, 322.0, y + 4.0, "end", 11, &format!("{name} : {}", row.rival));
        if let Some(low) = row.low.filter(|low| *low > 0.0) {
            line(&mut body, (across.at(low), y), (across.at(*ratio), y), OURS, 2.0);
        }
        dot(
            &mut body,
            across.at(*ratio),
            y,
            if row.verdict == Some(Verdict::Short) { "#ffffff" } else { OURS },
            OURS,
        );
    }
    Some(document(WIDTH, bottom + 30.0, &body))
}

fn table(out: &mut String, rows: &[Row]) {
    out.push_str("<table>\n<tr><th>row</th><th>memlift</th><th>rival</th><th></th><th>rival is</th><th>ratio</th><th>at least</th>");
    out.push_str("<th>CPU ms</th><th>rival's</th><th>counts</th><th>verdict</th><th>how</th></tr>\n");
    let number = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), three_digits);
    for row in rows {
        let (class, verdict) = match row.verdict {
            Some(Verdict::Ok) => ("ok", "ok"),
            Some(Verdict::Short) => ("short", "short"),
            Some(Verdict::Missing) => ("missing", "missing"),
            None => ("", "ran"),
        };
        let counts: Vec<String> = row.count.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let _ = write!(out, "<tr><td>{}</td>", escape(&row.name));
        let _ = write!(
            out,
            "<td class=\"n\">{}</td><td class=\"n\">{}</td>",
            number(row.ours),
            number(row.theirs)
        );
        let _ = write!(out, "<td>{}</td><td>{}</td>", escape(&row.unit), escape(&row.rival));
        let _ =
            write!(out, "<td class=\"n\">{}</td><td class=\"n\">{}</td>", number(row.ratio), number(row.low));
        for cpu_s in [row.cpu_s.ours, row.cpu_s.theirs] {
            let _ = write!(out, "<td class=\"n\">{}</td>", number(cpu_s.map(|seconds| seconds * 1e3)));
        }
        let _ = write!(out, "<td>{}</td><td class=\"{class}\">{verdict}</td>", escape(&counts.join(", ")));
        let _ = writeln!(out, "<td class=\"note\">{}</td></tr>", escape(&row.qualifies));
    }
    out.push_str("</table>\n");
}

/// Returns the whole page as HTML.
fn page(service: &str, rows: &[Row], place: &str) -> String {
    let title = format!("memlift bench {service}");
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style></head>\n<body>\n\
         <h1>{title}</h1>\n<p>{}</p>\n<p class=\"note\">Medians of interleaved pairs. Both sides write and read every byte and both compare what \
         arrived. A ratio above 1 means that memlift is better; against <i>limit</i> it is the share of a physical limit that is reached. Every \
         rival runs in the configuration that the last column of the table names.</p>\n",
        escape(place)
    );
    if rows.iter().all(|row| row.low.is_none()) {
        out.push_str("<p class=\"note\">No row has a lower bound: a quick run shows that everything runs, its times say nothing.</p>\n");
    }
    for (name, rows) in families(rows) {
        let drawings: Vec<String> =
            QUANTITIES.iter().filter_map(|quantity| family(&name, quantity, &rows)).collect();
        if !drawings.is_empty() {
            let _ = writeln!(out, "<h2>{} over size</h2>\n{}", escape(&name), drawings.concat());
        }
    }
    if let Some(drawing) = ratios(rows) {
        let _ = writeln!(out, "<h2>Ratios</h2>\n{drawing}");
    }
    out.push_str("<h2>All rows</h2>\n");
    table(&mut out, rows);
    out.push_str("</body>\n</html>\n");
    out
}

/// Writes `index.html` into `folder`, which is made if need be; gives its path.
pub fn write(folder: &Path, service: &str, rows: &[Row]) -> Result<PathBuf, BenchError> {
    fs::create_dir_all(folder).map_err(BenchError::file(folder))?;
    let place = format!(
        "{}, {} cores, Linux {}, memlift {}, {}",
        machine::cpu_name(),
        machine::cores(),
        machine::kernel(),
        env!("CARGO_PKG_VERSION"),
        record::now(),
    );
    let path = folder.join("index.html");
    fs::write(&path, page(service, rows, &place)).map_err(BenchError::file(&path))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuSeconds;

    fn row(name: &str, rival: &str, ours: f64, theirs: f64) -> Row {
        let definition = crate::definition::all("ipc").expect("parses").remove(0);
        Row {
            name: name.into(),
            rival: rival.into(),
            unit: "us".into(),
            ours: Some(ours),
            theirs: Some(theirs),
            ratio: Some(theirs / ours),
            low: Some(0.9 * theirs / ours),
            count: [("ours_kib".to_owned(), 10), ("theirs_kib".to_owned(), 2000)].into(),
            cpu_s: CpuSeconds { ours: Some(ours * 1e-6), theirs: Some(theirs * 1e-6) },
            qualifies: "a < b & \"c\"".into(),
            ..Row::new(&definition)
        }
    }

    #[test]
    fn a_family_is_drawn_by_time_cpu_and_memory_and_every_row_stands_in_the_table() {
        let rows = [
            row("ipc/array/4096", "zmq", 10.0, 80.0),
            row("ipc/array/1048576", "zmq", 100.0, 900.0),
            row("ipc/array/1048576", "<pipe>", 120.0, 700.0),
            row("ipc/idle", "none", 1.0, 2.0),
        ];
        let page = page("ipc", &rows, "here");
        assert_eq!(page.matches("<svg").count(), QUANTITIES.len() + 1, "three quantities and the ratios");
        assert_eq!(
            page.matches("<polyline").count(),
            3 * QUANTITIES.len(),
            "memlift, zmq and a pipe in each"
        );
        assert_eq!(page.matches("<tr><td>ipc/").count(), rows.len());
        assert!(
            page.contains("&lt;pipe&gt;")
                && page.contains("a &lt; b &amp; &quot;c&quot;")
                && !page.contains("<pipe>")
        );
        assert!(
            !page.contains("NaN")
                && !page.contains("inf")
                && !page.contains("http://e")
                && !page.contains("<script")
        );
        for place in page.split("cx=\"").skip(1).map(|rest| rest.split('"').next().expect("a number")) {
            assert!((0.0..=WIDTH).contains(&place.parse::<f64>().expect("a number")), "{place}");
        }
    }

    #[test]
    fn rows_that_say_nothing_are_listed_and_not_drawn() {
        let definition = crate::definition::all("ipc").expect("parses").remove(0);
        let page = page("ipc", &[Row::missing(&definition, "pip install it")], "here");
        assert!(
            !page.contains("<svg") && page.contains("pip install it") && page.contains("class=\"missing\"")
        );
    }
}
