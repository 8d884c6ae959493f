// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Time series: sum, average, least and greatest of a channel over a window of 1 to 8 seconds, as a dashboard asks for them.
//!
//! - **Flow** [`build`]: an ordered map of all samples, in the order of time ─▶ windows at random ─▶ one walk each, which brings four
//!   numbers back
//! - **Data** made up ([`super::pmu`]), or `MEMLIFT_BENCH_SERIES=FILE.csv`: the sample's number, ascending, then up to 12 channels
//! - **Check** sums over the aggregates; the tests compare with the samples themselves

use std::fs::File;
use std::io::BufReader;

use memlift_traverse::structures::bulk;
use memlift_traverse::structures::ordered::Handle;
use memlift_traverse::structures::placement::{Order, Placement, SLAB_2M};
use memlift_traverse::structures::{Aggregate, Walk};

use super::nodes::{Nodes, failed};
use super::pmu::{self, CHANNELS, Channel, HERTZ};
use super::{Of, Rival, Sides, compare, machine_text, timed};
use crate::definition::Definition;
use crate::traverse::Stop;
use crate::traverse::ycsb::Random;
use crate::{BenchError, Row};

/// Bytes that a sample takes in a full leaf, with its share of the levels above.
pub const SAMPLE_BYTES: u64 = 20;
/// Names a file with samples.
const FILE: &str = "MEMLIFT_BENCH_SERIES";
/// Seconds of made-up data.
const SECONDS: u64 = 7200;
const SECONDS_QUICK: u64 = 60;

/// Series on nodes.
#[derive(Clone, Debug)]
pub struct Series {
    handle: Handle,
    /// Per channel: number of its first sample, and the number after its last one.
    spans: Vec<(u64, u64)>,
    /// Where the data is from.
    pub about: String,
}

/// Makes up so many seconds of all channels and puts them where `placement` says.
pub fn build(nodes: &Nodes, seconds: u64, placement: &mut Placement) -> Result<Series, BenchError> {
    let samples = seconds * HERTZ;
    let pairs = (0..CHANNELS).flat_map(|channel| {
        let values = Channel::new(channel, 1);
        (0..samples)
            .zip(values)
            .map(move |(sample, value)| Ok((pmu::key(channel, sample), value.to_le_bytes())))
    });
    let handle = bulk::ordered(pairs, 8, placement, &mut nodes.sink(), |_| {}).map_err(failed)?;
    let about = format!("{CHANNELS} channels of {seconds} s at {HERTZ} Hz, made up");
    Ok(Series { handle, spans: vec![(0, samples); CHANNELS as usize], about })
}

/// The samples of a file: per channel, with their numbers.
fn file(path: &str) -> Result<Vec<Vec<(u64, i64)>>, BenchError> {
    let open = || File::open(path).map(BufReader::new).map_err(BenchError::file(path));
    let columns = {
        let mut line = String::new();
        let mut reader = open()?;
        std::io::BufRead::read_line(&mut reader, &mut line).map_err(BenchError::file(path))?;
        line.split(',').count().saturating_sub(1)
    };
    let channels: Vec<Vec<(u64, i64)>> = (0..(columns as u64).min(CHANNELS))
        .map(|channel| pmu::read(open()?, channel).collect::<Result<_, _>>())
        .collect::<Result<_, _>>()?;
    if channels.iter().all(|samples| samples.len() < 2) {
        return Err(failed(format!("{path} has no channel with two samples: number first, then values")));
    }
    Ok(channels)
}

/// Puts the samples of a file where `placement` says.
fn build_file(
    nodes: &Nodes,
    channels: &[Vec<(u64, i64)>],
    path: &str,
    placement: &mut Placement,
) -> Result<Series, BenchError> {
    let first = channels.iter().flatten().map(|&(sample, _)| sample).min().unwrap_or(0);
    let pairs = channels.iter().enumerate().flat_map(|(channel, samples)| {
        samples
            .iter()
            .map(move |&(sample, value)| Ok((pmu::key(channel as u64, sample - first), value.to_le_bytes())))
    });
    let handle = bulk::ordered(pairs, 8, placement, &mut nodes.sink(), |_| {}).map_err(failed)?;
    let span = |samples: &Vec<(u64, i64)>| (0, samples.last().map_or(0, |&(sample, _)| sample - first + 1));
    let many: usize = channels.iter().map(Vec::len).sum();
    Ok(Series {
        handle,
        spans: channels.iter().map(span).collect(),
        about: format!("{many} samples from {path}"),
    })
}

impl Series {
    /// A window of so many samples, somewhere: channel, first sample, the walk.
    pub fn window(&self, random: &mut Random, samples: u64) -> (u64, u64, Walk) {
        let channel = random.below(self.spans.len() as u64);
        let (begin, end) = self.spans[channel as usize];
        let first = begin + random.below(end.saturating_sub(begin + samples).max(1));
        let keys = pmu::key(channel, first)..=pmu::key(channel, first + samples - 1);
        (channel, first, self.handle.aggregate_walk(keys))
    }
}

