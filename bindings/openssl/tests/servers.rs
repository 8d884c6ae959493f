// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Servers that were never recompiled: Redis over TLS, nginx through reload and binary upgrade.

mod workshop;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use workshop::{Running, Workshop, free_port, page_of};

fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if ready() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no sign of {what}");
}

fn listens(port: u16) -> bool {
    std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
}

#[test]
fn redis_keeps_values_over_tls_and_while_it_saves() {
    let Some(workshop) = Workshop::open("redis", &["redis-server", "redis-cli"]) else { return };
    let port = free_port();
    let child = workshop
        .command("redis-server", true)
        .args(format!("--bind 127.0.0.1 --port 0 --tls-port {port} --tls-auth-clients no").split(' '))
        .args("--tls-cert-file cert.pem --tls-key-file key.pem --tls-ca-cert-file cert.pem".split(' '))
        .args(["--save", "", "--dir", ".", "--proto-max-bulk-len", "64mb"])
        .spawn()
        .unwrap();
    let mut server = Running(child);
    wait_for("redis", || listens(port) || server.0.try_wait().unwrap().is_some());
    if server.0.try_wait().unwrap().is_some() {
        println!("not run: this redis-server was built without TLS");
        return;
    }
    for (accelerated, version) in [(true, "TLSv1.2"), (false, "TLSv1.3"), (true, "TLSv1.3")] {
        let client = |arguments: &[&str], stdin: Option<&Path>| {
            let mut command = workshop.command("redis-cli", accelerated);
            command.args(format!("-p {port} --tls --cacert cert.pem").split(' '));
            if version == "TLSv1.2" {
                command.args(["--tls-ciphers", "ECDHE-ECDSA-AES128-GCM-SHA256"]);
            }
            if let Some(path) = stdin {
                command.stdin(fs::File::open(path).unwrap());
            }
            let output = command.args(arguments).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            output.stdout
        };
        assert_eq!(client(&["config", "set", "tls-protocols", version], None), b"OK\n");
        assert_eq!(client(&["-x", "set", "blob"], Some(&workshop.path("payload"))), b"OK\n");
        // The child that saves is a fork of a process with live connections.
        client(&["bgsave"], None);
        let blob = client(&["get", "blob"], None);
        assert!(blob.strip_suffix(b"\n") == Some(&workshop.payload), "{version}: {} bytes", blob.len());
    }
    let (sealed, opened) = page_of(server.program()).expect("redis uses the provider");
    assert!(sealed.source_bytes > 8_000_000 && opened.source_bytes > 8_000_000, "{sealed:?} {opened:?}");
}

fn process_in(path: &Path) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn workers_of(master: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

fn signal(process: u32, number: i32) {
    // SAFETY: a process that this test started, as its pid file says.
    assert_eq!(unsafe { libc::kill(process as i32, number) }, 0);
}

/// nginx puts itself into the background: this ends its masters.
struct Nginx<'a>(&'a Workshop);

