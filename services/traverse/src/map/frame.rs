// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frames on a stream, each with a MAC: nobody else can insert a frame into a connection, nor replay one.
//!
//! - **Layout** greeting, both ways: 0 magic "MLCO", between a node and its backup "MLRE" · 4 version u16 · 6 key u16 (1: a secret is used) · 8 nonce, 16 bytes. Frame:
//!   0 payload bytes u32 · 4 payload · then 32 bytes BLAKE3, keyed, of direction u8, number u64 and payload
//! - **Order** frames are numbered from 0 in each direction, so a frame that is repeated, omitted or from another connection has a
//!   wrong MAC
//! - **Owner** the key of a connection is derived from the secret and both nonces. Without a secret the MAC only detects damage;
//!   then the server listens on loopback or a Unix socket only

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::MapError;
use super::encode::MAP_BYTES_MAX;
use crate::transport::udp::timespec;

/// Most bytes of a key file. It holds 64 digits and perhaps a line end.
const KEY_FILE_BYTES_MAX: u64 = 4096;

/// Most bytes of a request.
pub const REQUEST_BYTES_MAX: usize = 4 << 10;
const ANSWER_BYTES_MAX: usize = MAP_BYTES_MAX + 64;
const MAC_BYTES: usize = 32;
const COUNT_BYTES: usize = 4;
/// Most bytes of one read of the stream.
const READ_BYTES: usize = 16 << 10;

/// Conversation that a connection is for. The two sides must mean the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// A coordinator and its members.
    Map,
    /// A node and its backup.
    Replica,
}

impl Protocol {
    fn magic(self) -> [u8; 4] {
        match self {
            Protocol::Map => *b"MLCO",
            Protocol::Replica => *b"MLRE",
        }
    }

    fn context(self) -> &'static str {
        match self {
            Protocol::Map => "memlift map coordinator frames, version 1",
            Protocol::Replica => "memlift node replica frames, version 1",
        }
    }

    fn other(self) -> &'static str {
        match self {
            Protocol::Map => "what speaks there is no memlift coordinator, or one of another version",
            Protocol::Replica => "what speaks there is no replicated memlift node, or one of another version",
        }
    }
}
const GREETING_BYTES: usize = 24;

/// Secret that a coordinator shares with its clients: 32 bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// Makes a secret from its bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Secret {
        Secret(bytes)
    }

    /// Reads a secret from a file of 64 hexadecimal digits that other users must not be able to read.
    ///
    /// # Errors
    ///
    /// [`MapError::File`], [`MapError::Refused`]
    pub fn read(path: &Path) -> Result<Secret, MapError> {
        use std::os::unix::fs::MetadataExt;
        let file = |source| MapError::File { action: "reading the key file", path: path.to_owned(), source };
        if std::fs::metadata(path).map_err(file)?.mode() & 0o077 != 0 {
            return Err(MapError::refused(format!("others may read {0}: chmod 600 {0}", path.display())));
        }
        let text = memlift_ground::input_file::text(path, KEY_FILE_BYTES_MAX).map_err(file)?;
        let hash = blake3::Hash::from_hex(text.trim()).map_err(|_| {
            let path = path.display();
            MapError::refused(format!("{path} holds no key: 64 hexadecimal digits (openssl rand -hex 32)"))
        })?;
        Ok(Secret(*hash.as_bytes()))
    }
}

/// The two sides of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that answers.
    Server,
    /// The side that asks.
    Client,
}

/// A connection after the greeting.
pub struct Frames<S> {
    stream: S,
    key: [u8; 32],
    side: Side,
    sent: u64,
    received: u64,
    /// Bytes that were read from the stream and belong to no received frame.
    arrived: Vec<u8>,
}

impl<S> fmt::Debug for Frames<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames")
            .field("sent", &self.sent)
            .field("received", &self.received)
            .finish_non_exhaustive()
    }
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Returns sixteen unpredictable random bytes of the system.
pub(super) fn nonce() -> io::Result<[u8; 16]> {
    let mut nonce = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut nonce)?;
    Ok(nonce)
}

fn greeting(protocol: Protocol, secret: Option<&Secret>, nonce: [u8; 16]) -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[..4].copy_from_slice(&protocol.magic());
    bytes[4] = 1;
    bytes[6] = secret.is_some().into();
    bytes[8..].copy_from_slice(&nonce);
    bytes
}

