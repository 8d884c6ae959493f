// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The inner loop of inflate: decodes symbols while there is plenty of input and room.
//!
//! - **Flow** 56 bits are loaded; up to three entries of literals, or a length and a distance, are decoded. The entry of the next
//!   symbol is loaded before the match is copied. The loop ends at the end of the block, at a wrong code or distance, or if less than [`INPUT_BYTES`] or
//!   [`ROOM_BYTES`] are left; then [`decoder`](super::decoder) continues.
//! - **Order** a match is copied in units of up to 32 bytes, so up to [`BEHIND_BYTES`] bytes behind it are overwritten. Programs keep data
//!   there. So the loop runs in steps of [`STEP_BYTES`]: before a step, the bytes that it may overwrite are saved, and after it, those
//!   behind the last byte delivered are put back. With `EXACT` no byte behind is ever written: for an output that is the history at the
//!   same time (`inflateBack`), and for an output that overlaps the input.
//! - **Owner** the history is the bytes that this call delivered, and before them the window, a ring.

use super::tables::{
    END, EXCEPTION, LENGTH_MIN, LINK, LITERAL, WIDE_BITS, WIDE_EXCEPTION, WIDE_LITERALS, value,
};
use core::mem::MaybeUninit;
use core::ptr;

/// Input bytes that one turn may read: two loads of eight bytes, the second at most seven bytes after the first.
pub const INPUT_BYTES: usize = 16;
/// Most bytes behind a match that its copy overwrites.
const BEHIND_BYTES: usize = 32;
/// Bytes that one turn may write: six literals, or five and a match, and the bytes behind it.
pub const ROOM_BYTES: usize = 263 + BEHIND_BYTES;
/// Bytes of output after which a step ends.
const STEP_BYTES: usize = 2048;

/// Reason why the loop ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Input or room is short.
    Short,
    EndOfBlock,
    BadLiteral,
    BadDistance,
    TooFar,
}

/// The bytes that a match may refer to, besides those that this call has delivered.
#[derive(Clone, Copy)]
pub struct History {
    /// Address of the first byte that this call delivers.
    pub begin: *const u8,
    /// A ring of `size` bytes, of which `held` are valid; if it is full, the oldest is at `next`.
    pub window: *const u8,
    pub size: usize,
    pub held: usize,
    pub next: usize,
    /// Largest distance: the size of the window, if the window is the output itself.
    pub most: usize,
}

impl History {
    /// Returns true if a match begins before the oldest byte of the window. `delivered`: bytes since `begin`, fewer than the
    /// distance.
    #[inline(always)]
    pub fn lacks(&self, distance: usize, delivered: usize) -> bool {
        distance - delivered > self.held || distance > self.most
    }

    /// Returns the address of the bytes that begin `back` bytes before the end of the window, or null if `length` bytes and
    /// [`BEHIND_BYTES`] more do not follow each other there.
    #[inline(always)]
    fn behind(&self, back: usize, length: usize) -> *const u8 {
        let (at, end) = match back <= self.next {
            true => (self.next - back, self.next),
            false => (self.next + self.size - back, self.size),
        };
        if at + length <= end && at + length + BEHIND_BYTES <= self.size {
            self.window.wrapping_add(at)
        } else {
            ptr::null()
        }
    }
}

/// Input, output and unused bits of the loop.
pub struct Cursor {
    pub input: *const u8,
    pub input_end: *const u8,
    pub output: *mut u8,
    pub output_end: *mut u8,
    pub hold: u64,
    pub bits: u32,
}

/// The tables of a block: pointers to their entries and their index bits.
#[derive(Clone, Copy)]
pub struct Tables {
    /// The [wide table](super::tables::Wide) of a long block, or null.
    pub wide: *const u32,
    pub literals: *const u32,
    pub literal_bits: u32,
    pub distances: *const u32,
    pub distance_bits: u32,
}

