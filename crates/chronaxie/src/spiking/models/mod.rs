//! Neuron models: one file each, with its law in f64 and its body in f32, and beside it a `.cuh` with the body's twin.
//!
//! A model has parameters, state variables and ports. At each step, in this order: the state advances by `dt` under the
//! input that arrives in this step, then the cell fires or not. What a spike of step n sends with delay d is read in step
//! n + d. Weights that are not negative go to the first port, negative ones to the last.
//!
//! The *law* is plain f64 with the library's functions. The *body* is f32 with every fused multiply-add written out and
//! constants that [`Model::coefficients`] makes once in f64, so that it has the same bits in every vector width and,
//! operation for operation, on a GPU. Neither shares arithmetic with the other. A new model is its two files, its line in
//! [`all`], and its twin's name and number in [`Twin`] and `simulate/cuda/models.cuh`.

use crate::config::short;
use crate::simd_math::Lanes;
use std::fmt::Debug;

mod adex;
mod cpu;
mod hodgkin_huxley;
mod izhikevich;
mod lif_alpha;
mod lif_cond;
mod lif_delta;
mod lif_exp;
mod rk4;
mod sources;
#[cfg(test)]
mod tests;

/// A parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameter {
    /// Its name in configurations.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Its value where none is given.
    pub default: f64,
}

/// A state variable.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Variable {
    /// Its name in configurations.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Its value at the start where none is given: a parameter's name, or a number.
    pub initial: Initial,
}

/// Where a state variable starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Initial {
    /// At this value.
    Value(f64),
    /// At the value of this parameter.
    Parameter(&'static str),
}

/// What cells of a population are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// They have a state that obeys an equation.
    Dynamics,
    /// They fire at random.
    Poisson,
    /// They fire as a list says.
    Replay,
}

/// The device twins of the bodies, each in the `.cuh` beside its model, by their numbers in `simulate/cuda/models.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Twin {
    LifExpOne,
    LifExp,
    LifDelta,
    LifAlpha,
    LifCond,
    Izhikevich,
    Poisson,
    Replay,
    AdEx,
    HodgkinHuxley,
}

impl Twin {
    /// Whether it needs more registers than 1024 threads leave to each.
    pub fn is_heavy(self) -> bool {
        matches!(self, Self::LifAlpha | Self::LifCond | Self::AdEx | Self::HodgkinHuxley)
    }
}

/// A model; see the module.
pub trait Model: Debug + Sync {
    /// Its name in configurations.
    fn name(&self) -> &'static str;
    /// Other names that configurations may use.
    fn aliases(&self) -> &'static [&'static str] {
        &[]
    }
    /// What its cells are.
    fn kind(&self) -> Kind {
        Kind::Dynamics
    }
    /// Its parameters.
    fn parameters(&self) -> &'static [Parameter];
    /// Its state variables.
    fn variables(&self) -> &'static [Variable];
    /// Its ports.
    fn ports(&self) -> &'static [&'static str];
    /// The unit of weights.
    fn weight_unit(&self) -> &'static str;
    /// Named sets of parameters.
    fn presets(&self) -> &'static [(&'static str, &'static [(&'static str, f64)])] {
        &[]
    }
    /// The same model in fewer variables, where every cell has these constants (`None`: not a constant).
    fn reduced(&self, constants: &[Option<f64>]) -> Option<&'static dyn Model> {
        let _ = constants;
        None
    }
    /// What is wrong with these parameters at this step, as the end of a sentence.
    fn problem(&self, parameters: &[f64], dt_ms: f64) -> Option<String>;
    /// Turns a state in the configuration's terms into the state that is stepped.
    fn enter(&self, parameters: &[f64], state: &mut [f64]) {
        let _ = (parameters, state);
    }
    /// The inverse of [`enter`](Self::enter).
    fn leave(&self, parameters: &[f64], state: &mut [f64]) {
        let _ = (parameters, state);
    }
    /// How many numbers [`coefficients`](Self::coefficients) writes.
    fn coefficient_count(&self) -> usize;
    /// The constants of the body.
    fn coefficients(&self, parameters: &[f64], dt_ms: f64, out: &mut [f32]);
    /// One step of the law; true if the cell fires.
    fn law(&self, parameters: &[f64], dt_ms: f64, state: &mut [f64], input: &[f64]) -> bool;
    /// One step of the body for the cells of a block.
    fn step(&self, block: &mut Block<'_>);
    /// Which twin of the body a GPU runs.
    fn twin(&self) -> Twin;
    /// The mean current (or its like) that DC adds to, as an index of a parameter.
    fn current(&self) -> Option<usize> {
        self.parameters().iter().position(|p| p.name == "I_e")
    }
    /// The integral of the response of one port to an input of 1, in units of the DC current times ms: what an input of 1
    /// every ms is worth as a constant current. `None` where inputs are no currents.
    fn charge(&self, parameters: &[f64], port: usize) -> Option<f64> {
        let _ = (parameters, port);
        None
    }
}

