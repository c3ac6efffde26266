//! The laws against `chronaxie.optim.KFAC`: a small network of two maps, in f64 there and here.

use super::factors::reference::{Inputs as Batch, forward};
use super::reference::{Inputs, State, step};
use super::{Damping, Factors, Kfac, Map, Sharing, Terms};
use crate::op::{Channels, LinearMap};
use crate::optim::blocks::Parameter;
use crate::optim::stepper::DecayMode;

/// Rows, steps of a row, and the sizes of what lies between the maps.
const B: usize = 5;
const R: usize = 3;
const SIZES: [usize; 3] = [3, 4, 2];
/// Weights and biases of both maps: 4 x 3, 4, 2 x 4, 2.
const FIRST: [usize; 4] = [0, 12, 16, 24];
const N: usize = 26;

/// What both maps read, and the gradients of what they give, under the mean of cross-entropies at all steps of all rows.
struct Passes {
    x: [Vec<f64>; 2],
    grad: [Vec<f64>; 2],
}

fn passes(w: &[f64], scale: f64) -> Passes {
    let x: Vec<f64> = (0..B * R * SIZES[0]).map(|i| (1.0 + 0.7 * i as f64).sin() * scale).collect();
    let map = |l: usize, x: &[f64]| -> Vec<f64> {
        let of = |o: usize| {
            w[FIRST[2 * l + 1] + o] + (0..SIZES[l]).map(|k| w[FIRST[2 * l] + o * SIZES[l] + k] * x[k]).sum::<f64>()
        };
        (0..SIZES[l + 1]).map(of).collect()
    };
    let mut all = Passes { x: [x.clone(), Vec::new()], grad: [Vec::new(), Vec::new()] };
    for (i, x) in x.chunks(SIZES[0]).enumerate() {
        let hidden: Vec<f64> = map(0, x).iter().map(|z| z.tanh()).collect();
        let e: Vec<f64> = map(1, &hidden).iter().map(|y| y.exp()).collect();
        let sum: f64 = e.iter().sum();
        let label = (i * i / 3) % 2;
        let last: Vec<f64> =
            e.iter().enumerate().map(|(c, e)| (e / sum - f64::from(u8::from(c == label))) / (B * R) as f64).collect();
        for (k, h) in hidden.iter().enumerate() {
            let back: f64 = (0..2).map(|c| last[c] * w[FIRST[2] + c * 4 + k]).sum();
            all.grad[0].push(back * (1.0 - h * h));
        }
        all.x[1].extend(hidden);
        all.grad[1].extend(last);
    }
    all
}

/// The parameters after six steps of inputs that grow.
fn trained(p: Kfac, sharing: Sharing, terms: Terms) -> Vec<f64> {
    let p = p.build().unwrap();
    let zeros = |n: usize| vec![0.0; n];
    let places = &p.places;
    let mut s = State {
        parameter: (0..N).map(|k| 0.5 * (0.9 * k as f64).cos()).collect(),
        first: zeros(N),
        second: zeros(N),
        factors: zeros(places.factors),
        bases: zeros(places.bases),
        values: zeros(places.values),
        squares: zeros(places.squares),
        averaged: zeros(2),
        step: 0,
        largest_rate: 0.0,
    };
    for t in 0..6 {
        let passes = passes(&s.parameter, 1.0 + 0.1 * t as f64);
        let mut grad = zeros(N);
        let (mut seen, mut seen_squares) = (zeros(places.factors), zeros(places.squares));
        for (l, at) in places.maps.iter().enumerate() {
            let (d, h) = (SIZES[l], SIZES[l + 1]);
            for (x, g) in passes.x[l].chunks(d).zip(passes.grad[l].chunks(h)) {
                for (o, g) in g.iter().enumerate() {
                    (0..d).for_each(|k| grad[FIRST[2 * l] + o * d + k] += g * x[k]);
                    grad[FIRST[2 * l + 1] + o] += g;
                }
            }
            let (from, to) = (Channels::beside(d), Channels::beside(h));
            let map = LinearMap { batch: B, steps: R, x: "x", grad: "grad_y", weight: "w", bias: Some("b"), from, to };
            let factors = Factors::new(&map).sharing(sharing).terms(terms).squares(p.ekfac).build().unwrap();
            let bases = [&s.bases[at.basis_a..][..(d + 1) * (d + 1)], &s.bases[at.basis_g..][..h * h]];
            let bases = p.ekfac.then_some(bases);
            let made = forward(&factors, &Batch { x: &passes.x[l], grad: &passes.grad[l], lengths: &[R; B], bases });
            let put = |to: &mut [f64], at: usize, from: &[f64]| to[at..at + from.len()].copy_from_slice(from);
            put(&mut seen, at.a, &made.a);
            put(&mut seen, at.g, &made.g);
            put(&mut seen_squares, at.squares, &made.squares);
        }
        // What opens is the first step alone.
        let now = Kfac { opens: t == 0, ..p.clone() };
        let given = Inputs { grad: &grad, decay: &[1.0; N], rate: 0.1, seen: &seen, seen_squares: &seen_squares };
        step(&now, &mut s, &given);
    }
    s.parameter
}

