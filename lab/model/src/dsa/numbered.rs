// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Things that are numbered in the order in which they come, and that go in about the same order: those that are there lie in one short row.
//!
//! - **Rule** a number is given once

use std::collections::VecDeque;

/// See the module.
#[derive(Clone, Debug)]
pub struct Numbered<T> {
    /// From the oldest that is there on; none: it is gone.
    held: VecDeque<Option<T>>,
    /// Number of the first.
    first: usize,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Numbered { held: VecDeque::new(), first: 0 }
    }
}

impl<T> Numbered<T> {
    /// Adds one; its number.
    pub fn push(&mut self, one: T) -> usize {
        self.held.push_back(Some(one));
        self.first + self.held.len() - 1
    }

    /// The one of this number, if it is there.
    pub fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.held.get_mut(number.checked_sub(self.first)?)?.as_mut()
    }

    /// Takes the one of this number out.
    pub fn take(&mut self, number: usize) -> Option<T> {
        let one = self.held.get_mut(number.checked_sub(self.first)?)?.take();
        while self.held.pop_front_if(|first| first.is_none()).is_some() {
            self.first += 1;
        }
        one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_what_is_gone_takes_no_room() {
        let mut numbered = Numbered::default();
        assert_eq!([numbered.push('a'), numbered.push('b'), numbered.push('c')], [0, 1, 2]);
        assert_eq!([numbered.take(1), numbered.take(1)], [Some('b'), None]);
        assert_eq!(numbered.held.len(), 3, "an older one is there");
        assert_eq!((numbered.take(0), numbered.held.len()), (Some('a'), 1));
        assert_eq!(numbered.get_mut(2), Some(&mut 'c'));
        assert_eq!(numbered.push('d'), 3);
        assert_eq!(numbered.get_mut(0), None);
        assert_eq!([numbered.take(4), numbered.take(3), numbered.take(2)], [None, Some('d'), Some('c')]);
        assert_eq!((numbered.held.len(), numbered.push('e')), (0, 4));
    }
}
