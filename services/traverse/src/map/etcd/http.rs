// SPDX-License-Identifier: Apache-2.0 OR MIT
//! As much HTTP as etcd's JSON gateway needs: a question with one answer, and one whose answers go on.
//!
//! - **Flow** POST, JSON ─▶ one JSON value, or [`Stream`]: one JSON value per line for as long as the connection is there
//! - **Owner** a connection per question; every wait has a limit, every answer a largest size. What the other side says is hostile:
//!   lengths, chunk sizes and JSON are checked, errors are errors
//! - **Not here** TLS, redirects, cookies: etcd is on this machine, in a private network, or behind a tunnel
//!
//! Why not a gRPC client: those build their messages with `protoc`, which this project does not ask anybody to install. The
//! gateway is part of every etcd server since 3.0 and speaks the same API (etcd's documentation, "gRPC gateway"; RFC 9112).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::map::remote::tcp;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// A map is at most 4 MiB, in base64 a third more.
const ANSWER_BYTES_MAX: u64 = 8 << 20;
const LINE_BYTES_MAX: u64 = 16 << 10;
const HEADER_LINES_MAX: usize = 64;

fn broken(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

fn line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut bytes = Vec::new();
    reader.take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes)?;
    if bytes.pop() != Some(b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if bytes.last() == Some(&b'\r') {
        bytes.pop();
    }
    String::from_utf8(bytes).map_err(|_| broken("a header that is no text"))
}

enum Length {
    Bytes(u64),
    Chunks,
    ToTheEnd,
}

/// Sends a question and reads the head of the answer: its status and how long its body is.
fn begin(host: &str, path: &str, body: &Value) -> io::Result<(BufReader<TcpStream>, u16, Length)> {
    let mut stream = tcp(host, ANSWER_TIMEOUT)?;
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut reader = BufReader::new(stream);
    let status = line(&mut reader)?;
    let code = status
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1))
        .and_then(|code| code.parse().ok());
    let code: u16 = code.ok_or_else(|| broken("what listens there does not speak HTTP"))?;
    let mut length = Length::ToTheEnd;
    for _ in 0..HEADER_LINES_MAX {
        let header = line(&mut reader)?;
        if header.is_empty() {
            return Ok((reader, code, length));
        }
        let Some((name, value)) = header.split_once(':') else {
            return Err(broken("a header without a colon"));
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = Length::Bytes(value.trim().parse().map_err(|_| broken("a length that is no number"))?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            if !value.trim().eq_ignore_ascii_case("chunked") {
                return Err(broken("an encoding other than chunks"));
            }
            length = Length::Chunks;
        }
    }
    Err(broken("too many headers"))
}

/// The next chunk, at most as long as `limit`; `None` at the end.
fn chunk(reader: &mut impl BufRead, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let size = line(reader)?;
    let size = size.split(';').next().unwrap_or("").trim();
    let size = u64::from_str_radix(size, 16)
        .ok()
        .filter(|_| !size.starts_with('+'))
        .ok_or_else(|| broken("a chunk without a size"))?;
    if size > limit {
        return Err(broken("an answer that is too long"));
    }
    if size == 0 {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    reader.take(size).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if !line(reader)?.is_empty() {
        return Err(broken("a chunk that is longer than it says"));
    }
    Ok(Some(bytes))
}

/// Asks one question.
pub(super) fn ask(host: &str, path: &str, body: &Value) -> io::Result<Value> {
    let (mut reader, code, length) = begin(host, path, body)?;
    let mut bytes = Vec::new();
    match length {
        Length::Bytes(count) if count > ANSWER_BYTES_MAX => return Err(broken("an answer that is too long")),
        Length::Bytes(count) => {
            reader.take(count).read_to_end(&mut bytes)?;
            if bytes.len() as u64 != count {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Length::Chunks => {
            while let Some(part) = chunk(&mut reader, ANSWER_BYTES_MAX - bytes.len() as u64)? {
                bytes.extend(part);
            }
        }
        Length::ToTheEnd => {
            reader.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes)?;
        }
    }
    let value: Value = serde_json::from_slice(&bytes).map_err(|_| broken("an answer that is no JSON"))?;
    if code != 200 {
        let why = value
            .get("message")
            .or_else(|| value.get("error"))
            .and_then(Value::as_str)
            .unwrap_or("no reason given");
        return Err(io::Error::other(format!("etcd says {code}: {why}")));
    }
    Ok(value)
}

/// A question whose answers go on.
pub(super) struct Stream {
    reader: BufReader<TcpStream>,
    /// Content of whole chunks that was not returned as a line yet.
    line: Vec<u8>,
    /// Bytes read behind those chunks: size lines and chunks, the last of them perhaps incomplete.
    raw: Vec<u8>,
}

impl Stream {
    pub(super) fn open(host: &str, path: &str, body: &Value) -> io::Result<Stream> {
        let (reader, code, length) = begin(host, path, body)?;
        if code != 200 || !matches!(length, Length::Chunks) {
            return Err(broken(format!("etcd does not watch (status {code})")));
        }
        Ok(Stream { reader, line: Vec::new(), raw: Vec::new() })
    }

    /// The next value; `None` when there was none in time.
    pub(super) fn next(&mut self, timeout: Duration) -> io::Result<Option<Value>> {
        let until = Instant::now() + timeout;
        loop {
            if let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.line.drain(..=end).collect();
                if line.len() > 1 {
                    return serde_json::from_slice(&line)
                        .map(Some)
                        .map_err(|_| broken("an event that is no JSON"));
                }
                continue;
            }
            if self.whole_chunk()? {
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.reader.get_ref().set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            match self.reader.fill_buf() {
                Ok([]) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => {
                    let count = bytes.len();
                    self.raw.extend(bytes);
                    self.reader.consume(count);
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Moves one chunk from `raw` to `line`, if all of it is there.
    fn whole_chunk(&mut self) -> io::Result<bool> {
        if (self.raw.len() + self.line.len()) as u64 > 2 * ANSWER_BYTES_MAX {
            return Err(broken("an event that is too long"));
        }
        let Some(end) = self.raw.iter().position(|byte| *byte == b'\n') else { return Ok(false) };
        let mut rest = &self.raw[..];
        match chunk(&mut rest, ANSWER_BYTES_MAX) {
            Ok(Some(bytes)) => {
                let used = self.raw.len() - rest.len();
                self.line.extend(bytes);
                self.raw.drain(..used);
                Ok(true)
            }
            Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && end < LINE_BYTES_MAX as usize => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_read_as_far_as_they_are_good() {
        let read = |bytes: &[u8], limit| chunk(&mut &bytes[..], limit);
        assert_eq!(read(b"3\r\nabc\r\n", 9).expect("a chunk"), Some(b"abc".to_vec()));
        assert_eq!(read(b"0\r\n\r\n", 9).expect("the end"), None);
        for bytes in [
            &b""[..],
            b"\r\n",
            b"x\r\nabc\r\n",
            b"+3\r\nabc\r\n",
            b"-1\r\n",
            b"3\r\nab",
            b"3\r\nabcd\r\n",
            b"a\r\n0123456789\r\n",
            b"ffffffffffffffffff\r\n",
        ] {
            assert!(read(bytes, 9).is_err(), "{bytes:?}");
        }
    }
}
