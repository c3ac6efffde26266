//! Parameters as blocks: axes of size one left out, neighbouring axes merged, each axis cut, and where the matrices of a
//! block's axes lie.

use crate::{Error, Result, Shape};

/// A parameter in the flat vector of all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its first element.
    pub first: usize,
    /// Its sizes.
    pub shape: Shape,
}

impl Parameter {
    /// A parameter of `shape` from element `first` on.
    pub fn new(first: usize, shape: impl Into<Shape>) -> Self {
        Self { first, shape: shape.into() }
    }
}

/// How parameters are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The longest axis of a block.
    pub most: usize,
    /// Whether neighbouring axes are merged while their product is at most that.
    pub merge: bool,
    /// Whether parameters of one axis have a matrix.
    pub vectors: bool,
}

/// A part of a parameter that is preconditioned by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Its first element in the flat vector.
    pub first: usize,
    /// Its sizes; the last axis is contiguous.
    pub sizes: Vec<usize>,
    /// Elements from one index of an axis to the next.
    pub strides: Vec<usize>,
    /// Added to the count of steps: what decides when it is this block's turn.
    pub turn: usize,
    /// By axis, where its packed factor begins; empty where the block has no matrices.
    pub factors: Vec<usize>,
    /// By axis, where what is made of the factor begins.
    pub roots: Vec<usize>,
}

/// Matrices of blocks of one order and of one size: they lie side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Axes of the blocks.
    pub order: usize,
    /// n.
    pub size: usize,
    /// Where the first root begins.
    pub first: usize,
    /// Block and axis of each.
    pub members: Vec<(usize, usize)>,
}

/// Every block of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grid {
    /// In the order of the parameters.
    pub blocks: Vec<Block>,
    /// By order and size.
    pub pools: Vec<Pool>,
    /// Elements of all packed factors.
    pub factor_elements: usize,
    /// Elements of all matrices.
    pub root_elements: usize,
}

/// Elements of the lower triangle of `[n, n]`, row after row.
pub const fn packed(n: usize) -> usize {
    n * (n + 1) / 2
}

impl Block {
    /// How many elements it has.
    pub fn elements(&self) -> usize {
        self.sizes.iter().product()
    }
    /// Whether its turn comes with step `step`.
    pub const fn due(&self, step: usize, every: usize) -> bool {
        (step + self.turn).is_multiple_of(every)
    }
    /// Calls `row` with the first element of each row of the last axis: in the block, and in the flat vector.
    pub(super) fn rows(&self, mut row: impl FnMut(usize, usize)) {
        let width = self.sizes.last().copied().unwrap_or(1);
        for at in (0..self.elements()).step_by(width.max(1)) {
            let (mut rest, mut there) = (at, self.first);
            for (size, stride) in self.sizes.iter().zip(&self.strides).rev() {
                there += rest % size * stride;
                rest /= size;
            }
            row(at, there);
        }
    }
    /// The length of a row.
    pub(super) fn width(&self) -> usize {
        self.sizes.last().copied().unwrap_or(1)
    }
    /// Elements of the axes before `axis`, its own, and of those behind it.
    pub(super) fn around(&self, axis: usize) -> [usize; 3] {
        [self.sizes[..axis].iter().product(), self.sizes[axis], self.sizes[axis + 1..].iter().product()]
    }
}

/// Sizes without ones, neighbours merged while their product is at most `most`.
fn merged(sizes: &[usize], cut: Cut) -> Vec<usize> {
    let mut out: Vec<usize> = Vec::new();
    for &n in sizes.iter().filter(|&&n| n != 1) {
        match out.last_mut() {
            Some(last) if cut.merge && *last * n <= cut.most => *last *= n,
            _ => out.push(n),
        }
    }
    out
}

/// Where an axis is cut: the starts and lengths of its regions, each of equal pieces.
fn pieces(n: usize, most: usize) -> Vec<(usize, usize, usize)> {
    let whole = n / most * most;
    let mut list = Vec::new();
    if whole > 0 {
        list.push((0, whole / most, most));
    }
    if n > whole {
        list.push((whole, 1, n - whole));
    }
    list
}

