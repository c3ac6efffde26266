//! What the CPU's scans share: tiles of sixteen channels over a stretch of time, and numbers that are sixteen lanes wide.
//!
//! Sixteen channels go side by side through the steps of a tile, each in its own lane, so that every recurrence becomes
//! vectors whatever its strides are, and no lane waits for another. Elements become f32 on the way into a tile and their
//! storage type on the way out. A complex tensor is two of f32, its real and imaginary parts, with strides twice as long.

#![allow(unsafe_code)]

use crate::simd_math::Lanes;
use crate::{Dtype, View, ViewMut};
use half::{bf16, f16};

/// Channels side by side: two vectors of AVX2, so that one works while the other waits.
pub(super) const LANES: usize = 16;
/// Steps of a tile, and between two saved states.
pub(super) const STEPS: usize = 128;

/// Sixteen lanes.
pub(super) type Wide = Lanes<LANES>;

/// A tensor in host memory: an address, a storage type, strides in elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Array {
    address: usize,
    dtype: Dtype,
    strides: [isize; 4],
}

impl Array {
    /// A tensor of up to four axes.
    pub(super) fn read(v: &View<'_>) -> Self {
        let mut strides = [0; 4];
        for (to, &s) in strides.iter_mut().zip(v.strides()) {
            // A complex element is two f32 here.
            *to = if v.dtype() == Dtype::C64 { 2 * s } else { s };
        }
        let dtype = if v.dtype() == Dtype::C64 { Dtype::F32 } else { v.dtype() };
        Self { address: v.address() as usize, dtype, strides }
    }
    /// The same, to be written.
    pub(super) fn write(v: &mut ViewMut<'_>) -> Self {
        Self::read(&v.as_view())
    }
    /// f32 in a scratch block, from its address, with these strides.
    pub(super) fn scratch(address: usize, strides: [isize; 4]) -> Self {
        Self { address, dtype: Dtype::F32, strides }
    }
    /// The imaginary parts of a complex tensor.
    fn imaginary(mut self) -> Self {
        self.address += size_of::<f32>();
        self
    }
    /// The stride of an axis.
    pub(super) fn stride(&self, axis: usize) -> isize {
        self.strides[axis]
    }
    /// The offset of an index; axes that the tensor has not, have a stride of 0.
    pub(super) fn offset(&self, index: [usize; 4]) -> isize {
        index.iter().zip(self.strides).map(|(&i, s)| i as isize * s).sum()
    }
}

/// A run of elements: sixteen lanes or fewer, by steps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    /// The offset of lane 0 at step 0.
    pub origin: isize,
    /// From lane to lane.
    pub lane: isize,
    /// From step to step.
    pub step: isize,
    /// How many lanes.
    pub lanes: usize,
    /// How many steps.
    pub steps: usize,
}

