//! What is special to scans: the backward pass is the derivative of the forward one, splitting changes nothing, time
//! can run backwards, memory can lie anyhow.

#![allow(unsafe_code)]

use super::packing::Marks;
use super::reference;
use super::spec::{Gates, LinearScan};
use super::{LinearScanComplexOp, LinearScanOp};
use crate::check::gpu::gpu;
use crate::cuda::{DeviceBuffer, StreamRef, download, upload};
use crate::op::{Args, CaseSet, Metric, Op, Pass, PlanOptions, Problem, TensorSpec, Tensors, Values};
use crate::real::Dual;
use crate::rng::Rng;
use crate::{Device, Dtype, Place, Shape, View, ViewMut};

mod general;
mod halves;

/// How a `[B, D, T]` tensor lies in memory in a test.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Memory {
    /// `[B, D, T]`.
    Contiguous,
    /// `[B, T, D]`.
    ChannelsLast,
    /// `[T, B, D]`, with a gap of 3 elements behind each time and 5 in front.
    TimeFirst,
    /// Every other element, time running from high addresses to low ones.
    Backwards,
}

const MEMORIES: [Memory; 4] = [Memory::Contiguous, Memory::ChannelsLast, Memory::TimeFirst, Memory::Backwards];

/// A tensor of f32 or halves in some memory layout; gaps hold NaN.
struct Tensor {
    shape: Shape,
    dtype: Dtype,
    strides: Vec<isize>,
    origin: usize,
    /// How many elements the memory has.
    count: usize,
    /// Words of one f32 or two halves.
    data: Vec<i32>,
}

impl Tensor {
    fn new(shape: Shape, dtype: Dtype, memory: Memory) -> Self {
        let n = shape.iter().map(|&n| n as isize).collect::<Vec<_>>();
        let (strides, origin) = match (shape.len(), memory) {
            (3, Memory::ChannelsLast) => (vec![n[1] * n[2], 1, n[1]], 0),
            (3, Memory::TimeFirst) => (vec![n[1], 1, n[0] * n[1] + 3], 5),
            (3, Memory::Backwards) => (vec![2 * n[1] * n[2], 2 * n[2], -2], 2 * (n[2] - 1).max(0)),
            (2, Memory::TimeFirst | Memory::Backwards) => (vec![1, n[0] + 1], 0),
            _ => (shape.contiguous_strides()[..shape.len()].to_vec(), 0),
        };
        let far: isize = n.iter().zip(&strides).map(|(n, s)| (n - 1).max(0) * s.max(&0)).sum();
        let count = (origin + far + 1) as usize;
        let words = (count * dtype.size()).div_ceil(4);
        let mut new = Self { shape, dtype, strides, origin: origin as usize, count, data: vec![0; words] };
        (0..words * 4 / dtype.size()).for_each(|at| new.put(at, f64::NAN));
        new
    }
    /// The element at a place in memory.
    fn at(&self, at: usize) -> f64 {
        let half = |at: usize| (self.data[at / 2] >> (16 * (at % 2))) as u16;
        match self.dtype {
            Dtype::Bf16 => half::bf16::from_bits(half(at)).to_f64(),
            Dtype::F16 => half::f16::from_bits(half(at)).to_f64(),
            _ => f64::from(f32::from_bits(self.data[at] as u32)),
        }
    }
    fn put(&mut self, at: usize, value: f64) {
        let bits = match self.dtype {
            Dtype::Bf16 => half::bf16::from_f64(value).to_bits(),
            Dtype::F16 => half::f16::from_f64(value).to_bits(),
            _ => {
                self.data[at] = (value as f32).to_bits() as i32;
                return;
            }
        };
        let (word, shift) = (&mut self.data[at / 2], 16 * (at % 2));
        *word = *word & !(0xffff << shift) | i32::from(bits) << shift;
    }
    fn index(&self, i: usize) -> usize {
        let mut rest = i;
        let mut at = self.origin as isize;
        for axis in (0..self.shape.len()).rev() {
            at += (rest % self.shape[axis]) as isize * self.strides[axis];
            rest /= self.shape[axis];
        }
        at as usize
    }
    fn set(&mut self, values: &[f64]) {
        for (i, &v) in values.iter().enumerate() {
            let at = self.index(i);
            self.put(at, v);
        }
    }
    fn get(&self) -> Vec<f64> {
        (0..self.shape.elements()).map(|i| self.at(self.index(i))).collect()
    }
    /// The tensor in a copy of its memory that starts at `base`.
    ///
    /// # Safety
    /// `base` must be the address of as many words as `data` has, which live and are used as `View::from_raw` says.
    unsafe fn view<'a>(&self, base: u64, place: Place) -> View<'a> {
        let first = base + (self.dtype.size() * self.origin) as u64;
        // SAFETY: `new` has made the memory as long as the farthest element; the caller vouches for the rest.
        unsafe { View::from_raw(first as *const u8, self.dtype, self.shape, &self.strides, place) }
    }
    /// The same, to be written.
    ///
    /// # Safety
    /// As `view`, and nobody else uses the memory.
    unsafe fn view_mut<'a>(&self, base: u64, place: Place) -> ViewMut<'a> {
        let first = base + (self.dtype.size() * self.origin) as u64;
        // SAFETY: as above, and no two indices meet.
        unsafe { ViewMut::from_raw(first as *mut u8, self.dtype, self.shape, &self.strides, place) }
    }
}

