// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures the cost of a transaction when the committing thread applies the log, and when a thread of the pool does: the same
//! transactions, in turns, until the log has wrapped many times. `cargo run --release --example applier [FOLDER]`.

use std::time::{Duration, Instant};

use memlift_persist::{Domain, Error, Options, PPtr, Persist, Pool};

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Block {
    words: [u64; 64],
}

const BLOCKS: u64 = 4096;
const ROUNDS: usize = 9;

/// Nanoseconds of one transaction of `ranges` ranges of 64 bytes, and of the process's processor time.
fn measure(pool: &Pool, blocks: &[PPtr<Block>], ranges: u64, count: u64) -> Result<(f64, f64), Error> {
    let (start, cpu) = (Instant::now(), processor());
    for at in 0..count {
        pool.tx(|t| {
            for range in 0..ranges {
                let block = blocks[((at * 31 + range * 977) % BLOCKS) as usize];
                let part: &mut [u64; 8] = t.part_mut(block, (range % 8 * 64) as usize)?;
                *part = [at; 8];
            }
            Ok::<_, Error>(())
        })?;
    }
    pool.apply()?;
    let each = |time: Duration| time.as_nanos() as f64 / count as f64;
    Ok((each(start.elapsed()), each(processor() - cpu)))
}

/// Processor time of the process.
fn processor() -> Duration {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let own: u64 = text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let all = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(all.sum::<u64>().max(own))
}

fn main() -> Result<(), Error> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "/dev/shm".to_owned());
    for (ranges, lane_bytes) in [(1, 64 << 10), (4, 64 << 10), (4, 1 << 20), (16, 1 << 20)] {
        let mut pools = Vec::new();
        for apply_behind in [false, true] {
            let path = format!("{folder}/applier-{}-{apply_behind}.pool", std::process::id());
            let options = Options {
                domain: Domain::Lines,
                lane_bytes,
                apply_behind,
                prefault: true,
                ..Options::default()
            };
            let pool = Pool::create(&path, &options)?;
            let _ = std::fs::remove_file(&path); // open until the end
            let blocks = (0..BLOCKS).map(|_| pool.tx(|t| t.alloc(Block { words: [0; 64] })));
            let blocks = blocks.collect::<Result<Vec<_>, Error>>()?;
            pools.push((pool, blocks));
        }
        let count = (lane_bytes * 10 / (32 + ranges * 72)).max(50_000);
        let mut ran: [Vec<(f64, f64)>; 2] = Default::default();
        for _ in 0..ROUNDS {
            for (at, (pool, blocks)) in pools.iter().enumerate() {
                ran[at].push(measure(pool, blocks, ranges, count)?);
            }
        }
        let mut text = format!("{ranges:2} x 64 bytes, lane {:4} KiB:", lane_bytes >> 10);
        for (at, name) in ["own thread", "pool thread"].into_iter().enumerate() {
            let mut wall: Vec<f64> = ran[at].iter().map(|one| one.0).collect();
            let mut cpu: Vec<f64> = ran[at].iter().map(|one| one.1).collect();
            wall.sort_by(f64::total_cmp);
            cpu.sort_by(f64::total_cmp);
            text += &format!("  {name} {:5.0} ns ({:5.0} of processors)", wall[ROUNDS / 2], cpu[ROUNDS / 2]);
        }
        println!("{text}");
    }
    Ok(())
}
