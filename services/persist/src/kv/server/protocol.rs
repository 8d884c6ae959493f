// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RESP2 and RESP3: requests as they come in pieces, and replies.
//!
//! - **Layout** a request: `*N` and N bulk strings `$length`, each line ended by CR LF; or one line of words (an inline command), which
//!   may stand in quotes
//! - **Rule** whatever a client says, memory grows with what it sent and never with what it announced, work is linear in what it
//!   sent, and it is told what is wrong before the connection closes
//! - **Source** Redis serialization protocol specification, versions 2 and 3

use std::ops::Range;

/// Upper bounds of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of one argument.
    pub bulk_bytes: usize,
    /// Arguments of one request.
    pub arguments: usize,
    /// Bytes of one request.
    pub request_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { bulk_bytes: 16 << 20, arguments: 4 << 20, request_bytes: 64 << 20 }
    }
}

/// A line that announces a number, or an inline command, is no longer than this.
const LINE_BYTES: usize = 64 << 10;

/// A request on its way: how far it has been read.
#[derive(Debug, Default)]
pub struct Request {
    at: usize,
    announced: Option<usize>,
    bulk: Option<usize>,
    arguments: Vec<Range<usize>>,
    /// The words of an inline command without their quotes, one behind the other; its arguments lie here and not in the input.
    words: Option<Vec<u8>>,
}

impl Request {
    /// Reads on in `input`, which starts where the request starts and has grown since the last call. True: it is whole.
    ///
    /// # Errors
    ///
    /// The fault, as text for the client.
    pub fn read(&mut self, input: &[u8], limits: &Limits) -> Result<bool, String> {
        loop {
            if self.at > limits.request_bytes {
                return Err(format!("Protocol error: a request of more than {} bytes", limits.request_bytes));
            }
            if self.announced == Some(self.arguments.len()) {
                return Ok(true);
            }
            if let Some(length) = self.bulk {
                let end = self.at + length;
                let Some(after) = input.get(end..end + 2) else { return Ok(false) };
                if after != b"\r\n" {
                    return Err("Protocol error: an argument is longer than announced".to_owned());
                }
                self.arguments.push(self.at..end);
                (self.at, self.bulk) = (end + 2, None);
                continue;
            }
            let Some(line) = self.line(input)? else { return Ok(false) };
            let text = &input[line.clone()];
            match (self.announced, text.first()) {
                (None, Some(b'*')) => {
                    let count = number(&text[1..]).ok_or("Protocol error: invalid multibulk length")?;
                    if count > limits.arguments as i64 {
                        let most = limits.arguments;
                        return Err(format!(
                            "Protocol error: invalid multibulk length, a request has {most} arguments at most"
                        ));
                    }
                    self.announced = Some(count.max(0) as usize);
                }
                (None, _) => {
                    self.split(text, limits)?;
                    self.announced = Some(self.arguments.len());
                }
                (Some(_), Some(b'$')) => {
                    let length = number(&text[1..]).filter(|length| *length >= 0);
                    let length = length.ok_or("Protocol error: invalid bulk length")?;
                    if length > limits.bulk_bytes as i64 {
                        let most = limits.bulk_bytes;
                        return Err(format!(
                            "Protocol error: invalid bulk length, an argument has {most} bytes at most"
                        ));
                    }
                    self.bulk = Some(length as usize);
                }
                (Some(_), first) => {
                    let got =
                        first.map_or(' ', |byte| char::from(*byte).escape_default().next().unwrap_or('?'));
                    return Err(format!("Protocol error: expected '$', got '{got}'"));
                }
            }
        }
    }

