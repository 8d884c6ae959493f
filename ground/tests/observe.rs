// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stats page seen from outside. Most tests run this binary again as the observed process: it does what
//! its mode says, prints `ready`, and stays until its standard input closes.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memlift_ground::facility::{Facility, usable};
use memlift_ground::observe::{
    self, CacheState, DECISIONS, DecisionRecord, Executor, Field, ObserveError, ROWS, Row, RowStats, Schema,
    attach,
};
use memlift_spec::Opcode;
use rustix::fs::{MemfdFlags, SealFlags};

const CALLS: usize = 0;
const BYTES: usize = 1;
const POOL: usize = 0;
static SCHEMA: Schema = Schema {
    service: "test",
    counters: &[
        Field::new("calls_total", "Calls that were made."),
        Field::new("bytes_total", "Bytes of all calls."),
    ],
    gauges: &[Field::new("pool_bytes", "Memory of the pools.")],
    latency: Some(Field::new("sync_seconds", "How long syncs took.")),
};

fn row_of(rows: &[RowStats]) -> &RowStats {
    let [row] = rows else { panic!("{rows:?}") };
    row
}

/// An observed process.
struct Observed {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Observed {
    fn start(mode: &str, variables: &[(&str, &str)]) -> Observed {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "observed_process", "--ignored", "--nocapture"])
            .env("OBSERVED_MODE", mode)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut observed = Observed { child, lines };
        observed.wait_for("ready");
        observed
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads lines until one holds `word`; gives what follows it.
    fn wait_for(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.lines.read_line(&mut line).unwrap(), 0, "the observed process ended early");
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    fn proceed(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn say(text: &str) {
    println!("{text}");
    std::io::stdout().flush().unwrap();
}

fn read_line() {
    let mut byte = [0];
    let _ = std::io::stdin().read(&mut byte);
}

fn decision(number: u64) -> DecisionRecord {
    DecisionRecord {
        time_ns: number,
        opcode: Opcode::FILL,
        executor: Executor::Worker,
        cache_state: CacheState::Cold,
        size: number,
        predicted_ns: number,
        measured_ns: number,
        reason: number as u16,
    }
}

#[test]
#[ignore = "run by the other tests as the process they observe"]
fn observed_process() {
    match std::env::var("OBSERVED_MODE").unwrap().as_str() {
        "idle" => {}
        "work" => {
            for latency_ns in [1000, 1500, 3000] {
                observe::record(Executor::Split, Opcode::MEMMOVE, 1 << 20, latency_ns, true);
            }
            observe::record(Executor::InlineNt, Opcode::CRC, 100, 0, false);
            observe::record(Executor::InlineNt, Opcode(0xee), 7, u64::MAX, true);
            observe::decide(decision(41));
            observe::waiting().parks.fetch_add(5, Ordering::Relaxed);
            observe::waiting().spin_budget_ns.store(20_000, Ordering::Relaxed);
            for bytes in [7, 64] {
                observe::count(Opcode::MEMMOVE, bytes);
            }
            let row = Row::open(&SCHEMA, "server", "features", 4711);
            row.count([(CALLS, 1), (BYTES, 1000)]);
            row.count([(CALLS, 1), (BYTES, 24)]);
            row.set(POOL, 1 << 25);
            row.took(5000);
            std::mem::forget(row);
        }
        "flood" => flood(),
        "fork" => fork(),
        hostile => {
            let fd = hostile_page(hostile);
            say("ready");
            read_line();
            drop(fd);
            return;
        }
    }
    say("ready");
    read_line();
}

/// Four threads that write decisions whose fields all say the same, until standard input closes.
fn flood() {
    observe::decide(decision(1));
    static STOP: AtomicU64 = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let mut number = thread;
                while STOP.load(Ordering::Relaxed) == 0 {
                    number += 4;
                    observe::decide(decision(number));
                }
            });
        }
        say("ready");
        read_line();
        STOP.store(1, Ordering::Relaxed);
    });
}

/// Works, then forks a child that first does nothing and then works by itself.
fn fork() {
    let row = Row::open(&SCHEMA, "client", "before", 1);
    observe::record(Executor::Worker, Opcode::FILL, 1, 1, true);
    say("ready");
    read_line();
    // SAFETY: the child goes on with this thread only; it takes no lock that another thread may hold, since
    // the only other thread of the test harness waits for this one.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        row.count([(CALLS, 1)]);
        say("forked");
        read_line();
        observe::record(Executor::Worker, Opcode::FILL, 10, 1, true);
        observe::record(Executor::Worker, Opcode::FILL, 10, 1, true);
        row.count([(CALLS, 1)]);
        say("worked");
        read_line();
        // SAFETY: ends the child without running the test harness's exit code twice.
        unsafe { libc::_exit(0) };
    }
    say(&format!("child {pid}"));
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
}

