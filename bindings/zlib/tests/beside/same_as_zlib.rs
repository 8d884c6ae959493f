// SPDX-License-Identifier: Apache-2.0 OR MIT
//! inflate and inflateBack beside the system's zlib: the same calls, and everything that a program can see compared after each.
//!
//! - **Flow** a message, packed by the system's zlib in one of many ways, is often damaged ──▶ both libraries get the same calls with the same
//!   pieces ──▶ code, buffers, counts, checksum, text, `data_type`, mark, header, dictionary and every byte of the output buffer are the same.
//! - **Order** cases are numbered; a failure names its number and its step, and the same number does the same.
//! - **Not here** `inflatePrime` in the middle of a block: zlib's inner loop gives primed bits back to the input, before its first byte.

use crate::both::{Libz, Random, VERSION, deflate_init, empty, inflate_init, ours, sample, system};
use libz_rs_sys::{
    Z_BUF_ERROR, Z_DATA_ERROR, Z_FINISH, Z_NEED_DICT, Z_OK, Z_STREAM_END, gz_header, z_stream,
};
use std::ffi::{CStr, c_int, c_uint, c_void};

/// A message of one of several kinds.
fn message(random: &mut Random) -> Vec<u8> {
    let bytes = random.size(120_000);
    match random.below(8) {
        0 => (0..bytes).map(|_| random.number() as u8).collect(),
        1 => vec![random.number() as u8; bytes],
        2 => {
            let kinds = 2 + random.below(30);
            (0..bytes).map(|_| random.below(kinds) as u8).collect()
        }
        3 => {
            let period = 1 + random.size(40_000);
            let mut out: Vec<u8> = Vec::new();
            for at in 0..bytes {
                let new = at < period || random.one_in(300);
                out.push(if new { random.number() as u8 } else { out[at - period] });
            }
            out
        }
        // Long blocks of short codes, which have a table of their own.
        4 | 5 => {
            let (mut out, mut line) = (Vec::new(), random.below(100_000));
            while out.len() < bytes {
                line += 1;
                let (item, time) = (line * 7919 % 99_991, line * line % 9973);
                out.extend(format!("10:{:02} GET /item/{item} 200 {time} us\n", line % 60).bytes());
            }
            out
        }
        _ => sample(bytes, random.number()),
    }
}

struct Packed {
    bits: i32,
    bytes: Vec<u8>,
    message: Vec<u8>,
    dictionary: Vec<u8>,
}

/// A stream of zlib's.
fn packed(random: &mut Random, zlib: &Libz) -> Packed {
    let message = message(random);
    let bits = random.pick(&[15, -15, 31, 15, -15, 31, 9, -9, 10, -11, 25, 12, -13, 14, 8]);
    let level = random.below(10) as i32;
    let strategy = random.pick(&[0, 0, 0, 1, 2, 3, 4]);
    let mut strm = empty();
    let memory = 1 + random.below(9) as i32;
    assert_eq!(deflate_init(zlib, &mut strm, level, bits, memory, strategy), Z_OK);
    let mut dictionary = Vec::new();
    let mut bytes = vec![0u8; message.len() * 2 + 40_000];
    // SAFETY: the stream is initialized, its buffers and pointers are those of vectors that live on.
    unsafe {
        let mut name = *b"name of a file\0";
        let mut extra = vec![7u8; random.size(600)];
        let mut head = gz_header {
            text: 1,
            time: 77,
            xflags: 0,
            os: 3,
            extra: extra.as_mut_ptr(),
            extra_len: extra.len() as u32,
            extra_max: 0,
            name: name.as_mut_ptr(),
            name_max: 0,
            comment: name.as_mut_ptr(),
            comm_max: 0,
            hcrc: random.below(2) as i32,
            done: 0,
        };
        if bits > 15 && random.one_in(2) {
            for field in [&mut head.extra, &mut head.name, &mut head.comment] {
                if random.one_in(3) {
                    *field = std::ptr::null_mut();
                }
            }
            assert_eq!((zlib.deflateSetHeader)(&mut *strm, &mut head), Z_OK);
        }
        if bits <= 15 && random.one_in(4) {
            dictionary = sample(1 + random.size(40_000), random.number());
            let length = dictionary.len() as u32;
            assert_eq!((zlib.deflateSetDictionary)(&mut *strm, dictionary.as_ptr(), length), Z_OK);
        }
        let step = if random.one_in(3) { 1 + random.size(2000) } else { message.len() + 1 };
        (strm.next_out, strm.avail_out) = (bytes.as_mut_ptr(), bytes.len() as u32);
        for piece in message.chunks(step) {
            (strm.next_in, strm.avail_in) = (piece.as_ptr(), piece.len() as u32);
            let flush = if strm.avail_out > 40_000 { random.pick(&[0, 0, 0, 1, 2, 3, 5]) } else { 0 };
            (zlib.deflate)(&mut *strm, flush);
        }
        (zlib.deflate)(&mut *strm, Z_FINISH); // cut off where there is no room
        bytes.truncate(strm.total_out as usize);
        (zlib.deflateEnd)(&mut *strm);
    }
    Packed { bits, bytes, message, dictionary }
}

