//! The law over the tensors of a problem: heads and sequences one after the other.

use super::{Gradients, State, Tokens, parallel, recurrent};
use crate::layers::mlstm::spec::Mlstm;
use crate::op::{Pass, Tensors, Values};
use crate::real::Real;
use crate::{Error, Result, Shape};

/// A tensor of the call in the arithmetic of the law.
fn take<R: Real>(inputs: &Tensors, name: &str, shape: &Shape) -> Result<Vec<R>> {
    let values = inputs.get(name)?;
    if values.shape != *shape {
        return Err(Error::shape(format!("mlstm: {name}.shape = {} does not match {shape}", values.shape)));
    }
    Ok(values.data.iter().map(|&x| R::from_f64(x)).collect())
}

/// Where the sequences of a call begin and end, in tokens, from `cu_seqlens` where it is given.
fn ranges(p: &Mlstm, cuts: Option<&[i32]>) -> Result<Vec<(usize, usize)>> {
    let Some(cuts) = cuts else { return Ok(vec![(0, p.steps); p.batch]) };
    p.check_cuts(cuts)?;
    Ok(cuts.windows(2).map(|w| (w[0] as usize, w[1] as usize)).collect())
}

/// The tensors of a state over all sequences and heads.
struct States<R> {
    c: Vec<R>,
    n: Vec<R>,
    m: Vec<R>,
}

impl<R: Real> States<R> {
    fn zeros(p: &Mlstm) -> Self {
        let (s, k, v) = (p.states() * p.heads, p.dqk, p.dv);
        let zeros = |n: usize| vec![R::zero(); n];
        Self { c: zeros(s * k * v), n: zeros(s * k), m: zeros(s) }
    }
    /// Those of `prefix` and `suffix`, zeros where the problem has none.
    fn take(p: &Mlstm, inputs: &Tensors, there: bool, prefix: &str, suffix: &str) -> Result<Self> {
        let mut states = Self::zeros(p);
        if there {
            let (s, nh) = (p.states(), p.heads);
            states.c = take(inputs, &format!("{prefix}c_{suffix}"), &Shape::from([s, nh, p.dqk, p.dv]))?;
            if p.normalize {
                states.n = take(inputs, &format!("{prefix}n_{suffix}"), &Shape::from([s, nh, p.dqk]))?;
            }
            if p.has_gauge() {
                states.m = take(inputs, &format!("{prefix}m_{suffix}"), &Shape::from([s, nh]))?;
            }
        }
        Ok(states)
    }
    fn get(&self, p: &Mlstm, nth: usize) -> State<R> {
        let (k, v) = (p.dqk, p.dv);
        State {
            c: self.c[nth * k * v..(nth + 1) * k * v].to_vec(),
            n: self.n[nth * k..(nth + 1) * k].to_vec(),
            m: self.m[nth],
        }
    }
    fn set(&mut self, p: &Mlstm, nth: usize, state: &State<R>) {
        let (k, v) = (p.dqk, p.dv);
        self.c[nth * k * v..(nth + 1) * k * v].copy_from_slice(&state.c);
        self.n[nth * k..(nth + 1) * k].copy_from_slice(&state.n);
        self.m[nth] = state.m;
    }
    fn give(self, p: &Mlstm, prefix: &str, suffix: &str, out: &mut Tensors) -> Result<()> {
        let (s, nh) = (p.states(), p.heads);
        let mut put = |letter: &str, shape: Shape, data: Vec<R>| -> Result<()> {
            out.insert(format!("{prefix}{letter}_{suffix}"), values(shape, &data)?);
            Ok(())
        };
        put("c", Shape::from([s, nh, p.dqk, p.dv]), self.c)?;
        if p.normalize {
            put("n", Shape::from([s, nh, p.dqk]), self.n)?;
        }
        if p.has_gauge() {
            put("m", Shape::from([s, nh]), self.m)?;
        }
        Ok(())
    }
}

