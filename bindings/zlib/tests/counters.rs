// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The counters page: made at load and only when asked for, readable from outside, one per process of a fork, and no
//! system call after that which a filter could forbid.
//!
//! - **Flow** a test ──▶ this very program again, with our library preloaded, as one of the `child_…` below ──▶ its page, read
//!   as `memlift dropin status` does
//! - **Order** a child closes its standard output when it is ready, and ends when its standard input does

mod both;

use both::{Libz, our_path, sample};
use memlift_kernels::counters::{Amount, View};
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The pages of a process: name and rows.
fn pages(pid: u32) -> Vec<(String, u64, Vec<Amount>)> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let files = entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        fs::read_link(&path).ok()?.to_str()?.starts_with("/memfd:memlift:").then(|| fs::read(path).ok())?
    });
    let parsed = files.filter_map(|bytes| {
        let view = View::parse(&bytes)?;
        Some((view.name().collect(), view.pid(), view.rows().map(|(_, amount)| amount).collect()))
    });
    parsed.collect()
}

fn again(child: &str, stats: Option<&str>) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
    command.args(["--exact", child, "--ignored", "--nocapture"]).env("LD_PRELOAD", our_path());
    match stats {
        Some(value) => command.env("MEMLIFT_STATS", value),
        None => command.env_remove("MEMLIFT_STATS"),
    };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("this program starts again")
}

/// Returns true if [`again`] started this process.
fn is_a_child() -> bool {
    std::env::var_os("LD_PRELOAD").is_some_and(|path| Path::new(&path) == our_path())
}

/// Reads the child's output up to its mark; returns the process id that it prints.
fn wait_until_ready(child: &mut Child) -> u32 {
    let mut said = String::new();
    let output = child.stdout.as_mut().expect("piped");
    let mut byte = [0];
    while output.read(&mut byte).expect("a pipe") == 1 {
        said.push(char::from(byte[0]));
        if let Some((_, after)) = said.split_once("ready ")
            && let Some((pid, _)) = after.split_once('\n')
        {
            return pid.parse().expect("a number");
        }
    }
    panic!("the child ended: {said}");
}

fn say_ready_and_wait() {
    println!("ready {}", std::process::id());
    std::io::stdout().flush().expect("a pipe");
    std::io::stdin().read_to_end(&mut Vec::new()).expect("a pipe");
}

fn end(mut child: Child) {
    drop(child.stdin.take());
    assert!(child.wait().expect("our child").success());
}

fn pack_once(libz: &Libz) {
    let source = sample(20_000, 3);
    let mut target = vec![0; 40_000];
    let mut bytes = target.len() as u64;
    // SAFETY: sizes as given.
    let code =
        unsafe { (libz.compress2)(target.as_mut_ptr(), &mut bytes, source.as_ptr(), source.len() as u64, 6) };
    assert_eq!(code, 0);
}

#[test]
#[ignore = "a child of the tests below"]
fn child_packs() {
    if !is_a_child() {
        return;
    }
    let libz = both::ours();
    // The environment is gone before the first message, as in nginx.
    // SAFETY: the only other thread of this process waits for this one.
    unsafe { libc::clearenv() };
    pack_once(&libz);
    say_ready_and_wait();
}

#[test]
#[ignore = "a child of the tests below"]
fn child_behind_a_filter() {
    if !is_a_child() {
        return;
    }
    let libz = both::ours();
    forbid(&[libc::SYS_memfd_create, libc::SYS_ftruncate, libc::SYS_fcntl]);
    pack_once(&libz);
    say_ready_and_wait();
}