/// Changes some of it, or cuts it off.
fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    for _ in 0..1 + random.below(4) {
        let near_front = random.one_in(2);
        let end = if near_front { bytes.len().min(60) } else { bytes.len() };
        let at = random.below(end);
        match random.below(4) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.number() as u8,
            2 => bytes.truncate(at + 1),
            _ => bytes[at] = bytes[at].wrapping_add(1),
        }
    }
}

/// Everything that a program can see of a stream.
#[derive(PartialEq, Debug)]
struct Seen {
    code: i32,
    read: usize,
    written: usize,
    total_in: u64,
    total_out: u64,
    adler: u64,
    text: Option<&'static CStr>,
    data_type: i32,
    mark: i64,
    used: u64,
    point: i32,
}

/// A header, and its extra field, name and comment.
type Header = (gz_header, [u8; 20], [u8; 9], [u8; 40]);

/// One of the two, with buffers of its own.
struct Side {
    libz: Libz,
    strm: Box<z_stream>,
    output: Vec<u8>,
    head: Box<Header>,
}

impl Side {
    fn new(libz: Libz) -> Side {
        // SAFETY: a header is numbers and pointers, which are set when it is used.
        let head = unsafe { std::mem::zeroed() };
        Side { libz, strm: empty(), output: Vec::new(), head: Box::new(head) }
    }

    fn seen(&mut self, code: i32, input: &[u8]) -> Seen {
        let raw = &raw mut *self.strm;
        // SAFETY: the stream is initialized; its texts are constants.
        unsafe {
            Seen {
                code,
                read: input.len() - self.strm.avail_in as usize,
                written: self.output.len() - self.strm.avail_out as usize,
                total_in: self.strm.total_in,
                total_out: self.strm.total_out,
                adler: self.strm.adler,
                text: (!self.strm.msg.is_null()).then(|| CStr::from_ptr(self.strm.msg)),
                data_type: self.strm.data_type,
                mark: (self.libz.inflateMark)(raw),
                used: (self.libz.inflateCodesUsed)(raw),
                point: (self.libz.inflateSyncPoint)(raw),
            }
        }
    }

    fn ask_for_header(&mut self) -> i32 {
        let raw = &raw mut *self.strm;
        let (head, extra, name, comment) = &mut *self.head;
        (head.extra, head.extra_max) = (extra.as_mut_ptr(), extra.len() as u32);
        (head.name, head.name_max) = (name.as_mut_ptr(), name.len() as u32);
        (head.comment, head.comm_max) = (comment.as_mut_ptr(), comment.len() as u32);
        // SAFETY: the header lives as long as the stream.
        unsafe { (self.libz.inflateGetHeader)(raw, head) }
    }

    fn header(&self) -> impl PartialEq + std::fmt::Debug {
        let (head, extra, name, comment) = &*self.head;
        let told = [head.extra.is_null(), head.name.is_null(), head.comment.is_null()];
        let numbers = [head.text, head.xflags, head.os, head.hcrc, head.done, head.extra_len as i32];
        ((numbers, head.time, told), *extra, *name, *comment)
    }

    fn dictionary(&mut self) -> (i32, Vec<u8>) {
        let (mut bytes, mut length) = (vec![0; 32768], 0);
        // SAFETY: 32 KiB, as zlib.h asks for.
        let code =
            unsafe { (self.libz.inflateGetDictionary)(&mut *self.strm, bytes.as_mut_ptr(), &mut length) };
        bytes.truncate(length as usize);
        (code, bytes)
    }
}

