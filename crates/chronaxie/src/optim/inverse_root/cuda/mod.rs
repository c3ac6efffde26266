//! Launches of inverse roots: Newton's method by a kernel for all sizes and architectures or one of two on tensor cores, and behind it
//! eigenvalues, for what it does not solve or for all.
#![allow(unsafe_code)]

mod eigen;
mod resident;
mod solver;

use super::spec::{InverseRoot, Method};
use crate::cuda::{Archs, Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation, StreamRef};
use crate::kernels;
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::optim::jacobi::{COUNTERS, Jacobi};
use crate::{DeviceProps, Dtype, Error, Layout, Place, RegionId, Result};
use resident::Resident;
use solver::Solver;
use std::cmp::Reverse;
use std::sync::Arc;

/// What kernels that work beside Newton's iterations include too.
pub(crate) const NEWTON: kernels::Header = ("newton.cuh", include_str!("newton.cuh"));
pub(crate) const NEWTON_ENDS: kernels::Header = ("newton_ends.cuh", include_str!("newton_ends.cuh"));
pub(crate) const NEWTON_PRODUCTS: kernels::Header = ("newton_products.cuh", include_str!("newton_products.cuh"));
/// Threads a block, as `kThreads` in all kernels.
const THREADS: u32 = 256;
/// Matrices of the workspace of a block of the portable kernel.
const MATRICES: usize = 5;
/// `kTile`, `kStage` and `kBuffers` of newton.cuh.
const TILE: usize = 128;
const STAGE: u32 = 4 * 2 * 128 * 32;
/// Bytes of what a block has in place of stages alone where the copy engine fills them: a tile of f32, `kPlaces` stages, and what it
/// takes to begin at a multiple of 1024.
const RING: u32 = 4 * 128 * 128 + 4 * STAGE + 1024;
/// Static shared memory of newton.cuh and of what works beside it, at most.
const STATIC: u32 = 6 << 10;
const BUFFERS: usize = 7;
/// The least n that goes to tensor cores: up to 32 the portable kernel's tiles are less wasted than theirs.
const LEAST: usize = 33;

pub(super) fn specialisations() -> Vec<Specialisation> {
    vec![portable(), tensor(), resident::specialisation(), eigen::specialisation(), solver::specialisation()]
}

fn portable() -> Specialisation {
    let source = KernelSource::embedded("optim/inverse_root/cuda/inverse_root.cu", include_str!("inverse_root.cu"));
    let mut spec = Specialisation::new(source, &["inverse_root"]);
    spec.headers = &[kernels::MEET, kernels::SUMS];
    spec
}

fn tensor() -> Specialisation {
    let source = KernelSource::embedded("optim/inverse_root/cuda/newton.cu", include_str!("newton.cu"));
    let mut spec = Specialisation::new(source, &["clear", "newton_roots"]);
    spec.headers =
        &[kernels::BARRIERS, kernels::MEET, kernels::MMA, kernels::WGMMA, NEWTON_PRODUCTS, NEWTON_ENDS, NEWTON];
    spec.archs = Archs::AtLeast(80);
    spec
}

/// How the batch is spread over a device by newton.cu: a function of the problem and the device alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Groups {
    /// Groups of blocks, a matrix each at a time.
    groups: usize,
    /// Blocks of a group.
    blocks: usize,
    /// Stages of operands in shared memory.
    stages: u32,
    /// Whether products are wgmma's.
    wgmma: bool,
    /// Tiles of a product.
    tiles: usize,
}

