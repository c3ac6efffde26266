//! The law: plain loops, forward and backward, over any [`Real`].
//!
//! One unfold of length dt / K takes neuron j from v to v', all neurons from the same old v:
//!
//! ```text
//! c_j   = cm_j K / dt
//! r_ij  = sigmoid(sigma_ij (v_i - mu_ij))          s_dj = sigmoid(sensory_sigma_dj (u_d - sensory_mu_dj))
//! num_j = c_j v_j + g_j vleak_j + sum_i p_ij erev_ij r_ij + sum_d ps_dj sensory_erev_dj s_dj
//! den_j = c_j + g_j + sum_i p_ij r_ij + sum_d ps_dj s_dj + epsilon
//! v'_j  = num_j / den_j
//! ```
//!
//! where p, ps, g and cm are `w`, `sensory_w`, `gleak` and `cm` under the constraint. It is Euler's method on
//! `cm v' = -g (v - vleak) - sum p r (v - erev)`, implicit in v but for the gates r. Sums run over the synapses that the
//! connectivity lists. Batch rows are independent, and every sum over them is taken in their order.

mod lstm;
mod per_sample;

use super::connectivity::Synapses;
use super::spec::{Constraint, Ltc, NORM_EPSILON};
use crate::op::{Pass, Role, Tensors, Values};
use crate::real::Real;
use crate::{Error, Result};
use lstm::LstmStep;

/// Fields that are tensors, found by the names that signatures use; those that a problem lacks are empty.
macro_rules! fields {
    ($($name:ident),*) => {
        /// Every real-valued input of a call, or the gradient of each.
        #[derive(Debug, Clone)]
        pub(super) struct Fields<R> { $(pub(super) $name: Vec<R>),* }
        impl<R> Fields<R> {
            fn empty() -> Self {
                Self { $($name: Vec::new()),* }
            }
            pub(super) fn get(&self, name: &str) -> Option<&Vec<R>> {
                match name { $(stringify!($name) => Some(&self.$name),)* _ => None }
            }
            pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Vec<R>> {
                match name { $(stringify!($name) => Some(&mut self.$name),)* _ => None }
            }
        }
    };
}
fields!(
    x,
    h0,
    c0,
    elapsed,
    w,
    mu,
    sigma,
    erev,
    sensory_w,
    sensory_mu,
    sensory_sigma,
    sensory_erev,
    gleak,
    vleak,
    cm,
    input_w,
    input_b,
    norm_weight,
    norm_bias,
    output_w,
    output_b,
    lstm_input_map_weight,
    lstm_input_map_bias,
    lstm_recurrent_map_weight
);

impl<R: Real> Fields<R> {
    /// The inputs of a forward pass, converted; an error names the tensor that is missing or has the wrong shape.
    pub(super) fn lift(p: &Ltc, inputs: &Tensors) -> Result<Self> {
        let mut fields = Self::empty();
        for spec in p.forward_inputs() {
            if let Some(field) = fields.get_mut(&spec.name) {
                *field = lift(inputs, &spec.name, spec.axes, &spec.shape)?;
            }
        }
        Ok(fields)
    }
    /// A zero for every element.
    fn zeros(&self, p: &Ltc) -> Self {
        let mut zeros = Self::empty();
        for spec in p.forward_inputs() {
            if let (Some(to), Some(from)) = (zeros.get_mut(&spec.name), self.get(&spec.name)) {
                *to = vec![R::zero(); from.len()];
            }
        }
        zeros
    }
}

fn lift<R: Real>(inputs: &Tensors, name: &str, axes: &str, shape: &[usize]) -> Result<Vec<R>> {
    let values = inputs.get(name).map_err(|e| e.context("ltc"))?;
    if values.shape[..] != *shape {
        return Err(Error::shape(format!(
            "ltc: {name}.shape = {} does not match {axes} = {}",
            values.shape,
            crate::Shape::new(shape)
        )));
    }
    Ok(values.data.iter().map(|&x| R::from_f64(x)).collect())
}

/// The synapses of one side with their parameters as the equation uses them, all `[S]` in target-major order.
struct Side<'a, R> {
    synapses: &'a Synapses,
    mu: Vec<R>,
    sigma: Vec<R>,
    /// Conductance, `w` under the constraint.
    p: Vec<R>,
    /// `p * erev`.
    q: Vec<R>,
}

