// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The drop-in at any sequence of calls: what it packs, zlib-rs unpacks; what it unpacks, the system's zlib unpacks the same way.
//!
//! - **Flow** one byte chooses: a deflate stream, or an inflate stream. Each further call is chosen by a byte, with input, room
//!   and flush of its own
//! - **Order** nothing is written outside of the room; what a program sees of a stream that inflates is what it sees with the system's libz, call by call;
//!   a deflate stream always comes to its end, and a stream of the other kind is refused
//! - **Owner** the library lies beside the program that loads it, as cargo builds it

use crate::mutate::{Random, messages};
use crate::{Guarded, Input};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use libz_rs_sys as z;
use memlift_kernels::deflate::Format;
use memlift_model::naive;
use std::ffi::{c_char, c_int, c_uint, c_ulong};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use z::z_stream;

type Strm = *mut z_stream;

macro_rules! functions {
    ($($name:ident($($kind:ty),*) -> $result:ty;)*) => {
        /// Functions of one libz, loaded at run time.
        #[derive(Clone, Copy)]
        #[allow(non_snake_case, reason = "libz's names")]
        struct Libz { $($name: unsafe extern "C" fn($($kind),*) -> $result,)* }

        impl Libz {
            fn load(path: &Path) -> Option<Libz> {
                // SAFETY: a libz: nothing happens at load, and the types are those of zlib.h.
                unsafe {
                    let library = Library::open(Some(path), RTLD_NOW | RTLD_LOCAL).ok()?;
                    let symbol = "a libz has all of these functions";
                    let libz = Libz {
                        $($name: *library.get(concat!(stringify!($name), "\0").as_bytes()).expect(symbol),)*
                    };
                    std::mem::forget(library);
                    Some(libz)
                }
            }

            const THEIRS: Libz = Libz { $($name: z::$name,)* };
        }
    };
}

functions! {
    deflateInit2_(Strm, c_int, c_int, c_int, c_int, c_int, *const c_char, c_int) -> c_int;
    deflate(Strm, c_int) -> c_int;
    deflateEnd(Strm) -> c_int;
    deflateReset(Strm) -> c_int;
    deflateParams(Strm, c_int, c_int) -> c_int;
    deflateTune(Strm, c_int, c_int, c_int, c_int) -> c_int;
    deflateCopy(Strm, Strm) -> c_int;
    deflatePrime(Strm, c_int, c_int) -> c_int;
    deflateSetDictionary(Strm, *const u8, c_uint) -> c_int;
    deflateBound(Strm, c_ulong) -> c_ulong;
    inflateInit2_(Strm, c_int, *const c_char, c_int) -> c_int;
    inflate(Strm, c_int) -> c_int;
    inflateEnd(Strm) -> c_int;
    inflateReset(Strm) -> c_int;
    inflateReset2(Strm, c_int) -> c_int;
    inflateCopy(Strm, *const z_stream) -> c_int;
    inflateSync(Strm) -> c_int;
    inflatePrime(Strm, c_int, c_int) -> c_int;
    inflateSetDictionary(Strm, *const u8, c_uint) -> c_int;
}

fn path() -> PathBuf {
    let name = "libmemlift_z.so";
    let program = std::env::current_exe().expect("a program has a path");
    let folder = program.parent().expect("a file lies in a folder");
    let places = [folder.join(name), folder.join("deps").join(name), folder.with_file_name(name)];
    places.into_iter().find(|path| path.exists()).expect("libmemlift_z.so is built with this crate")
}

fn ours() -> Libz {
    static OURS: OnceLock<Libz> = OnceLock::new();
    *OURS.get_or_init(|| Libz::load(&path()).expect("libmemlift_z.so can be loaded"))
}

/// The system's libz, or zlib-rs where there is none.
fn theirs() -> Libz {
    static THEIRS: OnceLock<Libz> = OnceLock::new();
    *THEIRS.get_or_init(|| Libz::load(Path::new("libz.so.1")).unwrap_or(Libz::THEIRS))
}

const STREAM_BYTES: c_int = size_of::<z_stream>() as c_int;

/// A stream with nothing in it, whose memory the library finds by itself.
fn empty() -> Box<z_stream> {
    let mut stream = Box::new(z_stream::default());
    (stream.zalloc, stream.zfree) = (None, None);
    stream
}

/// Panics when something is wrong.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    if input.byte().is_multiple_of(2) { packs(input) } else { unpacks(input) }
}

/// A stream that deflates.
struct Packs {
    libz: Libz,
    strm: Box<z_stream>,
    packed: Vec<u8>,
    message: Vec<u8>,
}

impl Packs {
    /// Calls with this input and room; gives the code and whether anything moved.
    fn call(&mut self, input: &[u8], room: usize, call: impl FnOnce(&Libz, Strm) -> c_int) -> (c_int, bool) {
        let mut target = Guarded::new(room, 0x55);
        (self.strm.next_in, self.strm.avail_in) = (input.as_ptr(), input.len() as u32);
        (self.strm.next_out, self.strm.avail_out) = (target.get().as_mut_ptr(), room as u32);
        let code = call(&self.libz, &mut *self.strm);
        let read = input.len() - self.strm.avail_in as usize;
        let written = room - self.strm.avail_out as usize;
        self.message.extend_from_slice(&input[..read]);
        self.packed.extend_from_slice(&target.checked()[..written]);
        (code, read + written > 0)
    }
}

