// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exports for simulators of memory, read back, and run in Ramulator2 where it is there.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::process::Command;

use super::place::{Place, text};
use super::{FORKED, answered, compiled, path};

/// The bytes of a file that gzip has packed.
fn unpacked(file: &str) -> Vec<u8> {
    let output = Command::new("gzip").args(["-dc", file]).output().expect("gzip");
    assert!(output.status.success(), "{}", text(&output.stderr));
    output.stdout
}

/// Takes a varint of protobuf off the bytes.
fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut number, mut shift) = (0, 0);
    loop {
        let (first, rest) = bytes.split_first().expect("a varint");
        *bytes = rest;
        number |= u64::from(first & 127) << shift;
        shift += 7;
        if first & 128 == 0 {
            return number;
        }
    }
}

/// Takes a message off the bytes: its fields that are numbers, by their number.
fn message(bytes: &mut &[u8]) -> BTreeMap<u64, u64> {
    let length = varint(bytes) as usize;
    let (mut message, rest) = bytes.split_at(length);
    *bytes = rest;
    let mut fields = BTreeMap::new();
    while !message.is_empty() {
        let tag = varint(&mut message);
        let number = varint(&mut message);
        if tag & 7 == 2 {
            message = &message[number as usize..];
        } else {
            fields.insert(tag >> 3, number);
        }
    }
    fields
}

