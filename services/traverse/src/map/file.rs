// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A map in a TOML file, written by hand: for clusters whose nodes are known and do not change.
//!
//! - **Layout** epoch = 1, then `[[node]]` name, addresses; `[[range]]` base, bytes, node, permissions ("rw" or "r"), tenant.
//!   Numbers may be texts: "0x100000000", "8G"; K, M, G and T are powers of 1024
//! - **Order** an edit must raise `epoch`: a file of the same or an older epoch is ignored
//! - **Not here** leases: in a file, every node is up. A node that comes back without its log must be given a new base in the
//!   file

use std::path::{Path, PathBuf};

use memlift_ground::input_file;
use serde::Deserialize;
use toml::Spanned;

use super::MapError;
use super::node::{Address, Node, NodeId, State};
use super::range::{Map, Permissions, Range};

/// A larger file is refused as not a map.
pub const FILE_BYTES_MAX: u64 = 32 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    epoch: Option<Spanned<i64>>,
    #[serde(default)]
    node: Vec<Spanned<NodeText>>,
    #[serde(default)]
    range: Vec<Spanned<RangeText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeText {
    name: Spanned<String>,
    addresses: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RangeText {
    base: Spanned<Number>,
    bytes: Spanned<Number>,
    node: Spanned<String>,
    permissions: Option<Spanned<String>>,
    tenant: Option<Spanned<i64>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Integer(i64),
    Text(String),
}

impl Number {
    fn value(&self) -> Option<u64> {
        match self {
            Number::Integer(value) => u64::try_from(*value).ok(),
            Number::Text(text) => number(text),
        }
    }
}

/// Parses a number as people write it: decimal, or 0x…, with K, M, G or T for powers of 1024.
pub fn number(text: &str) -> Option<u64> {
    let text = text.replace('_', "");
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'));
    }
    let (digits, power) = match text.char_indices().next_back()? {
        (at, 'K' | 'k') => (&text[..at], 1),
        (at, 'M' | 'm') => (&text[..at], 2),
        (at, 'G' | 'g') => (&text[..at], 3),
        (at, 'T' | 't') => (&text[..at], 4),
        _ => (text.as_str(), 0),
    };
    if digits.starts_with('+') {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1 << (10 * power))
}

/// Reads a map file.
///
/// # Errors
///
/// [`MapError::File`]; [`MapError::Text`] names the line
pub fn read(path: &Path) -> Result<Map, MapError> {
    let file = |action| move |source| MapError::File { action, path: path.to_owned(), source };
    parse(&input_file::text(path, FILE_BYTES_MAX).map_err(file("reading the map file"))?, path)
}

/// Parses the text of a map file; `path` is only used in errors.
///
/// # Errors
///
/// [`MapError::Text`]
pub fn parse(text: &str, path: &Path) -> Result<Map, MapError> {
    let lines = Lines { text, path };
    let read: Text = toml::from_str(text).map_err(|error| {
        lines.fault(error.span().map_or(0, |span| span.start), error.message().to_owned())
    })?;
    let epoch = match &read.epoch {
        None => 1,
        Some(epoch) => u64::try_from(*epoch.get_ref())
            .ok()
            .filter(|epoch| (1..1 << 62).contains(epoch))
            .ok_or_else(|| lines.fault(epoch.span().start, "epochs count from 1".to_owned()))?,
    };
    let mut nodes: Vec<Node> = Vec::new();
    for (index, one) in read.node.iter().enumerate() {
        let (at, one) = (one.span().start, one.get_ref());
        let name = one.name.get_ref();
        if nodes.iter().any(|node| node.name == *name) {
            return Err(lines.fault(one.name.span().start, format!("there is another node called {name}")));
        }
        let mut addresses = Vec::new();
        for address in &one.addresses {
            let parsed: Address = Address::resolve(address.get_ref())
                .map_err(|error| lines.wrong(address.span().start, &error))?;
            if nodes.iter().any(|node| node.addresses.contains(&parsed)) || addresses.contains(&parsed) {
                return Err(lines.fault(address.span().start, format!("{parsed} is given twice")));
            }
            addresses.push(parsed);
        }
        let id = u16::try_from(index).map_err(|_| lines.fault(at, "too many nodes".to_owned()))?;
        let node = Node { id: NodeId(id), name: name.clone(), addresses, incarnation: 0, state: State::Up };
        node.validate().map_err(|error| lines.wrong(one.name.span().start, &error))?;
        nodes.push(node);
    }
    let mut ranges: Vec<(Range, usize)> = Vec::new();
    for one in &read.range {
        ranges.push((lines.range(one.get_ref(), &nodes)?, one.get_ref().base.span().start));
    }
    ranges.sort_by_key(|(range, _)| range.base);
    for pair in ranges.windows(2) {
        let ((before, at), (after, later)) = (&pair[0], &pair[1]);
        if before.bytes > after.base - before.base {
            let what = format!("this range overlaps the one of line {}", lines.line(*at.min(later)));
            return Err(lines.fault(*at.max(later), what));
        }
    }
    let last = ranges.last().map_or(0, |(_, at)| *at);
    Map::new(epoch, nodes, ranges.into_iter().map(|(range, _)| range).collect())
        .map_err(|error| lines.wrong(last, &error))
}

