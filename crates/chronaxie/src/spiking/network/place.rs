//! Cells in boxes of a four-dimensional lattice.

use crate::spiking::draws::{Purpose, Stream};

/// A box of lattice sites, ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Box4 {
    /// The least x, y, z, w.
    pub low: [i32; 4],
    /// The greatest x, y, z, w.
    pub high: [i32; 4],
}

impl Box4 {
    /// How many sites it has.
    pub fn sites(&self) -> u64 {
        (0..4).map(|d| u64::from((self.high[d] - self.low[d] + 1).max(0) as u32)).product()
    }
    /// The sites of a box that hold a cell: each with probability `density`, in the order w, z, y, x.
    pub fn fill(&self, density: f64, seed: u64, population: u32) -> Vec<[f32; 4]> {
        let mut stream = Stream::new(seed, Purpose::Site, population, 0);
        let mut cells = Vec::new();
        for w in self.low[3]..=self.high[3] {
            for z in self.low[2]..=self.high[2] {
                for y in self.low[1]..=self.high[1] {
                    for x in self.low[0]..=self.high[0] {
                        if stream.uniform() < density {
                            cells.push([x as f32, y as f32, z as f32, w as f32]);
                        }
                    }
                }
            }
        }
        cells
    }
    /// `count` places, uniform in the box.
    pub fn scatter(&self, count: u32, seed: u64, population: u32) -> Vec<[f32; 4]> {
        let mut stream = Stream::new(seed, Purpose::Site, population, 0);
        let side = |d: usize| f64::from(self.high[d]) - f64::from(self.low[d]);
        (0..count)
            .map(|_| std::array::from_fn(|d| (f64::from(self.low[d]) + side(d) * stream.uniform()) as f32))
            .collect()
    }
}

/// The Euclidean distance, in f64 from coordinates in f32: the same everywhere.
pub fn distance(a: &[f32; 4], b: &[f32; 4]) -> f64 {
    let d = |i: usize| f64::from(a[i]) - f64::from(b[i]);
    (d(0) * d(0) + d(1) * d(1) + (d(2) * d(2) + d(3) * d(3))).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_filled_to_their_density() {
        let b = Box4 { low: [0, 0, 0, 2], high: [19, 19, 19, 2] };
        assert_eq!(b.sites(), 8000);
        let cells = b.fill(0.3, 5, 0);
        // Standard deviation 41.
        assert!((cells.len() as f64 - 2400.0).abs() < 205.0, "{}", cells.len());
        assert!(cells.iter().all(|c| c[3] == 2.0) && b.fill(1.0, 5, 0).len() == 8000 && b.fill(0.0, 5, 0).is_empty());
        assert_eq!(cells, b.fill(0.3, 5, 0));
        assert_ne!(cells, b.fill(0.3, 6, 0));
        assert_eq!(b.scatter(10, 1, 0).len(), 10);
        assert_eq!(distance(&[0.0; 4], &[1.0, 1.0, 1.0, 1.0]), 2.0);
    }
}