impl Grid {
    /// The blocks of `parameters`.
    ///
    /// # Errors
    /// A cut of length 0, and sizes beyond 64 bits.
    pub fn new(parameters: &[Parameter], cut: Cut) -> Result<Self> {
        if cut.most == 0 {
            return Err(Error::value("blocks: an axis cannot be cut to 0 elements"));
        }
        let mut grid = Self::default();
        for p in parameters {
            let elements = p.shape.checked_elements()?;
            let shape = merged(&p.shape, cut);
            if elements == 0 {
                continue;
            }
            if shape.is_empty() || (shape.len() == 1 && !cut.vectors) {
                let (sizes, strides) = (vec![elements], vec![1]);
                let (factors, roots) = (Vec::new(), Vec::new());
                grid.blocks.push(Block { first: p.first, sizes, strides, turn: 0, factors, roots });
                continue;
            }
            grid.cut(p.first, &shape, cut.most);
        }
        grid.place()?;
        Ok(grid)
    }
    fn cut(&mut self, first: usize, shape: &[usize], most: usize) {
        let strides: Vec<usize> = (0..shape.len()).map(|k| shape[k + 1..].iter().product()).collect();
        let axes: Vec<Vec<(usize, usize, usize)>> = shape.iter().map(|&n| pieces(n, most)).collect();
        let regions = axes.iter().map(Vec::len).product::<usize>();
        for region in 0..regions {
            let mut rest = region;
            let mut chosen = vec![(0, 0, 0); shape.len()];
            for (k, axis) in axes.iter().enumerate().rev() {
                chosen[k] = axis[rest % axis.len()];
                rest /= axis.len();
            }
            for nth in 0..chosen.iter().map(|c| c.1).product::<usize>() {
                let (mut rest, mut at) = (nth, first);
                for (&(start, count, size), stride) in chosen.iter().zip(&strides).rev() {
                    at += (start + rest % count * size) * stride;
                    rest /= count;
                }
                let turn = self.blocks.iter().rev().find(|b| !b.factors.is_empty()).map_or(0, |b| b.turn + 1);
                let sizes: Vec<usize> = chosen.iter().map(|c| c.2).collect();
                // Places follow; until then they say that there are matrices.
                let factors = vec![0; sizes.len()];
                let roots = factors.clone();
                self.blocks.push(Block { first: at, sizes, strides: strides.clone(), turn, factors, roots });
            }
        }
    }
    fn place(&mut self) -> Result<()> {
        let too_many = || Error::shape("blocks: the matrices of all axes exceed 64-bit sizes");
        let mut pools: Vec<Pool> = Vec::new();
        for (b, block) in self.blocks.iter_mut().enumerate() {
            let order = block.sizes.len();
            for axis in 0..block.factors.len() {
                let size = block.sizes[axis];
                block.factors[axis] = self.factor_elements;
                let triangle = size.checked_add(1).and_then(|m| m.checked_mul(size)).ok_or_else(too_many)? / 2;
                self.factor_elements = self.factor_elements.checked_add(triangle).ok_or_else(too_many)?;
                match pools.iter_mut().find(|p| (p.order, p.size) == (order, size)) {
                    Some(pool) => pool.members.push((b, axis)),
                    None => pools.push(Pool { order, size, first: 0, members: vec![(b, axis)] }),
                }
            }
        }
        pools.sort_by_key(|p| (p.order, p.size));
        for pool in &mut pools {
            pool.first = self.root_elements;
            let one = pool.size.checked_mul(pool.size).ok_or_else(too_many)?;
            let all = one.checked_mul(pool.members.len()).ok_or_else(too_many)?;
            for (i, &(b, axis)) in pool.members.iter().enumerate() {
                self.blocks[b].roots[axis] = pool.first + i * one;
            }
            self.root_elements = self.root_elements.checked_add(all).ok_or_else(too_many)?;
        }
        self.pools = pools;
        Ok(())
    }
    /// I in the place of every matrix: what is used until there is a root.
    pub fn identities(&self) -> Vec<f32> {
        let mut all = vec![0.0; self.root_elements];
        for pool in &self.pools {
            let square = pool.size * pool.size;
            for i in 0..pool.members.len() {
                let from = pool.first + i * square;
                all[from..from + square].iter_mut().step_by(pool.size + 1).for_each(|x| *x = 1.0);
            }
        }
        all
    }
    /// The longest axis that has a matrix.
    pub(super) fn largest(&self) -> usize {
        self.pools.iter().map(|p| p.size).max().unwrap_or(0)
    }
    /// Elements of the largest block.
    pub(super) fn most_elements(&self) -> usize {
        self.blocks.iter().map(Block::elements).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUT: Cut = Cut { most: 4, merge: true, vectors: true };

    #[test]
    fn ones_go_and_neighbours_merge() {
        let of = |sizes: &[usize], most| merged(sizes, Cut { most, ..CUT });
        assert_eq!(of(&[1, 3, 1, 2, 5, 2], 6), [6, 5, 2]);
        assert_eq!(of(&[2, 2, 2, 2], 4), [4, 4]);
        assert_eq!(of(&[7, 8], 4), [7, 8]);
        assert_eq!(merged(&[2, 2], Cut { merge: false, ..CUT }), [2, 2]);
        assert!(of(&[1, 1], 4).is_empty());
    }

    /// Every element of every parameter lies in one block, whatever the cut.
    #[test]
    fn blocks_cover_parameters_once() {
        let shapes: [&[usize]; 7] = [&[9, 5], &[], &[13], &[3, 5, 7], &[1, 4], &[0, 3], &[2, 3, 2, 5]];
        for cut in [CUT, Cut { merge: false, ..CUT }, Cut { vectors: false, ..CUT }, Cut { most: 100, ..CUT }] {
            let mut next = 3;
            let mut parameters = Vec::new();
            for s in shapes {
                parameters.push(Parameter::new(next, Shape::new(s)));
                next += Shape::new(s).elements() + 2;
            }
            let grid = Grid::new(&parameters, cut).unwrap();
            let mut seen = vec![0; next];
            for b in &grid.blocks {
                b.rows(|_, there| seen[there..there + b.width()].iter_mut().for_each(|n| *n += 1));
                assert!(b.factors.is_empty() || b.sizes.iter().all(|&n| n <= cut.most), "{b:?}");
            }
            for p in &parameters {
                let n = p.shape.elements();
                assert!(seen[p.first..p.first + n].iter().all(|&n| n == 1), "{p:?} {cut:?}");
                seen[p.first..p.first + n].fill(0);
            }
            assert!(seen.iter().all(|&n| n == 0), "{cut:?}");
            let factors: usize = grid.pools.iter().map(|p| p.members.len() * packed(p.size)).sum();
            assert_eq!(factors, grid.factor_elements);
            let turns: Vec<usize> = grid.blocks.iter().filter(|b| !b.factors.is_empty()).map(|b| b.turn).collect();
            assert_eq!(turns, (0..turns.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn matrices_of_one_size_lie_side_by_side() {
        let parameters = [Parameter::new(0, [6, 4]), Parameter::new(24, [4]), Parameter::new(28, [4, 6])];
        let grid = Grid::new(&parameters, CUT).unwrap();
        // [6, 4] is cut to [4, 4] and [2, 4], [4, 6] to [4, 4] and [4, 2].
        assert_eq!(grid.blocks.len(), 5);
        let of = |order, size| grid.pools.iter().find(|p| (p.order, p.size) == (order, size)).unwrap().clone();
        assert_eq!(of(1, 4).members, [(2, 0)]);
        assert_eq!(of(2, 2).members, [(1, 0), (4, 1)]);
        assert_eq!(of(2, 4).members, [(0, 0), (0, 1), (1, 1), (3, 0), (3, 1), (4, 0)]);
        assert_eq!(of(2, 4).first, 16 + 2 * 4);
        assert_eq!(grid.root_elements, 16 + 2 * 4 + 6 * 16);
        let eye = grid.identities();
        assert_eq!((eye.iter().sum::<f32>(), eye.len()), (4.0 + 4.0 + 24.0, grid.root_elements));
        assert!(Grid::new(&parameters, Cut { most: 0, ..CUT }).is_err());
    }
}
