//! Shampoo's step against an implementation of its own in f64, failures, and what is refused.

use super::ShampooOp;
use super::reference;
use super::spec::{Grafting, Shampoo};
use crate::op::{Op, Pass, Precision};
use crate::optim::blocks::{Parameter, packed};
use crate::optim::stepper::{Common, DecayMode};
use crate::optim::testing::{Matrix, Steps, apart, draw, identity, norm, plus, times, transposed};
use std::ops::Range;

/// `(A + eps I)^(-1/p)`, eps = relative ||A||, by the coupled Newton iteration in f64.
fn root(a: &Matrix, p: i32, relative: f64) -> Matrix {
    let n = a.len();
    let eye = identity(n);
    let a = plus(a, 1.0, &eye, relative * norm(a));
    let z = f64::from(p + 1) / (2.0 * norm(&a));
    let (mut x, mut m) = (plus(&eye, z.powf(1.0 / f64::from(p)), &eye, 0.0), plus(&a, z, &eye, 0.0));
    for _ in 0..200 {
        let t = plus(&eye, 1.0 + 1.0 / f64::from(p), &m, -1.0 / f64::from(p));
        x = times(&x, &t);
        (0..p).for_each(|_| m = times(&t, &m));
    }
    x
}

/// Rows and columns of a parameter of `columns` columns from element `first` on that are one block, with its state.
struct Part {
    first: usize,
    columns: usize,
    rows: Range<usize>,
    cut: Range<usize>,
    turn: usize,
    left: Matrix,
    right: Matrix,
    roots: (Matrix, Matrix),
}

impl Part {
    fn new(first: usize, columns: usize, rows: Range<usize>, cut: Range<usize>, turn: usize) -> Self {
        let zero = |n: usize| vec![vec![0.0; n]; n];
        let roots = (identity(rows.len()), identity(cut.len()));
        Self { first, columns, left: zero(rows.len()), right: zero(cut.len()), rows, cut, turn, roots }
    }
    fn of(&self, all: &[f64]) -> Matrix {
        let row = |r: usize| self.first + r * self.columns;
        self.rows.clone().map(|r| all[row(r) + self.cut.start..row(r) + self.cut.end].to_vec()).collect()
    }
}

