//! The ladder's steps on CUDA devices: one kernel a product or a sum over pairs, compiled for what it is.

use super::sources::dtype_code;
use super::{THREADS, Tokens, bytes};
use crate::kernels;
use crate::layers::mlstm::ladder::{Form, Ladder, Mask, NAME, Part};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Problem, Signature};
use crate::{DeviceProps, Dtype, Error, Layout, Place, Result};
use chronaxie_runtime::cuda::{Archs, Arg, CudaDevice, Header, Kernel, KernelSource, LaunchConfig, Specialisation};
use std::sync::Arc;

const PRODUCT: KernelSource =
    KernelSource::embedded("layers/mlstm/cuda/ladder_product.cu", include_str!("ladder_product.cu"));
const PAIRS: KernelSource =
    KernelSource::embedded("layers/mlstm/cuda/ladder_pairs.cu", include_str!("ladder_pairs.cu"));
const TENSOR_PRODUCT: KernelSource =
    KernelSource::embedded("layers/mlstm/cuda/ladder_tensor_product.cu", include_str!("ladder_tensor_product.cu"));
const TENSOR_PAIRS: KernelSource =
    KernelSource::embedded("layers/mlstm/cuda/ladder_tensor_pairs.cu", include_str!("ladder_tensor_pairs.cu"));
const HOPPER_PRODUCT: KernelSource =
    KernelSource::embedded("layers/mlstm/cuda/ladder_hopper_product.cu", include_str!("ladder_hopper_product.cu"));
const HOPPER_PAIRS: KernelSource =
    KernelSource::embedded("layers/mlstm/cuda/ladder_hopper_pairs.cu", include_str!("ladder_hopper_pairs.cu"));
const SHARED: Header = ("mlstm.cuh", include_str!("mlstm.cuh"));
const LADDER: Header = ("ladder.cuh", include_str!("ladder.cuh"));
const SIMT_HEADERS: &[Header] = &[SHARED, kernels::HALF, LADDER, ("ladder_simt.cuh", include_str!("ladder_simt.cuh"))];
const TENSOR: Header = ("tensor.cuh", include_str!("tensor.cuh"));
const LADDER_TENSOR: Header = ("ladder_tensor.cuh", include_str!("ladder_tensor.cuh"));
const TENSOR_HEADERS: &[Header] = &[SHARED, kernels::HALF, kernels::MMA, LADDER, TENSOR, LADDER_TENSOR];
const HOPPER_HEADERS: &[Header] = &[
    SHARED,
    kernels::HALF,
    kernels::MMA,
    kernels::WGMMA,
    LADDER,
    TENSOR,
    LADDER_TENSOR,
    ("hopper.cuh", include_str!("hopper.cuh")),
    ("ladder_hopper.cuh", include_str!("ladder_hopper.cuh")),
];

/// Rows and columns of a tile of the portable kernels, and how many of them beside each other a block of pairs has at most.
const TILE: usize = 64;
const TILES_MOST: usize = 4;

/// How the products are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Simt,
    Mma,
    Wgmma,
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::Simt => "simt",
            Self::Mma => "mma",
            Self::Wgmma => "wgmma",
        }
    }
}

/// Why a problem cannot go a way, if it cannot.
fn refusal(p: &Ladder, way: Way, props: &DeviceProps) -> Option<String> {
    let (major, minor) = props.compute_capability;
    let least = match way {
        Way::Simt => return None,
        Way::Mma => (8, 0)..=(u32::MAX, u32::MAX),
        Way::Wgmma => (9, 0)..=(9, 0),
    };
    if p.dtype == Dtype::F32 {
        return Some("tensor cores take f16 and bf16, not f32".into());
    }
    if !least.contains(&(major, minor)) {
        return Some(format!("a device of compute capability {major}.{minor} has no such instructions"));
    }
    let parts = [Pass::Forward, Pass::Backward].into_iter().flat_map(|pass| p.parts(pass));
    let shared = parts.map(|part| choice(p, &part, way, props).shared).max().unwrap_or(0);
    let most = props.shared_per_block_optin;
    (shared > most).then(|| format!("a block of it takes {shared} bytes of shared memory, and {most} are there"))
}

/// The way of a plan; `variant` is what was asked for.
fn choose(p: &Ladder, variant: Option<&str>, props: &DeviceProps) -> Result<Way> {
    let fastest = [Way::Wgmma, Way::Mma, Way::Simt];
    let Some(v) = variant else {
        return Ok(fastest.into_iter().find(|way| refusal(p, *way, props).is_none()).unwrap_or(Way::Simt));
    };
    let other = || Error::config(format!("{NAME}: variant `{v}` is not one of simt, mma, wgmma on CUDA"));
    let way = fastest.into_iter().find(|way| way.name() == v).ok_or_else(other)?;
    match refusal(p, way, props) {
        Some(why) => Err(Error::config(format!("{NAME}: variant `{v}`: {why}"))),
        None => Ok(way),
    }
}

