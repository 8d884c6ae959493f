// SPDX-License-Identifier: Apache-2.0 OR MIT
//! systemd's syntax: words and quotes of a setting, the lines of an environment file, escaped names, patterns.
//!
//! - **Source** systemd.syntax(7), systemd.exec(5) ("EnvironmentFile="), systemd-escape(1), glob(7)
//! - **Not here** the meaning of a setting: unit.rs

/// Escapes a text so that systemd finds no specifiers in it.
pub fn escaped(text: &str) -> String {
    text.replace('%', "%%")
}

/// Returns a name's original text: `-` stands for `/`, and `\xAB` for a byte (systemd-escape(1)).
pub fn unescaped(name: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = name.as_bytes();
    while let [first, tail @ ..] = rest {
        let byte = rest.get(2..4).filter(|_| rest.starts_with(b"\\x"));
        let byte = byte.and_then(|digits| u8::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok());
        match byte {
            Some(byte) => {
                bytes.push(byte);
                rest = &rest[4..];
            }
            None => {
                bytes.push(if *first == b'-' { b'/' } else { *first });
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns true if a file name matches a pattern of `*` and `?`.
pub fn fits_pattern(pattern: &str, name: &str) -> bool {
    match (pattern.chars().next(), name.chars().next()) {
        (None, None) => true,
        (Some('*'), _) => {
            fits_pattern(&pattern[1..], name)
                || name.chars().next().is_some_and(|first| fits_pattern(pattern, &name[first.len_utf8()..]))
        }
        (Some('?'), Some(first)) => fits_pattern(&pattern[1..], &name[first.len_utf8()..]),
        (Some(a), Some(b)) if a == b => fits_pattern(&pattern[a.len_utf8()..], &name[b.len_utf8()..]),
        _ => false,
    }
}

/// Returns the assignments of an environment file: `NAME=value` per line, quotes as in a shell, `#` and `;` for
/// comments.
pub fn assignments(text: &str) -> Vec<(String, String)> {
    let text = text.replace("\\\n", "");
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    lines
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.trim().to_owned(), unquoted(value.trim())))
        .collect()
}

/// Returns a value of an environment file without its quotes; blanks inside it stay.
fn unquoted(value: &str) -> String {
    let (mut text, mut quote) = (String::new(), None);
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match (character, quote) {
            ('\\', None | Some('"')) => text.extend(characters.next()),
            (_, Some(open)) if character == open => quote = None,
            ('"' | '\'', None) => quote = Some(character),
            _ => text.push(character),
        }
    }
    text
}

/// Returns the words of a setting: separated by blanks, quoted by `"` or `'`, with C's backslash escapes.
pub fn words(value: &str) -> Vec<String> {
    let (mut words, mut word, mut begun, mut quote) = (Vec::new(), String::new(), false, None);
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match (character, quote) {
            ('\\', _) => word.extend(characters.next()),
            (_, Some(open)) if character == open => quote = None,
            ('"' | '\'', None) => (quote, begun) = (Some(character), true),
            (_, None) if character.is_whitespace() => {
                if begun || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            _ => word.push(character),
        }
    }
    if begun || !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_systemd() {
        assert_eq!(words(r#"A=1 "B=two words" 'C=x'  D=\"q"#), ["A=1", "B=two words", "C=x", "D=\"q"]);
        assert_eq!(words("").len(), 0);
    }

    #[test]
    fn names_patterns_and_environment_files_are_read() {
        assert_eq!(unescaped("a-b\\x2dc"), "a/b-c");
        assert!(fits_pattern("w*.env", "web.env") && fits_pattern("?", "é") && !fits_pattern("w*", "xw"));
        assert_eq!(
            assignments("#A=1\nB=\"x y\" \n C=\\\n3"),
            [("B", "x y"), ("C", "3")].map(|(a, b)| (a.into(), b.into()))
        );
    }
}
