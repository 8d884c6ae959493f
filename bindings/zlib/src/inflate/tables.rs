// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decoding tables: built from code lengths, and indexed by the next bits of the stream.
//!
//! - **Layout** an entry is a `u32`:
//!
//!   | bits | literal | length, distance | link | other |
//!   |---|---|---|---|---|
//!   | 31 | 1 | 0 | 0 | 0 |
//!   | 16–30 | byte | base | first entry of the second table | 0 |
//!   | 13–15 | 0 | 0 | [`EXCEPTION`], [`LINK`] | [`EXCEPTION`], [`END`] or nothing: no symbol has this code |
//!   | 8–12 | bits of the code | bits of the code | index bits of the second table | bits of the code |
//!   | 0–7 | bits of the code | bits of code and extra | index bits of the first table | bits of the code |
//!
//! - **Flow** the first table is indexed by the next [`LITERAL_BITS`] or [`DISTANCE_BITS`] bits. Longer codes continue in a second table.
//! - **Order** the same codes are refused as by zlib: too many codes; too few, unless there is a single code of one bit, or none.
#![deny(unsafe_code)]

pub const LITERAL: u32 = 1 << 31;
pub const EXCEPTION: u32 = 1 << 15;
pub const LINK: u32 = 1 << 14;
pub const END: u32 = 1 << 13;

/// Index bits of the first tables.
pub const LITERAL_BITS: u32 = 10;
pub const DISTANCE_BITS: u32 = 8;
/// Index bits of the table of code lengths, which is also the length of their longest code.
pub const LENGTH_BITS: u32 = 7;
/// Most entries of the tables of a complete code: of 288 symbols by 10 bits, of 32 symbols by 8 bits.
pub const LITERAL_ENTRIES: usize = 1334;
pub const DISTANCE_ENTRIES: usize = 402;

/// Returns the length of the code of an entry that is no link.
#[inline(always)]
pub fn code_bits(entry: u32) -> u32 {
    entry >> 8 & 31
}

/// Returns the extra bits of a length or a distance.
#[inline(always)]
pub fn extra_bits(entry: u32) -> u32 {
    (entry & 63) - code_bits(entry)
}

/// Returns the byte, base or index of an entry.
#[inline(always)]
pub fn value(entry: u32) -> u32 {
    entry >> 16 & 0x7fff
}

/// Index bits of a wide table.
pub const WIDE_BITS: u32 = 11;
pub const WIDE_LITERALS: u32 = 1 << 15;
pub const WIDE_EXCEPTION: u32 = 1 << 14;
/// In an entry of literals: there are two.
pub const WIDE_PAIR: u32 = 1 << 14;
/// In an entry of a length: a literal is before it.
pub const WIDE_BEFORE: u32 = 1 << 13;
/// Length of the shortest match.
pub const LENGTH_MIN: usize = 3;

/// A table for long blocks, whose entries decode up to two symbols. An entry is a `u32`:
///
/// | bits | two literals | one literal | length, with or without a literal before it |
/// |---|---|---|---|
/// | 24–31 | second byte | 0 | base, less [`LENGTH_MIN`] |
/// | 16–23 | first byte | byte | byte |
/// | 15 | 1 | 1 | 0 |
/// | 14 | 1 | 0 | 0 |
/// | 13 | 0 | 0 | 1 if there is a literal |
/// | 6–11 | bits of the codes | bits of the code | bits of the codes |
/// | 0–5 | bits of the codes | bits of the code | bits of codes and extra |
///
/// With bit 14 alone, [`WIDE_EXCEPTION`], only the table of literals has the first symbol.
pub type Wide = [u32; 1 << WIDE_BITS];

/// Returns true if at least three tenths of the entries of a wide table, by their share of the symbols of a block, decode two
/// symbols: then it saves more time than it costs. `lengths` are those of the codes of literals and lengths, `counts` their numbers.
pub fn has_pairs(lengths: &[u8], counts: &Counts) -> bool {
    const ALL: u32 = 1 << (2 * WIDE_BITS);
    // Share of the code space of codes up to each length, in units of 2^-WIDE_BITS.
    let mut space = [0u32; WIDE_BITS as usize + 1];
    for bits in 1..=WIDE_BITS as usize {
        space[bits] = space[bits - 1] + (u32::from(counts[bits]) << (WIDE_BITS as usize - bits));
    }
    let share = lengths.iter().take(256).filter(|&&bits| (1..WIDE_BITS as u8).contains(&bits)).map(|&bits| {
        let rest = WIDE_BITS - u32::from(bits);
        space[rest as usize] << rest
    });
    share.sum::<u32>() > ALL / 10 * 3
}

