// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The impl that a struct gets, and the assertions that make it true.
//!
//! - **Layout** hash: name, size, then for each field its name, offset and own hash
//! - **Order** within `LAYOUT`: alignment and size, then field by field that it starts where the one before ended, then that the
//!   last one ends with the struct. A struct without parameters is checked where it is defined, one with
//!   parameters where `LAYOUT` or `TAG` of a concrete one is used
//! - **Rule** paths are absolute, locals hygienic and under a prefix: what the user's module defines is not in the way. The impl
//!   needs no `allow(unsafe_code)`: rustc does not apply that lint to what a macro of another crate writes, and the
//!   attribute would shut out crates that forbid unsafe code

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};

use crate::input::{Field, Input};

/// The code that takes the place of the derive.
pub fn expand(input: &Input) -> TokenStream {
    let Input { ident, krate, name, .. } = input;
    let mut generics = input.generics.clone();
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(syn::parse_quote!(#krate::Persist));
    }
    let (parameters, arguments, bounds) = generics.split_for_impl();
    let layout = layout(input);
    let fields = input.fields.iter().map(|field| {
        let Field { member, name, ty, .. } = field;
        let written = written(ty.to_token_stream());
        quote! {
            #krate::persist::Field {
                name: #name,
                offset: ::core::mem::offset_of!(Self, #member) as u32,
                bytes: ::core::mem::size_of::<#ty>() as u32,
                type_name: #written,
            }
        }
    });
    let pointers = input.fields.iter().map(|field| {
        let Field { member, ty, .. } = field;
        quote! {
            <#ty as #krate::Persist>::pointers(at + ::core::mem::offset_of!(Self, #member) as u64, each);
        }
    });
    let migration = input.from.as_ref().map(|from| {
        quote! {
            #[automatically_derived]
            impl #parameters #krate::Migrates for #ident #arguments #bounds {
                type From = #from;
            }
        }
    });
    let at_definition = generics.params.is_empty().then(|| at_definition(input));

    quote! {
        const _: () = {
            // SAFETY: each field is `Persist`, so its bytes are initialised and every pattern of them is a value; `LAYOUT`
            // asserts that there are no other bytes and that the alignment is at most 64.
            #[automatically_derived]
            unsafe impl #parameters #krate::Persist for #ident #arguments #bounds {
                const LAYOUT: u64 = { #layout };
                const NAME: &'static str = #name;
                const FIELDS: &'static [#krate::persist::Field] = &[#(#fields),*];

                fn pointers(at: u64, each: &mut dyn ::core::ops::FnMut(#krate::persist::PointerField)) {
                    #(#pointers)*
                }
            }
            #migration
            #at_definition
        };
    }
}

/// The body of `LAYOUT`.
fn layout(input: &Input) -> TokenStream {
    let Input { krate, name, .. } = input;
    let hash = Ident::new("__persist_hash", Span::mixed_site());
    let end = Ident::new("__persist_end", Span::mixed_site());
    let pad = "add an explicit `_pad: [u8; N]` field";
    let fields = input.fields.iter().map(|field| {
        let Field { member, name: field_name, ty, span } = field;
        // Faults are shown at the field, and belong to the macro.
        let span = Span::call_site().located_at(*span);
        let gap = format!("padding before field `{field_name}` of `{name}`: {pad} before it");
        let in_order = input.ordered.then(|| {
            quote_spanned! { span =>
                ::core::assert!(::core::mem::offset_of!(Self, #member) == #end, #gap);
            }
        });
        quote_spanned! { span =>
            #in_order
            #end += ::core::mem::size_of::<#ty>();
            #hash = #krate::persist::hash_bytes(#hash, #field_name.as_bytes());
            #hash = #krate::persist::hash_u64(#hash, ::core::mem::offset_of!(Self, #member) as u64);
            #hash = #krate::persist::hash_u64(#hash, <#ty as #krate::Persist>::LAYOUT);
        }
    });
    let span = Span::call_site().located_at(input.ident.span());
    let misaligned =
        format!("`{name}` is aligned to more than 64 bytes, and a pool is not: lower its `align(N)`");
    let large = format!("`{name}` is 4 GiB or more: split it, or keep a `PSlice<T>` to its elements");
    let tail = format!("padding after the last field of `{name}`: {pad} at its end");
    let size = quote!(::core::mem::size_of::<Self>());
    // An attribute below the derive may still rewrite the struct: its fields must be those that were read here.
    let members = input.fields.iter().map(|field| &field.member);
    let types = input.fields.iter().map(|field| &field.ty);
    let locals: Vec<_> = (0..input.fields.len())
        .map(|index| format_ident!("__persist_{index}", span = Span::mixed_site()))
        .collect();
    let as_read = quote! {
        let _ = |Self { #(#members: #locals),* }: Self| -> (#(#types,)*) { (#(#locals,)*) };
    };
    let before = quote_spanned! { span =>
        ::core::assert!(::core::mem::align_of::<Self>() <= 64, #misaligned);
        ::core::assert!(#size as u64 <= u32::MAX as u64, #large);
    };
    let after = quote_spanned! { span => ::core::assert!(#end == #size, #tail); };
    quote! {
        #as_read
        #before
        let mut #end = 0usize;
        let mut #hash = #krate::persist::HASH_START;
        #hash = #krate::persist::hash_bytes(#hash, #name.as_bytes());
        #hash = #krate::persist::hash_u64(#hash, #size as u64);
        #(#fields)*
        #after
        #hash
    }
}

/// Assertions that the compiler checks at the definition, without a use. Only for types without parameters.
fn at_definition(input: &Input) -> TokenStream {
    let Input { ident, krate, name, .. } = input;
    let differs = input.from.as_ref().map(|from| {
        let same = format!(
            "`{name}` and the type that it comes from have the same layout hash, so that a pool cannot tell them apart: \
             rename a field whose meaning changed"
        );
        quote! {
            const _: () = ::core::assert!(
                <#ident as #krate::Persist>::TAG != <#from as #krate::Persist>::TAG,
                #same
            );
        }
    });
    quote! {
        const _: u64 = <#ident as #krate::Persist>::LAYOUT;
        #differs
    }
}

/// A type as its author would write it: blanks only where they part two words or follow a comma.
fn written(tokens: TokenStream) -> String {
    let mut text = String::new();
    let mut word = false;
    for token in tokens {
        let (piece, is_word) = match &token {
            TokenTree::Group(group) => {
                let inner = written(group.stream());
                let piece = match group.delimiter() {
                    proc_macro2::Delimiter::Parenthesis => format!("({inner})"),
                    proc_macro2::Delimiter::Bracket => format!("[{inner}]"),
                    proc_macro2::Delimiter::Brace => format!("{{{inner}}}"),
                    proc_macro2::Delimiter::None => inner,
                };
                (piece, false)
            }
            TokenTree::Punct(mark) if matches!(mark.as_char(), ',' | ';') => (format!("{mark} "), false),
            TokenTree::Punct(mark) => (mark.to_string(), false),
            other => (other.to_string(), true),
        };
        if word && is_word {
            text.push(' ');
        }
        text.push_str(&piece);
        word = is_word;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_written_as_by_hand() {
        for text in
            ["u64", "[u8; 12]", "PPtr<Node>", "a::Table<[T; N], 4>", "(u8, u16)", "[u8; {N + 1 as usize}]"]
        {
            let tokens: TokenStream = text.parse().expect("tokens");
            assert_eq!(written(tokens), text.replace(" + ", "+"));
        }
    }

    #[test]
    fn only_what_the_struct_has_is_generated() {
        let expanded = |text: &str| {
            let input = Input::read(syn::parse_str(text).expect("a struct")).expect("accepted");
            let code = expand(&input);
            syn::parse2::<TokenStream>(code.clone()).expect("tokens");
            code.to_string().replace(' ', "")
        };
        let plain = expanded("#[repr(C)] struct A { x: u8 }");
        assert!(plain.contains("const_:u64=<Aas::memlift_persist::Persist>::LAYOUT"), "{plain}");
        assert!(!plain.contains("Migrates"), "{plain}");
        assert!(plain.contains("offset_of!(Self,x)==__persist_end"), "{plain}");
        assert!(!plain.contains("allow"), "{plain}");

        let generic = expanded(
            "#[repr(C)] #[persist(crate = m, from = B<T>)] struct A<T: Eq, const N: u8>(T) where T: Ord;",
        );
        assert!(
            generic.contains("unsafeimpl<T:Eq+m::Persist,constN:u8>m::PersistforA<T,N>whereT:Ord"),
            "{generic}"
        );
        assert!(generic.contains("m::MigratesforA<T,N>whereT:Ord{typeFrom=B<T>;}"), "{generic}");
        assert!(!generic.contains("const_:u64"), "{generic}");

        let transparent = expanded("#[repr(transparent)] struct A(u8);");
        assert!(!transparent.contains("offset_of!(Self,0)==__persist_end"), "{transparent}");
        assert!(transparent.contains("__persist_end==::core::mem::size_of::<Self>()"), "{transparent}");
    }
}
