// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The structs that may be kept in a pool, read off the tokens: of fixed layout, and borrowing nothing.
//!
//! - **Flow** `DeriveInput` ─▶ parameters, `repr`, options, fields ─▶ [`Input`], or every fault in words that say what to do
//! - **Rule** what tokens cannot show (types of fields, gaps) is left to the assertions that `expand` writes

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{
    Attribute, Data, DataStruct, DeriveInput, Error, Generics, Ident, LitInt, LitStr, Member, Path, Result,
    Type, parenthesized,
};

/// The largest alignment of a pool, in bytes.
pub const MAX_ALIGN: u64 = 64;

/// A struct that can be kept in a pool.
pub struct Input {
    pub ident: Ident,
    pub generics: Generics,
    /// Its name in the file.
    pub name: String,
    /// Where the crate is found.
    pub krate: Path,
    /// The layout that it replaces.
    pub from: Option<Type>,
    /// True if fields lie in order; otherwise the one field with bytes is the struct.
    pub ordered: bool,
    pub fields: Vec<Field>,
}

/// One of its fields.
pub struct Field {
    pub member: Member,
    pub name: String,
    pub ty: Type,
    pub span: Span,
}

impl Input {
    /// Takes the struct apart, or says what keeps it out of a pool.
    pub fn read(input: DeriveInput) -> Result<Input> {
        let data = match &input.data {
            Data::Struct(data) => data,
            Data::Enum(data) => {
                return Err(Error::new(
                    data.enum_token.span(),
                    "an enum cannot be kept in a pool: the file may hold bytes that are no variant. Keep a `u8` tag in a \
                     struct, with a constant for each variant, and convert with `TryFrom<u8>`",
                ));
            }
            Data::Union(data) => {
                return Err(Error::new(
                    data.union_token.span(),
                    "a union cannot be kept in a pool: nothing says which field its bytes are. Keep a struct with a `u8` \
                     tag and `[u8; N]`, and read the bytes by the tag",
                ));
            }
        };
        if let Some(lifetime) = input.generics.lifetimes().next() {
            return Err(Error::new(
                lifetime.lifetime.span(),
                "a struct with a lifetime cannot be kept in a pool: what it borrows ends with the process. Keep a \
                 `PPtr<T>` or `PSlice<T>` to something in the pool, or the value itself",
            ));
        }
        let ordered = ordered(&input.attrs, &input.ident)?;
        let options = Options::read(&input.attrs)?;
        Ok(Input {
            name: options.name.unwrap_or_else(|| input.ident.unraw().to_string()),
            krate: options.krate.unwrap_or_else(|| syn::parse_quote!(::memlift_persist)),
            from: options.from,
            ordered,
            fields: fields(data, &input.ident)?,
            ident: input.ident,
            generics: input.generics,
        })
    }
}

fn fields(data: &DataStruct, ident: &Ident) -> Result<Vec<Field>> {
    if data.fields.is_empty() {
        return Err(Error::new(
            ident.span(),
            "a struct without fields has no bytes to keep in a pool: add a field, or leave it out of the pool",
        ));
    }
    data.fields
        .members()
        .zip(&data.fields)
        .map(|(member, field)| {
            if let Some(option) = field.attrs.iter().find(|attribute| attribute.path().is_ident("persist")) {
                return Err(Error::new(
                    option.span(),
                    "fields have no options: every field is kept. Put `#[persist(…)]` on the struct",
                ));
            }
            let name = match &member {
                Member::Named(name) => name.unraw().to_string(),
                Member::Unnamed(index) => index.index.to_string(),
            };
            Ok(Field { member, name, ty: field.ty.clone(), span: field.ty.span() })
        })
        .collect()
}

/// Reads `#[repr(…)]`: true for `C`, false for `transparent`.
fn ordered(attributes: &[Attribute], ident: &Ident) -> Result<bool> {
    let (mut c, mut transparent) = (false, false);
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("repr")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("C") {
                c = true;
            } else if meta.path.is_ident("transparent") {
                transparent = true;
            } else if meta.path.is_ident("align") {
                let content;
                parenthesized!(content in meta.input);
                let align: LitInt = content.parse()?;
                if align.base10_parse::<u64>()? > MAX_ALIGN {
                    return Err(Error::new(
                        align.span(),
                        "a pool aligns to 64 bytes and no further: write `align(64)` or less",
                    ));
                }
            } else if meta.path.is_ident("packed") {
                return Err(meta.error(
                    "a packed struct cannot be kept in a pool, where fields are read in place: order the fields from the \
                     largest alignment to the smallest and fill what is left with `_pad: [u8; N]`",
                ));
            } else {
                return Err(meta.error(
                    "only `#[repr(C)]`, `#[repr(C, align(N))]` and `#[repr(transparent)]` fix the layout of a struct in a \
                     pool",
                ));
            }
            Ok(())
        })?;
    }
    if !c && !transparent {
        return Err(Error::new(
            ident.span(),
            "a struct in a pool needs a fixed layout, and without a `repr` each build may order the fields anew: add \
             `#[repr(C)]`, or `#[repr(transparent)]` around one field",
        ));
    }
    Ok(c)
}

