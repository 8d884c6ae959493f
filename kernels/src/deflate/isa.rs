// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The instructions that the packer may use.

use crate::Isa;

/// Returns true if [`Avx2`](super::same::Avx2) can be used at this level.
pub fn has_avx2(isa: Isa) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        isa >= Isa::Avx2 && isa.available() && has!("bmi1") && has!("bmi2") && has!("lzcnt")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = isa;
        false
    }
}
