//! The linear maps of a problem: which parameters they are made of, and where each of them keeps what.

use super::spec::{Cfc, Mode};

/// One parameter tensor in a map.
#[derive(Debug, Clone)]
pub(super) struct Source {
    /// Its name, and those of its bias and mask.
    pub weight: String,
    pub bias: Option<String>,
    pub mask: Option<String>,
    /// Its shape `[outputs, inputs]`, and where it stands in the map.
    pub outputs: usize,
    pub inputs: usize,
    pub first_output: usize,
    pub first_input: usize,
}

/// A linear map that is applied at every step: the four heads of a cell are one, and so are the two maps of an LSTM.
#[derive(Debug, Clone)]
pub(super) struct Map {
    pub inputs: usize,
    pub outputs: usize,
    pub sources: Vec<Source>,
    /// Names of parameters whose gradients are sums of columns behind the outputs' (w_tau and A), and their length.
    pub columns: Vec<String>,
    pub column_len: usize,
    /// Where the packed matrix, the padded bias (and behind it those parameters), and the packed transposed matrix begin.
    pub packed: usize,
    pub bias: usize,
    pub packed_back: usize,
    /// Where its columns begin in a row of gradients, and its operands in a row of operands.
    pub grad: usize,
    pub operand: usize,
}

/// Every map of a problem: the LSTM's first, then cell by cell the backbone's and the heads'.
#[derive(Debug, Clone, Default)]
pub(super) struct Net {
    pub maps: Vec<Map>,
    /// Columns of packed matrices, and biases, are padded to a multiple of this.
    padding: usize,
    pub packed: usize,
    pub bias: usize,
    pub packed_back: usize,
    /// The widths of a row of gradients, and of operands.
    pub grads: usize,
    pub operands: usize,
    /// The widest inputs and outputs of a map.
    pub widest_input: usize,
    pub widest_output: usize,
}

impl Map {
    /// Its columns in a row of gradients.
    pub fn grads(&self) -> usize {
        self.outputs + self.columns.len() * self.column_len
    }
}

impl Net {
    /// The maps of `p`, with columns padded to a multiple of `padding`.
    pub fn of(p: &Cfc, padding: usize) -> Self {
        let mut net = Self { padding, ..Self::default() };
        let whole = |weight: String, bias: Option<String>, outputs, inputs| Source {
            weight,
            bias,
            mask: None,
            outputs,
            inputs,
            first_output: 0,
            first_input: 0,
        };
        if p.mixed_memory {
            let (d, h) = (p.inputs, p.hidden());
            let input = whole("lstm_input_map_weight".into(), Some("lstm_input_map_bias".into()), 4 * h, d);
            let recurrent = Source { first_input: d, ..whole("lstm_recurrent_map_weight".into(), None, 4 * h, h) };
            net.push(d + h, 4 * h, vec![input, recurrent], Vec::new(), 0);
        }
        for (l, cell) in p.cells.iter().enumerate() {
            let (n, mut reads) = (cell.hidden, p.reads(l));
            for i in 0..p.backbone_layers {
                let named = |part: &str| p.named(l, &format!("backbone_{i}_{part}"));
                let u = p.backbone_units;
                net.push(reads, u, vec![whole(named("weight"), Some(named("bias")), u, reads)], Vec::new(), 0);
                reads = u;
            }
            let head = |(k, name): (usize, &&str)| Source {
                mask: (cell.masked && name.starts_with("ff")).then(|| p.named(l, "sparsity_mask")),
                first_output: k * n,
                ..whole(p.named(l, &format!("{name}_weight")), Some(p.named(l, &format!("{name}_bias"))), n, reads)
            };
            let heads = p.mode.heads();
            let columns = if p.mode == Mode::Pure { vec![p.named(l, "w_tau"), p.named(l, "A")] } else { Vec::new() };
            net.push(reads, heads.len() * n, heads.iter().enumerate().map(head).collect(), columns, n);
        }
        net
    }
    fn push(&mut self, inputs: usize, outputs: usize, sources: Vec<Source>, columns: Vec<String>, column_len: usize) {
        let extra = columns.len() * column_len;
        let padded = |n: usize| n.next_multiple_of(self.padding);
        let (packed, back) = (inputs * padded(outputs), outputs * padded(inputs));
        let bias = padded(outputs) + columns.len() * padded(column_len);
        self.maps.push(Map {
            inputs,
            outputs,
            sources,
            columns,
            column_len,
            packed: self.packed,
            bias: self.bias,
            packed_back: self.packed_back,
            grad: self.grads,
            operand: self.operands,
        });
        self.packed += packed;
        self.bias += bias;
        self.packed_back += back;
        self.grads += outputs + extra;
        self.operands += inputs;
        self.widest_input = self.widest_input.max(inputs);
        self.widest_output = self.widest_output.max(outputs);
    }
    /// The maps of cell `l`.
    pub fn cell(&self, p: &Cfc, l: usize) -> &[Map] {
        let each = p.backbone_layers + 1;
        &self.maps[usize::from(p.mixed_memory) + l * each..][..each]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_stand_behind_each_other() {
        let p = Cfc { mode: Mode::Pure, mixed_memory: true, ..Cfc::wired(2, 3, 4, &[5, 3]) };
        let net = Net::of(&p, 1);
        assert_eq!(net.maps.iter().map(|m| (m.inputs, m.outputs)).collect::<Vec<_>>(), [(12, 32), (9, 5), (8, 3)]);
        assert_eq!((net.grads, net.operands), (32 + 15 + 9, 12 + 9 + 8));
        assert_eq!(net.maps[2].grad, 47);
        assert_eq!(net.cell(&p, 1)[0].columns, ["layer_1_w_tau", "layer_1_A"]);
        let two = Net::of(&Cfc { backbone_layers: 2, ..Cfc::new(2, 3, 4, 5) }, 32);
        assert_eq!(
            two.maps.iter().map(|m| (m.inputs, m.outputs)).collect::<Vec<_>>(),
            [(9, 128), (128, 128), (128, 20)]
        );
        // 9 and 128 rows of 128 columns, 128 of 20 padded ones; backwards 128 of 9 padded ones and 128, and 20 of 128.
        assert_eq!((two.packed, two.packed_back), (9 * 128 + 128 * 128 + 128 * 32, 128 * 32 + 128 * 128 + 20 * 128));
    }
}
