// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Traces of programs at hostile bytes: read, replayed on every device, and read again with each chunk's lengths made good.
//!
//! - **Order** what is refused names a field and says what to do; what passes gives the same outcome twice, and a run without a device
//!   takes what was recorded. A changed program makes each of its calls once
//! - **Layout** u8, bit 0: the header's words are made good, as somebody hostile would · the bytes of a trace

use memlift_model::event::Time;
use memlift_model::whatif::{
    Change, Cpu, Device, Estimate, Timing, Trace, callers, needed, replay, replay_changed,
};
use memlift_spec::formats::trace::{
    CHUNK_USED_AT, CHUNKS_AT, Chunk, HEADER_BYTES, Kind, MAGIC, RECORD_BYTES, Record, VERSION, word,
};

use crate::Input;

fn set(bytes: &mut [u8], index: usize, value: u64) {
    bytes[8 * index..8 * index + 8].copy_from_slice(&value.to_le_bytes());
}

fn header(bytes: &mut Vec<u8>) {
    if bytes.len() < CHUNKS_AT {
        bytes.resize(CHUNKS_AT, 0);
    }
    let length = bytes.len() as u64;
    for (index, value) in [
        (word::MAGIC, MAGIC),
        (word::VERSION, VERSION),
        (word::LIMIT, 1 << 20),
        (word::CLAIMED, length),
        (word::PROCESSES, 1000),
        (word::THREADS, 1000),
    ] {
        set(bytes, index, value);
    }
}

/// Panics when something is wrong.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let forged = input.byte() & 1 == 1;
    let mut bytes = input.rest().to_vec();
    if forged {
        header(&mut bytes);
    }
    let trace = match Trace::read(&bytes) {
        Ok(trace) => trace,
        Err(fault) => {
            let said = fault.to_string();
            assert!(said.contains(fault.field) && said.lines().count() == 1 && !fault.fix.is_empty());
            return;
        }
    };
    let steps: usize = trace.threads.iter().map(|thread| thread.steps.len()).sum();
    assert!(steps <= 8 * bytes.len() / RECORD_BYTES, "steps come from records");
    let cpu = Cpu::new(Vec::new(), 1 << 16, Estimate::exactly(250.0), &trace);
    let dsa = Device::Dsa(memlift_model::dsa::Timing::shipped());
    for (device, timing) in
        [(&Device::Cpu, Timing::Recorded), (&Device::Cpu, Timing::Modelled), (&dsa, Timing::Recorded)]
    {
        let once = replay(&trace, &cpu, timing, device, 4096);
        assert_eq!(once, replay(&trace, &cpu, timing, device, 4096));
        assert!(once.wall >= Time::ZERO && once.offloaded <= trace.calls().count() as u64);
    }
    let without = replay(&trace, &cpu, Timing::Recorded, &Device::Cpu, 0);
    let _ = dsa.best_size(&trace, &cpu, &without);
    let found = callers(&trace, &dsa);
    for (batch, first_use, ahead) in [(1, None, 0), (3, Some(Time::from_ns(500)), 2)] {
        let callers = found.iter().map(|summary| (summary.caller, 0)).collect();
        let change = Change { callers, batch, first_use, ahead };
        let once = replay_changed(&trace, &cpu, &dsa, &change);
        assert_eq!(once, replay_changed(&trace, &cpu, &dsa, &change));
        let calls: u64 = found.iter().map(|summary| summary.calls).sum();
        assert_eq!(once.offloaded + once.limits.fresh, calls, "every call is made once");
    }
    for summary in found.iter().take(4) {
        assert!(needed(&trace, summary.caller).is_some_and(|needed| needed.calls <= summary.calls));
    }
}

/// Bytes of a trace with these threads: process, thread, records.
fn trace(threads: &[(u32, u32, Vec<Record>)]) -> Vec<u8> {
    let mut bytes = vec![0; CHUNKS_AT];
    for (process, thread, records) in threads {
        let used = RECORD_BYTES * (1 + records.len());
        let length = used.next_multiple_of(HEADER_BYTES);
        let chunk = Chunk {
            bytes: length as u32,
            process: *process,
            thread: *thread,
            pid: 100 + process,
            tid: 100 + thread,
            parent: process - 1,
            ..Chunk::default()
        };
        let from = bytes.len();
        bytes.extend(chunk.encode().into_iter().flat_map(u64::to_le_bytes));
        bytes.extend(records.iter().flat_map(Record::encode).flat_map(u64::to_le_bytes));
        bytes.resize(from + length, 0);
        bytes[from + CHUNK_USED_AT..from + CHUNK_USED_AT + 4].copy_from_slice(&(used as u32).to_le_bytes());
    }
    header(&mut bytes);
    bytes
}

/// Two threads and a child process that one waits for; one killed half way; an empty one.
pub fn seeds() -> Vec<Vec<u8>> {
    let record = |kind, words| Record { kind, site: 0, parameter: 0, words };
    let mark = |at, cpu| record(Kind::Mark, [at, cpu, 3, 0, 1, 1, 0]);
    let end = |at, cpu| record(Kind::End, [at, cpu, 3, 0, 1, 1, 0]);
    let copy = |at, bytes| record(Kind::Copy, [at, bytes / 10, 0x10000, 0x90000, bytes, bytes, u64::MAX]);
    let counted = Record { kind: Kind::Counted, site: 0, parameter: 3, words: [5, 100, 4000, 0, 0, 0, 0] };
    let told = |kind, site, parameter, words| Record { kind, site, parameter, words };
    let from = |site, record| Record { site, ..record };
    let first = vec![
        mark(1000, 500),
        told(Kind::Module, 0, 5, [1, 0x7000, 0x9000, 0x1000, 3, 4, 0]),
        told(Kind::ModuleName, 0, 0, [u64::from_le_bytes(*b"/a/b\0\0\0\0"), 0, 0, 0, 0, 0, 0]),
        told(Kind::Site, 9, 0, [1, 0x7004, 0, 0, 0, 0, 0]),
        from(9, copy(2000, 65536)),
        copy(20_000, 1 << 20),
        counted,
        end(9_000_000, 900_000),
    ];
    let child = vec![mark(300_000, 0), copy(400_000, 8192), end(8_000_000, 200_000)];
    let second = vec![copy(500_000, 4096), copy(501_000, 4096)];
    let whole = trace(&[(1, 1, first.clone()), (1, 2, second.clone()), (2, 3, child)]);
    [trace(&[]), trace(&[(1, 1, first)]), trace(&[(1, 1, second)]), whole]
        .into_iter()
        .flat_map(|bytes| [[&[0][..], &bytes].concat(), [&[1][..], &bytes].concat()])
        .collect()
}
