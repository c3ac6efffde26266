//! The law: plain loops, forward and backward, over any [`Real`].
//!
//! A cell reads z = [feeds, h]: the inputs, or the new neurons of the cell before it, and its own state. Behind the
//! backbone, `z_i = act(W_i z_{i-1} + b_i)`, its heads are linear maps of z, and with dt the time that the step takes
//!
//! ```text
//! default  h' = (1 - s) tanh(ff1) + s tanh(ff2)      s = sigmoid(time_a dt + time_b)
//! no_gate  h' = tanh(ff1) + s tanh(ff2)
//! pure     h' = A - A ff1 exp(-dt (|w_tau| + |ff1|))
//! ```
//!
//! With mixed memory an LSTM cell, `[i, ig, fg, og] = W x + b + R h`, makes of (h, c) first
//!
//! ```text
//! c' = sigmoid(fg + 1) c + sigmoid(ig) tanh(i)       h~ = sigmoid(og) tanh(c')
//! ```
//!
//! and the cells start from h~; what they give is the h of the next step, while c' stays the LSTM's. Batch rows are
//! independent, and every sum over them is taken in their order.

use super::spec::{Activation, Cfc, Mode};
use crate::op::{Pass, Role, Tensors, Values};
use crate::real::Real;
use crate::{Error, Result};

/// Tensors by the names that signatures use.
#[derive(Debug, Clone)]
pub(super) struct Fields<R>(Vec<(String, Vec<R>)>);

impl<R: Real> Fields<R> {
    /// The inputs of a forward pass, converted; an error names the tensor that is missing or has the wrong shape.
    pub(super) fn lift(p: &Cfc, inputs: &Tensors) -> Result<Self> {
        let lifted = |spec: crate::op::TensorSpec| {
            Ok((spec.name.to_string(), lift(inputs, &spec.name, spec.axes, &spec.shape)?))
        };
        p.forward_inputs().into_iter().map(lifted).collect::<Result<_>>().map(Self)
    }
    /// A zero for every element.
    fn zeros(&self) -> Self {
        Self(self.0.iter().map(|(name, x)| (name.clone(), vec![R::zero(); x.len()])).collect())
    }
    /// The tensor of that name; a problem without it has no elements of it.
    pub(super) fn get(&self, name: &str) -> &[R] {
        self.0.iter().find(|(n, _)| n == name).map_or(&[], |(_, x)| x)
    }
    pub(super) fn get_mut(&mut self, name: &str) -> &mut [R] {
        self.0.iter_mut().find(|(n, _)| n == name).map_or(&mut [], |(_, x)| x)
    }
}

fn lift<R: Real>(inputs: &Tensors, name: &str, axes: &str, shape: &[usize]) -> Result<Vec<R>> {
    let values = inputs.get(name).map_err(|e| e.context("cfc"))?;
    if values.shape[..] != *shape {
        return Err(Error::shape(format!(
            "cfc: {name}.shape = {} does not match {axes} = {}",
            values.shape,
            crate::Shape::new(shape)
        )));
    }
    Ok(values.data.iter().map(|&x| R::from_f64(x)).collect())
}

/// The error function: `2 / sqrt(pi) exp(-x^2) sum_n 2^n x^(2n + 1) / (2n + 1)!!`, whose terms all have the sign of x.
pub(super) fn erf<R: Real>(x: R) -> R {
    let size = x.to_f64().abs();
    if size > 6.0 {
        // 1 - erf(6) is 2e-17.
        return R::from_f64(1f64.copysign(x.to_f64()));
    }
    let (mut term, mut sum) = (x, x);
    // The terms grow until n = x^2, and are below 1e-17 of the sum long before this end.
    for n in 1..=(3.0 * size * size) as usize + 40 {
        term = term * x * x * R::from_f64(2.0 / (2 * n + 1) as f64);
        sum = sum + term;
    }
    R::from_f64(std::f64::consts::FRAC_2_SQRT_PI) * (-(x * x)).exp() * sum
}

