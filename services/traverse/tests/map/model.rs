// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The map as a value: what is valid, who has an address, its bytes, and every change.

use crate::join;
use memlift_traverse::map::{
    ADDRESS_END, Address, Change, Cursor, ENTRY_BYTES_MAX, Entry, Join, Map, MapError, Node, NodeChange,
    NodeId, Order, PAGE_BYTES, Permissions, Place, Range, State,
};
use proptest::prelude::*;

fn node(id: u16) -> Node {
    let addresses =
        vec![Address::resolve(&format!("10.0.{}.{}:7700", id / 256, id % 256 + 1)).expect("an address")];
    Node { id: NodeId(id), name: format!("node-{id}"), addresses, incarnation: 7, state: State::Up }
}

fn range(base: u64, bytes: u64, owner: u16) -> Range {
    let permissions = Permissions::READ_WRITE;
    Range { base, bytes, owner: Some(NodeId(owner)), since: 1, permissions, tenant: 0 }
}

/// Any valid map.
fn maps() -> impl Strategy<Value = Map> {
    let pieces = prop::collection::vec((0..5u64, 1..9u64, 0..6u16, any::<bool>(), any::<u32>()), 0..40);
    (pieces, 1..u64::from(u32::MAX), prop::collection::vec(any::<u64>(), 5)).prop_map(
        |(pieces, epoch, incarnations)| {
            let mut nodes: Vec<Node> = (0..5).map(|id| node(id * 7)).collect();
            for (node, incarnation) in nodes.iter_mut().zip(incarnations) {
                node.incarnation = incarnation;
                if incarnation % 3 == 0 {
                    node.state = State::Down;
                    node.addresses.push(Address::Shm(format!("/run/{}", node.name)));
                    node.addresses
                        .push(Address::resolve(&format!("[fd00::{}]:1", node.id.0 + 1)).expect("an address"));
                }
            }
            let (mut ranges, mut at) = (Vec::new(), PAGE_BYTES);
            for (gap, pages, owner, write, tenant) in pieces {
                let base = at + gap * PAGE_BYTES;
                at = base + pages * PAGE_BYTES;
                ranges.push(Range {
                    owner: (owner < 5).then_some(NodeId(owner * 7)),
                    since: 1 + tenant as u64 % epoch,
                    permissions: if write { Permissions::READ_WRITE } else { Permissions::READ },
                    tenant,
                    ..range(base, pages * PAGE_BYTES, 0)
                });
            }
            Map::new(epoch, nodes, ranges).expect("a valid map")
        },
    )
}

fn refused(nodes: Vec<Node>, ranges: Vec<Range>) -> String {
    Map::new(1, nodes, ranges).expect_err("not valid").to_string()
}

#[test]
fn what_does_not_fit_together_is_refused_by_name() {
    let page = PAGE_BYTES;
    assert!(
        refused(vec![node(0)], vec![range(page, 2 * page, 0), range(2 * page, page, 0)]).contains("overlaps")
    );
    assert!(refused(vec![node(0)], vec![range(page, page, 0), range(page, page, 0)]).contains("overlaps"));
    assert!(refused(vec![node(0)], vec![range(0, page, 0)]).contains("first page"));
    assert!(refused(vec![node(0)], vec![range(page, 0, 0)]).contains("not 0"));
    assert!(refused(vec![node(0)], vec![range(page + 8, page, 0)]).contains("multiples"));
    assert!(refused(vec![node(0)], vec![range(page, u64::MAX - page + 1, 0)]).contains("past"));
    assert!(refused(vec![node(0)], vec![range(u64::MAX - page + 1, page, 0)]).contains("past"));
    assert!(refused(vec![node(0)], vec![range(ADDRESS_END - page, 2 * page, 0)]).contains("past"));
    assert!(refused(vec![node(0)], vec![range(page, page, 1)]).contains("not in the map"));
    assert!(refused(vec![node(0), node(0)], vec![]).contains("two nodes"));
    let twin = Node { id: NodeId(1), ..node(0) };
    assert!(refused(vec![node(0), twin], vec![]).contains("called"));
    let twin = Node { addresses: node(0).addresses, ..node(1) };
    assert!(refused(vec![node(0), twin], vec![]).contains("also another's"));
    assert!(refused(vec![Node { name: "a b".to_owned(), ..node(0) }], vec![]).contains("letters"));
    assert!(refused(vec![Node { addresses: vec![], ..node(0) }], vec![]).contains("0 addresses"));
    assert!(refused(vec![node(0)], vec![Range { since: 2, ..range(page, page, 0) }]).contains("to come"));
    assert!(Map::new(0, vec![], vec![]).is_err());
    for text in
        ["127.0.0.1:0", "0.0.0.0:7", "[::]:7", "localhost", "no-such-host.invalid:7", "shm:", "7700", ""]
    {
        assert!(Address::resolve(text).is_err(), "{text}");
    }
    assert!(Address::resolve("udp:localhost:7").is_ok_and(|address| address.to_string().starts_with("udp:")));
    Map::new(1, vec![node(0)], vec![range(ADDRESS_END - page, page, 0)]).expect("up to the very end");
}

