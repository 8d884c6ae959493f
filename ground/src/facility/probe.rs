// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Probes CPU and kernel for each facility, by using it if a query is not enough.
//!
//! - **Flow** [`probe`] ──▶ cpuid, a file under /sys or /proc, or the system call itself on a page of its own
//! - **Order** no state is kept; every call probes again.
//! - **Not here** masks and caching: see the parent module.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::Facility;

/// Reason that a facility cannot be used, and advice to change that.
pub(super) struct Absent {
    pub(super) why: String,
    pub(super) advice: String,
}

fn absent<T>(why: impl Into<String>, advice: impl Into<String>) -> Result<T, Absent> {
    Err(Absent { why: why.into(), advice: advice.into() })
}

pub(super) fn probe(facility: Facility) -> Result<(), Absent> {
    match facility {
        Facility::PopulateWrite => populate_write(),
        Facility::MemfdSeal => memfd_seal(),
        Facility::HugePages => huge_pages(),
        Facility::Thp => thp(),
        Facility::Numa => numa(),
        Facility::IoUring => io_uring(),
        Facility::Uffd => uffd(UFFD_USER_MODE_ONLY, UFFD_FEATURE_SIGBUS, "SIGBUS mode", "4.14"),
        Facility::UffdWp => {
            uffd(UFFD_USER_MODE_ONLY, UFFD_FEATURE_PAGEFAULT_FLAG_WP, "write-protection", "5.7")
        }
        Facility::UffdKernel => uffd(0, 0, "API", "4.3"),
        Facility::UffdMove => uffd(UFFD_USER_MODE_ONLY, UFFD_FEATURE_MOVE, "MOVE", "6.8"),
        Facility::ProcessMadvise => process_madvise(),
        Facility::SeccompFilter => seccomp_filter(),
        Facility::UdpTrains => udp_trains(),
        Facility::Waitpkg => cpu("WAITPKG", cpuid_7().2 >> 5),
        Facility::Mwaitx => cpu("MWAITX", cpuid_extended_1_ecx() >> 29),
        Facility::Movdir64b => cpu("MOVDIR64B", cpuid_7().2 >> 28),
        Facility::Enqcmd => cpu("ENQCMD", cpuid_7().2 >> 29),
        Facility::Dsa => dsa(),
    }
}

fn dsa() -> Result<(), Absent> {
    if memlift_idxd::DsaInventory::discover(std::path::Path::new("/")).candidates(None).is_empty() {
        return absent(
            "no DSA work queue for user space",
            "nothing to do on most machines; the section Intel DSA says what is missing",
        );
    }
    Ok(())
}

fn refused<T>(call: &str, result: rustix::io::Result<T>) -> Result<(), Absent> {
    match result {
        Ok(_) => Ok(()),
        Err(error) => absent(
            format!("{call} failed: {error}"),
            format!("allow {call} in the container's seccomp profile, or use a newer kernel"),
        ),
    }
}

fn populate_write() -> Result<(), Absent> {
    match crate::region::probe_populate_write() {
        Ok(()) => Ok(()),
        Err(error) => absent(
            format!("madvise(MADV_POPULATE_WRITE) failed: {error}"),
            "nothing to do: memlift touches pages one by one; Linux 5.14 or later is faster",
        ),
    }
}

fn memfd_seal() -> Result<(), Absent> {
    let sealed = memfd_create("memlift-probe", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .and_then(|fd| fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL));
    refused("memfd_create with seals", sealed)
}

fn huge_pages() -> Result<(), Absent> {
    let free = |page_bytes: u64| crate::region::free_huge_pages(page_bytes);
    match crate::region::huge_page_bytes() {
        None => absent("the kernel has no hugetlb pages", "use a kernel with CONFIG_HUGETLBFS"),
        Some(page_bytes) if free(page_bytes) == 0 => absent(
            format!("no free huge pages of {} KiB", page_bytes / 1024),
            "reserve some: sysctl vm.nr_hugepages=512",
        ),
        Some(_) => Ok(()),
    }
}

fn thp() -> Result<(), Absent> {
    const FILE: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    match fs::read_to_string(FILE) {
        Ok(modes) if modes.contains("[never]") => {
            absent(format!("{FILE} says never"), format!("echo madvise > {FILE}"))
        }
        Ok(_) => Ok(()),
        Err(error) => absent(
            format!("{FILE}: {error}"),
            "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE, and make /sys visible",
        ),
    }
}

fn numa() -> Result<(), Absent> {
    let nodes = fs::read_dir("/sys/devices/system/node").map(|entries| {
        let is_node =
            |name: &str| name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok());
        entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_node)).count()
    });
    match nodes {
        Err(_) | Ok(0 | 1) => absent("there is one memory node", "nothing to do"),
        Ok(_) => {
            let mut mode = 0i32;
            // SAFETY: get_mempolicy writes one int to `mode`, which is a valid local; the null pointers and
            // zeros ask for nothing else.
            let rc = unsafe {
                libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, 0usize, 0usize, 0usize, 0usize)
            };
            if rc == 0 {
                Ok(())
            } else {
                absent(
                    format!("get_mempolicy failed: {}", io::Error::last_os_error()),
                    "give the container CAP_SYS_NICE, or allow mbind in its seccomp profile",
                )
            }
        }
    }
}

fn io_uring() -> Result<(), Absent> {
    let mut parameters = [0u64; 15];
    const { assert!(size_of::<[u64; 15]>() == 120, "struct io_uring_params") };
    // SAFETY: io_uring_setup reads and writes 120 bytes at the pointer, which is the size of `parameters`.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1u32, parameters.as_mut_ptr()) };
    if fd < 0 {
        return absent(
            format!("io_uring_setup failed: {}", io::Error::last_os_error()),
            "sysctl kernel.io_uring_disabled=0, and allow io_uring in the container's seccomp profile",
        );
    }
    close(fd);
    Ok(())
}

