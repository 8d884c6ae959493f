// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds whole structures: each node is assembled once, for its final address, and passed to a [`Sink`] as it will lie in memory.
//!
//! - **Flow** pairs, sorted or not, from an iterator or CSV ──[`ordered()`], [`hash()`]──▶ nodes ──▶ [`Sink`]
//! - **Order** leaves are written in the order of their keys, so a sorted input of any length needs memory for one node per level;
//!   an unsorted one is sorted in memory first. The handle is written last: nothing can be walked before all of it is there
//! - **Not here** the choice of addresses (`placement`, or `load`), and writing (`sink`)

use std::io::BufRead;

use super::chain::{self, Key};
use super::hash::{self, chain_of};
use super::ordered;
use super::ordered::node::{KEYS, NODE_BYTES, Node};
use super::placement::Placement;
use super::sink::Sink;
use crate::client::{ClientError, Result};

/// Chooses the addresses of nodes.
pub trait Places {
    /// Returns an address, a multiple of 16, for `bytes` bytes, rounded up to a multiple of 16.
    ///
    /// # Errors
    /// [`ClientError::Full`], or the reason that there is no address.
    fn place(&mut self, bytes: u64) -> Result<u64>;
}

impl Places for Placement {
    fn place(&mut self, bytes: u64) -> Result<u64> {
        self.next(bytes).ok_or(ClientError::Full { bytes })
    }
}

impl<P: Places + ?Sized> Places for &mut P {
    fn place(&mut self, bytes: u64) -> Result<u64> {
        (**self).place(bytes)
    }
}

/// Builds an ordered map of pairs whose keys ascend strictly. `progress` is called now and then with the number of pairs
/// taken.
///
/// # Errors
/// [`ClientError::Input`] at a key that is not greater than the one before; [`ClientError::Full`]; errors of the sink.
pub fn ordered<V: AsRef<[u8]>>(
    pairs: impl IntoIterator<Item = Result<(u64, V)>>,
    value_bytes: usize,
    placement: &mut impl Places,
    sink: &mut impl Sink,
    mut progress: impl FnMut(u64),
) -> Result<ordered::Handle> {
    if value_bytes == 0 || value_bytes > ordered::VALUE_BYTES_MAX {
        let most = ordered::VALUE_BYTES_MAX;
        return Err(ClientError::TooLong { what: "values", bytes: value_bytes, most });
    }
    let mut handle = ordered::Handle { cell: 0, value_bytes };
    let mut levels: Vec<Node> = vec![Node::default()];
    let (mut taken, mut last) = (0_u64, None);
    for pair in pairs {
        let (key, value) = pair?;
        let value = value.as_ref();
        if value.len() != value_bytes {
            let (bytes, most) = (value.len(), value_bytes);
            return Err(ClientError::TooLong { what: "a value of another length", bytes, most });
        }
        if last.is_some_and(|last| key <= last) {
            let reason =
                format!("key {key} is not greater than the one before: sort the input, each key once");
            return Err(ClientError::Input { line: taken + 1, reason });
        }
        last = Some(key);
        let at = if value_bytes == 8 {
            u64::from_le_bytes(value.try_into().expect("eight bytes"))
        } else {
            let at = placement.place(handle.record_bytes() as u64)?;
            sink.put(at, &handle.record(key, value))?;
            at
        };
        if levels[0].keys.len() == KEYS {
            close(&mut levels, 0, placement, sink)?;
        }
        levels[0].keys.push(key);
        levels[0].places.push(at);
        taken += 1;
        if taken.is_multiple_of(1 << 16) {
            progress(taken);
        }
    }
    let mut root = 0;
    if taken != 0 {
        let mut level = 0;
        loop {
            // The highest level has a single child: that child is the root.
            if level + 1 == levels.len() && levels[level].level != 0 && levels[level].places.len() == 1 {
                root = levels[level].places[0];
                break;
            }
            close(&mut levels, level, placement, sink)?;
            level += 1;
        }
    }
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&root.to_le_bytes());
    // The cell is placed right after the root, often beside it, because each walk goes from the cell to the root.
    handle.cell = placement.place(16)?;
    sink.put(handle.cell, &bytes)?;
    progress(taken);
    Ok(handle)
}

