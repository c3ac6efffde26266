//! The choice of configuration: a pure function of the problem, the pass and the device's properties.

use crate::layers::mlstm::spec::Mlstm;
use crate::op::Pass;
use crate::{DeviceProps, Dtype, Error, Result};
use std::fmt;

/// Tokens a chunk of the portable kernels at most, as `kTile` in mlstm.cuh.
pub(super) const TILE: usize = 64;
/// Bytes of states that a window of chunks keeps, forward; backward half of it, and half for their gradients. At least two
/// chunks are kept.
const WINDOW_BYTES: usize = 960 << 20;
/// The same of the portable kernels, each.
const SIMT_WINDOW_BYTES: usize = 256 << 20;
/// Tokens of a chunk of the kernels that go through chains, and their threads.
const CHAIN_TOKENS: usize = 64;
pub(super) const CHAIN_THREADS: u32 = 384;
/// The most that a head, or a chunk, of the kernels for small heads may have, `kEdge` there.
const SMALL_HEAD: usize = 64;
/// Tokens of a chunk of the kernels on tensor cores are a multiple of this, `kStep` in tensor.cuh.
const STEP: usize = 32;
/// Chunks over which the gates' gradients are summed before a product of state and gradient starts them anew. More of them
/// would read less, but where states are rounded their sums do not cancel as they must (1.7e-2 in bf16 over two).
const SEGMENT: usize = 1;

/// The tiles of the kernels on tensor cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiles {
    /// By wgmma, and not by mma.sync.
    pub hopper: bool,
    /// Tokens of a chunk at most, and rows of a tile.
    pub edge: usize,
    /// Columns of a tile of h or a gradient.
    pub columns: usize,
    /// Places of the ring of tiles.
    pub stages: usize,
    /// Rows and columns of a tile of the states; by wgmma, which has 128 rows, columns alone. Tiles of 64 are by mma.sync.
    pub state_edge: usize,
    /// Places of its ring.
    pub state_stages: usize,
}

/// The smallest of them.
const SMALLEST: Tiles = Tiles { hopper: false, edge: 64, columns: 64, stages: 2, state_edge: 64, state_stages: 2 };

/// How one pass of one mLSTM problem runs on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Those of tensor cores; without them the portable kernels run.
    pub tiles: Option<Tiles>,
    /// L: tokens a chunk.
    pub length: usize,
    /// Chunks whose states are kept at a time.
    pub window: usize,
    /// Windows.
    pub windows: usize,
    /// Where kernels go through whole chains, and keep no states: columns of queries forward, and backward those of the states
    /// that the gradients of q and k take, `kColumns` there.
    pub chains: Option<usize>,
    /// Where heads are small and the sums of all chunks are made at once: of how many chains at a time.
    pub small: Option<usize>,
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (length, window) = (self.length, self.window);
        if let Some(columns) = self.chains {
            return write!(f, "chains:n{columns} chunk={length} threads={CHAIN_THREADS}");
        }
        if let Some(group) = self.small {
            return write!(f, "small:g{group} chunk={length} threads=128");
        }
        match self.tiles {
            None => write!(f, "simt chunk={length} window={window} threads=256"),
            Some(Tiles { hopper: true, columns, stages, state_edge, state_stages, .. }) => write!(
                f,
                "wgmma:c{columns}g{stages}s{state_edge}r{state_stages} chunk={length} window={window} threads=256"
            ),
            Some(Tiles { edge, columns, stages, state_edge, state_stages, .. }) => write!(
                f,
                "mma:e{edge}c{columns}g{stages}s{state_edge}r{state_stages} chunk={length} window={window} threads={}",
                2 * edge
            ),
        }
    }
}

/// Which kernels run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    Simt,
    Mma,
    Wgmma,
    /// By chains.
    Chains,
    /// For small heads.
    Small,
}

/// What a user may ask for by name: `simt`, `simt:w3`, or `mma` or `wgmma` with any of the numbers that the configuration
/// prints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Wish {
    path: Option<Path>,
    edge: Option<usize>,
    columns: Option<usize>,
    stages: Option<usize>,
    state_edge: Option<usize>,
    state_stages: Option<usize>,
    window: Option<usize>,
    /// Chains at a time of the kernels for small heads.
    group: Option<usize>,
}

