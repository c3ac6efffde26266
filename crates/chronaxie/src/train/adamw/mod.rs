//! AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019) over one flat vector, with the
//! gradient clipped to a global norm.
//!
//! With the gradient `grad [N]`, the weights of the decay `decay [N]`, the learning rate `rate [1]` and the number of
//! steps taken so far in `step [1]`, one step is
//!
//! ```text
//! t = step + 1
//! grad_norm = sqrt(sum_n grad[n]^2)
//! g = grad min(1, clip / grad_norm)                       (no clipping where clip is 0)
//! first  = beta1 first  + (1 - beta1) g
//! second = beta2 second + (1 - beta2) g^2
//! parameter = parameter (1 - rate weight_decay decay)
//!             - rate / (1 - beta1^t) first / (sqrt(second / (1 - beta2^t)) + epsilon)
//! step = t
//! ```
//!
//! `parameter`, `first`, `second` and `step` are state: read, then overwritten in place. Nothing returns to the host:
//! the norm stays on the device, and so does the step. A whole model is one call, because its parameters lie in one
//! buffer; the gaps between them have zero gradients and stay as they are.
//!
//! Cost: 28 bytes and about 15 operations an element, so memory binds; two kernels.

mod cpu;
mod cuda;
mod op;
mod reference;
mod spec;

pub use op::AdamWOp;
pub use spec::AdamW;
