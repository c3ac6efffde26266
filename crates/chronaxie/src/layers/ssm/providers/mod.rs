//! Where gates and inputs of scans come from: each model's parameters, how they become what a scan takes, the gradients
//! back to them, and its paper's initialisation.
//!
//! Everything here has no time, or is elementwise in it; the recurrence itself is a scan's. Maps are generic over
//! [`Real`](crate::real::Real), so that dual numbers check their gradients.

pub mod gated;
pub mod lru;
pub mod mamba;
pub mod polar;
pub mod s4d;
pub mod s5;
pub mod unitary;

mod hermitian;
#[cfg(test)]
mod tests;

/// One model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Provider {
    /// Its name.
    pub name: &'static str,
    /// The entry that runs it.
    pub scan: &'static str,
    /// The gate.
    pub gate: &'static str,
    /// What is added at each step.
    pub input: &'static str,
    /// Where it was published.
    pub source: &'static str,
}

/// Every model.
pub const TABLE: [Provider; 9] = [
    Provider {
        name: "s4d",
        scan: "selective_scan",
        gate: "exp(delta A)",
        input: "(exp(delta A) - 1) / A u",
        source: s4d::SOURCE,
    },
    Provider {
        name: "s5",
        scan: "linear_scan_complex",
        gate: "exp(delta lambda)",
        input: "(exp(delta lambda) - 1) / lambda (B u)",
        source: s5::SOURCE,
    },
    Provider {
        name: "lru",
        scan: "linear_scan_complex",
        gate: "exp(-exp(nu) + i exp(phi))",
        input: "sqrt(1 - |a|^2) (B u)",
        source: lru::SOURCE,
    },
    Provider {
        name: "rglru",
        scan: "linear_scan",
        gate: "sigmoid(Lambda)^(8 sigmoid(r))",
        input: "sqrt(1 - a^2) sigmoid(i) x",
        source: gated::RGLRU_SOURCE,
    },
    Provider {
        name: "mingru",
        scan: "linear_scan",
        gate: "1 - sigmoid(k)",
        input: "sigmoid(k) x",
        source: gated::MINGRU_SOURCE,
    },
    Provider {
        name: "mamba",
        scan: "selective_scan",
        gate: "exp(delta_t A)",
        input: "delta_t B_t u_t",
        source: mamba::SOURCE,
    },
    Provider {
        name: "bilinear",
        scan: "selective_scan",
        gate: "(1 + delta A / 2) / (1 - delta A / 2)",
        input: "delta / (1 - delta A / 2) B u",
        source: s4d::BILINEAR_SOURCE,
    },
    Provider {
        name: "adaptive_unitary",
        scan: "adaptive_theta",
        gate: "exp(i theta_t), theta = W u + bias",
        input: "delta B silu(u)",
        source: unitary::SOURCE,
    },
    Provider {
        name: "adaptive_polar",
        scan: "adaptive_theta",
        gate: "exp(-softplus(rho_t) + i theta_t)",
        input: "sqrt(1 - |a|^2) B v, or as adaptive_unitary",
        source: polar::SOURCE,
    },
];
