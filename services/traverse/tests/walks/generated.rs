// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random programs: what the verifier accepts keeps all of its promises, on any memory; text and bytes say the same.
//!
//! `MEMLIFT_WALK_PROGRAMS` (400) says how many programs, `MEMLIFT_WALK_HOPS` (100) how many steps of each that is accepted,
//! `MEMLIFT_WALK_SEED` (1) where they begin. The ignored test prints the share that is accepted and how long verifying takes:
//! `cargo test -p memlift-traverse --release --test walks generated:: -- --ignored --nocapture`.

use memlift_traverse::bpf::{Code, Instruction, asm, decode, disasm, encode};
use memlift_traverse::generate::{self, Random};
use memlift_traverse::interp::{self, Checked};
use memlift_traverse::program::Program;
use memlift_traverse::step::Walk;
use memlift_traverse::verify::FUEL;
use std::time::Instant;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The same program as machine code, where there is a compiler for this machine.
#[cfg(feature = "jit")]
fn compiled(program: &Program) -> Option<memlift_traverse::jit::Compiled> {
    use memlift_traverse::jit::{CompileError, Compiled, Limits};
    let limits = Limits {
        window_first: program.window().first,
        window_bytes: program.window().bytes,
        scratch_bytes: program.scratch_bytes() as u32,
    };
    match Compiled::new(program.function(), &limits) {
        Ok(compiled) => Some(compiled),
        Err(CompileError::Unsupported) => None,
        Err(error) => panic!("{error}\n{}", program.listing()),
    }
}

/// Steps of a program on random memory; each must keep the verifier's promises, and the trusting interpreter and the compiled
/// program must agree.
fn hop(program: &Program, random: &mut Random, hops: u64) {
    let window = program.window();
    let (first, bytes) = (i64::from(window.first), usize::from(window.bytes));
    let mut node = vec![0; bytes];
    let mut scratch = vec![0; program.scratch_bytes()];
    #[cfg(feature = "jit")]
    let compiled = compiled(program);
    for _ in 0..hops {
        generate::memory(random, &mut node);
        generate::memory(random, &mut scratch);
        let (mut trusting, mut walk) = (scratch.clone(), Walk { fuel: FUEL, ..Walk::default() });
        let mut trusting_walk = walk;
        #[cfg(feature = "jit")]
        let (mut jit_scratch, mut jit_walk) = (scratch.clone(), walk);
        let verdict = Checked::new(&node, first, &mut scratch, &mut walk).step(program.function());
        let verdict = verdict.unwrap_or_else(|broken| panic!("{broken}\n{}", program.listing()));
        let cur = node.as_ptr().wrapping_offset(-(first as isize));
        #[expect(unsafe_code, reason = "the trusting interpreter takes addresses")]
        // SAFETY: the function is a verified program's; `node` is its window, and nobody writes to it; `trusting` is as long
        // as its scratchpad.
        let trusted =
            unsafe { interp::step(program.function(), cur, trusting.as_mut_ptr(), &mut trusting_walk) };
        assert_eq!((verdict, walk), (trusted, trusting_walk), "{}", program.listing());
        assert_eq!(scratch, trusting, "{}", program.listing());
        #[cfg(feature = "jit")]
        if let Some(compiled) = &compiled {
            #[expect(unsafe_code, reason = "compiled code takes addresses")]
            // SAFETY: compiled from the same verified function for these limits; `node` is its window, which nobody writes to,
            // and `jit_scratch` is as long as its scratchpad.
            let verdict = unsafe { compiled.step(cur, jit_scratch.as_mut_ptr(), &mut jit_walk) };
            assert_eq!((verdict, jit_walk), (trusted, trusting_walk), "compiled: {}", program.listing());
            assert_eq!(jit_scratch, trusting, "compiled: {}", program.listing());
        }
    }
}

#[test]
fn what_is_accepted_is_safe_and_enough_is_accepted() {
    let (seed, programs, hops) = (
        number("MEMLIFT_WALK_SEED", 1),
        number("MEMLIFT_WALK_PROGRAMS", 400),
        number("MEMLIFT_WALK_HOPS", 100),
    );
    let mut accepted = 0;
    for index in 0..programs {
        let seed = seed.wrapping_mul(0x1_0000_0001).wrapping_add(index);
        let bytecode = generate::program(seed);
        let Ok(program) = Program::new("generated", &bytecode, generate::SCRATCH_BYTES) else { continue };
        accepted += 1;
        hop(&program, &mut Random(seed), hops);
    }
    println!("{accepted} of {programs} programs accepted, {} hops", accepted * hops);
    assert!(accepted * 10 >= programs * 3, "{accepted} of {programs} programs accepted");
}

