// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A chain in memcached: one meta get per node.
//!
//! - **Layout** as in [`super::redis`]: key = the node's name, value = the next one's name and the number in decimal
//! - **Source** the meta commands: memcached's doc/protocol.txt

use super::Chains;
use super::line::Line;
use super::redis::name_of;
use crate::BenchError;

/// Nodes of one write while the store is filled.
const FILL: usize = 500;

/// A connection to memcached.
#[derive(Debug)]
pub struct Memcached {
    line: Line,
}

fn wrong(answer: &[u8]) -> BenchError {
    let answer = String::from_utf8_lossy(&answer[..answer.len().min(200)]).into_owned();
    BenchError::Answer { program: "memcached".to_owned(), answer }
}

impl Memcached {
    /// Over this connection.
    pub fn new(line: Line) -> Memcached {
        Memcached { line }
    }

    /// Fills the store.
    pub fn fill(&mut self, chains: &Chains) -> Result<(), BenchError> {
        let nodes: Vec<(u64, u64, u64)> = chains.nodes().collect();
        for nodes in nodes.chunks(FILL) {
            let mut out = Vec::new();
            for &(name, next, number) in nodes {
                let value = [&name_of(next)[..], number.to_string().as_bytes()].concat();
                out.extend_from_slice(b"ms ");
                out.extend_from_slice(&name_of(name));
                out.extend_from_slice(format!(" {}\r\n", value.len()).as_bytes());
                out.extend_from_slice(&value);
                out.extend_from_slice(b"\r\n");
            }
            self.line.write(&out)?;
            for _ in nodes {
                let length = self.line.line()?;
                let answer = &self.line.here()[..length];
                if !answer.starts_with(b"HD") {
                    return Err(wrong(answer));
                }
                self.line.taken(length + 2);
            }
        }
        Ok(())
    }

    /// Follows a chain; the number of its last node.
    pub fn chain(&mut self, first: u64) -> Result<u64, BenchError> {
        let (mut name, mut number) = (name_of(first), 0);
        for _ in 0..super::HOPS {
            let mut out = *b"mg ........ v\r\n";
            out[3..11].copy_from_slice(&name);
            self.line.write(&out)?;
            let length = self.line.line()?;
            let answer = &self.line.here()[..length];
            let bytes = answer.strip_prefix(b"VA ").and_then(|digits| std::str::from_utf8(digits).ok());
            let bytes = bytes.and_then(|digits| digits.trim().parse::<usize>().ok());
            let bytes = bytes.ok_or_else(|| wrong(answer))?;
            self.line.taken(length + 2);
            self.line.need(bytes + 2)?;
            let node = self.line.here()[..bytes].split_at_checked(8).and_then(|(next, digits)| {
                Some((
                    <[u8; 8]>::try_from(next).ok()?,
                    std::str::from_utf8(digits).ok()?.parse::<u64>().ok()?,
                ))
            });
            (name, number) = node.ok_or_else(|| wrong(b"no node of a chain"))?;
            self.line.taken(bytes + 2);
        }
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use super::super::server::{Server, Store};
    use super::*;
    use crate::traverse::Stop;

    #[test]
    fn a_real_memcached_answers_as_the_data_says() {
        let server = match Server::start(Store::Memcached, true, 1 << 20) {
            Ok(server) => server,
            Err(Stop::Missing(what)) => return eprintln!("skipped: {what}"),
            Err(Stop::Failed(error)) => panic!("{error}"),
        };
        let mut memcached = Memcached::new(server.line().expect("it listens"));
        let chains = Chains::new(20);
        memcached.fill(&chains).expect("it takes them");
        for chain in 0..20 {
            let wanted = chains.numbers(chain).last().expect("48 nodes");
            assert_eq!(memcached.chain(chains.head(chain)).expect("an answer"), wanted);
        }
    }
}
