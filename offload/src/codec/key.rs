// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A key as operations carry it: its bytes, for executors that expand keys in another way, and its expanded form for
//! our kernels.
//!
//! - **Owner** shared (`Arc`) between the operations that use it; its bytes are overwritten when the last one drops it.
//!   Addresses of both forms go into descriptors, so a key never moves once it is in an `Arc`.

use memlift_kernels::aead::{Key, KeyLength};
use std::sync::Arc;

/// An AES-128 or AES-256 key.
pub struct SealKey {
    bytes: [u8; 32],
    key_bytes: usize,
    expanded: Key,
}

impl SealKey {
    /// Expands a key of 16 or 32 bytes.
    ///
    /// # Errors
    ///
    /// [`KeyLength`] for any other length.
    pub fn new(key: &[u8]) -> Result<Arc<SealKey>, KeyLength> {
        let expanded = Key::new(key)?;
        let mut bytes = [0; 32];
        bytes[..key.len()].copy_from_slice(key);
        Ok(Arc::new(SealKey { bytes, key_bytes: key.len(), expanded }))
    }

    /// Returns the key's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.key_bytes]
    }

    /// Returns the key in the form that our kernels use.
    pub fn expanded(&self) -> &Key {
        &self.expanded
    }
}

impl Drop for SealKey {
    fn drop(&mut self) {
        self.bytes.fill(0);
        // Keeps the compiler from removing the stores.
        std::hint::black_box(&self.bytes);
    }
}

impl std::fmt::Debug for SealKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SealKey").field("key_bytes", &self.key_bytes).finish_non_exhaustive()
    }
}
