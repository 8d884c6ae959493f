// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The C face: memlift.h.
#![deny(unsafe_code)]
