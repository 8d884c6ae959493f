// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Range queries over a B+tree: YCSB's workload E on keys of 8 bytes and values of 240, placed at random as WiredTiger leaves them.
//!
//! - **Flow** [`build`]: an ordered map of records ─▶ scans are one walk each, inserts a path, new nodes and a compare-and-swap
//! - **Data** drawn ([`crate::traverse::ycsb`]), or `MEMLIFT_BENCH_TRACE=FILE`: a trace of operations, over and over
//! - **Order** scans between two inserts are under way together; an insert waits for them, so that both sides read the same. Each side
//!   has a tree of its own: what one inserts the other one has not got yet. Inserts go to the node on both sides
//! - **Check** sums over all bytes of all records

use std::fs::File;
use std::io::BufReader;

use memlift_traverse::client::Client;
use memlift_traverse::structures::bulk;
use memlift_traverse::structures::ordered::Handle;
use memlift_traverse::structures::placement::{Order, Placement, SLAB_2M};
use memlift_traverse::structures::{OrderedMap, Walk};

use super::nodes::{Nodes, failed};
use super::{Of, Reader, Rival, Sides, compare, machine_text, timed};
use crate::definition::Definition;
use crate::pairs::Side;
use crate::traverse::Stop;
use crate::traverse::ycsb::{Draw, Generator, Operation, Random, Workload, fnv, trace};
use crate::{BenchError, Row, reference};

/// Bytes of a value.
pub const VALUE_BYTES: usize = 240;
/// Bytes that a record takes, with its share of the tree.
pub const RECORD_BYTES: u64 = 256 + 20;
/// Names a file with a trace.
const FILE: &str = "MEMLIFT_BENCH_TRACE";
const RECORDS: u64 = 400_000;
const RECORDS_QUICK: u64 = 4000;

/// The key of the n-th record: YCSB's hash, so that neighbours in the tree were not inserted one after the other.
pub fn key(number: u64) -> u64 {
    fnv(number)
}

/// Returns the value of the n-th record.
pub fn value(number: u64) -> [u8; VALUE_BYTES] {
    let mut random = Random(number);
    let mut value = [0; VALUE_BYTES];
    for word in value.chunks_exact_mut(8) {
        word.copy_from_slice(&random.bits().to_le_bytes());
    }
    value
}

/// Puts records where `placement` says.
pub fn build(nodes: &Nodes, records: u64, placement: &mut Placement) -> Result<Handle, BenchError> {
    let mut numbers: Vec<(u64, u64)> = (0..records).map(|number| (key(number), number)).collect();
    numbers.sort_unstable();
    numbers.dedup_by_key(|(key, _)| *key);
    let pairs = numbers.into_iter().map(|(key, number)| Ok((key, value(number))));
    bulk::ordered(pairs, VALUE_BYTES, placement, &mut nodes.sink(), |_| {}).map_err(failed)
}

/// The walk of an operation that reads.
pub fn walk(handle: Handle, operation: Operation) -> Option<Walk> {
    match operation {
        Operation::Scan { key: number, length } => Some(handle.range_walk(key(number)..=u64::MAX, length)),
        Operation::Read(number) => Some(handle.range_walk(key(number)..=key(number), 1)),
        _ => None,
    }
}

/// Carries operations out; the sum over what was read.
fn carry_out(
    operations: &[Operation],
    map: &mut OrderedMap,
    reader: &mut Reader,
    writer: &mut Client,
) -> Result<u64, BenchError> {
    let handle = map.handle();
    let mut checksum = 0_u64;
    let mut waiting: Vec<Walk> = Vec::new();
    let mut read = |reader: &mut Reader, waiting: &mut Vec<Walk>| {
        reader.walk_all(waiting, |_, walked| {
            checksum = checksum.rotate_left(1) ^ reference::checksum_of(&walked.result);
            Ok(())
        })?;
        waiting.clear();
        Ok::<(), BenchError>(())
    };
    for &operation in operations {
        match operation {
            Operation::Insert(number) | Operation::Update(number) => {
                read(reader, &mut waiting)?;
                map.insert(writer, key(number), &value(number)).map_err(failed)?;
            }
            Operation::Aggregate { .. } => {
                return Err(failed(
                    "a trace of app/btree_e aggregates; its values are no numbers: see app/series",
                ));
            }
            reads => waiting.extend(walk(handle, reads)),
        }
    }
    read(reader, &mut waiting)?;
    Ok(checksum)
}

