// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A folder with a certificate, a configuration that names the library under test, and data to send; and programs
//! that run in it.
//!
//! - **Owner** [`Workshop`] removes its folder, [`Running`] ends its process: every program is one that the test started.
//! - **Order** what is not installed is reported by one line, and the test passes.
#![allow(dead_code, reason = "every test file uses another part")]

use memlift_kernels::counters::{Amount, View};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub struct Workshop {
    pub folder: PathBuf,
    pub payload: Vec<u8>,
}

impl Workshop {
    /// `None`, and one line that says so, where a program is missing.
    pub fn open(name: &str, programs: &[&str]) -> Option<Workshop> {
        for program in ["openssl"].iter().chain(programs) {
            if !installed(program) {
                println!("not run: {program} is not installed");
                return None;
            }
        }
        let folder = std::env::temp_dir().join(format!("memlift-openssl-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut state = 88172645463325252u64;
        let payload = (0..3_000_000)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 24) as u8
            })
            .collect();
        let workshop = Workshop { folder, payload };
        fs::write(workshop.path("payload"), &workshop.payload).unwrap();
        // The example that we ship, with the library's place filled in.
        let example = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/openssl.cnf")).unwrap();
        let library = std::env::current_exe().unwrap().parent().unwrap().join("libmemlift_openssl.so");
        assert!(library.exists(), "{} is missing: cargo builds it for `cargo test`", library.display());
        let place = "/usr/lib/memlift/libmemlift_openssl.so";
        assert!(example.contains(place));
        fs::write(workshop.path("memlift.cnf"), example.replace(place, library.to_str().unwrap())).unwrap();
        fs::write(workshop.path("plain.cnf"), "").unwrap();
        let made = workshop
            .command("openssl", false)
            .args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2".split(' '))
            .args("-subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1".split(' '))
            .args("-keyout key.pem -out cert.pem -config".split(' '))
            .arg(workshop.request_config())
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Some(workshop)
    }

    fn request_config(&self) -> PathBuf {
        let path = self.path("request.cnf");
        fs::write(&path, "[req]\ndistinguished_name = name\n[name]\n").unwrap();
        path
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A program in the folder, with our provider or without. `timeout` ends it should a test be killed.
    pub fn command(&self, program: &str, accelerated: bool) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "300", program]).current_dir(&self.folder);
        self.surround(&mut command, accelerated);
        command
    }

    pub fn surround(&self, command: &mut Command, accelerated: bool) {
        let config = if accelerated { "memlift.cnf" } else { "plain.cnf" };
        command
            .env("OPENSSL_CONF", self.path(config))
            .env("MEMLIFT_OPENSSL", "force")
            .env("MEMLIFT_STATS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

pub fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/sbin".into()]).any(|folder| folder.join(program).exists())
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A process that ends with this.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: our own child, which was not waited for, so its number is still its own. `timeout` passes it on.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
        let _ = self.0.wait();
    }
}

impl Running {
    /// The program itself, which is a child of `timeout`.
    pub fn program(&self) -> u32 {
        let id = self.0.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        children.split_whitespace().next().and_then(|child| child.parse().ok()).unwrap_or(id)
    }
}

/// `s_server` of the folder on a port that the system chose.
pub fn tls_server(workshop: &Workshop, accelerated: bool, options: &str) -> (Running, u16) {
    let child = workshop
        .command("openssl", accelerated)
        .args("s_server -accept 127.0.0.1:0 -cert cert.pem -key key.pem".split(' '))
        .args(options.split_whitespace())
        .spawn()
        .unwrap();
    let mut running = Running(child);
    let mut lines = BufReader::new(running.0.stdout.take().unwrap());
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line).unwrap() == 0 {
            let mut errors = String::new();
            let _ = running.0.stderr.take().unwrap().read_to_string(&mut errors);
            panic!("s_server does not start: {errors}");
        }
        if let Some(port) = line.strip_prefix("ACCEPT ").and_then(|rest| rest.trim().rsplit(':').next()) {
            let port = port.parse().unwrap();
            // Whatever else it prints has to go somewhere.
            std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
            return (running, port);
        }
    }
}

/// Reads the counters of a process: sealed and opened. `None`: no page, so the provider did nothing there.
pub fn page_of(process: u32) -> Option<(Amount, Amount)> {
    for entry in fs::read_dir(format!("/proc/{process}/fd")).ok()?.flatten() {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        if target != Path::new("/memfd:memlift:openssl (deleted)") {
            continue;
        }
        let bytes = fs::read(entry.path()).ok()?;
        if let Some(view) = View::parse(&bytes).filter(|view| view.pid() == u64::from(process)) {
            let mut rows = view.rows().map(|(_, amount)| amount);
            return Some((rows.next()?, rows.next()?));
        }
    }
    None
}
