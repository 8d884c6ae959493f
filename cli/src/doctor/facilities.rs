// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists the kernel's facilities and those that `MEMLIFT_DISABLE` masks.

use memlift::ground::facility::{self, Availability, Facility};

use super::Check;

/// Facilities that cpuid reports; the section `cpu` shows them.
pub(super) const OF_THE_CPU: [Facility; 4] =
    [Facility::Waitpkg, Facility::Mwaitx, Facility::Movdir64b, Facility::Enqcmd];

/// Facilities without which there are no sessions: their memory must not shrink under a reader.
const NEEDED: [Facility; 1] = [Facility::MemfdSeal];

/// Returns one check per facility of the kernel.
pub fn checks() -> Vec<Check> {
    Facility::ALL.iter().filter(|facility| !OF_THE_CPU.contains(facility)).map(|one| check(*one)).collect()
}

pub(super) fn check(facility: Facility) -> Check {
    let absent = if NEEDED.contains(&facility) { Check::broken } else { Check::absent };
    match facility::detect(facility) {
        Availability::Usable => Check::usable(facility.name(), facility.purpose()),
        Availability::Masked => absent(facility.name(), "masked".to_owned())
            .advise("take it out of MEMLIFT_DISABLE and engine.disable to use it"),
        Availability::Missing { why, advice } => absent(facility.name(), why).advise(advice),
    }
}
