// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The copies of a replicated node: which process is its primary, and which one may take over.
//!
//! - **Layout** in etcd beside the map, at PREFIX/replicas/NAME, 36 bytes: magic "MLRS" · version u16 · 0 u16 · CRC-32C u32 of what
//!   follows · epoch u64 · primary u64 · backup u64. The numbers are drawn at random for each copy; 0: there is no backup
//! - **Order** a change puts the map with its next epoch in the same transaction, so epochs order these changes, too. Each order makes
//!   a new epoch, even one that changes nothing else: a request that was delayed on its way to etcd is refused afterwards
//! - **Rule** only the two copies that are listed can be the node's primary. The primary lists a backup that has all records, and
//!   answers no change that a listed backup does not have
//! - **Not here** the records (`node/replica`), the lease that decides when the backup may take over (`etcd`)

use memlift_offload::Engine;

use super::MapError;
use super::change::Join;
use super::node::{Address, NodeId, State};
use super::range::Map;

const MAGIC: [u8; 4] = *b"MLRS";
const VERSION: u16 = 1;
const BYTES: usize = 36;

/// See the module's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// Epoch of the map in which they were listed.
    pub epoch: u64,
    /// Number of the copy that serves the node.
    pub primary: u64,
    /// Number of the copy that may take over; 0: there is none.
    pub backup: u64,
}

impl Replicas {
    /// Encodes the copies as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let numbers: Vec<u8> =
            [self.epoch, self.primary, self.backup].iter().flat_map(|number| number.to_le_bytes()).collect();
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([0; 2]);
        bytes.extend(Engine::global().crc32c(&numbers, 0).to_le_bytes());
        bytes.extend(numbers);
        bytes
    }

    /// Decodes copies.
    ///
    /// # Errors
    ///
    /// [`MapError::Encoding`]
    pub fn decode(bytes: &[u8]) -> Result<Replicas, MapError> {
        let fault = |what, at| MapError::Encoding { what, at };
        let bytes: &[u8; BYTES] = bytes.try_into().map_err(|_| fault("36 bytes of copies", 0))?;
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let found = Replicas { epoch: number(12), primary: number(20), backup: number(28) };
        if found.encode() != bytes {
            return Err(fault("magic, version and checksum of copies", 0));
        }
        if found.epoch == 0 || found.primary == 0 || found.primary == found.backup {
            return Err(fault("an epoch and two different copies", 12));
        }
        Ok(found)
    }
}

/// Order of a node's primary to list another backup, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupOrder {
    /// Name of the node.
    pub name: String,
    /// Incarnation and number of the primary that asks.
    pub primary: (u64, u64),
    /// Number of the backup; 0: none.
    pub backup: u64,
    /// Addresses of the node from now on: the primary's, then the backup's.
    pub addresses: Vec<Address>,
}

impl Map {
    /// A copy of a replicated node joins as its primary: the first one, a listed one whose process was started again, or the
    /// backup that takes over. Returns the map, the node's number and the copies.
    ///
    /// # Errors
    ///
    /// [`MapError::Refused`] if another process is up as the node, or this copy is not listed; the errors of [`Map::join`]
    pub fn join_replica(
        &self,
        join: &Join,
        listed: Option<Replicas>,
        replica: u64,
    ) -> Result<(Map, NodeId, Replicas), MapError> {
        let Some(listed) = listed else {
            let (map, id) = self.join(join)?;
            let epoch = map.epoch;
            return Ok((map, id, Replicas { epoch, primary: replica, backup: 0 }));
        };
        let name = &join.name;
        let node = self.node_named(name).ok_or_else(|| {
            MapError::refused(format!(
                "node {name} is not in the map, but its copies are: forget it once more"
            ))
        })?;
        if replica == 0 || (listed.primary != replica && listed.backup != replica) {
            return Err(MapError::Replaced { node: name.clone() });
        }
        let same_start = listed.primary == replica && node.incarnation == join.incarnation;
        // The primary's lease has run out, and its backup has not taken over: both copies stay as they are.
        let addresses = if same_start { &node.addresses } else { &join.addresses };
        let join = Join { recovered: true, addresses: addresses.clone(), ..join.clone() };
        let (map, id) = self.join(&join)?;
        if same_start {
            return Ok((map, id, listed));
        }
        let epoch = map.epoch;
        Ok((map, id, Replicas { epoch, primary: replica, backup: 0 }))
    }