/// Four sums over batch, time and unfolds, `[S]` each, from which all gradients of a side follow.
struct Sums<R> {
    alpha_r: Vec<R>,
    beta_r: Vec<R>,
    dz: Vec<R>,
    dz_v: Vec<R>,
}

impl<R: Real> Sums<R> {
    fn new(synapses: usize) -> Self {
        let zeros = || vec![R::zero(); synapses];
        Self { alpha_r: zeros(), beta_r: zeros(), dz: zeros(), dz_v: zeros() }
    }
}

impl<'a, R: Real> Side<'a, R> {
    fn new(c: Constraint, synapses: &'a Synapses, w: &[R], mu: &[R], sigma: &[R], erev: &[R]) -> Self {
        let pick = |from: &[R]| -> Vec<R> { positions(synapses).map(|at| from[at]).collect() };
        let p: Vec<R> = pick(w).into_iter().map(|w| constrained(c, w)).collect();
        let q = p.iter().zip(pick(erev)).map(|(&p, e)| p * e).collect();
        Self { synapses, mu: pick(mu), sigma: pick(sigma), p, q }
    }
    /// The synapses onto target `j`.
    fn onto(&self, j: usize) -> std::ops::Range<usize> {
        self.synapses.target_offsets[j] as usize..self.synapses.target_offsets[j + 1] as usize
    }
    /// Adds what sources at `v` contribute to the numerators and denominators of all targets.
    fn drive(&self, v: &[R], num: &mut [R], den: &mut [R]) {
        for j in 0..self.synapses.targets() {
            for s in self.onto(j) {
                let i = self.synapses.source_of[s] as usize;
                let r = (self.sigma[s] * (v[i] - self.mu[s])).sigmoid();
                num[j] = num[j] + self.q[s] * r;
                den[j] = den[j] + self.p[s] * r;
            }
        }
    }
    /// The adjoint of [`drive`](Self::drive): `alpha` and `beta` are the gradients of num and den; adds to `sums`, and
    /// to the gradient of `v`.
    fn adjoint(&self, v: &[R], alpha: &[R], beta: &[R], sums: &mut Sums<R>, grad_v: &mut [R]) {
        for j in 0..self.synapses.targets() {
            for s in self.onto(j) {
                let i = self.synapses.source_of[s] as usize;
                let z = self.sigma[s] * (v[i] - self.mu[s]);
                let r = z.sigmoid();
                // sigmoid(-z) is 1 - r without the cancellation of a saturated gate.
                let dz = (alpha[j] * self.q[s] + beta[j] * self.p[s]) * r * (-z).sigmoid();
                sums.alpha_r[s] = sums.alpha_r[s] + alpha[j] * r;
                sums.beta_r[s] = sums.beta_r[s] + beta[j] * r;
                sums.dz[s] = sums.dz[s] + dz;
                sums.dz_v[s] = sums.dz_v[s] + dz * v[i];
                grad_v[i] = grad_v[i] + dz * self.sigma[s];
            }
        }
    }
}

/// The row-major position of each synapse in a `[sources, targets]` matrix, in target-major order.
fn positions(s: &Synapses) -> impl Iterator<Item = usize> + '_ {
    (0..s.targets()).flat_map(move |j| {
        let onto = s.target_offsets[j] as usize..s.target_offsets[j + 1] as usize;
        onto.map(move |k| s.source_of[k] as usize * s.targets() + j)
    })
}

fn constrained<R: Real>(c: Constraint, x: R) -> R {
    match c {
        Constraint::Softplus => x.softplus(),
        Constraint::Identity => x,
    }
}

/// The derivative of [`constrained`].
fn slope<R: Real>(c: Constraint, x: R) -> R {
    match c {
        Constraint::Softplus => x.sigmoid(),
        Constraint::Identity => R::one(),
    }
}

/// What one call computes once: parameters as the equation uses them.
struct Model<'a, R> {
    p: &'a Ltc,
    f: &'a Fields<R>,
    recurrent: Side<'a, R>,
    sensory: Side<'a, R>,
    g: Vec<R>,
    cm: Vec<R>,
}

/// Everything about one batch row that the backward pass reads.
struct Row<R> {
    /// `[T, D]`: normalised inputs, what the input mapping reads, and what the sensory synapses read.
    xhat: Vec<R>,
    y: Vec<R>,
    u: Vec<R>,
    /// `[T]`: LayerNorm's 1 / standard deviation.
    rstd: Vec<R>,
    /// `[T, K + 1, H]`: the state before each unfold of a step, and after the last.
    v: Vec<R>,
    /// With mixed memory, what the LSTM's backward pass reads of each step.
    lstm: Vec<LstmStep<R>>,
    /// `[T K, H]`.
    den: Vec<R>,
}

