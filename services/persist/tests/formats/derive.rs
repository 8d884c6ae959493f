// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `#[derive(Persist)]`: what is accepted, and that hash, name and fields are what the compiler laid out.
//!
//! - **Rule** this crate forbids unsafe code, as crates of users may
//! - **Not here** what is refused: `derive_refused.md`, and by its wording in the derive crate
#![forbid(unsafe_code)]

use memlift_persist::persist::{Field, HASH_START, fold, hash_bytes, hash_u64};
use memlift_persist::{Migrates, PPtr, PSlice, Persist};

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Node {
    key: u64,
    value: [u8; 12],
    flags: u32,
    next: PPtr<Node>,
}

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Pair(u32, f32);

#[derive(Clone, Copy, Persist)]
#[repr(transparent)]
struct Key(u64);

#[derive(Clone, Copy, Persist)]
#[repr(C, align(64))]
struct Line {
    words: [u64; 7],
    itself: PSlice<Self>,
    rest: [u8; 56],
}

#[derive(Clone, Copy, Persist)]
#[repr(C)]
#[repr(align(16))]
struct Wide([u8; 16]);

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Table<T, const N: usize>
where
    T: PartialEq,
{
    slots: [T; N],
    next: PPtr<Table<T, N>>,
}

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Several<T: Default, U = u8, const HASH: bool = true> {
    one: T,
    other: U,
}

/// Names that generated code must not trip over.
mod hygiene {
    #![expect(dead_code, non_upper_case_globals, reason = "they are only there to be in the way")]

    const hash: &str = "";
    const end: &str = "";
    struct Field;
    struct Option;
    mod core {}
    mod std {}
    trait Persist {}

    #[derive(Clone, Copy, memlift_persist::Persist)]
    #[repr(C)]
    pub struct Names {
        pub r#type: u32,
        pub hash: u16,
        pub end: u16,
    }
}

/// The crate under another name, as through a facade.
mod facade {
    pub mod inner {
        pub use memlift_persist as store;
    }

    #[derive(Clone, Copy, inner::store::Persist)]
    #[persist(crate = crate::derive::facade::inner::store)]
    #[repr(C)]
    pub struct Renamed<T> {
        pub value: T,
    }
}

macro_rules! from_a_macro {
    ($name:ident, $field:ident: $type:ty) => {
        #[derive(Clone, Copy, Persist)]
        #[repr(C)]
        struct $name {
            $field: $type,
        }
    };
}

from_a_macro!(Made, count: [u16; 4]);

/// The hash by hand: name, size, then (name, offset, hash) of each field.
fn by_hand(name: &str, bytes: u64, fields: &[(&str, u64, u64)]) -> u64 {
    let start = hash_u64(hash_bytes(HASH_START, name.as_bytes()), bytes);
    fields.iter().fold(start, |hash, (name, offset, layout)| {
        hash_u64(hash_u64(hash_bytes(hash, name.as_bytes()), *offset), *layout)
    })
}

#[test]
fn the_hash_is_the_documented_one() {
    let fields = [
        ("key", 0, u64::LAYOUT),
        ("value", 8, <[u8; 12]>::LAYOUT),
        ("flags", 20, u32::LAYOUT),
        ("next", 24, <PPtr<Node>>::LAYOUT),
    ];
    assert_eq!(Node::LAYOUT, by_hand("Node", 32, &fields));
    assert_eq!(Node::TAG, fold(Node::LAYOUT));
    assert_eq!(Pair::LAYOUT, by_hand("Pair", 8, &[("0", 0, u32::LAYOUT), ("1", 4, f32::LAYOUT)]));
    assert_eq!(Key::LAYOUT, by_hand("Key", 8, &[("0", 0, u64::LAYOUT)]));
    assert_eq!(
        <Table<u32, 4>>::LAYOUT,
        by_hand(
            "Table",
            24,
            &[("slots", 0, <[u32; 4]>::LAYOUT), ("next", 16, <PPtr<Table<u32, 4>>>::LAYOUT)]
        )
    );
}

