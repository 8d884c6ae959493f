// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A web service: users' objects of 8 KiB in a hash table on a memory node; the front end packs and seals each one before it leaves.
//!
//! - **Flow** YCSB A, B or C ─▶ one walk along a chain, which brings the object ─▶ deflate and AES-128-GCM in one pass, by memlift's
//!   transforms, on the client's core, while other walks are under way ─▶ gone
//! - **Layout** chains of 96 objects, so a walk passes 48 on the average
//! - **Order** an update is an insert with the same key and goes to the node on both sides; reads before it are waited for. Each side
//!   has a table of its own
//! - **Check** sums over the objects as they came; an object that is not of its key ends the row

use std::sync::OnceLock;

use memlift_transform::{Chain, Format, Key, Packing, Step, Transform};
use memlift_traverse::client::Client;
use memlift_traverse::client::cache::{Cache, PIECE_BYTES};
use memlift_traverse::structures::bulk;
use memlift_traverse::structures::chain::HEADER_BYTES;
use memlift_traverse::structures::hash::Handle;
use memlift_traverse::structures::placement::{Order, Placement, SLAB_2M};
use memlift_traverse::structures::sink::Sink;
use memlift_traverse::structures::{HashMap, Walk, Walked};

use super::nodes::{Nodes, failed};
use super::{Of, Reader, Rival, Sides, compare, machine_text, timed};
use crate::definition::Definition;
use crate::pairs::Side;
use crate::traverse::Stop;
use crate::traverse::ycsb::{Draw, Generator, Operation, Random, Workload};
use crate::{BenchError, Row, reference};

/// Bytes of an object.
pub const OBJECT_BYTES: usize = 8192;
/// Objects of a chain.
const CHAIN: u64 = 96;
const LOG2: u32 = 7;
const LOG2_QUICK: u32 = 3;

const WORDS: [&str; 32] = [
    "account",
    "address",
    "basket",
    "billing",
    "cart",
    "city",
    "comment",
    "country",
    "currency",
    "customer",
    "delivery",
    "discount",
    "email",
    "favourite",
    "history",
    "invoice",
    "item",
    "language",
    "message",
    "newsletter",
    "order",
    "payment",
    "phone",
    "picture",
    "price",
    "product",
    "quantity",
    "rating",
    "session",
    "shipping",
    "street",
    "token",
];

/// Bytes of the text that objects are cut from, and of a piece.
const TEXT_BYTES: usize = 64 << 10;
const PIECE_BYTES_MIN: usize = 96;

fn text() -> &'static [u8] {
    static TEXT: OnceLock<Vec<u8>> = OnceLock::new();
    TEXT.get_or_init(|| {
        let mut random = Random(1);
        let mut text = Vec::new();
        while text.len() < TEXT_BYTES {
            let bits = random.bits();
            let field = format!("\"{}\": {}, ", WORDS[(bits & 31) as usize], bits >> 48);
            text.extend_from_slice(field.as_bytes());
        }
        text
    })
}

/// The object of a key: pieces of the same text over and over, as pages are.
pub fn object(key: u64, version: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random(key ^ version.rotate_left(32));
    let mut object = Vec::with_capacity(bytes + 2 * PIECE_BYTES_MIN);
    object.extend_from_slice(&key.to_le_bytes());
    object.extend_from_slice(&version.to_le_bytes());
    while object.len() < bytes {
        let bits = random.bits();
        let length = PIECE_BYTES_MIN + (bits & 63) as usize;
        let from = (bits >> 32) as usize % (TEXT_BYTES - length);
        object.extend_from_slice(&text()[from..from + length]);
    }
    object.truncate(bytes);
    object
}

/// Builds a table of 2^`log2` chains where `placement` says: objects of so many bytes.
pub fn build(
    nodes: &Nodes,
    records: u64,
    log2: u32,
    bytes: usize,
    placement: &mut Placement,
) -> Result<Handle, BenchError> {
    let heads = placement.next(8 << log2).ok_or_else(|| failed("no slab holds a table's heads"))?;
    let mut sink = nodes.sink();
    // Zeros all heads before the table is built.
    sink.put(heads, &vec![0; 8 << log2]).map_err(failed)?;
    let pairs = (0..records).map(|key| (key, object(key, 0, bytes)));
    bulk::hash(pairs, log2, heads, placement, &mut sink, |_| {}).map_err(failed)
}

/// The walk that brings an object.
pub fn walk(handle: Handle, key: u64) -> Result<Walk, BenchError> {
    HashMap::open(handle).chain(key.into()).find_walk(key.into(), true).map_err(failed)
}

