// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Readers in other processes, beside this one, which writes.
//!
//! - **Flow** a reader connects and shows the file's descriptor ─▶ a thread makes what is committed durable and stores it to its place ─▶ a snapshot's number
//!   and the table of old pages ─▶ from then on, what is stored to is copied first (`beside::old_pages`)
//! - **Rule** a snapshot has everything that was committed before it was asked for, and nothing later. It is stored to its place whole, so it has no log
//! - **Rule** a reader holds nobody up: it is asked for nothing, and a snapshot that is too old is taken back. Its number is free when its
//!   process closes the socket, by itself or by dying
//! - **Order** the thread ends before the pool gives up the file; it holds the store while it takes snapshots only
//! - **Not here** undo and shadow pools, and pools of several files. What a reader does: `beside`

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::beside::{
    ANSWER_BYTES, ASK_BYTES, Answer, OldPages, PAGE, SNAPSHOTS_MAX, Sizes, ask, name, receive, send, status,
};
use crate::error::{Error, Result};
use crate::fresh::file_error;
use crate::lock::lock;
use crate::options::{Mechanism, Options};

/// The table for a pool that readers may read beside this process; None: none may.
pub(crate) fn table(options: &Options, file_bytes: u64, path: &Path) -> Result<Option<Arc<OldPages>>> {
    if options.readers_bytes == 0 || options.read_only {
        return Ok(None);
    }
    let sizes = Sizes { pages: file_bytes.div_ceil(PAGE), room: options.readers_bytes.div_ceil(PAGE) };
    if !sizes.are_possible() {
        return Err(Error::Argument {
            what: format!("readers_bytes: {} (4096 to 15 TiB are possible)", options.readers_bytes),
        });
    }
    let made = OldPages::new(sizes)
        .map_err(|errno| file_error("make the table of readers of", path)(errno.into()))?;
    Ok(Some(Arc::new(made)))
}

/// Refuses pools that readers cannot read beside a writer.
pub(crate) fn possible(options: &Options, mechanism: Mechanism) -> Result<()> {
    let by_log = matches!(mechanism, Mechanism::Redo | Mechanism::Checkpoint);
    if options.readers_bytes == 0 || options.read_only || by_log {
        return Ok(());
    }
    let what = format!(
        "readers_bytes: the pool is a {} pool; only redo and checkpoint pools have readers in other processes",
        mechanism.name()
    );
    Err(Error::Argument { what })
}

const READERS_MAX: usize = SNAPSHOTS_MAX / 2;

/// Takes a snapshot for these places of the table and returns its number; None: the pool is closed.
pub(crate) type Snapshot = Box<dyn Fn(&[usize], &OldPages) -> Option<Result<u64>> + Send>;

/// The writer's thread.
#[derive(Debug)]
pub(crate) struct Readers {
    old: Arc<OldPages>,
    /// Closed to end the thread.
    stop: Mutex<Option<UnixStream>>,
    handle: Mutex<Option<JoinHandle<()>>>,
    process: u32,
}

impl Readers {
    /// Lets readers come. `snapshot` takes a snapshot of everything that is committed by then.
    pub fn start(snapshot: Snapshot, old: Arc<OldPages>, file: &File, path: &Path) -> Result<Readers> {
        let failed = file_error("let others read", path);
        let make = || {
            let listener = UnixListener::bind_addr(&name(file)?)?;
            listener.set_nonblocking(true)?;
            let about = file.metadata()?;
            let (stop, stopped) = UnixStream::pair()?;
            let server = Server {
                snapshot,
                old: Arc::clone(&old),
                listener,
                stopped,
                file: (about.dev(), about.ino()),
                readers: Vec::new(),
            };
            let handle =
                std::thread::Builder::new().name("memlift-readers".to_owned()).spawn(move || server.run())?;
            Ok::<_, std::io::Error>((stop, handle))
        };
        let (stop, handle) = make().map_err(failed)?;
        Ok(Readers {
            old,
            stop: Mutex::new(Some(stop)),
            handle: Mutex::new(Some(handle)),
            process: std::process::id(),
        })
    }

    /// Ends all snapshots, and the thread. In a forked child there is no thread.
    pub fn stop(&self) {
        if self.process != std::process::id() {
            return;
        }
        self.old.close();
        drop(lock(&self.stop).take());
        if let Some(handle) = lock(&self.handle).take()
            && handle.thread().id() != std::thread::current().id()
        {
            let _ = handle.join(); // it does not panic
        }
    }
}

/// A reader that is connected; its place in the list says which two snapshots of the table are its own.
#[derive(Debug)]
struct Connected {
    socket: UnixStream,
    /// It has shown that it may read the file.
    shown: bool,
    /// It waits for a snapshot.
    asks: bool,
    /// The later one of its two snapshots, 0 or 1. The earlier one stays until it asks again: it compares the two.
    turn: usize,
}

struct Server {
    snapshot: Snapshot,
    old: Arc<OldPages>,
    listener: UnixListener,
    stopped: UnixStream,
    file: (u64, u64),
    readers: Vec<Option<Connected>>,
}