impl<'a, R: Real> Model<'a, R> {
    fn new(p: &'a Ltc, f: &'a Fields<R>) -> Self {
        let c = p.constraint;
        Self {
            p,
            f,
            recurrent: Side::new(c, &p.connectivity.recurrent, &f.w, &f.mu, &f.sigma, &f.erev),
            sensory: Side::new(
                c,
                &p.connectivity.sensory,
                &f.sensory_w,
                &f.sensory_mu,
                &f.sensory_sigma,
                &f.sensory_erev,
            ),
            g: f.gleak.iter().map(|&x| constrained(c, x)).collect(),
            cm: f.cm.iter().map(|&x| constrained(c, x)).collect(),
        }
    }
    /// The time that step `t` of row `b` takes.
    fn duration(&self, b: usize, t: usize) -> R {
        if self.p.elapsed { self.f.elapsed[b * self.p.steps + t] } else { R::from_f64(self.p.dt) }
    }
    /// `[H]`: cm K / duration.
    fn rates(&self, duration: R) -> Vec<R> {
        let unfolds = R::from_f64(self.p.unfolds as f64);
        self.cm.iter().map(|&cm| cm * unfolds / duration).collect()
    }
    /// What row `b` starts from; zeros where it is not given.
    fn initial(&self, from: &[R], b: usize) -> Vec<R> {
        let h = self.p.hidden;
        if self.p.initial_state { from[b * h..][..h].to_vec() } else { vec![R::zero(); h] }
    }
    fn row(&self, b: usize) -> Row<R> {
        let (p, f) = (self.p, self.f);
        let (steps, d, h) = (p.steps, p.inputs, p.hidden);
        let x = f.x[b * steps * d..(b + 1) * steps * d].to_vec();
        let mut row = Row {
            xhat: x,
            y: Vec::new(),
            u: Vec::new(),
            rstd: Vec::new(),
            v: Vec::new(),
            lstm: Vec::new(),
            den: Vec::new(),
        };
        if p.layer_norm {
            row.rstd = row.xhat.chunks_mut(d.max(1)).map(normalise).collect();
        }
        let affine = |from: &[R], w: &[R], b: &[R]| -> Vec<R> {
            let scaled = |i: usize, x: R| if w.is_empty() { x } else { x * w[i % d] };
            let shifted = |i: usize, x: R| if b.is_empty() { x } else { x + b[i % d] };
            from.iter().enumerate().map(|(i, &x)| shifted(i, scaled(i, x))).collect()
        };
        row.y = affine(&row.xhat, &f.norm_weight, &f.norm_bias);
        row.u = affine(&row.y, &f.input_w, &f.input_b);
        let mut state = self.initial(&f.h0, b);
        let mut cell = if p.mixed_memory { self.initial(&f.c0, b) } else { Vec::new() };
        for t in 0..steps {
            if p.mixed_memory {
                let (step, new) = self.lstm(&f.x[(b * steps + t) * d..][..d], &state, &cell);
                (state, cell) = (new, step.c[1].clone());
                row.lstm.push(step);
            }
            row.v.extend_from_slice(&state);
            let rates = self.rates(self.duration(b, t));
            let (mut sensory_num, mut sensory_den) = (vec![R::zero(); h], vec![R::zero(); h]);
            self.sensory.drive(&row.u[t * d..(t + 1) * d], &mut sensory_num, &mut sensory_den);
            for _ in 0..p.unfolds {
                let v = row.v[row.v.len() - h..].to_vec();
                let (mut num, mut den) = (sensory_num.clone(), sensory_den.clone());
                self.recurrent.drive(&v, &mut num, &mut den);
                for j in 0..h {
                    num[j] = num[j] + rates[j] * v[j] + self.g[j] * f.vleak[j];
                    den[j] = den[j] + rates[j] + self.g[j] + R::from_f64(p.epsilon);
                    row.v.push(num[j] / den[j]);
                }
                row.den.extend(den);
            }
            state = row.v[row.v.len() - h..].to_vec();
        }
        row
    }
}

