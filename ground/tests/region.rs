// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Regions through their public interface: contents, bounds, seals, residency, and the fallbacks of old kernels
//! (this binary runs itself with facilities masked).

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memlift_ground::facility::{Facility, usable};
use memlift_ground::region::{
    Access, Headroom, Huge, HugePages, Region, RegionError, RegionOffset, RegionOptions,
};
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags};

fn lazy() -> RegionOptions {
    RegionOptions { prefault: false, ..RegionOptions::default() }
}

fn duplicate(region: &Region) -> OwnedFd {
    region.as_fd().unwrap().try_clone_to_owned().unwrap()
}

/// A field of /proc/self/smaps for the mapping that holds `address`.
fn smaps(address: *const u8, field: &str) -> String {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in text.lines() {
        if let Some((range, _)) = line.split_once(' ')
            && let Some((from, to)) = range.split_once('-')
            && let (Ok(from), Ok(to)) = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
        {
            inside = (from..to).contains(&address.addr());
        } else if inside && let Some(value) = line.strip_prefix(field) {
            return value.trim().to_owned();
        }
    }
    panic!("no {field} for {address:?}");
}

/// Pages that this process's page table holds, in KiB. Not from smaps: neighbours may be merged there.
fn resident_kib(region: &Region) -> u64 {
    use std::os::unix::fs::FileExt;
    let page_bytes = rustix::param::page_size();
    let first = region.base().addr() / page_bytes;
    let mut entries = vec![0; (region.bytes() as usize).div_ceil(page_bytes) * 8];
    std::fs::File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut entries, first as u64 * 8).unwrap();
    let present = entries.chunks(8).filter(|entry| entry[7] & 0x80 != 0).count();
    (present * page_bytes / 1024) as u64
}

#[test]
fn fresh_memory_is_zero_and_keeps_what_is_written() {
    for region in [
        Region::anonymous(10_000, &RegionOptions::default()).unwrap(),
        Region::memfd("memlift-test", 10_000, &RegionOptions::default()).unwrap(),
    ] {
        assert_eq!(region.bytes(), 10_000);
        let mut all = vec![1; 10_000];
        region.whole().read_into(&mut all).unwrap();
        assert!(all.iter().all(|&byte| byte == 0));
        for (offset, bytes) in [(0u64, 1usize), (1, 7), (3, 8), (4095, 2), (9_000, 1000), (5, 4096)] {
            let source: Vec<u8> = (0..bytes).map(|index| (index * 7 + offset as usize) as u8 | 1).collect();
            let window = region.window(RegionOffset(offset), bytes as u64).unwrap();
            window.write_from(&source).unwrap();
            let mut target = vec![0; bytes];
            window.read_into(&mut target).unwrap();
            assert_eq!(source, target);
        }
    }
}

#[test]
fn nothing_lies_outside() {
    let region = Region::anonymous(4096, &lazy()).unwrap();
    let outside =
        |offset: u64, bytes: u64| region.window(RegionOffset(offset), bytes).unwrap_err().to_string();
    for (offset, bytes) in
        [(4096, 1), (0, 4097), (u64::MAX, 1), (u64::MAX, u64::MAX), (1, u64::MAX), (1 << 63, 1 << 63)]
    {
        assert!(outside(offset, bytes).contains("do not lie inside a region of 4096 bytes"));
    }
    assert_eq!(region.window(RegionOffset(4096), 0).unwrap().bytes(), 0);
    let window = region.window(RegionOffset(4000), 96).unwrap();
    assert!(matches!(window.read_into(&mut [0; 97]), Err(RegionError::Bounds { .. })));
    assert!(matches!(window.write_from(&[0; 97]), Err(RegionError::Bounds { .. })));
    assert!(window.window(90, 7).is_err());
    assert_eq!(window.window(90, 6).unwrap().offset(), RegionOffset(4090));
    assert!(matches!(Region::anonymous(0, &lazy()), Err(RegionError::Empty)));
    assert!(matches!(Region::anonymous(u64::MAX, &lazy()), Err(RegionError::TooLarge { .. })));
}

proptest! {
    #[test]
    fn a_window_is_given_exactly_when_it_fits(offset in any::<u64>(), bytes in any::<u64>(), small in any::<bool>()) {
        let (offset, bytes) = if small { (offset % 5000, bytes % 5000) } else { (offset, bytes) };
        let region = Region::anonymous(4096, &lazy()).unwrap();
        let fits = u128::from(offset) + u128::from(bytes) <= 4096;
        prop_assert_eq!(region.window(RegionOffset(offset), bytes).is_ok(), fits);
        let inner = region.window(RegionOffset(96), 4000).unwrap();
        let fits = u128::from(offset) + u128::from(bytes) <= 4000;
        prop_assert_eq!(inner.window(offset, bytes).is_ok(), fits);
    }
}

