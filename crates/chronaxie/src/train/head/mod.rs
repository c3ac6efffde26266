//! The last layer of a trained model: recurrent states in, logits or predictions, a loss and its gradients out.
//!
//! With the states `h [B, T, M]`, of which row b has `lengths[b]` valid steps, and f the state that the pooling picks:
//!
//! ```text
//! y[b, c] = bias[c] + sum_m weight[c, m] f[b, m]
//! cross-entropy: loss[b] = log sum_c exp y[b, c] - y[b, labels[b]]
//! squares:       loss[b] = sum_c (y[b, c] - values[b, c])^2 / C
//! loss = sum_b loss[b] / (rows with lengths[b] > 0)
//! ```
//!
//! * [`Pooling::Last`]: f is the state of the last valid step.
//! * [`Pooling::Mean`]: f is the mean of the states of the valid steps.
//! * [`Pooling::Every`]: every valid step gets its own y and its own loss against the row's target; `loss[b]` and the
//!   row's `y` are their means.
//!
//! A row of length 0 is padding: it adds nothing, its y is 0 and so are its gradients. Steps beyond a row's length are
//! never read, and their gradients are written as 0.
//!
//! Cost: for B = 32, T = 29, M = 64, C = 9 some 10^5 operations, a thousandth of the recurrence's, so the kernels are
//! the simplest ones that give the same bits every time: no atomics, sums in an order that the problem alone decides.

mod cpu;
mod cuda;
mod op;
mod reference;
mod spec;

pub use op::LinearHeadOp;
pub use spec::{LinearHead, Loss, Pooling, check_labels};