/// Decodes symbols. `exact` says that no byte behind the last one delivered may be written.
///
/// # Safety
/// `cursor` has [`INPUT_BYTES`] to read and [`ROOM_BYTES`] to write, and at most 32 unused bits with zeros above them; the
/// tables were built by [`build`](super::tables::build); `history` describes memory that can be read. Unless `exact` is true,
/// the output overlaps neither the input nor the window.
pub unsafe fn run(cursor: &mut Cursor, tables: Tables, history: &History, exact: bool) -> Stop {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("bmi2") && std::arch::is_x86_feature_detected!("bmi1") {
        // SAFETY: the caller guarantees the conditions of `run`; the CPU was checked.
        return unsafe { run_bmi2(cursor, tables, history, exact) };
    }
    // SAFETY: the caller guarantees the conditions of `run`.
    unsafe { run_any(cursor, tables, history, exact) }
}

/// Does the same as [`run`], compiled for BMI1 and BMI2.
///
/// # Safety
/// The conditions of [`run`], and the CPU has BMI1 and BMI2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2")]
unsafe fn run_bmi2(cursor: &mut Cursor, tables: Tables, history: &History, exact: bool) -> Stop {
    // SAFETY: the caller guarantees the conditions of `run`.
    unsafe { run_any(cursor, tables, history, exact) }
}

/// Does the same as [`run`], for the instructions of its caller.
///
/// # Safety
/// The conditions of [`run`].
#[inline(always)]
unsafe fn run_any(cursor: &mut Cursor, tables: Tables, history: &History, exact: bool) -> Stop {
    // SAFETY: the caller guarantees the conditions of `run`.
    unsafe {
        if exact {
            turns::<true, false>(cursor, tables, history)
        } else if tables.wide.is_null() {
            steps::<false>(cursor, tables, history)
        } else {
            steps::<true>(cursor, tables, history)
        }
    }
}

/// Does the same as [`run`] in steps, and leaves the bytes behind the last one delivered as they were.
///
/// # Safety
/// The conditions of [`run`] for a call that is not exact.
#[inline(always)]
unsafe fn steps<const WIDE: bool>(cursor: &mut Cursor, tables: Tables, history: &History) -> Stop {
    let output_end = cursor.output_end;
    let mut saved = [MaybeUninit::<u8>::uninit(); STEP_BYTES + ROOM_BYTES];
    // SAFETY: the caller guarantees room for one turn.
    unsafe { touch(cursor.output) };
    loop {
        let start = cursor.output;
        // SAFETY: the step has `bytes` bytes of the room, and `saved` is as long. The loop writes at most `BEHIND_BYTES` bytes
        // behind its last byte, and never behind the end that it is given.
        unsafe {
            let bytes = saved.len().min(output_end as usize - start as usize);
            touch(start.add(bytes - 1));
            ptr::copy_nonoverlapping(start.cast(), saved.as_mut_ptr(), bytes);
            cursor.output_end = start.add(bytes);
            let stop = turns::<false, WIDE>(cursor, tables, history);
            let done = cursor.output as usize - start as usize;
            let behind = BEHIND_BYTES.min(bytes - done);
            ptr::copy_nonoverlapping(saved.as_ptr().add(done), cursor.output.cast(), behind);
            cursor.output_end = output_end;
            let short_of_input = (cursor.input_end as usize) < cursor.input as usize + INPUT_BYTES;
            let short_of_room = (output_end as usize) < cursor.output as usize + ROOM_BYTES;
            if stop != Stop::Short || short_of_input || short_of_room {
                return stop;
            }
        }
    }
}

