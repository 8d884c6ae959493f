// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Swap on compressed memory: a zram device of the bench's own.
//!
//! - **Flow** `hot_add` ─▶ a guard ─▶ algorithm, size ─▶ mkswap, swapon before any other swap ─▶ dropped, or this process ends in
//!   whatever way: the guard's input ends, and it does swapoff, reset, `hot_remove`
//! - **Owner** the device is this bench's; one that was there before is not touched
//! - **Not here** the processes that swap to it: those in a group with a limit (`group`)

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A device that is swapped to.
#[derive(Debug)]
pub struct Zram {
    number: u32,
    guard: Child,
}

const CONTROL: &str = "/sys/class/zram-control";

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text)
        .map_err(|error| format!("{}: {error}; run the bench as root on a kernel with zram", path.display()))
}

fn command(program: &str, arguments: &[&str]) -> Result<(), String> {
    match Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{program}: {error}; install util-linux")),
    }
}

impl Zram {
    /// Makes a device of this size with this algorithm; the error says what is missing.
    pub fn create(algorithm: &str, bytes: u64) -> Result<Zram, String> {
        let hot_add = format!("{CONTROL}/hot_add");
        let number = fs::read_to_string(&hot_add)
            .map_err(|error| format!("{hot_add}: {error}; run the bench as root on a kernel with zram"))?;
        let number: u32 = number.trim().parse().map_err(|_| format!("{hot_add} says {number:?}"))?;
        let text = format!(
            "trap '' INT TERM HUP; cat > /dev/null; for try in 1 2 3 4 5; do swapoff /dev/zram{number} 2> /dev/null; \
             if echo 1 > /sys/block/zram{number}/reset; then break; fi; sleep 1; done; \
             echo {number} > {CONTROL}/hot_remove"
        );
        let guard = Command::new("sh")
            .args(["-c", &text])
            .stdin(Stdio::piped())
            .spawn()
            .map_err(|error| format!("sh: {error}"))?;
        let zram = Zram { number, guard };
        write(&zram.attribute("comp_algorithm"), algorithm)?;
        write(&zram.attribute("disksize"), &bytes.to_string())?;
        let device = zram.device();
        command("mkswap", &[&device])?;
        command("swapon", &["-p", "32000", &device])?;
        Ok(zram)
    }

    fn device(&self) -> String {
        format!("/dev/zram{}", self.number)
    }

    fn attribute(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/sys/block/zram{}/{name}", self.number))
    }

    /// Real memory that the device takes, bytes.
    pub fn used(&self) -> u64 {
        self.gauge()()
    }

    /// Returns a function that reads [`Zram::used`], for a thread that samples.
    pub fn gauge(&self) -> impl Fn() -> u64 + Send + 'static {
        let file = self.attribute("mm_stat");
        move || {
            let text = fs::read_to_string(&file).unwrap_or_default();
            // orig_data_size compr_data_size mem_used_total …
            text.split_whitespace().nth(2).and_then(|word| word.parse().ok()).unwrap_or(0)
        }
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        // The guard sees the end of its input and gives the device back.
        drop(self.guard.stdin.take());
        match self.guard.wait() {
            Ok(status) if status.success() => {}
            _ => eprintln!("{} stays: run swapoff on it", self.device()),
        }
    }
}
