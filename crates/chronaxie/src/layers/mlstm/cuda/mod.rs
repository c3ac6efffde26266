//! The mLSTM on CUDA devices: the portable kernels, for every architecture and element type.
#![allow(unsafe_code)]

mod ladder;
mod maps;
mod sources;
mod step;
mod tune;

use super::spec::Mlstm;
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::{Dtype, Error, Layout, Place, RegionId, Result, View, ViewMut};
use chronaxie_runtime::cuda::{Arg, CudaDevice, Kernel, LaunchConfig};
pub(super) use ladder::{LadderPlan, ladder_specialisations};
use maps::Maps;
pub(super) use sources::specialisations;
use sources::{HEADERS, dtype_code, kernels_of};
use std::sync::Arc;
pub(super) use step::{StepPlan, step_specialisations};
use tune::{CHAIN_THREADS, Config, H, Tiles, Walk, Wish, chains, walks};

/// Threads a block of the portable kernels and of those of gates, as `kThreads` in mlstm.cuh.
const THREADS: u32 = 256;
/// Bytes of what is known of a chunk before any state is, as `kRecord` in hopper_walks.cuh.
const RECORD: usize = 17936;
/// Forward, `kWeighed` there.
const WEIGHED: usize = 9232;

/// Threads a block of the kernels for small heads, and bytes of a tile, as `kSquare` in small.cuh.
const SMALL_THREADS: u32 = 128;
const SQUARE: u32 = 64 * (2 * 64 + 16);
/// Which of those backward have tiles in dynamic shared memory, and how many.
const SMALL_BACK_SQUARES: [(usize, u32); 2] = [(0, 5), (2, 6)];

/// `Tokens` of mlstm.cuh.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Tokens {
    data: u64,
    strides: [i64; 4],
}

impl Tokens {
    /// A tensor `[B, NH, T, width]` or `[B, NH, T]`.
    fn new(address: u64, strides: &[isize]) -> Self {
        let mut all = [1; 4];
        all.iter_mut().zip(strides).for_each(|(to, &s)| *to = s as i64);
        Self { data: address, strides: all }
    }
    /// A tensor `[B, NH, width]` or `[B, NH]`, whose only time is 0.
    fn of_one(address: u64, strides: &[isize]) -> Self {
        let [b, h, d, _] = Self::new(address, strides).strides;
        Self { data: address, strides: [b, h, 0, d] }
    }
    /// Whether every row of 16-bit elements is made of pieces of 16 bytes.
    fn is_plain(&self) -> bool {
        let [b, h, t, d] = self.strides;
        self.data != 0 && self.data.is_multiple_of(16) && d == 1 && [b, h, t].iter().all(|s| s % 8 == 0)
    }
}

/// `Call` of mlstm.cuh, field by field.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Call {
    /// q, k, v, i, f, h, grad_h, grad_q, grad_k, grad_v, grad_i, grad_f.
    tokens: [Tokens; 12],
    cuts: u64,
    /// c, n, m of: initial, last, grad last, grad initial.
    states: [[u64; 3]; 4],
    /// l, m.
    saved: [u64; 2],
    /// sums, input, most.
    gates: [u64; 3],
    /// c, n, start_c, start_n.
    kept: [u64; 4],
    /// inverse, grad_l.
    rates: [u64; 2],
    /// grad_c, grad_n, carry_c, carry_n, excess.
    grads: [u64; 5],
    /// column, until, before, ahead_c, ahead_n, rate_q, rate_i, products, sum_c, sum_n, slope_c, slope_n, records.
    tensor: [u64; 13],
    /// heads, steps, dk, dv, length, chains, chunks, window, windows, segment, segments.
    sizes: [i64; 11],
    /// A bit for each tensor whose rows can be copied in pieces of 16 bytes.
    plain: i64,
    /// sigmoid, normalize, through.
    options: [i64; 3],
    /// scale, eps.
    numbers: [f64; 2],
}