/// Writes the byte at this address without changing it. A page of new memory that is read first is faulted in twice: for the
/// read, and for the first write.
///
/// # Safety
/// The byte can be read and written.
#[inline(always)]
unsafe fn touch(byte: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller guarantees the address.
    unsafe {
        core::arch::asm!("lock or byte ptr [{}], 0", in(reg) byte, options(nostack));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = byte;
}

/// Makes turns until a reason to stop. `WIDE` decodes by the wide table, which must be there.
///
/// # Safety
/// The conditions of [`run`]; unless `EXACT` is true, [`BEHIND_BYTES`] bytes behind the last one delivered are overwritten.
#[inline(always)]
unsafe fn turns<const EXACT: bool, const WIDE: bool>(
    cursor: &mut Cursor,
    tables: Tables,
    history: &History,
) -> Stop {
    let literal_mask = (1u64 << tables.literal_bits) - 1;
    let distance_mask = (1u64 << tables.distance_bits) - 1;
    let begin = cursor.input;
    let (mut input, mut output) = (cursor.input, cursor.output);
    let (mut hold, mut bits) = (cursor.hold, cursor.bits);
    let input_stop = cursor.input_end.wrapping_sub(INPUT_BYTES);
    let output_stop = cursor.output_end.wrapping_sub(ROOM_BYTES);
    // SAFETY: for the whole loop: a turn begins with INPUT_BYTES and ROOM_BYTES left. It reads eight bytes at most seven bytes
    // behind its start, twice, and writes at most five literals and a match with the bytes behind it, or six literals. An index
    // has no more bits than its table; second tables are those that a link names. A copy's source was checked against the bytes
    // delivered and those in the window.
    let stop = unsafe {
        let mut entry: u32;
        macro_rules! refill {
            () => {
                hold |= u64::from_le(input.cast::<u64>().read_unaligned()) << (bits & 63);
                input = input.add(7 - (bits >> 3 & 7) as usize);
                bits |= 56;
            };
        }
        // Removes as many bits as the lowest six bits of the entry say. `bits` is subtracted from without a mask, which would take a
        // cycle: of `bits`, only the lowest six bits are valid.
        macro_rules! drop {
            ($entry:expr) => {{
                hold >>= $entry & 63;
                bits = bits.wrapping_sub($entry);
            }};
        }
        macro_rules! literal {
            ($entry:expr) => {{
                drop!($entry);
                output.write(($entry >> 16) as u8);
                output = output.add(1);
            }};
        }
        macro_rules! next_symbol {
            () => {
                if WIDE {
                    *tables.wide.add((hold & ((1 << WIDE_BITS) - 1)) as usize)
                } else {
                    *tables.literals.add((hold & literal_mask) as usize)
                }
            };
        }
        macro_rules! is_literal {
            () => {
                entry & (if WIDE { WIDE_LITERALS } else { LITERAL }) != 0
            };
        }
        // Writes the entry's literals, and loads the next entry.
        macro_rules! literals {
            () => {
                if WIDE {
                    output.cast::<u16>().write_unaligned(((entry >> 16) as u16).to_le());
                    drop!(entry);
                    output = output.add(1 + (entry >> 14 & 1) as usize);
                } else {
                    literal!(entry);
                }
                entry = next_symbol!();
            };
        }
        // Loads more bits; true if there is too little input or room for another turn.
        macro_rules! is_short {
            () => {{
                refill!();
                input > input_stop || output > output_stop
            }};
        }
        refill!();
        entry = next_symbol!();
        // Each turn begins with at least 28 bits, and the entry of its first symbol.
        'turns: loop {
            if is_literal!() {
                literals!();
                if is_literal!() {
                    literals!();
                    if is_literal!() {
                        literals!();
                        if is_short!() {
                            break Stop::Short;
                        }
                        continue 'turns;
                    }
                }
            }
            // At least 28 bits are left; a length with its extra bits takes 20.
            let length;
            if WIDE && entry & WIDE_EXCEPTION == 0 {
                // If there is no literal before the length, the match overwrites this byte.
                output.write((entry >> 16) as u8);
                output = output.add((entry >> 13 & 1) as usize);
                let extra = (hold & !(u64::MAX << (entry & 63))) >> (entry >> 6 & 63);
                length = (entry >> 24) as usize + LENGTH_MIN + extra as usize;
                drop!(entry);
            } else {
                if WIDE {
                    entry = *tables.literals.add((hold & literal_mask) as usize);
                }
                if entry & EXCEPTION != 0 {
                    if entry & LINK != 0 {
                        drop!(entry);
                        let index = hold & !(u64::MAX << (entry >> 8 & 31));
                        entry = *tables.literals.add((value(entry) as u64 + index) as usize);
                        if entry & LITERAL != 0 {
                            literal!(entry);
                            entry = next_symbol!();
                            if is_short!() {
                                break Stop::Short;
                            }
                            continue 'turns;
                        }
                    }
                    if entry & EXCEPTION != 0 {
                        drop!(entry);
                        break if entry & END != 0 { Stop::EndOfBlock } else { Stop::BadLiteral };
                    }
                }
                let extra = (hold & !(u64::MAX << (entry & 63))) >> (entry >> 8 & 63);
                length = (entry >> 16) as usize + extra as usize;
                drop!(entry);
            }
            // At least eight bits are left, as many as the index has.
            entry = *tables.distances.add((hold & distance_mask) as usize);
            refill!();
            if entry & EXCEPTION != 0 {
                if entry & LINK != 0 {
                    drop!(entry);
                    let index = hold & !(u64::MAX << (entry >> 8 & 31));
                    entry = *tables.distances.add((value(entry) as u64 + index) as usize);
                }
                if entry & EXCEPTION != 0 {
                    drop!(entry);
                    break Stop::BadDistance;
                }
            }
            let extra = (hold & !(u64::MAX << (entry & 63))) >> (entry >> 8 & 63);
            let distance = (entry >> 16) as usize + extra as usize;
            drop!(entry);
            // At least 28 bits are left, more than the longest code.
            entry = next_symbol!();
            refill!();
            let end = output.add(length);
            let source = output.cast_const().wrapping_sub(distance);
            // As signed numbers, so that a source before the address 0 is before the begin, too.
            if (source as isize) < history.begin as isize {
                let delivered = output as usize - history.begin as usize;
                if history.lacks(distance, delivered) {
                    break Stop::TooFar;
                }
                let source = history.behind(distance - delivered, length);
                if EXACT || source.is_null() {
                    copy_far(output, distance, length, history);
                } else {
                    copy_apart(output, source, end);
                }
            } else if EXACT {
                copy(output, distance, length);
            } else {
                copy_and_behind(output, source, distance, end);
            }
            output = end;
            if input > input_stop || output > output_stop {
                break Stop::Short;
            }
        }
    };
    // Gives whole bytes back to the input, so that the stream is where a decoder that reads byte by byte would be.
    bits &= 63;
    let back = (bits as usize >> 3).min(input as usize - begin as usize);
    cursor.input = input.wrapping_sub(back);
    cursor.output = output;
    cursor.bits = bits - 8 * back as u32;
    cursor.hold = hold & !(u64::MAX << cursor.bits);
    stop
}

