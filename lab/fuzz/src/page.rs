// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packed pages: hostile ones unpack to something or to nothing; any page that is packed comes back, by every method.
//!
//! - **Order** the same packed bytes unpack to the same page whatever the packer did before; nothing is written behind it
//! - **Layout** what u8 (even: packed bytes; odd: a page and how to pack it) · bytes

use crate::{Guarded, Input};
use memlift_kernels::pages::{Effort, METHODS, Method, PAGE_BYTES, Packed, Packer, fill};

/// Panics when something is wrong.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let what = input.byte();
    let mut packer = Packer::new();
    if what.is_multiple_of(2) {
        let packed = input.rest();
        let mut target = Guarded::new(PAGE_BYTES, 0x55);
        let page: &mut [u8; PAGE_BYTES] = target.get().try_into().expect("a page");
        let first = packer.unpack(packed, page).map(|()| *page);
        target.checked();
        // Another packer, which has just packed something else, says the same.
        let mut other = Packer::new();
        let (mut room, mut again) = ([0; PAGE_BYTES], [7; PAGE_BYTES]);
        let noise = std::array::from_fn(|index| (index * 7 / 3) as u8);
        other.pack(&noise, &mut room, Effort::Cold);
        let second = other.unpack(packed, &mut again).map(|()| again);
        assert!(first == second, "two packers unpack two pages");
        return;
    }
    let effort = input.pick(&[Effort::Fast, Effort::Cold]);
    let seed = input.rest();
    let mut page = [0; PAGE_BYTES];
    for (byte, seed) in page.iter_mut().zip(seed.iter().cycle()) {
        *byte = *seed;
    }
    let (mut target, mut again) = ([0; PAGE_BYTES], [1; PAGE_BYTES]);
    match packer.pack(&page, &mut target, effort) {
        Packed::Filled(word) => fill(word, &mut again),
        Packed::Bytes(bytes) => packer.unpack(&target[..bytes], &mut again).expect("our own bytes"),
        Packed::Raw => again = page,
    }
    assert!(again == page, "the page did not come back");
    for method in METHODS {
        let mut room = Guarded::new(PAGE_BYTES, 0x66);
        let packed = packer.pack_as(method, &page, room.get());
        room.checked();
        if let Some(bytes) = packed {
            let packed = &room.get()[..bytes];
            assert_eq!(Method::of(packed), Some(method));
            packer.unpack(packed, &mut again).expect("our own bytes");
            assert!(again == page, "{method:?}: the page did not come back");
        }
    }
}

/// Numbers, text and noise, packed by every method and not packed.
pub fn seeds() -> Vec<Vec<u8>> {
    let pages: [[u8; PAGE_BYTES]; 5] = [
        std::array::from_fn(|index| (index / 9 % 40) as u8),
        std::array::from_fn(|index| if index % 8 < 2 { ((index * 131) >> 3) as u8 } else { 0 }),
        std::array::from_fn(|index| (index as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]),
        std::array::from_fn(|index| {
            (((index / 8) as f64 * 7.0 % 900.0).round() / 100.0).to_le_bytes()[index % 8]
        }),
        std::array::from_fn(|index| ((index / 4) as u32 * 37).to_le_bytes()[index % 4]),
    ];
    let mut packer = Packer::new();
    let mut seeds = Vec::new();
    for page in &pages {
        for method in METHODS {
            let mut room = [0; 2 * PAGE_BYTES];
            if let Some(bytes) = packer.pack_as(method, page, &mut room) {
                seeds.push([&[0], &room[..bytes]].concat());
            }
        }
        seeds.push([&[1, 0], &page[..]].concat());
        seeds.push([&[1, 1], &page[..]].concat());
        seeds.push([&[1, 0], &page[..24]].concat());
    }
    seeds
}