impl Drop for Nginx<'_> {
    fn drop(&mut self) {
        for file in ["nginx.pid", "nginx.pid.oldbin"] {
            if let Some(master) = process_in(&self.0.path(file)) {
                // SAFETY: as for `signal`; it may be gone.
                unsafe { libc::kill(master as i32, libc::SIGTERM) };
                while Path::new(&format!("/proc/{master}")).exists() {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }
}

#[test]
fn nginx_serves_through_reload_and_binary_upgrade() {
    let Some(workshop) = Workshop::open("nginx", &["nginx", "curl"]) else { return };
    let port = free_port();
    let folder = workshop.folder.display();
    // Without the `env` lines nginx would not pass the variables on to the binary that replaces it.
    fs::write(
        workshop.path("nginx.conf"),
        format!(
            "pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 2; user root;
             env OPENSSL_CONF; env MEMLIFT_OPENSSL; env MEMLIFT_STATS;
             events {{ worker_connections 64; }}
             http {{
                 access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
                 fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
                 server {{
                     listen 127.0.0.1:{port} ssl; ssl_protocols TLSv1.2 TLSv1.3;
                     ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem;
                     ssl_ciphers ECDHE+AESGCM; root {folder};
                 }}
             }}"
        ),
    )
    .unwrap();
    let nginx = if Path::new("/usr/sbin/nginx").exists() { "/usr/sbin/nginx" } else { "nginx" };
    let mut start = Command::new(nginx);
    start.arg("-c").arg(workshop.path("nginx.conf"));
    workshop.surround(&mut start, true);
    // In the background it would keep the pipes open.
    start.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    assert!(start.status().unwrap().success(), "nginx does not start");
    let guard = Nginx(&workshop);
    wait_for("nginx", || process_in(&workshop.path("nginx.pid")).is_some() && listens(port));

    let get = |option: &str| {
        let got = workshop
            .command("curl", false)
            .args(["-sS", option, "--cacert", "cert.pem", &format!("https://localhost:{port}/payload")])
            .args(["--tls-max", if option == "--tlsv1.2" { "1.2" } else { "1.3" }])
            .output()
            .unwrap();
        assert!(got.status.success(), "{}", String::from_utf8_lossy(&got.stderr));
        assert!(got.stdout == workshop.payload);
    };
    let sealed_by = |master: u32| -> u64 {
        workers_of(master).into_iter().filter_map(page_of).map(|(sealed, _)| sealed.source_bytes).sum()
    };
    let get_all = || (0..4).for_each(|_| ["--tlsv1.2", "--tlsv1.3"].into_iter().for_each(get));

    get_all();
    let first = process_in(&workshop.path("nginx.pid")).unwrap();
    assert!(sealed_by(first) > 20_000_000, "the workers use the provider");

    // Reload: other workers of the same master.
    let before = workers_of(first);
    signal(first, libc::SIGHUP);
    get_all();
    wait_for("the end of the old workers", || {
        let now = workers_of(first);
        !now.is_empty() && before.iter().all(|worker| !now.contains(worker))
    });
    get_all();
    assert!(sealed_by(first) > 20_000_000, "the new workers use it, too");

    // Upgrade: another master, then the old one leaves.
    signal(first, libc::SIGUSR2);
    wait_for("the new master", || {
        process_in(&workshop.path("nginx.pid"))
            .is_some_and(|master| master != first && !workers_of(master).is_empty())
    });
    get_all();
    let second = process_in(&workshop.path("nginx.pid")).unwrap();
    signal(first, libc::SIGQUIT);
    wait_for("the end of the old master", || !Path::new(&format!("/proc/{first}")).exists());
    get_all();
    assert!(sealed_by(second) > 20_000_000, "so do those of the new binary");
    let errors = fs::read_to_string(workshop.path("error.log")).unwrap();
    for word in ["[emerg]", "[alert]", "[crit]", "[error]"] {
        assert!(!errors.contains(word), "{errors}");
    }
    drop(guard);
}

/// OpenSSH's server ciphers inside a filter that ends it at a system call that it does not expect.
#[test]
fn sshd_lives_behind_its_filter() {
    let Some(workshop) = Workshop::open("sshd", &["sshd", "ssh", "ssh-keygen"]) else { return };
    // SAFETY: asks who we are.
    if unsafe { libc::geteuid() } != 0 || !Path::new("/run/sshd").is_dir() {
        println!("not run: sshd separates its privileges only as root, with /run/sshd");
        return;
    }
    for name in ["host", "user"] {
        let made = workshop
            .command("ssh-keygen", false)
            .args(["-q", "-t", "ed25519", "-N", "", "-f", name])
            .status();
        assert!(made.unwrap().success());
    }
    let folder = workshop.folder.display();
    let port = free_port();
    let child = workshop
        .command("/usr/sbin/sshd", true)
        .args(["-D", "-e", "-f", "/dev/null", "-p", &port.to_string(), "-h", &format!("{folder}/host")])
        .args(["-o", "ListenAddress=127.0.0.1", "-o", "StrictModes=no", "-o", "PermitRootLogin=yes"])
        .args(["-o", "PidFile=none", "-o", &format!("AuthorizedKeysFile={folder}/user.pub")])
        .spawn()
        .unwrap();
    let server = Running(child);
    wait_for("sshd", || listens(port));
    for cipher in ["aes128-gcm@openssh.com", "aes256-gcm@openssh.com"] {
        let got = workshop
            .command("ssh", true)
            .args(["-i", "user", "-p", &port.to_string(), "-c", cipher, "-o", "BatchMode=yes"])
            .args(["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-F", "none"])
            .args(["root@127.0.0.1", &format!("cat {folder}/payload")])
            .output()
            .unwrap();
        assert!(got.status.success(), "{}", String::from_utf8_lossy(&got.stderr));
        assert!(got.stdout == workshop.payload, "{cipher}: {} bytes", got.stdout.len());
    }
    assert!(page_of(server.program()).is_some(), "sshd has loaded the provider");
}