/// A memfd with the right name and the wrong contents.
fn hostile_page(kind: &str) -> std::os::fd::OwnedFd {
    let fd =
        rustix::fs::memfd_create("memlift-stats", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    const PAGE_BYTES: usize = 547_648;
    let mut bytes = vec![0xffu8; PAGE_BYTES];
    let mut set = |offset: usize, value: u64| bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    set(0, u64::from_le_bytes(*b"MLSTATS1"));
    set(8, 2);
    set(16, PAGE_BYTES as u64);
    set(24, u64::from(std::process::id()));
    match kind {
        "hostile_empty" => bytes.clear(),
        "hostile_magic" => set(0, 1),
        "hostile_version" => set(8, 99),
        "hostile_size" => set(16, 1 << 60),
        "hostile_pid" => set(24, 1),
        // Header right, all counters at their largest, and no seals: it could shrink while it is read.
        "hostile_unsealed" | "hostile_sealed" => {}
        "hostile_short" => bytes.truncate(5000),
        other => panic!("no mode {other}"),
    }
    rustix::io::write(&fd, &bytes).unwrap();
    if kind != "hostile_unsealed" {
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    }
    fd
}

#[test]
fn another_process_sees_everything() {
    // Without seals a page is seen as it was when it was opened.
    if !usable(Facility::MemfdSeal) {
        return;
    }
    let observed = Observed::start("work", &[]);
    let view = attach(observed.pid()).unwrap();
    assert!(view.live());
    check_work(&view.snapshot(), observed.pid());
    assert!(observe::list().iter().any(|process| process.pid == observed.pid()));
    let json = serde_json::to_value(view.snapshot()).unwrap();
    assert_eq!(json["rows"][0]["name"], "features");
    // The page outlives its process for whoever holds it.
    let pid = observed.pid();
    drop(observed);
    check_work(&view.snapshot(), pid);
    assert!(matches!(attach(pid), Err(ObserveError::NoSuchProcess { .. })));
}

fn check_work(snapshot: &observe::Snapshot, pid: u32) {
    assert_eq!(snapshot.process.pid, pid);
    assert!(snapshot.process.command.contains("observed_process"), "{}", snapshot.process.command);
    assert_eq!(snapshot.process.isa, memlift_kernels::active().isa.name());
    assert_eq!((snapshot.process.operations, snapshot.process.rows), (7, 1));
    let row = |executor: &str, opcode: &str| {
        let matches = |row: &&observe::OperationStats| row.executor == executor && row.opcode == opcode;
        snapshot.operations.iter().find(matches).unwrap()
    };
    let copy = row("split", "memmove");
    assert_eq!((copy.operations, copy.bytes, copy.failures, copy.total_ns), (3, 3 << 20, 0, 5500));
    assert_eq!((copy.histogram[9], copy.histogram[10], copy.histogram[11]), (1, 1, 1));
    assert_eq!(copy.quantile_ns(0.5), Some(2047));
    let crc = row("inline_nt", "crc");
    assert_eq!((crc.operations, crc.failures, crc.histogram[0]), (1, 1, 1));
    assert_eq!(row("inline_nt", "other").histogram[39], 1);
    let small = row("inline_temporal", "memmove");
    assert_eq!((small.operations, small.untimed, small.bytes), (2, 2, 71));
    assert_eq!(snapshot.operations.len(), 4);
    assert_eq!((snapshot.waiting.parks, snapshot.waiting.spin_budget_ns), (5, 20_000));
    let named = row_of(&snapshot.rows);
    assert_eq!(
        (named.service.as_str(), named.role.as_str(), named.name.as_str()),
        ("test", "server", "features")
    );
    assert_eq!(named.peer_pid, 4711);
    let values: Vec<_> = named.values.iter().map(|value| (value.name.as_str(), value.value)).collect();
    assert_eq!(values, [("calls_total", 2), ("bytes_total", 1024), ("pool_bytes", 1 << 25)]);
    assert_eq!((named.values[1].help.as_str(), named.get("calls_total")), ("Bytes of all calls.", 2));
    let latency = named.latency.as_ref().expect("the schema has one");
    assert_eq!((latency.name.as_str(), latency.total_ns, latency.histogram[12]), ("sync_seconds", 5000, 1));
    let [decision] = &snapshot.decisions[..] else { panic!("{:?}", snapshot.decisions) };
    assert_eq!((decision.number, decision.time_ns, decision.reason), (0, 41, 41));
    assert_eq!((decision.opcode.as_str(), decision.executor.as_str()), ("fill", "worker"));
    assert_eq!(decision.cache_state, "cold");
}

#[test]
fn a_page_that_cannot_be_sealed_is_copied_not_mapped() {
    let observed = Observed::start("work", &[("MEMLIFT_DISABLE", "memfd_seal")]);
    let view = attach(observed.pid()).unwrap();
    assert!(!view.live());
    check_work(&view.snapshot(), observed.pid());
}

#[test]
fn nothing_is_made_before_the_first_record() {
    let idle = Observed::start("idle", &[]);
    let error = attach(idle.pid()).unwrap_err();
    assert!(matches!(error, ObserveError::NotMemlift { .. }), "{error}");
    assert!(error.to_string().contains("does not use memlift"));
    assert!(observe::list().iter().all(|process| process.pid != idle.pid()));
}

#[test]
fn a_process_that_is_not_there() {
    let error = attach(u32::MAX / 2).unwrap_err();
    assert!(matches!(error, ObserveError::NoSuchProcess { .. }), "{error}");
}

/// Reads until a thousand records were readable and ten thousand written meanwhile, however long a busy machine takes for it.
fn torn(process: u32) {
    let until = Instant::now() + Duration::from_millis(500);
    let mut view = attach(process).unwrap();
    let before = view.process().decisions;
    let mut seen = 0;
    while Instant::now() < until || seen < 1000 || view.process().decisions < before + 10_000 {
        if !view.live() {
            view = attach(process).unwrap();
        }
        let decisions = view.decisions();
        assert!(decisions.windows(2).all(|pair| pair[0].number < pair[1].number));
        for decision in decisions {
            let number = decision.time_ns;
            let fields = [decision.size, decision.predicted_ns, decision.measured_ns];
            assert!(fields.iter().all(|&field| field == number), "torn: {decision:?}");
            assert_eq!(decision.reason, number as u16, "torn: {decision:?}");
            seen += 1;
        }
    }
}

#[test]
fn decisions_are_never_torn() {
    for disable in ["", "memfd_seal"] {
        let observed = Observed::start("flood", &[("MEMLIFT_DISABLE", disable)]);
        assert_eq!(attach(observed.pid()).unwrap().live(), disable.is_empty());
        torn(observed.pid());
    }
}

#[test]
fn a_forked_child_has_a_page_of_its_own() {
    let mut observed = Observed::start("fork", &[]);
    let parent = observed.pid();
    observed.proceed();
    // The two lines come in either order.
    let mut child = 0;
    let mut forked = false;
    while child == 0 || !forked {
        let mut line = String::new();
        assert_ne!(observed.lines.read_line(&mut line).unwrap(), 0);
        forked |= line.contains("forked");
        if let Some((_, pid)) = line.split_once("child ") {
            child = pid.trim().parse().unwrap();
        }
    }
    assert!(matches!(attach(child), Err(ObserveError::NotMemlift { .. })), "it has only its parent's page");
    observed.proceed();
    observed.wait_for("worked");
    let view = attach(child).unwrap();
    assert_eq!((view.process().operations, view.process().bytes), (2, 20));
    assert!(view.rows().is_empty());
    let view = attach(parent).unwrap();
    assert_eq!((view.process().operations, view.process().bytes), (1, 1));
    assert_eq!(row_of(&view.rows()).get("calls_total"), 0, "the child's calls are not the parent's");
    observed.proceed();
}

#[test]
fn hostile_pages_are_refused_or_read_as_plain_numbers() {
    for mode in ["hostile_empty", "hostile_magic", "hostile_size", "hostile_pid"] {
        let observed = Observed::start(mode, &[]);
        let error = attach(observed.pid()).unwrap_err();
        assert!(matches!(error, ObserveError::NotMemlift { .. }), "{mode}: {error}");
    }
    let observed = Observed::start("hostile_version", &[]);
    let error = attach(observed.pid()).unwrap_err();
    assert!(matches!(error, ObserveError::Version { found: 99, supported: 2, .. }), "{error}");
    for (mode, live) in [("hostile_sealed", true), ("hostile_unsealed", false), ("hostile_short", false)] {
        let observed = Observed::start(mode, &[]);
        let view = attach(observed.pid()).unwrap();
        assert_eq!(view.live(), live, "{mode}");
        let snapshot = view.snapshot();
        assert!(snapshot.decisions.len() <= DECISIONS && snapshot.rows.len() <= ROWS);
        assert!(!snapshot.process.command.chars().any(char::is_control));
        for row in &snapshot.operations {
            assert!(row.quantile_ns(0.99).is_some());
        }
        serde_json::to_string(&snapshot).unwrap();
    }
}

#[test]
fn another_users_process_may_not_be_observed() {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        // Only root can become somebody else; but nobody may look at root's first process.
        assert!(matches!(attach(1), Err(ObserveError::Permission { .. })));
        return;
    }
    let observed = Observed::start("work", &[]);
    // The test binary may lie where nobody else can reach it.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let copy = folder.path().join("observer");
    // By another process: a child that another test starts at this moment would hold the copy open for writing, and nobody may start it.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&copy).status();
    assert!(copied.unwrap().success());
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(copy)
        .args(["--exact", "observer_without_rights", "--ignored", "--nocapture"])
        .env("OBSERVED_PID", observed.pid().to_string())
        .current_dir("/")
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "run by another_users_process_may_not_be_observed"]
fn observer_without_rights() {
    let pid: u32 = std::env::var("OBSERVED_PID").unwrap().parse().unwrap();
    let error = attach(pid).unwrap_err();
    assert!(matches!(error, ObserveError::Permission { .. }), "{error}");
    assert!(observe::list().iter().all(|process| process.pid != pid));
}