/// Subtracts the mean and divides by the standard deviation, in place; returns 1 / standard deviation.
fn normalise<R: Real>(x: &mut [R]) -> R {
    let count = R::from_f64(x.len() as f64);
    let mean = sum(x.iter().copied()) / count;
    x.iter_mut().for_each(|x| *x = *x - mean);
    let variance = sum(x.iter().map(|&x| x * x)) / count;
    let rstd = R::one() / (variance + R::from_f64(NORM_EPSILON)).sqrt();
    x.iter_mut().for_each(|x| *x = *x * rstd);
    rstd
}

fn sum<R: Real>(items: impl Iterator<Item = R>) -> R {
    items.fold(R::zero(), |a, b| a + b)
}

/// What the forward pass writes.
pub(super) struct Outputs<R> {
    /// `[B, T, M]`.
    pub(super) out: Vec<R>,
    /// `[B, H]`.
    pub(super) final_state: Vec<R>,
    /// `[B, T, H]`.
    pub(super) states: Vec<R>,
    /// `[B, H]` with mixed memory, else empty.
    pub(super) final_cell: Vec<R>,
}

/// The forward pass over any numbers.
pub(super) fn forward_fields<R: Real>(p: &Ltc, f: &Fields<R>) -> Outputs<R> {
    let model = Model::new(p, f);
    let h = p.hidden;
    let mut o = Outputs { out: Vec::new(), final_state: Vec::new(), states: Vec::new(), final_cell: Vec::new() };
    for b in 0..p.batch {
        let row = model.row(b);
        for t in 0..p.steps {
            let state = &row.v[(t * (p.unfolds + 1) + p.unfolds) * h..][..h];
            o.states.extend_from_slice(state);
            for (m, &v) in state[..p.outputs].iter().enumerate() {
                let scaled = if f.output_w.is_empty() { v } else { v * f.output_w[m] };
                o.out.push(if f.output_b.is_empty() { scaled } else { scaled + f.output_b[m] });
            }
        }
        let last = if p.steps == 0 { model.initial(&f.h0, b) } else { row.v[row.v.len() - h..].to_vec() };
        o.final_state.extend(last);
        if p.mixed_memory {
            o.final_cell.extend(row.lstm.last().map_or_else(|| model.initial(&f.c0, b), |step| step.c[1].clone()));
        }
    }
    o
}

/// The backward pass over any numbers: the gradient of every input.
///
/// `grad_out` is `[B, T, M]`, `grad_final_state` and, with mixed memory, `grad_final_cell` are `[B, H]`.
pub(super) fn backward_fields<R: Real>(
    p: &Ltc,
    f: &Fields<R>,
    grad_out: &[R],
    grad_final_state: &[R],
    grad_final_cell: &[R],
) -> Fields<R> {
    let model = Model::new(p, f);
    let mut gradients = Gradients {
        fields: f.zeros(p),
        recurrent: Sums::new(p.connectivity.recurrent.len()),
        sensory: Sums::new(p.connectivity.sensory.len()),
    };
    for b in 0..p.batch {
        let row = model.row(b);
        let mut a = grad_final_state[b * p.hidden..(b + 1) * p.hidden].to_vec();
        let mut c = if p.mixed_memory { grad_final_cell[b * p.hidden..][..p.hidden].to_vec() } else { Vec::new() };
        for t in (0..p.steps).rev() {
            let step_grad = &grad_out[(b * p.steps + t) * p.outputs..][..p.outputs];
            let grad_u = model.step_back(b, t, &row, step_grad, &mut a, &mut gradients);
            input_back(&model, b, t, &row, &grad_u, &mut gradients.fields);
            if let Some(step) = row.lstm.get(t) {
                let at = (b * p.steps + t) * p.inputs;
                let mut grad_x = gradients.fields.x[at..][..p.inputs].to_vec();
                model.lstm_back(&f.x[at..][..p.inputs], step, &mut a, &mut c, &mut gradients.fields, &mut grad_x);
                gradients.fields.x[at..][..p.inputs].copy_from_slice(&grad_x);
            }
        }
        if p.initial_state {
            gradients.fields.h0[b * p.hidden..(b + 1) * p.hidden].copy_from_slice(&a);
            if p.mixed_memory {
                gradients.fields.c0[b * p.hidden..][..p.hidden].copy_from_slice(&c);
            }
        }
    }
    let Gradients { fields: mut grad, recurrent, sensory } = gradients;
    for j in 0..p.hidden {
        grad.gleak[j] = grad.gleak[j] * slope(p.constraint, f.gleak[j]);
        grad.cm[j] = grad.cm[j] * slope(p.constraint, f.cm[j]);
    }
    close(
        &model.recurrent,
        &recurrent,
        p.constraint,
        [&f.w, &f.erev],
        [&mut grad.w, &mut grad.mu, &mut grad.sigma, &mut grad.erev],
    );
    close(
        &model.sensory,
        &sensory,
        p.constraint,
        [&f.sensory_w, &f.sensory_erev],
        [&mut grad.sensory_w, &mut grad.sensory_mu, &mut grad.sensory_sigma, &mut grad.sensory_erev],
    );
    grad
}