/// Brings an object into a cache with all its pieces under way at a time, as a real cache would: a walk would ask for them one
/// by one.
fn ahead(client: &mut Client, cache: &mut Cache, handle: Handle, key: u64) -> Result<(), BenchError> {
    let find = HashMap::open(handle).chain(key.into()).find_walk(key.into(), false).map_err(failed)?;
    let (walked, _) = client.walk_locally(cache, &find).map_err(failed)?;
    // A find leaves the node's address and the value's length here.
    let (node, bytes) = (walked.scratch.word(8), u64::from(walked.scratch.half(48)));
    let value = node + HEADER_BYTES as u64;
    let epoch = client.epoch();
    let mut pieces = (value / PIECE_BYTES * PIECE_BYTES..value + bytes).step_by(PIECE_BYTES as usize);
    if pieces.any(|piece| cache.get(piece, epoch).is_none()) {
        client.fetch_range(cache, value, bytes).map_err(failed)?;
    }
    Ok(())
}

/// The front end's work on an object: pack it, seal it and drop it.
struct Leaving<'k> {
    key: &'k Key,
    target: Vec<u8>,
    message: u64,
    packed: u64,
}

impl Leaving<'_> {
    fn send(&mut self, object: &[u8]) -> Result<(), BenchError> {
        self.message += 1;
        let mut nonce = [0; 12];
        nonce[..7].copy_from_slice(&self.message.to_be_bytes()[1..]);
        let steps = [
            Step::Pack { format: Format::Deflate, packing: Packing::Fast },
            Step::Seal { key: self.key, nonce, aad: b"" },
        ];
        let chain = Chain::framed(&steps, OBJECT_BYTES).map_err(failed)?;
        self.target.resize(chain.bound(object.len()).unwrap_or(0), 0);
        let done = Transform::global().copy(&chain, object, &mut self.target).map_err(failed)?;
        self.packed += done.written as u64;
        Ok(())
    }
}

/// One side of a row.
struct Table {
    map: HashMap,
    version: u64,
}

/// Checks an object, and adds it to a sum.
fn add(checksum: u64, key: u64, walked: &Walked) -> Result<u64, BenchError> {
    if walked.result.len() != OBJECT_BYTES || walked.result[..8] != key.to_le_bytes() {
        let reason = format!("key {key} brought {} bytes that are not its object", walked.result.len());
        return Err(failed(reason));
    }
    Ok(checksum.rotate_left(1) ^ reference::checksum_of(&walked.result))
}

fn carry_out(
    operations: &[Operation],
    table: &mut Table,
    leaving: &mut Leaving<'_>,
    reader: &mut Reader,
    writer: &mut Client,
) -> Result<u64, BenchError> {
    let mut checksum = 0_u64;
    let (mut keys, mut walks): (Vec<u64>, Vec<Walk>) = (Vec::new(), Vec::new());
    let handle = table.map.handle();
    let mut read = |reader: &mut Reader, keys: &mut Vec<u64>, walks: &mut Vec<Walk>| {
        // A cache reads one object after the other; else many walks are under way at a time.
        let at_a_time = if matches!(reader, Reader::Local(..)) { 1 } else { walks.len().max(1) };
        for (keys, walks) in keys.chunks(at_a_time).zip(walks.chunks(at_a_time)) {
            if let Reader::Local(client, cache) = reader {
                ahead(client, cache, handle, keys[0])?;
            }
            reader.walk_all(walks, |index, walked| {
                checksum = add(checksum, keys[index], &walked)?;
                leaving.send(&walked.result)
            })?;
        }
        keys.clear();
        walks.clear();
        Ok::<(), BenchError>(())
    };
    for &operation in operations {
        match operation {
            Operation::Read(key) => {
                keys.push(key);
                walks.push(walk(table.map.handle(), key)?);
            }
            Operation::Update(key) => {
                read(reader, &mut keys, &mut walks)?;
                table.version += 1;
                let fresh = object(key, table.version, OBJECT_BYTES);
                table.map.insert(writer, key, &fresh).map_err(failed)?;
            }
            other => return Err(failed(format!("a web service does not {other:?}"))),
        }
    }
    read(reader, &mut keys, &mut walks)?;
    Ok(checksum)
}

