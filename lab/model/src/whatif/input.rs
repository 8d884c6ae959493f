// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The chunks of a trace, one after the other, from a file or a pipe.
//!
//! - **Flow** header ─▶ [`Chunks::next`]: one chunk in one buffer ─▶ the threads that are built from its records
//! - **Rule** no more is read than the header claims, and no more is held than the largest chunk. Pages that were claimed and never written
//!   are skipped, [`EMPTY_BYTES_MAX`] at most: an input of zeros has an end
//! - **Not here** what records say (`timeline`), the layout (`memlift_spec::formats::trace`)

use std::io::{self, ErrorKind, Read};

use memlift_spec::formats::trace::{
    CHUNK_BYTES_MAX, CHUNKS_AT, Chunk, Fault, HEADER_BYTES, Header, RECORD_BYTES,
};

/// Pages of zeros between chunks, all together, bytes. A thread leaves at most one chunk that it has not begun.
const EMPTY_BYTES_MAX: u64 = 1 << 30;

/// An error in the input of a trace.
#[derive(Debug)]
pub enum TraceError {
    /// The input is no trace, or a damaged one.
    Fault(Fault),
    /// The input could not be read.
    Io(io::Error),
}

impl From<Fault> for TraceError {
    fn from(fault: Fault) -> TraceError {
        TraceError::Fault(fault)
    }
}

impl std::fmt::Display for TraceError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TraceError::Fault(fault) => fault.fmt(formatter),
            TraceError::Io(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for TraceError {}

/// See the module.
pub(super) struct Chunks<'a, R> {
    header: Header<'a>,
    rest: R,
    at: u64,
    empty_bytes: u64,
    buffer: Vec<u8>,
}

/// A chunk, the offset of its records in the trace, and their bytes.
pub(super) type Found<'a> = (Chunk, u64, &'a [u8]);

impl<'a, R: Read> Chunks<'a, R> {
    /// The chunks behind this header; `rest` is what follows it.
    ///
    /// # Errors
    /// The input ends before the first chunk, or cannot be read.
    pub fn new(header: Header<'a>, mut rest: R) -> Result<Chunks<'a, R>, TraceError> {
        let wakes = (CHUNKS_AT - HEADER_BYTES) as u64;
        let read = io::copy(&mut (&mut rest).take(wakes), &mut io::sink()).map_err(TraceError::Io)?;
        if read < wakes {
            return Err(Header::too_short(HEADER_BYTES as u64 + read).into());
        }
        Ok(Chunks { header, rest, at: CHUNKS_AT as u64, empty_bytes: 0, buffer: vec![0; CHUNK_BYTES_MAX] })
    }

    fn fill(&mut self, from: usize, to: usize) -> Result<(), TraceError> {
        let Chunks { rest, buffer, header, .. } = self;
        rest.read_exact(&mut buffer[from..to]).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => header.cut_off().into(),
            _ => TraceError::Io(error),
        })
    }

    /// The next chunk, the offset of its records, and their bytes; `None` at the end.
    ///
    /// # Errors
    /// The first field that is wrong; the input ends too soon, or cannot be read.
    pub fn next(&mut self) -> Result<Option<Found<'_>>, TraceError> {
        while let Some(left) =
            self.header.end().checked_sub(self.at).filter(|left| *left >= RECORD_BYTES as u64)
        {
            self.fill(0, RECORD_BYTES)?;
            let head = self.buffer.first_chunk().expect("the buffer holds a head");
            let at = self.at;
            if let Some(chunk) = Chunk::decode(head, at, left)? {
                self.fill(RECORD_BYTES, chunk.bytes as usize)?;
                self.at += u64::from(chunk.bytes);
                let records = &self.buffer[RECORD_BYTES..chunk.used as usize];
                return Ok(Some((chunk, at + RECORD_BYTES as u64, records)));
            }
            self.fill(RECORD_BYTES, (HEADER_BYTES as u64).min(left) as usize)?;
            self.at += HEADER_BYTES as u64;
            self.empty_bytes += HEADER_BYTES as u64;
            if self.empty_bytes > EMPTY_BYTES_MAX {
                let fix = "chunks are expected and more than 1 GiB of zeros was found: the file was damaged, record again";
                return Err(Fault { at, field: "chunk.magic", found: 0, fix }.into());
            }
        }
        Ok(None)
    }
}