/// Ten steps over a matrix that is cut to six blocks, a vector that is one, and a scalar, with clipping and decay, blocks' turns
/// every third step, against loops of their own.
#[test]
fn ten_steps_are_those_of_another_implementation() {
    let (m, n, relative, b1, b2, decay_by) = (10, 6, 1e-2, 0.9, 0.99, 0.1);
    for (grafting, start, mode) in [
        (Grafting::Adam, 1, DecayMode::Decoupled),
        (Grafting::Rmsprop, 4, DecayMode::L2),
        (Grafting::None, 1, DecayMode::Corrected),
    ] {
        // The vector lies behind a gap.
        let (vector, scalar, elements) = (64, 80, 96);
        let parameters = vec![Parameter::new(0, [m, n]), Parameter::new(vector, [4]), Parameter::new(scalar, [1])];
        let mut p = Shampoo::new(elements, parameters);
        (p.beta1, p.beta2, p.relative, p.grafting, p.start_preconditioning_step) = (b1, b2, relative, grafting, start);
        (p.max_preconditioner_dim, p.precondition_frequency) = (4, 3);
        p.common = Common { clip: 5.0, weight_decay: decay_by, mode };
        let p = p.build().unwrap();
        let mut w: Vec<f64> = draw(1, elements);
        let decay: Vec<f64> = (0..elements).map(|i| f64::from(u8::from(i % 3 > 0))).collect();
        let mut steps = Steps::new(&p, w.clone());
        let cut = [(0..4, 0..4), (4..8, 0..4), (0..4, 4..6), (4..8, 4..6), (8..10, 0..4), (8..10, 4..6)];
        let mut parts: Vec<Part> =
            cut.into_iter().enumerate().map(|(turn, (r, c))| Part::new(0, n, r, c, turn)).collect();
        // A vector is a column; its one root is on the left.
        parts.push(Part::new(vector, 1, 0..4, 0..1, 6));
        let (mut first, mut second) = (vec![0.0; elements], vec![0.0; elements]);
        let mut largest: f64 = 0.0;
        for t in 1..=10usize {
            let mut g = draw(100 + t as u64, elements);
            (m * n..vector).chain(vector + 4..scalar).chain(scalar + 1..elements).for_each(|i| g[i] = 0.0);
            let rate = 0.02 * (1.0 + (t as f64).sin());
            let rate = f64::from(rate as f32);
            steps.step(&g, &decay, rate);
            largest = largest.max(rate);

            let whole = g.iter().map(|x| x * x).sum::<f64>().sqrt();
            let pull = if mode == DecayMode::L2 { decay_by } else { 0.0 };
            for i in 0..elements {
                g[i] = g[i] * (5.0 / whole).min(1.0) + pull * decay[i] * w[i];
                first[i] = b1 * first[i] + (1.0 - b1) * g[i];
                second[i] = b2 * second[i] + (1.0 - b2) * g[i] * g[i];
            }
            let power = |b: f64| 1.0 - b.powi(t as i32);
            let hat: Vec<f64> = first.iter().map(|x| x / power(b1)).collect();
            let c2 = if grafting == Grafting::Adam { power(b2) } else { 1.0 };
            let graft: Vec<f64> = match grafting {
                Grafting::None => hat.clone(),
                _ => hat.iter().zip(&second).map(|(m, v)| m / ((v / c2).sqrt() + 1e-8)).collect(),
            };
            let mut update = graft.clone();
            for part in &mut parts {
                let x = part.of(&g);
                part.left = plus(&part.left, b2, &times(&x, &transposed(&x)), 1.0 - b2);
                part.right = plus(&part.right, b2, &times(&transposed(&x), &x), 1.0 - b2);
                if t == start || (t > start && (t + part.turn) % 3 == 0) {
                    let hat = |l: &Matrix| plus(l, 1.0 / power(b2), l, 0.0);
                    if part.columns == 1 {
                        part.roots.0 = root(&hat(&part.left), 2, relative);
                    } else {
                        part.roots = (root(&hat(&part.left), 4, relative), root(&hat(&part.right), 4, relative));
                    }
                }
                if t < start {
                    continue;
                }
                let mut u = times(&times(&part.roots.0, &part.of(&hat)), &part.roots.1);
                if grafting != Grafting::None {
                    u = plus(&u, norm(&part.of(&graft)) / norm(&u), &u, 0.0);
                }
                for (r, row) in part.rows.clone().zip(&u) {
                    for (c, x) in part.cut.clone().zip(row) {
                        update[part.first + r * part.columns + c] = *x;
                    }
                }
            }
            let shrink = match mode {
                DecayMode::Decoupled => rate * decay_by,
                DecayMode::Corrected => rate * decay_by * rate / largest,
                _ => 0.0,
            };
            for i in (0..m * n).chain(vector..vector + 4).chain([scalar]) {
                w[i] -= rate * update[i] + w[i] * shrink * decay[i];
            }
            let off = apart(steps.parameter(), &w);
            assert!(off < 3e-6, "{grafting:?} step {t}: {off:e}");
        }
    }
}

/// A gradient that is zero has no root without damping: the block keeps what it had, and takes no step.
#[test]
fn a_factor_without_a_root_keeps_the_root_before() {
    let mut p = Shampoo::new(16, vec![Parameter::new(0, [4, 4])]);
    (p.max_preconditioner_dim, p.absolute, p.relative) = (4, 0.0, 0.0);
    let p = p.build().unwrap();
    let w = draw(3, 16);
    let mut steps = Steps::new(&p, w.clone());
    steps.step(&[0.0; 16], &[0.0; 16], 0.1);
    assert_eq!(steps.parameter(), w);
    let roots = &steps.state.get("roots").unwrap().data;
    assert!((0..32).all(|e| roots[e] == f64::from(u8::from(e % 16 / 4 == e % 4))), "{roots:?}");
}

/// What runs in parts ends with the same bits: state is all there is.
#[test]
fn state_is_all_there_is() {
    let mut p = Shampoo::new(30 * 21, vec![Parameter::new(0, [30, 21])]);
    (p.max_preconditioner_dim, p.precondition_frequency) = (16, 4);
    let p = p.build().unwrap();
    let grads: Vec<Vec<f64>> = (0..9).map(|t| draw(t, 630)).collect();
    let mut whole = Steps::new(&p, draw(77, 630));
    grads.iter().for_each(|g| whole.step(g, &[0.0; 630], 0.01));
    let mut first = Steps::new(&p, draw(77, 630));
    grads[..5].iter().for_each(|g| first.step(g, &[0.0; 630], 0.01));
    let mut second = Steps::new(&p, draw(5, 630));
    second.resume(&first);
    grads[5..].iter().for_each(|g| second.step(g, &[0.0; 630], 0.01));
    assert!(second.state == whole.state);
}

