// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The verifier of walks at hostile bytecode: what it accepts keeps its promises on any memory, and reads back as it was.
//!
//! - **Order** a program that is accepted runs under the checking interpreter without breaking a promise; its encoding and its
//!   listing give the same program; an object file of any bytes is taken or refused
//! - **Layout** form u8: 0 mod 4 an encoding with header, 1 mod 4 an object file, otherwise instructions · scratch u8 (times 8) ·
//!   seed of the memory u16 · bytes

use crate::Input;
use memlift_traverse::bpf::{asm, elf};
use memlift_traverse::generate::{self, Random};
use memlift_traverse::interp::Checked;
use memlift_traverse::program::Program;
use memlift_traverse::step::Walk;
use memlift_traverse::verify::FUEL;

/// Steps of each program that is accepted.
const HOPS: u32 = 16;

/// Panics when something is wrong.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let form = input.byte();
    let scratch_bytes = usize::from(input.byte()) * 8;
    let mut random = Random(input.word() as u64);
    let bytes = input.rest();
    let program = match form % 4 {
        0 => Program::from_encoding("hostile", bytes),
        1 => {
            elf::function(bytes, None).and_then(|bytecode| Program::new("hostile", &bytecode, scratch_bytes))
        }
        _ => Program::new("hostile", bytes, scratch_bytes),
    };
    let program = match program {
        Ok(program) => program,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let again =
        Program::from_encoding("again", &program.encoding()).expect("what was accepted is accepted again");
    assert_eq!((again.hash(), again.function()), (program.hash(), program.function()));
    let listed = asm::assemble(&program.listing()).expect("a listing assembles");
    assert_eq!(listed, program.bytecode());
    let window = program.window();
    assert!((-256..=0).contains(&window.first) && window.bytes <= 256);
    let mut node = vec![0; usize::from(window.bytes)];
    let mut scratch = vec![0; program.scratch_bytes()];
    for _ in 0..HOPS {
        generate::memory(&mut random, &mut node);
        generate::memory(&mut random, &mut scratch);
        let mut walk = Walk { fuel: FUEL, ..Walk::default() };
        let step = Checked::new(&node, window.first.into(), &mut scratch, &mut walk).step(program.function());
        if let Err(broken) = step {
            panic!("{broken}\n{}", program.listing());
        }
        assert_eq!((walk.fuel, walk.reserved), (FUEL, 0));
    }
}

/// Random programs as instructions and as encodings; the least object file.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![[&[1, 0, 0, 0][..], &object(&generate::program(3))].concat()];
    for seed in 0..24 {
        let bytecode = generate::program(seed);
        let scratch = (generate::SCRATCH_BYTES / 8) as u8;
        seeds.push([&[2, scratch, seed as u8, 0][..], &bytecode].concat());
        if let Ok(program) = Program::new("seed", &bytecode, generate::SCRATCH_BYTES) {
            seeds.push([&[0, 0, seed as u8, 0][..], &program.encoding()].concat());
        }
    }
    seeds
}

/// An object file with one function, `step`: nothing, names, code, symbols.
fn object(code: &[u8]) -> Vec<u8> {
    const NAMES: &[u8] = b"\0step\0";
    let symbol = {
        let mut symbol = [0; 48];
        symbol[24] = 1;
        symbol[28] = 0x12;
        symbol[30] = 2;
        symbol[40..].copy_from_slice(&(code.len() as u64).to_le_bytes());
        symbol
    };
    let mut file = vec![0; 64];
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    (file[16], file[18], file[52], file[58], file[60], file[62]) = (1, 247, 64, 64, 4, 1);
    let mut headers = vec![[0; 64]];
    for (kind, link, bytes) in [(3_u8, 0_u8, NAMES), (1, 0, code), (2, 1, &symbol)] {
        let mut header = [0; 64];
        (header[4], header[40]) = (kind, link);
        header[24..32].copy_from_slice(&(file.len() as u64).to_le_bytes());
        header[32..40].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        headers.push(header);
        file.extend(bytes);
    }
    let table = (file.len() as u64).to_le_bytes();
    file[40..48].copy_from_slice(&table);
    file.extend(headers.concat());
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_that_fuzzing_starts_from_is_one() {
        let code = generate::program(3);
        assert_eq!(elf::function(&object(&code), Some("step")).expect("an object"), code);
    }
}
