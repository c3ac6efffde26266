//! Cases of the optimizers' entries, and random state for them.

use super::blocks::{Grid, Parameter, Pool, packed};
use super::stepper::{Common, DecayMode};
use crate::op::{Case, Repeat, Repeats, Role, Signature, Tensors, Values};
use crate::rng::Rng;
use crate::{Error, Result, Shape};
use std::collections::BTreeMap;

/// The case of the matrices of a language model of 24 layers of width 1024, about 350 million parameters.
pub(super) const LANGUAGE_MODEL: &str = "lm350m";

/// L times parameters `[M, N]` and `[N]`, and with the option K one of `[K, M, N]`, each from a multiple of 64 elements on, and
/// how long the vector is. With `P` and the option `shapes` P parameters of these shapes; with the option `words` the matrices of a
/// language model of L layers of width M: those of attention and of two maps of 4 M, and one of so many words; N is M there.
pub(super) fn parameters(case: &Case) -> Result<(usize, Vec<Parameter>)> {
    let of_model = case.words() == LANGUAGE_MODEL;
    if let Some(text) = case.option("shapes") {
        let shapes: Vec<Shape> = text.split('+').map(|s| shape_of(case, s)).collect::<Result<_>>()?;
        if shapes.len() != case.size("P")? {
            return Err(Error::config(format!(
                "case `{case}`: P = {} where there are {} shapes",
                case.size("P")?,
                shapes.len()
            )));
        }
        return placed(shapes);
    }
    let [layers, m, n] = if of_model { [24, 1024, 1024] } else { [case.size("L")?, case.size("M")?, case.size("N")?] };
    let (k, words) = (case.get("K", 0usize)?, case.get("words", if of_model { 50304usize } else { 0 })?);
    if words > 0 && m != n {
        return Err(Error::config(format!(
            "case `{case}`: M = {m} and N = {n} are both the width of a model with words"
        )));
    }
    let mut shapes = Vec::new();
    for _ in 0..layers {
        if words == 0 {
            shapes.extend([Shape::from([m, n]), Shape::from([n])]);
            continue;
        }
        let times =
            |by: usize| m.checked_mul(by).ok_or_else(|| Error::shape(format!("case `{case}`: M = {m} is too large")));
        let [three, four] = [times(3)?, times(4)?];
        shapes.extend([[three, m], [m, m], [four, m], [m, four]].map(Shape::from));
    }
    if words > 0 {
        shapes.push(Shape::from([words, m]));
    }
    if k > 0 {
        shapes.push(Shape::from([k, m, n]));
    }
    placed(shapes)
}

/// Parameters one behind the other, and how long the vector is.
fn placed(shapes: Vec<Shape>) -> Result<(usize, Vec<Parameter>)> {
    let (mut end, mut list) = (0usize, Vec::new());
    for shape in shapes {
        list.push(Parameter::new(end, shape));
        end = end.saturating_add(shape.checked_elements()?).next_multiple_of(64);
    }
    Ok((end, list))
}

/// `3072x1024`.
fn shape_of(case: &Case, text: &str) -> Result<Shape> {
    let axes: Option<Vec<usize>> = text.split('x').map(|n| n.parse().ok()).collect();
    let axes =
        axes.ok_or_else(|| Error::config(format!("case `{case}`: `{text}` is not a shape such as 3072x1024")))?;
    Ok(Shape::from(axes.as_slice()))
}

/// Which sizes a case must have.
pub(super) fn allow(case: &Case, options: &[&str]) -> Result<()> {
    if case.words() == LANGUAGE_MODEL {
        case.allow_sizes(&[], options)
    } else if case.option("shapes").is_some() {
        case.allow(&["P"], options)
    } else {
        case.allow(&["L", "M", "N"], options)
    }
}

/// Clipping and weight decay.
pub(super) fn common(case: &Case) -> Result<Common> {
    let mode = case.option("mode").map_or(Ok(DecayMode::default()), str::parse)?;
    Ok(Common { clip: case.get("clip", 0.0)?, weight_decay: case.get("decay", 0.0)?, mode })
}

/// Elements that are drawn one by one; more are repetitions of as many, and of matrices of one size of one.
const DRAWN: usize = 4 << 20;

/// Random numbers.
fn drawn(shape: Shape, mut draw: impl FnMut() -> f64) -> Values {
    let mut data: Vec<f64> = (0..shape.elements().min(DRAWN)).map(|_| draw()).collect();
    let (first, all) = (data.len(), shape.elements());
    data.reserve_exact(all - first);
    while data.len() < all {
        data.extend_from_within(..first.min(all - data.len()));
    }
    Values { shape, data }
}

