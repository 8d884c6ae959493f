// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes in containers: a small /dev/shm, namespaces of their own, few descriptors, a memory cgroup.
//!
//! - **Method** namespaces by `unshare`, cgroups by hand; where this user may not, the test says so and passes

use crate::alone;
use crate::peer::{End, Peer, limit_descriptors, say, serve, small, unique, until_the_parent_ends};
use memlift_ipc::failpoint::{Act, Step};
use memlift_ipc::{Client, ClientOptions, Error, ServerOptions};
use std::path::PathBuf;
use std::process::Command;

/// Everything of its own but the files: processes, mounts, network, System V IPC, name.
const UNSHARE: [&str; 9] =
    ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"];

/// Returns the command that starts a program in a container with so much `/dev/shm` and says how many files it has left there;
/// `None`: not allowed here.
fn container(shm: &str) -> Option<Vec<&'static str>> {
    let mut by = UNSHARE.to_vec();
    if !rustix::process::getuid().is_root() {
        by.push("--map-root-user");
    }
    let script = format!(
        "mount -t tmpfs -o size={shm} tmpfs /dev/shm || exit 1; \"$0\" \"$@\"; \
         echo \"say: left $(ls -A /dev/shm | wc -l)\""
    );
    let trial = Command::new(by[0]).args(&by[1..]).args(["sh", "-c", &script, "true"]).output();
    match trial {
        Ok(output) if output.stdout == b"say: left 0\n" => {}
        Ok(output) => {
            println!("skipped: no namespaces here: {}", String::from_utf8_lossy(&output.stderr));
            return None;
        }
        Err(error) => {
            println!("skipped: no unshare here: {error}");
            return None;
        }
    }
    by.extend(["sh", "-c", script.leak()]);
    Some(by)
}

/// A call of more than 64 MB there and back.
pub fn large(address: &str) -> Result<(), Error> {
    let client = Client::connect(address, small())?;
    let data: Vec<u8> = (0..70_000_000u32).map(|i| (i >> 8) as u8).collect();
    assert!(client.call("echo", data.as_slice(), None)?.to_vec() == data);
    Ok(())
}

#[test]
fn containers_that_share_a_folder_and_nothing_else() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    for (shm, role) in [("1m", "client"), ("64m", "large client")] {
        let Some(by) = container(shm) else { return };
        let address = folder.path().join(format!("{shm}.sock"));
        let address = address.to_str().unwrap();
        let mut server = Peer::spawn_by(&by, "server", address, None);
        assert_eq!(server.line().as_deref(), Some("ready"));
        let mut client = Peer::spawn_by(&by, role, address, None);
        assert_eq!(client.line().as_deref(), Some("done"), "{shm}");
        assert_eq!(client.line().as_deref(), Some("left 0"));
        let end = End { step: Step::AnswerMatched, nth: 5, act: Act::Kill };
        let mut killed = Peer::spawn_by(&by, "client", address, Some(end));
        assert_eq!(killed.line().as_deref(), Some("left 0"), "and nothing else: it was killed");
        let mut next = Peer::spawn_by(&by, "client", address, None);
        assert_eq!(next.line().as_deref(), Some("done"), "the server noticed, or does not mind");
        server.end();
        assert_eq!(server.line().as_deref(), Some("left 0"));
    }
}

/// As many sessions as there are descriptors for.
pub fn crowded(address: &str) {
    limit_descriptors(64);
    let tiny = ClientOptions { request_pool_bytes: 4096, response_pool_bytes: 4096, ..small() };
    let mut clients = Vec::new();
    let error = loop {
        match Client::connect(address, tiny.clone()) {
            Ok(client) => clients.push(client),
            Err(error) => break error,
        }
    };
    assert!(clients.len() >= 4, "{} sessions, then {error}", clients.len());
    for client in &clients {
        assert_eq!(client.call("echo", b"x".as_slice(), None).unwrap().to_vec(), b"x");
    }
    drop(clients.pop());
    let another = Client::connect(address, tiny).expect("there is room again");
    assert_eq!(another.call("echo", b"x".as_slice(), None).unwrap().to_vec(), b"x");
    say(&error.to_string());
}