impl Groups {
    /// Of an iteration, for a group of `blocks`: four of the six products at p = 4 are alone between barriers, two go together.
    fn rounds(tiles: usize, blocks: usize) -> usize {
        4 * tiles.div_ceil(blocks) + (2 * tiles).div_ceil(blocks)
    }
    /// As many blocks a group as make an iteration of all matrices shortest, and of such numbers the largest; one block a
    /// multiprocessor. None where two stages do not fit.
    fn choose(p: &InverseRoot, props: &DeviceProps) -> Option<Self> {
        let side = p.order.div_ceil(TILE);
        let tiles = side * (side + 1) / 2;
        let room = props.shared_per_block_optin.saturating_sub(STATIC);
        // As newton.cuh: only there is the architecture one with all of its features.
        let wgmma = props.compute_capability == (9, 0);
        let stages = match wgmma {
            true => u32::from(room >= RING) * 4,
            false => (room / STAGE).min(4),
        };
        let sms = props.sm_count as usize;
        let time = |c: usize| p.count.div_ceil(sms / c) * Self::rounds(tiles, c);
        let blocks = (1..=sms.min(2 * tiles)).min_by_key(|&c| (time(c), Reverse(c)))?;
        (stages >= 2).then_some(Self { groups: p.count.min(sms / blocks), blocks, stages, wgmma, tiles })
    }
    const fn shared(&self) -> u32 {
        if self.wgmma { RING } else { self.stages * STAGE }
    }
    /// `kLaunched` of newton_products.cuh: wgmma's operands are asked for by a warpgroup of its own.
    const fn threads(&self) -> u32 {
        if self.wgmma { THREADS + 128 } else { THREADS }
    }
    /// The same where what is left of the device moves `bytes` meanwhile: what takes least time together, by what a round of products of
    /// 1024 terms takes (an H200 by wgmma, an H100 by mma.sync), and a multiprocessor and all of them with their memory.
    fn beside(p: &InverseRoot, props: &DeviceProps, bytes: usize) -> Option<Self> {
        const EACH: f64 = 30.0;
        const ALL: f64 = 2700.0;
        let plain = Self::choose(p, props)?;
        let round_ns = if plain.wgmma { 102e3 } else { 162e3 };
        let sms = props.sm_count as usize;
        let side = p.order.div_ceil(TILE);
        let tiles = side * (side + 1) / 2;
        let cut = |c: usize| {
            let rounds = p.count.div_ceil((sms / c).max(1));
            let groups = p.count.div_ceil(rounds.max(1));
            let ns = (rounds * Self::rounds(tiles, c)) as f64 * round_ns * p.order as f64 / 1024.0;
            let left = bytes as f64 - (sms - groups * c) as f64 * EACH * ns;
            (groups, ns + left.max(0.0) / ALL)
        };
        let blocks = (1..=sms.min(2 * tiles)).min_by(|&a, &b| cut(a).1.total_cmp(&cut(b).1).then(b.cmp(&a)))?;
        Some(Self { groups: cut(blocks).0, blocks, ..plain })
    }
}

/// What is done on the multiprocessors that Newton's iterations leave, by the same launch: a kernel over newton.cuh, one of whose
/// blocks fits a multiprocessor. It takes what newton_roots does, the number of groups, behind whose counters there is one more that is
/// 0, and arguments of its own.
#[derive(Clone)]
pub(crate) struct Beside {
    pub kernel: Kernel,
    /// What it moves.
    pub bytes: usize,
}

/// The kernels of newton.cu, and its memory.
struct Tensor {
    groups: Groups,
    clear: Kernel,
    kernel: Kernel,
    /// Whether it is a [`Beside`]'s, and blocks of a launch behind those of the groups: as many as fill the device.
    beside: bool,
    more: usize,
    sums: RegionId,
    counters: RegionId,
}

/// What goes before eigenvalues, which then do what that does not solve.
enum First {
    None,
    Portable(Kernel, u32),
    Resident(Resident),
    Tensor(Tensor),
    Solver(Solver),
}

impl First {
    /// Whether its kernels clear the counters of those behind them.
    const fn clears(&self) -> bool {
        !matches!(self, Self::None | Self::Solver(_))
    }
}

/// What [`First`] is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Portable,
    Resident(resident::Blocks),
    Tensor(Groups),
    Solver,
}

impl Choice {
    /// By the variant that was asked for; else small matrices stay where a block keeps one, unless the others are to leave room.
    fn of(p: &InverseRoot, props: &DeviceProps, variant: Option<&str>, beside: Option<usize>) -> Result<Self> {
        let refused = |name: &str, why: String| Error::config(format!("{}: variant {name} {why}", p.entry));
        match variant {
            None if p.order < LEAST => Ok(Self::Portable),
            None if solver::is_better(p) => Ok(Self::Solver),
            None => Ok(match (resident::takes(p, props), takes(p, props), beside) {
                (_, Ok(groups), Some(bytes)) => Self::Tensor(Groups::beside(p, props, bytes).unwrap_or(groups)),
                (Ok(blocks), _, None) => Self::Resident(blocks),
                (_, Ok(groups), None) => Self::Tensor(groups),
                (_, Err(_), _) => Self::Portable,
            }),
            Some("simt") => Ok(Self::Portable),
            Some("mma") => takes(p, props).map(Self::Tensor).map_err(|e| refused("mma", e)),
            Some("resident") => resident::takes(p, props).map(Self::Resident).map_err(|e| refused("resident", e)),
            Some("cusolver") => solver::takes(p).map(|()| Self::Solver).map_err(|e| refused("cusolver", e)),
            Some(other) => Err(Error::config(format!(
                "{}: variant `{other}` is not one of simt, mma, resident, cusolver, on CUDA",
                p.entry
            ))),
        }
    }
}

