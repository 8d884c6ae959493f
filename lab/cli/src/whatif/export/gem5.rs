// SPDX-License-Identifier: Apache-2.0 OR MIT
//! gem5's packet trace: what its traffic generator plays (`createTrace`).
//!
//! - **Layout** the four bytes `gem5`, then messages of protobuf, each behind its length as a varint: PacketHeader (1 name, 2 version, 3 ticks per
//!   second, 4 names of ids), then Packets (1 tick, 2 command, 3 address, 4 bytes, 6 id)
//! - **Rule** 10^12 ticks per second, which gem5 demands to be its own frequency: its default

use memlift_model::whatif::Trace;

use super::access::{Access, LINE};

/// MemCmd::ReadReq and MemCmd::WriteReq.
const READ: u64 = 1;
const WRITE: u64 = 4;
const TICKS_PER_SECOND: u64 = 1_000_000_000_000;

fn varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number > 127 {
        bytes.push(number as u8 | 128);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// A field of protobuf with a number.
fn number(bytes: &mut Vec<u8>, field: u64, number: u64) {
    varint(bytes, field << 3);
    varint(bytes, number);
}

/// A field of protobuf with bytes: text, or another message.
fn text(bytes: &mut Vec<u8>, field: u64, text: &[u8]) {
    varint(bytes, field << 3 | 2);
    varint(bytes, text.len() as u64);
    bytes.extend_from_slice(text);
}

fn framed(message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(message.len() + 2);
    varint(&mut bytes, message.len() as u64);
    bytes.extend_from_slice(message);
    bytes
}

/// The beginning of the file; ids of packets are threads, by their number in the trace from 1.
pub fn header(trace: &Trace) -> Vec<u8> {
    let mut message = Vec::new();
    text(&mut message, 1, format!("memlift whatif: {}", trace.command).as_bytes());
    number(&mut message, 2, 0);
    number(&mut message, 3, TICKS_PER_SECOND);
    for (thread, id) in trace.threads.iter().zip(1..) {
        let mut entry = Vec::new();
        number(&mut entry, 1, id);
        text(&mut entry, 2, format!("thread {id} of process {}", thread.process).as_bytes());
        text(&mut message, 4, &entry);
    }
    [b"gem5".to_vec(), framed(&message)].concat()
}

/// An access of a line by the thread of this number.
pub fn packet(tick_ps: u64, access: Access, id: u64) -> Vec<u8> {
    let mut message = Vec::with_capacity(32);
    number(&mut message, 1, tick_ps);
    number(&mut message, 2, if access.store { WRITE } else { READ });
    number(&mut message, 3, access.address);
    number(&mut message, 4, LINE);
    number(&mut message, 6, id);
    framed(&message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_have_the_bytes_of_protobuf() {
        let packet = packet(300, Access { address: 0x1_0040, store: true }, 2);
        assert_eq!(packet, [13, 0x08, 0xac, 0x02, 0x10, 4, 0x18, 0xc0, 0x80, 0x04, 0x20, 64, 0x30, 2]);
        let mut trace = Trace { command: "a b".into(), ..Trace::default() };
        trace.threads.push(memlift_model::whatif::Thread::default());
        let header = header(&trace);
        assert_eq!(&header[..4], b"gem5");
        assert_eq!(usize::from(header[4]), header.len() - 5);
        assert_eq!(&header[5..26], b"\x0a\x13memlift whatif: a b");
        // 10^12, seven bits at a time.
        assert_eq!(header[26..35], [0x10, 0, 0x18, 0x80, 0xa0, 0x94, 0xa5, 0x8d, 0x1d]);
        assert!(header.ends_with(b"thread 1 of process 0"));
    }
}
