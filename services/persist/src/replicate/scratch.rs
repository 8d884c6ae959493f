// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Notes on a pool's pages that a writer of a replica keeps, in memory that does not grow with the pool.
//!
//! - **Layout** [`PageSet`]: a bit for each page, 32 KiB of memory per GiB of pool · [`PageSums`]: such a set, and the sum of each of its pages
//!   (u64) in a file without a name beside the pool, 2 MiB per GiB · [`Held`]: pages that were read while the pool was held still; the first
//!   ones in memory, the others in such a file
//! - **Owner** the kernel frees the file when it is closed, also by a kill. Where the folder cannot be written, it is memory of this process
//! - **Not here** what the pages are for: `ship`

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::format::{IndexEntry, PAGES_MAX, Pages};
use crate::checksums::PAGE;
use crate::error::Result;
use crate::fresh::{file_error, scratch};

/// Objects of held pages that stay in memory: 32 MiB.
const IN_MEMORY: usize = 4;

/// A set of pages of the heap.
#[derive(Debug, Default)]
pub(crate) struct PageSet(Vec<u64>);

impl PageSet {
    pub fn insert(&mut self, page: u64) {
        let word = (page / 64) as usize;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (page % 64);
    }

    pub fn remove(&mut self, page: u64) {
        if let Some(word) = self.0.get_mut((page / 64) as usize) {
            *word &= !(1 << (page % 64));
        }
    }

    pub fn contains(&self, page: u64) -> bool {
        self.0.get((page / 64) as usize).is_some_and(|word| word >> (page % 64) & 1 == 1)
    }

    pub fn iter(&self) -> impl Iterator<Item = u64> {
        (0..).step_by(64).zip(&self.0).flat_map(|(first, word)| {
            let word = *word;
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit)
        })
    }
}

/// Sums of pages.
#[derive(Debug)]
pub(crate) struct PageSums {
    known: PageSet,
    file: File,
    path: PathBuf,
}

impl PageSums {
    /// For the pool at `path`, with no page.
    pub fn new(path: &Path) -> Result<PageSums> {
        Ok(PageSums { known: PageSet::default(), file: scratch(path)?, path: path.to_owned() })
    }

    /// Sets the sums of pages, in ascending order.
    pub fn put(&mut self, index: &[IndexEntry]) -> Result<()> {
        let mut bytes = Vec::new();
        let mut first = 0;
        for (at, (page, sum)) in index.iter().enumerate() {
            if bytes.is_empty() {
                first = *page;
            }
            self.known.insert(*page);
            bytes.extend_from_slice(&sum.to_le_bytes());
            if index.get(at + 1).is_none_or(|next| next.0 != page + 1) {
                self.file
                    .write_all_at(&bytes, first * 8)
                    .map_err(file_error("keep sums of pages of", &self.path))?;
                bytes.clear();
            }
        }
        Ok(())
    }

    /// As [`PageSums::put`], for pages that have no sum yet.
    pub fn put_new(&mut self, index: &[IndexEntry]) -> Result<()> {
        let new: Vec<IndexEntry> =
            index.iter().copied().filter(|(page, _)| !self.known.contains(*page)).collect();
        self.put(&new)
    }

    /// Returns true if a page has this sum.
    pub fn has(&self, page: u64, sum: u64) -> Result<bool> {
        Ok(self.known.contains(page) && self.get(page, 1)?[0] == Some(sum))
    }

    /// Forgets the sum of a page.
    pub fn forget(&mut self, page: u64) {
        self.known.remove(page);
    }

    /// The sums of `count` pages from `first` on.
    pub fn get(&self, first: u64, count: u64) -> Result<Vec<Option<u64>>> {
        let mut bytes = vec![0; count as usize * 8];
        let mut filled = 0;
        // Behind the last sum the file ends.
        while filled < bytes.len() {
            match self.file.read_at(&mut bytes[filled..], first * 8 + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(file_error("read kept sums of", &self.path)(error)),
            }
        }
        let sums = bytes.as_chunks::<8>().0.iter().map(|sum| u64::from_le_bytes(*sum));
        Ok((first..).zip(sums).map(|(page, sum)| self.known.contains(page).then_some(sum)).collect())
    }
}

/// Pages in the order in which they were read, an object's worth at a time.
#[derive(Debug)]
pub(crate) struct Held {
    path: PathBuf,
    memory: Vec<Pages>,
    last: Pages,
    spilled: Option<Spill>,
}

#[derive(Debug)]
struct Spill {
    file: File,
    /// Pages of each piece.
    pieces: Vec<usize>,
    end: u64,
}

impl Held {
    /// For pages of the pool at `path`.
    pub fn new(path: &Path) -> Held {
        Held { path: path.to_owned(), memory: Vec::new(), last: Pages::default(), spilled: None }
    }

