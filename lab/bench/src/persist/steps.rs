// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts the instructions with which a party's transactions become durable: fences, write-backs and stores past the cache, one
//! instruction at a time. The counts do not depend on the machine's speed.
//!
//! - **Flow** [`Traced::new`] attaches to the party's first thread ─▶ it stops itself three times ─▶ what lies between the first two
//!   stops is subtracted from what lies between the last two
//! - **Count** a step that does not move the instruction pointer is an iteration of a repeated string instruction and counts with
//!   its first one · a fence is `loaded` when a write-back or a store past the cache came since the one before it
//! - **Decode** legacy prefixes and REX, then 0F AE (fences, write-backs), 0F C3, 0F 2B and 0F E7 (stores past the cache, also under
//!   VEX and EVEX); everything else is only counted
//! - **Place** thread and tracer share a core while it is stepped: they take turns, and waking another core costs 20 times as much
//! - **Needs** ptrace of an own child; a sandbox may forbid it, and then nothing is counted
//! - **Owner** dropping [`Traced`] lets the thread run on; the party's other threads are never stopped

/// Instructions that were executed, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Steps {
    /// Instructions of every kind.
    pub instructions: u64,
    /// Fences: sfence and mfence.
    pub fences: u64,
    /// Fences that had something to wait for.
    pub loaded: u64,
    /// Instructions with a lock prefix.
    pub locked: u64,
    /// clwb, clflushopt and clflush.
    pub flushes: u64,
    /// Stores past the cache.
    pub streams: u64,
}

#[cfg(not(target_arch = "x86_64"))]
pub use nowhere::Traced;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{Traced, stop};

/// Stepping is written for x86-64 only.
#[cfg(not(target_arch = "x86_64"))]
mod nowhere {
    pub enum Traced {}

    impl Traced {
        pub fn new(_process: u32) -> Option<Traced> {
            None
        }

        pub fn count(self) -> Option<super::Steps> {
            match self {}
        }
    }
}