/// Where a test runs, and the variant it asks for.
#[derive(Clone)]
struct Where {
    device: Device,
    variant: Option<&'static str>,
}

const CPU: Where = Where { device: Device::Cpu, variant: None };

/// Runs a pass; outputs are NaN before, and so are the gaps between elements afterwards.
fn run_on(at: &Where, p: &LinearScan, pass: Pass, inputs: &Tensors, memory: impl Fn(usize) -> Memory) -> Tensors {
    let options = PlanOptions { variant: at.variant.map(str::to_owned), ..PlanOptions::default() };
    let plan = p.plan(&at.device, &options).unwrap();
    let signature = p.signature(pass).unwrap();
    let tensor = |i: usize, t: &TensorSpec| Tensor::new(t.shape, t.dtype, memory(i));
    let mut ins: Vec<_> = signature.inputs.iter().enumerate().map(|(i, t)| tensor(i, t)).collect();
    for (t, spec) in ins.iter_mut().zip(&signature.inputs) {
        t.set(&inputs.get(&spec.name).unwrap().data);
    }
    let mut outs: Vec<_> = signature.outputs.iter().enumerate().map(|(i, t)| tensor(i + 7, t)).collect();
    let copies: Vec<_> = match &at.device {
        Device::Cpu => Vec::new(),
        Device::Cuda(d) => ins.iter().chain(&outs).map(|t| upload(d, &t.data, [t.data.len()]).unwrap()).collect(),
    };
    let place = at.device.place();
    let base = |i: usize, t: &Tensor| copies.get(i).map_or(t.data.as_ptr() as u64, DeviceBuffer::address);
    // SAFETY: vectors and copies live until the pass is done, and each is used by one view.
    let views: Vec<_> = ins.iter().enumerate().map(|(i, t)| unsafe { t.view(base(i, t), place) }).collect();
    let out_base = |i: usize, t: &mut Tensor| match copies.get(ins.len() + i) {
        Some(copy) => copy.address(),
        None => t.data.as_mut_ptr() as u64,
    };
    let mut views_out: Vec<_> = (outs.iter_mut().enumerate())
        .map(|(i, t)| {
            let base = out_base(i, t);
            // SAFETY: as above.
            unsafe { t.view_mut(base, place) }
        })
        .collect();
    let scratch = ViewMut::from_slice::<u8>(&mut [], [0]).unwrap();
    let mut args = Args { inputs: &views, outputs: &mut views_out, scratch, stream: StreamRef::LEGACY };
    plan.run(pass, &mut args).unwrap();
    for (t, copy) in outs.iter_mut().zip(copies.iter().skip(ins.len())) {
        t.data = download(&copy.view(Dtype::I32, [t.data.len()]).unwrap()).unwrap();
    }
    for t in &outs {
        let written = (0..t.count).filter(|&at| !t.at(at).is_nan()).count();
        assert_eq!(written, t.shape.elements(), "gaps stay as they were, and every element is written");
    }
    let named = signature.outputs.iter().zip(&outs);
    named.map(|(s, t)| (s.name.to_string(), Values::new(t.shape, t.get()).unwrap())).collect()
}

