// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The round as machine code: a loop over slots that contains the step, and translates and prefetches the next node.
//!
//! - **Flow** `round(slots, count, region)`: load the region into registers. Per slot: if it is not in state `RUN`, next slot;
//!   run the step; on `Next` count the hop, translate, prefetch, next slot; otherwise write the verdict, list the slot and count
//!   it as stopped. Returns how many stopped
//! - **Layout** offsets are those of [`Slot`] and [`Region`]
//! - **Order** the offset into the region is clamped without a branch before it becomes an address
//! - **Not here** the same function without a compiler: `crate::round`

use super::lower::{Bases, Body, PLAIN};
use super::{prefetch, reach::Reach};
use crate::ir::Function;
use crate::slot::{RUN, Region, STOPPED, Slot};
use crate::step::Walk;
use core::mem::offset_of;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, types};
use cranelift_frontend::FunctionBuilder;

const HOST: i32 = offset_of!(Slot, host) as i32;
const SCRATCH: i32 = offset_of!(Slot, scratch) as i32;
const CUR: i32 = offset_of!(Slot, cur) as i32;
const HOPS_LEFT: i32 = offset_of!(Slot, hops_left) as i32;
const STATE: i32 = offset_of!(Slot, state) as i32;
const VERDICT: i32 = offset_of!(Slot, verdict) as i32;
const NTH_STOPPED: i32 = offset_of!(Slot, nth_stopped) as i32;
const WALK: i32 = offset_of!(Slot, walk) as i32;
const NEXT: i32 = WALK + offset_of!(Walk, next) as i32;

/// Shift that turns a slot's number into its offset.
const SLOT_SHIFT: i64 = size_of::<Slot>().trailing_zeros() as i64;

/// Emits the loop into an empty function with three parameters.
pub(super) fn emit(builder: &mut FunctionBuilder, function: &Function, reach: &Reach) {
    let [entry, head, look, step, exit, go, on, far, stop, next, done] =
        core::array::from_fn(|_| builder.create_block());
    let slot = builder.declare_var(types::I64);
    let stopped = builder.declare_var(types::I64);
    let body = Body::declare(builder, reach);

    builder.append_block_params_for_function_params(entry);
    builder.switch_to_block(entry);
    let [slots, count, region] = core::array::from_fn(|at| builder.block_params(entry)[at]);
    let base = builder.ins().load(types::I64, PLAIN, region, offset_of!(Region, base) as i32);
    let bytes = builder.ins().load(types::I64, PLAIN, region, offset_of!(Region, bytes) as i32);
    let mapped = builder.ins().load(types::I64, PLAIN, region, offset_of!(Region, host) as i32);
    let length = builder.ins().imul_imm_s(count, size_of::<Slot>() as i64);
    let end = builder.ins().iadd(slots, length);
    let zero = builder.ins().iconst(types::I64, 0);
    builder.def_var(slot, slots);
    builder.def_var(stopped, zero);
    builder.ins().jump(head, &[]);

    builder.switch_to_block(head);
    let this = builder.use_var(slot);
    let more = builder.ins().icmp(IntCC::NotEqual, this, end);
    builder.ins().brif(more, look, &[], done, &[]);

    builder.switch_to_block(look);
    let state = builder.ins().load(types::I32, PLAIN, this, STATE);
    let due = builder.ins().icmp_imm_u(IntCC::Equal, state, i64::from(RUN));
    builder.ins().brif(due, step, &[], next, &[]);

    builder.switch_to_block(step);
    let node = builder.ins().load(types::I64, PLAIN, this, HOST);
    let scratch = builder.ins().load(types::I64, PLAIN, this, SCRATCH);
    body.emit(builder, function, reach, Bases { node, scratch, walk: this, walk_offset: WALK }, exit);

    builder.switch_to_block(exit);
    let verdict = builder.use_var(body.verdict);
    builder.ins().brif(verdict, stop, &[], go, &[]); // `Next` is 0

    builder.switch_to_block(go);
    let hops = builder.ins().load(types::I32, PLAIN, this, HOPS_LEFT);
    let hops = builder.ins().iadd_imm_s(hops, -1);
    builder.ins().store(PLAIN, hops, this, HOPS_LEFT);
    let to = builder.ins().load(types::I64, PLAIN, this, NEXT);
    builder.ins().store(PLAIN, to, this, CUR);
    let offset = builder.ins().isub(to, base);
    let outside = builder.ins().icmp(IntCC::UnsignedGreaterThanOrEqual, offset, bytes);
    let last = builder.ins().icmp_imm_u(IntCC::Equal, hops, 0);
    let leave = builder.ins().bor(outside, last);
    builder.ins().brif(leave, stop, &[], on, &[]);

    builder.switch_to_block(on);
    let zero = builder.ins().iconst(types::I64, 0);
    let clamped = builder.ins().select_spectre_guard(outside, zero, offset);
    let host = builder.ins().iadd(mapped, clamped);
    builder.ins().store(PLAIN, host, this, HOST);
    let prefetch_offsets = reach.prefetch_offsets();
    if let [lines @ .., last] = &prefetch_offsets[..] {
        for &touch in lines {
            prefetch::emit(builder, host, i32::from(touch));
        }
        // Only for a node that does not start at a cache line does the window's last byte lie in an
        // additional line.
        let behind = lines.last().map(|&touch| {
            let [before, after] = [touch, *last].map(|at| builder.ins().iadd_imm_s(host, i64::from(at)));
            let differ = builder.ins().bxor(before, after);
            builder.ins().ushr_imm_u(differ, 6)
        });
        if let Some(behind) = behind {
            builder.ins().brif(behind, far, &[], next, &[]);
            builder.switch_to_block(far);
        }
        prefetch::emit(builder, host, i32::from(*last));
    }
    builder.ins().jump(next, &[]);

    builder.switch_to_block(stop);
    builder.set_cold_block(stop);
    let state = builder.ins().iconst(types::I32, i64::from(STOPPED));
    builder.ins().store(PLAIN, state, this, STATE);
    builder.ins().store(PLAIN, verdict, this, VERDICT);
    let count = builder.use_var(stopped);
    let number = builder.ins().isub(this, slots);
    let number = builder.ins().ushr_imm_u(number, SLOT_SHIFT);
    let place = builder.ins().ishl_imm_u(count, SLOT_SHIFT);
    let place = builder.ins().iadd(slots, place);
    builder.ins().istore32(PLAIN, number, place, NTH_STOPPED);
    let count = builder.ins().iadd_imm_s(count, 1);
    builder.def_var(stopped, count);
    builder.ins().jump(next, &[]);

    builder.switch_to_block(next);
    let following = builder.ins().iadd_imm_s(this, size_of::<Slot>() as i64);
    builder.def_var(slot, following);
    builder.ins().jump(head, &[]);

    builder.switch_to_block(done);
    let count = builder.use_var(stopped);
    builder.ins().return_(&[count]);
}
