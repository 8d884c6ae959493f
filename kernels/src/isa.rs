// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Instruction-set levels: which ones exist, how they are called, which ones this CPU has.
//!
//! - **Order** `Scalar < Sse2 < Avx2 < Avx512`: a later level is preferred where it is available.
//! - **Not here** the choice itself: see [`choice`](crate::choice).

/// A level of instructions that one table of routines is compiled for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Isa {
    /// Portable code, on every CPU. Non-temporal routines use ordinary stores.
    Scalar,
    /// 16-byte vectors: every x86-64 CPU.
    Sse2,
    /// 32-byte vectors, with the CRC32 instruction (SSE4.2) and carry-less multiplication (PCLMULQDQ).
    Avx2,
    /// 64-byte vectors: AVX-512 F, BW, VL and VPCLMULQDQ (Ice Lake, Zen 4 and later), on top of `Avx2`.
    Avx512,
}

impl Isa {
    /// All levels, plainest first.
    pub const ALL: [Isa; 4] = [Isa::Scalar, Isa::Sse2, Isa::Avx2, Isa::Avx512];

    /// The name that `MEMLIFT_ISA` uses.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Sse2 => "sse2",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }

    /// The level with this name, if there is one. Upper and lower case are the same.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name().eq_ignore_ascii_case(name))
    }

    /// Returns true if this CPU (and kernel: the registers must be saved) can run the level.
    #[cfg(target_arch = "x86_64")]
    pub fn available(self) -> bool {
        use std::arch::is_x86_feature_detected as has;
        match self {
            Isa::Scalar | Isa::Sse2 => true,
            Isa::Avx2 => has!("avx2") && has!("sse4.2") && has!("pclmulqdq"),
            Isa::Avx512 => {
                Isa::Avx2.available()
                    && has!("avx512f")
                    && has!("avx512bw")
                    && has!("avx512vl")
                    && has!("vpclmulqdq")
            }
        }
    }

    /// Returns true if this CPU can run the level.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn available(self) -> bool {
        matches!(self, Isa::Scalar)
    }

    /// The last available level that is not above this one.
    pub fn best_available_below(self) -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| *isa <= self && isa.available()).unwrap_or(Isa::Scalar)
    }
}

/// True if the CPU says that Intel made it. Asked once: in a virtual machine each CPUID is a trap of tens of microseconds.
pub(crate) fn is_intel() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        static INTEL: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        *INTEL.get_or_init(|| {
            let leaf = core::arch::x86_64::__cpuid(0);
            [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes) == [*b"Genu", *b"ineI", *b"ntel"]
        })
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

impl core::fmt::Display for Isa {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Isa;

    #[test]
    fn names_are_read_back() {
        for isa in Isa::ALL {
            assert_eq!(Isa::from_name(isa.name()), Some(isa));
            assert_eq!(Isa::from_name(&isa.name().to_uppercase()), Some(isa));
        }
        assert_eq!(Isa::from_name("avx1024"), None);
        assert_eq!(Isa::from_name(""), None);
    }

    #[test]
    fn levels_build_on_each_other() {
        assert!(Isa::Scalar.available());
        for pair in Isa::ALL.windows(2) {
            assert!(pair[0] < pair[1]);
            assert!(pair[0].available() || !pair[1].available());
        }
        assert_eq!(Isa::Scalar.best_available_below(), Isa::Scalar);
    }
}
