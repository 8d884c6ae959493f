// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client that costs little: packets out, so many under way, answers in, one checksum over all of them.
//!
//! - **Flow** [`Ask`]s ─▶ [`Driver::run`]: send while there is room, take answers, until all have come ─▶ [`Ran`]
//! - **Check** the checksum pairs each answer's value with its question's number, in whatever order they come
//! - **Order** what is not answered in a fifth of a second is sent again, as another attempt: walks that only read may run twice
//! - **Not here** what users call (`memlift_traverse::client`): its bookkeeping would be measured with the node

use std::time::{Duration, Instant};

use memlift_traverse::program::Program;
use memlift_traverse::wire::{Header, Kind, Packet, Status};

use super::serve::{Link, failed};
use crate::{BenchError, machine};

/// Packets taken at a time.
const BATCH: usize = 64;
const AGAIN: Duration = Duration::from_millis(200);
const ATTEMPTS_MAX: u32 = 25;

/// A request to a node.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Where a walk starts, or a read.
    pub address: u64,
    /// Its scratchpad, without the zeros at its end.
    pub body: Vec<u8>,
}

impl Ask {
    /// A walk with these words at the start of its scratchpad.
    pub fn words(address: u64, words: &[u64]) -> Ask {
        Ask { address, body: words.iter().flat_map(|word| word.to_le_bytes()).collect() }
    }
}

/// Result of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ran {
    /// Wall time, seconds.
    pub seconds: f64,
    /// CPU time of all threads, seconds.
    pub cpu_s: f64,
    /// Checksum over all answers.
    pub checksum: u64,
    /// Packets sent again.
    pub again: u64,
    /// Bytes of all packets sent, and of all answers.
    pub bytes: (u64, u64),
}

/// Word `at` of bytes that end before their zeros.
pub fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    for (to, from) in word.iter_mut().zip(bytes.iter().skip(at)) {
        *to = *from;
    }
    u64::from_le_bytes(word)
}

/// Returns an answer's share of the checksum.
pub fn share(number: u64, value: u64) -> u64 {
    let mut word = value.rotate_left(32) ^ (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// Asks one server.
#[derive(Debug)]
pub struct Driver {
    link: Link,
    sequence: u64,
    program: Header,
    value_at: usize,
    packet: Vec<u8>,
}

impl Driver {
    /// Asks for walks of this program, whose value is at `value_at` of the answer's body.
    pub fn new(link: Link, program: &Program, value_at: usize) -> Driver {
        let hash = &program.hash()[..16];
        let program = Header {
            client: 1,
            iterations: 1 << 20,
            hops: 1,
            program: hash.try_into().expect("sixteen bytes"),
            scratch_bytes: program.scratch_bytes() as u16,
            ..Header::new(Kind::Walk)
        };
        Driver { link, sequence: 0, program, value_at, packet: Vec::new() }
    }

    fn send(
        &mut self,
        first: u64,
        number: usize,
        settled: u64,
        attempt: u32,
        ask: &Ask,
    ) -> Result<(), BenchError> {
        let header = Header {
            sequence: first + number as u64,
            settled,
            attempt,
            address: ask.address,
            ..self.program
        };
        self.packet.clear();
        header.format(&ask.body, &mut self.packet);
        self.link.transport.send(self.link.to, &self.packet).map_err(failed)?;
        Ok(())
    }

    /// Asks all of them, `out` at a time, and waits for all answers.
    pub fn run(&mut self, asks: &[Ask], out: usize) -> Result<Ran, BenchError> {
        let first = self.sequence + 1;
        self.sequence += asks.len() as u64;
        let mut come = vec![false; asks.len()];
        let (mut sent, mut answered, mut attempt) = (0, 0, 0);
        // All before this one have come.
        let mut settled = 0;
        let mut ran = Ran::default();
        let (cpu, start) = (machine::cpu_seconds(), Instant::now());
        let mut heard = start;
        while answered < asks.len() {
            while sent < asks.len() && sent - answered < out {
                self.send(first, sent, first + settled as u64, 0, &asks[sent])?;
                ran.bytes.0 += self.packet.len() as u64;
                sent += 1;
            }
            self.link.transport.flush().map_err(failed)?;
            let (mut wrong, value_at) = (None, self.value_at);
            let got = self.link.transport.receive(BATCH, &mut |_, bytes| {
                let Ok(packet) = Packet::parse(bytes) else {
                    wrong = Some("a packet that is none".to_owned());
                    return;
                };
                let number = packet.header.sequence.wrapping_sub(first) as usize;
                if packet.header.status == Status::Busy || come.get(number).is_none_or(|come| *come) {
                    return; // sent again below, or an answer that has come twice
                }
                if packet.header.status != Status::Done {
                    wrong = Some(format!("{:?}", packet.header.status));
                }
                come[number] = true;
                answered += 1;
                ran.checksum = ran.checksum.wrapping_add(share(number as u64, word(packet.body, value_at)));
                ran.bytes.1 += bytes.len() as u64;
            });
            let got = got.map_err(failed)?;
            if let Some(answer) = wrong {
                return Err(BenchError::Answer { program: "a server of the row".to_owned(), answer });
            }
            while settled < sent && come[settled] {
                settled += 1;
            }
            if got > 0 {
                heard = Instant::now();
            } else if heard.elapsed() > AGAIN {
                attempt += 1;
                if attempt > ATTEMPTS_MAX {
                    return Err(failed("a server of the row does not answer"));
                }
                for number in (settled..sent).filter(|number| !come[*number]).collect::<Vec<_>>() {
                    self.send(first, number, first + settled as u64, attempt, &asks[number])?;
                    ran.again += 1;
                }
                heard = Instant::now();
            } else {
                self.link.transport.wait(Duration::from_millis(1)).map_err(failed)?;
            }
        }
        ran.seconds = start.elapsed().as_secs_f64();
        ran.cpu_s = machine::cpu_seconds() - cpu;
        Ok(ran)
    }
}