fn case(number: u64, zlib: &Libz, memlift: &Libz) {
    let mut random = Random(number);
    let mut packed = packed(&mut random, zlib);
    let broken = !random.one_in(3);
    if broken {
        damage(&mut random, &mut packed.bytes);
    }
    let behind = random.size(50);
    packed.bytes.extend((0..behind).map(|_| random.number() as u8));
    let bits = match random.below(5) {
        0 => random.pick(&[15, -15, 31, 47, 0, 40, -8, -9, 9, 8, 16, 32, 24, 43]),
        1 if packed.bits > 0 => 32 + 15,
        2 if packed.bits > 0 && packed.bits < 16 => 0,
        _ => packed.bits,
    };
    let mut sides = [Side::new(*memlift), Side::new(*zlib)];
    let inits: Vec<i32> =
        sides.iter_mut().map(|side| inflate_init(&side.libz, &mut side.strm, bits)).collect();
    assert_eq!(inits[0], inits[1], "case {number}: inflateInit2 {bits}");
    let all_at_once = random.one_in(3);
    let (give_most, room_most) = (1 + random.size(packed.bytes.len() * 2 + 2), 1 + random.size(150_000));
    let flushes: &[i32] = random.pick(&[&[0][..], &[2], &[4], &[5], &[6], &[0, 1, 2, 3, 4, 5, 6]]);
    let wild = random.one_in(3);
    let (mut at, mut idle) = (0, 0);
    let prime = if random.one_in(8) { random.below(9) as i32 - 1 } else { 0 };
    for step in 0..4000 {
        let op = if step == 0 && prime != 0 {
            100
        } else if step <= 1 && random.one_in(4) {
            101
        } else if wild && random.one_in(6) {
            random.below(10)
        } else {
            50
        };
        let (give, room) = if all_at_once {
            (packed.bytes.len(), packed.message.len() + 1 + random.below(600))
        } else {
            (random.below(give_most + 1), random.below(room_most + 1))
        };
        let (flush, value) = (random.pick(flushes), random.number() as i32);
        let other_bits = random.pick(&[15, -15, 31, 47, 0, packed.bits, packed.bits, 7, 48, -16, -9]);
        let input = &packed.bytes[at..packed.bytes.len().min(at + give)];
        let mut results = Vec::new();
        for side in &mut sides {
            side.output.clear();
            side.output.resize(room, 0xee);
            (side.strm.next_in, side.strm.avail_in) = (input.as_ptr(), input.len() as u32);
            // Null is an error of its own; room of no bytes is none.
            let start = if room == 0 { std::ptr::dangling_mut() } else { side.output.as_mut_ptr() };
            (side.strm.next_out, side.strm.avail_out) = (start, room as u32);
            let raw = &raw mut *side.strm;
            // SAFETY: the stream is initialized, its buffers are set, pointers are those of vectors.
            let code = unsafe {
                match op {
                    0 => (side.libz.inflateReset)(raw),
                    1 => (side.libz.inflateReset2)(raw, other_bits),
                    2 | 3 => (side.libz.inflateSync)(raw),
                    4 => {
                        let mut copy = empty();
                        let code = (side.libz.inflateCopy)(&mut *copy, raw);
                        (side.libz.inflateEnd)(raw);
                        side.strm = copy;
                        code
                    }
                    5 => (side.libz.inflateValidate)(raw, value & 1),
                    6 => {
                        let bytes = &packed.message[..packed.message.len().min(500)];
                        (side.libz.inflateSetDictionary)(raw, bytes.as_ptr(), bytes.len() as u32)
                    }
                    7 => (side.libz.inflateUndermine)(raw, value & 1),
                    8 => (side.libz.inflateResetKeep)(raw),
                    100 => (side.libz.inflatePrime)(raw, prime, value),
                    101 => side.ask_for_header(),
                    _ => (side.libz.inflate)(raw, flush),
                }
            };
            let mut seen = side.seen(code, input);
            if op == 4 {
                (seen.read, seen.written) = (0, 0);
            }
            results.push((seen, side.output.clone()));
        }
        let (theirs, ours) = (results.pop().expect("two"), results.pop().expect("two"));
        assert_eq!(
            ours.0,
            theirs.0,
            "case {number}, step {step}: op {op}, flush {flush}, window {bits}, {} given, {room} room",
            input.len()
        );
        if let Some(place) = ours.1.iter().zip(&theirs.1).position(|(a, b)| a != b) {
            panic!(
                "case {number}, step {step}: another byte at {place} of {}, {} written",
                room, ours.0.written
            );
        }
        if random.one_in(10) || op == 101 {
            assert_eq!(sides[0].header(), sides[1].header(), "case {number}, step {step}: the header");
            assert_eq!(
                sides[0].dictionary(),
                sides[1].dictionary(),
                "case {number}, step {step}: the window"
            );
        }
        let (code, moved) = (ours.0.code, ours.0.read + ours.0.written != 0);
        at += ours.0.read;
        if code == Z_NEED_DICT && op == 50 {
            let dictionary = &packed.dictionary;
            let codes = sides.each_mut().map(|side| {
                // SAFETY: a vector's pointer and length.
                unsafe {
                    let length = dictionary.len() as u32;
                    (side.libz.inflateSetDictionary)(&mut *side.strm, dictionary.as_ptr(), length)
                }
            });
            assert_eq!(codes[0], codes[1], "case {number}, step {step}: the dictionary");
        } else if packed.bits < 0 && step == 0 && !packed.dictionary.is_empty() && bits < 0 && at == 0 {
            let dictionary = &packed.dictionary;
            for side in &mut sides {
                // SAFETY: a vector's pointer and length.
                unsafe {
                    let length = dictionary.len() as u32;
                    (side.libz.inflateSetDictionary)(&mut *side.strm, dictionary.as_ptr(), length);
                }
            }
        }
        idle = if moved { 0 } else { idle + 1 };
        let ended = !wild && (code == Z_STREAM_END || code == Z_DATA_ERROR);
        if idle > 12 || (ended && random.one_in(2)) {
            break;
        }
    }
    for side in &mut sides {
        // SAFETY: the stream is initialized.
        assert_eq!(unsafe { (side.libz.inflateEnd)(&mut *side.strm) }, Z_OK);
    }
}