/// An inverse root's kernels on a device.
pub(crate) struct CudaPlan {
    problem: InverseRoot,
    device: Arc<CudaDevice>,
    signature: Signature,
    layout: Layout,
    work: RegionId,
    first: First,
    eigen: Jacobi,
    /// Counters of `eigen`, which the kernel before it clears.
    idle: RegionId,
}

/// Whether newton.cu takes this problem on this device, or why not.
fn takes(p: &InverseRoot, props: &DeviceProps) -> std::result::Result<Groups, String> {
    let (major, minor) = props.compute_capability;
    if major < 8 {
        return Err(format!("needs compute capability 8.0, not {major}.{minor}"));
    }
    if !by_newton(p) {
        return Err("takes exponents -1/p and method newton".to_owned());
    }
    if p.count == 0 || p.order == 0 {
        return Err("takes no empty batch".to_owned());
    }
    Groups::choose(p, props).ok_or_else(|| {
        format!(
            "needs {} bytes of shared memory, of which there are {}",
            if (major, minor) == (9, 0) { RING } else { 2 * STAGE } + STATIC,
            props.shared_per_block_optin
        )
    })
}

fn by_newton(p: &InverseRoot) -> bool {
    p.numerator == 1 && p.method != Method::Eigen
}

impl CudaPlan {
    pub(crate) fn new(problem: InverseRoot, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        Self::with(problem, device, options, None)
    }
    /// With `beside`, where this goes to tensor cores: [`CudaPlan::leaves_room`] says whether.
    pub(crate) fn with(
        problem: InverseRoot,
        device: &Arc<CudaDevice>,
        options: &PlanOptions,
        beside: Option<&Beside>,
    ) -> Result<Self> {
        let props = device.props();
        let mut choice = Choice::of(&problem, props, options.variant.as_deref(), beside.map(|b| b.bytes))?;
        let n = problem.order;
        let mut layout = Layout::new(options.scratch_gap);
        let solver = match choice {
            Choice::Solver => Solver::new(&problem, options.variant.is_some(), device, &mut layout)?,
            _ => None,
        };
        if choice == Choice::Solver && solver.is_none() {
            choice = Choice::Portable;
        }
        let eigen = Jacobi::new(device, &eigen::specialisation(), "eigen_roots", problem.count, n)?;
        let counters = eigen.counters().max(solver.as_ref().map_or(0, Solver::counters));
        let idle = layout.push("idle", Dtype::I32, counters)?;
        let by_blocks = || {
            let kernel = device.kernel(&portable(), "inverse_root")?;
            let resident = props.sm_count as usize * kernel.max_active_blocks(THREADS, 0)?.max(1) as usize;
            Ok::<_, Error>((kernel, problem.count.min(resident)))
        };
        let portable = (choice == Choice::Portable && by_newton(&problem)).then(by_blocks).transpose()?;
        let buffers = match (choice, &portable) {
            (Choice::Tensor(g), _) => g.groups * BUFFERS * n.next_multiple_of(TILE) * n.next_multiple_of(32),
            (_, Some((_, blocks))) => blocks * MATRICES * n * n,
            (_, None) => 0,
        };
        // The kernels come one after the other.
        let of_eigen = eigen.work() + 3 * eigen.groups() * n + eigen.work().div_ceil(2);
        let of_solver = solver.as_ref().map_or(0, |s| s.work(&problem));
        let work = layout.push("work", Dtype::F64, buffers.div_ceil(2).max(of_eigen).max(of_solver))?;
        let first = match choice {
            Choice::Portable => portable.map_or(First::None, |(kernel, blocks)| First::Portable(kernel, blocks as u32)),
            Choice::Resident(of) => First::Resident(Resident::new(n, of, device)?),
            Choice::Solver => solver.map_or(First::None, First::Solver),
            Choice::Tensor(g) => {
                let kernel = match beside {
                    Some(b) => b.kernel.clone(),
                    None => device.kernel(&tensor(), "newton_roots")?,
                };
                kernel.set_max_dynamic_shared(g.shared())?;
                let more = if beside.is_some() { props.sm_count as usize - g.groups * g.blocks } else { 0 };
                First::Tensor(Tensor {
                    groups: g,
                    more,
                    beside: beside.is_some(),
                    clear: device.kernel(&tensor(), "clear")?,
                    kernel,
                    sums: layout.push("sums", Dtype::F64, g.groups * 2 * g.tiles)?,
                    counters: layout.push("counters", Dtype::I32, COUNTERS * (g.groups + 1))?,
                })
            }
        };
        Ok(Self {
            problem,
            device: device.clone(),
            signature: problem.signature_of(Pass::Forward)?,
            layout,
            work,
            first,
            eigen,
            idle,
        })
    }
}

