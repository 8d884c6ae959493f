// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several changes of a store in one transaction.
//!
//! - **Owner** a turn has locked the shards of the keys that it was opened with ([`Kv::write`]), and touches no others
//! - **Rule** what it has changed it sees; others see it when the transaction is done

use std::ops::{Bound, ControlFlow};

use super::{Change, Kv, KvEntry, now_ms};
use crate::error::Result;
use crate::tx::Tx;
use crate::view::View;

/// An open transaction of a store.
#[derive(Debug)]
pub struct Turn<'a, 't> {
    kv: &'a Kv<'a>,
    t: &'a mut Tx<'t>,
    now: u64,
}

impl<'a, 't> Turn<'a, 't> {
    pub(super) fn new(kv: &'a Kv<'a>, t: &'a mut Tx<'t>) -> Turn<'a, 't> {
        Turn { kv, t, now: now_ms() }
    }

    /// The same turn, for as long as this one is lent.
    pub(super) fn again(&mut self) -> Turn<'_, 't> {
        Turn { kv: self.kv, t: self.t, now: self.now }
    }

    /// As [`Kv::get_with`].
    ///
    /// # Errors
    ///
    /// As [`crate::Pool::tx`].
    pub fn get_with<R>(&self, key: &[u8], look: impl FnOnce(&[u8], u64) -> R) -> Result<Option<R>> {
        match self.entry(key)? {
            Some(entry) => Ok(Some(look(self.t.slice(entry.value)?, entry.expires))),
            None => Ok(None),
        }
    }

    fn entry(&self, key: &[u8]) -> Result<Option<KvEntry>> {
        let found = self.kv.find(&*self.t, key)?;
        Ok(found.map(|(_, entry)| *entry).filter(|entry| entry.lives(self.now)))
    }

    /// As [`Kv::set`].
    ///
    /// # Errors
    ///
    /// As [`Kv::set`].
    pub fn set(&mut self, key: &[u8], value: &[u8], expires: u64) -> Result<()> {
        Kv::check_key(key)?;
        self.kv.put(self.t, self.kv.shard(key), key, value, expires)
    }

    /// As [`Kv::change`].
    ///
    /// # Errors
    ///
    /// As [`Kv::change`].
    pub fn change<R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(Option<(&[u8], u64)>) -> Result<(Change, R)>,
    ) -> Result<R> {
        Kv::check_key(key)?;
        let shard = self.kv.shard(key);
        let seen = match self.entry(key)? {
            Some(entry) => Some((self.t.slice(entry.value)?, entry.expires)),
            None => None,
        };
        let there = seen.is_some();
        let (change, answer) = change(seen)?;
        match change {
            Change::Keep => {}
            Change::Set(value, expires) => self.kv.put(self.t, shard, key, &value, expires)?,
            Change::Expire(expires) if there => {
                if let Some(entry) = self.kv.trees[shard].get_mut(self.t, key)? {
                    entry.expires = expires;
                }
            }
            Change::Expire(_) => {}
            Change::Remove => {
                self.kv.take(self.t, shard, key)?;
            }
        }
        Ok(answer)
    }

    /// Takes an entry out; whether there was one.
    ///
    /// # Errors
    ///
    /// As [`crate::Pool::tx`].
    pub fn remove(&mut self, key: &[u8]) -> Result<bool> {
        let entry = self.kv.take(self.t, self.kv.shard(key), key)?;
        Ok(entry.is_some_and(|entry| entry.lives(self.now)))
    }

    /// As [`Kv::len`]; the turn has all shards.
    pub(super) fn len(&self) -> Result<u64> {
        self.kv.len_in(&*self.t)
    }

    /// As [`Kv::scan`]; the turn has all shards.
    pub(super) fn scan(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.kv.scan_in(&*self.t, range, visit)
    }

    /// Takes everything out; the turn has all shards.
    pub(super) fn clear(&mut self) -> Result<()> {
        for (shard, tree) in self.kv.trees.iter().enumerate() {
            let mut keys = Vec::new();
            for entry in tree.iter(&*self.t)? {
                let mut key = Vec::new();
                entry?.0.read(&*self.t, &mut key)?;
                keys.push(key);
            }
            for key in keys {
                self.kv.take(self.t, shard, &key)?;
            }
        }
        Ok(())
    }
}

/// A store as one command sees it: by itself, or within a transaction that has begun.
#[derive(Debug)]
pub(super) enum At<'a, 't> {
    Alone(&'a Kv<'a>),
    Within(Turn<'a, 't>),
}

impl At<'_, '_> {
    pub fn get_with<R>(&self, key: &[u8], look: impl FnOnce(&[u8], u64) -> R) -> Result<Option<R>> {
        match self {
            At::Alone(kv) => kv.get_with(key, look),
            At::Within(turn) => turn.get_with(key, look),
        }
    }

    /// As [`Kv::get_many`].
    pub fn get_many<E: From<crate::error::Error>>(
        &self,
        keys: &[&[u8]],
        mut look: impl FnMut(Option<(&[u8], u64)>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        match self {
            At::Alone(kv) => kv.get_many(keys, look),
            At::Within(turn) => keys.iter().try_for_each(|key| match turn.entry(key)? {
                Some(entry) => look(Some((turn.t.slice(entry.value)?, entry.expires))),
                None => look(None),
            }),
        }
    }

    pub fn set(&mut self, key: &[u8], value: &[u8], expires: u64) -> Result<()> {
        match self {
            At::Alone(kv) => kv.set(key, value, expires),
            At::Within(turn) => turn.set(key, value, expires),
        }
    }

    /// Changes entries of these keys, all or none.
    pub fn write<R>(
        &mut self,
        keys: &[&[u8]],
        mut work: impl FnMut(&mut Turn<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        match self {
            At::Alone(kv) => kv.write(keys, work),
            At::Within(turn) => work(turn),
        }
    }

    pub fn change<R>(
        &mut self,
        key: &[u8],
        change: impl FnMut(Option<(&[u8], u64)>) -> Result<(Change, R)>,
    ) -> Result<R> {
        match self {
            At::Alone(kv) => kv.change(key, change),
            At::Within(turn) => turn.change(key, change),
        }
    }

    pub fn len(&self) -> Result<u64> {
        match self {
            At::Alone(kv) => kv.len(),
            At::Within(turn) => turn.len(),
        }
    }

    pub fn last_key(&self) -> Result<Option<Vec<u8>>> {
        match self {
            At::Alone(kv) => kv.last_key(),
            At::Within(turn) => turn.kv.last_key_in(&*turn.t),
        }
    }

    pub fn scan(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        match self {
            At::Alone(kv) => kv.scan(range, visit),
            At::Within(turn) => turn.scan(range, visit),
        }
    }

    pub fn clear(&mut self) -> Result<()> {
        match self {
            At::Alone(kv) => kv.clear(),
            At::Within(turn) => turn.clear(),
        }
    }

    /// The store, for what is no part of a transaction. Its entries are read by the calls above: within one it has been locked already.
    pub fn kv(&self) -> &Kv<'_> {
        match self {
            At::Alone(kv) => kv,
            At::Within(turn) => turn.kv,
        }
    }
}