/// Measures a workload.
pub fn row(definition: &Definition, workload: Workload, quick: bool) -> Result<Row, Stop> {
    let rival = Rival::of(definition)?;
    let log2 = if quick { LOG2_QUICK } else { LOG2 };
    let records = CHAIN << log2;
    let node_bytes = OBJECT_BYTES as u64 + 256;
    let bytes = records * node_bytes;
    // Two tables, unless nothing is changed.
    let tables = if workload == Workload::C { 1 } else { 2 };
    // Each slab loses its end, where no object fits.
    let room = (tables * bytes * 17 / 16).next_multiple_of(SLAB_2M) + 2 * SLAB_2M;
    let nodes = Nodes::start(1, room, rival.over())?;
    let mut placement = Placement::new(&nodes.ranges(), SLAB_2M, Order::Random(1));
    let mut built = Vec::new();
    for _ in 0..tables {
        built.push(build(&nodes, records, log2, OBJECT_BYTES, &mut placement)?);
    }
    let table = |side: usize| Table { map: HashMap::open(built[side % built.len()]), version: 0 };
    let mut tables = [table(0), table(1)];
    let mut sides = Sides::connect(&nodes, rival, bytes)?;
    let key = Key::new(&[7; 16]).map_err(failed)?;
    let mut leaving = Leaving { key: &key, target: Vec::new(), message: 0, packed: 0 };
    let requests = match (quick, rival, workload) {
        (true, ..) => 24,
        // Few requests: the memory of an object that an update replaced rests before it is used again.
        (false, _, Workload::A) => 120,
        (false, Rival::Rpc, _) => 400,
        (false, Rival::Cache, _) => 16,
    };
    let mut row = compare(definition, Of::Time, quick, |side, seed| {
        let mut generator = Generator::new(workload, Draw::Zipf, records, seed);
        let operations: Vec<Operation> = (0..requests).map(|_| generator.next()).collect();
        let table = &mut tables[usize::from(side == Side::Theirs)];
        let (reader, writer) = sides.reader(side);
        timed(requests, None, || carry_out(&operations, table, &mut leaving, reader, writer))
    })?;
    row.qualifies = format!(
        "YCSB {workload:?}, Zipf 0.99; {records} objects of {OBJECT_BYTES} B, {} MiB, {CHAIN} of a chain; packed to {:.0} % and sealed on \
         the client's core; {} reads under way between updates; over {}; node's pages: {}; {}",
        bytes >> 20,
        100.0 * leaving.packed as f64 / (leaving.message.max(1) as f64 * OBJECT_BYTES as f64),
        rival.depth(),
        nodes.over().text(),
        nodes.pages(),
        machine_text()
    );
    Ok(row)
}

#[cfg(test)]
mod tests {
    use memlift_traverse::client::Config;

    use super::super::CACHE_AGE;
    use super::super::native::Native;
    use super::super::nodes::{Over, client as client_of};
    use super::*;

    #[test]
    fn objects_come_whole_and_leave_packed_and_sealed() {
        let nodes = Nodes::start(1, 8 << 20, Over::Shm).expect("a node");
        let mut placement = Placement::new(&nodes.ranges(), SLAB_2M, Order::Random(4));
        let handle = build(&nodes, 300, 3, OBJECT_BYTES, &mut placement).expect("room");
        let native = Native::start(nodes.memory(), Over::Shm).expect("a server");
        let client = || nodes.client(Config::default()).expect("a client");
        let mut readers = [
            Reader::Remote(client(), 4),
            Reader::Remote(client_of(&native.place, Config::default()).expect("a client"), 4),
            Reader::Local(client(), Cache::new(1 << 18, CACHE_AGE)),
        ];
        let (mut writer, key) = (client(), Key::new(&[9; 16]).expect("a key"));
        let mut generator = Generator::new(Workload::A, Draw::Uniform, 300, 2);
        let operations: Vec<Operation> = (0..60).map(|_| generator.next()).collect();
        let updates = operations.iter().filter(|one| matches!(one, Operation::Update(_))).count() as u64;
        for reader in &mut readers[..2] {
            let mut leaving = Leaving { key: &key, target: Vec::new(), message: 0, packed: 0 };
            // The versions begin anew, so both leave the same objects behind.
            let mut table = Table { map: HashMap::open(handle), version: 0 };
            carry_out(&operations, &mut table, &mut leaving, reader, &mut writer).expect("answers");
            assert_eq!((table.version, leaving.message), (updates, 60 - updates));
            assert!(leaving.packed < leaving.message * OBJECT_BYTES as u64 * 2 / 3, "{}", leaving.packed);
        }
        let mut newest = std::collections::HashMap::new();
        let mut version = 0;
        for operation in &operations {
            if let Operation::Update(key) = operation {
                version += 1;
                newest.insert(*key, version);
            }
        }
        for key in 0..300 {
            let wanted = object(key, newest.get(&key).copied().unwrap_or(0), OBJECT_BYTES);
            let walks = [walk(handle, key).expect("a key")];
            for reader in &mut readers {
                let check = |_, walked: Walked| {
                    assert!(walked.result == wanted, "{key}");
                    Ok(())
                };
                reader.walk_all(&walks, check).expect("an answer");
            }
        }
    }
}
