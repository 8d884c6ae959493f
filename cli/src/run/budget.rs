// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chooses the budget of a job if none is given, and checks its size.
//!
//! - **Order** --memory ─▶ the memory left below the tightest cgroup limit, less headroom ─▶ Slurm's `SLURM_MEM_PER_NODE` (MiB)
//!   ─▶ refused: a machine's whole memory is not a budget
//! - **Owner** headroom is 1/32, at least 16 MiB: for this process, the shell around it and kernel memory of the cgroup

use memlift::ground::region::Headroom;
use memlift::ground::size;

use crate::failure::Failure;
use crate::print;

/// Least budget, because no program starts with less.
pub const LEAST_BYTES: u64 = 8 << 20;

/// A budget and its origin.
#[derive(Clone, Debug)]
pub struct Budget {
    /// Memory that the job may use, bytes.
    pub bytes: u64,
    /// Origin of the number, in words.
    pub origin: String,
}

/// Chooses the budget of a job.
pub fn choose(said: Option<u64>) -> Result<Budget, Failure> {
    if let Some(bytes) = said {
        enough(bytes)?;
        return Ok(Budget { bytes, origin: "--memory".to_owned() });
    }
    let headroom = Headroom::read();
    if headroom.source.contains("memory.max") || headroom.source.contains("limit_in_bytes") {
        let bytes = less_headroom(headroom.bytes);
        if bytes < LEAST_BYTES {
            return Err(Failure::Unavailable(format!(
                "only {} are left below {}: nothing runs in that",
                print::bytes(headroom.bytes),
                headroom.source
            )));
        }
        return Ok(Budget { bytes, origin: format!("{}, less headroom", headroom.source) });
    }
    let slurm = std::env::var("SLURM_MEM_PER_NODE").ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(bytes) = slurm.and_then(|mib| mib.checked_mul(1 << 20)).filter(|bytes| *bytes >= LEAST_BYTES)
    {
        return Ok(Budget {
            bytes: less_headroom(bytes),
            origin: "SLURM_MEM_PER_NODE, less headroom".to_owned(),
        });
    }
    Err(Failure::Usage(
        "no memory limit binds this process, so say the budget: memlift run --memory 2G -- …".to_owned(),
    ))
}

/// Refuses a budget that is too small.
pub fn enough(bytes: u64) -> Result<(), Failure> {
    if bytes < LEAST_BYTES {
        return Err(Failure::Usage(format!(
            "--memory {}: nothing runs in less than 8M",
            print::bytes(bytes)
        )));
    }
    Ok(())
}

/// Subtracts the memory that is kept free below a limit.
pub fn less_headroom(bytes: u64) -> u64 {
    bytes.saturating_sub((bytes / 32).max(16 << 20))
}

/// Parses a size that a machine can have.
pub fn size(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text).map_err(|error| error.to_string())?;
    if bytes < 1 << 48 { Ok(bytes) } else { Err("that is more than a machine can have".to_owned()) }
}

/// Returns the part of a budget that is kept free ahead of need if the user does not say: little, since each page of it could be present.
pub fn unused(budget: u64) -> u64 {
    (budget / 128).max(512 << 10).min(budget / 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_small_budgets_refused() {
        assert_eq!(size("2G"), Ok(2 << 30));
        assert!(size("999T").is_err() && size("G").is_err());
        assert!(matches!(choose(Some(1 << 20)), Err(Failure::Usage(_))));
        assert_eq!(less_headroom(1 << 30), (1 << 30) - (32 << 20));
    }
}
