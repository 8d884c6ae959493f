// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Machine code in memory: its pages are first writable and not executable, then executable and not writable, and are freed at
//! the end.
//!
//! - **Flow** [`Code::build`]: Cranelift IR ──compile──▶ bytes ──`prefetch::patch`──▶ `cranelift_jit`'s pages (mapped read-write,
//!   then set to read-execute) ──▶ two function pointers
//! - **Order** settings of the compiler: see [`flags`]
//! - **Owner** [`Code`] owns the pages; dropping it unmaps them

use super::lower::{Bases, Body};
use super::{CompileError, prefetch, reach::Reach, round};
use crate::ir::Function;
use crate::slot::{Region, Slot};
use crate::step::StepFn;
use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{AbiParam, InstBuilder, Signature, Type, types};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{FuncId, Module};
use std::sync::Mutex;

pub(super) type RoundFn =
    unsafe extern "C" fn(slots: *mut Slot, count: usize, region: *const Region) -> usize;

/// Two functions, and the pages that contain them.
pub(super) struct Code {
    pub step: StepFn,
    pub round: RoundFn,
    pub bytes: usize,
    /// Only drop takes this. It is in a mutex that nobody else locks because a module is `Send` and not `Sync`.
    module: Mutex<Option<JITModule>>,
}

impl core::fmt::Debug for Code {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Code({} bytes)", self.bytes)
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        let module = self.module.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(module) = module.take() {
            // SAFETY: the last owner of the code is being dropped, so no call of it is running, and none follows
            // (`Compiled::step_fn`).
            unsafe { module.free_memory() };
        }
    }
}

fn flags() -> [(&'static str, &'static str); 5] {
    [
        ("opt_level", "speed"),
        ("enable_verifier", if cfg!(debug_assertions) { "true" } else { "false" }),
        ("unwind_info", "false"),
        ("preserve_frame_pointers", "false"),
        ("enable_probestack", "false"),
    ]
}

impl Code {
    /// Compiles both functions.
    pub fn build(function: &Function, reach: &Reach) -> Result<Code, CompileError> {
        if cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))) {
            return Err(CompileError::Unsupported);
        }
        let builder =
            JITBuilder::with_flags(&flags(), cranelift_module::default_libcall_names()).map_err(compiler)?;
        let mut draft = Draft {
            module: JITModule::new(builder),
            context: Context::new(),
            functions: FunctionBuilderContext::new(),
            bytes: 0,
        };
        // On an error the draft's module is dropped. That leaks its pages, which were never executable; it is rare.
        let step = draft.define(types::I32, |builder| step(builder, function, reach))?;
        let round = draft.define(types::I64, |builder| round::emit(builder, function, reach))?;
        let Draft { mut module, bytes, .. } = draft;
        module.finalize_definitions().map_err(compiler)?;
        let step = module.get_finalized_function(step);
        let round = module.get_finalized_function(round);
        Ok(Code {
            // SAFETY: `step` was emitted with the signature of `StepFn`, in the calling convention of this system.
            step: unsafe { core::mem::transmute::<*const u8, StepFn>(step) },
            // SAFETY: `round` was emitted with the signature of `RoundFn`.
            round: unsafe { core::mem::transmute::<*const u8, RoundFn>(round) },
            bytes,
            module: Mutex::new(Some(module)),
        })
    }
}

/// Emits the step as a function of its own.
fn step(builder: &mut FunctionBuilder, function: &Function, reach: &Reach) {
    let [entry, exit] = core::array::from_fn(|_| builder.create_block());
    let body = Body::declare(builder, reach);
    builder.append_block_params_for_function_params(entry);
    builder.switch_to_block(entry);
    let [node, scratch, walk] = core::array::from_fn(|at| builder.block_params(entry)[at]);
    body.emit(builder, function, reach, Bases { node, scratch, walk, walk_offset: 0 }, exit);
    builder.switch_to_block(exit);
    let verdict = builder.use_var(body.verdict);
    builder.ins().return_(&[verdict]);
}

struct Draft {
    module: JITModule,
    context: Context,
    functions: FunctionBuilderContext,
    bytes: usize,
}

impl Draft {
    /// Compiles a function with three parameters of one word each.
    fn define(
        &mut self,
        returns: Type,
        emit: impl FnOnce(&mut FunctionBuilder),
    ) -> Result<FuncId, CompileError> {
        let isa = self.module.isa();
        let mut signature = Signature::new(isa.default_call_conv());
        signature.params.extend([AbiParam::new(types::I64); 3]);
        signature.returns.push(AbiParam::new(returns));
        let id = self.module.declare_anonymous_function(&signature).map_err(compiler)?;
        self.context.clear();
        self.context.func.signature = signature;
        let mut builder = FunctionBuilder::new(&mut self.context.func, &mut self.functions);
        emit(&mut builder);
        builder.seal_all_blocks();
        let isa = self.module.isa();
        builder.finalize(isa.frontend_config());
        let compiled = self
            .context
            .compile(isa, &mut ControlPlane::default())
            .map_err(|error| CompileError::Compiler(format!("{:?}", error.inner)))?;
        if !compiled.buffer.relocs().is_empty() {
            return Err(CompileError::Compiler("the code refers to something outside of itself".into()));
        }
        let mut code = compiled.code_buffer().to_vec();
        prefetch::patch(&mut code, compiled.buffer.traps())?;
        let alignment = u64::from(compiled.buffer.alignment).max(64);
        self.bytes += code.len();
        self.module.define_function_bytes(id, alignment, &code, &[]).map_err(compiler)?;
        Ok(id)
    }
}

fn compiler(error: impl core::fmt::Display) -> CompileError {
    CompileError::Compiler(error.to_string())
}
