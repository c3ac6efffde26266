//! The LSTM of mixed memory: `c' = sigmoid(fg + 1) c + sigmoid(ig) tanh(i)` and `h' = sigmoid(og) tanh(c')`, with
//! `[i, ig, fg, og] = W x + b + R h`.

use super::{Fields, Model, sum};
use crate::real::Real;

/// One step of the LSTM.
pub(super) struct LstmStep<R> {
    /// `[4, H]`: tanh(i), sigmoid(ig), sigmoid(fg + 1), sigmoid(og).
    gates: Vec<R>,
    /// The cell before and after the step.
    pub(super) c: [Vec<R>; 2],
    /// The state before the step.
    h: Vec<R>,
}

impl<R: Real> Model<'_, R> {
    /// One step of the LSTM: what is kept of it, and the new state.
    pub(super) fn lstm(&self, x: &[R], h: &[R], c: &[R]) -> (LstmStep<R>, Vec<R>) {
        let (f, n, d) = (self.f, h.len(), x.len());
        let dot = |w: &[R], x: &[R]| sum(w.iter().zip(x).map(|(&w, &x)| w * x));
        let gates: Vec<R> = (0..4 * n)
            .map(|k| {
                let z = f.lstm_input_map_bias[k]
                    + dot(&f.lstm_input_map_weight[k * d..][..d], x)
                    + dot(&f.lstm_recurrent_map_weight[k * n..][..n], h);
                match k / n.max(1) {
                    0 => z.tanh(),
                    2 => (z + R::one()).sigmoid(),
                    _ => z.sigmoid(),
                }
            })
            .collect();
        let new: Vec<R> = (0..n).map(|j| c[j] * gates[2 * n + j] + gates[j] * gates[n + j]).collect();
        let state = (0..n).map(|j| new[j].tanh() * gates[3 * n + j]).collect();
        (LstmStep { gates, c: [c.to_vec(), new], h: h.to_vec() }, state)
    }
    /// From the gradients of the LSTM's state and cell after a step (the cell's in place) to those before it; adds to the
    /// gradient of x and to those of the parameters.
    pub(super) fn lstm_back(
        &self,
        x: &[R],
        step: &LstmStep<R>,
        a: &mut [R],
        c: &mut [R],
        grad: &mut Fields<R>,
        grad_x: &mut [R],
    ) {
        let (f, n, d, one) = (self.f, a.len(), x.len(), R::one());
        let mut dz = vec![R::zero(); 4 * n];
        for j in 0..n {
            let [i, ig, fg, og] = [0, 1, 2, 3].map(|k| step.gates[k * n + j]);
            let y = step.c[1][j].tanh();
            let dc = c[j] + a[j] * og * (one - y) * (one + y);
            dz[j] = dc * ig * (one - i) * (one + i);
            dz[n + j] = dc * i * ig * (one - ig);
            dz[2 * n + j] = dc * step.c[0][j] * fg * (one - fg);
            dz[3 * n + j] = a[j] * y * og * (one - og);
            c[j] = dc * fg;
        }
        a.fill(R::zero());
        for (k, &dz) in dz.iter().enumerate() {
            grad.lstm_input_map_bias[k] = grad.lstm_input_map_bias[k] + dz;
            for i in 0..d {
                let at = k * d + i;
                grad.lstm_input_map_weight[at] = grad.lstm_input_map_weight[at] + dz * x[i];
                grad_x[i] = grad_x[i] + dz * f.lstm_input_map_weight[at];
            }
            for j in 0..n {
                let at = k * n + j;
                grad.lstm_recurrent_map_weight[at] = grad.lstm_recurrent_map_weight[at] + dz * step.h[j];
                a[j] = a[j] + dz * f.lstm_recurrent_map_weight[at];
            }
        }
    }
}
