// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Zstandard for pages, in a workspace of fixed size: the library allocates nothing.
//!
//! - **Flow** workspace ──[`ZSTD_initStaticCCtx`], level 1 with a window of 4 KiB──▶ frame without magic number and size.
//! - **Layout** the workspace serves packing and unpacking in turn. A context stays valid as long as only one of the two is done and the
//!   workspace does not move (a context contains pointers into itself).
//! - **Not here** the decision when Zstandard is worth its time (`choose`).
//!
//! Source: zstd.h of libzstd 1.5.7, "Static allocation" and "Advanced parameters".

use zstd_safe::zstd_sys::{
    ZSTD_CCtx_setParameter, ZSTD_DCtx_setParameter, ZSTD_cParameter, ZSTD_compress2, ZSTD_dParameter,
    ZSTD_decompressDCtx, ZSTD_format_e, ZSTD_initStaticCCtx, ZSTD_initStaticDCtx, ZSTD_isError,
};

use super::PAGE_BYTES;

/// Bytes that suffice for packing and for unpacking; a test asks the library.
const WORKSPACE_BYTES: usize = 104 << 10;

/// Memory for one context of libzstd.
#[repr(C, align(64))]
pub(super) struct Workspace {
    bytes: [u8; WORKSPACE_BYTES],
    /// Address at which the context was made; `holds` says if it packs or unpacks.
    context_at: usize,
    holds: u8,
}

const NOTHING: u8 = 0;
const PACKS: u8 = 1;
const UNPACKS: u8 = 2;

impl Workspace {
    pub(super) const fn new() -> Workspace {
        Workspace { bytes: [0; WORKSPACE_BYTES], context_at: 0, holds: NOTHING }
    }

    /// Returns the context's address, and true if a context of the wanted kind is ready there.
    fn context(&mut self, wanted: u8) -> (*mut std::ffi::c_void, bool) {
        let start = self.bytes.as_mut_ptr().cast::<std::ffi::c_void>();
        (start, self.holds == wanted && self.context_at == start.addr())
    }

    /// Records that a context of this kind is ready at the present address.
    fn mark_ready(&mut self, kind: u8) {
        (self.context_at, self.holds) = (self.bytes.as_ptr().addr(), kind);
    }
}

const PARAMETERS: [(ZSTD_cParameter, i32); 4] = [
    (ZSTD_cParameter::ZSTD_c_compressionLevel, 1),
    (ZSTD_cParameter::ZSTD_c_windowLog, 12),
    (ZSTD_cParameter::ZSTD_c_contentSizeFlag, 0),
    (ZSTD_cParameter::ZSTD_c_experimentalParam2, ZSTD_format_e::ZSTD_f_zstd1_magicless as i32),
];

/// Packs the page; returns `None` if it does not fit.
pub(super) fn pack(workspace: &mut Workspace, page: &[u8; PAGE_BYTES], target: &mut [u8]) -> Option<usize> {
    let (start, ready) = workspace.context(PACKS);
    // SAFETY: the context lies in the workspace, which is aligned, of the given size, and borrowed for the calls; a ready context
    // was made there by this function and not touched since; source and target are slices borrowed for the calls.
    unsafe {
        let mut context = start.cast();
        if !ready {
            workspace.holds = NOTHING;
            context = ZSTD_initStaticCCtx(start, WORKSPACE_BYTES);
            if context.is_null() {
                return None;
            }
            for (parameter, value) in PARAMETERS {
                if ZSTD_isError(ZSTD_CCtx_setParameter(context, parameter, value)) != 0 {
                    return None;
                }
            }
            workspace.mark_ready(PACKS);
        }
        let bytes = ZSTD_compress2(
            context,
            target.as_mut_ptr().cast(),
            target.len(),
            page.as_ptr().cast(),
            PAGE_BYTES,
        );
        (ZSTD_isError(bytes) == 0).then_some(bytes)
    }
}

/// Unpacks a page; returns `None` if the source is not one.
pub(super) fn unpack(workspace: &mut Workspace, source: &[u8], page: &mut [u8; PAGE_BYTES]) -> Option<()> {
    let (start, ready) = workspace.context(UNPACKS);
    // SAFETY: the conditions of `pack`; the library checks the source and writes no more than the page.
    unsafe {
        let mut context = start.cast();
        if !ready {
            workspace.holds = NOTHING;
            context = ZSTD_initStaticDCtx(start, WORKSPACE_BYTES);
            if context.is_null() {
                return None;
            }
            let magicless = ZSTD_format_e::ZSTD_f_zstd1_magicless as i32;
            let set = ZSTD_DCtx_setParameter(context, ZSTD_dParameter::ZSTD_d_experimentalParam1, magicless);
            if ZSTD_isError(set) != 0 {
                return None;
            }
            workspace.mark_ready(UNPACKS);
        }
        let bytes = ZSTD_decompressDCtx(
            context,
            page.as_mut_ptr().cast(),
            PAGE_BYTES,
            source.as_ptr().cast(),
            source.len(),
        );
        (bytes == PAGE_BYTES).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zstd_safe::zstd_sys::{ZSTD_estimateCCtxSize_usingCParams, ZSTD_estimateDCtxSize, ZSTD_getCParams};

    #[test]
    fn the_workspace_is_large_enough() {
        // SAFETY: the calls take only numbers and have no conditions.
        let (packs, unpacks) = unsafe {
            (ZSTD_estimateCCtxSize_usingCParams(ZSTD_getCParams(1, 4096, 0)), ZSTD_estimateDCtxSize())
        };
        assert!(packs <= WORKSPACE_BYTES && unpacks <= WORKSPACE_BYTES, "{packs} {unpacks}");
    }

    #[test]
    fn a_workspace_that_moves_makes_its_context_anew() {
        let page: [u8; PAGE_BYTES] = std::array::from_fn(|index| (index / 9 % 40) as u8);
        let mut places = Box::new([Workspace::new(), Workspace::new()]);
        let (mut target, mut again) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
        for _ in 0..4 {
            let bytes = pack(&mut places[0], &page, &mut target).expect("it repeats");
            assert_eq!(pack(&mut places[0], &page, &mut target), Some(bytes));
            assert_eq!(pack(&mut places[0], &page, &mut target[..bytes - 1]), None);
            assert_eq!(pack(&mut places[0], &page, &mut target), Some(bytes));
            places.swap(0, 1);
            for _ in 0..2 {
                again.fill(0);
                unpack(&mut places[1], &target[..bytes], &mut again).expect("our own bytes");
                assert!(page == again);
                assert_eq!(unpack(&mut places[1], &target[..bytes - 1], &mut again), None);
            }
            places.swap(0, 1);
        }
    }
}