/// Writes the unfinished node of a level, and adds it as a child to the level above.
fn close(
    levels: &mut Vec<Node>,
    level: usize,
    placement: &mut impl Places,
    sink: &mut impl Sink,
) -> Result<()> {
    let fresh = Node { level: level as u8, ..Node::default() };
    let mut node = std::mem::replace(&mut levels[level], fresh);
    let last = *node.keys.last().expect("nodes are closed when they are not empty");
    if level != 0 {
        // An unfinished node has a key for each child; when it is finished, the last child's key moves up.
        node.keys.pop();
    }
    let address = placement.place(NODE_BYTES as u64)?;
    sink.put(address, &node.to_bytes())?;
    if level + 1 == levels.len() {
        levels.push(Node { level: level as u8 + 1, ..Node::default() });
    } else if levels[level + 1].places.len() == KEYS + 1 {
        close(levels, level + 1, placement, sink)?;
    }
    levels[level + 1].keys.push(last);
    levels[level + 1].places.push(address);
    Ok(())
}

/// Builds an ordered map of pairs in any order; of equal keys the last one counts.
///
/// # Errors
/// The errors of [`ordered()`].
pub fn ordered_unsorted<V: AsRef<[u8]>>(
    pairs: impl IntoIterator<Item = Result<(u64, V)>>,
    value_bytes: usize,
    placement: &mut impl Places,
    sink: &mut impl Sink,
    progress: impl FnMut(u64),
) -> Result<ordered::Handle> {
    let mut pairs = pairs.into_iter().collect::<Result<Vec<_>>>()?;
    pairs.reverse();
    pairs.sort_by_key(|(key, _)| *key);
    pairs.dedup_by_key(|(key, _)| *key);
    ordered(pairs.into_iter().map(Ok), value_bytes, placement, sink, progress)
}

/// Builds a hash map of 2^`log2` chains. Each key must come once; nodes are placed in the order of the keys in the input.
///
/// # Errors
/// [`ClientError::Full`]; errors of the sink.
pub fn hash<'k, K: Into<Key<'k>>, V: AsRef<[u8]>>(
    pairs: impl IntoIterator<Item = (K, V)>,
    log2: u32,
    heads: u64,
    placement: &mut impl Places,
    sink: &mut impl Sink,
    mut progress: impl FnMut(u64),
) -> Result<hash::Handle> {
    let mut table = vec![0_u64; 1 << log2];
    let mut taken = 0_u64;
    for (key, value) in pairs {
        let key = key.into();
        let head = &mut table[chain_of(key.key_word(), log2) as usize];
        let node = chain::node_bytes(*head, key, value.as_ref())?;
        let address = placement.place(node.len() as u64)?;
        sink.put(address, &node)?;
        *head = address;
        taken += 1;
        if taken.is_multiple_of(1 << 16) {
            progress(taken);
        }
    }
    for (index, piece) in table.chunks(512).enumerate() {
        let bytes: Vec<u8> = piece.iter().flat_map(|head| head.to_le_bytes()).collect();
        sink.put(heads + index as u64 * 4096, &bytes)?;
    }
    progress(taken);
    Ok(hash::Handle { heads, log2 })
}

/// Type with which the numbers in a column of a CSV file are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Numbers {
    /// Signed whole numbers; a number with a fraction, or beyond 64 bits, is an error.
    Whole,
    /// Signed whole numbers: each number is multiplied by this factor and rounded.
    Scaled(f64),
    /// Floats: each number is multiplied by this factor. A whole number that no float represents exactly is an error.
    Float(f64),
}

