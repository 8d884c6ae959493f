// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages between a coordinator and its clients.
//!
//! - **Layout** request: 1 read · 2 wait · 3 join · 4 renew · 5 order, then its fields as in `bytes`. Answer: 0 map · 1
//!   refused · 2 lease lost · 3 nothing new, then its fields
//! - **Owner** a decoder checks everything; a decoded message encodes to the same bytes
//! - **Not here** the frames that carry a message, and the check of its sender (`frame`)

use super::MapError;
use super::bytes::{Reader, Writer};
use super::change::{Join, Order};
use super::node::{ADDRESSES_MAX, NodeId};
use super::range::Map;

/// A client's request to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Asks for the newest map.
    Read,
    /// Waits for a map that is newer than this epoch, for at most this many milliseconds.
    Wait(u64, u64),
    /// A node asks to join.
    Join(Join),
    /// A node, with its incarnation, renews its lease.
    Renew(NodeId, u64),
    /// A change of the map.
    Order(Order),
}

/// The coordinator's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A map; then the id of the node that joined or of the migration that was planned, else 0; then the lease in
    /// milliseconds, or 0.
    Map(Map, u64, u64),
    /// There is no newer map.
    Nothing,
    /// The request is refused, with the reason as text.
    Refused(String),
    /// The node's lease has run out: it must join again.
    LeaseLost,
}

/// Returns as much of a name as the encoding can hold; the receiver refuses a name that long.
fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(255)]
}

impl Request {
    /// Encodes the request as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        match self {
            Request::Read => writer.bytes.push(1),
            Request::Wait(epoch, wait_ms) => {
                writer.bytes.push(2);
                writer.number(*epoch);
                writer.number(*wait_ms);
            }
            Request::Join(join) => {
                writer.bytes.push(3);
                writer.text(short(&join.name));
                writer.bytes.push(join.addresses.len().min(255) as u8);
                for address in &join.addresses {
                    writer.address(address);
                }
                let recovered = u64::from(join.recovered);
                let tenant = u64::from(join.tenant);
                for number in [join.incarnation, join.bytes, recovered, join.epoch, tenant, join.cluster] {
                    writer.number(number);
                }
            }
            Request::Renew(node, incarnation) => {
                writer.bytes.push(4);
                writer.number(node.0.into());
                writer.number(*incarnation);
            }
            Request::Order(order) => {
                writer.bytes.push(5);
                writer.order(order);
            }
        }
        writer.bytes
    }

    /// Decodes a request.
    ///
    /// # Errors
    ///
    /// [`MapError::Encoding`]
    pub fn decode(bytes: &[u8]) -> Result<Request, MapError> {
        let mut reader = Reader::new(bytes);
        let request = match reader.byte()? {
            1 => Request::Read,
            2 => Request::Wait(reader.number()?, reader.number()?),
            3 => Request::Join(reader.join()?),
            4 => Request::Renew(reader.id(0)?, reader.number()?),
            5 => Request::Order(reader.order()?),
            _ => return Err(reader.fault("a request")),
        };
        reader.end()?;
        Ok(request)
    }
}

impl Answer {
    /// Encodes the answer as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        match self {
            Answer::Map(map, number, lease_ms) => {
                writer.bytes.push(0);
                writer.number(*number);
                writer.number(*lease_ms);
                writer.bytes.extend(map.encode());
            }
            Answer::Refused(what) => {
                writer.bytes.push(1);
                writer.bytes.extend(what.as_bytes());
            }
            Answer::LeaseLost => writer.bytes.push(2),
            Answer::Nothing => writer.bytes.push(3),
        }
        writer.bytes
    }

    /// Decodes an answer.
    ///
    /// # Errors
    ///
    /// [`MapError::Encoding`], [`MapError::Invalid`]
    pub fn decode(bytes: &[u8]) -> Result<Answer, MapError> {
        let mut reader = Reader::new(bytes);
        let answer = match reader.byte()? {
            0 => {
                let (number, lease_ms) = (reader.number()?, reader.number()?);
                let count = reader.left();
                Answer::Map(Map::decode(reader.take(count)?)?, number, lease_ms)
            }
            1 => {
                let count = reader.left();
                let text = std::str::from_utf8(reader.take(count)?).map_err(|_| reader.fault("text"))?;
                Answer::Refused(text.to_owned())
            }
            2 => Answer::LeaseLost,
            3 => Answer::Nothing,
            _ => return Err(reader.fault("an answer")),
        };
        reader.end()?;
        Ok(answer)
    }
}

impl Writer {
    fn order(&mut self, order: &Order) {
        match order {
            Order::Plan { base, bytes, to } => {
                self.bytes.push(1);
                self.number(*base);
                self.number(*bytes);
                self.text(short(to));
            }
            Order::Commit(id) => {
                self.bytes.push(2);
                self.number(*id);
            }
            Order::Cancel(id) => {
                self.bytes.push(3);
                self.number(*id);
            }
            Order::Forget(name) => {
                self.bytes.push(4);
                self.text(short(name));
            }
            Order::Leave(node, incarnation) => {
                self.bytes.push(5);
                self.number(node.0.into());
                self.number(*incarnation);
            }
        }
    }
}

impl Reader<'_> {
    fn order(&mut self) -> Result<Order, MapError> {
        Ok(match self.byte()? {
            1 => Order::Plan { base: self.number()?, bytes: self.number()?, to: self.text()? },
            2 => Order::Commit(self.number()?),
            3 => Order::Cancel(self.number()?),
            4 => Order::Forget(self.text()?),
            5 => Order::Leave(self.id(0)?, self.number()?),
            _ => return Err(self.fault("an order")),
        })
    }

    fn join(&mut self) -> Result<Join, MapError> {
        let name = self.text()?;
        let count = usize::from(self.byte()?);
        if count > ADDRESSES_MAX {
            return Err(self.fault("a few addresses"));
        }
        let addresses = (0..count).map(|_| self.address()).collect::<Result<Vec<_>, _>>()?;
        let (incarnation, bytes) = (self.number()?, self.number()?);
        let recovered = match self.number()? {
            0 => false,
            1 => true,
            _ => return Err(self.fault("yes or no")),
        };
        let epoch = self.number()?;
        let tenant = u32::try_from(self.number()?).map_err(|_| self.fault("a tenant's number"))?;
        let cluster = self.number()?;
        Ok(Join { name, addresses, incarnation, bytes, recovered, epoch, tenant, cluster })
    }
}