/// The bytes of a kernel's struct.
///
/// # Safety
/// `T` must have no padding.
unsafe fn bytes<T>(call: &T) -> &[u8] {
    // SAFETY: the struct is there, and every byte of it is initialised, as the caller promises.
    unsafe { std::slice::from_raw_parts((&raw const *call).cast(), size_of::<T>()) }
}

const TOKENS: [&str; 12] = ["q", "k", "v", "i", "f", "h", "grad_h", "grad_q", "grad_k", "grad_v", "grad_i", "grad_f"];
const STATES: [[&str; 3]; 4] = [
    ["c_initial", "n_initial", "m_initial"],
    ["c_last", "n_last", "m_last"],
    ["grad_c_last", "grad_n_last", "grad_m_last"],
    ["grad_c_initial", "grad_n_initial", "grad_m_initial"],
];

/// Those of [`TOKENS`] that have a bit in `Call.plain`, lowest first.
const PLAIN: [usize; 8] = [0, 1, 2, 5, 6, 7, 8, 9];

/// What one pass needs.
struct PassPlan {
    signature: Signature,
    config: Config,
    kernels: Vec<Kernel>,
    /// By chains: blocks that make pairs, as many as there is room for.
    pair_blocks: usize,
    layout: Layout,
    /// In the order of [`Call`]: m, gates, kept, rates, grads, tensor.
    regions: Vec<RegionId>,
}

/// `mlstm_exp` or `mlstm_sig` on a CUDA device.
pub(super) struct CudaPlan {
    problem: Mlstm,
    device: Arc<CudaDevice>,
    forward: PassPlan,
    backward: Option<PassPlan>,
    empty: Layout,
}

