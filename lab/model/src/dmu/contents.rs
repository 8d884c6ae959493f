// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Contents of pages: a seed, a page's number and a version determine the bytes, and they pack as often as is wanted.
//!
//! - **Layout** bytes 0..8 the version; then units of 512 B, whose first part is chance and whose rest repeats it
//! - **Not here** measured pages of real programs: the papers name only how often theirs pack

use super::PAGE;
use crate::event::Random;

const UNIT: usize = 512;
/// Bytes of a unit beside its random part: a token, lengths, an offset.
const COST: usize = 6;

/// The page `number` in its `version`; `ratio` in hundredths, 100 and less do not pack.
#[must_use]
pub fn page(number: u64, version: u64, ratio: u64) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    fill(&mut page, number, version, ratio);
    page
}

/// The same, in a page that is there.
pub fn fill(page: &mut [u8; PAGE], number: u64, version: u64, ratio: u64) {
    let mut random = Random::new(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let chance = match ratio {
        0..=100 => UNIT,
        ratio => ((UNIT as u64 * 100 / ratio) as usize).saturating_sub(COST).max(16),
    };
    for unit in page.as_chunks_mut::<UNIT>().0 {
        let (words, rest) = unit[..chance].as_chunks_mut::<8>();
        words.iter_mut().for_each(|word| *word = random.word().to_le_bytes());
        if !rest.is_empty() {
            rest.copy_from_slice(&random.word().to_le_bytes()[..rest.len()]);
        }
        let mut filled = chance;
        while filled < UNIT {
            let next = (UNIT - filled).min(filled);
            unit.copy_within(..next, filled);
            filled += next;
        }
    }
    page[..8].copy_from_slice(&version.to_le_bytes());
}

/// The version of a page.
#[must_use]
pub fn version(page: &[u8]) -> u64 {
    page.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dmu::pack::Packer;

    #[test]
    fn pages_pack_as_often_as_was_asked() {
        for ratio in [125, 200, 310, 350, 400, 800] {
            let packed = (0..20)
                .map(|number| Packer::default().pack(&page(number, 3, ratio)).unwrap().len())
                .sum::<usize>();
            let got = (20 * PAGE * 100 / packed) as u64;
            assert!(got.abs_diff(ratio) * 33 < ratio, "{ratio}: {got}");
        }
        let packs = |ratio| Packer::default().pack(&page(1, 0, ratio)).is_some();
        assert!(!packs(100) && !packs(110));
        assert_ne!(page(1, 0, 200), page(2, 0, 200));
        assert_eq!(version(&page(1, 77, 200)), 77);
        assert_eq!(page(1, 77, 200)[8..], page(1, 78, 200)[8..]);
    }
}
