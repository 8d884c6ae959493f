// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pool that counts until its machine is switched off, and what is there afterwards.
//!
//! - **Usage** power count POOL    opens or creates the pool, says what it guarantees, and a line for each acknowledged transaction
//!   power look POOL     opens it, recovers, and says what it holds
//! - **Not here** switching the machine off: `tools/vm-test`

use std::io::Write;

use memlift_persist::{Options, Persist, Pool, Result, View};

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Counter {
    value: u64,
    twice: u64,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let (Some(verb), Some(path)) = (arguments.get(1), arguments.get(2)) else {
        eprintln!("usage: power count POOL | power look POOL");
        std::process::exit(2);
    };
    let options = Options { heap_bytes: 16 << 20, max_bytes: 64 << 20, ..Options::default() };
    let pool =
        if verb == "count" { Pool::open_or_create(path, &options)? } else { Pool::open(path, &options)? };
    let recovered = pool.recovered();
    println!("guarantee: {}", pool.guarantee());
    println!(
        "recovered: {} transactions from the log; closed before: {}",
        recovered.transactions, recovered.clean
    );
    if verb != "count" {
        let (value, twice) = pool.read(|r| match r.root::<Counter>()? {
            Some(root) => r.get(root).map(|counter| (counter.value, counter.twice)),
            None => Ok((0, 0)),
        })?;
        println!("found: {value} whole: {}", twice == value * 2);
        return pool.close();
    }
    loop {
        let value = pool.tx(|t| {
            let root = t.root_or(|_| Ok(Counter { value: 0, twice: 0 }))?;
            let counter = t.get_mut(root)?;
            counter.value += 1;
            counter.twice = counter.value * 2;
            Ok::<_, memlift_persist::Error>(counter.value)
        })?;
        if value.is_multiple_of(100) {
            println!("acknowledged: {value}");
            std::io::stdout().flush().expect("a console");
        }
    }
}