fn problem() -> Kfac {
    let shapes: [&[usize]; 4] = [&[4, 3], &[4], &[2, 4], &[2]];
    let parameters = FIRST.iter().zip(shapes).map(|(&first, shape)| Parameter::new(first, shape)).collect();
    let maps = vec![
        Map { weight: 0, rows: 4, columns: 3, bias: Some(12) },
        Map { weight: 16, rows: 2, columns: 4, bias: Some(24) },
    ];
    Kfac { damping: 1e-2, inverse_frequency: 1, ..Kfac::new(N, parameters, maps) }
}

/// What `KFAC(model.double(), lr=0.1, ...)` makes of `Sequential(Linear(3, 4), Tanh(), Linear(4, 2))`, ten digits of each.
#[test]
fn six_steps_are_those_of_the_python_class() {
    let agree = |name: &str, got: Vec<f64>, want: [f64; N]| {
        let off = got.iter().zip(want).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
        assert!(off < 1e-9, "{name}: {off:e}");
    };
    let mut p = problem();
    p.common.weight_decay = 0.1;
    agree("exact", trained(p, Sharing::Expand, Terms::Batch), EXACT);
    let mut p = Kfac { damping: 3e-2, mode: Damping::Factored, kl_clip: 1e-3, ..problem() };
    (p.common.weight_decay, p.common.mode) = (0.1, DecayMode::L2);
    agree("factored", trained(p, Sharing::Reduce, Terms::Batch), FACTORED);
    let p = Kfac { ekfac: true, inverse_frequency: 100, kl_clip: 0.0, decay: 0.6, ..problem() };
    agree("ekfac", trained(p, Sharing::Expand, Terms::Positions), EKFAC);
    let p = Kfac { factor_frequency: 2, momentum: 0.5, ..problem() };
    agree("every second", trained(p, Sharing::Reduce, Terms::Positions), SECOND);
}

#[rustfmt::skip]
const EXACT: [f64; N] = [
    0.0150898210, 0.1744511153, 0.1679410390, -1.2258696488, -1.2870899478, -0.6220435997, 0.4486608246, 1.3058529194,
    1.4140507536, -0.2997092280, -0.5959256632, -0.4890027666, -0.9350251215, -0.2922011373, 0.3767710549, -0.0004177343,
    0.4980994203, -0.4222830883, -0.3191006206, 0.2433488742, -0.3095683255, 0.4603175621, 0.1778547418, -0.4569830405,
    -0.1078417725, -0.7384436314,
];
#[rustfmt::skip]
const FACTORED: [f64; N] = [
    -0.2557715673, -0.1520898921, 0.0664002650, -0.1198223333, 0.0761923707, 0.1872609785, -0.2487285973, -0.1768895922,
    0.0415690252, 0.0607644355, 0.2056936445, 0.1961865946, -0.0317348093, -0.1054432927, -0.1199240600, -0.0074296643,
    0.0448660396, -0.2121821320, -0.0478184114, -0.0103684886, -0.0724884072, 0.0549445367, -0.0503845595, -0.0273522816,
    -0.0326310797, -0.2543106300,
];
#[rustfmt::skip]
const EKFAC: [f64; N] = [
    0.3035519377, 0.2269808195, -0.0453774999, -0.9842784883, -0.9937970764, -0.4074726732, 0.5236704428, 1.1407978129,
    1.0781781750, -0.0109064516, -0.3158727282, -0.3417759159, -0.4502088803, -0.1432788016, 0.5940371421, 0.2324629763,
    0.0168124713, -0.8400667262, -0.6940932743, 0.1020476174, 0.1834372047, 0.8804653196, 0.5440679350, -0.3289607036,
    -0.1274033056, -0.7714849019,
];
#[rustfmt::skip]
const SECOND: [f64; N] = [
    -0.1029627974, -0.0208806046, -0.0180125123, -0.9716372932, -0.7500699090, -0.0472882285, 0.2230317215, 0.9133079155,
    1.0308291548, 0.2644445887, -0.0448217558, -0.2025045189, -0.0515700450, 0.2403073444, 0.0741044212, 0.3112452500,
    0.1211429996, -0.3421539525, -0.5751249241, -0.1955704371, 0.0791066764, 0.3825525460, 0.4250995848, -0.0313426491,
    -0.2478760431, -0.6510121644,
];
