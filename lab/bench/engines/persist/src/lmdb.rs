// SPDX-License-Identifier: Apache-2.0 OR MIT
//! LMDB through heed as it comes: a commit syncs data, then the meta page, and is durable when it returns; one writer at a time.
//!
//! - **Best** a map large enough never to grow; MDB_INTEGERKEY, which LMDB compares fastest

use std::ops::Bound;
use std::path::Path;

use heed::byteorder::NativeEndian;
use heed::types::{Bytes, U64};
use heed::{CommitOrAbort, Database, Env, EnvOpenOptions, IntegerComparator};

use crate::workload::{self, Failure, Sum};
use crate::{SCANNED, Store};

const MAP_BYTES: usize = 4 << 30;

pub struct Lmdb {
    environment: &'static Env,
    entries: Database<'static, U64<NativeEndian>, Bytes, IntegerComparator>,
}

impl Lmdb {
    pub fn open(folder: &Path) -> Result<Lmdb, Failure> {
        // One environment for the life of the process: databases borrow it.
        let environment: &'static Env = Box::leak(Box::new(workload::lmdb_environment(
            folder,
            EnvOpenOptions::new().map_size(MAP_BYTES),
        )?));
        let transaction = environment.write_txn()?;
        let created: CommitOrAbort<_, ()> =
            environment.create_databases_and_commit(transaction, |opener, transaction| {
                opener
                    .database_options()
                    .types::<U64<NativeEndian>, Bytes>()
                    .key_comparator::<IntegerComparator>()
                    .create(transaction)
                    .map(CommitOrAbort::Commit)
            })?;
        let entries = created.commit().ok_or("LMDB made no database")?;
        Ok(Lmdb { environment, entries })
    }

    /// The environment of another process, for reading.
    pub fn open_reading(folder: &Path) -> Result<Lmdb, Failure> {
        let mut options = EnvOpenOptions::new();
        let environment: &'static Env =
            Box::leak(Box::new(workload::lmdb_reading(folder, options.map_size(MAP_BYTES))?));
        let opened: CommitOrAbort<_, ()> =
            environment.open_databases_and_commit(environment.read_txn()?, |opener, transaction| {
                opener
                    .database_options()
                    .types::<U64<NativeEndian>, Bytes>()
                    .key_comparator::<IntegerComparator>()
                    .open(transaction)
                    .map(|found| found.map_or(CommitOrAbort::Abort(()), CommitOrAbort::Commit))
            })?;
        let entries = opened.commit().ok_or("the environment has no database")?;
        Ok(Lmdb { environment, entries })
    }

    fn insert(&self, keys: &mut dyn Iterator<Item = u64>) -> Result<(), Failure> {
        let mut transaction = self.environment.write_txn()?;
        for key in keys {
            self.entries.put(&mut transaction, &key, &workload::value(key))?;
        }
        transaction.commit()?;
        Ok(())
    }
}

impl Store for Lmdb {
    fn about(&self) -> String {
        let version = heed::lmdb_version();
        format!(
            "LMDB {}.{}.{} through heed 0.23.1, default flags",
            version.major, version.minor, version.patch
        )
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
        let transaction = self.environment.read_txn()?;
        for key in keys {
            if let Some(value) = self.entries.get(&transaction, &key)? {
                sum.add(key, value);
            }
        }
        Ok(sum)
    }

    fn scans(&mut self, keys: &mut dyn Iterator<Item = u64>) -> Result<Sum, Failure> {
        let mut sum = Sum::default();
        let transaction = self.environment.read_txn()?;
        for key in keys {
            let range = (Bound::Included(key), Bound::Unbounded);
            for entry in self.entries.range(&transaction, &range)?.take(SCANNED) {
                let (key, value) = entry?;
                sum.add(key, value);
            }
        }
        Ok(sum)
    }

    fn all(&mut self) -> Result<Sum, Failure> {
        let mut sum = Sum::default();
        let transaction = self.environment.read_txn()?;
        for entry in self.entries.iter(&transaction)? {
            let (key, value) = entry?;
            sum.add(key, value);
        }
        Ok(sum)
    }
}
