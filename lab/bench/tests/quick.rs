// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The benches as a command: rows come out as the measuring contract says, and nothing runs on afterwards.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use memlift_bench::{Row, Verdict};

fn bench(arguments: &[&str]) -> Output {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let cache = std::env::temp_dir().join(format!("memlift-bench-quick-{}-{call}", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_memlift-bench"))
        .args(arguments)
        .env("XDG_CACHE_HOME", &cache)
        .output()
        .expect("the command of this crate starts");
    let _ = std::fs::remove_dir_all(&cache);
    output
}

#[test]
fn a_cold_row_runs_its_contenders_and_verifies() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().to_str().expect("UTF-8");
    let output = bench(&["copy", "--quick", "--json", "--only", "copy/33554432/cold", "--report", report]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let rows: Vec<Row> = text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    let rivals: Vec<&str> = rows.iter().map(|row| row.rival.as_str()).collect();
    assert_eq!(rivals, ["glibc", "glibc_tuned", "glibc"], "{errors}");
    for row in &rows {
        assert!(row.ours.is_some_and(|ms| ms > 0.0) && row.theirs.is_some_and(|ms| ms > 0.0), "{row:?}");
        assert!(row.cpu_s.ours.is_some() && row.cpu_s.theirs.is_some(), "{row:?}");
        assert_eq!(row.low, None, "two pairs bound nothing");
        let target = !row.name.ends_with("/1core");
        assert_eq!(row.verdict, if target { None } else { Some(Verdict::Ok) }, "{row:?}");
    }
    assert!(rows[1].qualifies.contains("x86_non_temporal_threshold="), "{}", rows[1].qualifies);
    let page = std::fs::read_to_string(folder.path().join("index.html")).expect("a report");
    assert_eq!(page.matches("<tr><td>copy/33554432/cold").count(), rows.len(), "{page}");
    assert!(page.contains("<svg") && page.contains("glibc_tuned"));
}

#[test]
fn a_durable_transaction_is_counted_beside_its_rival_and_its_limit() {
    let output = bench(&["persist", "--quick", "--json", "--only", "tx/64x1"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let rows: Vec<Row> = text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    let [libpmemobj, limit] = &rows[..] else { panic!("two rows: {text}") };
    assert_eq!(limit.verdict, Some(Verdict::Ok), "{limit:?}");
    if let Some(fences) = limit.count.get("fences") {
        assert_eq!((*fences, limit.count["theirs_loaded_fences"]), (1, 1), "{limit:?}");
    }
    if libpmemobj.verdict == Some(Verdict::Missing) {
        assert!(libpmemobj.qualifies.starts_with("libpmemobj is missing: "), "{}", libpmemobj.qualifies);
    } else {
        assert!(libpmemobj.theirs.is_some_and(|ns| ns > 0.0), "{libpmemobj:?}");
        assert_eq!(libpmemobj.count.get("theirs_fences").copied().unwrap_or(5), 5, "3 + 2 per range");
    }
}

#[test]
fn what_does_not_exist_is_said() {
    let output = bench(&["copy", "--only", "copy/1/cold"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no row of `copy` fits `copy/1/cold`"));
    let output = bench(&["nothing"]);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("there are: copy, devices, ipc, persist, transform")
    );
}
