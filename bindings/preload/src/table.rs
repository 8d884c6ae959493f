// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of system calls, with the memory that their pointers refer to.
//!
//! - **Layout** [`find`]: number → the arguments that are pointers, and the bytes that the kernel reads or writes there. A
//!   call below [`UNLISTED`] that is not in the table has no pointers that matter, or is refused by the filter
//! - **Not here** calls whose memory is named by memory (vectors, messages, `exec`): `vector`, `exec`; the mmap family:
//!   `memory`

/// The memory behind a pointer that the kernel reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// A string up to its zero byte, read.
    Text,
    /// This many bytes, read.
    In(usize),
    /// This many bytes, written, or read and written.
    Out(usize),
    /// An array, read: argument `.0` is the number of elements, which have `.1` bytes each.
    InCount(u8, usize),
    /// An array, written: argument `.0` is the number of elements, which have `.1` bytes each.
    OutCount(u8, usize),
    /// The sets of `select`: argument 0 is the number of bits.
    Bits,
    /// As many bytes as the request of `ioctl` (argument 1) encodes, or 256 if it encodes none. Written or read.
    Request,
    /// The call is handled by code of its own; the entry is needed only for the filter.
    Own,
}

/// Index of an argument that is a pointer, and the memory behind it.
pub type Pointer = (u8, Extent);

use Extent::{Bits, In, InCount, Out, OutCount, Own, Request, Text};

/// System-call number on every x86-64 kernel; the `libc` crate lacks it.
const SYS_IO_PGETEVENTS: i64 = 333;

/// Number of `futex_waitv`; the `libc` crate lacks it.
pub const SYS_FUTEX_WAITV: i64 = 449;
const SYS_FUTEX_WAKE: i64 = 454;
const SYS_FUTEX_WAIT: i64 = 455;
/// Number of `futex_requeue`; the `libc` crate lacks it.
pub const SYS_FUTEX_REQUEUE: i64 = 456;

/// First number from which on the table need not be complete: a call that it does not name is trapped if any argument points
/// into the arena. New calls of the kernel have numbers above this one.
pub const UNLISTED: u32 = 424;