fn run(p: &LinearScan, pass: Pass, inputs: &Tensors, memory: impl Fn(usize) -> Memory) -> Tensors {
    run_on(&CPU, p, pass, inputs, memory)
}

fn merged(a: &Tensors, b: &Tensors) -> Tensors {
    a.iter().chain(b.iter()).map(|(n, v)| (n.to_owned(), v.clone())).collect()
}

/// Asserts that every output is within its tolerance of the law.
fn assert_close(p: &LinearScan, pass: Pass, got: &Tensors, law: &Tensors, what: &str) {
    for (name, want) in law.iter() {
        let tolerance = p.tolerance(pass, name).unwrap();
        assert_eq!(tolerance.metric, Metric::Relative);
        let error = relative(got.get(name).unwrap(), want);
        assert!(error <= tolerance.value, "{what} {p:?}: {name} is off by {error:e}");
    }
}

/// Outputs against their law, forward and backward.
fn check_on(at: &Where, p: &LinearScan, seed: u64, memory: impl Fn(usize) -> Memory + Copy, what: &str) {
    let inputs = p.sample(Pass::Forward, seed).unwrap();
    let forward = run_on(at, p, Pass::Forward, &inputs, memory);
    assert_close(p, Pass::Forward, &forward, &p.reference(Pass::Forward, &inputs, false).unwrap(), what);
    let all = merged(&inputs, &p.sample(Pass::Backward, seed).unwrap());
    let backward = run_on(at, p, Pass::Backward, &merged(&all, &forward), memory);
    assert_close(p, Pass::Backward, &backward, &p.reference(Pass::Backward, &all, false).unwrap(), what);
}

fn check(p: &LinearScan, seed: u64, memory: impl Fn(usize) -> Memory + Copy, what: &str) {
    check_on(&CPU, p, seed, memory, what);
}

#[test]
fn the_cpu_keeps_to_the_law_in_every_case() {
    for case in LinearScanOp.cases(CaseSet::Check) {
        if case.option("dtype").is_some() || case.option("packing").is_some() {
            continue;
        }
        let get = |axis| case.size(axis).unwrap();
        let p = LinearScan::new(get("B"), get("D"), get("T")).unwrap();
        let p = p
            .with_initial_state(case.get("h0", false).unwrap())
            .with_reverse(case.get("reverse", false).unwrap())
            .with_gates(case.get("gates", Gates::Uniform).unwrap());
        check(&p, 1, |_| Memory::Contiguous, &case.to_string());
    }
}

#[test]
fn memory_may_lie_anyhow() {
    for memory in MEMORIES {
        for reverse in [false, true] {
            for (b, d, t) in [(2, 5, 19), (1, 300, 9), (3, 1, 8), (2, 4, 1), (1, 2, 0)] {
                let p = LinearScan::new(b, d, t).unwrap().with_initial_state(true).with_reverse(reverse);
                check(&p, 3, |_| memory, &format!("{memory:?}"));
            }
        }
    }
    // Every tensor in its own way.
    let p = LinearScan::new(3, 7, 65).unwrap().with_initial_state(true).with_gates(Gates::Signed);
    check(&p, 4, |i| MEMORIES[i % 4], "mixed");
}

#[test]
fn lengths_around_every_boundary() {
    for t in (0..40).chain([63, 64, 65, 511, 512, 513, 1023, 1024, 1025, 2047, 4097]) {
        for reverse in [false, true] {
            let p = LinearScan::new(1, 3, t).unwrap().with_initial_state(t % 2 == 0).with_reverse(reverse);
            check(&p, t as u64, |_| Memory::Contiguous, "length");
        }
    }
}

/// Large enough for stores that pass the caches by, with rows that start at every alignment.
#[test]
fn large_outputs_keep_to_the_law() {
    for reverse in [false, true] {
        let p = LinearScan::new(1, 520, 8199).unwrap().with_reverse(reverse);
        check(&p, 6, |_| Memory::Contiguous, "large");
    }
}