impl Plan for CudaPlan {
    fn entry(&self) -> &'static str {
        self.problem.entry
    }
    fn place(&self) -> Place {
        Place::Cuda(self.device.index())
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        (pass == Pass::Forward).then_some(&self.signature)
    }
    fn config(&self) -> String {
        match &self.first {
            First::Tensor(Tensor { groups: g, more, .. }) => {
                format!(
                    "inverse_root mma: newton by {}, {} groups of {} blocks of {THREADS} threads, a matrix each, {} tiles, {} stages{}",
                    if g.wgmma { "wgmma" } else { "mma.sync" },
                    g.groups,
                    g.blocks,
                    g.tiles,
                    g.stages,
                    if *more > 0 { format!(", {more} blocks beside") } else { String::new() }
                )
            }
            First::Resident(resident) => resident.config(),
            First::Solver(solver) => solver.config(),
            First::Portable(_, blocks) => {
                format!("inverse_root simt: newton, {blocks} blocks of {THREADS} threads, a matrix each")
            }
            First::None => format!("inverse_root simt: eigen, {}", self.eigen.config()),
        }
    }
    fn variant(&self) -> &'static str {
        match self.first {
            First::None | First::Portable(..) => "simt",
            First::Resident(_) => "resident",
            First::Solver(_) => "cusolver",
            First::Tensor(_) => "mma",
        }
    }
    fn tensor_cores(&self) -> bool {
        matches!(self.first, First::Resident(_) | First::Tensor(_))
    }
    fn scratch(&self, _: Pass) -> &Layout {
        &self.layout
    }
    fn execute(&self, _: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        // Matrices of no elements still have records.
        let tensors = [args.inputs[0].address(), args.outputs[0].address(), args.outputs[1].address()];
        self.launch(tensors, args.scratch.address(), args.stream)
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        let threads = (THREADS, 1, 1);
        let mut list = Vec::new();
        if self.problem.count == 0 {
            return Ok(list);
        }
        match &self.first {
            First::None => {}
            First::Portable(kernel, blocks) => list.push(LaunchReport::new(kernel, 1, (*blocks, 1, 1), threads, 0)?),
            First::Resident(resident) => list.push(resident.report()?),
            First::Solver(solver) => list.extend(solver.reports()?),
            First::Tensor(t) => {
                let config = t.config();
                list.push(LaunchReport::new(&t.clear, 1, (1, 1, 1), threads, 0)?);
                list.push(LaunchReport::new(&t.kernel, 1, config.grid, config.block, config.shared_bytes)?);
            }
        }
        self.eigen.launch([0; 2], self.first.clears(), &[], &mut |kernel, c, _| {
            list.push(LaunchReport::new(kernel, 1, c.grid, c.block, c.shared_bytes)?);
            Ok(())
        })?;
        Ok(list)
    }
}

impl Tensor {
    fn config(&self) -> LaunchConfig {
        let g = self.groups;
        let grid = ((g.groups * g.blocks + self.more) as u32, 1, 1);
        // Blocks of a group wait for each other.
        LaunchConfig { cooperative: g.blocks > 1, ..LaunchConfig::new(grid, (g.threads(), 1, 1)).shared(g.shared()) }
    }
}