#[test]
fn an_address_has_one_owner_and_gaps_have_none() {
    let down = Node { state: State::Down, ..node(1) };
    let lost = Range { owner: None, ..range(0x9000, 0x1000, 0) };
    let ranges = vec![range(0x2000, 0x2000, 0), range(0x6000, 0x1000, 1), lost];
    let map = Map::new(3, vec![node(0), down], ranges).expect("a map");
    assert!(matches!(map.place(0x1fff), Place::Nowhere));
    assert!(
        matches!(map.place(0x2000), Place::Owned(range, node) if range.base == 0x2000 && node.id == NodeId(0))
    );
    assert!(matches!(map.place(0x3fff), Place::Owned(..)));
    assert!(matches!(map.place(0x4000), Place::Nowhere));
    assert!(matches!(map.node_of(0x6008), Err(MapError::Down { node, epoch: 3, .. }) if node == "node-1"));
    assert!(matches!(map.node_of(0x9000), Err(MapError::Lost { .. })));
    assert!(matches!(map.node_of(0), Err(MapError::Nowhere { .. })));
    assert!(matches!(map.node_of(u64::MAX), Err(MapError::Nowhere { .. })));
}

proptest! {
    #[test]
    fn a_cursor_finds_what_a_search_of_all_ranges_finds(map in maps(), addresses in prop::collection::vec(0..0x200u64, 1..60)) {
        let mut cursor = Cursor::default();
        for address in addresses {
            let address = address * (PAGE_BYTES / 2);
            let naive = map.ranges().iter().find(|range| range.base <= address && address < range.base + range.bytes);
            prop_assert_eq!(cursor.find(&map, address), naive);
            prop_assert_eq!(map.find(address), naive);
        }
    }

    #[test]
    fn bytes_and_maps_are_the_same_thing(map in maps()) {
        let bytes = map.encode();
        let again = Map::decode(&bytes).expect("its own bytes");
        prop_assert_eq!(&again, &map);
        prop_assert_eq!(again.encode(), bytes);
        for range in map.ranges() {
            let entry = Entry::of(&map, range.base + range.bytes - 1).expect("in a range");
            let bytes = entry.encode();
            prop_assert!(bytes.len() <= ENTRY_BYTES_MAX);
            prop_assert_eq!(Entry::decode(&bytes).expect("its own bytes"), entry);
            prop_assert!(Map::decode(&bytes).is_err(), "an entry is no map");
        }
    }

    #[test]
    fn damaged_bytes_are_refused(map in maps(), place in any::<prop::sample::Index>(), change in 1..=255u8) {
        let bytes = map.encode();
        let mut damaged = bytes.clone();
        damaged[place.index(bytes.len())] ^= change;
        prop_assert!(Map::decode(&damaged).is_err());
        prop_assert!(Map::decode(&bytes[..place.index(bytes.len())]).is_err());
        let longer = [&bytes[..], &[0]].concat();
        prop_assert!(Map::decode(&longer).is_err());
    }

    #[test]
    fn a_diff_says_of_each_page_what_became_of_it(a in maps(), b in maps()) {
        let diff = b.since(&a);
        for page in 0..0x180u64 {
            let address = page * PAGE_BYTES;
            let (before, after) = (a.find(address), b.find(address));
            let owners = (before.and_then(|range| range.owner), after.and_then(|range| range.owner));
            let same = owners.0 == owners.1 && (owners.0.is_none() || before.map(|r| r.since) == after.map(|r| r.since));
            let piece = diff.pieces.iter().find(|piece| piece.base <= address && address < piece.end);
            match (owners, piece.map(|piece| piece.change)) {
                ((Some(from), Some(to)), Some(Change::Moved(was, is))) => prop_assert_eq!((from, to), (was, is)),
                ((Some(from), None), Some(Change::Lost(was))) => prop_assert_eq!(from, was),
                ((None, Some(to)), Some(Change::Added(is))) => prop_assert_eq!(to, is),
                ((_, None), Some(Change::Removed)) => prop_assert!(after.is_none() && before.is_some()),
                ((Some(_), Some(_)), Some(Change::Rights(_)) | None) => prop_assert!(same),
                ((None, None), None) => {}
                (owners, change) => prop_assert!(false, "{owners:?} {change:?}"),
            }
            prop_assert_eq!(diff.keeps(address), piece.is_none_or(|piece| matches!(piece.change, Change::Rights(_))));
        }
        prop_assert!(a.since(&a).is_empty());
    }
}

#[test]
fn counts_that_cannot_be_true_allocate_nothing() {
    let mut bytes = Map::empty().encode();
    bytes[28..32].copy_from_slice(&(1u32 << 17).to_le_bytes());
    let crc = memlift_offload::Engine::global().crc32c(&bytes[12..], 0);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    assert!(matches!(
        Map::decode(&bytes),
        Err(MapError::Encoding { what: "as many nodes and ranges as announced", .. })
    ));
}

