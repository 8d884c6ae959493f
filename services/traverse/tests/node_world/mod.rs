// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A network that loses, doubles and reorders packets by a seed, nodes that take turns on it, and a client that asks until it
//! hears.
//!
//! - **Order** one thread, so the same seed does the same thing
#![allow(dead_code, reason = "each test file uses what it needs")]

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memlift_traverse::builder::{Builder, R4, R5, R6, equal, node, scratch};
use memlift_traverse::node::{Alone, Node, NodeOptions, PIECE_BYTES, Shard, upload_of};
use memlift_traverse::program::Program;
use memlift_traverse::transport::{Peer, Transport, TransportError};
use memlift_traverse::wire::{FLAG_WRITES, Hash, Header, Keys, Kind, PACKET_BYTES_MAX, Packet, Status};

#[derive(Debug, Default)]
pub struct Weather {
    pub seed: u64,
    /// Packets of a hundred that are lost; the next two count likewise.
    pub lost: u64,
    pub doubled: u64,
    pub reordered: u64,
}

#[derive(Debug)]
struct Wires {
    weather: Weather,
    queues: HashMap<SocketAddr, VecDeque<(SocketAddr, Vec<u8>)>>,
    sent: u64,
}

#[derive(Clone, Debug)]
pub struct Net(Arc<Mutex<Wires>>);

impl Net {
    pub fn new(weather: Weather) -> Net {
        Net(Arc::new(Mutex::new(Wires { weather, queues: HashMap::new(), sent: 0 })))
    }

    pub fn end(&self, port: u16) -> End {
        let name = address(port);
        self.0.lock().unwrap().queues.insert(name, VecDeque::new());
        End { name, net: self.clone() }
    }

    pub fn sent(&self) -> u64 {
        self.0.lock().unwrap().sent
    }
}

pub fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

impl Wires {
    fn chance(&mut self, of_hundred: u64) -> bool {
        self.weather.seed =
            self.weather.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.weather.seed >> 33) % 100 < of_hundred
    }
}

#[derive(Debug)]
pub struct End {
    pub name: SocketAddr,
    net: Net,
}

impl Transport for End {
    fn receive(&mut self, most: usize, take: &mut dyn FnMut(Peer, &[u8])) -> Result<usize, TransportError> {
        let arrived: Vec<_> = {
            let mut wires = self.net.0.lock().unwrap();
            let queue = wires.queues.get_mut(&self.name).unwrap();
            let count = queue.len().min(most);
            queue.drain(..count).collect()
        };
        arrived.iter().for_each(|(from, bytes)| take(Peer::Socket(*from), bytes));
        Ok(arrived.len())
    }

    fn send(&mut self, to: Peer, packet: &[u8]) -> Result<bool, TransportError> {
        let Peer::Socket(to) = to else { return Ok(false) };
        let mut wires = self.net.0.lock().unwrap();
        wires.sent += 1;
        let (lost, doubled, reordered) = (wires.weather.lost, wires.weather.doubled, wires.weather.reordered);
        let copies = if wires.chance(lost) {
            0
        } else if wires.chance(doubled) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let first = wires.chance(reordered);
            let Some(queue) = wires.queues.get_mut(&to) else { continue };
            let packet = (self.name, packet.to_vec());
            if first { queue.push_front(packet) } else { queue.push_back(packet) }
        }
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

    fn local(&self) -> Option<SocketAddr> {
        Some(self.name)
    }
}

/// An answer, and the chunks that came before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    pub header: Header,
    pub body: Vec<u8>,
    pub chunks: Vec<u8>,
}

impl Heard {
    pub fn word(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        let body = &self.body[at.min(self.body.len())..(at + 8).min(self.body.len())];
        bytes[..body.len()].copy_from_slice(body);
        u64::from_le_bytes(bytes)
    }
}

pub struct Client {
    transport: Box<dyn Transport>,
    pub to: Peer,
    pub keys: Keys,
    pub tenant: u32,
    pub id: u64,
    pub incarnation: u32,
    pub session: u64,
    pub sequence: u64,
    nonce: u64,
    /// Later answers to requests that were answered before: the same ones, for those that change something.
    pub again: u64,
    answered: HashMap<u64, (Status, u64, u64)>,
}

