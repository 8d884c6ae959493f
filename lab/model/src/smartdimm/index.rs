// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps by numbers of pages and lines, which a run makes itself: one multiplication is a good enough hash for them.
//!
//! - **Rule** nobody depends on the order of entries

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by number.
pub type Index<V> = HashMap<u64, V, BuildHasherDefault<Product>>;

/// See the module.
#[derive(Debug, Default)]
pub struct Product(u64);

impl Hasher for Product {
    fn finish(&self) -> u64 {
        // A map takes the lowest bits and the highest ones.
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
