// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The atomic words that processes share. Normally these are the standard library's atomics and futexes. In this crate's own
//! tests, each access first gives a scheduler the chance to switch threads, so that every interleaving of the real code can
//! be tried.
//!
//! - **Layout** the test's types are transparent, so each word has the same size and place
//! - **Not here** the scheduler ([`super::interleave`])

#[cfg(not(test))]
pub use crate::lock::{futex_wait, futex_wake};
#[cfg(not(test))]
pub use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};
#[cfg(test)]
pub use stepped::{AtomicI64, AtomicU32, AtomicU64, futex_wait, futex_wake};

#[cfg(test)]
mod stepped {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use crate::block::interleave::{self, step};

    macro_rules! stepped {
        ($name:ident, $value:ty) => {
            #[repr(transparent)]
            #[derive(Debug, Default)]
            pub struct $name(std::sync::atomic::$name);

            #[allow(
                dead_code,
                reason = "each type has what the standard library's has; not each is asked for all"
            )]
            impl $name {
                pub const fn new(value: $value) -> $name {
                    $name(std::sync::atomic::$name::new(value))
                }

                pub fn load(&self, order: Ordering) -> $value {
                    step();
                    self.0.load(order)
                }

                pub fn store(&self, value: $value, order: Ordering) {
                    step();
                    self.0.store(value, order);
                }

                pub fn swap(&self, value: $value, order: Ordering) -> $value {
                    step();
                    self.0.swap(value, order)
                }

                pub fn compare_exchange(
                    &self,
                    old: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    step();
                    self.0.compare_exchange(old, new, success, failure)
                }

                pub fn fetch_update(
                    &self,
                    success: Ordering,
                    failure: Ordering,
                    change: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    step();
                    self.0.fetch_update(success, failure, change)
                }

                pub fn fetch_add(&self, by: $value, order: Ordering) -> $value {
                    step();
                    self.0.fetch_add(by, order)
                }

                pub fn fetch_sub(&self, by: $value, order: Ordering) -> $value {
                    step();
                    self.0.fetch_sub(by, order)
                }

                pub fn fetch_or(&self, bits: $value, order: Ordering) -> $value {
                    step();
                    self.0.fetch_or(bits, order)
                }

                pub fn fetch_and(&self, bits: $value, order: Ordering) -> $value {
                    step();
                    self.0.fetch_and(bits, order)
                }

                pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                    step();
                    self.0.fetch_max(value, order)
                }

                pub fn fetch_min(&self, value: $value, order: Ordering) -> $value {
                    step();
                    self.0.fetch_min(value, order)
                }

                pub fn into_inner(self) -> $value {
                    self.0.into_inner()
                }
            }
        };
    }

    stepped!(AtomicI64, i64);
    stepped!(AtomicU32, u32);
    stepped!(AtomicU64, u64);

    pub fn futex_wait(word: &AtomicU32, expected: u32, shared: bool, timeout: Option<Duration>) {
        if !interleave::wait(&word.0, expected, timeout.is_some()) {
            crate::lock::futex_wait(&word.0, expected, shared, timeout);
        }
    }

    pub fn futex_wake(word: &AtomicU32, count: i32, shared: bool) {
        if !interleave::wake(&word.0) {
            crate::lock::futex_wake(&word.0, count, shared);
        }
    }
}