impl Client {
    pub fn new(transport: Box<dyn Transport>, to: Peer, id: u64) -> Client {
        Client {
            transport,
            to,
            keys: Keys::none(),
            tenant: 0,
            id,
            incarnation: 1,
            session: 0,
            sequence: 0,
            nonce: 0,
            again: 0,
            answered: HashMap::new(),
        }
    }

    /// Sends a request as it is.
    pub fn send(&mut self, header: &Header, body: &[u8]) -> Vec<u8> {
        self.nonce += 1;
        let header = Header { sender: self.id, nonce: self.nonce, ..*header };
        let mut bytes = Vec::new();
        self.keys.seal(&header, body, &mut bytes);
        self.send_bytes(&bytes);
        bytes
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.transport.send(self.to, bytes).unwrap();
        self.transport.flush().unwrap();
    }

    pub fn request(&mut self, kind: Kind) -> Header {
        self.sequence += 1;
        Header {
            client: self.id,
            incarnation: self.incarnation,
            session: self.session,
            tenant: self.tenant,
            sequence: self.sequence,
            settled: self.sequence,
            hops: 16,
            iterations: 1 << 20,
            ..Header::new(kind)
        }
    }

    /// Returns the answer to `header`'s request, if it has come; chunks of its attempt go into `chunks`.
    pub fn heard(&mut self, header: &Header, chunks: &mut HashMap<u32, Vec<u8>>) -> Option<Heard> {
        let (keys, mut found) = (self.keys.clone(), Vec::new());
        self.transport
            .receive(64, &mut |_, bytes| {
                let packet = keys.open(bytes).expect("nodes send packets");
                found.push((packet.header, packet.body.to_vec()));
            })
            .unwrap();
        let mut heard = None;
        for (got, body) in found {
            assert_eq!((got.client, got.tenant), (self.id, self.tenant), "an answer for somebody else");
            if got.status == Status::SentOn {
                continue;
            }
            let outcome = (got.status, got.value, got.address);
            if let Some(before) = self.answered.get(&got.sequence).filter(|_| got.kind == Kind::Answer) {
                self.again += 1;
                let changes = matches!(before.0, Status::Applied | Status::Differs);
                assert!(
                    !changes || got.status == Status::Stale || *before == outcome,
                    "{before:?}, then {outcome:?}"
                );
                continue;
            }
            if got.sequence != header.sequence {
                continue;
            }
            match got.kind {
                Kind::Chunk if got.attempt == header.attempt => drop(chunks.insert(got.piece, body)),
                Kind::Answer if heard.is_none() && (got.attempt == header.attempt || got.pieces == 0) => {
                    heard = Some(Heard { header: got, body, chunks: Vec::new() });
                }
                _ => {}
            }
        }
        let mut answer = heard?;
        for piece in 0..answer.header.pieces {
            answer.chunks.extend_from_slice(chunks.get(&piece)?);
        }
        if !matches!(
            answer.header.status,
            Status::Continue | Status::Busy | Status::Retry | Status::NeedProgram
        ) {
            self.answered
                .insert(header.sequence, (answer.header.status, answer.header.value, answer.header.address));
        }
        Some(answer)
    }

    /// Takes everything that has come.
    pub fn drain(&mut self) -> Vec<(Header, Vec<u8>)> {
        let (keys, mut found) = (self.keys.clone(), Vec::new());
        let mut take = |_: Peer, bytes: &[u8]| {
            let packet = keys.open(bytes).expect("nodes send packets");
            found.push((packet.header, packet.body.to_vec()));
        };
        while self.transport.receive(64, &mut take).unwrap() > 0 {}
        found
    }

