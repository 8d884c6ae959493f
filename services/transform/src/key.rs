// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A key, expanded once for all the operations that use it.
//!
//! - **Owner** shared (`Arc`) between operations; overwritten when the last one drops it. It never moves once it is in an `Arc`.

use memlift_kernels::aead::{self, KeyLength};
use std::sync::Arc;

/// An AES-128 or AES-256 key.
#[derive(Debug)]
pub struct Key {
    expanded: aead::Key,
}

impl Key {
    /// Expands a key of 16 or 32 bytes.
    ///
    /// # Errors
    ///
    /// [`KeyLength`] for any other length.
    pub fn new(key: &[u8]) -> Result<Arc<Key>, KeyLength> {
        Ok(Arc::new(Key { expanded: aead::Key::new(key)? }))
    }

    /// Returns the key in the form that the kernels use.
    pub fn expanded(&self) -> &aead::Key {
        &self.expanded
    }
}