impl PassPlan {
    fn new(p: &Mlstm, pass: Pass, device: &Arc<CudaDevice>, gap: usize, wish: &Wish) -> Result<Self> {
        let backward = pass == Pass::Backward;
        let config = Config::choose(p, pass, device.props(), wish)?;
        let (k, kv, chains, chunks) = (p.dqk, p.dqk * p.dv, chains(p), config.chunks(p));
        let Config { window, windows, tiles, .. } = config;
        let kernels = kernels_of(p, backward, &config, device)?;
        let tokens = p.batch * p.heads * p.steps;
        let only = |there: bool, n: usize| if there { n } else { 0 };
        let on_tensor_cores = tiles.is_some();
        let by_chains = config.chains.is_some();
        if config.small.is_some() && backward {
            for (kernel, squares) in SMALL_BACK_SQUARES {
                kernels[kernel].set_max_dynamic_shared(squares * SQUARE)?;
            }
        } else if config.small.is_some() {
            // All of their shared memory is static.
        } else if by_chains && !backward {
            kernels[2].set_max_dynamic_shared(Config::pairs_shape(false).1 as u32)?;
            kernels[5].set_max_dynamic_shared(Config::walk_shape(p, H).shared as u32)?;
        } else if by_chains {
            kernels[2].set_max_dynamic_shared(Config::pairs_shape(true).1 as u32)?;
            for (&role, kernel) in walks(p).iter().zip(&kernels[3..]) {
                kernel.set_max_dynamic_shared(Config::walk_shape(p, role).shared as u32)?;
            }
        } else if let Some(t) = tiles {
            let dynamic = |shared: (usize, usize)| shared.0 as u32;
            kernels[2].set_max_dynamic_shared(dynamic(t.state_shared()))?;
            if backward {
                kernels[4].set_max_dynamic_shared(dynamic(t.state_shared()))?;
                kernels[5].set_max_dynamic_shared(dynamic(t.shared(true)))?;
            } else {
                kernels[3].set_max_dynamic_shared(dynamic(t.shared(false)))?;
            }
        }
        let states = if on_tensor_cores { p.dtype } else { Dtype::F32 };
        // Of how many chains states are kept.
        let group = config.small.unwrap_or(chains);
        let kept = if by_chains { 0 } else { group * (window + 1) };
        let back = only(backward && !by_chains, group * window);
        // In one window only what the gauge of the first state is owed needs that state's gradient.
        let whole = by_chains || config.small.is_some();
        let carry = only(backward && (!whole || (p.has_gauge() && p.initial_state)), chains);
        let started = only(backward && windows > 1, chains * windows);
        // The kernels on tensor cores need no m that nobody reads.
        let own_gauge = !backward && !p.backward && p.has_gauge() && !on_tensor_cores;
        let with_n = p.normalize || !on_tensor_cores;
        let ahead = only(on_tensor_cores && windows > 1, chains);
        let parts = only(by_chains, Config::walk_parts(p));
        let rates = if by_chains { chains * chunks * 64 * parts } else { tokens };
        let rates = only(on_tensor_cores && backward && config.small.is_none(), rates);
        let sums = only(config.small.is_some(), group * chunks);
        let slopes = only(backward, sums);
        let products = if by_chains { chains * 8 * parts } else { chains * chunks.div_ceil(Config::segment()) };
        let given = backward && with_n && !by_chains;
        let mut layout = Layout::new(gap);
        let list = [
            ("gauge", Dtype::F32, only(own_gauge, tokens)),
            ("gate_sums", Dtype::F64, tokens),
            ("input_gates", Dtype::F32, tokens),
            ("most", Dtype::F64, chains * chunks),
            ("states_c", states, kept * kv),
            ("states_n", Dtype::F32, only(with_n, if by_chains && !backward { chains * chunks } else { kept } * k)),
            ("starts_c", Dtype::F32, started * kv),
            ("starts_n", Dtype::F32, started * k),
            ("inverse", Dtype::F32, only(given, tokens)),
            ("grad_l", Dtype::F32, only(given, tokens)),
            ("grads_c", states, back * kv),
            ("grads_n", Dtype::F32, only(with_n, back * k)),
            ("carry_c", Dtype::F32, carry * kv),
            ("carry_n", Dtype::F32, carry * k),
            ("excess", Dtype::F64, only(backward, chains)),
            ("column", Dtype::F32, only(on_tensor_cores, tokens)),
            ("until", Dtype::F32, only(on_tensor_cores, tokens)),
            ("before", Dtype::F32, only(on_tensor_cores && p.has_gauge(), chains * (chunks + 1))),
            ("ahead_c", Dtype::F32, ahead * kv),
            ("ahead_n", Dtype::F32, ahead * k),
            ("rate_q", Dtype::F32, rates),
            ("rate_i", Dtype::F32, rates),
            ("products", Dtype::F64, only(on_tensor_cores && backward && config.small.is_none(), products)),
            ("sums_c", Dtype::F32, sums * kv),
            ("sums_n", Dtype::F32, only(with_n, sums * k)),
            ("slopes_c", Dtype::F32, slopes * kv),
            ("slopes_n", Dtype::F32, only(with_n, slopes * k)),
            ("records", Dtype::F32, only(by_chains, chains * chunks * if backward { RECORD } else { WEIGHED } / 4)),
        ];
        let push = |(name, dtype, n)| layout.push(name, dtype, n);
        let regions = list.into_iter().map(push).collect::<Result<_>>()?;
        let pair_blocks = Config::pairs_shape(backward).0 * device.props().sm_count as usize;
        Ok(Self { signature: p.signature_of(pass)?, config, kernels, pair_blocks, layout, regions })
    }

