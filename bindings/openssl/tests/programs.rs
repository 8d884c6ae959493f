// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs of every day, through nothing but `OPENSSL_CONF`: s_server and s_client, curl, Python.

mod workshop;

use std::io::{Read, Write};
use std::process::Stdio;
use workshop::{Workshop, page_of, tls_server};

/// Options of server and client for every version and key length.
const SUITES: [(&str, &str); 4] = [
    ("-tls1_2", "-cipher ECDHE-ECDSA-AES128-GCM-SHA256"),
    ("-tls1_2", "-cipher ECDHE-ECDSA-AES256-GCM-SHA384"),
    ("-tls1_3", "-ciphersuites TLS_AES_128_GCM_SHA256"),
    ("-tls1_3", "-ciphersuites TLS_AES_256_GCM_SHA384"),
];

#[test]
fn openssl_lists_the_provider_and_takes_its_ciphers() {
    let Some(workshop) = Workshop::open("list", &[]) else { return };
    let listed = workshop.command("openssl", true).args(["list", "-providers", "-verbose"]).output().unwrap();
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    assert!(text.contains("memlift AES-GCM provider"), "{text}");
    assert!(text.contains("memlift-sealed-bytes"), "{text}");
    assert!(text.contains("build info: serves: MEMLIFT_OPENSSL=force"), "{text}");
    let listed = workshop.command("openssl", true).args(["list", "-cipher-algorithms"]).output().unwrap();
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(text.contains("id-aes128-GCM") && text.contains("@ memlift"), "{text}");
}

