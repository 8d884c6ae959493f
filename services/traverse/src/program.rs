// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program: bytecode that was decoded, lowered and verified, with everything needed to run it.
//!
//! - **Flow** bytecode ──decode, lower, verify──▶ [`Program`] ──▶ `interp` or `jit`
//! - **Layout** [`Program::encoding`]: header and instructions as `memlift_spec::formats::walk` defines them
//! - **Order** the name is not part of the encoding: equal encodings have equal hashes
//! - **Owner** immutable; all users share it
//! - **Not here** permission to register and run it (`node`)

use crate::bpf::{Code, decode, disasm};
use crate::error::{Error, Result};
use crate::ir::{Function, Inst, Space};
use crate::lower::lower;
use crate::verify::{self, Rejection, Verified};
use memlift_spec::formats::walk::{
    INSTRUCTION_BYTES, PROGRAM_HEADER_BYTES, PROGRAM_MAGIC, PROGRAM_VERSION, ProgramHeader, SCRATCH_BYTES_MAX,
};

pub use crate::verify::cost::Cost;
pub use crate::verify::window::Window;

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Program {
    name: String,
    bytecode: Vec<u8>,
    code: Code,
    scratch_bytes: u32,
    hash: [u8; 32],
    verified: Verified,
}

impl Program {
    /// Decodes, lowers and verifies `bytecode`, for a scratchpad of `scratch_bytes` (a multiple of 8, at most 4096).
    ///
    /// # Errors
    /// The invalid instruction, and the reason.
    pub fn new(name: impl Into<String>, bytecode: &[u8], scratch_bytes: usize) -> Result<Program> {
        if scratch_bytes > SCRATCH_BYTES_MAX || !scratch_bytes.is_multiple_of(8) {
            return Err(Error::Program(format!(
                "a scratchpad of {scratch_bytes} bytes; it is a multiple of 8 and at most {SCRATCH_BYTES_MAX}"
            )));
        }
        let scratch_bytes = scratch_bytes as u32;
        let code = decode::decode(bytecode)?;
        let reject = |Rejection { at, reason }: Rejection| {
            let text = code.at_place(at.into()).map(|index| code.instructions[index].to_string());
            Error::Rejected { at, text: text.unwrap_or_default(), reason }
        };
        let verified =
            lower(&code).and_then(|function| verify::verify(function, scratch_bytes)).map_err(reject)?;
        let mut program = Program {
            name: name.into(),
            bytecode: bytecode.to_vec(),
            code,
            scratch_bytes,
            hash: [0; 32],
            verified,
        };
        program.hash = *blake3::hash(&program.encoding()).as_bytes();
        Ok(program)
    }

    /// Decodes the bytes that [`Program::encoding`] has returned.
    ///
    /// # Errors
    /// The errors of [`Program::new`], and an invalid header.
    pub fn from_encoding(name: impl Into<String>, encoding: &[u8]) -> Result<Program> {
        let Some((header, bytecode)) = encoding.split_first_chunk::<PROGRAM_HEADER_BYTES>() else {
            return Err(Error::Program(format!("{} bytes are too few for a header", encoding.len())));
        };
        let header = ProgramHeader::from_bytes(*header);
        if header.magic != PROGRAM_MAGIC || header.version != PROGRAM_VERSION || header.reserved != 0 {
            return Err(Error::Program(format!(
                "its header is none of version {PROGRAM_VERSION}; encode it with this version of memlift"
            )));
        }
        if header.instructions as usize * INSTRUCTION_BYTES != bytecode.len() {
            return Err(Error::Program(format!(
                "its header says {} instructions, but {} bytes follow",
                header.instructions,
                bytecode.len()
            )));
        }
        Program::new(name, bytecode, header.scratch_bytes as usize)
    }

    /// Returns the program's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the program's bytecode.
    #[must_use]
    pub fn bytecode(&self) -> &[u8] {
        &self.bytecode
    }

    /// Returns the decoded instructions.
    #[must_use]
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// Encodes the program: header and instructions.
    #[must_use]
    pub fn encoding(&self) -> Vec<u8> {
        let header = ProgramHeader::new(self.scratch_bytes, (self.bytecode.len() / INSTRUCTION_BYTES) as u32);
        [&header.to_bytes()[..], &self.bytecode].concat()
    }

    /// Returns the BLAKE3 hash of the encoding.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }

    /// Returns the verified IR.
    #[must_use]
    pub fn function(&self) -> &Function {
        &self.verified.function
    }

    /// Returns the bytes around `cur_ptr` that a step may read.
    #[must_use]
    pub fn window(&self) -> Window {
        self.verified.window
    }

    /// Returns the 64-byte lines that a step can read if `cur_ptr` is at the start of a line: bit 4 is that line,
    /// bit 3 the one before.
    #[must_use]
    pub fn lines(&self) -> u8 {
        self.verified.lines
    }

    /// Returns the bytes of the program's scratchpad.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.scratch_bytes as usize
    }

    /// Returns the number of bytes at the scratchpad's start that the program can store to; it never changes bytes
    /// behind them.
    #[must_use]
    pub fn scratch_stored(&self) -> usize {
        let stores =
            self.function().blocks.iter().flat_map(|block| &block.insts).filter_map(|inst| match inst {
                Inst::Store { size, address, .. } if address.space == Space::Scratch => {
                    let last = address.index.map_or(0, |index| index.last);
                    Some(
                        i64::from(address.offset)
                            .saturating_add(last)
                            .saturating_add(i64::from(size.bytes())),
                    )
                }
                _ => None,
            });
        let end = stores.max().unwrap_or(0).max(0);
        usize::try_from(end).unwrap_or(usize::MAX).min(self.scratch_bytes())
    }

    /// Returns the cost of one step, as the verifier has computed it.
    #[must_use]
    pub fn cost(&self) -> Cost {
        self.verified.cost
    }

    /// Returns true if the program can ask for an apply: it stores to that field.
    #[must_use]
    pub fn uses_apply(&self) -> bool {
        self.verified.uses_apply
    }

    /// Returns true if the program can emit: it stores to those fields.
    #[must_use]
    pub fn uses_emit(&self) -> bool {
        self.verified.uses_emit
    }

    /// Returns the program as text that `bpf::asm` can read.
    #[must_use]
    pub fn listing(&self) -> String {
        disasm::listing(&self.code)
    }
}