/// The table: each call's number, and its pointers.
pub const TABLE: &[(i64, &[Pointer])] = &[
    (libc::SYS_read, &[(1, Own)]),
    (libc::SYS_write, &[(1, Own)]),
    // The offset is an address if the file is the process's memory.
    (libc::SYS_pread64, &[(1, Own), (3, Own)]),
    (libc::SYS_pwrite64, &[(1, Own), (3, Own)]),
    (libc::SYS_lseek, &[(1, Own)]),
    (libc::SYS_readv, &[(1, Own)]),
    (libc::SYS_writev, &[(1, Own)]),
    (libc::SYS_preadv, &[(1, Own)]),
    (libc::SYS_pwritev, &[(1, Own)]),
    (libc::SYS_preadv2, &[(1, Own)]),
    (libc::SYS_pwritev2, &[(1, Own)]),
    (libc::SYS_recvfrom, &[(1, Own), (4, Own), (5, Own)]),
    (libc::SYS_sendto, &[(1, Own), (4, Own)]),
    (libc::SYS_recvmsg, &[(1, Own)]),
    (libc::SYS_sendmsg, &[(1, Own)]),
    (libc::SYS_recvmmsg, &[(1, Own), (4, Own)]),
    (libc::SYS_sendmmsg, &[(1, Own)]),
    (libc::SYS_vmsplice, &[(1, Own)]),
    (libc::SYS_process_vm_readv, &[(1, Own), (3, Own)]),
    (libc::SYS_process_vm_writev, &[(1, Own), (3, Own)]),
    (libc::SYS_getrandom, &[(0, Own)]),
    (libc::SYS_execve, &[(0, Own), (1, Own), (2, Own)]),
    (libc::SYS_execveat, &[(1, Own), (2, Own), (3, Own)]),
    (libc::SYS_mmap, &[(0, Own)]),
    (libc::SYS_munmap, &[(0, Own)]),
    (libc::SYS_mprotect, &[(0, Own)]),
    (libc::SYS_pkey_mprotect, &[(0, Own)]),
    (libc::SYS_madvise, &[(0, Own)]),
    (libc::SYS_mremap, &[(0, Own), (4, Own)]),
    (libc::SYS_mincore, &[(0, Own), (2, Own)]),
    (libc::SYS_mlock, &[(0, Own)]),
    (libc::SYS_mlock2, &[(0, Own)]),
    (libc::SYS_munlock, &[(0, Own)]),
    (libc::SYS_msync, &[(0, Own)]),
    (libc::SYS_mbind, &[(0, Own), (3, In(128))]),
    (libc::SYS_process_madvise, &[(1, Own)]),
    (SYS_FUTEX_WAITV, &[(0, Own), (3, In(16))]),
    (libc::SYS_remap_file_pages, &[(0, Own)]),
    (libc::SYS_sigaltstack, &[(0, Own), (1, Own)]),
    (libc::SYS_rt_sigaction, &[(1, Own), (2, Own)]),
    (libc::SYS_rt_sigprocmask, &[(1, Own), (2, Own)]),
    (libc::SYS_rt_sigsuspend, &[(0, Own)]),
    (libc::SYS_ppoll, &[(0, OutCount(1, 8)), (2, Out(16)), (3, Own)]),
    (libc::SYS_pselect6, &[(1, Bits), (2, Bits), (3, Bits), (4, Out(16)), (5, Own)]),
    (libc::SYS_epoll_pwait, &[(1, OutCount(2, 12)), (4, Own)]),
    (libc::SYS_epoll_pwait2, &[(1, OutCount(2, 12)), (3, In(16)), (4, Own)]),
    (libc::SYS_clone, &[(2, Out(4)), (3, Out(4))]),
    // From here on: calls that are handled by this table alone.
    (libc::SYS_open, &[(0, Text)]),
    (libc::SYS_stat, &[(0, Text), (1, Out(144))]),
    (libc::SYS_fstat, &[(1, Out(144))]),
    (libc::SYS_lstat, &[(0, Text), (1, Out(144))]),
    (libc::SYS_poll, &[(0, OutCount(1, 8))]),
    (libc::SYS_rt_sigpending, &[(0, Out(8))]),
    (libc::SYS_rt_sigtimedwait, &[(0, In(8)), (1, Out(128)), (2, In(16))]),
    (libc::SYS_rt_sigqueueinfo, &[(2, In(128))]),
    (libc::SYS_rt_tgsigqueueinfo, &[(3, In(128))]),
    (libc::SYS_ioctl, &[(2, Request)]),
    (libc::SYS_access, &[(0, Text)]),
    (libc::SYS_pipe, &[(0, Out(8))]),
    (libc::SYS_pipe2, &[(0, Out(8))]),
    (libc::SYS_select, &[(1, Bits), (2, Bits), (3, Bits), (4, Out(16))]),
    (libc::SYS_shmctl, &[(2, Out(256))]),
    (libc::SYS_nanosleep, &[(0, In(16)), (1, Out(16))]),
    (libc::SYS_clock_nanosleep, &[(2, In(16)), (3, Out(16))]),
    (libc::SYS_getitimer, &[(1, Out(32))]),
    (libc::SYS_setitimer, &[(1, In(32)), (2, Out(32))]),
    (libc::SYS_sendfile, &[(2, Out(8))]),
    (libc::SYS_splice, &[(1, Out(8)), (3, Out(8))]),
    (libc::SYS_copy_file_range, &[(1, Out(8)), (3, Out(8))]),
    (libc::SYS_connect, &[(1, InCount(2, 1))]),
    (libc::SYS_bind, &[(1, InCount(2, 1))]),
    (libc::SYS_accept, &[(1, Out(256)), (2, Out(4))]),
    (libc::SYS_accept4, &[(1, Out(256)), (2, Out(4))]),
    (libc::SYS_getsockname, &[(1, Out(256)), (2, Out(4))]),
    (libc::SYS_getpeername, &[(1, Out(256)), (2, Out(4))]),
    (libc::SYS_socketpair, &[(3, Out(8))]),
    (libc::SYS_setsockopt, &[(3, InCount(4, 1))]),
    (libc::SYS_getsockopt, &[(3, Out(4096)), (4, Out(4))]),
    (libc::SYS_wait4, &[(1, Out(4)), (3, Out(144))]),
    (libc::SYS_waitid, &[(2, Out(128)), (4, Out(144))]),
    (libc::SYS_uname, &[(0, Out(390))]),
    (libc::SYS_semop, &[(1, InCount(2, 6))]),
    (libc::SYS_semtimedop, &[(1, InCount(2, 6)), (3, In(16))]),
    (libc::SYS_semctl, &[(3, Out(256))]),
    (libc::SYS_msgsnd, &[(1, InCount(2, 1))]),
    (libc::SYS_msgrcv, &[(1, OutCount(2, 1))]),
    (libc::SYS_msgctl, &[(2, Out(256))]),
    (libc::SYS_fcntl, &[(2, Out(32))]),
    (libc::SYS_truncate, &[(0, Text)]),
    (libc::SYS_getdents, &[(1, OutCount(2, 1))]),
    (libc::SYS_getdents64, &[(1, OutCount(2, 1))]),
    (libc::SYS_getcwd, &[(0, OutCount(1, 1))]),
    (libc::SYS_chdir, &[(0, Text)]),
    (libc::SYS_rename, &[(0, Text), (1, Text)]),
    (libc::SYS_mkdir, &[(0, Text)]),
    (libc::SYS_rmdir, &[(0, Text)]),
    (libc::SYS_creat, &[(0, Text)]),
    (libc::SYS_link, &[(0, Text), (1, Text)]),
    (libc::SYS_unlink, &[(0, Text)]),
    (libc::SYS_symlink, &[(0, Text), (1, Text)]),
    (libc::SYS_readlink, &[(0, Text), (1, OutCount(2, 1))]),
    (libc::SYS_chmod, &[(0, Text)]),
    (libc::SYS_chown, &[(0, Text)]),
    (libc::SYS_lchown, &[(0, Text)]),
    (libc::SYS_gettimeofday, &[(0, Out(16)), (1, Out(8))]),
    (libc::SYS_settimeofday, &[(0, In(16)), (1, In(8))]),
    (libc::SYS_getrlimit, &[(1, Out(16))]),
    (libc::SYS_setrlimit, &[(1, In(16))]),
    (libc::SYS_prlimit64, &[(2, In(16)), (3, Out(16))]),
    (libc::SYS_getrusage, &[(1, Out(144))]),
    (libc::SYS_sysinfo, &[(0, Out(112))]),
    (libc::SYS_times, &[(0, Out(32))]),
    (libc::SYS_syslog, &[(1, OutCount(2, 1))]),
    (libc::SYS_getgroups, &[(1, OutCount(0, 4))]),
    (libc::SYS_setgroups, &[(1, InCount(0, 4))]),
    (libc::SYS_getresuid, &[(0, Out(4)), (1, Out(4)), (2, Out(4))]),
    (libc::SYS_getresgid, &[(0, Out(4)), (1, Out(4)), (2, Out(4))]),
    (libc::SYS_capget, &[(0, Out(8)), (1, Out(24))]),
    (libc::SYS_capset, &[(0, Out(8)), (1, In(24))]),
    (libc::SYS_utime, &[(0, Text), (1, In(16))]),
    (libc::SYS_utimes, &[(0, Text), (1, In(32))]),
    (libc::SYS_utimensat, &[(1, Text), (2, In(32))]),
    (libc::SYS_futimesat, &[(1, Text), (2, In(32))]),
    (libc::SYS_mknod, &[(0, Text)]),
    (libc::SYS_mknodat, &[(1, Text)]),
    (libc::SYS_statfs, &[(0, Text), (1, Out(120))]),
    (libc::SYS_fstatfs, &[(1, Out(120))]),
    (libc::SYS_sched_setparam, &[(1, In(4))]),
    (libc::SYS_sched_getparam, &[(1, Out(4))]),
    (libc::SYS_sched_setscheduler, &[(2, In(4))]),
    (libc::SYS_sched_rr_get_interval, &[(1, Out(16))]),
    (libc::SYS_sched_setattr, &[(1, In(64))]),
    (libc::SYS_sched_getattr, &[(1, OutCount(2, 1))]),
    (libc::SYS_sched_setaffinity, &[(2, InCount(1, 1))]),
    (libc::SYS_sched_getaffinity, &[(2, OutCount(1, 1))]),
    (libc::SYS_prctl, &[(1, Out(64)), (2, Out(64)), (3, Out(64)), (4, Out(64))]),
    (libc::SYS_arch_prctl, &[(1, Out(8))]),
    (libc::SYS_chroot, &[(0, Text)]),
    (libc::SYS_mount, &[(0, Text), (1, Text), (2, Text), (4, Text)]),
    (libc::SYS_umount2, &[(0, Text)]),
    (libc::SYS_sethostname, &[(0, InCount(1, 1))]),
    (libc::SYS_setdomainname, &[(0, InCount(1, 1))]),
    (libc::SYS_setxattr, &[(0, Text), (1, Text), (2, InCount(3, 1))]),
    (libc::SYS_lsetxattr, &[(0, Text), (1, Text), (2, InCount(3, 1))]),
    (libc::SYS_fsetxattr, &[(1, Text), (2, InCount(3, 1))]),
    (libc::SYS_getxattr, &[(0, Text), (1, Text), (2, OutCount(3, 1))]),
    (libc::SYS_lgetxattr, &[(0, Text), (1, Text), (2, OutCount(3, 1))]),
    (libc::SYS_fgetxattr, &[(1, Text), (2, OutCount(3, 1))]),
    (libc::SYS_listxattr, &[(0, Text), (1, OutCount(2, 1))]),
    (libc::SYS_llistxattr, &[(0, Text), (1, OutCount(2, 1))]),
    (libc::SYS_flistxattr, &[(1, OutCount(2, 1))]),
    (libc::SYS_removexattr, &[(0, Text), (1, Text)]),
    (libc::SYS_lremovexattr, &[(0, Text), (1, Text)]),
    (libc::SYS_fremovexattr, &[(1, Text)]),
    (libc::SYS_time, &[(0, Out(8))]),
    (libc::SYS_futex, &[(0, Out(4)), (3, In(16)), (4, Out(4))]),
    (SYS_FUTEX_WAKE, &[(0, Out(4))]),
    (SYS_FUTEX_WAIT, &[(0, Out(4)), (4, In(16))]),
    (SYS_FUTEX_REQUEUE, &[(0, Own)]),
    // The kernel makes this call for a wait that goes on after the process was stopped. The registers still have the
    // arguments of that wait; if it is a futex's, the kernel reads the word again.
    (libc::SYS_restart_syscall, &[(0, Out(4))]),
    (libc::SYS_set_robust_list, &[(0, Own)]),
    (libc::SYS_get_robust_list, &[(1, Out(8)), (2, Out(8))]),
    (libc::SYS_set_tid_address, &[(0, Own)]),
    (libc::SYS_epoll_wait, &[(1, OutCount(2, 12))]),
    (libc::SYS_epoll_ctl, &[(3, In(12))]),
    (libc::SYS_timer_create, &[(1, In(64)), (2, Out(4))]),
    (libc::SYS_timer_settime, &[(2, In(32)), (3, Out(32))]),
    (libc::SYS_timer_gettime, &[(1, Out(32))]),
    (libc::SYS_clock_settime, &[(1, In(16))]),
    (libc::SYS_clock_gettime, &[(1, Out(16))]),
    (libc::SYS_clock_getres, &[(1, Out(16))]),
    (libc::SYS_clock_adjtime, &[(1, Out(208))]),
    (libc::SYS_adjtimex, &[(0, Out(208))]),
    (libc::SYS_mq_open, &[(0, Text), (3, In(64))]),
    (libc::SYS_mq_unlink, &[(0, Text)]),
    (libc::SYS_mq_timedsend, &[(1, InCount(2, 1)), (4, In(16))]),
    (libc::SYS_mq_timedreceive, &[(1, OutCount(2, 1)), (3, Out(4)), (4, In(16))]),
    (libc::SYS_mq_notify, &[(1, In(64))]),
    (libc::SYS_mq_getsetattr, &[(1, In(64)), (2, Out(64))]),
    (libc::SYS_fanotify_mark, &[(4, Text)]),
    (libc::SYS_inotify_add_watch, &[(1, Text)]),
    (libc::SYS_openat, &[(1, Text)]),
    (libc::SYS_openat2, &[(1, Text), (2, InCount(3, 1))]),
    (libc::SYS_mkdirat, &[(1, Text)]),
    (libc::SYS_fchownat, &[(1, Text)]),
    (libc::SYS_newfstatat, &[(1, Text), (2, Out(144))]),
    (libc::SYS_unlinkat, &[(1, Text)]),
    (libc::SYS_renameat, &[(1, Text), (3, Text)]),
    (libc::SYS_renameat2, &[(1, Text), (3, Text)]),
    (libc::SYS_linkat, &[(1, Text), (3, Text)]),
    (libc::SYS_symlinkat, &[(0, Text), (2, Text)]),
    (libc::SYS_readlinkat, &[(1, Text), (2, OutCount(3, 1))]),
    (libc::SYS_fchmodat, &[(1, Text)]),
    (libc::SYS_fchmodat2, &[(1, Text)]),
    (libc::SYS_faccessat, &[(1, Text)]),
    (libc::SYS_faccessat2, &[(1, Text)]),
    (libc::SYS_statx, &[(1, Text), (4, Out(256))]),
    (libc::SYS_name_to_handle_at, &[(1, Text), (2, Out(136)), (3, Out(4))]),
    (libc::SYS_open_by_handle_at, &[(1, In(136))]),
    (libc::SYS_signalfd, &[(1, In(8))]),
    (libc::SYS_signalfd4, &[(1, In(8))]),
    (libc::SYS_timerfd_settime, &[(2, In(32)), (3, Out(32))]),
    (libc::SYS_timerfd_gettime, &[(1, Out(32))]),
    (libc::SYS_io_getevents, &[(3, OutCount(2, 32)), (4, In(16))]),
    (SYS_IO_PGETEVENTS, &[(3, OutCount(2, 32)), (4, In(16)), (5, In(16))]),
    (libc::SYS_io_cancel, &[(1, In(64)), (2, Out(32))]),
    (libc::SYS_perf_event_open, &[(0, In(136))]),
    (libc::SYS_memfd_create, &[(0, Text)]),
    (libc::SYS_getcpu, &[(0, Out(4)), (1, Out(4))]),
    (libc::SYS_bpf, &[(1, OutCount(2, 1))]),
    (libc::SYS_seccomp, &[(2, In(16))]),
    (libc::SYS_ptrace, &[(2, Out(512)), (3, Out(512))]),
    (libc::SYS_add_key, &[(0, Text), (1, Text), (2, InCount(3, 1))]),
    (libc::SYS_request_key, &[(0, Text), (1, Text), (2, Text)]),
    (libc::SYS_keyctl, &[(1, Out(256)), (2, Out(256)), (3, Out(256))]),
    (libc::SYS_get_mempolicy, &[(0, Out(4)), (1, Out(128))]),
    (libc::SYS_set_mempolicy, &[(1, In(128))]),
    (libc::SYS_move_pages, &[(2, InCount(1, 8)), (3, InCount(1, 4)), (4, OutCount(1, 4))]),
    (libc::SYS_pidfd_send_signal, &[(2, In(128))]),
    (libc::SYS_quotactl, &[(1, Text), (3, Out(256))]),
    (libc::SYS_swapon, &[(0, Text)]),
    (libc::SYS_swapoff, &[(0, Text)]),
    (libc::SYS_acct, &[(0, Text)]),
    (libc::SYS_ustat, &[(1, Out(32))]),
    (libc::SYS_sysfs, &[(1, Text)]),
    (libc::SYS_modify_ldt, &[(1, OutCount(2, 1))]),
    (libc::SYS_migrate_pages, &[(2, In(128)), (3, In(128))]),
    (libc::SYS_init_module, &[(0, InCount(1, 1)), (2, Text)]),
    (libc::SYS_finit_module, &[(1, Text)]),
    (libc::SYS_delete_module, &[(0, Text)]),
    (libc::SYS_pivot_root, &[(0, Text), (1, Text)]),
];

