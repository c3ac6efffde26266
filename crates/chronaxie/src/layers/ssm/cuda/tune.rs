//! The choice of kernel and of its constants: pure functions of the problem, the device and the strides.

use super::super::spec::{LinearScan, NAME};
use crate::op::Pass;
use crate::{DeviceProps, Dtype, Error, Result};
use std::fmt;

/// A way through memory; `forward.cu` says what each does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Bulk,
    Rows,
    Strided,
    Channels,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Bulk, Self::Rows, Self::Strided, Self::Channels];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bulk => "bulk",
            Self::Rows => "rows",
            Self::Strided => "strided",
            Self::Channels => "channels",
        }
    }
    /// The kernel's name.
    pub(super) const fn entry(self, pass: Pass) -> &'static str {
        match (self, matches!(pass, Pass::Forward)) {
            (Self::Bulk, true) => "scan_forward_bulk",
            (Self::Rows, true) => "scan_forward_rows",
            (Self::Strided, true) => "scan_forward_strided",
            (Self::Channels, true) => "scan_forward_channels",
            (Self::Bulk, false) => "scan_backward_bulk",
            (Self::Rows, false) => "scan_backward_rows",
            (Self::Strided, false) => "scan_backward_strided",
            (Self::Channels, false) => "scan_backward_channels",
        }
    }
}

/// The constants of one pass's kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Config {
    /// Bytes of a stored element.
    pub(super) element: u32,
    /// The best way for rows that are contiguous in time and aligned to 16 bytes.
    pub(super) best: Kind,
    /// Whether `best` is taken whatever the strides say, as far as it can be.
    pub(super) forced: bool,
    /// Whether the scan runs from the last time to the first.
    pub(super) descending: bool,
    /// Threads of a block that takes a row.
    pub(super) threads: u32,
    /// Vectors of 16 bytes, four steps of f32 or eight of a half, that a thread takes of a tile.
    pub(super) vectors: u32,
    /// Tiles in the ring of `bulk`.
    pub(super) stages: u32,
    /// Blocks of `bulk` that a multiprocessor is to hold: the compiler keeps registers to that.
    pub(super) blocks_per_sm: u32,
    /// Whether `bulk` launches only the blocks that are resident at once, and each takes many rows.
    pub(super) persistent: bool,
    /// Warps of a block of `channels`.
    pub(super) channel_warps: u32,
    /// Steps that follow each other in a warp of `channels`.
    pub(super) run: u32,
}

