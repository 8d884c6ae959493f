// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Time and size of packing small messages, beside zlib, libdeflate and ISA-L.
//!
//! `deflate_table FOLDER [ROUNDS [LIBISAL]]`: takes messages of 1, 4, 16 and 64 KiB from the .html files in a
//! folder. Every engine writes gzip, one message per call. zlib is set up per message as nginx does it; ISA-L is called
//! without state; the engines take turns, and the median of the rounds counts.
//!
//! `ONLY` in the environment names one engine to run beside zlib-6.
//!
//! - **Not here** the numbers of the README: those come from the bench.

use libdeflate_sys as ld;
use memlift_kernels::deflate::{Effort, Format, Packer, Unpacker, bound};
use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};
use std::time::Instant;

type Engine = (String, Box<dyn FnMut(&[u8], &mut [u8]) -> usize>);

fn zlib(level: c_int) -> Engine {
    type Init =
        unsafe extern "C" fn(*mut u8, c_int, c_int, c_int, c_int, c_int, *const c_char, c_int) -> c_int;
    // SAFETY: loading zlib runs nothing of interest.
    let library =
        unsafe { libloading::Library::new("libz.so.1") }.expect("libz.so.1 is there: install zlib1g");
    let library = Box::leak(Box::new(library));
    // SAFETY: the types are those of zlib.h.
    let (init, deflate, end) = unsafe {
        (
            *library.get::<Init>(b"deflateInit2_").expect("zlib"),
            *library.get::<unsafe extern "C" fn(*mut u8, c_int) -> c_int>(b"deflate").expect("zlib"),
            *library.get::<unsafe extern "C" fn(*mut u8) -> c_int>(b"deflateEnd").expect("zlib"),
        )
    };
    let run = move |source: &[u8], target: &mut [u8]| {
        let (mut window, mut memory) = (15, 8);
        while source.len() < (1 << (window - 1)) - 262 {
            window -= 1;
            memory -= 1;
        }
        let mut stream = [0u64; 14];
        stream[0] = source.as_ptr() as u64;
        stream[1] = source.len() as u64;
        stream[3] = target.as_mut_ptr() as u64;
        stream[4] = target.len() as u64;
        let at = stream.as_mut_ptr().cast::<u8>();
        // SAFETY: `stream` is a z_stream: 14 words on this platform, with next_in, avail_in, next_out, avail_out set.
        unsafe {
            assert_eq!(init(at, level, 8, window + 16, memory.max(1), 0, c"1.2.11".as_ptr(), 112), 0);
            assert_eq!(deflate(at, 4), 1);
            end(at);
        }
        stream[5] as usize
    };
    (format!("zlib-{level}"), Box::new(run))
}

fn isal(path: &Path, level: u32) -> Option<Engine> {
    // SAFETY: loading ISA-L runs nothing of interest.
    let library = Box::leak(Box::new(unsafe { libloading::Library::new(path) }.ok()?));
    // SAFETY: the types are those of igzip_lib.h.
    let (init, deflate) = unsafe {
        (
            *library.get::<unsafe extern "C" fn(*mut u8)>(b"isal_deflate_stateless_init").ok()?,
            *library.get::<unsafe extern "C" fn(*mut u8) -> c_int>(b"isal_deflate_stateless").ok()?,
        )
    };
    let mut stream = vec![0u64; 1 << 15];
    let mut scratch = vec![0u8; 282_624];
    let run = move |source: &[u8], target: &mut [u8]| {
        let at = stream.as_mut_ptr().cast::<u8>();
        // SAFETY: `stream` is larger than isal_zstream; the offsets are those of its public fields in version 2.30.
        unsafe {
            init(at);
            at.cast::<*const u8>().write(source.as_ptr());
            at.add(8).cast::<u32>().write(source.len() as u32);
            at.add(16).cast::<*mut u8>().write(target.as_mut_ptr());
            at.add(24).cast::<u32>().write(target.len() as u32);
            at.add(40).cast::<u32>().write(level);
            at.add(44).cast::<u32>().write(scratch.len() as u32);
            at.add(48).cast::<*mut u8>().write(scratch.as_mut_ptr());
            at.add(56).cast::<u16>().write(1);
            at.add(60).cast::<u16>().write(1);
            assert_eq!(deflate(at), 0);
            at.add(28).cast::<u32>().read() as usize
        }
    };
    Some((format!("isal-{level}"), Box::new(run)))
}

