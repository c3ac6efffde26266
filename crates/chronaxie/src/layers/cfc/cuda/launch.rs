//! The plan: kernels loaded once, then launches only.

use super::pieces::{self, Close, Pack, words};
use super::tune::{self, Config, THREADS, TILE};
use super::{adjoint, forward, net, products};
use crate::cuda::{Arg, CudaDevice, Kernel, LaunchConfig, StreamRef};
use crate::layers::cfc::net::Net;
use crate::layers::cfc::spec::Cfc;
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::{Dtype, Error, Layout, Place, RegionId, Result, View, ViewMut};
use std::sync::Arc;

/// Threads of the kernels that are not a block a few rows.
const PRODUCT_THREADS: u32 = 256;
/// The most blocks of a kernel that walks over what its grid does not cover.
const MOST_BLOCKS: usize = 4096;

/// The scratch of a pass.
struct Scratch {
    layout: Layout,
    /// Weights, and behind them biases, w_tau and A.
    packed: RegionId,
    /// What the first maps make of x in a chunk of steps; the LSTM's.
    side: RegionId,
    lstm_side: RegionId,
    /// Rows of gradients and operands of a chunk; what a chunk leaves to the one before it; slices of sums.
    grads: RegionId,
    operands: RegionId,
    carried: RegionId,
    partial: RegionId,
}

impl Scratch {
    fn new(p: &Cfc, net: &Net, c: &Config, backward: bool, slices: usize, gap: usize) -> Result<Self> {
        let mut layout = Layout::new(gap);
        let only = |this: bool, floats: usize| if this { floats } else { 0 };
        let lstm = if p.mixed_memory { net.maps[0].outputs } else { 0 };
        let (rows, back) = (p.batch * c.forward_chunk, p.batch * c.backward_chunk);
        let mut push = |name, floats| layout.push(name, Dtype::F32, floats);
        Ok(Self {
            packed: push("packed", net.packed + net.bias)?,
            side: push("side", only(!backward, rows * net.cell(p, 0)[0].outputs))?,
            lstm_side: push("lstm_side", only(!backward, rows * lstm))?,
            grads: push("grads", only(backward, back * net.grads))?,
            operands: push("operands", only(backward && p.wants.parameters, back * net.operands))?,
            carried: push("carried", only(backward, 2 * p.batch * p.hidden()))?,
            partial: push("partial", only(backward && p.wants.parameters, slices))?,
            layout,
        })
    }
}

struct Backward {
    signature: Signature,
    scratch: Scratch,
    kernel: Kernel,
    packs: Vec<Pack>,
    closes: Vec<Close>,
    /// Of each map: where its slices begin, how many there are, and the rows of one.
    slices: Vec<[usize; 3]>,
}

/// CfC on one CUDA device.
pub struct CudaPlan {
    device: Arc<CudaDevice>,
    p: Cfc,
    net: Net,
    table: Vec<u8>,
    config: Config,
    signature: Signature,
    scratch: Scratch,
    kernel: Kernel,
    packs: Vec<Pack>,
    pack: Kernel,
    rows: Kernel,
    operands: Kernel,
    sums: Kernel,
    close: Kernel,
    backward: Option<Backward>,
    empty: Layout,
}

impl CudaPlan {
    /// Chooses a configuration, compiles and loads the kernels.
    ///
    /// # Errors
    /// If a kernel does not compile or load, or the values of a row do not fit shared memory.
    pub fn new(problem: &Cfc, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let p = problem.clone().build()?;
        let net = Net::of(&p, 1);
        let config = tune::choose(&p, device.props(), options.variant.as_deref())?;
        let signature = p.signature_of(Pass::Forward)?;
        let kernel = device.kernel(&forward(config.rows, config.fast), "cfc_forward")?;
        kernel.set_max_dynamic_shared(config.forward_shared)?;
        let product = |entry| device.kernel(&products(), entry);
        let gap = options.scratch_gap;
        let backward = if p.backward {
            let signature = p.signature_of(Pass::Backward)?;
            let kernel = device.kernel(&adjoint(config.rows, config.fast), "cfc_adjoint")?;
            kernel.set_max_dynamic_shared(config.adjoint_shared)?;
            let mut total = 0;
            let slices: Vec<[usize; 3]> = net
                .maps
                .iter()
                .map(|map| {
                    let rows = p.batch * config.backward_chunk;
                    let slice = tune::slice_rows(rows, map.grads(), map.inputs + 1);
                    let count = rows.div_ceil(slice).max(1);
                    let first = total;
                    total += count * pieces::slice_len(map);
                    [first, count, slice]
                })
                .collect();
            Some(Backward {
                scratch: Scratch::new(&p, &net, &config, true, total, gap)?,
                packs: pieces::packs(&net, &signature, true)?,
                closes: if p.wants.parameters { pieces::closes(&net, &signature)? } else { Vec::new() },
                signature,
                kernel,
                slices,
            })
        } else {
            None
        };
        Ok(Self {
            device: device.clone(),
            table: net::bytes(&p, &net).to_vec(),
            scratch: Scratch::new(&p, &net, &config, false, 0, gap)?,
            packs: pieces::packs(&net, &signature, false)?,
            pack: product("cfc_pack")?,
            rows: product("cfc_rows")?,
            operands: product("cfc_operands")?,
            sums: product("cfc_sums")?,
            close: product("cfc_close")?,
            empty: Layout::new(0),
            p,
            net,
            config,
            signature,
            kernel,
            backward,
        })
    }

