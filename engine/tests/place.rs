// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Placement and the synchronous calls: right bytes at every size on every path, a calibration file that is not
//! to be trusted, explanations, and what decisions leave behind.

use memlift_engine::config::{Candidate, Config};
use memlift_engine::observe::CacheState;
use memlift_engine::place::Origin;
use memlift_engine::submit::Pattern;
use memlift_engine::{Cache, Engine};
use memlift_spec::Opcode;
use std::ffi::OsString;
use std::path::Path;

fn engine(variables: &[(&str, &str)]) -> Engine {
    let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let none: &[Candidate] = &[];
    Engine::open(&Config::load_from(none, variables).unwrap()).unwrap()
}

fn with_file(path: &Path) -> Engine {
    engine(&[("MEMLIFT_CALIBRATION", path.to_str().unwrap()), ("MEMLIFT_WORKERS", "2")])
}

fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut word = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 32) as u32
    };
    (0..count.div_ceil(4)).flat_map(|_| word().to_le_bytes()).take(count).collect()
}

const SIZES: [usize; 9] = [0, 1, 63, 4097, 262_143, 262_144, 1_000_003, (4 << 20) + 1, (20 << 20) + 4095];

#[test]
fn synchronous_calls_give_the_right_bytes_at_every_size() {
    let folder = tempfile::tempdir().unwrap();
    let engine = with_file(&folder.path().join("none.json"));
    for size in SIZES {
        let source = bytes(size, size as u64);
        for cache in [Cache::Auto, Cache::Hot, Cache::Cold] {
            let mut target = vec![0xee; size + 2];
            // SAFETY: one byte is left on either side of the target.
            unsafe { engine.copy_raw(target.as_mut_ptr().add(1), source.as_ptr(), size, cache) };
            assert!(target[1..=size] == source, "{size} {cache:?}");
            assert_eq!((target[0], target[size + 1]), (0xee, 0xee), "{size} {cache:?}");
        }
        let crc = engine.crc32c(&source, 7);
        let (mut target, mut target2) = (vec![0; size], vec![0; size]);
        assert_eq!(engine.copy_crc32c(&mut target, &source, 7), crc);
        assert_eq!(engine.compare(&target, &source), None);
        target.fill(0);
        engine.dualcast(&mut target, &mut target2, &source);
        assert!(target == source && target2 == source);
        if size > 0 {
            target[size / 2] ^= 4;
            assert_eq!(engine.compare(&target, &source), Some(size / 2));
        }
        engine.fill(&mut target, Pattern::Eight(0x0706_0504_0302_0100));
        assert!(target.iter().enumerate().all(|(index, &byte)| byte == (index % 8) as u8));
    }
}

#[test]
fn copies_at_once_from_many_threads_share_the_workers() {
    let engine = engine(&[("MEMLIFT_WORKERS", "2")]);
    let source = bytes(9 << 20, 5);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut target = vec![0; source.len()];
                for _ in 0..6 {
                    target.fill(0);
                    // SAFETY: both buffers have the length.
                    unsafe {
                        engine.copy_raw(target.as_mut_ptr(), source.as_ptr(), source.len(), Cache::Cold)
                    };
                    assert!(target == source);
                }
            });
        }
    });
}

#[test]
fn strided_rows_are_gathered() {
    let engine = engine(&[]);
    for (rows, row_bytes, stride) in
        [(3usize, 5usize, 9i64), (4000, 300, 320), (4000, 300, -320), (2000, 512, 512)]
    {
        let span = (rows - 1) * stride.unsigned_abs() as usize + row_bytes;
        let source = bytes(span, rows as u64);
        let first = if stride < 0 { span - row_bytes } else { 0 };
        let mut target = vec![0; rows * row_bytes];
        // SAFETY: all rows lie in the source, and the target holds them.
        unsafe {
            let from = source.as_ptr().add(first);
            engine.copy_strided_raw(target.as_mut_ptr(), from, rows, row_bytes, stride, Cache::Auto);
        }
        for (row, copied) in target.chunks(row_bytes).enumerate() {
            let start = first.wrapping_add_signed(row as isize * stride as isize);
            assert!(copied == &source[start..start + row_bytes], "row {row} of {rows}");
        }
    }
}

