// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An ipc peer written by hand from `docs/formats/ipc.md`, for saying what a real one never would.
//!
//! - **Flow** bytes of a case ─▶ packets, descriptors, words and entries that are right but for some changed bytes
//! - **Not here** what must not come of it: `ipc_server`, `ipc_client`

use crate::Input;
use memlift_ground::region::{Region, RegionOffset, RegionOptions};
use memlift_ground::rights;
use memlift_ipc::layout::{MAGIC, OLDEST, RING_ENTRIES};
use memlift_ipc::message::{MESSAGE_BYTES, Message};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// Bytes of each pool's first segment.
pub const SEGMENT_BYTES: u64 = 16 << 10;

/// A sealed memfd of so many bytes, mapped.
pub fn memory(bytes: u64) -> Region {
    let options = RegionOptions { headroom: false, ..RegionOptions::default() };
    Region::memfd("memlift-fuzz", bytes, &options).expect("memory for a small segment")
}

/// A memfd that can still be shrunk.
pub fn unsealed(bytes: u64) -> OwnedFd {
    let memfd = rustix::fs::memfd_create("memlift-fuzz", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
    rustix::fs::ftruncate(&memfd, bytes).expect("memory for a small segment");
    memfd
}

/// Makes a non-blocking eventfd.
pub fn event() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK)
        .expect("an eventfd")
}

/// A socket of the session's kind, and the abstract address of a server's name.
pub fn socket(name: &str) -> (OwnedFd, SocketAddrUnix) {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a socket");
    let user = rustix::process::getuid().as_raw();
    let address = SocketAddrUnix::new_abstract_name(format!("memlift/{user}/{name}").as_bytes());
    (socket, address.expect("a short name"))
}

/// Sends a packet. The other side may have hung up.
pub fn send(socket: &OwnedFd, packet: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let _ = rights::send(socket, packet, descriptors, SendFlags::DONTWAIT);
}

/// The next packet's descriptors.
pub fn receive(socket: &OwnedFd) -> Vec<OwnedFd> {
    rights::receive(socket, &mut [0; 256], RecvFlags::empty())
        .map_or_else(|_| Vec::new(), |received| received.descriptors)
}

/// A packet that starts as all do: magic, version.
pub fn packet(rest: &[u64]) -> Vec<u8> {
    let mut packet = MAGIC.to_le_bytes().to_vec();
    packet.extend(u64::from(OLDEST).to_le_bytes());
    rest.iter().for_each(|word| packet.extend(word.to_le_bytes()));
    packet
}

/// Three times of four as it is; else with up to four bytes changed, or other bytes altogether.
pub fn spoilt(mut packet: Vec<u8>, input: &mut Input<'_>) -> Vec<u8> {
    match input.byte() % 8 {
        0 => {
            for _ in 0..=input.byte() % 4 {
                let place = usize::from(input.byte()) % packet.len();
                packet[place] = input.byte();
            }
            packet
        }
        1 => input.piece(300).to_vec(),
        _ => packet,
    }
}

/// One side of the control segment, as its writer.
pub struct Pen<'a> {
    pub control: &'a Region,
    /// Where its ring's tail and entries are.
    pub tail_at: u64,
    pub entries_at: u64,
    pub tail: u32,
}

impl Pen<'_> {
    fn write(&self, offset: u64, bytes: &[u8]) {
        let window = self.control.window(RegionOffset(offset), bytes.len() as u64);
        window.and_then(|window| window.write_from(bytes)).expect("inside the control segment");
    }

    /// Changes any word of the page with the counters, also those that the other side writes.
    pub fn word(&self, input: &mut Input<'_>) {
        let offset = (input.word() as u64 % 1024) & !3;
        let mut value = [0; 4];
        let piece = input.take(4);
        value[..piece.len()].copy_from_slice(piece);
        self.write(offset, &value);
    }

    /// Writes an entry, with up to seven bytes of it changed, and publishes it; now and then another tail.
    pub fn message(&mut self, message: &Message, input: &mut Input<'_>) {
        let mut bytes: [u8; MESSAGE_BYTES] = bytemuck::cast(*message);
        for _ in 0..input.byte() % 8 {
            bytes[usize::from(input.byte()) % MESSAGE_BYTES] = input.byte();
        }
        self.write(self.entries_at + u64::from(self.tail % RING_ENTRIES) * MESSAGE_BYTES as u64, &bytes);
        self.tail = self.tail.wrapping_add(match input.byte() {
            255 => input.word() as u32,
            _ => 1,
        });
        self.write(self.tail_at, &self.tail.to_le_bytes());
    }
}

/// Rings an eventfd.
pub fn ring(event: impl AsFd) {
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}
