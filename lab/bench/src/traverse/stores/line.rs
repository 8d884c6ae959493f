// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client's connection to a store: bytes out, replies in. A wait first polls for a while, as memlift's own does.
//!
//! - **Flow** [`Line::write`] ─▶ socket ─▶ [`Line::need`]: so many bytes are there ─▶ [`Line::taken`]: they were read
//! - **Order** nothing is read while something is written: a store answers into its own memory and goes on reading
//! - **Owner** one thread

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::server::Place;
use crate::BenchError;

/// Time for which a client polls before it sleeps: longer than any of these stores takes for one request.
const SPIN: Duration = Duration::from_micros(200);
/// Time for which a store may send nothing.
const PATIENCE: Duration = Duration::from_secs(20);
/// Least room that a read of the socket gets, bytes.
const READ_BYTES: usize = 256 << 10;

#[derive(Debug)]
enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// See the module.
#[derive(Debug)]
pub struct Line {
    socket: Socket,
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    spin: bool,
}

fn gone(source: std::io::Error) -> BenchError {
    BenchError::System { what: "talking to a store", source }
}

impl Line {
    /// Connects to a store.
    pub fn connect(place: &Place) -> Result<Line, std::io::Error> {
        let socket = match place {
            Place::Unix(path) => {
                let socket = UnixStream::connect(path)?;
                socket.set_nonblocking(true)?;
                Socket::Unix(socket)
            }
            Place::Tcp(address) => {
                let socket = TcpStream::connect(address)?;
                socket.set_nodelay(true)?;
                socket.set_nonblocking(true)?;
                Socket::Tcp(socket)
            }
        };
        Ok(Line { socket, bytes: vec![0; 2 * READ_BYTES], start: 0, end: 0, spin: true })
    }

    /// Sets whether a client polls for a while before it sleeps.
    pub fn spins(&mut self, spin: bool) {
        self.spin = spin;
    }

    fn wait(&self, flags: PollFlags) -> Result<(), BenchError> {
        let socket = match &self.socket {
            Socket::Unix(socket) => socket.as_fd(),
            Socket::Tcp(socket) => socket.as_fd(),
        };
        let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::from_borrowed_fd(socket, flags)], Some(&patience));
        match ready.map_err(|error| gone(error.into()))? {
            0 => Err(gone(ErrorKind::TimedOut.into())),
            _ => Ok(()),
        }
    }

    /// Sends all bytes, waiting for room where the socket is full.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), BenchError> {
        while !bytes.is_empty() {
            let wrote = match &mut self.socket {
                Socket::Unix(socket) => socket.write(bytes),
                Socket::Tcp(socket) => socket.write(bytes),
            };
            match wrote {
                Ok(many) => bytes = &bytes[many..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::OUT)?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(gone(error)),
            }
        }
        Ok(())
    }

    /// Returns the bytes that have come and were not taken yet.
    pub fn here(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Drops the first `bytes` of [`Line::here`].
    pub fn taken(&mut self, bytes: usize) {
        self.start += bytes;
        debug_assert!(self.start <= self.end);
    }

    /// Waits until more bytes have come.
    pub fn more(&mut self) -> Result<(), BenchError> {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.bytes.len() - self.end < READ_BYTES {
            self.bytes.resize(self.bytes.len() * 2, 0);
        }
        let begun = Instant::now();
        loop {
            let room = &mut self.bytes[self.end..];
            let read = match &mut self.socket {
                Socket::Unix(socket) => socket.read(room),
                Socket::Tcp(socket) => socket.read(room),
            };
            match read {
                Ok(0) => return Err(gone(ErrorKind::UnexpectedEof.into())),
                Ok(many) => {
                    self.end += many;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !self.spin || begun.elapsed() >= SPIN {
                        self.wait(PollFlags::IN)?;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(gone(error)),
            }
        }
    }

    /// Waits until `bytes` are there.
    pub fn need(&mut self, bytes: usize) -> Result<(), BenchError> {
        while self.here().len() < bytes {
            self.more()?;
        }
        Ok(())
    }

    /// The length of the line that is there, without its end; waits for it.
    pub fn line(&mut self) -> Result<usize, BenchError> {
        let mut seen = 0;
        loop {
            if let Some(at) = self.here()[seen..].iter().position(|&byte| byte == b'\n') {
                let length = seen + at;
                return if length > 0 && self.here()[length - 1] == b'\r' {
                    Ok(length - 1)
                } else {
                    Err(gone(ErrorKind::InvalidData.into()))
                };
            }
            seen = self.here().len();
            self.more()?;
        }
    }
}
