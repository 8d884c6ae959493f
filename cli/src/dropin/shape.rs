// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program's own use of zlib and OpenSSL, from a trace of `memlift record`: sizes, levels, flushes, and the time of each.
//!
//! - **Flow** trace ─▶ its calls of deflate, of encryption and of decryption ─▶ [`Uses`]: shapes with their shares of the time, the longest
//!   first
//! - **Layout** sizes are rounded to powers of two; an unknown level counts as 6
//! - **Order** writes to .gz files are pieces of the size that the program writes; libz packs them when its buffer is full
//! - **Not here** calls shorter than the trace's threshold, which the trace only counts

use std::collections::HashMap;
use std::io;
use std::path::Path;

use memlift::spec::formats::trace::{File, Kind, Packing, RECORD_BYTES, Record};
use memlift_cli::libraries::Dropin;
use memlift_cli::probe::{Calls, Shape};

use crate::failure::Failure;
use crate::input;

/// Most shapes that are measured; those left out take the least time.
const SHAPES_MAX: usize = 4;
/// Most bytes of a trace: eight times the default limit of `memlift record`.
const TRACE_BYTES_MAX: u64 = 1 << 30;

/// Shapes of a program's calls.
#[derive(Debug, Default)]
pub struct Uses {
    /// Per drop-in: shapes, each with its share of the time of all listed shapes.
    shapes: HashMap<&'static str, Vec<(Shape, f64)>>,
    /// Lines for people about calls that are not in the shares.
    pub remarks: Vec<String>,
}

impl Uses {
    /// Returns the shapes to measure for a drop-in; those of a typical server if nothing is known.
    pub fn of(&self, dropin: Dropin) -> Vec<(Shape, f64)> {
        self.shapes.get(dropin.file()).cloned().unwrap_or_else(|| vec![(Shape::SERVER, 1.0)])
    }

    /// Returns true if the trace has calls that the drop-in would handle.
    pub fn has(&self, dropin: Dropin) -> bool {
        self.shapes.contains_key(dropin.file())
    }

    /// Reads a trace.
    pub fn read(path: &Path) -> Result<Uses, Failure> {
        let failed = |reason: String| Failure::Failed(format!("{}: {reason}", path.display()));
        input::plain(path)?;
        let unread = |error: io::Error| Failure::about(&error, format!("{}: {error}", path.display()));
        if std::fs::metadata(path).map_err(unread)?.len() > TRACE_BYTES_MAX {
            return Err(failed("give a file of at most 1 GiB that memlift record wrote".to_owned()));
        }
        let bytes = std::fs::read(path).map_err(unread)?;
        let file = File::open(&bytes).map_err(|fault| failed(fault.to_string()))?;
        let mut times: HashMap<(Dropin, Shape), u64> = HashMap::new();
        let (mut small, mut threads) = (0, HashMap::new());
        for chunk in file.chunks() {
            let (chunk, at, records) = chunk.map_err(|fault| failed(fault.to_string()))?;
            let in_pieces: &mut bool = threads.entry(chunk.thread).or_default();
            for (index, record) in records.as_chunks::<RECORD_BYTES>().0.iter().enumerate() {
                let record = Record::decode(record, at + (index * RECORD_BYTES) as u64);
                let record = record.map_err(|fault| failed(fault.to_string()))?;
                if record.kind == Kind::Counted
                    && Kind::from_number(record.parameter).is_some_and(|kind| dropin_of(kind).is_some())
                {
                    small += record.words[1];
                }
                if let Some((dropin, shape)) = shape_of(&record, in_pieces) {
                    *times.entry((dropin, shape)).or_default() += record.words[1];
                }
            }
        }
        let mut uses = Uses::default();
        for dropin in Dropin::ALL {
            let mut own: Vec<(Shape, u64)> =
                times.iter().filter(|entry| entry.0.0 == dropin).map(|entry| (entry.0.1, *entry.1)).collect();
            own.sort_by_key(|entry| (std::cmp::Reverse(entry.1), entry.0));
            own.truncate(SHAPES_MAX);
            let all = own.iter().map(|entry| entry.1).sum::<u64>().max(1) as f64;
            if !own.is_empty() {
                let shares = own.into_iter().map(|(shape, time)| (shape, time as f64 / all)).collect();
                uses.shapes.insert(dropin.file(), shares);
            }
        }
        if small > 0 {
            uses.remarks.push(format!("{small} calls of fewer bytes than the trace records are in no share"));
        }
        Ok(uses)
    }
}

fn dropin_of(kind: Kind) -> Option<Dropin> {
    match kind {
        Kind::Deflate => Some(Dropin::Libz),
        Kind::Encrypt | Kind::Decrypt => Some(Dropin::OpenSsl),
        _ => None,
    }
}

/// Returns the shape of a call. `in_pieces` is true while the thread's last call of deflate has left a
/// message unfinished.
fn shape_of(record: &Record, in_pieces: &mut bool) -> Option<(Dropin, Shape)> {
    let dropin = dropin_of(record.kind)?;
    let bytes = (record.words[4] as usize).max(1).next_power_of_two().min(4 << 20);
    if dropin == Dropin::OpenSsl {
        return Some((dropin, Shape { bytes, level: 0, calls: Calls::Whole }));
    }
    let Packing { flush, level, flushed } = Packing::decode(record.parameter);
    let calls = match flush {
        // Many programs pass their bytes in one call and flush in another, without bytes.
        _ if flushed => Calls::Flushed,
        0 => Calls::Pieces,
        4 if *in_pieces => Calls::Pieces,
        _ => Calls::Whole,
    };
    *in_pieces = flush == 0;
    Some((dropin, Shape { bytes, level: level.unwrap_or(6), calls }))
}
