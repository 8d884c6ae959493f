// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Zstandard for pages, in a workspace of fixed size: the library allocates nothing.
//!
//! Flow    workspace ──[`ZSTD_initStaticCCtx`], level 1 with a window of 4 KiB──▶ frame without magic number and size
//! Layout  the workspace serves packing and unpacking by turns: each call makes its context anew, in a few hundred
//!         nanoseconds
//! Not here when it is worth its time (`choose`)
//!
//! Source: zstd.h of libzstd 1.5.7, "Static allocation" and "Advanced parameters".

use zstd_safe::zstd_sys::{
    ZSTD_CCtx_setParameter, ZSTD_DCtx_setParameter, ZSTD_cParameter, ZSTD_compress2, ZSTD_dParameter,
    ZSTD_decompressDCtx, ZSTD_format_e, ZSTD_initStaticCCtx, ZSTD_initStaticDCtx, ZSTD_isError,
};

use super::PAGE_BYTES;

/// Enough for both directions; a test asks the library.
const WORKSPACE_BYTES: usize = 104 << 10;

/// Where a context lies while it is used.
#[repr(C, align(64))]
pub(super) struct Workspace([u8; WORKSPACE_BYTES]);

impl Workspace {
    pub(super) const fn new() -> Workspace {
        Workspace([0; WORKSPACE_BYTES])
    }
}

const PARAMETERS: [(ZSTD_cParameter, i32); 4] = [
    (ZSTD_cParameter::ZSTD_c_compressionLevel, 1),
    (ZSTD_cParameter::ZSTD_c_windowLog, 12),
    (ZSTD_cParameter::ZSTD_c_contentSizeFlag, 0),
    (ZSTD_cParameter::ZSTD_c_experimentalParam2, ZSTD_format_e::ZSTD_f_zstd1_magicless as i32),
];

/// Packs the page; none if it does not fit.
pub(super) fn pack(workspace: &mut Workspace, page: &[u8; PAGE_BYTES], target: &mut [u8]) -> Option<usize> {
    // SAFETY: the context lies in the workspace, which is aligned, as large as said, and borrowed for the calls; source
    // and target are slices that are borrowed as long.
    unsafe {
        let context = ZSTD_initStaticCCtx(workspace.0.as_mut_ptr().cast(), WORKSPACE_BYTES);
        if context.is_null() {
            return None;
        }
        for (parameter, value) in PARAMETERS {
            if ZSTD_isError(ZSTD_CCtx_setParameter(context, parameter, value)) != 0 {
                return None;
            }
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

/// Unpacks what must be a page; none if it is none.
pub(super) fn unpack(workspace: &mut Workspace, source: &[u8], page: &mut [u8; PAGE_BYTES]) -> Option<()> {
    // SAFETY: as in `pack`; the library checks the source and writes no more than the page.
    unsafe {
        let context = ZSTD_initStaticDCtx(workspace.0.as_mut_ptr().cast(), WORKSPACE_BYTES);
        if context.is_null() {
            return None;
        }
        let magicless = ZSTD_format_e::ZSTD_f_zstd1_magicless as i32;
        let set = ZSTD_DCtx_setParameter(context, ZSTD_dParameter::ZSTD_d_experimentalParam1, magicless);
        if ZSTD_isError(set) != 0 {
            return None;
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
        // SAFETY: the calls take numbers only.
        let (packs, unpacks) = unsafe {
            (ZSTD_estimateCCtxSize_usingCParams(ZSTD_getCParams(1, 4096, 0)), ZSTD_estimateDCtxSize())
        };
        assert!(packs <= WORKSPACE_BYTES && unpacks <= WORKSPACE_BYTES, "{packs} {unpacks}");
        println!("{packs} {unpacks}");
    }
}