fn libdeflate(level: c_int) -> Engine {
    // SAFETY: a level that libdeflate has; never freed.
    let state = unsafe { ld::libdeflate_alloc_compressor(level) };
    let run = move |source: &[u8], target: &mut [u8]| {
        // SAFETY: pointers and lengths of slices.
        unsafe {
            let target = (target.as_mut_ptr().cast(), target.len());
            ld::libdeflate_gzip_compress(state, source.as_ptr().cast(), source.len(), target.0, target.1)
        }
    };
    (format!("libdeflate-{level}"), Box::new(run))
}

fn ours(name: &str, effort: Effort) -> Engine {
    let mut packer = Packer::new();
    let run = move |source: &[u8], target: &mut [u8]| {
        packer.pack(Format::Gzip, effort, source, target).expect("bound is enough")
    };
    (format!("memlift {name}"), Box::new(run))
}

fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "html") {
            found.push(path);
        }
    }
}

fn messages(folder: &Path, bytes: usize) -> Vec<Vec<u8>> {
    let mut paths = Vec::new();
    pages(folder, &mut paths);
    paths.sort();
    let mut all = Vec::new();
    for path in paths {
        if path.is_symlink() {
            continue;
        }
        let page = std::fs::read(path).expect("a page can be read");
        all.extend(page.chunks_exact(bytes).map(<[u8]>::to_vec));
    }
    let step = (all.len() * bytes / (2 << 20)).max(1);
    all.into_iter().step_by(step).collect()
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let folder = arguments.get(1).expect("a folder with .html files");
    let rounds: usize = arguments.get(2).map_or(9, |rounds| rounds.parse().expect("a number of rounds"));
    let library = PathBuf::from(arguments.get(3).map_or("libisal.so.2", String::as_str));
    for bytes in [1024, 4096, 16384, 65536] {
        let messages = messages(Path::new(folder), bytes);
        let mut engines: Vec<Engine> = vec![zlib(6), zlib(1), libdeflate(1), libdeflate(6)];
        engines.extend(isal(&library, 0));
        engines.extend(isal(&library, 1));
        engines.push(ours("fast", Effort::Fast));
        engines.push(ours("default", Effort::Default));
        engines.push(ours("small", Effort::Small));
        if let Ok(only) = std::env::var("ONLY") {
            engines.retain(|(name, _)| *name == only || name == "zlib-6");
        }
        let mut target = vec![0; 2 * bound(Format::Gzip, bytes)];
        let mut again = vec![0; bytes];
        let mut unpacker = Unpacker::new();
        let mut times = vec![Vec::new(); engines.len()];
        let mut sizes = vec![0; engines.len()];
        for round in 0..rounds {
            for (at, (name, engine)) in engines.iter_mut().enumerate() {
                let mut size = 0;
                let begin = Instant::now();
                for message in &messages {
                    size += engine(message, &mut target);
                }
                times[at].push(begin.elapsed().as_nanos() as f64 / messages.len() as f64 / 1000.0);
                sizes[at] = size;
                if round == 0 {
                    for message in &messages {
                        let used = engine(message, &mut target);
                        let unpacked = unpacker.unpack(Format::Gzip, &target[..used], &mut again);
                        assert!(unpacked.is_ok() && again == *message, "{name}");
                    }
                }
            }
        }
        println!("\n{bytes} bytes, {} messages          us   x zlib-6   size   x zlib-6", messages.len());
        let median = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let base = median(&mut times[0]);
        for (at, (name, _)) in engines.iter().enumerate() {
            let time = median(&mut times[at]);
            let ratio = sizes[at] as f64 / (messages.len() * bytes) as f64;
            println!(
                "{name:<20} {time:>8.2} {:>9.2} {ratio:>9.4} {:>9.3}",
                base / time,
                sizes[at] as f64 / sizes[0] as f64
            );
        }
    }
}
