// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measurements as a phasor measurement unit of a distribution grid sends them: 120 a second, 12 channels. Made up, from a seed;
//! or read from CSV.
//!
//! - **Flow** [`Channel`]: an iterator of values, without end · [`read`]: what a file has, as keys and values
//! - **Layout** channels 0–2 voltages and 3–5 currents of the three phases, 6–8 and 9–11 their angles; a value is in millionths of
//!   its unit. A key is channel · 2⁴⁰ + number of the sample
//! - **Source** the rate and the channels are those of the μPMU of BTrDB's data (Andersen and Culler, FAST 2016); the shape is ours: a
//!   slow sinusoid for the load, an Ornstein-Uhlenbeck process for what varies, now and then a step for what is switched

use std::io::BufRead;

use memlift_traverse::structures::bulk;

use crate::BenchError;
use crate::traverse::ycsb::Random;

/// Samples of a channel in a second.
pub const HERTZ: u64 = 120;
/// Number of channels of a unit.
pub const CHANNELS: u64 = 12;
/// Where a key's channel starts.
const CHANNEL_SHIFT: u32 = 40;
/// Factor from a unit to millionths.
const SCALE: f64 = 1e6;
/// Seconds of one turn of the slow sinusoid.
const TURN_S: f64 = 600.0;
/// Share of the variation that is left after a second.
const KEPT: f64 = 0.4;
/// One step in so many samples.
const STEP_EVERY: u64 = 120 * 60;

/// The key of a sample.
pub fn key(channel: u64, sample: u64) -> u64 {
    channel << CHANNEL_SHIFT | sample
}

/// Values of a channel in the order of time.
#[derive(Clone, Debug)]
pub struct Channel {
    random: Random,
    level: f64,
    /// Cosine and sine of the sinusoid's phase, and of its turn per sample.
    phase: (f64, f64),
    turn: (f64, f64),
    swing: f64,
    varies: f64,
    kept: f64,
    noise: f64,
}

impl Channel {
    /// The same values for the same seed.
    pub fn new(channel: u64, seed: u64) -> Channel {
        // Level, amplitude of the sinusoid, deviation of what varies.
        let (level, swing, deviation) = match channel / 3 {
            0 => (7200.0, 40.0, 3.0),
            1 => (120.0, 25.0, 4.0),
            2 => (120.0 * (channel % 3) as f64, 2.0, 0.05),
            _ => (120.0 * (channel % 3) as f64 - 25.0, 6.0, 0.4),
        };
        let begin = channel as f64;
        let step = std::f64::consts::TAU / (TURN_S * HERTZ as f64);
        let kept = KEPT.powf(1.0 / HERTZ as f64);
        Channel {
            random: Random(seed ^ channel.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            level,
            phase: (begin.cos(), begin.sin()),
            turn: (step.cos(), step.sin()),
            swing,
            varies: 0.0,
            kept,
            noise: deviation * (1.0 - kept * kept).sqrt(),
        }
    }

    /// About normal, deviation 1: four uniform numbers added.
    fn normal(&mut self) -> f64 {
        let bits = self.random.bits();
        let sum: u64 = (0..4).map(|lane| bits >> (lane * 16) & 0xffff).sum();
        (sum as f64 / 65536.0 - 2.0) * 3.0_f64.sqrt()
    }
}

impl Iterator for Channel {
    type Item = i64;

    fn next(&mut self) -> Option<i64> {
        let (cosine, sine) = self.phase;
        self.phase = (cosine * self.turn.0 - sine * self.turn.1, sine * self.turn.0 + cosine * self.turn.1);
        self.varies = self.varies * self.kept + self.noise * self.normal();
        if self.random.below(STEP_EVERY) == 0 {
            self.level += self.swing * 0.2 * self.normal();
        }
        Some(((self.level + self.swing * sine + self.varies) * SCALE).round() as i64)
    }
}

/// Reads one channel: the sample's number, ascending, in the first column, the value in column `channel + 1`.
///
/// # Errors
/// The line that has no numbers there.
pub fn read(reader: impl BufRead, channel: u64) -> impl Iterator<Item = Result<(u64, i64), BenchError>> {
    bulk::csv(reader, 0, channel as usize + 1, bulk::Numbers::Scaled(SCALE)).map(|pair| {
        let (sample, value) = pair.map_err(super::failed)?;
        Ok((sample, i64::from_le_bytes(value)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_values_and_they_move_as_a_grid_does() {
        for channel in 0..CHANNELS {
            let values: Vec<i64> = Channel::new(channel, 5).take(120 * 1200).collect();
            assert_eq!(values[..1000], Channel::new(channel, 5).take(1000).collect::<Vec<_>>());
            assert_ne!(values[..1000], Channel::new(channel, 6).take(1000).collect::<Vec<_>>());
            let mean = values.iter().sum::<i64>() as f64 / values.len() as f64 / SCALE;
            let start = Channel::new(channel, 5);
            assert!((mean - start.level).abs() < start.swing * 2.0 + 0.5, "{channel}: {mean}");
            // Neighbours are close, the whole is wide: a slow process, not white noise.
            let apart = |step: usize| {
                let sum: f64 =
                    values.windows(step + 1).map(|pair| ((pair[step] - pair[0]) as f64 / SCALE).abs()).sum();
                sum / (values.len() - step) as f64
            };
            assert!(apart(1) * 3.0 < apart(120 * 150), "{channel}: {} {}", apart(1), apart(120 * 150));
        }
    }

    #[test]
    fn a_file_is_read_back_as_it_was_written() {
        let channels: Vec<Vec<i64>> =
            (0..CHANNELS).map(|channel| Channel::new(channel, 1).take(50).collect()).collect();
        let mut text = "sample,L1,L2,L3,C1,C2,C3,a,b,c,d,e,f\n".to_owned();
        for sample in 0..50 {
            let fields: Vec<String> = channels
                .iter()
                .map(|values| format!("{}.{:06}", values[sample] / 1_000_000, values[sample] % 1_000_000))
                .collect();
            text += &format!("{},{}\n", sample + 7, fields.join(","));
        }
        // Without a sign in front of the fraction only what is positive reads so.
        for (channel, values) in
            channels.iter().enumerate().filter(|(_, values)| values.iter().all(|&v| v > 0))
        {
            let read: Vec<(u64, i64)> =
                read(text.as_bytes(), channel as u64).collect::<Result<_, _>>().expect("numbers");
            let wanted: Vec<(u64, i64)> =
                values.iter().enumerate().map(|(sample, &value)| (sample as u64 + 7, value)).collect();
            assert_eq!(read, wanted);
        }
        assert!(read("1,2\nx,3\n".as_bytes(), 0).any(|line| line.is_err()));
    }
}
