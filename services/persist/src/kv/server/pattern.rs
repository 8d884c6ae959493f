// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Patterns of keys: `*`, `?`, `[a-z]`, `[^a]`, and `\` before any of them.
//!
//! - **Rule** time is at most the product of the two lengths: only the last `*` is ever tried again

/// Returns true if `text` is one of those that `pattern` means.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, t));
            p += 1;
            continue;
        }
        match one(&pattern[p..], text[t]) {
            Some(used) => (p, t) = (p + used, t + 1),
            None => {
                let Some((after, from)) = star else { return false };
                star = Some((after, from + 1));
                (p, t) = (after, from + 1);
            }
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Bytes of the pattern that stand for `byte`; None: it does not begin with such.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern.first()? {
        b'?' => Some(1),
        b'\\' if pattern.len() > 1 => (pattern[1] == byte).then_some(2),
        b'[' => {
            let inverted = pattern.get(1) == Some(&b'^');
            let (mut at, mut found) = (1 + usize::from(inverted), false);
            while at < pattern.len() && pattern[at] != b']' {
                if pattern[at] == b'\\' && at + 1 < pattern.len() {
                    at += 1;
                    found |= pattern[at] == byte;
                } else if pattern.get(at + 1) == Some(&b'-')
                    && at + 2 < pattern.len()
                    && pattern[at + 2] != b']'
                {
                    let (low, high) = (pattern[at].min(pattern[at + 2]), pattern[at].max(pattern[at + 2]));
                    found |= (low..=high).contains(&byte);
                    at += 2;
                } else {
                    found |= pattern[at] == byte;
                }
                at += 1;
            }
            (found != inverted).then_some((at + 1).min(pattern.len()))
        }
        literal => (literal == byte).then_some(1),
    }
}

/// The bytes that every match of the pattern begins with.
pub fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().position(|byte| b"*?[\\".contains(byte)).unwrap_or(pattern.len());
    &pattern[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_do_elsewhere() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*c", "abbbc", true),
            ("a*c", "abbbd", false),
            ("h?llo", "hello", true),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("a*b*c*", "aXbYcZ", true),
            ("", "a", false),
            ("[", "a", false),
            ("a[]", "ab", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
        assert_eq!(literal_prefix(b"user:*:x"), b"user:");
    }

    proptest::proptest! {
        #[test]
        fn no_pattern_panics(pattern: Vec<u8>, text: Vec<u8>) {
            matches(&pattern, &text);
            assert!(matches(b"*", &text));
            let quoted: Vec<u8> = text.iter().flat_map(|byte| [b'\\', *byte]).collect();
            assert!(matches(&quoted, &text));
        }
    }
}
