// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random sequences of deflate calls, on ours and on the system's libz: the same return codes, the same bytes read, and
//! what comes out unpacks to the same message with either inflate.

use crate::both::{Libz, deflate_init, empty, ours, sample, system, unpack};
use libz_rs_sys::{
    Z_DATA_ERROR, Z_FINISH, Z_FULL_FLUSH, Z_OK, Z_STREAM_END, Z_STREAM_ERROR, Z_SYNC_FLUSH, z_stream,
};
use proptest::prelude::*;

/// Room that no call uses up.
const ROOM: usize = 2 << 20;

#[derive(Clone, Debug)]
enum Step {
    Deflate {
        bytes: usize,
        flush: i32,
    },
    Params {
        level: i32,
        strategy: i32,
    },
    /// A copy goes on, the original ends.
    Copy,
    Reset,
    Tune,
    /// pigz's padding: an empty block of 10 bits behind a flush.
    Pad,
    Dictionary {
        bytes: usize,
    },
    Bound,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![0usize..300, 0usize..40_000, 0usize..300_000];
    prop_oneof![
        8 => (bytes, prop_oneof![4 => Just(0), 1 => Just(1), 3 => Just(2), 2 => Just(3), 2 => Just(4), 1 => Just(5)])
            .prop_map(|(bytes, flush)| Step::Deflate { bytes, flush }),
        1 => (-1..10i32, 0..5i32).prop_map(|(level, strategy)| Step::Params { level, strategy }),
        1 => Just(Step::Copy),
        1 => Just(Step::Reset),
        1 => Just(Step::Tune),
        1 => Just(Step::Pad),
        1 => (1usize..40_000).prop_map(|bytes| Step::Dictionary { bytes }),
        1 => Just(Step::Bound),
    ]
}

/// One libz's run.
struct Run {
    libz: Libz,
    strm: Box<z_stream>,
    packed: Vec<u8>,
    bits: i32,
    /// Dictionary that a raw reader needs.
    dictionary: Vec<u8>,
    /// Bytes of the dictionary in `total_in`.
    counted: usize,
}

impl Run {
    fn new(libz: Libz, level: i32, bits: i32, memory: i32, strategy: i32) -> Run {
        let mut strm = empty();
        assert_eq!(deflate_init(&libz, &mut strm, level, bits, memory, strategy), Z_OK);
        Run { libz, strm, packed: Vec::new(), bits, dictionary: Vec::new(), counted: 0 }
    }

    /// Calls with this input and a lot of room. Returns the code and the bytes read.
    fn call(&mut self, input: &[u8], call: impl FnOnce(&Libz, *mut z_stream) -> i32) -> (i32, usize) {
        let mut buffer = vec![0u8; ROOM];
        (self.strm.next_in, self.strm.avail_in) = (input.as_ptr(), input.len() as u32);
        (self.strm.next_out, self.strm.avail_out) = (buffer.as_mut_ptr(), ROOM as u32);
        let code = call(&self.libz, &mut *self.strm);
        self.packed.extend_from_slice(&buffer[..ROOM - self.strm.avail_out as usize]);
        (code, input.len() - self.strm.avail_in as usize)
    }

    fn deflate(&mut self, input: &[u8], flush: i32) -> (i32, usize) {
        // SAFETY: the stream is initialized, its buffers are set.
        self.call(input, |libz, strm| unsafe { (libz.deflate)(strm, flush) })
    }

    fn copy(&mut self) {
        let mut copy = empty();
        // SAFETY: an initialized stream and one that is not.
        unsafe {
            assert_eq!((self.libz.deflateCopy)(&mut *copy, &mut *self.strm), Z_OK);
            let code = (self.libz.deflateEnd)(&mut *self.strm);
            assert!(code == Z_OK || code == Z_DATA_ERROR);
        }
        self.strm = copy;
    }

    fn restart(&mut self) {
        // SAFETY: the stream is initialized.
        assert_eq!(unsafe { (self.libz.deflateReset)(&mut *self.strm) }, Z_OK);
        self.packed.clear();
        self.dictionary.clear();
        self.counted = 0;
        assert_eq!((self.strm.total_in, self.strm.total_out), (0, 0));
    }

    /// Checks a whole message.
    fn check(&self, message: &[u8], inflates: &[Libz]) {
        // zlib counts what it read of a dictionary.
        assert_eq!(self.strm.total_in as usize, message.len() + self.counted);
        assert_eq!(self.strm.total_out as usize, self.packed.len());
        for libz in inflates {
            for (step, room, flush) in [(usize::MAX, message.len() + 1, Z_FINISH), (1000, 3000, Z_SYNC_FLUSH)]
            {
                let (code, out, read) =
                    unpack(libz, self.bits, &self.packed, &self.dictionary, step, room, flush);
                assert_eq!((code, read), (Z_STREAM_END, self.packed.len()));
                assert!(out == message, "another message came out");
            }
        }
    }
}