#[test]
fn exports_have_times_threads_and_frames_and_all_lines() {
    const LINES: u64 = 20 * (1 << 16) / 64;
    let place = Place::new();
    let (trace, file) = (path(&place, "forked.trace"), |name: &str| path(&place, name));
    let output =
        place.run(&["record", "-q", "--threshold", "64K", "-o", &trace, "--", &compiled(&place, FORKED)]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let wall_ns = answered(&place, &[&trace])["trace"]["wall_ns"].as_u64().expect("a number");

    let packets = file("packets.gz");
    let sums = answered(&place, &["--export", &packets, "--format", "gem5", &trace]);
    assert_eq!((&sums["loads"], &sums["stores"]), (&LINES.into(), &LINES.into()), "{sums}");
    // Source and target, in two processes at the same addresses: 16 pages each, one more where they are not aligned.
    let frames = sums["frames"].as_u64().expect("a number");
    assert!((64..=68).contains(&frames), "{sums}");
    let bytes = unpacked(&packets);
    let mut rest = bytes.strip_prefix(b"gem5").expect("gem5's magic");
    assert_eq!(message(&mut rest)[&3], 1_000_000_000_000, "ticks per second");
    let (mut last, mut seen) = (0, BTreeMap::new());
    while !rest.is_empty() {
        let packet = message(&mut rest);
        assert!(last <= packet[&1] && packet[&1] <= wall_ns * 1000, "{packet:?}");
        assert!(
            packet[&3] < frames * 4096 && packet[&3].is_multiple_of(64) && packet[&4] == 64,
            "{packet:?}"
        );
        last = packet[&1];
        *seen.entry((packet[&6], packet[&2])).or_insert(0) += 1;
    }
    let half = LINES / 2;
    assert_eq!(seen, [((1, 1), half), ((1, 4), half), ((2, 1), half), ((2, 4), half)].into());

    // A file for each thread, with as many instructions as fit between its calls.
    let timed = file("timed");
    let sums = answered(&place, &["--export", &timed, "--format", "simpleo3", "--instructions", "2", &trace]);
    assert_eq!(sums["files"], serde_json::json!([format!("{timed}.1"), format!("{timed}.2")]));
    for number in 1..=2 {
        let written = std::fs::read_to_string(format!("{timed}.{number}")).expect("the export");
        let lines: Vec<Vec<u64>> = written
            .lines()
            .map(|line| line.split(' ').map(|word| word.parse().expect("decimal")).collect())
            .collect();
        assert_eq!(lines.len() as u64, half);
        assert!(
            lines
                .iter()
                .all(|line| line.len() == 3 && line[1].is_multiple_of(64) && line[2].is_multiple_of(64))
        );
        assert!(lines.iter().map(|line| line[0]).sum::<u64>() < 2 * wall_ns);
        assert!(lines.iter().filter(|line| line[0] > 0).count() <= 10, "time passes between calls");
    }

    // The same lines as text, packed and not.
    let (plain, packed) = (file("lines"), file("lines.gz"));
    answered(&place, &["--export", &plain, &trace]);
    let sums = answered(&place, &["--export", &packed, &trace]);
    assert!(sums["frames"].is_null(), "{sums}");
    let plain = std::fs::read(&plain).expect("the export");
    assert_eq!(unpacked(&packed), plain);
    assert!(std::fs::metadata(&packed).expect("packed").len() < plain.len() as u64 / 4);
    let framed = file("framed");
    answered(&place, &["--export", &framed, "--pages", "first-touch", &trace]);
    let framed = std::fs::read_to_string(&framed).expect("the export");
    let most = framed.lines().map(|line| u64::from_str_radix(&line[5..], 16).expect("hex")).max();
    assert_eq!(most.map(|most| most / 4096 + 1), Some(frames));
}

/// The rest of the configuration of Ramulator2: one channel of DDR4.
const MEMORY: &str = "
MemorySystem:
  impl: GenericDRAM
  clock_ratio: 3
  DRAM:
    impl: DDR4
    org: { preset: DDR4_8Gb_x8, channel: 1, rank: 2 }
    timing: { preset: DDR4_2400R }
  Controller:
    impl: Generic
    Scheduler: { impl: FRFCFS }
    RefreshManager: { impl: AllBank }
    RowPolicy: { impl: ClosedRowPolicy, cap: 4 }
  AddrMapper: { impl: RoBaRaCoCh }
";

/// The program of Ramulator2, version 2.0: named by the environment, else found on the PATH; none: it is not installed.
fn ramulator() -> Option<OsString> {
    if let Some(named) = std::env::var_os("MEMLIFT_RAMULATOR2").filter(|named| !named.is_empty()) {
        return Some(named);
    }
    let found = Command::new("sh").args(["-c", "command -v ramulator2"]).output().expect("a shell");
    found.status.success().then(|| "ramulator2".into())
}

/// Runs Ramulator2 with this front end; returns its statistics: every line that ends in a number.
fn simulated(place: &Place, simulator: &OsStr, front_end: &str) -> BTreeMap<String, u64> {
    let configuration = path(place, "ramulator.yaml");
    std::fs::write(&configuration, format!("Frontend:\n  clock_ratio: 8\n{front_end}{MEMORY}"))
        .expect("written");
    let output = Command::new(simulator).args(["-f", &configuration]).output().expect("Ramulator2 starts");
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    let number = |line: &str| {
        let (name, value) = line.trim().split_once(": ")?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    said.lines().filter_map(number).collect()
}

/// `tools/ramulator-test` runs this one and shows what it prints.
#[test]
fn exports_run_in_ramulator2() {
    const LINES: u64 = 20 * (1 << 16) / 64;
    let Some(simulator) = ramulator() else {
        return println!("not run: no ramulator2 on the PATH, and MEMLIFT_RAMULATOR2 names none");
    };
    let place = Place::new();
    let (trace, file) = (path(&place, "forked.trace"), |name: &str| path(&place, name));
    let output =
        place.run(&["record", "-q", "--threshold", "64K", "-o", &trace, "--", &compiled(&place, FORKED)]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));

    // Without time, packed and unpacked again: each line goes to memory, which is then at its bandwidth, four cycles for each line but
    // those that are in its queues at the end.
    let (packed, lines) = (file("lines.gz"), file("lines"));
    answered(&place, &["--export", &packed, "--pages", "first-touch", &trace]);
    std::fs::write(&lines, unpacked(&packed)).expect("written");
    let found = simulated(&place, &simulator, &format!("  impl: LoadStoreTrace\n  path: {lines}\n"));
    println!("loadstore: {found:?}");
    assert_eq!((found["total_num_read_requests"], found["total_num_write_requests"]), (LINES, LINES));
    assert!(found["memory_system_cycles"] >= 4 * (2 * LINES - 128), "{found:?}");

    // With time, a core for each process: each line of its source and target comes once, since its cache holds them all.
    let timed = file("timed");
    let arguments =
        ["--export", &timed, "--format", "simpleo3", "--pages", "first-touch", "--instructions", "2"];
    let sums = answered(&place, &[&arguments[..], &[&trace]].concat());
    let traces: Vec<&str> =
        sums["files"].as_array().expect("a list").iter().filter_map(|file| file.as_str()).collect();
    assert_eq!(traces.len(), 2, "one for each thread");
    let instructions = |file: &&str| -> u64 {
        let text = std::fs::read_to_string(file).expect("the export");
        let before = |line: &str| line.split(' ').next().expect("a word").parse::<u64>().expect("decimal");
        text.lines().map(|line| before(line) + 1).sum()
    };
    let instructions: u64 = traces.iter().map(instructions).max().expect("files");
    let front_end = format!(
        "  impl: SimpleO3\n  num_expected_insts: {instructions}\n  traces: [{}]\n  Translation: {{ impl: NoTranslation, max_addr: 2147483648 }}\n",
        traces.join(", ")
    );
    let found = simulated(&place, &simulator, &front_end);
    println!("simpleo3, {instructions} instructions: {found:?}");
    let once = 2 * 2 * (1 << 16) / 64;
    assert_eq!((found["total_num_read_requests"], found["total_num_write_requests"]), (once, 0));
    for core in 0..2 {
        // It retires four instructions a cycle at most: gaps between calls take time.
        assert!(found[&format!("cycles_recorded_core_{core}")] >= instructions / 4, "{found:?}");
    }
}