/// `kMask` of ladder.cuh.
fn mask_code(form: Form) -> i32 {
    match form {
        Form::Pairs(Mask::Until) => 1,
        Form::Pairs(Mask::From) => 2,
        _ => 0,
    }
}

/// The kernel of a part: what it is compiled for, the rows and columns of a block, its threads and its dynamic shared memory.
struct Choice {
    specialisation: Specialisation,
    tile: [usize; 2],
    threads: u32,
    shared: u32,
    /// Places of a ring whose number is an argument.
    stages: Option<usize>,
}

fn choice(p: &Ladder, part: &Part, way: Way, props: &DeviceProps) -> Choice {
    // Blocks of a tile, and whether they are fewer than there are multiprocessors.
    let few = |rows: usize, columns: usize| {
        let blocks = part.rows.div_ceil(rows).saturating_mul(part.columns.div_ceil(columns));
        blocks.saturating_mul(p.chains()) < props.sm_count as usize
    };
    let product = matches!(part.form, Form::Product { .. });
    match way {
        Way::Simt => portable(part.form, p.dtype, part.columns),
        Way::Mma if product && part.columns > 64 && !few(128, 128) => tensor(part, p.dtype, 128, 128),
        Way::Mma if !product && part.columns > 64 => tensor(part, p.dtype, 64, 128),
        Way::Mma => tensor(part, p.dtype, 64, 64),
        Way::Wgmma if part.columns > 128 && !few(128, 256) => hopper(part, p.dtype, 256),
        Way::Wgmma if part.columns > 64 => hopper(part, p.dtype, 128),
        Way::Wgmma => hopper(part, p.dtype, 64),
    }
}

/// Bytes from one row of a tile to the next, as `pitch_of` in mma.cuh.
const fn pitch(width: usize) -> usize {
    2 * width + 16
}
/// Terms of a place of the ring, as `kStep` in tensor.cuh.
const STEP: usize = 32;

fn constants(spec: &mut Specialisation, form: Form, dtype: Dtype, edge: usize, columns: usize) {
    let turned = match form {
        Form::Product { turned: [x, y] } => 2 * i32::from(x) + i32::from(y),
        Form::Pairs(_) => 0,
    };
    spec.constants = vec![
        ("kDtype", dtype_code(dtype).into()),
        ("kMask", mask_code(form).into()),
        ("kTurned", turned.into()),
        ("kEdge", (edge as i32).into()),
        ("kColumns", (columns as i32).into()),
    ];
}

/// By mma.sync.
fn tensor(part: &Part, dtype: Dtype, edge: usize, columns: usize) -> Choice {
    let (by_rows, by_terms) = (edge * pitch(STEP), STEP * pitch(columns));
    let (source, entry, shared) = match part.form {
        Form::Product { .. } => {
            (TENSOR_PRODUCT, &["tensor_product"], 4 * (by_rows + by_terms.max(columns * pitch(STEP))))
        }
        Form::Pairs(_) => {
            let own = part.terms.div_ceil(STEP) * by_rows;
            (TENSOR_PAIRS, &["tensor_pairs"], 3 * by_rows.max(by_terms) + own + edge * pitch(edge))
        }
    };
    let mut specialisation = Specialisation::new(source, entry);
    specialisation.headers = TENSOR_HEADERS;
    specialisation.archs = Archs::AtLeast(80);
    constants(&mut specialisation, part.form, dtype, edge, columns);
    Choice { specialisation, tile: [edge, columns], threads: 2 * edge as u32, shared: shared as u32, stages: None }
}

/// By wgmma: tiles of 128 rows, blocks of 64 numbers of a row, which take 128 bytes.
fn hopper(part: &Part, dtype: Dtype, columns: usize) -> Choice {
    const SHARED_MOST: usize = 227 << 10;
    let (source, entry, shared, stages) = match part.form {
        Form::Product { .. } => (HOPPER_PRODUCT, &["hopper_product"], 4 * (128 + columns) * 128, None),
        Form::Pairs(_) => {
            let (own, place) = (part.terms.div_ceil(64) * 128 * 128, columns * 128);
            let stages = if own + 4 * place + 1024 <= SHARED_MOST { 4 } else { 3 };
            (HOPPER_PAIRS, &["hopper_pairs"], own + stages * place, Some(stages))
        }
    };
    let mut specialisation = Specialisation::new(source, entry);
    specialisation.headers = HOPPER_HEADERS;
    specialisation.archs = Archs::Only(&["sm_90a"]);
    constants(&mut specialisation, part.form, dtype, 128, columns);
    // Tiles begin at multiples of 1024 bytes.
    Choice { specialisation, tile: [128, columns], threads: 256, shared: shared as u32 + 1024, stages }
}