impl CudaPlan {
    /// Whether the plan has a [`Beside`].
    pub(crate) fn leaves_room(&self) -> bool {
        matches!(&self.first, First::Tensor(t) if t.beside)
    }
    /// Puts the roots of `a [N, n, n]` on `stream`: the addresses of a, the roots, their records, and scratch.
    pub(crate) fn launch(&self, tensors: [u64; 3], scratch: u64, stream: StreamRef) -> Result<()> {
        self.launch_beside(tensors, scratch, stream, &[])
    }
    /// The same with the arguments of a [`Beside`]'s own.
    pub(crate) fn launch_beside(
        &self,
        tensors: [u64; 3],
        scratch: u64,
        stream: StreamRef,
        own: &[Arg<'_>],
    ) -> Result<()> {
        let p = self.problem;
        if p.count == 0 {
            return Ok(());
        }
        let region = |id| Arg::U64(self.layout.address(scratch, id));
        let [a, root, record] = tensors.map(Arg::U64);
        let idle = [region(self.idle), Arg::I32(self.eigen.counters() as i32)];
        if let First::Solver(solver) = &self.first {
            let own = [self.work, self.idle].map(|id| self.layout.address(scratch, id));
            solver.launch(&p, tensors, own, &|id| self.layout.address(scratch, id), stream)?;
        }
        if let First::Resident(resident) = &self.first {
            resident.launch(&p, tensors, idle, stream)?;
        }
        if let First::Portable(kernel, blocks) = &self.first {
            let list = [
                a,
                root,
                record,
                region(self.work),
                idle[0],
                idle[1],
                Arg::I64(p.count as i64),
                Arg::I32(p.order as i32),
                Arg::I32(p.denominator as i32),
                Arg::F64(p.absolute),
                Arg::F64(p.relative),
            ];
            let config = LaunchConfig::new((*blocks, 1, 1), (THREADS, 1, 1));
            // SAFETY: the arguments are those of the kernel's signature in inverse_root.cu; the views were checked against the
            // signature and the scratch holds the layout.
            unsafe { kernel.launch(stream, &config, &list)? };
        }
        if let First::Tensor(t) = &self.first {
            let g = t.groups;
            let clear = LaunchConfig::new((1, 1, 1), (THREADS, 1, 1));
            let counted = [region(t.counters), Arg::I32(COUNTERS as i32 * (g.groups as i32 + 1)), idle[0], idle[1]];
            let mut list = vec![
                a,
                root,
                record,
                region(self.work),
                region(t.sums),
                region(t.counters),
                Arg::I64(p.count as i64),
                Arg::I32(p.order as i32),
                Arg::I32(p.denominator as i32),
                Arg::I32(g.blocks as i32),
                Arg::I32(g.stages as i32),
                Arg::F64(p.absolute),
                Arg::F64(p.relative),
            ];
            if t.beside {
                list.push(Arg::I32(g.groups as i32));
                list.extend_from_slice(own);
            }
            // SAFETY: the arguments are those of the kernels' signatures in newton.cu, and its caller's own; the views were checked
            // against the signature and the scratch holds the layout.
            unsafe {
                t.clear.launch(stream, &clear, &counted)?;
                t.kernel.launch(stream, &t.config(), &list)?;
            }
        }
        let rows = self.layout.address(scratch, self.work);
        let vectors = rows + 8 * self.eigen.work() as u64;
        let scaled = vectors + 24 * (self.eigen.groups() * p.order) as u64;
        let own = [
            Arg::U64(scaled),
            Arg::U64(vectors),
            a,
            root,
            record,
            Arg::I64(p.count as i64),
            Arg::I32(p.order as i32),
            Arg::I32(p.numerator as i32),
            Arg::I32(p.denominator as i32),
            Arg::I32(i32::from(!matches!(self.first, First::None))),
            Arg::F64(p.absolute),
            Arg::F64(p.relative),
        ];
        self.eigen.launch(
            [rows, self.layout.address(scratch, self.idle)],
            self.first.clears(),
            &own,
            &mut |kernel, config, list| {
                // SAFETY: the arguments are those of the kernels' signatures in eigen.cu and jacobi.cuh; the rest as above.
                unsafe { kernel.launch(stream, &config, list) }
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(count: usize, n: usize, props: &DeviceProps) -> Groups {
        takes(&InverseRoot::new(count, n, 4), props).unwrap()
    }

    /// On an H200: as many blocks as there are multiprocessors, but where there are too few tiles.
    #[test]
    fn groups_fill_the_device() {
        for (count, n, want) in
            [(64, 128, (64, 2)), (16, 512, (16, 8)), (4, 1024, (4, 33)), (1, 2048, (1, 132)), (1, 4096, (1, 132))]
        {
            let g = groups(count, n, &DeviceProps::SM_90);
            assert_eq!((g.groups, g.blocks, g.stages), (want.0, want.1, 4), "{count} x {n}");
        }
        for props in DeviceProps::FIXTURES.iter().filter(|d| d.compute_capability.0 >= 8) {
            for (count, n) in [(1, 1), (1, 33), (1000, 128), (3, 300), (1, 32768), (100_000, 200)] {
                let g = groups(count, n, props);
                assert!(g.groups * g.blocks <= props.sm_count as usize && g.groups <= count, "{count} x {n}: {g:?}");
                assert!(
                    g.blocks <= 2 * g.tiles && g.shared() + STATIC <= props.shared_per_block_optin,
                    "{count} x {n}: {g:?}"
                );
            }
        }
    }

    /// A block keeps a matrix of 33 to 128 rows where its multiprocessor has the memory; whoever works beside has groups of blocks.
    #[test]
    fn small_matrices_stay_in_shared_memory() {
        let name = |count, n, p, props: &DeviceProps, variant: Option<&str>, beside| match Choice::of(
            &InverseRoot::new(count, n, p),
            props,
            variant,
            beside,
        ) {
            Ok(Choice::Portable) => "simt".to_owned(),
            Ok(Choice::Resident(of)) => format!("resident {}", of.blocks),
            Ok(Choice::Solver) => "cusolver".to_owned(),
            Ok(Choice::Tensor(g)) => format!("mma {}x{}", g.groups, g.blocks),
            Err(e) => e.to_string(),
        };
        let h = &DeviceProps::SM_90;
        assert_eq!(name(64, 128, 4, h, None, None), "resident 64");
        assert_eq!(name(500, 33, 2, h, None, None), "resident 264");
        assert_eq!(name(64, 128, 4, h, Some("mma"), None), "mma 64x2");
        assert_eq!(name(64, 128, 4, h, None, Some(1 << 20)).split(' ').next(), Some("mma"));
        assert_eq!(name(64, 129, 4, h, None, None), "mma 64x2");
        assert_eq!(name(64, 32, 4, h, None, None), "simt");
        assert_eq!(name(64, 100, 1, h, None, None), "mma 64x2");
        assert_eq!(name(64, 100, 4, &DeviceProps::SM_80, None, None).split(' ').next(), Some("mma"));
        assert_eq!(name(64, 100, 4, &DeviceProps::SM_75, None, None), "simt");
        let why = name(64, 100, 4, &DeviceProps::SM_80, Some("resident"), None);
        assert!(why.ends_with("inverse_root: variant resident needs compute capability 9.0, not 8.0"), "{why}");
        let why = name(64, 100, 4, h, Some("fast"), None);
        assert!(why.ends_with("variant `fast` is not one of simt, mma, resident, cusolver, on CUDA"), "{why}");
        let why = name(64, 100, 4, h, Some("cusolver"), None);
        assert!(why.ends_with("inverse_root: variant cusolver takes method eigen, or exponents -q/p"), "{why}");
    }

    /// Beside Newton's iterations there is room for what memory gives meanwhile: 4.2 GB beside 8 and 34 matrices of 1024, and beside
    /// many small ones as much.
    #[test]
    fn what_is_done_beside_finds_room() {
        let of = |count, n, bytes| {
            let g = Groups::beside(&InverseRoot::new(count, n, 4), &DeviceProps::SM_90, bytes).unwrap();
            (g.groups, g.blocks)
        };
        assert_eq!(of(8, 1024, 4 << 30), (4, 18));
        assert_eq!(of(34, 1024, 4 << 30), (7, 18));
        for (count, n) in [(1, 33), (1, 200), (3, 150), (1000, 128), (1, 4096)] {
            for bytes in [0, 1 << 20, 1 << 34] {
                let (groups, blocks) = of(count, n, bytes);
                assert!(groups >= 1 && blocks >= 1 && groups * blocks <= 132 && groups <= count, "{count} x {n}");
            }
        }
    }

    #[test]
    fn what_is_not_for_tensor_cores_is_said() {
        let why = |p: InverseRoot, props| takes(&p, props).unwrap_err();
        let p = InverseRoot::new(2, 64, 4);
        assert_eq!(why(p, &DeviceProps::SM_75), "needs compute capability 8.0, not 7.5");
        assert_eq!(why(p.method(Method::Eigen), &DeviceProps::SM_90), "takes exponents -1/p and method newton");
        assert_eq!(why(p.exponent(2, 3), &DeviceProps::SM_90), "takes exponents -1/p and method newton");
        assert_eq!(why(InverseRoot::new(0, 64, 4), &DeviceProps::SM_90), "takes no empty batch");
    }
}
