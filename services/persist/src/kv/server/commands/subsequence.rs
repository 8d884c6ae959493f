// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The longest common subsequence of two byte strings, for LCS.
//!
//! - **Source** the table of lengths of all prefixes, by dynamic programming

/// Cells of the table, at most: 64 MiB.
const CELLS: usize = 16 << 20;

/// Bytes that both strings have one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Where it begins in each.
    pub a: usize,
    pub b: usize,
    pub length: usize,
}

/// The runs of a longest common subsequence, from left to right; None: the strings are too long.
pub fn longest(a: &[u8], b: &[u8]) -> Option<Vec<Run>> {
    let width = b.len() + 1;
    if (a.len() + 1).checked_mul(width)? > CELLS {
        return None;
    }
    let mut lengths = vec![0u32; (a.len() + 1) * width];
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            lengths[i * width + j] = if a[i - 1] == b[j - 1] {
                lengths[(i - 1) * width + j - 1] + 1
            } else {
                lengths[(i - 1) * width + j].max(lengths[i * width + j - 1])
            };
        }
    }
    let (mut i, mut j, mut runs) = (a.len(), b.len(), Vec::<Run>::new());
    while i > 0 && j > 0 {
        if a[i - 1] == b[j - 1] {
            (i, j) = (i - 1, j - 1);
            match runs.last_mut() {
                Some(run) if (run.a, run.b) == (i + 1, j + 1) => {
                    *run = Run { a: i, b: j, length: run.length + 1 };
                }
                _ => runs.push(Run { a: i, b: j, length: 1 }),
            }
        } else if lengths[(i - 1) * width + j] > lengths[i * width + j - 1] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    runs.reverse();
    Some(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runs_of_an_example() {
        let (a, b) = (b"ohmytext", b"mynewtext");
        let runs = longest(a, b).expect("short");
        assert_eq!(runs, [Run { a: 2, b: 0, length: 2 }, Run { a: 4, b: 5, length: 4 }]);
        assert_eq!(longest(b"", b"x"), Some(vec![]));
        assert_eq!(longest(&[0; 1 << 20], &[0; 1 << 20]), None);
    }
}