fn packs(mut input: Input<'_>) {
    let level = i32::from(input.byte()) % 11 - 1;
    let bits = input.pick(&[15, 15, -15, 31, 31, 9, -9, 25, 12, 8, -8, 47, 0]);
    let (memory, strategy) = (i32::from(input.byte()) % 10, i32::from(input.byte()) % 6);
    let init = |libz: &Libz, strm: Strm| {
        // SAFETY: a stream that is not initialized.
        unsafe {
            (libz.deflateInit2_)(strm, level, 8, bits, memory, strategy, z::zlibVersion(), STREAM_BYTES)
        }
    };
    let mut theirs = empty();
    let mut run = Packs { libz: ours(), strm: empty(), packed: Vec::new(), message: Vec::new() };
    let code = init(&run.libz, &mut *run.strm);
    assert_eq!(code, init(&Libz::THEIRS, &mut *theirs), "deflateInit2 {level} {bits} {memory} {strategy}");
    if code != z::Z_OK {
        return;
    }
    // SAFETY: initialized just now.
    unsafe { (Libz::THEIRS.deflateEnd)(&mut *theirs) };
    // Bits or a dictionary that a reader would have to know of.
    let mut private = false;
    while !input.is_empty() {
        let op = input.byte();
        let libz = run.libz;
        // SAFETY: for all of it: the stream is initialized, and pointers are those of slices.
        unsafe {
            match op % 16 {
                0..8 => {
                    let (flush, room) = (input.pick(&[0, 0, 1, 2, 3, 4, 5, 6, -1]), input.word() % 3000);
                    let piece = input.piece(2000);
                    let piece: Vec<u8> =
                        piece.iter().copied().cycle().take(piece.len() * usize::from(op / 16)).collect();
                    run.call(&piece, room, |libz, strm| (libz.deflate)(strm, flush));
                }
                8 => {
                    let level = i32::from(input.byte()) % 12 - 1;
                    let (strategy, room) = (i32::from(input.byte()) % 6, input.word() % 500);
                    run.call(&[], room, |libz, strm| (libz.deflateParams)(strm, level, strategy));
                }
                9 => {
                    let mut copy = empty();
                    assert_eq!((libz.deflateCopy)(&mut *copy, &mut *run.strm), z::Z_OK);
                    (libz.deflateEnd)(&mut *run.strm);
                    run.strm = copy;
                }
                10 => {
                    assert_eq!((libz.deflateReset)(&mut *run.strm), z::Z_OK);
                    (run.packed, run.message, private) = (Vec::new(), Vec::new(), false);
                }
                11 => drop((libz.deflateTune)(&mut *run.strm, 4, 4, 16, 16)),
                12 => {
                    let dictionary = input.piece(600);
                    let length = dictionary.len() as u32;
                    private |=
                        (libz.deflateSetDictionary)(&mut *run.strm, dictionary.as_ptr(), length) == z::Z_OK;
                }
                13 => assert!((libz.deflateBound)(&mut *run.strm, 5000) >= 5000),
                14 => {
                    let (count, value) = (i32::from(input.byte() % 20), i32::from(input.byte()));
                    private |= (libz.deflatePrime)(&mut *run.strm, count, value) == z::Z_OK;
                }
                _ => {
                    assert_eq!(
                        (libz.inflate)(&mut *run.strm, 0),
                        z::Z_STREAM_ERROR,
                        "a stream that deflates"
                    );
                    assert_eq!((libz.inflateReset)(&mut *run.strm), z::Z_STREAM_ERROR);
                    assert_eq!((libz.deflate)(std::ptr::null_mut(), 0), z::Z_STREAM_ERROR);
                }
            }
        }
    }
    loop {
        // SAFETY: the stream is initialized.
        let (code, moved) = run.call(&[], 700, |libz, strm| unsafe { (libz.deflate)(strm, z::Z_FINISH) });
        if code == z::Z_STREAM_END {
            break;
        }
        assert!(code == z::Z_OK && moved, "a stream does not come to its end: {code}");
    }
    // SAFETY: the stream is initialized.
    assert_eq!(unsafe { (run.libz.deflateEnd)(&mut *run.strm) }, z::Z_OK);
    if !private {
        let format = match bits {
            ..0 => Format::Raw,
            0..16 => Format::Zlib,
            _ => Format::Gzip,
        };
        let again = crate::reference::inflate(format, &run.packed, run.message.len() + 1);
        assert_eq!((again.code, again.read), (z::Z_STREAM_END, run.packed.len()), "{}", again.text);
        assert!(again.bytes == run.message, "another message came out");
    }
}

/// Result of one call: code, bytes read, bytes written.
type Done = (c_int, usize, Vec<u8>);