    pub fn push(&mut self, page: u64, sum: u64, bytes: &[u8]) -> Result<()> {
        if self.last.index.len() == PAGES_MAX {
            let full = std::mem::take(&mut self.last);
            if self.memory.len() < IN_MEMORY {
                self.memory.push(full);
            } else {
                self.last = self.spill(full)?;
            }
        }
        self.last.push(page, sum, bytes);
        Ok(())
    }

    /// Number of pages.
    pub fn pages(&self) -> u64 {
        let spilled = self.spilled.iter().flat_map(|spill| &spill.pieces).sum::<usize>();
        let memory = self.memory.iter().map(|piece| piece.index.len()).sum::<usize>();
        (spilled + memory + self.last.index.len()) as u64
    }

    /// Writes a piece to the file; gives its memory back for the next one.
    fn spill(&mut self, mut piece: Pages) -> Result<Pages> {
        if self.spilled.is_none() {
            self.spilled = Some(Spill { file: scratch(&self.path)?, pieces: Vec::new(), end: 0 });
        }
        let failed = || file_error("keep pages of", &self.path);
        let spill = self.spilled.as_mut().expect("made above");
        let mut index = Vec::with_capacity(piece.index.len() * 16);
        for (page, sum) in &piece.index {
            index.extend_from_slice(&page.to_le_bytes());
            index.extend_from_slice(&sum.to_le_bytes());
        }
        spill.file.write_all_at(&index, spill.end).map_err(failed())?;
        spill.file.write_all_at(&piece.bytes, spill.end + index.len() as u64).map_err(failed())?;
        spill.end += (index.len() + piece.bytes.len()) as u64;
        spill.pieces.push(piece.index.len());
        piece.index.clear();
        piece.bytes.clear();
        Ok(piece)
    }

    /// Calls `each` with every piece but the last, and gives the last.
    pub fn drain(mut self, mut each: impl FnMut(&Pages) -> Result<()>) -> Result<Pages> {
        for piece in std::mem::take(&mut self.memory) {
            each(&piece)?;
        }
        if let Some(spill) = &self.spilled {
            let mut at = 0;
            for count in &spill.pieces {
                let mut bytes = vec![0; count * (16 + PAGE as usize)];
                spill
                    .file
                    .read_exact_at(&mut bytes, at)
                    .map_err(file_error("read kept pages of", &self.path))?;
                at += bytes.len() as u64;
                let pages = bytes.split_off(count * 16);
                let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
                let index =
                    bytes.chunks_exact(16).map(|entry| (word(&entry[..8]), word(&entry[8..]))).collect();
                each(&Pages { index, bytes: pages })?;
            }
        }
        Ok(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_their_pages() {
        let folder = tempfile::tempdir().unwrap();
        let mut sums = PageSums::new(&folder.path().join("pool")).unwrap();
        sums.put(&[(3, 30), (4, 40), (90, 900)]).unwrap();
        sums.put_new(&[(4, 44), (5, 50)]).unwrap();
        let wanted = [None, None, None, Some(30), Some(40), Some(50), None];
        assert_eq!(sums.get(0, 7).unwrap(), wanted);
        assert_eq!(sums.get(89, 4).unwrap(), [None, Some(900), None, None]);
        assert_eq!(sums.get(5_000, 1).unwrap(), [None]);
        assert!(sums.has(4, 40).unwrap() && !sums.has(4, 41).unwrap() && !sums.has(6, 0).unwrap());
        assert_eq!(sums.known.iter().collect::<Vec<_>>(), [3, 4, 5, 90]);
        sums.forget(4);
        assert!(!sums.has(4, 40).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file has no name");
    }

    #[test]
    fn held_pages_come_back_in_order_from_memory_and_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut held = Held::new(&folder.path().join("pool"));
        let count = (PAGES_MAX * (IN_MEMORY + 2) + 7) as u64;
        for page in 0..count {
            held.push(page, page * 3, &[page as u8; PAGE as usize]).unwrap();
        }
        assert_eq!(held.spilled.as_ref().unwrap().pieces.len(), 2);
        let mut next = 0;
        let mut check = |pages: &Pages| {
            for ((page, sum), bytes) in pages.index.iter().zip(pages.bytes.chunks_exact(PAGE as usize)) {
                assert_eq!((*page, *sum), (next, next * 3));
                assert!(bytes.iter().all(|byte| *byte == next as u8));
                next += 1;
            }
            Ok(())
        };
        let last = held.drain(&mut check).unwrap();
        assert_eq!(last.index.len(), 7);
        check(&last).unwrap();
        assert_eq!(next, count);
    }
}