/// Fills the wide table from the first table of literals, which has `bits` index bits; `lengths` and `counts` are those of its codes.
/// Symbols follow each other in no order that a CPU could predict, so there is no branch for each entry.
pub fn widen(literals: &[u32], bits: u32, lengths: &[u8], counts: &Counts, wide: &mut Wide) {
    /// Bits of a code that fits behind no literal.
    const NEVER: u32 = 63;
    // The entries of each symbol alone, and as the second of two.
    let mut behind = [0u32; 1 << LITERAL_BITS];
    for ((alone, behind), &entry) in wide.iter_mut().zip(&mut behind).zip(&literals[..1 << bits]) {
        let (is_literal, is_exception) = (entry & LITERAL != 0, entry & EXCEPTION != 0);
        let codes = code_bits(entry) << 6;
        let length = (value(entry).wrapping_sub(LENGTH_MIN as u32)) << 24 | codes | (entry & 63);
        let literal = WIDE_LITERALS | codes | code_bits(entry);
        let byte = entry & 0xff_0000;
        let first = if is_literal { byte | literal } else { length };
        let second = if is_literal { byte << 8 | literal | WIDE_PAIR } else { length | WIDE_BEFORE };
        *alone = if is_exception { WIDE_EXCEPTION } else { first };
        *behind = if is_exception { NEVER << 6 } else { second };
    }
    for copied in bits..WIDE_BITS {
        wide.copy_within(..1 << copied, 1 << copied);
    }
    let mut next = [0u32; 16];
    for bits in 1..16 {
        next[bits] = (next[bits - 1] + u32::from(counts[bits - 1])) << 1;
    }
    let mask = (1 << bits) - 1;
    for (literal, &length) in lengths.iter().enumerate().take(256) {
        let code = next[length as usize & 15];
        next[length as usize & 15] += 1;
        if !(1..WIDE_BITS as u8).contains(&length) || u32::from(length) > bits {
            continue;
        }
        let (length, code) = (u32::from(length), (code.reverse_bits() >> (32 - u32::from(length))) as usize);
        let before = ((literal as u32) << 16) + length * 0x41;
        for (index, filled) in wide[code..].iter_mut().step_by(1 << length).enumerate() {
            let second = behind[index & mask];
            let fits = (second >> 6 & 63) + length <= WIDE_BITS;
            *filled = if fits { second + before } else { *filled };
        }
    }
}

/// Alphabet that a table decodes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Alphabet {
    CodeLengths,
    Literals,
    Distances,
}

/// Entries of literals and lengths without the bits of their codes.
const LITERALS: [u32; 288] = {
    let mut entries = [EXCEPTION; 288];
    let mut symbol = 0;
    while symbol < 256 {
        entries[symbol] = LITERAL | (symbol as u32) << 16;
        symbol += 1;
    }
    entries[256] = EXCEPTION | END;
    let mut base = 3;
    symbol = 257;
    while symbol < 285 {
        let extra = if symbol < 265 { 0 } else { (symbol as u32 - 261) / 4 };
        entries[symbol] = base << 16 | extra;
        base += 1 << extra;
        symbol += 1;
    }
    entries[285] = 258 << 16;
    entries
};

/// Entries of distances without the bits of their codes.
const DISTANCES: [u32; 32] = {
    let mut entries = [EXCEPTION; 32];
    let (mut symbol, mut base) = (0, 1);
    while symbol < 30 {
        let extra = if symbol < 4 { 0 } else { symbol as u32 / 2 - 1 };
        entries[symbol] = base << 16 | extra;
        base += 1 << extra;
        symbol += 1;
    }
    entries
};

/// The fixed code of literals and lengths, indexed by nine bits.
pub static FIXED_LITERALS: [u32; 512] = {
    let mut table = [0; 512];
    let mut bits = 0;
    while bits < 512 {
        let code = (bits as u16).reverse_bits() >> 7;
        let (symbol, length) = if code >> 2 < 24 {
            (256 + (code >> 2), 7)
        } else if code >> 1 < 192 {
            ((code >> 1) - 48, 8)
        } else if code >> 1 < 200 {
            (280 + (code >> 1) - 192, 8)
        } else {
            (144 + code - 400, 9)
        };
        table[bits] = LITERALS[symbol as usize] + length * 0x101;
        bits += 1;
    }
    table
};
pub const FIXED_LITERAL_BITS: u32 = 9;

