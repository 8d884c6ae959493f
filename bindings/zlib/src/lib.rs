// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A libz that is faster: a drop-in for programs that were never recompiled.
#![deny(unsafe_code)]