fn draws(rng: &mut Rng, n: usize) -> Vec<f64> {
    (0..n).map(|_| rng.normal()).collect()
}

/// The derivative of `<grad_h, h> + <grad_h_last, h_last>` in a direction by dual numbers, against the gradients.
#[test]
fn the_reference_backward_is_the_derivative_of_its_forward() {
    for (reverse, given) in [(false, true), (true, true), (false, false), (true, false)] {
        let p = LinearScan::new(2, 3, 11).unwrap().with_reverse(reverse).with_initial_state(given);
        let (rows, n) = (p.rows(), p.rows() * p.steps());
        let mut rng = Rng::new(5, u64::from(reverse));
        let a: Vec<f64> = (0..n).map(|_| rng.range(-1.2, 1.2)).collect();
        let (x, h0) = (draws(&mut rng, n), draws(&mut rng, rows));
        let (grad_h, grad_h_last) = (draws(&mut rng, n), draws(&mut rng, rows));
        let marks = Marks::whole(2, 11);
        let (h, _) = reference::forward(&p, &marks, &a, &x, given.then_some(&h0[..]));
        let g = reference::backward(&p, &marks, &a, &h, given.then_some(&h0[..]), &grad_h, &grad_h_last);

        for coordinate in 0..2 * n + rows {
            let dual = |values: &[f64], first: usize| -> Vec<Dual> {
                let rate = |i| if first + i == coordinate { 1.0 } else { 0.0 };
                values.iter().enumerate().map(|(i, &v)| Dual::new(v, rate(i))).collect()
            };
            let (da, dx, dh0) = (dual(&a, 0), dual(&x, n), dual(&h0, 2 * n));
            let (h, h_last) = reference::forward(&p, &marks, &da, &dx, given.then_some(&dh0[..]));
            let weigh = |h: &[Dual], g: &[f64]| -> f64 { h.iter().zip(g).map(|(h, g)| h.derivative * g).sum() };
            let want = weigh(&h, &grad_h) + weigh(&h_last, &grad_h_last);
            let got = match coordinate {
                i if i < n => g.a[i],
                i if i < 2 * n => g.x[i - n],
                i if given => g.h0[i - 2 * n],
                _ => continue,
            };
            assert!((got - want).abs() <= 1e-12 * want.abs().max(1.0), "{p:?} at {coordinate}: {got} against {want}");
        }
    }
}

#[test]
fn a_split_anywhere_is_the_whole() {
    let (d, t) = (3, 37);
    let whole = LinearScan::new(1, d, t).unwrap().with_initial_state(true);
    let inputs = whole.sample(Pass::Forward, 9).unwrap();
    let all = run(&whole, Pass::Forward, &inputs, |_| Memory::Contiguous);
    let cut = |name: &str, from: usize, to: usize| {
        let data = &inputs.get(name).unwrap().data;
        let rows = data.chunks(t).flat_map(|row| row[from..to].to_vec()).collect();
        Values::new([1, d, to - from], rows).unwrap()
    };
    for at in 0..=t {
        let part = |from: usize, to: usize, h0: &Values| {
            let p = LinearScan::new(1, d, to - from).unwrap().with_initial_state(true);
            let mut i = Tensors::new();
            i.insert("a", cut("a", from, to));
            i.insert("x", cut("x", from, to));
            i.insert("h0", h0.clone());
            run(&p, Pass::Forward, &i, |_| Memory::Contiguous)
        };
        let first = part(0, at, inputs.get("h0").unwrap());
        let second = part(at, t, first.get("h_last").unwrap());
        let (got, want) = (&second.get("h_last").unwrap().data, &all.get("h_last").unwrap().data);
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() < 1e-5, "split at {at}: {got} against {want}");
        }
    }
}