#[test]
fn control_words_need_alignment_and_rights() {
    let region = Region::memfd("memlift-test", 4096, &lazy()).unwrap();
    let window = region.window(RegionOffset(8), 64).unwrap();
    region.layout::<AtomicU64>(RegionOffset(8)).unwrap().store(7, Ordering::Relaxed);
    assert_eq!(region.layout::<AtomicU32>(RegionOffset(8)).unwrap().load(Ordering::Relaxed), 7);
    assert_eq!(window.load_u64(0, Ordering::Relaxed).unwrap(), 7);
    assert!(matches!(
        region.layout::<AtomicU64>(RegionOffset(12)),
        Err(RegionError::Misaligned { offset: RegionOffset(12), align: 8 })
    ));
    assert!(matches!(region.layout::<AtomicU32>(RegionOffset(4094)), Err(RegionError::Bounds { .. })));
    let view = Region::from_fd(duplicate(&region), Access::ReadOnly, 4096).unwrap();
    assert!(!view.writable());
    assert!(matches!(view.layout::<AtomicU64>(RegionOffset(8)), Err(RegionError::ReadOnly)));
    assert!(matches!(view.whole().write_from(&[1]), Err(RegionError::ReadOnly)));
    assert!(matches!(view.whole().as_mut_ptr(), Err(RegionError::ReadOnly)));
    assert_eq!(view.whole().load_u64(8, Ordering::Acquire).unwrap(), 7);
}

#[test]
fn a_memfd_is_shared_and_its_size_is_sealed() {
    if !usable(Facility::MemfdSeal) {
        return;
    }
    let region = Region::memfd("memlift-test-name", 100_000, &RegionOptions::default()).unwrap();
    assert_eq!(region.sealed(), usable(Facility::MemfdSeal));
    let fd = region.as_fd().unwrap();
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
    assert_eq!(link.to_str().unwrap(), "/memfd:memlift-test-name (deleted)");
    for bytes in [0, 4096, 1 << 30] {
        assert_eq!(rustix::fs::ftruncate(fd, bytes), Err(rustix::io::Errno::PERM));
    }
    assert_eq!(rustix::fs::fcntl_add_seals(fd, SealFlags::WRITE), Err(rustix::io::Errno::PERM));
    let peer = Region::from_fd(duplicate(&region), Access::ReadWrite, 100_000).unwrap();
    peer.window(RegionOffset(99_990), 10).unwrap().write_from(b"from there").unwrap();
    let mut seen = [0; 10];
    region.window(RegionOffset(99_990), 10).unwrap().read_into(&mut seen).unwrap();
    assert_eq!(&seen, b"from there");
    drop(region);
    peer.window(RegionOffset(99_990), 10).unwrap().read_into(&mut seen).unwrap();
    assert_eq!(&seen, b"from there");
}

