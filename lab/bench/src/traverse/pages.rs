// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Data as a client sees it that swaps: pages of 4 KiB are read and kept, whatever else lies in them.
//!
//! - **Layout** nodes lie at multiples of their size, so none lies in two pages

use std::sync::Arc;

use memlift_traverse::node::Node;
use memlift_traverse::program::Program;

use super::cached::{Data, Walker};
use super::drive::Ask;
use super::serve::Handler;
use super::view::View;

const PAGE_BYTES: u64 = 4096;

/// One page of 4 KiB, as words.
#[derive(Clone, Copy, Debug)]
pub struct Page([u64; PAGE_BYTES as usize / 8]);

impl Default for Page {
    fn default() -> Page {
        Page([0; PAGE_BYTES as usize / 8])
    }
}

impl AsRef<[u64]> for Page {
    fn as_ref(&self) -> &[u64] {
        &self.0
    }
}

impl AsMut<[u64]> for Page {
    fn as_mut(&mut self) -> &mut [u64] {
        &mut self.0
    }
}

/// The same data by pages.
#[derive(Debug)]
pub struct Pages<'d, D>(pub &'d D);

/// Walker that takes its pieces out of pages.
#[derive(Debug)]
pub struct Paged<W, Piece>(W, std::marker::PhantomData<Piece>);

impl<Piece: Default + AsMut<[u64]>, W: Walker<Piece>> Walker<Page> for Paged<W, Piece> {
    fn place(&self) -> u64 {
        self.0.place() & !(PAGE_BYTES - 1)
    }

    fn step(&mut self, page: &Page) -> Option<u64> {
        let mut piece = Piece::default();
        let from = (self.0.place() % PAGE_BYTES / 8) as usize;
        let words = piece.as_mut();
        words.copy_from_slice(&page.0[from..from + words.len()]);
        self.0.step(&piece)
    }
}

impl<D: Data> Data for Pages<'_, D> {
    type Piece = Page;
    type Walker = Paged<D::Walker, D::Piece>;

    fn node(&self) -> &Node {
        self.0.node()
    }

    fn view(&self) -> &View {
        self.0.view()
    }

    fn program(&self) -> (Arc<Program>, usize) {
        self.0.program()
    }

    fn questions(&self) -> u64 {
        self.0.questions()
    }

    fn pieces(&self) -> u64 {
        self.0.pieces() * size_of::<D::Piece>() as u64 / PAGE_BYTES
    }

    fn ask(&self, number: u64) -> (Ask, u64) {
        self.0.ask(number)
    }

    fn walker(&self, number: u64) -> Self::Walker {
        Paged(self.0.walker(number), std::marker::PhantomData)
    }

    fn handler(&self) -> Box<dyn Handler> {
        self.0.handler()
    }
}