impl Activation {
    /// The activation of x, and its derivative there.
    pub(super) fn of<R: Real>(self, x: R) -> (R, R) {
        let c = R::from_f64;
        match self {
            Self::LecunTanh => {
                let y = (c(0.666) * x).tanh();
                (c(1.7159) * y, c(1.7159 * 0.666) * (R::one() - y) * (R::one() + y))
            }
            Self::Tanh => {
                let y = x.tanh();
                (y, (R::one() - y) * (R::one() + y))
            }
            Self::Relu if x.to_f64() > 0.0 => (x, R::one()),
            // Not a product with 0: a NaN stays one.
            Self::Relu => (if x.to_f64() <= 0.0 { R::zero() } else { x }, R::zero()),
            Self::Gelu => {
                let below = c(0.5) * (R::one() + erf(x * c(std::f64::consts::FRAC_1_SQRT_2)));
                let density = c((0.5 * std::f64::consts::FRAC_1_PI).sqrt()) * (c(-0.5) * x * x).exp();
                (x * below, below + x * density)
            }
            Self::Silu => {
                let s = x.sigmoid();
                (x * s, s + x * s * (-x).sigmoid())
            }
        }
    }
}

/// `W x + b`, where W is `[outputs, inputs]`; an empty b is 0, and weights are multiplied by a mask that is not empty.
fn linear<R: Real>(weight: &[R], mask: &[R], bias: &[R], x: &[R], outputs: usize) -> Vec<R> {
    let row = |o: usize| {
        let at = |i: usize| o * x.len() + i;
        let w = |i: usize| if mask.is_empty() { weight[at(i)] } else { weight[at(i)] * mask[at(i)] };
        let sum = (0..x.len()).fold(R::zero(), |sum, i| sum + w(i) * x[i]);
        if bias.is_empty() { sum } else { sum + bias[o] }
    };
    (0..outputs).map(row).collect()
}

/// Adds the gradients of a [`linear`] map's weight and bias, and of x to `grad_x`.
fn linear_back<R: Real>(
    weight: &[R],
    mask: &[R],
    x: &[R],
    grad_y: &[R],
    [grad_weight, grad_bias]: [&mut [R]; 2],
    grad_x: &mut [R],
) {
    for (o, &g) in grad_y.iter().enumerate() {
        for i in 0..x.len() {
            let at = o * x.len() + i;
            let m = if mask.is_empty() { R::one() } else { mask[at] };
            grad_weight[at] = grad_weight[at] + g * m * x[i];
            grad_x[i] = grad_x[i] + g * m * weight[at];
        }
        if let Some(b) = grad_bias.get_mut(o) {
            *b = *b + g;
        }
    }
}

/// What the backward pass reads of one step of one cell.
struct CellStep<R> {
    /// What each backbone layer reads, and what the heads read.
    read: Vec<Vec<R>>,
    /// The derivative of each backbone layer's activation.
    slopes: Vec<Vec<R>>,
    /// Values of each neuron, as `Mode::kept` lists them: `[kept][neurons]`.
    kept: Vec<Vec<R>>,
    /// The new neurons.
    new: Vec<R>,
}

/// What the backward pass reads of one step of the LSTM.
struct LstmStep<R> {
    /// `[4, H]`: tanh(i), sigmoid(ig), sigmoid(fg + 1), sigmoid(og).
    gates: Vec<R>,
    /// Before and after the step.
    c: [Vec<R>; 2],
    /// The state before the step.
    h: Vec<R>,
}

/// Everything about one step of one batch row.
struct Step<R> {
    lstm: Option<LstmStep<R>>,
    cells: Vec<CellStep<R>>,
    state: Vec<R>,
}

struct Model<'a, R> {
    p: &'a Cfc,
    f: &'a Fields<R>,
}