impl<S: Read + Write> Frames<S> {
    /// Exchanges greetings. A peer that does not answer, or speaks another protocol, is an error.
    ///
    /// # Errors
    ///
    /// Errors of the stream, or `InvalidData` with a text that says what to do
    pub fn greet(
        mut stream: S,
        protocol: Protocol,
        secret: Option<&Secret>,
        side: Side,
    ) -> io::Result<Frames<S>> {
        let ours = greeting(protocol, secret, nonce()?);
        stream.write_all(&ours)?;
        let mut theirs = [0; GREETING_BYTES];
        stream.read_exact(&mut theirs)?;
        if theirs[..6] != ours[..6] {
            return Err(broken(protocol.other()));
        }
        if theirs[6..8] != ours[6..8] {
            return Err(broken("one side uses a key and the other does not: give both the same key file"));
        }
        let (server, client) = if side == Side::Server { (&ours, &theirs) } else { (&theirs, &ours) };
        let secret = secret.map_or([0; 32], |secret| secret.0);
        let material = [&secret[..], &server[8..], &client[8..]].concat();
        let key = blake3::derive_key(protocol.context(), &material);
        Ok(Frames { stream, key, side, sent: 0, received: 0, arrived: Vec::new() })
    }

    fn mac(&self, from: Side, number: u64, payload: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&[from as u8]).update(&number.to_le_bytes()).update(payload);
        hasher.finalize()
    }

    /// Sends one frame.
    ///
    /// # Errors
    ///
    /// Errors of the stream
    pub fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        let mac = self.mac(self.side, self.sent, payload);
        self.sent += 1;
        let mut frame = Vec::with_capacity(4 + payload.len() + MAC_BYTES);
        frame.extend((payload.len() as u32).to_le_bytes());
        frame.extend(payload);
        frame.extend(mac.as_bytes());
        self.stream.write_all(&frame)?;
        self.stream.flush()
    }

    /// Receives the next frame.
    ///
    /// # Errors
    ///
    /// Errors of the stream (`UnexpectedEof`: the other side is gone), or `InvalidData`
    pub fn receive(&mut self) -> io::Result<Vec<u8>> {
        self.fill(COUNT_BYTES)?;
        let end = self.end()?.expect("filled");
        self.fill(end)?;
        self.take(end)
    }

    /// Returns the end of the next frame in what has arrived, with its MAC; `None` if that is not known yet.
    fn end(&self) -> io::Result<Option<usize>> {
        let Some(count) = self.arrived.first_chunk() else { return Ok(None) };
        let count = u32::from_le_bytes(*count) as usize;
        if count > if self.side == Side::Server { REQUEST_BYTES_MAX } else { ANSWER_BYTES_MAX } {
            return Err(broken("a frame is longer than any message"));
        }
        Ok(Some(COUNT_BYTES + count + MAC_BYTES))
    }

    /// Takes the frame that ends there out of what has arrived.
    fn take(&mut self, end: usize) -> io::Result<Vec<u8>> {
        let payload = self.arrived[COUNT_BYTES..end - MAC_BYTES].to_vec();
        let mac: [u8; MAC_BYTES] = self.arrived[end - MAC_BYTES..end].try_into().expect("as long");
        self.arrived.drain(..end);
        let from = if self.side == Side::Server { Side::Client } else { Side::Server };
        // Hashes are compared in constant time.
        if self.mac(from, self.received, &payload) != blake3::Hash::from_bytes(mac) {
            return Err(broken("a frame is not authenticated with this key: compare both sides' key files"));
        }
        self.received += 1;
        Ok(payload)
    }

    /// Reads until this many bytes have arrived. Memory grows with the bytes received, not with an announced count.
    fn fill(&mut self, bytes: usize) -> io::Result<()> {
        let mut part = [0; READ_BYTES];
        while self.arrived.len() < bytes {
            match self.stream.read(&mut part) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.arrived.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns true if bytes of the next frame were read already.
    #[must_use]
    pub fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Returns the underlying stream.
    pub fn stream(&self) -> &S {
        &self.stream
    }
}

impl Frames<TcpStream> {
    /// Receives the next frame if it comes within this time; a part of one stays for the next call.
    ///
    /// # Errors
    ///
    /// As [`Frames::receive`]
    pub fn receive_within(&mut self, at_most: Duration) -> io::Result<Option<Vec<u8>>> {
        let until = Instant::now() + at_most;
        loop {
            if let Some(end) = self.end()?.filter(|end| *end <= self.arrived.len()) {
                return self.take(end).map(Some);
            }
            if !at_most.is_zero() {
                let left = until.saturating_duration_since(Instant::now());
                let mut descriptors = [PollFd::new(&self.stream, PollFlags::IN)];
                match rustix::event::poll(&mut descriptors, Some(&timespec(left))) {
                    Ok(0) => return Ok(None),
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            let mut part = [0; READ_BYTES];
            match rustix::net::recv(&self.stream, &mut part, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((count, _)) => self.arrived.extend_from_slice(&part[..count]),
                Err(Errno::AGAIN) if at_most.is_zero() => return Ok(None),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Splits a connection: one half is for sending only, the other for receiving only.
    ///
    /// # Errors
    ///
    /// The system has no descriptor left
    pub fn split(mut self) -> io::Result<(Frames<TcpStream>, Frames<TcpStream>)> {
        let stream = self.stream.try_clone()?;
        let arrived = std::mem::take(&mut self.arrived);
        let Frames { key, side, sent, received, .. } = self;
        Ok((self, Frames { stream, key, side, sent, received, arrived }))
    }
}