/// Stops the calling thread for its tracer.
#[cfg(not(target_arch = "x86_64"))]
pub fn stop() {}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::io;

    use rustix::process::Pid;

    use super::Steps;
    use crate::pin::Pinned;

    /// Transactions with more instructions are not counted to their end.
    const STEPS_MAX: u64 = 5_000_000;

    /// Stops the calling thread for its tracer, which must be there.
    pub fn stop() {
        // SAFETY: a signal to the calling thread; nothing is pointed to.
        unsafe { libc::raise(libc::SIGSTOP) };
    }

    /// A child whose first thread is traced.
    #[derive(Debug)]
    pub struct Traced {
        thread: libc::pid_t,
        _one_core: [Option<Pinned>; 2],
    }

    impl Traced {
        /// None where that is not allowed.
        pub fn new(process: u32) -> Option<Traced> {
            let thread = libc::pid_t::try_from(process).ok()?;
            request(libc::PTRACE_SEIZE, thread, 0).ok()?;
            let _one_core = [Pinned::first(None), Pinned::first(Pid::from_raw(thread))];
            Some(Traced { thread, _one_core })
        }

        /// Counts the instructions between its stops.
        pub fn count(self) -> Option<Steps> {
            self.next_stop()?;
            let empty = self.step()?;
            let all = self.step()?;
            Some(Steps {
                instructions: all.instructions.checked_sub(empty.instructions)?,
                fences: all.fences.checked_sub(empty.fences)?,
                loaded: all.loaded.checked_sub(empty.loaded)?,
                locked: all.locked.checked_sub(empty.locked)?,
                flushes: all.flushes.checked_sub(empty.flushes)?,
                streams: all.streams.checked_sub(empty.streams)?,
            })
        }

        /// Waits for its first stop; other signals are handed on.
        fn next_stop(&self) -> Option<()> {
            loop {
                match self.wait()? {
                    libc::SIGSTOP => return Some(()),
                    signal => {
                        request_with(libc::PTRACE_CONT, self.thread, 0, signal).ok()?;
                    }
                }
            }
        }

        /// Steps to the next stop.
        fn step(&self) -> Option<Steps> {
            let (mut steps, mut pending, mut last) = (Steps::default(), false, 0);
            while steps.instructions < STEPS_MAX {
                let rip = std::mem::offset_of!(libc::user, regs.rip);
                let at = request(libc::PTRACE_PEEKUSER, self.thread, rip).ok()? as usize;
                if at != last {
                    let mut code = [0; 16];
                    let low = request(libc::PTRACE_PEEKTEXT, self.thread, at).ok()?;
                    // An instruction may end at the last mapped byte.
                    let high = request(libc::PTRACE_PEEKTEXT, self.thread, at + 8).unwrap_or(0);
                    code[..8].copy_from_slice(&low.to_ne_bytes());
                    code[8..].copy_from_slice(&high.to_ne_bytes());
                    classify(&code, &mut steps, &mut pending);
                    steps.instructions += 1;
                }
                last = at;
                request(libc::PTRACE_SINGLESTEP, self.thread, 0).ok()?;
                match self.wait()? {
                    libc::SIGTRAP => {}
                    libc::SIGSTOP => return Some(steps),
                    _ => return None,
                }
            }
            None
        }

        /// The signal that stopped it; None when it ended.
        fn wait(&self) -> Option<i32> {
            let mut status = 0;
            loop {
                // SAFETY: `status` is live for the call.
                if unsafe { libc::waitpid(self.thread, &mut status, libc::__WALL) } == self.thread {
                    return libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status));
                }
                if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                    return None;
                }
            }
        }
    }

    impl Drop for Traced {
        fn drop(&mut self) {
            // It fails only if the thread has ended. The stop that it is in is not delivered.
            let _ = request(libc::PTRACE_DETACH, self.thread, 0);
        }
    }

    fn request(what: libc::c_uint, thread: libc::pid_t, address: usize) -> io::Result<i64> {
        request_with(what, thread, address, 0)
    }

    fn request_with(
        what: libc::c_uint,
        thread: libc::pid_t,
        address: usize,
        data: libc::c_int,
    ) -> io::Result<i64> {
        // SAFETY: errno is this thread's own; the requests used here touch no memory of this process.
        unsafe {
            *libc::__errno_location() = 0;
            let result = libc::ptrace(what, thread, address, libc::c_long::from(data));
            // A word of the child may be -1, so only errno tells.
            if *libc::__errno_location() == 0 { Ok(result) } else { Err(io::Error::last_os_error()) }
        }
    }

    /// Looks at the instruction that is about to run.
    fn classify(code: &[u8; 16], steps: &mut Steps, pending: &mut bool) {
        const PREFIXES: [u8; 10] = [0x66, 0xf2, 0xf3, 0xf0, 0x2e, 0x36, 0x3e, 0x26, 0x64, 0x65];
        let prefixes = code.iter().take(8).take_while(|byte| PREFIXES.contains(byte)).count();
        steps.locked += u64::from(code[..prefixes].contains(&0xf0));
        let with_66 = code[..prefixes].contains(&0x66);
        let at = prefixes + usize::from(code[prefixes] & 0xf0 == 0x40);
        let (opcode, operand) = match code[at..] {
            [0x0f, opcode, operand, ..] => (opcode, operand),
            // Under VEX and EVEX only the stores past the cache are of interest.
            [0xc5, _, opcode @ (0xe7 | 0x2b), operand, ..] => (opcode, operand),
            [0xc4, map, _, opcode @ (0xe7 | 0x2b), operand, ..] if map & 0x1f == 1 => (opcode, operand),
            [0x62, map, _, _, opcode @ (0xe7 | 0x2b), operand, ..] if map & 0x07 == 1 => (opcode, operand),
            _ => return,
        };
        let (field, is_register) = (operand >> 3 & 7, operand >> 6 == 3);
        match (opcode, is_register, field) {
            (0xae, true, 6 | 7) => {
                steps.fences += 1;
                steps.loaded += u64::from(*pending);
                *pending = false;
            }
            (0xae, false, 7) => {
                steps.flushes += 1;
                *pending = true;
            }
            (0xae, false, 6) if with_66 => {
                steps.flushes += 1;
                *pending = true;
            }
            (0xe7 | 0x2b | 0xc3, false, _) => {
                steps.streams += 1;
                *pending = true;
            }
            _ => {}
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn of(codes: &[&[u8]]) -> Steps {
            let (mut steps, mut pending) = (Steps::default(), false);
            for bytes in codes {
                let mut code = [0x90; 16];
                code[..bytes.len()].copy_from_slice(bytes);
                classify(&code, &mut steps, &mut pending);
            }
            steps
        }

        #[test]
        fn instructions_are_told_apart() {
            const SFENCE: &[u8] = &[0x0f, 0xae, 0xf8];
            const MFENCE: &[u8] = &[0x0f, 0xae, 0xf0];
            const LFENCE: &[u8] = &[0x0f, 0xae, 0xe8];
            const CLWB: &[u8] = &[0x66, 0x0f, 0xae, 0x30];
            const CLWB_R8: &[u8] = &[0x66, 0x41, 0x0f, 0xae, 0x30];
            const CLFLUSHOPT: &[u8] = &[0x66, 0x0f, 0xae, 0x38];
            const XSAVEOPT: &[u8] = &[0x0f, 0xae, 0x30];
            const MOVNTDQ: &[u8] = &[0x66, 0x0f, 0xe7, 0x07];
            const VMOVNTDQ: &[u8] = &[0xc5, 0xfd, 0xe7, 0x07];
            const VMOVNTDQ_ZMM: &[u8] = &[0x62, 0xf1, 0x7d, 0x48, 0xe7, 0x07];
            const MOVNTI: &[u8] = &[0x48, 0x0f, 0xc3, 0x07];
            const LOCK_ADD: &[u8] = &[0xf0, 0x48, 0x01, 0x07];
            const NOP: &[u8] = &[0x90];
            let steps =
                of(&[SFENCE, CLWB, CLWB_R8, CLFLUSHOPT, XSAVEOPT, SFENCE, MFENCE, LFENCE, LOCK_ADD, NOP]);
            assert_eq!((steps.fences, steps.loaded, steps.flushes, steps.locked), (3, 1, 3, 1));
            let steps = of(&[MOVNTDQ, VMOVNTDQ, SFENCE, VMOVNTDQ_ZMM, MOVNTI, MFENCE]);
            assert_eq!((steps.streams, steps.fences, steps.loaded, steps.flushes), (4, 2, 2, 0));
        }
    }
}