    /// Takes the bytes of everything that has come.
    pub fn drain_bytes(&mut self) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        let mut take = |_: Peer, bytes: &[u8]| found.push(bytes.to_vec());
        while self.transport.receive(64, &mut take).unwrap() > 0 {}
        found
    }

    /// Asks until it hears; `turn` lets the nodes work.
    pub fn ask(&mut self, header: Header, body: &[u8], mut turn: impl FnMut()) -> Heard {
        let mut header = header;
        for attempt in 0..2000 {
            header.attempt = attempt;
            let mut chunks = HashMap::new();
            self.send(&header, body);
            for _ in 0..40 {
                turn();
                if let Some(heard) = self.heard(&header, &mut chunks) {
                    return heard;
                }
            }
        }
        panic!("no answer to {header:?}");
    }

    pub fn upload(&mut self, program: &Program, mut turn: impl FnMut()) -> Heard {
        let upload = upload_of(program);
        let pieces = upload.chunks(PIECE_BYTES);
        let count = pieces.len() as u32;
        let mut last = None;
        for (piece, bytes) in pieces.enumerate() {
            let header = Header {
                program: hash(program),
                piece: piece as u32,
                pieces: count,
                value: upload.len() as u64,
                ..self.request(Kind::Register)
            };
            last = Some(self.ask(header, bytes, &mut turn));
        }
        last.expect("an upload has a piece")
    }

    pub fn allocate(&mut self, bytes: u64, turn: impl FnMut()) -> Heard {
        let header = Header { value: bytes, ..self.request(Kind::Allocate) };
        self.ask(header, &[], turn)
    }

    pub fn write(&mut self, address: u64, words: &[u64], turn: impl FnMut()) -> Heard {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let header = Header { address, ..self.request(Kind::Write) };
        self.ask(header, &bytes, turn)
    }

    pub fn read(&mut self, address: u64, turn: impl FnMut()) -> u64 {
        let header = Header { address, value: 8, ..self.request(Kind::Read) };
        let heard = self.ask(header, &[], turn);
        assert_eq!(heard.header.status, Status::Done, "read at {address:#x}");
        heard.word(0)
    }

    pub fn walk(&mut self, program: &Program, address: u64, words: &[u64], turn: impl FnMut()) -> Heard {
        let header = self.walk_header(program, address);
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.ask(header, &body, turn)
    }

    pub fn walk_header(&mut self, program: &Program, address: u64) -> Header {
        Header {
            program: hash(program),
            address,
            scratch_bytes: program.scratch_bytes() as u16,
            flags: if program.uses_apply() { FLAG_WRITES } else { 0 },
            ..self.request(Kind::Walk)
        }
    }
}

pub fn hash(program: &Program) -> Hash {
    program.hash()[..16].try_into().unwrap()
}

/// Nodes are key, value, next; the scratchpad key, value.
pub fn find() -> Program {
    let mut b = Builder::new();
    b.load(R4, node(0)).load(R5, scratch(0));
    b.when(equal(R4, R5), |b| {
        b.load(R4, node(8)).store(scratch(8), R4).done();
    });
    b.load(R4, node(16));
    b.when(equal(R4, 0), |b| {
        b.missing();
    });
    b.next(R4);
    b.program("find", 16).expect("a good program")
}

/// As [`find`]; where the key is, the value grows by the second word of the scratchpad. A walk does not know its node's address,
/// so the fourth word of a node is the address of its value.
pub fn add() -> Program {
    let mut b = Builder::new();
    b.load(R4, node(0)).load(R5, scratch(0));
    b.when(equal(R4, R5), |b| {
        b.load(R4, node(24)).load(R6, scratch(8)).fetch_add(R4, R6);
    });
    b.load(R4, node(16));
    b.when(equal(R4, 0), |b| {
        b.missing();
    });
    b.next(R4);
    b.program("add", 16).expect("a good program")
}

/// Emits each value.
pub fn values() -> Program {
    let mut b = Builder::new();
    b.load(R4, node(8)).store(scratch(0), R4).load(R5, node(16));
    b.when(equal(R5, 0), |b| {
        b.done();
    });
    b.emit(0, 8, R5);
    b.program("values", 8).expect("a good program")
}

/// Asks for a restart at every step, as if a writer had always been there.
pub fn never() -> Program {
    let mut b = Builder::new();
    b.load(R4, node(0)).retry();
    b.program("never", 8).expect("a good program")
}

pub fn small(base: u64) -> NodeOptions {
    NodeOptions { base, bytes: 4 << 20, prefault: false, workspaces: Some(4), ..NodeOptions::default() }
}

/// One node on a net, alone, and a client of it.
pub fn alone(weather: Weather, options: NodeOptions) -> (Node, Shard, Client) {
    let net = Net::new(weather);
    let (node, _) = Node::open(options).expect("a small node");
    let shard = node.shard(Box::new(net.end(1000)), Box::new(Alone));
    let client = Client::new(Box::new(net.end(2000)), Peer::Socket(address(1000)), 77);
    (node, shard, client)
}

pub fn parse(bytes: &[u8]) -> Packet<'_> {
    Packet::parse(bytes).expect("a packet")
}
