// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets that anybody can send to a memory node, and a node that takes many of them.
//!
//! - **Order** bytes that parse format to the same bytes again; a node answers or drops, and turns on
//! - **Layout** pieces (length in two bytes) are packets for one node; a piece that is none gets a good head first

use crate::Input;
use memlift_traverse::builder::{Builder, R4, R5, equal, node, scratch};
use memlift_traverse::node::{Alone, Node, NodeOptions, upload_of};
use memlift_traverse::program::Program;
use memlift_traverse::transport::{Peer, Transport, TransportError};
use memlift_traverse::wire::{
    ApplyOperands, FLAG_SINCE, FLAG_WRITES, Header, Keys, Kind, PACKET_BYTES_MAX, PACKET_HEADER_BYTES, Packet,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Debug, Default)]
struct Pipe(Arc<Mutex<(VecDeque<Vec<u8>>, u64)>>);

impl Transport for Pipe {
    fn receive(&mut self, most: usize, take: &mut dyn FnMut(Peer, &[u8])) -> Result<usize, TransportError> {
        let mut taken = 0;
        while taken < most {
            let Some(packet) = self.0.lock().expect("one thread").0.pop_front() else { break };
            take(Peer::Ring(0), &packet);
            taken += 1;
        }
        Ok(taken)
    }

    fn send(&mut self, to: Peer, packet: &[u8]) -> Result<bool, TransportError> {
        assert_eq!(to, Peer::Ring(0), "an answer goes to somebody else");
        let answer = Packet::parse(packet).expect("a node sends packets");
        assert!(matches!(answer.header.kind, Kind::Answer | Kind::Chunk));
        self.0.lock().expect("one thread").1 += 1;
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), TransportError> {
        Ok(())
    }

    fn wait(&mut self, _: Duration) -> Result<(), TransportError> {
        Ok(())
    }

    fn packet_bytes(&self) -> usize {
        PACKET_BYTES_MAX
    }
}

/// One that emits, and one that changes memory.
fn programs() -> [Program; 2] {
    let mut emits = Builder::new();
    emits.load(R4, node(16));
    emits.emit(0, 8, R4);
    let mut changes = Builder::new();
    changes.load(R4, node(0)).load(R5, scratch(0));
    changes.when(equal(R4, R5), |b| {
        b.load(R4, node(8)).fetch_add(R4, 1);
    });
    changes.load(R4, node(16)).next(R4);
    [("emits", emits), ("changes", changes)].map(|(name, b)| b.program(name, 16).expect("a good program"))
}

const BASE: u64 = 1 << 32;

/// Panics when something is wrong.
pub fn run(data: &[u8]) {
    let options = NodeOptions {
        base: BASE,
        bytes: 64 << 10,
        prefault: false,
        workspaces: Some(2),
        iterations_per_visit: 64,
        compile: false,
        ..NodeOptions::default()
    };
    let (node, _) = Node::open(options).expect("64 KiB");
    let hashes = programs().map(|program| {
        let hash = program.hash();
        node.register(0, program).expect("a good program");
        hash
    });
    let pipe = Pipe::default();
    let queue = pipe.0.clone();
    let mut shard = node.shard(Box::new(pipe), Box::new(Alone));
    let keys = Keys::none().with(0, [1; 32]);
    let mut input = Input::new(data);
    while !input.is_empty() {
        let mut bytes = input.piece(PACKET_BYTES_MAX + 1).to_vec();
        assert!(keys.open(&bytes).is_err() || bytes.len() >= PACKET_HEADER_BYTES + 16, "a MAC was guessed");
        if Packet::parse(&bytes).is_err() && bytes.len() >= PACKET_HEADER_BYTES {
            // Good where everything would be refused at once, so that what is behind is reached.
            let length = bytes.len() as u16;
            bytes[..5].copy_from_slice(b"MLPK\x02");
            bytes[6] &= 0b10_1010;
            bytes[7] = 0;
            bytes[8..10].copy_from_slice(&length.to_le_bytes());
            bytes[10..12].copy_from_slice(&(length - PACKET_HEADER_BYTES as u16).to_le_bytes());
            bytes[122..124].fill(0);
            // Nobody guesses a hash.
            let hash = hashes[usize::from(bytes[80] & 1)];
            bytes[80..96].copy_from_slice(&hash[..16]);
            if usize::from(length) <= PACKET_HEADER_BYTES + 16 {
                bytes[12..14].copy_from_slice(&16_u16.to_le_bytes());
            }
        }
        if let Ok(packet) = Packet::parse(&bytes) {
            let mut again = Vec::new();
            packet.header.format(packet.body, &mut again);
            assert_eq!(again, bytes);
        }
        queue.lock().expect("one thread").0.push_back(bytes);
        for _ in 0..4 {
            shard.turn().expect("whatever is sent, a node turns on");
        }
    }
    for _ in 0..300 {
        shard.turn().expect("whatever was sent, a node turns on");
    }
}

/// One of each kind, and all of them for one node.
pub fn seeds() -> Vec<Vec<u8>> {
    let [emits, changes] = programs();
    let upload = upload_of(&emits);
    let hash = |program: &Program| program.hash()[..16].try_into().expect("a hash is longer");
    let header = |kind, sequence, address, value| Header {
        client: 7,
        sequence,
        address,
        value,
        iterations: 200,
        hops: 3,
        program: hash(&changes),
        ..Header::new(kind)
    };
    // The first allocation of 64 bytes lies behind the margin of the first extent.
    let at = BASE + 256;
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let walk = Header { scratch_bytes: 16, flags: FLAG_WRITES, ..header(Kind::Walk, 3, at, 0) };
    let register = Header { pieces: 1, ..header(Kind::Register, 4, 0, upload.len() as u64) };
    let operands = ApplyOperands { kind: 1, address: at + 8, a: 9, b: 10 };
    let packets = [
        (header(Kind::Allocate, 1, 0, 64), Vec::new()),
        (header(Kind::Write, 2, at, 0), words(&[5, at + 24, at, 0])),
        (walk, words(&[5])),
        (Header { sequence: 9, flags: 0, program: hash(&emits), ..walk }, words(&[6])),
        (register, upload.clone()),
        (header(Kind::Apply, 5, 0, 0), operands.bytes().to_vec()),
        (header(Kind::Read, 6, at, 32), Vec::new()),
        (header(Kind::Free, 7, at, 64), Vec::new()),
        (header(Kind::Map, 8, at, 0), Vec::new()),
        (Header { flags: FLAG_SINCE, clock: 1, ..header(Kind::Read, 10, at, 32) }, Vec::new()),
        (Header { cluster: 1, ..header(Kind::Read, 11, at, 32) }, Vec::new()),
        (Header { session: 1, ..header(Kind::End, 12, 0, 0) }, Vec::new()),
    ];
    let pieces: Vec<Vec<u8>> = packets
        .iter()
        .map(|(header, body)| {
            let mut packet = Vec::new();
            header.format(body, &mut packet);
            [&(packet.len() as u16).to_le_bytes()[..], &packet].concat()
        })
        .collect();
    [vec![pieces.concat()], pieces].concat()
}
