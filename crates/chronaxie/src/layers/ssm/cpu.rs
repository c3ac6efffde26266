//! Threads over rows, SIMD within them.
//!
//! Rows contiguous in time take eight steps at a time: a scan of affine maps in a register breaks the chain of dependent
//! operations to one per eight steps, so memory binds and not the latency of a multiplication. Channels that lie next to
//! each other are vectors already. Any other strides run one step after the other. Halves take the same ways, widened and
//! rounded part by part, so that they are what f32 gives, rounded once. Complex scans, with forgetting, or of sequences
//! end to end are in `general.rs`.

#![allow(unsafe_code)]

use super::lanes::Array;
use super::packing::Packing;
use super::spec::{LinearScan, NAME};
use crate::op::{Args, CpuPlan, CpuWork, Pass, PlanOptions, Planned};
use crate::{Dtype, Error, Layout, Place, Result, View, ViewMut};
use chronaxie_runtime::{dispatch, pool, simd};
use half::{bf16, f16};
use stored::{Stored, parts};

mod general;
mod stored;

/// Channels that a task takes when they lie next to each other: 1 KiB a step and tensor.
const CHANNELS_PER_TASK: usize = 256;
/// Steps that a task takes at the least, so that handing it out costs little.
const STEPS_PER_TASK: usize = 1 << 14;
/// Elements of an output from which on its stores pass the caches by: it will not be there when it is read.
const STREAM_FROM: usize = 4 << 20;

/// `linear_scan` on the CPU.
#[derive(Debug)]
pub(super) struct Cpu {
    problem: LinearScan,
}

impl Cpu {
    pub(super) fn plan(problem: LinearScan, options: &PlanOptions) -> Result<CpuPlan<Self>> {
        let passes = [Pass::Forward, Pass::Backward].map(|pass| (pass, Layout::new(options.scratch_gap)));
        CpuPlan::new(&problem, options, passes, Self { problem })
    }
}

impl CpuWork for Cpu {
    fn execute(&self, pass: Pass, _planned: &Planned, args: &mut Args<'_, '_>) -> Result<()> {
        let p = &self.problem;
        if p.packing() != Packing::Whole {
            return general(p, pass, args);
        }
        match p.dtype() {
            Dtype::F32 => plain::<f32>(p, pass, args),
            Dtype::Bf16 => plain::<bf16>(p, pass, args),
            Dtype::F16 => plain::<f16>(p, pass, args),
            _ => general(p, pass, args),
        }
    }
}

/// Runs a pass of real whole sequences.
fn plain<T: Stored>(p: &LinearScan, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
    let given = usize::from(p.has_initial_state());
    match pass {
        Pass::Forward => {
            let [h, h_last] = args.outputs else { return Err(miscounted()) };
            let h0 = args.inputs.get(2).map(Rows::state).transpose()?;
            let io = Forward::<T> {
                a: Rows::sequence(&args.inputs[0])?,
                x: Rows::sequence(&args.inputs[1])?,
                h0,
                h: Rows::sequence_mut(h)?,
                h_last: Rows::state_mut(h_last)?,
            };
            run(p, &[io.a, io.x, io.h], &|row, count| io.channels(p, row, count), &|row| io.row(p, row));
        }
        _ => {
            let (inputs, outputs) = (args.inputs, &mut *args.outputs);
            if inputs.len() != 4 + given || outputs.len() != 2 + given {
                return Err(miscounted());
            }
            let io = Backward::<T> {
                a: Rows::sequence(&inputs[0])?,
                h0: if given == 1 { Some(Rows::state(&inputs[1])?) } else { None },
                h: Rows::sequence(&inputs[1 + given])?,
                grad_h: Rows::sequence(&inputs[2 + given])?,
                grad_h_last: Rows::state(&inputs[3 + given])?,
                grad_a: Rows::sequence_mut(&mut outputs[0])?,
                grad_x: Rows::sequence_mut(&mut outputs[1])?,
                grad_h0: outputs.get_mut(2).map(Rows::state_mut).transpose()?,
            };
            let sequences = [io.a, io.h, io.grad_h, io.grad_a, io.grad_x];
            run(p, &sequences, &|row, count| io.channels(p, row, count), &|row| io.row(p, row));
        }
    }
    Ok(())
}