    fn call(&self, p: &Mlstm, inputs: &[View<'_>], outputs: &[ViewMut<'_>], scratch: u64) -> Call {
        let find = |name: &str| -> Tokens {
            let of_input = self.signature.input(name).map(|at| Tokens::new(inputs[at].address(), inputs[at].strides()));
            let output = || self.signature.output(name).map(|at| &outputs[at]);
            of_input.or_else(|| output().map(|v| Tokens::new(v.address(), v.strides()))).unwrap_or_default()
        };
        let address = |name: &str| find(name).data;
        let at = |nth: usize| {
            let there = self.layout.region(self.regions[nth]).len > 0;
            if there { self.layout.address(scratch, self.regions[nth]) } else { 0 }
        };
        let m = match address("m") {
            0 if p.has_gauge() => at(0),
            saved => saved,
        };
        let Config { length, window, windows, .. } = self.config;
        let (chunks, segment) = (self.config.chunks(p), Config::segment());
        let sizes = [p.heads, p.steps, p.dqk, p.dv, length, chains(p), chunks, window, windows];
        let more = [segment, chunks.div_ceil(segment)];
        let mut all = [0; 11];
        all.iter_mut().zip(sizes.into_iter().chain(more)).for_each(|(to, n)| *to = n as i64);
        let through = p.normalize && p.normalizer_grad;
        let tokens = TOKENS.map(find);
        let plain = PLAIN.iter().enumerate().filter(|(_, of)| tokens[**of].is_plain());
        Call {
            tokens,
            cuts: address("cu_seqlens"),
            states: STATES.map(|names| names.map(address)),
            saved: [address("l"), m],
            gates: [at(1), at(2), at(3)],
            kept: [at(4), at(5), at(6), at(7)],
            rates: [at(8), at(9)],
            grads: [at(10), at(11), at(12), at(13), at(14)],
            tensor: [15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27].map(at),
            sizes: all,
            plain: plain.fold(0, |bits, (bit, _)| bits | 1 << bit),
            options: [!p.has_gauge(), p.normalize, through].map(i64::from),
            numbers: [1.0 / (p.dqk as f64).sqrt(), p.eps],
        }
    }

    /// The launches of the pass in order.
    fn visit(&self, p: &Mlstm, pass: Pass, launch: impl FnMut(Launch) -> Result<()>) -> Result<()> {
        match self.config.tiles {
            _ if self.config.small.is_some() => self.visit_small(p, pass, launch),
            None => self.visit_portable(p, pass, launch),
            Some(t) => self.visit_tensor(p, pass, &t, launch),
        }
    }