impl Config {
    /// Steps of a vector.
    const fn vector(&self) -> u32 {
        16 / self.element
    }
    /// Steps of a tile.
    pub(super) const fn tile(&self) -> u32 {
        self.threads * self.vectors * self.vector()
    }
    /// Bytes of the ring of `bulk`, which a launch asks for.
    pub(super) const fn ring_bytes(&self, pass: Pass) -> u32 {
        let tile = self.element * self.tile();
        self.stages * if matches!(pass, Pass::Forward) { 2 * tile } else { 3 * tile + 16 }
    }
    /// Those, and its barriers and slots.
    pub(super) const fn shared_bytes(&self, pass: Pass) -> u32 {
        self.ring_bytes(pass) + 8 * self.stages + self.threads / 2 + 16
    }
    /// The configuration for `problem` on `device`, or the one that `variant` spells.
    pub(super) fn choose(p: &LinearScan, pass: Pass, device: &DeviceProps, variant: Option<&str>) -> Result<Self> {
        let (major, _) = device.compute_capability;
        let forward = pass == Pass::Forward;
        let half = p.dtype() != Dtype::F32;
        // Rows that lie far apart come faster in longer pieces, if the last tile is not mostly empty.
        let long = |tile| half && p.steps() >= 8192 && 5 * p.steps().next_multiple_of(tile) <= 6 * p.steps();
        // Short rows leave threads of a large block without work, and need more rows in flight.
        let (threads, vectors) = match p.steps() {
            0..=256 => (32, 1),
            257..=512 => (64, 1),
            65536.. if long(4096) && forward => (512, 1),
            _ if long(4096) => (256, 2),
            _ if long(2048) => (256, 1),
            _ => (128, 1),
        };
        let mut config = Self {
            element: p.dtype().size() as u32,
            best: if major >= 9 { Kind::Bulk } else { Kind::Rows },
            forced: false,
            // The backward scan runs against the forward one.
            descending: p.is_reverse() == forward,
            threads,
            // But in long tiles a thread has as many steps of a half as of f32: one vector of eight instead of two of four. Pascal
            // and Volta have no room in registers for two vectors of three tensors, and their next ones.
            vectors: match half {
                true => vectors,
                false if !forward && device.compute_capability < (7, 5) => 1,
                false => 2,
            },
            // Halves have as many bytes under way, in tiles half the size; of longer ones fewer do.
            stages: match (threads * vectors, forward) {
                (512, _) => 2,
                (256, _) => 3,
                (128, true) if half => 5,
                (128, false) if half => 4,
                (128, true) => 3,
                (128, false) => 2,
                (_, true) => 6,
                (_, false) => 4,
            },
            // Eight blocks: 1024 rows are one wave of 132 multiprocessors. sm_120 has shared memory for half of that.
            blocks_per_sm: if device.shared_per_sm >= 200 << 10 { 8 } else { 4 } * 128 / (threads * vectors).max(128),
            persistent: threads < 128,
            channel_warps: 8,
            run: 8,
        };
        if let Some(variant) = variant {
            config.apply(variant, device)?;
        }
        let (need, have) = (config.shared_bytes(pass), device.shared_per_block_optin);
        if config.best == Kind::Bulk && need > have {
            return Err(Error::config(format!(
                "{NAME}: variant `{}` needs {need} bytes of shared memory a block, and there are {have}",
                variant.unwrap_or("bulk")
            )));
        }
        Ok(config)
    }

    /// Sets what a variant such as `bulk:t128:v2:s3:b8:p` spells.
    fn apply(&mut self, variant: &str, device: &DeviceProps) -> Result<()> {
        let bad =
            |part: &str, want: &str| Error::config(format!("{NAME}: variant `{variant}`: `{part}` is not {want}"));
        let mut parts = variant.split(':');
        let name = parts.next().unwrap_or_default();
        let kind = Kind::ALL.into_iter().find(|k| k.name() == name);
        self.best = kind.ok_or_else(|| bad(name, "one of bulk, rows, strided, channels"))?;
        self.forced = true;
        if self.best == Kind::Bulk && device.compute_capability.0 < 9 {
            let (major, minor) = device.compute_capability;
            return Err(bad(name, &format!("to be had on sm_{major}{minor}; bulk copies need sm_90")));
        }
        for part in parts {
            if part == "p" {
                self.persistent = true;
                continue;
            }
            let (letter, number) = part.split_at(part.len().min(1));
            let n: u32 = number.parse().map_err(|_| bad(part, "a letter of t, v, s, b and a number, or p"))?;
            let (slot, allowed): (&mut u32, &[u32]) = match letter {
                "t" => (&mut self.threads, &[32, 64, 128, 256, 512]),
                "v" => (&mut self.vectors, &[1, 2, 4]),
                "s" => (&mut self.stages, &[2, 3, 4, 5, 6, 8]),
                "b" => (&mut self.blocks_per_sm, &[1, 2, 3, 4, 6, 8, 10, 12, 16]),
                _ => return Err(bad(part, "a letter of t, v, s, b and a number, or p")),
            };
            if !allowed.contains(&n) {
                return Err(bad(part, &format!("one of {allowed:?}")));
            }
            *slot = n;
        }
        if self.best == Kind::Bulk && self.threads * self.blocks_per_sm > device.threads_per_sm {
            let most = device.threads_per_sm;
            return Err(bad("t and b", &format!("at most {most} threads on a multiprocessor")));
        }
        Ok(())
    }