#[test]
fn options_out_of_range_are_named() {
    let message = |change: &dyn Fn(&mut Shampoo)| {
        let mut p = Shampoo::new(4, vec![Parameter::new(0, [2, 2])]);
        change(&mut p);
        p.build().unwrap_err().to_string()
    };
    assert_eq!(message(&|p| p.beta1 = 1.0), "shampoo: beta1 = 1 is not in 0 .. 1");
    assert_eq!(message(&|p| p.beta2 = 1.5), "shampoo: beta2 = 1.5 is not in 0 to 1");
    assert!(message(&|p| p.relative = f64::NAN).contains("relative = NaN is not a finite number of at least 0"));
    assert!(message(&|p| p.max_preconditioner_dim = 0).contains("max_preconditioner_dim = 0 is not 1 to 32768"));
    assert!(message(&|p| p.exponent = Some((1, 65))).contains("exponent = 1/65"));
    assert!(message(&|p| p.common.clip = -1.0).contains("clip = -1"));
    assert!(message(&|p| p.elements = 3).contains("behind element 0 of 3"));
    assert!(super::fraction("quarter").unwrap_err().to_string().contains("`quarter` is not a fraction"));
    assert_eq!(super::fraction("2/5").unwrap(), (2, 5));
}

/// The matrices of a language model: their blocks, and samples of them, of whose factors and roots one of a size is drawn.
#[test]
fn the_language_models_case_is_its_matrices() {
    let problem = |case: &str| ShampooOp.problem(&case.parse().unwrap());
    let elements = |case: &str, name: &str| {
        let signature = problem(case).unwrap().signature(Pass::Step).unwrap();
        signature.outputs[signature.output(name).unwrap()].shape.elements()
    };
    let (whole, rest) = (24 * 12 + 49, 128);
    assert_eq!(elements("lm350m", "parameter"), (whole * 1024 + rest) * 1024);
    assert_eq!(elements("lm350m", "factors"), (2 * whole + 1) * packed(1024) + packed(rest));
    let says = |case: &str, want: &str| {
        let e = problem(case).err().unwrap().to_string();
        assert!(e.contains(want), "{e}");
    };
    says("L1_M8_N4,words=3", "M = 8 and N = 4 are both the width");
    says("lm350m_L2", "axis L is not one of none");
    says("lm7b", "`lm7b` is not an axis letter and a size");

    let many = "L2_M256_N256,words=20480,block=256";
    let sample = problem(many).unwrap().sample(Pass::Step, 1).unwrap();
    let [factors, roots] = ["factors", "roots"].map(|name| &sample.get(name).unwrap().data);
    assert!(factors.len() > 4 << 20 && factors.len() == elements(many, "factors"));
    let one = packed(256);
    assert!(factors[..one] == factors[one..2 * one] && factors[one - 1] > 0.0);
    assert!(roots[..1 << 16] == roots[1 << 16..2 << 16] && roots.len() == elements(many, "roots"));
    let grad = &sample.get("grad").unwrap().data;
    let drawn = 4 << 20;
    assert!(grad.len() > drawn && grad[drawn] == grad[0] && grad[drawn + 7] == grad[7] && grad[1] != grad[0]);
}

