// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Placement and the synchronous calls: right bytes at every size on every path, a calibration file that is not
//! to be trusted, explanations, and what decisions leave behind.

use memlift_ground::config::{Candidate, Config};
use memlift_ground::observe::CacheState;
use memlift_offload::Engine;
use memlift_place::Cache;
use memlift_place::Origin;
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
        // SAFETY: both buffers have this length.
        let copied =
            unsafe { engine.copy_crc32c_raw(target.as_mut_ptr(), source.as_ptr(), size, 7, Cache::Auto) };
        assert_eq!(copied, crc);
        assert!(target == source);
        target.fill(0);
        engine.dualcast(&mut target, &mut target2, &source);
        assert!(target == source && target2 == source);
        let pattern = memlift_kernels::repeat_8(0x0706_0504_0302_0100);
        // SAFETY: the buffer has this length.
        unsafe { engine.fill_raw(target.as_mut_ptr(), pattern, size, Cache::Auto) };
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

/// Measures until the machine was quiet enough, or takes a busy one's numbers and says that they are to be trusted.
fn trusted_file(path: &Path) -> String {
    let calibrated = with_file(path).calibrate().unwrap();
    assert_eq!(calibrated.saved.unwrap(), path);
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.replacen("\"trusted\": false", "\"trusted\": true", 1);
    std::fs::write(path, &text).unwrap();
    text
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
    let measured = calibrated.measured;
    assert_eq!(calibrated.loaded.is_measured(), measured.trust.trusted, "{:?}", measured.trust);
    assert!(measured.thresholds.cache_bytes >= 1 << 20);
    assert!(measured.thresholds.gate_bytes <= 256 << 20, "{}", measured.thresholds.gate_bytes);
    assert!(measured.model.is_sane());
    assert_eq!(measured.shapes.len(), 3);

    let text = trusted_file(&path);
    let again = with_file(&path);
    assert_eq!(again.placer().loaded().origin, Origin::File { path: path.clone() });
    let read = again.placer().loaded().calibration;
    assert_eq!((&read.machine, &read.isa), (&measured.machine, &measured.isa));
    assert_eq!(read.model.curves.len(), measured.model.curves.len());
    let explained = again.explain(Opcode::MEMMOVE, 64 << 20, CacheState::Cold);
    assert_eq!((&explained.shape, explained.time_s), (&read.shapes[2].shape, read.time_s));
    assert!(explained.trust.trusted);

    // A file of another machine, a damaged one, one of another version: the built-in numbers serve.
    let replaced = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    };
    for (spoilt, reason) in [
        (replaced("\"kernel\": \"", "\"kernel\": \"other ").as_str(), "another machine"),
        (replaced("\"isa\": \"", "\"isa\": \"no ").as_str(), "instruction set"),
        (replaced("\"format\": 3", "\"format\": 0").as_str(), "format 0"),
        (replaced("\"ns_per_byte\": ", "\"ns_per_byte\": -").as_str(), "out of range"),
        (replaced("\"shape\": \"", "\"shape\": \"7").as_str(), "out of range"),
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

/// Keeps every core busy while it lives.
struct Busy {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Busy {
    fn new() -> Busy {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let spin = || {
            let stop = std::sync::Arc::clone(&stop);
            std::thread::spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..2 * cores).map(|_| spin()).collect();
        Busy { stop, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

#[test]
fn what_a_busy_machine_measures_is_not_trusted_and_replaces_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calibration.json");
    let engine = with_file(&path);
    let built_in = engine.placer().loaded().calibration.thresholds;
    let busy = Busy::new();
    let calibrated = engine.calibrate().unwrap();
    assert!(!calibrated.measured.trust.trusted, "{:?}", calibrated.measured.trust);
    // The built-in numbers serve, here and in the next process, which is told why.
    assert_eq!(engine.placer().loaded().calibration.thresholds, built_in);
    assert_eq!(with_file(&path).placer().loaded().calibration.thresholds, built_in);
    let Origin::Untrusted { why, time_s } = with_file(&path).placer().loaded().origin else {
        panic!("{:?}", with_file(&path).placer().loaded().origin)
    };
    assert_eq!((&why, time_s), (&calibrated.measured.trust.why, calibrated.measured.time_s));
    assert!(!why.is_empty());
    let explained = with_file(&path).explain(Opcode::MEMMOVE, 64 << 20, CacheState::Cold);
    assert!(!explained.trust.trusted && explained.trust.why == why, "{explained:?}");

    // A calibration that is trusted stays, in use and on disk.
    let text = trusted_file(&path);
    let engine = with_file(&path);
    let before = engine.placer().loaded();
    assert!(before.is_measured());
    let calibrated = engine.calibrate().unwrap();
    drop(busy);
    assert!(!calibrated.measured.trust.trusted);
    assert_eq!(calibrated.saved.unwrap(), path);
    assert_eq!(engine.placer().loaded(), before);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
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
    let origin = engine.placer().loaded().origin;
    assert_eq!(origin == Origin::Measured, calibrated.measured.trust.trusted, "{origin:?}");
}

/// Copies until an engine without numbers measures some, and waits for them. Copies meanwhile are right.
#[test]
fn an_engine_that_copies_much_measures_in_the_background() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calibration.json");
    let engine = with_file(&path);
    let source = bytes(8 << 20, 3);
    let mut target = vec![0; source.len()];
    let mut copy = |engine: &Engine| {
        target.fill(0);
        engine.copy(&mut target, &source);
        assert!(target == source);
    };
    for _ in 0..100 {
        copy(&engine);
    }
    assert!(matches!(engine.placer().loaded().origin, Origin::Builtin { .. }), "800 MiB are too little");
    for _ in 0..60 {
        copy(&engine);
    }
    // On a machine that is never quiet it may not begin for minutes: then the built-in numbers are what is tested.
    let start = std::time::Instant::now();
    while !path.exists() && start.elapsed().as_secs() < 20 {
        copy(&engine);
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    if !path.exists() {
        println!("not run: no core was idle for 20 s");
        return;
    }
    // The file is written before the numbers are taken.
    while matches!(engine.placer().loaded().origin, Origin::Builtin { .. }) {
        std::thread::yield_now();
    }
    let loaded = engine.placer().loaded();
    assert_eq!(loaded.is_measured(), with_file(&path).placer().loaded().is_measured());
    copy(&engine);

    let off = folder.path().join("off.json");
    let variables = [("MEMLIFT_CALIBRATION", off.to_str().unwrap()), ("MEMLIFT_CALIBRATE", "false")];
    let engine = self::engine(&variables);
    for _ in 0..160 {
        copy(&engine);
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(!off.exists());
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
