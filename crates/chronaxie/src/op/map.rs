//! Linear maps as other parts of the library see them: how a sequence's channels lie, and which tensors of a problem are a map's.

/// How the channels of a sequence lie: in groups `[B, groups, T, channels / groups]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Channels {
    /// All of them.
    pub count: usize,
    /// Into how many groups they fall: 1 for `[B, T, D]`, `count` for `[B, D, T]`.
    pub groups: usize,
}

impl Channels {
    /// Side by side at each step: `[B, T, count]`.
    pub fn beside(count: usize) -> Self {
        Self { count, groups: 1 }
    }
    /// Each along time: `[B, count, T]`.
    pub fn along(count: usize) -> Self {
        Self { count, groups: count.max(1) }
    }
    /// In `groups` of the same size: `[B, groups, T, count / groups]`.
    pub fn grouped(count: usize, groups: usize) -> Self {
        Self { count, groups }
    }
    /// Whether they fall into groups of the same size.
    pub fn is_whole(self) -> bool {
        self.groups > 0 && self.count.is_multiple_of(self.groups)
    }
    /// Channels of a group.
    pub fn width(self) -> usize {
        self.count / self.groups
    }
    /// Where step `t` of row `b` begins, of T `steps`.
    #[inline(always)]
    pub fn row(self, steps: usize, b: usize, t: usize) -> usize {
        b * self.count * steps + t * self.width()
    }
    /// Where channel `c` lies from there.
    #[inline(always)]
    pub fn channel(self, steps: usize, c: usize) -> usize {
        let width = self.width();
        c / width * steps * width + c % width
    }
    /// All channels at step `t` of row `b`, in order.
    #[cfg(feature = "optim")]
    #[inline(always)]
    pub(crate) fn read(self, of: &[f32], steps: usize, [b, t]: [usize; 2], to: &mut [f32]) {
        let (at, width) = (self.row(steps, b, t), self.width());
        if width > 0 {
            for (group, to) in to.chunks_exact_mut(width).enumerate() {
                let from = at + self.channel(steps, group * width);
                to.copy_from_slice(&of[from..from + width]);
            }
        }
    }
}

/// A problem as one linear map `y = weight x + bias` at each of B times T steps: what an optimizer makes the factors of its curvature
/// of. All of its tensors are f32, `weight` is `[H, D]` and `bias` is `[H]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinearMap {
    /// B.
    pub batch: usize,
    /// T; of a row, the steps beyond its length are padding.
    pub steps: usize,
    /// The input of the backward pass that is x.
    pub x: &'static str,
    /// The input of the backward pass that is the gradient of y.
    pub grad: &'static str,
    /// The weight's name.
    pub weight: &'static str,
    /// The bias's name.
    pub bias: Option<&'static str>,
    /// How x lies.
    pub from: Channels,
    /// How y lies.
    pub to: Channels,
}
