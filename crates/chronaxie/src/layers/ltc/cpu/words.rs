//! The words that are kept of unfolds (`Kept::Words`): written by the forward pass of a group of rows, and read by its backward pass.

use super::backward::Given;
use super::forward::Call;
use super::layout::Group;
use crate::layers::ltc::spec::word;
use crate::shared::Shared;

/// Those of unfold k of step t, from the states before it, `[H + 1, R]`, and its denominators, of which R lanes count of each `stride`.
#[inline(always)]
pub(super) fn write<const R: usize>(
    call: &Call<'_>,
    g: Group,
    (t, k): (usize, usize),
    now: &[f32],
    (dens, stride): (&[f32], usize),
    to: Shared<i32>,
) {
    let (steps, unfolds, hidden) = (call.p.steps, call.p.unfolds, call.p.hidden);
    for l in 0..g.rows {
        // SAFETY: elements of this group's rows.
        let step = unsafe { to.part(((g.row + l) * steps + t) * (unfolds + 1) * hidden, (unfolds + 1) * hidden) };
        let (firsts, words) = step.split_at_mut(hidden);
        for (j, (first, word)) in firsts.iter_mut().zip(&mut words[k * hidden..]).enumerate() {
            let (state, den) = (now[j * R + l], dens[j * stride + l]);
            let of_first = f32::from_bits(first.cast_unsigned());
            *word = if k == 0 { state.to_bits() } else { word::pack(state, den * of_first) }.cast_signed();
            if k == 0 {
                *first = (1.0 / den).to_bits().cast_signed();
            }
        }
    }
}

/// All states of step t, `[K + 1, H + 1, R]`, and the inverse denominators, `[K, H, R]`, as the words tell them.
#[inline(always)]
pub(super) fn read<const R: usize>(
    call: &Call<'_>,
    g: Group,
    t: usize,
    (given, words): (&Given<'_>, &[i32]),
    v: &mut [f32],
    inverse: &mut [f32],
) {
    let (steps, unfolds, hidden) = (call.p.steps, call.p.unfolds, call.p.hidden);
    let (v, inverse) = (v.as_chunks_mut::<R>().0, inverse.as_chunks_mut::<R>().0);
    for k in 0..=unfolds {
        v[k * (hidden + 1) + hidden] = [0.0; R];
    }
    for l in 0..R {
        let row = g.row_of(l);
        let (firsts, words) = words[(row * steps + t) * (unfolds + 1) * hidden..].split_at(hidden);
        for j in 0..hidden {
            let first = f32::from_bits(firsts[j].cast_unsigned());
            for k in 0..unfolds {
                let word = words[k * hidden + j].cast_unsigned();
                let (state, quotient) = if k == 0 { (f32::from_bits(word), 1.0) } else { word::unpack(word) };
                v[k * (hidden + 1) + j][l] = state;
                inverse[k * hidden + j][l] = first / quotient;
            }
            // SAFETY: rows of a group are below B, t below T and j below H.
            v[unfolds * (hidden + 1) + j][l] = unsafe { given.states.at_unchecked([row, t, j]) };
        }
    }
}