/// All four aggregates in one number.
fn sum_of(aggregate: Aggregate) -> u64 {
    let average = aggregate.average().map_or(0, f64::to_bits);
    let words = [aggregate.sum as u64, aggregate.count, aggregate.min as u64, aggregate.max as u64, average];
    words.into_iter().fold(0, |sum, word| (sum ^ word).rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Measures windows of so many seconds.
pub fn row(definition: &Definition, seconds: u64, quick: bool) -> Result<Row, Stop> {
    let rival = Rival::of(definition)?;
    let named = std::env::var(FILE).ok();
    let channels = named.as_deref().map(file).transpose()?;
    let samples = match &channels {
        Some(channels) => channels.iter().map(|samples| samples.len() as u64).sum(),
        None => (if quick { SECONDS_QUICK } else { SECONDS }) * HERTZ * CHANNELS,
    };
    let bytes = (samples * SAMPLE_BYTES).next_multiple_of(SLAB_2M) + SLAB_2M;
    let nodes = Nodes::start(1, bytes, rival.over())?;
    let mut placement = Placement::new(&nodes.ranges(), SLAB_2M, Order::Time);
    let series = match &channels {
        Some(channels) => build_file(&nodes, channels, named.as_deref().unwrap_or(""), &mut placement)?,
        None => build(&nodes, samples / HERTZ / CHANNELS, &mut placement)?,
    };
    let mut sides = Sides::connect(&nodes, rival, samples * SAMPLE_BYTES)?;
    let requests = match (quick, rival) {
        (true, _) => 32,
        (false, Rival::Rpc) => 8000 / seconds as usize,
        (false, Rival::Cache) => 160 / seconds as usize,
    };
    let mut row = compare(definition, Of::Time, quick, |side, seed| {
        let mut random = Random(seed);
        let walks: Vec<Walk> = (0..requests).map(|_| series.window(&mut random, seconds * HERTZ).2).collect();
        let (reader, _) = sides.reader(side);
        timed(requests, None, || {
            let mut checksum = 0_u64;
            reader.walk_all(&walks, |_, walked| {
                checksum = checksum.rotate_left(1) ^ sum_of(Handle::aggregated(&walked));
                Ok(())
            })?;
            Ok(checksum)
        })
    })?;
    row.qualifies = format!(
        "sum, average, least and greatest of {} samples; {}; {} MiB; {} under way; over {}; node's pages: {}; {}",
        seconds * HERTZ,
        series.about,
        (samples * SAMPLE_BYTES) >> 20,
        rival.depth(),
        nodes.over().text(),
        nodes.pages(),
        machine_text()
    );
    Ok(row)
}

#[cfg(test)]
mod tests {
    use memlift_traverse::client::Config;
    use memlift_traverse::structures::Heap;

    use super::super::native::Native;
    use super::super::nodes::{Over, client as client_of};
    use super::*;

    #[test]
    fn a_window_is_what_its_samples_say_at_the_node_and_at_the_rival() {
        let nodes = Nodes::start(1, 4 << 20, Over::Shm).expect("a node");
        let mut placement = Placement::new(&nodes.ranges(), SLAB_2M, Order::Time);
        let series = build(&nodes, 20, &mut placement).expect("room");
        let native = Native::start(nodes.memory(), Over::Shm).expect("a server");
        let mut clients = [nodes.client(Config::default()), client_of(&native.place, Config::default())]
            .map(|client| client.expect("a client"));
        let mut random = Random(3);
        for turn in 0..60 {
            let samples = [1, 7, 120, 960][turn % 4];
            let (channel, first, walk) = series.window(&mut random, samples);
            let values: Vec<i64> =
                Channel::new(channel, 1).skip(first as usize).take(samples as usize).collect();
            let wanted = Aggregate {
                count: samples,
                sum: values.iter().sum(),
                min: *values.iter().min().expect("some"),
                max: *values.iter().max().expect("some"),
            };
            for client in &mut clients {
                assert_eq!(Handle::aggregated(&client.walk(&walk).expect("an answer")), wanted);
            }
        }
    }

    #[test]
    fn a_file_of_samples_is_walked_like_made_up_ones() {
        let folder = std::env::temp_dir().join(format!("memlift-bench-series-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("temp dir");
        let path = folder.join("samples.csv");
        let mut text = "sample,volts,amperes\n".to_owned();
        for sample in 0..500 {
            text += &format!("{},{}.5,{}\n", sample + 1000, sample, sample * 2);
        }
        std::fs::write(&path, text).expect("temp file");
        let path = path.display().to_string();
        let channels = file(&path).expect("two channels");
        std::fs::remove_dir_all(&folder).expect("temp dir");
        assert_eq!(channels.iter().map(Vec::len).collect::<Vec<_>>(), [500, 500]);
        let nodes = Nodes::start(1, 4 << 20, Over::Shm).expect("a node");
        let mut placement = Placement::new(&nodes.ranges(), SLAB_2M, Order::Time);
        let series = build_file(&nodes, &channels, &path, &mut placement).expect("room");
        let mut client = nodes.client(Config::default()).expect("a client");
        let mut random = Random(9);
        for _ in 0..20 {
            let (channel, first, walk) = series.window(&mut random, 100);
            let found = Handle::aggregated(&client.walk(&walk).expect("an answer"));
            let value = |sample: u64| channels[channel as usize][sample as usize].1;
            assert_eq!((found.count, found.min, found.max), (100, value(first), value(first + 99)));
        }
    }
}