#[test]
fn a_hundred_thousand_ranges_take_less_than_a_mebibyte() {
    let ranges = (1..=100_000u64).map(|index| range(index << 20, 1 << 20, (index % 16) as u16)).collect();
    let map = Map::new(9, (0..16).map(node).collect(), ranges).expect("a map");
    let bytes = map.encode();
    assert!(bytes.len() < 1 << 20, "{}", bytes.len());
    assert_eq!(Map::decode(&bytes).expect("its own bytes"), map);
}

#[test]
fn a_node_that_comes_back_with_its_data_keeps_its_addresses() {
    let (map, a) = Map::empty().join(&join("a", 1, 11)).expect("joined");
    let before = map.ranges()[0];
    let map = map.down(a, 11).expect("down");
    assert!(matches!(map.place(before.base), Place::Down(..)));
    assert!(map.down(a, 11).is_err(), "it is down already");
    let again = Join { recovered: true, ..join("a", 1, 12) };
    let (map, same) = map.join(&again).expect("joined");
    assert_eq!((same, map.ranges()), (a, &[before][..]));
    assert!(matches!(map.place(before.base), Place::Owned(..)));
    let (unchanged, _) = map.join(&again).expect("said twice");
    assert_eq!(unchanged, map);
}

#[test]
fn a_node_that_lost_its_data_gets_addresses_that_nobody_ever_had() {
    let (mut map, a) = Map::empty().join(&join("a", 1, 1)).expect("joined");
    let mut seen = vec![map.ranges()[0]];
    for start in 2..6 {
        map = map.down(a, start - 1).expect("down").join(&join("a", 1, start)).expect("joined").0;
        assert!(matches!(map.node_of(seen[0].base), Err(MapError::Lost { .. })));
        let new = *map.ranges().iter().find(|range| range.owner == Some(a)).expect("its own range");
        assert!(seen.iter().all(|old| new.base >= old.end()), "{new:?} after {seen:?}");
        seen.push(new);
    }
    let diff = map.since(&Map::empty());
    assert_eq!(diff.nodes, vec![(a, "a".to_owned(), NodeChange::Up)]);
}

#[test]
fn nobody_joins_an_old_map_or_takes_a_name_that_is_up() {
    let (map, a) = Map::empty().join(&join("a", 1, 1)).expect("joined");
    let old = Join { epoch: map.epoch() + 1, ..join("b", 2, 1) };
    assert!(map.join(&old).expect_err("an old map").to_string().contains("put the newest back"));
    assert!(map.join(&join("a", 2, 2)).expect_err("a's name").to_string().contains("another name"));
    assert!(map.join(&join("b", 1, 2)).is_err(), "a's address");
    assert!(map.forget("a").expect_err("it is up").to_string().contains("stop it"));
    let map = map.down(a, 1).expect("down").forget("a").expect("forgotten");
    assert!(map.nodes().is_empty() && map.ranges()[0].owner.is_none());
    let (map, b) = map.join(&join("a", 1, 3)).expect("joined");
    assert_ne!(b, a, "an id is given once");
    assert!(map.ranges()[1].base >= map.ranges()[0].end());
}

#[test]
fn a_migration_is_committed_once_and_only_between_the_same_starts() {
    let (map, a) = Map::empty().join(&join("a", 1, 1)).expect("joined");
    let (map, b) = map.join(&join("b", 2, 1)).expect("joined");
    let base = map.ranges()[0].base;
    let plan = |bytes, offset| Order::Plan { base: base + offset, bytes, to: "b".to_owned() };
    assert!(plan(64 << 21, 0).carry_out(&map).is_err(), "more than the range");
    assert!(plan(8, 0).carry_out(&map).is_err(), "no whole page");
    assert!(
        Order::Plan { base, bytes: 4096, to: "a".to_owned() }.carry_out(&map).is_err(),
        "it is there already"
    );
    assert!(Order::Plan { base, bytes: 4096, to: "c".to_owned() }.carry_out(&map).is_err(), "nobody");
    let (planned, id) = plan(1 << 20, 1 << 20).carry_out(&map).expect("planned");
    assert!(plan(1 << 20, 1 << 20).carry_out(&planned).is_err(), "twice");
    assert_eq!(planned.find(base + (1 << 20)).expect("there").owner, Some(a), "until it is committed");
    assert_eq!(Map::decode(&planned.encode()).expect("its own bytes"), planned);

    let done = planned.commit(id).expect("committed");
    let owners: Vec<_> =
        done.ranges()[..3].iter().map(|range| (range.base - base, range.bytes, range.owner)).collect();
    assert_eq!(owners, [(0, 1 << 20, Some(a)), (1 << 20, 1 << 20, Some(b)), (2 << 20, 62 << 20, Some(a))]);
    assert_eq!(done.since(&planned).pieces.len(), 1);
    assert!(done.commit(id).is_err() && done.cancel(id).is_err(), "once");
    assert!(planned.cancel(id).expect("cancelled").moves().is_empty());

    for (node, name, port) in [(a, "a", 1), (b, "b", 2)] {
        let down = planned.down(node, 1).expect("down");
        assert!(down.commit(id).is_err(), "{name} is down");
        let again = down.join(&Join { recovered: true, ..join(name, port, 2) }).expect("joined").0;
        assert!(again.commit(id).is_err(), "{name} was started again");
    }
}
