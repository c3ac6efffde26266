//! The linear maps of a problem as the kernels know them.

use crate::layers::cfc::net::{Map, Net};
use crate::layers::cfc::spec::{Cfc, MAX_CELLS};

/// Bytes of the kernels' `Net`.
const BYTES: usize = 8 * (4 * MAX_CELLS + 2) + 4 * (2 * MAX_CELLS + 10);

/// The kernels' `Net`, as it lies in memory.
pub(super) fn bytes(p: &Cfc, net: &Net) -> [u8; BYTES] {
    let first_maps = |l: usize| &net.maps[usize::from(p.mixed_memory) + l * (p.backbone_layers + 1)];
    let cells = p.cells.len();
    let of = |f: fn(&Map) -> usize| (0..MAX_CELLS).map(move |l| if l < cells { f(first_maps(l)) as i64 } else { 0 });
    let longs = of(|m| m.packed)
        .chain(of(|m| m.bias))
        .chain(of(|m| m.grad))
        .chain(of(|m| m.operand))
        .chain([net.grads as i64, net.operands as i64]);
    let per_cell =
        |f: &dyn Fn(usize) -> usize| (0..MAX_CELLS).map(|l| if l < cells { f(l) } else { 0 }).collect::<Vec<_>>();
    let ints = [per_cell(&|l| p.cells[l].hidden), per_cell(&|l| p.first_neuron(l))].concat().into_iter().chain([
        cells,
        p.backbone_layers,
        p.backbone_units,
        p.mode.heads().len(),
        p.mode.kept(),
        p.mode as usize,
        p.activation as usize,
        usize::from(p.mixed_memory),
        p.inputs,
        p.hidden(),
    ]);
    let all = longs.flat_map(i64::to_ne_bytes).chain(ints.flat_map(|n| (n as i32).to_ne_bytes()));
    let mut bytes = [0; BYTES];
    bytes.iter_mut().zip(all).for_each(|(to, from)| *to = from);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::cfc::spec::{Activation, Mode};

    #[test]
    fn the_struct_lies_as_the_kernels_declare_it() {
        let p = Cfc {
            mode: Mode::NoGate,
            activation: Activation::Silu,
            mixed_memory: true,
            ..Cfc::wired(2, 3, 4, &[5, 3])
        };
        let net = Net::of(&p, 1);
        let b = bytes(&p, &net);
        let long = |at: usize| i64::from_ne_bytes(b[8 * at..8 * at + 8].try_into().unwrap());
        let int = |at: usize| i32::from_ne_bytes(b[272 + 4 * at..276 + 4 * at].try_into().unwrap());
        // The LSTM's map has 12 inputs and 32 outputs, the cells' 9 and 20, 8 and 12.
        assert_eq!([long(0), long(1), long(8), long(9)], [384, 384 + 180, 32, 52]);
        assert_eq!([long(16), long(17), long(24), long(25), long(32), long(33)], [32, 52, 12, 21, 64, 29]);
        assert_eq!([int(0), int(1), int(8), int(9)], [5, 3, 0, 5]);
        assert_eq!((16..26).map(int).collect::<Vec<_>>(), [2, 0, 128, 4, 4, 2, 4, 1, 4, 8]);
        assert_eq!(b.len(), 376);
    }
}