#[test]
fn threads_count_exactly() {
    const THREADS: u64 = 4;
    const EACH: u64 = 50_000;
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    observe::record(Executor::Model, Opcode::DUALCAST, 3, 64, true);
                }
            });
        }
    });
    let view = attach(std::process::id()).unwrap();
    let row = view.operations().into_iter().find(|row| row.executor == "model").unwrap();
    assert_eq!(
        (row.opcode.as_str(), row.operations, row.bytes),
        ("dualcast", THREADS * EACH, 3 * THREADS * EACH)
    );
    assert_eq!(row.histogram[6], THREADS * EACH);
}

/// More threads than stripes, that end and are followed by others: nothing is lost, and a row that is used again starts from zero.
#[test]
fn threads_count_exactly_without_locked_instructions() {
    const THREADS: u64 = 50;
    const EACH: u64 = 2_000;
    const ROUNDS: u64 = 3;
    if !usable(Facility::MemfdSeal) {
        return;
    }
    let view = attach_self();
    let count = |row: &Row| {
        let start = std::sync::Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..EACH {
                        row.count([(CALLS, 1), (BYTES, 3)]);
                        observe::count(Opcode::COMPARE, 5);
                    }
                });
            }
        });
    };
    for round in 1..=ROUNDS {
        let row = Row::open(&SCHEMA, "client", "striped", 0);
        count(&row);
        let rows = view.rows();
        let seen = rows.iter().find(|row| row.name == "striped").expect("its row");
        assert_eq!((seen.get("calls_total"), seen.get("bytes_total")), (THREADS * EACH, THREADS * EACH * 3));
        let operations = view.operations();
        let small = operations.iter().find(|row| row.opcode == "compare").expect("counted");
        assert_eq!((small.untimed, small.bytes), (THREADS * EACH * round, THREADS * EACH * round * 5));
    }
}