#[test]
fn few_descriptors_are_an_error_and_no_more() {
    let _alone = alone();
    let address = unique("many");
    let server = serve(&address, ServerOptions::default());
    let said = Peer::spawn("crowded client", &address, None).line().unwrap();
    assert!(said.contains("Too many open files"), "{said}");
    drop(server);

    let address = unique("few");
    let mut server = Peer::spawn("crowded server", &address, None);
    assert_eq!(server.line().as_deref(), Some("ready"));
    let tiny = ClientOptions { request_pool_bytes: 4096, response_pool_bytes: 4096, ..small() };
    let mut clients = Vec::new();
    for _ in 0..2 {
        let error = loop {
            match Client::connect(&address, tiny.clone()) {
                Ok(client) => clients.push(client),
                Err(error) => break error,
            }
        };
        let text = error.to_string();
        assert!(matches!(error, Error::Refused { .. }) && text.contains("RLIMIT_NOFILE"), "{text}");
        assert!(clients.len() >= 4, "{} sessions, then {text}", clients.len());
    }
    for client in &clients {
        assert_eq!(client.call("echo", b"x".as_slice(), None).unwrap().to_vec(), b"x");
    }
    clients.truncate(1);
    // The server may not have heard of the hang-ups yet.
    crate::peer::eventually("a session when others have ended", || {
        Client::connect(&address, tiny.clone()).is_ok()
    });
}

/// A memory cgroup of this process's own.
struct Group {
    folder: PathBuf,
    usage: &'static str,
}

impl Group {
    fn new(limit: u64) -> Option<Group> {
        let name = unique("memlift");
        for (root, max, usage) in [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
            ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ] {
            let group = Group { folder: PathBuf::from(root).join(&name), usage };
            if std::fs::create_dir(&group.folder).is_ok()
                && std::fs::write(group.folder.join(max), limit.to_string()).is_ok()
            {
                return Some(group);
            }
        }
        println!("skipped: no memory cgroup can be made here");
        None
    }

    fn usage(&self) -> u64 {
        std::fs::read_to_string(self.folder.join(self.usage)).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// Wants more than its cgroup has, is told, and goes on.
pub fn greedy(address: &str) {
    let options = ClientOptions { request_pool_bytes: 24 << 20, response_pool_bytes: 24 << 20, ..small() };
    let client = Client::connect(address, options).unwrap();
    say("connected");
    let errors = [
        client.loan(512 << 20).err().unwrap(),
        Client::connect(address, ClientOptions { request_pool_bytes: 1 << 30, ..small() }).err().unwrap(),
    ];
    assert_eq!(client.call("echo", b"x".as_slice(), None).unwrap().to_vec(), b"x");
    for error in errors {
        assert!(matches!(error, Error::Memory(_)), "{error:?}");
        say(&error.to_string());
    }
    until_the_parent_ends();
}

#[test]
fn a_client_pays_for_its_memory_and_is_told_before_it_is_killed() {
    let _alone = alone();
    let Some(group) = Group::new(128 << 20) else { return };
    let address = unique("greedy");
    let _server = serve(&address, ServerOptions::default());
    let enter = format!("echo 0 > {}/cgroup.procs || exit 1; exec \"$0\" \"$@\"", group.folder.display());
    let mut client = Peer::spawn_by(&["sh", "-c", &enter], "greedy client", &address, None);
    assert_eq!(client.line().as_deref(), Some("connected"));
    let charged = group.usage();
    assert!(charged >= 48 << 20, "{charged} bytes are charged to the client, whose pools have 50,331,648");
    for _ in 0..2 {
        let said = client.line().expect("it lives");
        assert!(said.contains("memory.max") || said.contains("memory.limit_in_bytes"), "{said}");
    }
    assert_eq!(client.wait(), None, "it ended by itself");
}