    /// The way through tensors of `layouts`.
    pub(super) fn kind(&self, p: &LinearScan, layouts: &[SequenceLayout]) -> Kind {
        let by_time = p.steps() <= 1 || layouts.iter().all(|l| l.t == 1);
        let aligned = by_time && p.steps().is_multiple_of(self.vector() as usize);
        let aligned = aligned && layouts.iter().all(|l| l.is_aligned(p, self.vector()));
        if self.forced {
            return match self.best {
                Kind::Bulk | Kind::Rows if !aligned => Kind::Strided,
                best => best,
            };
        }
        let channels_closer = layouts.iter().filter(|l| l.d.unsigned_abs() < l.t.unsigned_abs()).count();
        if p.steps() <= 8 {
            // A lane a row: a block a row would have one warp of one lane.
            Kind::Channels
        } else if aligned {
            self.best
        } else if !by_time && 2 * channels_closer > layouts.len() {
            Kind::Channels
        } else {
            Kind::Strided
        }
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:t{}:v{}", self.best.name(), self.threads, self.vectors)?;
        if self.best == Kind::Bulk {
            let p = if self.persistent { ":p" } else { "" };
            write!(f, ":s{}:b{}{p}", self.stages, self.blocks_per_sm)?;
        }
        let direction = if self.descending { "descending" } else { "ascending" };
        write!(f, " tile={} channels={}x{} {direction}", self.tile(), self.channel_warps, self.run)
    }
}

/// Where a `[B, D, T]` tensor lies: its address, and its strides in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SequenceLayout {
    pub(super) address: u64,
    pub(super) b: isize,
    pub(super) d: isize,
    pub(super) t: isize,
}