    fn visit_portable(&self, p: &Mlstm, pass: Pass, mut launch: impl FnMut(Launch) -> Result<()>) -> Result<()> {
        let Config { length, window: kept, windows, .. } = self.config;
        let (chains, chunks) = (chains(p) as u32, self.config.chunks(p));
        let flat = |n: usize| (n.div_ceil(THREADS as usize) as u32, 1);
        let mut go = |kernel, grid, window: Option<usize>, numbers: &'static [i32]| {
            let numbers = Numbers::new(numbers);
            launch(Launch { kernel, grid, threads: THREADS, shared: 0, window, mapped: false, cluster: 1, numbers })
        };
        let (all, by_chain) = (chains as usize * chunks, (self.config.state_tiles(p) as u32, chains));
        let many = |window: usize| (kept.min(chunks - window * kept) as u32, chains);
        go(0, flat(all), None, &[])?;
        if pass == Pass::Forward {
            if p.has_gauge() {
                go(1, flat(chains as usize), None, &[])?;
                go(2, flat(all), None, &[])?;
            }
            for window in 0..windows {
                go(3, by_chain, Some(window), &[0])?;
                go(4, many(window), Some(window), &[])?;
            }
            return Ok(());
        }
        go(5, flat(all * length), None, &[])?;
        for window in 0..windows {
            go(3, by_chain, Some(window), &[0])?;
        }
        for window in (0..windows).rev() {
            if window + 1 < windows {
                go(3, by_chain, Some(window), &[1])?;
            }
            go(6, by_chain, Some(window), &[])?;
            go(7, many(window), Some(window), &[])?;
        }
        go(8, (chains, 1), None, &[])
    }

    fn visit_small(&self, p: &Mlstm, pass: Pass, mut launch: impl FnMut(Launch) -> Result<()>) -> Result<()> {
        let (chains, chunks) = (chains(p), self.config.chunks(p) as u32);
        let backward = pass == Pass::Backward;
        let group = self.config.small.unwrap_or(chains);
        let mut go = |kernel, grid, threads, squares, base| {
            let (shared, mut numbers) = (squares * SQUARE, Numbers::new(&[]));
            Option::into_iter(base).for_each(|base: usize| numbers.push(base as i32));
            launch(Launch { kernel, grid, threads, shared, window: None, mapped: false, cluster: 1, numbers })
        };
        let [(sums, at_sums), (outputs, at_outputs)] = if backward { SMALL_BACK_SQUARES } else { [(0, 0), (2, 0)] };
        // Four elements a thread, of C and n.
        let elements = p.dqk * p.dv + if p.normalize { p.dqk } else { 0 };
        let blocks = (elements / 4).div_ceil(SMALL_THREADS as usize) as u32;
        for base in (0..chains).step_by(group) {
            let count = group.min(chains - base) as u32;
            go(sums, (chunks, count), SMALL_THREADS, at_sums, Some(base))?;
            go(1, (if backward { 2 * blocks } else { blocks }, count), SMALL_THREADS, 0, Some(base))?;
            go(outputs, (chunks, count), SMALL_THREADS, at_outputs, Some(base))?;
        }
        if backward && p.has_gauge() && (p.last_state || p.initial_state) {
            go(3, (chains as u32, 1), THREADS, 0, None)?;
        }
        Ok(())
    }

    fn visit_tensor(
        &self,
        p: &Mlstm,
        pass: Pass,
        t: &Tiles,
        mut launch: impl FnMut(Launch) -> Result<()>,
    ) -> Result<()> {
        let Config { window: kept, windows, .. } = self.config;
        let (chains, chunks) = (chains(p), self.config.chunks(p));
        let backward = pass == Pass::Backward;
        let warps = |n: usize| (n.div_ceil(THREADS as usize / 32) as u32, 1);
        let gates = |kernel, grid| Launch {
            kernel,
            grid,
            threads: THREADS,
            shared: 0,
            window: None,
            mapped: false,
            cluster: 1,
            numbers: Numbers::new(&[]),
        };
        let by_state = |kernel, window: usize, mode: Option<i32>| {
            let mut numbers = Numbers::new(&[]);
            mode.into_iter().chain([t.state_stages as i32]).for_each(|n| numbers.push(n));
            let (grid, threads) = ((self.config.state_tiles(p) as u32, chains as u32), t.state_threads());
            let shared = t.state_shared().0 as u32;
            Launch { kernel, grid, threads, shared, window: Some(window), mapped: false, cluster: 1, numbers }
        };
        let by_chunk = |kernel, window: usize| {
            let grid = (kept.min(chunks - window * kept) as u32, chains as u32);
            let mut numbers = Numbers::new(&[]);
            numbers.push(t.stages as i32);
            let (threads, shared) = (2 * t.edge as u32, t.shared(backward).0 as u32);
            Launch { kernel, grid, threads, shared, window: Some(window), mapped: false, cluster: 1, numbers }
        };
        launch(gates(0, warps(chains * chunks)))?;
        if p.has_gauge() {
            launch(gates(1, warps(chains)))?;
        }
        if backward && self.config.chains.is_some() {
            let each = (chunks as u32, chains as u32);
            let one = |kernel| Launch { threads: 128, ..gates(kernel, each) };
            let blocks = self.pair_blocks.min(chains * chunks) as u32;
            let shared = Config::pairs_shape(true).1 as u32;
            launch(Launch { grid: (blocks, 1), shared, mapped: true, ..one(2) })?;
            let roles = walks(p);
            for (at, &role) in roles.iter().enumerate().filter(|(_, role)| **role != 2 || p.wants.inputs) {
                let Walk { blocks, cluster, shared } = Config::walk_shape(p, role);
                let (grid, shared, cluster) = ((blocks as u32, chains as u32), shared as u32, cluster as u32);
                launch(Launch { threads: CHAIN_THREADS, shared, mapped: true, cluster, ..gates(3 + at, grid) })?;
            }
            if p.wants.gates || p.has_gauge() {
                launch(one(3 + roles.len()))?;
                launch(gates(4 + roles.len(), warps(chains)))?;
                launch(gates(5 + roles.len(), warps(chains * chunks)))?;
            }
            if p.has_gauge() && (p.last_state || p.initial_state) {
                launch(gates(6 + roles.len(), (chains as u32, 1)))?;
            }
            return Ok(());
        }
        if self.config.chains.is_some() {
            let blocks = self.pair_blocks.min(chains * chunks) as u32;
            let shared = Config::pairs_shape(false).1 as u32;
            launch(Launch { threads: 128, shared, mapped: true, ..gates(2, (blocks, 1)) })?;
            if p.normalize {
                launch(Launch { threads: 128, ..gates(3, (p.dqk.div_ceil(128) as u32, chains as u32)) })?;
                let threads = if p.dqk > 128 { 128 } else { 64 };
                launch(Launch { threads, ..gates(4, (chunks as u32, chains as u32)) })?;
            }
            let Walk { blocks, cluster, shared } = Config::walk_shape(p, H);
            let (grid, shared, cluster) = ((blocks as u32, chains as u32), shared as u32, cluster as u32);
            return launch(Launch { threads: CHAIN_THREADS, shared, mapped: true, cluster, ..gates(5, grid) });
        }
        if !backward {
            for window in 0..windows {
                launch(by_state(2, window, Some(0)))?;
                launch(by_chunk(3, window))?;
            }
            return Ok(());
        }
        if p.normalize && p.batch * p.steps > 0 {
            launch(gates(3, warps(p.batch * p.heads * p.steps)))?;
        }
        for window in 0..windows {
            // Only the last window's states are needed now.
            launch(by_state(2, window, Some(if window + 1 < windows { 2 } else { 0 })))?;
        }
        for window in (0..windows).rev() {
            if window + 1 < windows {
                launch(by_state(2, window, Some(1)))?;
            }
            launch(by_state(4, window, None))?;
            launch(by_chunk(5, window))?;
        }
        if p.wants.gates || p.has_gauge() {
            launch(gates(6, warps(chains * chunks.div_ceil(Config::segment()))))?;
        }
        if p.has_gauge() && (p.last_state || p.initial_state) {
            let ends = Launch { grid: (chains as u32, 1), ..gates(7, (0, 0)) };
            launch(ends)?;
        }
        Ok(())
    }
}