impl<R: Real> Model<'_, R> {
    fn parameter(&self, l: usize, name: &str) -> &[R] {
        self.f.get(&self.p.named(l, name))
    }
    /// ff1 and ff2 are masked, the heads of the time are not.
    fn mask(&self, l: usize, head: &str) -> &[R] {
        if head.starts_with("ff") { self.parameter(l, "sparsity_mask") } else { &[] }
    }
    /// The time that step `t` of row `b` takes.
    fn duration(&self, b: usize, t: usize) -> R {
        if self.p.elapsed { self.f.get("elapsed")[b * self.p.steps + t] } else { R::from_f64(self.p.dt) }
    }
    fn x(&self, b: usize, t: usize) -> &[R] {
        let d = self.p.inputs;
        &self.f.get("x")[(b * self.p.steps + t) * d..][..d]
    }
    fn lstm(&self, x: &[R], h: &[R], c: &[R]) -> (LstmStep<R>, Vec<R>) {
        let n = h.len();
        let z = linear(self.f.get("lstm_input_map_weight"), &[], self.f.get("lstm_input_map_bias"), x, 4 * n);
        let r = linear(self.f.get("lstm_recurrent_map_weight"), &[], &[], h, 4 * n);
        let gate = |k: usize| match (k / n, z[k] + r[k]) {
            (0, z) => z.tanh(),
            (2, z) => (z + R::one()).sigmoid(),
            (_, z) => z.sigmoid(),
        };
        let gates: Vec<R> = (0..4 * n).map(gate).collect();
        let new: Vec<R> = (0..n).map(|j| c[j] * gates[2 * n + j] + gates[j] * gates[n + j]).collect();
        let h_new = (0..n).map(|j| new[j].tanh() * gates[3 * n + j]).collect();
        (LstmStep { gates, c: [c.to_vec(), new], h: h.to_vec() }, h_new)
    }
    fn cell(&self, l: usize, z: Vec<R>, dt: R) -> CellStep<R> {
        let (p, n) = (self.p, self.p.cells[l].hidden);
        let (mut read, mut slopes) = (vec![z], Vec::new());
        for i in 0..p.backbone_layers {
            let weight = self.parameter(l, &format!("backbone_{i}_weight"));
            let bias = self.parameter(l, &format!("backbone_{i}_bias"));
            let y = linear(weight, &[], bias, &read[i], p.backbone_units);
            let (y, slope) = y.into_iter().map(|y| p.activation.of(y)).unzip();
            read.push(y);
            slopes.push(slope);
        }
        let z = &read[p.backbone_layers];
        let head = |name: &&str| {
            let (weight, bias) = (format!("{name}_weight"), format!("{name}_bias"));
            linear(self.parameter(l, &weight), self.mask(l, name), self.parameter(l, &bias), z, n)
        };
        let heads: Vec<Vec<R>> = p.mode.heads().iter().map(head).collect();
        let (kept, new) = if p.mode == Mode::Pure {
            let (w, a, f) = (self.parameter(l, "w_tau"), self.parameter(l, "A"), &heads[0]);
            let e: Vec<R> = (0..n).map(|j| (-(dt * (w[j].abs() + f[j].abs()))).exp()).collect();
            let new = (0..n).map(|j| a[j] - a[j] * e[j] * f[j]).collect();
            (vec![f.clone(), e], new)
        } else {
            let tanh = |x: &[R]| x.iter().map(|x| x.tanh()).collect::<Vec<R>>();
            let (f1, f2) = (tanh(&heads[0]), tanh(&heads[1]));
            let s: Vec<R> = (0..n).map(|j| (heads[2][j] * dt + heads[3][j]).sigmoid()).collect();
            let first = |j: usize| if p.mode == Mode::NoGate { f1[j] } else { f1[j] * (R::one() - s[j]) };
            let new = (0..n).map(|j| first(j) + s[j] * f2[j]).collect();
            (vec![f1, f2, s, heads[2].clone()], new)
        };
        CellStep { read, slopes, kept, new }
    }
    fn initial(&self, b: usize, name: &str) -> Vec<R> {
        let h = self.p.hidden();
        if self.p.initial_state { self.f.get(name)[b * h..][..h].to_vec() } else { vec![R::zero(); h] }
    }
    fn row(&self, b: usize) -> Vec<Step<R>> {
        let p = self.p;
        let mut h = self.initial(b, "h0");
        let mut c = if p.mixed_memory { self.initial(b, "c0") } else { Vec::new() };
        let mut steps = Vec::new();
        for t in 0..p.steps {
            let dt = self.duration(b, t);
            let mut lstm = None;
            if p.mixed_memory {
                let (step, state) = self.lstm(self.x(b, t), &h, &c);
                c.clone_from(&step.c[1]);
                (lstm, h) = (Some(step), state);
            }
            let mut cells: Vec<CellStep<R>> = Vec::new();
            for (l, cell) in p.cells.iter().enumerate() {
                let feeds = cells.last().map_or(self.x(b, t), |c| &c.new);
                let z = [feeds, &h[p.first_neuron(l)..][..cell.hidden]].concat();
                cells.push(self.cell(l, z, dt));
            }
            h = cells.iter().flat_map(|c| c.new.iter().copied()).collect();
            steps.push(Step { lstm, cells, state: h.clone() });
        }
        steps
    }
    /// Takes the gradient of the new neurons of a step to that of what the cell read; adds those of its parameters and
    /// of the time.
    fn cell_back(&self, l: usize, step: &CellStep<R>, dt: R, g: &[R], grad: &mut Fields<R>, grad_dt: &mut R) -> Vec<R> {
        let (p, n) = (self.p, g.len());
        let one = R::one();
        let mut heads = vec![vec![R::zero(); n]; p.mode.heads().len()];
        if p.mode == Mode::Pure {
            let (w, a) = (self.parameter(l, "w_tau"), self.parameter(l, "A"));
            let of_w = grad.get_mut(&p.named(l, "w_tau"));
            for j in 0..n {
                let (f, e) = (step.kept[0][j], step.kept[1][j]);
                // d exp(-dt (|w| + |f|)) is -dt e times the signs of w and f.
                let through = g[j] * a[j] * f * e;
                heads[0][j] = -(g[j] * a[j] * e) + through * dt * sign(f);
                of_w[j] = of_w[j] + through * dt * sign(w[j]);
                *grad_dt = *grad_dt + through * (w[j].abs() + f.abs());
            }
            let of_a = grad.get_mut(&p.named(l, "A"));
            for j in 0..n {
                of_a[j] = of_a[j] + g[j] * (one - step.kept[1][j] * step.kept[0][j]);
            }
        } else {
            for j in 0..n {
                let [f1, f2, s, a] = [0, 1, 2, 3].map(|k: usize| step.kept[k][j]);
                let gated = p.mode == Mode::Default;
                let ds = g[j] * if gated { f2 - f1 } else { f2 } * s * (one - s);
                heads[0][j] = g[j] * if gated { one - s } else { one } * (one - f1) * (one + f1);
                heads[1][j] = g[j] * s * (one - f2) * (one + f2);
                heads[2][j] = ds * dt;
                heads[3][j] = ds;
                *grad_dt = *grad_dt + ds * a;
            }
        }
        let mut grad_z = vec![R::zero(); step.read[p.backbone_layers].len()];
        for (name, g) in p.mode.heads().iter().zip(&heads) {
            let weight = self.parameter(l, &format!("{name}_weight"));
            let x = &step.read[p.backbone_layers];
            self.map_back(l, name, weight, self.mask(l, name), x, g, grad, &mut grad_z);
        }
        for i in (0..p.backbone_layers).rev() {
            let g: Vec<R> = grad_z.iter().zip(&step.slopes[i]).map(|(&g, &s)| g * s).collect();
            grad_z = vec![R::zero(); step.read[i].len()];
            let name = format!("backbone_{i}");
            let weight = self.parameter(l, &format!("{name}_weight"));
            self.map_back(l, &name, weight, &[], &step.read[i], &g, grad, &mut grad_z);
        }
        grad_z
    }
    /// [`linear_back`] of the map `name` of cell `l`.
    fn map_back(
        &self,
        l: usize,
        name: &str,
        weight: &[R],
        mask: &[R],
        x: &[R],
        g: &[R],
        grad: &mut Fields<R>,
        grad_x: &mut [R],
    ) {
        let of_weight = grad.get_mut(&self.p.named(l, &format!("{name}_weight")));
        linear_back(weight, mask, x, g, [of_weight, &mut []], grad_x);
        for (b, &g) in grad.get_mut(&self.p.named(l, &format!("{name}_bias"))).iter_mut().zip(g) {
            *b = *b + g;
        }
    }
    /// Takes the gradients of the LSTM's state and cell (h, in place c) to those before the step; adds to that of x.
    fn lstm_back(
        &self,
        x: &[R],
        step: &LstmStep<R>,
        g: &[R],
        grad_c: &mut [R],
        grad: &mut Fields<R>,
        gx: &mut [R],
    ) -> Vec<R> {
        let (n, one) = (g.len(), R::one());
        let mut gates = vec![R::zero(); 4 * n];
        for j in 0..n {
            let [i, ig, fg, og] = [0, 1, 2, 3].map(|k| step.gates[k * n + j]);
            let y = step.c[1][j].tanh();
            let dc = grad_c[j] + g[j] * og * (one - y) * (one + y);
            gates[j] = dc * ig * (one - i) * (one + i);
            gates[n + j] = dc * i * ig * (one - ig);
            gates[2 * n + j] = dc * step.c[0][j] * fg * (one - fg);
            gates[3 * n + j] = g[j] * y * og * (one - og);
            grad_c[j] = dc * fg;
        }
        let mut grad_h = vec![R::zero(); n];
        let (map, recurrent) = ("lstm_input_map_weight", "lstm_recurrent_map_weight");
        linear_back(self.f.get(map), &[], x, &gates, [grad.get_mut(map), &mut []], gx);
        linear_back(self.f.get(recurrent), &[], &step.h, &gates, [grad.get_mut(recurrent), &mut []], &mut grad_h);
        for (b, &g) in grad.get_mut("lstm_input_map_bias").iter_mut().zip(&gates) {
            *b = *b + g;
        }
        grad_h
    }
}

