// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real etcd of a test's own, on ports of its own, with its data in a folder of its own.
//!
//! - **Needs** `etcd` on the PATH (Debian: etcd-server) or where `tools/etcd` puts it; without it a test says so and is skipped
#![allow(dead_code, reason = "each test file uses what it needs")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use memlift_traverse::map::etcd::Etcd;
use memlift_traverse::map::{Authority, Source};

pub struct Server {
    program: PathBuf,
    child: Mutex<Option<Child>>,
    pub folder: tempfile::TempDir,
    pub ports: [u16; 2],
    /// Network namespace in which etcd runs, and its address there.
    pub space: Option<(String, std::net::Ipv4Addr)>,
    /// Options of the address where etcd wants TLS and certificates of its clients.
    pub secured: Option<String>,
}

/// A program of a Debian package: on the PATH, or where `tools/etcd` unpacked it.
pub fn program(name: &str, package: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let unpacked = cache.map(|cache| cache.join("memlift/corpora").join(package).join("usr/bin").join(name));
    let found = [Some(PathBuf::from(name)), unpacked].into_iter().flatten().find(|program| {
        let mut command = Command::new(program);
        let option = if name == "etcdctl" { "version" } else { "--version" };
        command.env("ETCDCTL_API", "3").arg(option).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    });
    if found.is_none() {
        println!("skipped: {package} is not installed (run tools/etcd, or sudo apt install {package})");
    }
    found
}

impl Server {
    /// `None` where there is no etcd.
    pub fn start() -> Option<Server> {
        let server = Server::stopped()?;
        server.run();
        Some(server)
    }

    pub fn stopped() -> Option<Server> {
        let program = program("etcd", "etcd-server")?;
        let folder = tempfile::tempdir().expect("a folder");
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let ports = listeners.map(|listener| listener.local_addr().expect("bound").port());
        Some(Server { program, child: Mutex::default(), folder, ports, space: None, secured: None })
    }

    pub fn run(&self) {
        let host = self.host();
        let [mut client, peer] = self.ports.map(|port| format!("http://{host}:{port}"));
        let data: &Path = self.folder.path();
        let mut command = match &self.space {
            None => Command::new(&self.program),
            Some((space, _)) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", space]).arg(&self.program);
                command
            }
        };
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        if self.secured.is_some() {
            client = client.replace("http:", "https:");
            command
                .arg("--cert-file")
                .arg(data.join("server.pem"))
                .arg("--key-file")
                .arg(data.join("server.key"));
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(data.join("ca.pem"));
        }
        command.arg("--data-dir").arg(data.join("data")).args(["--name", "one", "--logger", "zap"]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("one={peer}")]);
        // Leases of a second need elections faster than that.
        command.args(["--heartbeat-interval", "50", "--election-timeout", "500"]);
        if !std::env::consts::ARCH.starts_with("x86") {
            command.env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH);
        }
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("etcd runs");
        let mut etcd = self.etcd();
        while etcd.read().is_err() {
            let ended = child.try_wait().expect("asked");
            assert!(ended.is_none(), "etcd ended: {ended:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        *self.child.lock().expect("whole") = Some(child);
    }

    pub fn stop(&self) {
        let mut child = self.child.lock().expect("whole").take().expect("running");
        child.kill().expect("killed");
        child.wait().expect("gone");
    }

    /// Stops or continues the process of etcd.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let child = self.child.lock().expect("whole");
        let process = rustix::process::Pid::from_child(child.as_ref().expect("running"));
        rustix::process::kill_process(process, signal).expect("sent");
    }

    fn host(&self) -> String {
        self.space.as_ref().map_or_else(|| "127.0.0.1".to_owned(), |(_, address)| address.to_string())
    }

    pub fn etcd(&self) -> Etcd {
        let Source::Etcd(mut address) = self.source() else { unreachable!("an etcd") };
        // The first host is nobody: the next one is asked.
        address.hosts.insert(0, address.hosts[0].replace(&self.ports[0].to_string(), "1"));
        Etcd::new(address).with_lease_s(1)
    }

    /// Runs etcd's own command, as an operator does; nobody has to be logged in yet.
    pub fn ctl(&self, arguments: &[&str]) {
        let (data, scheme) = (self.folder.path(), if self.secured.is_some() { "https" } else { "http" });
        let mut command = Command::new(program("etcdctl", "etcd-client").expect("asked for before"));
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={scheme}://localhost:{}", self.ports[0]));
        if self.secured.is_some() {
            for (option, file) in [("--cacert", "ca.pem"), ("--cert", "client.pem"), ("--key", "client.key")]
            {
                command.arg(option).arg(data.join(file));
            }
        }
        let output = command.args(arguments).output().expect("etcdctl runs");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// The address, with what comes behind the question mark.
    pub fn text(&self) -> String {
        let port = self.ports[0];
        match &self.secured {
            None => format!("etcd:http://{}:{port}/test/map", self.host()),
            Some(options) => format!("etcd:https://localhost:{port}/test/map?{options}"),
        }
    }

    pub fn source(&self) -> Source {
        Source::parse(&self.text()).expect("a source")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.get_mut().expect("whole").take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
