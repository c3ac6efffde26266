//! What both passes share: the tensors of a call, the gates' sums, and the scan that carries states from chunk to chunk.

use super::gates::{self, Chunk};
use super::gemm::{Left, PANEL, Part, Place, Start, multiply};
use super::layout::{Block, Carver, Chain, Cut, Memory, chunk_length, part, share};
use super::pack::{Tokens, panels};
use super::rows;
use crate::layers::mlstm::spec::{CHUNK_MOST, Mlstm};

/// The tensors of a call, and where it keeps what it makes of them.
pub(super) struct Call<'a> {
    pub p: &'a Mlstm,
    pub cut: Cut,
    pub memory: Memory,
    /// Floats of a slot.
    pub floats: usize,
    pub q: Tokens,
    pub k: Tokens,
    pub v: Tokens,
    pub i: Tokens,
    pub f: Tokens,
    pub cuts: Option<&'a [i32]>,
    /// c, n, m; empty where the problem has none.
    pub initial: Option<[&'a [f32]; 3]>,
    /// m of each token, where there is a gauge.
    pub gauge: Option<Block<f32>>,
}

/// Columns from which on a right-hand side is packed.
const PACKED: usize = 128;

/// A scan over the chunks of a window: c itself, whose panels are columns of v, or its transpose, whose panels are columns
/// of k.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Form {
    Plain,
    Transposed,
}