#[test]
fn a_peers_memory_must_be_sealed_and_long_enough() {
    if !usable(Facility::MemfdSeal) {
        return;
    }
    let make = |flags: MemfdFlags, bytes: u64| {
        let fd = rustix::fs::memfd_create("memlift-peer", flags | MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        fd
    };
    let open = |fd: &OwnedFd, bytes| Region::from_fd(fd.try_clone().unwrap(), Access::ReadWrite, bytes);

    let unsealable = make(MemfdFlags::empty(), 8192);
    assert!(matches!(open(&unsealable, 8192), Err(RegionError::NotSealed)));
    let sealable = make(MemfdFlags::ALLOW_SEALING, 8192);
    for (seals, accepted) in
        [(SealFlags::empty(), false), (SealFlags::GROW, false), (SealFlags::SHRINK, true)]
    {
        rustix::fs::fcntl_add_seals(&sealable, seals).unwrap();
        assert_eq!(open(&sealable, 8192).is_ok(), accepted, "{seals:?}");
    }
    let error = open(&sealable, 8193).unwrap_err();
    assert!(matches!(error, RegionError::TooShort { expected: 8193, actual: 8192 }));
    assert!(matches!(open(&sealable, 0), Err(RegionError::Empty)));

    let file: OwnedFd = tempfile::tempfile_in(".").unwrap().into();
    rustix::fs::ftruncate(&file, 8192).unwrap();
    assert!(matches!(open(&file, 8192), Err(RegionError::NotSealed)));
    let (pipe, _) = rustix::pipe::pipe().unwrap();
    assert!(matches!(open(&pipe, 8192), Err(RegionError::TooShort { .. } | RegionError::NotSealed)));
    // Forbidding writes as well is the peer's right, but then it cannot be mapped for stores.
    let readable = make(MemfdFlags::ALLOW_SEALING, 4096);
    rustix::fs::fcntl_add_seals(&readable, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE).unwrap();
    assert!(matches!(open(&readable, 4096), Err(RegionError::Os { call: "mmap", .. })));
}

#[test]
fn prefault_makes_every_page_resident_and_lazy_makes_none() {
    const BYTES: u64 = 3 << 20;
    let small =
        |prefault| RegionOptions { prefault, huge_pages: HugePages::Never, ..RegionOptions::default() };
    for region in [
        Region::anonymous(BYTES, &small(true)).unwrap(),
        Region::memfd("memlift-test", BYTES, &small(true)).unwrap(),
    ] {
        assert_eq!(resident_kib(&region), BYTES / 1024);
        assert_eq!(region.huge(), Huge::None);
    }
    for region in [
        Region::anonymous(BYTES, &small(false)).unwrap(),
        Region::memfd("memlift-test", BYTES, &small(false)).unwrap(),
    ] {
        assert_eq!(resident_kib(&region), 0);
    }
    let source = Region::memfd("memlift-test", BYTES, &small(true)).unwrap();
    let view = Region::from_fd_with(duplicate(&source), Access::ReadOnly, BYTES, &small(true)).unwrap();
    assert_eq!(resident_kib(&view), BYTES / 1024);
}

#[test]
fn too_little_memory_is_an_error_before_any_page_is_touched() {
    let available = Headroom::read().bytes;
    let too_much = available.saturating_add(1 << 30);
    let eager = RegionOptions::default();
    for error in [
        Region::anonymous(too_much, &eager).unwrap_err(),
        Region::memfd("memlift-test", too_much, &eager).unwrap_err(),
        Region::memfd("memlift-test", too_much, &lazy()).unwrap_err(),
    ] {
        assert!(matches!(error, RegionError::Headroom { .. }), "{error}");
        assert!(error.to_string().contains("ask for a smaller region"), "{error}");
    }
    // A peer that offers a hole of that size gets the same answer when we would fill it.
    let unchecked = RegionOptions { headroom: false, ..lazy() };
    let sparse = Region::memfd("memlift-test", too_much, &unchecked).unwrap();
    let error = Region::from_fd_with(duplicate(&sparse), Access::ReadOnly, too_much, &eager).unwrap_err();
    assert!(matches!(error, RegionError::Headroom { .. }), "{error}");
    assert_eq!(rustix::fs::fstat(sparse.as_fd().unwrap()).unwrap().st_blocks, 0);
}

#[test]
fn a_file_keeps_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    std::fs::write(&path, b"already here").unwrap();
    let region = Region::file(&path, 20_000, &RegionOptions::default()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 20_000);
    let mut seen = [0; 12];
    region.whole().read_into(&mut seen).unwrap();
    assert_eq!(&seen, b"already here");
    region.window(RegionOffset(19_999), 1).unwrap().write_from(b"!").unwrap();
    drop(region);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes.len(), bytes[19_999]), (20_000, b'!'));
    // A longer file is not cut.
    drop(Region::file(&path, 10, &RegionOptions::default()).unwrap());
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 20_000);
    assert!(matches!(
        Region::file(&folder.path().join("no/such/folder"), 10, &lazy()),
        Err(RegionError::Os { call: "open", .. })
    ));
}

#[test]
fn transparent_huge_pages_start_at_their_boundary() {
    let region = Region::anonymous(5 << 20, &RegionOptions::default()).unwrap();
    if region.huge() == Huge::Transparent {
        assert!(region.base().addr().is_multiple_of(2 << 20));
        assert!(smaps(region.base(), "VmFlags:").split(' ').any(|flag| flag == "hg"));
    } else {
        let modes =
            std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        assert!(modes.is_empty() || modes.contains("[never]"), "{modes}");
    }
    let plain = RegionOptions { huge_pages: HugePages::Never, ..RegionOptions::default() };
    assert_eq!(Region::anonymous(5 << 20, &plain).unwrap().huge(), Huge::None);
}

