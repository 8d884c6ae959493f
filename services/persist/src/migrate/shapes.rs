// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the types that hold pointers, and where: those that a migration names, and every type that these lead to.
//!
//! - **Flow** named types ─▶ the targets of their pointers, and of theirs … ─▶ by tag: bytes and places of pointers
//! - **Rule** a type that is not among them may have objects only if the catalog shows that there is no pointer in it
//! - **Not here** what is done with the pointers: `migrate`

use std::collections::HashMap;

use super::{Home, catalog, in_pool};
use crate::catalog::MOVING;
use crate::persist::{PointerField, TypeInfo, hash_bytes, hash_u64};
use crate::store::Store;

/// A pointer's place in the heap.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub at: u64,
    pub array: bool,
}

#[derive(Debug)]
struct Shape {
    /// Bytes of a value, or of an array's element.
    bytes: u64,
    array: bool,
    pointers: Vec<PointerField>,
}

/// By tag; arrays have their own.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    known: HashMap<u32, Shape>,
}

/// Places of pointers in the objects of one slab or run.
pub(super) struct Fields<'s> {
    shape: &'s Shape,
    /// Elements of each.
    count: u64,
}

impl Fields<'_> {
    /// In the object that starts there.
    pub fn of(&self, start: u64) -> impl Iterator<Item = At> + '_ {
        (0..self.count).flat_map(move |element| {
            let base = start + element * self.shape.bytes;
            self.shape.pointers.iter().map(move |one| At { at: base + one.at, array: one.array })
        })
    }
}

/// Tags of a type, its array's, and of both while they are on their way.
fn tags(info: &TypeInfo) -> [u32; 4] {
    let moving = moving(info);
    [info.tag, info.array_tag, moving.tag, moving.array_tag]
}

/// As `TypeInfo::of::<Moving<T>>()` for the T of `info`.
pub(super) fn moving(info: &TypeInfo) -> TypeInfo {
    use crate::persist::{HASH_START, fold};
    let layout = hash_u64(hash_bytes(HASH_START, b"memlift.moving"), info.layout);
    let array_tag = fold(hash_bytes(layout, b"slice"));
    TypeInfo { name: MOVING, layout, tag: fold(layout), array_tag, ..*info }
}

impl Shapes {
    pub fn of(named: &[TypeInfo]) -> Shapes {
        let mut shapes = Shapes::default();
        let mut todo = named.to_vec();
        while let Some(info) = todo.pop() {
            if shapes.known.contains_key(&info.tag) {
                continue;
            }
            let mut pointers = Vec::new();
            (info.pointers)(0, &mut |field| pointers.push(field));
            todo.extend(pointers.iter().map(|field| (field.target)()));
            for tag in tags(&info) {
                let array = tag == info.array_tag || tag == moving(&info).array_tag;
                shapes.known.insert(tag, Shape { bytes: info.bytes, array, pointers: pointers.clone() });
            }
        }
        shapes
    }

    /// Returns true if there are pointers in objects of this tag.
    pub fn points(&self, tag: u32) -> bool {
        self.known.get(&tag).is_some_and(|shape| !shape.pointers.is_empty())
    }

    /// Where; the tag is one of a type that points.
    pub fn fields(&self, home: &Home) -> Fields<'_> {
        let shape = &self.known[&home.entry.tag];
        let count = if shape.array { home.room() / shape.bytes.max(1) } else { 1 };
        Fields { shape, count }
    }

    /// Types with objects in the pool that are not known and may hold pointers.
    pub fn unknown(&self, store: &Store) -> Vec<String> {
        let types = catalog(store);
        let mut names: Vec<String> = in_pool(store)
            .into_keys()
            .filter(|tag| !self.known.contains_key(tag))
            .filter(|tag| types.get(*tag).is_none_or(|known| known.kind.points() || known.kind.opaque()))
            .map(|tag| types.name(tag))
            .collect();
        names.sort();
        names.dedup();
        names
    }
}