/// The derivative of the absolute value; 0 at 0.
fn sign<R: Real>(x: R) -> R {
    let x = x.to_f64();
    R::from_f64(if x == 0.0 { 0.0 } else { x.signum() })
}

/// What the forward pass writes that is compared.
pub(super) struct Outputs<R> {
    /// `[B, T, M]`.
    pub(super) out: Vec<R>,
    /// `[B, H]`.
    pub(super) final_state: Vec<R>,
    /// `[B, H]` with mixed memory, else empty.
    pub(super) final_cell: Vec<R>,
}

/// The forward pass over any numbers.
pub(super) fn forward_fields<R: Real>(p: &Cfc, f: &Fields<R>) -> Outputs<R> {
    let model = Model { p, f };
    let mut o = Outputs { out: Vec::new(), final_state: Vec::new(), final_cell: Vec::new() };
    for b in 0..p.batch {
        let row = model.row(b);
        row.iter().for_each(|step| o.out.extend_from_slice(&step.state[p.hidden() - p.outputs()..]));
        o.final_state.extend(row.last().map_or_else(|| model.initial(b, "h0"), |step| step.state.clone()));
        if p.mixed_memory {
            let last = row.last().and_then(|step| step.lstm.as_ref());
            o.final_cell.extend(last.map_or_else(|| model.initial(b, "c0"), |lstm| lstm.c[1].clone()));
        }
    }
    o
}