    /// The primary lists a backup, or drops the one that is listed.
    ///
    /// # Errors
    ///
    /// [`MapError::Replaced`] if another copy is the primary: the caller must not answer anything more. [`MapError::Invalid`] if another
    /// node has one of the addresses
    pub fn set_backup(
        &self,
        order: &BackupOrder,
        listed: Option<Replicas>,
    ) -> Result<(Map, Replicas), MapError> {
        let (incarnation, primary) = order.primary;
        let replaced = || MapError::Replaced { node: order.name.clone() };
        let node = self.node_named(&order.name).ok_or_else(replaced)?;
        if listed.is_none_or(|listed| listed.primary != primary) || node.incarnation != incarnation {
            return Err(replaced());
        }
        if order.backup != 0 && node.state != State::Up {
            return Err(MapError::refused(format!("node {} is down: its lease comes first", order.name)));
        }
        let map = self.readdressed(&order.name, &order.addresses)?;
        let epoch = map.epoch;
        Ok((map, Replicas { epoch, primary, backup: order.backup }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> Address {
        Address::Udp(([127, 0, 0, 1], port).into())
    }

    fn join(port: u16, incarnation: u64) -> Join {
        Join {
            name: "a".to_owned(),
            addresses: vec![at(port)],
            incarnation,
            bytes: 1 << 20,
            recovered: false,
            epoch: 0,
            tenant: 0,
            cluster: 0,
        }
    }

    fn order(incarnation: u64, primary: u64, backup: u64) -> BackupOrder {
        let addresses = if backup == 0 { vec![at(1)] } else { vec![at(1), at(2)] };
        BackupOrder { name: "a".to_owned(), primary: (incarnation, primary), backup, addresses }
    }

    #[test]
    fn only_listed_copies_take_over_and_only_when_nobody_is_up() {
        let (map, id, alone) = Map::empty().join_replica(&join(1, 10), None, 7).expect("the first");
        let base = map.ranges()[0].base;
        let (map, both) = map.set_backup(&order(10, 7, 8), Some(alone)).expect("listed");
        assert_eq!((both.epoch, both.primary, both.backup), (map.epoch(), 7, 8));
        assert_eq!(map.node(id).expect("a").addresses, [at(1), at(2)]);
        // The primary is up: nobody takes over.
        assert!(matches!(map.join_replica(&join(2, 20), Some(both), 8), Err(MapError::Refused { .. })));
        let down = map.down(id, 10).expect("down");
        for other in [0, 9] {
            let refused = down.join_replica(&join(3, 30), Some(both), other);
            assert!(matches!(refused, Err(MapError::Replaced { .. })), "{other}: {refused:?}");
        }
        // The same start of the primary comes back before its backup took over, with its backup.
        let (back, _, same) = down.join_replica(&join(1, 10), Some(both), 7).expect("back");
        assert_eq!((same, back.node(id).expect("a").addresses.len()), (both, 2));
        let (taken, again, alone) = down.join_replica(&join(2, 20), Some(both), 8).expect("taken over");
        assert_eq!((again, alone.primary, alone.backup, alone.epoch), (id, 8, 0, taken.epoch()));
        assert_eq!(taken.find(base).expect("there").owner, Some(id));
        assert_eq!(taken.node(id).expect("a").addresses, [at(2)]);
        // From now on the old primary is refused, whatever it asks, and also when the new one is down.
        let later = taken.down(id, 20).expect("down");
        for map in [&taken, &later] {
            let refused = [
                map.join_replica(&join(1, 10), Some(alone), 7).expect_err("replaced"),
                map.set_backup(&order(10, 7, 0), Some(alone)).expect_err("replaced"),
            ];
            assert!(refused.iter().all(|one| matches!(one, MapError::Replaced { .. })), "{refused:?}");
        }
    }

    #[test]
    fn each_order_makes_an_epoch_so_that_a_delayed_one_is_refused() {
        let (map, _, alone) = Map::empty().join_replica(&join(1, 10), None, 7).expect("the first");
        let (next, same) = map.set_backup(&order(10, 7, 0), Some(alone)).expect("none");
        assert_eq!((next.epoch(), same.epoch), (map.epoch() + 1, map.epoch() + 1));
    }

    #[test]
    fn bytes_are_read_as_written_or_refused() {
        let copies = Replicas { epoch: 5, primary: 7, backup: 0 };
        let good = copies.encode();
        assert_eq!(Replicas::decode(&good).expect("good"), copies);
        assert!((0..good.len()).all(|length| Replicas::decode(&good[..length]).is_err()));
        for at in 0..good.len() {
            let mut wrong = good.clone();
            wrong[at] ^= 1;
            assert!(Replicas::decode(&wrong).is_err(), "byte {at}");
        }
        for wrong in [
            Replicas { epoch: 0, ..copies },
            Replicas { primary: 0, ..copies },
            Replicas { backup: 7, ..copies },
        ] {
            assert!(Replicas::decode(&wrong.encode()).is_err(), "{wrong:?}");
        }
    }
}