    fn pack(&self, list: &[Pack], inputs: &[View<'_>], to: u64, stream: StreamRef) -> Result<()> {
        let piece = |p: &Pack| {
            let mask = p.mask.map_or(0, |at| inputs[at].address());
            let longs =
                [inputs[p.from].address(), mask, to + 4 * p.to as u64, p.row_stride as u64, p.column_stride as u64];
            (p.rows * p.columns, words(&longs, &[p.rows, p.columns]))
        };
        pieces::launch(&self.pack, stream, list.iter().map(piece), &[])
    }

    /// `c (+)= bias + a b` for `steps` steps of every batch row; a and c are an address with strides of batch and time.
    fn multiply(
        &self,
        stream: StreamRef,
        a: (u64, [i64; 3]),
        (b, ldb): (u64, usize),
        bias: u64,
        c: (u64, [i64; 2]),
        [len, k, n]: [usize; 3],
        add: bool,
    ) -> Result<()> {
        let rows = self.p.batch * len;
        if rows == 0 || n == 0 {
            return Ok(());
        }
        let steps = |s: [i64; 2]| {
            let mut bytes = [0u8; 16];
            bytes[..8].copy_from_slice(&s[0].to_ne_bytes());
            bytes[8..].copy_from_slice(&s[1].to_ne_bytes());
            bytes
        };
        let (a_steps, c_steps) = (steps([a.1[0], a.1[1]]), steps(c.1));
        let config = rows_grid(rows, n);
        let args = [
            Arg::U64(a.0),
            Arg::Bytes(&a_steps),
            Arg::I64(a.1[2]),
            Arg::U64(b),
            Arg::I64(ldb as i64),
            Arg::U64(bias),
            Arg::U64(c.0),
            Arg::Bytes(&c_steps),
            Arg::I64(rows as i64),
            Arg::I64(len as i64),
            Arg::I32(k as i32),
            Arg::I32(n as i32),
            Arg::I32(i32::from(add)),
        ];
        // SAFETY: the addresses are of tensors that were checked against the signature or of regions of the layout, and
        // the kernel keeps to the sizes.
        unsafe { self.rows.launch(stream, &config, &args) }
    }

    /// The block of `rows` batch rows and its grid; none without a row.
    fn walk(&self, shared: u32) -> LaunchConfig {
        let blocks = self.p.batch.div_ceil(self.config.rows).max(1) as u32;
        LaunchConfig::new((blocks, 1, 1), (THREADS as u32, 1, 1)).shared(shared)
    }

    fn run_forward(&self, args: &mut Args<'_, '_>) -> Result<()> {
        let (p, net, s) = (&self.p, &self.net, &self.signature);
        let (x, stream, base) = (args.inputs, args.stream, args.scratch.address());
        if p.batch == 0 {
            return Ok(());
        }
        let region = |id| self.scratch.layout.address(base, id);
        let packed = region(self.scratch.packed);
        let bias = packed + 4 * net.packed as u64;
        self.pack(&self.packs, x, packed, stream)?;
        let input = |name: &str| s.input(name).map(|i| &x[i]);
        let out = |name: &str| Arg::U64(s.output(name).map_or(0, |i| args.outputs[i].address()));
        let data = input("x").ok_or_else(|| pieces::missing("x"))?;
        let (first, d) = (&net.cell(p, 0)[0], p.inputs);
        let mut begin = 0;
        loop {
            let len = self.config.forward_chunk.min(p.steps - begin);
            let from = chunk_of(data, begin);
            let side = |map: &crate::layers::cfc::net::Map, to: u64| {
                let n = map.outputs;
                let (weights, bias) = (packed + 4 * map.packed as u64, bias + 4 * map.bias as u64);
                self.multiply(stream, from, (weights, n), bias, (to, [(len * n) as i64, n as i64]), [len, d, n], false)
            };
            side(first, region(self.scratch.side))?;
            if p.mixed_memory {
                side(&net.maps[0], region(self.scratch.lstm_side))?;
            }
            let list: Vec<Arg<'_>> = [Arg::Bytes(&self.table), Arg::U64(packed), Arg::U64(bias)]
                .into_iter()
                .chain([Arg::U64(region(self.scratch.side)), Arg::U64(region(self.scratch.lstm_side))])
                .chain(strided::<2>(input("h0")))
                .chain(strided::<2>(input("c0")))
                .chain(strided::<2>(input("elapsed")))
                .chain(["out", "final_state", "final_cell", "states", "backbone", "backbone_slopes", "heads"].map(out))
                .chain(["lstm_gates", "lstm_cells", "lstm_states"].map(out))
                .chain([p.batch, p.steps, begin, len].map(|n| Arg::I64(n as i64)))
                .chain([Arg::F32(p.dt as f32)])
                .collect();
            // SAFETY: the addresses are of tensors that were checked against the signature or of regions of the layout,
            // and the kernel keeps to the sizes.
            unsafe { self.kernel.launch(stream, &self.walk(self.config.forward_shared), &list) }?;
            begin += len;
            if begin >= p.steps {
                return Ok(());
            }
        }
    }

    fn run_backward(&self, args: &mut Args<'_, '_>) -> Result<()> {
        let Some(back) = &self.backward else { return Err(pieces::missing("grad_out")) };
        let (p, net, s) = (&self.p, &self.net, &back.signature);
        let (x, outputs, stream, base) = (args.inputs, &*args.outputs, args.stream, args.scratch.address());
        if s.outputs.is_empty() {
            return Ok(());
        }
        let region = |id| back.scratch.layout.address(base, id);
        let packed = region(back.scratch.packed);
        let bias = packed + 4 * net.packed as u64;
        self.pack(&back.packs, x, packed, stream)?;
        let input = |name: &str| s.input(name).map(|i| &x[i]);
        let address = |name: &str| Arg::U64(input(name).map_or(0, View::address));
        let out = |name: &str| Arg::U64(s.output(name).map_or(0, |i| outputs[i].address()));
        let grads = region(back.scratch.grads);
        let mut end = p.steps;
        loop {
            let len = self.config.backward_chunk.min(end);
            let begin = end - len;
            if p.batch > 0 {
                let list: Vec<Arg<'_>> = [Arg::Bytes(&self.table), Arg::U64(packed), Arg::U64(bias)]
                    .into_iter()
                    .chain(strided::<2>(input("c0")))
                    .chain(strided::<2>(input("elapsed")))
                    .chain(["backbone_slopes", "heads", "lstm_gates", "lstm_cells"].map(address))
                    .chain(strided::<3>(input("grad_out")))
                    .chain(strided::<2>(input("grad_final_state")))
                    .chain(strided::<2>(input("grad_final_cell")))
                    .chain([Arg::U64(region(back.scratch.carried)), Arg::U64(grads)])
                    .chain(["grad_h0", "grad_c0", "grad_elapsed"].map(out))
                    .chain([p.batch, p.steps, begin, len].map(|n| Arg::I64(n as i64)))
                    .chain([Arg::I32(net.widest_output as i32), Arg::F32(p.dt as f32)])
                    .collect();
                // SAFETY: as in the forward pass.
                unsafe { back.kernel.launch(stream, &self.walk(self.config.adjoint_shared), &list) }?;
            }
            self.input_gradient(back, outputs, packed, grads, begin, len, stream)?;
            if p.wants.parameters {
                self.parameters(back, x, outputs, base, [begin, len], end < p.steps, stream)?;
            }
            end = begin;
            if end == 0 {
                return Ok(());
            }
        }
    }

    /// The gradient of x in a chunk of steps.
    fn input_gradient(
        &self,
        back: &Backward,
        outputs: &[ViewMut<'_>],
        packed: u64,
        grads: u64,
        begin: usize,
        len: usize,
        stream: StreamRef,
    ) -> Result<()> {
        let (p, net) = (&self.p, &self.net);
        let Some(at) = back.signature.output("grad_x") else { return Ok(()) };
        let (d, width) = (p.inputs, net.grads as i64);
        let to = (outputs[at].address() + 4 * (begin * d) as u64, [(p.steps * d) as i64, d as i64]);
        let lstm = if p.mixed_memory { Some(&net.maps[0]) } else { None };
        for (k, map) in [&net.cell(p, 0)[0]].into_iter().chain(lstm).enumerate() {
            let from = (grads + 4 * map.grad as u64, [len as i64 * width, width, 1]);
            let weights = (packed + 4 * map.packed_back as u64, map.inputs);
            self.multiply(stream, from, weights, 0, to, [len, map.outputs, d], k > 0)?;
        }
        Ok(())
    }

    /// The gradients of the parameters: those of a chunk of steps are added to what later chunks have left.
    fn parameters(
        &self,
        back: &Backward,
        x: &[View<'_>],
        outputs: &[ViewMut<'_>],
        base: u64,
        [begin, len]: [usize; 2],
        add: bool,
        stream: StreamRef,
    ) -> Result<()> {
        let (p, net, s) = (&self.p, &self.net, &back.signature);
        let region = |id| back.scratch.layout.address(base, id);
        let [grads, operands, partial] = [back.scratch.grads, back.scratch.operands, back.scratch.partial].map(region);
        let input = |name: &str| s.input(name).map(|i| &x[i]);
        let address = |name: &str| Arg::U64(input(name).map_or(0, View::address));
        let rows = p.batch * len;
        if rows * net.operands > 0 {
            let states = if p.outputs_are_states() { "out" } else { "states" };
            let list: Vec<Arg<'_>> = [Arg::Bytes(&self.table)]
                .into_iter()
                .chain(strided::<3>(input("x")))
                .chain(strided::<2>(input("h0")))
                .chain([states, "backbone", "lstm_states"].map(address))
                .chain([Arg::U64(operands)])
                .chain([rows, p.steps, begin, len].map(|n| Arg::I64(n as i64)))
                .collect();
            // SAFETY: as in the forward pass.
            unsafe { self.operands.launch(stream, &operands_grid(rows * net.operands), &list) }?;
        }
        for (map, &[first, slices, slice]) in net.maps.iter().zip(&back.slices) {
            let config = sums_grid(map.grads(), map.inputs + 1, slices);
            if map.grads() == 0 {
                continue;
            }
            let list = [
                Arg::U64(grads),
                Arg::I64(net.grads as i64),
                Arg::I64(map.grad as i64),
                Arg::U64(operands),
                Arg::I64(net.operands as i64),
                Arg::I64(map.operand as i64),
                Arg::U64(partial + 4 * first as u64),
                Arg::I64(rows as i64),
                Arg::I64(slice as i64),
                Arg::I32(map.grads() as i32),
                Arg::I32(map.inputs as i32),
            ];
            // SAFETY: as in the forward pass.
            unsafe { self.sums.launch(stream, &config, &list) }?;
        }
        let piece = |c: &Close| {
            let (map, [first, slices, _]) = (&net.maps[c.map], back.slices[c.map]);
            let from = partial + 4 * (first + c.first) as u64;
            let mask = c.mask.map_or(0, |at| x[at].address());
            let longs = [from, mask, outputs[c.to].address(), pieces::slice_len(map) as u64];
            (c.rows * c.columns, words(&longs, &[map.inputs + 1, slices, c.rows, c.columns]))
        };
        let flags = [Arg::I32(i32::from(add)), Arg::I32(i32::from(begin == 0))];
        pieces::launch(&self.close, stream, back.closes.iter().map(piece), &flags)
    }
}

/// A view from step `begin` on, with its strides.
fn chunk_of(view: &View<'_>, begin: usize) -> (u64, [i64; 3]) {
    let s = view.strides();
    let from = view.address().wrapping_add_signed(4 * (begin as i64) * s[1] as i64);
    (from, [s[0] as i64, s[1] as i64, s[2] as i64])
}

/// The address and the strides of a tensor of A axes, or zeros.
fn strided<'a, const A: usize>(view: Option<&View<'_>>) -> impl Iterator<Item = Arg<'a>> + use<'a, A> {
    let strides: [i64; A] = std::array::from_fn(|i| view.map_or(0, |v| v.strides()[i] as i64));
    std::iter::once(Arg::U64(view.map_or(0, View::address))).chain(strides.into_iter().map(Arg::I64))
}

fn rows_grid(rows: usize, n: usize) -> LaunchConfig {
    let blocks = (n.div_ceil(TILE) as u32, rows.div_ceil(TILE).min(MOST_BLOCKS) as u32, 1);
    LaunchConfig::new(blocks, (PRODUCT_THREADS, 1, 1))
}
fn operands_grid(elements: usize) -> LaunchConfig {
    let blocks = elements.div_ceil(PRODUCT_THREADS as usize).min(MOST_BLOCKS);
    LaunchConfig::new((blocks as u32, 1, 1), (PRODUCT_THREADS, 1, 1))
}
fn sums_grid(m: usize, n: usize, slices: usize) -> LaunchConfig {
    let blocks = (n.div_ceil(TILE).max(1) as u32, m.div_ceil(TILE).max(1) as u32, slices as u32);
    LaunchConfig::new(blocks, (PRODUCT_THREADS, 1, 1))
}

impl Plan for CudaPlan {
    fn entry(&self) -> &'static str {
        "cfc"
    }
    fn place(&self) -> Place {
        Place::Cuda(self.device.index())
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        match pass {
            Pass::Forward => Some(&self.signature),
            Pass::Backward => self.backward.as_ref().map(|b| &b.signature),
            _ => None,
        }
    }
    fn config(&self) -> String {
        self.config.to_string()
    }
    fn variant(&self) -> &'static str {
        "simt"
    }
    fn scratch(&self, pass: Pass) -> &Layout {
        match (pass, &self.backward) {
            (Pass::Forward, _) => &self.scratch.layout,
            (Pass::Backward, Some(back)) => &back.scratch.layout,
            _ => &self.empty,
        }
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        match pass {
            Pass::Forward => self.run_forward(args),
            Pass::Backward => self.run_backward(args),
            _ => Err(Error::config(format!("cfc: the plan has no {} pass", pass.name()))),
        }
    }
    fn launches(&self, pass: Pass) -> Result<Vec<LaunchReport>> {
        let (p, net, c) = (&self.p, &self.net, &self.config);
        let mut list = Vec::new();
        let mut add = |kernel: &Kernel, count: usize, config: LaunchConfig| -> Result<()> {
            if count > 0 {
                list.push(LaunchReport::new(kernel, count, config.grid, config.block, config.shared_bytes)?);
            }
            Ok(())
        };
        let pieces =
            |count: usize| LaunchConfig::new((1, count.clamp(1, pieces::MOST) as u32, 1), (PRODUCT_THREADS, 1, 1));
        let inputs = 1 + usize::from(p.mixed_memory);
        match (pass, &self.backward) {
            (Pass::Forward, _) => {
                let chunks = p.steps.div_ceil(c.forward_chunk).max(1);
                add(&self.pack, pieces::launches(self.packs.len()), pieces(self.packs.len()))?;
                let n = net.cell(p, 0)[0].outputs;
                add(&self.rows, inputs * chunks, rows_grid(p.batch * c.forward_chunk, n))?;
                add(&self.kernel, chunks, self.walk(c.forward_shared))?;
            }
            (Pass::Backward, Some(back)) => {
                let chunks = p.steps.div_ceil(c.backward_chunk).max(1);
                let rows = p.batch * c.backward_chunk;
                add(&self.pack, pieces::launches(back.packs.len()), pieces(back.packs.len()))?;
                add(&back.kernel, chunks, self.walk(c.adjoint_shared))?;
                add(&self.rows, if p.wants.x { inputs * chunks } else { 0 }, rows_grid(rows, p.inputs))?;
                if p.wants.parameters {
                    add(&self.operands, chunks, operands_grid(rows * net.operands))?;
                    for (map, &[_, slices, _]) in net.maps.iter().zip(&back.slices) {
                        add(&self.sums, chunks, sums_grid(map.grads(), map.inputs + 1, slices))?;
                    }
                    add(&self.close, chunks * pieces::launches(back.closes.len()), pieces(back.closes.len()))?;
                }
            }
            _ => {}
        }
        Ok(list)
    }
}