fn portable(form: Form, dtype: Dtype, columns: usize) -> Choice {
    let (source, entry) = match form {
        Form::Product { .. } => (PRODUCT, &["ladder_product"]),
        Form::Pairs(_) => (PAIRS, &["ladder_pairs"]),
    };
    let wide = if columns <= TILE || matches!(form, Form::Product { .. }) { 1 } else { TILES_MOST };
    let mut specialisation = Specialisation::new(source, entry);
    specialisation.headers = SIMT_HEADERS;
    specialisation.constants =
        vec![("kDtype", dtype_code(dtype).into()), ("kMask", mask_code(form).into()), ("kWide", (wide as i32).into())];
    Choice { specialisation, tile: [TILE, TILE * wide], threads: THREADS, shared: 0, stages: None }
}

/// The forms in which kernels are compiled, all but those that differ in how numbers are loaded alone.
pub(in super::super) fn ladder_specialisations() -> Vec<Specialisation> {
    let pairs = [Mask::All, Mask::Until, Mask::From].map(Form::Pairs);
    let product = Form::Product { turned: [false; 2] };
    let mut list = Vec::new();
    for dtype in [Dtype::F32, Dtype::Bf16] {
        list.push(portable(product, dtype, TILE).specialisation);
        list.extend(pairs.map(|form| portable(form, dtype, TILES_MOST * TILE).specialisation));
    }
    list.push(portable(pairs[1], Dtype::F16, TILE).specialisation);
    let (f16, bf16) = (Dtype::F16, Dtype::Bf16);
    let products = [[false, false], [false, true], [true, false]].map(|turned| Form::Product { turned });
    let part = |form| Part { form, tensors: [""; 4], rows: 0, terms: 0, columns: 0 };
    for form in products.map(part) {
        list.push(tensor(&form, bf16, 128, 128).specialisation);
        list.push(hopper(&form, bf16, 256).specialisation);
    }
    for form in pairs.map(part) {
        list.push(tensor(&form, bf16, 64, 128).specialisation);
        list.push(hopper(&form, bf16, 256).specialisation);
    }
    let until = part(pairs[1]);
    for form in [part(product), until] {
        list.extend(
            [tensor(&form, f16, 64, 64), hopper(&form, f16, 64), hopper(&form, bf16, 128)].map(|c| c.specialisation),
        );
    }
    list
}

/// `Work` of ladder.cuh, field by field.
#[repr(C)]
#[derive(Clone, Copy)]
struct Work {
    /// x, y, z, to.
    tensors: [Tokens; 4],
    /// heads, rows, terms, columns, across.
    sizes: [i64; 5],
    plain: i64,
    scale: f64,
}

/// Where a tensor is among a call's arguments.
#[derive(Clone, Copy)]
enum Found {
    Input(usize),
    Output(usize),
}

/// One launch.
struct Launch {
    part: Part,
    kernel: Kernel,
    found: [Found; 4],
    config: LaunchConfig,
    across: usize,
    stages: Option<usize>,
}

struct PassPlan {
    signature: Signature,
    launches: Vec<Launch>,
}

/// `mlstm_ladder` on a CUDA device.
pub(in super::super) struct LadderPlan {
    problem: Ladder,
    device: Arc<CudaDevice>,
    way: Way,
    /// Forward and backward.
    passes: [PassPlan; 2],
    scratch: Layout,
}