/// What the backward pass adds to, row by row.
struct Gradients<R> {
    fields: Fields<R>,
    recurrent: Sums<R>,
    sensory: Sums<R>,
}

impl<R: Real> Model<'_, R> {
    /// Takes `a`, the gradient of the state after step `t`, to that before it; returns the gradient of u, `[D]`.
    fn step_back(
        &self,
        b: usize,
        t: usize,
        row: &Row<R>,
        grad_out: &[R],
        a: &mut [R],
        gradients: &mut Gradients<R>,
    ) -> Vec<R> {
        let (p, f, h) = (self.p, self.f, self.p.hidden);
        let Gradients { fields: grad, recurrent, sensory } = gradients;
        let duration = self.duration(b, t);
        let rates = self.rates(duration);
        let unfolds_per_time = R::from_f64(p.unfolds as f64) / duration;
        let after = &row.v[(t * (p.unfolds + 1) + p.unfolds) * h..][..h];
        for (m, &go) in grad_out.iter().enumerate() {
            if !f.output_b.is_empty() {
                grad.output_b[m] = grad.output_b[m] + go;
            }
            if f.output_w.is_empty() {
                a[m] = a[m] + go;
            } else {
                grad.output_w[m] = grad.output_w[m] + go * after[m];
                a[m] = a[m] + go * f.output_w[m];
            }
        }
        let (mut alpha_sum, mut beta_sum) = (vec![R::zero(); h], vec![R::zero(); h]);
        let mut grad_duration = R::zero();
        for k in (t * p.unfolds..(t + 1) * p.unfolds).rev() {
            // A step has a state more than unfolds.
            let (v, den) = (&row.v[(k + t) * h..][..2 * h], &row.den[k * h..][..h]);
            let (v, next) = v.split_at(h);
            let alpha: Vec<R> = a.iter().zip(den).map(|(&a, &den)| a / den).collect();
            let beta: Vec<R> = alpha.iter().zip(next).map(|(&alpha, &next)| -(alpha * next)).collect();
            for j in 0..h {
                alpha_sum[j] = alpha_sum[j] + alpha[j];
                beta_sum[j] = beta_sum[j] + beta[j];
                let grad_rate = alpha[j] * (v[j] - next[j]);
                grad.cm[j] = grad.cm[j] + grad_rate * unfolds_per_time;
                grad_duration = grad_duration - grad_rate * rates[j] / duration;
                grad.gleak[j] = grad.gleak[j] + alpha[j] * (f.vleak[j] - next[j]);
                grad.vleak[j] = grad.vleak[j] + alpha[j] * self.g[j];
                a[j] = alpha[j] * rates[j];
            }
            self.recurrent.adjoint(v, &alpha, &beta, recurrent, a);
        }
        if p.elapsed {
            grad.elapsed[b * p.steps + t] = grad_duration;
        }
        let mut grad_u = vec![R::zero(); p.inputs];
        let u = &row.u[t * p.inputs..][..p.inputs];
        self.sensory.adjoint(u, &alpha_sum, &beta_sum, sensory, &mut grad_u);
        grad_u
    }
}

/// From the gradient of u back to x, through the input mapping and LayerNorm.
fn input_back<R: Real>(model: &Model<'_, R>, b: usize, t: usize, row: &Row<R>, grad_u: &[R], grad: &mut Fields<R>) {
    let (p, f, d) = (model.p, model.f, model.p.inputs);
    let (xhat, y) = (&row.xhat[t * d..][..d], &row.y[t * d..][..d]);
    let mut g = grad_u.to_vec();
    for i in 0..d {
        if !f.input_b.is_empty() {
            grad.input_b[i] = grad.input_b[i] + g[i];
        }
        if !f.input_w.is_empty() {
            grad.input_w[i] = grad.input_w[i] + g[i] * y[i];
            g[i] = g[i] * f.input_w[i];
        }
        if p.layer_norm {
            grad.norm_bias[i] = grad.norm_bias[i] + g[i];
            grad.norm_weight[i] = grad.norm_weight[i] + g[i] * xhat[i];
            g[i] = g[i] * f.norm_weight[i];
        }
    }
    if p.layer_norm && d > 0 {
        let count = R::from_f64(d as f64);
        let mean = sum(g.iter().copied()) / count;
        let along = sum(g.iter().zip(xhat).map(|(&g, &x)| g * x)) / count;
        for i in 0..d {
            g[i] = row.rstd[t] * (g[i] - mean - xhat[i] * along);
        }
    }
    grad.x[(b * p.steps + t) * d..][..d].copy_from_slice(&g);
}