fn unpacks(mut input: Input<'_>) {
    let bits = input.pick(&[15, -15, 31, 47, 15, -15, 31, 0, 9, -9, 40, 8, 7, -16]);
    let mut steps = Input::new(input.take(40));
    let stream = input.rest();
    let libs = [ours(), theirs()];
    let mut streams = [empty(), empty()];
    let codes: Vec<c_int> = libs
        .iter()
        .zip(&mut streams)
        // SAFETY: a stream that is not initialized.
        .map(|(libz, strm)| unsafe {
            (libz.inflateInit2_)(&mut **strm, bits, z::zlibVersion(), STREAM_BYTES)
        })
        .collect();
    assert_eq!(codes[0], codes[1], "inflateInit2 {bits}");
    if codes[0] != z::Z_OK {
        return;
    }
    // Only ours is asked: zlib-rs does not look whose state it is.
    // SAFETY: a stream, of the wrong kind.
    let codes = unsafe { [(libs[0].deflate)(&mut *streams[0], 0), (libs[0].deflateReset)(&mut *streams[0])] };
    assert_eq!(codes, [z::Z_STREAM_ERROR; 2], "a stream that inflates");
    let mut at = 0;
    while !steps.is_empty() {
        let op = steps.byte();
        let flush = steps.pick(&[0, 2, 2, 4, 4, 5, 6]);
        let (give, room) = (steps.word() % 9000, steps.word() % 9000);
        let piece = &stream[at..stream.len().min(at + give)];
        let mut results = Vec::new();
        for (libz, strm) in libs.iter().zip(&mut streams) {
            let call = |strm: &mut Box<z_stream>| -> c_int {
                let raw: Strm = &mut **strm;
                // SAFETY: the stream is initialized, its buffers are set, pointers are those of slices.
                unsafe {
                    match op % 32 {
                        0 => (libz.inflateReset)(raw),
                        1 => (libz.inflateReset2)(raw, [15, -15, 31, 47][usize::from(op / 32) % 4]),
                        2 => (libz.inflateSync)(raw),
                        // In the middle of a block, zlib's inner loop gives such bits back to the input.
                        3 if at == 0 => (libz.inflatePrime)(raw, i32::from(op / 32), 5),
                        4 => (libz.inflateSetDictionary)(raw, stream.as_ptr(), stream.len().min(400) as u32),
                        5 => {
                            let mut copy = empty();
                            let code = (libz.inflateCopy)(&mut *copy, raw);
                            if code == z::Z_OK {
                                (libz.inflateEnd)(raw);
                                *strm = copy;
                            }
                            code
                        }
                        _ => (libz.inflate)(raw, flush),
                    }
                }
            };
            results.push(done(strm, piece, room, call));
        }
        let theirs = results.pop().expect("two");
        let ours = results.pop().expect("two");
        assert_eq!((ours.0, ours.1), (theirs.0, theirs.1), "op {}, flush {flush}", op % 32);
        assert!(ours.2 == theirs.2, "another message came out");
        at += ours.1;
    }
    for (libz, strm) in libs.iter().zip(&mut streams) {
        // SAFETY: the stream is initialized.
        assert_eq!(unsafe { (libz.inflateEnd)(&mut **strm) }, z::Z_OK);
    }
}

fn done(
    strm: &mut Box<z_stream>,
    piece: &[u8],
    room: usize,
    call: impl FnOnce(&mut Box<z_stream>) -> c_int,
) -> Done {
    let mut target = Guarded::new(room, 0x66);
    (strm.next_in, strm.avail_in) = (piece.as_ptr(), piece.len() as u32);
    (strm.next_out, strm.avail_out) = (target.get().as_mut_ptr(), room as u32);
    let code = call(strm);
    let written = room - strm.avail_out as usize;
    (code, piece.len() - strm.avail_in as usize, target.checked()[..written].to_vec())
}

/// Both kinds of streams.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut random = Random(5);
    let mut seeds = Vec::new();
    for message in messages() {
        let calls =
            [0x10, 0, 0xff, 7, 100, 0, 0x30, 3, 200, 0, 50, 0, 8, 3, 0, 60, 0, 9, 0x51, 2, 0xff, 1, 44, 1];
        seeds.push([&[0, random.number() as u8, random.number() as u8, 8, 0], &calls[..], &message].concat());
        for (number, (format, bits)) in [
            (memlift_spec::Format::Zlib, 0),
            (memlift_spec::Format::Deflate, 1),
            (memlift_spec::Format::Gzip, 2),
        ]
        .into_iter()
        .enumerate()
        {
            let stream = [naive::fixed(&message), naive::dynamic(&message), naive::stored(&message, 900)]
                [number]
                .clone();
            // Everything at once; or call after call.
            let whole = [[7, 3, 0xff, 31, 0xff, 31].as_slice(), &[7, 0, 10, 0, 10, 0]].concat().repeat(4);
            let pieces = [7, 0, 90, 0, 200, 0, 7, 1, 30, 1, 9, 0].repeat(4);
            for mut steps in [whole, pieces] {
                steps.resize(40, 7);
                seeds.push([&[1, bits], &steps[..], &naive::wrap(format, &message, stream.clone())].concat());
            }
        }
    }
    seeds
}