/// Cells that a body advances together; all slices have the same length, a multiple of [`PAD`].
#[derive(Debug)]
pub struct Block<'a> {
    /// One number a coefficient where all cells have the same, otherwise one slice each.
    pub coefficients: Coefficients<'a>,
    /// The state variables.
    pub states: &'a mut [&'a mut [f32]],
    /// What arrives at each port in this step.
    pub inputs: Inputs<'a>,
    /// Becomes 1 where a cell fires, 0 elsewhere.
    pub spikes: &'a mut [u8],
}

/// What arrives at the cells of a block, by port.
#[derive(Debug)]
pub enum Inputs<'a> {
    /// In the model's unit.
    Given(&'a [&'a [f32]]),
    /// In so many units each; the sums become 0. A second port that the model does not have is empty.
    Sums([&'a mut [i32]; 2], &'a [f32]),
}

/// Constants of the cells of a block.
#[derive(Debug, Clone, Copy)]
pub enum Coefficients<'a> {
    /// The same for all.
    Shared(&'a [f32]),
    /// `[coefficient][cell]`, the rows `stride` apart, the block's first cell at `offset`.
    Each {
        /// All rows.
        values: &'a [f32],
        /// From one row to the next.
        stride: usize,
        /// Where the block begins in a row.
        offset: usize,
    },
}

/// The lengths of blocks are multiples of this, the widest vector of any body.
pub const PAD: usize = 16;

/// Every model.
pub fn all() -> &'static [&'static dyn Model] {
    static ALL: [&dyn Model; 9] = [
        &lif_exp::LIF_EXP,
        &lif_delta::LifDelta,
        &lif_alpha::LifAlpha,
        &lif_cond::LifCond,
        &adex::AdEx,
        &izhikevich::Izhikevich,
        &hodgkin_huxley::HodgkinHuxley,
        &sources::Poisson,
        &sources::Replay,
    ];
    &ALL
}

/// The model of this name, or the nearest name there is.
///
/// # Errors
/// The end of a sentence that lists the names.
pub fn find(name: &str) -> Result<&'static dyn Model, String> {
    let known = || all().iter().flat_map(|m| std::iter::once(m.name()).chain(m.aliases().iter().copied()));
    if let Some(model) = all().iter().find(|m| m.name() == name || m.aliases().contains(&name)) {
        return Ok(*model);
    }
    Err(match crate::config::nearest(name, known()) {
        Some(near) => format!("is {}, which is no model; did you mean {near:?}?", crate::config::quote(name)),
        None => format!(
            "is {}, which is no model; there are {}",
            crate::config::quote(name),
            known().collect::<Vec<_>>().join(", ")
        ),
    })
}

/// `a b + c` in one rounding. The `true` is no choice: a body without it would have other bits.
#[inline(always)]
fn fma<const N: usize>(a: Lanes<N>, b: Lanes<N>, c: Lanes<N>) -> Lanes<N> {
    a.mul_add::<true>(b, c)
}

/// `yes` where `x >= than`, else `no` (also where x is NaN).
#[inline(always)]
fn at_least<const N: usize>(x: Lanes<N>, than: Lanes<N>, yes: Lanes<N>, no: Lanes<N>) -> Lanes<N> {
    // Not array::from_fn, which is not always inlined: lane by lane then, through memory.
    let mut r = no;
    for l in 0..N {
        r.0[l] = if x.0[l] >= than.0[l] { yes.0[l] } else { no.0[l] };
    }
    r
}

/// How many steps a refractory time takes.
fn refractory_steps(t_ms: f64, dt_ms: f64) -> f64 {
    (t_ms / dt_ms).round()
}

/// Refuses a parameter that must be positive.
fn positive(list: &[Parameter], parameters: &[f64], names: &[&str]) -> Option<String> {
    list.iter().zip(parameters).find(|(p, x)| !x.is_finite() || names.contains(&p.name) && **x <= 0.0).map(|(p, x)| {
        let must = if x.is_finite() { "must be above 0" } else { "must be finite" };
        format!("has {} = {x} {}, which {must}", p.name, p.unit, x = short(*x))
    })
}

/// Refuses a reset at or above the threshold and a negative refractory time; `at` has the three's indices, in this order.
fn reset_problem(list: &[Parameter], p: &[f64], at: [usize; 3]) -> Option<String> {
    let name = at.map(|i| list[i].name);
    let [reset, threshold, t_ref] = at.map(|i| p[i]);
    if reset >= threshold {
        return Some(format!(
            "has {} = {reset} mV at or above {} = {threshold} mV, so that it never stops firing",
            name[0],
            name[1],
            reset = short(reset),
            threshold = short(threshold)
        ));
    }
    (t_ref < 0.0).then(|| format!("has {} = {t_ref} ms, which must not be negative", name[2], t_ref = short(t_ref)))
}
