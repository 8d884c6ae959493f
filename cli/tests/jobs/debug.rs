// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift job core` and `memlift job attach`: memory of a job that is away, as debuggers see it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::place::{Place, python, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const MIB: usize = 1 << 20;
const WORDS: usize = 48 * MIB / 8;
const NOISE_BYTES: usize = 12 * MIB;

/// Fills memory that packs and memory that does not, prints where they are, and waits in a call of known depth until its standard
/// input ends; then it checks all of it. Threads write to pages meanwhile.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
uint64_t *array, *noise, *zeros;
size_t words, noise_words;
static volatile int stay = 1;
static uint64_t next(uint64_t x) { x ^= x << 13; x ^= x >> 7; x ^= x << 17; return x; }
static void *change(void *at) {
    uint64_t x = (uintptr_t)at + 77;
    while (stay) { x = next(x); array[x % words] ^= 1; usleep(200); }
    return 0;
}
__attribute__((noinline)) static int wait_here(int depth) {
    char byte;
    if (depth > 0) return wait_here(depth - 1) + 1;
    while (read(0, &byte, 1) > 0) { }
    return 0;
}
int main(int argc, char **argv) {
    words = strtoul(argv[1], 0, 10); noise_words = strtoul(argv[2], 0, 10) / 8;
    array = malloc(words * 8); noise = malloc(noise_words * 8); zeros = calloc(1, 1 << 20);
    for (size_t i = 0; i < words; i++) array[i] = (i * 3 + 1) << 1;
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i < noise_words; i++) noise[i] = x = next(x);
    pthread_t threads[2];
    for (long k = 0; k < 2; k++) pthread_create(&threads[k], 0, change, (void *)k);
    printf("%zu %zu\n", (size_t)array, (size_t)noise);
    fflush(stdout);
    int depth = wait_here(4);
    stay = 0;
    for (int k = 0; k < 2; k++) pthread_join(threads[k], 0);
    x = 88172645463325252u;
    for (size_t i = 0; i < words; i++) if (array[i] >> 1 != i * 3 + 1) return 1;
    for (size_t i = 0; i < noise_words; i++) if (noise[i] != (x = next(x))) return 2;
    printf("right %d\n", depth);
    return 0;
}
"#;

/// A job most of whose memory is away.
struct Away {
    place: Place,
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    program: String,
    pid: u32,
    array: u64,
    noise: u64,
}

impl Away {
    fn new(mask: &str) -> Away {
        let place = Place::new();
        let [source, program] = ["program.c", "program"].map(|name| place.folder.path().join(name));
        std::fs::write(&source, PROGRAM).expect("written");
        let built =
            Command::new("cc").args(["-O1", "-g", "-pthread", "-o"]).arg(&program).arg(&source).status();
        assert!(built.expect("a C compiler").success());
        let program = program.to_str().expect("UTF-8").to_owned();
        let spill = place.folder.path().join("spill");
        std::fs::create_dir(&spill).expect("a folder");
        let mut command = place.memlift(&["run", "-q", "--memory", "24M"]);
        // Where the folder for temporary files is memory, nothing is spilled.
        if Command::new("stat")
            .args(["-f", "-c", "%T"])
            .arg(&spill)
            .output()
            .is_ok_and(|out| out.stdout != b"tmpfs\n")
        {
            command.arg("--spill").arg(&spill);
        }
        command.args(["--", &program, &WORDS.to_string(), &NOISE_BYTES.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).env("MEMLIFT_DISABLE", mask);
        let mut child = command.spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let line = lines.next().expect("a line").expect("read");
        let mut numbers = line.split(' ').map(|number| number.parse::<u64>().expect("an address"));
        let [array, noise] = [(); 2].map(|()| numbers.next().expect("two addresses"));
        let output = place.run(&["--json", "job", "list"]);
        let jobs: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let pid = jobs["jobs"][0]["pids"][0].as_u64().expect("one process") as u32;
        Away { place, child, lines, program, pid, array, noise }
    }

    /// A debugger of this job's process.
    fn attach(&self, command: &[&str]) -> std::process::Output {
        let pid = self.pid.to_string();
        self.place.run(&[&["job", "attach", &pid, "--"], command].concat())
    }

    /// Resident size of the process, bytes.
    fn resident(&self) -> usize {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).expect("it runs");
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
    }

