// SPDX-License-Identifier: Apache-2.0 OR MIT
//! redb as it comes: one sync per commit, which is durable when it returns; one writer at a time; 1 GiB of cache.

use std::path::Path;

use redb::{Database, Durability, ReadableDatabase, TableDefinition};

use crate::workload::{self, Failure, Sum};
use crate::{SCANNED, Store};

const ENTRIES: TableDefinition<'_, u64, &[u8; workload::VALUE_BYTES]> = TableDefinition::new("entries");

pub struct Redb {
    database: Database,
}

impl Redb {
    pub fn open(folder: &Path) -> Result<Redb, Failure> {
        Ok(Redb { database: Database::create(folder.join("entries.redb"))? })
    }

    fn insert(&self, keys: &mut dyn Iterator<Item = u64>) -> Result<(), Failure> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        let mut table = transaction.open_table(ENTRIES)?;
        for key in keys {
            table.insert(key, &workload::value(key))?;
        }
        drop(table);
        transaction.commit()?;
        Ok(())
    }
}

impl Store for Redb {
    fn about(&self) -> String {
        "redb 4.5.0, Durability::Immediate".to_owned()
    }

    fn load(&mut self, keys: &mut dyn Iterator<Item = u64>) -> Result<(), Failure> {
        self.insert(keys)
    }

    fn commits(&mut self, keys: &[u64]) -> Result<(), Failure> {
        keys.iter().try_for_each(|key| self.insert(&mut std::iter::once(*key)))
    }

    fn group(&mut self, keys: &[Vec<u64>]) -> Result<(), Failure> {
        let this = &*self;
        std::thread::scope(|scope| {
            let threads: Vec<_> = keys
                .iter()
                .map(|keys| {
                    scope.spawn(|| keys.iter().try_for_each(|key| this.insert(&mut std::iter::once(*key))))
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
        })
    }

    fn batched(&mut self, keys: &[Vec<u64>]) -> Result<(), Failure> {
        workload::batch(keys, |keys| self.insert(&mut keys.iter().copied()))
    }

    fn gets(&mut self, keys: &mut dyn Iterator<Item = u64>) -> Result<Sum, Failure> {
        let mut sum = Sum::default();
        let table = self.database.begin_read()?.open_table(ENTRIES)?;
        for key in keys {
            if let Some(value) = table.get(key)? {
                sum.add(key, value.value());
            }
        }
        Ok(sum)
    }

    fn scans(&mut self, keys: &mut dyn Iterator<Item = u64>) -> Result<Sum, Failure> {
        let mut sum = Sum::default();
        let table = self.database.begin_read()?.open_table(ENTRIES)?;
        for key in keys {
            for entry in table.range(key..)?.take(SCANNED) {
                let (key, value) = entry?;
                sum.add(key.value(), value.value());
            }
        }
        Ok(sum)
    }

    fn all(&mut self) -> Result<Sum, Failure> {
        let mut sum = Sum::default();
        let table = self.database.begin_read()?.open_table(ENTRIES)?;
        for entry in table.range(0..)? {
            let (key, value) = entry?;
            sum.add(key.value(), value.value());
        }
        Ok(sum)
    }
}
