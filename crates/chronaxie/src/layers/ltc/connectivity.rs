//! Which synapses exist: 0/1 masks compacted into lists, once, on the host.
//!
//! A masked synapse adds nothing to the forward pass and its gradients are exactly zero, so skipping it is exact.

use crate::op::Values;
use crate::{Error, Result};

/// The synapses from I sources to H targets.
///
/// Both orders are kept: sums over sources read the target-major lists, and the adjoint's sums over targets read the
/// source-major ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Synapses {
    sources: usize,
    targets: usize,
    /// `[H + 1]`: target j owns the synapses `target_offsets[j] .. target_offsets[j + 1]`.
    pub target_offsets: Vec<i32>,
    /// `[S]`: the source of each synapse, ascending within a target.
    pub source_of: Vec<i32>,
    /// `[I + 1]`: source i owns the positions `source_offsets[i] .. source_offsets[i + 1]` of the two lists below.
    pub source_offsets: Vec<i32>,
    /// `[S]`: the target of each synapse in source-major order, ascending within a source.
    pub target_of: Vec<i32>,
    /// `[S]`: source-major position to target-major synapse.
    pub synapse_of: Vec<i32>,
}

impl Synapses {
    /// The synapses whose `mask` element, `[I, H]` row-major by source, is not zero.
    ///
    /// # Errors
    /// If the mask has not I x H elements, holds anything but 0 and 1, or holds more synapses than 32-bit indices reach.
    pub fn from_mask(mask: &[f32], sources: usize, targets: usize) -> Result<Self> {
        if sources.checked_mul(targets) != Some(mask.len()) {
            return Err(Error::shape(format!(
                "ltc: a mask of {} elements does not match [sources, targets] = ({sources}, {targets})",
                mask.len()
            )));
        }
        if let Some(at) = mask.iter().position(|&m| m != 0.0 && m != 1.0) {
            return Err(Error::value(format!(
                "ltc: mask[{}, {}] = {} is neither 0 nor 1",
                at / targets,
                at % targets,
                mask[at]
            )));
        }
        Self::from_fn(sources, targets, |i, j| mask[i * targets + j] != 0.0)
    }
    /// Every source to every target.
    pub fn full(sources: usize, targets: usize) -> Result<Self> {
        Self::from_fn(sources, targets, |_, _| true)
    }
    /// The synapses for which `connected(source, target)`.
    pub fn from_fn(sources: usize, targets: usize, connected: impl Fn(usize, usize) -> bool) -> Result<Self> {
        let limit = i32::MAX as usize;
        let too_many = |n: usize| {
            Error::shape(format!("ltc: {n} synapses from {sources} sources to {targets} targets exceed {limit}"))
        };
        if sources > limit || targets > limit {
            return Err(too_many(usize::MAX));
        }
        let (mut target_offsets, mut source_of) = (vec![0i32], Vec::new());
        let mut out_degree = vec![0i32; sources];
        for j in 0..targets {
            for (i, degree) in out_degree.iter_mut().enumerate() {
                if connected(i, j) {
                    source_of.push(i as i32);
                    *degree += 1;
                }
            }
            if source_of.len() > limit {
                return Err(too_many(source_of.len()));
            }
            target_offsets.push(source_of.len() as i32);
        }
        let mut source_offsets = vec![0i32; sources + 1];
        for i in 0..sources {
            source_offsets[i + 1] = source_offsets[i] + out_degree[i];
        }
        let mut next = source_offsets.clone();
        let (mut target_of, mut synapse_of) = (vec![0; source_of.len()], vec![0; source_of.len()]);
        for j in 0..targets {
            for s in target_offsets[j]..target_offsets[j + 1] {
                let slot = &mut next[source_of[s as usize] as usize];
                target_of[*slot as usize] = j as i32;
                synapse_of[*slot as usize] = s;
                *slot += 1;
            }
        }
        Ok(Self { sources, targets, target_offsets, source_of, source_offsets, target_of, synapse_of })
    }
    /// How many synapses there are.
    pub fn len(&self) -> usize {
        self.source_of.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.source_of.is_empty()
    }
    /// I, the number of sources.
    pub fn sources(&self) -> usize {
        self.sources
    }
    /// H, the number of targets.
    pub fn targets(&self) -> usize {
        self.targets
    }
    /// Synapses onto target `j`.
    pub fn in_degree(&self, j: usize) -> usize {
        (self.target_offsets[j + 1] - self.target_offsets[j]) as usize
    }
    /// The five index lists, by the names that signatures use after `recurrent_` or `sensory_`.
    pub fn lists(&self) -> [(&'static str, &[i32]); 5] {
        [
            ("target_offsets", &self.target_offsets),
            ("source_of", &self.source_of),
            ("source_offsets", &self.source_offsets),
            ("target_of", &self.target_of),
            ("synapse_of", &self.synapse_of),
        ]
    }
}

/// The result of [`prepare`]: what a caller owns and makes anew when a mask changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connectivity {
    /// Neuron to neuron, `[H, H]`.
    pub recurrent: Synapses,
    /// Input to neuron, `[D, H]`.
    pub sensory: Synapses,
}