impl Numbers {
    /// Parses a field into the bytes that are stored; returns the reason if that is not possible.
    fn read(self, field: &str) -> std::result::Result<[u8; 8], &'static str> {
        const NONE: &str = "holds no number";
        const LARGE: &str = "holds a number beyond 64 bits";
        // A number that is too large for a float is parsed as infinity, which is another number than the text has.
        let is_word = field.trim_start_matches(['+', '-']).starts_with(|one: char| one.is_ascii_alphabetic());
        let float = field
            .parse::<f64>()
            .ok()
            .filter(|value| value.is_finite() || matches!(self, Numbers::Float(_)) && is_word);
        match self {
            Numbers::Whole => {
                if let Ok(whole) = field.parse::<i64>() {
                    return Ok(whole.to_le_bytes());
                }
                let float = float.ok_or(NONE)?;
                if float.fract() != 0.0 {
                    return Err("holds a number that has a fraction");
                }
                // Beyond 2^53 a float may not be the number in the text.
                if float.abs() < 2.0_f64.powi(53) { Ok((float as i64).to_le_bytes()) } else { Err(LARGE) }
            }
            Numbers::Scaled(scale) => {
                if let Ok(whole) = field.parse::<i128>()
                    && scale.fract() == 0.0
                    && scale.abs() < 2.0_f64.powi(53)
                {
                    let scaled =
                        whole.checked_mul(scale as i128).and_then(|scaled| i64::try_from(scaled).ok());
                    return scaled.map(i64::to_le_bytes).ok_or(LARGE);
                }
                // Beyond 2^53 a float is not exact, and beyond 2^63 it does not fit in the result.
                let scaled = Some(float.ok_or(NONE)? * scale).filter(|value| value.abs() < 9.2e18);
                scaled.map(|value| (value.round() as i64).to_le_bytes()).ok_or(LARGE)
            }
            Numbers::Float(scale) => {
                let float = float.ok_or(NONE)?;
                let exact = field.parse::<i128>().map_or(true, |whole| float as i128 == whole);
                if exact {
                    Ok((float * scale).to_le_bytes())
                } else {
                    Err("holds a whole number that no float is")
                }
            }
        }
    }
}

/// Most bytes of one record of CSV.
const RECORD_BYTES_MAX: usize = 1 << 20;

/// Position in a record of CSV.
#[derive(Clone, Copy)]
enum At {
    /// Before the first character of a field.
    Start,
    /// In a field without quotes that begins there.
    Plain(usize),
    /// In a field with quotes, whose text begins there.
    Quoted(usize),
    /// Behind a quote that may have closed the field with this text.
    Closed(usize, usize),
}

/// A record of CSV: a line, or more if a line break is in quotes.
#[derive(Default)]
struct Record {
    text: String,
    /// Fields without the quotes around them, as positions in `text`.
    fields: Vec<(usize, usize)>,
}

impl Record {
    /// Reads the next record; returns the number of its lines, which is 0 at the end.
    fn read(&mut self, reader: &mut impl BufRead) -> Result<u64> {
        self.text.clear();
        self.fields.clear();
        let (mut at, mut lines) = (At::Start, 0);
        loop {
            let begin = self.text.len();
            if reader.read_line(&mut self.text)? == 0 {
                break;
            }
            lines += 1;
            if lines == 1 && (self.text.starts_with('#') || self.text.trim().is_empty()) {
                return Ok(lines);
            }
            at = self.split(at, begin);
            // A quote that is not closed goes on in the next line.
            if !matches!(at, At::Quoted(_)) || self.text.len() > RECORD_BYTES_MAX {
                break;
            }
        }
        let end = self.text.len();
        match at {
            _ if lines == 0 => {}
            At::Start => self.fields.push((end, end)),
            At::Plain(begin) => self.fields.push((begin, end)),
            At::Closed(begin, end) => self.fields.push((begin, end)),
            // With its quote, so that it is no number.
            At::Quoted(begin) => self.fields.push((begin - 1, end)),
        }
        Ok(lines)
    }

