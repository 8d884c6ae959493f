// SPDX-License-Identifier: Apache-2.0 OR MIT
//! zmem under unmodified programs, by LD_PRELOAD.
#![deny(unsafe_code)]