/// The smaller case of the language model: one matrix of `side`, with the same options.
pub(super) fn smaller(case: &Case, side: usize) -> Option<Case> {
    if case.words() != LANGUAGE_MODEL {
        return None;
    }
    let text = case.to_string();
    let options = text.strip_prefix(LANGUAGE_MODEL).unwrap_or_default();
    format!("L1_M{side}_N{side}{options}").parse::<Case>().ok().map(|c| c.without("words").0)
}

/// Where tensors have more elements than that, all of them, what they hold repeats.
const MANY: usize = 1 << 26;

/// What inputs and state behind `steps` steps repeat, where they are too many to be drawn: of a vector some millions of numbers, and
/// of matrices one of each size.
pub(super) fn repeated(signature: &Signature, grid: &Grid, steps: usize, seed: u64) -> Option<Repeats> {
    let state = signature.outputs.iter().filter(|t| t.role == Role::State);
    let read = || signature.inputs.iter().chain(state.clone());
    if read().map(|t| t.shape.elements()).sum::<usize>() <= MANY {
        return None;
    }
    let mut rng = Rng::new(seed, 0);
    let mut list = Vec::new();
    for t in read() {
        let n = t.shape.elements();
        let mut one = |draw: &mut dyn FnMut(&mut Rng) -> f64| {
            let values = Values::from_fn([n.min(DRAWN)], || draw(&mut rng));
            vec![Repeat { first: 0, count: n, values }]
        };
        let runs = match &*t.name {
            "rate" => one(&mut |_| 1e-2),
            "largest_rate" => one(&mut |_| 0.05),
            "step" => one(&mut |_| steps as f64),
            "decay" => one(&mut |rng| rng.below(2) as f64),
            "second" => one(&mut |rng| rng.normal().powi(2)),
            "factors" => repeated_factors(grid, &mut rng),
            "roots" => of_pools(grid, &mut |n| {
                let mut all = vec![0.0; n * n];
                draw_symmetric(n, &mut rng, &mut all);
                all
            }),
            "bases" => of_pools(grid, &mut |n| {
                let mut all = vec![0.0; n * n];
                all.iter_mut().step_by(n + 1).for_each(|x| *x = 1.0);
                reflect(n, &mut rng, &mut all);
                all
            }),
            _ => one(&mut |rng| rng.normal()),
        };
        list.push((t.name.to_string(), runs));
    }
    Some(list)
}

fn of_pools(grid: &Grid, one: &mut dyn FnMut(usize) -> Vec<f64>) -> Vec<Repeat> {
    let mut run = |pool: &Pool| {
        let n = pool.size;
        let values = Values { shape: [n * n].into(), data: one(n) };
        Repeat { first: pool.first, count: pool.members.len() * n * n, values }
    };
    grid.pools.iter().map(&mut run).collect()
}

/// A factor of each size; those of one size that follow each other are one run.
fn repeated_factors(grid: &Grid, rng: &mut Rng) -> Vec<Repeat> {
    let mut made = BTreeMap::new();
    let mut runs: Vec<Repeat> = Vec::new();
    for b in &grid.blocks {
        for (&first, &n) in b.factors.iter().zip(&b.sizes) {
            let count = packed(n);
            match runs.last_mut() {
                Some(run) if run.values.data.len() == count && run.first + run.count == first => run.count += count,
                _ => {
                    let draw = || {
                        let mut all = vec![0.0; count];
                        gram(rng, n, &mut all);
                        all
                    };
                    let data = made.entry(n).or_insert_with(draw).clone();
                    runs.push(Repeat { first, count, values: Values { shape: [count].into(), data } });
                }
            }
        }
    }
    runs
}

/// Random inputs and state behind `steps` steps: factors are Gram matrices, roots are symmetric, gaps are zeros.
pub(super) fn state(signature: &Signature, grid: &Grid, parameters: &[Parameter], steps: usize, seed: u64) -> Tensors {
    let mut rng = Rng::new(seed, 0);
    let read = signature.inputs.iter().chain(signature.outputs.iter().filter(|t| t.role == Role::State));
    let mut all = Tensors::new();
    for t in read {
        let mut values = match &*t.name {
            "rate" => Values::from_fn(t.shape, || 1e-2),
            "largest_rate" => Values::from_fn(t.shape, || 0.05),
            "step" => Values::from_fn(t.shape, || steps as f64),
            "decay" => drawn(t.shape, || rng.below(2) as f64),
            "second" => drawn(t.shape, || rng.normal().powi(2)),
            "factors" => factors(grid, &mut rng),
            "roots" => symmetric(grid, &mut rng),
            "bases" => orthogonal(grid, &mut rng),
            _ => drawn(t.shape, || rng.normal()),
        };
        if t.axes == "[N]" && !values.data.is_empty() {
            let mut inside = vec![false; values.data.len()];
            parameters.iter().for_each(|p| inside[p.first..p.first + p.shape.elements()].fill(true));
            values.data.iter_mut().zip(inside).filter(|(_, inside)| !inside).for_each(|(x, _)| *x = 0.0);
        }
        all.insert(t.name.to_string(), values.rounded(t.dtype));
    }
    all
}

