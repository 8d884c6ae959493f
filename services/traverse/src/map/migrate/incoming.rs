// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target's side of a migration.
//!
//! - **Order** the newest version of each piece is kept, and every message is acknowledged each time that it arrives. After
//!   sealing the copy does not change
//! - **Owner** reserved memory is served once the map gives the range to this node; if the migration is cancelled it is discarded

use super::message::GOT_MAX;
use super::{Arrival, Host, Message, Outcome, PIECE_BYTES, records_max};
use crate::map::node::NodeId;
use crate::map::range::{Map, Move};

#[derive(Debug)]
pub(super) struct Incoming {
    plan: Move,
    /// The version of each piece; 0: the piece has not arrived yet.
    versions: Vec<u32>,
    missing: u64,
    records: Vec<Option<Vec<u8>>>,
    sealed: bool,
    refused: Option<String>,
}

impl Incoming {
    pub(super) fn new(plan: Move, host: &mut dyn Host) -> Result<Incoming, String> {
        host.reserve(plan.base, plan.bytes)?;
        let pieces = plan.bytes.div_ceil(PIECE_BYTES);
        let versions = vec![0; pieces as usize];
        Ok(Incoming { plan, versions, missing: pieces, records: Vec::new(), sealed: false, refused: None })
    }

    pub(super) fn source(&self) -> NodeId {
        self.plan.from.0
    }

    pub(super) fn arrival(&self) -> Arrival {
        let (id, pieces) = (self.plan.id, self.versions.len() as u64);
        Arrival { id, pieces, missing: self.missing, sealed: self.sealed }
    }

    pub(super) fn receive(
        &mut self,
        message: Message,
        host: &mut dyn Host,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        let (id, from) = (self.plan.id, self.plan.from.0);
        if let Some(why) = &self.refused {
            out.push((from, Message::Refuse { id, why: why.clone() }));
            return;
        }
        match message {
            Message::Offer { .. } => out.push((from, Message::Accept { id })),
            Message::Piece { index, version, bytes, .. } if !self.sealed => {
                let here = self.piece(index, version, &bytes, host);
                acknowledge(out, from, id, here.then_some((index, version)));
            }
            Message::Record { index, total, bytes, .. } if !self.sealed => {
                // A record that announces too many others is dropped, so that it cannot make this node
                // allocate.
                if u64::from(total) > records_max(self.plan.bytes) || index >= total {
                    return;
                }
                if self.records.len() < total as usize {
                    self.records.resize(total as usize, None);
                }
                self.records[index as usize] = Some(bytes);
                out.push((from, Message::GotRecord { id, index }));
            }
            Message::Seal { records, .. } => self.seal(records, host, out),
            _ => {}
        }
    }

    /// Returns true if the piece has arrived, in this version or a newer one.
    fn piece(&mut self, index: u64, version: u32, bytes: &[u8], host: &mut dyn Host) -> bool {
        let offset = index.saturating_mul(PIECE_BYTES);
        let Some(known) = usize::try_from(index).ok().and_then(|index| self.versions.get_mut(index)) else {
            return false;
        };
        let full = (self.plan.bytes - offset).min(PIECE_BYTES) as usize;
        if version == 0 || !(bytes.is_empty() || bytes.len() == full) {
            return false;
        }
        if version > *known {
            let zeros = [0; PIECE_BYTES as usize];
            // Reserved memory is zero, so a piece of zeros is stored only over an earlier version.
            if !bytes.is_empty() {
                host.store(self.plan.base + offset, bytes);
            } else if *known != 0 {
                host.store(self.plan.base + offset, &zeros[..full]);
            }
            self.missing -= u64::from(*known == 0);
            *known = version;
        }
        true
    }

    fn seal(&mut self, records: u32, host: &mut dyn Host, out: &mut Vec<(NodeId, Message)>) {
        let (id, from) = (self.plan.id, self.plan.from.0);
        if !self.sealed {
            let here = self.records.iter().flatten().count();
            if self.missing != 0 || here != records as usize || self.records.len() != here {
                // A correct source seals only after all pieces and records were acknowledged.
                return;
            }
            let records: Vec<Vec<u8>> = self.records.drain(..).flatten().collect();
            if let Err(why) = host.import(self.plan.base, self.plan.bytes, &records) {
                out.push((from, Message::Refuse { id, why: why.clone() }));
                self.refused = Some(why);
                return;
            }
            self.sealed = true;
        }
        out.push((from, Message::Sealed { id }));
    }

    pub(super) fn poll(&mut self, map: &Map, me: NodeId, host: &mut dyn Host) -> Option<Outcome> {
        let Move { id, base, bytes, .. } = self.plan;
        if map.moves().iter().any(|one| one.id == id) {
            return None;
        }
        if self.sealed && map.find(base).is_some_and(|range| range.owner == Some(me) && range.since > id) {
            return Some(Outcome::Taken { id });
        }
        host.discard(base, bytes);
        let why = self.refused.take().unwrap_or_else(|| "it was cancelled, or a node went down".to_owned());
        Some(Outcome::Cancelled { id, why })
    }
}

/// Queues an acknowledgement of a piece; pieces that arrived together are acknowledged in one message.
fn acknowledge(out: &mut Vec<(NodeId, Message)>, to: NodeId, id: u64, piece: Option<(u64, u32)>) {
    let Some(piece) = piece else { return };
    if let Some((target, Message::Got { id: last, pieces })) = out.last_mut()
        && (*target, *last) == (to, id)
        && pieces.len() < GOT_MAX
    {
        pieces.push(piece);
        return;
    }
    out.push((to, Message::Got { id, pieces: vec![piece] }));
}
