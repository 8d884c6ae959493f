// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file of the spill: opened without a name, accessed past the page cache, and checked on each call to be still the same
//! file.
//!
//! - **Flow** directory that is not in memory ──▶ `O_TMPFILE`, or a name that is removed right after opening ──▶ direct reads
//!   and writes; if the file system has no direct access, data is written through and then dropped from the page cache
//! - **Order** each call first compares device and inode, because a program that closes descriptors that it did not open may
//!   have another file under this number now
//! - **Owner** descriptors lie above 1,000 if the limit allows that, and are closed at exec

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::SpillError;
use crate::mapping::PAGE_BYTES;

/// Upper bound of the files that a process has: those of its ancestors and its own.
pub(crate) const MAX_GENERATIONS: usize = 32;

/// An open spill file.
#[derive(Clone, Copy, Debug)]
pub(super) struct File {
    pub(super) fd: i32,
    direct: bool,
    device: u64,
    inode: u64,
}

/// File systems that hold files in memory; spilling to them would free nothing.
const IN_MEMORY: [(i64, &str); 3] =
    [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs"), (0x9584_58f6, "hugetlbfs")];

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

pub(super) fn close(fd: i32) {
    // SAFETY: the descriptor was opened by this module, and nobody uses it after this call.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// Moves a descriptor to a high number, which programs do not use themselves.
fn high(fd: i32) -> i32 {
    // SAFETY: both calls take numbers only.
    let moved = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 1000) } as i32;
    if moved < 0 {
        return fd;
    }
    close(fd);
    moved
}

/// Returns the meaning of a disk's error number, and what to do about it.
pub(super) fn words(errno: i32) -> &'static str {
    match errno {
        libc::ENOSPC => "it is full, free space on it or name another folder",
        libc::EDQUOT => "the user's quota on it is used up, free space or name another folder",
        libc::EFBIG => "a file may not be longer, raise ulimit -f",
        libc::EIO => "input or output failed, name a folder on another disk",
        libc::EROFS => "it is read-only now, name a folder on another disk",
        _ => "it refuses, name a folder on another disk",
    }
}

/// Returns the longest file that this process may write; a write beyond that would end the program by SIGXFSZ.
fn longest() -> u64 {
    // SAFETY: all zero is a valid value of this plain struct, which the call fills.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    let none = std::ptr::null::<libc::rlimit>();
    // SAFETY: the struct is borrowed for the call.
    let failed =
        unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_FSIZE, none, &raw mut limit) } != 0;
    if failed { u64::MAX } else { limit.rlim_cur }
}

/// Opens a directory that can hold a spill file. The error is the reason why it cannot.
pub(super) fn open_directory(path: &Path) -> Result<i32, String> {
    let name =
        CString::new(path.as_os_str().as_bytes()).map_err(|_| "its name has a zero byte".to_owned())?;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the name ends with a zero byte and lives as long as the call.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name.as_ptr(), flags) } as i32;
    if fd < 0 {
        return Err(std::io::Error::last_os_error().to_string());
    }
    // SAFETY: all zero is a valid value of this plain struct, which the call fills.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is borrowed for the call.
    if unsafe { libc::fstatfs(fd, &raw mut about) } != 0 {
        let reason = std::io::Error::last_os_error().to_string();
        close(fd);
        return Err(reason);
    }
    if let Some((_, kind)) = IN_MEMORY.iter().find(|(magic, _)| *magic == about.f_type as i64) {
        close(fd);
        return Err(format!(
            "it is a {kind}: what is spilled there stays in memory; name a directory on a local disk"
        ));
    }
    Ok(high(fd))
}

/// Makes a pipe. Returns its reading end and its writing end.
pub(super) fn pipe() -> Option<[i32; 2]> {
    let mut ends = [0i32; 2];
    // SAFETY: the array has room for both ends.
    let failed =
        unsafe { libc::syscall(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) };
    (failed == 0).then(|| ends.map(high))
}

/// Returns true if no process has the pipe's writing end open any more.
pub(super) fn is_hung_up(pipe: i32) -> bool {
    let mut byte = 0u8;
    // SAFETY: the byte is borrowed for the call.
    unsafe { libc::syscall(libc::SYS_read, pipe, &raw mut byte, 1usize) == 0 }
}

impl File {
    /// Makes a file without a name in `directory`. The error is the kernel's error number.
    pub(super) fn create(directory: i32) -> Result<File, i32> {
        let open = |name: &std::ffi::CStr, flags: i32| {
            let flags = flags | libc::O_RDWR | libc::O_CLOEXEC;
            // SAFETY: the name ends with a zero byte and lives as long as the call.
            let fd =
                unsafe { libc::syscall(libc::SYS_openat, directory, name.as_ptr(), flags, 0o600) } as i32;
            if fd < 0 { Err(errno()) } else { Ok(fd) }
        };
        let named = |flags: i32| {
            let name = unique_name();
            let name = std::ffi::CStr::from_bytes_until_nul(&name).map_err(|_| libc::EINVAL)?;
            let fd = open(name, flags | libc::O_CREAT | libc::O_EXCL)?;
            // SAFETY: the name is that of the file that was just made, and lives as long as the call.
            unsafe { libc::syscall(libc::SYS_unlinkat, directory, name.as_ptr(), 0) };
            Ok(fd)
        };
        let nameless = |flags: i32| match open(c".", flags | libc::O_TMPFILE) {
            Err(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT) => named(flags),
            other => other,
        };
        let (fd, direct) = match nameless(libc::O_DIRECT) {
            Ok(fd) => (fd, true),
            Err(libc::EINVAL) => (nameless(0)?, false),
            Err(error) => return Err(error),
        };
        let fd = high(fd);
        match identity(fd) {
            Some((device, inode)) => Ok(File { fd, direct, device, inode }),
            None => {
                let error = errno();
                close(fd);
                Err(error)
            }
        }
    }

