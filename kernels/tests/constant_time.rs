// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Evidence that AES-GCM takes the same time whatever key and message are. In `make soak`.
//!
//! - **ctgrind** this program runs itself under valgrind with key and message marked as undefined: memcheck then reports each branch on them and each
//!   index by them. It emulates a CPU with AES instructions and without VAES, so what it sees is aws-lc's code for that CPU, our own
//!   routines of one block, and those without AES instructions
//! - **dudect** on the CPU itself, so VAES too: the time of sealing with one key and message that stay against that with random ones, by Welch's t-test
//!   (Reparaz, Balasch, Verbauwhede: "Dude, is my code constant time?", 2017)
//! - **Proof of the method** the same two must find a comparison that ends at the first difference
#![cfg(all(feature = "aead", target_arch = "x86_64"))]

use core::arch::asm;
use core::arch::x86_64::{__rdtscp, _mm_lfence};
use core::hint::black_box;
use std::process::Command;

use memlift_kernels::Isa;
use memlift_kernels::aead::{Key, Scatter, Stream, tags_equal};

const UNDEFINED: usize = 0x4d43_0001;
const DEFINED: usize = 0x4d43_0002;
const CHILD: &str = "secrets_under_valgrind";
/// Set in the child: `code` runs ours, `leak` something that leaks.
const VARIABLE: &str = "MEMLIFT_CONSTANT_TIME";

/// Asks valgrind to mark bytes; without valgrind these instructions do nothing (valgrind.h, "client requests").
fn mark(request: usize, bytes: &[u8]) {
    let arguments = [request, bytes.as_ptr().addr(), bytes.len(), 0, 0, 0];
    // SAFETY: rotates a register by 128 bits in all, which leaves it as it was, and exchanges one with itself; valgrind reads
    // `arguments`, which live until then.
    unsafe {
        asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            in("rax") &raw const arguments, inout("rdx") 0_usize => _, options(nostack)
        );
    }
}

/// Ends at the first difference: what must not be done with secrets.
fn leaks(a: &[u8], b: &[u8]) -> bool {
    a.iter().zip(b).all(|(a, b)| black_box(a) == black_box(b))
}

const NONCE: [u8; 12] = [9; 12];

fn seal_and_open(isa: Isa, key: &[u8], message: &[u8]) {
    let whole = Key::new(key).expect("16 or 32 bytes");
    whole.prepare(isa);
    let mut sealed = vec![0; message.len()];
    // SAFETY: both are as long as the message.
    let tag = unsafe { whole.seal(&NONCE, b"public", message.as_ptr(), sealed.as_mut_ptr(), message.len()) };
    mark(DEFINED, &tag);
    mark(DEFINED, &sealed);
    let mut opened = vec![0; message.len()];
    let mut stream = Stream::up_to(key, false, isa).expect("16 or 32 bytes");
    stream.restart(&NONCE);
    stream.aad(b"public");
    // SAFETY: both are as long as the message.
    unsafe { stream.update(sealed.as_ptr(), opened.as_mut_ptr(), sealed.len()) };
    let found = stream.finish();
    let same = tags_equal(&found, &tag);
    mark(DEFINED, core::slice::from_ref(&u8::from(same)));
    mark(DEFINED, &found);
    mark(DEFINED, &opened);
    mark(DEFINED, message);
    assert!(found == tag && opened == message);
    mark(UNDEFINED, message);
    let mut scatter = Scatter::seal(&whole, &NONCE, b"public");
    let mut again = vec![0; message.len()];
    // SAFETY: both are as long as the message.
    unsafe { scatter.update(0, message.as_ptr(), again.as_mut_ptr(), message.len()) }
        .expect("within a message");
    let found = scatter.tag(message.len() as u64).expect("all of it");
    mark(DEFINED, &found);
    mark(DEFINED, &again);
    assert!(found == tag && again == sealed);
}

#[test]
#[ignore = "the child of soak_secrets_are_no_condition_and_no_index"]
fn secrets_under_valgrind() {
    let Ok(what) = std::env::var(VARIABLE) else { return };
    let (key, message) = ([7_u8; 32], vec![0x5a_u8; 3000]);
    mark(UNDEFINED, &key);
    mark(UNDEFINED, &message);
    if what == "leak" {
        black_box(leaks(&key[..16], &[7; 16]));
        return;
    }
    for isa in [Isa::Scalar, Isa::Sse2, Isa::Avx2] {
        for key_bytes in [16, 32] {
            for bytes in [0, 1, 15, 16, 17, 255, 256, 1024, 3000] {
                seal_and_open(isa, &key[..key_bytes], &message[..bytes]);
            }
        }
    }
}