/// The integers that a kernel takes last.
#[derive(Clone, Copy)]
struct Numbers {
    list: [i32; 2],
    count: usize,
}

impl Numbers {
    fn new(list: &[i32]) -> Self {
        let mut all = Self { list: [0; 2], count: 0 };
        list.iter().for_each(|&n| all.push(n));
        all
    }
    fn push(&mut self, n: i32) {
        self.list[self.count] = n;
        self.count += 1;
    }
}

/// One launch: a kernel's position, its blocks, threads and dynamic shared memory, and what it takes beside the call.
struct Launch {
    kernel: usize,
    grid: (u32, u32),
    threads: u32,
    shared: u32,
    window: Option<usize>,
    /// Whether the kernel takes [`Maps`].
    mapped: bool,
    /// Blocks of a cluster, along the first axis of the grid.
    cluster: u32,
    numbers: Numbers,
}

impl CudaPlan {
    pub(super) fn new(p: &Mlstm, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let problem = p.build()?;
        let entry = problem.entry_name();
        let wish = Wish::parse(entry, options.variant.as_deref())?;
        // Chains are the second axis of grids, and chunks have at least 16 tokens.
        let (chains, tokens) = (chains(&problem), problem.batch.max(1) * problem.heads * problem.steps);
        let chunks = problem.steps.div_ceil(super::spec::HEAD_STEP).max(1);
        if chains > 65535 || chains.saturating_mul(chunks).max(tokens / 8) > i32::MAX as usize {
            return Err(Error::shape(format!(
                "{entry}: S NH = {chains} with {chunks} chunks each exceeds a CUDA grid"
            )));
        }
        let plan = |pass| PassPlan::new(&problem, pass, device, options.scratch_gap, &wish);
        let backward = if problem.backward { Some(plan(Pass::Backward)?) } else { None };
        let forward = plan(Pass::Forward)?;
        Ok(Self { problem, device: device.clone(), forward, backward, empty: Layout::new(0) })
    }
    fn pass(&self, pass: Pass) -> Option<&PassPlan> {
        match pass {
            Pass::Forward => Some(&self.forward),
            Pass::Backward => self.backward.as_ref(),
            _ => None,
        }
    }
}