    /// The next line without its end; `at` goes behind it.
    fn line(&mut self, input: &[u8]) -> Result<Option<Range<usize>>, String> {
        let rest = &input[self.at.min(input.len())..];
        let most = if self.announced.is_some() || rest.first() == Some(&b'*') { 32 } else { LINE_BYTES };
        let window = &rest[..rest.len().min(most)];
        match window.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                let start = self.at;
                self.at += end + 1;
                let text = &rest[..end];
                Ok(Some(start..start + text.strip_suffix(b"\r").unwrap_or(text).len()))
            }
            None if window.len() == most => Err("Protocol error: too big inline request".to_owned()),
            None => Ok(None),
        }
    }

    /// Splits an inline command at blanks, but for those in quotes, as Redis does: in double quotes there are escapes, in single ones
    /// only that of the quote.
    fn split(&mut self, line: &[u8], limits: &Limits) -> Result<(), String> {
        let is_blank = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
        let unbalanced = || "Protocol error: unbalanced quotes in request".to_owned();
        let mut words = Vec::with_capacity(line.len());
        let mut left = line;
        loop {
            left = &left[left.iter().take_while(|byte| is_blank(byte)).count()..];
            if left.is_empty() {
                break;
            }
            let start = words.len();
            while let Some((first, rest)) = left.split_first().filter(|(first, _)| !is_blank(first)) {
                left = rest;
                if !matches!(first, b'"' | b'\'') {
                    words.push(*first);
                    continue;
                }
                left = unquoted(*first, left, &mut words).ok_or_else(unbalanced)?;
                // Only a blank may follow a closing quote.
                if left.first().is_some_and(|next| !is_blank(next)) {
                    return Err(unbalanced());
                }
            }
            self.arguments.push(start..words.len());
            if self.arguments.len() > limits.arguments {
                return Err("Protocol error: too many words".to_owned());
            }
        }
        self.words = Some(words);
        Ok(())
    }

    /// The arguments of a whole request.
    pub fn arguments<'i>(&'i self, input: &'i [u8]) -> Vec<&'i [u8]> {
        let source = self.words.as_deref().unwrap_or(input);
        self.arguments.iter().map(|range| &source[range.clone()]).collect()
    }

    /// Bytes of memory that it has besides the input.
    pub fn held(&self) -> usize {
        self.arguments.capacity() * size_of::<Range<usize>>() + self.words.as_ref().map_or(0, Vec::capacity)
    }

    /// Bytes of a whole request.
    pub fn bytes(&self) -> usize {
        self.at
    }

    /// Ready for the next one.
    pub fn clear(&mut self) {
        (self.at, self.announced, self.bulk, self.words) = (0, None, None, None);
        self.arguments.clear();
        self.arguments.shrink_to(64);
    }
}

/// Appends what stands in quotes, of which the opening one was read; returns what follows the closing one. None: there is none.
fn unquoted<'l>(quote: u8, mut left: &'l [u8], words: &mut Vec<u8>) -> Option<&'l [u8]> {
    let digit = |at: Option<&u8>| at.and_then(|digit| char::from(*digit).to_digit(16));
    loop {
        let (first, rest) = left.split_first()?;
        left = rest;
        match (*first, left.first()) {
            (end, _) if end == quote => return Some(left),
            (b'\\', Some(escaped)) if quote == b'"' || *escaped == quote => {
                let code = if quote == b'"' && *escaped == b'x' {
                    digit(left.get(1)).zip(digit(left.get(2)))
                } else {
                    None
                };
                words.push(match (code, escaped) {
                    (Some((high, low)), _) => (high * 16 + low) as u8,
                    (None, b'n') => b'\n',
                    (None, b'r') => b'\r',
                    (None, b't') => b'\t',
                    (None, b'b') => 8,
                    (None, b'a') => 7,
                    (None, other) => *other,
                });
                left = &left[if code.is_some() { 3 } else { 1 }..];
            }
            (other, _) => words.push(other),
        }
    }
}