    /// Splits the text from `begin` on into fields, and returns the position at its end.
    fn split(&mut self, mut at: At, begin: usize) -> At {
        let fields = &mut self.fields;
        let mut field = |begin: usize, end: usize| {
            fields.push((begin, end));
            At::Start
        };
        for (index, byte) in self.text.bytes().enumerate().skip(begin) {
            at = match (at, byte) {
                (At::Start, b' ' | b'\t' | b'\r' | b'\n') => At::Start,
                (At::Start, b'"') => At::Quoted(index + 1),
                (At::Start, b',') => field(index, index),
                (At::Start, _) => At::Plain(index),
                (At::Plain(begin), b',') => field(begin, index),
                (At::Quoted(begin), b'"') => At::Closed(begin, index),
                // Two quotes stand for one.
                (At::Closed(begin, _), b'"') => At::Quoted(begin),
                (At::Closed(begin, end), b',') => field(begin, end),
                (At::Closed(..), b' ' | b'\t' | b'\r' | b'\n') => at,
                // Text behind the closing quote: the field keeps its quotes, and is no number.
                (At::Closed(begin, _), _) => At::Plain(begin - 1),
                (At::Plain(_) | At::Quoted(_), _) => at,
            };
        }
        at
    }

    fn get(&self, column: usize) -> &str {
        let (begin, end) = self.fields.get(column).copied().unwrap_or_default();
        self.text[begin..end].trim_start_matches('\u{feff}').trim()
    }
}

