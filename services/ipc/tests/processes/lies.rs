// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Peers that change memory when they should not, and users that should not be there.
//!
//! - **Goal** what a peer can write is no more than it must, and a handler can have its request where nobody else writes
//! - **Not here** what a peer says: the fuzz targets `ipc_server` and `ipc_client`

use crate::alone;
use crate::peer::{NOBODY, Peer, serve, small, unique};
use memlift_ground::facility::{Facility, usable};
use memlift_ground::region::{Access, Region};
use memlift_ipc::{CallOptions, Client, Error, Reply, Server, ServerOptions, Trust};
use rustix::fs::SealFlags;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::mpsc;

/// Returns true if a handler that reads twice sees what a client wrote in between.
fn sees_a_change(trust: Trust, bytes: u64) -> bool {
    let address = unique("trust");
    let server = Server::bind(&address, ServerOptions { trust, ..ServerOptions::default() }).unwrap();
    let (looked, has_looked) = mpsc::channel();
    let (change, changed) = mpsc::channel::<()>();
    let changed = std::sync::Mutex::new(changed);
    server
        .register("look twice", move |request| {
            let first = request.to_vec();
            looked.send(()).unwrap();
            changed.lock().unwrap().recv().unwrap();
            Ok(Reply::bytes([
                u8::from(first.iter().all(|&byte| byte == 1)),
                u8::from(request.to_vec() != first),
            ]))
        })
        .unwrap();
    server.start().unwrap();
    let client = Client::connect(&address, small()).unwrap();
    let mut loan = client.loan(bytes).unwrap();
    loan.write_at(0, &vec![1; bytes as usize]);
    let mut job = client.call_async("look twice", &loan, None).unwrap();
    has_looked.recv().unwrap();
    loan.write_at(bytes - 1, &[2]);
    change.send(()).unwrap();
    let [as_sent, change_seen] = job.wait(None).unwrap().to_vec()[..] else { panic!("two bytes") };
    assert_eq!(as_sent, 1);
    drop(loan);
    assert_eq!(client.stats().request_used_bytes, 0, "its slot is free when the answer is there");
    change_seen == 1
}

#[test]
fn a_handler_may_have_its_request_where_the_client_cannot_write() {
    let _alone = alone();
    for bytes in [1, 4000, 3 << 20] {
        assert!(!sees_a_change(Trust::Copy, bytes), "{bytes}");
        // A short request comes in the message, which is copied.
        assert_eq!(sees_a_change(Trust::View, bytes), bytes > 64, "{bytes}: what is not copied can change");
    }
}

/// Rights of this process's mappings of segments of that kind.
fn rights(kind: &str) -> Vec<String> {
    let name = format!("/memfd:memlift-{kind}");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let lines = maps.lines().filter(|line| line.contains(&name));
    let mut rights: Vec<String> = lines.map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect();
    rights.sort_unstable();
    rights
}

#[test]
fn each_side_can_write_what_it_has_to_and_no_more() {
    let _alone = alone();
    let address = unique("rights");
    let _server = serve(&address, ServerOptions::default());
    let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let client = Client::connect(&address, small()).unwrap();
    let large = vec![1; 5 << 20];
    client.call("echo", large.as_slice(), None).unwrap();
    // Both sides of both segments of either pool lie in this process: one of each two can write.
    assert_eq!(rights("request"), ["r--s", "r--s", "rw-s", "rw-s"]);
    assert_eq!(rights("response"), ["r--s", "r--s", "rw-s", "rw-s"]);
    let after = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert_eq!(after - before, 6, "a socket and two events on either side");
}