/// Moves one integer.
///
/// # Safety
/// Its bytes can be read at the source and written at the target.
#[inline(always)]
unsafe fn one<T>(source: *const u8, target: *mut u8) {
    // SAFETY: the caller guarantees both addresses.
    unsafe { target.cast::<T>().write_unaligned(source.cast::<T>().read_unaligned()) }
}

/// Factors that repeat the lowest 1 to 7 bytes of an integer in its higher bytes.
const REPEAT: [u64; 8] = {
    let mut factors = [0; 8];
    let mut bytes = 1;
    while bytes < 8 {
        let mut at = 0;
        while at < 64 {
            factors[bytes] |= 1u64 << at;
            at += 8 * bytes;
        }
        bytes += 1;
    }
    factors
};

/// Copies the bytes from `output` to `end` from at least 16 bytes before them or from other memory, and overwrites up to [`BEHIND_BYTES`] bytes behind
/// them.
///
/// # Safety
/// `end` is 1 to 258 bytes behind `output`; [`BEHIND_BYTES`] more than these bytes can be read at `source` and written.
#[inline(always)]
unsafe fn copy_apart(mut output: *mut u8, mut source: *const u8, end: *mut u8) {
    // SAFETY: each integer begins within the match and ends at most `BEHIND_BYTES` behind it; 16 bytes are read after those before them
    // were written.
    unsafe {
        loop {
            one::<u128>(source, output);
            one::<u128>(source.add(16), output.add(16));
            output = output.add(32);
            source = source.add(32);
            if output >= end {
                return;
            }
        }
    }
}