/// Reads pairs of numbers from CSV: key and value are in these columns, counted from 0. The first line is a header if its key is no
/// number at all. Empty lines and lines that start with `#` are skipped. Fields may be in quotes.
pub fn csv(
    mut reader: impl BufRead,
    key_column: usize,
    value_column: usize,
    numbers: Numbers,
) -> impl Iterator<Item = Result<(u64, [u8; 8])>> {
    let (mut record, mut line, mut is_first) = (Record::default(), 0, true);
    std::iter::from_fn(move || {
        loop {
            let begun = line + 1;
            match record.read(&mut reader) {
                Ok(0) => return None,
                Ok(lines) => line += lines,
                Err(error) => return Some(Err(error)),
            }
            if record.fields.is_empty() {
                continue;
            }
            let was_first = std::mem::take(&mut is_first);
            let wrong = |column: usize, what: &str| {
                let reason = format!("column {column} {what}: {:?}", record.get(column));
                Some(Err(ClientError::Input { line: begun, reason }))
            };
            let key = record.get(key_column);
            match key.parse::<u64>() {
                Ok(key) => {
                    return match numbers.read(record.get(value_column)) {
                        Ok(value) => Some(Ok((key, value))),
                        Err(what) => wrong(value_column, what),
                    };
                }
                Err(_) if was_first && key.parse::<f64>().is_err() => {}
                Err(_) => return wrong(key_column, "holds no whole number from 0 to 2^64-1"),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::placement::PLACE_BYTES;
    use super::super::sink::{JOINED_BYTES, ToHeap, Writes};
    use super::*;

    /// Consecutive addresses, as a slab gives them.
    struct Row(u64);

    impl Places for Row {
        fn place(&mut self, bytes: u64) -> Result<u64> {
            let address = self.0;
            self.0 += bytes.next_multiple_of(PLACE_BYTES);
            Ok(address)
        }
    }

    /// Memory that counts the writes that reach it.
    #[derive(Default)]
    struct Memory {
        bytes: BTreeMap<u64, u8>,
        writes: usize,
    }

    impl Writes for &mut Memory {
        fn write_many(&mut self, writes: &[(u64, Vec<u8>)]) -> Result<()> {
            self.writes += writes.len();
            for (address, bytes) in writes {
                for (at, byte) in bytes.iter().enumerate() {
                    assert_eq!(self.bytes.insert(address + at as u64, *byte), None, "a byte is written once");
                }
            }
            Ok(())
        }
    }

    fn read(text: &str, numbers: Numbers) -> std::result::Result<Vec<(u64, f64)>, String> {
        let number = |bytes: [u8; 8]| match numbers {
            Numbers::Float(_) => f64::from_le_bytes(bytes),
            _ => i64::from_le_bytes(bytes) as f64,
        };
        let pairs =
            csv(text.as_bytes(), 0, 1, numbers).map(|pair| pair.map(|(key, value)| (key, number(value))));
        pairs.collect::<Result<Vec<_>>>().map_err(|error| error.to_string())
    }

    #[test]
    fn no_row_of_a_file_is_left_out_and_no_number_becomes_another() {
        let whole = |text: &str| read(text, Numbers::Whole);
        assert_eq!(whole("k,v\n# none\n\n1,2\n3,4"), Ok(vec![(1, 2.0), (3, 4.0)]));
        assert_eq!(whole("1,2\r\n3,4\r\n"), Ok(vec![(1, 2.0), (3, 4.0)]));
        assert_eq!(whole("\u{feff}1,2\n\"3\", \"4\" \n"), Ok(vec![(1, 2.0), (3, 4.0)]));
        // The first line may be a header, and only if it cannot be data; later ones never are.
        for (text, part) in [
            ("-1,1\n2,2", "line 1: column 0"),
            ("1.5,1\n2,2", "line 1: column 0"),
            ("k,v\n-1,1\n2,2", "line 2: column 0"),
            ("k,v\nl,w\n2,2", "line 2: column 0"),
            ("k,v\n1,\"1,000\"", "line 2: column 1"),
            ("k,v\n1,\"a\nb\"\n2,2", "line 2: column 1"),
            ("k,v\n\"a\nb\",1\n2,2", "line 2: column 0"),
            ("k,v\n\"1\"2,1", "line 2: column 0"),
            ("k,v\n1,\"2", "line 2: column 1"),
            ("k,v\n1", "line 2: column 1"),
            ("k,v\n1,1e400", "line 2: column 1"),
        ] {
            let refused = whole(text).expect_err(text);
            assert!(refused.contains(part), "{text:?}: {refused}");
        }
        let scaled: Vec<_> = csv(&b"1,9007199254740993\n2,0.29"[..], 0, 1, Numbers::Scaled(100.0)).collect();
        let scaled: Vec<_> =
            scaled.into_iter().map(|pair| i64::from_le_bytes(pair.expect("a row").1)).collect();
        assert_eq!(scaled, [900_719_925_474_099_300, 29]);
        let floats = |text: &str| read(text, Numbers::Float(1.0));
        assert!(floats("1,1e400").expect_err("too large").contains("holds no number"));
        assert_eq!(floats("1,-inf\n2,1e308"), Ok(vec![(1, f64::NEG_INFINITY), (2, 1e308)]));
        // A comma in quotes is no border between columns.
        let third = csv(&b"n,k,v\n\"a,b\",1,2\n\"c \"\"d\"\"\",3,4\n"[..], 1, 2, Numbers::Whole);
        let third: Vec<u64> = third.map(|pair| pair.expect("a row").0).collect();
        assert_eq!(third, [1, 3]);
    }

    #[test]
    fn neighbours_are_written_together_whatever_the_size_of_values() {
        const ROWS: u64 = 500;
        for value_bytes in (1..=72).filter(|bytes| *bytes != 8) {
            let pairs: Vec<(u64, Vec<u8>)> =
                (0..ROWS).map(|key| (key, vec![key as u8; value_bytes])).collect();
            let mut memory = Memory::default();
            let mut sink = ToHeap::new(&mut memory);
            let handle =
                ordered(pairs.iter().cloned().map(Ok), value_bytes, &mut Row(4096), &mut sink, |_| {})
                    .and_then(|handle| sink.finish().map(|()| handle))
                    .expect("room");
            let each_bytes = (handle.record_bytes() as u64).next_multiple_of(PLACE_BYTES) + 64;
            let fewest = ROWS * each_bytes / JOINED_BYTES as u64;
            assert!(memory.writes as u64 <= 2 * fewest + 8, "{value_bytes}: {} writes", memory.writes);
            // The first record lies at the first address.
            let record: Vec<u8> =
                (0..handle.record_bytes() as u64).map(|at| memory.bytes[&(4096 + at)]).collect();
            assert_eq!(record, handle.record(0, &pairs[0].1), "{value_bytes}");
        }
    }
}
