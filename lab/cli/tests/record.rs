// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Traces of `memlift record`, read as the machines of the lab read them.

#[path = "record/export.rs"]
mod export;
#[path = "../../../cli/tests/place/mod.rs"]
mod place;
#[path = "record/replays.rs"]
mod replays;

use std::process::Command;

use place::{Place, text};

fn path(place: &Place, name: &str) -> String {
    place.folder.path().join(name).to_str().expect("UTF-8").to_owned()
}

/// A C program of this text.
fn compiled(place: &Place, text: &str) -> String {
    let (source, program) = (path(place, "program.c"), path(place, "program"));
    std::fs::write(&source, text).expect("written");
    let built = Command::new("cc").args(["-O1", "-pthread", "-o", &program, &source, "-ldl"]).status();
    assert!(built.expect("a C compiler").success());
    program
}

/// A thread copies for 0.2 s while the first one waits for it; then the first one computes as long and calls nothing.
const JOINED: &str = r#"
#include <pthread.h>
#include <string.h>
#include <time.h>
static char source[1 << 20], target[1 << 20];
static volatile size_t bytes = sizeof source;
static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}
static void *copies(void *unused) {
    double until = now(CLOCK_MONOTONIC) + 0.2;
    while (now(CLOCK_MONOTONIC) < until) {
        source[0]++;
        memcpy(target, source, bytes);
    }
    return unused;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, copies, 0);
    pthread_join(thread, 0);
    double until = now(CLOCK_THREAD_CPUTIME_ID) + 0.2;
    while (now(CLOCK_THREAD_CPUTIME_ID) < until) {}
    return 0;
}
"#;