/// The fixed code of distances, indexed by five bits.
pub static FIXED_DISTANCES: [u32; 32] = {
    let mut table = [0; 32];
    let mut bits = 0;
    while bits < 32 {
        table[bits] = DISTANCES[((bits as u8).reverse_bits() >> 3) as usize] + 5 * 0x101;
        bits += 1;
    }
    table
};
pub const FIXED_DISTANCE_BITS: u32 = 5;

/// Number of symbols with a code of each length.
pub type Counts = [u16; 16];

/// Error: zlib refuses these code lengths.
pub struct Refused;

/// Builds the table of these code lengths. Returns its index bits, and the number of codes of each length.
///
/// `table` has room for any complete code of the alphabet.
pub fn build(alphabet: Alphabet, lengths: &[u8], table: &mut [u32]) -> Result<(u32, Counts), Refused> {
    let (symbols, most): (&[u32], u32) = match alphabet {
        Alphabet::CodeLengths => (&[], LENGTH_BITS),
        Alphabet::Literals => (&LITERALS, LITERAL_BITS),
        Alphabet::Distances => (&DISTANCES, DISTANCE_BITS),
    };
    let mut counts: Counts = [0; 16];
    for &length in lengths {
        counts[length as usize & 15] += 1;
    }
    counts[0] = 0;
    let Some(longest) = (1..16).rev().find(|&bits| counts[bits] != 0) else {
        // zlib reports an error only when one of these codes is used.
        table[..2].fill(EXCEPTION | 0x101);
        return Ok((1, counts));
    };
    let (mut space, mut starts) = (0u32, [0u16; 17]);
    for bits in 1..16 {
        space = (space << 1) + u32::from(counts[bits]);
        if space > 1 << bits {
            return Err(Refused);
        }
        starts[bits + 1] = starts[bits] + counts[bits];
    }
    if space != 1 << 15 {
        if alphabet == Alphabet::CodeLengths || longest != 1 {
            return Err(Refused);
        }
        table[1] = EXCEPTION | 0x101;
    }

    let mut sorted = [0u16; 288];
    let mut places = starts;
    for (symbol, &length) in lengths.iter().enumerate() {
        let place = &mut places[length as usize & 15];
        if length != 0 {
            sorted[*place as usize] = symbol as u16;
        }
        *place += u16::from(length != 0);
    }
    let entry = |symbol: u16| match alphabet {
        Alphabet::CodeLengths => u32::from(symbol) << 16,
        _ => symbols[symbol as usize],
    };

    let root = (longest as u32).min(most);
    // Codes are stored with their first bit lowest. Appending a zero to a code does not change its number.
    let (mut code, mut at) = (0usize, 0usize);
    let next = |code: usize, bits: u32| -> usize {
        let ones = code ^ ((1 << bits) - 1);
        if ones == 0 {
            return 0;
        }
        let bit = 1usize << ones.ilog2();
        code & (bit - 1) | bit
    };
    for bits in 1..=root {
        for _ in 0..counts[bits as usize] {
            table[code] = entry(sorted[at]) + bits * 0x101;
            code = next(code, bits);
            at += 1;
        }
        if bits < root {
            table.copy_within(..1 << bits, 1 << bits);
        }
    }
    let (mut left, mut free, mut start, mut prefix) = (counts, 1usize << root, 0usize, usize::MAX);
    let mut second = 0;
    for bits in root + 1..=longest as u32 {
        for _ in 0..counts[bits as usize] {
            let low = code & ((1 << root) - 1);
            if low != prefix {
                (prefix, start) = (low, free);
                second = bits - root;
                let mut used = u32::from(left[bits as usize]);
                while used < 1 << second {
                    second += 1;
                    used = (used << 1) + u32::from(left[(root + second) as usize]);
                }
                free += 1 << second;
                table[low] = EXCEPTION | LINK | (start as u32) << 16 | second << 8 | root;
            }
            let own = bits - root;
            let filled = entry(sorted[at]) + own * 0x101;
            for place in ((code >> root)..1 << second).step_by(1 << own) {
                table[start + place] = filled;
            }
            left[bits as usize] -= 1;
            code = next(code, bits);
            at += 1;
        }
    }
    Ok((root, counts))
}

