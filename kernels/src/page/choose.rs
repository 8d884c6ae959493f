// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which method a page gets.
use super::{Effort, MAX_PACKED_BYTES, Method, PAGE_BYTES, Packer};

/// Packs by the method that looks best; none if nothing saves enough.
pub(super) fn pack(
    packer: &mut Packer,
    page: &[u8; PAGE_BYTES],
    target: &mut [u8; PAGE_BYTES],
    effort: Effort,
) -> Option<usize> {
    let _ = effort;
    packer.pack_as(Method::Lz, page, &mut target[..MAX_PACKED_BYTES])
}
