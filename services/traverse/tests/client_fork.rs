// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients and forks: what a child inherits of its parent's clients and collections is not its own.
//!
//! - **Flow** a node in a process of its own ◀── UDP ── parent and forked children; a child says by its exit how it went
//! - **Order** the parent has no other threads while it forks: a child may allocate

#![expect(unsafe_code, reason = "fork, waitpid and _exit")]

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;

use memlift_traverse::client::{Client, ClientError, Config};
use memlift_traverse::node::{Alone, BASE, Node, NodeOptions};
use memlift_traverse::structures::{HashMap, List, OrderedMap};
use memlift_traverse::transport::udp::Udp;

/// Runs a piece of work in a forked child; returns its pid.
fn child(work: impl FnOnce() -> Result<(), String>) -> i32 {
    // SAFETY: this process has one thread (`harness = false`), so the child may do whatever a process may.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no fork");
    if pid == 0 {
        let code = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
            Ok(Ok(())) => 0,
            Ok(Err(what)) => {
                eprintln!("child: {what}");
                1
            }
            Err(_) => 2,
        };
        // SAFETY: ends the child without running what the parent registered for its own end.
        unsafe { libc::_exit(code) };
    }
    pid
}

/// Waits for a child; panics unless it went well.
fn join(pid: i32) {
    let mut status = -1;
    // SAFETY: `status` is a writable int, and the child is this process's.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "a child failed");
}

/// A node in a process of its own, which ends with the returned guard.
struct Running(i32, SocketAddr);

impl Running {
    fn start() -> Running {
        let udp = Udp::bind("127.0.0.1:0".parse().expect("an address"), false).expect("a port");
        let at = udp.address();
        let pid = child(move || {
            let options = NodeOptions {
                base: BASE,
                bytes: 32 << 20,
                prefault: false,
                workspaces: Some(8),
                ..NodeOptions::default()
            };
            let (node, _) = Node::open(options).map_err(|error| error.to_string())?;
            let mut shard = node.shard(Box::new(udp), Box::new(Alone));
            shard.serve(&AtomicBool::new(false)).map_err(|error| error.to_string())
        });
        Running(pid, at)
    }

    fn client(&self) -> Client {
        Client::udp(&[self.1], Config::default()).expect("the node answers")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut status = 0;
        // SAFETY: the pid is that of a child that nobody has waited for yet.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, &raw mut status, 0);
        }
    }
}

fn text<T>(done: Result<T, ClientError>) -> Result<T, String> {
    done.map_err(|error| error.to_string())
}

/// Children that connect for themselves are clients of their own: each of their changes counts.
fn children_that_connect_are_other_clients() {
    let node = Running::start();
    let mut client = node.client();
    let mut map = HashMap::create(&mut client, 4).expect("room");
    map.insert(&mut client, 0, &0_u64.to_le_bytes()).expect("inserted");
    let handle = map.handle();
    for round in 0..3 {
        let children: Vec<i32> = (0..4)
            .map(|_| {
                let at = node.1;
                child(move || {
                    let mut client = text(Client::udp(&[at], Config::default()))?;
                    let mut map = HashMap::open(handle);
                    for _ in 0..100 {
                        text(map.add(&mut client, 0, 1_u64))?;
                    }
                    Ok(())
                })
            })
            .collect();
        children.into_iter().for_each(join);
        let sum = map.get(&mut client, 0).expect("an answer").expect("there");
        assert_eq!(u64::from_le_bytes(sum[..8].try_into().expect("eight bytes")), (round + 1) * 400);
    }
}

/// An inherited client says that it is not the child's, at every entry, and the parent's goes on.
fn an_inherited_client_is_refused() {
    let node = Running::start();
    let mut client = node.client();
    let mut map = HashMap::create(&mut client, 4).expect("room");
    let pid = child(|| {
        let forked = |done: Result<(), ClientError>| match done {
            Err(ClientError::Forked) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        forked(map.get(&mut client, 1).map(drop))?;
        forked(map.insert(&mut client, 1, b"x").map(drop))?;
        forked(client.poll().map(drop))?;
        forked(client.arm().map(drop))?;
        forked(client.descriptor().map(drop))?;
        forked(client.wait(std::time::Duration::ZERO))
    });
    join(pid);
    assert!(map.insert(&mut client, 1, b"parent").expect("the parent's client is as it was"));
}

/// Free memory that a collection holds is the parent's: a child that writes through the inherited object takes its own.
fn inherited_free_memory_is_not_used_twice() {
    let node = Running::start();
    let mut client = node.client();
    let mut hash = HashMap::create(&mut client, 4).expect("room");
    let mut ordered = OrderedMap::create(&mut client, 8).expect("room");
    let mut list = List::create(&mut client).expect("room");
    // Each has taken memory, of which some is left.
    hash.insert(&mut client, 0, &[0; 40]).expect("inserted");
    ordered.insert(&mut client, 0, &[0; 8]).expect("inserted");
    list.push_back(&mut client, 0, &[0; 40]).expect("appended");
    let at = node.1;
    let mut fill = |client: &mut Client, of: u64| -> Result<(), String> {
        for number in (of..of + 200).step_by(2) {
            text(hash.insert(client, number, &[number as u8; 40]))?;
            text(ordered.insert(client, number, &number.to_le_bytes()))?;
            text(list.push_back(client, number, &[number as u8; 40]))?;
        }
        Ok(())
    };
    let pid = child(|| fill(&mut text(Client::udp(&[at], Config::default()))?, 1001));
    fill(&mut client, 1000).expect("the parent writes");
    join(pid);
    for number in 1000..1200 {
        assert_eq!(
            hash.get(&mut client, number).expect("an answer"),
            Some(vec![number as u8; 40]),
            "hash {number}"
        );
        assert_eq!(
            ordered.get(&mut client, number).expect("an answer"),
            Some(number.to_le_bytes().to_vec()),
            "ordered {number}"
        );
        assert_eq!(
            list.find(&mut client, number).expect("an answer"),
            Some(vec![number as u8; 40]),
            "list {number}"
        );
    }
    assert_eq!(list.scan(&mut client).expect("a walk that ends").len(), 201);
}

fn main() {
    children_that_connect_are_other_clients();
    an_inherited_client_is_refused();
    inherited_free_memory_is_not_used_twice();
    println!("clients and forks: good");
}
