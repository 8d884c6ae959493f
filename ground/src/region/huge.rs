// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decides if a region asks for huge pages, and counts those that are reserved.

use std::fs;
use std::os::fd::BorrowedFd;

use super::HugePages;
use super::map::{self, THP_BYTES};
use crate::facility::{Facility, usable};

/// `f_type` of hugetlbfs; a memfd with MFD_HUGETLB has it too.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Returns true if an anonymous region of `bytes` asks for transparent huge pages.
pub(super) fn wants_thp(bytes: u64, huge_pages: HugePages) -> bool {
    huge_pages == HugePages::Auto && bytes >= THP_BYTES && usable(Facility::Thp)
}

/// Returns true if a shared region of `bytes` asks for transparent huge pages. Shared memory has a switch of its
/// own, which most systems have off.
pub(super) fn wants_shared_thp(bytes: u64, huge_pages: HugePages) -> bool {
    wants_thp(bytes, huge_pages)
        && fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
            .is_ok_and(|modes| !modes.contains("[never]") && !modes.contains("[deny]"))
}

/// Returns the default size of reserved huge pages; `None` if the kernel has none.
pub(crate) fn huge_page_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    (kib > 0).then_some(kib * 1024)
}

/// Returns the number of reserved huge pages of this size that are neither in use nor promised.
pub(crate) fn free_huge_pages(page_bytes: u64) -> u64 {
    let read = |name: &str| -> u64 {
        fs::read_to_string(format!("/sys/kernel/mm/hugepages/hugepages-{}kB/{name}", page_bytes / 1024))
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0)
    };
    read("free_hugepages").saturating_sub(read("resv_hugepages"))
}

/// Returns the page size to request from hugetlb if enough pages are free for `bytes`. Only if pages can be
/// populated by a call that can fail: touching a page beyond the hugetlb cgroup's limit ends the process with
/// SIGBUS.
pub(super) fn reserved_page_for(bytes: u64, huge_pages: HugePages) -> Option<u64> {
    let wanted = huge_pages == HugePages::Auto && bytes >= THP_BYTES;
    if !wanted || !usable(Facility::HugePages) || !usable(Facility::PopulateWrite) {
        return None;
    }
    let page_bytes = huge_page_bytes()?;
    (free_huge_pages(page_bytes) >= bytes.div_ceil(page_bytes)).then_some(page_bytes)
}

/// Returns the page size of the memory behind an fd.
pub(super) fn page_bytes_of(fd: BorrowedFd<'_>) -> u64 {
    match rustix::fs::fstatfs(fd) {
        Ok(stat) if stat.f_type as u64 == HUGETLBFS_MAGIC => {
            u64::try_from(stat.f_bsize).unwrap_or(map::page_bytes()).max(map::page_bytes())
        }
        _ => map::page_bytes(),
    }
}