impl Plan for CudaPlan {
    fn entry(&self) -> &'static str {
        self.problem.entry_name()
    }
    fn place(&self) -> Place {
        Place::Cuda(self.device.index())
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        self.pass(pass).map(|p| &p.signature)
    }
    fn config(&self) -> String {
        match &self.backward {
            Some(b) => format!("{}; backward {}", self.forward.config, b.config),
            None => self.forward.config.to_string(),
        }
    }
    fn variant(&self) -> &'static str {
        match self.forward.config.tiles {
            _ if self.forward.config.chains.is_some() => "chains",
            _ if self.forward.config.small.is_some() => "small",
            None => "simt",
            Some(t) if t.hopper => "wgmma",
            Some(_) => "mma",
        }
    }
    fn tensor_cores(&self) -> bool {
        self.forward.config.tiles.is_some()
    }
    fn scratch(&self, pass: Pass) -> &Layout {
        self.pass(pass).map_or(&self.empty, |p| &p.layout)
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let missing = || Error::config(format!("{}: the {} pass was not planned", self.entry(), pass.name()));
        let plan = self.pass(pass).ok_or_else(missing)?;
        if chains(&self.problem) == 0 {
            return Ok(());
        }
        let call = plan.call(&self.problem, args.inputs, args.outputs, args.scratch.address());
        let maps =
            if plan.config.chains.is_some() { Maps::of(&self.problem, &self.device, &call) } else { Maps::default() };
        plan.visit(&self.problem, pass, |launch| {
            let mut config = LaunchConfig::new((launch.grid.0, launch.grid.1, 1), (launch.threads, 1, 1));
            config.cluster = (launch.cluster > 1).then_some((launch.cluster, 1, 1));
            // SAFETY: every field of the struct is eight bytes, or made of such.
            let (call, maps) = unsafe { (Arg::Bytes(bytes(&call)), Arg::Bytes(bytes(&maps))) };
            let [one, two] = launch.numbers.list.map(Arg::I32);
            let list = match launch.window {
                Some(window) => [call, Arg::I64(window as i64), one, two],
                None if launch.mapped => [call, maps, one, two],
                None => [call, one, two, Arg::I32(0)],
            };
            let count = 1 + usize::from(launch.window.is_some() || launch.mapped) + launch.numbers.count;
            // SAFETY: the views were checked against the signature and the scratch against the layout; the kernels keep to
            // the sizes, and the struct is theirs, field by field.
            unsafe { plan.kernels[launch.kernel].launch(args.stream, &config.shared(launch.shared), &list[..count]) }
        })
    }
    fn launches(&self, pass: Pass) -> Result<Vec<LaunchReport>> {
        let Some(plan) = self.pass(pass).filter(|_| chains(&self.problem) > 0) else { return Ok(Vec::new()) };
        let mut reports: Vec<(usize, LaunchReport)> = Vec::new();
        plan.visit(&self.problem, pass, |launch| {
            if let Some((_, report)) = reports.iter_mut().find(|(kernel, _)| *kernel == launch.kernel) {
                report.launches += 1;
                return Ok(());
            }
            let (grid, block) = ((launch.grid.0, launch.grid.1, 1), (launch.threads, 1, 1));
            let report = LaunchReport::new(&plan.kernels[launch.kernel], 1, grid, block, launch.shared)?;
            reports.push((launch.kernel, report));
            Ok(())
        })?;
        Ok(reports.into_iter().map(|(_, report)| report).collect())
    }
}