impl<'a> Call<'a> {
    pub(super) fn chain(&self, nth: usize) -> Chain {
        let (s, head) = (nth / self.p.heads, nth % self.p.heads);
        match self.cuts {
            None => Chain { nth, batch: s, head, from: 0, len: self.p.steps },
            Some(cuts) => {
                let (from, to) = (cuts[s] as usize, cuts[s + 1] as usize);
                Chain { nth, batch: 0, head, from, len: to - from }
            }
        }
    }
    pub(super) fn length(&self) -> usize {
        chunk_length(self.p)
    }
    /// The place of a chunk's first token in a contiguous [B, NH, T], and its tokens.
    pub(super) fn flat(&self, chain: &Chain, nth: usize) -> (usize, usize) {
        let ([b, head, t], n) = chain.chunk(self.length(), nth);
        ((b * self.p.heads + head) * self.p.steps + t, n)
    }
    pub(super) fn initial_gauge(&self, chain: &Chain) -> f32 {
        self.initial.and_then(|[_, _, m]| m.get(chain.nth).copied()).unwrap_or(0.0)
    }
    /// A slot's buffer.
    ///
    /// # Safety
    /// No other task may use the slot meanwhile.
    pub(super) unsafe fn buffer(&self, slot: usize) -> Carver<'a> {
        // SAFETY: as the caller promises.
        Carver(unsafe { self.memory.buffers.write(slot * self.floats, self.floats) })
    }
    /// The gates of a chunk; [`prepare`](Self::prepare) must have run.
    pub(super) fn gates(&self, chain: &Chain, nth: usize) -> Chunk<'a> {
        let (at, n) = self.flat(chain, nth);
        // SAFETY: nothing writes them behind the phase that made them.
        unsafe {
            let (li, b) = (self.memory.input.read(at, n), self.memory.sums.read(at, n));
            let Some(gauge) = self.gauge else { return Chunk { li, b, m: &[], start: 0.0 } };
            let start = if nth == 0 { self.initial_gauge(chain) } else { gauge.read(at - 1, 1)[0] };
            Chunk { li, b, m: gauge.read(at, n), start }
        }
    }

    /// The sums of all gates and, where `gauges`, the gauge of each token.
    pub(super) fn prepare(&self, gauges: bool) {
        share(self.cut.slots, self.cut.chains, |_, nth| {
            let chain = self.chain(nth);
            let mut gauge = self.initial_gauge(&chain);
            for c in 0..chain.chunks(self.length()) {
                // SAFETY: a chain's tokens are its task's.
                gauge = unsafe { self.prepare_chunk(&chain, c, gauges.then_some(gauge)) };
            }
        });
    }
    /// The sums of a chunk's gates and, from the gauge before it, that of each token; the last one's is returned.
    ///
    /// # Safety
    /// The chunk's tokens must be the task's.
    pub(super) unsafe fn prepare_chunk(&self, chain: &Chain, nth: usize, start: Option<f32>) -> f32 {
        let ((at, n), (first, _)) = (self.flat(chain, nth), chain.chunk(self.length(), nth));
        let mut f = [0.0; CHUNK_MOST];
        // SAFETY: as the caller promises, and the signature's check has seen that the tokens are there.
        unsafe {
            let (li, b) = (self.memory.input.write(at, n), self.memory.sums.write(at, n));
            self.i.load_scalars(first, n, li);
            self.f.load_scalars(first, n, &mut f);
            gates::sums(self.p.gate, li, &mut f[..n], b);
            let (Some(m), Some(start)) = (self.gauge, start) else { return 0.0 };
            let m = m.write(at, n);
            gates::gauges(li, b, start, m);
            m[n - 1]
        }
    }

    /// Floats of c, of its panels' height, and its panels.
    pub(super) fn form(&self, form: Form) -> (usize, usize, usize) {
        let (k, v) = (self.p.dqk, self.p.dv);
        let (rows, columns) = if form == Form::Plain { (k, v) } else { (v, k) };
        (k * v, rows, columns / PANEL)
    }
    /// The place of c in slot `j` of a chain's window.
    pub(super) fn c_at(&self, chain: &Chain, j: usize) -> usize {
        (chain.nth * (self.cut.window + 1) + j) * self.p.dqk * self.p.dv
    }
    /// The place of n in slot `j` of a chain's window.
    pub(super) fn n_at(&self, chain: &Chain, j: usize) -> usize {
        (chain.nth * (self.cut.window + 1) + j) * self.p.dqk
    }
    /// Whether each chain is one task: where that leaves no thread idle for long.
    pub(super) fn by_chains(&self) -> bool {
        let (chains, slots) = (self.cut.chains, self.cut.slots);
        // Sequences that are cut anywhere take very different times.
        let most = if self.cuts.is_some() { chains / 4 } else { chains * 5 / (4 * chains.div_ceil(slots).max(1)) };
        slots <= most
    }
    /// The initial c of a chain, panels `range`, into `to`.
    pub(super) fn initial_c(&self, chain: &Chain, form: Form, range: std::ops::Range<usize>, to: &mut [f32]) {
        let Some([c, _, _]) = self.initial else { return to.fill(0.0) };
        let (k, v) = (self.p.dqk, self.p.dv);
        to_panels(&c[chain.nth * k * v..][..k * v], [k, v], form, range, to);
    }

    /// The initial n of a chain, from column `from` on, into `to`.
    pub(super) fn initial_n(&self, chain: &Chain, from: usize, to: &mut [f32]) {
        match self.initial {
            Some([_, n, _]) if !n.is_empty() => to.copy_from_slice(&n[chain.nth * self.p.dqk + from..][..to.len()]),
            _ => to.fill(0.0),
        }
    }

    /// States at the starts of the window's chunks and behind its last, from the previous window's last or, with
    /// `restart`, from what [`Memory::start_c`] keeps of the window's start. `ended` is told of each chain whose last chunk
    /// is in the window (or which has none, in the first one), with the panels that are there.
    pub(super) fn states(
        &self,
        form: Form,
        window: usize,
        restart: bool,
        ended: impl Fn(&Chain, usize, std::ops::Range<usize>) + Send + Sync,
    ) {
        let (_, rows, all) = self.form(form);
        let groups = self.cut.groups(all);
        share(self.cut.slots, self.cut.chains * groups, |slot, i| {
            let (chain, range) = (self.chain(i / groups), part(all, groups, i % groups));
            let chunks = chain.chunks(self.length());
            let first = window * self.cut.window;
            if chunks < first || (chunks == first && window > 0) {
                return;
            }
            let (at, len) = (range.start * rows * PANEL, range.len() * rows * PANEL);
            // The columns of n that belong to this task: with c itself all of them are the first group's.
            let (n_from, n_to) = match form {
                Form::Plain if range.start > 0 => (0, 0),
                Form::Plain => (0, self.p.dqk),
                Form::Transposed => (range.start * PANEL, range.end * PANEL),
            };
            let memory = &self.memory;
            // SAFETY: these panels of c and these columns of n are this task's alone.
            unsafe {
                let c = memory.c.write(self.c_at(&chain, 0) + at, len);
                let n = memory.n.write(self.n_at(&chain, 0) + n_from, n_to - n_from);
                if window == 0 {
                    self.initial_c(&chain, form, range.clone(), c);
                    self.initial_n(&chain, n_from, n);
                } else if restart {
                    let place = chain.nth * self.cut.windows() + window;
                    c.copy_from_slice(memory.start_c.read(place * self.p.dqk * self.p.dv + at, len));
                    n.copy_from_slice(memory.start_n.read(place * self.p.dqk + n_from, n_to - n_from));
                } else {
                    c.copy_from_slice(memory.c.read(self.c_at(&chain, self.cut.window) + at, len));
                    n.copy_from_slice(memory.n.read(self.n_at(&chain, self.cut.window) + n_from, n_to - n_from));
                }
                let last = chunks.min(first + self.cut.window);
                for chunk in first..last {
                    let j = chunk - first;
                    self.advance(slot, &chain, form, chunk, [j, j + 1], range.clone(), (n_from, n_to));
                }
                if last == chunks {
                    ended(&chain, last - first, range);
                }
            }
        });
    }

    /// The state behind a chunk from that before it; `places` are their slots, and may be one.
    ///
    /// # Safety
    /// The panels and columns must be the task's alone, as must the slot.
    pub(super) unsafe fn advance(
        &self,
        slot: usize,
        chain: &Chain,
        form: Form,
        nth: usize,
        places: [usize; 2],
        range: std::ops::Range<usize>,
        (n_from, n_to): (usize, usize),
    ) {
        let (k, v, length) = (self.p.dqk, self.p.dv, self.length());
        let (_, rows, _) = self.form(form);
        let (at, len) = (range.start * rows * PANEL, range.len() * rows * PANEL);
        let gates = self.gates(chain, nth);
        let (first, tokens) = chain.chunk(length, nth);
        let columns = range.len() * PANEL;
        // SAFETY: as the caller promises.
        unsafe {
            let mut buffer = self.buffer(slot);
            let into = buffer.take(length);
            gates.entering(into);
            let kept = gates.kept();
            let (k_width, v_width) = if form == Form::Plain { (k, columns) } else { (columns, v) };
            let (k_rows, v_rows) = (buffer.take(length * k_width), buffer.take(length * v_width));
            let (k_first, v_first) = if form == Form::Plain { (0, range.start) } else { (range.start, 0) };
            let k_rows = &mut k_rows[..tokens * k_width];
            let keys = self.k.columns(k_first * PANEL);
            match keys.lines(first, tokens, k_width) {
                Some((lines, row)) => rows::scale(lines, row, &into[..tokens], k_width, k_rows),
                None => {
                    keys.load(first, tokens, k_width, 1.0, k_rows);
                    rows::rescale(k_rows, &into[..tokens], k_width);
                }
            }
            let values = self.v.columns(v_first * PANEL);
            // Rows of f32 are read where they lie.
            let lines = values.lines(first, tokens, v_width);
            if lines.is_none() {
                values.load(first, tokens, v_width, 1.0, v_rows);
            }
            let (value_rows, value_row) = lines.unwrap_or((v_rows, v_width));
            let (left, left_row, right, right_row) = match form {
                Form::Plain => (&*k_rows, k_width, value_rows, value_row),
                Form::Transposed => (value_rows, value_row, &*k_rows, k_width),
            };
            // Rows that lie far apart share few places of the first cache.
            let right = if right_row > PACKED && right_row == columns {
                let packed = buffer.take(length * columns);
                panels(right, tokens, columns, packed);
                (&*packed, Place::panels(tokens))
            } else {
                (right, Place::rows(right_row))
            };
            let memory = &self.memory;
            let [before, after] = places.map(|j| self.c_at(chain, j) + at);
            let start = if before == after { Start::Kept(kept) } else { Start::From(memory.c.read(before, len), kept) };
            multiply(
                Left::transposed(left, left_row),
                right,
                (memory.c.write(after, len), Place::panels(rows)),
                [rows, range.len(), tokens],
                start,
                Part::Full,
            );
            if n_to > n_from {
                let [before, after] = places.map(|j| self.n_at(chain, j) + n_from);
                let n = memory.n.write(after, n_to - n_from);
                if before != after {
                    n.copy_from_slice(memory.n.read(before, n_to - n_from));
                }
                if self.p.normalize {
                    rows::gather(n, kept, k_rows);
                } else {
                    n.fill(0.0);
                }
            }
        }
    }
}

