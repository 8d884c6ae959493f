// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file that is read into memory and worked on there: the second job of the paper's experiment (DMU §V.A).

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;

use super::{Draw, Sum};
use crate::BenchError;

const READ_BYTES: usize = 1 << 20;

/// Lines of a log, about `bytes` bytes.
pub fn make(path: &Path, bytes: u64) -> Result<(), BenchError> {
    let failed = BenchError::file(path);
    let write = || -> std::io::Result<()> {
        let mut file = BufWriter::with_capacity(READ_BYTES, File::create(path)?);
        let (mut draw, mut written, mut time) = (Draw(5), 0, 1_700_000_000_000u64);
        while written < bytes {
            time += draw.below(900);
            let status = [200, 200, 200, 304, 404, 500][draw.below(6) as usize];
            let line = format!(
                "{time} 10.{}.{}.{} GET /item/{:06}?session={:016x} {status} {}\n",
                draw.below(4),
                draw.below(256),
                draw.below(256),
                draw.below(200_000),
                draw.next(),
                draw.below(60_000)
            );
            file.write_all(line.as_bytes())?;
            written += line.len() as u64;
        }
        file.flush()
    };
    write().map_err(failed)
}

/// The whole file, by reads of 1 MiB.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, BenchError> {
    let mut file = File::open(path).map_err(BenchError::file(path))?;
    let length = file.metadata().map_err(BenchError::file(path))?.len() as usize;
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while filled < length {
        let end = length.min(filled + READ_BYTES);
        let got = file.read(&mut bytes[filled..end]).map_err(BenchError::file(path))?;
        if got == 0 {
            break;
        }
        filled += got;
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Each round: how many bytes each status answered, line by line.
pub(super) fn work(bytes: &[u8], rounds: u64) -> Sum {
    let mut sum = Sum::new();
    for _ in 0..rounds {
        let mut answered = [0u64; 1000];
        for line in bytes.split(|byte| *byte == b'\n') {
            let mut words = line.rsplit(|byte| *byte == b' ');
            let number = |word: Option<&[u8]>| {
                word.unwrap_or_default().iter().fold(0u64, |all, digit| {
                    all.wrapping_mul(10).wrapping_add(u64::from(digit.wrapping_sub(b'0')))
                })
            };
            let size = number(words.next());
            let status = number(words.next());
            answered[status as usize % answered.len()] += size;
        }
        answered.iter().for_each(|size| sum.add(*size));
    }
    sum
}
