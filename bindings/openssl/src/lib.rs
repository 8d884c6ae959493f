// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AES-GCM for every program on OpenSSL 3: a provider.
#![deny(unsafe_code)]