impl SequenceLayout {
    /// Whether every row starts at a multiple of 16 bytes, which are `vector` elements.
    fn is_aligned(&self, p: &LinearScan, vector: u32) -> bool {
        let keeps = |size: usize, stride: isize| size <= 1 || stride % vector as isize == 0;
        self.address.is_multiple_of(16) && keeps(p.batch(), self.b) && keeps(p.channels(), self.d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(b: usize, d: usize, t: usize) -> LinearScan {
        LinearScan::new(b, d, t).unwrap()
    }

    fn contiguous(p: &LinearScan, address: u64) -> SequenceLayout {
        let t = p.steps() as isize;
        SequenceLayout { address, b: p.channels() as isize * t, d: t, t: 1 }
    }

    #[test]
    fn each_device_gets_its_way() {
        let p = problem(8, 1536, 8192);
        let texts: Vec<_> = DeviceProps::FIXTURES
            .iter()
            .map(|d| Config::choose(&p, Pass::Forward, d, None).unwrap().to_string())
            .collect();
        let rows = "rows:t128:v2 tile=1024 channels=8x8 ascending";
        let bulk = |b| format!("bulk:t128:v2:s3:b{b} tile=1024 channels=8x8 ascending");
        assert_eq!(texts, [rows.into(), rows.into(), rows.into(), bulk(8), bulk(8), bulk(4)]);
        let back = Config::choose(&p, Pass::Backward, &DeviceProps::SM_90, None).unwrap();
        assert_eq!(back.to_string(), "bulk:t128:v2:s2:b8 tile=1024 channels=8x8 descending");
        let reverse = Config::choose(&p.with_reverse(true), Pass::Backward, &DeviceProps::SM_90, None).unwrap();
        assert!(!reverse.descending);
    }

    #[test]
    fn a_thousand_rows_are_resident_at_once_on_an_h200() {
        let p = problem(1, 1024, 65536);
        let d = DeviceProps::SM_90;
        for pass in [Pass::Forward, Pass::Backward] {
            let c = Config::choose(&p, pass, &d, None).unwrap();
            // The driver keeps 1 KiB a block for itself.
            let by_shared = d.shared_per_sm / (c.shared_bytes(pass) + 1024);
            let blocks = by_shared.min(d.threads_per_sm / c.threads);
            assert!(blocks >= c.blocks_per_sm && c.blocks_per_sm * d.sm_count >= 1024, "{pass:?}: {blocks} blocks");
            // What bandwidth times latency asks for, with all stages but the one in use under way.
            let tile = if pass == Pass::Forward { 8 } else { 12 } * c.tile();
            assert!(c.blocks_per_sm * (c.stages - 1) * tile >= 60 << 10);
        }
        for (pass, dtype) in
            [Pass::Forward, Pass::Backward].into_iter().flat_map(|p| [(p, Dtype::Bf16), (p, Dtype::F16)])
        {
            let choose = |t| Config::choose(&problem(1, 1024, t).with_dtype(dtype).unwrap(), pass, &d, None).unwrap();
            let (c, f32) = (choose(4096), Config::choose(&p, pass, &d, None).unwrap());
            assert_eq!((c.tile(), c.threads, c.blocks_per_sm), (f32.tile(), f32.threads, f32.blocks_per_sm));
            let tile = if pass == Pass::Forward { 4 } else { 6 } * c.tile();
            assert!(c.blocks_per_sm * (c.stages - 1) * tile >= 60 << 10);
            for t in [4096, 8192, 65536] {
                let c = choose(t);
                let blocks = d.shared_per_sm / (c.shared_bytes(pass) + 1024);
                let most = 8 * 128 / (c.threads * c.vectors).max(128);
                assert!(blocks >= c.blocks_per_sm && c.blocks_per_sm == most, "{pass:?}: {blocks} blocks");
            }
        }
    }

    #[test]
    fn long_rows_of_halves_have_longer_tiles() {
        let tiles = |t: usize, dtype, device| {
            let p = problem(1, 4, t).with_dtype(dtype).unwrap();
            [Pass::Forward, Pass::Backward].map(|pass| Config::choose(&p, pass, device, None).unwrap().tile())
        };
        for device in &DeviceProps::FIXTURES {
            for (t, want) in [
                (8184, [1024; 2]),
                (8192, [4096; 2]),
                // A tile of eight steps would take as long as the others.
                (8200, [1024; 2]),
                (8536, [2048; 2]),
                (10232, [2048; 2]),
                (10240, [4096; 2]),
                (65528, [4096; 2]),
                (65536, [4096; 2]),
                (65544, [4096; 2]),
            ] {
                assert_eq!(tiles(t, Dtype::Bf16, device), want, "{t}");
                assert_eq!(tiles(t, Dtype::F16, device), want, "{t}");
                assert_eq!(tiles(t, Dtype::F32, device), [1024; 2], "{t}");
            }
        }
    }

    #[test]
    fn the_tiles_depend_on_the_problem_alone() {
        // Bits follow from threads and vectors; multiprocessors, clocks and memory must not move them.
        for t in [0, 1, 256, 257, 512, 513, 8192, 1 << 20] {
            for dtype in [Dtype::F32, Dtype::Bf16] {
                let p = problem(2, 3, t).with_dtype(dtype).unwrap();
                let tile = |d| Config::choose(&p, Pass::Forward, d, None).unwrap().tile();
                let tiles: Vec<_> = DeviceProps::FIXTURES.iter().map(tile).collect();
                assert!(tiles.iter().all(|&n| n == tiles[0]), "{tiles:?}");
            }
        }
    }

    #[test]
    fn strides_and_alignment_choose_the_kernel() {
        let p = problem(2, 6, 64);
        let c = Config::choose(&p, Pass::Forward, &DeviceProps::SM_90, None).unwrap();
        let rows = contiguous(&p, 256);
        assert_eq!(c.kind(&p, &[rows; 3]), Kind::Bulk);
        assert_eq!(c.kind(&p, &[rows, rows, contiguous(&p, 260)]), Kind::Strided);
        assert_eq!(c.kind(&p, &[SequenceLayout { d: 66, ..rows }; 3]), Kind::Strided);
        // [B, T, D] in memory.
        let by_channel = SequenceLayout { address: 256, b: 384, d: 1, t: 6 };
        assert_eq!(c.kind(&p, &[by_channel; 3]), Kind::Channels);
        assert_eq!(c.kind(&p, &[by_channel, rows, rows]), Kind::Strided);
        let odd = problem(2, 6, 63);
        assert_eq!(c.kind(&odd, &[contiguous(&odd, 256); 3]), Kind::Strided);
        // The stride of an axis of one element means nothing.
        let one = problem(1, 1, 64);
        assert_eq!(c.kind(&one, &[SequenceLayout { address: 16, b: 3, d: 5, t: 1 }; 3]), Kind::Bulk);
        let short = problem(2, 6, 4);
        assert_eq!(c.kind(&short, &[contiguous(&short, 256); 3]), Kind::Channels);
        // Eight halves are a vector, so 12 steps and strides of 12 elements are not whole ones.
        let half = |t| problem(2, 6, t).with_dtype(Dtype::F16).unwrap();
        let (p16, p12) = (half(16), half(12));
        let c16 = Config::choose(&p16, Pass::Forward, &DeviceProps::SM_90, None).unwrap();
        assert_eq!(c16.kind(&p16, &[contiguous(&p16, 256); 3]), Kind::Bulk);
        assert_eq!(c16.kind(&p16, &[contiguous(&p16, 264); 3]), Kind::Strided);
        assert_eq!(c16.kind(&p16, &[SequenceLayout { d: 20, ..contiguous(&p16, 256) }; 3]), Kind::Strided);
        assert_eq!(c16.kind(&p12, &[contiguous(&p12, 256); 3]), Kind::Strided);
        assert_eq!(c16.kind(&p16, &[SequenceLayout { address: 2, b: 96, d: 1, t: 6 }; 3]), Kind::Channels);
        let t4 = Config::choose(&p, Pass::Forward, &DeviceProps::SM_75, None).unwrap();
        assert_eq!(t4.kind(&p, &[rows; 3]), Kind::Rows);
    }

    #[test]
    fn variants_are_read_or_refused_with_a_reason() {
        let p = problem(8, 1536, 8192);
        let choose = |v: &str, d: &DeviceProps| Config::choose(&p, Pass::Backward, d, Some(v));
        let c = choose("bulk:t64:v4:s2:b6:p", &DeviceProps::SM_90).unwrap();
        assert_eq!((c.threads, c.vectors, c.stages, c.blocks_per_sm, c.persistent), (64, 4, 2, 6, true));
        let rows = contiguous(&p, 256);
        assert_eq!(choose("strided", &DeviceProps::SM_80).unwrap().kind(&p, &[rows; 5]), Kind::Strided);
        assert_eq!(choose("channels", &DeviceProps::SM_80).unwrap().kind(&p, &[rows; 5]), Kind::Channels);
        for (v, want) in [
            ("mma", "`mma` is not one of bulk, rows, strided, channels"),
            ("bulk:t100", "`t100` is not one of [32, 64"),
            ("bulk:q3", "`q3` is not a letter"),
            ("bulk:t", "`t` is not a letter"),
            ("bulk:", "`` is not a letter"),
            ("bulk:t256:b16", "at most 2048 threads"),
            ("bulk:t256:v4:s8", "bytes of shared memory"),
        ] {
            let e = choose(v, &DeviceProps::SM_90).unwrap_err().to_string();
            assert!(e.contains(want), "{v}: {e}");
        }
        let e = choose("bulk", &DeviceProps::SM_80).unwrap_err().to_string();
        assert!(e.contains("on sm_80"), "{e}");
    }
}
