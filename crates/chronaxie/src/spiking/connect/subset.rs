//! Some cells of a population: those from one number to another, or from one place to another of an order of its cells.

use std::ops::Range;

/// The cells of a population in another order than that of their numbers.
#[derive(Debug, PartialEq, Eq)]
pub struct Order {
    cells: Vec<u32>,
    places: Vec<u32>,
}

impl Order {
    /// The order in which `cells`, each number once, stand.
    pub(in crate::spiking) fn new(cells: Vec<u32>) -> Self {
        let mut places = vec![0; cells.len()];
        cells.iter().enumerate().for_each(|(place, cell)| places[*cell as usize] = place as u32);
        Self { cells, places }
    }
    /// The cells by their places.
    pub fn cells(&self) -> &[u32] {
        &self.cells
    }
    /// The place of each cell.
    pub fn places(&self) -> &[u32] {
        &self.places
    }
}

/// The cells at the places `low .. high` of an order, or of these numbers where there is none.
#[derive(Debug, Clone, Copy)]
pub struct Subset<'a> {
    /// The first place.
    pub low: u32,
    /// The one after the last.
    pub high: u32,
    /// The order.
    pub order: Option<&'a Order>,
}

impl From<Range<u32>> for Subset<'_> {
    fn from(range: Range<u32>) -> Self {
        Self { low: range.start, high: range.end, order: None }
    }
}

impl<'a> Subset<'a> {
    /// How many.
    pub fn len(&self) -> usize {
        (self.high - self.low) as usize
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.high == self.low
    }
    /// The cell at place `low + i`.
    #[inline(always)]
    pub fn at(&self, i: usize) -> u32 {
        let place = self.low + i as u32;
        self.order.map_or(place, |o| o.cells[place as usize])
    }
    /// All of them, by rising place.
    #[inline(always)]
    pub fn iter(self) -> impl Iterator<Item = u32> + 'a {
        (0..self.len()).map(move |i| self.at(i))
    }
    /// How far behind `low` a cell stands; beyond the length where it is none of these.
    #[inline(always)]
    pub fn index(&self, cell: u32) -> u32 {
        self.order.map_or(cell, |o| o.places[cell as usize]).wrapping_sub(self.low)
    }
    /// Likewise; nothing where it is none of these.
    #[inline(always)]
    pub fn find(&self, cell: u32) -> Option<u32> {
        let known = self.order.is_none_or(|o| (cell as usize) < o.places.len());
        Some(cell).filter(|_| known).map(|cell| self.index(cell)).filter(|i| *i < self.high - self.low)
    }
    /// Whether it is one of these.
    #[inline(always)]
    pub fn contains(&self, cell: u32) -> bool {
        self.index(cell) < self.high - self.low
    }
    /// The cells as a list, where they do not follow each other by number.
    pub fn listed(&self) -> Option<&'a [u32]> {
        self.order.map(|o| &o.cells[self.low as usize..self.high as usize])
    }
}
