// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Traces of `memlift record`, read as the machines of the lab read them.

#[path = "../../../cli/tests/place/mod.rs"]
mod place;

use std::process::Command;

use place::{Place, text};

fn path(place: &Place, name: &str) -> String {
    place.folder.path().join(name).to_str().expect("UTF-8").to_owned()
}

/// A C program of this text.
fn compiled(place: &Place, text: &str) -> String {
    let (source, program) = (path(place, "program.c"), path(place, "program"));
    std::fs::write(&source, text).expect("written");
    let built = Command::new("cc").args(["-O1", "-pthread", "-o", &program, &source]).status();
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
        let joined = first.iter().position(|step| matches!(step.what, What::Join(_)));
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