/// State of the callbacks of `inflateBack`.
struct Pipe {
    input: Vec<u8>,
    at: usize,
    steps: Random,
    most: usize,
    output: Vec<u8>,
    /// Output calls until one refuses.
    refuse: usize,
    calls: Vec<usize>,
}

unsafe extern "C" fn pipe_in(pipe: *mut c_void, next: *mut *const u8) -> c_uint {
    // SAFETY: the pipe of this call, and a pointer to set.
    unsafe {
        let pipe = &mut *pipe.cast::<Pipe>();
        let take = (1 + pipe.steps.below(pipe.most)).min(pipe.input.len() - pipe.at);
        *next = pipe.input[pipe.at..].as_ptr();
        pipe.at += take;
        pipe.calls.push(take);
        take as c_uint
    }
}

unsafe extern "C" fn pipe_out(pipe: *mut c_void, bytes: *mut u8, count: c_uint) -> c_int {
    // SAFETY: the pipe of this call, and bytes of its window.
    unsafe {
        let pipe = &mut *pipe.cast::<Pipe>();
        pipe.output.extend_from_slice(std::slice::from_raw_parts(bytes, count as usize));
        pipe.calls.push(1 << 20 | count as usize);
        pipe.refuse = pipe.refuse.wrapping_sub(1);
        (pipe.refuse == 0).into()
    }
}