/// Runs a pass of any storage type and packing.
fn general(p: &LinearScan, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
    let given = usize::from(p.has_initial_state());
    let (inputs, outputs) = (args.inputs, &mut *args.outputs);
    // Behind a, x (forward) and h0.
    let at = given + if pass == Pass::Forward { 2 } else { 1 };
    let marks = p.packing().marks(p.name(), p.batch(), p.steps(), inputs.get(at))?;
    if pass == Pass::Forward {
        let [h, h_last] = outputs else { return Err(miscounted()) };
        let h0 = (given == 1).then(|| Array::read(&inputs[2]));
        let (a, x) = (Array::read(&inputs[0]), Array::read(&inputs[1]));
        general::Forward { a, x, h0, h: Array::write(h), h_last: Array::write(h_last) }.run(p, &marks);
        return Ok(());
    }
    let rest = at + usize::from(p.packing() != Packing::Whole);
    let [h, grad_h, grad_h_last] = &inputs[rest..] else { return Err(miscounted()) };
    let [grad_a, grad_x, grad_h0 @ ..] = outputs else { return Err(miscounted()) };
    let io = general::Backward {
        a: Array::read(&inputs[0]),
        h0: (given == 1).then(|| Array::read(&inputs[1])),
        h: Array::read(h),
        grad_h: Array::read(grad_h),
        grad_h_last: Array::read(grad_h_last),
        grad_a: Array::write(grad_a),
        grad_x: Array::write(grad_x),
        grad_h0: grad_h0.first_mut().map(Array::write),
    };
    io.run(p, &marks);
    Ok(())
}

fn miscounted() -> Error {
    Error::shape(format!("{NAME}: the number of tensors does not match the signature"))
}

/// A tensor as rows over time: an address, and strides in elements.
#[derive(Clone, Copy)]
struct Rows<T> {
    ptr: *mut T,
    b: isize,
    d: isize,
    t: isize,
}

// SAFETY: tasks write only rows that belong to their index, and the views behind the pointers outlive the tasks.
unsafe impl<T> Send for Rows<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Rows<T> {}

impl<T: Stored> Rows<T> {
    /// `[B, D, T]`.
    fn sequence(v: &View<'_>) -> Result<Self> {
        if v.dtype() != T::DTYPE || v.place() != Place::Cpu {
            let (dtype, place, want) = (v.dtype(), v.place(), T::DTYPE);
            return Err(Error::dtype(format!("{NAME}: a {dtype} tensor on {place} was used as host {want}")));
        }
        let s = v.strides();
        Ok(Self { ptr: v.address() as *mut T, b: s[0], d: s[1], t: s[2] })
    }
    fn sequence_mut(v: &mut ViewMut<'_>) -> Result<Self> {
        Self::sequence(&v.as_view())
    }
    /// The address of a row's time 0.
    fn row(self, p: &LinearScan, row: usize) -> *mut T {
        let (b, d) = (row / p.channels(), row % p.channels());
        self.ptr.wrapping_offset(b as isize * self.b + d as isize * self.d)
    }
}

impl Rows<f32> {
    fn state(v: &View<'_>) -> Result<Self> {
        let s = v.strides();
        Ok(Self { ptr: v.as_ptr::<f32>()?.cast_mut(), b: s[0], d: s[1], t: 0 })
    }
    fn state_mut(v: &mut ViewMut<'_>) -> Result<Self> {
        Ok(Self { ptr: v.as_mut_ptr()?, ..Self::state(&v.as_view())? })
    }
}

/// Runs `channels(first row, count)` if all of the tensors have their channels next to each other but not their steps,
/// else `row(row)` for every row.
fn run<T>(p: &LinearScan, tensors: &[Rows<T>], channels: &(dyn Fn(usize, usize) + Sync), row: &(dyn Fn(usize) + Sync)) {
    let by_time = p.steps() <= 1 || tensors.iter().all(|r| r.t == 1);
    if !by_time && tensors.iter().all(|r| r.d == 1) {
        let groups = p.channels().div_ceil(CHANNELS_PER_TASK);
        pool::for_each(p.batch() * groups, |i| {
            let first = i % groups * CHANNELS_PER_TASK;
            channels(i / groups * p.channels() + first, CHANNELS_PER_TASK.min(p.channels() - first));
        });
    } else {
        let rows_per_task = (STEPS_PER_TASK / p.steps().max(1)).max(1);
        pool::for_each(p.rows().div_ceil(rows_per_task), |i| {
            (i * rows_per_task..((i + 1) * rows_per_task).min(p.rows())).for_each(row);
        });
    }
}