/// A decimal number as it is written: nothing around it, no leading zeros.
pub fn number(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let plain = digits.len() <= 19 && digits.iter().all(u8::is_ascii_digit);
    if !plain || digits.first() == Some(&b'0') && text.len() > 1 {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Replies of a connection, appended, in the version of the protocol that it asked for.
#[derive(Debug, Default)]
pub struct Reply {
    bytes: Vec<u8>,
    /// Version 3, by HELLO.
    pub resp3: bool,
}

impl Reply {
    /// The replies so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many bytes they have.
    pub fn written(&self) -> usize {
        self.bytes.len()
    }

    /// Forgets those from `start` on.
    pub fn truncate(&mut self, start: usize) {
        self.bytes.truncate(start);
    }

    /// Forgets all, and the memory beyond `keep` bytes.
    pub fn clear(&mut self, keep: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(keep);
    }

    /// `+text`.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// `-text`, on one line whatever the text is.
    pub fn error(&mut self, text: &str) {
        self.line(b'-', &text.replace(['\r', '\n'], " "));
    }

    /// `:value`.
    pub fn integer(&mut self, value: i64) {
        self.bytes.push(b':');
        if value < 0 {
            self.bytes.push(b'-');
        }
        self.digits(value.unsigned_abs());
    }

    /// A number that is not negative, and the line's end.
    fn digits(&mut self, mut value: u64) {
        let (mut digits, mut first) = ([0; 20], 20);
        while value > 0 || first == 20 {
            first -= 1;
            digits[first] = b'0' + (value % 10) as u8;
            value /= 10;
        }
        self.bytes.extend_from_slice(&digits[first..]);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// A bulk string.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.count(b'$', bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Text for people.
    pub fn text(&mut self, text: &str) {
        if !self.resp3 {
            return self.bulk(text.as_bytes());
        }
        self.count(b'=', text.len() + 4);
        self.bytes.extend_from_slice(b"txt:");
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// The reply for a missing value.
    pub fn nothing(&mut self) {
        self.bytes.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// The reply for a missing array.
    pub fn no_array(&mut self) {
        self.bytes.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    /// The start of an array.
    pub fn array(&mut self, length: usize) {
        self.count(b'*', length);
    }

    /// The start of a map: `length` keys, each before its value.
    pub fn map(&mut self, length: usize) {
        if self.resp3 {
            self.count(b'%', length);
        } else {
            self.array(length * 2);
        }
    }

    fn count(&mut self, kind: u8, count: usize) {
        self.bytes.push(kind);
        self.digits(count as u64);
    }

    fn line(&mut self, kind: u8, text: &str) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SMALL: Limits = Limits { bulk_bytes: 100, arguments: 10, request_bytes: 500 };

    fn encode(arguments: &[Vec<u8>]) -> Vec<u8> {
        let mut reply = Reply::default();
        reply.array(arguments.len());
        arguments.iter().for_each(|argument| reply.bulk(argument));
        reply.bytes
    }

    proptest! {
        #[test]
        fn requests_come_back_however_they_are_cut(
            requests in proptest::collection::vec(proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..8), 1..5),
            cuts in proptest::collection::vec(1usize..30, 1..40),
        ) {
            let stream: Vec<u8> = requests.iter().flat_map(|request| encode(request)).collect();
            let (mut buffer, mut request, mut found) = (Vec::new(), Request::default(), Vec::new());
            let (mut at, mut cut) = (0, cuts.iter().cycle());
            while at < stream.len() {
                let end = stream.len().min(at + cut.next().unwrap());
                buffer.extend_from_slice(&stream[at..end]);
                at = end;
                while !buffer.is_empty() && request.read(&buffer, &SMALL).unwrap() {
                    found.push(request.arguments(&buffer).into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>());
                    buffer.drain(..request.bytes());
                    request.clear();
                }
            }
            prop_assert_eq!(found, requests);
        }

        #[test]
        fn no_bytes_make_it_panic_or_grow(bytes in proptest::collection::vec(
            prop_oneof![8 => proptest::sample::select(b"*$\r\n0123456789-+ ".to_vec()), 1 => any::<u8>()], 0..600)
        ) {
            let mut request = Request::default();
            for end in 0..=bytes.len() {
                match request.read(&bytes[..end], &SMALL) {
                    Err(_) => break,
                    Ok(whole) => {
                        prop_assert!(request.arguments.capacity() <= 4 * bytes.len().max(16));
                        if whole {
                            prop_assert!(request.bytes() <= end);
                            let arguments = request.arguments(&bytes[..end]);
                            prop_assert!(arguments.iter().all(|argument| argument.len() <= SMALL.request_bytes));
                            break;
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_announced_is_refused_at_once() {
        for bytes in [
            "*11\r\n",
            "*-x\r\n",
            "*99999999999999999999\r\n",
            "*1\r\n$101\r\n",
            "*1\r\n$-1\r\n",
            "*1\r\nfoo\r\n",
        ] {
            assert!(Request::default().read(bytes.as_bytes(), &SMALL).is_err(), "{bytes:?}");
        }
        assert!(Request::default().read(&[b'*'; 32], &SMALL).is_err());
        assert!(Request::default().read(&vec![b'x'; LINE_BYTES], &SMALL).is_err());
        assert_eq!(Request::default().read(b"*1\r\n$100\r\nabc", &SMALL), Ok(false));
    }

    #[test]
    fn numbers_are_as_they_are_written() {
        for (text, value) in [("0", 0), ("-1", -1), ("10", 10), ("-9223372036854775808", i64::MIN)] {
            assert_eq!(number(text.as_bytes()), Some(value));
        }
        for text in
            ["", "-", "+1", "-0", "01", " 1", "1 ", "1.0", "9223372036854775808", "99999999999999999999"]
        {
            assert_eq!(number(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn replies_have_numbers_as_they_are_read() {
        let mut reply = Reply::default();
        for value in [0, 7, -1, 10, i64::MIN, i64::MAX] {
            reply.truncate(0);
            reply.integer(value);
            assert_eq!(reply.bytes(), format!(":{value}\r\n").as_bytes());
        }
        reply.truncate(0);
        reply.bulk(&[b'x'; 123]);
        assert!(reply.bytes().starts_with(b"$123\r\nxxx") && reply.written() == 6 + 123 + 2);
    }

    #[test]
    fn a_line_of_words_is_a_request() {
        let (mut request, line) = (Request::default(), b"  set  a 1 \r\n*1");
        assert_eq!(request.read(line, &SMALL), Ok(true));
        assert_eq!(request.arguments(line), [&b"set"[..], b"a", b"1"]);
        assert_eq!(request.bytes(), line.len() - 2);
    }

    #[test]
    fn words_may_stand_in_quotes() {
        let words = |line: &str| {
            let (mut request, line) = (Request::default(), format!("{line}\r\n"));
            let whole = request.read(line.as_bytes(), &SMALL)?;
            assert!(whole && request.bytes() == line.len());
            let words = request.arguments(line.as_bytes()).into_iter();
            Ok::<_, String>(words.map(|word| word.escape_ascii().to_string()).collect::<Vec<_>>())
        };
        let right: [(&str, &[&str]); 8] = [
            (r#"set a "x y""#, &["set", "a", "x y"]),
            (r#"set a """#, &["set", "a", ""]),
            (r#"set a "\x41\xfF\n\r\t\b\a\\\"\q""#, &["set", "a", r#"A\xff\n\r\t\x08\x07\\\"q"#]),
            (r#"set a "\x4""#, &["set", "a", "x4"]),
            (r"set a 'it\'s \n'", &["set", "a", r"it\'s \\n"]),
            (r#"set a x"y z""#, &["set", "a", "xy z"]),
            (r#"set a 'x "y" z'"#, &["set", "a", r#"x \"y\" z"#]),
            ("\t set\x0ba  1 ", &["set", "a", "1"]),
        ];
        for (line, expected) in right {
            assert_eq!(words(line).expect(line), expected, "{line}");
        }
        for line in [r#"set a "x"#, r#"set a "x"y"#, r"set a 'x", r"set a 'x\'", r#"set a ""x"#] {
            assert_eq!(words(line), Err("Protocol error: unbalanced quotes in request".to_owned()), "{line}");
        }
    }
}
