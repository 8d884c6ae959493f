// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Uploads programs that nodes lack: once, to all nodes, while the walks that need them wait.
//!
//! - **Order** the pieces are ordinary requests with numbers of their own; the walks continue when the last piece is
//!   answered
//! - **Not here** a node's handling of an upload (`node/registry`)

use std::sync::Arc;
use std::time::Duration;

use super::flight::Flight;
use super::{Client, ClientError, Request, Result};
use crate::node::{PIECE_BYTES, upload_of};
use crate::program::Program;
use crate::wire::{Hash, Kind, Status};

impl Client {
    /// Uploads a request's program to all nodes; the request waits until that is done.
    pub(super) fn upload(&mut self, sequence: u64) -> Result<()> {
        let Some(flight) = self.flights.get_mut(&sequence) else { return Ok(()) };
        let Some(program) = flight.request.program.clone() else { return Ok(()) };
        flight.restarts += 1;
        if flight.restarts > self.config.restarts.min(16) {
            let reason = "it was uploaded, and is not there: a node behind is not this client's".to_owned();
            let error = ClientError::Refused { program: program.name().to_owned(), reason };
            self.finish(sequence, Err(error));
            return Ok(());
        }
        flight.waits_for_upload = true;
        let hash = hash_of(&program);
        if self.uploads.keys().any(|(_, uploading)| *uploading == hash) {
            return Ok(());
        }
        self.counts.uploads += 1;
        let upload = upload_of(&program);
        let pieces = upload.len().div_ceil(PIECE_BYTES) as u32;
        // A backup gets programs from its primary, and nobody waits for places where a node was before.
        let backup = |node: &usize| self.reaches[*node].is_backup;
        let nodes: Vec<usize> = (0..self.reaches.len()).filter(|node| !backup(node)).collect();
        for node in nodes {
            self.uploads.insert((node, hash), pieces);
            for (piece, bytes) in upload.chunks(PIECE_BYTES).enumerate() {
                let request = Request {
                    body: bytes.to_vec(),
                    node: Some(node),
                    piece: (piece as u32, pieces),
                    hash: Some(hash),
                    ..Request::new(Kind::Register, 0, upload.len() as u64)
                };
                self.launch(None, request, node)?;
            }
        }
        Ok(())
    }

    pub(super) fn registered(&mut self, sequence: u64, status: Status, body: &[u8]) -> Result<()> {
        let Some(flight) = self.flights.get(&sequence) else { return Ok(()) };
        let Some(hash) = flight.request.hash else { return Ok(()) };
        let node = flight.node;
        if status == Status::Busy {
            self.schedule_retry(sequence);
            return Ok(());
        }
        self.finish(sequence, Err(ClientError::Busy(Duration::ZERO)));
        if status != Status::Done {
            self.uploads.retain(|(_, uploading), _| *uploading != hash);
            for sequence in self.waiting_for(hash) {
                let program = self.flights[&sequence].request.name();
                let reason = String::from_utf8_lossy(body).into_owned();
                self.finish(sequence, Err(ClientError::Refused { program, reason }));
            }
            return Ok(());
        }
        if let Some(left) = self.uploads.get_mut(&(node, hash)) {
            *left -= 1;
            if *left == 0 {
                self.uploads.remove(&(node, hash));
            }
        }
        self.release(hash)
    }

    /// Gives up on a node that does not answer a piece of an upload. The waiting walks continue without it; if one reaches
    /// that node later, the node asks for the program.
    pub(super) fn give_up(&mut self, sequence: u64) -> Result<()> {
        let Some(flight) = self.flights.remove(&sequence) else { return Ok(()) };
        let Some(hash) = flight.request.hash else { return Ok(()) };
        self.uploads.remove(&(flight.node, hash));
        self.release(hash)
    }

    /// Sends the walks that waited for a program, unless another upload of it is in progress.
    fn release(&mut self, hash: Hash) -> Result<()> {
        if self.uploads.keys().any(|(_, uploading)| *uploading == hash) {
            return Ok(());
        }
        self.uploaded.insert(hash);
        for sequence in self.waiting_for(hash) {
            if let Some(flight) = self.flights.get_mut(&sequence) {
                flight.waits_for_upload = false;
                flight.attempt += 1;
            }
            self.transmit(sequence)?;
        }
        Ok(())
    }

    fn waiting_for(&self, hash: Hash) -> Vec<u64> {
        let same = |flight: &Flight| {
            flight.waits_for_upload
                && flight.request.program.as_ref().is_some_and(|program| hash_of(program) == hash)
        };
        self.flights.iter().filter(|(_, flight)| same(flight)).map(|(&sequence, _)| sequence).collect()
    }
}

/// Returns the hash that names a program in packets.
pub(super) fn hash_of(program: &Arc<Program>) -> Hash {
    program.hash()[..size_of::<Hash>()].try_into().expect("a hash is longer")
}