/// Measures workload E, or a trace.
pub fn row(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    let rival = Rival::of(definition)?;
    let records = if quick { RECORDS_QUICK } else { RECORDS };
    let named = std::env::var(FILE).ok();
    let traced: Option<Vec<Operation>> = named
        .as_ref()
        .map(|path| {
            let file = File::open(path).map(BufReader::new).map_err(BenchError::file(path))?;
            trace(file).collect::<Result<Vec<_>, BenchError>>()
        })
        .transpose()?;
    if traced.as_ref().is_some_and(Vec::is_empty) {
        return Err(Stop::Failed(failed("the trace has no operations")));
    }
    let bytes = records * RECORD_BYTES;
    let nodes = Nodes::start(1, (2 * bytes * 5 / 4).next_multiple_of(SLAB_2M), rival.over())?;
    let mut placement = Placement::new(&nodes.ranges(), SLAB_2M, Order::Random(1));
    let mut maps = Vec::new();
    for _ in 0..2 {
        maps.push(OrderedMap::open(build(&nodes, records, &mut placement)?));
    }
    let mut sides = Sides::connect(&nodes, rival, bytes)?;
    let requests = match (quick, rival) {
        (true, _) => 40,
        (false, Rival::Rpc) => 1500,
        (false, Rival::Cache) => 24,
    };
    let mut next = [records; 2];
    let mut row = compare(definition, Of::Time, quick, |side, seed| {
        let at = usize::from(side == Side::Theirs);
        let operations: Vec<Operation> = match &traced {
            Some(traced) => {
                let from = (seed as usize - 1) * requests;
                traced.iter().cycle().skip(from % traced.len()).take(requests).copied().collect()
            }
            None => {
                let mut generator = Generator::new(Workload::E, Draw::Zipf, next[at], seed);
                (0..requests).map(|_| generator.next()).collect()
            }
        };
        next[at] += operations.iter().filter(|one| matches!(one, Operation::Insert(_))).count() as u64;
        let (reader, writer) = sides.reader(side);
        timed(requests, None, || carry_out(&operations, &mut maps[at], reader, writer))
    })?;
    row.qualifies = format!(
        "{}; {records} records of 8 + {VALUE_BYTES} B, {} MiB; {} scans under way between inserts; over {}; node's pages: {}; {}",
        named.map_or_else(
            || "YCSB E: 95 % scans of 1 to 100, 5 % inserts".to_owned(),
            |path| format!("trace {path}")
        ),
        bytes >> 20,
        rival.depth(),
        nodes.over().text(),
        nodes.pages(),
        machine_text()
    );
    Ok(row)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use memlift_traverse::client::Config;
    use memlift_traverse::client::cache::Cache;
    use memlift_traverse::structures::Walked;

    use super::super::CACHE_AGE;
    use super::super::native::Native;
    use super::super::nodes::{Over, client as client_of};
    use super::*;

    #[test]
    fn scans_are_those_of_a_model_at_the_node_at_the_rival_and_through_a_cache() {
        let nodes = Nodes::start(1, 8 << 20, Over::Shm).expect("a node");
        let mut placement = Placement::new(&nodes.ranges(), SLAB_2M, Order::Random(4));
        let map = OrderedMap::open(build(&nodes, 3000, &mut placement).expect("room"));
        let mut model: BTreeMap<u64, u64> = (0..3000).map(|number| (key(number), number)).collect();
        let native = Native::start(nodes.memory(), Over::Shm).expect("a server");
        let client = || nodes.client(Config::default()).expect("a client");
        let theirs = client_of(&native.place, Config::default()).expect("a client");
        let mut readers = [
            Reader::Remote(client(), 4),
            Reader::Remote(theirs, 4),
            Reader::Local(client(), Cache::new(1 << 16, CACHE_AGE)),
        ];
        let (mut writer, mut map) = (client(), map);
        let mut generator = Generator::new(Workload::E, Draw::Latest, 3000, 8);
        for _ in 0..200 {
            match generator.next() {
                Operation::Insert(number) => {
                    assert!(map.insert(&mut writer, key(number), &value(number)).expect("room"));
                    model.insert(key(number), number);
                }
                operation @ Operation::Scan { key: first, length } => {
                    let wanted: Vec<u8> = model
                        .range(key(first)..)
                        .take(length as usize)
                        .flat_map(|(key, &number)| [&key.to_le_bytes()[..], &value(number)].concat())
                        .collect();
                    let walks = [walk(map.handle(), operation).expect("a scan")];
                    for reader in &mut readers {
                        let mut found = Vec::new();
                        let mut take = |_, walked: Walked| {
                            found = walked.result;
                            Ok(())
                        };
                        reader.walk_all(&walks, &mut take).expect("an answer");
                        assert!(found == wanted, "{operation:?}: {} of {} bytes", found.len(), wanted.len());
                    }
                }
                operation => panic!("workload E does not {operation:?}"),
            }
        }
    }
}
