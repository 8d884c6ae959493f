// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel offers, facility by facility, and which ones `MEMLIFT_DISABLE` masks.

use memlift::engine::facility::{self, Availability, Facility};

use super::Check;

/// Those that cpuid tells; they stand in the section `cpu`.
pub(super) const OF_THE_CPU: [Facility; 4] =
    [Facility::Waitpkg, Facility::Mwaitx, Facility::Movdir64b, Facility::Enqcmd];

/// One line per facility of the kernel.
pub fn checks() -> Vec<Check> {
    Facility::ALL.iter().filter(|facility| !OF_THE_CPU.contains(facility)).map(|one| check(*one)).collect()
}

pub(super) fn check(facility: Facility) -> Check {
    match facility::detect(facility) {
        Availability::Usable => Check::usable(facility.name(), facility.purpose()),
        Availability::Masked => Check::absent(facility.name(), "masked")
            .advise("take it out of MEMLIFT_DISABLE and engine.disable to use it"),
        Availability::Missing { why, advice } => Check::absent(facility.name(), why).advise(advice),
    }
}
