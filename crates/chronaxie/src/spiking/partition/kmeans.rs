//! Balanced k-means in four dimensions: each cell goes to the centre that is nearest, where a centre whose part has too much
//! work seems farther away (von Looz, Tzovas and Meyerhenke, ICPP 2018). It begins with ranges along a Z-order curve and draws
//! nothing, so the same network has the same layout.

use super::groups::{self, Groups};
use super::{Layout, Load, Partitioner, cut};
use crate::Result;

/// Cells are taken together in at most so many groups.
const GROUPS: usize = 16_384;
const ROUNDS: usize = 80;
/// How much more work than the mean a part may have.
const SPARE: f64 = 1.03;

/// Likewise.
pub struct KMeans;

impl Partitioner for KMeans {
    fn name(&self) -> &'static str {
        "kmeans"
    }
    fn about(&self) -> &'static str {
        "k-means in four dimensions, balanced by work"
    }
    fn layout(&self, load: &Load<'_>, parts: usize) -> Result<Layout> {
        let groups = Groups::new(load, GROUPS);
        let of = balanced(&groups.centre, &groups.work, parts);
        let each: Vec<u32> = groups.of.iter().map(|g| of[*g as usize]).collect();
        groups::layout(load, parts, &groups.cells, &each)
    }
}

fn square(a: &[f64; 4], b: &[f64; 4]) -> f64 {
    (0..4).map(|d| (a[d] - b[d]) * (a[d] - b[d])).sum()
}

/// The part of each point.
fn balanced(points: &[[f64; 4]], work: &[f64], parts: usize) -> Vec<u32> {
    let mut of = cut(work.iter().copied(), parts);
    if points.len() <= parts {
        return of;
    }
    let mean = work.iter().sum::<f64>() / parts as f64;
    let mut weight = vec![1.0; parts];
    // What is kept: balanced and compact, or else the most balanced.
    let (mut best, mut kept) = ((f64::INFINITY, f64::INFINITY), of.clone());
    for _ in 0..ROUNDS {
        let (centres, loads) = centres(points, work, &of, parts);
        let worst = loads.iter().fold(0.0, |a: f64, b| a.max(*b)) / mean;
        let spread: f64 =
            points.iter().zip(&of).zip(work).map(|((p, k), w)| w * square(p, &centres[*k as usize])).sum();
        let score = if worst <= SPARE { (0.0, spread) } else { (worst, spread) };
        if score < best {
            (best, kept) = (score, of.clone());
        }
        for (w, load) in weight.iter_mut().zip(&loads) {
            *w *= (load / mean).clamp(0.5, 2.0).powf(0.5);
        }
        for (p, k) in points.iter().zip(&mut of) {
            let cost = |k: usize| square(p, &centres[k]) * weight[k];
            *k = (0..parts).min_by(|a, b| cost(*a).total_cmp(&cost(*b))).unwrap_or(0) as u32;
        }
    }
    even_out(points, work, &mut kept, parts);
    kept
}

fn centres(points: &[[f64; 4]], work: &[f64], of: &[u32], parts: usize) -> (Vec<[f64; 4]>, Vec<f64>) {
    let (mut centres, mut loads) = (vec![[0.0; 4]; parts], vec![0.0; parts]);
    for ((p, k), w) in points.iter().zip(of).zip(work) {
        let k = *k as usize;
        loads[k] += w;
        (0..4).for_each(|d| centres[k][d] += w * p[d]);
    }
    for (k, (c, w)) in centres.iter_mut().zip(&loads).enumerate() {
        if *w > 0.0 {
            c.iter_mut().for_each(|x| *x /= w);
        } else {
            // A part that lost all of its points begins anew at one of them.
            *c = points[k * points.len() / parts];
        }
    }
    (centres, loads)
}

/// Moves points out of parts that have too much, those first that lie nearly as near to another centre.
fn even_out(points: &[[f64; 4]], work: &[f64], of: &mut [u32], parts: usize) {
    let mean = work.iter().sum::<f64>() / parts as f64;
    let (centres, mut loads) = centres(points, work, of, parts);
    for from in 0..parts {
        if loads[from] <= SPARE * mean {
            continue;
        }
        let mut moves: Vec<(f64, usize, usize)> = Vec::new();
        for (i, p) in points.iter().enumerate().filter(|(i, _)| of[*i] as usize == from) {
            let away = square(p, &centres[from]);
            let others = (0..parts).filter(|k| *k != from);
            moves.extend(others.map(|k| (square(p, &centres[k]) - away, i, k)));
        }
        moves.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (_, i, to) in moves {
            if loads[from] <= SPARE * mean {
                break;
            }
            if of[i] as usize == from && loads[to] + work[i] <= SPARE * mean {
                of[i] = to as u32;
                loads[from] -= work[i];
                loads[to] += work[i];
            }
        }
    }
}
