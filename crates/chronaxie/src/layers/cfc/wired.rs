//! Wired cells: the layers that ncps makes of a wiring, and their masks.
//!
//! An NCP becomes three cells, its inter, command and motor neurons; any other wiring becomes one. The heads ff1 and ff2 of
//! a cell see the synapses onto its neurons from the inputs, or from the cell before it, and all of its own state: synapses
//! among the neurons of one layer, such as an NCP's recurrent command synapses, play no part. As in ncps.

use super::spec::Cfc;
use crate::layers::ltc::wirings::{NeuronKind, Wiring};
use crate::op::{Tensors, Values};
use crate::{Error, Result};

/// The neurons of each cell, in the order of the state.
pub fn layers(wiring: &Wiring) -> Vec<Vec<usize>> {
    if wiring.command_neurons == 0 {
        return vec![(0..wiring.units).collect()];
    }
    let of = |kind| (0..wiring.units).filter(|&j| wiring.kind(j) == kind).collect();
    vec![of(NeuronKind::Inter), of(NeuronKind::Command), of(NeuronKind::Motor)]
}

impl Cfc {
    /// The cells of a wiring, without a backbone.
    pub fn of_wiring(batch: usize, steps: usize, wiring: &Wiring) -> Self {
        let sizes: Vec<usize> = layers(wiring).iter().map(Vec::len).collect();
        Self::wired(batch, steps, wiring.inputs, &sizes)
    }
    /// The masks of a wiring's cells, by the names of the signature.
    ///
    /// # Errors
    /// If the cells are not those of this wiring.
    pub fn masks(&self, wiring: &Wiring) -> Result<Tensors> {
        let layers = layers(wiring);
        let sizes: Vec<usize> = layers.iter().map(Vec::len).collect();
        let own: Vec<usize> = self.cells.iter().map(|c| c.hidden).collect();
        if own != sizes || self.inputs != wiring.inputs || self.backbone_layers != 0 {
            return Err(Error::shape(format!(
                "cfc: cells of {own:?} neurons, {} inputs and {} backbone layers do not match a wiring of {sizes:?} neurons \
                 and {} inputs",
                self.inputs, self.backbone_layers, wiring.inputs
            )));
        }
        let mut masks = Tensors::new();
        for (l, neurons) in layers.iter().enumerate() {
            let mut mask = Vec::new();
            for &j in neurons {
                let to_j = |from: &[i8], i: usize| f64::from(u8::from(from[i * wiring.units + j] != 0));
                if l == 0 {
                    mask.extend((0..wiring.inputs).map(|i| to_j(&wiring.sensory_adjacency, i)));
                } else {
                    mask.extend(layers[l - 1].iter().map(|&i| to_j(&wiring.adjacency, i)));
                }
                mask.extend(neurons.iter().map(|_| 1.0));
            }
            masks.insert(self.named(l, "sparsity_mask"), Values::new([neurons.len(), self.reads(l)], mask)?);
        }
        Ok(masks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::ltc::wirings::Rule;

    #[test]
    fn an_ncp_is_three_cells_and_its_masks_are_its_synapses() {
        let wiring = Rule::auto_ncp(12, 3).build(5).unwrap();
        let p = Cfc::of_wiring(2, 3, &wiring);
        // (12 - 3) * 0.4 command neurons, the rest inter.
        assert_eq!(p.cells.iter().map(|c| c.hidden).collect::<Vec<_>>(), [6, 3, 3]);
        assert_eq!((p.outputs(), p.hidden(), p.reads(1)), (3, 12, 9));
        let masks = p.masks(&wiring).unwrap();
        let first = masks.get("layer_0_sparsity_mask").unwrap();
        assert_eq!(&*first.shape, &[6, 11]);
        // Inter neurons are the last of the wiring, and the first cell.
        for (n, row) in first.data.chunks(11).enumerate() {
            let synapses = (0..5).map(|i| wiring.sensory_adjacency[i * 12 + 6 + n] != 0);
            assert!(row[..5].iter().zip(synapses).all(|(&m, s)| m == f64::from(u8::from(s))));
            assert!(row[5..].iter().all(|&m| m == 1.0));
        }
        let last = masks.get("layer_2_sparsity_mask").unwrap();
        let synapses =
            (3..6).flat_map(|i| (0..3).map(move |j| (i, j))).filter(|(i, j)| wiring.adjacency[i * 12 + j] != 0);
        assert_eq!(last.data.chunks(6).flat_map(|row| &row[..3]).sum::<f64>(), synapses.count() as f64);
    }

    #[test]
    fn other_wirings_are_one_cell_and_strangers_are_refused() {
        let wiring = Rule::random(7, 0.5).build(4).unwrap();
        let p = Cfc::of_wiring(2, 3, &wiring);
        assert_eq!((p.cells.len(), p.outputs()), (1, 7));
        assert_eq!(&*p.masks(&wiring).unwrap().get("sparsity_mask").unwrap().shape, &[7, 11]);
        let e = Cfc::new(2, 3, 4, 6).masks(&wiring).unwrap_err().to_string();
        assert!(
            e.contains("cells of [6] neurons, 4 inputs and 1 backbone layers do not match a wiring of [7] neurons"),
            "{e}"
        );
    }
}