    /// Lets the program check its memory and end.
    fn end(mut self) {
        drop(self.child.stdin.take());
        assert_eq!(self.lines.next().expect("a line").expect("read"), "right 4");
        assert_eq!(self.child.wait().expect("it ends").code(), Some(0));
    }
}

/// A core file's parts of the address space that are in it, and its notes.
struct Core {
    bytes: Vec<u8>,
    parts: Vec<(u64, usize, usize)>,
    notes: Vec<(u32, usize)>,
}

impl Core {
    fn read(path: &str) -> Core {
        let bytes = std::fs::read(path).expect("a core");
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")) as usize;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        assert_eq!(&bytes[..6], b"\x7fELF\x02\x01");
        let (headers, count) = (long(32), usize::from(u16::from_le_bytes([bytes[56], bytes[57]])));
        let (mut parts, mut notes) = (Vec::new(), Vec::new());
        for header in (0..count).map(|index| headers + 56 * index) {
            let (offset, address, size) = (long(header + 8), long(header + 16) as u64, long(header + 32));
            if word(header) == 1 && size > 0 {
                parts.push((address, offset, size));
            } else if word(header) == 4 {
                let mut at = offset;
                while at < offset + size {
                    let (name, content) = (word(at) as usize, word(at + 4) as usize);
                    notes.push((word(at + 8), content));
                    at += 12 + name.next_multiple_of(4) + content.next_multiple_of(4);
                }
            }
        }
        Core { bytes, parts, notes }
    }

    /// The word at an address.
    fn word(&self, address: u64) -> Option<u64> {
        let inside = |part: &&(u64, usize, usize)| address.wrapping_sub(part.0) < part.2 as u64;
        let (start, offset, _) = self.parts.iter().find(inside)?;
        let at = offset + (address - start) as usize;
        Some(u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("8 bytes")))
    }
}

