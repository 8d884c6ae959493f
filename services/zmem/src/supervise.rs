// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a program as a child so that no difference is visible: signals are passed on to it, and its end is the caller's end.
//!
//! - **Flow** [`Supervised::spawn`] blocks the signals and starts the child with the mask from before ─▶ [`Supervised::wait`]
//!   polls the child's pidfd and a signalfd: if the child ended, its status is returned; a signal that a process sent is sent
//!   on to the child. If a signal that ends programs came and a stopped job cannot take it, the closure of the caller decides
//!   ─▶ the job is ended by force
//! - **Order** the signals are blocked before the child is started and before the caller starts a thread, so that none is
//!   lost and no other thread receives one
//! - **Owner** the kernel sends signals of the terminal (Ctrl-C, Ctrl-Z) to the child itself, since it is in the same process
//!   group; those are not sent a second time
//! - **Not here** the measurements of the job meanwhile ([`crate::watch`])

use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags};

/// Signals that are sent on to the program.
const FORWARDED: [libc::c_int; 9] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
    libc::SIGCONT,
];

/// The signals among [`FORWARDED`] that end a program which does not handle them.
const ENDING: [libc::c_int; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];
/// Time between two checks for a program that was asked to end but cannot take the signal, milliseconds.
const ASK_MS: i64 = 100;

/// The way a program ended.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Exit status as the kernel reports it.
    pub status: ExitStatus,
    /// Peak resident size of the program, or of one of the children it waited for, bytes.
    pub peak_resident: u64,
    /// The signal that the program could not take, if it was ended by force for that reason.
    pub forced_after: Option<libc::c_int>,
    /// The last signal that ends programs (`ENDING`) and came while the program ran, whether the program reacted to it or not.
    pub ending_signal: Option<libc::c_int>,
}

impl End {
    /// Returns the exit code that a shell would show: the program's own, or 128 plus the number of the signal that ended it.
    /// If the program was ended by force, that is the signal that asked it to end.
    pub fn code(self) -> u8 {
        match (self.forced_after, self.status.code(), self.status.signal()) {
            (Some(signal), None, _) | (_, None, Some(signal)) => 128u8.wrapping_add(signal as u8),
            (_, Some(code), _) => code as u8,
            (None, None, None) => 128,
        }
    }
}

/// A running program.
#[derive(Debug)]
pub struct Supervised {
    child: Child,
    signals: libc::sigset_t,
    /// Signal mask of the thread before [`Supervised::spawn`] blocked signals.
    before: libc::sigset_t,
}

