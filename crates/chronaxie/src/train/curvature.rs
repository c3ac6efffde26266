//! What KFAC takes of a network: which of its stages are linear maps, and the passes that make their factors of what a step left.

use super::bank::{Call, Layout, Planned, Slot};
use crate::op::{LinearMap, Pass, Problem, TensorSpec};
use crate::optim::kfac::spec::Place;
use crate::optim::kfac::{Factors, Kfac, Map, Sharing, Terms};
use crate::{Device, Dtype, Error, Result};
use std::sync::Arc;

/// How factors are made of a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) sharing: Sharing,
    pub(super) terms: Terms,
    /// Whether second moments in the eigenbases are made, too.
    pub(super) squares: bool,
    /// Steps between two times.
    pub(super) every: u64,
}

/// A stage that is a linear map, with the plan of its factors.
pub(super) struct Curved {
    pub(super) map: LinearMap,
    pub(super) planned: Planned,
}

impl Curved {
    /// The factors of a stage, if it is a map.
    pub(super) fn new(problem: &dyn Problem, stage: &str, seen: Seen, device: &Device) -> Result<Option<Self>> {
        let Some(map) = problem.linear_map() else { return Ok(None) };
        let factors = Factors::new(&map).sharing(seen.sharing).terms(seen.terms).squares(seen.squares);
        let planned = Planned::new(Arc::new(factors.build()?), device)?.labelled(stage);
        Ok(Some(Self { map, planned }))
    }
    /// Its parameters among all: `first` says where one begins.
    pub(super) fn place(&self, first: impl Fn(&str) -> Result<usize>) -> Result<Map> {
        let m = &self.map;
        let bias = m.bias.map(&first).transpose()?;
        Ok(Map { weight: first(m.weight)?, rows: m.to.count, columns: m.from.count, bias })
    }
    /// The pass that makes the factors of map `l`: `tensor` says where an input of the stage's backward pass lies.
    pub(super) fn call(
        &self,
        l: usize,
        kfac: &Kfac,
        state: &Layout,
        scratch: &Slot,
        lengths: &Slot,
        tensor: impl Fn(&str) -> Result<Slot>,
    ) -> Result<Call> {
        let at = &kfac.places.maps[l];
        Call::new(&self.planned, Pass::Forward, scratch, |t, _| match &*t.name {
            "x" => tensor(self.map.x)?.seen_as(t),
            "grad" => tensor(self.map.grad)?.seen_as(t),
            "lengths" => lengths.seen_as(t),
            _ => part(at, state, t),
        })
    }
}

/// Where a matrix of a map lies in the optimizer's state.
fn part(at: &Place, state: &Layout, t: &TensorSpec) -> Result<Slot> {
    let (list, first) = match &*t.name {
        "a" => ("seen", at.a),
        "g" => ("seen", at.g),
        "squares" => ("seen_squares", at.squares),
        "basis_a" => ("bases", at.basis_a),
        "basis_g" => ("bases", at.basis_g),
        other => {
            return Err(Error::config(format!("training: KFAC's factors have a tensor `{other}`, which has no place")));
        }
    };
    let all = state.get(list)?;
    Ok(Slot { offset: all.offset + first * t.dtype.size(), shape: t.shape, dtype: t.dtype, ..all.clone() })
}

/// Which parameters are solved by Kronecker factors and which take AdamW's step, in a sentence.
pub(super) fn said(kfac: &Kfac, parameters: &[(String, Slot)]) -> String {
    let first = |slot: &Slot| slot.offset / Dtype::F32.size();
    let solved = |n: usize| kfac.maps.iter().any(|m| m.weight == n || m.bias == Some(n));
    let (by_factors, rest): (Vec<_>, Vec<_>) = parameters.iter().partition(|(_, slot)| solved(first(slot)));
    let names = |list: &[&(String, Slot)]| match list {
        [] => "none".to_owned(),
        list => list.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", "),
    };
    format!("kfac: by Kronecker factors: {}; by AdamW: {}", names(&by_factors), names(&rest))
}