#[test]
fn a_server_gets_segments_that_keep_their_size_and_requests_that_only_the_client_writes() {
    let _alone = alone();
    if !usable(Facility::MemfdSeal) {
        return;
    }
    // A server of our own, which looks at what it gets.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("raw.sock");
    let listener = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    rustix::net::bind(&listener, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let address = path.to_str().unwrap().to_owned();
    let client = std::thread::spawn(move || Client::connect(&address, small()).err());
    let socket = rustix::net::accept(&listener).unwrap();
    let received =
        memlift_ground::rights::receive(&socket, &mut [0; 256], rustix::net::RecvFlags::empty()).unwrap();
    let descriptors: Vec<OwnedFd> = received.descriptors;
    let [control, _, _, request, response] = &descriptors[..] else { panic!("{descriptors:?}") };
    let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    assert_eq!(rustix::fs::fcntl_get_seals(request).unwrap(), size | SealFlags::FUTURE_WRITE);
    let bytes = rustix::fs::fstat(request).unwrap().st_size as u64;
    let again = request.try_clone().unwrap();
    assert!(Region::from_fd(again, Access::ReadWrite, bytes).is_err(), "a server that wants to write");
    assert!(Region::from_fd(request.try_clone().unwrap(), Access::ReadOnly, bytes).is_ok());
    for shared in [control, response] {
        assert!(rustix::fs::fcntl_get_seals(shared).unwrap().contains(size));
        assert!(rustix::fs::ftruncate(shared, 0).is_err());
    }
    // The listener first: there is no other server that the client could try.
    drop((listener, socket));
    assert!(matches!(client.join().unwrap(), Some(Error::PeerDied { .. })));
}

/// Changes a byte of `what` where it lies in a segment of that kind, as whoever may write there could; false: it does not yet.
fn spoil(kind: &str, what: &[u8]) -> bool {
    let name = format!("/memfd:memlift-{kind}");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let memory = std::fs::File::options().read(true).write(true).open("/proc/self/mem").unwrap();
    let writable = maps.lines().filter(|line| line.contains(&name) && line.contains(" rw-s "));
    let mut ranges = writable.map(|line| {
        let (from, rest) = line.split_once('-').unwrap();
        let to = rest.split(' ').next().unwrap();
        (u64::from_str_radix(from, 16).unwrap(), u64::from_str_radix(to, 16).unwrap())
    });
    ranges.any(|(from, to)| {
        let mut bytes = vec![0; (to - from) as usize];
        memory.read_exact_at(&mut bytes, from).unwrap();
        let found = bytes.windows(what.len()).position(|window| window == what);
        found.is_some_and(|at| memory.write_all_at(&[!what[0]], from + at as u64).is_ok())
    })
}

#[test]
fn a_reply_that_changed_on_the_way_is_not_handed_over() {
    let _alone = alone();
    let address = unique("reply");
    let _server = serve(&address, ServerOptions::default());
    let client = Client::connect(&address, small()).unwrap();
    let said = b"a reply that nobody else in this process has said, and too long to lie in a message";
    let options = CallOptions { crc: true, ..CallOptions::default() };
    let mut job = client.call_async("echo", said.as_slice(), options).unwrap();
    while !spoil("response", said) {
        std::thread::yield_now();
    }
    let error = job.wait(None).unwrap_err();
    assert!(matches!(&error, Error::Corrupted { what: "reply", bytes: 83, .. }), "{error}");
    assert_eq!(client.call("echo", said.as_slice(), options).unwrap().to_vec(), said);
    assert_eq!(client.stats().request_used_bytes, 0);
}

#[test]
fn another_user_is_let_in_by_name_or_by_group_only() {
    let _alone = alone();
    if !rustix::process::getuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).unwrap();
    let path = folder.path().join("others.sock");
    let address = path.to_str().unwrap();
    let said = |options: ServerOptions| {
        let server = serve(address, options);
        let said = Peer::spawn_as_nobody("client", address).line();
        (said.unwrap(), server.stats().refused)
    };
    let nobody_else = ServerOptions::default();
    let (said_by_file, refused) = said(nobody_else.clone());
    assert!(said_by_file.contains("ServerUnavailable"), "{said_by_file}");
    assert_eq!(refused, 0, "the file has kept it away");
    // A folder that others may write to, or a file whose rights were changed: the kernel still says who it is.
    let server = serve(address, nobody_else.clone());
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let refused = Peer::spawn_as_nobody("client", address).line().unwrap();
    assert!(refused.contains("user 65534") && refused.contains("allowed_uids"), "{refused}");
    assert_eq!(server.stats().refused, 1);
    drop(server);
    let wrong = ServerOptions { allowed_uids: Some(vec![NOBODY - 1]), ..nobody_else.clone() };
    assert!(said(wrong).0.contains("Refused"));
    let user = ServerOptions { allowed_uids: Some(vec![NOBODY]), ..nobody_else.clone() };
    assert_eq!(said(user).0, "done");
    let group = ServerOptions { allowed_gids: vec![NOBODY], ..nobody_else.clone() };
    assert_eq!(said(group).0, "done");
    let any = ServerOptions { allowed_uids: None, ..nobody_else };
    assert_eq!(said(any).0, "done");
}
