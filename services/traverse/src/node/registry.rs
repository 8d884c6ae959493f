// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs that a node holds: each belongs to one tenant, is named by its hash, and is verified and compiled when it
//! arrives.
//!
//! - **Flow** pieces of an upload ──[`Registry::piece`]──▶ complete ──▶ hash, verify, compile ──▶ [`Runner`], shared by all
//!   shards
//! - **Layout** an upload: bytes of the name u8 · name · encoding of the program; each piece carries its offset in bytes
//! - **Order** registering a known program changes nothing. A tenant's programs are a cache: when it is full, the least recently
//!   used program is dropped, and a client that sends a walk of it is asked to register it again. The programs of the collections do
//!   not count, and are never dropped. When there are more than
//!   [`UPLOADS_MAX`] uploads, a new one replaces the one that has waited longest for a piece
//! - **Owner** the registry, behind a lock that no hop takes: a shard holds references to the runners that it uses
//! - **Not here** the rules for programs (`verify`)

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::interp;
use crate::program::Program;
use crate::slot::{Region, Slot};
use crate::structures::shipped;
use crate::wire::{Hash, Status};

/// The longest upload.
pub const UPLOAD_BYTES_MAX: usize = 64 << 10;
/// Bytes of a piece: small enough for every frame.
pub const PIECE_BYTES: usize = 1024;
/// Most uploads in progress at the same time.
const UPLOADS_MAX: usize = 64;

/// A program that can be run.
#[derive(Debug)]
pub struct Runner {
    program: Program,
    prefetch_offsets: Vec<i16>,
    #[cfg(feature = "jit")]
    compiled: Option<crate::jit::Compiled>,
}

impl Runner {
    /// Compiles a program if this machine can; otherwise it will be interpreted.
    #[must_use]
    pub fn new(program: Program, compile: bool) -> Runner {
        let window = program.window();
        #[cfg(feature = "jit")]
        let compiled = compile.then(|| {
            let limits = crate::jit::Limits {
                window_first: window.first,
                window_bytes: window.bytes,
                scratch_bytes: program.scratch_bytes() as u32,
            };
            crate::jit::Compiled::new(program.function(), &limits).ok()
        });
        #[cfg(not(feature = "jit"))]
        let _ = compile;
        let end = i32::from(window.first) + i32::from(window.bytes);
        let prefetch_offsets =
            (i32::from(window.first)..end).step_by(64).map(|at| at as i16).chain([(end - 1) as i16]);
        Runner {
            prefetch_offsets: prefetch_offsets.collect(),
            program,
            #[cfg(feature = "jit")]
            compiled: compiled.flatten(),
        }
    }

    /// Returns the program of this runner.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the program's name in packets: the first bytes of its hash.
    #[must_use]
    pub fn hash(&self) -> Hash {
        self.program.hash()[..size_of::<Hash>()].try_into().expect("a hash is longer")
    }

    /// Returns true if the program runs as machine code.
    #[must_use]
    pub fn is_compiled(&self) -> bool {
        #[cfg(feature = "jit")]
        return self.compiled.is_some();
        #[cfg(not(feature = "jit"))]
        false
    }

    /// Returns the offsets from `cur_ptr` to prefetch.
    #[must_use]
    pub fn prefetch_offsets(&self) -> &[i16] {
        #[cfg(feature = "jit")]
        if let Some(compiled) = &self.compiled {
            return compiled.prefetch_offsets();
        }
        &self.prefetch_offsets
    }

    /// Runs one step for each slot in state `RUN`; returns how many stopped.
    ///
    /// # Safety
    ///
    /// For each slot in state `RUN`, `host` is the mapped place of a node whose whole window may be read, and `scratch` has
    /// the program's scratch bytes and belongs to the slot alone; `region` maps only addresses whose window can be read.
    pub unsafe fn round(&self, slots: &mut [Slot], region: &Region) -> usize {
        #[cfg(feature = "jit")]
        if let Some(compiled) = &self.compiled {
            // SAFETY: the caller promises this for the slots in state `RUN`, their scratchpads and `region`; `compiled` was
            // made for the program's window and scratch bytes.
            return unsafe { compiled.round(slots, region) };
        }
        let step = |node: *const u8, scratch: *mut u8, walk: &mut crate::step::Walk| {
            // SAFETY: by the caller's promise for slots and `region`, a window of the program is mapped at `node`, and
            // `scratch` has its scratch bytes. The function was verified, and the node's writer stores atomically.
            unsafe { interp::step(self.program.function(), node, scratch, walk) }
        };
        // SAFETY: by the caller's promise, each slot in state `RUN` has a mapped window and a scratchpad of its own, and
        // `region` maps only addresses whose window can be read. `step` needs nothing else.
        unsafe { crate::round::round(slots, region, &self.prefetch_offsets, step) }
    }
}