impl Wish {
    pub(super) fn parse(entry: &str, name: Option<&str>) -> Result<Self> {
        let mut wish = Self::default();
        let Some(name) = name else { return Ok(wish) };
        let bad = || {
            Error::config(format!(
                "{entry}: variant `{name}` is not one of simt, simt:wN, mma, mma:e128c256g3s64r4wN with any of its numbers, wgmma, wgmma:c256g3s64r4wN with any of its numbers, chains, or small or small:gN, on CUDA"
            ))
        };
        let (path, mut rest) = name.split_once(':').unwrap_or((name, ""));
        wish.path = Some(match path {
            "simt" => Path::Simt,
            "mma" => Path::Mma,
            "wgmma" => Path::Wgmma,
            "chains" => Path::Chains,
            "small" => Path::Small,
            _ => return Err(bad()),
        });
        if name.ends_with(':') {
            return Err(bad());
        }
        while let Some(letter) = rest.chars().next() {
            let digits = rest[letter.len_utf8()..].split(|c: char| !c.is_ascii_digit()).next().unwrap_or("");
            let number: usize = digits.parse().map_err(|_| bad())?;
            rest = &rest[letter.len_utf8() + digits.len()..];
            let (field, legal) = match (letter, path) {
                ('g', "small") => (&mut wish.group, number > 0),
                ('w', "simt" | "mma" | "wgmma") => (&mut wish.window, number > 0),
                ('e', "mma") => (&mut wish.edge, matches!(number, 64 | 128)),
                ('c', "mma") => (&mut wish.columns, matches!(number, 64 | 128 | 256)),
                ('c', "wgmma") => (&mut wish.columns, matches!(number, 128 | 256)),
                ('g', "mma" | "wgmma") => (&mut wish.stages, (2..=4).contains(&number)),
                ('s', "mma") => (&mut wish.state_edge, matches!(number, 64 | 128)),
                ('s', "wgmma") => (&mut wish.state_edge, matches!(number, 64 | 128 | 256)),
                ('r', "mma" | "wgmma") => (&mut wish.state_stages, (2..=4).contains(&number)),
                _ => return Err(bad()),
            };
            if !legal || field.is_some() {
                return Err(bad());
            }
            *field = Some(number);
        }
        Ok(wish)
    }
}

/// Bytes from one row of a tile to the next, as `pitch_of` in mma.cuh.
const fn pitch(width: usize) -> usize {
    2 * width + 16
}

impl Tiles {
    /// Dynamic and static shared memory of a block that makes outputs, or gradients.
    pub(super) fn shared(&self, backward: bool) -> (usize, usize) {
        let (edge, columns) = (self.edge, self.columns);
        if self.hopper {
            let (squares, rows) = if backward { (2, 6) } else { (1, 5) };
            let tiles = self.stages * 128 * (edge + columns) + squares * 2 * edge * edge;
            return (1024 + tiles, squares * 2048 + 4 * edge * rows + 64);
        }
        let deep = columns * pitch(32);
        let place = edge * pitch(32) + deep.max(32 * pitch(columns));
        let squares = if backward { 2 } else { 1 };
        let rows = edge / 32 + if backward { 6 } else { 5 };
        (self.stages * place + squares * edge * pitch(edge), squares * 2048 + 4 * edge * rows)
    }
    /// Whether states are scanned by wgmma.
    pub(super) fn hopper_states(&self) -> bool {
        self.hopper && self.state_edge > 64
    }
    /// Threads of a block that scans states.
    pub(super) fn state_threads(&self) -> u32 {
        if self.hopper_states() { 256 } else { 2 * self.state_edge as u32 }
    }
    /// The tiles by mma.sync of the cubin that gates' kernels are taken from, and states' where they are by it.
    pub(super) fn gate_edge(&self) -> usize {
        if self.hopper_states() { 64 } else { self.state_edge }
    }
    /// The same of a block that scans states.
    pub(super) fn state_shared(&self) -> (usize, usize) {
        if self.hopper_states() {
            return (1024 + self.state_stages * 128 * (128 + self.state_edge), 1608 + 16 * 128 + 64);
        }
        (self.state_stages * 2 * 32 * pitch(self.state_edge), 1608 + 16 * self.state_edge + self.state_edge / 2)
    }
}

/// How many blocks of so much shared memory a multiprocessor holds.
fn blocks((dynamic, fixed): (usize, usize), props: &DeviceProps) -> usize {
    if dynamic + fixed > props.shared_per_block_optin as usize {
        return 0;
    }
    props.shared_per_sm as usize / (dynamic + fixed + 1024)
}

