// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AES-GCM with 96-bit nonces and 128-bit tags (NIST SP 800-38D).

use super::aes::Aes;

/// All ones if the bit is set.
fn mask(x: u128, bit: u32) -> u128 {
    0_u128.wrapping_sub(x >> bit & 1)
}

/// Times x, in a field whose lowest power is the highest bit.
fn shifted(v: u128) -> u128 {
    v >> 1 ^ 0xe1 << 120 & mask(v, 0)
}

/// Four bits that leave at the lowest end come back as these.
const FOLDED: [u128; 16] = {
    let mut folded = [0; 16];
    let mut four = 1;
    while four < 16 {
        let (mut v, mut turn) = (four as u128, 0);
        while turn < 4 {
            v = v >> 1 ^ ((0xe1 << 120) * (v & 1));
            turn += 1;
        }
        folded[four] = v;
        four += 1;
    }
    folded
};

/// Multiplication in GCM's field, four bits of `x` at a time: what they make of `y`, and the product so far four powers on.
pub(crate) fn times(x: u128, y: u128) -> u128 {
    let mut made = [0; 16];
    let mut v = y;
    for bit in [8, 4, 2, 1] {
        made[bit] = v;
        v = shifted(v);
    }
    for four in 1..16_usize {
        let top = 1 << four.ilog2();
        made[four] = made[top] ^ made[four - top];
    }
    (0..32).fold(0, |product: u128, place| {
        let four = (x >> (4 * place) & 15) as usize;
        product >> 4 ^ FOLDED[(product & 15) as usize] ^ made[four]
    })
}

/// Multiplication by one element, four bits at a time: what each four bits in each place make of it.
#[derive(Clone, Debug)]
pub(crate) struct Multiplier(Box<[[u128; 16]; 32]>);

impl Multiplier {
    pub fn new(h: u128) -> Multiplier {
        let (mut parts, mut v) = (Box::new([[0; 16]; 32]), h);
        for part in parts.iter_mut() {
            for bit in [8, 4, 2, 1] {
                part[bit] = v;
                v = shifted(v);
            }
            for four in 1..16_usize {
                let top = 1 << four.ilog2();
                part[four] = part[top] ^ part[four - top];
            }
        }
        Multiplier(parts)
    }

    pub fn times(&self, x: u128) -> u128 {
        let mut rest = [(x >> 64) as u64, x as u64];
        let mut product = 0;
        for (half, parts) in rest.iter_mut().zip(self.0.as_chunks::<16>().0) {
            for part in parts {
                *half = half.rotate_left(4);
                product ^= part[(*half & 15) as usize];
            }
        }
        product
    }
}

pub(crate) fn blocks(bytes: &[u8]) -> impl Iterator<Item = u128> + '_ {
    bytes.chunks(16).map(|chunk| {
        let mut block = [0; 16];
        block[..chunk.len()].copy_from_slice(chunk);
        u128::from_be_bytes(block)
    })
}

/// Seals or opens: the other text, and the tag (of the ciphertext in both directions).
pub fn gcm(seals: bool, key: &[u8], nonce: &[u8; 12], aad: &[u8], text: &[u8]) -> (Vec<u8>, [u8; 16]) {
    let aes = Aes::new(key);
    let pad = |counter: u32| {
        let mut block = [0; 16];
        block[..12].copy_from_slice(nonce);
        block[12..].copy_from_slice(&counter.to_be_bytes());
        aes.block(block)
    };
    let mut other = text.to_vec();
    for (index, chunk) in other.chunks_mut(16).enumerate() {
        let pad = pad(index as u32 + 2);
        chunk.iter_mut().zip(pad).for_each(|(byte, pad)| *byte ^= pad);
    }
    let cipher = if seals { other.as_slice() } else { text };
    let h = Multiplier::new(u128::from_be_bytes(aes.block([0; 16])));
    let bits = |bytes: &[u8]| bytes.len() as u128 * 8;
    let lengths = bits(aad) << 64 | bits(cipher);
    let hash =
        blocks(aad).chain(blocks(cipher)).chain([lengths]).fold(0, |hash, block| h.times(hash ^ block));
    let tag = hash ^ u128::from_be_bytes(pad(1));
    (other, tag.to_be_bytes())
}

/// Test case 3 of the GCM specification: key, nonce, text, its ciphertext, tag.
#[cfg(test)]
pub(crate) const CASE_3: [&str; 5] = [
    "feffe9928665731c6d6a8f9467308308",
    "cafebabefacedbaddecaf888",
    "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255",
    "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091473f5985",
    "4d5c2af327cd64a62cf35abd2ba6fab4",
];

#[cfg(test)]
pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test cases 1 and 2 of the GCM specification (McGrew, Viega).
    #[test]
    fn zeros_under_the_zero_key() {
        let (text, tag) = gcm(true, &[0; 16], &[0; 12], &[], &[]);
        assert!(text.is_empty());
        assert_eq!(u128::from_be_bytes(tag), 0x58e2_fcce_fa7e_3061_367f_1d57_a4e7_455a);
        let (text, tag) = gcm(true, &[0; 16], &[0; 12], &[], &[0; 16]);
        assert_eq!(u128::from_be_bytes(text.try_into().unwrap()), 0x0388_dace_60b6_a392_f328_c2b9_71b2_fe78);
        assert_eq!(u128::from_be_bytes(tag), 0xab6e_47d4_2cec_13bd_f53a_67b2_1257_bddf);
    }

    /// Test cases 3 and 4: four blocks, and less than four with additional data.
    #[test]
    fn four_blocks_and_less_with_additional_data() {
        let (key, nonce) = (bytes(CASE_3[0]), bytes(CASE_3[1]).try_into().unwrap());
        let [text, cipher, tag] = [2, 3, 4].map(|at| bytes(CASE_3[at]));
        assert_eq!(gcm(true, &key, &nonce, &[], &text), (cipher.clone(), tag.try_into().unwrap()));
        let aad = bytes("feedfacedeadbeeffeedfacedeadbeefabaddad2");
        let tag = bytes("5bc94fbc3221a5db94fae95ae7121a47").try_into().unwrap();
        assert_eq!(gcm(true, &key, &nonce, &aad, &text[..60]), (cipher[..60].to_vec(), tag));
    }

    /// Multiplication as the standard defines it, a bit at a time.
    fn bit_by_bit(x: u128, y: u128) -> u128 {
        let (mut product, mut v) = (0, y);
        for bit in (0..128).rev() {
            product ^= v & mask(x, bit);
            v = shifted(v);
        }
        product
    }

    #[test]
    fn four_bits_at_a_time_give_what_one_bit_does() {
        let word =
            |seed: u128| (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).rotate_left(43);
        for seed in 0..200 {
            let (x, h) = (word(seed), word(1000 + seed));
            assert_eq!((Multiplier::new(h).times(x), times(x, h)), (bit_by_bit(x, h), bit_by_bit(x, h)));
        }
        assert_eq!(times(1 << 127, word(7)), word(7));
    }

    #[test]
    fn what_is_sealed_opens() {
        let (cipher, tag) = gcm(true, &[5; 32], &[6; 12], b"header", b"some words");
        assert_eq!(gcm(false, &[5; 32], &[6; 12], b"header", &cipher), (b"some words".to_vec(), tag));
    }
}
