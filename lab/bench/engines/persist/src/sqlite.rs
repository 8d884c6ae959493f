// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SQLite in WAL mode with synchronous=FULL: every commit is durable when it returns.
//!
//! - **Best** a rowid table keyed by the integer, statements prepared once, checkpoints at SQLite's own pace and in the window;
//!   alone: locking_mode=EXCLUSIVE · 16 threads: a connection each, and a mutex of the program before BEGIN IMMEDIATE,
//!   which is faster than SQLite's own sleeping busy handler

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rusqlite::Connection;

use crate::workload::{self, Failure, Sum};
use crate::{SCANNED, Store, THREADS};

const INSERT: &str = "INSERT INTO entries (key, value) VALUES (?1, ?2)";

pub struct Sqlite {
    path: PathBuf,
    exclusive: bool,
    connection: Connection,
    others: Vec<Connection>,
}

fn connect(path: &Path, exclusive: bool) -> Result<Connection, Failure> {
    let connection = Connection::open(path)?;
    if exclusive {
        connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    }
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        return Err(format!("journal_mode is {mode}, not wal").into());
    }
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.busy_timeout(std::time::Duration::from_secs(60))?;
    Ok(connection)
}

impl Sqlite {
    pub fn open(folder: &Path, exclusive: bool) -> Result<Sqlite, Failure> {
        let path = folder.join("entries.sqlite");
        let connection = connect(&path, exclusive)?;
        connection.execute("CREATE TABLE entries (key INTEGER PRIMARY KEY, value BLOB NOT NULL)", ())?;
        Ok(Sqlite { path, exclusive, connection, others: Vec::new() })
    }
}

/// SQLite's integers are signed: this keeps the order of the keys.
fn signed(key: u64) -> i64 {
    (key ^ (1 << 63)) as i64
}

fn unsigned(key: i64) -> u64 {
    key as u64 ^ (1 << 63)
}

fn insert(connection: &Connection, key: u64) -> Result<(), Failure> {
    connection.prepare_cached(INSERT)?.execute((signed(key), &workload::value(key)[..]))?;
    Ok(())
}

impl Store for Sqlite {
    fn about(&self) -> String {
        format!(
            "SQLite {}, WAL, synchronous=FULL{}",
            rusqlite::version(),
            if self.exclusive { ", locking_mode=EXCLUSIVE" } else { "" }
        )
    }

    fn load(&mut self, keys: &mut dyn Iterator<Item = u64>) -> Result<(), Failure> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        for key in keys {
            insert(&self.connection, key)?;
        }
        self.connection.execute_batch("COMMIT; PRAGMA wal_checkpoint(TRUNCATE)")?;
        Ok(())
    }

    fn commits(&mut self, keys: &[u64]) -> Result<(), Failure> {
        // A statement outside BEGIN is a transaction of its own.
        keys.iter().try_for_each(|key| insert(&self.connection, *key))
    }

    fn group(&mut self, keys: &[Vec<u64>]) -> Result<(), Failure> {
        while self.others.len() < THREADS as usize {
            self.others.push(connect(&self.path, false)?);
        }
        let turn = Mutex::new(());
        std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .others
                .iter_mut()
                .zip(keys)
                .map(|(connection, keys)| {
                    let turn = &turn;
                    scope.spawn(move || {
                        keys.iter().try_for_each(|key| {
                            let _turn = turn.lock().map_err(|_| "another thread failed")?;
                            insert(connection, *key)
                        })
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
        })
    }

    fn batched(&mut self, keys: &[Vec<u64>]) -> Result<(), Failure> {
        let connection = &self.connection;
        workload::batch(keys, |keys| {
            connection.prepare_cached("BEGIN IMMEDIATE")?.execute(())?;
            keys.iter().try_for_each(|key| insert(connection, *key))?;
            connection.prepare_cached("COMMIT")?.execute(())?;
            Ok(())
        })
    }

    fn gets(&mut self, keys: &mut dyn Iterator<Item = u64>) -> Result<Sum, Failure> {
        let mut sum = Sum::default();
        let mut statement = self.connection.prepare_cached("SELECT value FROM entries WHERE key = ?1")?;
        for key in keys {
            let mut rows = statement.query([signed(key)])?;
            if let Some(row) = rows.next()? {
                sum.add(key, row.get_ref(0)?.as_blob()?);
            }
        }
        Ok(sum)
    }

    fn scans(&mut self, keys: &mut dyn Iterator<Item = u64>) -> Result<Sum, Failure> {
        let mut sum = Sum::default();
        let text = format!("SELECT key, value FROM entries WHERE key >= ?1 ORDER BY key LIMIT {SCANNED}");
        let mut statement = self.connection.prepare_cached(&text)?;
        for key in keys {
            let mut rows = statement.query([signed(key)])?;
            while let Some(row) = rows.next()? {
                sum.add(unsigned(row.get(0)?), row.get_ref(1)?.as_blob()?);
            }
        }
        Ok(sum)
    }

    fn all(&mut self) -> Result<Sum, Failure> {
        let mut sum = Sum::default();
        let mut statement = self.connection.prepare_cached("SELECT key, value FROM entries")?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            sum.add(unsigned(row.get(0)?), row.get_ref(1)?.as_blob()?);
        }
        Ok(sum)
    }
}
