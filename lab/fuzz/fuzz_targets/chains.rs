// SPDX-License-Identifier: Apache-2.0 OR MIT
//! libFuzzer's entry to [`memlift_fuzz::chains`].
#![no_main]
#![deny(unsafe_code)]

libfuzzer_sys::fuzz_target!(|data: &[u8]| memlift_fuzz::chains::run(data));