/// The backward pass over any numbers: the gradient of every input.
///
/// `grad_out` is `[B, T, M]`, `grad_final_state` and (with mixed memory) `grad_final_cell` are `[B, H]`.
pub(super) fn backward_fields<R: Real>(
    p: &Cfc,
    f: &Fields<R>,
    grad_out: &[R],
    grad_final_state: &[R],
    grad_final_cell: &[R],
) -> Fields<R> {
    let model = Model { p, f };
    let mut grad = f.zeros();
    let (h, m, d) = (p.hidden(), p.outputs(), p.inputs);
    for b in 0..p.batch {
        let row = model.row(b);
        let mut g = grad_final_state[b * h..][..h].to_vec();
        let mut grad_c = if p.mixed_memory { grad_final_cell[b * h..][..h].to_vec() } else { Vec::new() };
        for (t, step) in row.iter().enumerate().rev() {
            let at = b * p.steps + t;
            for (g, &out) in g[h - m..].iter_mut().zip(&grad_out[at * m..][..m]) {
                *g = *g + out;
            }
            let dt = model.duration(b, t);
            let (mut grad_x, mut grad_dt) = (vec![R::zero(); d], R::zero());
            let mut before = vec![R::zero(); h];
            for (l, cell) in step.cells.iter().enumerate().rev() {
                let first = p.first_neuron(l);
                let new = g[first..][..p.cells[l].hidden].to_vec();
                let grad_z = model.cell_back(l, cell, dt, &new, &mut grad, &mut grad_dt);
                let (feeds, own) = grad_z.split_at(p.feeds(l));
                before[first..][..own.len()].copy_from_slice(own);
                let to = if l == 0 { &mut grad_x[..] } else { &mut g[first - feeds.len()..first] };
                for (to, &from) in to.iter_mut().zip(feeds) {
                    *to = *to + from;
                }
            }
            g = match &step.lstm {
                None => before,
                Some(lstm) => model.lstm_back(model.x(b, t), lstm, &before, &mut grad_c, &mut grad, &mut grad_x),
            };
            grad.get_mut("x")[at * d..][..d].copy_from_slice(&grad_x);
            if p.elapsed {
                grad.get_mut("elapsed")[at] = grad_dt;
            }
        }
        if p.initial_state {
            grad.get_mut("h0")[b * h..][..h].copy_from_slice(&g);
            if p.mixed_memory {
                grad.get_mut("c0")[b * h..][..h].copy_from_slice(&grad_c);
            }
        }
    }
    grad
}