#[test]
fn reverse_is_the_same_scan_of_the_mirrored_row() {
    let p = LinearScan::new(1, 1, 21).unwrap();
    let inputs = p.sample(Pass::Forward, 2).unwrap();
    let mut mirrored = inputs.clone();
    for name in ["a", "x"] {
        mirrored.get_mut(name).unwrap().data.reverse();
    }
    let forward = run(&p, Pass::Forward, &inputs, |_| Memory::Backwards);
    let mut backward = run(&p.with_reverse(true), Pass::Forward, &mirrored, |_| Memory::Backwards);
    backward.get_mut("h").unwrap().data.reverse();
    assert_eq!(forward, backward, "one step after the other there is one order of operations");
}

#[test]
fn the_last_state_is_the_last_of_the_states() {
    for reverse in [false, true] {
        let p = LinearScan::new(2, 9, 1027).unwrap().with_reverse(reverse);
        let out = run(&p, Pass::Forward, &p.sample(Pass::Forward, 3).unwrap(), |_| Memory::Contiguous);
        let last = if reverse { 0 } else { 1026 };
        let of_h: Vec<_> = out.get("h").unwrap().data.chunks(1027).map(|row| row[last]).collect();
        assert_eq!(of_h, out.get("h_last").unwrap().data);
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let p = LinearScan::new(3, 50, 700).unwrap().with_gates(Gates::Slow);
    let inputs = p.sample(Pass::Forward, 8).unwrap();
    for memory in [Memory::Contiguous, Memory::ChannelsLast] {
        let results: Vec<_> = [1, 2, 5]
            .map(|threads| {
                chronaxie_runtime::pool::set_num_threads(threads);
                run(&p, Pass::Forward, &inputs, |_| memory)
            })
            .into();
        assert!(results.windows(2).all(|w| w[0] == w[1]), "{memory:?}");
    }
}

#[test]
fn gates_of_one_make_a_running_sum_and_of_zero_a_copy() {
    let p = LinearScan::new(1, 2, 1000).unwrap();
    let mut inputs = p.sample(Pass::Forward, 1).unwrap();
    for (gate, want) in [(0.0, 1.0), (1.0, 1000.0)] {
        inputs.get_mut("a").unwrap().data.fill(gate);
        inputs.get_mut("x").unwrap().data.fill(1.0);
        let out = run(&p, Pass::Forward, &inputs, |_| Memory::Contiguous);
        assert_eq!(out.get("h_last").unwrap().data, [want, want]);
    }
}

#[test]
fn bad_problems_and_cases_are_refused_in_a_sentence() {
    let says = |e: crate::Error, want: &str| assert!(e.to_string().contains(want), "{e}");
    says(LinearScan::new(usize::MAX, 2, 2).unwrap_err(), "[B, D, T] = (18446744073709551615, 2, 2)");
    says(LinearScan::new(0, usize::MAX, 1).unwrap_err(), "more bytes than can be addressed");
    let problem = |case: &str| LinearScanOp.problem(&case.parse().unwrap()).unwrap_err();
    says(problem("B1_D2_T3_N4"), "axis N");
    says(problem("B1_D2_T3,gates=soft"), "gates `soft` are not one of uniform, slow, signed, extreme");
    says(problem("B1_D2"), "no size T");
    let p = LinearScan::new(1, 2, 3).unwrap();
    says(p.signature(Pass::Step).unwrap_err(), "no step pass");
    let mut inputs = p.sample(Pass::Forward, 1).unwrap();
    inputs.insert("x", Values::zeros([1, 3, 2]));
    says(p.reference(Pass::Forward, &inputs, false).unwrap_err(), "x.shape = (1, 3, 2) does not match [B, D, T]");
    let options = PlanOptions { variant: Some("bulk".into()), ..PlanOptions::default() };
    says(p.plan(&Device::Cpu, &options).err().unwrap(), "variant `bulk`");
}

#[test]
fn every_listed_case_is_a_problem() {
    for set in [CaseSet::Compared, CaseSet::Cpu, CaseSet::Check] {
        let complex = LinearScanComplexOp.cases(set).into_iter().map(|c| (&LinearScanComplexOp as &dyn Op, c));
        for (op, case) in LinearScanOp.cases(set).into_iter().map(|c| (&LinearScanOp as &dyn Op, c)).chain(complex) {
            let p = op.problem(&case).unwrap();
            assert_eq!(p.entry(), op.name());
            let signature = p.signature(Pass::Forward).unwrap();
            let bytes: usize = signature.inputs.iter().chain(&signature.outputs).map(|t| t.bytes()).sum();
            assert_eq!(p.cost(Pass::Forward).bytes, bytes as u64, "{case}");
            let signature = p.signature(Pass::Backward).unwrap();
            let bytes: usize = signature.inputs.iter().chain(&signature.outputs).map(|t| t.bytes()).sum();
            assert_eq!(p.cost(Pass::Backward).bytes, bytes as u64, "{case}");
        }
    }
}

/// `||x - law|| / ||law||`, or `||x||` where the law is zero.
fn relative(x: &Values, law: &Values) -> f64 {
    let norm = |d: &mut dyn Iterator<Item = f64>| d.map(|x| x * x).sum::<f64>().sqrt();
    let error = norm(&mut x.data.iter().zip(&law.data).map(|(x, l)| x - l));
    let size = norm(&mut law.data.iter().copied());
    if size == 0.0 { error } else { error / size }
}

#[test]
fn no_tolerance_is_more_than_eight_times_what_f32_costs_the_law() {
    let mut noise: Vec<(Pass, String, f64)> = Vec::new();
    for t in [1000, 30000] {
        let p = LinearScan::new(1, 4, t).unwrap().with_gates(Gates::Slow).with_initial_state(true);
        let inputs = merged(&p.sample(Pass::Forward, 1).unwrap(), &p.sample(Pass::Backward, 1).unwrap());
        for pass in [Pass::Forward, Pass::Backward] {
            let law = p.reference(pass, &inputs, false).unwrap();
            let in_f32 = p.reference(pass, &inputs, true).unwrap();
            noise.extend(law.iter().map(|(n, l)| (pass, n.to_owned(), relative(in_f32.get(n).unwrap(), l))));
        }
    }
    let p = LinearScan::new(1, 1, 1).unwrap();
    for (pass, name, _) in &noise {
        let same = noise.iter().filter(|(q, n, _)| q == pass && n == name);
        let worst = same.map(|(_, _, e)| *e).fold(0.0, f64::max);
        let bound = p.tolerance(*pass, name).unwrap().value;
        assert!(bound <= 8.0 * worst, "{name}: the tolerance {bound:e} against noise of {worst:e}");
    }
    assert_eq!(noise.len(), 10);
}

/// Every kernel of the GPU on every layout and around every boundary of its tiles; nothing where there is no GPU.
#[test]
fn on_a_gpu_every_kernel_keeps_to_the_law_and_repeats_its_bits() {
    let Some(gpu) = gpu() else { return };
    let device = &gpu.device;
    let bulk = device.props().compute_capability.0 >= 9;
    let variants = [None, Some("rows"), Some("strided"), Some("channels"), Some("bulk"), Some("bulk:t32:v1:s2:b4:p")];
    for variant in variants.into_iter().filter(|v| bulk || !v.is_some_and(|v| v.starts_with("bulk"))) {
        let at = Where { device: Device::Cuda(device.clone()), variant };
        for (i, t) in [0, 1, 4, 7, 124, 128, 132, 1020, 1024, 1028, 2049, 5000].into_iter().enumerate() {
            let p = LinearScan::new(2, 33, t).unwrap().with_reverse(i % 2 == 1).with_initial_state(i % 3 > 0);
            for memory in MEMORIES {
                check_on(&at, &p, t as u64, |_| memory, &format!("{variant:?} {memory:?}"));
            }
            check_on(&at, &p, t as u64, |i| MEMORIES[i % 4], &format!("{variant:?} mixed"));
        }
        // More than one wave of blocks.
        let p = LinearScan::new(3, 1000, 2052).unwrap().with_gates(Gates::Slow);
        let inputs = p.sample(Pass::Forward, 1).unwrap();
        let first = run_on(&at, &p, Pass::Forward, &inputs, |_| Memory::Contiguous);
        for _ in 0..3 {
            assert_eq!(first, run_on(&at, &p, Pass::Forward, &inputs, |_| Memory::Contiguous), "{variant:?}");
        }
    }
}