/// Gradients of a rank, block by block, and factors of it; 0 is zeros.
pub(super) fn of_rank(all: &mut Tensors, grid: &Grid, rank: usize, seed: u64) -> Result<()> {
    let mut rng = Rng::new(seed, 1);
    let mut grad = all.get("grad")?.clone();
    let mut factors = all.get("factors")?.clone();
    for b in grid.blocks.iter().filter(|b| !b.factors.is_empty()) {
        let parts: Vec<Vec<f64>> =
            b.sizes.iter().map(|&n| (0..n * rank).map(|_| rng.normal()).collect::<Vec<f64>>()).collect();
        b.rows(|at, there| {
            for i in 0..b.width() {
                let term = |r: usize| {
                    let mut rest = at + i;
                    let mut product = 1.0;
                    for (part, n) in parts.iter().zip(&b.sizes).rev() {
                        product *= part[rest % n * rank + r];
                        rest /= n;
                    }
                    product
                };
                grad.data[there + i] = (0..rank).map(term).sum();
            }
        });
        for ((part, &n), &at) in parts.iter().zip(&b.sizes).zip(&b.factors) {
            for i in 0..n {
                for j in 0..=i {
                    factors.data[at + packed(i) + j] = (0..rank).map(|r| part[i * rank + r] * part[j * rank + r]).sum();
                }
            }
        }
    }
    all.insert("grad", grad);
    all.insert("factors", factors);
    Ok(())
}

/// A A^T / n of normal A `[n, 2 n]`, packed, to the first places of `to`.
pub(super) fn gram(rng: &mut Rng, n: usize, to: &mut [f64]) {
    let a: Vec<f64> = (0..2 * n * n).map(|_| rng.normal()).collect();
    for i in 0..n {
        for j in 0..=i {
            let dot: f64 = (0..2 * n).map(|k| a[i * 2 * n + k] * a[j * 2 * n + k]).sum();
            to[packed(i) + j] = dot / n as f64;
        }
    }
}

/// A factor of each axis of each block.
fn factors(grid: &Grid, rng: &mut Rng) -> Values {
    let mut all = vec![0.0; grid.factor_elements];
    let mut made = BTreeMap::new();
    for b in &grid.blocks {
        for (axis, &at) in b.factors.iter().enumerate() {
            let n = b.sizes[axis];
            let from = *made.entry(n).or_insert(at);
            if grid.factor_elements > DRAWN && from != at {
                all.copy_within(from..from + packed(n), at);
                continue;
            }
            gram(rng, n, &mut all[at..]);
        }
    }
    Values { shape: [all.len()].into(), data: all }
}

/// I behind three random reflections.
fn orthogonal(grid: &Grid, rng: &mut Rng) -> Values {
    let mut all: Vec<f64> = grid.identities().iter().map(|&x| x.into()).collect();
    for pool in &grid.pools {
        let n = pool.size;
        for q in all[pool.first..pool.first + pool.members.len() * n * n].chunks_exact_mut(n * n) {
            reflect(n, rng, q);
        }
    }
    Values { shape: [all.len()].into(), data: all }
}

/// Three random reflections of a matrix.
fn reflect(n: usize, rng: &mut Rng, q: &mut [f64]) {
    for _ in 0..3 {
        let v: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
        let scale = 2.0 / v.iter().map(|x| x * x).sum::<f64>();
        for row in q.chunks_exact_mut(n) {
            let along = scale * row.iter().zip(&v).map(|(x, v)| x * v).sum::<f64>();
            row.iter_mut().zip(&v).for_each(|(x, v)| *x -= along * v);
        }
    }
}

fn draw_symmetric(n: usize, rng: &mut Rng, to: &mut [f64]) {
    for i in 0..n {
        for j in 0..=i {
            let x = rng.normal();
            (to[i * n + j], to[j * n + i]) = (x, x);
        }
    }
}

fn symmetric(grid: &Grid, rng: &mut Rng) -> Values {
    let mut all = vec![0.0; grid.root_elements];
    for pool in &grid.pools {
        let n = pool.size;
        for m in 0..pool.members.len() {
            let at = pool.first + m * n * n;
            if grid.root_elements > DRAWN && m > 0 {
                all.copy_within(pool.first..pool.first + n * n, at);
                continue;
            }
            draw_symmetric(n, rng, &mut all[at..at + n * n]);
        }
    }
    Values { shape: [all.len()].into(), data: all }
}