#[test]
fn calibration_is_kept_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/calibration.json");
    let engine = with_file(&path);
    assert!(matches!(engine.placer().loaded().origin, Origin::Builtin { .. }));
    let calibrated = engine.calibrate().unwrap();
    assert_eq!(calibrated.saved.unwrap(), path);
    assert_eq!(engine.placer().loaded(), calibrated.loaded);
    let thresholds = &calibrated.loaded.calibration.thresholds;
    assert!(thresholds.cache_bytes >= 1 << 20);
    assert!(calibrated.loaded.calibration.model.is_sane());

    let again = with_file(&path);
    assert_eq!(again.placer().loaded().origin, Origin::File { path: path.clone() });
    let read = again.placer().loaded().calibration;
    let measured = &calibrated.loaded.calibration;
    assert_eq!((&read.machine, read.time_s), (&measured.machine, measured.time_s));
    assert_eq!(read.thresholds.nt_from_cold_bytes, thresholds.nt_from_cold_bytes);
    assert_eq!(read.model.curves.len(), measured.model.curves.len());
    for (read, measured) in read.model.curves.iter().zip(&measured.model.curves) {
        let predict = |curve: &memlift_engine::place::Curve| curve.lines[0].predict_ns(1 << 20);
        // A number that went through decimal digits may differ in its last bit.
        assert!((predict(read) - predict(measured)).abs() <= predict(measured) * 1e-12, "{}", read.opcode);
    }

    // A file of another machine, a damaged one, one of another version: the built-in numbers serve.
    let text = std::fs::read_to_string(&path).unwrap();
    let foreign = text.replacen("\"kernel\": \"", "\"kernel\": \"other ", 1);
    let older = text.replacen("\"format\": 2", "\"format\": 0", 1);
    let mad = text.replacen("\"ns_per_byte\": ", "\"ns_per_byte\": -", 1);
    for (spoilt, reason) in [
        (foreign.as_str(), "another machine"),
        (older.as_str(), "format 0"),
        (mad.as_str(), "out of range"),
        (&text[..text.len() / 2], "damaged"),
        ("", "damaged"),
    ] {
        std::fs::write(&path, spoilt).unwrap();
        let Origin::Builtin { why } = with_file(&path).placer().loaded().origin else {
            panic!("{reason}: was believed")
        };
        assert!(why.contains(reason) && why.contains("memlift calibrate"), "{why}");
    }
}

#[test]
fn what_cannot_be_written_stays_in_memory_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let engine = with_file(&file.join("calibration.json"));
    let calibrated = engine.calibrate().unwrap();
    let error = calibrated.saved.unwrap_err().to_string();
    assert!(error.contains("MEMLIFT_CALIBRATION"), "{error}");
    assert_eq!(engine.placer().loaded().origin, Origin::Measured);
}

#[test]
fn every_decision_can_be_explained() {
    let folder = tempfile::tempdir().unwrap();
    let engine = with_file(&folder.path().join("none.json"));
    let small = engine.explain(Opcode::MEMMOVE, 100, CacheState::Hot);
    assert_eq!(small.chosen, "inline_temporal");
    assert!(small.reason.contains("below"), "{}", small.reason);
    let large = engine.explain(Opcode::MEMMOVE, 64 << 20, CacheState::Cold);
    assert_ne!(large.chosen, "inline_temporal");
    assert_eq!(large.candidates[0].executor, large.chosen);
    for candidate in &large.candidates {
        let predicted = candidate.line.predict_ns(64 << 20) * candidate.correction;
        assert!((predicted - candidate.predicted_ns).abs() < 1.0);
    }
    let json = serde_json::to_value(&large).unwrap();
    assert_eq!(json["opcode"], "memmove");
    assert!(json["candidates"][0]["line"]["ns_per_byte"].is_number());
    assert!(json["origin"]["why"].as_str().unwrap().contains("memlift calibrate"));
}

#[test]
fn predictions_follow_what_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let engine = with_file(&folder.path().join("none.json"));
    let source = bytes(2 << 20, 1);
    let mut target = vec![0; source.len()];
    for _ in 0..100 {
        // SAFETY: both buffers have the length.
        unsafe { engine.copy_raw(target.as_mut_ptr(), source.as_ptr(), source.len(), Cache::Hot) };
    }
    let explained = engine.explain(Opcode::MEMMOVE, source.len(), CacheState::Hot);
    let corrections: Vec<f64> = explained.candidates.iter().map(|candidate| candidate.correction).collect();
    assert!(corrections.iter().any(|correction| *correction != 1.0), "{corrections:?}");
    assert!(corrections.iter().all(|correction| (0.25..=4.0).contains(correction)), "{corrections:?}");
}