/// The gradients of a side's `[w, mu, sigma, erev]` from its sums; those of masked synapses stay zero.
fn close<R: Real>(side: &Side<'_, R>, sums: &Sums<R>, c: Constraint, [w, erev]: [&[R]; 2], grad: [&mut Vec<R>; 4]) {
    let [grad_w, grad_mu, grad_sigma, grad_erev] = grad;
    for (s, at) in positions(side.synapses).enumerate() {
        grad_w[at] = slope(c, w[at]) * (erev[at] * sums.alpha_r[s] + sums.beta_r[s]);
        grad_mu[at] = -(side.sigma[s] * sums.dz[s]);
        grad_sigma[at] = sums.dz_v[s] - side.mu[s] * sums.dz[s];
        grad_erev[at] = side.p[s] * sums.alpha_r[s];
    }
}

fn lower<R: Real>(shape: crate::Shape, data: &[R]) -> Result<Values> {
    Values::new(shape, data.iter().map(|x| x.to_f64()).collect())
}

/// The forward pass: `out` `[B, T, M]`, `final_state` `[B, H]`, and `states` `[B, T, H]` where the signature has them.
///
/// `inputs` holds what [`Ltc::forward_inputs`] names; the index lists are taken from the problem's connectivity. `R` is
/// f64 for the law and f32 for its noise floor.
///
/// # Errors
/// If a tensor is missing or has the wrong shape.
pub fn forward<R: Real>(p: &Ltc, inputs: &Tensors) -> Result<Tensors> {
    let o = forward_fields(p, &Fields::<R>::lift(p, inputs)?);
    let mut results = Tensors::new();
    for spec in p.forward_outputs() {
        let data = match &*spec.name {
            "out" => &o.out,
            "final_state" => &o.final_state,
            "states" => &o.states,
            "final_cell" => &o.final_cell,
            _ => continue,
        };
        results.insert(spec.name.into_owned(), lower(spec.shape, data)?);
    }
    Ok(results)
}

/// The backward pass: every gradient that the problem wants, by the names of its signature.
///
/// `inputs` holds the inputs of the forward pass, `grad_out` `[B, T, M]` and `grad_final_state` `[B, H]`; what the
/// forward pass saved is computed again.
///
/// # Errors
/// If a tensor is missing or has the wrong shape, or the problem was built without the backward pass.
pub fn backward<R: Real>(p: &Ltc, inputs: &Tensors) -> Result<Tensors> {
    let mut results = gradients::<R>(p, inputs)?;
    if p.asks_per_sample() {
        per_sample::add::<R>(p, inputs, &mut results)?;
    }
    Ok(results)
}

fn gradients<R: Real>(p: &Ltc, inputs: &Tensors) -> Result<Tensors> {
    let signature = p.signature_of(Pass::Backward)?;
    let f = Fields::<R>::lift(p, inputs)?;
    let arriving = |name: &str| -> Result<Vec<R>> {
        let specs = signature.inputs.iter().find(|s| s.role == Role::Gradient && s.name == name);
        let spec = specs.ok_or_else(|| Error::shape(format!("ltc: the backward pass reads no {name}")))?;
        lift(inputs, name, spec.axes, &spec.shape)
    };
    let cell = if p.mixed_memory { arriving("grad_final_cell")? } else { Vec::new() };
    let grad = backward_fields(p, &f, &arriving("grad_out")?, &arriving("grad_final_state")?, &cell);
    let mut results = Tensors::new();
    for spec in signature.outputs.into_iter().filter(|s| s.role == Role::Gradient) {
        let name = spec.name.trim_start_matches("grad_");
        let data = grad.get(name).ok_or_else(|| Error::shape(format!("ltc: there is no gradient of {name}")))?;
        results.insert(spec.name.clone(), lower(spec.shape, data)?);
    }
    Ok(results)
}
