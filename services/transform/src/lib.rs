// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copy that seals, opens, packs, unpacks or checks on the way.
#![deny(unsafe_code)]
