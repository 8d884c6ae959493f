// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Computes code lengths from frequencies, and codes from lengths.
//!
//! - **Flow** frequencies ──sort──▶ leaves, rarest first ──two queues──▶ depths ──counts per length, limited──▶ lengths ──canonical
//!   order──▶ codes, bits reversed as deflate writes them.
//! - **Order** limiting the lengths moves leaves as little as possible. If no length exceeds the limit, which is the rule, the code is
//!   optimal.

use super::codes::CODE_BITS;

/// Gives every symbol with a frequency a length of 1 to `limit` bits, and the others 0. At least two symbols get a length,
/// because a decoder may refuse a code of one symbol. The sum of frequencies must fit into 22 bits, and `N` must be more than
/// the number of symbols. Returns the bits that all occurrences of the symbols take together.
pub fn lengths<const N: usize>(frequencies: &[u32], limit: usize, lengths: &mut [u8]) -> usize {
    debug_assert!(frequencies.len() < N && lengths.len() == frequencies.len() && limit <= CODE_BITS);
    lengths.fill(0);
    let mut leaves = [0u32; N];
    let mut used = 0;
    for (symbol, &frequency) in frequencies.iter().enumerate() {
        leaves[used] = frequency << 9 | symbol as u32;
        used += usize::from(frequency != 0);
    }
    if used < 2 {
        let first = if used == 1 { (leaves[0] & 511) as usize } else { 0 };
        lengths[first] = 1;
        lengths[usize::from(first == 0)] = 1;
        return if used == 1 { (leaves[0] >> 9) as usize } else { 0 };
    }
    let mut sorted = [u32::MAX; N];
    sort(&leaves[..used], &mut sorted);
    let leaves = sorted;

    // Two queues: the leaves in order, and the inner nodes, which are created in order. Each step takes the rarer front. To
    // avoid a branch, both fronts get the new parent; for the front that was not taken it is overwritten later.
    let mut weight = [u32::MAX; N];
    let mut parent = [0u16; N];
    let mut leaf_parent = [0u16; N];
    let (mut leaf, mut inner) = (0, 0);
    for node in 0..used - 1 {
        let mut sum = 0;
        for _ in 0..2 {
            let (next_leaf, next_inner) = (leaves[leaf] >> 9, weight[inner]);
            let take = next_leaf <= next_inner;
            leaf_parent[leaf] = node as u16;
            parent[inner] = node as u16;
            sum += if take { next_leaf } else { next_inner };
            leaf += usize::from(take);
            inner += usize::from(!take);
        }
        weight[node] = sum;
    }
    let mut depth = [0u8; N];
    for node in (0..used - 2).rev() {
        depth[node] = depth[parent[node] as usize] + 1;
    }
    let mut counts = [0u32; CODE_BITS + 1];
    for leaf in 0..used {
        counts[(depth[leaf_parent[leaf] as usize] as usize + 1).min(limit)] += 1;
    }
    // Leaves that were moved up to the limit take too much of the code space, so the longest of the other codes are lengthened.
    let mut space: u32 = (1..=limit).map(|bits| counts[bits] << (limit - bits)).sum();
    while space > 1 << limit {
        let mut bits = limit - 1;
        while counts[bits] == 0 {
            bits -= 1;
        }
        counts[bits] -= 1;
        counts[bits + 1] += 2;
        counts[limit] -= 1;
        space -= 1;
    }
    // The rarest leaves get the longest codes.
    let (mut leaf, mut total) = (0, 0);
    for bits in (1..=limit).rev() {
        let next = leaf + counts[bits] as usize;
        let mut sum = 0;
        for leaf in &leaves[leaf..next] {
            lengths[(leaf & 511) as usize] = bits as u8;
            sum += leaf >> 9;
        }
        total += sum as usize * bits;
        leaf = next;
    }
    total
}

