//! The bodies for each vector width.
#![allow(unsafe_code)]

use super::{Block, Coefficients};
use crate::simd_math::Lanes;
use std::array;

/// Runs a body over the cells of a block: `C` coefficients, `S` variables, `P` ports.
macro_rules! stepper {
    ($name:ident, $body:path, $c:literal, $s:literal, $p:literal) => {
        pub(super) mod $name {
            use super::*;

            #[inline(always)]
            fn cells<const FMA: bool, const R: usize, const N: usize>(block: &mut Block<'_>) {
                let count = block.spikes.len();
                let states: &mut [&mut [f32]; $s] = block.states.try_into().expect("as many variables as the model has");
                let inputs: &[&[f32]; $p] = block.inputs.try_into().expect("as many ports as the model has");
                let shared: [Lanes<N>; $c] = match block.coefficients {
                    Coefficients::Shared(values) => array::from_fn(|i| Lanes::splat(values[i])),
                    Coefficients::Each { .. } => [Lanes::splat(0.0); $c],
                };
                let mut at = 0;
                while at + N <= count {
                    let load = |values: &[f32], at: usize| {
                        let mut lanes = [0.0; N];
                        lanes.copy_from_slice(&values[at..at + N]);
                        Lanes(lanes)
                    };
                    let c = match block.coefficients {
                        Coefficients::Shared(_) => shared,
                        Coefficients::Each { values, stride, offset } => {
                            array::from_fn(|i| load(values, i * stride + offset + at))
                        }
                    };
                    let mut s: [Lanes<N>; $s] = array::from_fn(|i| load(states[i], at));
                    let input: [Lanes<N>; $p] = array::from_fn(|i| load(inputs[i], at));
                    let fired: Lanes<N> = $body(&c, &mut s, &input);
                    for i in 0..$s {
                        states[i][at..at + N].copy_from_slice(&s[i].0);
                    }
                    let spikes: &mut [u8] = &mut block.spikes[at..at + N];
                    for l in 0..N {
                        spikes[l] = u8::from(fired.0[l] > 0.0);
                    }
                    at += N;
                }
            }
            crate::levels!(pub(in super::super) fn step(block: &mut Block<'_>) = cells, 0, [8, 8, 16]);
        }
    };
}

stepper!(lif_exp, super::super::lif_exp::body, 7, 3, 1);
stepper!(lif_exp2, super::super::lif_exp::body2, 9, 4, 2);
stepper!(lif_delta, super::super::lif_delta::body, 5, 2, 1);
stepper!(lif_alpha, super::super::lif_alpha::body, 15, 6, 2);
stepper!(lif_cond, super::super::lif_cond::body, 12, 4, 2);
stepper!(adex, super::super::adex::body, 20, 5, 2);
stepper!(izhikevich, super::super::izhikevich::body, 9, 2, 1);
stepper!(hodgkin_huxley, super::super::hodgkin_huxley::body, 14, 5, 1);