/// Copies the bytes from `output` to `end` from `source`, which is `distance` bytes before `output`, and overwrites up to
/// [`BEHIND_BYTES`] bytes behind them.
///
/// # Safety
/// `end` is 1 to 258 bytes behind `output`; `distance` is at least 1, and that many bytes before `output` can be read; the bytes up to
/// `end` and [`BEHIND_BYTES`] more can be written.
#[inline(always)]
unsafe fn copy_and_behind(mut output: *mut u8, mut source: *const u8, distance: usize, end: *mut u8) {
    // SAFETY: each integer begins within the match and ends at most `BEHIND_BYTES` behind it. Its source ends at or before the
    // bytes written so far, because the distance is at least the size of the integer. If the distance is less than eight, the
    // bytes of the source behind `output` have any value and are not used.
    unsafe {
        if distance >= 16 {
            return copy_apart(output, source, end);
        }
        if distance >= 8 {
            while output < end {
                one::<u64>(source, output);
                output = output.add(8);
                source = source.add(8);
            }
            return;
        }
        let first = u64::from_le(source.cast::<u64>().read_unaligned()) & !(u64::MAX << (8 * distance));
        let pattern = first.wrapping_mul(REPEAT[distance]).to_le();
        if distance == 1 {
            let pattern = u128::from(pattern) << 64 | u128::from(pattern);
            while output < end {
                output.cast::<u128>().write_unaligned(pattern);
                output = output.add(16);
            }
            return;
        }
        let step = 8 / distance * distance;
        while output < end {
            output.cast::<u64>().write_unaligned(pattern);
            output = output.add(step);
        }
    }
}

/// Copies `length` bytes from `distance` bytes before `output`, and writes no byte behind them.
///
/// # Safety
/// `length` is 1 to 258; `distance` is at least 1, and that many bytes before `output` can be read; `length` bytes can be
/// written.
#[inline(always)]
pub unsafe fn copy(output: *mut u8, distance: usize, length: usize) {
    // SAFETY: each integer that is moved begins and ends within the match. Its source ends at or before the bytes written so far,
    // because the distance is at least the size of the integer.
    unsafe {
        let source = output.cast_const().sub(distance);
        if distance >= 16 {
            if length > 16 {
                let mut at = 0;
                while at + 16 < length {
                    one::<u128>(source.add(at), output.add(at));
                    at += 16;
                }
                one::<u128>(source.add(length - 16), output.add(length - 16));
                return;
            }
            if length >= 8 {
                one::<u64>(source, output);
                return one::<u64>(source.add(length - 8), output.add(length - 8));
            }
            return few(source, output, length);
        }
        if distance >= length {
            if length >= 8 {
                one::<u64>(source, output);
                return one::<u64>(source.add(length - 8), output.add(length - 8));
            }
            return few(source, output, length);
        }
        if distance == 1 {
            return ptr::write_bytes(output, *source, length);
        }
        // The first multiple of the distance that is at least eight, so that eight bytes can be moved at a time.
        let step = if distance >= 8 { distance } else { distance * 8usize.div_ceil(distance) };
        let mut at = 0;
        while at < (step - distance).min(length) {
            output.add(at).write(source.add(at).read());
            at += 1;
        }
        let source = output.cast_const().wrapping_sub(step);
        while at + 8 <= length {
            one::<u64>(source.wrapping_add(at), output.add(at));
            at += 8;
        }
        while at < length {
            output.add(at).write(source.wrapping_add(at).read());
            at += 1;
        }
    }
}

/// Copies up to seven bytes that do not overlap their target.
///
/// # Safety
/// `length` is 1 to 7; `length` bytes can be read and written.
#[inline(always)]
unsafe fn few(source: *const u8, output: *mut u8, length: usize) {
    // SAFETY: every integer begins and ends within the bytes.
    unsafe {
        if length >= 4 {
            let (first, last) = (
                source.cast::<u32>().read_unaligned(),
                source.add(length - 4).cast::<u32>().read_unaligned(),
            );
            output.cast::<u32>().write_unaligned(first);
            output.add(length - 4).cast::<u32>().write_unaligned(last);
        } else {
            let (first, middle, last) = (*source, *source.add(length / 2), *source.add(length - 1));
            output.write(first);
            output.add(length / 2).write(middle);
            output.add(length - 1).write(last);
        }
    }
}