/// What repeats of a problem that is too large to be drawn covers every tensor once, and is what a sample is: factors with a diagonal
/// above zero, symmetric roots, one of each size.
#[test]
fn what_repeats_is_a_sample() {
    let problem = |case: &str| ShampooOp.problem(&case.parse().unwrap()).unwrap();
    assert!(problem("L2_M256_N256,words=600,block=256").repeated(Pass::Step, 1).unwrap().is_none());
    let p = problem("L5_M256_N256,words=20480,block=256,grafting=sgd");
    assert!(p.repeated(Pass::Step, 1).unwrap().is_none());
    let p = problem("L12_M512_N256,K=200,block=256");
    let list = p.repeated(Pass::Step, 1).unwrap().unwrap();
    let signature = p.signature(Pass::Step).unwrap();
    for (name, runs) in &list {
        let spec = signature.inputs.iter().chain(&signature.outputs).find(|t| t.name == **name).unwrap();
        let mut at = 0;
        for run in runs {
            assert!(run.first == at && run.count > 0 && !run.values.data.is_empty(), "{name} at {at}");
            at += run.count;
        }
        assert_eq!(at, spec.shape.elements(), "{name}");
    }
    let of = |name: &str| &list.iter().find(|(n, _)| n == name).unwrap().1;
    for run in of("factors") {
        let n = (0..).find(|&n| packed(n) >= run.values.data.len()).unwrap();
        assert!(packed(n) == run.values.data.len() && run.count % packed(n) == 0, "{n}");
        assert!((1..=n).all(|i| run.values.data[packed(i) - 1] > 0.0), "{n}");
    }
    for run in of("roots") {
        let n = run.values.data.len().isqrt();
        assert!((0..n * n).all(|e| run.values.data[e] == run.values.data[e % n * n + e / n]), "{n}");
    }
    let small = ShampooOp.smaller(&"lm350m,every=20,decay=0.1".parse().unwrap()).unwrap();
    assert_eq!(small.to_string(), "L1_M256_N256,every=20,decay=0.1");
    assert!(ShampooOp.smaller(&"L1_M4_N4".parse().unwrap()).is_none());
}

/// A gradient with a NaN or an infinite number in one block leaves all others the bits that they would have had.
#[test]
fn on_a_gpu_blocks_of_no_numbers_harm_no_others() {
    let Some(gpu) = crate::check::gpu::gpu() else { return };
    let device = crate::Device::Cuda(gpu.device.clone());
    for variant in ["simt", "wgmma", "wgmma,precision=fast"] {
        let case = format!("L1_M140_N70,block=70,relative=1e-2,all=true,variant={variant}").parse().unwrap();
        let problem = crate::op::problem(&ShampooOp, &case).unwrap();
        let inputs = problem.sample(Pass::Step, 3).unwrap();
        let mut session = crate::call::Session::new(problem.clone(), &device).unwrap();
        let clean = session.run(Pass::Step, &inputs).unwrap();
        for bad in [f64::NAN, f64::INFINITY] {
            let mut inputs = inputs.clone();
            // In the second block of 70 rows.
            inputs.get_mut("grad").unwrap().data[100 * 70 + 20] = bad;
            let out = session.run(Pass::Step, &inputs).unwrap();
            let [clean, parameter] = [&clean, &out].map(|t| &t.get("parameter").unwrap().data);
            let (block, end) = (70 * 70, 2 * 70 * 70);
            assert!(clean[..block] == parameter[..block] && clean[end..] == parameter[end..], "{variant}, {bad}");
            assert!(parameter[block..end].iter().all(|x| x.is_nan()), "{variant}, {bad}");
            // The factors of the first block, of the second, and of the vector; the second's keep their rows.
            let all = out.get("factors").unwrap();
            let (first, rows) = (2 * packed(70), 3 * packed(70));
            assert!(all.data[..first].iter().chain(&all.data[4 * packed(70)..]).all(|x| x.is_finite()), "{variant}");
            let of = |i: usize, j: usize| all.data[first + packed(i) + j];
            assert!((0..70).all(|i| (0..=i).all(|j| of(i, j).is_finite() == (i != 30 && j != 30))), "{variant}, {bad}");
            assert!(!all.data[rows + packed(20) + 20].is_finite(), "{variant}, {bad}");
        }
    }
}

/// `||x - law|| / ||law||`, or the absolute norm where the law is zero.
fn off(x: &[f64], law: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let (error, whole) = (norm(&mut x.iter().zip(law).map(|(x, l)| x - l)), norm(&mut law.iter().copied()));
    if whole == 0.0 { error } else { error / whole }
}