/// The place of the `s`-th step of `n` when time runs backwards or not.
#[inline(always)]
fn place(s: usize, n: usize, descending: bool) -> isize {
    (if descending { n - 1 - s } else { s }) as isize
}

/// The tensors of the forward pass.
struct Forward<T> {
    a: Rows<T>,
    x: Rows<T>,
    h0: Option<Rows<f32>>,
    h: Rows<T>,
    h_last: Rows<f32>,
}

impl<T: Stored> Forward<T> {
    fn row(&self, p: &LinearScan, row: usize) {
        let (n, descending) = (p.steps(), p.is_reverse());
        let (a, x, h) = (self.a.row(p, row), self.x.row(p, row), self.h.row(p, row));
        // SAFETY: the signature's check has seen that every index of the problem lies inside its tensor.
        unsafe {
            let mut state = self.h0.map_or(0.0, |h0| *h0.row(p, row));
            if n > 0 && [self.a, self.x, self.h].iter().all(|r| r.t == 1) {
                let (a, x) = (std::slice::from_raw_parts(a, n), std::slice::from_raw_parts(x, n));
                let h = std::slice::from_raw_parts_mut(h, n);
                // A buffer is read at once.
                let stream = T::DTYPE == Dtype::F32 && p.rows() * n >= STREAM_FROM;
                let [mut wide_a, mut wide_x, mut wide_h] = [(); 3].map(|()| T::buffer());
                for part in parts::<T>(n, descending) {
                    let a = T::read(&a[part.clone()], &mut wide_a);
                    let x = T::read(&x[part.clone()], &mut wide_x);
                    state = T::write(&mut h[part], &mut wide_h, |h| scan(a, x, h, state, descending, stream));
                }
            } else {
                for s in 0..n {
                    let t = place(s, n, descending);
                    state = (*a.offset(t * self.a.t)).load() * state + (*x.offset(t * self.x.t)).load();
                    *h.offset(t * self.h.t) = T::store(state);
                }
            }
            *self.h_last.row(p, row) = state;
        }
    }

    fn channels(&self, p: &LinearScan, row: usize, count: usize) {
        let n = p.steps();
        let (a, x, h) = (self.a.row(p, row), self.x.row(p, row), self.h.row(p, row));
        let mut state = [0.0; CHANNELS_PER_TASK];
        let [mut wide_a, mut wide_x, mut wide_h] = [(); 3].map(|()| T::buffer());
        // SAFETY: as in `row`; channels row to row + count are of one batch element and next to each other.
        unsafe {
            if let Some(h0) = self.h0 {
                state[..count].iter_mut().enumerate().for_each(|(c, s)| *s = *h0.row(p, row + c));
            }
            for s in 0..n {
                let t = place(s, n, p.is_reverse());
                let a = T::read(std::slice::from_raw_parts(a.offset(t * self.a.t), count), &mut wide_a);
                let x = T::read(std::slice::from_raw_parts(x.offset(t * self.x.t), count), &mut wide_x);
                let h = std::slice::from_raw_parts_mut(h.offset(t * self.h.t), count);
                T::write(h, &mut wide_h, |h| forward_step(&mut state[..count], a, x, h));
            }
            state[..count].iter().enumerate().for_each(|(c, &s)| *self.h_last.row(p, row + c) = s);
        }
    }
}

/// One step of neighbouring channels.
#[inline(always)]
fn forward_step_body(state: &mut [f32], a: &[f32], x: &[f32], h: &mut [f32]) {
    for (((s, h), a), x) in state.iter_mut().zip(h).zip(a).zip(x) {
        *s = a * *s + x;
        *h = *s;
    }
}
dispatch!(fn forward_step(state: &mut [f32], a: &[f32], x: &[f32], h: &mut [f32]) = forward_step_body);

/// The tensors of the backward pass.
struct Backward<T> {
    a: Rows<T>,
    h0: Option<Rows<f32>>,
    h: Rows<T>,
    grad_h: Rows<T>,
    grad_h_last: Rows<f32>,
    grad_a: Rows<T>,
    grad_x: Rows<T>,
    grad_h0: Option<Rows<f32>>,
}