impl Drop for Supervised {
    fn drop(&mut self) {
        // The next program that this thread starts gets the mask from before, not the one with blocked signals.
        // SAFETY: `before` was filled in by `spawn` and lives over the call.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

fn set(signals: &[libc::c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set that it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: sigemptyset has initialised the set.
    let mut set = unsafe { set.assume_init() };
    for signal in signals {
        // SAFETY: the set is initialised and the signal a constant of this platform.
        unsafe { libc::sigaddset(&mut set, *signal) };
    }
    set
}

impl Supervised {
    /// Starts the program. The signals stay blocked on the calling thread, and on threads that it starts, until this value is
    /// dropped: call this before starting any thread, and drop the value on the same thread.
    ///
    /// # Errors
    ///
    /// The program cannot be started.
    pub fn spawn(mut command: Command) -> std::io::Result<Supervised> {
        let signals = set(&FORWARDED);
        let mut before = set(&[]);
        // SAFETY: both sets are initialised and live over the call.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signals, &mut before) };
        let restore = move || {
            // SAFETY: the set is initialised, and the call is async-signal-safe, as code between fork and exec must be.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
            Ok(())
        };
        // SAFETY: the closure makes one async-signal-safe call and touches nothing that belongs to other threads.
        unsafe { command.pre_exec(restore) };
        let started = command.spawn();
        if started.is_err() {
            // SAFETY: `before` was initialised above and lives over the call.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
        }
        Ok(Supervised { child: started?, signals, before })
    }

    /// Pid of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the status and the peak resident size in bytes, if the program has ended. Must not be called again after that.
    fn reap(&self) -> std::io::Result<Option<(ExitStatus, u64)>> {
        let (mut status, mut used) = (0, MaybeUninit::<libc::rusage>::zeroed());
        // SAFETY: both pointers are writable over the call; the child was not waited for yet, so the pid is still the
        // child's.
        let pid = unsafe {
            libc::wait4(self.child.id() as libc::pid_t, &mut status, libc::WNOHANG, used.as_mut_ptr())
        };
        match pid {
            0 => Ok(None),
            pid if pid < 0 => Err(std::io::Error::last_os_error()),
            // SAFETY: all-zero bytes are a valid `rusage`, and the kernel has filled it in.
            _ => Ok(Some((
                ExitStatus::from_raw(status),
                unsafe { used.assume_init() }.ru_maxrss as u64 * 1024,
            ))),
        }
    }

    /// Waits for the program's end. After a signal that ends programs, `stuck` is called with that signal again and again
    /// until the program ends. It returns true if the job is paused and could not take the signal, and was ended by force
    /// instead.
    ///
    /// # Errors
    ///
    /// The kernel does not report how the program ended, because other code waited for it.
    pub fn wait(self, mut stuck: impl FnMut(libc::c_int) -> bool) -> std::io::Result<End> {
        // The signal, and true once the program was ended by force.
        let mut ending: Option<(libc::c_int, bool)> = None;
        let ended = rustix::process::pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())?;
        // SAFETY: the set is initialised and lives over the call, which makes a new descriptor.
        let sent = unsafe { libc::signalfd(-1, &self.signals, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if sent < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let sent = unsafe { OwnedFd::from_raw_fd(sent) };
        let mut over = None;
        loop {
            let mut either = [PollFd::new(&ended, PollFlags::IN), PollFd::new(&sent, PollFlags::IN)];
            let check = rustix::time::Timespec { tv_sec: 0, tv_nsec: ASK_MS * 1_000_000 };
            match poll(&mut either, ending.filter(|(_, forced)| !forced).is_some().then_some(&check)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            while let Some((signal, code)) = next(&sent) {
                if ENDING.contains(&signal) && ending.is_none_or(|(_, forced)| !forced) {
                    ending = Some((signal, false));
                }
                // A positive code means that the kernel sent the signal (from the terminal); the child has received it too.
                if over.is_none() {
                    over = self.reap()?;
                }
                if code <= 0 && over.is_none() {
                    // SAFETY: the call takes numbers only; the child was not waited for yet, so the pid is still the child's.
                    unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
                }
            }
            if over.is_none() {
                over = self.reap()?;
            }
            if let Some((status, peak_resident)) = over {
                let ending_signal = ending.map(|(signal, _)| signal);
                let forced_after = ending.and_then(|(signal, forced)| forced.then_some(signal));
                return Ok(End { status, peak_resident, forced_after, ending_signal });
            }
            if let Some((signal, forced @ false)) = &mut ending {
                *forced = stuck(*signal);
            }
        }
    }
}

/// Keeps signals that end programs waiting while a command does something that it must not leave half done.
#[derive(Debug)]
pub struct Deferred {
    before: libc::sigset_t,
}

impl Deferred {
    /// Blocks the signals in this thread until the value is dropped; then they have their effect.
    pub fn begin() -> Deferred {
        let mut before = set(&[]);
        // SAFETY: both sets are initialised and live over the call.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set(&ENDING), &mut before) };
        Deferred { before }
    }

    /// Returns true if such a signal waits that will have an effect: not one that this process ignores, as SIGINT behind a shell's `&`.
    pub fn waits(&self) -> bool {
        let mut pending = set(&[]);
        // SAFETY: the set is initialised and lives over the calls.
        unsafe {
            libc::sigpending(&mut pending);
            ENDING.iter().any(|signal| {
                libc::sigismember(&pending, *signal) == 1
                    && libc::sigismember(&self.before, *signal) == 0
                    && !ignored(*signal)
            })
        }
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        // SAFETY: `before` was filled in by `begin` and lives over the call.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

/// Returns true if this process ignores a signal.
fn ignored(signal: libc::c_int) -> bool {
    // SAFETY: all zeros is a valid sigaction, and the call only writes to it.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above; no new action is given.
    let known = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) } == 0;
    known && action.sa_sigaction == libc::SIG_IGN
}

/// Reads the next signal that was received, and its code.
fn next(sent: &OwnedFd) -> Option<(libc::c_int, i32)> {
    let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
    (rustix::io::read(sent, &mut info) == Ok(info.len())).then(|| {
        // The signal, errno and code are the first three words of the record.
        let word = |at: usize| i32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
        (
            word(std::mem::offset_of!(libc::signalfd_siginfo, ssi_signo)),
            word(std::mem::offset_of!(libc::signalfd_siginfo, ssi_code)),
        )
    })
}

/// Returns the name of a signal that ends programs, or `signal N` for any other.
pub fn signal_name(signal: libc::c_int) -> String {
    let name = match signal {
        libc::SIGTERM => "SIGTERM",
        libc::SIGINT => "SIGINT",
        libc::SIGHUP => "SIGHUP",
        libc::SIGQUIT => "SIGQUIT",
        _ => return format!("signal {signal}"),
    };
    name.to_owned()
}

/// Returns true if `/proc` says that the signal was sent to the process and is still pending.
pub fn is_pending(pid: u32, signal: libc::c_int) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let set = |name| {
        let text = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        u64::from_str_radix(text.trim(), 16).unwrap_or(0)
    };
    let bit = u32::try_from(signal - 1).ok().and_then(|at| 1u64.checked_shl(at)).unwrap_or(0);
    (set("SigPnd:") | set("ShdPnd:")) & bit != 0
}

/// Asks every process of a job to end (SIGTERM), or kills it if `at_once` is true.
pub fn end(pids: impl IntoIterator<Item = u32>, at_once: bool) {
    for pid in pids {
        let Some(pid) = i32::try_from(pid).ok().filter(|pid| *pid > 1) else { continue };
        // SAFETY: the call sends a signal and passes no pointer; the caller names processes of its own job.
        unsafe { libc::kill(pid, if at_once { libc::SIGKILL } else { libc::SIGTERM }) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_as_the_program_had_them() {
        let code = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Supervised::spawn(command).expect("sh starts").wait(|_| false).expect("it ends").code()
        };
        assert_eq!(code("exit 7"), 7);
        assert_eq!(code("kill -9 $$"), 137);
        // The child has the caller's signal mask, so its own TERM ends it.
        assert_eq!(code("kill -TERM $$; exit 9"), 143);
        assert!(Supervised::spawn(Command::new("/nonexistent")).is_err());
    }

    #[test]
    fn a_program_that_cannot_take_its_signal_is_ended_by_force_and_that_signal_is_the_reason() {
        // A stopped process takes no signal but those that continue or kill it.
        let mut command = Command::new("sh");
        command.args(["-c", "kill -STOP $$; exit 3"]);
        let child = Supervised::spawn(command).expect("sh starts");
        let pid = child.pid();
        let stopped =
            || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "));
        while !stopped() {
            std::thread::yield_now();
        }
        // The signal goes to this thread, which has it blocked; threads of other tests have not.
        // SAFETY: sends a signal to the calling thread, which holds it pending until `wait` reads it.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGTERM) };
        let end = child.wait(|signal| {
            assert!(signal == libc::SIGTERM && is_pending(pid, signal));
            end([pid], true);
            true
        });
        let end = end.expect("it ended");
        assert_eq!(
            (end.status.signal(), end.code(), end.ending_signal),
            (Some(libc::SIGKILL), 143, Some(libc::SIGTERM))
        );
    }
}