#[derive(Debug)]
struct Upload {
    bytes: Vec<u8>,
    /// For each piece, true once it has arrived.
    come: Vec<bool>,
    /// Value of `Registry::pieces` when the last piece of this upload arrived.
    touched: u64,
}

/// A program, with the value of the registry's request counter when the program was last asked for.
#[derive(Debug)]
struct ProgramEntry {
    runner: Arc<Runner>,
    asked: AtomicU64,
    /// True for a program of the collections.
    is_library: bool,
}

/// Result of adding a piece to an upload.
#[derive(Debug)]
pub enum Piece {
    /// This many pieces are still missing.
    Missing(u32),
    /// The upload is complete: this is its program.
    Complete(Arc<Runner>),
    /// The upload or its program was refused, for this reason.
    Refused(Status, String),
}

/// See the module's header.
#[derive(Debug)]
pub struct Registry {
    programs: BTreeMap<(u32, Hash), ProgramEntry>,
    /// Number of times that any program was asked for.
    asked: AtomicU64,
    uploads: BTreeMap<(u32, u64, Hash), Upload>,
    /// Number of pieces that have arrived.
    pieces: u64,
    per_tenant: usize,
    compile: bool,
}

impl Registry {
    /// Makes a registry for `per_tenant` programs of each tenant. With `compile`, programs are compiled if this machine can.
    #[must_use]
    pub fn new(per_tenant: usize, compile: bool) -> Registry {
        let asked = AtomicU64::new(0);
        Registry {
            programs: BTreeMap::new(),
            asked,
            uploads: BTreeMap::new(),
            pieces: 0,
            per_tenant,
            compile,
        }
    }