impl<T: Stored> Backward<T> {
    fn row(&self, p: &LinearScan, row: usize) {
        let (n, descending) = (p.steps(), !p.is_reverse());
        let (a, h, g) = (self.a.row(p, row), self.h.row(p, row), self.grad_h.row(p, row));
        let (grad_a, grad_x) = (self.grad_a.row(p, row), self.grad_x.row(p, row));
        let sequences = [self.a, self.h, self.grad_h, self.grad_a, self.grad_x];
        // SAFETY: the signature's check has seen that every index of the problem lies inside its tensor.
        unsafe {
            let before_first = self.h0.map_or(0.0, |h0| *h0.row(p, row));
            let mut mu = *self.grad_h_last.row(p, row);
            if n > 0 && sequences.iter().all(|r| r.t == 1) {
                use std::slice::{from_raw_parts as read, from_raw_parts_mut as write};
                let (a, h, g) = (read(a, n), read(h, n), read(g, n));
                let (grad_a, grad_x) = (write(grad_a, n), write(grad_x, n));
                let stream = T::DTYPE == Dtype::F32 && p.rows() * n >= STREAM_FROM;
                let [mut wide_a, mut wide_h, mut wide_g] = [(); 3].map(|()| T::buffer());
                let [mut wide_ga, mut wide_gx] = [(); 2].map(|()| T::buffer());
                for part in parts::<T>(n, descending) {
                    // The state that the scan visits behind this part.
                    let behind = if descending { part.start.checked_sub(1) } else { Some(part.end) };
                    let row = BackwardRow {
                        a: T::read(&a[part.clone()], &mut wide_a),
                        h: T::read(&h[part.clone()], &mut wide_h),
                        g: T::read(&g[part.clone()], &mut wide_g),
                        before_first: behind.and_then(|i| h.get(i)).map_or(before_first, |h| h.load()),
                    };
                    mu = T::write(&mut grad_a[part.clone()], &mut wide_ga, |grad_a| {
                        T::write(&mut grad_x[part], &mut wide_gx, |grad_x| {
                            backward_row(row, grad_a, grad_x, mu, descending, stream)
                        })
                    });
                }
            } else {
                for s in 0..n {
                    let t = place(s, n, descending);
                    let before = match s + 1 < n {
                        true => (*h.offset(place(s + 1, n, descending) * self.h.t)).load(),
                        false => before_first,
                    };
                    let lambda = (*g.offset(t * self.grad_h.t)).load() + mu;
                    *grad_a.offset(t * self.grad_a.t) = T::store(lambda * before);
                    *grad_x.offset(t * self.grad_x.t) = T::store(lambda);
                    mu = (*a.offset(t * self.a.t)).load() * lambda;
                }
            }
            if let Some(grad_h0) = self.grad_h0 {
                *grad_h0.row(p, row) = mu;
            }
        }
    }

    fn channels(&self, p: &LinearScan, row: usize, count: usize) {
        use std::slice::{from_raw_parts as read, from_raw_parts_mut as write};
        let (n, descending) = (p.steps(), !p.is_reverse());
        let (a, h, g) = (self.a.row(p, row), self.h.row(p, row), self.grad_h.row(p, row));
        let (grad_a, grad_x) = (self.grad_a.row(p, row), self.grad_x.row(p, row));
        let (mut mu, mut first) = ([0.0; CHANNELS_PER_TASK], [0.0; CHANNELS_PER_TASK]);
        let [mut wide_a, mut wide_h, mut wide_g] = [(); 3].map(|()| T::buffer());
        let [mut wide_ga, mut wide_gx] = [(); 2].map(|()| T::buffer());
        // SAFETY: as in `row`; channels row to row + count are of one batch element and next to each other.
        unsafe {
            mu[..count].iter_mut().enumerate().for_each(|(c, m)| *m = *self.grad_h_last.row(p, row + c));
            if let Some(h0) = self.h0 {
                first[..count].iter_mut().enumerate().for_each(|(c, f)| *f = *h0.row(p, row + c));
            }
            for s in 0..n {
                let t = place(s, n, descending);
                let before = match s + 1 < n {
                    true => T::read(read(h.offset(place(s + 1, n, descending) * self.h.t), count), &mut wide_h),
                    false => &first[..count],
                };
                let a = T::read(read(a.offset(t * self.a.t), count), &mut wide_a);
                let g = T::read(read(g.offset(t * self.grad_h.t), count), &mut wide_g);
                let grad_x = write(grad_x.offset(t * self.grad_x.t), count);
                T::write(write(grad_a.offset(t * self.grad_a.t), count), &mut wide_ga, |grad_a| {
                    T::write(grad_x, &mut wide_gx, |grad_x| {
                        backward_step(&mut mu[..count], a, before, g, grad_a, grad_x)
                    });
                });
            }
            if let Some(grad_h0) = self.grad_h0 {
                mu[..count].iter().enumerate().for_each(|(c, &m)| *grad_h0.row(p, row + c) = m);
            }
        }
    }
}

