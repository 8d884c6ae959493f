// SPDX-License-Identifier: Apache-2.0 OR MIT
//! No message allocates, neither in Rust nor in the C library below: `malloc` itself counts.
#![cfg(all(feature = "aead", target_os = "linux", target_env = "gnu"))]

use core::cell::Cell;
use core::ffi::c_void;
use memlift_kernels::aead::{Key, Scatter, Stream};
use memlift_kernels::{Isa, active};

unsafe extern "C" {
    fn __libc_malloc(bytes: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, bytes: usize) -> *mut c_void;
}

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

/// Replaces the C library's `malloc` and counts the calls.
// SAFETY: the name is meant to collide, and the function does what its namesake does.
#[unsafe(no_mangle)]
extern "C" fn malloc(bytes: usize) -> *mut c_void {
    CALLS.set(CALLS.get() + 1);
    // SAFETY: any size may be asked for.
    unsafe { __libc_malloc(bytes) }
}

/// Replaces the C library's `calloc` and counts the calls.
// SAFETY: the name `calloc` is meant to collide, and the function does what its namesake does.
#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    CALLS.set(CALLS.get() + 1);
    // SAFETY: any size may be asked for.
    unsafe { __libc_calloc(count, bytes) }
}

#[test]
fn messages_do_not_allocate() {
    let start = CALLS.get();
    let key = Key::new(&[1; 16]).unwrap();
    assert!(key.prepare(active().isa));
    // Those of the library, and those of this CPU.
    let mut streams = [Isa::Scalar, active().isa]
        .map(|isa| [true, false].map(|seals| Stream::up_to(&[1; 16], seals, isa).unwrap()));
    let mut scatter = Scatter::seal(&key, &[2; 12], &[]);
    let created = CALLS.get();
    assert!(created >= start + 4, "two contexts and their schedules: the count sees the library");
    let mut memory = vec![3u8; 20_000];
    let (pointer, bytes) = (memory.as_mut_ptr(), memory.len());
    // The first scattered message makes the tables of the key and the list of ranges.
    // SAFETY: one block.
    unsafe { scatter.update(0, pointer, pointer, 16) }.unwrap();
    assert!(CALLS.get() > created, "and it sees Rust");
    let before = CALLS.get();
    for i in 0..10 {
        // SAFETY: in place, inside the memory.
        unsafe {
            let tag = key.seal(&[i; 12], b"header", pointer, pointer, bytes);
            assert_eq!(key.open(&[i; 12], b"header", &tag, pointer, pointer, bytes), Ok(()));
            let tag = key.seal_streaming(&[i; 12], b"header", pointer, pointer, bytes).unwrap();
            assert_eq!(key.open_streaming(&[i; 12], b"header", &tag, pointer, pointer, bytes), Ok(()));
            for [seal, open] in &mut streams {
                seal.restart(&[i; 12]);
                seal.aad(b"header");
                seal.update(pointer, pointer, bytes);
                open.restart(&[i; 12]);
                open.aad(b"header");
                open.update(pointer, pointer, bytes);
                assert_eq!(seal.tag(), open.tag());
                seal.rekey(&[i; 16]).unwrap();
                open.rekey(&[i; 16]).unwrap();
            }
            scatter.restart(&[i; 12], b"header");
            scatter.update(16, pointer, pointer, bytes - 16).unwrap();
            scatter.update(0, pointer, pointer, 16).unwrap();
            scatter.tag(bytes as u64).unwrap();
        }
    }
    assert_eq!(CALLS.get(), before);
}