/// Does the same as [`copy`] for a match that begins in the window.
///
/// # Safety
/// The conditions of [`copy`], except that `distance` exceeds the delivered bytes, by at most the bytes that the window holds.
#[cold]
#[inline(never)]
pub unsafe fn copy_far(mut output: *mut u8, distance: usize, mut length: usize, history: &History) {
    // SAFETY: the caller checked that the bytes taken from the window are in it. If the window is the output itself
    // (`inflateBack`), the source is ahead of the target, and `ptr::copy` reads before it writes.
    unsafe {
        let mut back = distance - (output as usize - history.begin as usize);
        if back > history.next {
            let (part, end) = (back - history.next, history.window.add(history.size));
            let take = part.min(length);
            ptr::copy(end.sub(part), output, take);
            output = output.add(take);
            length -= take;
            back -= take;
        }
        let take = back.min(length);
        if take != 0 {
            ptr::copy(history.window.add(history.next - back), output, take);
            output = output.add(take);
            length -= take;
        }
        if length != 0 {
            copy(output, distance, length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_exact() {
        for distance in 1..70usize {
            for length in 1..=258usize {
                let mut bytes: Vec<u8> = (0..400).map(|at| (at * 7 + at / 13) as u8).collect();
                let mut expected = bytes.clone();
                for at in 100..100 + length {
                    expected[at] = expected[at - distance];
                }
                // SAFETY: source and target are within the vector.
                unsafe { copy(bytes.as_mut_ptr().add(100), distance, length) };
                assert_eq!(bytes, expected, "distance {distance}, length {length}");
            }
        }
    }

    #[test]
    fn quick_copies_write_no_further_than_they_say() {
        for distance in 1..70usize {
            for length in 1..=258usize {
                let bytes: Vec<u8> = (0..500).map(|at| (at * 7 + at / 13) as u8).collect();
                let (mut expected, mut copied) = (bytes.clone(), bytes.clone());
                for at in 100..100 + length {
                    expected[at] = expected[at - distance];
                }
                // SAFETY: source and target are within the vector, with the bytes behind.
                unsafe {
                    let output = copied.as_mut_ptr().add(100);
                    copy_and_behind(output, output.sub(distance), distance, output.add(length));
                }
                assert_eq!(
                    copied[..100 + length],
                    expected[..100 + length],
                    "distance {distance}, length {length}"
                );
                let end = 100 + length + BEHIND_BYTES;
                assert_eq!(copied[end..], bytes[end..], "distance {distance}, length {length}");
            }
        }
    }

    #[test]
    fn bytes_of_the_window_are_found_where_they_follow_each_other() {
        let window: Vec<u8> = (0..200).collect();
        for next in [0, 1, 30, 100, 199] {
            let in_order: Vec<u8> = window[next..].iter().chain(&window[..next]).copied().collect();
            let (begin, window) = (ptr::null(), window.as_ptr());
            let history = History { begin, window, size: 200, held: 200, next, most: usize::MAX };
            let mut found = 0;
            for back in 1..=200 {
                for length in 1..=back {
                    let source = history.behind(back, length);
                    if source.is_null() {
                        continue;
                    }
                    found += 1;
                    let at = source as usize - window as usize;
                    assert!(at + length + BEHIND_BYTES <= 200);
                    // SAFETY: the bytes are within the vector.
                    let bytes = unsafe { core::slice::from_raw_parts(source, length) };
                    assert_eq!(bytes, &in_order[200 - back..200 - back + length]);
                }
            }
            assert!(found > 1000, "next {next}: {found}");
        }
    }

    #[test]
    fn far_copies_go_round_the_window() {
        let window: Vec<u8> = (0..64).collect();
        for next in [0, 1, 30, 63] {
            let in_order: Vec<u8> = window[next..].iter().chain(&window[..next]).copied().collect();
            for delivered in [0usize, 5, 40] {
                for distance in delivered + 1..=delivered + 64 {
                    for length in [3usize, 7, 8, 17, 64, 200] {
                        let mut all = in_order.clone();
                        all.extend((0..delivered).map(|at| 100 + at as u8));
                        for _ in 0..length {
                            all.push(all[all.len() - distance]);
                        }
                        let mut output = [0xeeu8; 300];
                        output[..delivered].copy_from_slice(&all[64..64 + delivered]);
                        let (begin, held) = (output.as_ptr(), 64);
                        let history = History {
                            begin,
                            window: window.as_ptr(),
                            size: 64,
                            held,
                            next,
                            most: usize::MAX,
                        };
                        // SAFETY: within the arrays.
                        unsafe { copy_far(output.as_mut_ptr().add(delivered), distance, length, &history) };
                        assert_eq!(output[..delivered + length], all[64..]);
                        assert!(output[delivered + length..].iter().all(|&byte| byte == 0xee));
                    }
                }
            }
        }
    }
}
