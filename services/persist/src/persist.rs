// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The types that can live in a pool: plain bytes with a layout hash.
//!
//! - **Layout** [`Persist::LAYOUT`] is FNV-1a, 64 bits, over the type's name, its size and, for each field in order, its name,
//!   offset and own hash. A pointer counts with the name of what it points to and not with its fields, so that types
//!   may point to each other
//! - **Rule** every pattern of bits is a value, there is no padding, nothing is dropped and nothing is borrowed: a file can
//!   say anything, and reading it must stay defined
//! - **Flow** [`Persist::pointers`] says where in a value pointers are, and to what: so `migrate` finds every type that leads to
//!   another
//! - **Not here** moving old objects to a new layout: `migrate`

/// A type whose values can live in a pool. Derive it.
///
/// ```
/// use memlift_persist::{PPtr, Persist};
///
/// #[derive(Clone, Copy, Persist)]
/// #[repr(C)]
/// struct Node {
///     key: u64,
///     next: PPtr<Node>,
/// }
/// ```
///
/// # Safety
///
/// Every byte of a value is initialised (no padding), every pattern of bits is a valid value, and the alignment is
/// at most 64.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be kept in a pool",
    label = "not `Persist`",
    note = "numbers of a fixed width, `PPtr`, `PSlice`, arrays of these and structs with `#[derive(Clone, Copy, Persist)] #[repr(C)]` can be kept",
    note = "keep a `bool` or an enum as `u8`, a `char` as `u32`, a `usize` as `u64`; what a reference or `Box` leads to behind `PPtr<T>`, a `Vec<T>` as `PSlice<T>`, a `String` as `PSlice<u8>`"
)]
pub unsafe trait Persist: Copy + Send + Sync + 'static {
    /// Identifies name, size and fields; another program with the same hash reads the same bytes the same way.
    const LAYOUT: u64;
    /// The type's name, without its path.
    const NAME: &'static str;
    /// The fields, for tools; empty for primitives.
    const FIELDS: &'static [Field];
    /// Names the type within a pool: [`Persist::LAYOUT`] folded to 32 bits, never 0.
    const TAG: u32 = fold(Self::LAYOUT);

    /// Calls `each` for every pointer in a value that lies `at` bytes from where the caller counts. An offset that is kept as a
    /// plain number is not seen, and not changed when what it leads to moves.
    fn pointers(at: u64, each: &mut dyn FnMut(PointerField));
}

/// A pointer within a value.
#[derive(Clone, Copy, Debug)]
pub struct PointerField {
    /// Bytes from the start of the value; a multiple of 8.
    pub at: u64,
    /// True if it is a [`crate::PSlice`]: a u64 with the number of elements follows.
    pub array: bool,
    /// Describes the type that it points to.
    pub target: fn() -> TypeInfo,
}

/// A type as a value.
#[derive(Clone, Copy, Debug)]
pub struct TypeInfo {
    /// [`Persist::NAME`].
    pub name: &'static str,
    /// [`Persist::LAYOUT`].
    pub layout: u64,
    /// [`Persist::TAG`].
    pub tag: u32,
    /// The tag of an array of it.
    pub array_tag: u32,
    /// Bytes of a value.
    pub bytes: u64,
    /// Alignment of a value, in bytes.
    pub align: u64,
    /// [`Persist::pointers`].
    pub pointers: fn(u64, &mut dyn FnMut(PointerField)),
}

impl TypeInfo {
    /// Describes the type `T`.
    pub fn of<T: Persist>() -> TypeInfo {
        TypeInfo {
            name: T::NAME,
            layout: T::LAYOUT,
            tag: T::TAG,
            array_tag: slice_tag::<T>(),
            bytes: size_of::<T>() as u64,
            align: align_of::<T>() as u64,
            pointers: T::pointers,
        }
    }
}

/// One field of a struct.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// The field's name; a tuple's is its index.
    pub name: &'static str,
    /// Bytes from the start of the struct.
    pub offset: u32,
    /// Its size in bytes.
    pub bytes: u32,
    /// Its type, as written.
    pub type_name: &'static str,
}

/// Tag of an array of T, which is not the tag of T.
pub(crate) const fn slice_tag<T: Persist>() -> u32 {
    fold(hash_bytes(T::LAYOUT, b"slice"))
}

/// Start of a layout hash.
pub const HASH_START: u64 = 0xcbf2_9ce4_8422_2325;

/// Takes `bytes` into a layout hash (FNV-1a).
pub const fn hash_bytes(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x100_0000_01b3);
        at += 1;
    }
    hash
}

/// Takes a number into a layout hash, little endian.
pub const fn hash_u64(hash: u64, value: u64) -> u64 {
    hash_bytes(hash, &value.to_le_bytes())
}

/// The hash of a type that is only a name and a size.
pub const fn hash_name(name: &str, bytes: usize) -> u64 {
    hash_u64(hash_bytes(HASH_START, name.as_bytes()), bytes as u64)
}

/// The tag of a layout hash.
pub const fn fold(layout: u64) -> u32 {
    let folded = (layout >> 32) as u32 ^ layout as u32;
    if folded < 16 { folded + 16 } else { folded } // 0..16 are the heap's own
}

macro_rules! primitive {
    ($($name:ident)*) => {$(
        // SAFETY: a primitive number has no padding, every pattern is a value, and its alignment is at most 16.
        unsafe impl Persist for $name {
            const LAYOUT: u64 = hash_name(stringify!($name), size_of::<$name>());
            const NAME: &'static str = stringify!($name);
            const FIELDS: &'static [Field] = &[];

            fn pointers(_: u64, _: &mut dyn FnMut(PointerField)) {}
        }
    )*};
}

primitive!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64);

// SAFETY: an array has no bytes but those of its elements.
unsafe impl<T: Persist, const N: usize> Persist for [T; N] {
    const LAYOUT: u64 = hash_u64(hash_u64(hash_bytes(HASH_START, b"array"), N as u64), T::LAYOUT);
    const NAME: &'static str = "array";
    const FIELDS: &'static [Field] = &[];

    fn pointers(at: u64, each: &mut dyn FnMut(PointerField)) {
        let mut any = false;
        T::pointers(0, &mut |_| any = true);
        for element in (0..N as u64).filter(|_| any) {
            T::pointers(at + element * size_of::<T>() as u64, each);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_tell_types_apart() {
        let all = [
            u8::LAYOUT,
            i8::LAYOUT,
            u64::LAYOUT,
            f64::LAYOUT,
            <[u64; 2]>::LAYOUT,
            <[u64; 3]>::LAYOUT,
            <[[u64; 2]; 3]>::LAYOUT,
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(one));
        }
        assert!(fold(0) >= 16 && fold(5 << 32 | 5) >= 16);
    }
}
