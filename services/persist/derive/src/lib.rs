// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `#[derive(Persist)]`: a struct as plain bytes with a layout hash, proven by the compiler of the crate that uses it.
//!
//! - **Flow** tokens ─▶ [`input`] (what may be kept, in words) ─▶ [`expand`] (the impl and its assertions)
//! - **Rule** the generated code claims only what it checks: fields are `Persist` by their bound, without padding by an
//!   assertion at each field, aligned to at most 64 bytes by another
//! - **Not here** the trait and the hash: `memlift_persist::persist`
#![deny(unsafe_code)]

use proc_macro::TokenStream;

mod expand;
mod input;

/// Implements `memlift_persist::Persist` for a struct whose fields are all `Persist`.
///
/// ```ignore (this crate does not know the trait)
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
/// # What is asked of the struct
///
/// - `#[repr(C)]`, `#[repr(C, align(N))]` with N ≤ 64, or `#[repr(transparent)]`, and `Copy`.
/// - Named or tuple fields, each of a type that is `Persist`. Parameters may be types, which are then bound by `Persist`, and
///   constants; lifetimes may not occur.
/// - No padding. Where the compiler would leave a gap the build stops and names the field; an explicit `_pad: [u8; N]` fills
///   it. For a struct with parameters the check runs where a concrete type is used, and so in `cargo build` and not in
///   `cargo check`.
///
/// # Options
///
/// - `#[persist(name = "Node")]` is the type's name in the file, otherwise that of the struct. An old layout that is kept
///   under another name, or in another place, keeps its identity with it.
/// - `#[persist(from = Old)]` implements `memlift_persist::Migrates` as well. It wants `impl From<Old> for` the struct, and,
///   checked where the struct has no parameters, that the two layout hashes differ.
/// - `#[persist(crate = path)]` is where `memlift_persist` is found under another name.
///
/// # Unsafe code
///
/// The generated impl is an `unsafe impl` whose obligations the compiler checks as above. A crate that denies or forbids
/// `unsafe_code` can use it: rustc does not apply the lint to what a macro of another crate writes.
#[proc_macro_derive(Persist, attributes(persist))]
pub fn derive_persist(tokens: TokenStream) -> TokenStream {
    syn::parse(tokens)
        .and_then(input::Input::read)
        .map_or_else(syn::Error::into_compile_error, |input| expand::expand(&input))
        .into()
}