/// Blocks of zeros, of rank one, and of numbers near f32's ends have each what the law says of them, by either precision.
#[test]
fn on_a_gpu_blocks_of_any_size_are_the_laws() {
    let Some(gpu) = crate::check::gpu::gpu() else { return };
    let device = crate::Device::Cuda(gpu.device.clone());
    let (rows, columns) = (66usize, 70);
    for precision in ["exact", "fast"] {
        let case = format!("L5_M{rows}_N{columns},block=70,relative=1e-2,all=true,variant=wgmma,precision={precision}");
        let problem = crate::op::problem(&ShampooOp, &case.parse().unwrap()).unwrap();
        let plain = ShampooOp.problem(&case.parse::<crate::op::Case>().unwrap().without("variant").0).unwrap();
        let mut inputs = problem.sample(Pass::Step, 5).unwrap();
        let (elements, each) = (rows * columns, (rows * columns).next_multiple_of(64) + columns.next_multiple_of(64));
        // Moments of a block are as large as its gradient, and its factors are what that leaves of old ones of zeros.
        let sizes = [1.0, 0.0, 1.0, 1e-12, 1e12];
        for (layer, size) in sizes.into_iter().enumerate() {
            for (name, power) in [("grad", 1), ("first", 1), ("second", 2)] {
                let data = &mut inputs.get_mut(name).unwrap().data[layer * each..][..elements];
                data.iter_mut().for_each(|x| *x = f64::from((*x * f64::powi(size, power)) as f32));
            }
        }
        let one = &mut inputs.get_mut("grad").unwrap().data[2 * each..][..elements];
        for i in (0..rows).rev() {
            (0..columns).for_each(|j| one[i * columns + j] = f64::from((one[i * columns] * one[j]) as f32));
        }
        inputs.get_mut("factors").unwrap().data.fill(0.0);
        let law = plain.reference(Pass::Step, &inputs, false).unwrap();
        let made = crate::call::Session::new(problem, &device).unwrap().run(Pass::Step, &inputs).unwrap();
        let bound = |output: &str| plain.tolerance(Pass::Step, output).unwrap().value;
        let [x, want] = [&made, &law].map(|t| &t.get("parameter").unwrap().data);
        let [f, of] = [&made, &law].map(|t| &t.get("factors").unwrap().data);
        let factors = packed(rows) + packed(columns) + packed(columns);
        for (layer, size) in sizes.into_iter().enumerate() {
            let (at, error) =
                (layer * each, |x: &[f64], law: &[f64], at, count| off(&x[at..][..count], &law[at..][..count]));
            let e = error(x, want, at, elements);
            assert!(e < bound("parameter"), "{precision}, {size:e}: {e:e}");
            let e = error(f, of, layer * factors, packed(rows) + packed(columns));
            assert!(e < bound("factors"), "{precision}, {size:e}: factors {e:e}");
        }
    }
}

/// Ten steps of a matrix with precision `fast` are those of the law in f64 within what roundings to f16 explain, and not closer to it
/// than `exact` would be: the blocks are on tensor cores.
#[test]
fn on_a_gpu_blocks_train_fast_as_exactly() {
    let Some(gpu) = crate::check::gpu::gpu() else { return };
    let device = crate::Device::Cuda(gpu.device.clone());
    let (m, n, rate) = (130, 128, 0.02);
    let mut p = Shampoo::new(m * n, vec![Parameter::new(0, [m, n])]);
    (p.max_preconditioner_dim, p.precondition_frequency, p.relative, p.beta2) = (130, 4, 1e-2, 0.9);
    p.precision = Precision::Fast;
    let p = p.build().unwrap();
    let w: Vec<f64> = draw(1, m * n);
    let mut steps = Steps::on(&device, &p, w.clone());
    let mut law = reference::State {
        parameter: w,
        first: vec![0.0; m * n],
        second: vec![0.0; m * n],
        factors: vec![0.0; p.grid.factor_elements],
        roots: p.grid.identities().iter().map(|&x| f64::from(x)).collect(),
        step: 0,
        largest_rate: 0.0,
    };
    // Of a step, which is as long as the grafting's, of elements of about 1.
    let each = p.rounded_step() * rate * ((m * n) as f64).sqrt();
    let decay = vec![0.0; m * n];
    for t in 1..=10 {
        let g = draw(100 + t, m * n);
        steps.step(&g, &decay, rate);
        let opens = Shampoo { every_block: t == 1, ..p.clone() };
        reference::step(&opens, &mut law, &g, &decay, f64::from(rate as f32));
        let whole = law.parameter.iter().map(|x| x * x).sum::<f64>().sqrt();
        let e = off(steps.parameter(), &law.parameter) * whole;
        assert!(e < t as f64 * each, "step {t}: {e:e} of {each:e} each");
        assert!(e > 0.02 * each, "step {t}: {e:e}: as exact as f32");
    }
}
