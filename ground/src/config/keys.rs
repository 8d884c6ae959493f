// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of keys: each with its name, kind, default and meaning. Documentation, parsing, `memlift config
//! show` and the list in error texts all come from here.

use super::value::{Kind, Value};

/// One configuration key of the table.
#[derive(Debug)]
pub struct Key {
    /// `section.name`; a unit is the last part of the name.
    pub name: &'static str,
    /// Kind of the key's values.
    pub kind: Kind,
    /// The value if neither file nor variable sets one.
    pub default: fn() -> Value,
    /// Meaning of the key in one sentence, with the unit.
    pub doc: &'static str,
}

impl Key {
    /// Returns the environment variable that overrides the key: `engine.` is left out, so `engine.isa` is
    /// `MEMLIFT_ISA`.
    pub fn variable(&self) -> String {
        let name = self.name.strip_prefix("engine.").unwrap_or(self.name);
        format!("MEMLIFT_{}", name.replace('.', "_").to_uppercase())
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Every key, by section.
pub const KEYS: &[Key] = &[
    Key {
        name: "engine.isa",
        kind: Kind::Choice(&["auto", "scalar", "sse2", "avx2", "avx512"]),
        default: || Value::Text("auto".to_owned()),
        doc: "instruction set of the copy kernels; auto takes the best that the CPU has",
    },
    Key {
        name: "engine.disable",
        kind: Kind::Facilities,
        default: || Value::Text(String::new()),
        doc: "facilities of CPU and kernel to do without, parted by commas; memlift doctor lists them",
    },
    Key {
        name: "engine.workers",
        kind: Kind::Count { min: 0, max: 1024 },
        default: || {
            Value::Number(u64::from(std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1)))
        },
        doc: "engine threads that take work off the caller; 0 runs everything on the caller",
    },
    Key {
        name: "engine.wait",
        kind: Kind::Choice(&["auto", "spin", "block"]),
        default: || Value::Text("auto".to_owned()),
        doc: "how to wait: spin as long as it pays and then sleep (auto), only spin, or sleep at once (block)",
    },
    Key {
        name: "engine.spin_us_max",
        kind: Kind::Count { min: 0, max: 1_000_000 },
        default: || Value::Number(super::SPIN_US_MAX),
        doc: "most microseconds that one wait spins before it sleeps",
    },
    Key {
        name: "engine.calibration",
        kind: Kind::Path,
        default: || Value::Absent,
        doc: "calibration file to use instead of the one that memlift calibrate keeps in the cache folder",
    },
    Key {
        name: "engine.calibrate",
        kind: Kind::Flag,
        default: || Value::Flag(true),
        doc: "whether a process that has copied 1 GiB without a calibration measures this machine in the background, by at \
              most one second of one core",
    },
    Key {
        name: "engine.split",
        kind: Kind::Flag,
        default: || Value::Flag(true),
        doc: "whether a large copy may be shared between the caller and an idle worker",
    },
    Key {
        name: "ipc.request_pool_bytes",
        kind: Kind::Bytes { min: 4096, max: TIB },
        default: || Value::Bytes(64 * KIB),
        doc: "size at which a session's request pool starts; it grows on demand and shrinks to this again when idle",
    },
    Key {
        name: "ipc.response_pool_bytes",
        kind: Kind::Bytes { min: 4096, max: TIB },
        default: || Value::Bytes(64 * KIB),
        doc: "size at which a session's response pool starts; it grows on demand and shrinks to this again when idle",
    },
    Key {
        name: "ipc.pool_bytes_max",
        kind: Kind::Bytes { min: 4096, max: 16 * TIB },
        default: || Value::Bytes(16 * GIB),
        doc: "most bytes of a session's request pool, and of its response pool; beyond it a call gives PoolFull",
    },
    Key {
        name: "ipc.message_bytes_max",
        kind: Kind::Bytes { min: 4096, max: TIB },
        default: || Value::Bytes(4 * GIB),
        doc: "most bytes of one request or reply; more gives MessageTooLarge",
    },
    Key {
        name: "ipc.outstanding_max",
        kind: Kind::Count { min: 1, max: 65_536 },
        default: || Value::Number(64),
        doc: "most calls of one session that are under way at once; a session has room for 64",
    },
    Key {
        name: "ipc.timeout_s",
        kind: Kind::Seconds,
        default: || Value::Seconds(0.0),
        doc: "seconds until a call without a timeout of its own gives up; 0 waits for ever",
    },
    Key {
        name: "ipc.socket_dir",
        kind: Kind::Path,
        default: || Value::Absent,
        doc: "folder for the sockets of servers with a bare name; without it they are abstract, nothing on disk",
    },
    Key {
        name: "transform.scratch_bytes",
        kind: Kind::Bytes { min: 256 * 1024, max: GIB },
        default: || Value::Bytes(8 * MIB),
        doc: "most scratch memory of all transforms of the process together; beyond it a call gives Busy or waits",
    },
    Key {
        name: "transform.placement",
        kind: Kind::Choice(&["adaptive", "temporal", "streaming", "isolated"]),
        default: || Value::Text("adaptive".to_owned()),
        doc: "how results are stored: decided per message, or always through the cache, past it, or past it with \
              reads that leave the cache alone",
    },
    Key {
        name: "transform.contention_percent",
        kind: Kind::Count { min: 0, max: 1000 },
        default: || Value::Number(35),
        doc: "how much slower than at its best the cache must be, in percent, to count as contended",
    },
    Key {
        name: "transform.slowdown_percent",
        kind: Kind::Count { min: 0, max: 1000 },
        default: || Value::Number(5),
        doc: "how much neighbours on the same caches may be slowed, in percent, before they are spared",
    },
    Key {
        name: "transform.probe",
        kind: Kind::Flag,
        default: || Value::Flag(true),
        doc: "whether contention is measured, by at most one percent of a core while transforms run",
    },
];