#[test]
fn a_wait_is_where_it_was_and_a_thread_that_was_waited_for_is_known() {
    use memlift_model::whatif::{Trace, What};
    let place = Place::new();
    let program = compiled(&place, JOINED);
    let mut seen = Vec::new();
    // A busy machine may have taken the core between the thread's end and the wait's.
    for attempt in 0..5 {
        // `record` keeps an existing file, so each attempt has its own.
        let file = path(&place, &format!("c{attempt}.trace"));
        let output = place.run(&["record", "-q", "-o", &file, "--", &program]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let trace = Trace::read(&std::fs::read(&file).expect("the trace")).expect("a trace");
        let first = &trace.threads[0].steps;
        let joined = first.iter().position(|step| matches!(step.what, What::Await(_)));
        let computed = |steps: &[memlift_model::whatif::Step]| -> u64 {
            steps.iter().filter(|step| step.what == What::Compute).map(|step| step.cpu_ns).sum()
        };
        seen.push(joined.map(|joined| (computed(&first[..joined]), computed(&first[joined..]))));
        if let Some(Some((before, after))) = seen.last()
            && *before < 50_000_000
            && *after > 150_000_000
        {
            return;
        }
    }
    panic!("computing comes after the wait: {seen:?}");
}

/// Records the program, and returns what `whatif --device dsa --json` says of a device ten times as fast as Intel's: some CPUs copy as fast
/// as that one, which then takes nothing.
fn asked(place: &Place, number: usize, program: &[&str]) -> serde_json::Value {
    const INTEL: &str = include_str!("../../model/parameters/dsa.toml");
    assert!(INTEL.contains("value = 31.17\n"), "the device's rate has changed");
    let device = path(place, "device.toml");
    std::fs::write(&device, INTEL.replace("value = 31.17\n", "value = 311.7\n"))
        .expect("the device's parameters");
    let file = path(place, &format!("{number}.trace"));
    let output = place.run(&[&["record", "-q", "-o", &file, "--"], program].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let output = place.run(&["whatif", "--device", "dsa", "--parameters", &device, "--json", &file]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// How long a replay without a device takes, as a part of the recorded time.
fn unchanged(answer: &serde_json::Value) -> f64 {
    answer["without"]["wall_s"].as_f64().expect("a number") * 1e9
        / answer["trace"]["wall_ns"].as_f64().expect("a number")
}

/// A library whose destructor tells its idle thread to end and joins it, as numerical libraries do, around copies.
const POOL: &str = r#"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER;
static int stop;
static pthread_t thread;
static void *idle(void *unused) {
    pthread_mutex_lock(&lock);
    while (!stop) pthread_cond_wait(&told, &lock);
    pthread_mutex_unlock(&lock);
    return unused;
}
__attribute__((constructor)) static void up(void) { pthread_create(&thread, 0, idle, 0); }
__attribute__((destructor)) static void down(void) {
    pthread_mutex_lock(&lock);
    stop = 1;
    pthread_cond_signal(&told);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, 0);
}
int main(void) {
    size_t bytes = 16u << 20;
    char *source = malloc(bytes), *target = malloc(bytes);
    memset(source, 1, bytes);
    memset(target, 2, bytes);
    for (int i = 0; i < 60; i++) {
        memcpy(target, source, bytes);
        source[i] = target[i + 1];
    }
    return target[77] != 1;
}
"#;

#[test]
fn a_pool_that_ends_at_exit_does_not_hold_an_answer_up() {
    let place = Place::new();
    let program = compiled(&place, POOL);
    for number in 0..6 {
        let answer = asked(&place, number, &[&program]);
        let of = |run: &str, what: &str| answer[run][what].as_f64().expect("a number");
        let cpu = (of("with", "cpu_s") + of("with", "waiting_s")) / of("without", "cpu_s");
        let time = of("with", "wall_s") / of("without", "wall_s");
        assert!((0.98..1.02).contains(&unchanged(&answer)), "{}: {answer}", unchanged(&answer));
        // A machine that is busy adds to the time what it took from the program, which no device shortens.
        let displaced = answer["trace"]["share_displaced"].as_f64().expect("a number");
        assert!(cpu < 0.9 && time < cpu + 0.25 + displaced, "time {time}, CPU time {cpu}: {answer}");
        // Beside other programs the calls lose the time that they had no core, which is no CPU time.
        if displaced < 0.05 {
            assert!(time > cpu - 0.1, "time {time}, CPU time {cpu}: {answer}");
        }
    }
}

/// A child of vfork copies more often than a chunk of the trace has room, in its parent's memory.
const VFORK: &str = r#"
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static char source[1 << 16], target[1 << 16];
static volatile size_t bytes = sizeof source;
int main(void) {
    for (int round = 0; round < 3; round++) {
        pid_t child = vfork();
        if (child == 0) {
            for (int i = 0; i < 300; i++) memcpy(target, source, bytes);
            _exit(0);
        }
        waitpid(child, 0, 0);
        memcpy(target, source, bytes);
    }
    return 0;
}
"#;

#[test]
fn a_child_of_vfork_leaves_a_trace_that_can_be_read() {
    let place = Place::new();
    let answer = asked(&place, 0, &[&compiled(&place, VFORK)]);
    assert_eq!(answer["trace"]["dropped"], 0);
    assert!(answer["trace"]["calls"][0]["calls"].as_u64().is_some_and(|calls| calls >= 3), "{answer}");
    assert!((0.98..1.02).contains(&unchanged(&answer)), "{answer}");
}

/// Three functions that copy: one whose bytes nothing needs for long, one that compares them at once, one with many small ones in a row.
/// Each moves half of what the one before does, so that their order does not depend on the machine.
const SHAPES: &str = r#"
#include <stdlib.h>
#include <string.h>
enum { BIG = 1 << 20, HALF = BIG / 2, SMALL = 4096, ROW = 64 };
static char *one, *two, *three, *four, *five, *six;
static volatile unsigned long sum;
static volatile size_t big = BIG, half = HALF, small = SMALL;
static void computes(unsigned long steps) {
    for (unsigned long i = 0; i < steps; i++) sum += i;
}
__attribute__((noinline)) static void goes_on(void) {
    memcpy(two, one, big);
    computes(300000);
}
__attribute__((noinline)) static void uses_at_once(void) {
    memcpy(four, three, half);
    sum += memcmp(four, three, half);
}
__attribute__((noinline)) static void in_a_row(void) {
    for (int i = 0; i < ROW; i++) memcpy(six + i * SMALL, five + i * SMALL, small);
    computes(10000);
}
static char *filled(size_t bytes) {
    char *memory = malloc(bytes);
    memset(memory, 1, bytes);
    return memory;
}
int main(void) {
    one = filled(BIG), two = filled(BIG), three = filled(HALF), four = filled(HALF);
    five = filled(ROW * SMALL), six = filled(ROW * SMALL);
    for (int i = 0; i < 100; i++) {
        goes_on(), uses_at_once(), in_a_row();
        one[i]++, three[i]++, five[i]++;
    }
    return 0;
}
"#;

/// The device's parameters with one that copies faster than any core.
fn fast(place: &Place) -> String {
    let (shipped, _) = memlift_model::whatif::parameters("dsa").expect("parameters");
    let (file, rate) = (path(place, "fast.toml"), "[device_rate]\nvalue = 31.17");
    assert!(shipped.contains(rate));
    std::fs::write(&file, shipped.replacen(rate, "[device_rate]\nvalue = 400", 1)).expect("written");
    file
}

fn answered(place: &Place, arguments: &[&str]) -> serde_json::Value {
    let output = place.run(&[&["whatif", "--json"], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn call_sites_to_change_are_listed_in_the_order_of_what_they_gain() {
    let place = Place::new();
    let (file, fast) = (path(&place, "shapes.trace"), fast(&place));
    let output = place.run(&["record", "-q", "-o", &file, "--", &compiled(&place, SHAPES)]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let copies = |answer: &serde_json::Value| -> Vec<serde_json::Value> {
        let sites = answer["sites"].as_array().expect("a list").iter();
        sites.filter(|site| site["site"]["function"] == "memcpy").cloned().collect()
    };
    let of = |site: &serde_json::Value, field: &str| site[field].as_f64().expect("a number");

    let answer = answered(&place, &["--async", "--sites", "9", "--parameters", &fast, &file]);
    let sites = copies(&answer);
    let names: Vec<&str> = sites.iter().filter_map(|site| site["site"]["symbol"].as_str()).collect();
    assert_eq!(names, ["goes_on", "uses_at_once", "in_a_row"], "{answer:#}");
    assert_eq!(sites[0]["bytes"], 100 << 20);
    assert_eq!((&sites[1]["calls"], &sites[2]["calls"]), (&100.into(), &6400.into()));
    for site in &sites {
        let module = site["site"]["module"].as_str().expect("a file");
        assert!(module.ends_with("/program"), "{module}");
        assert!(of(site, "share_of_cpu") > 0.0 && of(site, "share_of_time") < 1.0, "{site:#}");
        for (place, field) in ["time_gained_s", "cpu_gained_s"].into_iter().enumerate() {
            let range = &site["range"][place];
            assert!(of(range, "from") <= of(site, field) && of(site, field) <= of(range, "to"), "{site:#}");
        }
    }
    // The first one's result is needed a millisecond later, by the same copy; the second one's at once, by memcmp.
    assert!(sites[0]["gains"] == true && of(&sites[0]["needed"], "after_ns") > 50_000.0, "{:#}", sites[0]);
    assert_eq!(sites[1]["needed"]["site"]["function"], "memcmp", "{:#}", sites[1]);
    assert!(of(&sites[1]["needed"], "after_ns") < 50_000.0, "{:#}", sites[1]);
    assert!(of(&sites[1]["limits"], "called_s") > 50.0 * of(&sites[0]["limits"], "called_s"), "{answer:#}");
    // All that gain, together, gain more than the best of them.
    let together = of(&answer["without"], "wall_s") - of(&answer["together"]["run"], "wall_s");
    assert!(together > of(&sites[0], "time_gained_s"), "{answer:#}");

    // Many small ones cost a submission each; sixteen together cost one.
    let batched =
        answered(&place, &["--batch", "16", "--sites", "9", "--parameters", &fast, "--from", "1", &file]);
    let single = answered(&place, &["--async", "--sites", "9", "--parameters", &fast, "--from", "1", &file]);
    let row = |answer: &serde_json::Value| {
        copies(answer).into_iter().find(|site| site["site"]["symbol"] == "in_a_row").expect("listed")
    };
    let (batched, single) = (row(&batched), row(&single));
    assert!(of(&batched, "time_gained_s") > of(&single, "time_gained_s"), "{batched:#} {single:#}");
    let submitting = |site: &serde_json::Value| of(&site["limits"], "submitting_s");
    assert!(submitting(&batched) * 8.0 < submitting(&single), "{batched:#} {single:#}");

    // Were each result used at once, nothing would overlap.
    let used = answered(
        &place,
        &["--async", "--first-use", "at-once", "--sites", "9", "--parameters", &fast, &file],
    );
    let first = copies(&used).into_iter().find(|site| site["site"]["symbol"] == "goes_on").expect("listed");
    assert!(of(&first["limits"], "used_s") > 0.0, "{first:#}");
    assert!(of(&first, "time_gained_s") < of(&sites[0], "time_gained_s"), "{first:#}");
    assert!(of(&first, "time_gained_s") >= of(&sites[0]["range"][0], "from") - 1e-9, "{first:#}");

    // A round ahead, the copy that is compared at once is there before its call.
    let ahead = answered(&place, &["--ahead", "1", "--sites", "9", "--parameters", &fast, &file]);
    let second =
        copies(&ahead).into_iter().find(|site| site["site"]["symbol"] == "uses_at_once").expect("listed");
    // The first one has none before it, and a thread that was displaced in between is one that waits.
    assert!((90.0..=99.0).contains(&of(&second["limits"], "calls_ahead")), "{second:#}");
    assert!(of(&second["limits"], "called_s") < of(&sites[1]["limits"], "called_s") / 4.0, "{second:#}");
    assert!(of(&second, "time_gained_s") > of(&sites[1], "time_gained_s"), "{second:#}");

    // As text, too: three of them, with what limits each, and what is assumed.
    let output = place.run(&["whatif", "--async", "--parameters", &fast, &file]);
    let said = text(&output.stdout);
    for wanted in
        ["1  goes_on+0x", "2  uses_at_once+0x", "3 limited by: ", "--first-use recorded", "not listed: "]
    {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    assert!(!said.contains("4 limited by"), "{said}");
}

/// A function that copies, in a process and in the child that it forks.
const FORKED: &str = r#"
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static char source[1 << 16] __attribute__((aligned(64))), target[1 << 16] __attribute__((aligned(64)));
static volatile size_t bytes = sizeof source;
__attribute__((noinline)) static int copies(void) {
    for (int i = 0; i < 10; i++) {
        memcpy(target, source, bytes);
        source[i]++;
    }
    return target[0];
}
int main(void) {
    copies();
    pid_t child = fork();
    if (child == 0) _exit(copies() == 99);
    waitpid(child, 0, 0);
    return 0;
}
"#;

#[test]
fn a_call_site_is_one_in_all_processes() {
    use memlift_model::whatif::Trace;
    let place = Place::new();
    let file = path(&place, "forked.trace");
    let output = place.run(&["record", "-q", "-o", &file, "--", &compiled(&place, FORKED)]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let trace = Trace::read(&std::fs::read(&file).expect("the trace")).expect("a trace");
    let copies: Vec<(u32, Option<u32>)> = trace
        .threads
        .iter()
        .flat_map(|thread| thread.calls.iter().map(|call| (thread.process, call)))
        .filter(|(_, call)| call.read == 1 << 16)
        .map(|(process, call)| (process, call.site))
        .collect();
    assert_eq!(copies.iter().filter(|(process, _)| *process == 1).count(), 10, "{copies:?}");
    assert_eq!(copies.iter().filter(|(process, _)| *process == 2).count(), 10, "{copies:?}");
    let site = copies[0].1.expect("a site");
    assert!(copies.iter().all(|(_, other)| *other == Some(site)), "{copies:?} {:?}", trace.sites);
    assert!(trace.sites[site as usize].module.ends_with("/program"), "{:?}", trace.sites);
}

/// 400 places that copy, each twice, in a program and in a library that it loads.
const PLACES: &str = r#"
#include <dlfcn.h>
#include <string.h>
static char source[1 << 16], target[1 << 16];
static volatile size_t bytes = sizeof source;
#define ONE memcpy(target, source, bytes);
#define TEN ONE ONE ONE ONE ONE ONE ONE ONE ONE ONE
#define HUNDRED TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN
void copies(void) { HUNDRED HUNDRED }
int main(int count, char **arguments) {
    void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) return 3;
    void (*loaded)(void) = (void (*)(void))dlsym(library, "copies");
    for (int i = 0; i < 2; i++) copies(), loaded();
    return count != 2;
}
"#;

#[test]
fn each_call_site_has_a_number_of_its_own_in_programs_and_in_libraries() {
    use memlift_model::whatif::Trace;
    let place = Place::new();
    let program = compiled(&place, PLACES);
    let (library, file) = (path(&place, "places.so"), path(&place, "places.trace"));
    let source = path(&place, "program.c");
    let built = Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o", &library, &source]).status();
    assert!(built.expect("a C compiler").success());
    let output = place.run(&["record", "-q", "-o", &file, "--", &program, &library]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let trace = Trace::read(&std::fs::read(&file).expect("the trace")).expect("a trace");
    let mut calls = std::collections::BTreeMap::new();
    for call in trace.calls().filter(|call| call.read == 1 << 16) {
        let site = &trace.sites[call.site.expect("a site") as usize];
        *calls.entry((site.module.clone(), site.offset)).or_insert(0) += 1;
    }
    assert_eq!(calls.len(), 400, "{calls:?}");
    assert!(calls.values().all(|calls| *calls == 2), "{calls:?}");
    assert_eq!(calls.keys().filter(|(module, _)| module.ends_with("/places.so")).count(), 200);
}

/// Children whose environment is cleared load no recorder: both the end of the recording and the answer say how much CPU time is theirs.
#[test]
fn cpu_time_of_children_that_escape_the_recording_is_said() {
    const COMPUTES: &str = "i=0; while [ $i -lt 400000 ]; do i=$((i + 1)); done";
    let place = Place::new();
    let program = compiled(&place, FORKED);
    let said = |name: &str, line: &str| {
        let file = path(&place, name);
        let recorded = place.run(&["record", "-o", &file, "--", "sh", "-c", &format!("{program}; {line}")]);
        assert_eq!(recorded.status.code(), Some(0), "{}", text(&recorded.stderr));
        let answer = answered(&place, &[&file]);
        let output = place.run(&["whatif", &file]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let of = |field: &str| answer["trace"][field].as_f64().expect("a number");
        (text(&recorded.stderr), text(&output.stdout), of("unrecorded_cpu_ns") / of("cpu_ns"))
    };
    let (end, answer, part) = said("escaped.trace", &format!("env -i sh -c '{COMPUTES}'"));
    assert!(part > 0.5, "{part}: {answer}");
    assert!(end.contains("outside of recorded processes") && end.contains("env -i"), "{end}");
    assert!(answer.contains("escaped    ") && answer.contains("no device is asked about them"), "{answer}");
    let (end, answer, part) = said("held.trace", &format!("sh -c '{COMPUTES}'"));
    assert!(part < 0.05, "{part}: {answer}");
    assert!(
        !end.contains("outside of recorded processes") && !answer.contains("escaped    "),
        "{end}{answer}"
    );
}

/// Two threads that compute for 0.2 s of CPU time each.
const TWO: &str = r#"
#include <pthread.h>
#include <string.h>
#include <time.h>
static char source[1 << 16], target[1 << 16], other[1 << 16];
static volatile size_t bytes = sizeof source;
static void *computes(void *unused) {
    struct timespec time;
    // A thread that calls nothing is not in a trace.
    memcpy(unused, source, bytes);
    do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    while (time.tv_sec == 0 && time.tv_nsec < 200000000);
    return unused;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, computes, target);
    computes(other);
    pthread_join(thread, 0);
    return 0;
}
"#;

#[test]
fn on_one_core_two_threads_take_the_time_of_both() {
    let place = Place::new();
    let file = path(&place, "two.trace");
    let output = place.run(&["record", "-q", "-o", &file, "--", &compiled(&place, TWO)]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let on = |cores: &str| answered(&place, &["--cores", cores, &file])["cores"]["wall_s"].as_f64();
    let (one, two) = (on("1").expect("a time"), on("2").expect("a time"));
    // Their CPU time is counted; what others took from them is not. Being woken late may lengthen both.
    assert!(one > 0.39 && one / two > 1.4 && one / two < 2.1, "{one} s and {two} s");
    let said = text(&place.run(&["whatif", "--cores", "1", &file]).stdout);
    assert!(said.contains("on 1 core: "), "{said}");
}