fn back_case(number: u64, zlib: &Libz, memlift: &Libz) {
    let mut random = Random(number ^ 0xbac4);
    let mut stream = packed(&mut random, zlib);
    while stream.bits > 0 || !stream.dictionary.is_empty() {
        stream = packed(&mut random, zlib);
    }
    let broken = random.one_in(2);
    if broken {
        damage(&mut random, &mut stream.bytes);
    }
    let bits = if random.one_in(4) { 8 + random.below(8) as i32 } else { -stream.bits };
    let (most, seed) = (1 + random.size(5000), random.number());
    let refuse = if random.one_in(8) { 1 + random.below(4) } else { usize::MAX };
    let given = if random.one_in(2) { random.size(100).min(stream.bytes.len()) } else { 0 };
    let run = |libz: &Libz| {
        let mut strm = empty();
        let mut window = vec![b'S'; (1 << bits) + 64];
        let mut pipe = Pipe {
            input: stream.bytes.clone(),
            at: given,
            steps: Random(seed),
            most,
            output: Vec::new(),
            refuse,
            calls: Vec::new(),
        };
        let start = pipe.input.as_ptr();
        // SAFETY: the window is large enough, the pipe lives on.
        unsafe {
            let bytes = size_of::<z_stream>() as i32;
            let version = VERSION.as_ptr();
            let code = (libz.inflateBackInit_)(&mut *strm, bits, window.as_mut_ptr(), version, bytes);
            assert_eq!(code, Z_OK);
            if given != 0 {
                (strm.next_in, strm.avail_in) = (start, given as u32);
            }
            let value = (&raw mut pipe).cast();
            let code = (libz.inflateBack)(&mut *strm, pipe_in, value, pipe_out, value);
            let text = (!strm.msg.is_null()).then(|| CStr::from_ptr(strm.msg));
            let rest = if strm.next_in.is_null() { usize::MAX } else { strm.next_in.addr() - start.addr() };
            let rest = (rest, strm.avail_in, strm.total_in, strm.total_out);
            assert!(window[1 << bits..].iter().all(|&byte| byte == b'S'), "case {number}: behind the window");
            assert_eq!((libz.inflateBackEnd)(&mut *strm), Z_OK);
            (code, text, rest, pipe.calls, pipe.output)
        }
    };
    let ours = run(memlift);
    // zlib's inner loop takes distances in front of the first byte, or beyond the window, and gives out what the window's memory held. Its
    // inflate does not: byte by byte, its window has exactly the bytes that may be referred to.
    let right = byte_by_byte(zlib, -bits, &stream.bytes);
    assert!(right.1.starts_with(&ours.4), "case {number}: another message");
    let told = refuse == usize::MAX && right.0 != Z_BUF_ERROR;
    assert!(
        !told || (ours.4.len() == right.1.len() && ours.0 == right.0),
        "case {number}: {} {}",
        ours.0,
        right.0
    );
    let theirs = run(zlib);
    // Where zlib goes on, it errs by itself: sooner or later it may say the same.
    if ours.1 == Some(c"invalid distance too far back") && ours != theirs {
        assert!(theirs.4.starts_with(&ours.4), "case {number}: another message came out");
        return;
    }
    assert_eq!(
        (ours.0, ours.1, ours.2, &ours.3),
        (theirs.0, theirs.1, theirs.2, &theirs.3),
        "case {number}: window {bits}"
    );
    assert!(ours.4 == theirs.4, "case {number}: another message came out");
}

/// Unpacks with room for one byte at a time.
fn byte_by_byte(zlib: &Libz, bits: i32, packed: &[u8]) -> (i32, Vec<u8>) {
    let mut strm = empty();
    assert_eq!(inflate_init(zlib, &mut strm, bits), Z_OK);
    (strm.next_in, strm.avail_in) = (packed.as_ptr(), packed.len() as u32);
    let (mut out, mut byte) = (Vec::new(), 0u8);
    // SAFETY: the stream is initialized, its buffers are set.
    unsafe {
        loop {
            (strm.next_out, strm.avail_out) = (&raw mut byte, 1);
            let code = (zlib.inflate)(&mut *strm, 0);
            if strm.avail_out == 0 {
                out.push(byte);
            }
            if code != Z_OK {
                (zlib.inflateEnd)(&mut *strm);
                return (code, out);
            }
        }
    }
}

fn cases(from: u64, count: u64, run: fn(u64, &Libz, &Libz)) {
    let Some(zlib) = system() else { return };
    let memlift = ours();
    for number in from..from + count {
        run(number, &zlib, &memlift);
    }
}

#[test]
fn inflate_is_zlibs_call_by_call() {
    cases(0, 1500, case);
}

#[test]
fn inflate_back_is_zlibs() {
    cases(0, 600, back_case);
}

/// `MEMLIFT_FUZZ_SEED` says where the cases begin.
fn soak_seed() -> u64 {
    std::env::var("MEMLIFT_FUZZ_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1 << 32)
}

#[test]
#[ignore = "minutes: make soak"]
fn soak_inflate_is_zlibs_call_by_call() {
    cases(soak_seed(), 60_000, case);
}

#[test]
#[ignore = "minutes: make soak"]
fn soak_inflate_back_is_zlibs() {
    cases(soak_seed(), 30_000, back_case);
}
