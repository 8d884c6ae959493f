// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs of others under `memlift run`: the same output, messages and exit code as without, inside their budget and below it.
//!
//! - **Method** each runs alone, then in a budget that it never reaches, then in 80 % of the peak of that run. Programs that are not
//!   installed are left out, and named
//! - **Not here** larger ones, more of them and smaller budgets: `tools/compatibility`, which makes a page of the docs

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::place::{Place, python, text};

/// A budget that none of the programs comes near.
const FAR: &str = "1G";

/// Commands that must be there, and a line for the shell, which runs in an empty folder.
const PROGRAMS: [(&[&str], &str); 15] = [
    (
        &["python3"],
        "$PYTHON -c 'd = {i: (i, str(i)) for i in range(150_000)}; print(sum(len(v[1]) for v in d.values()), len(d))'",
    ),
    (
        &["perl"],
        r#"perl -e 'my %h; $h{$_} = "v$_" x 3 for 1..80000; my $s = 0; $s += length for values %h; print "$s\n"; warn "done\n"'"#,
    ),
    (
        &["bash"],
        r#"bash -c 'for i in {1..40000}; do a[$i]=$((i * 2)); done; echo ${#a[@]} ${a[777]}; exit 3'"#,
    ),
    (&["sort"], "seq 150000 | sort -r -S 40M | sort -n -S 40M --parallel=2 | cksum"),
    (
        &["gcc"],
        r#"awk 'BEGIN { for (i = 0; i < 500; i++) printf "int g%d(int n) { int s = 0; for (int i = 0; i < n; i++) s += i * %d; return s; }\n", i, i }' > t.c && gcc -O1 -c t.c && nm t.o | cksum"#,
    ),
    (
        &["g++"],
        r#"printf '#include <map>\n#include <string>\n#include <vector>\nint main() { std::map<std::string, std::vector<int>> m; m["a"].push_back(1); return int(m.size()) - 1; }\n' > t.cc && g++ -O1 t.cc -o t && ./t && echo right"#,
    ),
    (
        &["java", "javac"],
        r#"printf 'import java.util.*; class T { public static void main(String[] a) { var m = new HashMap<Integer, String>(); for (int i = 0; i < 150000; i++) m.put(i, "v" + i); System.out.println(m.size() + " " + m.get(777)); System.exit(4); } }' > T.java && java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx256m T.java"#,
    ),
    (
        &["node"],
        r#"node -e 'const m = new Map(); for (let i = 0; i < 200000; i++) m.set("k" + i, {i}); console.log(m.size, m.get("k777").i); console.error("done")'"#,
    ),
    (
        &["sqlite3"],
        "sqlite3 :memory: \"create table t as with recursive n(i) as (select 1 union all select i + 1 from n where i < 80000) select i, 'text ' || i as s from n; create index s on t(s); select count(*), sum(i), max(s) from t;\"",
    ),
    (
        &["jq"],
        r#"seq 30000 | jq -c '{i: ., s: "v\(.)"}' | jq -s 'map(.i) | add, length, (group_by(. % 7) | length)'"#,
    ),
    (
        &["git"],
        r#"git init -q && for i in $(seq 20); do seq $i 2000 > f$i; done && git add . && git -c user.name=a -c user.email=a@b commit -qm all && git repack -adq && git ls-tree HEAD | cksum; git show nothing"#,
    ),
    (&["xz"], "seq 150000 | xz -3 | xz -d | cksum; echo broken | xz -d"),
    (&["zstd"], "seq 150000 | zstd -q -6 | zstd -dq | cksum; echo broken | zstd -dq"),
    (
        &["rustc"],
        r#"printf 'fn main() { let v: Vec<String> = (0..100).map(|i| i.to_string()).collect(); println!("{}", v.join("").len()); }' > t.rs && rustc t.rs && ./t"#,
    ),
    (
        &["openssl"],
        "seq 100000 | openssl enc -aes-256-cbc -pbkdf2 -pass pass:x -S 0011223344556677 | openssl dgst -sha256; openssl no-such-command",
    ),
];

/// Those whose memory is mostly data. That of the others is mostly text, stacks and files, which stay in memory.
const OF_DATA: [&str; 3] = ["python3", "java", "node"];

fn is_here(name: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(name).exists())
}

/// Runs the command in an empty folder. Returns its output without the lines of memlift and without the folder's name.
fn ran(mut command: Command, folder: &Path) -> (String, Vec<String>, Option<i32>) {
    std::fs::create_dir(folder).expect("a folder");
    command.current_dir(folder).env("PYTHON", python()).env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
    let Output { status, stdout, stderr } = command.output().expect("it starts");
    let name = folder.to_str().expect("UTF-8");
    let messages = text(&stderr).replace(name, "FOLDER");
    let messages = messages.lines().filter(|line| !line.starts_with("memlift:")).map(str::to_owned).collect();
    std::fs::remove_dir_all(folder).expect("removed");
    (text(&stdout).replace(name, "FOLDER"), messages, status.code())
}

#[test]
fn programs_of_others_do_the_same_under_a_budget() {
    let place = Place::new();
    let (folder, report) = (place.folder.path().join("at"), place.folder.path().join("report.json"));
    let report_name = report.to_str().expect("UTF-8");
    let mut run = 0;
    for (needs, line) in PROGRAMS {
        let [name, ..] = needs else { continue };
        if let Some(missing) = needs.iter().find(|need| !is_here(need)) {
            println!("{name}: not run, {missing} is not installed");
            continue;
        }
        let mut alone = Command::new("sh");
        alone.args(["-c", line]);
        let alone = ran(alone, &folder);
        assert!(!alone.0.is_empty(), "{name} by itself: {alone:?}");
        let under = |budget: &str| {
            let options =
                ["--memory", budget, "--on-overflow", "pause:60", "--report", report_name, "--force"];
            let mut command = place.memlift(&["run"]);
            command.args(options).args(["--", "sh", "-c", line]);
            ran(command, &folder)
        };
        assert_eq!(under(FAR), alone, "{name} far inside its budget");
        let number = |key: &str| {
            let text = std::fs::read_to_string(&report).expect("a report");
            serde_json::from_str::<serde_json::Value>(&text).expect("JSON")[key].as_u64().expect("a number")
        };
        let peak = number("peak_counted_bytes");
        if OF_DATA.contains(name) {
            assert_eq!(under(&(peak * 8 / 10).to_string()), alone, "{name} in 80 % of {peak} bytes");
        }
        println!("{name}: the same, peak {} MiB", peak >> 20);
        run += 1;
    }
    assert!(run >= 5, "hardly anything is installed");
}
