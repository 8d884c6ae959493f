// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Protocols that are known to be right pass, those known to be wrong are found, and a right one cannot do without
//! any of its write-backs, fences and syncs.

use memlift_persist::sim::{
    Acks, Config, Counters, Device, Faults, Finding, LintKind, Memory, Mode, Replay, Report, World,
    as_thread, explore, mutation_score,
};

type Checked = Result<(), String>;

/// Not zero for an empty record, and different for every prefix: FNV-1a.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn word(memory: &Memory, at: u64) -> u64 {
    let mut bytes = [0; 8];
    memory.load(at, &mut bytes);
    u64::from_le_bytes(bytes)
}

/// The acknowledged steps, which are 1, 2, 3 and so on, are among the first `found`, and nothing was made up.
fn prefix(found: u64, acked: &[u64], in_flight: &[u64]) -> Checked {
    let acknowledged = acked.len() as u64;
    let begun = acknowledged + in_flight.len() as u64;
    match found {
        _ if found < acknowledged => Err(format!("{found} records found, {acknowledged} acknowledged")),
        _ if found > begun => Err(format!("{found} records found, {begun} begun")),
        _ => Ok(()),
    }
}

/// Record `n`: 48 bytes and their checksum, in a slot of 64.
fn record(n: u64) -> [u8; 56] {
    let mut bytes = [n as u8; 56];
    bytes[..8].copy_from_slice(&n.to_le_bytes());
    let sum = checksum(&bytes[..48]);
    bytes[48..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn records(memory: &Memory) -> u64 {
    let valid = |n: u64| {
        let mut bytes = [0; 56];
        memory.load(n * 64, &mut bytes);
        bytes == record(n + 1)
    };
    (0..memory.len() / 64).take_while(|n| valid(*n)).count() as u64
}

/// A log whose records carry a checksum: one fence each.
fn log(world: &World, acks: &Acks) {
    let memory = world.memory(0);
    for n in 1..=4 {
        acks.begin(n);
        memory.nt_store((n - 1) * 64, &record(n));
        memory.fence();
        acks.done(n);
    }
}

fn log_check(world: &World, acked: &[u64], in_flight: &[u64]) -> Checked {
    prefix(records(&world.memory(0)), acked, in_flight)
}

#[test]
fn a_log_with_checksums_needs_one_fence_per_record() {
    let config = Config::new(Device::new("log", Mode::Lines, 512));
    let report = explore(&config, log, log_check);
    report.assert_consistent();
    assert_eq!(report.sampled_points, 0);
    assert_eq!(report.lints, []);
    let spent = Counters { nt_stores: 4, nt_words: 28, nt_lines: 4, fences: 4, ..Counters::default() };
    assert_eq!(report.counters, spent);
    let score = mutation_score(&config, log, log_check);
    assert!(score.is_complete(), "{score}");
    explore(&Config::new(Device::new("log", Mode::Eadr, 512)), log, log_check).assert_consistent();
}

fn put(memory: &Memory, at: u64, value: u64) {
    memory.store(at, &value.to_le_bytes());
}

/// Two balances whose sum is kept, with an undo log and a flag. `write_ahead` is the order that makes it right.
fn transfer(memory: &Memory, write_ahead: bool) {
    let (from, to) = (word(memory, 0), word(memory, 64));
    put(memory, 128, from);
    put(memory, 136, to);
    memory.write_back(128, 16);
    if write_ahead {
        memory.fence();
    }
    put(memory, 192, 1);
    memory.write_back(192, 8);
    memory.fence();
    put(memory, 0, from - 10);
    memory.write_back(0, 8);
    put(memory, 64, to + 10);
    memory.write_back(64, 8);
    memory.fence();
    put(memory, 192, 0);
    memory.write_back(192, 8);
    memory.fence();
}

fn transfers(world: &World, acks: &Acks, write_ahead: bool) {
    let memory = world.memory(0);
    put(&memory, 0, 100);
    world.settle();
    for n in 1..=2 {
        acks.begin(n);
        transfer(&memory, write_ahead);
        acks.done(n);
    }
}

fn recover(memory: &Memory) {
    if word(memory, 192) == 1 {
        put(memory, 0, word(memory, 128));
        memory.write_back(0, 8);
        put(memory, 64, word(memory, 136));
        memory.write_back(64, 8);
        memory.fence();
        // Not written back: should the flag come back, the log still holds what it says, as the next transfer
        // logs the very same balances.
        put(memory, 192, 0);
    }
}

fn judge(memory: &Memory, acked: &[u64], in_flight: &[u64]) -> Checked {
    let (a, b) = (word(memory, 0), word(memory, 64));
    if a.wrapping_add(b) != 100 {
        return Err(format!("the balances are {a} and {b}"));
    }
    prefix(b / 10, acked, in_flight)
}

fn transfer_check(world: &World, acked: &[u64], in_flight: &[u64]) -> Checked {
    let memory = world.memory(0);
    recover(&memory);
    world.recovered();
    judge(&memory, acked, in_flight)
}

fn bank() -> Config {
    Config::new(Device::new("bank", Mode::Lines, 256)).recovery_depth(2)
}

#[test]
fn an_undo_log_with_a_flag_survives_crashes_in_its_recovery() {
    let report = explore(&bank(), |w, a| transfers(w, a, true), transfer_check);
    report.assert_consistent();
    assert!(report.recovery_crash_points > 0, "{report}");
    assert_eq!(report.sampled_points, 0, "{report}");
}

/// The fields that recovery resets matter only to the next transfer. So the check makes one, and is crashed in that too.
#[test]
fn none_of_its_write_backs_and_fences_can_be_left_out() {
    let check = |world: &World, acked: &[u64], _: &[u64]| {
        let memory = world.memory(0);
        recover(&memory);
        judge(&memory, acked, &[0; 5])?;
        transfer(&memory, true);
        Ok(())
    };
    let score = mutation_score(&bank(), |w, a| transfers(w, a, true), check);
    assert!(score.is_complete(), "{score}");
    // Five write-backs and four fences in a transfer, two and one in its recovery.
    assert_eq!((score.sites.len(), score.caught), (12, 12), "{score}");
}

#[test]
fn an_undo_log_without_its_first_fence_is_found_and_replayed() {
    let workload = |w: &World, a: &Acks| transfers(w, a, false);
    let report = explore(&bank(), workload, transfer_check);
    let finding = report.finding.expect("the flag can be there before the log");
    let text = finding.to_string();
    assert!(text.contains("LOST") && text.contains("sim/protocols.rs"), "{text}");
    let replay: Replay = finding.replay.to_string().parse().expect("what is printed can be parsed");
    let again = explore(&bank().replay(replay), workload, transfer_check);
    let second = again.finding.expect("it fails again");
    assert_eq!((second.reason, second.replay), (finding.reason, finding.replay));
    assert!(again.images <= 2, "{} images", again.images);
}

/// A recovery that resets the flag before what it put back is durable.
#[test]
fn a_recovery_that_cannot_be_repeated_is_found_in_its_own_crash() {
    let check = |world: &World, acked: &[u64], in_flight: &[u64]| {
        let memory = world.memory(0);
        if word(&memory, 192) == 1 {
            memory.store(0, &word(&memory, 128).to_le_bytes());
            memory.store(64, &word(&memory, 136).to_le_bytes());
            memory.store(192, &0u64.to_le_bytes());
            [0, 64, 192].into_iter().for_each(|at| memory.write_back(at, 8));
            memory.fence();
        }
        world.recovered();
        judge(&memory, acked, in_flight)
    };
    let workload = |w: &World, a: &Acks| transfers(w, a, true);
    let finding: Finding =
        explore(&bank().recovery_depth(1), workload, check).finding.expect("recovery's own crash");
    assert_eq!(finding.crashes.len(), 2, "{finding}");
    explore(&bank().recovery_depth(0), workload, check).assert_consistent();
}

/// Appends records of 600 bytes with a checksum to a file. `give_up`: a failed sync ends it.
fn append(world: &World, acks: &Acks, give_up: bool) {
    let file = world.memory(0);
    for n in 1..=3u64 {
        let body = [n as u8; 600];
        acks.begin(n);
        file.pwrite((n - 1) * 608, &checksum(&body).to_le_bytes());
        file.pwrite((n - 1) * 608 + 8, &body);
        if file.fdatasync().is_err() {
            if give_up {
                return;
            }
            let _ = file.fdatasync(); // "try again": it succeeds, and says nothing about what failed before
        }
        acks.done(n);
    }
}

fn append_check(world: &World, acked: &[u64], in_flight: &[u64]) -> Checked {
    let file = world.memory(0);
    let valid = |n: u64| {
        let mut bytes = [0; 608];
        let got = file.pread((n - 1) * 608, &mut bytes);
        got == 608 && bytes[..8] == checksum(&bytes[8..]).to_le_bytes() && bytes[8] == n as u8
    };
    prefix((1..).take_while(|n| valid(*n)).count() as u64, acked, in_flight)
}

#[test]
fn a_file_that_is_appended_to_survives_failing_syncs_if_it_gives_up() {
    let config = Config::new(Device::new("log", Mode::File, 0)).faults(Faults::Each);
    explore(&config, |w, a| append(w, a, true), append_check).assert_consistent();
    let report = explore(&config, |w, a| append(w, a, false), append_check);
    let finding = report.finding.expect("a sync that is tried again");
    assert!(finding.replay.to_string().starts_with('f'), "{finding}");
    let again = config.replay(finding.replay.clone());
    assert!(explore(&again, |w, a| append(w, a, false), append_check).finding.is_some());
    let config = Config::new(Device::new("log", Mode::File, 0));
    let score = mutation_score(&config, |w, a| append(w, a, true), append_check);
    assert!(score.is_complete(), "{score}");
}

/// An epoch on two devices: each writes its half; the mark of the epoch goes to the first device.
fn epochs(world: &World, acks: &Acks, wait_for_all: bool) {
    let (first, second) = (world.memory(0), world.memory(1));
    for epoch in 1..=2u64 {
        acks.begin(epoch);
        first.pwrite(epoch * 512, &epoch.to_le_bytes());
        second.pwrite(epoch * 512, &epoch.to_le_bytes());
        first.fdatasync().expect("no fault was asked for");
        if wait_for_all {
            second.fdatasync().expect("no fault was asked for");
        }
        first.pwrite(0, &epoch.to_le_bytes());
        first.fdatasync().expect("no fault was asked for");
        if !wait_for_all {
            second.fdatasync().expect("no fault was asked for");
        }
        acks.done(epoch);
    }
}

fn epochs_check(world: &World, acked: &[u64], in_flight: &[u64]) -> Checked {
    let marked = word(&world.memory(0), 0);
    for (device, epoch) in (0..2).flat_map(|device| (1..=marked).map(move |epoch| (device, epoch))) {
        if word(&world.memory(device), epoch * 512) != epoch {
            return Err(format!("epoch {epoch} is marked, and device {device} does not have it"));
        }
    }
    prefix(marked, acked, in_flight)
}

#[test]
fn devices_are_cut_at_points_of_their_own() {
    let config =
        Config::new(Device::new("first", Mode::File, 4096)).and(Device::new("second", Mode::File, 4096));
    explore(&config, |w, a| epochs(w, a, true), epochs_check).assert_consistent();
    let finding =
        explore(&config, |w, a| epochs(w, a, false), epochs_check).finding.expect("the mark was early");
    assert!(finding.reason.contains("device 1"), "{finding}");
}

#[test]
fn a_fence_completes_its_own_thread_only() {
    let run = |fencing: u32| -> Report {
        let workload = move |world: &World, acks: &Acks| {
            let memory = world.memory(0);
            {
                let _one = as_thread(1);
                acks.begin(1);
                memory.nt_store(0, &record(1));
            }
            let _other = as_thread(fencing);
            memory.fence();
            acks.done(1);
        };
        explore(&Config::new(Device::new("log", Mode::Lines, 64)), workload, log_check)
    };
    run(1).assert_consistent();
    let report = run(2);
    assert!(report.finding.is_some());
    let lints: Vec<_> = report.lints.iter().map(|lint| lint.kind).collect();
    assert_eq!(lints, [LintKind::AckedBeforeDurable, LintKind::RedundantFence]);
}

#[test]
fn what_is_done_for_nothing_is_named() {
    let workload = |world: &World, _: &Acks| {
        let memory = world.memory(0);
        memory.store(0, &[1; 8]);
        memory.write_back(0, 128); // the second line is clean
        memory.write_back(0, 8); // and the first one is on its way
        memory.fence();
        memory.fence();
    };
    let report = explore(&Config::new(Device::new("memory", Mode::Lines, 128)), workload, |_, _, _| Ok(()));
    let lints: Vec<_> = report.lints.iter().map(|lint| (lint.kind, lint.count)).collect();
    use LintKind::{CleanWriteBack, RedundantFence};
    assert_eq!(lints, [(CleanWriteBack, 1), (CleanWriteBack, 1), (RedundantFence, 1)]);
}

/// 1 MiB, a record of 16 KiB torn in 2^2048 ways: sampled, yet the missing checksum is found.
#[test]
fn large_records_are_sampled_and_a_torn_one_is_found() {
    let write = |world: &World, acks: &Acks| {
        let memory = world.memory(0);
        for n in 1..=8u64 {
            acks.begin(n);
            memory.nt_store(n * 16384, &[n as u8; 16384]);
            memory.fence();
            acks.done(n);
        }
    };
    let check = |summed: bool| {
        move |world: &World, acked: &[u64], in_flight: &[u64]| {
            let memory = world.memory(0);
            let mut bytes = vec![0; 16384];
            let mut found = 0;
            for n in 1..=8u64 {
                memory.load(n * 16384, &mut bytes);
                let whole = bytes == vec![n as u8; 16384];
                if !summed && bytes[0] == n as u8 && !whole {
                    return Err(format!("record {n} is taken for whole and is not"));
                }
                found += u64::from(whole);
            }
            prefix(found, acked, in_flight)
        }
    };
    let config = Config::new(Device::new("log", Mode::Lines, 1 << 20)).exhaustive(512).samples(128);
    let report = explore(&config, write, check(true));
    report.assert_consistent();
    assert!(report.sampled_points >= 8 && report.images > 2000, "{report}");
    let finding = explore(&config, write, check(false)).finding.expect("a torn record");
    assert!(finding.to_string().contains("TORN"), "{finding}");
    // A recovery that reads only the first word of each can tell few images apart: all of those are tried.
    let first_words = |world: &World, _: &[u64], _: &[u64]| {
        (1..=8).map(|n| word(&world.memory(0), n * 16384)).for_each(drop);
        Ok(())
    };
    let report = explore(&config, write, first_words);
    assert_eq!(report.sampled_points, 0, "{report}");
}
