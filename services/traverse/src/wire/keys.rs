// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Authentication: a key per tenant, and the MAC that proves the sender of a packet.
//!
//! - **Flow** key file ──[`Keys::parse`]──▶ [`Keys`]. Sending: [`Keys::seal`] writes the MAC; receiving: [`Keys::open`]
//!   compares it
//! - **Layout** MAC: the first 16 bytes of BLAKE3, keyed, over everything before it. Key file: lines `TENANT HEX`, 64
//!   hexadecimal digits; a line `nodes HEX` for messages between nodes, about ranges that move and about forwarded requests;
//!   `#` starts a comment
//! - **Order** with keys, a packet without the right MAC is dropped without an answer; without keys, every packet is accepted
//! - **Not here** replay: a MAC proves the sender; [`super::Senders`] refuses a packet that arrives twice
//! - **Not here** replay: a MAC proves the sender, [`super::Senders`] refuses a packet that comes twice

use std::collections::BTreeMap;

use memlift_spec::formats::packet::{
    FLAG_AUTHENTICATED, FLAG_FORWARDED, FLAG_RELAY, PACKET_MAC_BYTES, TENANT_NODES,
};

use super::{Header, Packet, PacketError};

/// A line of a key file that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "line {line} of the key file is not `TENANT HEX` with a tenant's number, or `nodes`, and 64 hexadecimal digits"
)]
pub struct KeyError {
    /// Number of the line, from 1.
    pub line: usize,
}

/// The keys of all tenants that this side knows. Without any key authentication is off.
#[derive(Clone, Default)]
pub struct Keys {
    keys: BTreeMap<u32, [u8; 32]>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_set().entries(self.keys.keys()).finish()
    }
}

impl Keys {
    /// Returns an empty set of keys, for use on one machine.
    #[must_use]
    pub fn none() -> Keys {
        Keys::default()
    }

    /// Adds the key of one tenant.
    #[must_use]
    pub fn with(mut self, tenant: u32, key: [u8; 32]) -> Keys {
        self.keys.insert(tenant, key);
        self
    }

    /// Returns a set with the key of one tenant only, if that is there.
    #[must_use]
    pub fn only(&self, tenant: u32) -> Keys {
        self.keys.get(&tenant).map_or_else(Keys::none, |key| Keys::none().with(tenant, *key))
    }

    /// Parses a key file.
    ///
    /// # Errors
    ///
    /// The first line that is not a key; line 0 if the file contains no key.
    pub fn parse(text: &str) -> Result<Keys, KeyError> {
        let mut keys = Keys::none();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let wrong = KeyError { line: index + 1 };
            let (tenant, digits) = line.split_once(char::is_whitespace).ok_or(wrong.clone())?;
            let tenant = if tenant == "nodes" {
                TENANT_NODES
            } else {
                tenant.parse().ok().filter(|tenant| *tenant != TENANT_NODES).ok_or(wrong.clone())?
            };
            let key = from_hex(digits.trim()).ok_or(wrong)?;
            keys.keys.insert(tenant, key);
        }
        if keys.is_empty() { Err(KeyError { line: 0 }) } else { Ok(keys) }
    }

    /// Returns true if authentication is off.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns true if nodes can send each other messages: they have a key, or authentication is off.
    #[must_use]
    pub fn nodes_can_speak(&self) -> bool {
        self.is_empty() || self.keys.contains_key(&TENANT_NODES)
    }

    /// Returns the key by which nodes prove who they are; `None`: there is none.
    pub(crate) fn nodes_key(&self) -> Option<[u8; 32]> {
        self.keys.get(&TENANT_NODES).copied()
    }

    /// Returns the key for a packet. Messages between nodes about a client's request use the nodes' key, if there is one,
    /// which no client has.
    fn key(&self, header: &Header) -> Option<&[u8; 32]> {
        let between_nodes = header.has(FLAG_FORWARDED | FLAG_RELAY);
        let nodes = if between_nodes { self.keys.get(&TENANT_NODES) } else { None };
        nodes.or_else(|| self.keys.get(&header.tenant))
    }

    /// Returns true if only a node can have sent the packet with this header, which [`Keys::open`] has accepted.
    #[must_use]
    pub fn proves_node(&self, header: &Header) -> bool {
        let nodes = header.has(FLAG_FORWARDED | FLAG_RELAY) || header.tenant == TENANT_NODES;
        nodes && self.keys.contains_key(&TENANT_NODES)
    }

    /// Appends a packet to `bytes`, with a MAC if its tenant has a key.
    #[inline]
    pub fn seal(&self, header: &Header, body: &[u8], bytes: &mut Vec<u8>) {
        let start = bytes.len();
        match self.key(header) {
            None => Header { flags: header.flags & !FLAG_AUTHENTICATED, ..*header }.format(body, bytes),
            Some(key) => {
                Header { flags: header.flags | FLAG_AUTHENTICATED, ..*header }.format(body, bytes);
                let end = bytes.len() - PACKET_MAC_BYTES;
                let mac = blake3::keyed_hash(key, &bytes[start..end]);
                bytes[end..].copy_from_slice(&mac.as_bytes()[..PACKET_MAC_BYTES]);
            }
        }
    }

    /// Parses a packet and, if there are keys, checks that its tenant sent it.
    ///
    /// # Errors
    ///
    /// The packet is malformed, or its MAC is missing or wrong.
    #[inline]
    pub fn open<'a>(&self, bytes: &'a [u8]) -> Result<Packet<'a>, PacketError> {
        let packet = Packet::parse(bytes)?;
        if self.is_empty() {
            return Ok(packet);
        }
        let forged = PacketError::Forged(packet.header.tenant);
        let key = self.key(&packet.header).ok_or(forged)?;
        if !packet.header.has(FLAG_AUTHENTICATED) {
            return Err(forged);
        }
        let (said, mac) = bytes.split_at(bytes.len() - PACKET_MAC_BYTES);
        let right = blake3::keyed_hash(key, said);
        // Compared without a branch on the first difference, so that timing reveals nothing about the right MAC.
        let difference =
            right.as_bytes()[..PACKET_MAC_BYTES].iter().zip(mac).fold(0, |all, (a, b)| all | (a ^ b));
        if std::hint::black_box(difference) == 0 { Ok(packet) } else { Err(forged) }
    }
}

fn from_hex(digits: &str) -> Option<[u8; 32]> {
    let mut key = [0; 32];
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    for (byte, pair) in key.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_is_read_or_its_line_named() {
        let digits = "ab".repeat(32);
        let keys = Keys::parse(&format!("# two\n1 {digits}\n\n7  {digits} # seven\n")).expect("a good file");
        assert_eq!(keys.keys.len(), 2);
        assert_eq!(keys.keys[&7], [0xab; 32]);
        for (text, line) in [("", 0), ("1", 1), ("#\nx abc", 2), ("1 zz", 1), (&format!("1 {digits}0"), 1)] {
            assert_eq!(Keys::parse(text).expect_err(text), KeyError { line });
        }
        assert!(!format!("{keys:?}").contains("171"), "a key is not printed");
        assert!(!keys.nodes_can_speak() && Keys::none().nodes_can_speak());
        assert!(Keys::parse(&format!("nodes {digits}")).expect("a good file").nodes_can_speak());
        assert!(Keys::parse(&format!("{} {digits}", u32::MAX)).is_err(), "it has a name");
    }
}