#[test]
fn fields_are_listed_as_laid_out() {
    let field = |name, offset, bytes, type_name| Field { name, offset, bytes, type_name };
    assert_eq!(Node::NAME, "Node");
    assert_eq!(
        Node::FIELDS,
        [
            field("key", 0, 8, "u64"),
            field("value", 8, 12, "[u8; 12]"),
            field("flags", 20, 4, "u32"),
            field("next", 24, 8, "PPtr<Node>"),
        ]
    );
    assert_eq!(Pair::FIELDS, [field("0", 0, 4, "u32"), field("1", 4, 4, "f32")]);
    assert_eq!(
        Line::FIELDS,
        [
            field("words", 0, 56, "[u64; 7]"),
            field("itself", 56, 16, "PSlice<Self>"),
            field("rest", 72, 56, "[u8; 56]"),
        ]
    );
    assert_eq!(Wide::FIELDS, [field("0", 0, 16, "[u8; 16]")]);
    assert_eq!(
        <Table<Key2, 3>>::FIELDS,
        [field("slots", 0, 24, "[T; N]"), field("next", 24, 8, "PPtr<Table<T, N>>")]
    );
    assert_eq!(Made::FIELDS, [field("count", 0, 8, "[u16; 4]")]);
}

#[derive(Clone, Copy, PartialEq, Default, Persist)]
#[repr(transparent)]
struct Key2(u64);

#[test]
fn parameters_are_bound_and_told_apart() {
    fn layout<T: Persist + Default>() -> u64 {
        <Several<T>>::LAYOUT
    }
    assert_eq!(layout::<u8>(), by_hand("Several", 2, &[("one", 0, u8::LAYOUT), ("other", 1, u8::LAYOUT)]));
    assert_ne!(layout::<u8>(), layout::<i8>());
    assert_ne!(<Table<u32, 4>>::LAYOUT, <Table<u32, 6>>::LAYOUT);
    assert_ne!(<Table<u64, 2>>::LAYOUT, <Table<Key2, 2>>::LAYOUT);
    assert_eq!(<facade::Renamed<u64>>::LAYOUT, by_hand("Renamed", 8, &[("value", 0, u64::LAYOUT)]));
}

#[test]
fn names_nearby_do_not_get_in_the_way() {
    let names: Vec<_> = hygiene::Names::FIELDS.iter().map(|field| field.name).collect();
    assert_eq!(names, ["type", "hash", "end"]);
    assert_eq!(
        hygiene::Names::LAYOUT,
        by_hand("Names", 8, &[("type", 0, u32::LAYOUT), ("hash", 4, u16::LAYOUT), ("end", 6, u16::LAYOUT)])
    );
}

/// The same struct with one thing changed at a time.
mod changed {
    macro_rules! variant {
        ($module:ident { $($body:tt)* }) => {
            pub mod $module {
                #[derive(Clone, Copy, memlift_persist::Persist)]
                #[repr(C)]
                pub struct Point { $($body)* }
            }
        };
    }
    variant!(first { pub x: u32, pub y: u32 });
    variant!(again { pub x: u32, pub y: u32 });
    variant!(renamed { pub x: u32, pub z: u32 });
    variant!(swapped { pub y: u32, pub x: u32 });
    variant!(retyped { pub x: u32, pub y: i32 });
    variant!(grown { pub x: u32, pub y: u32, pub z: u32 });
}

#[test]
fn every_change_of_a_struct_changes_its_hash() {
    let all = [
        changed::first::Point::LAYOUT,
        changed::renamed::Point::LAYOUT,
        changed::swapped::Point::LAYOUT,
        changed::retyped::Point::LAYOUT,
        changed::grown::Point::LAYOUT,
    ];
    for (at, one) in all.iter().enumerate() {
        assert!(!all[at + 1..].contains(one));
    }
    assert_eq!(changed::first::Point::LAYOUT, changed::again::Point::LAYOUT);
}

/// A layout of an earlier release under another name in the source, and the same in the file.
#[derive(Clone, Copy, Persist)]
#[persist(name = "Point")]
#[repr(C)]
struct PointBefore {
    x: u32,
    y: u32,
}

#[derive(Clone, Copy, Persist)]
#[persist(from = PointBefore)]
#[repr(C)]
struct Point {
    x: u64,
    y: u64,
}

impl From<PointBefore> for Point {
    fn from(before: PointBefore) -> Point {
        Point { x: before.x.into(), y: before.y.into() }
    }
}

#[test]
fn a_new_layout_names_the_one_it_comes_from() {
    fn comes_from<T: Migrates>(old: T::From) -> T {
        T::from(old)
    }
    assert_eq!(PointBefore::LAYOUT, changed::first::Point::LAYOUT);
    assert_eq!(<<Point as Migrates>::From as Persist>::TAG, PointBefore::TAG);
    assert_ne!(Point::TAG, PointBefore::TAG);
    let moved: Point = comes_from(PointBefore { x: 3, y: u32::MAX });
    assert_eq!((moved.x, moved.y), (3, u64::from(u32::MAX)));
}