#[test]
fn it_steps_aside_when_told() {
    let Some(workshop) = Workshop::open("aside", &[]) else { return };
    let listed = workshop
        .command("openssl", true)
        .env("MEMLIFT_OPENSSL", "off")
        .args(["list", "-cipher-algorithms"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(text.contains("id-aes128-GCM") && !text.contains("@ memlift"), "{text}");
}

#[test]
fn its_section_says_what_was_measured() {
    let Some(workshop) = Workshop::open("measured", &[]) else { return };
    let original = std::fs::read_to_string(workshop.path("memlift.cnf")).unwrap();
    for (value, serves) in [("yes", true), ("no", false)] {
        let path = workshop.path("measured.cnf");
        let marked = original.replace("module = ", &format!("serves = {value}\nmodule = "));
        std::fs::write(&path, marked).unwrap();
        let mut command = workshop.command("openssl", true);
        command.env("OPENSSL_CONF", &path).env_remove("MEMLIFT_OPENSSL").args([
            "list",
            "-providers",
            "-verbose",
        ]);
        let text = String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned();
        let said = format!("its section says serves = {value}");
        assert!(text.contains(&said) && text.contains("build info: serves") == serves, "{text}");
    }
}

#[test]
fn s_server_and_s_client_with_the_provider_on_one_side_or_both() {
    let Some(workshop) = Workshop::open("s", &[]) else { return };
    for (version, suite) in SUITES {
        for (server_side, client_side) in [(true, false), (false, true), (true, true)] {
            let what = format!("{version} {suite}, server {server_side}, client {client_side}");
            // Towards the client: a file.
            let (server, port) = tls_server(&workshop, server_side, &format!("-WWW {version} {suite}"));
            let mut client = workshop
                .command("openssl", client_side)
                .args(format!("s_client -quiet -connect 127.0.0.1:{port} {version}").split(' '))
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            client.stdin.take().unwrap().write_all(b"GET /payload HTTP/1.0\r\n\r\n").unwrap();
            let answer = client.wait_with_output().unwrap();
            let body = answer.stdout.len().saturating_sub(workshop.payload.len());
            assert!(answer.stdout[body..] == workshop.payload, "{what}: {} bytes", answer.stdout.len());
            let page = page_of(server.program());
            assert_eq!(page.is_some(), server_side, "{what}");
            if let Some((sealed, opened)) = page {
                assert!(
                    sealed.source_bytes > 2_900_000 && opened.count >= 1,
                    "{what}: {sealed:?} {opened:?}"
                );
            }
            drop(server);

            // Towards the server: lines, which come back reversed.
            let (server, port) = tls_server(&workshop, server_side, &format!("-rev {version} {suite}"));
            let mut client = workshop
                .command("openssl", client_side)
                .args(format!("s_client -quiet -connect 127.0.0.1:{port} {version}").split(' '))
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            let lines: Vec<String> =
                (0..100).map(|line| format!("line {line} {}", "abcdefghij".repeat(line * 7))).collect();
            let mut input = client.stdin.take().unwrap();
            let text = lines.join("\n") + "\nCLOSE\n";
            let writer = std::thread::spawn(move || {
                let _ = input.write_all(text.as_bytes());
                input
            });
            let mut answer = String::new();
            client.stdout.take().unwrap().read_to_string(&mut answer).unwrap();
            client.wait().unwrap();
            drop(writer.join());
            let reversed: Vec<String> =
                lines.iter().map(|line| line.chars().rev().collect::<String>()).collect();
            assert_eq!(answer.trim_end(), reversed.join("\n"), "{what}");
            drop(server);
        }
    }
}

#[test]
fn curl_gets_what_was_sent() {
    let Some(workshop) = Workshop::open("curl", &["curl"]) else { return };
    let version = workshop.command("curl", false).arg("--version").output().unwrap();
    if !String::from_utf8_lossy(&version.stdout).contains("OpenSSL/3") {
        println!("not run: curl is not built on OpenSSL 3");
        return;
    }
    for (version, suite) in SUITES {
        let (server, port) = tls_server(&workshop, true, &format!("-WWW {version} {suite}"));
        let got = workshop
            .command("curl", true)
            .args(["-sS", "--cacert", "cert.pem", &format!("https://localhost:{port}/payload")])
            .output()
            .unwrap();
        assert!(got.status.success(), "{}", String::from_utf8_lossy(&got.stderr));
        assert!(got.stdout == workshop.payload, "{version} {suite}: {} bytes", got.stdout.len());
        drop(server);
    }
}

/// Both ends in one Python, over memory; then a fork in the middle of a connection.
const PYTHON: &str = r#"
import os, ssl, struct, sys

def pair(version, suite):
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain("cert.pem", "key.pem")
    client.load_verify_locations("cert.pem")
    for context in (server, client):
        context.minimum_version = context.maximum_version = version
        if suite:
            context.set_ciphers(suite)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    a = client.wrap_bio(down, up, server_hostname="localhost")
    b = server.wrap_bio(up, down, server_side=True)
    done = set()
    while len(done) < 2:
        for end in (a, b):
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                pass
    return a, b

def send(a, b, data):
    got = bytearray()
    for at in range(0, len(data), 50000):
        piece = data[at:at + 50000]
        a.write(piece)
        while len(got) < at + len(piece):
            got += b.read(1 << 16)
    assert got == data

def counted():
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            continue
        if target == "/memfd:memlift:openssl (deleted)":
            page = open("/proc/self/fd/" + fd, "rb").read()
            if struct.unpack_from("<Q", page, 24)[0] == os.getpid():
                return struct.unpack_from("<Q", page, 256 + 32)[0], struct.unpack_from("<Q", page, 320 + 32)[0]
    return 0, 0

data = open("payload", "rb").read()[:1000001]
names = set()
for version, suite in ((ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES128-GCM-SHA256"),
                       (ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES256-GCM-SHA384"),
                       (ssl.TLSVersion.TLSv1_3, None)):
    a, b = pair(version, suite)
    names.add(a.cipher()[0])
    send(a, b, data)
    send(b, a, data)
    child = os.fork()
    if child == 0:
        send(a, b, data)
        sealed, opened = counted()
        os._exit(0 if sealed and opened else 3)
    assert os.waitpid(child, 0)[1] == 0
    send(a, b, data)
sealed, opened = counted()
assert sealed > 3 * 40 and opened > 3 * 40, (sealed, opened)
assert len(names) == 3 and all("GCM" in name for name in names), names
print("all sent")
"#;

#[test]
fn python_talks_to_itself_and_forks() {
    let Some(workshop) = Workshop::open("python", &["python3"]) else { return };
    let version = workshop
        .command("python3", false)
        .args(["-c", "import ssl; print(ssl.OPENSSL_VERSION_INFO[0], ssl.OPENSSL_VERSION)"])
        .output()
        .unwrap();
    if !version.stdout.starts_with(b"3 ") {
        println!("not run: python3 has no ssl on OpenSSL 3");
        return;
    }
    let run = workshop.command("python3", true).args(["-c", PYTHON]).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(run.stdout, b"all sent\n");
}
