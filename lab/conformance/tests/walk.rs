// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walk programs: the device model's interpreter, written from the format's page, and the service's, on random programs.
//!
//! - **Order** only accepted programs are compared: what the verifier refuses may do anything at the model, within its bounds

use memlift_model::pulse::program::{Program, Verdict};
use memlift_traverse::generate::{self, Random};
use memlift_traverse::interp::Checked;
use memlift_traverse::step::Walk;
use memlift_traverse::verify::FUEL;

fn number(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Next => 0,
        Verdict::Done => 1,
        Verdict::Emit => 2,
        Verdict::Apply => 3,
        Verdict::Retry => 4,
        Verdict::Missing => 5,
        Verdict::OutOfFuel => 0x80,
        Verdict::BadVerdict => 0x81,
        Verdict::Guard => 0x83,
    }
}

fn drawn(random: &mut Random, bytes: usize) -> Vec<u8> {
    let mut memory = vec![0; bytes];
    generate::memory(random, &mut memory);
    memory
}

#[test]
fn model_and_service_run_random_programs_alike() {
    let mut seen = std::collections::BTreeMap::new();
    for seed in 0..600 {
        let bytecode = generate::program(seed);
        let service =
            memlift_traverse::program::Program::new("generated", &bytecode, generate::SCRATCH_BYTES);
        let Ok(service) = service else { continue };
        let window = (i64::from(service.window().first), usize::from(service.window().bytes));
        let model = Program::read(&service.encoding(), window).expect("the same encoding");
        let mut random = Random(seed);
        for _ in 0..40 {
            let node = drawn(&mut random, window.1);
            let mut scratch = drawn(&mut random, service.scratch_bytes());
            let (mut other, mut walk) = (scratch.clone(), Walk { fuel: FUEL, ..Walk::default() });
            let returned = Checked::new(&node, window.0, &mut scratch, &mut walk).step(service.function());
            let stepped = model.step(&node, &mut other);
            let told = [
                walk.next,
                walk.apply,
                walk.address,
                walk.a,
                walk.b,
                u64::from(walk.emit_offset) | u64::from(walk.emit_bytes) << 32,
            ];
            let returned = returned.expect("a verified program keeps its promises");
            let returned = if returned > 5 && returned != 0x80 && returned != 0x83 { 0x81 } else { returned };
            assert_eq!(
                (number(stepped.verdict), stepped.walk),
                (returned, told),
                "seed {seed}\n{}",
                service.listing()
            );
            assert_eq!(other, scratch, "seed {seed}\n{}", service.listing());
            *seen.entry(returned).or_insert(0) += 1;
        }
    }
    assert!(seen.values().sum::<i32>() > 4000 && seen.len() >= 4, "{seen:?}");
}

/// The programs that come with the service, as far as the model must not trip over them on any memory.
#[test]
fn shipped_programs_are_read_and_end() {
    let mut random = Random(3);
    for shipped in memlift_traverse::structures::shipped::ALL {
        let service = shipped.program();
        let window = (i64::from(service.window().first), usize::from(service.window().bytes));
        let model = Program::read(&service.encoding(), window).expect("the same encoding");
        for _ in 0..20 {
            let node = drawn(&mut random, window.1);
            let mut scratch = drawn(&mut random, service.scratch_bytes());
            let (mut other, mut walk) = (scratch.clone(), Walk { fuel: FUEL, ..Walk::default() });
            let returned = Checked::new(&node, window.0, &mut scratch, &mut walk).step(service.function());
            let stepped = model.step(&node, &mut other);
            assert_eq!(returned, Ok(number(stepped.verdict)), "{}", shipped.name);
            assert_eq!((other, stepped.walk[0]), (scratch, walk.next), "{}", shipped.name);
        }
    }
}
