// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Prefetches, which Cranelift's IR lacks: a marked load that Cranelift must keep is emitted, and replaced by a prefetch in
//! the machine code.
//!
//! - **Flow** [`emit`]: a load of one byte (eight on aarch64) with a trap code of its own, whose result nobody uses
//!   ──Cranelift──▶ the code, with the offset of each such load in its table of traps ──[`patch`]──▶ the same bytes with the
//!   opcode replaced
//! - **Order** the instruction at the offset is decoded first, and anything but the expected load is an error. So no
//!   placeholder is ever left as a load: it would wait for memory, at an address that may not be mapped
//!
//! x86-64: `movzx r, byte [m]` (0F B6 /r) and `prefetcht0 [m]` (0F 18 /1) share length and address. aarch64: `ldr x, [n, …]`
//! and `prfm pldl1keep, [n, …]` differ in two bits.

use super::CompileError;
use cranelift_codegen::MachTrap;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, TrapCode, Value, types};
use cranelift_frontend::FunctionBuilder;

const PLACE: TrapCode = TrapCode::unwrap_user(1);

/// Prefetches the cache line of `base + offset`.
pub(super) fn emit(builder: &mut FunctionBuilder, base: Value, offset: i32) {
    let flags = MemFlagsData::new().with_trap_code(Some(PLACE));
    if cfg!(target_arch = "x86_64") {
        builder.ins().uload8(types::I64, flags, base, offset);
    } else {
        builder.ins().load(types::I64, flags, base, offset);
    }
}

/// Turns the placeholder loads into prefetches. If no step returns `Next`, Cranelift has removed them as dead code.
pub(super) fn patch(code: &mut [u8], traps: &[MachTrap]) -> Result<(), CompileError> {
    for trap in traps.iter().filter(|trap| trap.code == PLACE) {
        patch_one(code, trap.offset as usize).ok_or_else(|| {
            CompileError::Compiler(format!("no load at {:#x} to turn into a prefetch", trap.offset))
        })?;
    }
    Ok(())
}

#[cfg(target_arch = "x86_64")]
fn patch_one(code: &mut [u8], at: usize) -> Option<()> {
    let rex = usize::from(code.get(at)? & 0xF0 == 0x40);
    let [escape, opcode, modrm] = code.get_mut(at + rex..at + rex + 3)? else { return None };
    if (*escape, *opcode) != (0x0F, 0xB6) || *modrm >= 0xC0 {
        return None;
    }
    *opcode = 0x18;
    *modrm = *modrm & 0b1100_0111 | 1 << 3;
    if rex == 1 {
        code[at] &= !0b0000_1100; // W and R both belonged to the register that was loaded
    }
    Some(())
}

#[cfg(target_arch = "aarch64")]
fn patch_one(code: &mut [u8], at: usize) -> Option<()> {
    let bytes = code.get_mut(at..at + 4)?;
    let word = u32::from_le_bytes(bytes.try_into().ok()?);
    // Three forms of the address: scaled offset, unscaled offset, register. In each, bits 23 and 22 are 01 in the load
    // and 10 in the prefetch.
    let scaled = word & 0xFFC0_0000 == 0xF940_0000;
    let unscaled = word & 0xFFE0_0C00 == 0xF840_0000;
    let register = word & 0xFFE0_0C00 == 0xF860_0800;
    if !(scaled || unscaled || register) {
        return None;
    }
    bytes.copy_from_slice(&((word & !0x00C0_001F) | 0x0080_0000).to_le_bytes());
    Some(())
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn patch_one(_: &mut [u8], _: usize) -> Option<()> {
    None
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::patch_one;

    #[test]
    fn a_load_of_a_byte_becomes_a_prefetch_of_the_same_address() {
        // movzx eax, byte [rsi+8]; movzx r9, byte [r12+r13*1+64]; movzx eax, byte [rip+4]
        let mut code = [0x0F, 0xB6, 0x46, 8, 0x4F, 0x0F, 0xB6, 0x4C, 0x2C, 64];
        patch_one(&mut code, 0).expect("a load");
        patch_one(&mut code, 4).expect("a load");
        // prefetcht0 [rsi+8]; prefetcht0 [r12+r13*1+64]
        assert_eq!(code, [0x0F, 0x18, 0x4E, 8, 0x43, 0x0F, 0x18, 0x4C, 0x2C, 64]);
    }

    #[test]
    fn anything_else_is_refused() {
        for code in [&[0x0F, 0xB6, 0xC1][..], &[0x48, 0x8B, 0x06], &[0x0F, 0xB7, 0x06], &[0x0F, 0xB6], &[]] {
            let mut copy = code.to_vec();
            assert!(patch_one(&mut copy, 0).is_none(), "{code:02x?}");
            assert_eq!(copy, code, "left as it was");
        }
    }
}