    /// Returns a tenant's program, and notes that it was asked for.
    #[must_use]
    pub fn get(&self, tenant: u32, hash: &Hash) -> Option<Arc<Runner>> {
        let entry = self.programs.get(&(tenant, *hash))?;
        entry.asked.store(self.asked.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(entry.runner.clone())
    }

    /// Returns all programs, each with its tenant.
    pub fn list(&self) -> impl Iterator<Item = (u32, &Arc<Runner>)> {
        self.programs.iter().map(|((tenant, _), entry)| (*tenant, &entry.runner))
    }

    /// Adds a program, or returns the known one with the same hash.
    ///
    /// # Errors
    ///
    /// The program is refused: a status, and the reason for people to read.
    pub fn insert(&mut self, tenant: u32, program: Program) -> Result<Arc<Runner>, (Status, String)> {
        let hash: Hash = program.hash()[..size_of::<Hash>()].try_into().expect("a hash is longer");
        if let Some(runner) = self.get(tenant, &hash) {
            return Ok(runner);
        }
        let is_library = shipped::is_library(&program);
        let own = || {
            let all = self.programs.range((tenant, [0; 16])..=(tenant, [0xff; 16]));
            all.filter(|(_, entry)| !entry.is_library)
        };
        if !is_library && own().count() >= self.per_tenant {
            let last =
                own().min_by_key(|(_, entry)| entry.asked.load(Ordering::Relaxed)).map(|(key, _)| *key);
            last.and_then(|key| self.programs.remove(&key));
        }
        let runner = Arc::new(Runner::new(program, self.compile));
        let asked = AtomicU64::new(self.asked.fetch_add(1, Ordering::Relaxed));
        self.programs.insert((tenant, hash), ProgramEntry { runner: runner.clone(), asked, is_library });
        Ok(runner)
    }

    /// Adds a piece with the bytes `bytes` at offset `at` to an upload that has `whole` bytes in `pieces` pieces.
    #[expect(clippy::too_many_arguments, reason = "the fields of a packet")]
    pub fn piece(
        &mut self,
        tenant: u32,
        client: u64,
        hash: Hash,
        piece: u32,
        pieces: u32,
        whole: u64,
        bytes: &[u8],
    ) -> Piece {
        if let Some(runner) = self.get(tenant, &hash) {
            return Piece::Complete(runner);
        }
        let refused = |reason: &str| Piece::Refused(Status::BadRequest, reason.to_owned());
        if whole == 0 || whole > UPLOAD_BYTES_MAX as u64 {
            return refused("a program has at most 64 KiB");
        }
        let whole = whole as usize;
        let at = piece as usize * PIECE_BYTES;
        if pieces as usize != whole.div_ceil(PIECE_BYTES)
            || bytes.len() != PIECE_BYTES.min(whole.saturating_sub(at))
        {
            return refused("a program comes in pieces of 1024 bytes");
        }
        let key = (tenant, client, hash);
        if !self.uploads.contains_key(&key) && self.uploads.len() >= UPLOADS_MAX {
            // If the client of the dropped upload is still there, it sends all pieces again.
            let stalest = self.uploads.iter().min_by_key(|(_, upload)| upload.touched).map(|(key, _)| *key);
            stalest.and_then(|key| self.uploads.remove(&key));
        }
        self.pieces += 1;
        let upload = self.uploads.entry(key).or_insert_with(|| Upload {
            bytes: vec![0; whole],
            come: vec![false; pieces as usize],
            touched: 0,
        });
        if upload.bytes.len() != whole {
            self.uploads.remove(&key);
            return refused("pieces of one upload say different lengths");
        }
        upload.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        upload.come[piece as usize] = true;
        upload.touched = self.pieces;
        let missing = upload.come.iter().filter(|come| !**come).count();
        if missing > 0 {
            return Piece::Missing(missing as u32);
        }
        let bytes = self.uploads.remove(&key).map(|upload| upload.bytes).unwrap_or_default();
        match program_of(&bytes) {
            Err(reason) => Piece::Refused(Status::Refused, reason),
            Ok(program) if program.hash()[..hash.len()] != hash => Piece::Refused(
                Status::Refused,
                "the program has another hash than the packet says".to_owned(),
            ),
            Ok(program) => match self.insert(tenant, program) {
                Ok(runner) => Piece::Complete(runner),
                Err((status, reason)) => Piece::Refused(status, reason),
            },
        }
    }
}

/// Encodes a program as an upload: name and program.
#[must_use]
pub fn upload_of(program: &Program) -> Vec<u8> {
    let mut end = program.name().len().min(255);
    while !program.name().is_char_boundary(end) {
        end -= 1;
    }
    [&[end as u8], &program.name().as_bytes()[..end], &program.encoding()].concat()
}

/// Reads an upload and verifies the program.
///
/// # Errors
///
/// The upload cannot be decoded, or the program is refused; the text is for people to read.
pub fn program_of(upload: &[u8]) -> Result<Program, String> {
    let (&bytes, rest) = upload.split_first().ok_or("nothing was uploaded")?;
    let (name, encoding) = rest.split_at_checked(bytes.into()).ok_or("the name is longer than the upload")?;
    let name = std::str::from_utf8(name).map_err(|_| "the name is not UTF-8")?;
    Program::from_encoding(name, encoding).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{Builder, R4, node, scratch};

    /// A program whose upload has several pieces.
    fn long() -> Program {
        let mut b = Builder::new();
        for _ in 0..200 {
            b.load(R4, node(0)).store(scratch(0), R4);
        }
        b.done();
        b.program("long", 64).expect("a good program")
    }

    #[test]
    fn an_upload_that_goes_on_is_not_dropped_for_a_new_one() {
        let program = long();
        let upload = upload_of(&program);
        let pieces = upload.len().div_ceil(PIECE_BYTES) as u32;
        assert!(pieces > 2, "{pieces} pieces");
        let hash: Hash = program.hash()[..size_of::<Hash>()].try_into().expect("a hash is longer");
        let (given_up, others) = (1000..1000 + UPLOADS_MAX as u64, 2000..);
        // Client numbers in the uploads' order: before all that were given up, among them, and behind all.
        for client in [0, given_up.start + 5, u64::MAX] {
            let mut registry = Registry::new(1, false);
            let mut send = |client, piece: u32| {
                let at = piece as usize * PIECE_BYTES;
                let bytes = &upload[at..upload.len().min(at + PIECE_BYTES)];
                registry.piece(1, client, hash, piece, pieces, upload.len() as u64, bytes)
            };
            for gone in given_up.clone().filter(|&gone| gone != client) {
                assert!(matches!(send(gone, 0), Piece::Missing(_)));
            }
            let mut others = others.clone();
            for piece in 0..pieces - 1 {
                let left = pieces - 1 - piece;
                assert!(
                    matches!(send(client, piece), Piece::Missing(missing) if missing == left),
                    "client {client}"
                );
                for other in others.by_ref().take(UPLOADS_MAX / 2) {
                    assert!(matches!(send(other, 0), Piece::Missing(_)));
                }
            }
            assert!(matches!(send(client, pieces - 1), Piece::Complete(_)), "client {client}");
        }
    }
}