/// From now on these calls end the process.
fn forbid(calls: &[i64]) {
    let rule = |code, if_so, if_not, k| libc::sock_filter { code, jt: if_so, jf: if_not, k };
    let mut program = vec![rule((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, 0)];
    for &call in calls {
        program.push(rule((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, 1, call as u32));
        program.push(rule((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, libc::SECCOMP_RET_KILL_PROCESS));
    }
    program.push(rule((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: both calls change this process only; the program is read before the second returns.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter), 0);
    }
}

#[test]
#[ignore = "a child of the tests below"]
fn child_forks() {
    if !is_a_child() {
        return;
    }
    let libz = both::ours();
    pack_once(&libz);
    // SAFETY: the child of the fork leaves by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let zero = pages(std::process::id());
        let own = zero.len() == 1 && zero[0].1 == u64::from(std::process::id()) && zero[0].2[0].count == 0;
        pack_once(&libz);
        pack_once(&libz);
        let two = pages(std::process::id())[0].2[0].count == 2;
        // SAFETY: nothing of the parent's is run.
        unsafe { libc::_exit(i32::from(!(own && two))) };
    }
    let mut status = 0;
    // SAFETY: our child.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0);
    say_ready_and_wait();
}

#[test]
fn the_page_is_there_although_the_environment_was_cleared() {
    let mut child = again("child_packs", Some("1"));
    let pages = pages(wait_until_ready(&mut child));
    end(child);
    assert_eq!(pages.len(), 1);
    assert_eq!(pages[0].0, "memlift:zlib");
    assert_eq!((pages[0].2[0].count, pages[0].2[0].source_bytes), (1, 20_000));
}

#[test]
fn nobody_asked_so_there_is_no_page() {
    for stats in [None, Some("0"), Some("")] {
        let mut child = again("child_packs", stats);
        let pages = pages(wait_until_ready(&mut child));
        end(child);
        assert!(pages.is_empty());
    }
}

#[test]
fn messages_need_no_system_call_that_a_filter_forbids() {
    let mut child = again("child_behind_a_filter", Some("1"));
    let pages = pages(wait_until_ready(&mut child));
    end(child);
    assert_eq!(pages[0].2[0].count, 1);
}

#[test]
fn a_fork_counts_into_a_page_of_its_own() {
    let mut child = again("child_forks", Some("1"));
    let pages = pages(wait_until_ready(&mut child));
    end(child);
    assert_eq!(pages[0].2[0].count, 1, "what the child of the fork did is not here");
}

#[test]
fn the_workers_of_nginx_are_counted() {
    let nginx = ["/usr/sbin/nginx", "/usr/bin/nginx"].into_iter().find(|path| Path::new(path).exists());
    let (Some(nginx), true) = (nginx, Path::new("/usr/bin/curl").exists()) else {
        eprintln!("not run: nginx or curl is not installed");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().display().to_string();
    fs::create_dir(folder.path().join("root")).expect("a folder");
    fs::write(folder.path().join("root/a.html"), sample(16384, 1)).expect("a file");
    // A worker of another user could not read a folder of ours.
    let user = if fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0) {
        "user root;"
    } else {
        ""
    };
    let configuration = format!(
        "{user} daemon off; worker_processes 1; pid {path}/pid; error_log {path}/errors warn;
         events {{ worker_connections 64; }}
         http {{ access_log off; client_body_temp_path {path}/a; proxy_temp_path {path}/b; fastcgi_temp_path {path}/c;
           uwsgi_temp_path {path}/d; scgi_temp_path {path}/e; types {{ text/html html; }}
           server {{ listen unix:{path}/socket; root {path}/root; gzip on; gzip_comp_level 6; }} }}"
    );
    fs::write(folder.path().join("conf"), configuration).expect("a file");
    let mut command = Command::new(nginx);
    command.args(["-p", &path, "-c", &format!("{path}/conf")]).stderr(Stdio::null());
    let mut server =
        command.env("LD_PRELOAD", our_path()).env("MEMLIFT_STATS", "1").spawn().expect("nginx starts");
    while !folder.path().join("socket").exists() {
        assert!(server.try_wait().expect("our child").is_none(), "nginx ended");
        std::thread::sleep(Duration::from_millis(10));
    }
    for _ in 0..3 {
        let mut curl = Command::new("/usr/bin/curl");
        curl.args(["-sS", "--fail", "--compressed", "--unix-socket", &format!("{path}/socket")]);
        let output = curl.arg("http://localhost/a.html").output().expect("curl starts");
        assert!(output.stdout == sample(16384, 1), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", server.id())).expect("a list");
    let counted: u64 = children
        .split_whitespace()
        .flat_map(|pid| pages(pid.parse().expect("a pid")))
        .map(|(_, _, rows)| rows[0].count + rows[1].count)
        .sum();
    // SAFETY: nginx ends, and its worker with it.
    unsafe { libc::kill(server.id() as i32, libc::SIGTERM) };
    server.wait().expect("our child");
    assert_eq!(counted, 3);
}