trait Stored: Copy {
    fn load(self) -> f32;
    fn store(x: f32) -> Self;
}
impl Stored for f32 {
    #[inline(always)]
    fn load(self) -> f32 {
        self
    }
    #[inline(always)]
    fn store(x: f32) -> Self {
        x
    }
}
impl Stored for bf16 {
    #[inline(always)]
    fn load(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn store(x: f32) -> Self {
        Self::from_f32(x)
    }
}
impl Stored for f16 {
    #[inline(always)]
    fn load(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn store(x: f32) -> Self {
        Self::from_f32(x)
    }
}

/// # Safety
/// Every element of the span lies in the tensor.
unsafe fn gather<T: Stored>(to: &mut [[f32; LANES]], base: *const T, s: &Span) {
    if s.lane == 1 && s.lanes == LANES {
        for (t, to) in to[..s.steps].iter_mut().enumerate() {
            // SAFETY: the caller vouches for the span.
            let from: [T; LANES] =
                unsafe { base.offset(s.origin + t as isize * s.step).cast::<[T; LANES]>().read_unaligned() };
            *to = from.map(T::load);
        }
        return;
    }
    if s.lane == 0 && s.lanes == LANES {
        for (t, to) in to[..s.steps].iter_mut().enumerate() {
            // SAFETY: as above.
            *to = [unsafe { (*base.wrapping_offset(s.origin + t as isize * s.step)).load() }; LANES];
        }
        return;
    }
    for l in 0..LANES {
        // A lane that is not there reads nothing and is 0.
        let lane = base.wrapping_offset(s.origin + l as isize * s.lane);
        for (t, to) in to[..s.steps].iter_mut().enumerate() {
            to[l] = if l < s.lanes {
                // SAFETY: as above.
                unsafe { (*lane.wrapping_offset(t as isize * s.step)).load() }
            } else {
                0.0
            };
        }
    }
}

/// # Safety
/// Every element of the span lies in the tensor, and nobody else uses them.
unsafe fn scatter<T: Stored>(from: &[[f32; LANES]], base: *mut T, s: &Span) {
    for l in 0..s.lanes {
        let lane = base.wrapping_offset(s.origin + l as isize * s.lane);
        for (t, from) in from[..s.steps].iter().enumerate() {
            // SAFETY: the caller vouches for the span.
            unsafe { *lane.wrapping_offset(t as isize * s.step) = T::store(from[l]) };
        }
    }
}

/// Numbers of sixteen channels over a stretch of time; the imaginary parts are used by complex numbers alone.
#[derive(Clone)]
pub(super) struct Tile {
    pub re: [[f32; LANES]; STEPS],
    pub im: [[f32; LANES]; STEPS],
}

impl Tile {
    pub(super) fn new() -> Self {
        Self { re: [[0.0; LANES]; STEPS], im: [[0.0; LANES]; STEPS] }
    }
    /// Fills steps from `first` on.
    ///
    /// # Safety
    /// Every element of the span lies in the tensor.
    pub(super) unsafe fn gather(&mut self, from: &Array, first: usize, s: &Span, complex: bool) {
        // SAFETY: the caller vouches for the span, and the type is the tensor's.
        unsafe {
            read(&mut self.re[first..], from, s);
            if complex {
                read(&mut self.im[first..], &from.imaginary(), s);
            }
        }
    }
    /// Writes the first steps.
    ///
    /// # Safety
    /// Every element of the span lies in the tensor, and no other task uses them.
    pub(super) unsafe fn scatter(&self, to: &Array, s: &Span, complex: bool) {
        // SAFETY: as above.
        unsafe {
            write(&self.re, to, s);
            if complex {
                write(&self.im, &to.imaginary(), s);
            }
        }
    }
}

/// # Safety
/// As [`Tile::gather`].
unsafe fn read(to: &mut [[f32; LANES]], from: &Array, s: &Span) {
    // SAFETY: as the caller says; the addresses are those of elements of these types.
    unsafe {
        match from.dtype {
            Dtype::Bf16 => gather(to, from.address as *const bf16, s),
            Dtype::F16 => gather(to, from.address as *const f16, s),
            _ => gather(to, from.address as *const f32, s),
        }
    }
}

/// # Safety
/// As [`Tile::scatter`].
unsafe fn write(from: &[[f32; LANES]], to: &Array, s: &Span) {
    // SAFETY: as above.
    unsafe {
        match to.dtype {
            Dtype::Bf16 => scatter(from, to.address as *mut bf16, s),
            Dtype::F16 => scatter(from, to.address as *mut f16, s),
            _ => scatter(from, to.address as *mut f32, s),
        }
    }
}

/// One number a lane, real and imaginary parts: a state, or the last gradient of one.
pub(super) type State = [[f32; LANES]; 2];

/// A state at an offset, each lane `lane` elements from the one before.
///
/// # Safety
/// The elements lie in the tensor.
pub(super) unsafe fn load_state(from: &Array, origin: isize, lane: isize, lanes: usize, complex: bool) -> State {
    let s = Span { origin, lane, step: 0, lanes, steps: 1 };
    let mut state = [[0.0; LANES]; 2];
    let [re, im] = &mut state;
    // SAFETY: the caller vouches for the span.
    unsafe {
        read(std::slice::from_mut(re), from, &s);
        if complex {
            read(std::slice::from_mut(im), &from.imaginary(), &s);
        }
    }
    state
}

/// Stores a state where [`load_state`] would read it.
///
/// # Safety
/// The elements lie in the tensor, and no other task uses them.
pub(super) unsafe fn store_state(state: &State, to: &Array, origin: isize, lane: isize, lanes: usize, complex: bool) {
    let s = Span { origin, lane, step: 0, lanes, steps: 1 };
    // SAFETY: as above.
    unsafe {
        write(&state[..1], to, &s);
        if complex {
            write(&state[1..], &to.imaginary(), &s);
        }
    }
}

/// Sixteen real or complex numbers.
pub(super) trait Number: Copy {
    const COMPLEX: bool;
    fn new(re: Wide, im: Wide) -> Self;
    fn re(self) -> Wide;
    fn im(self) -> Wide;
    /// `self * o`.
    fn times<const FMA: bool>(self, o: Self) -> Self;
    /// `self * conj(o)`.
    fn times_conj<const FMA: bool>(self, o: Self) -> Self;
    /// `self * o + c`.
    fn times_plus<const FMA: bool>(self, o: Self, c: Self) -> Self;
    /// The real part of `self * conj(o)`.
    fn dot<const FMA: bool>(self, o: Self) -> Wide;
    fn plus(self, o: Self) -> Self;
    fn scale(self, s: Wide) -> Self;
    fn conj(self) -> Self;