/// Opens a userfaultfd with `flags` and requests `features`; closes it again.
fn uffd(flags: i32, features: u64, missing: &str, version: &str) -> Result<(), Absent> {
    const UFFDIO_API: u64 = 0xc018_aa3f;
    const UFFD_API: u64 = 0xaa;
    // SAFETY: userfaultfd takes an integer and touches no memory.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | flags) };
    if fd < 0 {
        let error = io::Error::last_os_error();
        return absent(
            format!("userfaultfd failed: {error}"),
            if flags & UFFD_USER_MODE_ONLY == 0 && error.raw_os_error() == Some(libc::EPERM) {
                "a right: CAP_SYS_PTRACE, or sysctl vm.unprivileged_userfaultfd=1; memlift does without"
            } else {
                "use a kernel with CONFIG_USERFAULTFD (5.11 for unprivileged use), and allow it in seccomp"
            },
        );
    }
    let mut api = [UFFD_API, features, 0];
    // SAFETY: UFFDIO_API reads and writes a struct of three u64, which `api` is; `fd` is the userfaultfd.
    let rc = unsafe { libc::ioctl(fd as i32, UFFDIO_API as _, api.as_mut_ptr()) };
    let error = io::Error::last_os_error();
    close(fd);
    if rc != 0 {
        return absent(
            format!("userfaultfd has no {missing}: {error}"),
            format!("use Linux {version} or later"),
        );
    }
    Ok(())
}

const UFFD_USER_MODE_ONLY: i32 = 1;
const UFFD_FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const UFFD_FEATURE_SIGBUS: u64 = 1 << 7;
const UFFD_FEATURE_MOVE: u64 = 1 << 16;

fn process_madvise() -> Result<(), Absent> {
    const PIDFD_SELF: i32 = -10000;
    const PAGE_BYTES: usize = 4096;
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no memory that exists.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PAGE_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return absent("no page for the probe", "free some memory");
    }
    let range = libc::iovec { iov_base: page, iov_len: PAGE_BYTES };
    // SAFETY: the range is the page that this function mapped, and its contents are not needed.
    let given = unsafe {
        libc::syscall(libc::SYS_process_madvise, PIDFD_SELF, &raw const range, 1, libc::MADV_DONTNEED, 0)
    };
    let error = io::Error::last_os_error();
    // SAFETY: this function mapped the page and nobody else uses it.
    unsafe { libc::munmap(page, PAGE_BYTES) };
    if given == PAGE_BYTES as libc::c_long {
        return Ok(());
    }
    absent(
        format!("process_madvise(MADV_DONTNEED) on oneself failed: {error}"),
        "nothing to do: pages are given back one range at a time; Linux 6.13 or later is faster",
    )
}

fn seccomp_filter() -> Result<(), Absent> {
    const SECCOMP_GET_ACTION_AVAIL: u32 = 2;
    let trap = libc::SECCOMP_RET_TRAP;
    // SAFETY: the call reads one u32, `trap`, which lives until it returns.
    let rc = unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &raw const trap) };
    if rc == 0 {
        return Ok(());
    }
    absent(
        format!("seccomp has no SECCOMP_RET_TRAP: {}", io::Error::last_os_error()),
        "use a kernel with CONFIG_SECCOMP_FILTER, and allow seccomp in the container's profile",
    )
}

fn udp_trains() -> Result<(), Absent> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let tried = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(io::Error::from)
        .and_then(|socket| {
            let on: libc::c_int = 1;
            // SAFETY: the option's value is one int, `on`, which lives until the call returns.
            let set = unsafe {
                libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_UDP,
                    libc::UDP_GRO,
                    (&raw const on).cast(),
                    size_of::<libc::c_int>() as libc::socklen_t,
                )
            };
            if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        });
    match tried {
        Ok(()) => Ok(()),
        Err(error) => absent(
            format!("setsockopt(UDP_GRO) failed: {error}"),
            "nothing to do: datagrams travel one by one; Linux 5.0 or later is faster",
        ),
    }
}

fn close(fd: libc::c_long) {
    // SAFETY: the caller has just got `fd` from the kernel and gives it up; nobody else knows it.
    unsafe { libc::close(fd as i32) };
}

fn cpu(name: &str, bit: u32) -> Result<(), Absent> {
    if bit & 1 == 1 {
        return Ok(());
    }
    absent(
        format!("cpuid does not report {name}"),
        "nothing to do: the CPU lacks it, or the hypervisor hides it",
    )
}

/// Returns (eax, ebx, ecx, edx) of leaf 7, subleaf 0; zeros if the CPU has no such leaf.
#[cfg(target_arch = "x86_64")]
fn cpuid_7() -> (u32, u32, u32, u32) {
    if raw_cpuid::cpuid!(0).eax < 7 {
        return (0, 0, 0, 0);
    }
    let leaf = raw_cpuid::cpuid!(7, 0);
    (leaf.eax, leaf.ebx, leaf.ecx, leaf.edx)
}

#[cfg(target_arch = "x86_64")]
fn cpuid_extended_1_ecx() -> u32 {
    const LEAF: u32 = 0x8000_0001;
    if raw_cpuid::cpuid!(0x8000_0000u32).eax < LEAF { 0 } else { raw_cpuid::cpuid!(LEAF).ecx }
}

#[cfg(not(target_arch = "x86_64"))]
fn cpuid_7() -> (u32, u32, u32, u32) {
    (0, 0, 0, 0)
}

#[cfg(not(target_arch = "x86_64"))]
fn cpuid_extended_1_ecx() -> u32 {
    0
}