/// Sorts by frequency, then by symbol. Most frequencies are small: these are counted, the others compared.
fn sort(leaves: &[u32], sorted: &mut [u32]) {
    const SMALL: usize = 64;
    if leaves.len() <= 24 {
        let sorted = &mut sorted[..leaves.len()];
        sorted.copy_from_slice(leaves);
        sorted.sort_unstable();
        return;
    }
    let class = |leaf: u32| ((leaf >> 9) as usize).min(SMALL);
    let mut starts = [0u16; SMALL + 2];
    for &leaf in leaves {
        starts[class(leaf) + 1] += 1;
    }
    for at in 1..starts.len() {
        starts[at] += starts[at - 1];
    }
    let large = starts[SMALL] as usize;
    for &leaf in leaves {
        let place = &mut starts[class(leaf)];
        sorted[*place as usize] = leaf;
        *place += 1;
    }
    sorted[large..leaves.len()].sort_unstable();
}

/// Computes the canonical codes of these lengths, first bit lowest.
pub fn codes(lengths: &[u8], codes: &mut [u16]) {
    // Neighbours often have the same length. Several counters for each length avoid that they wait for each other.
    let mut counts = [[0u16; CODE_BITS + 1]; 4];
    for four in lengths.chunks(4) {
        for (count, &bits) in counts.iter_mut().zip(four) {
            count[bits as usize & 15] += 1;
        }
    }
    // Codes with their first bit highest, in the top of 16 bits. Codes of length 0 are all 0.
    let mut next = [0u16; CODE_BITS + 1 + 8];
    let mut step = [0u16; CODE_BITS + 1 + 8];
    let mut code = 0u16;
    for bits in 1..=CODE_BITS {
        next[bits] = code;
        step[bits] = 1 << (16 - bits);
        let count = counts.iter().map(|count| count[bits]).sum::<u16>();
        code = code.wrapping_add(count.wrapping_mul(step[bits]));
    }
    for (symbol, (code, &bits)) in codes.iter_mut().zip(lengths).enumerate() {
        let at = if bits == 0 { CODE_BITS + 1 + (symbol & 7) } else { bits as usize & 15 };
        *code = next[at];
        next[at] = next[at].wrapping_add(step[at]);
    }
    for code in codes {
        *code = code.reverse_bits();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(lengths: &[u8], limit: usize) -> usize {
        lengths.iter().filter(|&&bits| bits != 0).map(|&bits| 1 << (limit - bits as usize)).sum()
    }

    #[test]
    fn every_code_is_complete_and_within_its_limit() {
        let fibonacci = {
            let mut frequencies = [1u32; 25];
            for at in 2..25 {
                frequencies[at] = frequencies[at - 1] + frequencies[at - 2];
            }
            frequencies
        };
        let flat = [5u32; 286];
        let mut skewed = [1u32; 286];
        skewed[17] = 100_000;
        for frequencies in [&fibonacci[..], &flat, &skewed, &[0, 0, 9, 0], &[0; 30], &[7, 0, 0]] {
            for limit in [9usize, 12, 15] {
                let mut bits = vec![0; frequencies.len()];
                let total = lengths::<288>(frequencies, limit, &mut bits);
                let sum = frequencies.iter().zip(&bits).map(|(&count, &bits)| count as usize * bits as usize);
                assert_eq!(total, sum.sum::<usize>());
                assert!(bits.iter().all(|&bits| bits as usize <= limit));
                assert_eq!(space(&bits, limit), 1 << limit, "{frequencies:?}");
                assert!(frequencies.iter().zip(&bits).all(|(&frequency, &bits)| frequency == 0 || bits != 0));
            }
        }
    }

    #[test]
    fn sorting_is_by_frequency_then_symbol() {
        let leaves: Vec<u32> = (0..200u32).map(|symbol| (symbol * 7919 % 103 + 1) << 9 | symbol).collect();
        let mut sorted = [u32::MAX; 200];
        sort(&leaves, &mut sorted);
        let mut expected = leaves.clone();
        expected.sort_unstable();
        assert_eq!(sorted[..200], expected);
    }

    #[test]
    fn codes_are_those_of_the_standards_example() {
        // RFC 1951, section 3.2.2: ABCDEFGH with lengths 3 3 3 3 3 2 4 4.
        let mut found = [0; 8];
        codes(&[3, 3, 3, 3, 3, 2, 4, 4], &mut found);
        let expected = [0b010, 0b110, 0b001, 0b101, 0b011, 0b00, 0b0111, 0b1111];
        assert_eq!(found, expected);
    }
}