/// Sequences times heads.
pub(super) fn chains(p: &Mlstm) -> usize {
    p.states() * p.heads
}

/// The tiles of the pass, if the device has room for them.
fn tiles(p: &Mlstm, backward: bool, props: &DeviceProps, wish: &Wish) -> Option<Tiles> {
    let state_edge = wish.state_edge.unwrap_or_else(|| {
        let blocks = chains(p) * p.dqk.div_ceil(128) * p.dv.div_ceil(128);
        let fills = p.dqk.min(p.dv) > 64 && blocks >= props.sm_count as usize;
        if fills { 128 } else { 64 }
    });
    let long = p.dqk.max(p.dv) > 64 || p.chunk.is_some_and(|c| c > 64);
    let hopper = props.compute_capability == (9, 0)
        && (matches!(wish.path, Some(Path::Wgmma | Path::Chains))
            || (wish.path.is_none() && long && p.chunk.is_none_or(|c| c > 64)));
    let edges: &[usize] = match (hopper, long) {
        (true, _) => &[128],
        (_, true) => &[128, 64],
        _ => &[64, 128],
    };
    for &edge in edges.iter().filter(|e| wish.edge.is_none_or(|w| w == **e)) {
        // Columns of h, or of gradients of q and k.
        let width = if backward { p.dqk } else { p.dv };
        let wide = if width > 128 { 256 } else { 128 };
        let columns = wish.columns.unwrap_or(if hopper { wide } else { edge });
        if columns < edge {
            continue;
        }
        let base = Tiles { hopper, edge, columns, stages: 2, state_edge, state_stages: 2 };
        // As many blocks as registers allow, then as many places as fit beside them.
        let best = |count: Option<usize>, at_most: usize, shared: &dyn Fn(usize) -> (usize, usize)| {
            let most = blocks(shared(2), props).min(at_most);
            let fits = |n: &usize| most > 0 && blocks(shared(*n), props) >= most;
            count.or_else(|| (2..=4).rev().find(fits)).filter(|n| blocks(shared(*n), props) > 0)
        };
        // What the kernels' launch bounds ask of registers (kTogether and kScans in tensor.cuh).
        let cc = props.compute_capability;
        let alone = hopper || columns > edge || (edge == 128 && (backward || !((9, 0)..(12, 0)).contains(&cc)));
        let rows = if backward { 128 } else { 256 };
        let by_registers = if alone { 1 } else { rows / edge };
        let scans = if state_edge == 128 && !hopper { 1 } else { 256 / state_edge };
        let stages = best(wish.stages, by_registers, &|stages| Tiles { stages, ..base }.shared(backward));
        let state_stages =
            best(wish.state_stages, scans, &|state_stages| Tiles { state_stages, ..base }.state_shared());
        if let (Some(stages), Some(state_stages)) = (stages, state_stages) {
            return Some(Tiles { stages, state_stages, ..base });
        }
    }
    None
}

/// Columns of the state of the kernel by chains that makes the gradient of q, k or v (`role` 0 to 2) or h, as `kColumns` there: it has
/// whole rows, of v's size or, for h and the gradient of v alone, of k's.
pub(super) fn walk_columns(p: &Mlstm, role: usize) -> usize {
    let width = if role == 2 || role == H { p.dqk } else { p.dv };
    width.next_power_of_two().clamp(128, 512)
}
/// The roles of the kernels that make h, and the gradients of k and v together.
pub(super) const H: usize = 3;
pub(super) const KEYS: usize = 4;
/// The roles of the kernels that go through chains backward, in the order in which they run: where one block holds a chain's state, one
/// kernel makes the gradients of k and v.
pub(super) fn walks(p: &Mlstm) -> &'static [usize] {
    if p.dqk <= WALK_ROWS && p.dv <= WALK_WIDE { &[0, KEYS] } else { &[0, 1, 2] }
}
/// Rows of the state of one of its blocks, and columns at most: two blocks have halves of more of them.
const WALK_ROWS: usize = 128;
const WALK_WIDE: usize = 256;

/// Blocks of a chain.
fn walk_blocks(p: &Mlstm, role: usize) -> usize {
    let rows = if role < 2 { p.dqk } else { p.dv };
    rows.div_ceil(WALK_ROWS) * walk_columns(p, role).div_ceil(WALK_WIDE)
}