/// Returns the number of entries in zlib's own table for these codes, whose first table has at most `most` index bits: the
/// value of `inflateCodesUsed`.
pub fn zlib_entries(counts: &Counts, most: u32) -> usize {
    let Some(longest) = (1..16u32).rev().find(|&bits| counts[bits as usize] != 0) else { return 2 };
    let shortest = (1..16u32).find(|&bits| counts[bits as usize] != 0).unwrap_or(1);
    let root = most.min(longest).max(shortest);
    let (mut left, mut entries) = (*counts, 1usize << root);
    // Codes of equal length follow each other, so the counts alone determine where second tables begin.
    let (mut code, mut prefix) = (0u32, u32::MAX);
    for bits in 1..=longest {
        code <<= 1;
        for _ in 0..counts[bits as usize] {
            if bits > root && code >> (bits - root) != prefix {
                prefix = code >> (bits - root);
                let mut second = bits - root;
                let mut space = 1i32 << second;
                while second + root < longest {
                    space -= i32::from(left[(second + root) as usize]);
                    if space <= 0 {
                        break;
                    }
                    second += 1;
                    space <<= 1;
                }
                entries += 1 << second;
            }
            left[bits as usize] -= 1;
            code += 1;
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes every bit pattern by the tables, and compares with a search through all codes.
    fn same_as_by_hand(lengths: &[u8]) {
        let mut table = vec![0; LITERAL_ENTRIES];
        let Ok((root, _)) = build(Alphabet::Literals, lengths, &mut table) else { panic!("refused") };
        let mut codes = Vec::new();
        let mut code = 0u32;
        for bits in 1..16 {
            code <<= 1;
            for (symbol, _) in lengths.iter().enumerate().filter(|(_, length)| **length == bits) {
                codes.push((symbol, u32::from(bits), code.reverse_bits() >> (32 - u32::from(bits))));
                code += 1;
            }
        }
        for pattern in 0..1u32 << 15 {
            let mut found = table[(pattern & ((1 << root) - 1)) as usize];
            let mut bits = 0;
            if found & LINK != 0 {
                bits = found & 255;
                let index = pattern >> bits & ((1 << code_bits(found)) - 1);
                found = table[(value(found) + index) as usize];
            }
            let (symbol, length, _) =
                codes.iter().find(|(_, bits, code)| pattern & ((1 << bits) - 1) == *code).expect("complete");
            assert_eq!(bits + code_bits(found), *length, "{pattern:x}");
            assert_eq!(found - code_bits(found) * 0x101, LITERALS[*symbol], "{pattern:x}");
        }
    }

    #[test]
    fn tables_decode_what_the_codes_say() {
        let mut long = vec![15u8; 286];
        // Codes of 1, 2, 3, … bits; the rest of the code space is filled with codes of 15 bits.
        for (symbol, bits) in [(0, 1), (7, 2), (256, 3), (100, 4), (101, 5), (40, 6)] {
            long[symbol] = bits;
        }
        let used: u32 = long.iter().map(|&bits| 1 << (15 - u32::from(bits))).sum();
        let mut rest = (1 << 15) - used;
        for length in &mut long {
            if *length == 15 {
                let most = (rest + 1).ilog2().min(5);
                *length -= most as u8;
                rest -= (1 << most) - 1;
            }
        }
        assert_eq!(rest, 0);
        same_as_by_hand(&long);
        let mut flat = vec![8u8; 256];
        flat.extend([0; 30]);
        same_as_by_hand(&flat);
        let mut fixed = [8u8; 288];
        fixed[144..256].fill(9);
        fixed[256..280].fill(7);
        same_as_by_hand(&fixed);
        let mut table = vec![0; LITERAL_ENTRIES];
        assert!(build(Alphabet::Literals, &fixed, &mut table).is_ok());
        assert_eq!(table[..512], FIXED_LITERALS);
    }

    /// Decodes by the wide table, and compares with one symbol after the other.
    fn wide_is_the_same(lengths: &[u8]) {
        let mut table = vec![0; LITERAL_ENTRIES];
        let Ok((root, counts)) = build(Alphabet::Literals, lengths, &mut table) else { panic!("refused") };
        let mut wide = [0; 1 << WIDE_BITS];
        widen(&table, root, lengths, &counts, &mut wide);
        let single = |bits: usize| table[bits & ((1 << root) - 1)];
        for (bits, &entry) in wide.iter().enumerate() {
            let first = single(bits);
            if entry & (WIDE_LITERALS | WIDE_EXCEPTION) == WIDE_EXCEPTION {
                assert!(first & LITERAL == 0 && first & EXCEPTION != 0);
                continue;
            }
            let second = single(bits >> code_bits(first));
            let (all, codes) = (entry & 63, entry >> 6 & 63);
            if entry & WIDE_LITERALS != 0 {
                assert!(first & LITERAL != 0);
                assert_eq!(entry >> 16 & 255, value(first) & 255);
                if entry >> 14 & 1 != 0 {
                    assert_eq!(
                        (entry >> 24, all),
                        (value(second) & 255, code_bits(first) + code_bits(second))
                    );
                    assert!(second & LITERAL != 0);
                } else {
                    assert_eq!(all, code_bits(first));
                }
                continue;
            }
            let (length, before) = if entry >> 13 & 1 == 0 { (first, 0) } else { (second, code_bits(first)) };
            assert!(length & (LITERAL | EXCEPTION) == 0);
            assert_eq!(
                ((entry >> 24) + LENGTH_MIN as u32, codes),
                (value(length), before + code_bits(length))
            );
            assert_eq!(all - codes, extra_bits(length));
            assert!(codes <= WIDE_BITS);
            if before != 0 {
                assert_eq!(entry >> 16 & 255, value(first) & 255);
            }
        }
    }

    #[test]
    fn pairs_are_counted() {
        let counts = |lengths: &[u8]| {
            let mut counts = [0u16; 16];
            lengths.iter().for_each(|&bits| counts[bits as usize] += u16::from(bits != 0));
            counts
        };
        // Digits by four or five bits, six lengths by four bits: most codes of a digit leave seven bits.
        let mut log = [0u8; 286];
        log[b'0' as usize..][..10].fill(4);
        (log[256], log[257]) = (5, 5);
        log[258..263].fill(4);
        assert!(has_pairs(&log, &counts(&log)));
        // All bytes by eight bits: three bits are left.
        let flat = [8u8; 256];
        assert!(!has_pairs(&flat, &counts(&flat)));
        assert!(!has_pairs(&[1, 1], &[0; 16]));
        assert!(has_pairs(&[1, 1], &counts(&[1, 1])));
    }

    #[test]
    fn wide_tables_decode_what_the_tables_do() {
        let mut fixed = [8u8; 288];
        fixed[144..256].fill(9);
        fixed[256..280].fill(7);
        wide_is_the_same(&fixed);
        let mut short = [0u8; 286];
        short[b'0' as usize..][..10].fill(5);
        short[256] = 12;
        short[257] = 12;
        short[258..260].fill(11);
        short[260..261].fill(9);
        short[262] = 1;
        short[284..286].fill(4);
        short[b'a' as usize] = 8;
        short[b'b' as usize] = 9;
        short[b'c' as usize] = 10;
        let used: u32 =
            short.iter().filter(|&&bits| bits != 0).map(|&bits| 1 << (15 - u32::from(bits))).sum();
        let mut rest = (1 << 15) - used;
        for symbol in (b'd'..=b'z').chain(128..=250) {
            if rest != 0 {
                let bits = 15 - rest.ilog2().min(14);
                short[symbol as usize] = bits as u8;
                rest -= 1 << (15 - bits);
            }
        }
        assert_eq!(rest, 0);
        wide_is_the_same(&short);
    }

    #[test]
    fn codes_that_zlib_refuses_are_refused() {
        let mut table = vec![0; LITERAL_ENTRIES];
        let mut takes = |alphabet, lengths: &[u8]| build(alphabet, lengths, &mut table).is_ok();
        assert!(takes(Alphabet::Distances, &[1]) && takes(Alphabet::Distances, &[0]));
        assert!(takes(Alphabet::Literals, &[0, 1]) && !takes(Alphabet::CodeLengths, &[0, 1]));
        assert!(takes(Alphabet::CodeLengths, &[0; 19]));
        assert!(!takes(Alphabet::Distances, &[2]) && !takes(Alphabet::Distances, &[1, 1, 1]));
        assert!(!takes(Alphabet::Literals, &[2, 2, 2]) && takes(Alphabet::Literals, &[2, 2, 2, 2]));
    }
}