/// One step of neighbouring channels.
#[inline(always)]
fn backward_step_body(mu: &mut [f32], a: &[f32], before: &[f32], g: &[f32], grad_a: &mut [f32], grad_x: &mut [f32]) {
    let outputs = mu.iter_mut().zip(grad_a).zip(grad_x);
    for (((mu, grad_a), grad_x), ((a, before), g)) in outputs.zip(a.iter().zip(before).zip(g)) {
        let lambda = g + *mu;
        *grad_a = lambda * before;
        *grad_x = lambda;
        *mu = a * lambda;
    }
}
dispatch!(fn backward_step(mu: &mut [f32], a: &[f32], before: &[f32], g: &[f32], grad_a: &mut [f32], grad_x: &mut [f32])
    = backward_step_body);

/// What a row of the backward pass reads; all contiguous in time and of one length, which is not 0.
#[derive(Clone, Copy)]
struct BackwardRow<'a> {
    a: &'a [f32],
    h: &'a [f32],
    g: &'a [f32],
    /// The state before the row's first.
    before_first: f32,
}

/// lambda_t = g_t + mu_{t+1} with mu_t = a_t lambda_t, and the gradients that follow; returns the last mu.
fn backward_row(
    row: BackwardRow<'_>,
    grad_a: &mut [f32],
    grad_x: &mut [f32],
    mu: f32,
    descending: bool,
    stream: bool,
) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        // SAFETY: this CPU has AVX2 and FMA.
        return unsafe {
            match (descending, stream) {
                (false, false) => avx2::backward::<false, false>(row, grad_a, grad_x, mu),
                (false, true) => avx2::backward::<false, true>(row, grad_a, grad_x, mu),
                (true, false) => avx2::backward::<true, false>(row, grad_a, grad_x, mu),
                (true, true) => avx2::backward::<true, true>(row, grad_a, grad_x, mu),
            }
        };
    }
    let _ = stream;
    backward_serial(row, grad_a, grad_x, 0, mu, descending)
}

/// The steps from the `done`-th on, one after the other.
fn backward_serial(
    row: BackwardRow<'_>,
    grad_a: &mut [f32],
    grad_x: &mut [f32],
    done: usize,
    mut mu: f32,
    descending: bool,
) -> f32 {
    let n = row.a.len();
    let at = |s| place(s, n, descending) as usize;
    for s in done..n {
        let before = if s + 1 < n { row.h[at(s + 1)] } else { row.before_first };
        let lambda = row.g[at(s)] + mu;
        grad_a[at(s)] = lambda * before;
        grad_x[at(s)] = lambda;
        mu = row.a[at(s)] * lambda;
    }
    mu
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    matches!(simd::level(), simd::SimdLevel::Avx2 | simd::SimdLevel::Avx512)
}

/// h_t = a_t h_{t-1} + x_t over slices of one length, from `state`; returns the last state.
fn scan(a: &[f32], x: &[f32], h: &mut [f32], state: f32, descending: bool, stream: bool) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        // SAFETY: this CPU has AVX2 and FMA.
        return unsafe {
            match (descending, stream) {
                (false, false) => avx2::scan::<false, false>(a, x, h, state),
                (false, true) => avx2::scan::<false, true>(a, x, h, state),
                (true, false) => avx2::scan::<true, false>(a, x, h, state),
                (true, true) => avx2::scan::<true, true>(a, x, h, state),
            }
        };
    }
    let _ = stream;
    scan_serial(a, x, h, state, descending)
}

fn scan_serial(a: &[f32], x: &[f32], h: &mut [f32], mut state: f32, descending: bool) -> f32 {
    let step = |((h, a), x): ((&mut f32, &f32), &f32)| {
        state = a * state + x;
        *h = state;
    };
    let steps = h.iter_mut().zip(a).zip(x);
    if descending {
        steps.rev().for_each(step)
    } else {
        steps.for_each(step)
    }
    state
}

#[cfg(target_arch = "x86_64")]
mod avx2;
