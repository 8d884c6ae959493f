// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that were never recompiled: Python, git, curl and nginx, preloaded and by a folder with our `libz.so.1`.
//!
//! A program that is not installed, or does not use the system's libz, is not run; one line says so.

mod both;

use both::{our_path, sample};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Both ways to get our library into a program.
fn ways(folder: &Path) -> Vec<(&'static str, String)> {
    symlink(our_path(), folder.join("libz.so.1")).expect("a link in a folder of our own");
    vec![("LD_PRELOAD", our_path().display().to_string()), ("LD_LIBRARY_PATH", folder.display().to_string())]
}

fn run(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!errors.contains("version information"), "{errors}");
    assert!(output.status.success(), "{command:?}\n{errors}");
    output
}

fn have(program: &str) -> bool {
    let found = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).chain(["/usr/sbin".into()]).any(|folder| folder.join(program).is_file())
    });
    if !found {
        eprintln!("not run: {program} is not installed");
    }
    found
}

#[test]
fn python_packs_and_unpacks() {
    let folder = tempfile::tempdir().expect("a folder");
    let python = ["/usr/bin/python3", "python3"]
        .into_iter()
        .find(|python| Path::new(python).is_file() || have(python));
    let Some(python) = python else { return };
    let script = r#"
import gzip, os, random, sys, zlib
if "libmemlift_z" not in open("/proc/self/maps").read():
    sys.exit(3)
random.seed(5)
text = b" ".join(random.choice([b"page", b"memory", b"copy", b"<p>", b"0x%x" % random.getrandbits(20)]) for _ in range(60000))
for size in (0, 1, 1000, 4096, 16384, 65536, len(text)):
    data = text[:size]
    for level in range(-1, 10):
        for bits in (15, 31, -15, 9, -9, 25):
            packer = zlib.compressobj(level, zlib.DEFLATED, bits)
            packed = packer.compress(data[:size // 2]) + packer.flush(zlib.Z_SYNC_FLUSH) + packer.compress(data[size // 2:])
            other = packer.copy()
            end = packer.flush()
            assert other.flush() == end
            assert zlib.decompress(packed + end, bits) == data
            reader = zlib.decompressobj(bits)
            assert reader.decompress(packed + end + b"tail") == data and reader.unused_data == b"tail" and reader.eof
    assert gzip.decompress(gzip.compress(data)) == data
    if os.fork() == 0:
        os._exit(0 if zlib.decompress(zlib.compress(data)) == data else 1)
    assert os.wait()[1] == 0
"#;
    for (variable, value) in ways(folder.path()) {
        let status =
            Command::new(python).args(["-c", script]).env(variable, value).status().expect("python starts");
        match status.code() {
            Some(3) => eprintln!("not run: {python} does not use the system's libz"),
            code => assert_eq!(code, Some(0), "{variable}"),
        }
    }
}

#[test]
fn git_commits_packs_and_clones() {
    if !have("git") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for (variable, value) in ways(folder.path()) {
        let (one, two) = (folder.path().join(variable), folder.path().join(format!("{variable}-clone")));
        fs::create_dir(&one).expect("a folder");
        for file in 0..40u64 {
            fs::write(one.join(format!("{file}.html")), sample(file as usize * 3000, file)).expect("a file");
        }
        let git = |folder: &Path, arguments: &[&str], ours: bool| {
            let mut command = Command::new("git");
            command
                .arg("-C")
                .arg(folder)
                .args(["-c", "user.name=t", "-c", "user.email=t@example.org"])
                .args(arguments);
            if ours {
                command.env(variable, &value);
            }
            run(&mut command)
        };
        git(&one, &["init", "-q"], true);
        git(&one, &["add", "."], true);
        git(&one, &["commit", "-q", "-m", "one"], true);
        git(&one, &["fsck", "--full", "--strict"], false);
        git(&one, &["gc", "-q"], true);
        git(&one, &["fsck", "--full", "--strict"], false);
        git(&one, &["fsck", "--full", "--strict"], true);
        git(
            folder.path(),
            &["clone", "-q", "--no-local", &one.display().to_string(), &two.display().to_string()],
            true,
        );
        git(&two, &["fsck", "--full", "--strict"], false);
        assert!(git(&two, &["status", "--porcelain"], true).stdout.is_empty());
    }
}

/// A server that is ended when the test ends, however.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn nginx_packs_and_curl_unpacks() {
    if !have("nginx") || !have("curl") {
        return;
    }
    for turn in 0..2 {
        let folder = tempfile::tempdir().expect("a folder");
        let (variable, value) = ways(folder.path()).swap_remove(turn);
        let path = folder.path().display().to_string();
        let sizes = [20, 1000, 4096, 16384, 32768, 40_000, 65536, 1_000_000];
        fs::create_dir(folder.path().join("root")).expect("a folder");
        for size in sizes {
            fs::write(folder.path().join(format!("root/{size}.html")), sample(size, size as u64))
                .expect("a file");
        }
        let configuration = format!(
            "daemon off; master_process off; pid {path}/pid; error_log {path}/errors warn;
             events {{ worker_connections 64; }}
             http {{ access_log off; client_body_temp_path {path}/a; proxy_temp_path {path}/b; fastcgi_temp_path {path}/c;
               uwsgi_temp_path {path}/d; scgi_temp_path {path}/e; types {{ text/html html; }}
               server {{ listen unix:{path}/socket; root {path}/root; gzip on; gzip_min_length 1; gzip_comp_level 6;
                 location /one/ {{ alias {path}/root/; gzip_comp_level 1; }}
                 location /nine/ {{ alias {path}/root/; gzip_comp_level 9; }} }} }}"
        );
        fs::write(folder.path().join("conf"), configuration).expect("a file");
        let nginx = if Path::new("/usr/sbin/nginx").exists() { "/usr/sbin/nginx" } else { "nginx" };
        let mut command = Command::new(nginx);
        command.args(["-p", &path, "-c", &format!("{path}/conf")]).env(variable, &value);
        let server = Server(command.stderr(Stdio::null()).spawn().expect("nginx starts"));
        let socket = folder.path().join("socket");
        while !socket.exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let maps = fs::read_to_string(format!("/proc/{}/maps", server.0.id())).expect("maps");
        assert!(maps.contains("libmemlift_z") && !maps.contains("/libz.so.1.2"), "our libz, and only ours");
        for size in sizes {
            for place in ["", "one/", "nine/"] {
                let mut curl = Command::new("curl");
                curl.args(["-sS", "--fail", "--compressed", "-D", "-", "--unix-socket"]).arg(&socket);
                curl.arg(format!("http://localhost/{place}{size}.html")).env(variable, &value);
                let output = run(&mut curl).stdout;
                let end = output.windows(4).position(|four| four == b"\r\n\r\n").expect("headers") + 4;
                assert!(String::from_utf8_lossy(&output[..end]).contains("Content-Encoding: gzip"));
                assert!(output[end..] == sample(size, size as u64), "{place}{size}");
            }
        }
        drop(server);
        let errors = fs::read_to_string(folder.path().join("errors")).expect("a log");
        assert!(!errors.contains("alert") && !errors.contains("preallocated"), "{errors}");
    }
}