impl Server {
    fn run(mut self) {
        let old = Arc::clone(&self.old);
        let _alive = old.live();
        loop {
            let Some(ready) = self.wait() else { return };
            if ready.stopped {
                return;
            }
            for index in ready.readers {
                if !self.hear(index) {
                    self.part(index);
                }
            }
            if ready.listener {
                self.accept();
            }
            if self.readers.iter().flatten().any(|reader| reader.asks) {
                // The pool may be closed meanwhile: then nobody is answered.
                if !self.give() {
                    return;
                }
            }
        }
    }

    /// Sleeps until something happens. None: the system does not let it.
    fn wait(&self) -> Option<Ready> {
        let mut watched =
            vec![PollFd::new(&self.stopped, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        let connected =
            self.readers.iter().enumerate().filter_map(|(at, reader)| Some((at, reader.as_ref()?)));
        let (indices, sockets): (Vec<usize>, Vec<&Connected>) = connected.unzip();
        watched.extend(sockets.iter().map(|reader| PollFd::new(&reader.socket, PollFlags::IN)));
        loop {
            match poll(&mut watched, None) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        let ready = |at: usize| !watched[at].revents().is_empty();
        Some(Ready {
            stopped: ready(0),
            listener: ready(1),
            readers: indices
                .into_iter()
                .enumerate()
                .filter(|(at, _)| ready(at + 2))
                .map(|(_, index)| index)
                .collect(),
        })
    }

    fn accept(&mut self) {
        let socket = match self.listener.accept() {
            Ok((socket, _)) => socket,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
            Err(_) => return std::thread::sleep(Duration::from_millis(10)), // no descriptor is left, say
        };
        if socket.set_nonblocking(true).is_err() {
            return;
        }
        let reader = Connected { socket, shown: false, asks: false, turn: 0 };
        if let Some(free) = self.readers.iter_mut().find(|reader| reader.is_none()) {
            *free = Some(reader);
        } else if self.readers.len() < READERS_MAX {
            self.readers.push(Some(reader));
        } else {
            answer(&reader.socket, &Answer { status: status::CROWDED, ..Answer::default() }, None);
        }
    }

    /// Reads a request. False: the reader is gone, or said what makes no sense.
    fn hear(&mut self, index: usize) -> bool {
        let Some(reader) = &mut self.readers[index] else { return true };
        let mut asked = [0; ASK_BYTES];
        let (got, file) = match receive(reader.socket.as_fd(), &mut asked) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        };
        if got != ASK_BYTES || asked != ask() {
            return false;
        }
        let shows = |file: OwnedFd| {
            rustix::fs::fstat(&file).is_ok_and(|about| (about.st_dev, about.st_ino) == self.file)
                && rustix::fs::fcntl_getfl(&file).is_ok_and(readable)
        };
        reader.shown |= file.is_some_and(shows);
        reader.asks = true;
        reader.shown
    }

    fn part(&mut self, index: usize) {
        self.old.end(2 * index);
        self.old.end(2 * index + 1);
        self.readers[index] = None;
    }

    /// Gives everyone who asked the same snapshot. False: the pool is closed.
    fn give(&mut self) -> bool {
        let asking: Vec<usize> = (0..self.readers.len())
            .filter(|index| self.readers[*index].as_ref().is_some_and(|reader| reader.asks))
            .collect();
        let places: Vec<usize> = asking
            .iter()
            .map(|index| {
                let turn = self.readers[*index].as_ref().map_or(0, |reader| reader.turn ^ 1);
                2 * index + turn
            })
            .collect();
        places.iter().for_each(|place| self.old.end(*place));
        let Some(given) = (self.snapshot)(&places, &self.old) else { return false };
        for (index, place) in asking.iter().zip(places) {
            let Some(reader) = &mut self.readers[*index] else { continue };
            (reader.asks, reader.turn) = (false, reader.turn ^ 1);
            let Sizes { pages, room } = self.old.sizes();
            let sent = match &given {
                Ok(snapshot) => {
                    let (status, index, snapshot) = (status::GIVEN, place as u32, *snapshot);
                    let given = Answer { status, index, snapshot, pages, room };
                    answer(&reader.socket, &given, Some(self.old.file()))
                }
                Err(_) => {
                    answer(&reader.socket, &Answer { status: status::STOPPED, ..Answer::default() }, None)
                }
            };
            if !sent || given.is_err() {
                self.part(*index);
            }
        }
        true
    }
}

/// Sends an answer. False: the reader is gone, or reads nothing.
fn answer(socket: &UnixStream, answer: &Answer, table: Option<BorrowedFd<'_>>) -> bool {
    send(socket.as_fd(), &answer.encode(), table) == Ok(ANSWER_BYTES)
}

fn readable(flags: rustix::fs::OFlags) -> bool {
    use rustix::fs::OFlags;
    !flags.contains(OFlags::PATH) && flags & OFlags::RWMODE != OFlags::WRONLY
}

#[derive(Debug, Default)]
struct Ready {
    stopped: bool,
    listener: bool,
    readers: Vec<usize>,
}
