// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decides once per library context if this provider serves, by `MEMLIFT_OPENSSL`, the configuration, the CPU and OpenSSL's version.
//!
//! - **Flow** `OSSL_provider_init` calls [`choose`]. If the provider does not serve, it offers no ciphers, and the next provider in
//!   OpenSSL's list serves.
//! - **Order** first the environment variable (`force`, `off`), then `serves = yes|no` in the provider's section, which `memlift dropin
//!   enable` writes after it has measured both, then the rule.
//! - **Rule** from measurements through EVP. Against OpenSSL 3.0's own code, with vector AES: 2 times as fast at 4 KiB and 2.6 at 16 KiB
//!   (2.1 to 2.2 with two blocks at a time, without AVX-512); with plain AES instructions: 1.02 to 1.07 times at 4 KiB and equal at 16
//!   KiB. From 3.1 to 4.0, OpenSSL has code for vector AES only with AVX-512; without AVX-512 ours reaches 5.0 to 7.2 GB/s and OpenSSL
//!   3.3 to 3.5.
//! - **Not here** a measurement: it would cost every short-lived program more than it could gain, and a hardened service has no place to
//!   store its result.

use core::ffi::CStr;

/// Environment variable: `force` serves on every CPU that can run the code, `off` never serves.
pub const VARIABLE: &CStr = c"MEMLIFT_OPENSSL";

/// The decision to serve or not, and the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    pub serves: bool,
    pub reason: &'static CStr,
}

/// Instructions for AES-GCM that the CPU has.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other CPUs are told apart less"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cpu {
    /// No instructions for AES or for GHASH.
    Plain,
    /// AES on one block at a time.
    Aes,
    /// AES on two blocks at a time.
    VectorAes,
    /// AES on four blocks at a time, with AVX-512.
    WideAes,
}

/// Decides if the provider serves. `asked` is the variable's value, `measured` that of the provider's section, `version` the
/// major and minor number of OpenSSL.
pub fn choose(asked: &[u8], measured: Option<bool>, cpu: Cpu, version: Option<(u32, u32)>) -> Choice {
    let serve = |reason| Choice { serves: true, reason };
    let aside = |reason| Choice { serves: false, reason };
    match asked {
        b"off" => return aside(c"stepped aside: MEMLIFT_OPENSSL=off"),
        b"force" => return serve(c"serves: MEMLIFT_OPENSSL=force"),
        _ => {}
    }
    match measured {
        Some(true) => return serve(c"serves: its section says serves = yes, as was measured"),
        Some(false) => return aside(c"stepped aside: its section says serves = no, as was measured"),
        None => {}
    }
    match (cpu, version) {
        (Cpu::Plain, _) => {
            aside(c"stepped aside: this CPU has no AES and carry-less multiplication instructions")
        }
        (Cpu::Aes, _) => aside(c"stepped aside: this CPU has no vector AES: OpenSSL's own code is as fast"),
        (_, None) => aside(c"stepped aside: this OpenSSL does not say its version"),
        (_, Some((3, 0))) => serve(c"serves: OpenSSL 3.0 has no code for this CPU's vector AES"),
        (Cpu::VectorAes, Some((3 | 4, _))) => {
            serve(c"serves: OpenSSL has no code for vector AES without AVX-512")
        }
        (_, Some(_)) => {
            aside(c"stepped aside: this OpenSSL (3.1 or later) may have its own code for vector AES")
        }
    }
}

/// Detects the AES instructions of this CPU.
#[cfg(target_arch = "x86_64")]
pub fn cpu() -> Cpu {
    use std::arch::is_x86_feature_detected as has;
    if !(has!("aes") && has!("pclmulqdq") && has!("ssse3")) {
        return Cpu::Plain;
    }
    if !(has!("avx2") && has!("vaes") && has!("vpclmulqdq")) {
        Cpu::Aes
    } else if has!("avx512f") && has!("avx512bw") && has!("avx512vl") {
        // OpenSSL's code for AVX-512 requires these features, and a few that every such CPU has.
        Cpu::WideAes
    } else {
        Cpu::VectorAes
    }
}

/// Returns `Aes`: other CPUs have not been measured, so OpenSSL's own code is assumed to be as fast.
#[cfg(not(target_arch = "x86_64"))]
pub fn cpu() -> Cpu {
    Cpu::Aes
}

/// Calls `then` with the variable's value. A program with more rights than its caller ignores the variable.
pub fn with_asked<T>(then: impl FnOnce(&[u8]) -> T) -> T {
    // SAFETY: the name is a C string; the value is valid while nobody changes the environment, and this runs while the program
    // loads the library.
    unsafe {
        let value = libc::getenv(VARIABLE.as_ptr());
        let ignored = value.is_null() || libc::getauxval(libc::AT_SECURE) != 0;
        then(if ignored { b"" } else { CStr::from_ptr(value).to_bytes() })
    }
}

#[cfg(test)]
mod tests {
    use super::{Cpu, choose};

    #[test]
    fn serves_only_where_it_is_faster_unless_told() {
        let serves = |asked: &[u8], cpu, version| choose(asked, None, cpu, version).serves;
        assert!(serves(b"", Cpu::VectorAes, Some((3, 0))) && serves(b"", Cpu::WideAes, Some((3, 0))));
        for version in [Some((3, 1)), Some((3, 5)), Some((4, 0)), Some((5, 0)), None] {
            assert!(!serves(b"", Cpu::WideAes, version));
            assert_eq!(serves(b"", Cpu::VectorAes, version), version.is_some_and(|version| version.0 < 5));
            assert!(serves(b"force", Cpu::WideAes, version));
            assert!(serves(b"force", Cpu::Plain, version));
        }
        assert!(!serves(b"", Cpu::Aes, Some((3, 0))));
        assert!(!serves(b"", Cpu::Plain, Some((3, 0))));
        assert!(!serves(b"off", Cpu::VectorAes, Some((3, 0))));
        assert!(serves(b"nonsense", Cpu::VectorAes, Some((3, 0))));
    }

    #[test]
    fn a_measurement_comes_before_the_rule_and_the_variable_before_it() {
        for cpu in [Cpu::Plain, Cpu::Aes, Cpu::VectorAes, Cpu::WideAes] {
            for version in [Some((3, 0)), Some((3, 5)), None] {
                assert!(choose(b"", Some(true), cpu, version).serves);
                assert!(!choose(b"", Some(false), cpu, version).serves);
                assert!(!choose(b"off", Some(true), cpu, version).serves);
                assert!(choose(b"force", Some(false), cpu, version).serves);
            }
        }
    }
}