fn attach_self() -> observe::StatsView {
    assert!(observe::page());
    attach(std::process::id()).expect("a page")
}

#[test]
fn the_table_of_rows_is_bounded_and_rows_are_reused() {
    // Without seals a page is seen as it was when it was opened.
    if !usable(Facility::MemfdSeal) {
        return;
    }
    static OTHER: Schema = Schema { service: "other", ..SCHEMA };
    let view = attach_self();
    let ours = || -> Vec<RowStats> { view.rows().into_iter().filter(|row| row.service == "other").collect() };
    let name = "a name that is far longer than the forty-eight bytes of a row";
    let rows: Vec<_> = (0..ROWS + 3).map(|_| Row::open(&OTHER, "client", name, 9)).collect();
    // Another test of this program may have a row.
    let shown = rows.iter().filter(|row| row.shown()).count();
    assert!(ROWS - shown <= 1 && ours().len() == shown);
    assert_eq!(view.process().rows_refused, (ROWS + 3 - shown) as u64);
    assert_eq!(ours()[0].name, name[..48]);
    rows[0].count([(CALLS, 5)]);
    rows[ROWS + 2].count([(CALLS, 5)]);
    let before = ours()[0].id;
    assert_eq!(ours().iter().map(|row| row.get("calls_total")).sum::<u64>(), 5);
    drop(rows);
    assert!(ours().is_empty());
    let again = Row::open(&OTHER, "server", "again", 9);
    assert!(again.shown());
    let rows = ours();
    assert_eq!((rows[0].get("calls_total"), rows[0].name.as_str()), (0, "again"));
    assert_ne!(rows[0].id, before);
}

#[test]
fn the_ring_keeps_the_last_decisions_in_order() {
    // A process of its own would be cleaner, but nobody else in this one decides.
    for number in 0..1000 {
        observe::decide(decision(number));
    }
    let decisions = attach(std::process::id()).unwrap().decisions();
    let numbers: Vec<u64> = decisions.iter().map(|decision| decision.number).collect();
    assert_eq!(numbers, (1000 - DECISIONS as u64..1000).collect::<Vec<_>>());
    assert!(decisions.iter().all(|decision| decision.size == decision.number));
}