#[test]
fn bytecode_changed_at_random_is_refused_or_safe() {
    let mut accepted = 0;
    for seed in 0..number("MEMLIFT_WALK_PROGRAMS", 400) * 5 {
        let mut random = Random(seed ^ 0x5eed);
        let mut bytecode = generate::program(seed);
        for _ in 0..=random.below(3) {
            let at = random.below(bytecode.len() as u64) as usize;
            bytecode[at] ^= 1 << random.below(8);
        }
        let Ok(program) = Program::new("changed", &bytecode, generate::SCRATCH_BYTES) else { continue };
        accepted += 1;
        hop(&program, &mut random, 20);
    }
    assert!(accepted > 0);
}

#[test]
fn instructions_are_the_same_as_bytes_and_as_text() {
    let mut random = Random(7);
    for _ in 0..20_000 {
        let instruction = generate::instruction(&mut random);
        let text = instruction.to_string();
        assert_eq!(asm::parse(&text).expect(&text), [instruction], "{text}");
        let bytes = encode::encode(&[instruction]);
        // A lone jump leads nowhere; all else reads back.
        match (decode::decode(&bytes), instruction.target(0)) {
            (Ok(code), _) => assert_eq!(code.instructions, [instruction]),
            (Err(error), Some(_)) => assert!(error.to_string().contains("jumps to"), "{error}"),
            (Err(error), None) => panic!("{text}: {error}"),
        }
    }
}

#[test]
fn listings_assemble_to_what_they_list() {
    for seed in 0..300 {
        let bytecode = generate::program(seed);
        let code = decode::decode(&bytecode).expect("the builder's bytes");
        let listing = disasm::listing(&code);
        assert_eq!(asm::assemble(&listing).expect(&listing), bytecode, "{listing}");
        assert_eq!(encode::encode(&code.instructions), bytecode);
    }
}

#[test]
fn any_bytes_that_decode_are_their_own_encoding() {
    let mut random = Random(11);
    let mut read = 0;
    for _ in 0..200_000 {
        let mut bytes = random.word().to_le_bytes().to_vec();
        bytes[0] = random.below(256) as u8;
        if random.once_in(2) {
            bytes[2..].fill(0);
        }
        bytes.extend([0; 8]);
        bytes[8] = 0x95;
        let Ok(code) = decode::decode(&bytes) else { continue };
        read += 1;
        assert_eq!(encode::encode(&code.instructions), bytes);
        assert_eq!(Code::new(code.instructions.clone()), code);
        assert!(code.instructions.iter().map(Instruction::places).sum::<u32>() == 2);
    }
    assert!(read > 1000, "{read}");
}

#[test]
#[ignore = "prints measurements"]
fn acceptance_and_time() {
    let programs = number("MEMLIFT_WALK_PROGRAMS", 5000);
    let (mut times, mut accepted, mut reasons) = (Vec::new(), 0_u64, std::collections::BTreeMap::new());
    let mut instructions = Vec::new();
    for seed in 0..programs {
        let bytecode = generate::program(seed);
        let start = Instant::now();
        let program = Program::new("generated", &bytecode, generate::SCRATCH_BYTES);
        let time = start.elapsed();
        match program {
            Ok(_) => {
                accepted += 1;
                times.push(time);
                instructions.push(bytecode.len() / 8);
            }
            Err(error) => {
                let text = error.to_string();
                let reason = text.split("): ").nth(1).unwrap_or(&text).chars().take(60).collect::<String>();
                *reasons.entry(reason).or_insert(0) += 1;
            }
        }
    }
    times.sort_unstable();
    instructions.sort_unstable();
    println!("accepted {:.1} %", accepted as f64 * 100.0 / programs as f64);
    println!(
        "instructions: median {}, most {}",
        instructions[instructions.len() / 2],
        instructions[instructions.len() - 1]
    );
    println!(
        "decode, lower, verify, hash: median {:?}, most {:?}",
        times[times.len() / 2],
        times[times.len() - 1]
    );
    let mut reasons: Vec<(u64, String)> =
        reasons.into_iter().map(|(reason, count)| (count, reason)).collect();
    reasons.sort_unstable();
    for (count, reason) in reasons.iter().rev().take(15) {
        println!("{count:6} {reason}");
    }
    assert!(accepted * 10 >= programs * 3);
}