/// Free huge pages of 2 MiB. Reserve some with `sysctl vm.nr_hugepages=8` to see the interesting half.
fn free_huge_pages() -> u64 {
    let file = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

#[test]
fn reserved_huge_pages_are_taken_when_they_suffice() {
    const BYTES: u64 = (3 << 20) + 5;
    let before = free_huge_pages();
    let region = Region::memfd("memlift-test", BYTES, &RegionOptions::default()).unwrap();
    let peer = Region::from_fd(duplicate(&region), Access::ReadWrite, BYTES).unwrap();
    if before >= 2 {
        assert_eq!((region.huge(), region.page_bytes()), (Huge::Reserved, 2 << 20));
        assert_eq!((peer.huge(), peer.page_bytes()), (Huge::Reserved, 2 << 20));
        assert_eq!(free_huge_pages(), before - 2);
    } else {
        assert_ne!(region.huge(), Huge::Reserved);
    }
    assert_eq!(region.sealed(), usable(Facility::MemfdSeal));
    peer.window(RegionOffset(BYTES - 5), 5).unwrap().write_from(b"there").unwrap();
    let mut seen = [0; 5];
    region.window(RegionOffset(BYTES - 5), 5).unwrap().read_into(&mut seen).unwrap();
    assert_eq!(&seen, b"there");
    assert!(region.window(RegionOffset(BYTES), 1).is_err());
    drop((region, peer));
    assert_eq!(free_huge_pages(), before);
    // More than there is: ordinary pages, silently.
    let large = Region::memfd("memlift-test", (before + 1) << 21, &lazy()).unwrap();
    assert_ne!(large.huge(), Huge::Reserved);
}

#[test]
fn dropping_gives_the_memory_back() {
    child("child_makes_and_drops", "");
}

#[test]
#[ignore = "run by dropping_gives_the_memory_back"]
fn child_makes_and_drops() {
    let pages = || -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').next().unwrap().parse().unwrap()
    };
    let before = pages();
    for _ in 0..40 {
        let options = RegionOptions { headroom: false, ..lazy() };
        drop(Region::anonymous(1 << 30, &options).unwrap());
        drop(Region::memfd("memlift-test", 1 << 30, &options).unwrap());
    }
    let grown = pages().saturating_sub(before) * 4096;
    assert!(grown < 1 << 30, "{grown} bytes of address space left behind");
}

#[test]
fn a_child_that_lacks_the_mapping_unmaps_nothing() {
    let options = RegionOptions { dont_fork: true, ..RegionOptions::default() };
    let region = Region::anonymous(1 << 16, &options).unwrap();
    assert!(smaps(region.base(), "VmFlags:").split(' ').any(|flag| flag == "dc"));
    let base = region.base();
    // SAFETY: the child makes system calls only, then leaves without running anything of the parent's.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: maps a fresh page exactly where the parent's region was; there is nothing in the child.
        let code = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let mapped =
                libc::mmap(base.cast_mut().cast(), 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            if mapped == libc::MAP_FAILED {
                2
            } else {
                drop(region);
                // Still mapped, or this store would end the child with a signal.
                mapped.cast::<u8>().write_volatile(1);
                0
            }
        };
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
    region.whole().write_from(&[1; 100]).unwrap();
}

fn child(test: &str, disable: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("MEMLIFT_DISABLE", disable)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn old_kernels_get_the_same_memory() {
    child("child_without_facilities", "populate_write,memfd_seal,thp,huge_pages,numa");
}

#[test]
#[ignore = "run by old_kernels_get_the_same_memory"]
fn child_without_facilities() {
    const BYTES: u64 = 9 << 20;
    let options = RegionOptions { numa_node: Some(0), ..RegionOptions::default() };
    let region = Region::memfd("memlift-test", BYTES, &options).unwrap();
    assert!(!region.sealed());
    assert_eq!((region.huge(), region.numa_node()), (Huge::None, None));
    assert_eq!(resident_kib(&region), BYTES / 1024);
    // Whoever masks seals takes unsealed memory too, and knows that it is.
    assert!(!Region::from_fd(duplicate(&region), Access::ReadOnly, BYTES).unwrap().sealed());
    assert_eq!(resident_kib(&Region::anonymous(BYTES, &options).unwrap()), BYTES / 1024);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    std::fs::write(&path, vec![0xa5; BYTES as usize]).unwrap();
    let file = Region::file(&path, BYTES, &options).unwrap();
    let mut seen = vec![0; BYTES as usize];
    file.whole().read_into(&mut seen).unwrap();
    assert!(seen.iter().all(|&byte| byte == 0xa5), "touching pages must not change them");
}

#[test]
fn touching_loses_no_store_of_a_peer() {
    child("child_touches_under_stores", "populate_write");
}

#[test]
#[ignore = "run by touching_loses_no_store_of_a_peer"]
fn child_touches_under_stores() {
    let peer = Region::memfd("memlift-test", 4096, &RegionOptions::default()).unwrap();
    let fd = duplicate(&peer);
    std::thread::scope(|scope| {
        let adder = scope.spawn(|| {
            let word = peer.layout::<AtomicU32>(RegionOffset(0)).unwrap();
            for _ in 0..3_000_000 {
                word.fetch_add(1, Ordering::Relaxed);
            }
        });
        while !adder.is_finished() {
            let again = fd.try_clone().unwrap();
            Region::from_fd_with(again, Access::ReadWrite, 4096, &RegionOptions::default()).unwrap();
        }
    });
    assert_eq!(peer.layout::<AtomicU32>(RegionOffset(0)).unwrap().load(Ordering::Relaxed), 3_000_000);
}