fn values<R: Real>(shape: Shape, data: &[R]) -> Result<Values> {
    Values::new(shape, data.iter().map(|x| x.to_f64()).collect())
}

/// The outputs of `pass`, by name, from its inputs.
///
/// # Errors
/// Tensors that are missing or of another shape, and cuts that are none.
pub fn law<R: Real>(p: &Mlstm, pass: Pass, inputs: &Tensors) -> Result<Tensors> {
    let (k, v, cell) = (p.dqk, p.dv, p.cell());
    let wide = |width: usize| Shape::from([p.batch, p.heads, p.steps, width]);
    let flat = Shape::from([p.batch, p.heads, p.steps]);
    let all: [Vec<R>; 5] = [
        take(inputs, "q", &wide(k))?,
        take(inputs, "k", &wide(k))?,
        take(inputs, "v", &wide(v))?,
        take(inputs, "i", &flat)?,
        take(inputs, "f", &flat)?,
    ];
    let cuts: Option<Vec<i32>> = match p.sequences {
        None => None,
        Some(n) => {
            let values = take::<f64>(inputs, "cu_seqlens", &Shape::from([n + 1]))?;
            Some(values.iter().map(|&x| x as i32).collect())
        }
    };
    let ranges = ranges(p, cuts.as_deref())?;
    let initial = States::take(p, inputs, p.initial_state, "", "initial")?;
    let backward = pass == Pass::Backward;
    let grad_last = States::take(p, inputs, backward && p.last_state, "grad_", "last")?;
    let grad_h: Vec<R> = if backward { take(inputs, "grad_h", &wide(v))? } else { Vec::new() };
    let tokens = p.batch * p.heads * p.steps;
    let mut sums = [k, k, v, 1, 1].map(|width| vec![R::zero(); tokens * width]);
    let (mut h, mut ends) = (vec![R::zero(); tokens * v], States::zeros(p));
    for (s, &(from, to)) in ranges.iter().enumerate() {
        let row = if p.sequences.is_some() { 0 } else { s };
        for head in 0..p.heads {
            let (nth, at) = (s * p.heads + head, (row * p.heads + head) * p.steps);
            let at = at + from..at + to;
            let part = |which: usize, width: usize| &all[which][at.start * width..at.end * width];
            let x = Tokens { q: part(0, k), k: part(1, k), v: part(2, v), i: part(3, 1), f: part(4, 1) };
            let start = initial.get(p, nth);
            let range = at.start * v..at.end * v;
            if !backward && p.parallel {
                h[range].copy_from_slice(&parallel::forward(&cell, &x));
                continue;
            }
            if !backward {
                let (out, last) = recurrent::forward(&cell, &x, &start);
                h[range].copy_from_slice(&out);
                ends.set(p, nth, &last);
                continue;
            }
            let g: Gradients<R> = if p.parallel {
                parallel::backward(&cell, &x, &grad_h[range])
            } else {
                recurrent::backward(&cell, &x, &start, &grad_h[range], &grad_last.get(p, nth))
            };
            for ((sum, g), width) in sums.iter_mut().zip([&g.q, &g.k, &g.v, &g.i, &g.f]).zip([k, k, v, 1, 1]) {
                sum[at.start * width..at.end * width].copy_from_slice(g);
            }
            ends.set(p, nth, &g.initial);
        }
    }
    let mut out = Tensors::new();
    if backward {
        let shapes = [wide(k), wide(k), wide(v), flat, flat];
        for ((name, shape), sum) in ["q", "k", "v", "i", "f"].into_iter().zip(shapes).zip(&sums) {
            out.insert(format!("grad_{name}"), values(shape, sum)?);
        }
        if p.initial_state {
            ends.give(p, "grad_", "initial", &mut out)?;
        }
    } else {
        out.insert("h", values(wide(v), &h)?);
        if p.last_state {
            ends.give(p, "", "last", &mut out)?;
        }
    }
    Ok(out)
}