/// The outputs of the forward pass, by name.
///
/// # Errors
/// If a tensor is missing or has the wrong shape.
pub fn forward<R: Real>(p: &Cfc, inputs: &Tensors) -> Result<Tensors> {
    let o = forward_fields(p, &Fields::<R>::lift(p, inputs)?);
    let mut tensors = Tensors::new();
    for spec in p.forward_outputs().into_iter().filter(|s| s.role != Role::Saved) {
        let data = match &*spec.name {
            "out" => &o.out,
            "final_state" => &o.final_state,
            _ => &o.final_cell,
        };
        tensors.insert(spec.name, Values::new(spec.shape, data.iter().map(|x| x.to_f64()).collect())?);
    }
    Ok(tensors)
}

/// The gradients that the problem wants, by name. `inputs` are those of the forward pass and the gradients of its outputs.
///
/// # Errors
/// If a tensor is missing or has the wrong shape, or the problem has no backward pass.
pub fn backward<R: Real>(p: &Cfc, inputs: &Tensors) -> Result<Tensors> {
    let signature = p.signature_of(Pass::Backward)?;
    let f = Fields::<R>::lift(p, inputs)?;
    let of = |name: &str| -> Result<Vec<R>> {
        let spec = signature.inputs.iter().find(|s| s.name == name);
        spec.map_or(Ok(Vec::new()), |s| lift(inputs, name, s.axes, &s.shape))
    };
    let (out, state, cell) = (of("grad_out")?, of("grad_final_state")?, of("grad_final_cell")?);
    let grad = backward_fields(p, &f, &out, &state, &cell);
    let mut tensors = Tensors::new();
    for spec in signature.outputs {
        let data = grad.get(spec.name.trim_start_matches("grad_")).iter().map(|x| x.to_f64()).collect();
        tensors.insert(spec.name, Values::new(spec.shape, data)?);
    }
    Ok(tensors)
}
