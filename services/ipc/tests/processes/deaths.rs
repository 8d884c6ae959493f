// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deaths that the socket does not tell of, or not soon: robust words.
//!
//! - **Goal** a death is seen when it happens, not when the kernel has freed the dead process's memory and closes its descriptors
//! - **Method** a child with copies of the descriptors, so that there is no hang-up at all; a server with much memory, for the numbers

use crate::alone;
use crate::kills::{Survivor, quantiles, says_gone};
use crate::peer::{LONG, Peer, eventually, serve, small, unique};
use crate::storms::Mode;
use memlift_ground::region::{Access, Region, RegionOffset};
use memlift_ipc::layout::{CONTROL_BYTES, MAGIC, OLDEST, SERVER_ROBUST_AT};
use memlift_ipc::{AsyncClient, Client, Error, Outgoing, ServerOptions, Watch};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::process::Signal;
use rustix::thread::futex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// GiB that a large server touches.
pub fn gib() -> u64 {
    std::env::var("MEMLIFT_DEATH_GIB").map_or(4, |text| text.parse().unwrap())
}

/// Returns true if the kernel can sleep on several words; without it only the hang-up tells.
fn sleeps_on_several() -> bool {
    let none = futex::waitv(&[], futex::WaitvFlags::empty(), None, rustix::thread::ClockId::Monotonic);
    none == Err(rustix::io::Errno::INVAL)
}

/// Waits in that mode for a call that is never answered.
fn wait_without_end(client: &Client, mode: Mode) -> Result<(), Error> {
    let data = vec![7; 5_000];
    let data = data.as_slice();
    match mode {
        Mode::Sync => client.call("hold", data, None).map(drop),
        Mode::Async => client.call_async("hold", data, None)?.wait(None).map(drop),
        Mode::Pipelined => {
            let mut pipeline = client.pipeline(2);
            pipeline.submit("hold", data, None)?;
            pipeline.next(None)?.map_or(Ok(()), |(_, answer)| answer.map(drop))
        }
        Mode::Watch => {
            let watch = Watch::new(client.clone())?;
            watch.submit("hold", &Outgoing::from(data), None)?;
            let mut answered = watch.turn(false)?;
            while answered.is_empty() {
                poll(&mut [PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN)], None).unwrap();
                answered = watch.turn(true)?;
            }
            answered.into_iter().try_for_each(|(_, answer)| answer.map(drop))
        }
        Mode::Future => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
            runtime
                .block_on(async { AsyncClient::tokio(client.clone())?.call("hold", data, None).await })
                .map(drop)
        }
    }
}

/// Calls in a thread of its own; gives the error, and when it came.
fn waiting(client: Client, mode: Mode) -> mpsc::Receiver<(Instant, Error)> {
    let (say, said) = mpsc::channel();
    std::thread::spawn(move || {
        let error = wait_without_end(&client, mode).expect_err("nobody answers");
        let _ = say.send((Instant::now(), error));
    });
    said
}

#[test]
fn a_server_is_seen_to_die_though_a_child_keeps_its_descriptors() {
    let _alone = alone();
    if !sleeps_on_several() {
        return;
    }
    for mode in Mode::ALL {
        let address = unique("copied-server");
        let mut server = Peer::spawn("server", &address, None);
        assert_eq!(server.line().as_deref(), Some("ready"));
        let client = Client::connect(&address, small()).unwrap();
        client.call("leave copies", Outgoing::none(), None).unwrap();
        let said = waiting(client.clone(), mode);
        eventually("the call", || client.stats().outstanding == 1);
        server.signal(Signal::KILL);
        // Far below the time limit of the call, and the child lives for as long as `server`.
        let (_, error) =
            said.recv_timeout(LONG / 2).unwrap_or_else(|_| panic!("{mode:?}: the call does not end"));
        assert!(says_gone(&error), "{mode:?}: {error:?}");
    }
}

#[test]
fn a_client_is_seen_to_die_though_a_child_keeps_its_descriptors() {
    let _alone = alone();
    if !sleeps_on_several() {
        return;
    }
    let address = unique("copied-client");
    let survivor = Survivor::new(&address);
    let mut client = Peer::spawn("copied client", &address, None);
    assert_eq!(client.line().as_deref(), Some("ready"));
    client.signal(Signal::KILL);
    // The child is there until its pipe closes.
    survivor.forgets();
    drop(client);
    survivor.has_lost_nothing(&address);
}

#[test]
fn more_sessions_than_one_thread_watches_are_all_seen_to_end() {
    let _alone = alone();
    if !sleeps_on_several() {
        return;
    }
    let address = unique("many");
    let mut server = Peer::spawn("server", &address, None);
    assert_eq!(server.line().as_deref(), Some("ready"));
    let clients: Vec<Client> = (0..150).map(|_| Client::connect(&address, small()).unwrap()).collect();
    for client in [&clients[0], &clients[149]] {
        client.call("leave copies", Outgoing::none(), None).unwrap();
    }
    let said: Vec<_> = clients.iter().map(|client| waiting(client.clone(), Mode::Sync)).collect();
    eventually("the calls", || clients.iter().all(|client| client.stats().outstanding == 1));
    server.signal(Signal::KILL);
    for (index, said) in said.into_iter().enumerate() {
        let (_, error) =
            said.recv_timeout(LONG / 2).unwrap_or_else(|_| panic!("{index}: the call does not end"));
        assert!(says_gone(&error), "{index}: {error:?}");
    }
}

