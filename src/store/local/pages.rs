//! A row in pages of one size. It grows and shrinks by a page: nothing that stands in it is copied then, so that no
//! request waits for it, and what is not used is less than two pages.

use std::mem;

/// Things in a row, by place. `PAGE` of them stand in a page.
#[derive(Debug)]
pub(super) struct Pages<T, const PAGE: usize> {
    /// All full, but for the one that the row ends in and a spare one after that.
    pages: Vec<Vec<T>>,
    len: usize,
}

impl<T, const PAGE: usize> Pages<T, PAGE> {
    /// An empty row; so many are expected.
    pub(super) fn new(expected: usize) -> Self {
        // The list of pages is made at once: it would else stand, small, amid the pages, and what is before it could
        // not be given back to the system.
        Self {
            pages: Vec::with_capacity(expected.div_ceil(PAGE) + 1),
            len: 0,
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, place: u32) -> Option<&T> {
        let place = index(place);
        self.pages.get(place / PAGE)?.get(place % PAGE)
    }

    pub(super) fn get_mut(&mut self, place: u32) -> Option<&mut T> {
        let place = index(place);
        self.pages.get_mut(place / PAGE)?.get_mut(place % PAGE)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flatten()
    }

    pub(super) fn push(&mut self, thing: T) {
        let page = self.len / PAGE;
        if page == self.pages.len() {
            self.pages.push(Vec::with_capacity(PAGE));
        }
        if let Some(page) = self.pages.get_mut(page) {
            page.push(thing);
            self.len += 1;
        }
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let last = self.len.checked_sub(1)?;
        let popped = self.pages.get_mut(last / PAGE)?.pop()?;
        self.len = last;
        self.give_back();
        Some(popped)
    }

    /// Takes out what stands at this place; the last one takes the place.
    pub(super) fn swap_remove(&mut self, place: u32) -> Option<T> {
        if index(place) >= self.len {
            return None;
        }
        let last = self.pop()?;
        Some(match self.get_mut(place) {
            Some(there) => mem::replace(there, last),
            None => last,
        })
    }

    /// Gives back the pages after the one that the row ends in. While that one is more than half full the next one
    /// stays, so that coming and going at the edge of a page costs nothing.
    fn give_back(&mut self) {
        let needed = if self.len == 0 {
            0
        } else {
            (self.len + PAGE / 2).div_ceil(PAGE)
        };
        self.pages.truncate(needed);
    }

    /// The bytes that its pages take, used or not.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let things: usize = self.pages.iter().map(Vec::capacity).sum();
        things * size_of::<T>() + self.pages.capacity() * size_of::<Vec<T>>()
    }
}

/// A place as an index. A shard holds fewer than 2^32 states, by far.
fn index(place: u32) -> usize {
    usize::try_from(place).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Fours = Pages<usize, 4>;

    fn of(len: usize) -> Fours {
        let mut pages = Fours::new(8);
        (0..len).for_each(|n| pages.push(n));
        pages
    }

    #[test]
    fn each_thing_stands_where_it_was_put_on_both_sides_of_an_edge() {
        for len in 0..=13 {
            let mut pages = of(len);
            assert_eq!(pages.len(), len);
            assert_eq!(
                pages.iter().copied().collect::<Vec<_>>(),
                (0..len).collect::<Vec<_>>()
            );
            for place in 0..14 {
                let there = (place < len).then_some(place);
                let at = u32::try_from(place).unwrap();
                assert_eq!(pages.get(at).copied(), there, "{place} of {len}");
                assert_eq!(pages.get_mut(at).copied(), there, "{place} of {len}");
            }
            assert_eq!(pages.get(u32::MAX), None);
        }
    }

    #[test]
    fn the_last_one_takes_the_place_of_what_is_taken_out() {
        for len in 1..=9 {
            for place in 0..len {
                let mut pages = of(len);
                assert_eq!(
                    pages.swap_remove(u32::try_from(place).unwrap()),
                    Some(place)
                );
                let mut expected: Vec<_> = (0..len).collect();
                expected.swap_remove(place);
                assert_eq!(pages.iter().copied().collect::<Vec<_>>(), expected);
            }
            assert_eq!(of(len).swap_remove(u32::try_from(len).unwrap()), None);
        }
    }

    #[test]
    fn pages_come_and_go_one_by_one_and_not_at_every_step_over_an_edge() {
        let mut pages = Fours::new(8);
        let mut most = 0;
        for n in 0..40 {
            pages.push(n);
            assert_eq!(pages.pages.len(), (n + 1).div_ceil(4));
            most = most.max(pages.pages.len());
        }
        assert_eq!(most, 10);
        for left in (1..40).rev() {
            assert_eq!(pages.pop(), Some(left));
            let used = left.div_ceil(4);
            assert!((used..=used + 1).contains(&pages.pages.len()), "{left}");
        }
        // Over the edge and back: the page stays.
        let mut pages = of(5);
        for _ in 0..3 {
            pages.pop();
            assert_eq!((pages.len(), pages.pages.len()), (4, 2));
            pages.push(4);
        }
        while pages.pop().is_some() {}
        assert_eq!((pages.len(), pages.pages.len()), (0, 0));
    }
}