#[derive(Default)]
struct Options {
    krate: Option<Path>,
    from: Option<Type>,
    name: Option<String>,
}

impl Options {
    fn read(attributes: &[Attribute]) -> Result<Options> {
        let mut options = Options::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("persist")) {
            attribute.parse_nested_meta(|meta| {
                let twice = if meta.path.is_ident("crate") {
                    options.krate.replace(meta.value()?.call(Path::parse_mod_style)?).is_some()
                } else if meta.path.is_ident("from") {
                    options.from.replace(meta.value()?.parse()?).is_some()
                } else if meta.path.is_ident("name") {
                    let name: LitStr = meta.value()?.parse()?;
                    if name.value().is_empty() {
                        return Err(Error::new(
                            name.span(),
                            "a name in the file is not empty: leave the option out",
                        ));
                    }
                    options.name.replace(name.value()).is_some()
                } else {
                    return Err(meta.error(
                        "the options are `crate = path`, `from = OldType` and `name = \"NameInTheFile\"`",
                    ));
                };
                if twice { Err(meta.error("this option stands twice: keep one")) } else { Ok(()) }
            })?;
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        match Input::read(syn::parse_str(text).expect("an item")) {
            Ok(input) => panic!("{} was accepted", input.name),
            Err(fault) => fault.to_string(),
        }
    }

    #[test]
    fn a_refusal_says_what_to_do_instead() {
        for (text, advice) in [
            ("#[repr(u8)] enum A { B }", "Keep a `u8` tag in a struct"),
            ("#[repr(C)] union A { b: u8 }", "Keep a struct with a `u8` tag"),
            ("#[repr(C)] struct A<'a>(&'a u8);", "Keep a `PPtr<T>` or `PSlice<T>`"),
            ("#[repr(C)] struct A;", "add a field"),
            ("#[repr(C)] struct A {}", "add a field"),
            ("struct A(u8);", "add `#[repr(C)]`"),
            ("#[repr(align(8))] struct A(u64);", "add `#[repr(C)]`"),
            ("#[repr(C, packed)] struct A(u8);", "fill what is left with `_pad: [u8; N]`"),
            ("#[repr(C, packed(2))] struct A(u8);", "fill what is left with `_pad: [u8; N]`"),
            ("#[repr(C, align(128))] struct A(u8);", "write `align(64)` or less"),
            ("#[repr(C)] #[repr(simd)] struct A(u8);", "only `#[repr(C)]`"),
            ("#[repr(C)] struct A { #[persist(skip)] b: u8 }", "Put `#[persist(…)]` on the struct"),
            ("#[repr(C)] #[persist(version = 2)] struct A(u8);", "the options are `crate = path`"),
            ("#[repr(C)] #[persist(name = \"\")] struct A(u8);", "leave the option out"),
            ("#[repr(C)] #[persist(name = \"B\")] #[persist(name = \"C\")] struct A(u8);", "keep one"),
        ] {
            let words = refused(text);
            assert!(words.contains(advice), "{text}: {words}");
        }
    }

    #[test]
    fn options_are_read() {
        let text = |tokens: &dyn quote::ToTokens| tokens.to_token_stream().to_string();
        let read = |text: &str| Input::read(syn::parse_str(text).expect("an item")).expect("accepted");
        let plain = read("#[repr(C)] struct r#type { r#fn: u8, b: [u8; 7] }");
        assert_eq!(plain.name, "type");
        assert!(plain.ordered && plain.from.is_none());
        assert_eq!(text(&plain.krate), ":: memlift_persist");
        assert_eq!(plain.fields.iter().map(|field| field.name.as_str()).collect::<Vec<_>>(), ["fn", "b"]);

        let all = read(
            "#[persist(name = \"Point\", crate = crate::store, from = old::Point<T>)] #[repr(transparent)] struct B<T>(T);",
        );
        assert_eq!(all.name, "Point");
        assert!(!all.ordered);
        assert_eq!(text(&all.krate), "crate :: store");
        assert_eq!(all.from.map(|from| text(&from)).as_deref(), Some("old :: Point < T >"));
        assert_eq!(all.fields[0].name, "0");

        for align in [1, 16, 64] {
            assert!(read(&format!("#[repr(C, align({align}))] struct A(u8);")).ordered);
        }
    }
}