/// A launch of the backward kernel by chains: the blocks of a chain, of a cluster, and their dynamic shared memory.
pub(super) struct Walk {
    pub blocks: usize,
    pub cluster: usize,
    pub shared: usize,
}

/// The columns of the kernels that go through whole chains, as [`Config::chains`] has them, if they are to run.
fn chain_columns(p: &Mlstm, backward: bool, props: &DeviceProps, wish: &Wish, able: bool) -> Result<Option<usize>> {
    if !able {
        return Ok(None);
    }
    let fits = (backward || p.dqk <= 256) && p.chunk.is_none_or(|c| c == CHAIN_TOKENS);
    if wish.path == Some(Path::Chains) && !fits {
        return Err(Error::config(format!(
            "{}: variant chains takes heads of q and k of at most 256 and chunks of {CHAIN_TOKENS} tokens, not {} and {}",
            p.entry_name(),
            p.dqk,
            p.chunk.unwrap_or(CHAIN_TOKENS)
        )));
    }
    // A block has a multiprocessor to itself, and goes through a chain alone: there must be blocks for most of them.
    let across = walk_blocks(p, if backward { 0 } else { H });
    let blocks = chains(p) * across;
    let pays = props.compute_capability == (9, 0) && p.dqk.max(p.dv) > 64 && 4 * blocks >= 3 * props.sm_count as usize;
    let chosen = fits && (wish.path == Some(Path::Chains) || (wish.path.is_none() && pays));
    Ok(chosen.then(|| walk_columns(p, if backward { 0 } else { H })))
}

/// Tokens of a chunk of the kernels for small heads, and how many chains they take at a time, if they are to run.
fn small_chunk(p: &Mlstm, backward: bool, wish: &Wish, able: bool) -> Result<Option<(usize, usize)>> {
    let length = p.chunk.unwrap_or(SMALL_HEAD).next_multiple_of(STEP);
    let fits = p.dqk.max(p.dv) <= SMALL_HEAD && length <= SMALL_HEAD;
    let asked = wish.path == Some(Path::Small);
    if asked && !fits {
        return Err(Error::config(format!(
            "{}: variant small takes heads of at most {SMALL_HEAD} and chunks of at most {SMALL_HEAD} tokens, not {} x {} and {length}",
            p.entry_name(),
            p.dqk,
            p.dv
        )));
    }
    // Of a chain: sums in f32 and states in 16 bits, backward those of their gradients, too.
    let chunks = p.steps.div_ceil(length).max(1);
    let bytes = (if backward { 12 } else { 6 }) * p.dqk * p.dv * chunks;
    if !(able && fits && (asked || (wish.path.is_none() && bytes <= WINDOW_BYTES / 2))) {
        return Ok(None);
    }
    // As many as there is room for: fewer, whose states L2 would hold, are slower (64 of 1024 chains by a quarter). Groups of one
    // size, or nearly so.
    let all = chains(p).max(1);
    let group = (WINDOW_BYTES / bytes).clamp(1, all);
    let group = wish.group.map_or(all.div_ceil(all.div_ceil(group)), |g| g.min(all));
    Ok(Some((length, group)))
}