/// Panels `range` of c `[K, V]`, or of its transpose.
pub(super) fn to_panels(c: &[f32], [k, v]: [usize; 2], form: Form, range: std::ops::Range<usize>, to: &mut [f32]) {
    let rows = if form == Form::Plain { k } else { v };
    for (panel, to) in range.zip(to.chunks_exact_mut(rows * PANEL)) {
        for (r, to) in to.as_chunks_mut::<PANEL>().0.iter_mut().enumerate() {
            for (column, to) in to.iter_mut().enumerate() {
                let column = panel * PANEL + column;
                *to = if form == Form::Plain { c[r * v + column] } else { c[column * v + r] };
            }
        }
    }
}

/// The opposite of [`to_panels`]: panels `range`, into their places in c.
///
/// # Safety
/// Nobody else may touch these places meanwhile.
pub(super) unsafe fn from_panels(
    from: &[f32],
    [k, v]: [usize; 2],
    form: Form,
    range: std::ops::Range<usize>,
    c: Block<f32>,
    at: usize,
) {
    let rows = if form == Form::Plain { k } else { v };
    for (panel, from) in range.zip(from.chunks_exact(rows * PANEL)) {
        for (r, from) in from.as_chunks::<PANEL>().0.iter().enumerate() {
            for (column, &x) in from.iter().enumerate() {
                let column = panel * PANEL + column;
                let place = if form == Form::Plain { r * v + column } else { column * v + r };
                // SAFETY: as the caller promises.
                unsafe { c.write(at + place, 1)[0] = x };
            }
        }
    }
}