/// Compacts the masks of a layer: `recurrent` `[H, H]` and `sensory` `[D, H]`, row-major by source, 0 or 1.
///
/// # Errors
/// If a mask has the wrong number of elements or holds anything but 0 and 1, or if some neuron has no synapse at all,
/// neither recurrent nor sensory: nothing could ever reach it.
pub fn prepare(recurrent: &[f32], sensory: &[f32], inputs: usize, hidden: usize) -> Result<Connectivity> {
    let recurrent = Synapses::from_mask(recurrent, hidden, hidden).map_err(|e| e.context("recurrent mask"))?;
    let sensory = Synapses::from_mask(sensory, inputs, hidden).map_err(|e| e.context("sensory mask"))?;
    Connectivity::new(recurrent, sensory)
}

impl Connectivity {
    /// Both lists of one layer.
    ///
    /// # Errors
    /// If they have different numbers of neurons, or some neuron has no synapse at all.
    pub fn new(recurrent: Synapses, sensory: Synapses) -> Result<Self> {
        if recurrent.sources() != recurrent.targets() || recurrent.targets() != sensory.targets() {
            return Err(Error::shape(format!(
                "ltc: recurrent synapses from {} to {} neurons do not match sensory synapses to {} neurons",
                recurrent.sources(),
                recurrent.targets(),
                sensory.targets()
            )));
        }
        if let Some(j) = (0..recurrent.targets()).find(|&j| recurrent.in_degree(j) + sensory.in_degree(j) == 0) {
            return Err(Error::value(format!("ltc: neuron {j} of {} has no synapse", recurrent.targets())));
        }
        Ok(Self { recurrent, sensory })
    }
    /// Every input and every neuron to every neuron.
    pub fn full(inputs: usize, hidden: usize) -> Result<Self> {
        Self::new(Synapses::full(hidden, hidden)?, Synapses::full(inputs, hidden)?)
    }
    /// The index tensors as the signature names and orders them, as values.
    pub fn values(&self) -> impl Iterator<Item = (String, Values)> + '_ {
        [("recurrent", &self.recurrent), ("sensory", &self.sensory)].into_iter().flat_map(|(side, s)| {
            s.lists().into_iter().map(move |(name, list)| {
                let data: Vec<f64> = list.iter().map(|&x| f64::from(x)).collect();
                (format!("{side}_{name}"), Values { shape: [data.len()].into(), data })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_hold_the_same_synapses() {
        let mask = [1., 0., 1., 0., 1., 1.];
        let s = Synapses::from_mask(&mask, 2, 3).unwrap();
        assert_eq!(s.target_offsets, [0, 1, 2, 4]);
        assert_eq!(s.source_of, [0, 1, 0, 1]);
        assert_eq!(s.source_offsets, [0, 2, 4]);
        assert_eq!(s.target_of, [0, 2, 1, 2]);
        assert_eq!(s.synapse_of, [0, 2, 1, 3]);
    }

    #[test]
    fn bad_masks_are_refused_with_their_values() {
        let e = Synapses::from_mask(&[1., 0.5], 1, 2).unwrap_err().to_string();
        assert!(e.contains("mask[0, 1] = 0.5"), "{e}");
        let e = Synapses::from_mask(&[1.], 1, 2).unwrap_err().to_string();
        assert!(e.contains("(1, 2)"), "{e}");
        let e = prepare(&[1., 0., 1., 0.], &[1., 0.], 1, 2).unwrap_err().to_string();
        assert!(e.contains("neuron 1 of 2 has no synapse"), "{e}");
    }

    #[test]
    fn empty_sides_are_legal() {
        let c = Connectivity::full(0, 3).unwrap();
        assert_eq!((c.sensory.len(), c.recurrent.len()), (0, 9));
        let c = Connectivity::full(2, 0).unwrap();
        assert_eq!((c.sensory.len(), c.recurrent.len()), (0, 0));
    }
}
