// SPDX-License-Identifier: Apache-2.0 OR MIT
//! libFuzzer's entry to [`memlift_fuzz::ipc_client`].
#![no_main]
#![deny(unsafe_code)]

libfuzzer_sys::fuzz_target!(|data: &[u8]| memlift_fuzz::ipc_client::run(data));