fn bits() -> impl Strategy<Value = i32> {
    prop_oneof![2 => Just(15), 1 => Just(31), 1 => Just(-15), 1 => 9..16i32, 1 => -15..-8i32, 1 => 25..32i32]
}

#[test]
fn flushes_one_after_another_are_refused_as_zlib_does() {
    let Some(theirs) = system() else { return };
    for (first, second, third) in (0..216).map(|case| (case / 36, case / 6 % 6, case % 6)) {
        for bytes in [0, 100] {
            let input = sample(bytes, 1);
            let codes = [ours(), theirs].map(|libz| {
                let mut run = Run::new(libz, -1, 15, 8, 0);
                [run.deflate(&input, first), run.deflate(&[], second), run.deflate(&[], third)]
            });
            assert_eq!(codes[0], codes[1], "{first}, {second}, {third} after {bytes} bytes");
        }
    }
}

#[test]
fn a_dictionary_inside_a_block_is_refused_and_loses_nothing() {
    // zlib takes it at level 0 and with Z_HUFFMAN_ONLY, and may lose the bytes before it.
    let inflates: Vec<Libz> = [Some(ours()), system()].into_iter().flatten().collect();
    for (level, strategy, is_flushed) in (0..20).map(|case| (case % 2 * 6, case / 2 % 5, case >= 10)) {
        let mut run = Run::new(ours(), level, -15, 8, strategy);
        let message = sample(3000, 2);
        if is_flushed {
            assert_eq!(run.deflate(&message[..1000], Z_SYNC_FLUSH), (Z_OK, 1000));
        }
        let from = run.strm.total_in as usize;
        assert_eq!(run.deflate(&message[from..2000], 0), (Z_OK, 2000 - from));
        let dictionary = sample(500, 3);
        // SAFETY: the stream is initialized, pointer and length are those of the dictionary.
        let code = unsafe { (run.libz.deflateSetDictionary)(&mut *run.strm, dictionary.as_ptr(), 500) };
        assert_eq!(code, Z_STREAM_ERROR, "level {level}, strategy {strategy}, flushed before: {is_flushed}");
        assert_eq!(run.deflate(&message[2000..], Z_FINISH), (Z_STREAM_END, 1000));
        run.check(&message, &inflates);
        // SAFETY: the stream is initialized, and ended once.
        unsafe { (run.libz.deflateEnd)(&mut *run.strm) };
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn codes_and_messages_are_the_same(
        level in -1..10i32, bits in bits(), memory in 1..10i32,
        strategy in prop_oneof![4 => Just(0), 1 => 0..5i32],
        steps in prop::collection::vec(step(), 1..14), seed: u64,
    ) {
        let Some(theirs) = system() else { return Ok(()) };
        let libs = [ours(), theirs];
        let mut runs = libs.map(|libz| Run::new(libz, level, bits, memory, strategy));
        let (mut message, mut seed) = (Vec::new(), seed);
        let mut flushed = false;
        for step in steps.into_iter().chain([Step::Deflate { bytes: 100, flush: Z_FINISH }]) {
            seed = seed.wrapping_add(1);
            match step {
                Step::Deflate { bytes, flush } => {
                    let input = sample(bytes, seed);
                    let results = runs.each_mut().map(|run| run.deflate(&input, flush));
                    prop_assert_eq!(results[0], results[1]);
                    message.extend_from_slice(&input[..results[0].1]);
                    flushed = flush == Z_SYNC_FLUSH || flush == Z_FULL_FLUSH;
                    if flush == Z_FINISH {
                        prop_assert_eq!(results[0].0, Z_STREAM_END);
                        if bits > 0 {
                            prop_assert_eq!(runs[0].strm.adler, runs[1].strm.adler);
                        }
                        runs.iter().for_each(|run| run.check(&message, &libs));
                        // SAFETY: the stream is initialized.
                        let again = runs.each_mut().map(|run| run.call(&[], |libz, strm| unsafe { (libz.deflate)(strm, Z_FINISH) }));
                        prop_assert_eq!(again, [(Z_STREAM_END, 0); 2]);
                        let again = runs.each_mut().map(|run| run.deflate(b"x", Z_FINISH));
                        prop_assert_eq!(again[0], again[1]);
                        runs.iter_mut().for_each(Run::restart);
                        message.clear();
                        flushed = false;
                    }
                }
                Step::Params { level, strategy } => {
                    let call = |run: &mut Run| {
                        // SAFETY: the stream is initialized, its buffers are set.
                        run.call(&[], |libz, strm| unsafe { (libz.deflateParams)(strm, level, strategy) })
                    };
                    let results = runs.each_mut().map(call);
                    prop_assert_eq!(results[0], results[1]);
                    flushed = false;
                }
                Step::Copy => runs.iter_mut().for_each(Run::copy),
                Step::Reset => {
                    runs.iter_mut().for_each(Run::restart);
                    message.clear();
                    flushed = false;
                }
                Step::Tune => {
                    // SAFETY: the stream is initialized.
                    let codes = runs.each_mut().map(|run| unsafe { (run.libz.deflateTune)(&mut *run.strm, 4, 4, 16, 16) });
                    prop_assert_eq!(codes, [Z_OK; 2]);
                }
                Step::Pad => {
                    if flushed {
                        // SAFETY: the stream is initialized.
                        let codes = runs.each_mut().map(|run| unsafe { (run.libz.deflatePrime)(&mut *run.strm, 10, 2) });
                        prop_assert_eq!(codes, [Z_OK; 2]);
                        let mut pending = [(0, 0); 2];
                        for (run, (bytes, bits)) in runs.iter_mut().zip(&mut pending) {
                            // SAFETY: the stream is initialized.
                            unsafe { (run.libz.deflatePending)(&mut *run.strm, bytes, bits) };
                        }
                        prop_assert_eq!(pending[0].0 * 8 + pending[0].1 as u32, pending[1].0 * 8 + pending[1].1 as u32);
                    }
                }
                Step::Dictionary { bytes } => {
                    let dictionary = sample(bytes, seed);
                    let fresh = runs[0].strm.total_in == 0 && runs[0].packed.is_empty() && runs[0].dictionary.is_empty();
                    if fresh {
                        let call = |run: &mut Run| {
                            // SAFETY: the stream is initialized, pointer and length are those of the dictionary.
                            let code = unsafe { (run.libz.deflateSetDictionary)(&mut *run.strm, dictionary.as_ptr(), bytes as u32) };
                            if code == Z_OK {
                                run.dictionary = dictionary.clone();
                                run.counted = run.strm.total_in as usize;
                            }
                            code
                        };
                        let codes = runs.each_mut().map(call);
                        prop_assert_eq!(codes[0], codes[1]);
                        prop_assert_eq!(runs[0].counted, runs[1].counted);
                    }
                }
                Step::Bound => {
                    // SAFETY: the stream is initialized.
                    let bounds = runs.each_mut().map(|run| unsafe { (run.libz.deflateBound)(&mut *run.strm, 1000) });
                    prop_assert!(bounds[0] >= 1000);
                }
            }
        }
        for run in &mut runs {
            // SAFETY: the stream is initialized, and ended once.
            unsafe { (run.libz.deflateEnd)(&mut *run.strm) };
            prop_assert!(run.strm.state.is_null());
        }
    }

    #[test]
    fn output_in_small_pieces_is_the_same_output(
        level in 0..10i32, bits in bits(), bytes in prop_oneof![0usize..5000, 0usize..400_000],
        room in prop_oneof![1usize..20, 1usize..5000], step in 1usize..200_000, seed: u64,
    ) {
        let libz = ours();
        let message = sample(bytes, seed);
        let mut whole = Run::new(libz, level, bits, 8, 0);
        prop_assert_eq!(whole.deflate(&message, Z_FINISH), (Z_STREAM_END, bytes));
        whole.check(&message, &[libz]);

        let mut strm = empty();
        prop_assert_eq!(deflate_init(&libz, &mut strm, level, bits, 8, 0), Z_OK);
        let (mut packed, mut buffer, mut given) = (Vec::new(), vec![0; room], 0);
        loop {
            if strm.avail_in == 0 {
                let next = (bytes - given).min(step);
                (strm.next_in, strm.avail_in) = (message[given..].as_ptr(), next as u32);
                given += next;
            }
            (strm.next_out, strm.avail_out) = (buffer.as_mut_ptr(), room as u32);
            let flush = if given == bytes { Z_FINISH } else { 0 };
            // SAFETY: the stream is initialized, its buffers are set.
            let code = unsafe { (libz.deflate)(&mut *strm, flush) };
            packed.extend_from_slice(&buffer[..room - strm.avail_out as usize]);
            if code == Z_STREAM_END {
                break;
            }
            prop_assert_eq!(code, Z_OK);
            prop_assert!(strm.avail_out == 0 || flush == 0);
        }
        // SAFETY: the stream is initialized.
        prop_assert_eq!(unsafe { (libz.deflateEnd)(&mut *strm) }, Z_OK);
        if (1..7).contains(&level) {
            prop_assert!(packed == whole.packed, "depends on the pieces");
        }
        let (code, out, _) = unpack(&libz, bits, &packed, &[], usize::MAX, bytes + 1, Z_FINISH);
        prop_assert_eq!(code, Z_STREAM_END);
        prop_assert!(out == message);
    }
}