    #[inline(always)]
    fn zero() -> Self {
        Self::new(Wide::splat(0.0), Wide::splat(0.0))
    }
    #[inline(always)]
    fn load(tile: &Tile, t: usize) -> Self {
        Self::new(Lanes(tile.re[t]), Lanes(tile.im[t]))
    }
    #[inline(always)]
    fn store(self, tile: &mut Tile, t: usize) {
        tile.re[t] = self.re().0;
        if Self::COMPLEX {
            tile.im[t] = self.im().0;
        }
    }
    #[inline(always)]
    fn of_state(s: &State) -> Self {
        Self::new(Lanes(s[0]), Lanes(s[1]))
    }
    #[inline(always)]
    fn to_state(self) -> State {
        [self.re().0, self.im().0]
    }
}

impl Number for Wide {
    const COMPLEX: bool = false;
    #[inline(always)]
    fn new(re: Wide, _: Wide) -> Self {
        re
    }
    #[inline(always)]
    fn re(self) -> Wide {
        self
    }
    #[inline(always)]
    fn im(self) -> Wide {
        Wide::splat(0.0)
    }
    #[inline(always)]
    fn times<const FMA: bool>(self, o: Self) -> Self {
        self * o
    }
    #[inline(always)]
    fn times_conj<const FMA: bool>(self, o: Self) -> Self {
        self * o
    }
    #[inline(always)]
    fn times_plus<const FMA: bool>(self, o: Self, c: Self) -> Self {
        self.mul_add::<FMA>(o, c)
    }
    #[inline(always)]
    fn dot<const FMA: bool>(self, o: Self) -> Wide {
        self * o
    }
    #[inline(always)]
    fn plus(self, o: Self) -> Self {
        self + o
    }
    #[inline(always)]
    fn scale(self, s: Wide) -> Self {
        self * s
    }
    #[inline(always)]
    fn conj(self) -> Self {
        self
    }
}

/// Sixteen complex numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct WideComplex {
    re: Wide,
    im: Wide,
}

impl Number for WideComplex {
    const COMPLEX: bool = true;
    #[inline(always)]
    fn new(re: Wide, im: Wide) -> Self {
        Self { re, im }
    }
    #[inline(always)]
    fn re(self) -> Wide {
        self.re
    }
    #[inline(always)]
    fn im(self) -> Wide {
        self.im
    }
    #[inline(always)]
    fn times<const FMA: bool>(self, o: Self) -> Self {
        self.times_plus::<FMA>(o, Self::zero())
    }
    #[inline(always)]
    fn times_conj<const FMA: bool>(self, o: Self) -> Self {
        self.times::<FMA>(o.conj())
    }
    #[inline(always)]
    fn times_plus<const FMA: bool>(self, o: Self, c: Self) -> Self {
        let minus = self.im.map(|x| -x);
        Self {
            re: self.re.mul_add::<FMA>(o.re, minus.mul_add::<FMA>(o.im, c.re)),
            im: self.re.mul_add::<FMA>(o.im, self.im.mul_add::<FMA>(o.re, c.im)),
        }
    }
    #[inline(always)]
    fn dot<const FMA: bool>(self, o: Self) -> Wide {
        self.re.mul_add::<FMA>(o.re, self.im * o.im)
    }
    #[inline(always)]
    fn plus(self, o: Self) -> Self {
        Self { re: self.re + o.re, im: self.im + o.im }
    }
    #[inline(always)]
    fn scale(self, s: Wide) -> Self {
        Self { re: self.re * s, im: self.im * s }
    }
    #[inline(always)]
    fn conj(self) -> Self {
        Self { re: self.re, im: self.im.map(|x| -x) }
    }
}

/// Sixteen integers, each lane `lane` elements from the one before; 0 where there is no lane.
///
/// # Safety
/// The elements lie in the tensor, which holds i32.
pub(super) unsafe fn load_words(from: &Array, origin: isize, lane: isize, lanes: usize) -> [i32; LANES] {
    let base = from.address as *const i32;
    // SAFETY: the caller vouches for the elements.
    std::array::from_fn(|l| if l < lanes { unsafe { *base.wrapping_offset(origin + l as isize * lane) } } else { 0 })
}

/// Stores integers where [`load_words`] would read them.
///
/// # Safety
/// The elements lie in the tensor, which holds i32, and no other task uses them.
pub(super) unsafe fn store_words(words: &[i32; LANES], to: &Array, origin: isize, lane: isize, lanes: usize) {
    let base = to.address as *mut i32;
    for (l, &word) in words[..lanes].iter().enumerate() {
        // SAFETY: as above.
        unsafe { *base.wrapping_offset(origin + l as isize * lane) = word };
    }
}