fn is_there(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

fn forbidden(said: &str) -> bool {
    let forbidden = said.contains("may not be traced");
    if forbidden {
        println!("not run: this container forbids ptrace");
    }
    forbidden
}

#[test]
fn a_core_has_what_is_away_and_takes_none_of_the_budget() {
    for mask in ["", "uffd"] {
        let job = Away::new(mask);
        let core = job.place.folder.path().join("core").to_str().expect("UTF-8").to_owned();
        let pid = job.pid.to_string();
        let before = job.resident();
        let output = job.place.run(&["--json", "job", "core", &pid, "-o", &core]);
        if forbidden(&text(&output.stderr)) {
            return;
        }
        assert!(output.status.success(), "{}", text(&output.stderr));
        let after = job.resident();
        assert!(after < before + MIB && before < 30 * MIB, "{before} and {after} bytes are resident");
        let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert!(said["pages_away"].as_u64() > Some(5000), "{said}");
        assert_eq!((&said["pages_lost"], &said["pid"]), (&Value::from(0), &Value::from(job.pid)));
        let read = Core::read(&core);
        for index in (0..WORDS).step_by(61) {
            let word = read.word(job.array + 8 * index as u64).map(|word| word >> 1);
            assert_eq!(word, Some(index as u64 * 3 + 1), "word {index} without {mask:?}");
        }
        let mut x = 88_172_645_463_325_252_u64;
        for index in 0..NOISE_BYTES / 8 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            if index % 61 == 0 {
                assert_eq!(read.word(job.noise + 8 * index as u64), Some(x), "noise {index}");
            }
        }
        let count = |kind| read.notes.iter().filter(|note| note.0 == kind).count();
        let threads = said["threads"].as_u64().expect("a number") as usize;
        assert!(threads >= 3 && count(1) == threads && count(2) == threads, "{:?}", read.notes);
        for kind in [3, 6, 0x4649_4c45, 0x5349_4749] {
            assert_eq!(count(kind), 1, "note {kind:#x}");
        }
        // A file that is there is replaced only if that is asked for.
        let again = job.place.run(&["job", "core", &pid, "-o", &core]);
        assert_eq!(again.status.code(), Some(2));
        assert!(text(&again.stderr).contains("--force"), "{}", text(&again.stderr));
        assert!(job.place.run(&["job", "core", &pid, "-o", &core, "--force"]).status.success());
        if is_there("gdb") {
            let ask = format!("print array[{}]", WORDS - 1);
            let output = Command::new("gdb")
                .args(["-nx", "-batch", &job.program, &core, "-ex", &ask, "-ex", "print zeros[77]"])
                .args(["-ex", "thread apply all backtrace"])
                .output()
                .expect("it starts");
            let said = text(&output.stdout);
            let last = (WORDS as u64 - 1) * 3 + 1;
            let value = said.lines().find_map(|line| line.strip_prefix("$1 = ")).expect("a value");
            assert_eq!(value.parse::<u64>().expect("a number") >> 1, last, "{said}");
            assert!(said.contains("$2 = 0"), "{said}");
            assert_eq!(said.matches("in wait_here ").count(), 5, "{said}");
            // Of a thread whose fault was being answered, gdb shows what answers it, and not what lies below the signal's frame.
            let answered = said.matches("memlift_preload::signal::on_signal").count();
            assert!(said.contains("change (") || answered >= 2, "{said}");
        }
        job.end();
    }
    let output = Place::new().run(&["job", "core", "1"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("under no budget"), "{}", text(&output.stderr));
}

/// Reads the array of another process by both calls that Linux has.
const READER: &str = "
import ctypes, os, struct, sys
pid, array, words = map(int, sys.argv[1:4])
libc = ctypes.CDLL(None, use_errno=True)
class Part(ctypes.Structure):
    _fields_ = [('address', ctypes.c_void_p), ('bytes', ctypes.c_size_t)]
def by_call(address, count):
    room = ctypes.create_string_buffer(count)
    here = (Part * 2)(Part(ctypes.addressof(room), 100), Part(ctypes.addressof(room) + 100, count - 100))
    there = Part(address, count)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    got = libc.process_vm_readv(pid, here, ctypes.c_ulong(2), ctypes.byref(there), ctypes.c_ulong(1), ctypes.c_ulong(0))
    if got < 0: raise OSError(ctypes.get_errno(), 'process_vm_readv')
    return room.raw[:got]
memory = os.open(f'/proc/{pid}/mem', os.O_RDWR)
wrong = failed = 0
for way in (lambda at, count: os.pread(memory, count, at), by_call):
    for first in range(0, words, words // 200):
        try:
            bytes = way(array + 8 * first, 8192)
        except OSError:
            failed += 1
            continue
        for index, (word,) in enumerate(struct.iter_unpack('Q', bytes)):
            wrong += word >> 1 != (first + index) * 3 + 1
        failed += len(bytes) < 8192
# The byte that is there is written again, to pages of which few are present.
written = refused = 0
for page in range(0, words // 512, 64) if len(sys.argv) > 4 else ():
    at = array + 4096 * page + 1
    try:
        written += os.pwrite(memory, os.pread(memory, 1, at), at)
    except OSError:
        refused += 1
print(wrong, failed, written, refused)
";

#[test]
fn a_debugger_reads_what_is_away() {
    for mask in ["", "uffd"] {
        let job = Away::new(mask);
        // The last page is not read by a whole block.
        let arguments = [job.pid.to_string(), job.array.to_string(), (WORDS - 1024).to_string()];
        let python = python();
        let alone = Command::new(&python).args(["-c", READER]).args(&arguments).output().expect("it starts");
        let words = arguments.iter().map(String::as_str).chain(["write"]);
        let command: Vec<&str> = [python.as_str(), "-c", READER].into_iter().chain(words).collect();
        let output = job.attach(&command);
        if forbidden(&text(&output.stderr)) {
            return;
        }
        // Without that, most reads fail; or they give zeros, where the kernel does not know that the pages are away.
        let said = text(&alone.stdout);
        let counts: Vec<u64> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
        assert!(counts[0] > 100 || counts[1] > 100, "{said}{}", text(&alone.stderr));
        let said = text(&output.stdout);
        let counts: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        assert_eq!(counts[..2], [0, 0], "{said}{}", text(&output.stderr));
        assert!(counts[3] > 10, "{said}: what is away cannot be changed from outside");
        if is_there("gdb") {
            let pid = job.pid.to_string();
            let ask = format!("print array[{}]", WORDS / 2);
            let gdb = ["gdb", "-nx", "-batch", "-p", &pid, "-ex", &ask, "-ex", "print array[1] + array[2]"];
            let said = text(&job.attach(&gdb).stdout);
            let value = said.lines().find_map(|line| line.strip_prefix("$1 = ")).unwrap_or_default();
            assert_eq!(value.parse::<u64>().map(|word| word >> 1), Ok(WORDS as u64 / 2 * 3 + 1), "{said}");
        }
        job.end();
    }
}

#[test]
fn a_core_that_is_interrupted_leaves_no_file_and_the_job_goes_on() {
    let job = Away::new("");
    let folder = job.place.folder.path().join("cores");
    std::fs::create_dir(&folder).expect("a folder");
    let core = folder.join("core").to_str().expect("UTF-8").to_owned();
    let began = Instant::now();
    for pause_ms in [150, 100, 60, 30, 10] {
        let mut command = job.place.memlift(&["job", "core", &job.pid.to_string(), "-o", &core, "--force"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        std::thread::sleep(Duration::from_millis(pause_ms));
        kill_process(Pid::from_child(&child), Signal::INT).expect("signalled");
        let status = child.wait().expect("it ends");
        let left: Vec<_> = std::fs::read_dir(&folder).expect("a folder").collect();
        if status.success() {
            // It was faster than the signal.
            std::fs::remove_file(&core).expect("a whole core");
        } else {
            let signal = std::os::unix::process::ExitStatusExt::signal(&status);
            let mut said = String::new();
            let _ = std::io::Read::read_to_string(&mut child.stderr.take().expect("piped"), &mut said);
            if forbidden(&said) {
                break;
            }
            assert_eq!(signal, Some(2), "{status} {said}");
            assert!(left.is_empty(), "{left:?}");
        }
    }
    println!("{:?}", began.elapsed());
    job.end();
}

/// Behind a shell's `&`, SIGINT is ignored: it interrupts nothing.
#[test]
fn a_signal_that_is_ignored_interrupts_no_core() {
    let job = Away::new("");
    let core = job.place.folder.path().join("core").to_str().expect("UTF-8").to_owned();
    let given = job.place.memlift(&["job", "core", &job.pid.to_string(), "-o", &core, "--force"]);
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' INT; exec \"$0\" \"$@\""]).arg(given.get_program()).args(given.get_args());
    command.envs(given.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(10));
        let _ = kill_process(Pid::from_child(&child), Signal::INT);
    }
    let status = child.wait().expect("it ends");
    let mut said = String::new();
    let _ = std::io::Read::read_to_string(&mut child.stderr.take().expect("piped"), &mut said);
    assert!(
        forbidden(&said) || (status.success() && std::path::Path::new(&core).exists()),
        "{status} {said}"
    );
    job.end();
}
