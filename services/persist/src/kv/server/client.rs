// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection of the server: its unread input, its requests and its unsent replies.
//!
//! - **Flow** bytes ─▶ whole requests (`protocol`) ─▶ commands ─▶ replies, appended ─▶ one write
//! - **Rule** a client that has ended its side gets the replies to all that it sent before the connection closes
//! - **Rule** a client that is refused is read from, to no use, until it is quiet: closing earlier would throw away the error that it
//!   was sent

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;

use super::READ_BYTES;
use super::commands::{self, Shared, Then};
use super::protocol::{Limits, Reply, Request};
use super::session::Session;
use crate::error::Result;
use crate::kv::Kv;

/// Replies that wait for a client beyond this keep its requests waiting.
const OUTPUT_BYTES: usize = 1 << 20;
/// A client that will be closed is read from, to no use, until it sends nothing for a second, and for so long at most.
const LINGER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// A connection, its unread input and its unsent replies.
pub(super) struct Client {
    pub stream: TcpStream,
    pub input: Vec<u8>,
    request: Request,
    output: Reply,
    sent: usize,
    session: Session,
    /// No further request is served.
    closing: bool,
    /// It sends nothing more.
    ended: bool,
    /// Its replies are out since then, and when it last sent something.
    lingers: Option<[Instant; 2]>,
    pub gone: bool,
    /// Whole requests may be left: its replies were too many to go on.
    pub paused: bool,
    /// It is one of those that this round, or the next one, goes through.
    pub listed: bool,
    /// Events that epoll waits for.
    pub awaited: EventFlags,
    /// [`Client::holds`] as it is part of its thread's sum.
    pub held: usize,
}

impl Client {
    pub fn new(stream: TcpStream, shared: &Shared) -> io::Result<Client> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let session = Session::new(&shared.sessions, stream.peer_addr().ok(), stream.local_addr().ok());
        Ok(Client {
            stream,
            session,
            lingers: None,
            input: Vec::new(),
            request: Request::default(),
            output: Reply::default(),
            sent: 0,
            closing: false,
            ended: false,
            gone: false,
            paused: false,
            listed: false,
            awaited: EventFlags::IN,
            held: 0,
        })
    }

    /// Returns true if it has to take replies before further requests of it run.
    pub fn waits(&self) -> bool {
        self.output.written() - self.sent > OUTPUT_BYTES
    }

    /// Returns true if it is read from.
    pub fn listens(&self) -> bool {
        !self.ended && !self.waits() && (!self.closing || self.lingers.is_some())
    }

    /// Returns true if replies are unsent.
    pub fn has_replies(&self) -> bool {
        self.output.written() > self.sent
    }

    /// Bytes of memory that it takes.
    pub fn holds(&self) -> usize {
        let queued = self.session.multi.as_ref().map_or(0, |multi| multi.bytes);
        self.input.len() + self.request.held() + self.output.written() + queued
    }

    /// Takes in what is there, a bounded piece of it.
    pub fn receive(&mut self, scratch: &mut [u8]) {
        match self.stream.read(scratch) {
            Ok(0) => self.ended = true,
            Ok(_) if self.closing => {
                if let Some([_, heard]) = &mut self.lingers {
                    *heard = Instant::now();
                }
            }
            Ok(read) => self.input.extend_from_slice(&scratch[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.gone = true,
        }
    }

    /// Runs the whole requests that are there. An error is the store's.
    pub fn work(&mut self, kv: &Kv<'_>, shared: &Shared, limits: &Limits) -> Result<()> {
        let mut used = 0;
        self.paused = false;
        while !self.closing && used < self.input.len() {
            if self.waits() {
                self.paused = true;
                break;
            }
            match self.request.read(&self.input[used..], limits) {
                Ok(false) => break,
                Ok(true) => {
                    let arguments = self.request.arguments(&self.input[used..]);
                    let done = commands::run(kv, shared, &mut self.session, &arguments, &mut self.output)?;
                    self.closing = done == Then::Close;
                    used += self.request.bytes();
                    self.request.clear();
                }
                Err(wrong) => {
                    self.output.error(&format!("ERR {wrong}"));
                    self.closing = true;
                }
            }
        }
        if used > 0 {
            self.session.note_use();
        }
        self.input.drain(..if self.closing { self.input.len() } else { used });
        if self.input.is_empty() {
            self.input.shrink_to(READ_BYTES);
        }
        Ok(())
    }

    /// Sends what is unsent, as far as the client takes it.
    pub fn send(&mut self) {
        while self.sent < self.output.written() {
            match self.stream.write(&self.output.bytes()[self.sent..]) {
                Ok(0) => {
                    self.gone = true;
                    return;
                }
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.gone |= error.kind() != ErrorKind::WouldBlock;
                    return;
                }
            }
        }
        self.output.clear(READ_BYTES);
        self.sent = 0;
        self.gone |= self.ended && !self.paused;
        if self.closing && self.lingers.is_none() {
            self.lingers = Some([Instant::now(); 2]);
            self.gone |= self.stream.shutdown(Shutdown::Write).is_err();
        }
    }

    /// Returns true if it was told why it is closed, and has had the time to hear it.
    pub fn has_lingered(&self) -> bool {
        let [quiet, whole] = LINGER;
        self.lingers.is_some_and(|[since, heard]| since.elapsed() > whole || heard.elapsed() > quiet)
    }

    /// Closes it for this reason, in the place of what it waits for.
    pub fn refuse(&mut self, why: &str) {
        // Within a reply, an error would be part of it.
        self.gone |= self.sent > 0;
        self.input = Vec::new();
        let mut reply = Reply::default();
        reply.error(why);
        (self.output, self.sent, self.closing, self.paused) = (reply, 0, true, false);
        self.send();
        self.gone |= self.lingers.is_none();
    }
}
