// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fourth chapter: one lookup along a chain of 48 nodes, as a GET chain and as one walk, as a table.
//!
//! - **Flow** [`story::tell`] ─▶ ways ─▶ text, or JSON lines (`about`, `row`, `missing`, `error`)
//! - **Skipped** where Redis cannot be had: its lines are left out, one says what to install, and nothing has failed
//! - **Not here** how it measures; `traverse/stores/story.rs` says so in its own header

use serde_json::json;

use super::TourOptions;
use crate::BenchError;
use crate::row::three_digits;
use crate::traverse::story::{self, Story};

/// Runs the chapter; gives whether what could be had ran and was right.
pub(super) fn run(options: &TourOptions) -> Result<bool, BenchError> {
    eprintln!("looking chains up …");
    let story = match story::tell(options.quick) {
        Ok(story) => story,
        Err(error) => {
            if options.json {
                println!("{}", json!({"chapter": "traverse", "kind": "error", "error": error.to_string()}));
            } else {
                println!("\ntraverse\nfailed: {error}");
            }
            return Ok(false);
        }
    };
    if options.json {
        lines(&story);
    } else {
        print!("{}", chapter(&story));
    }
    Ok(true)
}

fn lines(story: &Story) {
    let redis = story.redis.as_ref().ok();
    let (chains, nodes) = story.chains;
    println!(
        "{}",
        json!({"chapter": "traverse", "kind": "about", "chains": chains, "nodes": nodes, "redis": redis})
    );
    for way in &story.ways {
        let line = json!({
            "chapter": "traverse", "kind": "row", "way": way.way, "round_trips": way.round_trips,
            "median_s": way.median_s, "slow_s": way.slow_s, "cpu_s": way.cpu_s, "lookups": way.lookups,
        });
        println!("{line}");
    }
    if let Err(missing) = &story.redis {
        println!("{}", json!({"chapter": "traverse", "kind": "missing", "missing": missing}));
    }
}

/// The chapter as text.
fn chapter(story: &Story) -> String {
    let (chains, nodes) = story.chains;
    let beside = match &story.redis {
        Ok(version) => format!("{version} on a Unix socket, its client looking again before it sleeps"),
        Err(_) => "no Redis".to_owned(),
    };
    let mut text = format!(
        "\ntraverse: one lookup along a chain of 48\n\
         A message names the one before it, that one another: {chains} threads of 48, {nodes} nodes, scattered. Who wants the first \
         one asks 48\ntimes, because each answer says what to ask next; or sends the question to where the messages are. A memory \
         node over shared\nmemory, and {beside}. One lookup at a time, each answer checked.\n\n\
         {:<27} {:>11} {:>11} {:>11} {:>8} {:>9}\n",
        "way", "round trips", "median µs", "99 % µs", "CPU µs", "lookup"
    );
    let first = story.ways.first().map_or(f64::NAN, |way| way.median_s);
    for way in &story.ways {
        text += &format!(
            "{:<27} {:>11} {:>11} {:>11} {:>8} {:>9}\n",
            way.way,
            way.round_trips,
            three_digits(way.median_s * 1e6),
            three_digits(way.slow_s * 1e6),
            three_digits(way.cpu_s * 1e6),
            format!("{}×", three_digits(way.median_s / first)),
        );
    }
    text += "\nlookup: how many times the walk's time it takes. A sum on the way adds the 48 numbers at the node. CPU: client and \
             server,\nlooking again included.\n";
    if let Err(missing) = &story.redis {
        text += &format!("skipped: {missing}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_story_has_every_way_or_says_what_to_install() {
        let told = story::tell(true).expect("it runs");
        let text = chapter(&told);
        let line = text.lines().find(|line| line.starts_with("memlift: a walk")).expect("the walk's line");
        assert!(line.contains(" 1 ") && line.ends_with("1.00×"), "{line}");
        match &told.redis {
            Ok(version) => assert!(text.contains(version) && told.ways.len() == 5, "{text}"),
            Err(missing) => assert!(text.contains(missing) && told.ways.len() == 3, "{text}"),
        }
    }
}