    fn check(self) -> Result<(), SpillError> {
        if identity(self.fd) == Some((self.device, self.inode)) { Ok(()) } else { Err(SpillError::Closed) }
    }

    /// Writes whole pages at `offset`.
    ///
    /// # Safety
    ///
    /// Each part is readable for the call, begins at a page boundary, and consists of whole pages.
    pub(super) unsafe fn write(self, parts: &mut [libc::iovec], offset: usize) -> Result<(), SpillError> {
        self.check()?;
        let (start, mut done, mut at) = (offset, 0, 0);
        let total: usize = parts.iter().map(|part| part.iov_len).sum();
        if (start + total) as u64 > longest() {
            return Err(SpillError::Device(libc::EFBIG));
        }
        while done < total {
            let left = &parts[at..];
            // SAFETY: the caller promises that the parts are readable; those before `at` are written already.
            let wrote = unsafe {
                libc::syscall(libc::SYS_pwritev, self.fd, left.as_ptr(), left.len(), start + done, 0usize)
            };
            if wrote < 0 {
                match errno() {
                    libc::EINTR | libc::EAGAIN => continue,
                    error => return Err(SpillError::Device(error)),
                }
            }
            let wrote = wrote as usize;
            if wrote == 0 || !wrote.is_multiple_of(PAGE_BYTES) {
                return Err(SpillError::Device(libc::ENOSPC));
            }
            done += wrote;
            let mut rest = wrote;
            while rest > 0 {
                let Some(part) = parts.get_mut(at) else { break };
                let taken = rest.min(part.iov_len);
                part.iov_base = part.iov_base.wrapping_byte_add(taken);
                part.iov_len -= taken;
                rest -= taken;
                at += usize::from(part.iov_len == 0);
            }
        }
        if !self.direct {
            self.drop_cached(start, total)?;
        }
        Ok(())
    }

    /// Reads whole pages at `offset`.
    ///
    /// # Safety
    ///
    /// `target` is a page boundary, and `bytes` bytes from there may be written.
    pub(super) unsafe fn read(self, target: *mut u8, bytes: usize, offset: usize) -> Result<(), SpillError> {
        self.check()?;
        let mut done = 0;
        while done < bytes {
            // SAFETY: the caller promises `bytes` writable bytes at `target`, of which `done` are read.
            let read = unsafe {
                libc::syscall(libc::SYS_pread64, self.fd, target.add(done), bytes - done, offset + done)
            };
            match usize::try_from(read) {
                Ok(read) if read > 0 && read.is_multiple_of(PAGE_BYTES) => done += read,
                Ok(_) => return Err(SpillError::Corrupt),
                Err(_) => match errno() {
                    libc::EINTR | libc::EAGAIN => {}
                    error => return Err(SpillError::Device(error)),
                },
            }
        }
        if !self.direct {
            self.advise_dropping(offset, bytes);
        }
        Ok(())
    }

    /// Gives the disk blocks of a range back, if the file system can do that.
    pub(super) fn punch(self, offset: usize, bytes: usize) {
        if self.check().is_ok() {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: the call takes numbers only.
            unsafe { libc::syscall(libc::SYS_fallocate, self.fd, mode, offset, bytes) };
        }
    }

    /// Writes pages that went through the page cache to the disk and drops them from the cache, which counts as the job's
    /// memory too.
    fn drop_cached(self, offset: usize, bytes: usize) -> Result<(), SpillError> {
        let whole = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        // SAFETY: the call takes numbers only.
        if unsafe { libc::syscall(libc::SYS_sync_file_range, self.fd, offset, bytes, whole) } != 0 {
            return Err(SpillError::Device(errno()));
        }
        self.advise_dropping(offset, bytes);
        Ok(())
    }

    fn advise_dropping(self, offset: usize, bytes: usize) {
        // SAFETY: the call takes numbers only.
        unsafe { libc::syscall(libc::SYS_fadvise64, self.fd, offset, bytes, libc::POSIX_FADV_DONTNEED) };
    }
}

fn identity(fd: i32) -> Option<(u64, u64)> {
    // SAFETY: all zero is a valid value of this plain struct, which the call fills.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is borrowed for the call.
    let failed = unsafe { libc::syscall(libc::SYS_fstat, fd, &raw mut about) };
    (failed == 0).then_some((about.st_dev, about.st_ino))
}

/// Returns `memlift-spill-` and a hexadecimal number that depends on the process and the time, with a zero byte at the end.
fn unique_name() -> [u8; 48] {
    let mut name = [0; 48];
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct is borrowed for the first call; the second takes no argument.
    let process = unsafe {
        libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut now);
        libc::syscall(libc::SYS_getpid)
    };
    let unique = (process as u128) << 64 | (now.tv_sec as u128) << 30 | now.tv_nsec as u128;
    let prefix = b"memlift-spill-";
    name[..prefix.len()].copy_from_slice(prefix);
    for digit in 0..24 {
        name[prefix.len() + digit] = b"0123456789abcdef"[(unique >> (4 * digit)) as usize & 15];
    }
    name
}