#[test]
#[ignore = "under valgrind: a minute"]
fn soak_secrets_are_no_condition_and_no_index() {
    let program = std::env::current_exe().expect("this program");
    let run = |what: &str| {
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--error-exitcode=9"]).arg(&program);
        command.args(["--ignored", "--exact", CHILD, "--nocapture"]).env(VARIABLE, what).output()
    };
    let leak = match run("leak") {
        Ok(output) => output,
        Err(error) => return eprintln!("not run: valgrind: {error}"),
    };
    let said = String::from_utf8_lossy(&leak.stderr).into_owned();
    assert_eq!(leak.status.code(), Some(9), "the method does not find a leak: {said}");
    assert!(said.contains("depends on uninitialised value"), "{said}");
    let output = run("code").expect("valgrind starts again");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn ticks() -> u64 {
    let mut core = 0;
    // SAFETY: every x86-64 CPU has lfence, and each that memlift is tested on has rdtscp.
    unsafe {
        _mm_lfence();
        let ticks = __rdtscp(&raw mut core);
        _mm_lfence();
        ticks
    }
}

/// Pseudo-random bytes (SplitMix64).
struct Random(u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.word().to_le_bytes()[..part.len()]);
        }
    }
}

const SAMPLES: usize = 400_000;

/// The largest |t| over several cuts: `work` gets a class and its random numbers to prepare, and gives the ticks of what it times.
fn largest_t(mut work: impl FnMut(bool, &mut Random) -> u64) -> f64 {
    let mut random = Random(20_261_128);
    let mut samples: Vec<(bool, u64)> = (0..SAMPLES)
        .map(|_| {
            let class = random.word() & 1 == 1;
            (class, work(class, &mut random))
        })
        .collect();
    samples.drain(..SAMPLES / 20);
    let mut sorted: Vec<u64> = samples.iter().map(|sample| sample.1).collect();
    sorted.sort_unstable();
    // Interrupts lengthen some: each cut leaves out what took longer than so many.
    let cuts = [50, 75, 90, 95].map(|percent| sorted[sorted.len() * percent / 100]);
    let t = |cut: u64| {
        let moments = |class: bool| {
            let of = samples.iter().filter(|sample| sample.0 == class && sample.1 <= cut);
            let values: Vec<f64> = of.map(|sample| sample.1 as f64).collect();
            let count = values.len() as f64;
            let mean = values.iter().sum::<f64>() / count;
            (mean, values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0) / count)
        };
        let (a, b) = (moments(false), moments(true));
        ((a.0 - b.0) / (a.1 + b.1).sqrt()).abs()
    };
    cuts.map(t).into_iter().fold(0.0, f64::max)
}

/// Beyond this, dudect's authors call a leak certain.
const LEAK_T: f64 = 10.0;

#[test]
#[ignore = "measures for a minute"]
fn soak_time_does_not_depend_on_secrets() {
    let fixed = [0x42_u8; 16];
    let mut bytes = [0; 16];
    let t = largest_t(|class, random| {
        if class {
            random.fill(&mut bytes);
        } else {
            bytes = fixed;
        }
        let start = ticks();
        black_box(leaks(black_box(&bytes), black_box(&fixed)));
        ticks() - start
    });
    println!("a comparison that ends at the first difference: |t| = {t:.1}");
    assert!(t > LEAK_T, "the method does not find a leak: |t| = {t:.1}");

    for isa in Isa::ALL.into_iter().filter(|isa| *isa <= memlift_kernels::active().isa) {
        let mut stream = Stream::up_to(&[0; 16], true, isa).expect("16 bytes");
        let (mut key, mut message, mut sealed) = ([0; 16], [0_u8; 512], [0_u8; 512]);
        let t = largest_t(|class, random| {
            // Both classes take as long to prepare.
            random.fill(&mut key);
            random.fill(&mut message);
            if !class {
                key = fixed;
                message = [0x17; 512];
            }
            stream.rekey(&key).expect("16 bytes");
            stream.restart(&NONCE);
            let start = ticks();
            // SAFETY: both are as long as each other.
            unsafe { stream.update(message.as_ptr(), sealed.as_mut_ptr(), message.len()) };
            black_box(stream.tag());
            ticks() - start
        });
        println!("sealing 512 bytes up to {isa:?}: |t| = {t:.1}");
        assert!(t < LEAK_T, "up to {isa:?}: |t| = {t:.1}");
    }
}
