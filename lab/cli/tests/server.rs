// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Recorded servers: their requests are counted, and answers are in requests per second.

#[path = "../../../cli/tests/place/mod.rs"]
mod place;

use std::process::Command;

use place::{Place, text};
use serde_json::Value;

/// A server that copies 1 MiB for each request, and the client that it forks: two connections in turn, 50 requests each, a millisecond
/// apart. A second word on a connection before its answer, a file under a descriptor that was a connection, and the client's own
/// connections count as no request.
const SERVER: &str = r#"
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
enum { BYTES = 1 << 20 };
static char *source, *target;
static volatile size_t bytes = BYTES;
static void client(struct sockaddr_in *address) {
    char word[64] = "ask";
    for (int connection = 0; connection < 2; connection++) {
        int file = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(file, (void *)address, sizeof *address)) _exit(2);
        for (int i = 0; i < 50; i++) {
            struct timespec pause = { 0, 1000000 };
            nanosleep(&pause, 0);
            if (write(file, word, 64) != 64) _exit(3);
            for (int got = 0, more; got < 64; got += more)
                if ((more = read(file, word, 64 - got)) <= 0) _exit(4);
        }
        close(file);
    }
    _exit(0);
}
int main(void) {
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&address, length) || listen(listener, 8)) return 5;
    getsockname(listener, (void *)&address, &length);
    source = malloc(BYTES), target = malloc(BYTES);
    memset(source, 1, BYTES), memset(target, 2, BYTES);
    pid_t child = fork();
    if (child == 0) client(&address);
    for (int connection = 0; connection < 2; connection++) {
        int file = accept(listener, 0, 0);
        char half[32];
        while (recv(file, half, 32, 0) == 32 && recv(file, half, 32, 0) == 32) {
            memcpy(target, source, bytes);
            source[0]++;
            if (send(file, half, 32, 0) != 32 || write(file, half, 32) != 32) return 6;
        }
        close(file);
        int same = open("/dev/zero", O_RDWR);
        if (same != file || read(same, half, 32) != 32 || write(same, half, 32) != 32) return 7;
        close(same);
    }
    int status;
    waitpid(child, &status, 0);
    return status != 0;
}
"#;

/// Copies 64 KiB ten times.
const COPIES: &str = r#"
#include <string.h>
static char source[1 << 16], target[1 << 16];
static volatile size_t bytes = sizeof source;
int main(void) {
    for (int i = 0; i < 10; i++) memcpy(target, source, bytes), source[i]++;
    return target[99];
}
"#;

fn compiled(place: &Place, text: &str) -> String {
    let of = |name: &str| place.folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (source, program) = (of("server.c"), of("server"));
    std::fs::write(&source, text).expect("written");
    let built = Command::new("cc").args(["-O1", "-o", &program, &source]).status();
    assert!(built.expect("a C compiler").success());
    program
}

