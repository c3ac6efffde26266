//! The bodies for each vector width.
#![allow(unsafe_code)]

use super::{Block, Coefficients, Inputs};
use crate::simd_math::Lanes;

/// Runs a body over the cells of a block: `C` coefficients, `S` variables, `P` ports.
macro_rules! stepper {
    ($name:ident, $body:path, $c:literal, $s:literal, $p:literal) => {
        pub(super) mod $name {
            use super::*;

            #[inline(always)]
            fn cells<const FMA: bool, const R: usize, const N: usize>(block: &mut Block<'_>) {
                let each = matches!(block.coefficients, Coefficients::Each { .. });
                match (&block.inputs, each) {
                    (Inputs::Given(_), false) => vectors::<N, false, false>(block),
                    (Inputs::Given(_), true) => vectors::<N, false, true>(block),
                    (Inputs::Sums(..), false) => vectors::<N, true, false>(block),
                    (Inputs::Sums(..), true) => vectors::<N, true, true>(block),
                }
            }

            /// The slices lie in locals and are as long as each other: what the loop reads and where it ends stays in registers. Inside
            /// there are loops alone: a closure that stays a call is compiled without the vectors.
            #[inline(always)]
            fn vectors<const N: usize, const SUMS: bool, const EACH: bool>(block: &mut Block<'_>) {
                let count = block.spikes.len();
                let mut c = [Lanes::<N>::splat(0.0); $c];
                let mut rows: [&[[f32; N]]; $c] = [&[]; $c];
                match block.coefficients {
                    Coefficients::Shared(values) => {
                        for i in 0..$c {
                            c[i] = Lanes::splat(values[i]);
                        }
                    }
                    Coefficients::Each { values, stride, offset } => {
                        for i in 0..$c {
                            rows[i] = values[i * stride + offset..][..count].as_chunks().0;
                        }
                    }
                }
                let mut given: [&[[f32; N]]; $p] = [&[]; $p];
                let (mut sums, mut units): ([&mut [[i32; N]]; 2], _) = ([&mut [], &mut []], [0.0; $p]);
                match &mut block.inputs {
                    Inputs::Given(inputs) => {
                        for i in 0..$p {
                            given[i] = inputs[i][..count].as_chunks().0;
                        }
                    }
                    Inputs::Sums([first, second], unit) => {
                        sums[0] = first[..count].as_chunks_mut().0;
                        if $p > 1 {
                            sums[1] = second[..count].as_chunks_mut().0;
                        }
                        units.copy_from_slice(&unit[..$p]);
                    }
                }
                let states: &mut [&mut [f32]; $s] = block.states.try_into().expect("as many variables as the model has");
                let states: [&mut [[f32; N]]; $s] = states.each_mut().map(|s| s[..count].as_chunks_mut().0);
                let spikes: &mut [[u8; N]] = block.spikes.as_chunks_mut().0;
                for at in 0..count / N {
                    let mut s = [Lanes::<N>::splat(0.0); $s];
                    for i in 0..$s {
                        s[i].0 = states[i][at];
                    }
                    if EACH {
                        for i in 0..$c {
                            c[i].0 = rows[i][at];
                        }
                    }
                    let mut input = [Lanes::<N>::splat(0.0); $p];
                    for i in 0..$p {
                        if SUMS {
                            let sum = sums[i][at];
                            sums[i][at] = [0; N];
                            for l in 0..N {
                                input[i].0[l] = sum[l] as f32 * units[i];
                            }
                        } else {
                            input[i].0 = given[i][at];
                        }
                    }
                    let fired: Lanes<N> = $body(&c, &mut s, &input);
                    for i in 0..$s {
                        states[i][at] = s[i].0;
                    }
                    for l in 0..N {
                        spikes[at][l] = u8::from(fired.0[l] > 0.0);
                    }
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