impl PassPlan {
    fn new(p: &Ladder, pass: Pass, device: &Arc<CudaDevice>, way: Way) -> Result<Self> {
        let signature = p.signature(pass)?;
        let find = |name: &str| {
            let output = || signature.output(name).map(Found::Output);
            let found = signature.input(name).map(Found::Input).or_else(output);
            found.ok_or_else(|| Error::config(format!("{NAME}: there is no tensor {name}")))
        };
        let launch = |part: Part| -> Result<Launch> {
            let Choice { specialisation, tile, threads, shared, stages } = choice(p, &part, way, device.props());
            let across = part.columns.div_ceil(tile[1]);
            let blocks = part.rows.div_ceil(tile[0]).saturating_mul(across);
            // Chains are the second axis of grids, and kernels count rows and columns in 32 bits.
            let widest = part.rows.max(part.terms).max(part.columns);
            if p.chains() > 65535 || blocks > i32::MAX as usize || widest > i32::MAX as usize / 2 {
                let (chains, rows, columns) = (p.chains(), part.rows, part.columns);
                return Err(Error::shape(format!(
                    "{NAME}: B NH = {chains} matrices of {rows} x {columns} exceed a CUDA grid"
                )));
            }
            let kernel = device.kernel(&specialisation, specialisation.entries[0])?;
            if shared > 0 {
                kernel.set_max_dynamic_shared(shared)?;
            }
            let grid = (blocks as u32, p.chains() as u32, 1);
            let config = LaunchConfig::new(grid, (threads, 1, 1)).shared(shared);
            let [x, y, z, to] = part.tensors.map(find);
            Ok(Launch { part, kernel, found: [x?, y?, z?, to?], config, across, stages })
        };
        let launches = p.parts(pass).into_iter().map(launch).collect::<Result<_>>()?;
        Ok(Self { signature, launches })
    }
    /// The launches of which there is something.
    fn there(&self) -> impl Iterator<Item = &Launch> {
        self.launches.iter().filter(|l| l.config.grid.0 > 0 && l.config.grid.1 > 0)
    }
}

impl LadderPlan {
    pub(in super::super) fn new(p: &Ladder, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let way = choose(p, options.variant.as_deref(), device.props())?;
        let pass = |pass| PassPlan::new(p, pass, device, way);
        let passes = [pass(Pass::Forward)?, pass(Pass::Backward)?];
        Ok(Self { problem: *p, device: device.clone(), way, passes, scratch: Layout::new(options.scratch_gap) })
    }
    fn pass(&self, pass: Pass) -> Option<&PassPlan> {
        match pass {
            Pass::Forward => Some(&self.passes[0]),
            Pass::Backward => Some(&self.passes[1]),
            _ => None,
        }
    }
    fn work(&self, launch: &Launch, args: &Args<'_, '_>) -> Work {
        let mut tensors = launch.found.map(|found| match found {
            Found::Input(at) => Tokens::new(args.inputs[at].address(), args.inputs[at].strides()),
            Found::Output(at) => Tokens::new(args.outputs[at].address(), args.outputs[at].strides()),
        });
        let Part { form, rows, terms, columns, .. } = launch.part;
        if let (Form::Product { turned }, Way::Simt) = (form, self.way) {
            // The portable kernels take a transpose by its strides.
            for (tensor, _) in tensors.iter_mut().zip(turned).filter(|(_, turned)| *turned) {
                tensor.strides.swap(2, 3);
            }
        }
        let plain = tensors.iter().enumerate().filter(|(_, t)| t.is_plain());
        Work {
            sizes: [self.problem.heads, rows, terms, columns, launch.across].map(|n| n as i64),
            plain: plain.fold(0, |bits, (bit, _)| bits | 1 << bit),
            scale: self.problem.scale(),
            tensors,
        }
    }
}

impl Plan for LadderPlan {
    fn entry(&self) -> &'static str {
        NAME
    }
    fn place(&self) -> Place {
        Place::Cuda(self.device.index())
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        self.pass(pass).map(|p| &p.signature)
    }
    fn config(&self) -> String {
        let threads = self.passes[0].launches.first().map_or(0, |l| l.config.block.0);
        format!("{} threads={threads}", self.way.name())
    }
    fn variant(&self) -> &'static str {
        self.way.name()
    }
    fn tensor_cores(&self) -> bool {
        self.way != Way::Simt
    }
    fn scratch(&self, _pass: Pass) -> &Layout {
        &self.scratch
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let missing = || Error::config(format!("{NAME}: the {} pass was not planned", pass.name()));
        for launch in self.pass(pass).ok_or_else(missing)?.there() {
            let work = self.work(launch, args);
            // SAFETY: every field of the struct is eight bytes, or made of such.
            let work = Arg::Bytes(unsafe { bytes(&work) });
            let list = [work, Arg::I32(launch.stages.unwrap_or(0) as i32)];
            let count = 1 + usize::from(launch.stages.is_some());
            // SAFETY: the views were checked against the signature, and the kernels keep to the sizes.
            unsafe { launch.kernel.launch(args.stream, &launch.config, &list[..count])? };
        }
        Ok(())
    }
    fn launches(&self, pass: Pass) -> Result<Vec<LaunchReport>> {
        let Some(plan) = self.pass(pass) else { return Ok(Vec::new()) };
        let report = |l: &Launch| LaunchReport::new(&l.kernel, 1, l.config.grid, l.config.block, l.config.shared_bytes);
        plan.there().map(report).collect()
    }
}
