// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two structures with a planted bug each, and the crash that brings it to light: `cargo run -p memlift-persist
//! --features sim --example crash_test`.
use memlift_persist::sim::{Acks, Config, Device, Mode, World, explore};

/// In memory: a value and, in the next line, a flag that says it is there. A fence between them is forgotten.
fn put(world: &World, acks: &Acks) {
    let memory = world.memory(0);
    acks.begin(1);
    memory.store(0, b"the value");
    memory.write_back(0, 9);
    memory.store(64, &[1]);
    memory.write_back(64, 1);
    memory.fence();
    acks.done(1);
}

fn get(world: &World, acked: &[u64], _in_flight: &[u64]) -> Result<(), String> {
    let (mut value, mut flag) = ([0; 9], [0]);
    world.memory(0).load(64, &mut flag);
    world.memory(0).load(0, &mut value);
    match (flag[0], &value) {
        (1, b"the value") => Ok(()),
        (0, _) if acked.is_empty() => Ok(()),
        _ => Err(format!("flag {} stands beside {:?}", flag[0], String::from_utf8_lossy(&value))),
    }
}

/// In a file: records of 5,000 bytes behind a count, in one go. The count may be there before the record is.
fn append(world: &World, acks: &Acks) {
    let file = world.memory(0);
    for record in 1..=2u8 {
        acks.begin(record.into());
        file.pwrite(8 + 5000 * (u64::from(record) - 1), &[record; 5000]);
        file.pwrite(0, &[record]);
        file.fdatasync().expect("no fault was asked for");
        acks.done(record.into());
    }
}

fn scan(world: &World, acked: &[u64], _in_flight: &[u64]) -> Result<(), String> {
    let (file, mut count) = (world.memory(0), [0]);
    file.pread(0, &mut count);
    for record in 1..=count[0] {
        let mut bytes = [0; 5000];
        let got = file.pread(8 + 5000 * (u64::from(record) - 1), &mut bytes);
        if got < 5000 || bytes != [record; 5000] {
            return Err(format!("record {record} of {} is torn", count[0]));
        }
    }
    if acked.len() > count[0].into() { Err("an acknowledged record is gone".to_owned()) } else { Ok(()) }
}

fn main() {
    println!("{}\n", explore(&Config::new(Device::new("record", Mode::Lines, 128)), put, get));
    println!("{}", explore(&Config::new(Device::new("log", Mode::File, 0)), append, scan));
}