struct Lines<'t> {
    text: &'t str,
    path: &'t Path,
}

impl Lines<'_> {
    fn line(&self, at: usize) -> usize {
        1 + self.text.as_bytes()[..at.min(self.text.len())].iter().filter(|byte| **byte == b'\n').count()
    }

    fn fault(&self, at: usize, what: String) -> MapError {
        MapError::Text { path: self.path.to_owned(), line: self.line(at), what }
    }

    fn wrong(&self, at: usize, error: &MapError) -> MapError {
        let what = match error {
            MapError::Invalid { what } => what.clone(),
            other => other.to_string(),
        };
        self.fault(at, what)
    }

    fn range(&self, one: &RangeText, nodes: &[Node]) -> Result<Range, MapError> {
        let number = |number: &Spanned<Number>, example: &str| {
            let what = || format!("write a number of bytes, or a text such as {example:?}");
            number.get_ref().value().ok_or_else(|| self.fault(number.span().start, what()))
        };
        let (base, bytes) = (number(&one.base, "0x100000000")?, number(&one.bytes, "8G")?);
        let name = one.node.get_ref();
        let owner = nodes.iter().find(|node| node.name == *name).map(|node| node.id).ok_or_else(|| {
            self.fault(one.node.span().start, format!("there is no [[node]] called {name:?}"))
        })?;
        let permissions = match &one.permissions {
            None => Permissions::READ_WRITE,
            Some(text) => match text.get_ref().as_str() {
                "r" => Permissions::READ,
                "rw" => Permissions::READ_WRITE,
                _ => return Err(self.fault(text.span().start, "permissions are \"r\" or \"rw\"".to_owned())),
            },
        };
        let tenant = match &one.tenant {
            None => 0,
            Some(tenant) => u32::try_from(*tenant.get_ref())
                .map_err(|_| self.fault(tenant.span().start, "a tenant is a number below 2^32".to_owned()))?,
        };
        let range = Range { base, bytes, owner: Some(owner), since: 1, permissions, tenant };
        // Checked alone, so that an error names the line of this range.
        Map::new(1, nodes.to_vec(), vec![range])
            .map_err(|error| self.wrong(one.base.span().start, &error))?;
        Ok(range)
    }
}

/// A file that is checked for changes repeatedly.
#[derive(Debug)]
pub struct Watched {
    path: PathBuf,
    stamp: Option<(std::time::SystemTime, u64)>,
}

impl Watched {
    /// Makes the watch of a file that was not read yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Watched {
        Watched { path, stamp: None }
    }

    /// Returns the map if the file has changed since the last call.
    ///
    /// # Errors
    ///
    /// The errors of [`read`]; the same change is reported once
    pub fn read(&mut self) -> Result<Option<Map>, MapError> {
        let stamp = std::fs::metadata(&self.path).and_then(|data| Ok((data.modified()?, data.len())));
        let stamp = stamp.map_err(|source| MapError::File {
            action: "looking for the map file",
            path: self.path.clone(),
            source,
        })?;
        if self.stamp == Some(stamp) {
            return Ok(None);
        }
        self.stamp = Some(stamp);
        read(&self.path).map(Some)
    }
}

/// Returns a map as the text of a file.
#[must_use]
pub fn print(map: &Map) -> String {
    use std::fmt::Write;
    let mut text = format!("epoch = {}\n", map.epoch());
    for node in map.nodes() {
        let addresses: Vec<String> =
            node.addresses.iter().map(|one| format!("{:?}", one.to_string())).collect();
        let _ = write!(text, "\n[[node]]\nname = {:?}\naddresses = [{}]\n", node.name, addresses.join(", "));
    }
    for range in map.ranges() {
        let Some(node) = range.owner.and_then(|id| map.node(id)) else { continue };
        let _ = write!(
            text,
            "\n[[range]]\nbase = \"{:#x}\"\nbytes = \"{:#x}\"\nnode = {:?}\n",
            range.base, range.bytes, node.name
        );
        if !range.permissions.write() {
            text.push_str("permissions = \"r\"\n");
        }
        if range.tenant != 0 {
            let _ = writeln!(text, "tenant = {}", range.tenant);
        }
    }
    text
}