impl Config {
    /// The configuration of a pass.
    pub(super) fn choose(p: &Mlstm, pass: Pass, props: &DeviceProps, wish: &Wish) -> Result<Self> {
        let (entry, backward) = (p.entry_name(), pass == Pass::Backward);
        let by_wgmma = matches!(wish.path, Some(Path::Wgmma | Path::Chains));
        let asked = by_wgmma || matches!(wish.path, Some(Path::Mma | Path::Small));
        let name = match wish.path {
            Some(Path::Chains) => "chains",
            Some(Path::Wgmma) => "wgmma",
            Some(Path::Small) => "small",
            _ => "mma",
        };
        if asked && p.dtype == Dtype::F32 {
            return Err(Error::config(format!("{entry}: variant {name} takes f16 and bf16, not {}", p.dtype)));
        }
        let (major, minor) = props.compute_capability;
        if by_wgmma && (major, minor) != (9, 0) {
            return Err(Error::config(format!(
                "{entry}: variant {name} needs compute capability 9.0, not {major}.{minor}"
            )));
        }
        if asked && major < 8 {
            return Err(Error::config(format!(
                "{entry}: variant {name} needs compute capability 8.0, not {major}.{minor}"
            )));
        }
        // Heads of 16 are left to f32: their sums are so short that roundings of operands do not average out (gradients of
        // forget gates at 16 x 16 in bf16 were off by 1.3e-2, in f32 arithmetic by 4.8e-3). Tokens are counted in 32 bits.
        let able =
            p.dtype != Dtype::F32 && major >= 8 && wish.path != Some(Path::Simt) && p.steps < i32::MAX as usize - STEP;
        let able = able && (asked || p.dqk.min(p.dv) > 16);
        if let Some(columns) = chain_columns(p, backward, props, wish, able)? {
            // The kernels of gates are those of the smallest tiles.
            let window = p.steps.div_ceil(CHAIN_TOKENS).max(1);
            let (tiles, chains) = (Some(SMALLEST), Some(columns));
            return Ok(Self { tiles, length: CHAIN_TOKENS, window, windows: 1, chains, small: None });
        }
        if let Some((length, group)) = small_chunk(p, backward, wish, able)? {
            let window = p.steps.div_ceil(length).max(1);
            return Ok(Self { tiles: Some(SMALLEST), length, window, windows: 1, chains: None, small: Some(group) });
        }
        let tiles = if able { tiles(p, backward, props, wish) } else { None };
        if asked && tiles.is_none() {
            let room = props.shared_per_block_optin;
            return Err(Error::config(format!("{entry}: no tiles of that variant fit {room} bytes of shared memory")));
        }
        let length = match tiles {
            None => p.chunk_length().min(TILE),
            Some(t) => p.chunk.unwrap_or(t.edge).next_multiple_of(if t.hopper { 64 } else { STEP }).min(t.edge),
        };
        let chunks = p.steps.div_ceil(length).max(1);
        let (room, size) = match tiles {
            None => (SIMT_WINDOW_BYTES, 4),
            Some(_) if backward => (WINDOW_BYTES / 2, 2),
            Some(_) => (WINDOW_BYTES, 2),
        };
        let least = if backward { chunks.isqrt().max(2) } else { 2 };
        let one = size * p.dqk * p.dv * chains(p).max(1);
        // Windows of one size, or nearly so.
        let most = (room / one).max(least).min(chunks);
        let window = wish.window.map_or(chunks.div_ceil(chunks.div_ceil(most)), |w| w.min(chunks));
        Ok(Self { tiles, length, window, windows: chunks.div_ceil(window), chains: None, small: None })
    }
    /// By chains: the kernel of `role` as in [`walk_columns`].
    pub(super) fn walk_shape(p: &Mlstm, role: usize) -> Walk {
        let columns = walk_columns(p, role);
        if role == KEYS {
            // As in hopper_keys.cu: v, twice k and pairs, what goes into the state, the state itself, gradients on their way out.
            let slices = columns / 64 + 2 * 3 + (columns / 64 + 3) + 2 * (columns / 64) + 2;
            return Walk { blocks: 1, cluster: 1, shared: 1024 + 8192 * slices + 1040 * 2 + 2 * 8 * 256 + 8 * 9 };
        }
        let blocks = walk_blocks(p, role);
        // Slices of 64 tokens and 64 columns, as in hopper_walks.cu: those of what reads the state, its pairs and, for the gates,
        // its rows, and those of what goes into it, in a ring of places; gradients of two chunks on their way out; sums for another
        // block; vectors.
        let halved = columns > WALK_WIDE;
        let (wide, ring) = (columns.min(WALK_WIDE) / 64, if role >= 2 && !halved { 4 } else { 3 });
        let (reads, into) = (wide + 1 + if role < 2 { 2 } else { 0 }, wide + 2);
        let places = if ring == 3 { ring * reads.max(into) } else { ring / 2 * (reads + into) };
        let out = if halved { 2 + 4 } else { 4 };
        let rates = if role < 2 { 2 * 8 * 256 } else { 0 };
        let shared = 1024 + 8192 * (places + out) + 1040 * (ring - 1) + rates + 8 * (3 * ring + 4);
        // Two blocks of a chain bring what both read once. Clusters of four do not all fit at once.
        let cluster = if blocks.is_multiple_of(2) { 2 } else { 1 };
        Walk { blocks, cluster, shared }
    }
    /// The kernel that makes chunks' pairs before them: how many of its blocks have a multiprocessor, and their dynamic shared memory, four
    /// places of three slices or, forward, of two.
    pub(super) const fn pairs_shape(backward: bool) -> (usize, usize) {
        if backward { (2, 1024 + 4 * 3 * 8192) } else { (3, 1024 + 4 * 2 * 8192) }
    }
    /// Blocks of a chain that have parts of q.dq each, as `parts_of` in hopper_walks.cuh.
    pub(super) fn walk_parts(p: &Mlstm) -> usize {
        walk_blocks(p, 0)
    }
    /// Chunks of the longest sequence that there may be.
    pub(super) fn chunks(&self, p: &Mlstm) -> usize {
        p.steps.div_ceil(self.length).max(1)
    }
    /// Chunks of a segment of the gates' gradients.
    pub(super) const fn segment() -> usize {
        SEGMENT
    }
    /// Tiles of a state.
    pub(super) fn state_tiles(&self, p: &Mlstm) -> usize {
        let columns = self.tiles.map_or(TILE, |t| t.state_edge);
        let rows = if self.tiles.is_some_and(|t| t.hopper_states()) { 128 } else { columns };
        p.dqk.div_ceil(rows) * p.dv.div_ceil(columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::mlstm::Gate;

    fn choose(
        sizes: [usize; 5],
        dtype: Dtype,
        pass: Pass,
        props: &DeviceProps,
        variant: Option<&str>,
    ) -> Result<String> {
        let mut p = Mlstm::new(Gate::Exponential, sizes);
        p.dtype = dtype;
        let config = Config::choose(&p, pass, props, &Wish::parse("mlstm_exp", variant)?)?;
        Ok(config.to_string())
    }

    #[test]
    fn every_device_gets_what_fits_it() {
        let large = [8, 8, 8192, 256, 512];
        for props in &DeviceProps::FIXTURES {
            for pass in [Pass::Forward, Pass::Backward] {
                for (k, v) in [(32, 48), (64, 64), (128, 256), (256, 512), (512, 512), (512, 32), (32, 512)] {
                    let mut p = Mlstm::new(Gate::Sigmoid, [8, 8, 8192, k, v]);
                    p.dtype = Dtype::Bf16;
                    let config = Config::choose(&p, pass, props, &Wish::default()).unwrap();
                    assert_eq!(config.tiles.is_some(), props.compute_capability >= (8, 0), "{config}");
                    let Some(t) = config.tiles else { continue };
                    assert!(blocks(t.shared(pass == Pass::Backward), props) > 0, "{config}");
                    assert!(blocks(t.state_shared(), props) > 0 && config.length <= t.edge, "{config}");
                }
            }
            let f32 = choose(large, Dtype::F32, Pass::Forward, props, None).unwrap();
            assert!(f32.starts_with("simt chunk=64"), "{f32}");
        }
        let of = |pass, props| choose(large, Dtype::Bf16, pass, props, None).unwrap();
        let (forward, backward) = (Pass::Forward, Pass::Backward);
        assert_eq!(of(forward, &DeviceProps::SM_90), "chains:n256 chunk=64 threads=384");
        let wgmma = choose(large, Dtype::Bf16, forward, &DeviceProps::SM_90, Some("wgmma")).unwrap();
        assert_eq!(wgmma, "wgmma:c256g3s128r3 chunk=128 window=32 threads=256");
        assert_eq!(of(backward, &DeviceProps::SM_90), "chains:n512 chunk=64 threads=384");
        let wgmma = choose(large, Dtype::Bf16, backward, &DeviceProps::SM_90, Some("wgmma")).unwrap();
        assert_eq!(wgmma, "wgmma:c256g3s128r3 chunk=128 window=22 threads=256");
        assert_eq!(of(forward, &DeviceProps::SM_80), "mma:e128c128g4s128r4 chunk=128 window=32 threads=256");
        assert_eq!(of(forward, &DeviceProps::SM_89), "mma:e128c128g2s128r4 chunk=128 window=32 threads=256");
        assert_eq!(of(backward, &DeviceProps::SM_120), "mma:e64c64g2s128r4 chunk=64 window=26 threads=128");
        for (k, v) in [(16, 16), (128, 256), (256, 512), (512, 512), (512, 16)] {
            let p = Mlstm::new(Gate::Sigmoid, [1, 1, 64, k, v]);
            let most = DeviceProps::SM_90.shared_per_block_optin as usize;
            let roles = walks(&p).iter().chain(if k <= 256 { Some(&H) } else { None });
            assert!(roles.clone().all(|role| Config::walk_shape(&p, *role).shared <= most), "{k} {v}");
            assert_eq!(walks(&p).contains(&KEYS), k <= 128 && v <= 256, "{k} {v}");
        }
        let few = choose([1, 4, 65536, 256, 512], Dtype::F16, forward, &DeviceProps::SM_90, None).unwrap();
        assert!(few.contains("s64"), "few chains have small tiles: {few}");
    }

    #[test]
    fn variants_are_read_and_refused_by_name() {
        let some = |v| choose([1, 2, 500, 32, 32], Dtype::Bf16, Pass::Forward, &DeviceProps::SM_90, Some(v));
        assert_eq!(some("mma:e128c256g2s64r3w2").unwrap(), "mma:e128c256g2s64r3 chunk=128 window=2 threads=256");
        assert!(some("simt:w3").unwrap().starts_with("simt chunk=64 window=3"));
        for bad in [
            "wgmma:",
            "wgmma:e128",
            "mma:",
            "mma:x3",
            "mma:e96",
            "mma:e64e64",
            "simt:w0",
            "simt:e64",
            "mma:w",
            "mma:é3",
            "mma:g9",
            "small:",
            "small:g0",
            "small:w2",
            "chains:w2",
        ] {
            let e = some(bad).unwrap_err().to_string();
            assert!(e.contains(&format!("variant `{bad}` is not one of simt, simt:wN, mma")), "{e}");
        }
        let e = choose([1, 1, 9, 16, 16], Dtype::F32, Pass::Forward, &DeviceProps::SM_90, Some("mma")).unwrap_err();
        assert!(e.to_string().contains("mlstm_exp: variant mma takes f16 and bf16, not f32"), "{e}");
        let e = choose([1, 1, 9, 16, 16], Dtype::F16, Pass::Forward, &DeviceProps::SM_75, Some("mma")).unwrap_err();
        assert!(e.to_string().contains("needs compute capability 8.0, not 7.5"), "{e}");
        assert_eq!(some("small").unwrap(), "small:g2 chunk=64 threads=128");
        assert_eq!(some("small:g1").unwrap(), "small:g1 chunk=64 threads=128");
        let e = choose([1, 1, 9, 64, 80], Dtype::F16, Pass::Forward, &DeviceProps::SM_90, Some("small")).unwrap_err();
        assert!(e.to_string().contains("variant small takes heads of at most 64 and chunks of at most 64"), "{e}");
        let e = choose([1, 1, 9, 32, 32], Dtype::F32, Pass::Forward, &DeviceProps::SM_90, Some("small")).unwrap_err();
        assert!(e.to_string().contains("variant small takes f16 and bf16, not f32"), "{e}");
        // As many chains as there is room for, and those whose sums would take too much go window by window.
        let of = |sizes| choose(sizes, Dtype::Bf16, Pass::Backward, &DeviceProps::SM_90, None).unwrap();
        assert_eq!(of([64, 16, 2048, 64, 64]), "small:g512 chunk=64 threads=128");
        assert!(of([1, 1, 1 << 24, 64, 64]).starts_with("mma:"), "{}", of([1, 1, 1 << 24, 64, 64]));
        assert_eq!(some("wgmma").unwrap(), "wgmma:c128g4s64r4 chunk=128 window=4 threads=256");
        assert_eq!(some("chains").unwrap(), "chains:n128 chunk=64 threads=384");
        let e = choose([1, 1, 9, 272, 64], Dtype::F16, Pass::Forward, &DeviceProps::SM_90, Some("chains")).unwrap_err();
        assert!(
            e.to_string().contains("heads of q and k of at most 256 and chunks of 64 tokens, not 272 and 64"),
            "{e}"
        );
        let e = choose([1, 1, 9, 64, 64], Dtype::F16, Pass::Forward, &DeviceProps::SM_80, Some("wgmma")).unwrap_err();
        assert!(e.to_string().contains("variant wgmma needs compute capability 9.0, not 8.0"), "{e}");
        let e = choose([1, 1, 9, 16, 16], Dtype::F16, Pass::Backward, &DeviceProps::SM_89, Some("mma:e128c256"))
            .unwrap_err();
        assert!(e.to_string().contains("no tiles of that variant fit"), "{e}");
    }
}