fn said(place: &Place, arguments: &[&str]) -> String {
    let output = place.run(&[&["whatif"], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn answered(place: &Place, arguments: &[&str]) -> Value {
    serde_json::from_str(&said(place, &[&["--json"], arguments].concat())).expect("JSON")
}

#[test]
fn a_server_is_answered_in_requests_per_second() {
    let place = Place::new();
    let file = place.folder.path().join("server.trace");
    let file = file.to_str().expect("UTF-8");
    let output = place.run(&["record", "-q", "-o", file, "--", &compiled(&place, SERVER)]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));

    let answer = answered(&place, &["--device", "dsa", "--from", "1M", file]);
    let requests = &answer["trace"]["requests"];
    assert_eq!((&requests["count"], &requests["given"]), (&100.into(), &false.into()), "{requests}");
    assert_eq!(
        (&requests["read_bytes"], &requests["written_bytes"]),
        (&6400.into(), &6400.into()),
        "{requests}"
    );
    assert_eq!(requests["processes"], serde_json::json!([1]), "the client is a process of its own");
    let time = |field: &str| requests[field].as_f64().expect("a number");
    let span_s = (time("last_ns") - time("first_ns")) / 1e9;
    assert!(time("inside_ns") < time("last_ns") - time("first_ns"), "one at a time: {requests}");

    // The replay without a device has the recorded rate, which the client's pauses bound; the core could do more.
    let rates = |run: &str| answer[run]["requests_per_second"].clone();
    let (without, with) = (rates("without"), rates("with"));
    let rate =
        |rates: &Value, field: &str| rates[field].as_f64().unwrap_or_else(|| panic!("{field}: {rates}"));
    let recorded = rate(&without, "recorded_load");
    assert!((recorded * span_s / 100.0 - 1.0).abs() < 0.02, "{recorded} in {span_s} s");
    assert!(recorded < 1000.0 && rate(&without, "saturation") > recorded, "{without}");
    assert_eq!(without["limited_by"], "busiest_thread", "one thread answers: {without}");
    assert!(without["device"].is_null() && rate(&with, "device") > rate(&without, "saturation"), "{with}");

    // A device that copies faster than any core changes what the server could do much more than the recorded rate.
    let (shipped, _) = memlift_model::whatif::parameters("dsa").expect("parameters");
    let slow = "[device_rate]\nvalue = 31.17";
    assert!(shipped.contains(slow));
    let fast = place.folder.path().join("fast.toml");
    std::fs::write(&fast, shipped.replacen(slow, "[device_rate]\nvalue = 4000", 1)).expect("written");
    let fast = ["--device", "dsa", "--from", "1M", "--parameters", fast.to_str().expect("UTF-8"), file];
    let answer = answered(&place, &fast);
    let rates = |run: &str, field: &str| rate(&answer[run]["requests_per_second"], field);
    let more = rates("with", "saturation") / rates("without", "saturation");
    let now = rates("with", "recorded_load") / rates("without", "recorded_load");
    assert!(more > 1.2 && now < more, "{more} {now}: {answer:#}");
    let range = &answer["range"][2];
    assert!(range["from"].as_f64() <= Some(more) && Some(more) <= range["to"].as_f64(), "{range}");
    let parameters = answer["parameters"].as_array().expect("a list");
    assert!(parameters.iter().any(|one| one["capacity_changes_by"].as_f64() != Some(0.0)), "{answer:#}");

    // As text: the rule, the table, what limits, what matters.
    let shown = said(&place, &fast);
    for wanted in [
        "requests   100 in ",
        "bytes read from an accepted connection until bytes are written to it",
        "requests per second",
        "at the recorded load",
        "at most, by the busiest thread's core",
        "at most, by all cores",
        "at most, by the device",
        "limited by",
        "what matters most to the capacity: ",
    ] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    let plain = said(&place, &[file]);
    assert!(plain.contains("at most, by all cores") && !plain.contains("by the device"), "{plain}");

    // A number that the user gives counts for the whole run, the client's process included.
    let given = answered(&place, &["--device", "dsa", "--requests", "5000", file]);
    assert_eq!(
        (&given["trace"]["requests"]["count"], &given["trace"]["requests"]["given"]),
        (&5000.into(), &true.into())
    );
    let wall_s = given["without"]["wall_s"].as_f64().expect("a number");
    let recorded = rate(&given["without"]["requests_per_second"], "recorded_load");
    assert!((recorded * wall_s / 5000.0 - 1.0).abs() < 0.05, "{recorded} in {wall_s} s");
    assert!(said(&place, &["--requests", "5000", file]).contains("as --requests says"));
    let output = place.run(&["whatif", "--requests", "0", file]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn a_trace_from_a_pipe_without_an_end_is_answered_and_a_short_one_is_refused() {
    let place = Place::new();
    let of = |name: &str| place.folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (file, short) = (of("pipe.trace"), of("short.trace"));
    let output = place.run(&["record", "-q", "-o", &file, "--", &compiled(&place, COPIES)]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lab = env!("CARGO_BIN_EXE_memlift-lab");
    let piped = |input: &str| {
        let command = format!("{input} | timeout 60 {lab} whatif --device dsa --json /dev/stdin");
        Command::new("sh").args(["-c", &command]).output().expect("a shell")
    };
    let whole = answered(&place, &["--device", "dsa", &file]);
    let output = piped(&format!("cat {file} /dev/zero"));
    let endless: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(endless["without"], whole["without"]);
    let bytes = std::fs::read(&file).expect("the trace");
    std::fs::write(&short, &bytes[..bytes.len() - 1]).expect("written");
    let output = piped(&format!("cat {short}"));
    assert!(text(&output.stderr).contains("it was cut off"), "{}", text(&output.stderr));
    let output = piped("cat /dev/zero");
    assert!(text(&output.stderr).contains("this is no trace"), "{}", text(&output.stderr));
}