/// Calls whose memory is named by memory. They are trapped from everywhere in the program's text.
pub const INDIRECT: &[i64] = &[
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_vmsplice,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fork,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_submit,
    libc::SYS_mlockall,
    libc::SYS_munlockall,
    libc::SYS_ioctl,
    libc::SYS_setsockopt,
    libc::SYS_seccomp,
    libc::SYS_prctl,
    libc::SYS_bpf,
    libc::SYS_process_madvise,
    SYS_FUTEX_WAITV,
    SYS_FUTEX_REQUEUE,
];

/// Calls that fail with `ENOSYS`, for which programs have alternatives. They would make the kernel access memory later, when
/// it may be absent, or give protection keys to pages, which the pager could not read while its thread has the key switched
/// off. Rings that were made before activation are handled by `rings`.
pub const ABSENT: &[i64] =
    &[libc::SYS_io_uring_setup, libc::SYS_io_setup, libc::SYS_clone3, libc::SYS_pkey_alloc];

/// Returns a hash of the parts of [`TABLE`] and [`ABSENT`] that the filter's rules depend on (FNV-1a, folded to a byte).
/// [`INDIRECT`] is not included, because its rules refer to the text of one image, which no other image inherits.
pub const fn hash(version: u8) -> u8 {
    const fn add(hash: u32, word: u32) -> u32 {
        (hash ^ word).wrapping_mul(0x0100_0193)
    }
    let mut hash = add(0x811c_9dc5, version as u32);
    let mut index = 0;
    while index < TABLE.len() {
        hash = add(hash, TABLE[index].0 as u32);
        let mut pointer = 0;
        while pointer < TABLE[index].1.len() {
            hash = add(hash, TABLE[index].1[pointer].0 as u32);
            pointer += 1;
        }
        index += 1;
    }
    index = 0;
    while index < ABSENT.len() {
        hash = add(hash, ABSENT[index] as u32);
        index += 1;
    }
    (hash ^ hash >> 8 ^ hash >> 16 ^ hash >> 24) as u8
}

/// Returns true if nothing is known of this call's arguments.
pub fn is_unlisted(number: usize) -> bool {
    number >= UNLISTED as usize && find(number).is_empty()
}

/// Returns the pointers of a call.
pub fn find(number: usize) -> &'static [Pointer] {
    TABLE.iter().find(|(known, _)| *known == number as i64).map_or(&[], |(_, pointers)| pointers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_is_named_once_and_its_arguments_exist() {
        for (index, (number, pointers)) in TABLE.iter().enumerate() {
            assert!(TABLE[index + 1..].iter().all(|(other, _)| other != number), "call {number} twice");
            assert!(pointers.iter().all(|(argument, _)| *argument < 6));
        }
    }
}