/// A server of this process's own: the socket and the control segment of its one client.
struct RawServer {
    socket: OwnedFd,
    control: Region,
}

/// A client, and a server of ours that has put `word` there before it welcomes.
fn greeted(word: u32) -> (Client, RawServer) {
    use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("raw.sock");
    let listener =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let address = path.to_str().unwrap().to_owned();
    let client = std::thread::spawn(move || Client::connect(&address, small()).unwrap());
    let socket = rustix::net::accept(&listener).unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
    let mut ancillary = rustix::net::RecvAncillaryBuffer::new(&mut space);
    let mut packet = [0; 256];
    let slices = &mut [std::io::IoSliceMut::new(&mut packet)];
    rustix::net::recvmsg(&socket, slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    let rights = ancillary.drain().find_map(|message| match message {
        rustix::net::RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let control = rights.unwrap().next().unwrap();
    let control = Region::from_fd(control, Access::ReadWrite, CONTROL_BYTES).unwrap();
    control.layout::<AtomicU32>(RegionOffset(SERVER_ROBUST_AT)).unwrap().store(word, Ordering::Release);
    let mut welcome = [0; 192];
    welcome[..8].copy_from_slice(&MAGIC.to_le_bytes());
    welcome[8..12].copy_from_slice(&OLDEST.to_le_bytes());
    welcome[16..24].copy_from_slice(&(1_u64 << 20).to_le_bytes());
    welcome[24..28].copy_from_slice(&4_u32.to_le_bytes());
    rustix::net::send(&socket, &welcome, rustix::net::SendFlags::NOSIGNAL).unwrap();
    (client.join().unwrap(), RawServer { socket, control })
}

#[test]
fn a_server_without_a_word_is_seen_to_die_by_its_hang_up() {
    let _alone = alone();
    let (client, server) = greeted(0);
    // A word that comes later is none, and what a peer does to ours is no death of its own.
    for at in [SERVER_ROBUST_AT, memlift_ipc::layout::CLIENT_ROBUST_AT] {
        server.control.layout::<AtomicU32>(RegionOffset(at)).unwrap().store(!0, Ordering::Release);
        let _ = futex::wake(
            server.control.layout::<AtomicU32>(RegionOffset(at)).unwrap(),
            futex::Flags::empty(),
            1,
        );
    }
    let late = client.call("echo", b"x".as_slice(), Some(Duration::from_millis(50))).unwrap_err();
    assert!(matches!(late, Error::DeadlineExceeded { .. }), "{late}");
    let said = waiting(client, Mode::Sync);
    drop(server.socket);
    assert!(says_gone(&said.recv_timeout(LONG / 2).expect("the call ends").1));
}

#[test]
fn a_peer_that_changes_its_word_ends_its_own_session_only() {
    let _alone = alone();
    if !sleeps_on_several() {
        return;
    }
    let address = unique("bystander");
    let _server = serve(&address, ServerOptions::default());
    let bystander = Client::connect(&address, small()).unwrap();
    let (client, server) = greeted(77);
    let said = waiting(client.clone(), Mode::Sync);
    eventually("the call", || client.stats().outstanding == 1);
    let word = server.control.layout::<AtomicU32>(RegionOffset(SERVER_ROBUST_AT)).unwrap();
    word.store(78, Ordering::Release);
    futex::wake(word, futex::Flags::empty(), 1).unwrap();
    assert!(says_gone(&said.recv_timeout(LONG / 2).expect("the call ends").1));
    assert_eq!(bystander.call("echo", b"x".as_slice(), None).unwrap().to_vec(), b"x");
}

#[test]
fn a_server_that_died_before_it_was_watched_is_seen() {
    let _alone = alone();
    if !sleeps_on_several() {
        return;
    }
    let (client, server) = greeted(memlift_ground::robust::OWNER_DIED);
    let said = waiting(client, Mode::Sync);
    assert!(says_gone(&said.recv_timeout(LONG / 2).expect("the call ends").1));
    drop(server);
}

/// Prints how long a call goes on after a server with much memory is killed, and how long that server takes to end.
#[test]
#[ignore = "long: run by make soak"]
fn soak_a_large_server_is_seen_to_die_at_once() {
    let _alone = alone();
    let (mut told, mut reaped) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let address = unique("large-server");
        let mut server = Peer::spawn("large server", &address, None);
        assert_eq!(server.line().as_deref(), Some("ready"));
        let client = Client::connect(&address, small()).unwrap();
        let said = waiting(client.clone(), Mode::Sync);
        eventually("the call", || client.stats().outstanding == 1);
        let start = Instant::now();
        server.signal(Signal::KILL);
        let (end, error) = said.recv_timeout(LONG / 2).expect("the call ends");
        assert!(says_gone(&error), "{error:?}");
        server.wait();
        reaped.push(start.elapsed());
        told.push(end - start);
    }
    assert!(!sleeps_on_several() || *told.iter().max().unwrap() < Duration::from_secs(1));
    println!("{} GiB: error after {}; process gone after {}", gib(), quantiles(told), quantiles(reaped));
}
