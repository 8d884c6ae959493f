// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pools in the simulator, for crash tests of programs that use a pool.
//!
//! - **Flow** [`create`] on a [`Memory`], or [`open`] one that a crash left ─▶ a [`Pool`] like any other. Reopening is
//!   recovery, so a check opens the pool and looks at it
//! - **Order** creation ends with a sync, as that of a file does before it gets its name; until then there is no pool.
//!   The pool's identity is the same every time, so that a run can be repeated
//! - **Not here** which images are tried: [`explore`](super::explore).
//!
//! ```
//! use memlift_persist::sim::{Config, Device, Mode, explore, pool};
//! use memlift_persist::{Error, Options, View};
//!
//! let options = Options {
//!     heap_bytes: 0, // the least
//!     max_bytes: 1 << 20,
//!     lanes: 2,
//!     lane_bytes: 4096,
//!     ..Options::default()
//! };
//! let config = Config::new(Device::new("counter", Mode::Lines, 0)).exhaustive(16).samples(4);
//! let report = explore(
//!     &config,
//!     |world, acks| {
//!         let pool = pool::create(&world.memory(0), &options).expect("created");
//!         world.settle();
//!         for step in 1..=2 {
//!             acks.begin(step);
//!             pool.tx(|t| {
//!                 let root = t.root_or(|_| Ok(0u64))?;
//!                 *t.get_mut(root)? += 1;
//!                 Ok::<_, Error>(())
//!             })
//!             .expect("committed");
//!             acks.done(step);
//!         }
//!     },
//!     |world, acked, in_flight| {
//!         let pool = pool::open(&world.memory(0), &options).map_err(|error| error.to_string())?;
//!         let found = pool
//!             .read(|r| match r.root::<u64>()? {
//!                 Some(root) => r.get(root).copied(),
//!                 None => Ok(0),
//!             })
//!             .map_err(|error| error.to_string())?;
//!         let (least, most) = (acked.len() as u64, (acked.len() + in_flight.len()) as u64);
//!         if (least..=most).contains(&found) { Ok(()) } else { Err(format!("{found} counted")) }
//!     },
//! );
//! report.assert_consistent();
//! ```
use super::Mode;
use super::memory::Memory;
use crate::error::Result;
use crate::interleave;
use crate::layout::{HEADER_BYTES, Header};
use crate::medium::{Geometry, Medium, Simulated, Striped};
use crate::open;
use crate::options::Options;
use crate::pool::Pool;
use crate::recover;

/// The identity of every simulated pool.
const UUID: [u8; 16] = *b"simulated pool\0\0";

/// Creates a pool in an empty device and opens it. The device gets the size that the options ask for;
/// [`Options::domain`] is ignored: the device's [`Mode`](super::Mode) says it.
///
/// # Errors
/// As [`Pool::create`].
#[track_caller]
pub fn create(memory: &Memory, options: &Options) -> Result<Pool> {
    let header = open::new_header(options, memory.mode() == Mode::File, UUID)?;
    memory.set_len(header.file_bytes());
    let medium = Medium::Simulated(Simulated::new(memory.clone()));
    open::format(&medium, &header)?;
    memory
        .fdatasync()
        .map_err(|error| crate::error::Error::Stopped { reason: format!("fdatasync: {error}") })?;
    open(memory, options)
}

/// Opens the pool that a device holds, and recovers it. Nobody else may have it open: what is not durable is visible,
/// as a file's is.
///
/// # Errors
/// As [`Pool::open`].
pub fn open(memory: &Memory, options: &Options) -> Result<Pool> {
    let medium = Medium::Simulated(Simulated::new(memory.clone()));
    open::open_medium(medium, options).map(Pool::from_parts)
}

/// Creates a pool that is interleaved over several empty devices, the log in the first, and opens it. See [`create`].
///
/// # Errors
/// As [`Pool::create_interleaved`].
#[track_caller]
pub fn create_interleaved(memories: &[Memory], options: &Options) -> Result<Pool> {
    let header = interleave::new_header(options, memories.len(), memories[0].mode() == Mode::File, UUID)?;
    let geometry = Geometry::of(&header)?;
    for (at, memory) in memories.iter().enumerate() {
        memory.set_len(geometry.device_bytes(at as u64, header.file_bytes()));
    }
    open::format(&striped(memories, &header, options)?, &header)?;
    for memory in memories {
        memory
            .fdatasync()
            .map_err(|error| crate::error::Error::Stopped { reason: format!("fdatasync: {error}") })?;
    }
    open_interleaved(memories, options)
}

/// Opens the pool that these devices hold, in their order, and recovers it. See [`open`].
///
/// # Errors
/// As [`Pool::open_interleaved`].
pub fn open_interleaved(memories: &[Memory], options: &Options) -> Result<Pool> {
    let page = |turn: u64| {
        let mut page = vec![0; HEADER_BYTES as usize];
        memories[0].pread(turn * HEADER_BYTES, &mut page);
        Header::decode(&page)
    };
    let header = recover::newer(page(0), page(1))?;
    open::open_medium(striped(memories, &header, options)?, options).map(Pool::from_parts)
}

fn striped(memories: &[Memory], header: &Header, options: &Options) -> Result<Medium> {
    let devices = memories.iter().map(|memory| Medium::Simulated(Simulated::new(memory.clone()))).collect();
    let geometry = Geometry::of(header)?;
    Ok(Medium::Striped(Striped::new(devices, geometry, header.file_bytes(), options.sync_every_device)))
}

/// Lets `work` happen right before the `nth` fence or sync (from 1) that the pool issues from now on: what another thread
/// gets done while this one has written its record and waits. It runs on this very thread (say
/// [`as_thread`](super::as_thread) in it) and must not want what the interrupted call holds: its sections, and the log
/// when that is full.
pub fn interleave(pool: &Pool, nth: u64, work: impl FnOnce() + Send + 'static) {
    if let Medium::Simulated(simulated) = &pool.store().medium {
        simulated.interleave(nth, Box::new(work));
    }
}

/// Stores what is committed to its place as a snapshot for readers does: the stores need not be durable, and the log stays.
///
/// # Errors
/// As [`Pool::sync`].
pub fn place(pool: &Pool) -> Result<()> {
    let store = pool.store();
    store.sync()?;
    store.place_all()
}
